"""A Python file of a stranger, as text: what it defines, found without running it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TypeVar

from kernelcast.errors import ProblemError

_MOST_CHARACTERS = 1 << 18

Definition = TypeVar("Definition", ast.ClassDef, ast.FunctionDef)


def read_source(file: Path) -> str:
    """The text of a file."""
    try:
        source = file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ProblemError(f"{file} is missing: add it") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ProblemError(f"{file} cannot be read: {error}") from error
    if len(source) > _MOST_CHARACTERS:
        raise ProblemError(f"{file} has more than {_MOST_CHARACTERS:,} characters: shorten it")
    return source


def parsed(source: str, where: str) -> ast.Module:
    """The syntax tree of a file."""
    try:
        return ast.parse(source, where)
    except SyntaxError as error:
        raise ProblemError(f"{where}:{error.lineno}: {error.msg}; correct it") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ProblemError(f"{where} is no Python: {error}") from error


def defined(tree: ast.Module, name: str, kind: type[Definition], where: str) -> Definition:
    """The class or function of a name at a file's top level."""
    for node in tree.body:
        if isinstance(node, kind) and node.name == name:
            return node
    what = "class" if kind is ast.ClassDef else "function"
    raise ProblemError(f"{where} defines no {what} {name}: add it")


def returned_names(function: ast.FunctionDef) -> dict[int, str]:
    """The names in a returned tuple, by index."""
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
            parts = node.value.elts
            return {n: each.id for n, each in enumerate(parts) if isinstance(each, ast.Name)}
    return {}
