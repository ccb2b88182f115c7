from __future__ import annotations

import inspect
import math

import pytest

from kernelcast import errors
from kernelcast.errors import KernelcastError, MissingExtra, SetupError, import_extra


def tree() -> list[type[Exception]]:
    return [
        member
        for _, member in inspect.getmembers(errors, inspect.isclass)
        if issubclass(member, Exception)
    ]


def test_every_error_is_ours() -> None:
    assert all(issubclass(member, KernelcastError) for member in tree())


def test_the_docstring_draws_the_tree_as_it_is() -> None:
    drawn: dict[str, str] = {}
    line_of_descent: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        name = line.lstrip(" │├└─").split(" ")[0]
        if name in {member.__name__ for member in tree()}:
            depth = (len(line) - len(line.lstrip(" │├└─"))) // 4
            line_of_descent[depth:] = [name]
            drawn[name] = line_of_descent[depth - 1] if depth else "Exception"
    assert drawn == {member.__name__: member.__bases__[0].__name__ for member in tree()}


def test_an_extra_that_is_there_is_imported() -> None:
    assert import_extra("math", "llm") is math


def test_an_extra_that_is_missing_is_named() -> None:
    with pytest.raises(MissingExtra, match=r"pip install 'kernelcast\[ray\]'") as caught:
        import_extra("no_such_package_here", "ray")
    assert isinstance(caught.value, SetupError)
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
