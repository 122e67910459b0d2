"""Messages with keys from a real broker: the newest of each key in its table, through plan, run, verify and replay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from distributary.audit.plan import plan
from distributary.audit.status import status
from distributary.config import Pipeline, RegistryConfig
from distributary.kinds import kind_of
from distributary.repair.replays import replay
from distributary.running.stream import run
from distributary.schemas.protobuf.framing import frame
from distributary.schemas.registry import open_registry
from tests.scenarios import message
from tests.services.kafka import Kafka
from tests.test_routes_kafka import Shop, reasons

pytestmark = [pytest.mark.spark, pytest.mark.services, pytest.mark.usefixtures("spark")]

PLAYER = 'syntax = "proto3"; message player { int64 id = 1; int32 level = 2; }'


def players(config: Pipeline, topic: str) -> dict[int, int | None]:
    """Key -> level; None for a row that is gone."""
    table = DeltaTable(Path(config.tables.root) / topic.replace("-", "_"))
    rows = table.to_pyarrow_table().to_pylist()
    found = {row["id"]: None if row["_deleted"] else row["level"] for row in rows}
    assert len(found) == len(rows)
    return found


def test_the_newest_message_of_each_key_is_its_row_and_one_without_a_value_deletes_it(lake: Path, kafka: Kafka) -> None:
    path = str(lake / "registry")
    known = open_registry(RegistryConfig(path=path)).register("players", PLAYER).schema.id
    shop = Shop(lake, kafka, 0)

    def sent(key: int, level: int | None, schema: int = known) -> dict[str, Any]:
        body = message(PLAYER, "player", id=key, level=level or 0)
        return {"key": str(key).encode(), "value": None if level is None else frame(schema, body)}

    with kafka.topic(1) as topic:
        first = [sent(n % 7, n) for n in range(1, 40)]
        shop.send(topic, [*first, sent(1, 77, schema=999), sent(3, None), sent(9, None)])

        def pipeline(texts: dict[int, str], **tables: Any) -> Pipeline:
            source = {"key": "id", "max_offsets_per_batch": 15}
            return shop.pipeline(
                "players", topic, envelope="none", source=source, registry={"path": path, "texts": texts},
                tables={"keys": ["id"], "log": "{route}_log", **tables},
            )  # fmt: skip

        config = pipeline({})
        (planned,) = plan(config).tables
        assert (planned.route, planned.rows_written, planned.rows_quarantined) == (topic, 41, 1)
        run(config, once=True)
        held = {n: 35 + n if n < 5 else 28 + n for n in range(7)} | {3: None, 9: None}
        assert players(config, topic) == held
        assert reasons(config) == {(topic, "UNKNOWN_SCHEMA_ID"): 1}
        shop.send(topic, [sent(1, 78), sent(3, 79), sent(4, None)])
        run(config, once=True)
        held |= {1: 78, 3: 79, 4: None}
        assert players(config, topic) == held
        # More than a task merges, so Spark does.
        shop.send(topic, [sent(1, 80), sent(5, None), sent(8, 81)])
        run(pipeline({}, merge_engine_rows=1), once=True)
        held |= {1: 80, 5: None, 8: 81}
        assert players(config, topic) == held
        (table,) = status(config).tables
        assert table.engine == "spark"
        # The message that is brought back is older than the row of its key, so it changes nothing.
        (lake / "player.proto").write_text(PLAYER)
        config = pipeline({999: str(lake / "player.proto")})
        assert replay(config).rows == {topic: 1}
        assert players(config, topic) == held
        (table,) = status(config).tables
        assert (table.rows, table.quarantined) == (48, 0)
        found = kind_of(config, lake / "players.yaml").verify(deep=True)
        assert (found.ok, found.problems, found.notes) == (True, (), ())
        assert (found.tables[0].rows_compared, found.tables[0].rows_living) == (6, 6)
