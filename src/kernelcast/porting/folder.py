"""Folder of an imported problem: its files, as `load_problem` reads them."""

from __future__ import annotations

import json
import math
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelcast.errors import SetupError
from kernelcast.problems import load_problem

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_MOST_SUMMARY = 200
_FILES = ("problem.toml", "reference.py", "seed.py")


@dataclass(frozen=True)
class Imported:
    """What became of a file: a folder, or the reason why there is none; and what to know of it."""

    name: str
    source: Path
    folder: Path | None = None
    refused: str = ""
    notes: tuple[str, ...] = ()


@dataclass
class ProblemFile:
    """The content of a problem.toml. A table's comments stand above it."""

    fields: dict[str, Any]
    module: dict[str, Any]
    arguments: list[dict[str, Any]]
    cases: dict[str, dict[str, Any]]
    work: dict[str, Any]
    tolerance: dict[str, Any]
    hidden: dict[str, Any] = field(default_factory=dict)
    comments: dict[str, list[str]] = field(default_factory=dict)

    def text(self) -> str:
        """The file's text."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield from self._remarks("")
        yield from _pairs(self.fields)
        yield from self._table("module", self.module)
        for argument in self.arguments:
            yield ""
            yield from self._remarks(f"arguments.{argument['name']}")
            yield "[[arguments]]"
            yield from _pairs(argument)
        yield from self._remarks_apart("cases")
        for name, case in self.cases.items():
            yield from self._table(f"cases.{name}", case)
        if self.hidden:
            yield from self._table("hidden", self.hidden)
        yield from self._table("work", self.work)
        yield from self._table("tolerance", self.tolerance)

    def _table(self, name: str, content: Mapping[str, Any]) -> Iterator[str]:
        yield ""
        yield from self._remarks(name)
        yield f"[{name}]"
        yield from _pairs(content)

    def _remarks(self, name: str) -> Iterator[str]:
        return (f"# {_one_line(line)}" for line in self.comments.get(name, ()))

    def _remarks_apart(self, name: str) -> Iterator[str]:
        if self.comments.get(name):
            yield ""
            yield from self._remarks(name)


def _pairs(content: Mapping[str, Any]) -> Iterator[str]:
    return (f"{_key(name)} = {toml_of(value)}" for name, value in content.items())


def toml_of(value: Any) -> str:
    """A value as TOML, in one line."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            # JSON's strings are TOML's, but for one character.
            text = json.dumps(value.encode(errors="replace").decode(), ensure_ascii=False)
            return text.replace("\x7f", "\\u007f")
        case int():
            return str(value)
        case float():
            return repr(value) if math.isfinite(value) else str(value)
        case Mapping():
            inner = ", ".join(f"{_key(name)} = {toml_of(each)}" for name, each in value.items())
            return f"{{ {inner} }}" if inner else "{}"
        case Sequence():
            return f"[{', '.join(map(toml_of, value))}]"
    raise TypeError(f"{value!r} has no form in TOML")


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else toml_of(name)


def _one_line(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)


def summary_of(text: str | None, instead: str) -> str:
    """The first sentence of a docstring."""
    words = " ".join(_one_line((text or "").replace("\n", " ")).split())
    first = re.split(r"(?<![A-Z])\.(?=\s+\W*[A-Z]|$)", words, maxsplit=1)[0]
    return first[:_MOST_SUMMARY] or instead


def name_of(text: str) -> str:
    """A folder's name."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", text).strip("_.-") or "problem"


def write_folder(folder: Path, problem: ProblemFile, reference: str, seed: str) -> None:
    """Write a problem's folder, once `load_problem` accepts it.

    Raises:
        SetupError: There is something else in its place.
        ProblemError: A part of it is not as a problem must be.
    """
    if folder.exists() and not _is_ours(folder):
        raise SetupError(f"{folder} is there, and not from an import: name another place by --to")
    files = dict(zip(_FILES, (problem.text(), reference, seed), strict=True))
    with tempfile.TemporaryDirectory(prefix="kernelcast-") as place:
        draft = Path(place) / folder.name
        draft.mkdir()
        for name, text in files.items():
            (draft / name).write_text(text, encoding="utf-8")
        load_problem(draft)
        folder.mkdir(parents=True, exist_ok=True)
        for name in files:
            shutil.copyfile(draft / name, folder / name)


def _is_ours(folder: Path) -> bool:
    """Whether a folder holds an imported problem, or nothing."""
    return folder.is_dir() and {path.name for path in folder.iterdir()} <= {*_FILES, "__pycache__"}
