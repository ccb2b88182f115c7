"""The one way to show a result: tables and lines for a reader, or JSON."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kernelcast.report.terminal import Terminal, echo_source

NO_EXPERIENCE = "Nothing like this was measured: the forecast is that of any kernel."


@dataclass(frozen=True)
class Report:
    """What a command reports: `facts` for `--json`, `parts` for a reader."""

    facts: dict[str, Any]
    parts: Sequence[Table | Text]

    def show(self, terminal: Terminal, *, as_json: bool) -> None:
        """Print the facts as one line of JSON, or the parts."""
        if as_json:
            echo_source(f"{json.dumps(self.facts)}\n")
            return
        for part in self.parts:
            terminal.print(part)


def write_json(path: Path, facts: Any) -> None:
    """Write plain data to a file, in a folder that is made if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{json.dumps(facts, indent=1)}\n")


def table(
    title: str | None,
    columns: Sequence[str],
    rows: Iterable[Sequence[RenderableType]] = (),
    *,
    left: Collection[int] = (0,),
    yields: int | None = None,
) -> Table:
    """Build a table.

    Args:
        title: Line above the table.
        columns: Headers.
        rows: Cells, row by row.
        left: Positions of the left-justified columns; the others are right-justified.
        yields: Position of the column that alone is narrowed on a small terminal. By default all
            columns but the first are.
    """
    built = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for at, column in enumerate(columns):
        built.add_column(
            column,
            justify="left" if at in left else "right",
            no_wrap=at == 0 if yields is None else at != yields,
            overflow="fold",
        )
    for row in rows:
        built.add_row(*row)
    return built


def listing(title: str | None, rows: Iterable[tuple[str, RenderableType]]) -> Table:
    """Build a table of names and values without a header."""
    built = table(title, ("", ""), rows, left=(0, 1))
    built.show_header = False
    built.columns[0].style = "bold"
    return built
