"""Structure: how arrays, numbers and words are nested in the arguments of a Python call.

A text is what stands between the parentheses of a call: `x, (h, c), {"scale": 0.5}, K // 2`. Its
names are arrays, or dimensions, of which there may be arithmetic. `torch.float16` and other names
of torch stay names. Everything else is a literal, a tuple, a list or a dictionary. A nested
structure is made of JSON values, because another process builds the arguments from it.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from kernelcast.errors import ProblemError
from kernelcast.expression import MOST_CHARACTERS, evaluate

_CALL = "f({})"

Nested = Any
"""A number, a word or None; a list; or an object with the one key `array`, `torch`, `tuple` or
`dict`, whose value is a name, a list, or a list of pairs."""


def nested(text: str, arrays: Collection[str], dimensions: Mapping[str, int]) -> list[Nested]:
    """The positional arguments of a text, with the values that these dimensions give.

    Raises:
        ProblemError: The text is no list of arguments, or holds what it must not.
    """
    source = _CALL.format(text)
    return [_nested(node, source, arrays, dimensions) for node in _arguments(text)]


def array_names(text: str) -> list[str]:
    """Every name of a text in the order in which it stands there, dimensions included."""
    return [
        node.id
        for argument in _arguments(text)
        for node in _in_order(argument)
        if isinstance(node, ast.Name) and node.id != "torch"
    ]


def _arguments(text: str) -> list[ast.expr]:
    if len(text) > MOST_CHARACTERS:
        raise ProblemError(f"{text[:60]!r}...: it has more than {MOST_CHARACTERS} characters")
    try:
        call = ast.parse(_CALL.format(text), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ProblemError(f"{text!r} cannot stand between the parentheses of a call") from error
    if not isinstance(call, ast.Call) or call.keywords or not isinstance(call.func, ast.Name):
        raise ProblemError(f"{text!r} is no list of positional arguments")
    return call.args


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    """Everything in a node but the names of functions; a chain of signs may be deep."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        children = node.args if isinstance(node, ast.Call) else ast.iter_child_nodes(node)
        waiting += reversed(list(children))


def _nested(
    node: ast.expr, source: str, arrays: Collection[str], dimensions: Mapping[str, int]
) -> Nested:
    def inner(child: ast.expr) -> Nested:
        return _nested(child, source, arrays, dimensions)

    written = ast.get_source_segment(source, node) or ""
    match node:
        case ast.Name(id=name) if name in arrays:
            return {"array": name}
        case ast.Constant(value=value) if value is None or isinstance(value, bool | str):
            return value
        case ast.Attribute(value=ast.Name(id="torch"), attr=name):
            return {"torch": name}
        case ast.Tuple(elts=items):
            return {"tuple": [inner(item) for item in items]}
        case ast.List(elts=items):
            return [inner(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            if not all(isinstance(key, ast.Constant) for key in keys):
                raise ProblemError(f"{written}: write the keys as literals")
            named = zip(keys, values, strict=True)
            return {"dict": [[inner(key), inner(value)] for key, value in named if key is not None]}
        case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value=str(word))]):
            return float(word)
    return evaluate(written, dimensions)
