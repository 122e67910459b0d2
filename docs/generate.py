"""Writes the reference pages that are made from code; `--check` only says which of them are out of date.

    python docs/generate.py [--check]

configuration.md and pipeline.schema.json come from the models of `distributary.config`, state.md from its folders,
quarantine.md from the reasons of `distributary.errors`, cli.md from the command line; metrics.md, and the dashboard and
alert rules in deploy/, from the list of metrics (`monitoring_files`); errors.md from the errors (`error_pages`);
types.md by decoding samples (`type_pages`); states.md from the words for states (`state_pages`).
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from error_pages import errors_page
from monitoring_files import alert_rules, dashboard, metrics_page
from state_pages import states_page
from type_pages import types_page

from distributary.config import DeclarativeFolder, HopFolder, SharesFolder, StateFolder
from distributary.config.json_schema import pipeline_schema
from distributary.errors import Reason

HERE = Path(__file__).resolve().parent
Schema = dict[str, Any]
_CLI_COLUMNS = 100  # usage lines wrap here, whatever the terminal

_INTRO = """\
# Pipeline files

<!-- Made by docs/generate.py from the models in src/distributary/config; edit those. -->

One YAML file describes one pipeline. `distributary check FILE` checks it without starting Spark: every fault is one
line with file, key and what is allowed. Editors can check it while you type, against
[pipeline.schema.json](pipeline.schema.json).

## Examples

From Kafka, with every credential outside the file:

```yaml
{kafka}```

From a Delta table that already has the columns, with an embedded registry:

```yaml
{delta}```

From change files of a database, see [datastream.md](datastream.md):

```yaml
{datastream}```

## Rules

- An unknown key, a repeated key, a value of another type: each is an error (exit code 2).
- A **duration** is written `10 seconds`, `1 minute`, `500 ms`, or as a number of seconds. A **size** is written
  `64 MB`, or as a number of bytes; units are powers of 1024.
- A **text** value may be a reference, always as the whole value: `${{env:NAME}}` (environment variable),
  `${{file:PATH}}` (the text of a file, without its last line break), `${{databricks:SCOPE/KEY}}` (a Databricks secret,
  on Databricks only). Print-outs show the reference, never its value. A **secret** is a text that is masked even where
  it is written in the file.
- Relative paths count from the working directory.
- `true` and `false` are the only booleans; `yes`, `on`, dates and `010` are text.

## Keys
"""


def configuration_page() -> str:
    """docs/configuration.md."""
    examples = {path.stem: path.read_text(encoding="utf-8") for path in (HERE / "examples").glob("*.yaml")}
    schema = pipeline_schema()
    return _INTRO.format(**examples) + "".join(_sections(schema, schema, ""))


def schema_file() -> str:
    """docs/pipeline.schema.json."""
    return json.dumps(pipeline_schema(), indent=2, ensure_ascii=False) + "\n"


_STATE_INTRO = """\
# The state folder

<!-- Made by docs/generate.py from src/distributary/config/state_folder.py; edit that. -->

What a pipeline keeps besides its tables lies in one folder, here called `<state>`: the key `state`, else
`<tables.root>/_distributary/<pipeline>`. It may be in an object store, as the tables are. Raw records are in it, so a
new one can be read by its owner only.

Delete nothing in it by hand while the pipeline is in use: `distributary clean` removes a pipeline, `distributary
resync` and `distributary replay` repair tables. To keep a copy, stop the pipeline and copy the tables and this folder
together: one that is older than the tables is refused. How, and what to do where something is lost:
[back-up](backup.md), [disaster](disaster.md).
"""


def state_page() -> str:
    """docs/state.md."""
    parts = (
        ("`<state>/`", StateFolder),
        (f"`<state>/{StateFolder.shares.name}/`", SharesFolder),
        (f"`<state>/{StateFolder.hop_1.name}/`", HopFolder),
        (f"`<state>/{StateFolder.declarative.name}/`", DeclarativeFolder),
    )
    lines = [_STATE_INTRO]
    for title, folder in parts:
        lines += [f"\n## {title}\n", "| name | kind | what it holds | where it is gone |", "|---|---|---|---|"]
        lines += [f"| `{place.name}` | {place.kind} | {place.holds} | {place.lost} |" for place in folder.places()]
    return "\n".join(lines) + "\n"


_QUARANTINE_INTRO = """\
# The quarantine

<!-- Made by docs/generate.py from src/distributary/errors/reasons.py; edit that. -->

A record that cannot be written to its table is set aside, with its bytes, its origin and the reason; the others of its
batch go on. Nothing is thrown away: rows in = rows in tables + rows in the quarantine, which `distributary verify`
recounts.

```console
$ distributary quarantine FILE            # how many, what was found, a sample, what to do
$ distributary quarantine FILE --reason BAD_MAGIC --samples 5
$ distributary quarantine FILE --route chess --export chess.parquet
$ distributary replay FILE                # once the cause is fixed: bring them in, exactly once
```

The quarantine is a Delta table, `<state>/quarantine`, which any reader can open (of `layout: declarative`, the rows of
bronze that have a `reason`). Its columns: `reason`; `detail` (what exactly was found); `route`; `schema_id` of the
payload and `envelope_schema_id`; `topic`, `partition`, `offset`, `timestamp` and `headers`, as far as the source has
them; `value`, the bytes; `level`, which says what these are (`envelope`: the whole record; `payload`: what the envelope
held; of change files `file`, `event` or `merge`, with `file` and `row`); `stream` and `batch`; `state` (`open`,
`claimed` by a replay, `replayed`). The key `quarantine` stops a stream that sets too much aside.

A row of a table that failed (`TABLE_PARKED`) may be in the table: the commit came through, and only its answer was
lost, or the log of a merged table has the row and the merge failed. A replay sees that by the table's own commits.
Where these have expired (`delta.logRetentionDuration`, 30 days) nobody can say, so such rows stay here, and `replay`
counts them apart. Look for them in the table, or in its log, by their origin: what is there is done; export what is
missing, and send it once more.

## Reasons

| reason | what was found | what to do |
|---|---|---|
"""


def quarantine_page() -> str:
    """docs/quarantine.md."""
    rows = (f"| `{reason.value}` | {reason.cause} | {reason.remedy} |" for reason in Reason)
    return _QUARANTINE_INTRO + "\n".join(rows) + "\n"


def cli_page() -> str:
    """docs/cli.md."""
    typer_main, typer_cli = importlib.import_module("typer.main"), importlib.import_module("typer.cli")
    command = typer_main.get_command(importlib.import_module("distributary.cli").app)
    context = command.context_class(command, info_name="distributary", terminal_width=_CLI_COLUMNS)
    text: str = typer_cli.get_docs_for_click(obj=command, ctx=context, name="distributary", title="Command line")
    return text.rstrip() + "\n"


def pages() -> dict[str, Callable[[], str]]:
    """File name below docs/ -> what makes its text."""
    made = {
        "configuration.md": configuration_page,
        "pipeline.schema.json": schema_file,
        "state.md": state_page,
        "quarantine.md": quarantine_page,
        "errors.md": errors_page,
        "metrics.md": metrics_page,
        "states.md": states_page,
        "types.md": types_page,
        "../deploy/prometheus-alerts.yaml": alert_rules,
        "../deploy/grafana-dashboard.json": dashboard,
    }
    if importlib.util.find_spec("distributary.cli"):
        made["cli.md"] = cli_page
    return made


def outdated() -> list[str]:
    """Names of the pages whose file does not hold what `pages` makes."""
    return [name for name, make in pages().items() if _read(HERE / name) != make()]


def main(arguments: list[str]) -> None:
    stale = outdated()
    if "--check" in arguments:
        sys.exit(f"out of date: {', '.join(stale)}; run: python docs/generate.py" if stale else 0)
    for name in stale:
        (HERE / name).write_text(pages()[name](), encoding="utf-8")


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def _sections(schema: Schema, model: Schema, prefix: str) -> Iterator[str]:
    """One table per model, depth first."""
    yield _table(schema, model, prefix)
    for key, field in model["properties"].items():
        for below, suffix in _models(schema, field):
            variant = below["properties"].get("type", {}).get("const")
            title = f"`{prefix}{key}{suffix}`" + (f", `type: {variant}`" if variant else "")
            yield f"\n### {title}\n\n{field.get('description', '')}\n"
            yield from _sections(schema, below, f"{prefix}{key}{suffix}.")


def _table(schema: Schema, model: Schema, prefix: str) -> str:
    rows = ["\n| key | allowed | default | meaning |", "|---|---|---|---|"]
    for key, field in model["properties"].items():
        required = key in model.get("required", [])
        default = "**required**" if required else _default(schema, field)
        cells = (f"`{prefix}{key}`", _allowed(schema, field), default, field["description"])
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def _models(schema: Schema, field: Schema) -> list[tuple[Schema, str]]:
    """The models below a field, with what stands between its key and theirs."""
    if "$ref" in field:
        return [(_resolve(schema, field), "")]
    if isinstance(field.get("items"), dict):
        return [(model, f"[]{suffix}") for model, suffix in _models(schema, field["items"])]
    if isinstance(field.get("additionalProperties"), dict):
        return [(model, f".<name>{suffix}") for model, suffix in _models(schema, field["additionalProperties"])]
    return [found for branch in _branches(field) for found in _models(schema, branch)]


def _branches(field: Schema) -> list[Schema]:
    branches: list[Schema] = field.get("anyOf") or field.get("oneOf") or []
    return branches


def _resolve(schema: Schema, field: Schema) -> Schema:
    found: Schema = schema["$defs"][field["$ref"].rsplit("/", 1)[1]]
    return found


def _default(schema: Schema, field: Schema) -> str:
    default = field.get("default")
    if default in (None, {}, []) or _models(schema, field):
        return ""
    shown = f"{default:g}" if isinstance(default, float) else json.dumps(default)
    return f"`{default if isinstance(default, str) else shown}`"


def _allowed(schema: Schema, field: Schema) -> str:
    if "x-name" in field:
        return str(field["x-name"])
    if "const" in field or "enum" in field:
        values = field["enum"] if "enum" in field else [field["const"]]
        return ", ".join(f"`{value}`" for value in values)
    branches = _branches(field)
    if branches:
        names = [_allowed(schema, branch) for branch in branches if branch.get("type") != "null"]
        return " or ".join(dict.fromkeys(names))
    if field.get("format") == "password":
        return "secret"
    if isinstance(field.get("additionalProperties"), dict):
        return f"mapping of name to {_allowed(schema, field['additionalProperties'])}"
    return _plain(schema, field)


def _plain(schema: Schema, field: Schema) -> str:
    kind = field.get("type", "object")
    if kind == "array":
        return f"list of {_allowed(schema, field['items'])}"
    names = {
        "string": "text",
        "integer": "whole number",
        "number": "number",
        "boolean": "`true`, `false`",
        "object": "keys",
    }
    bounds = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤"}
    limits = [f"{sign} {field[key]:g}" for key, sign in bounds.items() if key in field]
    return names[kind] + (" " + " and ".join(limits) if limits else "")


if __name__ == "__main__":
    main(sys.argv[1:])
