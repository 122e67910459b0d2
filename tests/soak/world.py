"""Broker, registry, sender and the product: processes, and how each of them is ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.chaos.messages import ENVELOPE
from tests.processes import command
from tests.services import Server, ServiceFailed
from tests.services.kafka import Kafka
from tests.services.registry import Registry
from tests.soak.records import NEWEST, route_name, schema_text
from tests.soak.sender import PARTITIONS

TOPIC = "events"
AWAY_SEC = 20
ORPHANS_SEC = 60
"""A killed driver's JVM and workers end by themselves, within so long."""
REST_SEC = 5
"""Between two starts of a run that ended by itself."""
TOPIC_SETTINGS = {
    # Records go three quarters of an hour after they were sent: long after they were read.
    "retention_ms": "2700000",
    "segment_ms": "120000",
    "segment_bytes": str(128 << 20),
}


class Schemas:
    """Registers the versions of routes, and tells the sender of them."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.envelope_id = self._register("events-value", ENVELOPE)
        self.versions: dict[str, int] = {}

    def next_version(self, rank: int) -> dict[str, Any] | None:
        """What to tell the sender of a route's next version; None where it has all of them."""
        route = route_name(rank)
        version = self.versions.get(route, 0) + 1
        if version > NEWEST:
            return None
        schema_id = self._register(f"{route}-value", schema_text(route, version))
        self.versions[route] = version
        return {"route": route, "version": version, "schema_id": schema_id}

    def _register(self, subject: str, text: str) -> int:
        body = {"schema": text, "schemaType": "PROTOBUF"}
        answer = self._registry.request("POST", f"/subjects/{subject}/versions", body)
        assert isinstance(answer, dict)
        return int(answer["id"])


class Sending:
    """The sender's process. Its rate is `events` in `minutes`."""

    def __init__(self, folder: Path, servers: str, envelope_id: int, first: int, events: int, minutes: float) -> None:
        self._folder = folder
        self._log = (folder / "sender.log").open("wb")
        options = {
            "--envelope-id": envelope_id,
            "--routes": first,
            "--events": events,
            "--rate": events / (minutes * 60),
            "--bad-every": max(100, min(10_000, events // 5_000)),
        }
        arguments = [str(word) for pair in options.items() for word in pair]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.sender", servers, TOPIC, str(folder), *arguments],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            text=True,
        )

    def tell(self, order: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def status(self) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            return dict(json.loads((self._folder / "status.json").read_text()))
        return {"sent": 0, "acknowledged": 0, "failed": 0, "done": False}

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def end(self, timeout_sec: float = 1000) -> int:
        """Have it stop, and wait until the broker has answered for all that it sent; its exit code."""
        with suppress(OSError, ValueError):
            self.tell({"end": True})
        code = self._process.wait(timeout_sec)
        self._log.close()
        return code

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


class Product:
    """`distributary run FILE --json`, started again whenever it ends. `lives`: begin and end of each, since 1970."""

    def __init__(self, file: Path, folder: Path) -> None:
        self._file, self._folder = file, folder
        self.told = folder / "batches.jsonl"
        self.log = folder / "run.log"
        self.lives: list[list[float]] = []
        self.falls: list[str] = []
        self.ends: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    def start(self) -> None:
        with self._lock:
            self._start()

    def supervise(self) -> None:
        """Start it again where it ended by itself, which it should not have."""
        with self._lock:
            if self._process is not None and (code := self._process.poll()) is not None:
                tail = self.log.read_text(errors="replace")[-2000:]
                self.falls.append(f"it ended by itself with {code}: {tail}")
                self._ended()
                time.sleep(REST_SEC)
                self._start()

    def kill(self, everything: bool) -> list[psutil.Process]:
        """kill -9, with its JVM and workers or without, and start it again at once. Returns what it leaves behind."""
        with self._lock:
            assert self._process is not None
            left = _children(self._process.pid)
            self._process.kill()
            if everything:
                for process in left:
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
            self._process.wait()
            self.ends["kill -9 of all" if everything else "kill -9 of the driver"] += 1
            self._ended()
            self._start()
        return left

    def kill_worker(self) -> None:
        """kill -9 of one Python worker: the batch is tried again."""
        pid = self.pid
        workers = [one for one in (_children(pid) if pid else []) if _is_worker(one)]
        if workers:
            with suppress(psutil.NoSuchProcess):
                workers[-1].kill()
            self.ends["kill -9 of a worker"] += 1

    def stop(self, timeout_sec: float = 300) -> int:
        """SIGTERM, and its exit code."""
        with self._lock:
            process, self._process = self._process, None
            assert process is not None
            process.terminate()
            code = process.wait(timeout_sec)
            self.lives[-1][1] = time.time()
            return code

    def end_all(self) -> None:
        with self._lock:
            process, self._process = self._process, None
            if process is not None:
                for one in [*_children(process.pid), psutil.Process(process.pid)] if process.poll() is None else []:
                    with suppress(psutil.NoSuchProcess):
                        one.kill()
                process.wait()

    def once(self, *verb: str, timeout_sec: float = 1800) -> int:
        """Another verb of the command line, to its end; what it says goes to the log, of `run` to the batches."""
        told = self.told if verb[0] == "run" else self._folder / f"{verb[0]}.out"
        with told.open("ab") as out, self.log.open("ab") as errors:
            done = subprocess.run(
                command(verb[0], self._file, *verb[1:]), stdout=out, stderr=errors, timeout=timeout_sec, check=False
            )
        return done.returncode

    def _start(self) -> None:
        with self.told.open("ab") as out, self.log.open("ab") as errors:
            # A line that a kill has cut ends here.
            out.write(b"\n")
            out.flush()
            self._process = subprocess.Popen(
                command("run", self._file, "--json"),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                start_new_session=True,
                env={**os.environ, "TMPDIR": str(self._folder / "tmp")},
            )
        self.lives.append([time.time(), 0.0])

    def _ended(self) -> None:
        self.lives[-1][1] = time.time()


def _children(pid: int) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []


def _is_worker(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return "python" in process.name()
    return False


class Way:
    """Something that is no table, where the table of a route would be."""

    def __init__(self, lake: Path) -> None:
        self._lake = lake
        self._files: list[Path] = []

    def block(self, route: str) -> None:
        self._lake.mkdir(parents=True, exist_ok=True)
        file = self._lake / route
        file.write_text("not a table")
        self._files.append(file)

    def clear(self) -> None:
        while self._files:
            self._files.pop().unlink()


def write_pipeline(folder: Path, kafka: Kafka, registry: Registry, heap: str, every_sec: int) -> Path:
    """The pipeline file: upkeep on, and so often that hours have of it what weeks have of the defaults."""
    file = folder / "pipeline.yaml"
    # With a heap that is there as a whole from the start, the JVM's memory says what else it takes; what objects take
    # of the heap its log says.
    gc = f"-Xms{heap} -XX:+AlwaysPreTouch -Xlog:gc:file={folder / 'gc-%p.log'}:uptime:filecount=0"
    keys = {
        "pipeline": "soak",
        "source": {**kafka.source(TOPIC), "starting_offsets": "earliest", "max_offsets_per_batch": 400_000},
        "registry": {"url": registry.url, "timeout_sec": 5, "cache": str(folder / "schemas")},
        "tables": {
            "root": str(folder / "lake"),
            "retry_after": "20 seconds",
            "properties": {"delta.logRetentionDuration": "interval 30 minutes"},
        },
        "quarantine": {"max_ratio": 1.0},
        "maintenance": {"every": "20 minutes", "vacuum_after": "15 minutes"},
        "state": str(folder / "state"),
        "trigger": {"every": f"{every_sec} seconds"},
        "spark": {
            "master": "local[2]",
            "conf": {"spark.driver.memory": heap, "spark.driver.extraJavaOptions": gc},
        },
    }
    file.write_text(yaml.safe_dump(keys), encoding="utf-8")
    (folder / "tmp").mkdir()
    return file


def broker(folder: Path) -> Kafka:
    kafka = Kafka(folder / "kafka").start()
    kafka.create_topic(TOPIC, PARTITIONS, **TOPIC_SETTINGS)
    return kafka


def come_back(server: Server, attempts: int = 6) -> None:
    """Start it again. On a busy machine Apicurio gives up when it has waited five seconds for its own database."""
    for attempt in range(1, attempts + 1):
        try:
            server.start()
            return
        except ServiceFailed:
            if attempt == attempts:
                raise


def left_behind(processes: list[psutil.Process], timeout_sec: float = ORPHANS_SEC) -> list[int]:
    """Which of them are still there after a while."""
    _, alive = psutil.wait_procs(processes, timeout=timeout_sec)
    return [one.pid for one in alive]
