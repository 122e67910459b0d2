"""`distributary simulate`: data to try pipelines with."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from distributary.cli.options import GROUP, Yes
from distributary.cli.output import say, show
from distributary.cli.signals import stop_on_signal
from distributary.errors import BadInput
from distributary_simulate.errors import SimulationInvalid

if TYPE_CHECKING:
    from distributary.config import RegistryConfig
    from distributary_simulate.change_files.stream import Pace
    from distributary_simulate.change_files.writer import ChangeFiles, FilesPlan
    from distributary_simulate.changes.history import History
    from distributary_simulate.changes.truth import TableTruth

simulate = typer.Typer(**GROUP, help="Produce data to try pipelines with.")


Delta = Annotated[str | None, typer.Option(metavar="PATH", help="Write to this Delta table.", show_default=False)]
Kafka = Annotated[
    str | None,
    typer.Option(metavar="SERVERS", help="Send to a topic here (with --delta: from that table).", show_default=False),
]
Topic = Annotated[str, typer.Option(help="The topic, and the wrapper's subject <topic>-value.")]
Partitions = Annotated[int, typer.Option(min=1, help="Of the topic, if it has to be created.")]
KafkaConfig = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="A setting of the Kafka client, e.g. of SASL.", show_default=False),
]
Registry = Annotated[str | None, typer.Option(metavar="URL", help="A schema registry.", show_default=False)]
RegistryPath = Annotated[
    str | None, typer.Option(metavar="DIR", help="Or a folder: the embedded registry.", show_default=False)
]
RegistryUser = Annotated[str | None, typer.Option(help="Its user.", show_default=False)]
RegistryPassword = Annotated[str | None, typer.Option(help="Its password.", show_default=False)]
RegistryToken = Annotated[str | None, typer.Option(help="Or a bearer token.", show_default=False)]
Games = Annotated[int, typer.Option(min=1, help="How many games.")]
Versions = Annotated[int, typer.Option(min=1, help="Schema versions of each game.")]
Records = Annotated[int, typer.Option(min=1, help="Records per game and version, faulty ones included.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same records.")]
Columns = Annotated[bool, typer.Option("--columns", help="A table with route, id and payload as columns.")]
Corrupt = Annotated[int, typer.Option(min=0, help="Records whose payload is damaged.")]
UnknownId = Annotated[int, typer.Option(min=0, help="Records whose schema id nobody registered.")]
EmptyName = Annotated[int, typer.Option(min=0, help="Records without a game name.")]
Tombstones = Annotated[int, typer.Option(min=0, help="Records without a value.")]
BadEnvelope = Annotated[int, typer.Option(min=0, help="Records whose envelope is damaged.")]
IdMismatch = Annotated[
    int, typer.Option(min=0, help="Good records whose envelope names another id than their payload.")
]
Truth = Annotated[Path, typer.Option(metavar="FILE", help="What was sent is added here.")]
Manifest = Annotated[Path, typer.Option("--made", metavar="FILE", help="What was created is noted here.")]
Clean = Annotated[bool, typer.Option("--clean", help="Remove what is noted in --made, and nothing else.")]


@simulate.command("games")
def simulate_games(
    delta: Delta = None,
    kafka: Kafka = None,
    topic: Topic = "events",
    partitions: Partitions = 2,
    kafka_config: KafkaConfig = None,
    registry: Registry = None,
    registry_path: RegistryPath = None,
    registry_user: RegistryUser = None,
    registry_password: RegistryPassword = None,
    registry_token: RegistryToken = None,
    games: Games = 12,
    versions: Versions = 3,
    records: Records = 1000,
    seed: Seed = 0,
    columns: Columns = False,
    corrupt: Corrupt = 0,
    unknown_id: UnknownId = 0,
    empty_name: EmptyName = 0,
    tombstones: Tombstones = 0,
    bad_envelope: BadEnvelope = 0,
    id_mismatch: IdMismatch = 0,
    truth: Truth = Path("simulated-truth.json"),
    manifest: Manifest = Path("simulated-made.json"),
    clean: Clean = False,
    yes: Yes = False,
) -> None:
    """Send the records of invented games.

    Registers their schemas first, version after version. The same options give the same records, byte for byte.

    Passwords, tokens and values of --kafka-config may be references, as in a pipeline file: '${env:NAME}'.
    """
    flags = {"url": registry, "path": registry_path, "username": registry_user, "password": registry_password}
    config = registry_config({**flags, "token": registry_token})
    settings = kafka_settings(kafka_config or [])
    from distributary.schemas.registry import open_registry

    if clean:
        _clean_simulated(manifest, config, settings, yes)
        return
    if config is None:
        raise BadInput(detail="simulate games: give the registry: --registry URL or --registry-path DIR")
    from distributary_simulate.games.produce import Target, produce
    from distributary_simulate.games.records import Faults, Plan

    faults = Faults(corrupt, unknown_id, empty_name, tombstones, bad_envelope, id_mismatch)
    order = Plan(games, versions, records, seed, faults, topic)
    target = Target(delta, kafka, topic, partitions, columns, settings)
    sent = produce(order, open_registry(config), target, truth=truth, manifest_path=manifest, say=say)
    say(f"sent {sent.rows_total:,} good rows, {sent.quarantined:,} bad records, {sent.tombstones:,} tombstones")
    say(f"counts of all that was sent: {truth}; to remove what was made: the same command with --clean --yes")


Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        "--dsn",
        metavar="URL",
        help="mysql://user:password@host:port/database, or postgresql://...; without it, an invented history.",
        show_default=False,
    ),
]
Seconds = Annotated[float, typer.Option(min=0, help="How long to go on.")]
Once = Annotated[bool, typer.Option("--once", help="Do what there is to do without a pause, then end.")]
Kinds = Annotated[str, typer.Option(metavar="LIST", help="Of an invented history: kinds of databases.")]
PerKind = Annotated[int, typer.Option(min=1, help="Of an invented history: tables of each kind, at most.")]
Tables = Annotated[Path, typer.Option(metavar="FILE", help="What the tables hold in the end is written here.")]
KINDS = "mysql,postgresql,oracle,sqlserver,mongodb"


@simulate.command("database")
def simulate_database(
    url: Url = None,
    seconds: Seconds = 60.0,
    once: Once = False,
    rate: Annotated[float, typer.Option(min=0, help="Transactions a second; 0: as many as go.")] = 20.0,
    transactions: Annotated[int, typer.Option(min=1, help="With --once, or of an invented history: how many.")] = 500,
    rows: Annotated[int, typer.Option(min=0, help="Rows per table before the changes begin.")] = 100,
    schema_changes: Annotated[int, typer.Option(min=0, help="One per so many transactions; 0: none.")] = 200,
    seed: Seed = 0,
    kinds: Kinds = KINDS,
    per_kind: PerKind = 2,
    truth: Tables = Path("simulated-tables.json"),
) -> None:
    """Change rows of a database, real or invented.

    For change data capture: tables users and orders of a real MySQL, MariaDB or
    PostgreSQL, with inserts, updates, key updates, deletes and schema changes.

    Without --url the databases are invented, and only what their tables hold in the end is written. simulate
    datastream writes the files of the same history where its --events is --transactions here and --seed, --kinds,
    --per-kind, --rows and --schema-changes are the same.
    """
    from distributary_simulate.changes.truth import save_truth

    if url is None:
        history = history_of(kinds, per_kind, seed, rows, schema_changes, 20.0)
        events = sum(1 for _ in history.changes(transactions)) + sum(1 for _ in history.finish())
        save_truth(history.truth(), truth)
        say(f"invented {events:,} changes of {len(history.truth())} tables; what they hold in the end: {truth}")
        return
    from distributary_simulate.change_files.stream import read_truth
    from distributary_simulate.databases.servers import driver_missing, server
    from distributary_simulate.databases.workload import Workload, run_workload

    target = server(_resolved({"--url": url})["--url"])
    work = Workload(rows, None if once else seconds, 0 if once else rate, None, schema_changes, seed)
    if once:
        work = replace(work, transactions=transactions)
    try:
        with stop_on_signal() as is_stopped:
            result = run_workload(target, work, is_stopped=is_stopped)
        save_truth(read_truth(target), truth)
    except ImportError as error:
        raise driver_missing(error) from error
    kinds_done = ", ".join(f"{count:,} {statement}" for statement, count in sorted(result.statements.items()))
    say(f"{target}: {result.transactions:,} transactions: {kinds_done}; {len(result.schema_changes)} schema changes")
    say(f"what its tables hold in the end: {truth}")


@simulate.command("datastream")
def simulate_datastream(
    dir: Annotated[Path, typer.Option(metavar="DIR", help="The folder that stands for the bucket.")],
    url: Url = None,
    format: Annotated[str, typer.Option(help="avro, jsonl, jsonl.gz or parquet.")] = "avro",
    faults: Annotated[str, typer.Option(metavar="LIST", help="Names of faults, all or none.")] = "none",
    seconds: Annotated[float | None, typer.Option(min=0, help="Go on for so long.", show_default=False)] = None,
    once: Once = False,
    events: Annotated[int, typer.Option(min=1, help="Of an invented history with --once.")] = 10_000,
    rate: Annotated[float, typer.Option(min=0.1, help="Of an invented history: changes a second.")] = 20.0,
    rows: Annotated[int, typer.Option(min=0, help="Of an invented history: rows that only a backfill shows.")] = 20,
    schema_changes: Annotated[int, typer.Option(min=0, help="Of it: one per so many transactions; 0: none.")] = 60,
    seed: Seed = 0,
    kinds: Kinds = KINDS,
    per_kind: PerKind = 2,
    layout: Annotated[str, typer.Option(help="Age of the service: 2021-03, 2021-06, 2024, 2025 or gtid.")] = "2025",
    rotate_size: Annotated[str, typer.Option(metavar="SIZE", help="A file ends at about this size.")] = "50 MB",
    rotate_after: Annotated[str, typer.Option(metavar="DURATION", help="Or after so long.")] = "60 seconds",
    schema_files: Annotated[bool, typer.Option("--schema-files", help="Write .schema files beside the data.")] = False,
    placeholders: Annotated[bool, typer.Option("--placeholders", help="Leave empty folders about.")] = False,
    state: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The place in a real log; by default beside DIR.", show_default=False),
    ] = None,
    truth: Tables = Path("simulated-tables.json"),
) -> None:
    """Write change events as Google Datastream does.

    From the log of a real database, or from an invented history.

    A real MySQL or MariaDB must run with binlog_format=ROW, binlog_row_image=FULL and binlog_row_metadata=FULL,
    PostgreSQL with wal_level=logical and the plugin wal2json. With --seconds the stream goes on for so long; with
    --once, or neither, it ends when there is nothing more to read.
    """
    from distributary_simulate.change_files.stream import Pace
    from distributary_simulate.change_files.writer import ChangeFiles
    from distributary_simulate.changes.truth import save_truth

    # A real log is read by several runs into one folder, so their files must not share names.
    plan = _files_plan(dir, format, layout, faults, rotate_size, rotate_after, seed if url is None else None)
    files = ChangeFiles(replace(plan, schema_files=schema_files, placeholders=placeholders))
    with stop_on_signal() as is_stopped:
        pace = Pace(None if once else seconds, is_stopped)
        if url is None:
            history = history_of(kinds, per_kind, seed, rows, schema_changes, rate)
            written = _write_history(history, files, events, pace)
            table_truths = history.truth()
        else:
            place = state or dir.parent / f"{dir.name}.position.json"
            written, table_truths = _write_server(url, files, place, pace)
    save_truth(table_truths, truth)
    extra = sum(1 for file in files.written if file.extra)
    say(f"wrote {written:,} events in {len(files.written):,} files to {dir} ({extra:,} of them are faults)")
    say(f"what the {len(table_truths)} tables hold in the end: {truth}")


def _write_history(history: History, files: ChangeFiles, events: int, pace: Pace) -> int:
    from distributary_simulate.change_files.stream import write_history, write_history_live

    root = files.plan.root
    if any(root.iterdir()):
        detail = f"{root} is not empty, and a history begins in a folder of its own. Name a new one"
        raise SimulationInvalid(what="--dir", detail=detail)
    if pace.seconds is None:
        return write_history(history, files, events)
    return write_history_live(history, files, pace, _now_ms)


def _write_server(url: str, files: ChangeFiles, state: Path, pace: Pace) -> tuple[int, dict[str, TableTruth]]:
    from distributary_simulate.change_files.stream import open_source, write_server
    from distributary_simulate.databases.servers import driver_missing, server

    try:
        source = open_source(server(_resolved({"--url": url})["--url"]), state)
    except ImportError as error:
        raise driver_missing(error) from error
    return write_server(source, files, state, pace, _now_ms), source.truth()


def history_of(kinds: str, per_kind: int, seed: int, rows: int, schema_changes: int, rate: float) -> History:
    from distributary.changes.model import Kind
    from distributary_simulate.changes.history import History, HistoryPlan
    from distributary_simulate.changes.history_tables import tables_of

    names = [name.strip() for name in kinds.split(",") if name.strip()]
    if unknown := sorted(set(names) - set(KINDS.split(","))):
        raise SimulationInvalid(what="--kinds", detail=f"{', '.join(unknown)}: allowed are {KINDS}")
    tables = tables_of([Kind(name) for name in names], per_kind)
    return History(HistoryPlan(tables, seed, initial_rows=rows, schema_changes=schema_changes, changes_per_sec=rate))


def _files_plan(
    root: Path, format_: str, layout: str, faults: str, rotate_size: str, rotate_after: str, seed: int | None
) -> FilesPlan:
    from distributary.config.quantities import seconds, size_bytes
    from distributary_simulate.change_files.events import Layout
    from distributary_simulate.change_files.faults import Faults
    from distributary_simulate.change_files.files import FORMATS
    from distributary_simulate.change_files.writer import FilesPlan

    formats = [name for name in FORMATS if name == format_]
    if not formats:
        raise SimulationInvalid(what="--format", detail=f"{format_}: allowed are {', '.join(FORMATS)}")
    if layout not in set(Layout):
        raise SimulationInvalid(what="--layout", detail=f"{layout}: allowed are {', '.join(Layout)}")
    try:
        size, age_ms = size_bytes(rotate_size), round(seconds(rotate_after) * 1000)
    except ValueError as error:
        raise SimulationInvalid(what="--rotate-size and --rotate-after", detail=str(error)) from error
    return FilesPlan(root, formats[0], Layout(layout), size, age_ms, seed=seed, faults=Faults.named(faults))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _clean_simulated(manifest: Path, config: RegistryConfig | None, settings: Mapping[str, str], yes: bool) -> None:
    from distributary.schemas.registry import open_registry
    from distributary_simulate.cli.render import steps_text
    from distributary_simulate.games.clean import clean
    from distributary_simulate.games.manifest import Manifest

    if not manifest.exists():
        raise BadInput(
            detail=f"simulate games --clean: there is no file {manifest}. Name the list of what was made: --made FILE"
        )
    registry = open_registry(config) if config else None
    show(steps_text(clean(Manifest.open(manifest), registry, kafka=dict(settings), dry_run=not yes), is_deleted=yes))


def registry_config(options: Mapping[str, str | None]) -> RegistryConfig | None:
    """The registry that the options name; None where they name none."""
    from pydantic import ValidationError

    from distributary.config import RegistryConfig

    resolved = _resolved({f"--registry-{key}": value for key, value in options.items() if value is not None})
    values: dict[str, Any] = {key.removeprefix("--registry-"): value for key, value in resolved.items()}
    if not values:
        return None
    try:
        return RegistryConfig(**values)
    except ValidationError as error:
        detail = error.errors()[0]["msg"]
        raise BadInput(detail=f"simulate games: the registry's options: {detail}") from error


def kafka_settings(pairs_given: Sequence[str]) -> dict[str, str]:
    from distributary.sources.kafka_settings import producer_options

    pairs = dict(pair.partition("=")[::2] for pair in pairs_given)
    for key, value in pairs.items():
        if not key or not value:
            raise BadInput(detail=f"simulate games: --kafka-config {key!r}: write it as KEY=VALUE")
    resolved = _resolved({f"--kafka-config {key}": value for key, value in pairs.items()}, "--kafka-config ")
    return producer_options(resolved)


def _resolved(values: Mapping[str, str], prefix: str = "") -> dict[str, str]:
    """References replaced by their values. Raises SecretMissing, ConfigError."""
    from distributary.config.secrets import resolve

    resolved, _ = resolve(dict(values), file="the command line")
    return {key.removeprefix(prefix): str(value) for key, value in resolved.items()}
