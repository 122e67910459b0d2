"""Logs of tables that a disk or a hand has damaged: said, the other tables go on, and what is put back holds."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from deltalake import DeltaTable

from distributary.audit.verify import verify
from distributary.config import load
from distributary.errors import DistributaryError
from tests.faults.pipelines import Piped, Place, Seen, concluded, expect

Damage = Callable[[Path], None]
"""Of the folder `_delta_log`."""


def _commits(log: Path) -> list[Path]:
    return sorted(log.glob("0*.json"))


def missing(log: Path) -> None:
    _commits(log)[-2].unlink()


def newest_missing(log: Path) -> None:
    _commits(log)[-1].unlink()


def empty(log: Path) -> None:
    _commits(log)[-1].write_bytes(b"")


def empty_within(log: Path) -> None:
    _commits(log)[-2].write_bytes(b"")


def half(log: Path) -> None:
    file = _commits(log)[-1]
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def cut_checkpoint(log: Path) -> None:
    file = max(log.glob("*.checkpoint.parquet"))
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def garbage_hint(log: Path) -> None:
    (log / "_last_checkpoint").write_bytes(b"\x00garbage")


def _damaged(place: Place, where: str, damage: Damage, *conditions: str, shown: bool = True) -> Seen:
    """Damage a log between two runs, run, ask `verify`, put back what was there. `shown`: readers notice it."""
    seen = Seen()
    piped = Piped(place.folder)
    for _ in range(4):
        piped.feed(40)
    expect(seen, piped.run(), "")
    log = place.folder / where / "_delta_log"
    if damage in (cut_checkpoint, garbage_hint):
        DeltaTable(log.parent).create_checkpoint()
    before = {file.name: file.read_bytes() for file in log.iterdir() if file.is_file()}
    damage(log)
    piped.feed(40)
    ended = piped.run()
    expect(seen, ended, *conditions, names=(where,) if ended.condition else ())
    parked = "" if ended.condition else _parked(piped, where)
    seen.words = seen.words or parked
    if not ended.condition and parked and where not in parked:
        seen.wrong.append(f"nothing of {where} in: {parked}")
    try:
        verified = verify(load(piped.file))
        alarm = not verified.ok
    except DistributaryError as e:
        alarm = True
        seen.words = seen.words or str(e)
    if alarm != shown:
        seen.wrong.append(f"verify says {'something is wrong' if alarm else 'all is right'}: {parked}")
    for name, body in before.items():
        (log / name).write_bytes(body)
    seen.went_on = "once the log was put back"
    # A table that was parked is tried again with a batch that comes after its rest.
    for _ in range(10):
        piped.feed(10)
        if piped.run().condition or piped.is_right():
            break
        time.sleep(1)
    return concluded(piped, seen)


def _parked(piped: Piped, where: str) -> str:
    """What the ledger says of a table that was not written."""
    from distributary.state.ledger import Ledger
    from distributary.tables.store import Store

    newest = Ledger(str(piped.keys["state"]), "faults", Store()).newest.values()
    return "; ".join(f"{e.table}: {e.error}" for e in newest if e.state == "parked")


def _of_table(damage: Damage, *conditions: str, shown: bool = True) -> Callable[[Place], Seen]:
    return lambda place: _damaged(place, "lake/ash", damage, *(conditions or ("",)), shown=shown)


def _of_ledger(damage: Damage, *conditions: str, shown: bool = True) -> Callable[[Place], Seen]:
    return lambda place: _damaged(place, "state/ledger", damage, *conditions, shown=shown)


def _of_quarantine(damage: Damage, *conditions: str, shown: bool = True) -> Callable[[Place], Seen]:
    return lambda place: _damaged(place, "state/quarantine", damage, *conditions, shown=shown)


def _of_source(damage: Damage, *conditions: str, shown: bool = False) -> Callable[[Place], Seen]:
    return lambda place: _damaged(place, "source", damage, *conditions, shown=shown)


SCENARIOS = {
    "log of a table: a commit missing": _of_table(missing),
    "log of a table: newest commit empty": _of_table(empty),
    "log of a table: a commit empty": _of_table(empty_within),
    "log of a table: newest commit cut": _of_table(half),
    "log of a table: checkpoint cut": _of_table(cut_checkpoint),
    "log of a table: _last_checkpoint garbage": _of_table(garbage_hint, shown=False),
    "log of the ledger: a commit missing": _of_ledger(missing, "STORE_UNREADABLE"),
    "log of the ledger: newest commit empty": _of_ledger(empty, "STORE_UNREADABLE"),
    "log of the ledger: newest commit cut": _of_ledger(half, "STORE_UNREADABLE"),
    "log of the ledger: checkpoint cut": _of_ledger(cut_checkpoint, "STORE_UNREADABLE"),
    "log of the quarantine: a commit missing": _of_quarantine(missing, "STORE_UNREADABLE", "STORE_DOWN"),
    "log of the quarantine: newest commit cut": _of_quarantine(half, "STORE_UNREADABLE", "STORE_DOWN"),
}
