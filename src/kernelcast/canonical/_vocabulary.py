"""The closed vocabulary: the only names that canonical source keeps unless it is told otherwise.

Each file of `vocabulary/` is one word a line. A word that starts with a dot stays only behind `.`,
`->` and `::`, and as a keyword of a call in Python; any other stays wherever it stands. The words
of `field.txt` are those of which an author's own name may consist.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

from kernelcast.languages import dialect

_FOLDER = Path(__file__).parent / "vocabulary"
_ROLES = tomllib.loads((_FOLDER / "roles.toml").read_text(encoding="utf-8"))
_TEXTS = ("assembly", "headers", "pragmas")
_NUMBERED = re.compile(r"(?:[aCfgmMnpPTuv]|func)\d+")
_FIELD_NAME = re.compile(r"([A-Za-z]+(?:_[A-Za-z]+)*)(\d{1,2})?")
_FIELD_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_MOST_WORDS = 4  # a sentence does not fit


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


@dataclass(frozen=True)
class KeptNames:
    """The author's names that stay. None of them looks like a number that stands for a name."""

    arguments: tuple[str, ...] = ()
    """The problem's own names of its arguments, in the order of the C signature."""
    of_field: bool = False
    """Whether names stay that consist of words of `field.txt`."""
    taken: frozenset[str] = frozenset()
    """Names under which canonical source shows something else."""

    def __contains__(self, name: str) -> bool:
        is_wanted = name in self.arguments or (self.of_field and _is_of_field(name))
        return is_wanted and name not in self.taken and not _NUMBERED.fullmatch(name)

    def without(self, taken: Collection[str]) -> KeptNames:
        """The same names but for those that are taken."""
        return replace(self, taken=frozenset(taken))


NO_NAMES = KeptNames()


@cache
def _field() -> frozenset[str]:
    return frozenset(_read("field"))


@lru_cache(maxsize=10_000)
def _is_of_field(name: str) -> bool:
    """Whether a name consists of words of the field, joined by `_` or written as in `warpSum`.

    Letters cannot spell a word and words no sentence: at most one word is a letter, and at most
    four words stand in a name, each once. `x` takes no number, since `x16` reads as a speedup.
    """
    match = _FIELD_NAME.fullmatch(name)
    if not match:
        return False
    words = [word.lower() for word in _FIELD_WORD.findall(match[1])]
    return (
        len({*words}) == len(words) <= _MOST_WORDS
        and sum(len(word) == 1 for word in words) <= 1
        and not (words[-1] == "x" and match[2])
        and _field().issuperset(words)
    )


class Numbers:
    """Numbers for names in the order in which they first appear; names that are kept take none.

    A name has one number in each home: the whole program is home "", a function is its own.
    """

    def __init__(self, kept: KeptNames = NO_NAMES) -> None:
        self._kept = kept
        self._names: dict[tuple[str, str], str] = {}
        self._counts: Counter[tuple[str, str]] = Counter()

    def of(self, name: str, prefix: str, home: str = "") -> str:
        """The canonical name: `prefix` and a number, or the name itself if it is kept."""
        if (home, name) not in self._names:
            if name in self._kept:
                self._names[home, name] = name
            else:
                self._counts[home, prefix] += 1
                self._names[home, name] = f"{prefix}{self._counts[home, prefix]}"
        return self._names[home, name]

    def call(self, name: str, new: str, home: str) -> None:
        """Show a name under another one in a home."""
        self._names[home, name] = new

    def known(self, name: str) -> str | None:
        """The canonical name of a name of the whole program, if it has one."""
        return self._names.get(("", name))
