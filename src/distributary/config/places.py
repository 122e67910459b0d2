"""Where a pipeline reads and writes: schemes that somebody has a client for, and folders that lie in no other."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from distributary.config.base import fault

if TYPE_CHECKING:
    from distributary.config.pipeline import Pipeline

SCHEMES = ("s3a", "s3", "gs", "abfss", "abfs", "az", "azure", "adl", "wasbs", "wasb", "hdfs", "viewfs", "dbfs", "file")
"""Stores that delta-rs, Spark or both have a client for. Others need Hadoop's, which spark.conf names."""
BY_NAME = "catalog://"
"""Begins the address of a table that a catalog keeps (`tables.managed`): `catalog://main.silver/chess`."""
_OLDER = {"s3n": "s3a"}


def check_places(config: Pipeline) -> None:
    """Raises ValueError, which names the key, what was read and what is allowed."""
    for key, address in _places(config):
        if key == "tables.root" and config.tables.managed:
            continue
        _check_scheme(key, address, config)
    root = config.tables.root
    for key, place in (("state", config.state), ("checkpoint", config.checkpoint)):
        if place is not None and spelled(place) == spelled(root):
            raise fault(key, f"allowed: a folder of its own; {place!r} is tables.root, where a route's table may be")
    if (read := _read_as_a_whole(config)) is not None and f"{spelled(root)}/".startswith(f"{spelled(read[1])}/"):
        detail = f"{root!r} lies in {read[0]} ({read[1]!r}), which would be read and cleaned up with the tables in it"
        raise fault("tables.root", f"allowed: a folder outside of it; {detail}")


def _places(config: Pipeline) -> Iterator[tuple[str, str]]:
    places: tuple[tuple[str, str | None], ...] = (
        ("tables.root", config.tables.root),
        ("source.path", getattr(config.source, "path", None)),
        ("state", config.state),
        ("checkpoint", config.checkpoint),
        ("bronze.path", config.bronze.path),
    )
    yield from ((key, place) for key, place in places if place)


def _check_scheme(key: str, place: str, config: Pipeline) -> None:
    scheme, separator, _ = place.partition("://")
    if not separator or scheme in SCHEMES or place.startswith("${"):
        return
    if any(f"fs.{scheme}." in setting for setting in config.spark.conf):
        return
    near = _OLDER.get(scheme) or next(iter(difflib.get_close_matches(scheme.lower(), SCHEMES, n=1)), None)
    hint = f" (did you mean {near}://?)" if near else ""
    allowed = ", ".join(f"{name}://" for name in ("s3a", "gs", "abfss", "az", "hdfs", "file"))
    raise fault(key, f"no store is known by {scheme}://{hint}; allowed: a folder, or {allowed}; this is {place!r}")


def _read_as_a_whole(config: Pipeline) -> tuple[str, str] | None:
    """Key and folder of what is read, where all that lies in it counts."""
    if config.source.address is not None:
        return "source.path", config.source.address
    if config.holds_changes and config.change_files.stray_files == "read":
        return "source.path", config.change_files.path
    return None


def spelled(place: str) -> str:
    """One spelling of one place."""
    text = place.removeprefix("file://").removeprefix("file:").rstrip("/")
    return f"s3{text[3:]}" if text.startswith("s3a:") else text
