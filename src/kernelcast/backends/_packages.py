"""What confined Python may import: the packages that are installed here."""

from __future__ import annotations

import importlib.util
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kernelcast.backends._sandbox import interpreter_trees
from kernelcast.errors import SetupError

_PACKAGE_FOLDERS = ("site-packages", "dist-packages")
_IMPORT = re.compile(r"^[ \t]*(?:import|from)[ \t]+([A-Za-z_]\w*)", re.MULTILINE)
_MOST_IMPORTS = 64


@dataclass(frozen=True)
class Packages:
    """What confined Python may import: everything that is installed, and what it names itself.

    The latter are packages that are installed to be edited, by name, wherever they are. A folder
    that contains the home or the working folder is never readable, nor is a repository.
    """

    installed: list[str]
    edited: dict[str, str]

    @classmethod
    def of(cls, source: str) -> Packages:
        """The packages of a source, found without running or importing anything."""
        folders = [path for path in map(_real, sys.path) if path.name in _PACKAGE_FOLDERS]
        installed = [path for path in dict.fromkeys(folders) if path.is_dir()]
        readable = [*installed, *map(Path, interpreter_trees())]
        private = [Path.home().resolve(), Path.cwd()]
        edited = {}
        for name in [*dict.fromkeys(_IMPORT.findall(source))][:_MOST_IMPORTS]:
            folder = _package_folder(name)
            if (
                folder is not None
                and not any(folder.is_relative_to(tree) for tree in readable)
                and not any(path.is_relative_to(folder) for path in private)
                and not (folder / ".git").exists()
            ):
                edited[name] = str(folder)
        return cls(list(map(str, installed)), edited)

    @property
    def readable(self) -> Iterator[Path]:
        """The folders to show to the process, Python's own included."""
        return map(Path, (*interpreter_trees(), *self.installed, *self.edited.values()))


def require_readable_by_all(folders: Iterable[Path]) -> None:
    """Raise `SetupError` if a process that becomes another user could not read a folder."""
    for folder in folders:
        for path in (folder, *folder.parents):
            if not path.stat().st_mode & stat.S_IXOTH:
                raise SetupError(
                    f"the sandbox runs Python as another user, which may not read {folder}: "
                    "install bubblewrap, or Python and its packages where every user may read them"
                )


def _real(path: str) -> Path:
    return Path(os.path.realpath(path))


def _package_folder(name: str) -> Path | None:
    """The folder of an importable package; None for a module without one."""
    with suppress(ImportError, ValueError, AttributeError):
        spec = importlib.util.find_spec(name)
        if spec and spec.origin and spec.submodule_search_locations:
            return _real(spec.origin).parent
    return None
