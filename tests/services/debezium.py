"""Debezium's own engine and connectors, from Maven, on a real MariaDB or PostgreSQL: its changes as messages.

The connector for MariaDB is not at hand; that for MySQL reads a MariaDB that says it is a MySQL (`MariaDbAsMySql`).
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from distributary.changes.debezium.heads import Message, Record
from tests.processes import SERVICE_JAVA
from tests.services import Server, maven, wait_until
from tests.services.mariadb import MariaDb

VERSION = "3.6.1.Final"
JARS = tuple(
    f"io.debezium:debezium-{name}:{VERSION}"
    for name in ("api", "embedded", "connector-mysql", "connector-postgres", "storage-file")
)
AVRO_JARS = ("io.apicurio:apicurio-registry-utils-converter:2.6.13.Final",)
"""With the one converter to Avro that Maven Central has; the registry that it asks is later than it, and knows it."""
_SETTINGS = {
    "topic.prefix": "srv",
    "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
    "offset.flush.interval.ms": "200",
    "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
    "snapshot.mode": "initial",
    "poll.interval.ms": "50",
    "database.ssl.mode": "disabled",
    "provide.transaction.metadata": "true",
}
_CONNECTORS = {
    "mysql": {"connector.class": "io.debezium.connector.mysql.MySqlConnector", "database.server.id": "7771"},
    "postgresql": {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "plugin.name": "pgoutput",
        "slot.drop.on.stop": "false",
    },
}


class _Line(msgspec.Struct):
    topic: str
    headers: list[str]
    key: msgspec.Raw
    value: msgspec.Raw


class MariaDbAsMySql(MariaDb):
    """With the name of a version for which the connector asks nothing that MariaDB has not."""

    def command(self) -> list[str]:
        return [*super().command(), "--version=5.7.19-log"]


class Debezium(Server):
    """One engine. What it has sent stays in a file, over stops and kills; its position too."""

    name = "debezium"

    def __init__(
        self, folder: Path, url: str, settings: Mapping[str, str] | None = None, *, registry: str | None = None
    ) -> None:
        """`registry`: address of Apicurio's own API, with which messages are in Avro, framed as Confluent's are."""
        super().__init__(folder)
        self._format = "json" if registry is None else "avro"
        self._jars = [maven.jars("debezium", *JARS)]
        self._jars += [] if registry is None else [maven.jars("debezium", *AVRO_JARS)]
        self.lines, self._offsets = folder / "changes.jsonl", folder / "offsets"
        place = urlsplit(url)
        database = place.path.strip("/")
        kind = "mysql" if place.scheme == "mysql" else "postgresql"
        given = {
            **_SETTINGS,
            **_CONNECTORS[kind],
            "name": folder.name,
            "offset.storage.file.filename": str(self._offsets),
            "schema.history.internal.file.filename": str(folder / "history"),
            "database.hostname": str(place.hostname),
            "database.port": str(place.port),
            "database.user": str(place.username),
            "database.password": place.password or "none",
        }
        given |= {"database.include.list": database} if kind == "mysql" else {"database.dbname": database}
        given |= {} if kind == "mysql" else {"slot.name": f"slot_{database}", "publication.name": f"pub_{database}"}
        for side in ("key", "value") if registry is not None else ():
            given |= {f"{side}.converter.{name}": value for name, value in _avro(str(registry)).items()}
        self._properties = folder / "engine.properties"
        text = "".join(f"{name}={value}\n" for name, value in {**given, **(settings or {})}.items())
        self._properties.write_text(text)

    def command(self) -> list[str]:
        source = Path(__file__).with_name("DebeziumLines.java")
        classes = ["-cp", ":".join(f"{folder}/*" for folder in self._jars), str(source)]
        return [self.java, *SERVICE_JAVA, *classes, str(self._properties), str(self.lines), self._format]

    def is_ready(self) -> bool:
        return self.lines.exists()

    def messages(self) -> list[Message]:
        """All that was sent, as one partition a topic has it."""
        offsets: Counter[str] = Counter()
        found = []
        for line in self.lines.read_bytes().split(b"\n")[:-1] if self.lines.exists() else ():
            said = msgspec.json.decode(line, type=_Line)
            place = Record(said.topic, 0, offsets[said.topic], 0, frozenset(said.headers))
            offsets[said.topic] += 1
            found.append(Message(place, self._body(said.key), self._body(said.value)))
        return found

    def _body(self, raw: msgspec.Raw) -> bytes | None:
        body = bytes(raw)
        if body == b"null":
            return None
        return body if self._format == "json" else b64decode(msgspec.json.decode(body))

    def wait_for(self, txn: str, timeout_sec: float = 300) -> None:
        """Until a row of which a value is `txn` has come: then all that was committed before it has."""
        self.wait_for_text(json.dumps(txn) if self._format == "json" else txn, timeout_sec)

    def wait_for_stream(self) -> None:
        """Until the position that a restart goes on from is one of the log. Before, it would read all tables anew."""
        self.wait_for_text('"snapshot":"false"' if self._format == "json" else "\nfalse")
        wait_until(self._is_past_snapshot, 300, "a position behind the snapshot in Debezium's offsets")

    def _is_past_snapshot(self) -> bool:
        body = self._offsets.read_bytes() if self._offsets.exists() else b""
        return (b'"pos"' in body or b'"lsn"' in body) and b'"snapshot"' not in body

    def wait_for_text(self, text: str, timeout_sec: float = 300) -> None:
        """Until what was sent holds the text."""
        body = text.encode()
        wait_until(lambda: self._has_sent(body), timeout_sec, f"{text} in Debezium's lines")

    def _has_sent(self, body: bytes) -> bool:
        if self._format == "json":
            return self.lines.exists() and body in self.lines.read_bytes()
        return any(body in (message.value or b"") for message in self.messages())


def _avro(registry: str) -> dict[str, str]:
    apicurio = {"url": registry, "auto-register": "true", "as-confluent": "true", "use-id": "contentId"}
    apicurio |= {"headers.enabled": "false", "find-latest": "true"}
    return {f"apicurio.registry.{name}": value for name, value in apicurio.items()}
