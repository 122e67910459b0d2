"""A new schema version and a new game in a running stream: written in the batch that brings them?"""

from __future__ import annotations

from deltalake import DeltaTable

from bench.result import Case, Result
from bench.stream import HeldStream, Timed, written
from bench.workload import Place, Workload, WrongRows, check_games, say, session, table_uri
from distributary.config import Pipeline
from distributary_simulate.games.schemas import column_name

NOTE = (
    "Seconds of the batch that brings something new to a running stream (ours), against the median-sized batch before "
    "it that brings nothing new (other). Checked: the new column or table is there when that very batch ends; the "
    "stream was not started again, and no other batch was needed."
)


def run(place: Place) -> Result:
    games, rows = place.size(100, 5), place.size(1000, 40)
    work = Workload(place.root, games)
    spark = session()
    config = work.config("ours", work.delta_source())
    old, new = work.names[:-1], work.names[-1]
    work.feed_delta(dict.fromkeys(old, rows))
    with HeldStream(spark, config) as stream:
        query = stream.run.query
        stream.batch(lambda: work.feed_delta(dict.fromkeys(old, rows), start=rows))
        usual = stream.batch(lambda: work.feed_delta(dict.fromkeys(old, rows), start=2 * rows))
        grown = stream.batch(lambda: work.feed_delta(dict.fromkeys(old, rows), version=2, start=3 * rows))
        written(grown, rows * len(old))
        _check_columns(config, old, rows)
        check_games(config, 4 * rows, old)
        more = stream.batch(lambda: work.feed_delta(dict.fromkeys([*old, new], rows), version=2, start=4 * rows))
        written(more, rows * games)
        check_games(config, rows, [new])
        check_games(config, 5 * rows, old)
        restarts = int(stream.run.query is not query)
        _check_batches(usual, grown, more)
    say(f"usual {usual.wall_sec:.2f} s, new version {grown.wall_sec:.2f} s, new game {more.wall_sec:.2f} s")
    same = {"restarts": restarts, "extra batches": 0, "rows late": 0}
    if restarts:
        raise WrongRows("the stream was started again")
    cases = (
        Case(f"a new version of {len(old)} games at once", "s", grown.wall_sec, usual.wall_sec, details=same),
        Case("a new game", "s", more.wall_sec, usual.wall_sec, details=same),
    )
    return Result("new_schema_latency", NOTE, cases)


def _check_columns(config: Pipeline, games: list[str], rows: int) -> None:
    """The column of version 2 is filled in as many rows as version 2 has sent."""
    for game in games:
        name = column_name(game, 2)
        table = DeltaTable(table_uri(config, game))
        if name not in [f.name for f in table.schema().fields]:
            raise WrongRows(f"{game}: no column {name}")
        by_schema = table.to_pyarrow_table(columns=["_origin"]).column("_origin").combine_chunks().field("schema_id")
        counts = sorted(pair["counts"] for pair in by_schema.value_counts().to_pylist())
        if counts != [rows, 3 * rows]:
            raise WrongRows(f"{game}: rows by schema {counts}, not {[rows, 3 * rows]}")


def _check_batches(*timed: Timed) -> None:
    numbers = [t.report.batch for t in timed]
    if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        raise WrongRows(f"batches {numbers} do not follow one another")
