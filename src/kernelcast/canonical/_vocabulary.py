"""The closed vocabulary: the only names that canonical source may keep.

Each file of `vocabulary/` is one word a line. A word that starts with a dot stays only behind `.`,
`->` and `::`, and as a keyword of a call in Python; any other stays wherever it stands.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

from kernelcast.languages import dialect

_FOLDER = Path(__file__).parent / "vocabulary"
_ROLES = tomllib.loads((_FOLDER / "roles.toml").read_text(encoding="utf-8"))
_TEXTS = ("assembly", "headers", "pragmas")


class Vocabulary(NamedTuple):
    """The words that the language and its libraries own."""

    names: frozenset[str]
    members: frozenset[str]
    """Words that stay behind an access only; `names` stay there as well."""
    texts: frozenset[str]
    """Words inside assembly, pragmas and header names."""
    strings: frozenset[str]
    """Whole strings that Python may keep, such as devices and compiler flags."""


def role(name: str) -> frozenset[str]:
    """The words of a role in `roles.toml`."""
    return frozenset(_ROLES[name].split())


@cache
def vocabulary(language: str) -> Vocabulary:
    """The vocabulary of a kernel language."""
    read = dialect(language)
    listed = {*read.words, *(word for name in read.lists for word in _read(name))}
    names = {word for word in listed if not word.startswith(".")}
    return Vocabulary(
        names=frozenset(names),
        members=frozenset(names | {word[1:] for word in listed if word.startswith(".")}),
        texts=frozenset(word for name in _TEXTS for word in _read(name)),
        strings=frozenset(_read("strings")),
    )


def _read(name: str) -> list[str]:
    return (_FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines()


class Numbers:
    """Numbers for names in the order in which they first appear.

    A name has one number in each home: the whole program is home "", a function is its own.
    """

    def __init__(self) -> None:
        self._names: dict[tuple[str, str], str] = {}
        self._counts: Counter[tuple[str, str]] = Counter()

    def of(self, name: str, prefix: str, home: str = "") -> str:
        """The canonical name: `prefix` and a number."""
        if (home, name) not in self._names:
            self._counts[home, prefix] += 1
            self._names[home, name] = f"{prefix}{self._counts[home, prefix]}"
        return self._names[home, name]

    def known(self, name: str) -> str | None:
        """The canonical name of a name of the whole program, if it has one."""
        return self._names.get(("", name))
