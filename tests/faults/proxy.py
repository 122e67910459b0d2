"""An HTTP proxy on loopback that does to requests what networks, gateways and busy servers do."""

from __future__ import annotations

import base64
import http.client
import pickle
import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import unquote, urlsplit

_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host"}


@dataclass(frozen=True)
class Fault:
    """What happens to one request.

    `forward`: the server gets it, and does it. `status`: this answer in place of the server's (None: none, the
    connection ends; with `forward` and neither, the server's own). `cut`: its body ends half way.
    """

    forward: bool = False
    status: int | None = None
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    wait_sec: float = 0.0
    cut: bool = False
    own: bool = False

    @classmethod
    def answer(cls, status: int, body: bytes = b"", **headers: str) -> Fault:
        return cls(status=status, body=body, headers={k.replace("_", "-"): v for k, v in headers.items()})

    @classmethod
    def dropped(cls) -> Fault:
        """The connection ends before the server has seen anything."""
        return cls()

    @classmethod
    def unanswered(cls) -> Fault:
        """The server does it, and nobody hears of it."""
        return cls(forward=True)

    @classmethod
    def half(cls) -> Fault:
        return cls(forward=True, own=True, cut=True)

    @classmethod
    def slow(cls, wait_sec: float) -> Fault:
        return cls(forward=True, own=True, wait_sec=wait_sec)


@dataclass(frozen=True)
class Rule:
    """Requests whose `METHOD path?query`, unquoted, matches `pattern` have the fault: all, or the `first` so many, or,
    with `once`, the first one of each path. `fault` None: all is well."""

    fault: Fault | None = None
    pattern: str = ""
    first: int | None = None
    once: bool = False


WELL = Rule()


class Proxy:
    """In front of `target` (`http://host:port`): a process of its own, for some clients do not let another thread of
    theirs run while they wait. `rule` may be changed at any time."""

    def __init__(self, target: str) -> None:
        self._target = target

    @property
    def rule(self) -> Rule:
        return self._rule

    @rule.setter
    def rule(self, rule: Rule) -> None:
        self._rule = rule
        self._ask(base64.b64encode(pickle.dumps(rule)).decode())

    @property
    def hits(self) -> int:
        """How many requests had a fault."""
        return int(self._ask("hits"))

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.proxy", self._target],
            cwd=Path(__file__).parent.parent.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.endpoint = f"http://127.0.0.1:{self._ask('port')}"
        self.rule = WELL
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()


class _Rules:
    """In the process: the rule that holds, and what it has done."""

    def __init__(self) -> None:
        self.hits = 0
        self._lock = threading.Lock()
        self.begin(WELL)

    def begin(self, rule: Rule) -> None:
        with self._lock:
            self._rule, self._left, self._met = rule, rule.first, set[str]()

    def fault(self, method: str, path: str) -> Fault | None:
        with self._lock:
            rule = self._rule
            if rule.fault is None or not re.search(rule.pattern, f"{method} {unquote(path)}") or self._left == 0:
                return None
            if rule.once and path in self._met:
                return None
            self._met.add(path)
            self._left = None if self._left is None else self._left - 1
            self.hits += 1
            return rule.fault


def main(target: str) -> None:
    parts, rules = urlsplit(target), _Rules()

    class Handler(_Handler):
        server_name, server_port = str(parts.hostname), int(parts.port or 80)

        def fault(self) -> Fault | None:
            return rules.fault(self.command, self.path)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for line in sys.stdin:
        word = line.strip()
        if word not in ("port", "hits"):
            rules.begin(pickle.loads(base64.b64decode(word)))
        print(server.server_port if word == "port" else rules.hits, flush=True)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_name: str
    server_port: int

    def fault(self) -> Fault | None:
        raise NotImplementedError

    def _serve(self) -> None:
        with suppress(ConnectionError):
            self._answer()

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.fault() or Fault(forward=True, own=True)
        time.sleep(fault.wait_sec)
        status, headers, answer = fault.status, dict(fault.headers), fault.body
        if fault.forward:
            said = self._forward(body)
            if fault.own:
                status, headers, answer = said
        if status is None:
            self.close_connection = True
            return
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if self.command == "HEAD":
            if "Content-Length" not in headers:
                self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer[: len(answer) // 2] if fault.cut else answer)
        self.close_connection = self.close_connection or fault.cut

    def _forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        server = http.client.HTTPConnection(self.server_name, self.server_port, timeout=60)
        try:
            headers = {n: v for n, v in self.headers.items() if n.lower() not in _HOP}
            server.request(self.command, self.path, body, headers)
            said = server.getresponse()
            kept = {n: v for n, v in said.getheaders() if n.lower() not in _HOP}
            if self.command == "HEAD" and (length := said.getheader("Content-Length")) is not None:
                kept["Content-Length"] = length
            return said.status, kept, said.read()
        finally:
            server.close()

    def log_message(self, *_: object) -> None:
        return


if __name__ == "__main__":
    # By its name, so that what is unpickled is of the same classes.
    from tests.faults import proxy

    proxy.main(sys.argv[1])
