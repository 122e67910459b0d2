"""What the keys that describe tables (`describing`) need of the rest of a pipeline file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from distributary.config.base import fault, is_given
from distributary.config.describing import Describing

if TYPE_CHECKING:
    from distributary.config.pipeline import Pipeline

PLACING = ("partition_by", "cluster_by")
"""Keys that say where a table's rows lie."""
BY_CATALOG = {"delta.feature.catalogManaged", "delta.feature.catalogOwned-preview"}
"""Features of tables whose commits a catalog keeps."""
WORDS = ("comment", "column_comments", "patterns")


def check_described(config: Pipeline) -> None:
    """Raises ValueError for what a table cannot be given."""
    _check_written_at(config)
    layout = config.layout
    if config.shared_table is not None or config.is_declarative:
        for place, layer in _layers(config):
            for key in (*WORDS, *PLACING):
                if key in type(layer).model_fields and is_given(layer, key):
                    raise fault(f"{place}.{key}", f"not allowed with layout {layout}: give layout fanout or two_hop")
            if layer is not config.tables and is_given(layer, "properties"):
                detail = f"not allowed with layout {layout}, whose tables have those of tables.properties"
                raise fault(f"{place}.properties", detail)
    for place, layer in _layers(config):
        if not config.is_declarative and not config.tables.managed:
            _check_properties(f"{place}.properties", layer)
        for key in PLACING:
            _check_placing(config, f"{place}.{key}", getattr(layer, key))
    for place, route in _routes(config):
        described = config.tables.described(route)
        if described.partition_by and described.cluster_by:
            raise fault(f"{place}.cluster_by", "Delta clusters a table or partitions it: give one of the two")
        if (described.partition_by or described.cluster_by) and config.tables.for_route(route)[0] == "task":
            detail = "a partitioned or clustered table is written by Spark: give engine auto or spark"
            raise fault("tables.engine" if place == "tables" else f"{place}.engine", detail)


def _check_written_at(config: Pipeline) -> None:
    tables = config.tables
    if not tables.written_at:
        return
    if config.holds_changes or config.envelope.is_debezium or tables.has_keys or config.is_declarative:
        raise fault("tables.written_at", "allowed with messages without keys, and not with layout declarative")
    if not tables.origin:
        raise fault("tables.written_at", "the time is a field of _origin: it needs tables.origin true")
    for route in (None, *tables.routes):
        rules = tables.evolution if route is None else tables.for_route(route)[1]
        if rules.new_column != "add":
            detail = "a table that is there gets the time as a new field: it needs evolution.new_column add"
            raise fault("tables.written_at", detail)


def _check_properties(key: str, layer: Describing) -> None:
    if own_keys := sorted(layer.properties.keys() & BY_CATALOG):
        detail = "is for managed tables of Unity Catalog, written by name only: give tables.managed (docs/unity.md)"
        raise fault(key, f"{own_keys[0]} {detail}: leave it out")


def _check_placing(config: Pipeline, key: str, columns: list[str] | None) -> None:
    if not columns:
        return
    if len({name.lower() for name in columns}) < len(columns):
        raise fault(key, "a column stands there twice")
    if config.holds_changes or config.envelope.is_debezium or config.tables.has_keys:
        raise fault(key, "not allowed with change events or keys: a merge finds its rows by the bounds of its files")


def _layers(config: Pipeline) -> Iterator[tuple[str, Describing]]:
    tables = config.tables
    yield "tables", tables
    yield from ((f"tables.patterns.{number}", pattern) for number, pattern in enumerate(tables.patterns))
    yield from ((f"tables.routes.{route}", layer) for route, layer in tables.routes.items())


def _routes(config: Pipeline) -> Iterator[tuple[str, str]]:
    """One route for each way in which tables can be described; a pattern stands for a route that it takes."""
    yield "tables", ""
    yield from ((f"tables.patterns.{n}", p.routes[0]) for n, p in enumerate(config.tables.patterns))
    yield from ((f"tables.routes.{route}", route) for route in config.tables.routes)
