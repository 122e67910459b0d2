"""A source file's bytes, on this machine or in an object store, for the task that reads it."""

from __future__ import annotations

import re
from collections.abc import Mapping

import obstore
import pyarrow as pa
from obstore.exceptions import BaseError

from distributary.config import Pipeline
from distributary.errors import ConfigError, SourceDown
from distributary.tables.object_stores import ObjectStore, SettingsRefused, first_line, object_store
from distributary.tables.store import engine_uri, local_path

Options = Mapping[str, str]
"""Settings and credentials as delta-rs names them (`tables.storage_options`); none for local folders."""

_SUFFIX = re.compile(r"(\.(avro|jsonl?|parquet))?(\.gz)?$")


def source_options(config: Pipeline) -> Options:
    """Settings and credentials of the store that holds the files."""
    options = config.change_files.storage_options or config.tables.storage_options
    return {key: value.get_secret_value() for key, value in options.items()}


def open_body(path: str, options: Options) -> pa.Buffer:
    """The file's bytes.

    Raises FileNotFoundError for a file that is gone, OSError for a local one that cannot be read, SourceDown when the
    store does not answer or refuses.
    """
    local = local_path(path)
    if local is not None:
        # Not mapped: a file that is cut while it is mapped kills the process that reads it.
        return pa.py_buffer(local.read_bytes())
    store, key = source_store(path, options)
    try:
        return pa.py_buffer(obstore.get(store, key).bytes())
    except (BaseError, FileNotFoundError) as e:
        raise translated(e, path) from e


def open_head(path: str, options: Options, size: int) -> pa.Buffer:
    """The file's first `size` bytes; all of one that is no longer. Raises as `open_body`."""
    local = local_path(path)
    if local is not None:
        with local.open("rb") as file:
            return pa.py_buffer(file.read(size))
    store, key = source_store(path, options)
    try:
        return pa.py_buffer(obstore.get_range(store, key, start=0, length=size))
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


def source_store(uri: str, options: Options) -> tuple[ObjectStore, str]:
    """The bucket's client, and the rest of `uri` as its key. Raises ConfigError: an address or option without sense."""
    scheme = engine_uri(uri).split("://", 1)[0]
    if scheme not in ("s3", "gs"):
        detail = f"{scheme}:// cannot be read; allowed: a folder, gs://, s3:// or s3a://"
        raise ConfigError(file="the pipeline", key="source.path", detail=detail)
    try:
        return object_store(uri, options)
    except SettingsRefused as e:
        raise ConfigError(file="the pipeline", key="source.storage_options", detail=str(e)) from e


def translated(error: Exception, path: str) -> Exception:
    """An error of the store's client in our words."""
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(f"{path}: {first_line(error)}")
    return SourceDown(source=path, detail=first_line(error))
