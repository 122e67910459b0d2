"""What docs/generate.py makes from the errors: docs/errors.md, the reference and runbook by error id.

Text, exit code and repeats are taken from the classes. What an id means, and what to do about it step by step, is here;
an id that has no words here, and words for an id that is gone, are errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from distributary import errors
from distributary.errors import DistributaryError, Exit

_INTRO = """\
# Errors

<!-- Made by docs/generate.py from src/distributary/errors and docs/error_pages.py; edit those. -->

An error ends with its id in brackets (faults of a pipeline file are a line each, without). Here is each id: what it
means, and what to do, step by step. What became of single records has ids of its own: [the quarantine](quarantine.md).

| exit code | means | who acts |
|---|---|---|
| 0 | all is well | nobody |
| 1 | the work is done, or stopped in good order, and somebody must look | you, soon |
| 2 | the file, a flag or the state does not fit: nothing was changed | you; to try again does not help |
| 3 | something outside is away: Java, broker, registry, store | it; *tried again*: a running stream does so by itself |
| 130 | interrupted | nobody |

A supervisor should restart on 1 and 3, and not on 2 (deploy/distributary.service does so). `status` shows the errors of
parked tables.
"""


@dataclass(frozen=True)
class Words:
    """What an error means, and what to do: one step each."""

    means: str
    steps: tuple[str, ...]


def _w(means: str, *steps: str) -> Words:
    return Words(means, steps)


_GROUPS: dict[str, dict[str, Words]] = {
    "The pipeline file": {
        "CONFIG_INVALID": _w(
            "A key is unknown, missing, or has a value that is not allowed. All faults are listed, with their lines.",
            "Fix the lines that it names; [pipeline files](configuration.md) has every key.",
            "`distributary check FILE` until it says that the file is valid.",
        ),
        "CONFIG_FILE_MISSING": _w("There is no file at the path that was given.", "Give the path of a pipeline file."),
        "SECRET_MISSING": _w(
            "A reference such as `${env:NAME}` or `${file:PATH}` leads to nothing on this machine.",
            "Set the variable, or write the file, for the user that runs the stream.",
            "Of a service, look at the environment of the service, not of your shell.",
        ),
        "SQL_INVALID": _w(
            "An expression of `tables.expectations` or `tables.select` is not valid SQL.",
            "Fix the expression that it names; `distributary check FILE` tries them all.",
        ),
        "LINT_FAILED": _w(
            "A file of `declarative.libraries` does what a definition may not do.",
            "Fix the line that it names; [declarative pipelines](declarative.md) says what is allowed.",
        ),
        "NOT_YET": _w(
            "The verb or the source is not there for this kind of pipeline.", "Use one of those that it names."
        ),
    },
    "The state": {
        "STATE_LOST": _w(
            "The tables have rows of a stream that the state folder does not know: it was lost, emptied, or `state` "
            "points elsewhere. Going on would write rows twice.",
            "Was `state` or `tables.root` changed? Set it back.",
            "Else restore: [the state folder is lost](disaster.md#the-state-folder).",
        ),
        "STATE_OLD": _w(
            "The state folder is older than the tables: a copy of another moment was restored.",
            "Restore tables and state of one moment: [an old copy](disaster.md#an-old-copy-of-the-state).",
        ),
        "STATE_NEWER": _w(
            "A newer release has run this pipeline, and this one cannot go on from its state.",
            "Install the release that it names, or a later one.",
            "To stay with this one, restore the copy of before: [back](upgrade.md#back-to-the-release-before).",
        ),
        "CHECKPOINT_LOST": _w(
            "Spark's checkpoint is gone, is another stream's, or is older than the ledger.",
            "Was `checkpoint` changed? Set it back.",
            "Else restore: [the checkpoint is lost](disaster.md#the-checkpoint).",
        ),
        "CHECKPOINT_DAMAGED": _w(
            "A file of the checkpoint is empty or cut, as after a full disk or a half copy.",
            "Do to the file what the message says; nothing was written meanwhile.",
            "See that the disk has room: `distributary doctor FILE`.",
        ),
        "LAYOUT_CHANGED": _w(
            "The file names another `layout` than the pipeline has run with. Its streams would begin anew.",
            "Set `layout` back, or give the new layout a `pipeline` name and a `tables.root` of its own.",
        ),
        "TABLES_MOVED": _w(
            "`tables.root`, or a pattern of table names, was changed for a pipeline that has run. Its tables would "
            "begin again at the other place, without the rows that they have, and `verify` would miss these.",
            "Set the key that it names back. One route's name alone may change: `tables.routes.<route>.name`.",
            "To have the tables elsewhere: [another address for the tables](backup.md#another-address-for-the-tables).",
        ),
        "CLEAN_UNFINISHED": _w(
            "`distributary clean` was interrupted, so some tables may be gone already.",
            "Finish it: `distributary clean FILE --yes`.",
        ),
        "ALREADY_RUNNING": _w(
            "Another process runs, replays or supervises this pipeline; it is named with its process id.",
            "Leave it, or stop it (SIGTERM) and wait until it has ended.",
            "There is no lock to remove: the kernel gives it back, also after a kill.",
        ),
        "STREAM_TAKEN_OVER": _w(
            "Two processes went on with one checkpoint, on an object store that has no lock. No row was written twice.",
            "See that one runs: stop one of them for good.",
        ),
        "REPLAY_MISMATCH": _w(
            "A batch that was interrupted is done again, and decodes to other rows than those that it has committed: "
            "the release, or the schema's text, has changed in between.",
            "Install the release that it names, run once with `--once`, then upgrade.",
        ),
    },
    "The source": {
        "SOURCE_DOWN": _w(
            "The broker or the source's store does not answer.",
            "`distributary doctor FILE` says what exactly fails: name, port, TLS, credentials.",
            "Nothing is lost while it waits, as long as the source keeps its records.",
        ),
        "SOURCE_MISSING": _w(
            "There is no such topic, table, column or folder.",
            "Compare the name with what is there; `distributary inspect FILE` shows records once it is right.",
        ),
        "SOURCE_DATA_LOST": _w(
            "Records that were never read are gone at the source: retention took them, or the topic was made anew.",
            "Find out since when the stream was down, and raise the topic's retention.",
            "To go on with what is there: `source.on_data_loss: continue`. The range goes into the ledger.",
        ),
        "SOURCE_REPLACED": _w(
            "The Delta table under the source's path is another one than before.",
            "Put the old one back, or begin anew: [the source](disaster.md#the-source).",
        ),
        "SOURCE_REWRITTEN": _w(
            "Rows of the Delta source were deleted or changed (GDPR, MERGE, overwrite), and a stream cannot pass that.",
            "`source.skip_change_commits: true` passes it.",
            "Repeat the delete in the tables that were written from these rows.",
        ),
        "SOURCE_HISTORY_GONE": _w(
            "The stream was down for longer than the Delta source keeps its log or its old files.",
            "Restore the log, or begin anew: `distributary clean FILE --yes`, then run.",
            "Raise `delta.logRetentionDuration` and `delta.deletedFileRetentionDuration` of the source.",
        ),
        "FILE_BROKEN": _w(
            "A change file cannot be read. It is set aside; all others go on.",
            "Put a whole file in its place, then `distributary replay FILE`.",
        ),
        "FIRST_BATCH_UNREADABLE": _w(
            "Not one record of the very first batch can be read as the file says: most likely the file is wrong.",
            "`distributary inspect FILE` shows the records, and the lines that would fit them.",
            "If they really are all bad: `distributary run FILE --force` sets them aside and goes on.",
        ),
    },
    "The registry and schemas": {
        "REGISTRY_DOWN": _w(
            "The registry does not answer, or with errors (5xx, 429). Known schemas are kept; a new one waits.",
            "`distributary doctor FILE`; see that the registry runs and that this machine may reach it.",
        ),
        "REGISTRY_DENIED": _w(
            "The registry refuses the credentials (401, 403).",
            "Check `registry.username` and `registry.password`, or `registry.token`, and what they may read.",
        ),
        "REGISTRY_REFUSED": _w(
            "Something answers at `registry.url`, but not as a registry does: a gateway, a login page, another path.",
            "Open `<registry.url>/subjects` yourself: it must answer with a JSON list.",
        ),
        "REGISTRY_TLS_FAILED": _w(
            "There is no trust between this machine and the registry.",
            "`registry.ca_file` names the authority that signed its certificate.",
            "With client certificates: `registry.cert_file` and `registry.key_file`.",
        ),
        "SCHEMA_NOT_FOUND": _w(
            "The registry has no such id, subject or version.",
            "Is `registry.url` the registry that the producer uses?",
            "Records of such ids wait in the quarantine (`UNKNOWN_SCHEMA_ID`): `replay` brings them in.",
        ),
        "SCHEMA_BROKEN": _w(
            "A schema's text does not compile. Only records of this id are set aside.",
            "Register a text that compiles, or give this id one by hand: `registry.texts: {7: fixed.proto}`.",
            "`distributary replay FILE`.",
        ),
        "SCHEMA_INCOMPATIBLE": _w(
            "The embedded registry refuses a new version by the subject's level.",
            "Change the schema, or the subject's compatibility.",
        ),
        "SCHEMA_IN_USE": _w(
            "Other schemas import the one that is to be deleted.", "Delete those first; they are named."
        ),
        "COMPILER_DOWN": _w(
            "The process that compiles schemas cannot be started or does not answer.",
            "Look at the machine's memory, its limit of processes (`ulimit -u`) and its temporary folder.",
        ),
    },
    "The store and the tables": {
        "STORE_DOWN": _w(
            "A table or the state cannot be written: the disk is full, rights are missing, the object store fails.",
            "`distributary doctor FILE` writes, lists and removes a file, and says what fails.",
            "A running stream goes on by itself once it works again; nothing is lost meanwhile.",
        ),
        "STORE_UNREADABLE": _w(
            "The state or a table cannot be read.",
            "Check path, rights and `tables.storage_options`.",
            "Where files of a `_delta_log` are missing: [damaged logs](stores.md#damaged-logs).",
        ),
        "STORE_UNFIT": _w(
            "Commits of Delta tables rest on one thing: of two writers of one file, the second is told that it is "
            "there. Before its first batch a new pipeline tries that where its tables and its state are to lie, and "
            "one of these places cannot do it. Nothing was written.",
            "A mount of an object store (s3fs, gcsfuse, `/dbfs`, `/Volumes`) or a FAT disk: give the store's own "
            "address, such as `s3a://bucket/prefix`, or a folder of another file system.",
            "An object store: it must refuse a put with `If-None-Match: *` where the object is there. Newer releases "
            "of most stores do; for S3 without it there is delta-rs's [locking by DynamoDB](stores.md#s3a).",
            "`distributary doctor FILE` tries the same place again.",
        ),
        "TABLE_COLLISION": _w(
            "A route's table is there already and belongs to another route or pipeline, or to nobody that is known.",
            "Give this route a name of its own: `tables.routes.<route>.name`.",
            "Or give the pipeline another `tables.name` or `tables.root`.",
        ),
        "QUARANTINE_LIMIT": _w(
            "More rows of a batch were bad than `quarantine` allows. The batch is finished: good rows are in.",
            "`distributary quarantine FILE` says why, with samples.",
            "Fix the cause, run again, then `distributary replay FILE`.",
        ),
        "EXPECTATION_BROKEN": _w(
            "Rows break an expectation that says `fail`. Their table waits, and its rows are kept.",
            "Fix the data or the expectation; the table goes on by itself.",
        ),
        "WIDE_UNFIT": _w(
            "The wide table has a property with which tasks cannot write it.",
            "Take the property back; the message names it.",
        ),
        "KEYS_CHANGED": _w(
            "The source's key is another one than the merged table's. The log goes on, the merge waits.",
            "If the key has changed for good: `distributary resync FILE --route R`.",
        ),
        "KEYS_SWITCHED": _w(
            "`tables.keys` is not what the table was begun with.",
            "Set it back, or give the route a new table: `tables.routes.<route>.name`.",
        ),
        "KEY_TYPE_CHANGED": _w(
            "A key no longer fits into its column, and the table's engine cannot widen it.",
            "Rebuild the table; the message has the command.",
        ),
        "LOG_BEGUN_ANEW": _w(
            "The source database's log began anew (a reset, a failover): which change is newer cannot be told.",
            "Say since when: `source.epochs`. The next run merges the table anew from its log.",
            "If nothing was reset, raise `source.restart_margin`.",
        ),
    },
    "Java and Spark": {
        "JAVA_MISSING": _w(
            "There is no Java 17 or 21.", "Install one, set `JAVA_HOME`, or `pip install 'distributary[java]'`."
        ),
        "SPARK_NOT_STARTED": _w(
            "Spark did not start: jars that cannot be fetched, memory, a port, a master that is away.",
            "Do what the message says; `distributary doctor FILE` looks at Java and the jars without starting Spark.",
        ),
        "EXTRA_MISSING": _w(
            "A part of the product that is installed apart is missing.", "Type the `pip` that it names."
        ),
        "WORKERS_DIED": _w(
            "Python workers were ended from outside, most often by the kernel for want of memory.",
            "`dmesg | grep -i oom` says so. Give the machine more memory, or let batches have less.",
        ),
        "SERVER_GONE": _w(
            "The Spark server of a declarative pipeline ended.",
            "Read its last words above; raise `spark.driver.memory` in `spark.conf`.",
        ),
        "CLUSTER_MISSING": _w("The Spark master does not answer.", "Start it, or check `--via` and `spark.master`."),
        "UPDATE_FAILED": _w(
            "Spark does not accept the declarative pipeline as a whole.",
            "Fix the file and line that it names; `distributary check FILE` finds most of it without Spark.",
        ),
    },
    "Many clusters, Databricks": {
        "SHARE_CONFLICT": _w(
            "The routes are divided in another way than this run wants.",
            "Stop all streams, then `distributary workflow plan FILE --clusters N --apply`.",
        ),
        "SHARE_INVALID": _w("A plan file or a share's name does not fit.", "Do what the message says."),
        "HANDOVER_FAILED": _w(
            "The streams could not be brought to one position. Nothing has changed.",
            "See that all of them are stopped, and do it again.",
        ),
        "WORKSPACE_FAILED": _w(
            "Databricks refused a call, or does not answer.", "Do what the message says: host, token, rights."
        ),
    },
}


def classes() -> dict[str, type[DistributaryError]]:
    """Id -> the error that users meet under it; roots of others are not among them."""
    found = [getattr(errors, name) for name in errors.__all__ if isinstance(getattr(errors, name), type)]
    kinds = [one for one in found if issubclass(one, DistributaryError) and not one.__subclasses__()]
    return {one.condition: one for one in kinds}


def errors_page() -> str:
    """docs/errors.md. Raises LookupError for an id without words, or words without an id."""
    known = classes()
    words = {condition: said for group in _GROUPS.values() for condition, said in group.items()}
    if off := known.keys() ^ words.keys():
        raise LookupError(f"docs/error_pages.py and the errors differ in {', '.join(sorted(off))}")
    return _INTRO + "".join(_sections(known))


def _sections(known: dict[str, type[DistributaryError]]) -> Iterator[str]:
    for title, group in _GROUPS.items():
        yield f"\n## {title}\n"
        for condition, said in group.items():
            kind = known[condition]
            repeats = ", tried again" if kind.retryable else ""
            yield f"\n### `{condition}`\nExit code {int(Exit(kind.exit_code))}{repeats}. {said.means}\n\n"
            if kind.template != DistributaryError.template:
                yield f"> {_text(kind)}\n\n"
            yield "".join(f"{number}. {step}\n" for number, step in enumerate(said.steps, 1))


def _text(kind: type[DistributaryError]) -> str:
    """The message; `*name*` stands for what the case fills in."""
    filled = re.sub(r"\{(\w+)(?:!r)?\}", r"*\1*", kind.template.replace("{line}", ""))
    return filled.replace("{{", "{").replace("}}", "}").replace("<", "&lt;").replace("|", "\\|")
