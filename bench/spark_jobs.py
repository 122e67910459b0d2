"""The other side: one table per game with Spark's own Delta writer, as people write it today."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from bench.workload import TOPIC, Workload
from distributary.schemas.protobuf.framing import split_frames
from distributary.schemas.protobuf.protobuf import decoder_for
from distributary.schemas.registry.compile import ProtobufSchema
from distributary_simulate.games.schemas import column_name

THREADS = 8
_TIME = pa.timestamp("us", tz="UTC")

DECODED = pa.schema(
    [
        ("game", pa.string()),
        ("game_name", pa.string()),
        ("user_name", pa.string()),
        ("event_timestamp", _TIME),
        ("is_connection_stable", pa.bool_()),
        ("value", pa.string()),
    ]
)
"""Version 1 of every game's event in one schema: `value` is the game's own column."""

EVENT_DDL = "game_name string, user_name string, event_timestamp timestamp, is_connection_stable boolean, {} string"


def decode_all(work: Workload, folder: Path, rows: int) -> None:
    """The rows that `feed_delta` wrote for version 1, decoded, as two Parquet files with a column `game`."""
    blocks = work.games.envelopes_table(1, rows, columns=True)
    found: list[pa.Table] = []
    for block in blocks.to_batches():
        for game in work.names:
            payload = block.filter(pa.compute.equal(block["game_name"], game))["payload"]
            found.append(decoded(payload, work.compiled(game), game))
    table = pa.concat_tables(found)
    folder.mkdir()
    half = -(-table.num_rows // 2)
    # Game by game in each file, which suits a job that wants one game.
    for number in range(2):
        pq.write_table(table.slice(number * half, half), folder / f"{number}.parquet")


def decoded(payload: pa.Array, schema: ProtobufSchema, game: str) -> pa.Table:
    """Framed payloads of one game -> `DECODED`."""
    split = decoder_for(schema, "0").decode(split_frames(payload).body)
    assert not split.rejected
    rows = pa.Table.from_batches([split.rows]).rename_columns(DECODED.names[1:])
    return rows.add_column(0, "game", pa.repeat(game, rows.num_rows)).cast(DECODED)


def create_tables(root: Path, games: Sequence[str]) -> dict[str, str]:
    """Empty tables with the columns that the jobs will write, so that no measured batch has to create one."""
    uris = {game: str(root / game) for game in games}
    for game, uri in uris.items():
        names = [*DECODED.names[1:-1], column_name(game, 1)]
        schema = pa.schema([f.with_name(n) for f, n in zip(list(DECODED)[1:], names, strict=True)])
        DeltaTable.create(uri, schema=Schema.from_arrow(schema))
    return uris


def write_batch(rows: DataFrame, uris: dict[str, str], batch: int) -> None:
    """One micro-batch, a job per table in 8 threads. `rows`: `DECODED`, cached."""

    def write(game: str) -> None:
        of_game = rows.where(F.col("game") == game)
        table = of_game.select(*DECODED.names[1:-1], F.col("value").alias(column_name(game, 1)))
        append(table, uris[game], batch)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(write, uris))


def append(rows: DataFrame, uri: str, batch: int) -> None:
    """One table of one batch, once only: what the Delta documentation says of foreachBatch."""
    writer = rows.write.format("delta").mode("append").option("mergeSchema", "true")
    writer.option("txnAppId", f"{TOPIC} {uri}").option("txnVersion", batch).save(uri)


def decode_in_stream(rows: DataFrame, schema: ProtobufSchema, game: str) -> DataFrame:
    """A game's bronze rows (`payload`) decoded in Python workers, as its own streaming query does."""
    ddl = EVENT_DDL.format(column_name(game, 1))
    return rows.select("payload").mapInArrow(partial(_decode_task, schema=schema), ddl)


def _decode_task(batches: Iterator[pa.RecordBatch], schema: ProtobufSchema) -> Iterator[pa.RecordBatch]:
    decoder = decoder_for(schema, "0")
    for batch in batches:
        split = decoder.decode(split_frames(batch.column(0)).body)
        assert not split.rejected
        yield split.rows
