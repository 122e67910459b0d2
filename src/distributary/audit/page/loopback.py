"""The live page: a small server on this machine only, which changes nothing.

Whoever reaches it reads names, counts and samples of bad rows, so it listens on 127.0.0.1, and answers only who asks
for this machine by its name: another site's page cannot have its visitor's browser read it (DNS rebinding).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from distributary.audit.page.document import as_json, document
from distributary.audit.page.gathered import Facts, Gatherer
from distributary.errors import BadInput, DistributaryError, ExtraMissing
from distributary.errors.border import contained
from distributary.metrics.endpoint import exposition
from distributary.metrics.meter import Meter
from distributary.redaction import redacted

HOST = "127.0.0.1"
FRESH_SEC = 1.0
"""So long one look serves all who ask."""
HTML, JSON, TEXT = "text/html; charset=utf-8", "application/json", "text/plain; charset=utf-8"
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}

log = logging.getLogger("distributary")

Answer = tuple[int, str, bytes]
"""Status, content type, body."""
QueryValues = Mapping[str, str]
"""What was asked for, by the query's names."""


class Site:
    """What each path answers."""

    def __init__(self, gatherer: Gatherer, clock: Callable[[], float] = time.monotonic) -> None:
        self._gatherer = gatherer
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: tuple[float, Facts] | None = None
        self.paths: dict[str, Callable[[QueryValues], Answer]] = {
            "/": lambda _: (200, HTML, document(self.facts(), live=True).encode(errors="replace")),
            "/facts.json": lambda _: (200, JSON, as_json(self.facts().to_json()).encode(errors="replace")),
            "/history.json": self._history,
            "/metrics": self._metrics,
            "/healthz": lambda _: (200, TEXT, b"the page is up\n"),
            "/readyz": self._ready,
        }

    def facts(self) -> Facts:
        """The newest facts, or those of a moment ago. Raises StoreUnreadable."""
        with self._lock:
            if self._seen is None or self._clock() - self._seen[0] > FRESH_SEC:
                self._seen = (self._clock(), self._gatherer.gather())
            return self._seen[1]

    def answer(self, target: str) -> Answer:
        """What a request for `target` gets. Never raises."""
        url = urlsplit(target)
        path = self.paths.get(url.path)
        if path is None:
            return 404, TEXT, f"paths: {' '.join(self.paths)}\n".encode()
        try:
            return path({name: values[0] for name, values in parse_qs(url.query).items()})
        except (BadInput, ExtraMissing) as e:
            return 404, TEXT, _line(str(e))
        except DistributaryError as e:
            return 503, TEXT, _line(str(e))
        except BaseException as e:
            return 500, TEXT, _line(contained(e))

    def _history(self, query: QueryValues) -> Answer:
        history = self._gatherer.history(query.get("route", ""))
        return 200, JSON, as_json(history.to_json()).encode(errors="replace")

    def _ready(self, _: QueryValues) -> Answer:
        unwell = self.facts().status.unwell
        return (503, TEXT, _line(", ".join(unwell))) if unwell else (200, TEXT, b"well\n")

    def _metrics(self, _: QueryValues) -> Answer:
        """States and times, out of the ledger; counters are the running process's own, and zero here."""
        meter = Meter(self._gatherer.config)
        for board in meter.boards.values():
            board.begin(self._gatherer.entries([]))
        kind, body = exposition(meter)
        return 200, kind, body


def _line(text: str) -> bytes:
    return f"{redacted(text)}\n".encode(errors="replace")


@contextmanager
def served(gatherer: Gatherer, port: int) -> Iterator[str]:
    """Serve the page while the block runs; gives its address. `port` 0: any that is free.

    Raises BadInput where the port cannot be opened.
    """
    site = Site(gatherer)
    try:
        server = ThreadingHTTPServer((HOST, port), _handler(site))
    except (OSError, OverflowError) as e:
        why = getattr(e, "strerror", None) or e
        raise BadInput(detail=f"--port {port} cannot be opened on {HOST} ({why}); give another, or 0 for any") from e
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="page", daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def _handler(site: Site) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            name = self.headers.get("Host", "").rsplit(":", 1)[0]
            ours = name in (HOST, "localhost", "")
            status, kind, body = site.answer(self.path) if ours else (403, TEXT, b"only for this machine\n")
            self.send_response(status)
            for header, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
                self.send_header(header, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Requests are no news."""

    return Handler
