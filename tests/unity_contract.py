"""What Unity Catalog must answer, whichever it is: the stand-in of the tests, or the open-source server itself."""

from __future__ import annotations

import json
import time
import urllib.request
import uuid
from dataclasses import dataclass
from typing import Any

import pytest

from distributary.tables.unity import CatalogDown, UnityCatalog, Vended

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
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"}
        address = f"{self.url}/api/2.1/unity-catalog{path}"
        request = urllib.request.Request(address, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=10) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found


def check_all(stage: Stage) -> None:
    check_a_folder_gets_credentials(stage)
    check_a_table_gets_credentials_by_its_name(stage)
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


def check_what_is_not_there_is_said(stage: Stage) -> None:
    with pytest.raises(CatalogDown, match=r"answers 4\d\d: .*s3://nobody-s-bucket/x"):
        stage.catalog.path_credentials("s3://nobody-s-bucket/x", "PATH_READ_WRITE")
    with pytest.raises(CatalogDown, match="does not answer"):
        UnityCatalog("http://127.0.0.1:9", stage.token).path_credentials(stage.place, "PATH_READ")


def _good(vended: Vended) -> None:
    assert set(vended.options) == KEYS and all(vended.options.values())
    assert vended.ends is None or vended.ends > time.time()
