"""Names in a catalog: what it refuses of one table or view stops no other."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from py4j.protocol import Py4JNetworkError

from distributary.config import Pipeline
from distributary.errors import SourceDown, SourceMissing
from distributary.running.catalog import register
from distributary.running.state_names import StateNames
from distributary.running.wide_views import kept, refresh
from distributary.sources.delta_source import DeltaRows
from distributary.state.ledger import Ledger
from distributary.tables.store import Store
from distributary.tables.unity import CatalogDown, UnityCatalog
from distributary.tables.wide import KEY
from tests.exceptions import panic


class Refusing:
    """A session whose catalog raises for every command that speaks of `name`."""

    def __init__(self, name: str, error: BaseException) -> None:
        self.name, self.error = name, error
        self.done: list[str] = []
        self.catalog = SimpleNamespace(databaseExists=lambda _: False, tableExists=lambda _: False)

    def sql(self, text: str) -> None:
        if f"`{self.name}`" in text.split(" USING ")[0].split(" AS ")[0]:
            raise self.error
        self.done.append(text)


def session(name: str, error: BaseException) -> Any:
    return Refusing(name, error)


@pytest.mark.parametrize("error", [ValueError("taken"), panic()])
def test_a_table_that_the_catalog_refuses_stops_no_other(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    spark = session("b", error)
    register(spark, "games", {name: f"/lake/{name}" for name in "abc"})
    assert [text.split("`")[3] for text in spark.done[1:]] == ["a", "c"]
    assert [type(error).__name__ in record.getMessage() for record in caplog.records] == [True]


def test_a_spark_that_is_gone_is_no_table_s_fault() -> None:
    with pytest.raises(Py4JNetworkError):
        register(session("b", Py4JNetworkError("gone")), "games", {"a": "/lake/a", "b": "/lake/b"})


class Schemas(Refusing):
    """A catalog in which nobody may make a database. `there`: is it there?"""

    def __init__(self, there: bool) -> None:
        super().__init__("games", ValueError("who may not make it"))
        self.catalog = SimpleNamespace(databaseExists=lambda _: there, tableExists=lambda _: False)

    def sql(self, text: str) -> None:
        if text.startswith("CREATE DATABASE"):
            raise self.error
        self.done.append(text)


def test_who_may_make_no_database_writes_on_without_names_and_gives_them_where_it_is_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for there, names in ((False, 0), (True, 1)):
        spark = Schemas(there)
        register(cast(Any, spark), "games", {"a": "/lake/a"})
        assert len(spark.done) == names
    assert ["who may not make it" in record.getMessage() for record in caplog.records] == [True]


def test_a_catalog_that_refuses_a_name_of_the_state_stops_no_batch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = Pipeline.model_validate(
        {
            "pipeline": "games", "source": {"type": "delta", "path": str(tmp_path / "source")},
            "registry": {"path": str(tmp_path / "registry")}, "tables": {"root": str(tmp_path / "lake")},
            "state_database": "no_such",
        }
    )  # fmt: skip
    write_deltalake(config.state_folder.ledger, pa.table({"batch": [1]}))
    names = StateNames(session("no_such", ValueError("who may not make it")), config, Store())
    for _ in range(2):
        names.give()
    assert ["who may not make it" in record.getMessage() for record in caplog.records] == [True], "said once"
    with pytest.raises(Py4JNetworkError):
        StateNames(session("no_such", Py4JNetworkError("gone")), config, Store()).give()


def test_without_a_spark_that_knows_the_catalog_the_wide_table_gets_its_name_and_views_are_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(UnityCatalog, "call", lambda _, *args, **__: calls.append(args))
    unity = {"url": "http://catalog", "names": True}
    config = Pipeline.model_validate(
        {
            "pipeline": "games", "layout": "wide", "source": {"type": "delta", "path": str(tmp_path / "source")},
            "registry": {"path": str(tmp_path / "registry")},
            "tables": {"root": str(tmp_path / "lake"), "database": "main.games", "unity": unity},
        }
    )  # fmt: skip
    write_deltalake(config.wide_path, pa.table({KEY: ["a"], "a": [{"x": 1}]}))
    ledger = Ledger(config.state_root, config.pipeline, Store())
    assert [view.route for view in refresh(cast(Any, None), config, ledger, ["a"])] == ["a"]
    [body] = [call[3] for call in calls if call[:2] == ("POST", "/tables")]
    assert (body["name"], body["schema_name"], body["storage_location"]) == ("wide", "games", config.wide_path)
    assert list(kept(config, Store())) == ["a"]
    assert refresh(cast(Any, None), config, ledger, ["a"]) == [], "nothing is out of date"


def test_a_source_by_its_name_is_asked_of_the_catalog_where_spark_does_not_know_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = str(tmp_path / "source")
    write_deltalake(source, pa.table({"value": [b"x"]}))
    answers: dict[str, Any] = {
        "/tables/main.bronze.events": {"data_source_format": "DELTA", "storage_location": f"file://{source}"},
        "/tables/main.bronze.far": {"data_source_format": "DELTA", "storage_location": "s3://lake/far/"},
        "/tables/main.bronze.lines": {"data_source_format": "CSV", "storage_location": "s3://lake/lines"},
    }
    asked: list[str] = []

    def call(_: Any, method: str, path: str, *__: Any, **___: Any) -> Any:
        asked.append(path)
        if path.endswith("away"):
            raise CatalogDown("it is away")
        return answers.get(path)

    monkeypatch.setattr(UnityCatalog, "call", call)

    def rows(table: str) -> DeltaRows:
        unity = {"url": "http://catalog", "names": True}
        config = {
            "pipeline": "games", "source": {"type": "delta", "table": table},
            "registry": {"path": str(tmp_path / "registry")},
            "tables": {"root": str(tmp_path / "lake"), "database": "main.games", "unity": unity},
        }  # fmt: skip
        return DeltaRows(Pipeline.model_validate(config))

    events = rows("main.bronze.events")
    assert (events.keys.path, events.keys.table) == (source, None)
    assert "version 0" in events.look()[0].text and asked == ["/tables/main.bronze.events"], "asked once"
    assert rows("main.bronze.far").keys.path == "s3a://lake/far"
    assert rows("bronze.events").keys.path == "", "a name of two parts is of Spark's own catalog"
    for table in ("main.bronze.lines", "main.bronze.none"):
        with pytest.raises(SourceMissing, match=r"source\.table"):
            _ = rows(table).keys
    with pytest.raises(SourceDown, match="it is away"):
        _ = rows("main.bronze.away").keys


def test_a_view_that_the_catalog_refuses_stops_no_other_and_is_made_by_a_later_run(tmp_path: Path) -> None:
    config = Pipeline.model_validate(
        {
            "pipeline": "games", "layout": "wide", "source": {"type": "delta", "path": str(tmp_path / "source")},
            "registry": {"path": str(tmp_path / "registry")},
            "tables": {"root": str(tmp_path / "lake"), "database": "games"},
        }
    )  # fmt: skip
    write_deltalake(config.wide_path, pa.table({KEY: ["a"], "a": [{"x": 1}], "b": [{"x": 1}]}))
    ledger = Ledger(config.state_root, config.pipeline, Store())
    made = refresh(session("b", panic()), config, ledger, ["a", "b"])
    assert ([view.route for view in made], sorted(kept(config, Store()))) == (["a"], ["a"])
    spark = session("nothing", panic())
    spark.catalog.tableExists = lambda _: True
    assert [view.route for view in refresh(spark, config, ledger, ["a", "b"])] == ["b"]
