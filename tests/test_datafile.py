"""Data files and their statistics: a filter that skips files by them finds every row that a full read finds."""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distributary.tables import datafile
from distributary.tables.datafile import INDEXED_COLUMNS, DataFile, write_data_file
from distributary.tables.evolve import Policy, evolve
from distributary.tables.snapshot import Owner, Txn
from distributary.tables.store import Store
from distributary.tables.table import Table
from tests.random_tables import TIMESTAMP, schemas, values

STORE = Store()
NTZ = datetime(1970, 1, 1)
NO_FLOAT = Decimal("9007199254740993.01")
LONGEST = Decimal("0." + "9" * 38)


def write(folder: Path, *parts: pa.Table) -> list[DataFile]:
    """A new table with a file for each of `parts`, in one commit."""
    files = [write_data_file(str(folder), part, STORE) for part in parts]
    evolution = evolve(None, [parts[0].schema], Policy())
    Table(str(folder), STORE, Owner("p", "r")).commit(None, evolution, files, Txn("s", 0))
    return files


def stats(folder: Path, **columns: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        write_data_file(str(folder), pa.table(columns), STORE).stats, parse_float=Decimal
    )
    return found


def bounds(folder: Path, column: pa.Array) -> tuple[Any, Any]:
    found = stats(folder, c=column)
    return found["minValues"].get("c"), found["maxValues"].get("c")


# -- the file ----------------------------------------------------------------------------------------------


def test_a_file_holds_the_rows_and_says_what_it_is(tmp_path: Path) -> None:
    rows = pa.table({"a": pa.array([1, 2, None], pa.int32()), "l": pa.array([[1], None, []], pa.list_(pa.int32()))})
    found = write_data_file(str(tmp_path / "new" / "table"), rows, STORE)
    body = tmp_path / "new" / "table" / found.path
    assert body.stat().st_size == found.size
    assert found.rows == 3
    assert pq.read_table(body).to_pylist() == rows.to_pylist()
    assert abs(datetime.fromtimestamp(found.written_ms / 1000, UTC) - datetime.now(UTC)) < timedelta(minutes=1)


def test_no_two_files_have_one_name(tmp_path: Path) -> None:
    rows = pa.table({"a": [1]})
    assert len({write_data_file(str(tmp_path), rows, STORE).path for _ in range(10)}) == 10


def test_a_file_crosses_processes_as_json(tmp_path: Path) -> None:
    found = write_data_file(str(tmp_path), pa.table({"a": ['é"']}), STORE)
    assert DataFile(**json.loads(json.dumps(found.to_json()))) == found


def test_a_store_that_refuses_raises_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        write_data_file(str(tmp_path / "file" / "table"), pa.table({"a": [1]}), STORE)


# -- statistics --------------------------------------------------------------------------------------------


def test_statistics_count_rows_and_nulls(tmp_path: Path) -> None:
    found = stats(tmp_path, a=pa.array([1, None, 3]), none=pa.nulls(3, pa.string()), s=pa.array([{"x": 1}, None, None]))
    assert found["numRecords"] == 3
    assert found["nullCount"] == {"a": 1, "none": 3, "s": {"x": 2}}
    assert found["minValues"] == {"a": 1, "s": {"x": 1}}


def test_statistics_of_a_file_without_rows(tmp_path: Path) -> None:
    found = stats(tmp_path, a=pa.array([], pa.int32()))
    assert (found["numRecords"], found["minValues"], found["maxValues"]) == (0, {}, {})


@pytest.mark.parametrize(
    ("column", "low", "high"),
    [
        (pa.array([-2, 1], pa.int8()), -2, 1),
        (pa.array([2**53 + 1, 2**63 - 1]), 2**53 + 1, 2**63 - 1),
        (pa.array([-0.5, 1.5]), Decimal("-0.5"), Decimal("1.5")),
        (pa.array(["", "b"]), "", "b"),
        (pa.array([True, False, None]), False, True),
        (pa.array([True]), True, True),
        (pa.array(['"\\', "\U0001f600\u0000"]), '"\\', "\U0001f600\u0000"),
        (pa.array(["a", "é" * 64]), "a", "é" * 64),
        (pa.array([date(1600, 1, 1), date(9999, 12, 31)]), "1600-01-01", "9999-12-31"),
        (
            pa.array([datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), datetime(9999, 12, 31, tzinfo=UTC)], TIMESTAMP),
            "1969-12-31T23:59:59.999999Z",
            "9999-12-31T00:00:00.000000Z",
        ),
        (pa.array([NTZ, NTZ], pa.timestamp("us")), "1970-01-01T00:00:00.000000", "1970-01-01T00:00:00.000000"),
        (pa.array([Decimal("-5.50"), NO_FLOAT]), Decimal("-5.50"), NO_FLOAT),
        (pa.array([Decimal(0), Decimal(2**64 - 1)], pa.decimal128(20, 0)), 0, 2**64 - 1),
        (pa.array([LONGEST], pa.decimal128(38, 38)), LONGEST, LONGEST),
    ],
    ids=lambda value: str(getattr(value, "type", "")),
)  # fmt: skip
def test_bounds_are_exact(tmp_path: Path, column: pa.Array, low: Any, high: Any) -> None:
    """A decimal's bound as a float would be another number: 9007199254740993.01 has none."""
    assert bounds(tmp_path, column) == (low, high)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1.0, math.nan]),
        pa.array([1.0, math.nan], pa.float32()),
        pa.array([math.nan]),
        pa.array([math.inf, -math.inf]),
        pa.array([b"a", b"b"]),
        pa.array([None, None], pa.int32()),
        pa.array([-(10**17), 2**62], pa.int64()).cast(TIMESTAMP),
        pa.array([-800_000, 3_000_000], pa.int32()).cast(pa.date32()),
        pa.array([-(2**31), 2**31 - 1], pa.int32()).cast(pa.date32()),
    ],
    ids=lambda c: str(c.type),
)
def test_a_bound_that_would_not_be_safe_is_left_out(tmp_path: Path, column: pa.Array) -> None:
    assert bounds(tmp_path, column) == (None, None)


def test_one_bound_may_be_left_out_alone(tmp_path: Path) -> None:
    assert bounds(tmp_path, pa.array([1.0, math.inf])) == (1, None)
    assert bounds(tmp_path, pa.array(["a", chr(sys.maxunicode) * 65])) == ("a", None)
    assert bounds(tmp_path, pa.array([0, 2**62]).cast(TIMESTAMP)) == ("1970-01-01T00:00:00.000000Z", None)


def test_negative_zero_is_below_zero(tmp_path: Path) -> None:
    for zeros in ([0.0], [-0.0], [0.0, -0.0]):
        low, high = bounds(tmp_path, pa.array(zeros))
        assert (math.copysign(1, low), math.copysign(1, high)) == (-1, 1)


def test_names_with_dots_are_names_not_paths(tmp_path: Path) -> None:
    """Parquet joins a path with dots; `a.b` beside a struct `a` with a field `b` must not mix."""
    inner = pa.StructArray.from_arrays([pa.array([7.0, 8.0]), pa.array([math.nan, 1.0])], names=["b", "c.d"])
    found = stats(tmp_path, **{"a.b": pa.array([1, 2]), "a": inner, "l": pa.array([[1], []]), "z": pa.array([5, 6])})
    assert found["minValues"] == {"a.b": 1, "a": {"b": 7}, "z": 5}
    assert found["maxValues"] == {"a.b": 2, "a": {"b": 8}, "z": 6}
    assert found["nullCount"] == {"a.b": 0, "a": {"b": 0}, "z": 0}


def test_elements_of_lists_and_maps_have_no_bounds(tmp_path: Path) -> None:
    found = stats(
        tmp_path,
        l=pa.array([[{"x": 1}]]),
        m=pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int32())),
        s=pa.array([{"l": [1], "x": 2}]),
    )
    assert found["minValues"] == {"s": {"x": 2}}
    assert found["nullCount"] == {"s": {"x": 0}}


def test_wide_tables_have_statistics_for_the_first_columns_only(tmp_path: Path) -> None:
    found = stats(tmp_path, **{f"c{n}": pa.array([n]) for n in range(INDEXED_COLUMNS + 5)})
    assert list(found["minValues"]) == [f"c{n}" for n in range(INDEXED_COLUMNS)]


def test_a_list_or_a_map_counts_as_one_of_the_first_columns(tmp_path: Path) -> None:
    """As deltalake counts, whose filters find no row of a column that it expects bounds of."""
    wide = {
        "l": pa.array([[{"x": 1, "y": 2}]]),
        "m": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int32())),
        **{f"c{n}": pa.array([n]) for n in range(INDEXED_COLUMNS)},
    }
    found = stats(tmp_path, **wide)
    assert list(found["minValues"]) == [f"c{n}" for n in range(INDEXED_COLUMNS - 2)]
    write(tmp_path / "t", pa.table(wide))
    for n in range(INDEXED_COLUMNS):
        assert DeltaTable(tmp_path / "t").to_pyarrow_table(filters=[(f"c{n}", "=", n)]).num_rows == 1


def test_bounds_span_the_row_groups_of_a_large_file(tmp_path: Path) -> None:
    rows = 2**20 + 10
    found = stats(
        tmp_path, a=pa.array(range(rows)), late=pa.concat_arrays([pa.nulls(rows - 1, pa.int64()), pa.array([7])])
    )
    assert (found["minValues"], found["maxValues"]) == ({"a": 0, "late": 7}, {"a": rows - 1, "late": 7})
    assert found["nullCount"] == {"a": 0, "late": rows - 1}


@pytest.mark.parametrize(
    ("longest", "high"),
    [
        ("x" * 65, "x" * 63 + "y"),
        ("x" * 10_000, "x" * 63 + "y"),
        ("x" * 63 + chr(sys.maxunicode) * 2, "x" * 62 + "y"),
        ("x" * 63 + "\ud7ff" * 2, "x" * 63 + "\ue000"),
    ],
)
def test_a_long_text_is_bounded_by_its_beginning(tmp_path: Path, longest: str, high: str) -> None:
    """`x…x` of 64 is below each text that begins with it; the bound above them is the next text of that length."""
    assert bounds(tmp_path, pa.array([longest])) == (longest[:64], high)
    assert bounds(tmp_path, pa.array(["a", longest])) == ("a", high)
    assert high > longest


def test_a_row_group_with_texts_beyond_the_writers_limit_is_bounded_by_its_values(tmp_path: Path) -> None:
    texts = pa.concat_arrays([pa.repeat("b", 2**20), pa.array(["z" * 10_000, "a" * 10_000])])
    assert bounds(tmp_path, texts) == ("a" * 64, "z" * 63 + "{")
    nested = stats(tmp_path, s=pa.StructArray.from_arrays([pa.array(["y" * 10_000])], names=["t"]))
    assert nested["minValues"] == {"s": {"t": "y" * 64}}


def test_a_reader_understands_every_bound(tmp_path: Path) -> None:
    """delta-rs parses the bounds into the column's own type: what it shows is what we wrote."""
    rows = pa.table(
        {
            "d": pa.array([Decimal("-5.50"), Decimal("9007199254740993.01")], pa.decimal128(30, 2)),
            "u": pa.array([Decimal(0), Decimal(2**64 - 1)], pa.decimal128(20, 0)),
            "f": pa.array([0.1, 0.2], pa.float32()),
            "t": pa.array([datetime(1600, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)], TIMESTAMP),
            "n": pa.array([datetime(1969, 12, 31), datetime(2040, 1, 1)], pa.timestamp("us")),
            "day": pa.array([date(1600, 1, 1), date(9999, 12, 31)]),
            "s": pa.array(["", 'é"']),
        }
    )
    write(tmp_path / "t", rows)
    found = pa.table(DeltaTable(tmp_path / "t").get_add_actions(flatten=True)).to_pylist()[0]
    for name in rows.column_names:
        assert [found[f"min.{name}"], found[f"max.{name}"]] == rows.column(name).to_pylist()


# -- skipping ----------------------------------------------------------------------------------------------


OPERATORS = {"=": pc.equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal}


def paths(kind: pa.DataType, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], pa.DataType]]:
    for field in kind:
        here = (*path, field.name)
        if pa.types.is_struct(field.type):
            yield from paths(field.type, here)
        elif not (pa.types.is_list(field.type) or pa.types.is_map(field.type)):
            yield here, field.type


def tables(one: pa.Schema) -> st.SearchStrategy[pa.Table]:
    row = st.fixed_dictionaries({f.name: values(f.type) for f in one})
    return st.lists(row, min_size=1, max_size=3).map(lambda rows: pa.Table.from_pylist(rows, schema=one))


def engine(folder: Path) -> Callable[[str], int]:
    """Counts the rows that a condition finds, by the engine that skips files and row groups by their bounds."""
    builder = QueryBuilder().register("t", DeltaTable(folder))

    def count(where: str) -> int:
        return int(pa.table(builder.execute(f"SELECT count(*) AS n FROM t WHERE {where}"))["n"][0].as_py())

    return count


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("text", ["\U00010000", "\U0001f600", "\U00020000", "\U0010ffff", "\u2028", 'a"\\b'])
def test_a_text_is_found_whatever_characters_its_bounds_hold(tmp_path: Path, text: str, nested: bool) -> None:
    rows = pa.table({"a": [{"a": text}] if nested else [text]})
    write(tmp_path / "t", rows)
    column = """"a"['a']""" if nested else '"a"'
    assert engine(tmp_path / "t")(f"{column} = {literal(text, pa.string())}") == 1


def literal(value: Any, kind: pa.DataType) -> str:
    name = {
        pa.date32(): "Date32",
        TIMESTAMP: 'Timestamp(Microsecond, Some("UTC"))',
        pa.float32(): "Float32",
        pa.float64(): "Float64",
    }.get(kind)
    if pa.types.is_decimal(kind):
        name = f"Decimal128({kind.precision}, {kind.scale})"
        value = format(value, "f")
    text = "'" + str(value).replace("'", "''") + "'"
    return f"arrow_cast({text}, '{name}')" if name else text if pa.types.is_string(kind) else str(value)


SKIPPABLE = (
    pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.decimal128(20, 0), pa.decimal128(30, 10),
    pa.date32(), TIMESTAMP, pa.bool_(),
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=25)
@given(data=st.data(), one=schemas(SKIPPABLE, "abc"))
def test_a_filter_never_skips_a_row_it_should_find(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory, one: pa.Schema
) -> None:
    """Random tables of several files: the engine's filtered count against Arrow's over all rows."""
    folder = tmp_path_factory.mktemp("t") / "t"
    parts = data.draw(st.lists(tables(one), min_size=1, max_size=3))
    write(folder, *parts)
    whole = pa.concat_tables(parts)
    count = engine(folder)
    for path, kind in paths(pa.struct(list(one))):
        column = whole.column(path[0])
        for name in path[1:]:
            column = pc.struct_field(column, name)
        where = f'"{path[0]}"' + "".join(f"['{name}']" for name in path[1:])
        assert count(f"{where} IS NULL") == column.null_count
        if column.null_count < len(column):
            value = data.draw(st.sampled_from(column.drop_null().to_pylist()))
            operator = data.draw(st.sampled_from(list(OPERATORS)))
            expected = pc.sum(OPERATORS[operator](column, pa.scalar(value, kind))).as_py() or 0
            assert count(f"{where} {operator} {literal(value, kind)}") == expected


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=25)
@given(data=st.data(), one=schemas(SKIPPABLE, "abc"))
def test_a_filter_of_pyarrow_finds_every_row_of_a_column_with_bounds(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory, one: pa.Schema
) -> None:
    """By deltalake's dataset, which `to_pandas(filters=...)` reads: it finds nothing where a column has no bounds."""
    folder = tmp_path_factory.mktemp("t") / "t"
    parts = data.draw(st.lists(tables(one), min_size=1, max_size=3))
    files = write(folder, *parts)
    dataset = DeltaTable(folder).to_pyarrow_dataset()
    whole = pa.concat_tables(parts)
    for field in one:
        column = whole.column(field.name)
        both = [json.loads(file.stats)[ends] for file in files for ends in ("minValues", "maxValues")]
        if pa.types.is_struct(field.type) or any(field.name not in ends for ends in both):
            continue
        value = pa.scalar(data.draw(st.sampled_from(column.drop_null().to_pylist())), field.type)
        operator = data.draw(st.sampled_from(list(OPERATORS.values())))
        wanted = pc.sum(operator(column, value)).as_py() or 0
        assert dataset.count_rows(filter=operator(pc.field(field.name), value)) == wanted


def test_a_boolean_is_found_by_pyarrow_and_pandas(tmp_path: Path) -> None:
    write(tmp_path / "t", pa.table({"id": [1, 2, 3], "deleted": [True, False, None]}))
    table = DeltaTable(tmp_path / "t")
    assert table.to_pandas(filters=[("deleted", "=", False)])["id"].tolist() == [2]
    assert table.to_pyarrow_table(filters=[("deleted", "!=", False)])["id"].to_pylist() == [1]


def test_a_filter_reads_only_the_files_that_can_match(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    files = write(folder, *(pa.table({"a": pa.array([n, n + 1])}) for n in (0, 10, 20)))
    for file in files[1:]:
        (folder / file.path).unlink()
    assert engine(folder)("a < 5") == 2
    with pytest.raises(Exception, match=r"part-.*not found"):  # the engine has no class of its own for it
        engine(folder)("a > 5")


def test_not_a_number_is_found_beyond_every_bound(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    write(folder, pa.table({"a": [1.0, math.nan]}), pa.table({"a": [2.0]}))
    assert engine(folder)("a > 5") == 1
    nested = pa.table({"s": [{"x": math.nan, "y": 1.0}], "y": [1.0], "l": [[1.0]]})
    write(tmp_path / "nested", nested)
    assert engine(tmp_path / "nested")("s['x'] > 5") == 1
    assert engine(tmp_path / "nested")("s['y'] > 5 OR y > 5") == 0


def test_pyarrow_filters_find_decimals_beyond_a_float(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    write(folder, pa.table({"a": pa.array([NO_FLOAT])}), pa.table({"a": pa.array([NO_FLOAT + 1])}))
    table = Table(str(folder), STORE).open()
    assert table is not None
    assert table.delta.to_pyarrow_table(filters=[("a", "=", NO_FLOAT)]).to_pylist() == [{"a": NO_FLOAT}]


def test_only_columns_whose_values_repeat_get_a_dictionary(tmp_path: Path) -> None:
    count = 10_000
    rows = pa.table(
        {
            "id": pa.array(range(count)),
            "of_three": pa.array([f"name {n // 3}" for n in range(count)]),
            "state": pa.array(["new", "paid"] * (count // 2)),
            "null": pa.nulls(count, pa.string()),
            "tags": pa.array([[str(n), "x"] for n in range(count)]),
            "about": pa.array([{"uuid": f"{n:032}", "more": {"place": n, "kind": "a"}} for n in range(count)]),
        }
    )
    [file] = write(tmp_path, rows)
    found = pq.ParquetFile(tmp_path / file.path)
    assert found.read().equals(rows)
    group = found.metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    without = {c.path_in_schema for c in columns if not c.has_dictionary_page}
    assert without == {"id", "about.uuid", "about.more.place"}


def test_a_file_of_few_rows_has_no_dictionaries(tmp_path: Path) -> None:
    rows = pa.table({"state": ["new"] * datafile.SMALL_ROWS, "more": [{"kind": "a"}] * datafile.SMALL_ROWS})
    small, larger = write(tmp_path, rows, pa.concat_tables([rows, rows]))
    groups = [pq.read_metadata(tmp_path / file.path).row_group(0) for file in (small, larger)]
    assert [[group.column(n).has_dictionary_page for n in range(2)] for group in groups] == [[False] * 2, [True] * 2]


@settings(max_examples=30)
@given(schemas(names="abc").flatmap(tables), st.sampled_from([0, datafile.SMALL_ROWS]))
def test_columns_of_any_type_are_judged_and_written_as_they_are(rows: pa.Table, small: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(datafile, "SAMPLE", 2)
        patch.setattr(datafile, "SAMPLED_ROWS", 2)
        patch.setattr(datafile, "SMALL_ROWS", small)
        file = write_data_file(folder, rows, STORE)
        assert pq.read_table(Path(folder) / file.path).to_pylist() == rows.to_pylist()
