"""The Python interface: a pipeline, and the verbs of the command line as its methods."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distributary.errors import Reason

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from distributary.audit.doctor import Diagnosis
    from distributary.audit.foresight import Foresight
    from distributary.audit.history import RouteHistory
    from distributary.audit.inspection import Inspection
    from distributary.audit.plan import PlanReport
    from distributary.audit.quarantined import Rejections
    from distributary.audit.status import Status
    from distributary.audit.verify import Verification
    from distributary.config import Pipeline as Config
    from distributary.engine.batch import BatchReport
    from distributary.engine.replay import ReplayReport
    from distributary.kinds import HandedToStream, PipelineKind, Rebuilt
    from distributary.running.maintain import Maintained
    from distributary.running.report import RunReport


def load(pipeline: str | Path | Mapping[str, Any]) -> Pipeline:
    """A pipeline by its file, or by what the file would hold, checked. Starts no JVM and no network.

    Raises:
        ConfigFileMissing, ConfigError: `parameters["problems"]` lists all faults of the file.
        SecretMissing: a reference has no value.
    """
    from distributary.config import load as load_config
    from distributary.config import load_document

    if isinstance(pipeline, Mapping):
        return Pipeline(load_document(pipeline), Path("pipeline.yaml"))
    return Pipeline(load_config(pipeline), Path(pipeline))


def fan_out(
    df: DataFrame,
    *,
    route: str,
    tables: str | Mapping[str, Any],
    payload: str | None = None,
    schema_id: str | None = None,
    format: str = "protobuf",
    registry: str | Mapping[str, Any] | None = None,
    name: str = "sink",
    state: str | None = None,
    repartition: bool = True,
) -> Any:
    """Spark's writer of a DataFrame of your own, set up to give each route a Delta table of its own.

    Of a streaming DataFrame a `DataStreamWriter`: add a checkpoint and a trigger, and `start()`. Else a
    `DataFrameWriter`: `save()`.

    Args:
        route: the column that says which table a row is for.
        tables: their folder, or the keys of the section `tables` of a pipeline file.
        payload: a column of payloads; each is decoded by its own schema. Without it, the rows' columns are written.
        schema_id: the column of schema ids, where payloads have no header of the registry's.
        format: of the payloads: protobuf, avro, json, bytes or text.
        registry: its address, the folder of an embedded one, or the keys of the section `registry`.
        name: who owns the tables.
        state: folder of the quarantine and of what batches decide; without it `<root>/_distributary/<name>`.
        repartition: bring a route's rows to one task, so that its table gets one file a batch.

    Raises:
        BadInput: the rows have no such column.
        EnvironmentFault: Spark is older than 4.1.
        ConfigError: what is given would not do in a pipeline file.
    """
    from distributary.spark.versions import check_since

    check_since("4.1", "fan_out")
    from distributary.sink.frame_writer import writer

    return writer(
        df, route=route, tables=tables, payload=payload, schema_id=schema_id, format=format, registry=registry,
        name=name, state=state, repartition=repartition,
    )  # fmt: skip


def decode(
    df: DataFrame,
    payload: str = "value",
    *,
    registry: str | Mapping[str, Any],
    subject: str | None = None,
    ids: Collection[int] = (),
    format: str = "protobuf",
    message: str = "0",
    into: str = "decoded",
) -> DataFrame:
    """The rows of a DataFrame with one more column: the payload as a struct, each decoded by the schema id in its own
    header. The struct has the fields of all schemas given, as a table of them would have its columns.

    What is no payload, does not decode, or has another schema is null in it: `fan_out` keeps such rows aside.

    Args:
        payload: the binary column, in the registry's wire format.
        registry: its address, the folder of an embedded one, or the keys of the section `registry`.
        subject: all versions of this subject.
        ids: schemas by id, beside them.
        format: of the payloads: protobuf, avro or json.
        message: of protobuf, which message of a schema: its indexes in the header, as `0` or `0.1`.
        into: the name of the new column.

    Raises:
        BadInput: there is no schema to decode with.
        RegistryDown, RegistryDenied, SchemaNotFound: from the registry.
    """
    from distributary.config import RegistryConfig
    from distributary.spark.versions import check_since

    check_since("4.1", "decode")
    from distributary.sink.payload_column import readers, with_struct

    if isinstance(registry, str):
        registry = {"url" if "://" in registry else "path": registry}
    return with_struct(df, payload, into, readers(RegistryConfig(**registry), format, ids, subject, message))


class Pipeline:
    """One pipeline. Every method raises DistributaryError with `condition`, `parameters` and an exit code.

    `config`: the checked file, read-only.
    """

    def __init__(self, config: Config, file: Path) -> None:
        self.config = config
        self._file = file

    def __repr__(self) -> str:
        return f"Pipeline({self.config.pipeline!r}, layout {self.config.layout}, source {self.config.source.type})"

    @property
    def _kind(self) -> PipelineKind:
        from distributary.kinds import kind_of

        return kind_of(self.config, self._file)

    def check(self) -> None:
        """Check what the file names and `load` cannot see. Raises BadInput."""
        self._kind.check()

    def plan(self) -> PlanReport:
        """What a run would do now. Writes nothing, and takes about as long as a run does."""
        return self._kind.plan()

    def run(
        self, *, once: bool = False, force: bool = False, progress: Callable[[BatchReport], None] = lambda _: None
    ) -> RunReport:
        """Run it in this process: to the end of what is there (`once`), or until an error or KeyboardInterrupt.

        Args:
            force: quarantine a first batch of which no record can be read, and go on.
            progress: called after each batch.
        """
        self._kind.check_runs_here()
        from distributary.metrics.meter import measured
        from distributary.running.hops import run

        with measured(self.config) as meter:

            def tell(report: BatchReport) -> None:
                meter.batch(report)
                progress(report)

            return run(self.config, once=once, force=force, progress=tell, handle=meter.attach)

    def status(self) -> Status:
        """Rows, lag, bad rows and state of each table. Works beside a run, without Spark."""
        return self._kind.status()

    def verify(self, *, deep: bool = False) -> Verification:
        """Recount the tables: `ok` only if nothing is lost or doubled. `deep`: compare every row of messages."""
        return self._kind.verify(deep=deep)

    def quarantine(self, *, route: str | None = None, reasons: Collection[Reason] = (), samples: int = 1) -> Rejections:
        """What was set aside, by route and reason."""
        from distributary.audit.quarantined import chosen, summarize

        rows = chosen(self._kind.quarantined_rows(), route, [reason.value for reason in reasons])
        return summarize(self.config.pipeline, rows, samples)

    def replay(
        self, *, route: str | None = None, reasons: Collection[Reason] | None = None
    ) -> ReplayReport | HandedToStream:
        """Bring rows of the quarantine into their tables, exactly once, where their cause is gone."""
        return self._kind.replay(route, reasons)

    def inspect(self, records: int = 5) -> Inspection:
        """The newest records of the source, taken apart. Starts no JVM."""
        from distributary.audit.inspection import inspect

        return inspect(self.config, records)

    def doctor(self, within_sec: float = 30.0) -> Diagnosis:
        """Try out what the pipeline needs. Starts no JVM."""
        from distributary.audit.doctor import diagnose

        return diagnose(self.config, within_sec)

    def history(self, route: str) -> RouteHistory:
        """Which schema, column and type of a route came with which batch, offset and table version."""
        from distributary.audit.history import history

        return history(self.config, route)

    def foresee(
        self,
        *,
        schema: str | Path | None = None,
        subject: str | None = None,
        message: str | None = None,
        routes: Collection[str] = (),
    ) -> Foresight:
        """What the schema in a file, or the newest one of a subject, would change in which tables."""
        from distributary.audit.foresight import foresee

        file = None if schema is None else Path(schema)
        return foresee(self.config, file=file, subject=subject, message=message, routes=routes)

    def resync(self, route: str) -> Rebuilt:
        """Make one table anew from rows that are kept."""
        return self._kind.resync(route)

    def maintain(self) -> list[Maintained]:
        """Compact and vacuum tables, purge tombstones."""
        from distributary.running.maintain import maintain

        return list(maintain(self.config))
