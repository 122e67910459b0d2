"""Keys that say how it is read: registry and envelope."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, SecretStr, field_validator, model_validator

from distributary.config.addresses import Address, File, Url
from distributary.config.base import Model, fault
from distributary.config.quantities import Size, Text
from distributary.config.routing import RouteFrom


def _number(value: object) -> object:
    """Keys of a pipeline file are text."""
    return int(value) if isinstance(value, str) and value.isdecimal() and value.isascii() else value


_OF_REGISTRY = re.compile(r"(?<!/)/(subjects|schemas/(ids|types))(/[^,]*)?(?=,|$)")
"""Paths of the registry's own API. A gateway may have the whole of it below `/schemas`, or a host that is called so."""
SchemaId: TypeAlias = Annotated[int, BeforeValidator(_number), Field(ge=0, le=2**31 - 1)]


class RegistryConfig(Model):
    url: Url | None = Field(
        default=None, description="Address of a registry with Confluent's REST API. Either url or path."
    )
    path: Address | None = Field(default=None, description="Folder of the embedded registry: plain files, no server.")
    username: Text | None = Field(default=None, description="User for basic authentication.")
    password: SecretStr | None = Field(default=None, description="Password for basic authentication.")
    token: SecretStr | None = Field(default=None, description="Bearer token, in place of username and password.")
    ca_file: File | None = Field(
        default=None, description="PEM file of the authority that signed the server's certificate."
    )
    cert_file: File | None = Field(default=None, description="PEM file of the client's certificate.")
    key_file: File | None = Field(default=None, description="PEM file of the client's private key.")
    timeout_sec: float = Field(default=10.0, gt=0, description="How long one request may take, in seconds.")
    attempts: int = Field(default=5, ge=1, description="How often a request is tried before the batch fails.")
    cache: Address | None = Field(
        default=None,
        description="Folder of the disk cache: schema ids in it need no registry, also while it is down. Default: "
        "`<state>/schemas` where the state is on this machine.",
    )
    texts: dict[SchemaId, Text] = Field(
        default={},
        description="Schema ids whose text is a file of this machine in place of the registry's: `{7: fixed.proto}`, "
        "of Avro a .avsc file. Imports of a .proto file are looked for in its folder. The registry is not asked about "
        "them.",
    )
    compile_sec: float = Field(
        default=10.0, ge=1, description="The most seconds of CPU time that one schema may take to compile."
    )
    compile_memory: Size = Field(
        default=2**30,
        ge=2**28,
        description="The most memory that one schema may take to compile. A schema that needs more of either, or that "
        "crashes the compiler, is broken: its rows are quarantined as `BROKEN_SCHEMA`.",
    )
    max_schema_size: Size = Field(
        default=8 * 2**20, description="The largest text of one schema, with all its imports."
    )

    max_unknown_ids: int = Field(
        default=1_000,
        ge=1,
        description="After so many ids of one batch that the registry does not have, or that do not compile, no more "
        "of that batch are asked for: their rows are quarantined (reason TOO_MANY_SCHEMA_IDS) and come in by "
        "`distributary replay`, which asks for every id.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.url is None) == (self.path is None):
            raise fault("url", "give exactly one of url (a server) and path (the embedded registry)")
        if self.url is not None and "@" in self.url:
            raise fault("url", "may not hold credentials; use username and password, or token")
        if self.url is not None and (end := _OF_REGISTRY.search(self.url)) is not None:
            raise fault("url", f"allowed: the registry's own address, without {end[0]}, which clients add themselves")
        if (self.username is None) != (self.password is None):
            raise fault("password", "username and password go together: give both or none")
        if self.token is not None and not self.token.get_secret_value().strip():
            raise fault("token", "is empty: give the token, or leave the key out")
        if self.token is not None and self.username is not None:
            raise fault("token", "give token or username and password, not both")
        if self.key_file is not None and self.cert_file is None:
            raise fault("cert_file", "key_file needs cert_file")
        return self


NO_ENVELOPE = ("subject", "proto", "message", "schema_id", "payload", "framing")
"""Keys that mean something where one message holds another."""


class Envelope(Model):
    format: Literal["protobuf", "avro", "json", "columns", "none", "debezium", "maxwell", "openlogreplicator"] = Field(
        default="protobuf",
        description="`protobuf`, `avro`: one binary value holds the envelope. `json`: a JSON object has the payload in "
        "a field, as an object or as text. `columns`: the source already has a column each. "
        "`none`: there is no envelope, the message itself is the payload; `envelope: none` is short for it, and each "
        "topic is a route then, unless `route` says otherwise. `debezium`: changes of a database's rows, which become "
        "a log table and a merged table per source table; `envelope: debezium` is short. See docs/debezium.md. "
        "`maxwell`, `openlogreplicator`: the same of the messages of these.",
    )
    flattened: bool = Field(
        default=False,
        description="Debezium: the messages are rows, as ExtractNewRecordState makes them, and not whole changes.",
    )
    order: Literal["position", "offset"] = Field(
        default="position",
        description="Debezium: which of two changes of a row is newer. `position`: the one that stands later in the "
        "source's log. `offset`: the one that stands later in the topic.",
    )
    placeholder: Text = Field(
        default="__debezium_unavailable_value",
        description="Debezium: what stands in place of a value that was not logged since it did not change, as the "
        "connector's unavailable.value.placeholder says.",
    )
    framing: Literal["confluent", "none"] = Field(
        default="confluent",
        description="`confluent`: magic byte, schema id and message indexes first. `none`: bare protobuf. Of JSON, "
        "`none` is the default, and `confluent` a header that is passed over.",
    )
    subject: Text | None = Field(
        default=None,
        description="Registry subject of the envelope's schema. For one Kafka topic: `<topic>-value`. A bare "
        "envelope is read by its newest version; with two_hop, versions that stand there cost no failed task.",
    )
    proto: Address | None = Field(
        default=None, description="A .proto file with the envelope's schema, in place of subject."
    )
    message: Text | None = Field(
        default=None, description="The envelope's message by full name; without it, the first."
    )
    max_route_length: int = Field(
        default=4_096,
        ge=1,
        description="The longest route, in bytes, that a protobuf envelope may name: it stands in the ledger and in "
        "what people read. Records of longer ones are quarantined (reason ROUTE_TOO_LONG).",
    )
    route: RouteFrom = Field(
        default=RouteFrom(field="game_name"),
        description="What decides the table: a field (or column), by its path as in `meta.event_type`, an enum by its "
        "name; or where else the route comes from, as in `{from: topic}`, `{header: event-type}`, `{oneof: event}`. "
        "Without it `game_name`. See docs/routes.md.",
    )
    schema_id: Text = Field(
        default="schema_id",
        description="Field (or column) of the payload's schema id; of JSON by its path. Without this key, no such "
        "column is needed where payloads say their schema themselves or have none (`payload.framing`).",
    )
    payload: Text = Field(
        default="payload",
        description="Field (or column) of the payload's bytes; of JSON by its path: an object, a text of JSON, or of "
        "other payloads than JSON without a header and text a text in base64.",
    )

    @field_validator("route", mode="before")
    @classmethod
    def _path(cls, value: object) -> object:
        if isinstance(value, list):
            raise ValueError(
                "give a field by its path, as in meta.kind, or where else the route is, as in {from: topic}"
            )
        return {"field": value} if isinstance(value, str) else value

    @model_validator(mode="before")
    @classmethod
    def _none_by_default(cls, data: Any) -> Any:
        """Without an envelope, `format` need not be said where the route says it."""
        if not isinstance(data, dict):
            return data
        route = data.get("route")
        if "format" not in data and isinstance(route, dict) and ("oneof" in route or "any" in route):
            data = {**data, "format": "none"}
        if "format" not in data and isinstance(route, dict) and route.get("from") == "message_type":
            data = {**data, "format": "none"}
        if data.get("format") == "none" and "route" not in data:
            data = {**data, "route": {"from": "topic"}}
        if data.get("format") == "json" and "framing" not in data:
            data = {**data, "framing": "none"}
        return data

    @model_validator(mode="after")
    def _check(self) -> Self:
        route_from = self.route
        if self.is_debezium:
            for key in (*NO_ENVELOPE, "route"):
                if getattr(self, key) != type(self).model_fields[key].get_default():
                    raise fault(key, "a change says itself which table it is of: leave it out")
            for key in ("flattened", "placeholder") if self.dialect is not None else ():
                if getattr(self, key) != type(self).model_fields[key].get_default():
                    raise fault(key, "allowed with format debezium only")
            return self
        for key in ("flattened", "order", "placeholder"):
            if getattr(self, key) != type(self).model_fields[key].get_default():
                raise fault(key, "allowed with format debezium only")
        if self.format != "none":
            if route_from.of_message:
                raise fault("route", "the message itself says this route: it needs format none, the message as payload")
            if route_from.place == "key":
                raise fault("route", "allowed with format none: of an envelope that cannot be read, no key is kept")
            if self.format == "columns" and route_from.field is None:
                raise fault("route", "with format columns the route is a column: give its name")
            if self.format == "json":
                self._check_json()
            if self.format == "avro":
                self._check_avro()
            return self
        for key in NO_ENVELOPE:
            if getattr(self, key) != type(self).model_fields[key].get_default():
                raise fault(key, "there is no envelope (format none): leave it out")
        return self

    def _check_avro(self) -> None:
        if self.framing != "confluent":
            raise fault("framing", "an Avro envelope is read by the schema that its header names: allowed is confluent")
        for key in ("proto", "message"):
            if getattr(self, key) is not None:
                raise fault(key, "an Avro envelope has no messages: leave it out")

    def _check_json(self) -> None:
        for key in ("subject", "proto", "message"):
            if getattr(self, key) is not None:
                raise fault(key, "an envelope of JSON needs no schema: leave it out")
        for key in ("schema_id", "payload"):
            if not all(getattr(self, key).split(".")):
                raise fault(key, "allowed: names with dots between them, as in data.body")

    @property
    def is_debezium(self) -> bool:
        """Are the messages changes of a database's rows? Then a source table has a log table and a merged one. Those
        of others are read as if Debezium had written them."""
        return self.format == "debezium" or self.dialect is not None

    @property
    def dialect(self) -> str | None:
        """Whose messages are read as Debezium's; None for none."""
        return self.format if self.format in ("maxwell", "openlogreplicator") else None

    @property
    def columns(self) -> tuple[str, str, str]:
        """The names of route, schema id and payload where they are columns: of the source (`format: columns`), and of
        bronze. Of a path, its end."""
        path = self.route.field
        route = "route" if path is None else path if self.format == "columns" else path.rpartition(".")[2]
        if self.format == "json":
            return route, self.schema_id.rpartition(".")[2], self.payload.rpartition(".")[2]
        return route, self.schema_id, self.payload
