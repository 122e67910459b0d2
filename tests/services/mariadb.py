"""A MariaDB server with a row binlog, from the distribution's mariadb-server (the MySQL of these tests)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pymysql

from tests.services import Server, ServiceFailed, ServiceMissing, free_ports

_USER = "cdc"


class MariaDb(Server):
    """Open to its own user, and to no other, on loopback."""

    name = "mariadb"
    on_java = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._server, self._install = _program("mariadbd"), _program("mariadb-install-db")
        (self._port,) = free_ports(1)
        self._databases = 0
        self._data = folder / "data"
        if not self._data.exists():
            self._make()

    def command(self) -> list[str]:
        log = ["--log-bin=mysql-bin", "--binlog-format=ROW", "--binlog-row-image=FULL", "--server-id=1"]
        small = ["--innodb-buffer-pool-size=64M", "--innodb-log-file-size=16M", "--performance-schema=OFF"]
        # No fsync: nothing here outlives the machine.
        fast = ["--innodb-flush-log-at-trx-commit=0", "--skip-name-resolve", "--binlog-row-metadata=FULL"]
        place = [f"--datadir={self._data}", f"--socket={self.folder / 's'}", f"--pid-file={self.folder / 'pid'}"]
        net = ["--bind-address=127.0.0.1", f"--port={self._port}"]
        return [self._server, "--no-defaults", *_as_root(), *place, *net, *log, *small, *fast]

    def is_ready(self) -> bool:
        try:
            self.connect().close()
        except pymysql.err.OperationalError:
            return False
        return True

    def url(self, database: str) -> str:
        return f"mysql://{_USER}:{_USER}@127.0.0.1:{self._port}/{database}"

    def connect(self, database: str | None = None) -> pymysql.Connection[Any]:
        return pymysql.connect(
            host="127.0.0.1",
            port=self._port,
            user=_USER,
            password=_USER,
            database=database,
            charset="utf8mb4",
            autocommit=True,
        )

    @contextmanager
    def database(self) -> Iterator[str]:
        """An empty database with a name of its own, dropped afterwards."""
        self._databases += 1
        name = f"db_{self._databases}"
        self._run(f"create database {name} character set utf8mb4")
        try:
            yield name
        finally:
            self._run(f"drop database {name}")

    def _run(self, statement: str) -> None:
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(statement)

    def _make(self) -> None:
        command = [self._install, "--no-defaults", f"--datadir={self._data}", *_as_root(), "--skip-test-db"]
        command += ["--auth-root-authentication-method=normal", "--skip-name-resolve"]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ServiceFailed(f"mariadb: its data folder could not be made:\n{done.stdout}{done.stderr}")
        grants = (
            f"create user '{_USER}'@'127.0.0.1' identified by '{_USER}';\n"
            f"grant all on *.* to '{_USER}'@'127.0.0.1' with grant option;\n"
        )
        boot = [self._server, "--no-defaults", *_as_root(), f"--datadir={self._data}", "--bootstrap"]
        text = f"use mysql;\nflush privileges;\n{grants}"
        done = subprocess.run(boot, input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ServiceFailed(f"mariadb: its user could not be made:\n{done.stderr}")


def _program(name: str) -> str:
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/bin"]))
    if found is None:
        raise ServiceMissing("mariadb", f"no {name}", "Install MariaDB (apt: mariadb-server)")
    return found


def _as_root() -> list[str]:
    return ["--user=root"] if os.geteuid() == 0 else []
