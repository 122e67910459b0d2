"""Where the state of a pipeline is that is spread over several processes, and which division of its routes holds.

    <state>/shares/current.json                    which generation the streams follow now
    <state>/shares/<generation>/division.json      its division, kept for good
    <state>/shares/<generation>/<cluster>/         ledger, quarantine, checkpoint, plans and locks of one share

Each share is a whole stream: it has its own checkpoint, so its own stream id and transactions in the tables, and its
own ledger. What the pipeline did is the sum over `parts`: rows in a ledger only ever add up. Two divisions at work at
once would write some routes twice and others never, so a share of another division than the current one is refused. A
division that comes back after another one is a new generation: its streams begin where the ones before it ended.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from distributary.config import Pipeline, SharesFolder
from distributary.errors import ShareConflict
from distributary.shares import Division
from distributary.state.cleaning import check_not_begun
from distributary.state.ledger import Entry, Ledger, is_batch, read_entries
from distributary.state.lock import only_run
from distributary.state.state_format import check_format
from distributary.tables.files import names_in
from distributary.tables.store import Store, join


@dataclass(frozen=True)
class Current:
    """The division that the streams of a pipeline follow."""

    division: Division
    generation: int

    def parts(self, config: Pipeline) -> list[Pipeline]:
        return [config.for_share(share) for share in self.division.shares(self.generation)]


def current(config: Pipeline, store: Store) -> Current | None:
    """None for a pipeline that runs whole. Raises OSError."""
    body = store.get(config.state_folder.shares, SharesFolder.current.name)
    return None if body is None else _kept(config, int(json.loads(body)["generation"]), store)


def parts(config: Pipeline, store: Store) -> list[Pipeline]:
    """A pipeline per state: the undivided one first, then each share of each division that there has been.

    Raises StateNewer, StoreUnreadable, OSError when the state folder cannot be read.
    """
    check_format(config, store)
    names = names_in(config.state_folder.shares, store)
    generations = sorted(int(name) for name in names if name.isdecimal())
    pipelines = [config]
    for generation in generations:
        division = _kept(config, generation, store)
        pipelines += division.parts(config) if division is not None else []
    return pipelines


def all_entries(config: Pipeline, store: Store) -> list[Entry]:
    """The ledgers' entries of all `parts`, one part after the other. Raises TableFault, OSError."""
    return [entry for stream in parts(config, store) for entry in read_entries(stream.state_root, store)]


def current_parts(config: Pipeline, store: Store) -> list[Pipeline]:
    """The parts that run now: the shares of the current division, or the pipeline itself. Raises OSError."""
    division = current(config, store)
    return [config] if division is None else division.parts(config)


def claim(config: Pipeline, division: Division | None, store: Store) -> int:
    """Before a run: let the pipeline follow `division` (None: run whole), if it follows no other one.

    Returns the generation. Raises ShareConflict when it does, CleanUnfinished, StateNewer, OSError when the state
    folder cannot be written.
    """
    check_not_begun(config, store)
    followed = current(config, store)
    if followed is None and division is None:
        return 0
    if followed is not None and followed.division == division:
        return followed.generation
    asked_for = "a run of all routes" if division is None else f"a share of {len(division.clusters)} clusters"
    if followed is not None:
        why = f"its routes are divided over {len(followed.division.clusters)} clusters in another way"
        raise ShareConflict(pipeline=config.pipeline, wanted=asked_for, found=why)
    if has_run(config, store):
        raise ShareConflict(pipeline=config.pipeline, wanted=asked_for, found="it has run whole until now")
    assert division is not None
    follow(config, Current(division, 1), store)
    return 1


def follow(config: Pipeline, new: Current, store: Store) -> None:
    """From now on the pipeline follows `new`. None of its streams may be running. Raises OSError, AlreadyRunning."""
    with only_run(config.state_root, config.pipeline, "division"):
        folder = config.state_folder.shares
        body = json.dumps(new.division.to_json()).encode()
        store.put_whole(join(folder, str(new.generation)), SharesFolder.division_file, body)
        store.put_whole(folder, SharesFolder.current.name, json.dumps({"generation": new.generation}).encode())


def has_run(share: Pipeline, store: Store) -> bool:
    """Has this part finished a batch? Raises OSError, TableFault."""
    return any(is_batch(stream) for stream in Ledger(share.state_root, share.pipeline, store).finished)


def _kept(config: Pipeline, generation: int, store: Store) -> Current | None:
    body = store.get(join(config.state_folder.shares, str(generation)), SharesFolder.division_file)
    if body is None:
        return None
    return Current(Division.from_json(json.loads(body), origin=f"division {generation}"), generation)
