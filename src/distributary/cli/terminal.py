"""What reaches the terminal of results: text, and nothing that a terminal obeys but what is ours."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from distributary.names import printable


class PlainConsole(Console):
    """A console for which a text is a text: no markup, no emoji codes, and no control character in it gets through."""

    def __init__(self, **settings: int) -> None:
        super().__init__(highlight=False, soft_wrap=False, markup=False, emoji=False, **settings)  # type: ignore[arg-type]

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As rich's own, which passes on what a text has in it."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable(segment.text, keep="\n"), segment.style)
