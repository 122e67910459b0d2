"""Connections to a real Kafka broker that break, are swallowed, or crawl: a TCP proxy stands before it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Literal

from tests.faults.brokers import FAST
from tests.faults.pipelines import Piped, Place, Seen, concluded
from tests.services.kafka import Kafka

Way = Literal["well", "broken", "silent", "slow"]
CRAWL_SEC = 0.2
"""How long each piece waits where the way is slow."""


class Wire:
    """Passes bytes between its own port and `port`. `way` may be changed at any time. `broken`: what is open ends, and
    nothing new lasts; `silent`: everything is taken and nothing passed on; `slow`: each piece waits."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.own = int(self._server.getsockname()[1])
        self.port = 0
        self.ended = 0
        self._way: Way = "well"
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def way(self) -> Way:
        return self._way

    @way.setter
    def way(self, way: Way) -> None:
        # What a silent wire has swallowed never comes: its connections cannot be mended, as those of a broken one.
        cut = "broken" in (way, self._way) or self._way == "silent"
        self._way = way
        if cut:
            self._end()

    def close(self) -> None:
        self._server.close()
        self._end()

    def _end(self) -> None:
        ended, self._open = self._open, []
        self.ended += len(ended)
        for one in ended:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                if self._way == "broken":
                    client.close()
                    continue
                try:
                    server = socket.create_connection(("127.0.0.1", self.port))
                except OSError:  # the broker is not up
                    client.close()
                    continue
                self._open += [client, server]
                for one, other in ((client, server), (server, client)):
                    threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while piece := one.recv(1 << 16):
                if self._way == "silent":
                    continue
                if self._way == "slow":
                    time.sleep(CRAWL_SEC)
                other.sendall(piece)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@contextmanager
def _wired(place: Place) -> Iterator[tuple[Kafka, Wire]]:
    """A broker of one's own, which sends its clients to the proxy."""
    wire = Wire()
    try:
        broker = Kafka(place.folder / "kafka", through=wire.own)
        wire.port = broker.port
        with broker:
            yield broker, wire
    finally:
        wire.close()


def _through(way: Way, for_sec: float) -> Callable[[Place], Seen]:
    def scenario(place: Place) -> Seen:
        seen = Seen()
        with _wired(place) as (broker, wire):
            piped = Piped(place.folder, {"source": FAST}, broker=broker)
            piped.feed()
            with piped.going() as run:
                run.wait_right()
                piped.feed()
                wire.way = way
                time.sleep(for_sec)
                wire.way = "well"
                piped.feed()
                seen.went_on = "by itself" if run.wait_right() else ""
            if not seen.went_on:
                seen.wrong.append("it did not go on by itself")
            if way != "slow" and not wire.ended:
                seen.wrong.append("no connection was met")
            return concluded(piped, seen)

    return scenario


SCENARIOS = {
    "connections to the broker break": _through("broken", 10),
    "the broker's network swallows all": _through("silent", 25),
    "the broker's network crawls": _through("slow", 10),
}
