"""Tasks get a file's bytes, and its schema file, from wherever it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from distributary.errors import ConfigError, SourceDown
from distributary.sources.bodies import open_body, schema_text
from tests.services.stores import Bucket

NAMES = ["a.avro", "t[1] é/a:b%20.jsonl.gz"]


@pytest.fixture(
    params=[
        "local",
        pytest.param("google_storage", marks=pytest.mark.services),
        pytest.param("s3", marks=pytest.mark.services),
    ]
)
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Bucket:
    """A bucket, or a folder that looks like one."""
    if request.param != "local":
        found: Bucket = request.getfixturevalue(request.param).bucket()
        return found
    return LocalBucket(tmp_path)


class LocalBucket(Bucket):
    def __init__(self, root: Path) -> None:
        self.root, self.url, self.options = root, str(root), {}

    def put(self, key: str, body: bytes = b"x") -> None:
        (self.root / key).parent.mkdir(parents=True, exist_ok=True)
        (self.root / key).write_bytes(body)


@pytest.mark.parametrize("name", NAMES)
def test_a_files_bytes(bucket: Bucket, name: str) -> None:
    bucket.put(name, b"\x00bytes")
    assert open_body(f"{bucket.url}/{name}", bucket.options).to_pybytes() == b"\x00bytes"


def test_an_empty_file_has_no_bytes(bucket: Bucket) -> None:
    bucket.put("a.avro", b"")
    assert open_body(f"{bucket.url}/a.avro", bucket.options).size == 0


def test_a_file_that_is_gone_is_not_an_outage(bucket: Bucket) -> None:
    with pytest.raises(FileNotFoundError, match=r"gone\.avro"):
        open_body(f"{bucket.url}/gone.avro", bucket.options)


@pytest.mark.parametrize(
    ("file", "schema"),
    [
        ("k/a.jsonl", "k/a.schema"),
        ("k/a.jsonl.gz", "k/a.schema"),
        ("k/a.jsonl.gz", "k/a.jsonl.gz.schema"),
        ("k/a.b", "k/a.b.schema"),
    ],
)
def test_the_schema_file_beside_a_file(bucket: Bucket, file: str, schema: str) -> None:
    assert schema_text(f"{bucket.url}/{file}", bucket.options) is None
    bucket.put(schema, '{"name": "é"}'.encode())
    assert schema_text(f"{bucket.url}/{file}", bucket.options) == '{"name": "é"}'


def test_an_address_that_no_client_reads_is_said() -> None:
    with pytest.raises(ConfigError) as caught:
        open_body("ftp://host/a.avro", {})
    assert caught.value.parameters["key"] == "source.path"


def test_an_option_without_sense_is_said() -> None:
    with pytest.raises(ConfigError) as caught:
        open_body("gs://b/a.avro", {"google_service_account_key": "no JSON"})
    assert caught.value.parameters["key"] == "source.storage_options"


def test_a_store_that_is_away_is_an_outage_not_a_missing_file() -> None:
    options = {"aws_endpoint_url": "http://127.0.0.1:1", "aws_access_key_id": "a", "aws_secret_access_key": "b"}
    with pytest.raises(SourceDown):
        open_body("s3://bucket/a.avro", {**options, "AWS_ALLOW_HTTP": "true", "aws_s3_locking_provider": "dynamodb"})
