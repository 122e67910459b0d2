"""The facts as one HTML document: no other file, no network. All that comes from data is escaped by Jinja2, or set as
text by the page's script; what the script may do, the document's policy says by the digests of its scripts."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from importlib.resources import files
from typing import Any

from distributary.audit.page.gathered import Facts
from distributary.audit.status.pages import headline
from distributary.errors import ExtraMissing
from distributary.names import printable, shown
from distributary.redaction import redacted

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
    "script-src {scripts}; connect-src {reached}"
)


def document(facts: Facts, *, live: bool = False) -> str:
    """`live`: it asks where it came from for newer facts. Raises ExtraMissing."""
    scripts = {name: _text(name) for name in ("uplot.min.js", "page.js")}
    status = facts.status
    page: str = _template().render(
        title=f"{shown(status.pipeline)} - distributary",
        policy=POLICY.format(scripts=" ".join(map(_digest, scripts.values())), reached="'self'" if live else "'none'"),
        headline=headline(status),
        well=not status.unwell,
        attention=[printable(line) for line in status.attention],
        notes=[printable(line) for line in (*status.notes, *facts.notes)],
        at=status.at,
        live=live,
        facts=as_json(facts.to_json()),
        styles=_text("uplot.min.css") + _text("page.css"),
        chart=scripts["uplot.min.js"],
        script=scripts["page.js"],
    )
    return page


def as_json(value: Any) -> str:
    """JSON without a secret, and without a character that could end the element that holds it."""
    text = redacted(json.dumps(value, default=str))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _digest(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


@cache
def _text(name: str) -> str:
    return (files(__package__) / "files" / name).read_text(encoding="utf-8")


@cache
def _template() -> Any:
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError as e:
        raise ExtraMissing(what="a page about the pipeline", extra="serve", detail=str(e)) from e
    return Environment(autoescape=True, undefined=StrictUndefined).from_string(_text("page.html"))
