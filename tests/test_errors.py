from __future__ import annotations

import inspect
import math

import pytest

from kernelcast import errors
from kernelcast.errors import KernelcastError, MissingExtra, SetupError, import_extra


def test_every_error_is_ours() -> None:
    members = [member for _, member in inspect.getmembers(errors, inspect.isclass)]
    raised = [member for member in members if issubclass(member, Exception)]
    assert len(raised) > 5
    assert all(issubclass(member, KernelcastError) for member in raised)


def test_an_extra_that_is_there_is_imported() -> None:
    assert import_extra("math", "llm") is math


def test_an_extra_that_is_missing_is_named() -> None:
    with pytest.raises(MissingExtra, match=r"pip install 'kernelcast\[ray\]'") as caught:
        import_extra("no_such_package_here", "ray")
    assert isinstance(caught.value, SetupError)
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
