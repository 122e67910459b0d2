"""`serve`: the page about a pipeline, live on this machine."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from distributary.cli.options import File
from distributary.cli.output import note, say
from distributary.kinds import kind_of

if TYPE_CHECKING:
    from distributary.audit.page import Gatherer


def serve(
    file: File,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Of 127.0.0.1; 0: any that is free.")] = 8420,
) -> None:
    """Show the pipeline in a browser, live.

    A page of this machine only (127.0.0.1), without a password: whether it is well, throughput and freshness over time,
    each table with search and sort, the quarantine by reason with a sample, which schema and column came when, what is
    parked and why, and which cluster has which routes. Works beside a run, or without one; changes nothing, needs no
    Spark and no network. Also /metrics, /healthz, and /readyz, which says 503 while the pipeline is not well. Ends with
    Ctrl-C. Needs the extra `serve`. The same page as one file: `status FILE --html OUT`.
    """
    from distributary.audit.page import document, served

    gatherer = gatherer_of(file)
    document(gatherer.gather())  # says now, and not in the browser, what is missing
    with served(gatherer, port) as address:
        say(address)
        note("Ctrl-C ends it")
        with suppress(KeyboardInterrupt):
            threading.Event().wait()


def write_page(file: Path, out: Path) -> None:
    """Write the page of `status --html`. Raises OSError, ExtraMissing."""
    from distributary.audit.page import document
    from distributary.audit.page.gathered import HISTORIES

    out.write_text(document(gatherer_of(file).gather(histories=HISTORIES)), encoding="utf-8")
    say(f"wrote {out}")


def gatherer_of(file: Path) -> Gatherer:
    from distributary.audit.page import Gatherer
    from distributary.audit.status import naming
    from distributary.config import load

    config = load(file)
    kind = kind_of(config, file)
    return Gatherer(config, lambda: naming(kind.status(), str(file)), kind.quarantined_rows)
