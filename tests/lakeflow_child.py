"""Registers a declarative pipeline as Lakeflow would: with what is documented of `pyspark.pipelines` and nothing else.

    python -m tests.lakeflow_child FILE

`from pyspark import pipelines as dp` is a module of these functions, without the modules that open-source Spark has
below it (Databricks, "Lakeflow pipelines Python language reference"). The session is a stand-in: expressions are made
by Spark Connect's functions, which ask nobody. Prints each dataset with the function that defined it, as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

DOCUMENTED = (
    "table", "materialized_view", "temporary_view", "create_streaming_table", "append_flow", "create_sink",
    "create_auto_cdc_flow", "create_auto_cdc_from_snapshot_flow", "expect", "expect_or_drop", "expect_or_fail",
)  # fmt: skip

defined: dict[str, str] = {}
queries: list[Callable[[], Any]] = []


def documented(kind: str) -> Callable[..., Any]:
    def define(*, name: str, **settings: Any) -> Callable[[Callable[[], Any]], None]:
        assert settings.keys() <= {"table_properties", "partition_cols"}, settings
        defined[name] = kind
        return queries.append

    return define


def main(file: Path) -> None:
    module = ModuleType("pyspark.pipelines")
    for name in DOCUMENTED:
        setattr(module, name, documented(name))
    sys.modules["pyspark.pipelines"] = module
    import pyspark

    pyspark.pipelines = module
    from distributary.declarative import define

    spark, rows = MagicMock(), MagicMock(columns=["value"])
    for name in ("format", "option", "options", "load", "table", "select", "where"):
        getattr(rows, name).return_value = rows
    spark.readStream = rows
    spark.sql.side_effect = AssertionError("a definition gave a command")
    spark.catalog.tableExists.side_effect = AssertionError("a definition asked for a table")
    problems = define(file, spark).problems
    for query in queries:
        query()
    internal = [name for name in sys.modules if name.startswith("pyspark.pipelines.")]
    print(json.dumps({"defined": defined, "problems": problems, "internal": internal}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
