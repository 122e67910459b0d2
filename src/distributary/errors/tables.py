"""What is wrong with tables, or with what would be written to them."""

from __future__ import annotations

from distributary.errors.roots import BadInput, EnvironmentFault, NeedsAttention, Outage


class StoreDown(Outage):
    condition = "STORE_DOWN"
    template = "{path} cannot be written: {detail}. Nothing was advanced; the batch will be tried again."


class StoreUnreadable(EnvironmentFault):
    condition = "STORE_UNREADABLE"
    template = (
        "{path} cannot be read: {detail}. Check the path, and the credentials in tables.storage_options. If files of "
        "its _delta_log are missing or damaged, put them back from a backup (docs/stores.md, Damaged logs)."
    )


class StoreUnfit(EnvironmentFault):
    """A place where two writers could not be kept apart."""

    condition = "STORE_UNFIT"
    template = "{path} is no place for tables, nor for a pipeline's state. {detail}. {remedy}"


class TableCollision(BadInput):
    condition = "TABLE_COLLISION"
    template = (
        "route {route!r} maps to table {table}, which belongs to {owner}. Give this route a name of its "
        "own: name below tables.routes.{route!r}; of change files, log and merged below tables.routes.{route!r}. "
        "Before the pipeline's first run, tables.name or tables.root may be changed as well."
    )


class WideUnfit(BadInput):
    condition = "WIDE_UNFIT"
    template = (
        "the wide table {table} cannot be written by engine task: {detail}. Take that back, or use another layout for "
        "a new pipeline."
    )


class ExpectationBroken(NeedsAttention):
    condition = "EXPECTATION_BROKEN"
    template = (
        "{route}: {rows} rows break the expectation {name!r}, which says fail. They are kept; fix the data or the "
        "expectation, and the table goes on by itself"
    )


class KeysChanged(NeedsAttention):
    """The table's rows were told apart by other columns than its events name now: they cannot share one table."""

    condition = "KEYS_CHANGED"
    template = (
        "{route}: the rows of {table} are told apart by {known}, but its events by {found}. It is not merged any "
        "further; its log goes on. If the source's key has changed for good, rebuild it: "
        "distributary resync FILE --route {route}"
    )


class KeysSwitched(NeedsAttention):
    """A table was begun with other keys of messages than the pipeline file gives now, or with none."""

    condition = "KEYS_SWITCHED"
    template = (
        "{route}: {table} {detail}. A table keeps the keys that it was begun with: give the route another one "
        "(tables.routes.<route>.name), or remove it and read the source anew"
    )


class LogBegunAnew(NeedsAttention):
    """Two changes of one row cannot be of one log: which is the newer one cannot be told from them."""

    condition = "LOG_BEGUN_ANEW"
    template = (
        "{route}: the log of its source has begun anew: {detail}. {table} is not merged any further; its log table "
        "goes on. If the server's log was reset, or another server took over, say since when, at the latest {since}: "
        "source.epochs (or tables.routes.{route}.epochs); the next run then merges it anew from its log table. If not "
        "(a statement or a transaction that ran for so long, a clock that was wrong by so much), raise "
        "source.restart_margin"
    )


class KeyTypeChanged(NeedsAttention):
    """A key column's values do not fit into the merged table's column, and its engine cannot make that one wider."""

    condition = "KEY_TYPE_CHANGED"
    template = (
        "{route}: key column {column!r} of {table} is of type {known}, but its keys need {needed} now, and the table "
        "cannot be written anew by itself ({why}). It is not merged any further; its log goes on. Rebuild it: {remedy}"
    )


class QuarantineLimit(NeedsAttention):
    condition = "QUARANTINE_LIMIT"
    template = (
        "batch {batch}: {bad} of {rows} rows were quarantined, over the limit ({limit}). The batch is finished: good "
        "rows are in their tables, bad rows in the quarantine. Most frequent reason: {reason}. Fix the cause, run "
        "again, then: distributary replay FILE"
    )


class ReplayMismatch(NeedsAttention):
    """A replayed batch decodes to other rows than the commit it finds. Never guessed away."""

    condition = "REPLAY_MISMATCH"
    template = (
        "{table}: batch {batch} was committed with {committed} rows, but now decodes to {decoded}. Finish this batch "
        "with the version of distributary that began it ({version})."
    )
