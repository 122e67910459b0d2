"""What Unity Catalog must answer, whichever it is: the stand-in of the tests, or the open-source server itself."""

from __future__ import annotations

import json
import time
import urllib.request
import uuid
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from distributary.tables.unity import CatalogDown, UnityCatalog, Vended
from distributary.tables.unity_names import UnitySchema

COLUMNS = pa.schema(
    [
        ("player", pa.string()),
        ("score", pa.int64()),
        ("level", pa.int32()),
        ("price", pa.decimal128(10, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("won", pa.bool_()),
        ("items", pa.list_(pa.struct([("id", pa.int32()), ("share", pa.float64())]))),
        ("tags", pa.map_(pa.string(), pa.binary())),
    ]
)
TEXTS = [
    ("player", "STRING", "string"),
    ("score", "LONG", "bigint"),
    ("level", "INT", "int"),
    ("price", "DECIMAL", "decimal(10,2)"),
    ("at", "TIMESTAMP", "timestamp"),
    ("won", "BOOLEAN", "boolean"),
    ("items", "ARRAY", "array<struct<id:int,share:double>>"),
    ("tags", "MAP", "map<string,binary>"),
]
"""Name, `type_name`, `type_text` of the columns."""
KEYS = {"aws_access_key_id", "aws_secret_access_key", "aws_session_token"}


@dataclass(frozen=True)
class Stage:
    """A catalog, and an address that it may give credentials for."""

    url: str
    token: str | None
    place: str

    @property
    def catalog(self) -> UnityCatalog:
        return UnityCatalog(self.url, self.token)

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        """By hand, not by the code that is tried."""
        return self._asked(path, json.dumps(body).encode())

    def get(self, path: str) -> dict[str, Any]:
        return self._asked(path, None)

    def _asked(self, path: str, body: bytes | None) -> dict[str, Any]:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"}
        address = f"{self.url}/api/2.1/unity-catalog{path}"
        request = urllib.request.Request(address, body, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found


def check_all(stage: Stage) -> None:
    check_a_folder_gets_credentials(stage)
    check_a_table_gets_credentials_by_its_name(stage)
    check_tables_get_names_once_and_nobody_elses_name_is_touched(stage)
    check_what_is_not_there_is_said(stage)


def check_a_folder_gets_credentials(stage: Stage) -> None:
    for place in (stage.place, f"{stage.place}/_distributary/games"):
        for operation in ("PATH_READ", "PATH_READ_WRITE"):
            _good(stage.catalog.path_credentials(place, operation))
    with_api = UnityCatalog(f"{stage.url}/api/2.1/unity-catalog/", stage.token)
    _good(with_api.path_credentials(stage.place, "PATH_READ"))


def check_a_table_gets_credentials_by_its_name(stage: Stage) -> None:
    name = f"c{uuid.uuid4().hex[:8]}"
    stage.post("/catalogs", name=name)
    stage.post("/schemas", name="silver", catalog_name=name)
    about = {"table_type": "EXTERNAL", "data_source_format": "DELTA", "columns": []}
    where = f"{stage.place}/{name}/chess"
    stage.post("/tables", name="chess", catalog_name=name, schema_name="silver", storage_location=where, **about)
    _good(stage.catalog.table_credentials(f"{name}.silver.chess", "READ"))
    _good(stage.catalog.table_credentials(f"{name}.silver.chess", "READ_WRITE"))
    with pytest.raises(CatalogDown, match="404"):
        stage.catalog.table_credentials(f"{name}.silver.go", "READ")


def check_tables_get_names_once_and_nobody_elses_name_is_touched(stage: Stage) -> None:
    schema = UnitySchema(stage.catalog, f"c{uuid.uuid4().hex[:8]}.silver")
    for _ in range(2):
        schema.make()
    place = f"{stage.place}/{schema.name}"
    spelled_as_hadoop_does = place.replace("s3:", "s3a:")
    for _ in range(2):
        schema.enter("chess", f"{spelled_as_hadoop_does}/chess", COLUMNS)
    about = stage.get(f"/tables/{schema.name}.chess")
    assert (about["table_type"], about["data_source_format"]) == ("EXTERNAL", "DELTA")
    assert about["storage_location"] == f"{place}/chess"
    assert [(c["name"], c["type_name"], c["type_text"]) for c in about["columns"]] == TEXTS
    assert schema.why_another("chess", f"{place}/chess") is None
    schema.enter("chess", f"{place}/another", COLUMNS)
    assert stage.get(f"/tables/{schema.name}.chess")["storage_location"] == f"{place}/chess"
    assert schema.leave("chess", f"{place}/another") == f"it is the table at {place}/chess"
    assert schema.has("chess")
    assert schema.leave("chess", f"{spelled_as_hadoop_does}/chess") is None
    assert not schema.has("chess") and schema.leave("chess", f"{place}/chess") is None


def check_what_is_not_there_is_said(stage: Stage) -> None:
    with pytest.raises(CatalogDown, match=r"answers 4\d\d: .*s3://nobody-s-bucket/x"):
        stage.catalog.path_credentials("s3://nobody-s-bucket/x", "PATH_READ_WRITE")
    with pytest.raises(CatalogDown, match="does not answer"):
        UnityCatalog("http://127.0.0.1:9", stage.token).path_credentials(stage.place, "PATH_READ")


def _good(vended: Vended) -> None:
    assert set(vended.options) == KEYS and all(vended.options.values())
    assert vended.ends is None or vended.ends > time.time()
