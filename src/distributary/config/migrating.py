"""The environment variables of the Scala connector (badal-io/datastream-deltalake-connector) as a pipeline file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from distributary.config.quantities import moment, seconds, size_bytes
from distributary.errors import ConfigError

_EVOLUTION = {"mergeSchema": "merge", "overwriteSchema": "overwrite", "none": "none"}
_SOURCE_TYPES = ("discovery-bucket", "local-directory")


@dataclass
class Migrated:
    """A pipeline file in the making. `notes`: what is different here; `seen`: what a reader of the tables would see
    change, and what to write to keep it as it was. A line each."""

    document: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)

    def put(self, path: str, value: Any) -> None:
        *parents, last = path.split(".")
        place = self.document
        for key in parents:
            place = place.setdefault(key, {})
        place[last] = value

    def text(self) -> str:
        head = ["# Made by `distributary check --from-env` from the environment variables of the Scala connector."]
        head += [f"# {note}" for note in self.notes]
        head += ["#", "# What readers of the tables would see change:", *(f"# - {change}" for change in self.seen)]
        body = yaml.safe_dump(self.document, sort_keys=False, allow_unicode=True, default_flow_style=False)
        return "\n".join(head) + "\n" + body


Migration = Callable[[str, Migrated], None]


@dataclass(frozen=True)
class Variable:
    """One variable: what it is here (for the docs), and how its value is taken over."""

    name: str
    here: str
    take: Migration


class _Wrong(ValueError):
    """A value that is not allowed; the text says what is."""


def _log(value: str, to: Migrated) -> None:
    if not _flag(value):
        to.put("tables.log", None)


def _flag(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise _Wrong("allowed: true, false")
    return value.lower() == "true"


def _name(value: str, to: Migrated) -> None:
    name = re.sub(r"[^a-z0-9_-]+", "-", value.lower()).strip("-_")[:64]
    to.put("pipeline", name or "datastream")


def _format(value: str, to: Migrated) -> None:
    if value not in ("avro", "json", "parquet"):
        raise _Wrong("allowed: avro, json, parquet")
    to.put("source.format", value)


def _start(value: str, to: Migrated) -> None:
    text = re.sub(r"(\.\d\d)Z$", r"\g<1>0Z", value)  # as the connector writes its own default: 1970-01-01T00:00:00.00Z
    try:
        year = moment(text).year
    except ValueError:
        raise _Wrong("allowed: a date or a time") from None
    if year > 1970:
        to.put("source.start_date", text)
        to.notes.append("START_DATE: the connector read it and did nothing with it; here older folders are left out.")


def _concurrency(value: str, to: Migrated) -> None:
    _whole(value)
    to.notes.append(
        f"FILE_READ_CONCURRENCY={value} bounded a batch to so many files of each table. A batch is of all tables here: "
        "see source.max_files_per_batch and source.max_bytes_per_batch."
    )


def _whole(value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise _Wrong("allowed: a whole number from 1 on")
    return int(value)


def _prefix(value: str, to: Migrated) -> None:
    plain = re.sub(r"[^a-z0-9_]+", "_", value.lower()).lstrip("_")
    _rename(to, lambda pattern: plain + pattern)


def _frequency(value: str, to: Migrated) -> None:
    try:
        every = seconds(f"{value} minutes" if value.isdecimal() else value)
    except ValueError:
        raise _Wrong("allowed: minutes, or a duration like '1 minute'") from None
    to.put("trigger.every", every if every % 60 else f"{int(every // 60)} minutes")


def _evolution(value: str, to: Migrated) -> None:
    if value not in _EVOLUTION:
        raise _Wrong(f"allowed: {', '.join(_EVOLUTION)}")
    to.put("tables.evolution", _EVOLUTION[value])


def _root(value: str, to: Migrated) -> None:
    to.put("tables.root", _dbfs(value, to, "DELTA_TABLE_PATH").rstrip("/") or "/")


def _checkpoint(value: str, to: Migrated) -> None:
    to.put("checkpoint", f"{_dbfs(value, to, 'CHECKPOINT_DIR').rstrip('/')}/{to.document['pipeline']}")
    to.notes.append(
        "CHECKPOINT_DIR: a new stream has a new checkpoint; begin with an empty folder and new tables, and read the "
        "files from their start."
    )


def _dbfs(value: str, to: Migrated, name: str) -> str:
    if not value.startswith("dbfs:/"):
        return value
    to.notes.append(
        f"{name}: dbfs:/ is written as /dbfs/ here, the same place as a folder of the cluster's machines. On "
        "Databricks tables cannot lie there (docs/workflow.md): give the address of an external location."
    )
    return "/dbfs/" + value.removeprefix("dbfs:/").lstrip("/")


def _partitions(value: str, to: Migrated) -> None:
    to.document.setdefault("spark", {}).setdefault("conf", {})["spark.default.parallelism"] = _whole(value)


def _database(value: str, to: Migrated) -> None:
    to.put("tables.database", value)
    _rename(to, lambda pattern: pattern.replace("{database}_", ""))


def _rename(to: Migrated, name: Callable[[str], str]) -> None:
    """`name`: a table's pattern -> another; `log: null` stays."""
    for key in ("log", "merged"):
        pattern = to.document["tables"][key]
        if pattern is not None:
            to.put(f"tables.{key}", name(pattern))


def _compaction(value: str, to: Migrated) -> None:
    _flag(value)  # whatever it says: a run looks after its tables by itself


def _few(value: str, to: Migrated) -> None:
    to.put("maintenance.min_files", _whole(value))
    to.put("maintenance.small_files", _whole(value))


def _largest(value: str, to: Migrated) -> None:
    to.notes.append(
        f"DATABRICKS_DELTA_MAX_FILE_SIZE_BYTES={value}: files up to maintenance.target_file_size are joined here."
    )


def _target(value: str, to: Migrated) -> None:
    to.put("maintenance.target_file_size", size_bytes(_whole(value)))


def _optimize(value: str, to: Migrated) -> None:
    if _flag(value):
        to.notes.append(
            "DATABRICKS_DELTA_AUTO_OPTIMIZE_ENABLED: a batch already writes one file per table; nothing to set."
        )


VARIABLES = (
    Variable("NAME", "`pipeline`", _name),
    Variable("GENERATE_LOG_TABLE", "`tables.log`; false is `log: null`", _log),
    Variable("READ_FORMAT", "`source.format`; `auto` needs no setting", _format),
    Variable("START_DATE", "`source.start_date` (the connector ignores it)", _start),
    Variable(
        "FILE_READ_CONCURRENCY",
        "files of a table per batch there; `source.max_files_per_batch` and `max_bytes_per_batch`, of all tables, here",
        _concurrency,
    ),
    Variable("DELTA_TABLE_PATH", "`tables.root`", _root),
    Variable("DELTA_TABLE_NAME_PREFIX", "the beginning of `tables.log` and `tables.merged`", _prefix),
    Variable("DELTA_DATABASE", "`tables.database`; table names are then without `{database}`", _database),
    Variable(
        "DELTA_MERGE_FREQUENCY_MINUTES",
        "`trigger.every` (log and merge); `tables.merge_every` merges less often than the log is written",
        _frequency,
    ),
    Variable(
        "DELTA_SCHEMA_EVOLUTION_STRATEGY",
        "`tables.evolution`: `mergeSchema` is `merge`, `overwriteSchema` is `overwrite`, `none` is `none`",
        _evolution,
    ),
    Variable("DELTA_MICROBATCH_PARTITIONS", "`spark.conf: {spark.default.parallelism: N}`", _partitions),
    Variable(
        "CHECKPOINT_DIR",
        "`checkpoint`: one for all tables",
        _checkpoint,
    ),
    Variable(
        "DATABRICKS_DELTA_AUTO_COMPACTION_ENABLED",
        "nothing: a run joins small files by itself (`maintenance.automatic`)",
        _compaction,
    ),
    Variable("DATABRICKS_DELTA_MIN_NUMBER_OF_FILES", "`maintenance.min_files`, `maintenance.small_files`", _few),
    Variable("DATABRICKS_DELTA_MAX_FILE_SIZE_BYTES", "nothing: files below the target size are joined", _largest),
    Variable("DATABRICKS_DELTA_TARGET_FILE_SIZE_BYTES", "`maintenance.target_file_size`", _target),
    Variable("DATABRICKS_DELTA_AUTO_OPTIMIZE_ENABLED", "nothing: a batch writes one file per table", _optimize),
)
"""In the order in which they are taken over. DATASTREAM_TABLE_SOURCE_TYPE, BUCKET and SOURCE_PATH come before them."""


_NO_DEFAULT_PATH = (
    "is required: the connector's own default, dbfs:/datastream-deltalake-connector/_delta, is a mount without hard "
    "links, where no commit can be made once; give a folder in a store, such as gs://lake/shop, away from the change "
    "files"
)


def from_environment(environ: Mapping[str, str]) -> Migrated:
    """A pipeline file from the connector's variables.

    Raises ConfigError for a value that the connector would not take either, or a missing path.
    """
    to = Migrated({"pipeline": "datastream-deltalake-connector"})
    to.put("source", {"type": "datastream", "path": _path(environ)})
    if not environ.get("DELTA_TABLE_PATH", "").strip():
        raise ConfigError(file="the environment", key="DELTA_TABLE_PATH", detail=_NO_DEFAULT_PATH)
    to.put("tables", {"root": "", "log": "{database}_{table}_log", "merged": "{database}_{table}"})
    to.put("trigger.every", "1 minute")
    for variable in VARIABLES:
        if value := environ.get(variable.name, "").strip():
            try:
                variable.take(value, to)
            except ValueError as e:
                detail = f"{e}; this is {value!r}"
                raise ConfigError(file="the environment", key=variable.name, detail=detail) from None
    to.put("tables.metadata_columns", True)
    to.put("tables.tombstones", "beside")
    to.seen += _seen(to)
    return to


def _seen(to: Migrated) -> list[str]:
    tables = to.document["tables"]
    database, merged = tables.get("database"), str(tables["merged"])
    if database is None:
        table = _example(merged)
        names = (
            "Databases: the connector makes one in the catalog for each source database, and readers ask for "
            f"shop.orders. Here tables.database names one for all: {table}. To keep shop.orders, give the folder that "
            f"name once: CREATE TABLE shop.orders USING delta LOCATION '{tables['root']}/{table}'."
        )
    else:
        names = (
            f"Databases: all tables are in {database}, as with the connector. There tables of one name in two source "
            "databases meet in one table; here the second is refused (TABLE_COLLISION) until tables.routes.<route> "
            "gives it a name of its own."
        )
    return [
        names,
        "Names of tables with a dot: the connector's table for or.ders is or_ders; here each other sign than a-z, 0-9 "
        "and _ is written as its code, so that no two tables meet: or_x2e_ders. To keep or_ders: tables.routes: "
        "{'shop.or.ders': {merged: or_ders, log: or_ders_log}}.",
        "Names of columns with a dot (JSON files): the connector fails at them; here they are columns like others, "
        "`a.b` with backticks in Spark SQL.",
        "Deleted rows: the connector removes them. So that a count counts living rows only, tables.tombstones: beside "
        "keeps deleted keys in a table of their own. The column _deleted is there, and always false.",
        "Columns: beside the connector's datastream_metadata_source_timestamp and the like there is the struct "
        "datastream_metadata. Readers that take all columns (SELECT *) see more of them.",
    ]


def _example(pattern: str) -> str:
    return pattern.replace("{database}", "shop").replace("{table}", "orders")


def _path(environ: Mapping[str, str]) -> str:
    kind = environ.get("DATASTREAM_TABLE_SOURCE_TYPE", "discovery-bucket").strip()
    bucket, path = environ.get("BUCKET", "").strip(), environ.get("SOURCE_PATH", "").strip()
    if kind not in _SOURCE_TYPES:
        detail = f"allowed: {', '.join(_SOURCE_TYPES)}; this is {kind!r}"
        raise ConfigError(file="the environment", key="DATASTREAM_TABLE_SOURCE_TYPE", detail=detail)
    needed = "BUCKET" if kind == "discovery-bucket" else "SOURCE_PATH"
    if not environ.get(needed, "").strip():
        raise ConfigError(file="the environment", key=needed, detail=f"is required with {kind}")
    if kind == "local-directory":
        return path.rstrip("/") or "/"
    return "/".join(step for step in (f"gs://{bucket.strip('/')}", path.strip("/")) if step)
