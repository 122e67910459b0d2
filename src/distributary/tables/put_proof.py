"""Does a place do what commits stand on? Asked of the place itself, for no setting says it: a mount without hard links,
a store that passes over `If-None-Match`.

One small object is written twice; the second writer must be told that it is there. Its name is always the same, so what
a killed process left is found by the next one, which takes it for the first write and removes it.
"""

from __future__ import annotations

import contextlib
import errno
import time

from distributary.config import StateFolder
from distributary.errors import StoreUnfit
from distributary.errors.border import in_words
from distributary.tables.files import names_in
from distributary.tables.put_once import put_once
from distributary.tables.store import Store, join, local_path

PROBES = StateFolder.probe.name
_NAME = "probe"
_TRIES = 4
"""Another process that tries the same place at the same moment removes what this one has written."""
_PAUSE_SEC = 0.05
_OF_THE_MOMENT = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE)
_TWICE = "An object was written twice, and the second write was not refused"
_LINK = "A file was to get a second name (a hard link), as each commit does, and the file system refused: {why}"
_CREATE = "An object was to be written only if it is absent, as each commit is, and the store refused: {why}"
_UNLISTED = "An object was written, and the list of its folder does not have it"
_MOUNT = (
    "Use a folder of a file system with hard links; of a mounted object store (s3fs, gcsfuse, /dbfs, /Volumes), the "
    "store's own address, such as s3a://bucket/prefix."
)
_STORE = (
    "Use a store with conditional puts, or a release of it that has them; for S3 without them there is delta-rs's "
    "locking by DynamoDB (docs/stores.md)."
)


_FOLDER_WENT = (FileNotFoundError, FileExistsError)
"""Another start has removed the probes' folder before a file was put there, or while it was made (`Path.mkdir`)."""


def prove_puts_once(uri: str, store: Store) -> None:
    """Leaves nothing at `uri`, but for its folder. Raises StoreUnfit; OSError where that cannot be told."""
    try:
        for attempt in range(_TRIES):
            time.sleep(attempt * _PAUSE_SEC)
            try:
                if (fault := _fault(uri, store)) is None:
                    return
            except _FOLDER_WENT:
                if attempt == _TRIES - 1:
                    raise
    finally:
        # Not each who may write may delete.
        with contextlib.suppress(OSError):
            _remove(uri, store)
    raise _unfit(uri, fault or _UNLISTED)


def _fault(uri: str, store: Store) -> str | None:
    try:
        put_once(uri, store, PROBES, _NAME, b"probe")
        if put_once(uri, store, PROBES, _NAME, b"again"):
            return _TWICE
    except _FOLDER_WENT:
        raise
    except OSError as e:
        if e.filename2 is not None and e.errno not in _OF_THE_MOMENT:  # only a link has two names
            raise _unfit(uri, _LINK.format(why=e.strerror)) from e
        if local_path(uri) is None and _is_unknown(e):
            raise _unfit(uri, _CREATE.format(why=in_words(e).split("\n", 1)[0])) from e
        raise
    return None if _NAME in names_in(join(uri, PROBES), store) else _UNLISTED


def _unfit(uri: str, detail: str) -> StoreUnfit:
    return StoreUnfit(path=uri, detail=detail, remedy=_STORE if local_path(uri) is None else _MOUNT)


def _is_unknown(error: OSError) -> bool:
    """Does the store not know what it was asked, rather than fail at it?"""
    text = str(error).lower()
    return any(word in text for word in ("501", "notimplemented", "not implemented", "not supported"))


def _remove(uri: str, store: Store) -> None:
    folder = local_path(join(uri, PROBES))
    if folder is None:
        store.delete(join(uri, PROBES), _NAME)
        return
    for path in folder.iterdir():
        if path.name == _NAME or path.name.endswith(".tmp"):
            path.unlink(missing_ok=True)
    folder.rmdir()
