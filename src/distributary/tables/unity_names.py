"""Tables by name in Unity Catalog, by its REST API: external tables, for a Spark that does not know the catalog.

A catalog and a schema are made where they are not there. The columns are those that a table has when it is entered:
readers of Delta take them from its log.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from distributary.names import shown
from distributary.tables.snapshot import delta_schema
from distributary.tables.store import engine_uri
from distributary.tables.unity import CatalogDown, UnityCatalog

log = logging.getLogger("distributary")

_NAMES = {
    "boolean": "BOOLEAN",
    "byte": "BYTE",
    "short": "SHORT",
    "integer": "INT",
    "long": "LONG",
    "float": "FLOAT",
    "double": "DOUBLE",
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "timestamp_ntz": "TIMESTAMP_NTZ",
    "string": "STRING",
    "binary": "BINARY",
}
"""Delta's primitive types -> `ColumnTypeName` of the API."""
_SQL = {"integer": "int", "long": "bigint", "byte": "tinyint", "short": "smallint"}
"""... -> their names in SQL, where these differ."""


@dataclass(frozen=True)
class UnitySchema:
    """`name`: `main.silver`."""

    catalog: UnityCatalog
    name: str

    def make(self) -> None:
        """Make the catalog and the schema, where they are not there. Raises CatalogDown."""
        parent, _, name = self.name.partition(".")
        if self._about(f"/schemas/{self.name}") is not None:
            return
        if self._about(f"/catalogs/{parent}") is None:
            self._create("/catalogs", parent, {"name": parent})
        self._create("/schemas", self.name, {"name": name, "catalog_name": parent})

    def enter(self, name: str, location: str, columns: pa.Schema) -> None:
        """Make the table at `location` known by `name`. A name that stands for something else is told of, and stays.

        Raises CatalogDown: it does not answer, or does not let us.
        """
        parent, _, schema = self.name.partition(".")
        place = engine_uri(location)
        about = {"catalog_name": parent, "schema_name": schema, "name": name, "storage_location": place}
        about |= {"table_type": "EXTERNAL", "data_source_format": "DELTA"}
        if not self._create("/tables", f"{self.name}.{name}", {**about, "columns": column_infos(columns)}):
            self.why_another(name, location, tell=True)

    def leave(self, name: str, location: str) -> str | None:
        """Take a name out of the catalog; files are left alone. Returns why it stays, as it stands for something else.
        Raises CatalogDown."""
        if (why := self.why_another(name, location)) is not None:
            return why
        self.catalog.call("DELETE", f"/tables/{self.name}.{name}", name, absent=True)
        return None

    def has(self, name: str) -> bool:
        """Raises CatalogDown."""
        return self._about(f"/tables/{self.name}.{name}") is not None

    def why_another(self, name: str, location: str, *, tell: bool = False) -> str | None:
        """What else than the table at `location` the name stands for, in words. Raises CatalogDown."""
        about = self._about(f"/tables/{self.name}.{name}")
        place = str((about or {}).get("storage_location") or "").rstrip("/")
        if about is None or place.removeprefix("file://") == engine_uri(location).rstrip("/"):
            return None
        why = f"it is the table at {shown(place)}" if place else "it is no table of files"
        if tell:
            log.warning("%s.%s stays as it is in the catalog: %s", self.name, shown(name), why)
        return why

    def _about(self, path: str) -> dict[str, Any] | None:
        return self.catalog.call("GET", path, path, absent=True)

    def _create(self, path: str, what: str, body: Mapping[str, Any]) -> bool:
        """False where it is there already."""
        try:
            self.catalog.call("POST", path, what, body)
        except CatalogDown as e:
            # Databricks says 400 with a code of its own, the open-source server 409 or 400.
            if "ALREADY_EXISTS" in str(e) or e.status == 409:
                return False
            raise
        return True


def column_infos(columns: pa.Schema) -> list[dict[str, Any]]:
    """Columns as the API has them (`ColumnInfo`)."""
    fields = json.loads(delta_schema(columns).to_json())["fields"]
    return [_info(position, field["name"], field["type"]) for position, field in enumerate(fields)]


def _info(position: int, column: str, kind: Any) -> dict[str, Any]:
    """`kind`: as Delta's log has it: a word, or a mapping."""
    decimal = isinstance(kind, str) and kind.startswith("decimal")
    name = "DECIMAL" if decimal else _NAMES[kind] if isinstance(kind, str) else str(kind["type"]).upper()
    about = {"name": column, "position": position, "nullable": True, "type_name": name, "type_text": _text(kind)}
    about["type_json"] = json.dumps({"name": column, "type": kind, "nullable": True, "metadata": {}})
    if decimal:
        precision, scale = str(kind)[len("decimal(") : -1].split(",")
        about |= {"type_precision": int(precision), "type_scale": int(scale)}
    return about


def _text(kind: Any) -> str:
    """A type of Delta's as Spark SQL spells it (`simpleString`)."""
    if isinstance(kind, str):
        return _SQL.get(kind, kind)
    if kind["type"] == "struct":
        fields = ",".join(f"{field['name']}:{_text(field['type'])}" for field in kind["fields"])
        return f"struct<{fields}>"
    if kind["type"] == "array":
        return f"array<{_text(kind['elementType'])}>"
    return f"map<{_text(kind['keyType'])},{_text(kind['valueType'])}>"
