"""The options of `format("distributary")`, checked. Spark gives their names in lower case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from distributary.config import StateFolder, Tables
from distributary.errors import BadInput
from distributary.tables.engines import TASK_PROPERTIES
from distributary.tables.quarantine import quarantine_uri
from distributary.tables.snapshot import Owner
from distributary.tables.store import Store, join
from distributary.tables.table import Table

FORMAT = "distributary"
ROWS_OPTION = "rows_secret"
"""In place of all others, of our own layouts: what takes the rows (`data_source.Intake`), pickled, as text. It may hold
credentials: by its name Spark shows it nowhere (`spark.redaction.regex`)."""
PIPELINE_OPTION = "pipeline"
"""In place of all others: the pipeline file by which messages are read."""
STORAGE, PROPERTY, UNITY = "storage.", "delta.", "unity."
TABLES = {"path": "root", "table": "name"}
EVOLUTION = {"newcolumn": "new_column", "typechange": "type_change"}
SHOWN = (
    "path", "route", "table", "name", "state", "newColumn", "typeChange", "txnAppId", "txnVersion", "storage.*",
    "unity.*", "delta.*",
)  # fmt: skip
OF_SPARK = frozenset({"checkpointlocation", "queryname"})


@dataclass(frozen=True)
class SinkOptions:
    """Where rows go. `route`: the column that says it. `name`: who owns the tables. `parks`: rows of a table that
    fails when the batch ends are set aside, else the batch fails and comes again. `keeps_books`: batches are entered in
    the ledger; else whoever the sink works for counts them."""

    route: str
    name: str
    tables: Tables
    state: str
    parks: bool = True
    keeps_books: bool = True

    @property
    def store(self) -> Store:
        return Store.of(self.tables)

    @property
    def quarantine(self) -> str:
        return quarantine_uri(self.state)

    @property
    def intents(self) -> str:
        """Where it is written down what a batch commits."""
        return StateFolder(self.state).sink

    def target(self, route: str) -> Table:
        """The route's table, as it must be."""
        uri = join(self.tables.root, self.tables.table_name(route))
        return Table(uri, self.store, Owner(self.name, route), self.tables.properties)

    @classmethod
    def read(cls, options: Mapping[str, str]) -> SinkOptions:
        """Raises BadInput: an option is missing, not known, or not allowed."""
        by_name = {name.lower(): value for name, value in options.items()}
        allowed = {name.lower() for name in SHOWN if not name.endswith("*")} | OF_SPARK
        unknown = sorted(n for n in by_name if n not in allowed and not n.startswith((STORAGE, PROPERTY, UNITY)))
        if unknown:
            raise BadInput(detail=f"format distributary has no option {unknown[0]!r}. It has: {', '.join(SHOWN)}")
        for needed, example in (("path", '.start("/data/lake")'), ("route", '.option("route", "game")')):
            if not by_name.get(needed):
                raise BadInput(detail=f"format distributary needs the option {needed!r}, as in {example}")
        tables = _tables(by_name)
        name = by_name.get("name", "sink")
        state = by_name.get("state") or f"{tables.root}/_distributary/{name}"
        return cls(by_name["route"], name, tables, state.rstrip("/"))


def _tables(options: Mapping[str, str]) -> Tables:
    keys: dict[str, Any] = {key: options[name] for name, key in TABLES.items() if name in options}
    keys["evolution"] = {key: options[name] for name, key in EVOLUTION.items() if name in options}
    keys["storage_options"] = _after(options, STORAGE)
    if unity := _after(options, UNITY):
        keys["unity"] = unity
    keys["properties"] = {_property(name): value for name, value in options.items() if name.startswith(PROPERTY)}
    try:
        return Tables(**keys)
    except ValidationError as e:
        error = e.errors()[0]
        key = str(error["loc"][-1]) if error["loc"] else ""
        names = {key: name for name, key in {**TABLES, **EVOLUTION}.items()}
        raise BadInput(detail=f"option {names.get(key, key)!r} of format distributary: {error['msg']}") from e


def _after(options: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {name.removeprefix(prefix): value for name, value in options.items() if name.startswith(prefix)}


def _property(name: str) -> str:
    """A table property by its name in lower case. Raises BadInput for one that only Spark can give to a table."""
    for allowed in sorted(TASK_PROPERTIES):
        if allowed.lower() == name:
            return allowed
    raise BadInput(
        detail=f"format distributary makes no table with {name!r}, only with {', '.join(sorted(TASK_PROPERTIES))}"
    )


def transaction(options: Mapping[str, str]) -> int | None:
    """The number that a write has by its options; None where it has none. Raises BadInput: it is none."""
    text = {name.lower(): value for name, value in options.items()}.get("txnversion")
    if text is not None and not text.isdecimal():
        raise BadInput(detail=f"option 'txnVersion' of format distributary is a whole number, not {text!r}")
    return None if text is None else int(text)
