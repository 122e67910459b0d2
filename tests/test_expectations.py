"""Expectations and select lists in the fan-out layout."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from distributary.audit.status import status
from distributary.audit.verify import verify
from distributary.errors import ConfigError, SqlInvalid
from tests.scenarios import Scenario, message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST = 'syntax = "proto3"; message event { string user = 1; int64 score = 2; }'
SECOND = 'syntax = "proto3"; message event { string user = 1; int64 score = 2; optional int64 age = 3; }'


@pytest.mark.spark
@pytest.mark.parametrize("engine", ["auto", "spark"])
def test_rows_are_dropped_warned_and_selected_and_a_table_that_must_not_be_written_waits(
    tmp_path: Path, spark: SparkSession, engine: str
) -> None:
    rules = [
        {"name": "named", "that": "\"user\" <> ''", "otherwise": "drop"},
        {"name": "high", "that": "score >= 10"},
        {"name": "adult", "that": "age >= 18", "otherwise": "drop"},
    ]
    tables = {
        "engine": engine,
        "expectations": rules,
        "select": ["* EXCEPT (score)", "score * 2 AS twice"],
        "routes": {"strict": {"expectations": [{"name": "never", "that": "score < 0", "otherwise": "fail"}]}},
    }
    scenario = Scenario(tmp_path, tables=tables)
    first, second = scenario.schema("a-value", FIRST), scenario.schema("b-value", SECOND)
    scenario.send(
        scenario.event("game", first, message(FIRST, "event", user="ann", score=11)),
        scenario.event("game", first, message(FIRST, "event", user="", score=12)),
        scenario.event("game", second, message(SECOND, "event", user="bob", score=1, age=20)),
        scenario.event("game", second, message(SECOND, "event", user="cy", score=30, age=10)),
        scenario.event("strict", first, message(FIRST, "event", user="dee", score=1)),
    )
    scenario.run()
    assert scenario.values("game", "user") == ["ann", "bob"]
    assert scenario.values("game", "twice") == [22, 2]
    assert scenario.columns("game") == {"user": "string", "twice": "int64", "age": "int64"}
    assert scenario.reasons() == {"EXPECTATION_FAILED": 2, "TABLE_PARKED": 1}
    assert [r["detail"] for r in scenario.quarantined() if r["reason"] == "EXPECTATION_FAILED"] == ["named", "adult"]
    assert scenario.newest("game").warnings == {"high": 1}
    assert scenario.newest("game").engine == ("spark" if engine == "spark" else "task")
    assert scenario.newest("strict").state == "parked"
    assert "never" in str(scenario.newest("strict").error)
    assert scenario.table_names() == ["game"]
    scenario.check()
    recount = verify(scenario.config)
    assert (recount.ok, recount.rows_in, recount.rows_written, recount.rows_quarantined) == (True, 5, 2, 3)
    shown = {t.route: t for t in status(scenario.config).tables}
    assert (shown["game"].rows, shown["game"].quarantined, shown["game"].warnings) == (2, 2, {"high": 1})
    assert (shown["strict"].state, shown["strict"].lag_rows) == ("parked", 1)

    # The rules are mended: what they kept aside comes back, exactly once.
    scenario.configure(tables={"engine": engine, "select": tables["select"], "expectations": rules[:1]})
    report = scenario.replay()
    assert (report.rows, report.left) == ({"game": 1, "strict": 1}, {"game": 1})
    assert sorted(scenario.values("game", "user")) == ["ann", "bob", "cy"]
    scenario.check()
    recount = verify(scenario.config)
    assert (recount.ok, recount.rows_written, recount.rows_quarantined) == (True, 4, 1)


def test_sql_that_cannot_be_evaluated_ends_the_run_before_it_begins(tmp_path: Path) -> None:
    scenario = Scenario(tmp_path, tables={"expectations": [{"name": "a", "that": "nosuch(score)"}]})
    with pytest.raises(SqlInvalid):
        scenario.run()


def test_a_python_function_is_refused_in_the_fanout_layout(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        Scenario(tmp_path, tables={"routes": {"a": {"function": "own.py:f"}}})
    assert caught.value.parameters["key"] == "tables.routes.a.function"
