"""Names in a catalog: what it refuses of one table or view stops no other."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from py4j.protocol import Py4JNetworkError

from distributary.config import Pipeline
from distributary.running.catalog import register
from distributary.running.state_names import StateNames
from distributary.running.wide_views import kept, refresh
from distributary.state.ledger import Ledger
from distributary.tables.store import Store
from distributary.tables.wide import KEY
from tests.exceptions import panic


class Refusing:
    """A session whose catalog raises for every command that speaks of `name`."""

    def __init__(self, name: str, error: BaseException) -> None:
        self.name, self.error = name, error
        self.done: list[str] = []
        self.catalog = SimpleNamespace(tableExists=lambda _: False)

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
