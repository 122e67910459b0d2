"""The generated part of docs/peers.md, made of what the trials found."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from bench.result import markdown_table

BEGIN, END = "<!-- Made by `make peers`. -->", "<!-- end -->"


def page(text: str, results: Mapping[str, Any] | None) -> str:
    """The page, with the part between its marks made anew. `results`: None before the first run."""
    made = "Not measured yet." if results is None else "\n".join(_lines(results))
    return re.sub(f"{BEGIN}.*?{END}", lambda _: f"{BEGIN}\n{made}\n{END}", text, flags=re.DOTALL)


def _lines(results: Mapping[str, Any]) -> Iterator[str]:
    size, machine, peers = results["size"], results["machine"], results["peers"]
    tried = {name: peer for name, peer in peers.items() if "missing" not in peer}
    yield (
        f"Measured on {results['date']}: {machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB "
        f"of memory, {machine['system']}; {size['kinds']} tables, loads of {size['load']:,} records of "
        f"{results['bytes']} bytes. {results['remark']}".strip()
    )
    yield ""
    yield from markdown_table(
        ["", "writes", "versions", "settings that are not the default"],
        ([p["title"], p["writes"], _versions(p), p["settings"]] for p in tried.values()),
    )
    yield ""
    yield "Figures: seconds, CPU seconds, MiB."
    yield ""
    yield from markdown_table(
        ["", "cold load", "warm load", "memory", "freshness", "after a kill"],
        ([p["title"], *_figures(p["found"])] for p in tried.values()),
    )
    yield ""
    yield from markdown_table(
        ["", "a field that no record had before", "a route that nobody was told of", "a record that is no JSON"],
        ([p["title"], *_news(p, size["few"])] for p in tried.values()),
    )
    for peer in peers.values():
        if "missing" in peer:
            yield f"\n**{peer['title']}** is not in the tables: {peer['missing']}"


def _versions(peer: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {number}" for name, number in peer["versions"].items())


def _figures(found: Mapping[str, Any]) -> list[str]:
    cold, warm, steady, killed = (found.get(name) for name in ("cold", "warm", "steady", "killed"))
    none = f"did not get there: {found['ended']['why']}" if "ended" in found else ""
    return [
        f"{_number(cold['seconds'])} s, {_number(cold['cpu_sec'])} of CPU" if cold else none,
        f"{_number(warm['seconds'])} s, {_number(warm['cpu_sec'])} of CPU" if warm else none,
        f"{max(cold['memory_mib'], warm['memory_mib']):,}" if cold and warm else none,
        f"mean {_number(steady['mean_sec'])} s, p95 {_number(steady['p95_sec'])} s; {_number(steady['cpu_sec'])} of CPU"
        if steady
        else none,
        _killed(killed) if killed else none,
    ]


def _killed(killed: Mapping[str, Any]) -> str:
    back = ", ".join(_number(seconds) for seconds in killed["back_sec"])
    return f"all there again after {back} s; {killed['lost']} lost, {killed['doubled']} doubled"


def _news(peer: Mapping[str, Any], few: int) -> list[str]:
    found = peer["found"]
    cells = [_come(found.get(name), few) for name in ("new_column", "new_route", "bad")]
    if column := found.get("new_column"):
        where = f"in the column `{column['column']}`" if column["values"] == few else "not kept"
        cells[0] += f"; the field: {where}" if column["rows"] else ""
    if bad := found.get("bad"):
        cells[2] += f"; the record: {bad['kept'] or 'nowhere'}" if bad["rows"] >= few else ""
        if tolerant := bad.get("tolerant"):
            cells[2] += f". With {peer['tolerance']}: {_rows(tolerant['rows'], few)}"
            cells[2] += f"; the record: {tolerant['kept'] or 'nowhere'}"
    return cells


def _come(found: Mapping[str, Any] | None, few: int) -> str:
    if found is None:
        return "did not get there"
    if found["seconds"] is not None:
        return f"{_rows(found['rows'], few)} after {_number(found['seconds'])} s"
    state = "it works on" if found["working"] else f"it stops ({found['why']})" if found["why"] else "it stops"
    return f"{_rows(found['rows'], few)}; {state}"


def _rows(rows: int, few: int) -> str:
    return f"all {few} rows" if rows == few else f"{rows} of {few} rows"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
