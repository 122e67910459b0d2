"""A door to fake-gcs-server through which delta-rs can write.

delta-rs writes by Google's XML API: `PUT /bucket/object`, with `x-goog-if-generation-match: 0` where the object must be
new. The emulator reads by it, but answers such a PUT with `400 invalid uploadType`: it knows writes of the JSON API
only. And its lists begin at the beginning, whatever `start-after` says, so that delta-rs finds old versions where it
asked for new ones. This server passes reads on, cuts lists, and says each write in the other way; what is kept, and
what is refused because it is there already, the emulator decides.
"""

from __future__ import annotations

import html
import http.client
import json
import re
import sys
import urllib.parse
import urllib.request
import uuid
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

from tests.services import Server, free_ports
from tests.services.stores import GoogleStorage

ROOT = Path(__file__).parents[2]
Answer = tuple[int, Mapping[str, str], bytes]
"""Status, headers, body."""
_CONTENTS = re.compile(rb"<Contents><Key>(.*?)</Key>.*?</Contents>", re.DOTALL)
_PART = b"Content-Type: application/octet-stream\r\n\r\n"
_JSON = "/storage/v1/b/{bucket}/o"


def options_through(endpoint: str, store: GoogleStorage) -> dict[str, str]:
    """Storage options for the door at, or behind, `endpoint`."""
    key = {**json.loads(store.options["google_service_account_key"]), "gcs_base_url": endpoint}
    return {**store.options, "google_service_account_key": json.dumps(key)}


class GcsWrites(Server):
    """`url` is what delta-rs is to take for Google. A process of its own: delta-rs waits for it with Python stopped."""

    name = "gcs-writes"
    on_java = False

    def __init__(self, folder: Path, store: GoogleStorage) -> None:
        super().__init__(folder)
        (self._port,) = free_ports(1)
        self.store = store
        self._backend = urllib.parse.urlsplit(store.endpoint).netloc
        self.url = f"http://127.0.0.1:{self._port}"
        self.options = options_through(self.url, store)

    def command(self) -> list[str]:
        start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.services.gcs_writes import serve; serve()"
        return [sys.executable, "-c", start, str(self._port), self._backend]

    def is_ready(self) -> bool:
        with urllib.request.urlopen(f"{self.url}/storage/v1/b?project=test", timeout=60) as answer:
            return b"kind" in answer.read()


def serve() -> None:
    """Until the process is ended. Arguments: the port, the emulator's `host:port`."""
    port, backend = sys.argv[1:]
    handler = type("_OneStore", (_Handler,), {"backend": backend, "parts": {}})
    ThreadingHTTPServer(("127.0.0.1", int(port)), handler).serve_forever()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    backend: ClassVar[str]
    parts: ClassVar[dict[str, dict[int, bytes]]]
    """Uploads in parts that are not whole yet."""

    def _read(self) -> None:
        status, headers, body = self._pass_on(self.command, self.path, b"", dict(self.headers))
        query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
        if (after := query.get("start-after")) is not None:
            body = _CONTENTS.sub(lambda found: found[0] if html.unescape(found[1].decode()) > after else b"", body)
        self._answer(status, headers, body)

    do_GET = do_HEAD = _read

    def do_PUT(self) -> None:
        body, bucket, key, query = self._asked()
        if "uploadId" in query:
            self.parts[query["uploadId"]][int(query["partNumber"])] = body
            self._answer(200, {"ETag": f'"{query["partNumber"]}"'}, b"")
        else:
            self._answer(*self._write(bucket, key, body, self.headers.get("x-goog-if-generation-match")))

    def do_POST(self) -> None:
        _, bucket, key, query = self._asked()
        if "uploads" in query:
            upload = uuid.uuid4().hex
            self.parts[upload] = {}
            self._answer(200, {}, _xml("InitiateMultipartUploadResult", UploadId=upload))
        else:
            parts = self.parts.pop(query["uploadId"])
            body = b"".join(parts[number] for number in sorted(parts))
            status, headers, said = self._write(bucket, key, body, self.headers.get("x-goog-if-generation-match"))
            done = _xml("CompleteMultipartUploadResult", ETag=headers.get("ETag", ""))
            self._answer(status, headers, done if status == 200 else said)

    def do_DELETE(self) -> None:
        _, bucket, key, _ = self._asked()
        path = f"{_JSON.format(bucket=bucket)}/{urllib.parse.quote(key, safe='')}"
        self._answer(*self._pass_on("DELETE", path, b"", {}))

    # -- ------------------------------------------------------------------------------------------------------

    def _asked(self) -> tuple[bytes, str, str, dict[str, str]]:
        """Body, bucket, key, query."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        found = urllib.parse.urlsplit(self.path)
        _, bucket, key = urllib.parse.unquote(found.path).split("/", 2)
        return body, bucket, key, dict(urllib.parse.parse_qsl(found.query, keep_blank_values=True))

    def _write(self, bucket: str, key: str, body: bytes, generation: str | None) -> Answer:
        # Of its uploads, the emulator asks for the generation with those in two parts only.
        query = {"uploadType": "multipart", **({} if generation is None else {"ifGenerationMatch": generation})}
        path = f"/upload{_JSON.format(bucket=bucket)}?{urllib.parse.urlencode(query)}"
        line = uuid.uuid4().hex
        head = f"--{line}\r\nContent-Type: application/json\r\n\r\n{json.dumps({'name': key})}\r\n--{line}\r\n"
        whole = b"".join([head.encode(), _PART, body, f"\r\n--{line}--\r\n".encode()])
        status, _, said = self._pass_on("POST", path, whole, {"Content-Type": f"multipart/related; boundary={line}"})
        number = re.search(rb'"generation":\s*"?(\d+)', said)
        made = number[1].decode() if number else "0"
        return status, {"ETag": f'"{made}"', "x-goog-generation": made}, b"" if status == 200 else said

    def _pass_on(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        connection = http.client.HTTPConnection(self.backend)
        # The emulator knows its own name only.
        sent = {name: value for name, value in headers.items() if name.lower() != "host"}
        connection.request(method, path, body or None, {**sent, "Host": self.backend})
        answer = connection.getresponse()
        said, found = answer.read(), dict(answer.getheaders())
        connection.close()
        return answer.status, found, said

    def _answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response(status)
        length = str(len(body))
        for name, value in headers.items():
            if name.lower() == "content-length":
                length = value if self.command == "HEAD" else length
            elif name.lower() not in ("transfer-encoding", "connection", "date", "server"):
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *values: object) -> None:
        """Nothing."""


def _xml(name: str, **values: str) -> bytes:
    inside = "".join(f"<{key}>{value}</{key}>" for key, value in values.items())
    return f'<?xml version="1.0" encoding="UTF-8"?><{name}>{inside}</{name}>'.encode()
