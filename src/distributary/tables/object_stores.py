"""Clients of object stores, made of the settings that delta-rs takes (`tables.storage_options`).

obstore is the same Rust library that is below delta-rs, so a setting has the same name and means the same. Credentials
that are not among the settings come from the environment and the machine's own identity.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, UnknownConfigurationKeyError
from obstore.store import AzureStore, GCSStore, S3Store, from_url

from distributary.tables.store import engine_uri

ObjectStore = S3Store | GCSStore | AzureStore

_HTTP = re.compile(
    r"(?:aws_|google_|azure_)?(?P<name>allow_http|allow_invalid_certificates|connect_timeout|default_content_type"
    r"|http1_only|http2_keep_alive_interval|http2_keep_alive_timeout|http2_only|pool_idle_timeout"
    r"|pool_max_idle_per_host|proxy_ca_certificate|proxy_excludes|proxy_url|randomize_addresses|timeout|user_agent)"
)
_OF_DELTA_RS = re.compile(r".*(unsafe_rename|dynamo|locking_provider|max_retries|retry_timeout|backoff|mount_|sync_).*")
"""Settings that delta-rs keeps for itself; the store below it does not know them."""
_SWITCHES = {"true": True, "false": False}
# The client's own three minutes are too long for a batch that comes again in seconds.
_RETRY: Any = {"max_retries": 5, "retry_timeout": timedelta(seconds=30)}


class SettingsRefused(ValueError):
    """The client can make no sense of an address or of a setting; says why."""


def object_store(uri: str, options: Mapping[str, str]) -> tuple[ObjectStore, str]:
    """The bucket's client, and the rest of `uri` as a key in it. Raises SettingsRefused."""
    scheme, _, rest = engine_uri(uri).partition("://")
    bucket, _, key = rest.partition("/")
    return _client(f"{scheme}://{bucket}", json.dumps(dict(options), sort_keys=True)), key.rstrip("/")


def create_object(uri: str, options: Mapping[str, str], name: str, body: bytes) -> bool:
    """Put `<uri>/<name>`; False where it is there already. Raises OSError."""
    with _bucket(uri, options) as (client, key):
        try:
            obstore.put(client, f"{key}/{name}", body, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return False
    return True


def has_object(uri: str, options: Mapping[str, str], name: str) -> bool:
    """Is `<uri>/<name>` there? Raises OSError."""
    with _bucket(uri, options) as (client, key):
        try:
            obstore.head(client, f"{key}/{name}")
        except FileNotFoundError:
            return False
    return True


def read_object(uri: str, options: Mapping[str, str], name: str) -> bytes | None:
    """The bytes of `<uri>/<name>`, None where there is none. Raises OSError."""
    with _bucket(uri, options) as (client, key):
        try:
            return bytes(obstore.get(client, f"{key}/{name}").bytes())
        except FileNotFoundError:
            return None


@contextmanager
def _bucket(uri: str, options: Mapping[str, str]) -> Iterator[tuple[ObjectStore, str]]:
    """As `object_store`; what the client refuses within is an OSError."""
    try:
        yield object_store(uri, options)
    except (BaseError, SettingsRefused) as e:
        raise OSError(str(e)) from e


@lru_cache(maxsize=64)
def _client(bucket: str, options: str) -> ObjectStore:
    config, http = _split(json.loads(options))
    make: Any = from_url
    while True:
        try:
            client: ObjectStore = make(bucket, config=config, client_options=http, retry_config=_RETRY)
            return client
        except UnknownConfigurationKeyError as e:
            # delta-rs passes over what its store does not know.
            unknown = [key for key in config if f"'{key}'" in str(e)]
            if not unknown:
                raise SettingsRefused(first_line(e)) from e
            for key in unknown:
                del config[key]
        except (BaseError, ValueError) as e:
            raise SettingsRefused(first_line(e)) from e


def _split(options: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of the store, and of its HTTP client."""
    config: dict[str, Any] = {}
    http: dict[str, Any] = {}
    for name, value in options.items():
        key = name.lower()
        if match := _HTTP.fullmatch(key):
            http[match["name"]] = _SWITCHES.get(value.lower(), value)
        elif not _OF_DELTA_RS.fullmatch(key):
            config[key] = value
    return config, http


def first_line(error: Exception) -> str:
    """What is to be read of an error of the client; the rest is how it looks inside."""
    return str(error).split("\n", 1)[0]
