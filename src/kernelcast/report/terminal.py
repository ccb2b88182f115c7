"""The one place that makes foreign text printable.

Problems, runs, kernels, compilers, models and file names bring text of their own. On a terminal
such text could move the cursor, clear the screen or fake a result. Everything that kernelcast
shows goes through a `Terminal`, or through `printable`.
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
    r"""The text with a visible escape, such as `\x1b`, in place of each character that acts.

    Newlines and tabs stay.
    """
    if text.isprintable():
        return text
    return "".join(map(_visible, text))


def echo_source(text: str) -> None:
    """Write a file's text to standard output: as it is, or printable if that is a terminal."""
    if sys.stdout.isatty():
        sys.stdout.write(printable(text))
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode(errors="surrogatepass"))
        sys.stdout.buffer.flush()


class Terminal(Console):
    """A console that shows text as it is: no markup, no emoji codes, no control characters.

    Only a `style` gives text a style.
    """

    def render_str(
        self,
        text: str,
        *,
        style: str | Style = "",
        justify: JustifyMethod | None = None,
        overflow: OverflowMethod | None = None,
        **_interpretation: Any,
    ) -> Text:
        """The string as text to lay out, printable and not interpreted."""
        return Text(_laid_out(text), style=style, justify=justify, overflow=overflow)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """What is written for an object: text is made printable before it is laid out."""
        if isinstance(renderable, Text):
            _make_printable(renderable)
        elif isinstance(renderable, Table):
            for column in renderable.columns:
                for cell in (column.header, *column.cells, column.footer):
                    if isinstance(cell, Text):
                        _make_printable(cell)
        for segment in super().render(renderable, options):
            # Nothing passes that a renderable of another kind brought.
            yield segment if segment.control else segment._replace(text=_laid_out(segment.text))

    def status(self, status: RenderableType, **options: Any) -> Status:
        """A spinner beside the status, which is not interpreted either."""
        shown = self.render_str(status) if isinstance(status, str) else status
        return super().status(shown, **options)


def _visible(char: str) -> str:
    if char in "\n\t" or unicodedata.category(char) not in _UNPRINTABLE:
        return char
    return char.encode("unicode_escape").decode("ascii")


def _laid_out(text: str) -> str:
    """Printable text without tabs, whose width rich does not know before it is too late."""
    return printable(text).expandtabs(_TAB_SIZE)


def _make_printable(text: Text) -> None:
    """Make a text printable in place; its styles stay with their characters."""
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
