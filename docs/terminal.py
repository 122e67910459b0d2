"""A picture of what a command printed, as SVG, light or dark as its reader's screen is.

make pictures
"""

from __future__ import annotations

import re
import sys
from html import escape

COLUMNS, HEAD, TAIL = 128, 13, 20
"""Characters of a line; so many lines of the beginning and of the end are shown, what is between is `...`."""
_CHAR_PX, _LINE_PX, _SIZE_PX, _MARGIN_PX = 7.25, 18, 12, 16
_STYLE = """
    .screen { fill: #f8fafc; stroke: #cbd5e1 } text { fill: #334155; white-space: pre }
    .command { fill: #0f766e; font-weight: bold } .good { fill: #15803d } .bad { fill: #b45309 } .dim { fill: #64748b }
    @media (prefers-color-scheme: dark) {
      .screen { fill: #0f172a; stroke: #334155 } text { fill: #e2e8f0 }
      .command { fill: #5eead4 } .good { fill: #86efac } .bad { fill: #fcd34d } .dim { fill: #94a3b8 }
    }"""
_MARKS = (
    (r"\$ .*", "command"),
    (r"\.\.\.", "dim"),
    (r"(?:new tables|new columns|verified)\b[^;]*", "good"),
    (r"quarantined: [^;]*|PARKED: [^;]*", "bad"),
)
_MARK = re.compile("|".join(f"({pattern})" for pattern, _ in _MARKS))


def shown(command: str, printed: list[str]) -> list[str]:
    """The lines of the picture."""
    lines = [line.expandtabs().rstrip() for line in printed]
    if len(lines) > HEAD + TAIL + 1:
        lines = [*lines[:HEAD], "...", *lines[-TAIL:]]
    return [f"$ {command}", *(line if len(line) <= COLUMNS else f"{line[: COLUMNS - 4]} ..." for line in lines)]


def picture(title: str, lines: list[str]) -> str:
    """The SVG. `lines`: plain text."""
    width = round(2 * _MARGIN_PX + COLUMNS * _CHAR_PX)
    height = 2 * _MARGIN_PX + len(lines) * _LINE_PX
    rows = "\n".join(
        f'  <text x="{_MARGIN_PX}" y="{_MARGIN_PX + (number + 1) * _LINE_PX - 5}">{_coloured(line)}</text>'
        for number, line in enumerate(lines)
    )
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}"
     font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="{_SIZE_PX}" xml:space="preserve">
  <style>{_STYLE}
  </style>
  <rect class="screen" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>
{rows}
</svg>
"""


def _coloured(line: str) -> str:
    parts, end = [], 0
    for found in _MARK.finditer(line):
        style = _MARKS[(found.lastindex or 1) - 1][1]
        parts += [escape(line[end : found.start()]), f'<tspan class="{style}">{escape(found[0])}</tspan>']
        end = found.end()
    return "".join([*parts, escape(line[end:])])


if __name__ == "__main__":
    sys.stdout.write(picture(f"what {sys.argv[1]} prints", shown(sys.argv[1], sys.stdin.read().splitlines())))
