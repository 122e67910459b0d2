"""Write an object only if nobody has: what a commit of a Delta table is.

Local folders: `link`, as delta-rs itself does. Object stores: a conditional put (S3 `If-None-Match`, Google
`ifGenerationMatch`, Azure `If-None-Match`) by obstore, which is the same Rust library below delta-rs, so its settings
have the same names. delta-rs offers no commit of its own that both removes and adds chosen files.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
import uuid
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from distributary.tables.store import Store, engine_uri, local_path

_CLIENT = re.compile(
    r"(?:aws_|google_|azure_)?(?P<name>allow_http|allow_invalid_certificates|connect_timeout|default_content_type"
    r"|http1_only|http2_keep_alive_interval|http2_keep_alive_timeout|http2_only|pool_idle_timeout"
    r"|pool_max_idle_per_host|proxy_ca_certificate|proxy_excludes|proxy_url|randomize_addresses|timeout|user_agent)"
)
_OF_DELTA_RS = re.compile(r".*(unsafe_rename|dynamo|locking_provider|max_retries|retry_timeout|backoff|mount_|sync_).*")
"""Settings that delta-rs keeps for itself; the store below it does not know them."""

SCHEMES = ("s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss")


def cannot_put_once(uri: str, store: Store) -> str | None:
    """Why no object below `uri` can be written this way, in words; None where it can."""
    if local_path(uri) is not None:
        return None
    scheme = uri.split("://", 1)[0]
    if scheme not in SCHEMES:
        return f"a store ({scheme}://) without a conditional put"
    if any("locking_provider" in name.lower() for name in store.options):
        return "a locking provider for S3"
    return None


def put_once(uri: str, store: Store, folder: str, name: str, body: bytes) -> bool:
    """Write `<uri>/<folder>/<name>`; False where it is there already. Raises OSError."""
    local = local_path(uri)
    if local is None:
        return _put_object(uri, store, f"{folder}/{name}", body)
    place = local / folder
    place.mkdir(parents=True, exist_ok=True)
    draft = place / f".{uuid.uuid4().hex}-{os.getpid()}-{time.monotonic_ns()}.tmp"
    draft.write_bytes(body)
    try:
        os.link(draft, place / name)
    except FileExistsError:
        return False
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()
    return True


def exists(uri: str, store: Store, folder: str, name: str) -> bool:
    """Is the object there? Raises OSError."""
    local = local_path(uri)
    if local is not None:
        return (local / folder / name).exists()
    import obstore

    try:
        obstore.head(_object_store(engine_uri(uri), tuple(sorted(store.options.items()))), f"{folder}/{name}")
    except FileNotFoundError:
        return False
    except obstore.exceptions.BaseError as e:
        raise OSError(str(e)) from e
    return True


def _put_object(uri: str, store: Store, name: str, body: bytes) -> bool:
    # Imported here: a worker that writes local folders never needs it.
    import obstore
    from obstore.exceptions import AlreadyExistsError, BaseError

    try:
        target = _object_store(engine_uri(uri), tuple(sorted(store.options.items())))
        obstore.put(target, name, body, mode="create", use_multipart=False)
    except AlreadyExistsError:
        return False
    except BaseError as e:
        raise OSError(str(e)) from e
    return True


@lru_cache(maxsize=64)
def _object_store(uri: str, options: tuple[tuple[str, str], ...]) -> Any:
    from obstore.exceptions import UnknownConfigurationKeyError
    from obstore.store import from_url

    config, client = _split(dict(options))
    make: Any = from_url
    while True:
        try:
            return make(uri, config=config, client_options=client)
        except UnknownConfigurationKeyError as e:
            # delta-rs passes over what its store does not know.
            named = [key for key in config if f"'{key}'" in str(e)]
            if not named:
                raise OSError(str(e)) from e
            for key in named:
                del config[key]


def _split(options: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """delta-rs's storage options as settings of the store and of its HTTP client."""
    config: dict[str, Any] = {}
    client: dict[str, Any] = {}
    for name, value in options.items():
        key = name.lower()
        if found := _CLIENT.fullmatch(key):
            client[found["name"]] = value.lower() == "true" if value.lower() in ("true", "false") else value
        elif not _OF_DELTA_RS.fullmatch(key):
            config[key] = value
    return config, client
