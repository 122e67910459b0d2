"""`init`: a first pipeline file, from what the user knows and what the records say."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from distributary.cli.output import note, say
from distributary.errors import BadInput, EnvironmentFault

_Text = str | None


def _option(flag: str, metavar: str, text: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=text, show_default=False)


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline file to write.", show_default=False)],
    kafka: Annotated[_Text, _option("--kafka", "SERVERS", "The source: brokers, as `localhost:9092`.")] = None,
    topic: Annotated[list[str] | None, _option("--topic", "TOPIC", "A topic; may be repeated.")] = None,
    delta: Annotated[_Text, _option("--delta", "PATH", "Or the source: a Delta table.")] = None,
    files: Annotated[_Text, _option("--files", "PATH", "Or the source: a folder of change files.")] = None,
    registry: Annotated[_Text, _option("--registry", "URL", "A schema registry.")] = None,
    registry_path: Annotated[_Text, _option("--registry-path", "DIR", "Or a folder: the embedded registry.")] = None,
    tables: Annotated[_Text, _option("--tables", "ROOT", "The folder or address below which tables are made.")] = None,
    name: Annotated[_Text, _option("--name", "NAME", "The pipeline's name; without it, that of the file.")] = None,
    more: Annotated[
        list[str] | None,
        _option("--set", "KEY=VALUE", "Any other key, as `source.security.protocol=SSL`; may be repeated."),
    ] = None,
    look: Annotated[bool, typer.Option(help="Look at some records, and choose the lines that read them.")] = True,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
) -> None:
    """Write a first pipeline file.

    Asks for what was not given, on a terminal. Looks at the newest records, tries what might fit them, and writes the
    lines that read most, with the others as comments. Secrets go in as references: `--set
    'registry.password=${env:REGISTRY_PASSWORD}'`. A file that is there is not written over without --force.
    """
    if file.exists() and not force:
        raise BadInput(detail=f"{file} is there already: give another name, or --force to write over it")
    flags = {"kafka": kafka, "topic": topic, "delta": delta, "files": files, "registry": registry}
    document = document_of(
        {**flags, "registry_path": registry_path, "tables": tables, "name": name or _name_of(file)}, _asker()
    )
    for pair in more or ():
        put(document, pair)
    from distributary.audit.beginning import begin, without_looking

    try:
        beginning = begin(document) if look else without_looking(document)
    except EnvironmentFault:
        note("no file was written; to write the likely lines without looking at the source: the same with --no-look")
        raise
    file.write_text(beginning.text(), encoding="utf-8")
    for line in beginning.notes:
        note(line)
    say(f"wrote {file}\nnext: distributary doctor {file}, then: distributary plan {file}")


Ask = Callable[[str, str | None], str]
"""A question and the answer that is taken for none; the answer."""


def _asker() -> Ask | None:
    """Asks on a terminal; None where there is nobody to ask."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    return lambda question, default: str(typer.prompt(question, default=default, err=True))


def document_of(flags: Mapping[str, Any], ask: Ask | None) -> dict[str, Any]:
    """Pipeline, source, registry and tables, from flags and answers. Raises BadInput: what is missing, or too much."""
    source = _source(flags, ask)
    document: dict[str, Any] = {"pipeline": flags["name"], "source": source}
    if flags["registry"] and flags["registry_path"]:
        raise BadInput(detail="give --registry URL or --registry-path DIR, not both")
    if source["type"] != "datastream":
        url = flags["registry"]
        if url is None and flags["registry_path"] is None and ask is not None:
            url = ask("schema registry (URL; nothing where payloads have no schema)", "") or None
        if url is not None or flags["registry_path"] is not None:
            document["registry"] = {"url": url} if url is not None else {"path": flags["registry_path"]}
    document["tables"] = {"root": flags["tables"] or _asked(ask, "folder or address of the tables", "--tables ROOT")}
    return document


def _source(flags: Mapping[str, Any], ask: Ask | None) -> dict[str, Any]:
    kinds = [kind for kind in ("kafka", "delta", "files") if flags[kind] is not None]
    if len(kinds) > 1:
        raise BadInput(detail=f"give one source: --{' or --'.join(kinds)}")
    kind = kinds[0] if kinds else _asked(ask, "source (kafka, delta or files)", "--kafka, --delta or --files", "kafka")
    place = flags.get(kind)
    if kind == "kafka":
        servers = place or _asked(ask, "brokers (host:port)", "--kafka SERVERS", "localhost:9092")
        topics = flags["topic"] or _asked(ask, "topic", "--topic TOPIC").split(",")
        topics = [topic.strip() for topic in topics]
        return {"type": "kafka", "bootstrap_servers": servers, "topic": topics[0] if len(topics) == 1 else topics}
    if flags["topic"]:
        raise BadInput(detail="--topic goes with --kafka only")
    if kind not in ("delta", "files"):
        raise BadInput(detail=f"{kind!r} is no source here: allowed: kafka, delta, files")
    path = place or _asked(ask, "path", f"--{kind} PATH")
    return {"type": "delta" if kind == "delta" else "datastream", "path": path}


def _asked(ask: Ask | None, question: str, flag: str, default: str | None = None) -> str:
    if ask is None:
        raise BadInput(detail=f"init: give {flag} (there is no terminal to ask on)")
    return ask(question, default)


def _name_of(file: Path) -> str:
    return re.sub(r"[^a-z0-9_-]+", "-", file.stem.lower()).strip("-_")[:64] or "pipeline"


def put(document: dict[str, Any], pair: str) -> None:
    """Enter `a.b=value`, the value as YAML. Raises BadInput."""
    import yaml

    path, equals, text = pair.partition("=")
    if not equals or not all(path.split(".")):
        raise BadInput(detail=f"--set {pair}: allowed: KEY=VALUE, as trigger.every='1 minute'")
    *parents, last = path.split(".")
    place: Any = document
    for key in parents:
        place = place.setdefault(key, {}) if isinstance(place, dict) else None
    if not isinstance(place, dict):
        raise BadInput(detail=f"--set {path}: a key above it has a value of its own")
    # A reference is text, and not the mapping that YAML would read in it.
    place[last] = text if text.startswith("${") else yaml.safe_load(text)
