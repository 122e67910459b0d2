"""Addresses of databases, as `mysql://user:password@host:port/database` or `postgresql://...`."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from distributary.changes.model import Kind
from distributary.errors import BadInput
from distributary_simulate.errors import SimulationInvalid

_SCHEMES = {
    "mysql": Kind.MYSQL,
    "mariadb": Kind.MYSQL,
    "postgresql": Kind.POSTGRESQL,
    "postgres": Kind.POSTGRESQL,
}
_PORTS = {Kind.MYSQL: 3306, Kind.POSTGRESQL: 5432}


@dataclass(frozen=True)
class Server:
    kind: Kind
    host: str
    port: int
    user: str
    password: str = field(repr=False)
    database: str

    def __str__(self) -> str:
        """Without the password."""
        return f"{self.kind}://{self.user}@{self.host}:{self.port}/{self.database}"


def server(url: str) -> Server:
    """Raises SimulationInvalid; its message never shows the address, which may hold a password."""
    split_url = urlsplit(url)
    kind, database = _SCHEMES.get(split_url.scheme), split_url.path.removeprefix("/")
    if kind is None or not split_url.hostname or not database:
        detail = "write it as mysql://user:password@host:port/database or postgresql://..."
        raise SimulationInvalid(what="the address of the database", detail=detail)
    try:
        port = split_url.port or _PORTS[kind]
    except ValueError as error:
        raise SimulationInvalid(what="the address of the database", detail="the port is not a number") from error
    user, password = unquote(split_url.username or ""), unquote(split_url.password or "")
    return Server(kind, split_url.hostname, port, user, password, database)


def driver_missing(error: ImportError) -> BadInput:
    """What to say where the drivers, which are an extra, are not installed."""
    return BadInput(detail=f"simulate: {error}. A real database needs: pip install 'distributary[simulate]'")
