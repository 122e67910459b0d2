"""A pipeline on Spark standalone without a shared disk, killed in the middle: `python -m tests.cluster FOLDER`.

The driver is started by `spark-submit`; workers get the package by `--py-files`, and the jars, from it. Tables, state,
checkpoint and source lie in a bucket (moto). Each worker has a work folder and local folders of its own, and in a name
space of its own (`unshare`, as root) sees neither the driver's folder nor this repository's `src`. While batches run an
executor is killed, then a whole worker. At the end every record that was sent must be in one table or in the
quarantine, once.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pyspark
import yaml
from deltalake import DeltaTable, write_deltalake

from distributary.spark.java import find_java
from distributary.spark.session import EXTENSION, PACKAGES, SHIPPED_BY_SPARK
from distributary_simulate.games.records import Faults, Plan
from tests.processes import QUICK, SERIAL
from tests.scenarios import Scenario
from tests.services import hadoop
from tests.services.standalone import Standalone
from tests.services.stores import S3

ROOT = Path(__file__).parents[2]
BATCHES = 8
LAKE = "s3a://lake/lake"


class ApartStandalone(Standalone):
    """Workers that see neither `hidden`, nor each other's folders. They end with their name space."""

    hidden: tuple[Path, ...] = ()

    def _start(self, name: str, main: str, *arguments: str) -> None:
        if name == "master":
            super()._start(name, main, *arguments)
            return
        local = self._folder / f"{name}-local"
        local.mkdir()
        home = Path(str(pyspark.__path__[0]))
        environ = {
            **{key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
            "JAVA_HOME": str(find_java(os.environ)),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(local),
            "TMPDIR": str(local),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{QUICK} {SERIAL} -Djava.io.tmpdir={local}",
        }
        mounts = " && ".join(f"mount -t tmpfs none {path}" for path in self.hidden)
        run = " ".join([str(home / "bin" / "spark-class"), main, *arguments])
        with (self._folder / f"{name}.log").open("wb") as log:
            command = ["unshare", "-m", "sh", "-c", f"{mounts} && exec {run}"]
            self._started.append(
                subprocess.Popen(command, env=environ, cwd=local, stdout=log, stderr=subprocess.STDOUT)
            )

    def kill_executors(self, number: int) -> None:
        """Those of one worker."""
        family = psutil.Process(self._started[1 + number].pid).children(recursive=True)
        for process in family:
            with suppress(psutil.NoSuchProcess):
                if any("CoarseGrainedExecutor" in part for part in process.cmdline()):
                    process.kill()
                    print(f"killed executor {process.pid}", flush=True)

    def kill_worker(self, number: int) -> None:
        worker = psutil.Process(self._started[1 + number].pid)
        for process in [worker, *worker.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        print(f"killed worker {worker.pid}", flush=True)


def package(folder: Path) -> Path:
    """The package as a zip, as `--py-files` takes it."""
    target = folder / "distributary.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as whole:
        for name in ("distributary", "pyspark_distributary"):
            for file in sorted((ROOT / "src" / name).rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    whole.write(file, file.relative_to(ROOT / "src"))
    return target


def send(driver: Path, store: S3) -> Scenario:
    """Records of six games, some of them bad, in so many commits of a table in the bucket."""
    scenario = Scenario(driver)
    games = scenario.games(Plan(games=6, records=150, versions=2, faults=Faults(corrupt=6, empty_name=4)))
    for version in (1, 2):
        scenario.send_games(games, version)
    rows = DeltaTable(scenario.source).to_pyarrow_table().sort_by("offset")
    size = -(-rows.num_rows // BATCHES)
    for begin in range(0, rows.num_rows, size):
        write_deltalake("s3://lake/source", rows.slice(begin, size), mode="append", storage_options=dict(store.options))
    return scenario


def submit(driver: Path, cluster: Standalone, store: S3) -> list[str]:
    """The driver's command, and its files."""
    pipeline = {
        "pipeline": "games",
        "source": {"type": "delta", "path": "s3a://lake/source", "max_files_per_batch": 1},
        "registry": {"path": str(driver / "registry")},
        "tables": {"root": LAKE, "storage_options": dict(store.options)},
        "quarantine": {"max_ratio": 1.0},
        "trigger": "once",
    }
    (driver / "games.yaml").write_text(yaml.safe_dump(pipeline))
    (driver / "job.py").write_text("from distributary.cli.job import main\nmain()\n")
    s3a = hadoop.s3a(store)
    conf = {
        **{key: value for key, value in s3a.items() if key != "spark.jars"},
        "spark.jars.excludes": ",".join(SHIPPED_BY_SPARK),
        "spark.sql.extensions": EXTENSION,
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.speculation": "true",
        "spark.executor.memory": "512m",
        "spark.cores.max": "2",
        "spark.task.maxFailures": "8",
        "spark.sql.shuffle.partitions": "4",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": QUICK,
        "spark.local.dir": str(driver / "local"),
    }
    return [
        str(Path(str(pyspark.__path__[0])) / "bin" / "spark-submit"),
        *("--master", cluster.url, "--py-files", str(package(driver))),
        *("--packages", ",".join(PACKAGES), "--jars", s3a["spark.jars"]),
        *(part for key, value in conf.items() for part in ("--conf", f"{key}={value}")),
        *(str(driver / "job.py"), "run", str(driver / "games.yaml")),
    ]


def offsets(store: S3) -> Iterator[int]:
    """Of the rows in all tables and in the quarantine, by plain delta-rs."""
    options = dict(store.options)
    names = set(re.findall(r"lake/(\w+)/_delta_log", store.request("GET", "/lake?list-type=2&max-keys=10000").decode()))
    for name in sorted(names - {"source"}):
        for row in DeltaTable(f"s3://lake/lake/{name}", storage_options=options).to_pyarrow_table().to_pylist():
            yield row["_origin"]["offset"]
    quarantine = DeltaTable("s3://lake/lake/_distributary/games/quarantine", storage_options=options)
    yield from quarantine.to_pyarrow_table().column("offset").to_pylist()


def main(folder: Path) -> None:
    driver, nodes = folder / "driver", folder / "nodes"
    for place in (driver, nodes):
        place.mkdir(parents=True)
    with S3(folder / "s3") as store:
        store.create("lake")
        scenario = send(driver, store)
        began = time.monotonic()
        ApartStandalone.hidden = (driver, ROOT / "src")
        with ApartStandalone(nodes) as cluster:
            environ = {**os.environ, "PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(find_java(os.environ))}
            log = folder / "driver.log"
            with log.open("wb") as out:
                run = subprocess.Popen(
                    submit(driver, cluster, store), cwd=driver, env=environ, stdout=out, stderr=subprocess.STDOUT
                )
            kills = {2: partial(cluster.kill_executors, 0), 4: partial(cluster.kill_worker, 1)}
            try:
                while run.poll() is None:
                    done = len(re.findall(r"^batch \d+", log.read_text(errors="replace"), re.MULTILINE))
                    for after in [number for number in kills if number <= done]:
                        kills.pop(after)()
                    time.sleep(0.2)
            finally:
                for process in psutil.Process(run.pid).children(recursive=True) if run.poll() is None else ():
                    process.kill()
                run.kill()
                run.wait(30)
        print(f"spark-submit ended with {run.returncode} after {time.monotonic() - began:.0f} s", flush=True)
        assert run.returncode == 0, log.read_text(errors="replace")[-4000:]
        assert not kills, "it was over before anything was killed"
        counts = Counter(offsets(store))
        sent = sorted(offset for _, offset in scenario.sent)
        assert sorted(counts.elements()) == sent, (len(sent), counts.total(), counts.most_common(3))
        verify = subprocess.run(
            [sys.executable, "-m", "distributary", "verify", str(driver / "games.yaml"), "--json"],
            cwd=driver, capture_output=True, text=True, check=False,
        )  # fmt: skip
        said = json.loads(verify.stdout)
        print({key: said[key] for key in ("ok", "rows_in", "rows_written", "rows_quarantined", "rows_lost")})
        assert said["ok"] and said["rows_in"] == len(sent)
        print(f"{len(sent)} records, each once")


if __name__ == "__main__":
    place = Path(sys.argv[1])
    try:
        main(place)
    finally:
        shutil.rmtree(place / "nodes", ignore_errors=True)
