"""Pipelines on Spark standalone without a shared disk, killed in the middle: `python -m tests.cluster FOLDER [CASE]`.

The driver is started by `spark-submit`; workers get the package by `--py-files`, and the jars, from it. Tables, state,
checkpoint and source lie in a bucket (moto). Each worker has a work folder and local folders of its own, and in a name
space of its own (`unshare`, as root) sees neither the driver's folder nor this repository's `src`. While batches run an
executor is killed, then a whole worker. At the end every row that was sent must be in one place, once. Cases: `cases`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import zipfile
from functools import partial
from pathlib import Path

import psutil
import pyspark

from distributary.spark.java import find_java
from distributary.spark.session import EXTENSION, PACKAGES, SHIPPED_BY_SPARK
from tests.cluster.apart import ApartStandalone
from tests.cluster.cases import CASES, Case
from tests.processes import QUICK
from tests.services import hadoop
from tests.services.standalone import Standalone
from tests.services.stores import S3

ROOT = Path(__file__).parents[2]
LONGEST_SEC = 290.0


def package(folder: Path) -> Path:
    """The package as a zip, as `--py-files` takes it."""
    target = folder / "distributary.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as whole:
        for name in ("distributary", "pyspark_distributary"):
            for file in sorted((ROOT / "src" / name).rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    whole.write(file, file.relative_to(ROOT / "src"))
    return target


def submit(case: Case, cluster: Standalone) -> list[str]:
    """The driver's command."""
    driver = case.driver
    s3a = hadoop.s3a(case.store)
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
        "spark.databricks.delta.snapshotPartitions": "2",
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
        *case.job(),
    ]


def follow(case: Case, cluster: ApartStandalone, log: Path) -> int | None:
    """Run the driver to its end, and kill what the case says meanwhile; its exit code. Raises AssertionError."""
    environ = {**os.environ, "PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(find_java(os.environ))}
    ways = {"executor": partial(cluster.kill_executors, 0), "worker": partial(cluster.kill_worker, 1)}
    left = dict(case.kills)
    end = time.monotonic() + LONGEST_SEC
    with log.open("wb") as out:
        run = subprocess.Popen(
            submit(case, cluster), cwd=case.driver, env=environ, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        while run.poll() is None and time.monotonic() < end:
            done = case.done(log.read_text(errors="replace"))
            for what in [what for what, after in left.items() if after <= done]:
                print(f"{case.name}: after {left.pop(what)} batches", flush=True)
                ways[what]()
            time.sleep(0.2)
        assert run.poll() is not None, f"not done after {LONGEST_SEC:.0f} s: {log.read_text(errors='replace')[-3000:]}"
    finally:
        for process in psutil.Process(run.pid).children(recursive=True) if run.poll() is None else ():
            process.kill()
        run.kill()
        run.wait(30)
    assert not left, f"it was over before these were killed: {', '.join(left)}"
    return run.returncode


def go(name: str, folder: Path) -> None:
    """One case, from its source to its check. Raises AssertionError."""
    driver, nodes, log = folder / "driver", folder / "nodes", folder / "driver.log"
    for place in (driver, nodes):
        place.mkdir(parents=True)
    with S3(folder / "s3") as store:
        store.create("lake")
        case = CASES[name](driver, store)
        case.prepare()
        began = time.monotonic()
        ApartStandalone.hidden = (driver, ROOT / "src")
        with ApartStandalone(nodes) as cluster:
            code = follow(case, cluster, log)
        print(f"{name}: spark-submit ended with {code} after {time.monotonic() - began:.0f} s", flush=True)
        assert code == 0, log.read_text(errors="replace")[-4000:]
        print(f"{name}: {case.check()}", flush=True)


def main(folder: Path, names: list[str]) -> None:
    for name in names or CASES:
        try:
            go(name, folder / name)
        finally:
            shutil.rmtree(folder / name / "nodes", ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
