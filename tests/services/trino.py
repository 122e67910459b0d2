"""Trino 476, which reads Delta tables of a folder through a metastore of files.

Only what that needs is unpacked. Needs a Java 24 or later, other than Spark.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.processes import QUICK, SERIAL
from tests.services import Server, ServiceMissing, free_ports, maven

ARCHIVE = "io.trino:trino-server:476:tar.gz"
PARTS = ("/lib/", "/plugin/delta-lake/")
JAVA = 24
CATALOG = """connector.name=delta_lake
hive.metastore=file
hive.metastore.catalog.dir=local:///metastore
fs.native-local.enabled=true
local.location={lake}
delta.register-table-procedure.enabled=true
"""
SETTINGS = """coordinator=true
node-scheduler.include-coordinator=true
http-server.http.port={port}
discovery.uri=http://127.0.0.1:{port}
"""


class QueryFailed(Exception):
    """What Trino said to a query."""


class Trino(Server):
    """A server whose catalog `delta` sees the folder `lake` as `local:///`, and keeps its metastore in there."""

    name = "trino"
    on_java = False
    start_timeout_sec = 400

    def __init__(self, folder: Path, lake: Path) -> None:
        super().__init__(folder)
        self.java = _java()
        (self._home,) = maven.archive(self.name, ARCHIVE, only=PARTS, keep=False).iterdir()
        (self._port,) = free_ports(1)
        catalogs = folder / "etc" / "catalog"
        catalogs.mkdir(parents=True, exist_ok=True)
        (catalogs / "delta.properties").write_text(CATALOG.format(lake=lake))
        self._settings = folder / "etc" / "config.properties"
        self._settings.write_text(SETTINGS.format(port=self._port))

    def command(self) -> list[str]:
        settings = {
            "config": self._settings,
            "catalog.config-dir": self._settings.parent / "catalog",
            "plugin.dir": self._home / "plugin",
            "node.environment": "test",
            "node.data-dir": self.folder / "data",
            "node.bind-ip": "127.0.0.1",
            "node.internal-address": "127.0.0.1",
            "jdk.attach.allowAttachSelf": "true",
        }
        properties = [f"-D{name}={value}" for name, value in settings.items()]
        flags = ["-Xmx1g", SERIAL, QUICK, "--add-modules=jdk.incubator.vector", "--enable-native-access=ALL-UNNAMED"]
        return [self.java, *flags, *properties, "-cp", f"{self._home}/lib/*", "io.trino.server.TrinoServer"]

    def is_ready(self) -> bool:
        return "SERVER STARTED" in self.log.read_text(errors="replace") and self.rows("SELECT 1") == [[1]]

    def register(self, name: str, location: str) -> None:
        """Enter a table, at a path below the lake, as `delta.lake.NAME`. Raises QueryFailed."""
        self.rows("CREATE SCHEMA IF NOT EXISTS delta.lake WITH (location = 'local:///metastore/lake')")
        self.rows(f"CALL delta.system.register_table('lake', '{name}', 'local:///{location}')")

    def rows(self, query: str) -> list[list[Any]]:
        """Raises QueryFailed."""
        return [row for page in self._pages(query) for row in page.get("data", [])]

    def _pages(self, query: str) -> Iterator[dict[str, Any]]:
        url: str | None = f"http://127.0.0.1:{self._port}/v1/statement"
        body: bytes | None = query.encode()
        while url is not None:
            request = urllib.request.Request(
                url, data=body, headers={"X-Trino-User": "test", "X-Trino-Time-Zone": "UTC"}
            )
            with urllib.request.urlopen(request, timeout=120) as answer:
                page = json.load(answer)
            if "error" in page:
                raise QueryFailed(" ".join(page["error"]["message"].split()))
            yield page
            url, body = page.get("nextUri"), None


def _java() -> str:
    """Raises ServiceMissing."""
    homes = [Path(os.environ["TRINO_JAVA"])] if "TRINO_JAVA" in os.environ else sorted(Path("/usr/lib/jvm").glob("*"))
    for home in homes:
        release = home / "release"
        found = re.search(r'JAVA_VERSION="(\d+)', release.read_text()) if release.is_file() else None
        if found is not None and int(found[1]) >= JAVA and shutil.which(str(home / "bin" / "java")):
            return str(home / "bin" / "java")
    raise ServiceMissing("trino", f"no Java {JAVA} or later", "Install one, and name its home in TRINO_JAVA")
