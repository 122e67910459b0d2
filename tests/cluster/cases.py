"""What runs on a cluster without a shared disk: each layout of messages, change files, and Spark's sink.

A case puts its source into the bucket, has the job that the driver runs, knows how far that has come, and looks at the
end, by plain delta-rs, whether each row that was sent is at one place, once.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import yaml
from deltalake import DeltaTable, write_deltalake

from distributary.changes.model import Kind
from distributary.config import load
from distributary.state.ledger import Ledger, totals
from distributary.tables.store import Store
from distributary_simulate.change_files.writer import ChangeFiles, FilesPlan
from distributary_simulate.changes.history import History, HistoryPlan
from distributary_simulate.changes.history_tables import tables_of
from distributary_simulate.games.records import Faults, Plan
from tests.scenarios import TOPIC, Scenario
from tests.services.stores import S3
from tests.shop import compare_living

BATCHES = 8
BUCKET = "s3a://lake"
JOB = "from distributary.cli.job import main; main()\n"
SINK = """
import json, sys
from pyspark.sql import SparkSession
from distributary.sink.data_source import DistributarySource
storage = json.loads(sys.argv[1])
spark = SparkSession.builder.getOrCreate()
spark.dataSource.register(DistributarySource)  # so that what --py-files sent is known to its tasks
rows = spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load("s3a://lake/source")
writer = rows.repartition("game").writeStream.format("distributary").option("route", "game").options(**storage)
writer = writer.option("checkpointLocation", "s3a://lake/checkpoint").trigger(availableNow=True)
writer.start("s3a://lake/lake").awaitTermination()
"""


class Case:
    """Its files lie in the driver's folder under the names that docs/cluster.md gives them."""

    def __init__(self, driver: Path, store: S3) -> None:
        self.driver = driver
        self.store = store
        self.options = dict(store.options)
        self.file = driver / "games.yaml"

    def prepare(self) -> None:
        """Put the source into the bucket, and write what the driver reads: its program too."""
        raise NotImplementedError

    def check(self) -> str:
        """What was proved, in words. Raises AssertionError."""
        raise NotImplementedError

    def arguments(self) -> list[str]:
        """Of the driver's program, where it is not the documented one."""
        return []

    def done(self, log: str) -> int:
        """Batches that are done. `log`: the driver's."""
        return len(re.findall(r"^(?:bronze )?batch \d+", log, re.MULTILINE))

    def configure(self, *, job: str = JOB, **keys: Any) -> None:
        """Write the pipeline's file, and the program."""
        tables = {"root": f"{BUCKET}/lake", "storage_options": self.options, **keys.pop("tables", {})}
        about = {"pipeline": "games", "tables": tables, "quarantine": {"max_ratio": 1.0}, "trigger": "once", **keys}
        self.file.write_text(yaml.safe_dump(about))
        (self.driver / "job.py").write_text(job)

    def put(self, rows: pa.Table) -> None:
        """As the source, in so many commits, each with rows of all kinds."""
        for number in range(BATCHES):
            part = rows.take(list(range(number, rows.num_rows, BATCHES)))
            write_deltalake("s3://lake/source", part, mode="append", storage_options=self.options)

    def tables(self) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """Names and rows of the tables straight below the root."""
        listed = self.store.request("GET", "/lake?list-type=2&prefix=lake/&max-keys=100000").decode()
        for name in sorted(set(re.findall(r"<Key>lake/(\w+)/_delta_log", listed))):
            yield name, self.rows(name)

    def rows(self, name: str) -> list[dict[str, Any]]:
        table = DeltaTable(f"s3://lake/lake/{name}", storage_options=self.options)
        found: list[dict[str, Any]] = table.to_pyarrow_table().to_pylist()
        return found

    def verified(self) -> dict[str, Any]:
        """What `distributary verify` says."""
        command = [sys.executable, "-m", "distributary", "verify", str(self.file), "--json"]
        done = subprocess.run(command, cwd=self.driver, capture_output=True, text=True, check=False)
        said: dict[str, Any] = json.loads(done.stdout)
        assert said["ok"], said
        return said


class Messages(Case):
    """Records of six games, some of them bad; `offset` is the record's own."""

    layout: ClassVar[str]
    plan: ClassVar[Plan] = Plan(games=6, records=150, versions=2, faults=Faults(corrupt=6, empty_name=4))
    more: ClassVar[Mapping[str, Any]] = {}

    def prepare(self) -> None:
        self.scenario = Scenario(self.driver)
        games = self.scenario.games(self.plan)
        for version in (1, 2):
            self.scenario.send_games(games, version)
        self.put(DeltaTable(self.scenario.source).to_pyarrow_table().sort_by("offset"))
        source = {"type": "delta", "path": f"{BUCKET}/source", "max_files_per_batch": 1}
        registry = {"path": "registry"}
        self.configure(source=source, registry=registry, layout=self.layout, **self.more)

    def check(self) -> str:
        places = Counter(self._offsets())
        sent = sorted(offset for _, offset in self.scenario.sent)
        assert sorted(places.elements()) == sent, (len(sent), places.total(), places.most_common(3))
        assert self.verified()["rows_in"] == len(sent)
        return f"{len(sent)} records, each once"

    def _offsets(self) -> Iterator[int]:
        for _, rows in self.tables():
            yield from (row["_origin"]["offset"] for row in rows)
        yield from (row["offset"] for row in self.rows("_distributary/games/quarantine"))


class FanOut(Messages):
    layout = "fanout"


class BySpark(Messages):
    """Tables that Spark's own Delta writer writes."""

    layout = "fanout"
    more: ClassVar[Mapping[str, Any]] = {"tables": {"engine": "spark"}}


class TwoHop(Messages):
    layout = "two_hop"
    more: ClassVar[Mapping[str, Any]] = {
        "bronze": {"max_files_per_batch": 14},
        # Else the first batch is tried in vain as often as `spark.task.maxFailures` says: its tasks find the schema.
        "envelope": {"subject": f"{TOPIC}-value"},
    }


class Wide(Messages):
    layout = "wide"


class Changes(Case):
    """Files of an invented history of MySQL's tables, without faults: each event is in a log once."""

    def prepare(self) -> None:
        self.history = History(HistoryPlan(tables_of((Kind.MYSQL,), 3), seed=17, schema_changes=100))
        files = ChangeFiles(FilesPlan(self.driver / "files", seed=17, rotate_ms=5_000))
        for change in [*self.history.changes(900), *self.history.finish()]:
            files.add(change)
        files.close()
        self.events = sum(written.events for written in files.written)
        for written in files.written:
            self.store.put("lake", f"files/{written.path}", (files.plan.root / written.path).read_bytes())
        most = -(-len(files.written) // BATCHES)
        self.configure(source={"type": "datastream", "path": f"{BUCKET}/files", "max_files_per_batch": most})

    def check(self) -> str:
        store = Store.of(load(self.file).tables)
        entries = totals(Ledger(f"{BUCKET}/lake/_distributary/games", "games", store).entries())
        logs = [row for name, rows in self.tables() if name.endswith("_log") for row in rows]
        uuids = Counter(row["datastream_metadata"]["uuid"] for row in logs)
        assert uuids.total() == self.events and set(uuids.values()) == {1}, (self.events, uuids.most_common(3))
        for route, truth in self.history.truth().items():
            if truth.table.keys:
                compare_living(str(entries[route].merged), store, truth)
        self.verified()
        return f"{self.events} events, each in its log once, and merged tables as the source's"


class Sink(Case):
    """Rows of six games by `writeStream.format("distributary")`."""

    ROWS = 1_200

    def prepare(self) -> None:
        games = [f"game_{number % 6}" for number in range(self.ROWS)]
        self.put(pa.table({"game": games, "n": range(self.ROWS)}))
        self.configure(job=SINK, pipeline="sink", source={"type": "dataframe"})

    def arguments(self) -> list[str]:
        options = {f"storage.{key}": value for key, value in self.options.items()}
        return [json.dumps(options)]

    def done(self, log: str) -> int:
        """By what is written down of each batch, of which the older ones go."""
        listed = self.store.request("GET", "/lake?list-type=2&prefix=lake/_distributary/sink/sink/&max-keys=1000")
        return max((int(batch) + 1 for batch in re.findall(r"/(\d+)\.json</Key>", listed.decode())), default=0)

    def check(self) -> str:
        numbers = Counter(row["n"] for _, rows in self.tables() for row in rows)
        assert sorted(numbers.elements()) == list(range(self.ROWS)), numbers.most_common(3)
        assert self.verified()["rows_written"] == self.ROWS
        return f"{self.ROWS} rows, each once"
