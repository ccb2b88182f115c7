"""Arithmetic in problem files: shapes, work counts and template constraints.

Problem folders are data, so their expressions are parsed and walked, never executed.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any

from kernelcast.errors import ProblemError

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


@lru_cache(maxsize=4096)
def _parse(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ProblemError(f"cannot read the expression {text!r}: {error}") from error


def evaluate(text: str, names: Mapping[str, float | int | str]) -> Any:
    """Evaluate an expression of numbers, names, + - * / // %, comparisons, and/or/not.

    Raises:
        ProblemError: a name is unknown, or something else is not allowed or not defined.
    """

    def value(node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=int() | float() | str() as constant):
                return constant
            case ast.Name(id=name):
                if name not in names:
                    known = ", ".join(sorted(names))
                    raise ProblemError(f"{text!r} uses the unknown name {name!r}; known: {known}")
                return names[name]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return _BINARY[type(op)](value(left), value(right))
            case ast.UnaryOp(op=ast.USub() | ast.Not() as op, operand=operand):
                return -value(operand) if isinstance(op, ast.USub) else not value(operand)
            case ast.BoolOp(op=op, values=values):
                return (all if isinstance(op, ast.And) else any)(map(value, values))
            case ast.Compare(left=left, ops=ops, comparators=comparators) if all(
                type(op) in _COMPARE for op in ops
            ):
                operands = [value(operand) for operand in (left, *comparators)]
                return all(
                    _COMPARE[type(op)](*pair)
                    for op, pair in zip(ops, pairwise(operands), strict=True)
                )
        raise ProblemError(f"{text!r}: {ast.unparse(node)!r} is not allowed in an expression")

    try:
        return value(_parse(text))
    except (ArithmeticError, TypeError) as error:
        known = ", ".join(f"{name}={number!r}" for name, number in names.items())
        raise ProblemError(f"cannot work out {text!r} for {known}: {error}") from error
