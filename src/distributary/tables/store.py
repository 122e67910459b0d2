"""Where bytes go: local folders and object stores behind one value that ships to tasks."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake.fs import DeltaStorageHandler

from distributary.config import Tables, Unity
from distributary.tables.edge import edge
from distributary.tables.unity import UnityCatalog
from distributary.tables.vault import Vault, vault_of


@dataclass(frozen=True)
class Store:
    """`options` are delta-rs storage options (credentials, endpoint); empty for local folders. `vault`: credentials
    that end, and are asked anew. Pickled, they are those of this moment. `named`: what tasks must know of tables by
    name (`spark_names.NamedFacts`; None: there is none yet; a text: why not), by their addresses."""

    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    vault: Vault | None = field(default=None, repr=False, compare=False)
    named: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, tables: Tables) -> Store:
        """The store of a pipeline's tables."""
        options = {k: v.get_secret_value() for k, v in tables.storage_options.items()}
        if tables.unity is None:
            return cls(options)
        return cls(
            options, vault_of(catalog_of(tables.unity), tuple((engine_uri(uri), use) for uri, use in tables.places))
        )

    def at(self, uri: str) -> dict[str, str]:
        """The settings for `uri`, as delta-rs names them. Raises CatalogDown (an OSError)."""
        if self.vault is None or local_path(uri) is not None:
            return dict(self.options)
        return {**self.options, **self.vault.options(engine_uri(uri))}

    def ask_anew(self) -> None:
        """Something failed, and it may be for the credentials: none that are kept are used again, where others can be
        had."""
        if self.vault is not None:
            self.vault.doubt()

    def put(self, folder: str, name: str, body: pa.Buffer | bytes) -> None:
        """Write one new object. Raises OSError (also for what an object store refuses)."""
        local = local_path(folder)
        if local is not None:
            try:
                _write(local / name, body)
            except FileNotFoundError:
                local.mkdir(parents=True, exist_ok=True)
                _write(local / name, body)
            return
        # deltalake 1.6.6 takes `bytes` only, and pyarrow passes them on only out of a buffer of its own.
        with filesystem(folder, self).open_output_stream(name, buffer_size=len(body) + 1) as stream:
            stream.write(body)

    def put_whole(self, folder: str, name: str, body: bytes) -> None:
        """As `put`, and a reader sees the whole object or none, also when this process dies half-way."""
        local = local_path(folder)
        if local is None:
            self.put(folder, name, body)
            return
        # Two streams of a pipeline may write the same file at once.
        draft = f".{name}.{uuid.uuid4().hex}.tmp"
        try:
            self.put(folder, draft, body)
            (local / draft).replace(local / name)
        except BaseException:
            with contextlib.suppress(OSError):
                (local / draft).unlink(missing_ok=True)
            raise

    def get(self, folder: str, name: str) -> bytes | None:
        """The object's bytes, None where there is none. Raises OSError."""
        local = local_path(folder)
        try:
            if local is not None:
                return (local / name).read_bytes()
            with filesystem(folder, self).open_input_file(name) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def open(self, folder: str, name: str) -> pa.NativeFile:
        """The object for reading, at any place. Raises OSError."""
        local = local_path(folder)
        if local is not None:
            return pa.memory_map(os.fspath(local / name))
        return filesystem(folder, self).open_input_file(name)

    def delete(self, folder: str, name: str) -> None:
        """Remove the object; nothing happens where there is none. Raises OSError."""
        local = local_path(folder)
        if local is not None:
            (local / name).unlink(missing_ok=True)
            return
        with contextlib.suppress(FileNotFoundError):
            filesystem(folder, self).delete_file(name)


def _write(path: Path, body: pa.Buffer | bytes) -> None:
    with open(path, "wb") as file:
        file.write(body)


def catalog_of(unity: Unity) -> UnityCatalog:
    return UnityCatalog(unity.url, None if unity.token is None else unity.token.get_secret_value())


@edge()
def filesystem(uri: str, store: Store) -> pafs.FileSystem:
    """The folder at `uri`; names in it are relative to it."""
    local = local_path(uri)
    if local is not None:
        return pafs.SubTreeFileSystem(str(local.absolute()), pafs.LocalFileSystem())
    return pafs.PyFileSystem(DeltaStorageHandler(engine_uri(uri), store.at(uri)))


@lru_cache(4096)
def local_path(uri: str) -> Path | None:
    """The folder on this machine, or None for an object store."""
    if uri.startswith("file:"):
        return Path("/" + uri.removeprefix("file:").lstrip("/"))
    return None if "://" in uri else Path(uri)


def engine_uri(uri: str) -> str:
    """The address as delta-rs and object_store spell it: `s3a://` is Hadoop's word for `s3://`."""
    local = local_path(uri)
    if local is not None:
        return os.fspath(local)
    return "s3://" + uri.removeprefix("s3a://") if uri.startswith("s3a://") else uri


def join(root: str, *parts: str) -> str:
    return "/".join([root.rstrip("/"), *parts])
