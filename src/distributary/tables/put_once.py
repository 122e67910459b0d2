"""Write an object only if nobody has: what a commit of a Delta table is.

Local folders: `link`, as delta-rs itself does. Object stores: a conditional put (S3 `If-None-Match`, Google
`ifGenerationMatch`, Azure `If-None-Match`) by obstore, which is the same Rust library below delta-rs, so its settings
have the same names. delta-rs offers no commit of its own that both removes and adds chosen files.
"""

from __future__ import annotations

import contextlib
import os
import uuid

from distributary.tables.store import Store, join, local_path

PUTS = 50
"""How often a commit gives way to somebody else's before it gives up. Each round writes only what is new to it."""
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
        # Imported here and below: a worker that writes local folders never needs it.
        from distributary.tables.object_stores import create_object

        return create_object(uri, store.at(uri), f"{folder}/{name}", body)
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
    from distributary.tables.object_stores import has_object

    return has_object(uri, store.at(uri), f"{folder}/{name}")


def read(uri: str, store: Store, folder: str, name: str) -> bytes | None:
    """The object's bytes, None where there is none; by the client that `put_once` has open. Raises OSError."""
    if local_path(uri) is not None:
        return store.get(join(uri, folder), name)
    from distributary.tables.object_stores import read_object

    return read_object(uri, store.at(uri), f"{folder}/{name}")
