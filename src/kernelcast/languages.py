"""What kernelcast knows of each kernel language: how its text is read, how its files are called.

The built-in languages are listed here. A package adds one by an entry point in the group
`kernelcast`, named `language.<name>`, whose value is a `Dialect`. Entry points are read only for
what is not built in, and when all languages are listed.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Literal

from kernelcast import dtypes, plugins
from kernelcast.errors import SetupError, UnknownComponent
from kernelcast.types import Language

_C = ("c", "cpp", "openmp", "simd")
_GPU = (*_C, "cuda", "cub", "cute", "pytorch", "pytorch_cpp")
_PYTHON = ("python", "pytorch", "triton")
_MOST_PATHS = 8


@dataclass(frozen=True)
class Dialect:
    """How the kernels of one language are read.

    Attributes:
        family: The language whose tokens, comments and scopes it has.
        endings: Endings of its files, such as `.cpp`; a problem's seed has the first.
        lists: Files of `canonical/vocabulary` whose words canonical source keeps.
        words: Further words that it keeps; one that starts with a dot stays only behind an access.
        on_cpu: Whether its kernels run on this machine's CPU if no device is named.
        dtypes: What its kernels call the elements of an array, by data type, where that is not what
            C++ on a CPU calls them. The name is empty for a type that the language does not have.
    """

    family: Literal["c", "python"]
    endings: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    on_cpu: bool = False
    dtypes: Mapping[str, str] = field(default_factory=dict)


BUILT_IN: Mapping[Language, Dialect] = MappingProxyType(
    {
        "cpp": Dialect("c", (".cpp", ".cc"), _C, on_cpu=True),
        "cuda": Dialect("c", (".cu",), _GPU, dtypes=dtypes.names_in("cuda")),
        "hip": Dialect("c", (".hip",), (*_GPU, "hip")),
        "opencl": Dialect(
            "c", (".cl",), ("c", "opencl"), on_cpu=True, dtypes=dtypes.names_in("opencl")
        ),
        "python": Dialect("python", (), _PYTHON),
        # Before Triton, whose files have the same ending: a file alone is taken for Triton's.
        "torch": Dialect("python", (".py",), _PYTHON, on_cpu=True, dtypes=dtypes.names_in("torch")),
        "triton": Dialect("python", (".py",), _PYTHON, dtypes=dtypes.names_in("triton")),
    }
)
_BUILT_IN_ENDINGS = {end: name for name, read in BUILT_IN.items() for end in read.endings}


def names() -> list[Language]:
    """Return the names of the languages that are built in or installed."""
    return sorted({*BUILT_IN, *plugins.names("language")})


def dialect(language: Language) -> Dialect:
    """Return how a language is read.

    Raises:
        UnknownComponent: It is neither built in nor installed.
        SetupError: Its package is broken.
    """
    return BUILT_IN.get(language) or _installed(language, tuple(sys.path))


def element_type(language: Language, dtype: dtypes.Name) -> str:
    """Return what the kernels of a language call the elements of an array; empty if they have none.

    Raises:
        UnknownComponent: The language is neither built in nor installed.
        SetupError: Its package is broken.
    """
    in_cpp = dtypes.dtype_of(dtype).in_language["cpp"]
    return dialect(language).dtypes.get(dtype, in_cpp)


def ending_of(language: Language) -> str:
    """Return the ending of a file in a language; `.txt` where none is known."""
    with suppress(SetupError):
        return next(iter(dialect(language).endings), ".txt")
    return ".txt"


def endings() -> dict[str, Language]:
    """Return the language of each ending that is built in or installed."""
    return {**_installed_endings(tuple(sys.path)), **_BUILT_IN_ENDINGS}


def of_ending(ending: str) -> Language | None:
    """Return the language that an ending names; None where it names none."""
    built_in = _BUILT_IN_ENDINGS.get(ending)
    return built_in or _installed_endings(tuple(sys.path)).get(ending)


# Which packages are installed depends on the path, and reading it takes milliseconds.
@lru_cache(maxsize=_MOST_PATHS)
def _installed(language: Language, _path: tuple[str, ...]) -> Dialect:
    try:
        found = plugins.find("language", language)
    except UnknownComponent as error:
        raise UnknownComponent(
            f"no language {language!r}: known are {', '.join(names())}; a package adds one by the "
            f"entry point language.{language} in the group kernelcast"
        ) from error
    if not isinstance(found, Dialect):
        raise SetupError(
            f"the entry point language.{language} is {found!r}, not a kernelcast.languages.Dialect:"
            " correct its package, or remove it"
        )
    return found


@lru_cache(maxsize=_MOST_PATHS)
def _installed_endings(_path: tuple[str, ...]) -> dict[str, Language]:
    return {end: name for name in plugins.names("language") for end in dialect(name).endings}
