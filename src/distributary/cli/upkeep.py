"""Verbs that look after the tables of a pipeline: maintain, resync, views, reconcile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from distributary.cli.options import File, Json
from distributary.cli.output import note, say, say_json, show
from distributary.errors import BadInput, Exit
from distributary.names import shown

if TYPE_CHECKING:
    from distributary.config import Pipeline
    from distributary.engine.changes.micro_batch import Behind
    from distributary.errors import Reason

Route = Annotated[str, typer.Option(help="The source table, as `status` names it.", show_default=False)]


def maintain(file: File, as_json: Json = False) -> Exit:
    """Compact and vacuum tables, purge tombstones.

    Settings: `maintenance` in the pipeline file. Works beside a run: where both write to a table at
    the same moment, the run wins and the next upkeep does it.
    """
    config = _load(file)
    from distributary.running.maintain import maintain as look_after

    skipped = False
    for done in look_after(config):
        skipped = skipped or done.skipped is not None
        if as_json:
            say_json(asdict(done))
            continue
        state = done.skipped or ("busy, left for next time" if done.busy else "")
        what = f"{done.files_before} files, now {done.files_after}; {done.purged} tombstones purged; "
        held = f" (older ones stay: {done.held})" if done.held else ""
        say(f"{shown(done.table, 1000)}: {shown(state or what + f'{done.vacuumed} old files removed{held}', 1000)}")
    return Exit.ATTENTION if skipped else Exit.OK


def resync(file: File, route: Route, as_json: Json = False) -> None:
    """Rebuild one table from its kept rows.

    Layout two_hop: from bronze. Rows kept aside that decode now come into the table, rows that do not decode any more
    go out of it into the quarantine. Of change files: the merged table, from its log, by the keys of the newest events
    or of the pipeline file. Everything may run meanwhile: the new rows take the old ones' place in one commit.
    """
    config = _load(file)
    if config.layout == "two_hop":
        _resync_from_bronze(config, route, as_json)
        return
    known = _known(file, config, route)
    from distributary.repair.resync_changes import rebuild

    done = rebuild(config, route, known)
    if as_json:
        say_json(asdict(done))
        return
    keys = ", ".join(map(shown, known.keys))
    say(f"{done.table}: {done.rows:,} rows from {done.events:,} events of its log, by {keys}")


def _resync_from_bronze(config: Pipeline, route: str, as_json: bool) -> None:
    from distributary.repair.resync_bronze import rebuild

    done = rebuild(config, route)
    if as_json:
        say_json(asdict(done))
        return
    say(f"{done.table}: {done.rows:,} rows from bronze, {done.quarantined:,} kept aside")
    if done.returned:
        say(f"{done.returned:,} rows came out of the quarantine")
    if done.newly_bad:
        say(f"{done.newly_bad:,} rows that were in the table do not decode any more: they are kept aside, see status")


def views(file: File, as_json: Json = False) -> None:
    """Make the views of a wide table anew.

    A run makes and renews them by itself; this does it by hand, for all routes: for a catalog that has lost them, or
    one that they are to be in from now on. Readers go on meanwhile: each view changes in one step.
    """
    config = _load(file)
    from distributary.running.pipeline import session_of
    from distributary.running.views import refresh
    from distributary.state.ledger import Ledger
    from distributary.tables.store import Store

    if config.layout != "wide":
        raise BadInput(detail=f"layout {config.layout} has no views over a wide table; only wide has")
    ledger = Ledger(config.state_root, config.pipeline, Store.of(config.tables))
    made = refresh(session_of(config), config, ledger, anew=True)
    if as_json:
        for view in made:
            say_json({**asdict(view), "database": config.tables.database})
        return
    for view in made:
        say(f"{shown(view.route)}: view {config.tables.database or 'without a catalog'}.{view.name}")
    if config.tables.database is None:
        say(f"tables.database is not set: no catalog has them; their text is in {config.state_folder.views}")
    elif not made:
        say(f"pipeline {config.pipeline} has no routes yet")


def reconcile(
    file: File,
    route: Route,
    since: Annotated[
        str | None, typer.Option(help="When the backfill began; without it, the newest one.", show_default=False)
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Do it. Without it, only say what would be done.")] = False,
    as_json: Json = False,
) -> None:
    """Delete rows that a finished backfill no longer showed.

    For rows that vanished without an event, as by TRUNCATE: keys that the newest full backfill did not show and that
    have no later change become deleted. Run it only once the backfill has finished at the source.
    """
    config = _load(file)
    known = _known(file, config, route)
    from distributary.config.quantities import milliseconds
    from distributary.repair.reconcile import Reconcile
    from distributary.repair.resync_changes import known_route, rebuild

    try:
        start = None if since is None else milliseconds(since)
    except ValueError as error:
        raise BadInput(detail=f"--since {since!r}: allowed: a time like 2026-03-01T12:00:00Z") from error
    one = Reconcile(config, route, known.source, known.keys, start)
    found = one.plan()
    if apply and found.vanished:
        found = one.apply()
        # Asked anew: a run may have brought new columns meanwhile.
        rebuild(config, route, known_route(config, route))
    if as_json:
        say_json(asdict(found))
        return
    verb = "deleted" if found.done else "would be deleted"
    say(f"{found.table}: the backfill since {found.since} showed {found.shown:,} keys; {found.vanished:,} rows {verb}")
    for key in found.keys:
        say("  " + ", ".join(f"{shown(name)} {shown(value)}" for name, value in key.items()))
    if found.vanished and not found.done:
        say("to delete them: the same command with --apply")


def replay_files(config: Pipeline, route: str | None, reasons: Collection[Reason] | None, as_json: bool) -> Exit:
    """Give the files of what is kept aside to the stream once more, and take them unless a run is on that does."""
    from distributary.cli.render import replay_text
    from distributary.engine.changes.retries import Kept
    from distributary.engine.replay import ReplayReport
    from distributary.errors import AlreadyRunning
    from distributary.running.pipeline import Run, run, session_of
    from distributary.state.cleaning import at_work
    from distributary.tables.quarantine import quarantine_uri
    from distributary.tables.store import Store

    store = Store.of(config.tables)
    kept = Kept(quarantine_uri(config.state_root), store)

    def waiting() -> Counter[str]:
        rows = (row for row in kept.open_rows() if route in (None, row.route))
        return Counter(row.route or "" for row in rows if reasons is None or row.reason in reasons)

    before = waiting()
    with at_work(config, store, "replay"):
        failed = Run(config, session_of(config), lambda _: None).replay.run(route, reasons).failed
    try:
        run(config, once=True)
    except AlreadyRunning:
        note(f"{sum(before.values())} rows: the run that goes on takes their files now")
        return Exit.OK
    left = waiting()
    report = ReplayReport(dict(before - left), dict(left), failed=failed)
    say_json(vars(report)) if as_json else show(replay_text(report))
    return Exit.ATTENTION if report.left or report.failed else Exit.OK


def _known(file: Path, config: Pipeline, route: str) -> Behind:
    """The source table and keys of one of the pipeline's routes."""
    from distributary.config import DatastreamSource

    if config.layout == "declarative":
        raise BadInput(detail=f"layout declarative: distributary pipeline run {file} --full-refresh <silver table>")
    if not isinstance(config.source, DatastreamSource):
        detail = f"layout {config.layout} of source.type {config.source.type} keeps no rows to rebuild a table from"
        raise BadInput(detail=f"{detail}; layout two_hop does (bronze), and change files do (tables.log)")
    from distributary.repair.resync_changes import known_route

    return known_route(config, route)


def _load(file: Path) -> Pipeline:
    from distributary.config import load

    return load(file)
