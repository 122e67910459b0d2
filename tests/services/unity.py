"""Unity Catalog's open-source server and its connector for Spark, out of a clone in which they were built.

Neither could be had from Maven (30 November 2026). In a clone of unitycatalog/unitycatalog, with sbt:

    sbt -DsparkVersion=4.2.0 -DdeltaVersion=4.4.0 server/package client/package hadoop/package spark/package

The server runs without authorization, its books in memory. It listens on all interfaces: for runs by hand.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.processes import SERVICE_JAVA
from tests.services import Server, ServiceMissing, free_ports

BUILD = "DISTRIBUTARY_UNITY_BUILD"
"""Environment variable: the clone."""
API = "/api/2.1/unity-catalog"
_SERVER_SETTINGS = "server.env=dev\nserver.authorization=disable\nserver.managed-table.enabled=true\n"
_BOOKS = """hibernate.connection.driver_class=org.h2.Driver
hibernate.connection.url=jdbc:h2:mem:books;DB_CLOSE_DELAY=-1
hibernate.hbm2ddl.auto=update
hibernate.show_sql=false
hibernate.archive.autodetection=class
"""


class Unity(Server):
    """A server with one catalog, `main`, whose managed tables lie below `folder`."""

    name = "unity"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._build = _build()
        (self._port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self._port}"
        conf = folder / "etc" / "conf"
        conf.mkdir(parents=True, exist_ok=True)
        (conf / "server.properties").write_text(_SERVER_SETTINGS)
        (conf / "hibernate.properties").write_text(_BOOKS)

    def command(self) -> list[str]:
        classes = (self._build / "server" / "target" / "classpath").read_text().strip()
        main = "io.unitycatalog.server.UnityCatalogServer"
        return [self.java, *SERVICE_JAVA, "-cp", classes, main, "--port", str(self._port)]

    def start(self) -> Unity:
        super().start()
        managed = self.folder / "managed"
        managed.mkdir(exist_ok=True)
        self.request("POST", "/catalogs", {"name": "main", "storage_root": managed.as_uri()})
        return self

    def is_ready(self) -> bool:
        return "catalogs" in self.request("GET", "/catalogs")

    def request(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """Raises OSError with what the server says."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}{API}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as e:
            raise OSError(f"{e.code}: {e.read().decode()[:500]}") from e

    def spark(self) -> dict[str, str]:
        """Settings of a Spark that knows the catalog."""
        catalog = "spark.sql.catalog.main"
        return {
            "spark.jars": ",".join(map(str, _connector(self._build))),
            catalog: "io.unitycatalog.spark.UCSingleCatalog",
            f"{catalog}.uri": self.url,
            f"{catalog}.token": "",
        }


def _build() -> Path:
    """Raises ServiceMissing."""
    if not (folder := os.environ.get(BUILD)):
        raise ServiceMissing("unity", f"{BUILD} names no clone with a built server", "See tests/services/unity.py")
    return Path(folder)


def _connector(build: Path) -> list[Path]:
    """The jars of the connector: its own, and the client's and Hadoop's parts."""
    places = ("connectors/spark/target", "connectors/hadoop/target", "target/clients/java/target")
    jars = (jar for place in places for jar in sorted((build / place).rglob("unitycatalog-*.jar")))
    return [jar for jar in jars if not jar.name.endswith(("-tests.jar", "-sources.jar", "-javadoc.jar"))]
