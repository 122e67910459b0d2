"""A soak from its first record to its verdict."""

from __future__ import annotations

import json
import os
import platform
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.services.registry import Registry
from tests.soak.judge import Verdict, judged
from tests.soak.plan import Event, changed, events, first_routes
from tests.soak.records import Truth, route_name
from tests.soak.samples import Family, batches, collections, folder_sizes, growth, not_flat, quarters
from tests.soak.world import AWAY_SEC, Product, Schemas, Sending, Way, broker, come_back, left_behind, write_pipeline

SAMPLE_SEC = 10.0
SIZES_SEC = 120.0
STATE = ("checkpoint", "ledger", "plans", "quarantine")


@dataclass(frozen=True)
class Asked:
    """`every_sec`: of the pipeline's trigger. `heap`: the JVM's."""

    minutes: float
    events: int
    routes: int
    every_sec: int
    heap: str


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


class Soak:
    """Within its `with` all processes are there; afterwards none of them is."""

    def __init__(self, folder: Path, asked: Asked) -> None:
        self.folder, self.asked = folder, asked
        self.samples: list[dict[str, Any]] = []
        self.sizes: list[dict[str, Any]] = []
        self.happened: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._over = threading.Event()
        self._processes = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as started:
            self._start(started)
            self._processes = started.pop_all()
        return self

    def _start(self, started: ExitStack) -> None:
        folder = self.folder
        say(f"broker and registry start in {folder}")
        self.kafka = broker(folder)
        started.callback(self.kafka.stop)
        # A type that grows is no compatible change, as registries see it.
        self.registry = Registry(folder / "registry", keep=True, compatibility="NONE").start()
        started.callback(self.registry.stop)
        self.schemas = Schemas(self.registry)
        orders = [self.schemas.next_version(rank) for rank in range(first_routes(self.asked.routes))]
        self._ranks = len(orders)
        file = write_pipeline(folder, self.kafka, self.registry, self.asked.heap, self.asked.every_sec)
        self.product = Product(file, folder)
        started.callback(self.product.end_all)
        self.way = Way(folder / "lake")
        self.sending = Sending(
            folder,
            self.kafka.bootstrap_servers,
            self.schemas.envelope_id,
            len(orders),
            self.asked.events,
            self.asked.minutes,
        )
        started.callback(self.sending.kill)
        for order in orders:
            assert order is not None
            self.sending.tell(order)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._processes.close()

    def run(self) -> dict[str, Any]:
        self._began = time.time()
        self.product.start()
        happening = threading.Thread(target=self._happen, daemon=True)
        happening.start()
        while not self.sending.has_ended() or happening.is_alive():
            self._watch()
            time.sleep(1)
        self._conclude()
        say("judging")
        truth = Truth.of_json(json.loads((self.folder / "truth.json").read_text()))
        verdict = judged(self.folder / "lake", self.folder / "state" / "quarantine", truth, self.folder / "scratch")
        return self._result(truth, verdict)

    # -- while it goes on --------------------------------------------------------------------------------------

    def _watch(self) -> None:
        self.product.supervise()
        now = time.time()
        if not self.samples or now - self.samples[-1]["at"] >= SAMPLE_SEC:
            self._sample(now)
        if not self.sizes or now - self.sizes[-1]["at"] >= SIZES_SEC:
            self._measure(now)

    def _sample(self, now: float) -> None:
        life, pid = len(self.product.lives), self.product.pid
        if pid is None:
            return
        if not self.samples or self.samples[-1]["life"] != life:
            self._family = Family(pid)
        status = self.sending.status()
        held = self._family.sample()
        if not held["processes"]:
            return
        one = {"at": now, "life": life, **held, **self._family.jvm(), **status}
        self.samples.append(one)
        with (self.folder / "samples.jsonl").open("a") as lines:
            lines.write(json.dumps(one) + "\n")

    def _measure(self, now: float) -> None:
        state = self.folder / "state"
        found: dict[str, Any] = {"at": now, "minute": round((now - self._began) / 60, 1)}
        places = {"topic": self.folder / "kafka" / "data", "lake": self.folder / "lake", "state": state}
        places |= {name: state / name for name in STATE}
        for name, place in places.items():
            found |= {f"{name}_{unit}": value for unit, value in folder_sizes(place).items()}
        self.sizes.append(found)
        told = batches(self.product.told.read_text(errors="replace").splitlines()[-5:])
        say(f"{self.sending.status()} {told[-1] if told else ''} {self.samples[-1] if self.samples else ''} {found}")

    def _happen(self) -> None:
        """Faults and changes, one after the other. What is late comes late, and nothing is left out."""
        changes = 0
        for event in events(self.asked.minutes):
            if self._over.wait(max(0.0, self._began + event.at_sec - time.time())) or self.sending.has_ended():
                return
            try:
                if event.what == "new version":
                    self._new_version(changes)
                    changes += 1
                else:
                    self._do(event)
            except Exception as e:
                self.wrong.append(f"{event} could not be done: {type(e).__name__}: {e}")
            self.happened[event.what] += 1

    def _new_version(self, change: int) -> None:
        order = self.schemas.next_version(changed(change, self._ranks))
        if order is not None:
            self.sending.tell(order)

    def _new_route(self) -> None:
        if self._ranks < self.asked.routes and (order := self.schemas.next_version(self._ranks)) is not None:
            self.sending.tell(order)
            self._ranks += 1

    def _do(self, event: Event) -> None:
        if event.what != "new route":
            say(event.what)
        match event.what:
            case "new route":
                self._new_route()
            case "put in the way":
                self.way.block(route_name(self._ranks))
                self._new_route()
            case "clear the way":
                self.way.clear()
            case "kill all" | "kill driver":
                self._kill(everything=event.what == "kill all")
            case "kill a worker":
                self.product.kill_worker()
            case "registry":
                self._registry_away()
            case "stop broker" | "kill broker":
                (self.kafka.stop if event.what == "stop broker" else self.kafka.kill)()
                time.sleep(AWAY_SEC)
                come_back(self.kafka)

    def _kill(self, everything: bool) -> None:
        if left := left_behind(self.product.kill(everything)):
            self.wrong.append(f"a minute after the product was killed processes of it are there: {left}")

    def _registry_away(self) -> None:
        """It goes away while a version and a route that it alone knows come in."""
        orders = [self.schemas.next_version(rank) for rank in (min(2, self._ranks - 1), self._ranks - 1)]
        self.registry.stop()
        for order in orders:
            if order is not None:
                self.sending.tell(order)
        time.sleep(AWAY_SEC)
        come_back(self.registry)

    # -- at the end --------------------------------------------------------------------------------------------

    def _conclude(self) -> None:
        """Everything that was sent is brought in, by a run that ends."""
        if code := self.sending.end():
            self.wrong.append(f"the sender ended with {code}, see {self.folder / 'sender.log'}")
        self.way.clear()
        say(f"the last records: {self.sending.status()}")
        self._measure(time.time())
        if code := self.product.stop():
            self.wrong.append(f"after SIGTERM the run ended with {code}")
        for verb in (("run", "--once", "--json"), ("verify", "--json")):
            say(verb[0])
            if code := self.product.once(*verb):
                self.wrong.append(f"{verb[0]} ended with {code}, see {self.product.log}")
        self._measure(time.time())

    def _result(self, truth: Truth, verdict: Verdict) -> dict[str, Any]:
        told = batches(self.product.told.read_text(errors="replace").splitlines())
        longest = max(self._lives(), key=lambda life: life[-1]["at"] - life[0]["at"], default=[])
        found = quarters(longest, told, self._heap(longest)) if len(longest) >= 8 else []
        wrong = [*self.wrong, *self.product.falls, *verdict.wrong, *(not_flat(found) if found else [])]
        versions = sum(len(sent.versions) for sent in truth.routes.values())
        return {
            "asked": asdict(self.asked),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "minutes": round((time.time() - self._began) / 60, 1),
            "rows": truth.rows,
            "rows_found": verdict.rows,
            "damaged": len(truth.bad),
            "in_quarantine": verdict.quarantined,
            "lost": verdict.lost,
            "doubled": verdict.doubled,
            "wrong": wrong,
            "routes": sum(1 for sent in truth.routes.values() if sent.rows),
            "schema_versions": versions,
            "happened": dict(self.happened),
            "lives": len(self.product.lives),
            "batches": len({one["batch"] for one in told}),
            "longest_life": {"growth": growth(found) if found else {}, "quarters": found},
            "sizes": self.sizes[:: max(1, len(self.sizes) // 12)] + self.sizes[-1:],
        }

    def _lives(self) -> list[list[dict[str, Any]]]:
        lives: dict[int, list[dict[str, Any]]] = {}
        for one in self.samples:
            lives.setdefault(one["life"], []).append(one)
        return list(lives.values())

    def _heap(self, life: list[dict[str, Any]]) -> list[tuple[float, int]]:
        """What each collection of this life's JVM left."""
        pid, began = next(((one["jvm_pid"], one["jvm_began"]) for one in life if one["jvm_pid"]), (0, 0.0))
        log = self.folder / f"gc-{pid}.log"
        return collections(log.read_text(errors="replace").splitlines(), began) if log.is_file() else []
