"""The order of the packages and their fences, as docs/architecture.md draws them."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from pathlib import Path

import deltalake.exceptions
import pytest

SOURCES = Path(__file__).parent.parent / "src"
PACKAGE = SOURCES / "distributary"
MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))
PRODUCERS = sorted(
    path.relative_to(PACKAGE.parent).as_posix() for path in (SOURCES / "distributary_simulate").rglob("*.py")
)

# A package imports from the lines above its own only; two packages of one line do not know each other.
LAYERS = [
    "backoff log_context redaction version",
    "names",
    "errors",
    "scratch shares steps",
    "avro config",
    "changes",
    "schemas",
    "tables",
    "spark sources",
    "state",
    "engine supervisor",
    "running metrics sink",
    "audit",
    "declarative",
    "repair fleet",
    "kinds",
    "api cli",
    "__main__",
    "__init__",
]
LEVEL = {name: level for level, line in enumerate(LAYERS) for name in line.split()}

# Who may see Spark. What runs in its workers, and `check`, starts without a JVM.
DRIVER = (
    "spark sources tables.spark_engine tables.spark_known tables.spark_merge tables.spark_names tables.spark_order "
    "tables.spark_tombstones tables.spark_types tables.spark_upkeep "
    "running repair.rebuilding audit.dry_run declarative api sink.data_source sink.frame_writer sink.payload_column "
    "engine.attempts engine.batch engine.changes.tasks engine.changes.by_spark engine.changes.micro_batch "
    "engine.messages.tasks engine.messages.batch_chunks engine.messages.attempt engine.messages.micro_batch"
)
# Library -> the only units that may import it. The producers stand beside the product, which does not know them.
ALLOWED = {
    "pyspark": DRIVER,
    "py4j": DRIVER,
    "datafusion": "schemas.row_sql",
    "delta": "tables.spark_engine tables.spark_merge",
    "deltalake": "tables.snapshot tables.table tables.edge tables.store",
    "ptars": "schemas.protobuf",
    "obstore": "sources.bodies sources.listing_objects tables.object_stores",
    "fastavro": "changes schemas.avro audit.judge.raw_files audit.judge.avro audit.judge.debezium_avro",
    "msgspec": "changes schemas.json",
    "grpc_tools": "schemas.registry",
    "prometheus_client": "metrics.endpoint",
    "opentelemetry": "metrics.otlp",
    "typer": "cli",
    "distributary_simulate": "",
}
# `verify` judges by code of its own: of the product it may use what opens files and tables, and the books.
JUDGE = "audit/judge/"
JUDGE_MAY_USE = (
    "audit.judge audit.verify config errors names redaction scratch shares state sources.bodies sources.kafka "
    "tables.table tables.snapshot tables.faults tables.files tables.quarantine tables.store schemas.registry "
    "engine.schemas engine.changes.backlog "
    "engine.changes.table_settings engine.changes.seen_events"
)
# Beside the libraries' fences: their errors leave at one edge (`tables.edge`), and are not even spoken of elsewhere.
ERRORS_OF_DELTALAKE = {name for name, kind in vars(deltalake.exceptions).items() if isinstance(kind, type)}
FORBIDDEN_NAMES = {"utils", "common", "helpers", "manager"}
MODULE_LINES, FUNCTION_LINES = 400, 55

# Modules of these are named for what they configure, command, judge or choose.
NAMED_FOR_OTHERS = ("config/", "cli/", "audit/judge/", "kinds/")
# One thing for several implementations: two engines, payload formats, a verb of two kinds of pipelines.
TWINS = [
    {"engine/changes", "engine/messages"},
    {"schemas/avro", "schemas/json", "schemas/protobuf"},
    {"audit", "declarative", "engine"},
]
# Classes of these have one name for two formats, or for two kinds of pipelines.
CLASS_TWINS = [
    {"engine/changes", "engine/messages"},
    {"avro", "schemas/avro", "schemas/json", "schemas/protobuf"},
    {"declarative", "running", "sources"},
]
# The field's own words: a record of a topic and of a schema; the public API and what it stands on.
SHARED_CLASSES = {"Record", "Pipeline"}


def unit(module: str) -> str:
    """The dotted name of a module's file."""
    return module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def package(name: str) -> str:
    """The first part of a dotted name below `distributary`."""
    return name.split(".")[0]


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


def test_every_package_has_a_layer() -> None:
    assert {package(unit(module)) for module in MODULES} == LEVEL.keys()


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_from_its_own_package_and_lower_ones_only(module: str) -> None:
    own = package(unit(module))
    for name in imports(module):
        if name.startswith("distributary."):
            other = package(name.removeprefix("distributary."))
            other = other if other in LEVEL else "__init__"
            assert other == own or LEVEL[other] < LEVEL[own], f"{module} imports {name}"


@pytest.mark.parametrize("module", MODULES)
def test_a_library_is_used_behind_its_fence_only(module: str) -> None:
    for name in imports(module):
        allowed = ALLOWED.get(name.split(".")[0])
        fenced = allowed is None or place(unit(module), allowed.split()) in allowed.split()
        assert fenced, f"{module} imports {name}"


@pytest.mark.parametrize("module", [m for m in MODULES if not m.startswith("tables/")])
def test_errors_of_deltalake_are_named_at_their_edge_only(module: str) -> None:
    words = set(re.findall(r"\w+", (PACKAGE / module).read_text()))
    assert not words & ERRORS_OF_DELTALAKE, f"{module} names an error of deltalake"


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith(JUDGE)])
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


@pytest.mark.parametrize("module", [*(f"distributary/{module}" for module in MODULES), *PRODUCERS])
def test_modules_and_functions_are_short_and_named_for_what_they_hold(module: str) -> None:
    text = (SOURCES / module).read_text()
    lines = text.count("\n")
    assert lines <= MODULE_LINES, f"{module} has {lines} lines, the ceiling is {MODULE_LINES}"
    assert not FORBIDDEN_NAMES & set(module.removesuffix(".py").split("/"))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= FUNCTION_LINES, f"{module}: {node.name} has {length} lines"


def test_two_modules_have_one_name_only_where_they_are_one_thing_for_two() -> None:
    places: dict[str, set[str]] = {}
    for module in MODULES:
        place, _, name = module.rpartition("/")
        if name not in ("__init__.py", "__main__.py") and not module.startswith(NAMED_FOR_OTHERS):
            places.setdefault(name, set()).add(place)
    twice = {n: found for n, found in places.items() if len(found) > 1 and not any(found <= one for one in TWINS)}
    assert not twice, "name them for what they hold"


def test_two_classes_have_one_name_only_where_they_are_one_thing_for_two() -> None:
    places: dict[str, list[str]] = {}
    for module in MODULES:
        if not module.startswith(NAMED_FOR_OTHERS):
            for node in tree(module).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places.setdefault(node.name, []).append(module.rpartition("/")[0])
    twice = {
        name: packages
        for name, packages in places.items()
        if len(packages) > 1
        and name not in SHARED_CLASSES
        and (len(set(packages)) < len(packages) or not any(set(packages) <= twins for twins in CLASS_TWINS))
    }
    assert not twice, "name them for what they hold"
