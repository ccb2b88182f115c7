"""How the Python of a problem is called, as JSON values for a process that imports nothing of ours.

`_module` is the other end.
"""

from __future__ import annotations

from typing import Any

from kernelcast.structure import nested
from kernelcast.types import Case, Problem

NUMPY = "reference"
"""The name of a reference that takes NumPy arrays, and not PyTorch's tensors."""


def module_job(problem: Problem, weights_seed: int) -> dict[str, Any] | None:
    """The problem's `Module` with the seed of its weights; None if its reference is NumPy's."""
    if problem.module is None or problem.module.reference == NUMPY:
        return None
    return {**problem.module.model_dump(), "seed": weights_seed}


def case_calls(problem: Problem, case: Case) -> dict[str, Any]:
    """The structures of a case's calls, and the names, types and shapes of its arrays."""
    module = problem.module
    assert module is not None
    names = {role: [] for role in ("input", "output")}  # type: dict[str, list[str]]
    for argument in problem.arguments:
        names[argument.role].append(argument.name)
    both = {*names["input"], *names["output"]}

    def structure(text: str, arrays: list[str]) -> list[Any]:
        return nested(text or ", ".join(arrays), both, case.dimensions)

    def arrays(role: str) -> list[tuple[str, str, tuple[int, ...]]]:
        return [
            (argument.name, argument.dtype, argument.extent(case.dimensions))
            for argument in problem.arguments
            if argument.role == role
        ]

    init = None if module.init is None else nested(module.init, (), case.dimensions)
    call = structure(module.call, names["input"])
    written = set(_array_names(call))
    returned = [name for name in names["output"] if name not in written]
    return {
        "init": init,
        "call": call,
        "returns": structure(module.returns, returned),
        "dimensions": dict(case.dimensions),
        "outputs": arrays("output"),
        "drawn": arrays("input"),
    }


def _array_names(nested: Any) -> list[str]:
    if isinstance(nested, list):
        return [name for item in nested for name in _array_names(item)]
    if isinstance(nested, dict):
        ((kind, content),) = nested.items()
        return [content] if kind == "array" else _array_names(content)
    return []
