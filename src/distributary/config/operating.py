"""Keys that say who is told, who may read, and who looks after the tables: notices, grants, upkeep."""

from __future__ import annotations

from typing import Literal, Self, TypeAlias

from pydantic import Field, SecretStr, field_validator, model_validator

from distributary.config.base import Model, fault
from distributary.config.quantities import Duration, Size, Text

NoticeEvent: TypeAlias = Literal["failure", "parked", "recovery"]
Privilege: TypeAlias = Literal["SELECT", "MODIFY"]
Readable: TypeAlias = Literal["table", "view", "log"]

DAY_SEC = 86400.0


class Email(Model):
    host: Text = Field(description="The SMTP server.")
    port: int = Field(default=587, ge=1, le=65535, description="Its port: 587 for starttls, 465 for tls.")
    security: Literal["starttls", "tls", "none"] = Field(
        default="starttls", description="How the connection is encrypted; a server that can't is an error."
    )
    username: Text | None = Field(default=None, description="The SMTP user.")
    password: SecretStr | None = Field(default=None, description="The SMTP password.")
    sender: Text = Field(description="The address that the messages come from.")
    to: list[Text] = Field(min_length=1, description="The addresses that get them.")

    @field_validator("sender", "to")
    @classmethod
    def _check_address(cls, value: str | list[str]) -> str | list[str]:
        for address in [value] if isinstance(value, str) else value:
            if not address.isprintable() or "@" not in address or " " in address:
                raise ValueError("allowed: plain addresses, as data-team@example.org")
        return value

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.username is None) != (self.password is None):
            raise fault("password", "username and password go together: give both or none")
        if self.password is not None and self.security == "none":
            raise fault("security", "a password is not sent over a connection without encryption: use starttls or tls")
        return self


class Notices(Model):
    webhooks: list[SecretStr] = Field(
        default=[], description="Addresses (https://...) that get each notice as JSON with a `text`, as Slack takes it."
    )
    email: Email | None = Field(default=None, description="Notices by e-mail.")
    on: list[NoticeEvent] = Field(
        default=["failure", "parked", "recovery"],
        description="`failure`: a stream fell and will start again. `parked`: a stream or a table is given up for now. "
        "`recovery`: it works again.",
    )
    repeat_after: Duration = Field(default=3600.0, description="The same notice comes again after this time only.")

    @field_validator("webhooks")
    @classmethod
    def _check_webhooks(cls, addresses: list[SecretStr]) -> list[SecretStr]:
        for address in addresses:
            if not address.get_secret_value().startswith(("https://", "http://", "${")):
                raise ValueError("allowed: addresses that begin with https:// or http://")
        return addresses


class Otlp(Model):
    endpoint: Text = Field(description="The collector's address for metrics, as `http://collector:4318/v1/metrics`.")
    headers: dict[str, SecretStr] = Field(default={}, description="Headers of each push, as a token.")
    every: Duration = Field(default=30.0, gt=0, description="How often figures are pushed.")

    @field_validator("endpoint")
    @classmethod
    def _check_endpoint(cls, address: str) -> str:
        if not address.startswith(("http://", "https://", "${")):
            raise ValueError("allowed: an address that begins with http:// or https://")
        return address


class Metrics(Model):
    port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="Serve `/metrics` for Prometheus, `/healthz` and `/readyz` at this port, as 9464; 0: any that is "
        "free. Needs the extra `metrics`. Of a pipeline on several clusters, each process takes the next port.",
    )
    address: Text = Field(
        default="127.0.0.1",
        description="Where the port is opened; `0.0.0.0` for all networks. Whoever reaches it can read route names.",
    )
    routes: int = Field(
        default=200,
        ge=1,
        description="Routes that have series of their own. Of more routes the worst have: parked, refused, most bad "
        "rows, most rows; the others are one, `(other)`.",
    )
    otlp: Otlp | None = Field(default=None, description="Push the figures to a collector. Needs the extra `otlp`.")

    @field_validator("address")
    @classmethod
    def _check_address(cls, address: str) -> str:
        if address.count(":") == 1:
            raise ValueError("allowed: an address without a port, as 127.0.0.1 or 0.0.0.0; the port is metrics.port")
        return address


class Grant(Model):
    principal: Text = Field(description="A user, a group or a service principal, as the catalog names it.")
    privileges: list[Privilege] = Field(
        default=["SELECT"], description="What it may do with these tables; an empty list takes all away."
    )
    tables: list[Text] = Field(
        default=["*"], description="Routes whose tables are meant; `*`, `?` and `[ab]` as in file names."
    )
    what: list[Readable] = Field(
        default=["table", "view"],
        description="`table`: a route's table; of change files, the merged one. `view`: the view over it; of a wide "
        "table, the route's. `log`: of change files, the table of all events, with what was deleted since.",
    )

    @field_validator("principal")
    @classmethod
    def _check_principal(cls, name: str) -> str:
        if not name.isprintable() or name != name.strip():
            raise ValueError("allowed: a name in one line, without spaces around it")
        return name


class Maintenance(Model):
    automatic: bool = Field(
        default=True,
        description="A run looks after its tables by itself, between batches and while nothing comes, with at most a "
        "twentieth of a busy stream's time. `false`: only `distributary maintain` does.",
    )
    small_files: int = Field(
        default=64, ge=1, description="A run joins the small files of a table once it has more than so many."
    )
    every: Duration = Field(
        default=DAY_SEC,
        gt=0,
        description="How often a run does the rest of a table's upkeep, as `distributary maintain` does: old "
        "tombstones and old files go.",
    )
    min_files: int = Field(
        default=8, ge=1, description="Tables with up to so many files are not compacted by `distributary maintain`."
    )
    target_file_size: Size = Field(default=128 * 2**20, description="What compaction joins files to.")
    vacuum_after: Duration = Field(
        default=7 * DAY_SEC,
        description="Files that no newest version needs stay so long, for readers of older ones, in whole "
        "hours. What no commit names stays for a day at least: a batch that runs may commit it.",
    )

    @field_validator("target_file_size")
    @classmethod
    def _check_target(cls, size: int) -> int:
        if size < 2**20:
            raise ValueError("allowed: 1 MB or more, as '128 MB'; a number alone is bytes")
        return size
