"""Refuses, with line and remedy, what a definitions file must not do on open-source Spark 4.2.

The worst of it says nothing at all: an operation that looks at its input's columns makes the Connect planner resolve
the input at once. Once that table exists, the pipeline no longer sees that one dataset needs the other, starts both
together, and the second one reads an empty table: 0 rows, "Run is COMPLETED" (cf. SPARK-53505).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from distributary.config import Pipeline
from distributary.declarative.libraries import Library, find_functions, find_libraries
from distributary.errors import LintFailed

ALLOW = "distributary: allow"
"""A comment with these words on a line: its author knows better, as for a table that is not of the pipeline."""

_SELECT = "write it as a select: .select('*', <expression>.alias(<name>))"
EAGER = {
    "withColumn": _SELECT,
    "withColumns": _SELECT,
    "withMetadata": _SELECT,
    "withColumnRenamed": "write it as a select with .alias(<name>), or as .toDF(<names>)",
    "withColumnsRenamed": "write it as a select with .alias(<name>), or as .toDF(<names>)",
    "drop": "select the columns to keep",
    "dropDuplicates": "write it as .groupBy(<columns>).agg(F.any_value(...))",
    "drop_duplicates": "write it as .groupBy(<columns>).agg(F.any_value(...))",
    "dropDuplicatesWithinWatermark": "do it in a stream of its own, outside the pipeline",
    "distinct": "write it as .groupBy(<columns>).agg(...), or in spark.sql('SELECT DISTINCT ...')",
    "fillna": "write it as a select: F.coalesce(<column>, F.lit(<value>))",
    "dropna": "write it as .where(<column> IS NOT NULL)",
    "na": "write it as a select: F.coalesce(...), or as .where(<column> IS NOT NULL)",
    "replace": "write it as a select: F.when(...).otherwise(...)",
    "withWatermark": "do it in spark.sql(), or in a stream of its own, outside the pipeline",
    "to": "write it as a select with .cast(<type>)",
    "applyInPandas": "use an arrow_udf inside a select",
    "applyInArrow": "use an arrow_udf inside a select",
    "mapInPandas": "use an arrow_udf inside a select",
    "mapInArrow": "use an arrow_udf inside a select",
    "transformWithState": "do it in a stream of its own, outside the pipeline",
    "transformWithStateInPandas": "do it in a stream of its own, outside the pipeline",
    "colRegex": "name the columns",
}
"""DataFrame methods that resolve their input when they are written down, and what to write instead."""

RUNS = {"collect", "toPandas", "toArrow", "show", "isEmpty", "first", "head", "take", "tail", "toLocalIterator"}
RUNS |= {"columns", "schema", "dtypes", "count", "describe", "summary", "explain", "write", "writeStream", "writeTo"}
"""What asks the server for an answer, or writes, which a query function may not. `count` of a group is another one."""

MUTATES = {
    "createTempView": "use @dp.temporary_view",
    "createOrReplaceTempView": "use @dp.temporary_view",
    "createGlobalTempView": "use @dp.temporary_view",
    "createOrReplaceGlobalTempView": "use @dp.temporary_view",
    "setCurrentDatabase": "name datasets as <catalog>.<database>.<table>",
    "setCurrentCatalog": "name datasets as <catalog>.<database>.<table>",
}

_COMMON_NAMES = {"replace", "to", "drop", "distinct", "na"}
"""Method names that other objects have too: a fault only where the object is a DataFrame, as far as can be seen."""

_FRAMES = {"table", "load", "sql", "select", "selectExpr", "where", "filter", "join", "union", "unionByName", "agg"}
_FRAMES |= {"alias", "limit", "sort", "orderBy", "sample", "repartition", "toDF", "unpivot", "crossJoin"}


@dataclass(frozen=True)
class LintFinding:
    """A line that must not be there. `rule`: a stable word for it."""

    file: str
    line: int
    rule: str
    detail: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.detail}"


def own_files(config: Pipeline, base: Path) -> list[Library]:
    """The user's own files, linted: libraries, and those of `tables.function`. `base`: the folder of the pipeline file.

    Raises ConfigError (a file or a function that is not there), LintFailed.
    """
    files = [*find_libraries(config, base), *find_functions(config, base)]
    check_libraries(files)
    return files


def check_libraries(libraries: Sequence[Library]) -> None:
    """Raises LintFailed with all that is found in the user's files."""
    findings = [finding for library in libraries for finding in lint(library.path, library.functions)]
    if findings:
        raise LintFailed(detail="\n".join(map(str, findings)), findings=[asdict(f) for f in findings])


def lint(path: Path, functions: Collection[str] = ()) -> list[LintFinding]:
    """What must not be in a file of Python or SQL, by line. `functions`: those that are given a DataFrame."""
    text = path.read_text(encoding="utf-8")
    findings = list(_in_sql(str(path), text)) if path.suffix == ".sql" else _in_python(str(path), text, functions)
    lines = text.splitlines()
    allowed = [f for f in findings if 0 < f.line <= len(lines) and ALLOW in lines[f.line - 1]]
    return sorted((f for f in findings if f not in allowed), key=lambda f: (f.line, f.rule))


# -- Python ------------------------------------------------------------------------------------------------


def _in_python(file: str, text: str, functions: Collection[str]) -> list[LintFinding]:
    try:
        tree = ast.parse(text)
    except SyntaxError as e:
        return [LintFinding(file, e.lineno or 1, "SYNTAX", f"not Python: {e.msg}")]
    return list(_Reader(file, functions).read(tree))


class _Reader:
    def __init__(self, file: str, functions: Collection[str] = ()) -> None:
        self.file = file
        self.functions = functions
        self.frames: set[str] = set()

    def read(self, tree: ast.Module) -> Iterator[LintFinding]:
        self.frames = _frame_names(tree, self.functions)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                yield from self._call(node)
        for function, kind in _query_functions(tree, self.functions):
            yield from self._query(function, kind)

    def _query(self, function: ast.FunctionDef, kind: str) -> Iterator[LintFinding]:
        used = [node for node in ast.walk(function) if isinstance(node, ast.Attribute)]
        for node in used:
            if node.attr in RUNS and self.is_frame(node.value) and not _is_grouped(node):
                yield self._at(
                    node, "RUNS_A_QUERY", f".{node.attr} asks the server inside a query function, which is refused "
                    "(ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION); ask outside of it, of tables that are not of "
                    "this pipeline",
                )  # fmt: skip
        streams = [node for node in used if node.attr == "readStream"]
        reads = [node for node in used if node.attr == "read"]
        if kind == "table" and reads and not streams:
            yield self._at(
                reads[0], "QUERY_TYPE", "a @dp.table is filled by a stream (INVALID_FLOW_QUERY_TYPE); read with "
                "spark.readStream, or make it a @dp.materialized_view",
            )  # fmt: skip
        if kind == "materialized_view" and streams:
            yield self._at(
                streams[0], "QUERY_TYPE", "a @dp.materialized_view is computed whole (INVALID_FLOW_QUERY_TYPE); read "
                "with spark.read, or make it a @dp.table",
            )  # fmt: skip

    def _call(self, node: ast.Call) -> Iterator[LintFinding]:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        on = node.func.value if isinstance(node.func, ast.Attribute) else None
        eager = name
        if isinstance(on, ast.Attribute) and on.attr == "na":
            eager, on = "na", on.value
        if on is not None and eager in EAGER and (eager not in _COMMON_NAMES or self.is_frame(on)):
            yield self._at(
                node.func, "EAGER_OPERATION", f".{eager}() resolves its input when it is written down: from the second "
                f"run on, the order of datasets is lost and this one can be empty; {EAGER[eager]}",
            )  # fmt: skip
        if on is not None and name in MUTATES:
            yield self._at(node.func, "SESSION_MUTATION", f".{name}() is refused in a pipeline; {MUTATES[name]}")
        if on is not None and _ends(on, "conf") and name == "set":
            yield self._at(node.func, "SESSION_MUTATION", "conf.set() is refused in a pipeline; set it in spark.conf")
        if on is not None and _ends(on, "udf") and name.startswith("register"):
            yield self._at(node.func, "SESSION_MUTATION", "udf.register() is refused; use the function in a select")
        yield from self._definition(node, name)

    def _definition(self, node: ast.Call, name: str) -> Iterator[LintFinding]:
        if name in ("create_auto_cdc_flow", "create_auto_cdc_from_snapshot_flow"):
            yield self._at(
                node, "AUTO_CDC", f"{name}() does not work on Delta tables (AUTOCDC_TARGET_DOES_NOT_SUPPORT_MERGE); "
                "use a source of type datastream, or merge in a stream of your own",
            )  # fmt: skip
        if name.startswith("expect") and isinstance(node.func, ast.Attribute) and _ends(node.func.value, "dp"):
            yield self._at(node, "EXPECT", f"dp.{name}() is not in open-source Spark; use tables.expectations")
        if name not in ("table", "materialized_view", "create_streaming_table"):
            return
        for keyword in node.keywords:
            if keyword.arg == "format" and _text(keyword.value).lower() == "delta":
                yield self._at(
                    keyword.value, "FORMAT_DELTA", 'format="delta" is refused by the second run '
                    "(DELTA_CANNOT_CHANGE_PROVIDER); leave it out, Delta is the default here",
                )  # fmt: skip
            if keyword.arg == "cluster_by":
                yield self._at(keyword.value, "CLUSTER_BY", "cluster_by is refused on Delta; use partition_cols")

    def is_frame(self, node: ast.expr) -> bool:
        """Is this a DataFrame, as far as can be seen: a chain that begins with a read, or a name that holds one?"""
        while True:
            if isinstance(node, ast.Name):
                return node.id in self.frames
            if isinstance(node, ast.Call):
                node = node.func
            elif isinstance(node, ast.Attribute):
                if node.attr in _FRAMES or node.attr in ("read", "readStream"):
                    return True
                node = node.value
            else:
                return False

    def _at(self, node: ast.expr, rule: str, detail: str) -> LintFinding:
        # The end: of a chain over many lines, this is the one with the method's name.
        line = node.end_lineno if isinstance(node, ast.Attribute) else node.lineno
        return LintFinding(self.file, line or 1, rule, detail)


def _frame_names(tree: ast.Module, functions: Collection[str]) -> set[str]:
    """Names that hold a DataFrame: assigned from a read, a parameter that says so, or one of `functions`."""
    names: set[str] = set()
    reader = _Reader("")
    for _ in range(2):  # a name assigned from a name
        reader.frames = names
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and reader.is_frame(node.value):
                names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
            elif isinstance(node, ast.arg) and _is_frame_type(node.annotation):
                names.add(node.arg)
            elif isinstance(node, ast.FunctionDef) and node.name in functions:
                names |= {argument.arg for argument in node.args.args}
    return names


def _is_frame_type(annotation: ast.expr | None) -> bool:
    return annotation is not None and ast.unparse(annotation).strip("'\"").rpartition(".")[2] == "DataFrame"


def _query_functions(tree: ast.Module, functions: Collection[str]) -> Iterator[tuple[ast.FunctionDef, str]]:
    """Functions that define a dataset, and of which kind; "" for those that are given one."""
    kinds = ("table", "materialized_view", "temporary_view", "append_flow")
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef):
            continue
        if node.name in functions:
            yield node, ""
        for decorator in node.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            kind = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if kind in kinds:
                yield node, kind


def _is_grouped(node: ast.Attribute) -> bool:
    """Is this `count` that of a group, which is an aggregation like others?"""
    called = node.value.func if isinstance(node.value, ast.Call) else node.value
    grouped = ("groupBy", "groupby", "rollup", "cube", "groupingSets", "pivot")
    return node.attr == "count" and isinstance(called, ast.Attribute) and called.attr in grouped


def _ends(node: ast.expr, name: str) -> bool:
    return (isinstance(node, ast.Name) and node.id == name) or (isinstance(node, ast.Attribute) and node.attr == name)


def _text(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


# -- SQL ---------------------------------------------------------------------------------------------------

_SQL_RULES = (
    (
        "FORMAT_DELTA",
        r"\bUSING\s+DELTA\b",
        "USING DELTA is refused by the second run (DELTA_CANNOT_CHANGE_PROVIDER); leave it out, Delta is the default",
    ),
    ("EXPECT", r"\bCONSTRAINT\b[^;]*?\bEXPECT\b", "EXPECT is not in open-source Spark; use tables.expectations"),
    ("CLUSTER_BY", r"\bCLUSTER\s+BY\s*\(", "CLUSTER BY is refused on Delta; use PARTITIONED BY"),
    ("SESSION_MUTATION", r"(?:^|;)\s*SET\s+[\w.`]+\s*=", "SET is refused in a pipeline; set it in spark.conf"),
    (
        "AUTO_CDC",
        r"\b(?:AUTO\s+CDC|APPLY\s+CHANGES)\s+INTO\b",
        "AUTO CDC does not work on Delta tables (AUTOCDC_TARGET_DOES_NOT_SUPPORT_MERGE); merge in a stream of your own",
    ),
)


def _in_sql(file: str, text: str) -> Iterator[LintFinding]:
    bare = _without_comments_and_texts(text)
    for rule, pattern, detail in _SQL_RULES:
        for match in re.finditer(pattern, bare, re.IGNORECASE | re.MULTILINE):
            begin = match.start() + len(match[0]) - len(match[0].lstrip("; \t\r\n"))
            yield LintFinding(file, bare.count("\n", 0, begin) + 1, rule, detail)


def _without_comments_and_texts(text: str) -> str:
    """Comments and quoted texts blanked, line by line as long as before."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match[0])

    return re.sub(r"--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", blank, text, flags=re.DOTALL)
