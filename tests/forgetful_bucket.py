"""An S3 that keeps what it is given, whatever `If-None-Match` says: `python -m tests.forgetful_bucket [STATUS]`.

STATUS is its answer to puts with that header. Says its port; `GET /` lists what it has.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

OBJECTS: dict[str, bytes] = {}
REFUSAL = int(sys.argv[1]) if sys.argv[1:] and sys.argv[1] else None
_ABOUT = "<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>x</ETag><Size>5</Size>"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if REFUSAL is not None and self.headers["If-None-Match"]:
            self._answer(REFUSAL, b"<Error><Code>NotImplemented</Code></Error>")
            return
        OBJECTS[self.path] = body
        self._answer(200)

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if "list-type" in query:
            keys = "".join(f"<Contents><Key>{k.split('/', 2)[2]}</Key>{_ABOUT}</Contents>" for k in OBJECTS)
            self._answer(200, f"<ListBucketResult>{keys}</ListBucketResult>".encode())
        elif path == "/":
            self._answer(200, json.dumps([*OBJECTS]).encode())
        else:
            self._answer(200 if path in OBJECTS else 404, OBJECTS.get(path, b""))

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_DELETE(self) -> None:
        OBJECTS.pop(self.path, None)
        self._answer(204)

    def do_POST(self) -> None:
        """DeleteObjects."""
        self.rfile.read(int(self.headers["Content-Length"]))
        OBJECTS.clear()
        self._answer(200, b"<DeleteResult></DeleteResult>")

    def log_message(self, format: str, *args: object) -> None: ...

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response_only(status)
        self.send_header("ETag", '"x"')
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


if __name__ == "__main__":
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()
