"""Azure's Blob Storage, as much of its REST interface as delta-rs and obstore ask for.

There is no stand-in of it in a package of Python. Microsoft's own, Azurite, is a program of Node with 450 packages:
where `AZURITE` names one that is installed, tests/test_put_once.py and tests/test_store_faults.py hold it to the same.
"""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import itertools
import os
import re
import sys
import threading
import urllib.error
import urllib.parse
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from xml.sax.saxutils import escape, unescape

import obstore

from distributary.tables.object_stores import object_store
from tests.services.stores import ObjectStore

ROOT = Path(__file__).parents[2]
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Of Azurite, and known to everybody."""
_VERSION = "2021-12-02"


class AzureStorage(ObjectStore):
    """A process of its own, for delta-rs waits for it with Python stopped."""

    name = "azure"
    scheme = "az"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.options = options_through(self.endpoint)

    def command(self) -> list[str]:
        start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.services.azure import serve; serve()"
        return [sys.executable, "-c", start, str(self._port)]

    def is_ready(self) -> bool:
        try:
            self.request("GET", f"/{ACCOUNT}/?comp=list")
        except urllib.error.HTTPError:  # it does not know who asks
            return True
        return True

    def create(self, bucket: str) -> None:
        """Under the account's key ("Authorize with Shared Key"): the only thing here that obstore does not do."""
        place, now = f"/{ACCOUNT}/{bucket}", email.utils.formatdate(usegmt=True)
        text = (
            f"PUT\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:{now}\nx-ms-version:{_VERSION}\n/{ACCOUNT}{place}\nrestype:container"
        )
        signed = base64.b64encode(hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()).decode()
        headers = {"x-ms-date": now, "x-ms-version": _VERSION, "Authorization": f"SharedKey {ACCOUNT}:{signed}"}
        self.request("PUT", f"{place}?restype=container", None, headers)

    def put(self, bucket: str, key: str, body: bytes) -> None:
        obstore.put(self._client(bucket), key, body)

    def delete(self, bucket: str, key: str) -> None:
        obstore.delete(self._client(bucket), key)

    def _client(self, bucket: str) -> Any:
        return object_store(f"{self.scheme}://{bucket}", self.options)[0]


class Azurite(AzureStorage):
    """The program that the environment names (`AZURITE`: its dist/src/blob/main.js)."""

    name = "azurite"

    def command(self) -> list[str]:
        program = os.environ["AZURITE"]
        options = ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"]
        return ["node", program, "--blobHost", "127.0.0.1", "--blobPort", str(self._port), *options]


def options_through(endpoint: str) -> dict[str, str]:
    """Storage options for the store at, or behind, `endpoint`."""
    return {
        "azure_storage_account_name": ACCOUNT,
        "azure_storage_account_key": KEY,
        "azure_endpoint": f"{endpoint}/{ACCOUNT}",
        "allow_http": "true",
    }


# -- the process -------------------------------------------------------------------------------------------


class _Blob(NamedTuple):
    body: bytes
    tag: str
    at: str


class _Kept:
    """Containers and their blobs, and blocks of which no blob is made yet."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.containers: dict[str, dict[str, _Blob]] = {}
        self.blocks: dict[tuple[str, str], dict[str, bytes]] = {}
        self._tags = itertools.count(1)

    def write(self, container: str, name: str, body: bytes, only_new: bool) -> _Blob | None:
        """None where it has to be new, and is not."""
        with self.lock:
            blobs = self.containers[container]
            if only_new and name in blobs:
                return None
            blobs[name] = _Blob(body, f'"0x{next(self._tags):X}"', email.utils.formatdate(usegmt=True))
            return blobs[name]


def serve() -> None:
    """Until the process is ended. Argument: the port."""
    handler = type("_OneStore", (_Handler,), {"kept": _Kept()})
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), handler).serve_forever()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    kept: ClassVar[_Kept]

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        found = urllib.parse.urlsplit(self.path)
        self.query = dict(urllib.parse.parse_qsl(found.query, keep_blank_values=True))
        self.container, _, self.blob = urllib.parse.unquote(found.path).split("/", 2)[2].partition("/")
        if self.headers.get("Authorization", "").partition(":")[0] != f"SharedKey {ACCOUNT}":
            self._refuse(403, "AuthenticationFailed")
        elif self.container and self.container not in self.kept.containers and self.query.get("restype") != "container":
            self._refuse(404, "ContainerNotFound")
        else:
            getattr(self, f"_{self.command.lower()}")(body)

    do_GET = do_HEAD = do_PUT = do_DELETE = do_POST = _serve

    def _put(self, body: bytes) -> None:
        place = (self.container, self.blob)
        what = self.query.get("comp", self.query.get("restype"))
        if what == "container":
            self.kept.containers[self.container] = {}
            self._answer(201)
        elif what == "block":
            self.kept.blocks.setdefault(place, {})[self.query["blockid"]] = body
            self._answer(201)
        elif what == "blocklist":
            parts = self.kept.blocks.pop(place, {})
            names = re.findall(r"<(?:Latest|Uncommitted)>(.*?)</", body.decode())
            self._write(b"".join(parts[unescape(name)] for name in names))
        else:
            self._write(body)

    def _write(self, body: bytes) -> None:
        only_new = self.headers.get("If-None-Match") == "*"
        if (made := self.kept.write(self.container, self.blob, body, only_new)) is None:
            self._refuse(409, "BlobAlreadyExists")
        else:
            self._answer(201, b"", {"ETag": made.tag, "Last-Modified": made.at})

    def _get(self, _: bytes) -> None:
        if self.query.get("comp") == "list":
            self._list()
            return
        found = self.kept.containers[self.container].get(self.blob)
        if found is None:
            self._refuse(404, "BlobNotFound")
            return
        headers = {"ETag": found.tag, "Last-Modified": found.at, "x-ms-blob-type": "BlockBlob"}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("x-ms-range") or self.headers.get("Range") or "")
        if asked is None or self.command == "HEAD":
            self._answer(200, found.body, headers)
            return
        first, last = int(asked[1]), min(int(asked[2] or len(found.body)), len(found.body) - 1)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(found.body)}"
        self._answer(206, found.body[first : last + 1], headers)

    _head = _get

    def _delete(self, _: bytes) -> None:
        if self.kept.containers[self.container].pop(self.blob, None) is None:
            self._refuse(404, "BlobNotFound")
        else:
            self._answer(202)

    def _post(self, body: bytes) -> None:
        """A batch of deletes, and an answer to each of its parts."""
        answers = []
        for number, path in re.findall(rb"Content-ID: *(\d+).*?\r\n\r\nDELETE (\S+) ", body, re.DOTALL | re.IGNORECASE):
            blob = urllib.parse.unquote(path.decode()).split("?")[0].split("/", 3)[3]
            gone = self.kept.containers[self.container].pop(blob, None) is None
            said = "404 The specified blob does not exist." if gone else "202 Accepted"
            code = "x-ms-error-code: BlobNotFound\r\n" if gone else ""
            head = f"--batch\r\nContent-Type: application/http\r\nContent-ID: {number.decode()}\r\n\r\n"
            answers.append(f"{head}HTTP/1.1 {said}\r\n{code}Content-Length: 0\r\n\r\n")
        whole = "".join([*answers, "--batch--\r\n"]).encode()
        self._answer(202, whole, {"Content-Type": "multipart/mixed; boundary=batch"})

    def _list(self) -> None:
        if not self.container:
            self._answer(200, b'<?xml version="1.0"?><EnumerationResults><Containers/></EnumerationResults>')
            return
        prefix, delimiter = self.query.get("prefix", ""), self.query.get("delimiter")
        inside, folders = [], dict[str, None]()
        for name, blob in sorted(self.kept.containers[self.container].items()):
            if not name.startswith(prefix) or name < self.query.get("startFrom", ""):
                continue
            if delimiter and delimiter in name[len(prefix) :]:
                folders[prefix + name[len(prefix) :].partition(delimiter)[0] + delimiter] = None
                continue
            inside.append(
                f"<Blob><Name>{escape(name)}</Name><Properties><Last-Modified>{blob.at}</Last-Modified>"
                f"<Etag>{blob.tag.strip(chr(34))}</Etag><Content-Length>{len(blob.body)}</Content-Length>"
                "<Content-Type>application/octet-stream</Content-Type><BlobType>BlockBlob</BlobType></Properties></Blob>"
            )
        inside += [f"<BlobPrefix><Name>{escape(name)}</Name></BlobPrefix>" for name in folders]
        text = f"<EnumerationResults><Blobs>{''.join(inside)}</Blobs><NextMarker /></EnumerationResults>"
        self._answer(200, f'<?xml version="1.0" encoding="utf-8"?>{text}'.encode())

    def _refuse(self, status: int, code: str) -> None:
        text = f'<?xml version="1.0" encoding="utf-8"?>\n<Error><Code>{code}</Code><Message>{code}</Message></Error>'
        self._answer(status, text.encode(), {"x-ms-error-code": code})

    def _answer(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"x-ms-version": _VERSION, **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *values: object) -> None:
        """Nothing."""
