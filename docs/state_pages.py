"""What docs/generate.py makes of the words for states: docs/states.md.

A state of a stream or of a merge that has no words here, and words for one that is gone, are errors.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import get_args

from distributary.audit.status.facts import QUARANTINED
from distributary.engine.outcomes import MergeState
from distributary.state.streams import StreamState

_INTRO = """\
# States

<!-- Made by docs/generate.py from docs/state_pages.py; edit that. -->

What the words in `status`, `status --json` and the quarantine say, and whether somebody has to act.
"""
_TABLES = {
    "written": "Its newest batch wrote rows to it. Nothing to do.",
    "replayed": "Rows came back into it out of the quarantine. Nothing to do.",
    "empty": "Its newest batch had no rows for it. Nothing to do.",
    QUARANTINED: "More than half of the rows of its last batch with rows were set aside. Look: "
    "`distributary quarantine FILE --route R`.",
    "parked": "It cannot be written. Its rows wait in the quarantine, and it is tried again by itself, with growing "
    "rests. `error` says why.",
}
_MERGES = {
    "merged": "The newest of each key is in it. Nothing to do.",
    "waiting": "Events are in the log table, and come in with the next merge (`tables.merge_every`). Nothing to do.",
    "rows": "Inside of a batch: events lie in files, and are merged before it ends.",
    "append_only": "The source table has no key, so there is a log table only.",
    "parked": "The merge fails, while the log table goes on. `error` says why, and what to do.",
    "off": "This pipeline has no merged table.",
}
_STREAMS = {
    "waiting": "It has not been started yet.",
    "running": "Nothing to do.",
    "resting": "It has failed and starts again at `next_try`, by itself.",
    "parked": "It has failed too often, or with an error that a restart does not fix. Fix the cause, then "
    "`distributary workflow restart FILE STREAM`.",
    "done": "It has taken all that was there (`--once`).",
    "stopped": "Somebody has stopped it.",
}
_RECORDS = {
    "open": "It waits for a `replay`.",
    "claimed": "A replay has begun to bring it in; if that died, the next replay finishes it.",
    "replayed": "It is in its table.",
}


def states_page() -> str:
    """docs/states.md. Raises LookupError where words and code differ."""
    _same("merges", _MERGES, get_args(MergeState))
    _same("streams", _STREAMS, [state.value for state in StreamState])
    parts = (
        ("A table (`state`)", _TABLES),
        ("A merged table, or one of the newest of each key (`merge_state`)", _MERGES),
        ("A stream of a supervisor (`streams`)", _STREAMS),
        ("A record in the quarantine (`state`)", _RECORDS),
    )
    tables = [
        f"\n## {title}\n| state | says |\n|---|---|\n"
        + "".join(f"| `{state}` | {says} |\n" for state, says in words.items())
        for title, words in parts
    ]
    return _INTRO + "".join(tables)


def _same(what: str, words: Mapping[str, str], states: Collection[str]) -> None:
    if off := words.keys() ^ set(states):
        raise LookupError(f"docs/state_pages.py and the states of {what} differ in {', '.join(sorted(off))}")
