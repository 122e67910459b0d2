"""What happens to a source of rows or of files."""

from __future__ import annotations

from distributary.errors.roots import BadInput, NeedsAttention, Outage


class SourceDown(Outage):
    condition = "SOURCE_DOWN"
    template = "the source {source} cannot be read: {detail}. Nothing was advanced."


class SourceMissing(BadInput):
    condition = "SOURCE_MISSING"
    template = "{source} has no {what}"


class SourceDataLost(NeedsAttention):
    condition = "SOURCE_DATA_LOST"
    template = (
        "{source}: {detail}. Rows that were never read are gone at the source. "
        "To accept the loss and go on, set source.on_data_loss: continue; the lost range is then recorded."
    )


class SourceReplaced(NeedsAttention):
    """A Delta table that was dropped and made anew under its path, while the stream ran or between two runs."""

    condition = "SOURCE_REPLACED"
    template = (
        "{source}: another table has taken the place of the one that the stream has read (id {began}, now {now}). Its "
        "rows would be read from the middle. Nothing was written from it. Put the old table back, or begin anew: "
        "distributary clean FILE --yes, and run again."
    )


class SourceRewritten(NeedsAttention):
    """Delta refuses to stream past a commit that deleted or rewrote rows (GDPR deletes, MERGE, overwrite)."""

    condition = "SOURCE_REWRITTEN"
    template = (
        "{source}: {detail}. To step over such commits, set source.skip_change_commits: true, and repeat the delete in "
        "the tables that were written from these rows."
    )


class SourceHistoryGone(NeedsAttention):
    """The stream was down for longer than the source keeps its log or its removed files."""

    condition = "SOURCE_HISTORY_GONE"
    template = (
        "{source}: {detail}. Changes that were never read are gone at the source; its retention "
        "(delta.logRetentionDuration, delta.deletedFileRetentionDuration) is shorter than the stream was down. Restore "
        "the log, or begin anew: distributary clean FILE --yes, and run again."
    )


class FileBroken(NeedsAttention):
    """A change file of which nothing can be read. It is set aside with its path; the other files go on."""

    condition = "FILE_BROKEN"
    template = (
        "{path} cannot be read: {detail}. Put a whole file in its place and replay it; "
        "the other files are not affected."
    )
