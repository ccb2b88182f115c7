"""Faults that the text of a Python kernel shows, without running it.

pyflakes finds the names that nothing binds. A kernel is judged by what its entry reaches: harnesses
replace the inputs that it makes for itself. C++ in a string is not compiled here, so only what the
module around it contradicts is a fault.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from kernelcast.cache import kept
from kernelcast.canonical._python import embedded_sources, imported_names, reachable_tree
from kernelcast.canonical._vocabulary import vocabulary
from kernelcast.languages import dialect
from kernelcast.types import UNSTATED_ENTRY

FaultKind = Literal["syntax", "entry", "name", "attribute", "balance", "function", "launch"]
FAULT_KINDS: tuple[FaultKind, ...] = get_args(FaultKind)

_NOT_JUDGED = frozenset({"get_inputs", "get_init_inputs"})
# Namespaces whose names the vocabulary lists. Options, operators of extensions and private names
# differ by release and by build.
_LISTED = frozenset(
    (
        *("torch", "torch.nn", "torch.nn.functional", "torch.cuda", "torch.linalg"),
        *("triton", "triton.language", "triton.language.math"),
    )
)
_NO_CODE = re.compile(
    r"//[^\n]*|/\*.*?(?:\*/|\Z)|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])'", re.DOTALL
)
_BRACKETS = (("(", ")"), ("{", "}"), ("[", "]"))


@dataclass(frozen=True)
class Fault:
    """One fault, in words."""

    kind: FaultKind
    text: str


def _encode(found: tuple[Fault, ...]) -> bytes:
    return json.dumps([[fault.kind, fault.text] for fault in found]).encode()


def _decode(data: bytes) -> tuple[Fault, ...]:
    return tuple(Fault(kind, text) for kind, text in json.loads(data))


@lru_cache(maxsize=8192)
@kept(_encode, _decode)
def faults(source: str, language: str, entry: str | None = None) -> tuple[Fault, ...]:
    """Return the faults of a kernel's text; none of a language that has a compiler.

    Args:
        source: The kernel's text.
        language: Its language; only those like Python are read.
        entry: The function or class by which the problem calls the kernel, if it is stated.
    """
    if dialect(language).family != "python" or not source.strip():
        return ()
    try:
        tree, has_entry = reachable_tree(source, entry, without=_NOT_JUDGED)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return (Fault("syntax", f"it is not Python: {getattr(error, 'msg', error)}"),)
    is_called = has_entry or entry in (None, UNSTATED_ENTRY)
    missing = [] if is_called else [Fault("entry", f"it defines no {entry}")]
    return (*missing, *_unbound(tree), *_unknown(tree), *_embedded(tree))


def _unbound(tree: ast.Module) -> Iterator[Fault]:
    # Slow to import, and needed only where a text is read.
    from pyflakes.checker import Checker
    from pyflakes.messages import DuplicateArgument, UndefinedName

    names = dict.fromkeys(
        str(message.message_args[0])
        for message in Checker(tree).messages
        if isinstance(message, DuplicateArgument | UndefinedName)
    )
    return (Fault("name", f"nothing defines the name {name!r}") for name in names)


def _unknown(tree: ast.Module) -> Iterator[Fault]:
    """Yield what the module reads from PyTorch or Triton and no release of them has."""
    imports = imported_names(tree)
    known = vocabulary("python").members
    # A module that names an attribute in a string asks whether it is there.
    asked = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)):
            continue
        if node.attr in known or node.attr in asked or node.attr.startswith("_"):
            continue
        root, dot, rest = ast.unparse(node.value).partition(".")
        space = f"{imports.get(root, '')}{dot}{rest}"
        if space in _LISTED:
            yield Fault("attribute", f"{space} has no {node.attr}")


def _embedded(tree: ast.Module) -> Iterator[Fault]:
    sources = embedded_sources(tree)
    if not sources:
        return
    code = _NO_CODE.sub(" ", "\n".join(sources))
    for opening, closing in _BRACKETS:
        if code.count(opening) != code.count(closing):
            yield Fault("balance", f"its C++ has {opening!r} and {closing!r} in unlike numbers")
    if "__global__" in code and "<<<" not in code and "LaunchKernel" not in code:
        yield Fault("launch", "its C++ has a kernel and launches none")
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "functions":
            for part in ast.walk(node.value):
                name = part.value if isinstance(part, ast.Constant) else None
                if isinstance(name, str) and not re.search(rf"\b{re.escape(name)}\s*\(", code):
                    yield Fault("function", f"its C++ does not define {name!r}")
