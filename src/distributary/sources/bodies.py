"""A source file's bytes, on this machine or in an object store, for the task that reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import timedelta
from functools import lru_cache
from typing import Any

import obstore
import pyarrow as pa
from obstore.exceptions import BaseError, UnknownConfigurationKeyError
from obstore.store import GCSStore, S3Store

from distributary.errors import ConfigError, SourceDown
from distributary.tables.store import engine_uri, local_path

ObjectStore = S3Store | GCSStore
Options = Mapping[str, str]
"""Settings and credentials as delta-rs names them (`tables.storage_options`); none for local folders."""

_CLIENT = {
    "allow_http", "allow_invalid_certificates", "connect_timeout", "http1_only", "http2_only", "pool_idle_timeout",
    "pool_max_idle_per_host", "proxy_ca_certificate", "proxy_excludes", "proxy_url", "timeout", "user_agent",
}  # fmt: skip
_SWITCHES = {"true": True, "false": False}
# The client's own three minutes are too long for a round that comes again in seconds.
_RETRY: Any = {"max_retries": 5, "retry_timeout": timedelta(seconds=30)}
_SUFFIX = re.compile(r"(\.(avro|jsonl?|parquet))?(\.gz)?$")


def open_body(path: str, options: Options) -> pa.Buffer:
    """The file's bytes.

    Raises FileNotFoundError for a file that is gone, OSError for a local one that cannot be read, SourceDown when the
    store does not answer or refuses.
    """
    local = local_path(path)
    if local is not None:
        # Not mapped: a file that is cut while it is mapped kills the process that reads it.
        return pa.py_buffer(local.read_bytes())
    store, key = object_store(path, options)
    try:
        return pa.py_buffer(obstore.get(store, key).bytes())
    except (BaseError, FileNotFoundError) as e:
        raise translated(e, path) from e


def schema_text(path: str, options: Options) -> str | None:
    """The Avro schema that Datastream puts beside a JSON file: "the same name, with a .schema extension".

    That is read both ways: `a.jsonl.gz` has `a.schema` or `a.jsonl.gz.schema`. None where there is neither.
    Raises OSError, SourceDown.
    """
    for name in dict.fromkeys((_SUFFIX.sub("", path), path)):
        try:
            return str(open_body(f"{name}.schema", options).to_pybytes(), "utf-8")
        except FileNotFoundError:
            continue
    return None


def object_store(uri: str, options: Options) -> tuple[ObjectStore, str]:
    """The bucket's client, and the rest of `uri` as its key. Raises ConfigError for an address or option without sense.

    Credentials that are not among `options` come from the environment and the machine's own identity.
    """
    scheme, _, rest = engine_uri(uri).partition("://")
    bucket, _, key = rest.partition("/")
    return _client(scheme, bucket, json.dumps(dict(options), sort_keys=True)), key


@lru_cache(maxsize=16)
def _client(scheme: str, bucket: str, options: str) -> ObjectStore:
    config: Any = {}
    client: Any = {}
    for name, value in json.loads(options).items():
        key = re.sub(r"^(aws|google)_", "", name.lower())
        if key in _CLIENT:
            client[key] = _SWITCHES.get(value.lower(), value)
        else:
            config[name.lower()] = value
    while True:
        try:
            if scheme == "s3":
                return S3Store(bucket, config=config, client_options=client, retry_config=_RETRY)
            if scheme == "gs":
                return GCSStore(bucket, config=config, client_options=client, retry_config=_RETRY)
        except UnknownConfigurationKeyError as e:
            # Settings of delta-rs that concern its commits (locks, renames) mean nothing to a reader.
            config.pop(next((key for key in config if f"'{key}'" in str(e)), None))
            continue
        except BaseError as e:
            raise ConfigError(file="the pipeline", key="source.storage_options", detail=first_line(e)) from e
        detail = f"{scheme}:// cannot be read; allowed: a folder, gs://, s3:// or s3a://"
        raise ConfigError(file="the pipeline", key="source.path", detail=detail)


def translated(error: Exception, path: str) -> Exception:
    """An error of the store's client in our words."""
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(f"{path}: {first_line(error)}")
    return SourceDown(source=path, detail=first_line(error))


def first_line(error: Exception) -> str:
    """What is to be read of an error of the client; the rest is how it looks inside."""
    return str(error).split("\n", 1)[0]
