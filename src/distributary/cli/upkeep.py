"""Verbs that look after the tables of a pipeline: maintain, resync, views, reconcile."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from distributary.cli.options import File, Json
from distributary.cli.output import say, say_json
from distributary.errors import BadInput, Exit
from distributary.kinds import kind_of
from distributary.names import shown

if TYPE_CHECKING:
    from distributary.config import Pipeline

Route = Annotated[str, typer.Option(help="The source table, as `status` names it.", show_default=False)]


def maintain(file: File, as_json: Json = False) -> Exit:
    """Compact and vacuum tables, purge tombstones.

    Settings: `maintenance` in the pipeline file. Works beside a run: where both write to a table at
    the same moment, the run wins and the next upkeep does it.
    """
    config = _load(file)
    from distributary.running.maintain import maintain as look_after

    skipped = False
    for upkeep in look_after(config):
        skipped = skipped or upkeep.skipped is not None
        if as_json:
            say_json(asdict(upkeep))
            continue
        state = upkeep.skipped or ("busy, left for next time" if upkeep.busy else "")
        text = f"{upkeep.files_before} files, now {upkeep.files_after}; {upkeep.purged} tombstones purged; "
        text += f"{upkeep.moved} moved beside the table; " if upkeep.moved else ""
        older = f" (older ones stay: {upkeep.held})" if upkeep.held else ""
        text += "its files are left to its catalog" if upkeep.by_catalog else f"{upkeep.vacuumed} old files removed"
        say(f"{shown(upkeep.table, 1000)}: {shown(state or text + older, 1000)}")
    return Exit.ATTENTION if skipped else Exit.OK


def resync(file: File, route: Route, as_json: Json = False) -> None:
    """Rebuild one table from bronze or its log.

    Layout two_hop: from bronze. Quarantined rows that decode now come into the table, rows that do not decode any more
    go out of it into the quarantine. Of change files, Debezium's topics and messages with keys: the merged table and
    its history, from the log, by the keys of the newest events or of the pipeline file. Everything may run meanwhile:
    the new rows take the old ones' place in one commit.
    """
    rebuilt = kind_of(_load(file), file).resync(route)
    if as_json:
        say_json(rebuilt.counts)
        return
    for line in rebuilt.lines:
        say(line)


def views(file: File, as_json: Json = False) -> None:
    """Create the views of a wide table again.

    A run makes and renews them by itself; this does it by hand, for all routes: for a catalog that has lost them, or
    one that they are to be in from now on. Readers go on meanwhile: each view changes in one step.
    """
    config = _load(file)
    refreshed = kind_of(config, file).refresh_views()
    if as_json:
        for view in refreshed:
            say_json({**asdict(view), "database": config.tables.database})
        return
    for view in refreshed:
        say(f"{shown(view.route)}: view {config.tables.database or 'without a catalog'}.{view.name}")
    if config.tables.database is None:
        say(f"tables.database is not set: no catalog has them; their text is in {config.state_folder.views}")
    elif not refreshed:
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
    about = kind_of(config, file).known(route)
    from distributary.config.quantities import milliseconds
    from distributary.repair.reconcile import Reconcile
    from distributary.repair.resync_changes import known_route, rebuild

    try:
        start = None if since is None else milliseconds(since)
    except ValueError as error:
        raise BadInput(detail=f"--since {since!r}: allowed: a time like 2026-03-01T12:00:00Z") from error
    reconciliation = Reconcile(config, route, about.source, about.keys, start)
    state = reconciliation.plan()
    if apply and state.vanished:
        state = reconciliation.apply()
        # Asked anew: a run may have brought new columns meanwhile.
        rebuild(config, route, known_route(config, route))
    if as_json:
        say_json(asdict(state))
        return
    verb = "deleted" if state.done else "would be deleted"
    say(f"{state.table}: the backfill since {state.since} showed {state.shown:,} keys; {state.vanished:,} rows {verb}")
    for key in state.keys:
        say("  " + ", ".join(f"{shown(name)} {shown(value)}" for name, value in key.items()))
    if state.vanished and not state.done:
        say("to delete them: the same command with --apply")


def _load(file: Path) -> Pipeline:
    from distributary.config import load

    return load(file)
