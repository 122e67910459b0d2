"""The order of the modules and their fences, as docs/architecture.md draws them."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "distributary"
MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))

# A module imports from the lines above its own only. Modules of one package may import each other.
LAYERS = [
    "__init__",
    "redaction",
    "names",
    "errors",
    "apart border scratch shares",
    "config spark.java spark.launcher",
    "registry spark.session datastream shape",
    "formats tables",
    "bronze.rows",
    "sources",
    "notices state.journal state.ledger state.lock state.streams",
    "state.cleaning state.checkpoint_damage",
    "state.checkpoint state.shares catalog recount schemas",
    "bronze.table state.layout state.identity state.provenance",
    "fanout.spool fanout.orders fanout.packing fanout.workers",
    "cdc",
    "fanout.chunks",
    "fanout.admission fanout.decode fanout.owned fanout.pieces fanout.wide",
    "fanout.demux",
    "fanout.deliver fanout.entering fanout.envelopes fanout.killers bronze.unwrap",
    "fanout.tasks",
    "fanout.batch_chunks",
    "fanout.attempt",
    "fanout.wide_attempt",
    "fanout.micro_batch cdc.tasks cdc.by_spark",
    "cdc.attempt",
    "cdc.micro_batch",
    "cdc.merges",
    "replay",
    "batch cdc.feed maintain views spark.failures",
    "cdc.writer",
    "pipeline",
    "bronze.ingest",
    "supervisor.policy supervisor.views",
    "supervisor.child",
    "supervisor.supervise supervisor.pipeline_board",
    "bronze.rebuilding",
    "hops replays bronze.resync",
    "dry_run",
    "plan status verify workflow.plan",
    "cdc.resync cdc.reconcile audit",
    "workflow.routes workflow.bundle workflow.wheel workflow.views grants",
    "workflow.handover workflow.local workflow.databricks workflow.deploy",
    "declarative",
    "workflow.pipeline_bundle",
    "clean",
    "simulate.whole",
    "simulate.games simulate.changes",
    "simulate.databases",
    "simulate.change_files",
    "progress",
    "demo.answers",
    "demo.games",
    "demo.changes demo.declarative",
    "cli __main__",
    "leash",
]
LEVEL = {name: level for level, line in enumerate(LAYERS) for name in line.split()}

# Library -> the only units that may import it. Spark's workers and `check` start without a JVM.
DRIVER = (
    "spark sources tables.spark_engine tables.spark_merge catalog fanout.tasks fanout.batch_chunks fanout.attempt "
    "fanout.micro_batch batch "
    "cdc.tasks cdc.by_spark cdc.micro_batch pipeline views bronze.ingest bronze.rebuilding hops dry_run plan "
    "declarative demo cli"
)
ALLOWED = {
    "pyspark": DRIVER,
    "py4j": DRIVER,
    "datafusion": "shape",
    "delta": "tables.spark_engine tables.spark_merge",
    "ptars": "formats",
    "obstore": "sources.bodies sources.listing_objects tables.object_stores tables.put_once",
    "fastavro": "datastream audit.raw_files",
    "msgspec": "datastream",
    "grpc_tools": "registry",
    "typer": "cli",
    "psycopg": "simulate.databases",
    "pymysql": "simulate.databases",
    "pymysqlreplication": "simulate.databases",
}
# `verify` judges by code of its own: of the product it may use what opens files and tables, and the books.
JUDGE = "audit"
JUDGE_MAY_USE = (
    "audit border config errors names redaction scratch shares state sources.bodies tables.append tables.files "
    "tables.quarantine tables.store registry schemas sources.kafka cdc.backlog cdc.names cdc.tally verify"
)
FORBIDDEN_NAMES = {"utils", "common", "helpers", "manager"}
MODULE_LINES, FUNCTION_LINES = 400, 60


def unit(module: str) -> str:
    """The dotted name of a module's file."""
    return module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def place(name: str, known: Collection[str]) -> str:
    """The longest beginning of a dotted name that is among `known`; its first part where none is."""
    parts = name.split(".")
    beginnings = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((found for found in beginnings if found in known), parts[0])


def tree(module: str) -> ast.Module:
    return ast.parse((PACKAGE / module).read_text())


def imports(module: str) -> Iterator[str]:
    """Full names of all that a module imports, also inside functions and under TYPE_CHECKING."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: relative import"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_every_module_has_a_layer() -> None:
    # a package whose modules have layers of their own has none itself: it holds no code
    packages = {name.split(".")[0] for name in LEVEL if "." in name}
    assert {place(unit(module), LEVEL) for module in MODULES} - LEVEL.keys() - packages == set()


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_from_lower_layers_only(module: str) -> None:
    own = place(unit(module), LEVEL)
    for name in imports(module):
        if name.startswith("distributary."):
            other = place(name.removeprefix("distributary."), LEVEL)
            other = other if other in LEVEL else "__init__"
            assert other == own or LEVEL[other] < LEVEL[own], f"{module} imports {name}"


@pytest.mark.parametrize("module", MODULES)
def test_a_library_is_used_behind_its_fence_only(module: str) -> None:
    for name in imports(module):
        allowed = ALLOWED.get(name.split(".")[0])
        fenced = allowed is None or place(unit(module), allowed.split()) in allowed.split()
        assert fenced, f"{module} imports {name}"


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith(f"{JUDGE}/")])
def test_the_judge_shares_no_decoder_no_evolution_and_no_order_with_what_it_judges(module: str) -> None:
    may_use = JUDGE_MAY_USE.split()
    for name in imports(module):
        if name.startswith("distributary."):
            own = name.removeprefix("distributary.")
            assert place(own, may_use) in may_use, f"{module} imports {name}"


@pytest.mark.parametrize("module", MODULES)
def test_only_cli_prints_and_only_config_sees_the_environment(module: str) -> None:
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Name) and node.id == "print":
            assert unit(module).split(".")[0] == "cli", f"{module}:{node.lineno}: print"
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "putenv"):
            assert module == "config/environment.py", f"{module}:{node.lineno}: {node.attr}"


@pytest.mark.parametrize("module", MODULES)
def test_modules_and_functions_are_short_and_named_for_what_they_hold(module: str) -> None:
    lines = (PACKAGE / module).read_text().count("\n")
    assert lines <= MODULE_LINES, f"{module} has {lines} lines, the ceiling is {MODULE_LINES}"
    assert not FORBIDDEN_NAMES & set(module.removesuffix(".py").split("/"))
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= FUNCTION_LINES, f"{module}: {node.name} has {length} lines"
