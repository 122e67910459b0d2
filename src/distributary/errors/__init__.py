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

from distributary.errors.configuration import (
    ConfigError,
    ConfigFileMissing,
    LintFailed,
    NotYet,
    SecretMissing,
    SqlInvalid,
)
from distributary.errors.reasons import Reason
from distributary.errors.registry import (
    CompilerDown,
    RegistryDenied,
    RegistryDown,
    RegistryRefused,
    RegistryTlsFailed,
    SchemaBroken,
    SchemaIncompatible,
    SchemaInUse,
    SchemaNotFound,
)
from distributary.errors.roots import (
    BadInput,
    DistributaryError,
    EnvironmentFault,
    Exit,
    NeedsAttention,
    Outage,
)
from distributary.errors.runs import (
    AlreadyRunning,
    CheckpointDamaged,
    CheckpointLost,
    CleanUnfinished,
    ClusterMissing,
    ExtraMissing,
    FirstBatchUnreadable,
    HandoverFailed,
    JavaMissing,
    LayoutChanged,
    ServerGone,
    ShareConflict,
    ShareInvalid,
    SparkNotStarted,
    StateLost,
    StateNewer,
    StateOld,
    StreamTakenOver,
    UpdateFailed,
    WorkersDied,
    WorkspaceFailed,
    without_stack,
)
from distributary.errors.source import (
    FileBroken,
    SourceDataLost,
    SourceDown,
    SourceHistoryGone,
    SourceMissing,
    SourceReplaced,
    SourceRewritten,
)
from distributary.errors.tables import (
    ExpectationBroken,
    KeysChanged,
    KeysSwitched,
    KeyTypeChanged,
    LogBegunAnew,
    QuarantineLimit,
    ReplayMismatch,
    StoreDown,
    StoreUnreadable,
    TableCollision,
    WideUnfit,
)

__all__ = [
    "AlreadyRunning",
    "BadInput",
    "CheckpointDamaged",
    "CheckpointLost",
    "CleanUnfinished",
    "ClusterMissing",
    "CompilerDown",
    "ConfigError",
    "ConfigFileMissing",
    "DistributaryError",
    "EnvironmentFault",
    "Exit",
    "ExpectationBroken",
    "ExtraMissing",
    "FileBroken",
    "FirstBatchUnreadable",
    "HandoverFailed",
    "JavaMissing",
    "KeyTypeChanged",
    "KeysChanged",
    "KeysSwitched",
    "LayoutChanged",
    "LintFailed",
    "LogBegunAnew",
    "NeedsAttention",
    "NotYet",
    "Outage",
    "QuarantineLimit",
    "Reason",
    "RegistryDenied",
    "RegistryDown",
    "RegistryRefused",
    "RegistryTlsFailed",
    "ReplayMismatch",
    "SchemaBroken",
    "SchemaInUse",
    "SchemaIncompatible",
    "SchemaNotFound",
    "SecretMissing",
    "ServerGone",
    "ShareConflict",
    "ShareInvalid",
    "SourceDataLost",
    "SourceDown",
    "SourceHistoryGone",
    "SourceMissing",
    "SourceReplaced",
    "SourceRewritten",
    "SparkNotStarted",
    "SqlInvalid",
    "StateLost",
    "StateNewer",
    "StateOld",
    "StoreDown",
    "StoreUnreadable",
    "StreamTakenOver",
    "TableCollision",
    "UpdateFailed",
    "WideUnfit",
    "WorkersDied",
    "WorkspaceFailed",
    "without_stack",
]
