"""Make foreign text printable.

Problems, kernels, compilers, models and file names bring text that could move the cursor, clear the
screen or fake a result. Everything that kernelcast shows goes through a `Terminal` or `printable`.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable
from itertools import accumulate
from typing import Any

from rich.console import Console, ConsoleOptions, JustifyMethod, OverflowMethod, RenderableType
from rich.segment import Segment
from rich.status import Status
from rich.style import Style
from rich.table import Table
from rich.text import Span, Text

_UNPRINTABLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Unicode's categories of control, format and surrogate characters and of line separators."""
_TAB_SIZE = 8


def printable(text: str) -> str:
    r"""Replace control characters by visible escapes such as `\x1b`; keep newlines and tabs."""
    if text.isprintable():
        return text
    return "".join(map(_visible, text))


def echo_source(text: str) -> None:
    """Write text to standard output: as it is, or printable if that is a terminal."""
    if sys.stdout.isatty():
        sys.stdout.write(printable(text))
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode(errors="surrogatepass"))
        sys.stdout.buffer.flush()


class Terminal(Console):
    """A console without markup, emoji codes and control characters; only `style` adds a style."""

    def render_str(
        self,
        text: str,
        *,
        style: str | Style = "",
        justify: JustifyMethod | None = None,
        overflow: OverflowMethod | None = None,
        **_interpretation: Any,
    ) -> Text:
        """Return the string as printable text without interpreting it."""
        return Text(_laid_out(text), style=style, justify=justify, overflow=overflow)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render an object; its text is made printable before it is laid out."""
        if isinstance(renderable, Text):
            _make_printable(renderable)
        elif isinstance(renderable, Table):
            for column in renderable.columns:
                for cell in (column.header, *column.cells, column.footer):
                    if isinstance(cell, Text):
                        _make_printable(cell)
        for segment in super().render(renderable, options):
            # Other renderables bring text of their own.
            yield segment if segment.control else segment._replace(text=_laid_out(segment.text))

    def status(self, status: RenderableType, **options: Any) -> Status:
        """Return a spinner beside the status, which is not interpreted."""
        shown = self.render_str(status) if isinstance(status, str) else status
        return super().status(shown, **options)


def _visible(char: str) -> str:
    if char in "\n\t" or unicodedata.category(char) not in _UNPRINTABLE:
        return char
    return char.encode("unicode_escape").decode("ascii")


def _laid_out(text: str) -> str:
    """Return printable text without tabs, whose width rich does not know."""
    return printable(text).expandtabs(_TAB_SIZE)


def _make_printable(text: Text) -> None:
    """Make a text printable in place; styles stay with their characters."""
    plain = text.plain
    if plain.isprintable():
        return
    parts = [printable(char) for char in plain]
    starts = list(accumulate(map(len, parts), initial=0))
    spans = [
        Span(starts[max(start, 0)], starts[min(end, len(parts))], style)
        for start, end, style in text.spans
    ]
    text.plain = "".join(parts)
    text.spans = spans
    text.expand_tabs(_TAB_SIZE)
