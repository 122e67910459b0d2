"""The HTTP endpoint: `/metrics` for Prometheus, `/healthz` and `/readyz` for whoever starts and stops processes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from distributary.errors import ExtraMissing
from distributary.metrics.meter import Meter
from distributary.metrics.metric_list import BY_NAME, COMMON
from distributary.redaction import redacted

log = logging.getLogger("distributary")

Answer = tuple[int, str, bytes]
"""Status, content type, body."""
TEXT = "text/plain; charset=utf-8"


def exposition(meter: Meter) -> tuple[str, bytes]:
    """What Prometheus reads: content type and text. Raises ExtraMissing."""
    try:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
        from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
        from prometheus_client.registry import CollectorRegistry
    except ImportError as e:
        raise ExtraMissing(what="metrics.port", extra="metrics", detail=str(e)) from e

    def collect() -> Iterator[Any]:
        families: dict[str, Any] = {}
        for stream, sample in meter.samples():
            metric = BY_NAME[sample.name]
            if metric.name not in families:
                kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                families[metric.name] = kind(metric.series, metric.meaning, labels=[*COMMON, *metric.labels])
            families[metric.name].add_metric([meter.pipeline, stream, *sample.labels], sample.value)
        yield from families.values()

    class Collector:
        """prometheus-client asks it at each scrape."""

        def collect(self) -> Iterator[Any]:
            return collect()

    registry = CollectorRegistry()
    registry.register(Collector())
    return CONTENT_TYPE_LATEST, generate_latest(registry)


def answers(meter: Meter) -> dict[str, Callable[[], Answer]]:
    """What each path says."""

    def metrics() -> Answer:
        kind, body = exposition(meter)
        return 200, kind, body

    def health(check: Callable[[], tuple[bool, str]]) -> Callable[[], Answer]:
        def answer() -> Answer:
            well, why = check()
            return (200 if well else 503), TEXT, f"{redacted(why)}\n".encode(errors="replace")

        return answer

    return {"/metrics": metrics, "/healthz": health(meter.healthy), "/readyz": health(meter.ready)}


@contextmanager
def served(meter: Meter, address: str, port: int) -> Iterator[int]:
    """Serve the paths while the block runs; gives the port, 0 where it could not be opened: a run goes on without it.

    Raises ExtraMissing.
    """
    exposition(meter)  # says now, and not at the first scrape, that the library is missing
    try:
        server = ThreadingHTTPServer((address, port), _handler(answers(meter)))
    except (OSError, OverflowError, UnicodeError) as e:  # taken; no port; no name of a machine
        why = getattr(e, "strerror", None) or e
        log.warning("no metrics: %s:%d cannot be opened (%s); the stream runs without them", address, port, why)
        yield 0
        return
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="metrics endpoint", daemon=True)
    thread.start()
    bound_port: int = server.server_address[1]
    log.info("metrics at http://%s:%d/metrics, health at /healthz and /readyz", address, bound_port)
    try:
        yield bound_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def _handler(paths: dict[str, Callable[[], Answer]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            answer = paths.get(self.path.partition("?")[0])
            status, kind, body = (404, TEXT, b"paths: /metrics /healthz /readyz\n") if answer is None else answer()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Scrapes are no news."""

    return Handler
