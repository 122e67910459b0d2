"""Write an object only if nobody has: what a commit of a Delta table is.

Local folders: `link`, as delta-rs itself does. Object stores: a conditional put (S3 `If-None-Match`, Google
`ifGenerationMatch`, Azure `If-None-Match`) by obstore, which is the same Rust library below delta-rs, so its settings
have the same names. delta-rs offers no commit of its own that both removes and adds chosen files.
"""

from __future__ import annotations

import contextlib
import os
import uuid

from distributary.tables.store import Store, local_path

SCHEMES = ("s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss")


def cannot_put_once(uri: str, store: Store) -> str | None:
    """Why no object below `uri` can be written this way, in words; None where it can."""
    if local_path(uri) is not None:
        return None
    scheme = uri.split("://", 1)[0]
    if scheme not in SCHEMES:
        return f"a store ({scheme}://) without a conditional put"
    options = {name.lower(): value.lower() for name, value in store.options.items()}
    if any("locking_provider" in name for name in options):
        return "a locking provider for S3"
    if any(name.endswith("conditional_put") and value == "disabled" for name, value in options.items()):
        return "conditional puts switched off (aws_conditional_put)"
    if any(name.endswith("allow_unsafe_rename") and value == "true" for name, value in options.items()):
        return "renames in place of conditional puts (aws_s3_allow_unsafe_rename)"
    return None


def put_once(uri: str, store: Store, folder: str, name: str, body: bytes) -> bool:
    """Write `<uri>/<folder>/<name>`; False where it is there already.

    Raises OSError, which does not say that nothing was written: a store's answer may have been lost.
    """
    local = local_path(uri)
    if local is None:
        return _put_object(uri, store, f"{folder}/{name}", body)
    place = local / folder
    draft = place / f".{uuid.uuid4().hex}.tmp"
    try:
        draft.write_bytes(body)
    except FileNotFoundError:
        place.mkdir(parents=True, exist_ok=True)
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

    from distributary.tables.object_stores import SettingsRefused, object_store

    try:
        bucket, key = object_store(uri, store.options)
        obstore.head(bucket, f"{key}/{folder}/{name}")
    except FileNotFoundError:
        return False
    except (obstore.exceptions.BaseError, SettingsRefused) as e:
        raise OSError(str(e)) from e
    return True


def read(uri: str, store: Store, folder: str, name: str) -> bytes | None:
    """The object's bytes, None where there is none. Raises OSError."""
    local = local_path(uri)
    if local is not None:
        return store.get(str(local / folder), name)
    import obstore

    from distributary.tables.object_stores import SettingsRefused, object_store

    try:
        bucket, key = object_store(uri, store.options)
        return bytes(obstore.get(bucket, f"{key}/{folder}/{name}").bytes())
    except FileNotFoundError:
        return None
    except (obstore.exceptions.BaseError, SettingsRefused) as e:
        raise OSError(str(e)) from e


def _put_object(uri: str, store: Store, name: str, body: bytes) -> bool:
    # Imported here: a worker that writes local folders never needs it.
    import obstore
    from obstore.exceptions import AlreadyExistsError, BaseError

    from distributary.tables.object_stores import SettingsRefused, object_store

    try:
        bucket, key = object_store(uri, store.options)
        obstore.put(bucket, f"{key}/{name}", body, mode="create", use_multipart=False)
    except AlreadyExistsError:
        return False
    except (BaseError, SettingsRefused) as e:
        raise OSError(str(e)) from e
    return True
