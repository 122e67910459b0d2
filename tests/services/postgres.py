"""A PostgreSQL server with logical decoding by wal2json, from the distribution's packages."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from tests.services import Server, ServiceFailed, ServiceMissing, free_ports


class Postgres(Server):
    """Open to everybody on loopback. Its data are in a folder of their own: the server refuses to run as root, and
    its user could not enter pytest's folders. They are removed at the end of a `with`."""

    name = "postgres"
    on_java = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._bin = _binaries()
        (self._port,) = free_ports(1)
        self._databases = 0
        self._home = tempfile.TemporaryDirectory(prefix="postgres-", ignore_cleanup_errors=True)
        if os.geteuid() == 0:
            shutil.chown(self._home.name, "postgres", "postgres")
        self._make()

    def command(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self._port),
            "unix_socket_directories": self._home.name,
            "wal_level": "logical",
            "fsync": "off",
            "shared_buffers": "32MB",
            "max_connections": "20",
            "max_replication_slots": "20",
        }
        if self._has_list_of_plugins():
            settings["output_plugin_libraries"] = "pgoutput,wal2json"
        options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        return [*self._server(), *options]

    def is_ready(self) -> bool:
        try:
            psycopg.connect(self.url("postgres"), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self) -> None:
        # SIGTERM would wait until every client has gone.
        self._end(signal.SIGINT)

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._home.cleanup()

    def url(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self._port}/{database}"

    @contextmanager
    def database(self) -> Iterator[str]:
        """An empty database with a name of its own, dropped afterwards with its slots."""
        self._databases += 1
        name = f"db_{self._databases}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"create database {name}")
        try:
            yield name
        finally:
            with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
                slots = "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = %s"
                connection.execute(slots, [name])
                connection.execute(f"drop database {name} with (force)")

    def _server(self) -> list[str]:
        return [*_as_postgres(), str(self._bin / "postgres"), "-D", f"{self._home.name}/data"]

    def _has_list_of_plugins(self) -> bool:
        """Whether this version loads only the output plugins that are listed (newer minor versions do)."""
        asked = [*self._server(), "-C", "output_plugin_libraries"]
        return subprocess.run(asked, cwd="/", capture_output=True, check=False).returncode == 0

    def _make(self) -> None:
        options = ["-U", "postgres", "--auth=trust", "--no-sync", "-E", "UTF8", "--locale=C.UTF-8"]
        command = [*_as_postgres(), str(self._bin / "initdb"), "-D", f"{self._home.name}/data", *options]
        done = subprocess.run(command, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ServiceFailed(f"postgres: its data folder could not be made:\n{done.stdout}{done.stderr}")


def _binaries() -> Path:
    """The folder of the newest version that has the plugin."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: float(path.parts[-3]))
    for server in reversed(versions):
        if (server.parent.parent / "lib" / "wal2json.so").exists():
            return server.parent
    remedy = "Install it (apt: postgresql-15 postgresql-15-wal2json, or another version's)"
    raise ServiceMissing("postgres", "no PostgreSQL with wal2json in /usr/lib/postgresql", remedy)


def _as_postgres() -> list[str]:
    if os.geteuid():
        return []
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]
