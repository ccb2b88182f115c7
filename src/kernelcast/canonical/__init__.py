r"""Canonical source, and the hash that names a kernel.

Canonical source has no comments, layout, docstrings or invisible characters, and nothing that the
entry does not reach. A name stays only if a list of the language or its libraries owns it; every
other name is a number, unless the caller asks for more names, and strings are empty. Forecasters
are shown no other source. Nothing here raises for a malformed kernel.
`docs/explanation/canonical.md` describes what stays.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Any, Literal

from kernelcast.cache import kept
from kernelcast.canonical._c import numbered_c, reduce_c
from kernelcast.canonical._lexer import Token, lex_c, lex_python, print_c
from kernelcast.canonical._python import (
    is_c,
    lex_canonical,
    numbered_python,
    plain_python,
    reduce_python,
)
from kernelcast.canonical._vocabulary import KeptNames, vocabulary
from kernelcast.errors import SetupError
from kernelcast.languages import dialect, endings, of_ending
from kernelcast.types import Kernel, Language

__all__ = [
    "NameStyle",
    "Token",
    "as_kernel",
    "canonical_parameters",
    "canonical_source",
    "canonical_tokens",
    "is_c",
    "kernel_id",
    "language_of",
    "read_kernel",
    "tokens",
]

NameStyle = Literal["numbered", "vocabulary"]
_SOURCES_KEPT = 8192


def language_of(path: PurePath, wanted: Language | None = None) -> Language | None:
    """The kernel language that a file's ending names, None where it names none.

    Args:
        path: The file.
        wanted: The language where several have the ending: `.py` is Triton's and PyTorch's.
    """
    if wanted is not None and path.suffix in dialect(wanted).endings:
        return wanted
    return of_ending(path.suffix)


def read_kernel(path: Path, wanted: Language | None = None) -> Kernel:
    """The kernel in a file, in the language of `language_of`."""
    language = language_of(path, wanted)
    if language is None:
        raise SetupError(f"{path} is no kernel file: known endings are {', '.join(endings())}")
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"{path} cannot be read as source text: {error}; remove it") from error
    if "\0" in source:
        raise SetupError(f"{path} is binary, not source text: remove it or name another file")
    return as_kernel(source, language)


def as_kernel(source: str, language: Language) -> Kernel:
    """A written kernel, under the id of its text."""
    return Kernel(id=kernel_id(source, language), language=language, source=source)


_encoded = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
"""One encoder for all: `json.dumps` makes a new one for each text."""


def canonical_parameters(parameters: Mapping[str, Any]) -> str:
    """Parameters as one text, whatever their order and whether 1 was written 1.0."""
    plain = {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in parameters.items()
    }
    return _encoded(plain)


@lru_cache(maxsize=_SOURCES_KEPT)
def kernel_id(source: str, language: str) -> str:
    """The name of a kernel: 32 hex digits, a hash of its language and comment-free tokens.

    Names that are the author's alone are numbered first, so that renaming them keeps the id.
    """
    return _kernel_id(source, language, repr(dialect(language)))


@kept(str.encode, bytes.decode)
def _kernel_id(source: str, language: str, _dialect: str) -> str:
    if _is_c_family(language):
        text = numbered_c(lex_c(source), vocabulary(language))
    else:
        text = numbered_python(source)
    return hashlib.sha256(f"{language}\0{text}".encode()).hexdigest()[:32]


@lru_cache(maxsize=_SOURCES_KEPT)
def canonical_source(
    source: str,
    language: str,
    entry: str | None = None,
    *,
    arguments: tuple[str, ...] = (),
    names: NameStyle = "numbered",
) -> str:
    """The same program without what only a reader would see, under numbers for names.

    Args:
        source: The kernel's text.
        language: A language that is built in or installed.
        entry: The function or class by which the problem calls the kernel. It keeps its name, and
            what it does not reach is dropped. Without it, whatever could be called from outside is
            kept.
        arguments: The problem's own names, as in `Problem.argument_names`; they stay. An entry in
            the C family with as many parameters shows these names for them.
        names: `vocabulary` also keeps the author's names that consist of words of the field, such
            as `tile_row`; `numbered` keeps none.

    Raises:
        SetupError: The language is none of these.
    """
    return _canonical_source(
        source, language, repr(dialect(language)), entry, "\n".join(arguments), names
    )


@kept(str.encode, bytes.decode)
def _canonical_source(
    source: str, language: str, _dialect: str, entry: str | None, arguments: str, names: str
) -> str:
    own = KeptNames(tuple(arguments.splitlines()), of_field=names == "vocabulary")
    if not _is_c_family(language):
        return reduce_python(source, entry, own)
    reduced, _ = reduce_c([lex_c(source)], vocabulary(language), entry, own=own)
    return print_c(reduced[0])


def canonical_tokens(source: str, language: str, entry: str | None = None) -> tuple[Token, ...]:
    """What the canonical source consists of; a string as Python's `repr` writes it."""
    canonical = canonical_source(source, language, entry)
    return lex_c(canonical) if _is_c_family(language) else lex_canonical(canonical)


def tokens(source: str, language: str) -> tuple[Token, ...]:
    """What the source consists of, under its own names, once comments and layout are gone."""
    if _is_c_family(language):
        return lex_c(source)
    return lex_python(plain_python(source))


def _is_c_family(language: str) -> bool:
    return dialect(language).family == "c"
