"""Seed: the kernel that a problem begins with, made of the text of its reference."""

from __future__ import annotations

import ast
import io
import symtable
import tokenize
from collections.abc import Collection

_Statement = ast.stmt


def renamed(source: str, old: str, new: str) -> str:
    """The source with another name in place of one, but not in strings, comments and attributes."""
    lines = source.splitlines(keepends=True)
    previous = ""
    found = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME and token.string == old and previous != ".":
            found.append(token.start)
        if token.type not in (tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT):
            previous = token.string
    for row, column in reversed(found):
        line = lines[row - 1]
        lines[row - 1] = line[:column] + new + line[column + len(old) :]
    return "".join(lines)


def without(source: str, unneeded: Collection[str]) -> str:
    """The source without these definitions, and without assignments that only they need."""
    tree = ast.parse(source)
    kept: list[_Statement] = [node for node in tree.body if not _defines(node) & set(unneeded)]
    names = {name for node in tree.body if node not in kept for name in _read(node)}
    while idle := [node for node in kept if _is_idle(node, kept, names)]:
        names |= {name for node in idle for name in _read(node)}
        kept = [node for node in kept if node not in idle]
    lines = source.splitlines()
    for node in reversed(tree.body):
        if node in kept:
            continue
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
        last = node.end_lineno or node.lineno
        if any(_overlap(other, first, last) for other in tree.body if other is not node):
            continue
        while first > 1 and lines[first - 2].startswith("#"):
            first -= 1
        del lines[first - 1 : last]
    text = "\n".join(lines).strip("\n") + "\n"
    try:
        ast.parse(text)
    except SyntaxError:
        return source
    return text


def _defines(node: _Statement) -> set[str]:
    """Names of a function, or of an assignment."""
    if isinstance(node, ast.FunctionDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _overlap(node: _Statement, first: int, last: int) -> bool:
    return node.lineno <= last and (node.end_lineno or node.lineno) >= first


def _is_idle(
    node: _Statement, kept: Collection[_Statement], used_by_removed: Collection[str]
) -> bool:
    """Whether a statement only gives names that removed code alone has read."""
    if not isinstance(node, ast.Assign | ast.AnnAssign):
        return False
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    given = set()
    for target in targets:
        parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
        if not all(isinstance(part, ast.Name) for part in parts):
            return False
        given |= {part.id for part in parts if isinstance(part, ast.Name)}
    read_elsewhere = {name for other in kept if other is not node for name in _read(other)}
    return bool(given & set(used_by_removed)) and not given & read_elsewhere


def _read(node: ast.AST) -> set[str]:
    """Names of the module that a statement reads, also in the functions that it defines."""
    tables = [symtable.symtable(ast.unparse(node), "statement", "exec")]
    found = set()
    for table in tables:
        tables += table.get_children()
        at_top = table.get_type() == "module"
        found |= {
            symbol.get_name()
            for symbol in table.get_symbols()
            if symbol.is_referenced() and (at_top or symbol.is_global())
        }
    return found
