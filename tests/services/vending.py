"""A stand-in for Unity Catalog and for the S3 behind it, which takes only what the catalog has vended.

The catalog's calls are those of the open-source server (`tests/unity_contract.py` holds both to the same). Its
credentials are good for one place, for reading or for writing too, and end; the store, a door to moto, asks for them
and answers as S3 does: `InvalidAccessKeyId`, `InvalidToken`, `ExpiredToken` (a 400), `AccessDenied`.
"""

from __future__ import annotations

import html
import http.client
import json
import re
import secrets
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.services import Server, free_ports
from tests.services.stores import S3

ROOT = Path(__file__).parents[2]
API = "/api/2.1/unity-catalog"
TOKEN = "token-of-the-catalog"
_KEY = re.compile(rb"<Key>(.*?)</Key>", re.DOTALL)
_WHO = re.compile(r"Credential=([^/]+)/")


class Vending(Server):
    """`url`: of the catalog. `options`: what delta-rs needs besides credentials. `root`: the external location."""

    name = "vending"
    on_java = False

    def __init__(self, folder: Path, store: S3) -> None:
        super().__init__(folder)
        (self._port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self._port}"
        self.bucket = store.bucket()
        self.root = f"s3://{self.bucket.name}/governed"
        self.options = {"aws_endpoint_url": self.url, "aws_region": "us-east-1", "aws_allow_http": "true"}
        self._backend = urllib.parse.urlsplit(store.endpoint).netloc

    def command(self) -> list[str]:
        start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.services.vending import serve; serve()"
        return [sys.executable, "-c", start, str(self._port), self._backend, self.root]

    def is_ready(self) -> bool:
        return self.tell("given") is not None

    def tell(self, what: str, **about: Any) -> Any:
        """`given`: the credentials so far. `expire`: all of them end now. `life`: how long new ones last, `sec`."""
        request = urllib.request.Request(f"{self.url}/of-the-test/{what}", json.dumps(about).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())

    def given(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.tell("given")
        return found


@dataclass
class Given:
    """Credentials for all below `place`. `ends`: seconds since 1970. `used`: requests that were let in by them."""

    place: str
    writes: bool
    key: str
    secret: str
    token: str
    ends: float
    used: int = 0


class State:
    def __init__(self, backend: str, root: str) -> None:
        self.backend = backend
        self.root = root
        self.given: dict[str, Given] = {}
        self.things: dict[str, dict[str, Any]] = {}
        """Catalogs, schemas and tables by full name."""
        self.life_sec = 3600.0
        self.lock = threading.Lock()

    def vend(self, place: str, writes: bool) -> dict[str, Any]:
        given = Given(
            place, writes, f"ASIA{secrets.token_hex(8).upper()}", secrets.token_urlsafe(30), secrets.token_urlsafe(90),
            time.time() + self.life_sec,
        )  # fmt: skip
        self.given[given.key] = given
        keys = {"access_key_id": given.key, "secret_access_key": given.secret, "session_token": given.token}
        return {"aws_temp_credentials": keys, "expiration_time": int(given.ends * 1000), "url": place}


class Fault(Exception):
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: State

    def _do(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = urllib.parse.urlsplit(self.path).path
        if path.startswith("/of-the-test/"):
            self._json(200, self._of_the_test(path.rsplit("/", 1)[1], json.loads(body)))
        elif path.startswith(API):
            try:
                with self.state.lock:
                    self._json(200, self._catalog(path.removeprefix(API), json.loads(body or b"{}")))
            except Fault as e:
                self._json(e.status, {"error_code": e.code, "message": str(e)})
        else:
            try:
                self._let_in(body)
            except Fault as e:
                self._answer(e.status, {"Content-Type": "application/xml"}, _xml(e).encode())
                return
            self._pass_on(body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _do

    def _of_the_test(self, what: str, about: Mapping[str, Any]) -> Any:
        state = self.state
        if what == "expire":
            for given in state.given.values():
                given.ends = min(given.ends, time.time())
        elif what == "life":
            state.life_sec = about["sec"]
        return [vars(given) for given in state.given.values()]

    # -- the catalog -------------------------------------------------------------------------------------------

    def _catalog(self, path: str, asked: dict[str, Any]) -> dict[str, Any]:
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise Fault(401, "UNAUTHENTICATED", "there is no such token")
        things = self.state.things
        if path == "/temporary-path-credentials":
            place = asked["url"].rstrip("/")
            if not f"{place}/".startswith(f"{self.state.root}/"):
                raise Fault(403, "PERMISSION_DENIED", f"no external location of yours holds {place}")
            return self.state.vend(place, asked["operation"] != "PATH_READ")
        if path == "/temporary-table-credentials":
            table = next((t for t in things.values() if t.get("table_id") == asked["table_id"]), None)
            if table is None:
                raise Fault(404, "NOT_FOUND", "there is no such table")
            return self.state.vend(table["storage_location"], asked["operation"] == "READ_WRITE")
        kind, _, name = path.strip("/").partition("/")
        name = urllib.parse.unquote(name)
        if self.command in ("GET", "DELETE"):
            if name not in things:
                raise Fault(404, f"{kind[:-1].upper()}_NOT_FOUND", f"{name} is not there")
            return things[name] if self.command == "GET" else things.pop(name)
        parents = [asked[key] for key in ("catalog_name", "schema_name") if key in asked]
        full = ".".join([*parents, asked["name"]])
        if parents and ".".join(parents) not in things:
            raise Fault(404, "NOT_FOUND", f"{'.'.join(parents)} is not there")
        if full in things:
            raise Fault(409, "ALREADY_EXISTS", f"{full} is there already")
        things[full] = {**asked, **({"table_id": secrets.token_hex(8)} if kind == "tables" else {})}
        return things[full]

    # -- the store ---------------------------------------------------------------------------------------------

    def _let_in(self, body: bytes) -> None:
        who = _WHO.search(self.headers.get("Authorization", ""))
        given = self.state.given.get(who[1] if who else "")
        token = self.headers.get("x-amz-security-token", "")
        if given is None:
            raise Fault(403, "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records.")
        if token != given.token:
            raise Fault(400, "InvalidToken", f"The provided token is malformed: {token}")
        if time.time() >= given.ends:
            # S3 repeats the token.
            raise Fault(400, "ExpiredToken", f"The provided token has expired: {token}")
        split = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(split.query, keep_blank_values=True))
        bucket, _, key = urllib.parse.unquote(split.path).lstrip("/").partition("/")
        keys = [key] if key else [query.get("prefix", "")]
        if "delete" in query:
            keys = [html.unescape(found.decode()) for found in _KEY.findall(body)]
        reads = self.command in ("GET", "HEAD")
        inside = all(f"s3://{bucket}/{one}".startswith(f"{given.place}/") for one in keys)
        if not inside or not (reads or given.writes):
            raise Fault(403, "AccessDenied", "Access Denied")
        given.used += 1

    def _pass_on(self, body: bytes) -> None:
        connection = http.client.HTTPConnection(self.state.backend)
        connection.request(self.command, self.path, body or None, dict(self.headers))
        answer = connection.getresponse()
        said = answer.read()
        kept = {n: v for n, v in answer.getheaders() if n.lower() not in ("connection", "transfer-encoding", "date")}
        connection.close()
        self._answer(answer.status, kept, said)

    def _json(self, status: int, value: Any) -> None:
        self._answer(status, {"Content-Type": "application/json"}, json.dumps(value).encode())

    def _answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() != "content-length" or self.command == "HEAD":
                self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(body)))
        elif "content-length" not in {name.lower() for name in headers}:
            self.send_header("Content-Length", "0")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


def _xml(fault: Fault) -> str:
    said = f"<Code>{fault.code}</Code><Message>{html.escape(str(fault))}</Message>"
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<Error>{said}</Error>'


def serve() -> None:
    """Until the process is ended. Arguments: the port, the store's `host:port`, the external location."""
    port, backend, root = sys.argv[1:]
    handler = type("_OneCatalog", (_Handler,), {"state": State(backend, root)})
    ThreadingHTTPServer(("127.0.0.1", int(port)), handler).serve_forever()
