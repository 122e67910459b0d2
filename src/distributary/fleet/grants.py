"""Who may read which table: the `grants` section -> statements of Unity Catalog, and nothing beyond it.

For every principal that the section names, each of this pipeline's tables and views gets exactly the privileges that
were asked for: what was not is revoked, on the table itself and, because privileges are inherited downwards, on the
schema. Privileges on the catalog are left alone: a catalog is shared with others. Nothing is said about principals that
the section does not name. A table that holds more than one route (a wide one) is nobody's: its views are.

Statements follow "Manage privileges in Unity Catalog" (docs.databricks.com, GRANT and REVOKE): a principal needs USE
CATALOG, USE SCHEMA and a privilege on the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

from distributary.config import Pipeline
from distributary.config.operating import Grant, Privilege, Readable
from distributary.engine.changes.table_settings import history_of
from distributary.errors import ConfigError
from distributary.names import quoted, table_name
from distributary.running.catalog import last_part, view_name
from distributary.state.divisions import all_entries
from distributary.state.ledger import Entry, totals
from distributary.tables.store import Store

PRIVILEGES: tuple[Privilege, ...] = get_args(Privilege)
ALL = "ALL PRIVILEGES"


@dataclass(frozen=True)
class Securable:
    """A table or a view of the pipeline. `name` is its bare name in `tables.database`; `route` None: it holds rows of
    many routes, and nobody is given a privilege on it. `what`: as `grants` asks for it."""

    kind: Literal["TABLE", "VIEW", "MATERIALIZED VIEW"]
    name: str
    route: str | None
    what: Readable = "table"


@dataclass(frozen=True)
class Statement:
    """One statement; `sql` holds all names in backticks."""

    verb: Literal["REVOKE", "GRANT"]
    privilege: str
    on: str
    principal: str
    sql: str


@dataclass(frozen=True)
class GrantPlan:
    """Statements in the order in which they are to run: first what is taken away. `unmatched`: patterns of the section
    that no table of the pipeline has."""

    pipeline: str
    statements: tuple[Statement, ...]
    unmatched: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "statements": [asdict(s) for s in self.statements],
            "unmatched": list(self.unmatched),
        }


def grant_plan(config: Pipeline, securables: Sequence[Securable] | None = None) -> GrantPlan:
    """The statements for these tables and views (default: every table in the ledger).

    Raises ConfigError: no `grants`, or `tables.database` does not name a catalog and a schema.
    """
    catalog, schema = _database(config)
    if not config.grants:
        raise ConfigError(
            file=config.pipeline, key="grants", detail="there is nothing to grant: name principals and tables"
        )
    targets = tables_of(config) if securables is None else list(securables)
    revokes: list[Statement] = []
    grants: list[Statement] = []
    for principal in dict.fromkeys(grant.principal for grant in config.grants):
        privileges = {securable.name: _asked(config, principal, securable) for securable in targets}
        _schema_level(catalog, schema, principal, any(privileges.values()), revokes, grants)
        for securable in targets:
            _table_level(
                f"{securable.kind} {catalog}.{schema}.{quoted(securable.name)}",
                principal,
                privileges[securable.name],
                revokes,
                grants,
            )
    return GrantPlan(config.pipeline, (*revokes, *grants), tuple(_unmatched(config, targets)))


def tables_of(config: Pipeline) -> list[Securable]:
    """The tables that the pipeline has made or written, by its ledgers, and the views over them. Not those that it has
    only tried to write: they may be somebody else's. Raises OSError, TableFault."""
    store = Store.of(config.tables)
    securables: list[Securable] = []
    for route, entry in sorted((r, e) for r, e in totals(all_entries(config, store)).items() if r is not None):
        if not (entry.created or entry.rows_written):
            continue
        if config.holds_changes or entry.merged is not None:
            securables += _of_changes(config, route, entry)
        elif entry.table and config.shared_table is not None:
            securables.append(Securable("VIEW", table_name(route, config.tables.name), route, "view"))
        elif entry.table:
            securables.append(Securable("TABLE", last_part(entry.table), route))
    if config.shared_table is not None and securables:
        securables.append(Securable("TABLE", config.wide.name, None))
    if config.is_declarative and securables:
        securables += _of_declarative(config, [str(securable.route) for securable in securables])
    return securables


def _of_declarative(config: Pipeline, routes: Sequence[str]) -> Iterator[Securable]:
    """The datasets beside silver: gold of each route, and those of all routes."""
    names = config.declarative
    kind: Literal["VIEW", "MATERIALIZED VIEW"] = "VIEW" if names.gold_as == "view" else "MATERIALIZED VIEW"
    if names.gold_as != "none":
        yield from (Securable(kind, table_name(route, names.gold), route, "view") for route in routes)
        yield Securable(kind, names.unified, None)
    yield Securable("TABLE", names.bronze, None)
    yield Securable("VIEW", names.quarantine, None)


def _of_changes(config: Pipeline, route: str, entry: Entry) -> Iterator[Securable]:
    """The log of a source table, its merged table, and the view of its living rows."""
    if entry.table and entry.table != entry.merged:
        yield Securable("TABLE", last_part(entry.table), route, "log")
    if entry.merged and entry.merge_state == "merged":
        yield Securable("TABLE", last_part(entry.merged), route)
        if (history := history_of(config, entry.about, entry.table)) is not None:
            yield Securable("TABLE", last_part(history), route)
        if (view := view_name(config, entry)) is not None:
            yield Securable("VIEW", view, route, "view")


def _database(config: Pipeline) -> tuple[str, str]:
    names = (config.tables.database or "").split(".")
    if len(names) != 2 or not all(names):
        detail = "grants need the tables' place in Unity Catalog: `catalog.schema`"
        raise ConfigError(file=config.pipeline, key="tables.database", detail=detail)
    return quoted(names[0]), quoted(names[1])


def _asked(config: Pipeline, principal: str, securable: Securable) -> set[str]:
    """The privileges that the section gives `principal` on a table or a view."""
    privileges: set[str] = {
        privilege
        for grant in config.grants
        if grant.principal == principal and _means(grant, securable)
        for privilege in grant.privileges
    }
    return privileges if securable.kind == "TABLE" else privileges & {"SELECT"}  # a view can only be read


def _means(grant: Grant, securable: Securable) -> bool:
    return (
        securable.route is not None
        and securable.what in grant.what
        and any(fnmatchcase(securable.route, pattern) for pattern in grant.tables)
    )


def _table_level(
    on: str, principal: str, privileges: set[str], revokes: list[Statement], grants: list[Statement]
) -> None:
    # Not where something is asked for: it would be missing from here to its GRANT.
    if not privileges:
        revokes.append(_statement("REVOKE", ALL, on, principal))
    possible = PRIVILEGES if on.startswith("TABLE") else ("SELECT",)
    revokes += [_statement("REVOKE", privilege, on, principal) for privilege in possible if privilege not in privileges]
    grants += [_statement("GRANT", privilege, on, principal) for privilege in possible if privilege in privileges]


def _schema_level(
    catalog: str, schema: str, principal: str, has_any: bool, revokes: list[Statement], grants: list[Statement]
) -> None:
    schema_name = f"SCHEMA {catalog}.{schema}"
    # A privilege on the schema is one on each of its tables, also on those that were not asked for.
    revokes += [_statement("REVOKE", privilege, schema_name, principal) for privilege in PRIVILEGES]
    if has_any:
        grants.append(_statement("GRANT", "USE CATALOG", f"CATALOG {catalog}", principal))
        grants.append(_statement("GRANT", "USE SCHEMA", schema_name, principal))
    else:
        revokes.append(_statement("REVOKE", "USE SCHEMA", schema_name, principal))


def _statement(verb: Literal["REVOKE", "GRANT"], privilege: str, on: str, principal: str) -> Statement:
    preposition = "TO" if verb == "GRANT" else "FROM"
    return Statement(verb, privilege, on, principal, f"{verb} {privilege} ON {on} {preposition} {quoted(principal)}")


def _unmatched(config: Pipeline, targets: Sequence[Securable]) -> Iterator[str]:
    grants = {pattern: grant for grant in config.grants for pattern in grant.tables}
    for pattern, grant in grants.items():
        if not any(_means(grant.model_copy(update={"tables": [pattern]}), securable) for securable in targets):
            yield pattern
