"""The exceptions, and the import helper that names the extra to install.

An exception means that the set-up is broken; its message says what to do about it. A kernel that
fails is not an exception: it is a `Measurement` with a failure.
"""

from __future__ import annotations

import importlib
import math
from types import ModuleType


class KernelcastError(Exception):
    """Base of every exception that kernelcast raises on purpose."""


class SetupError(KernelcastError):
    """Something on this machine or in the user's files must be fixed; the message says what."""


class ProblemError(SetupError):
    """A problem folder is malformed."""


class MissingExtra(SetupError):
    """An optional dependency is not installed."""


class NoDevice(SetupError):
    """The kernel was built, but this machine has no device that can run it."""


class ModelError(SetupError):
    """A language-model endpoint cannot be used; the message says what to fix."""


class UnknownComponent(SetupError):
    """No plug-in of that name is installed."""


class StoreError(KernelcastError):
    """The store is damaged, has another schema, or does not hold what was asked for."""


class BudgetExceeded(StoreError):
    """A reservation would exceed a cap; nothing was reserved."""


class Overtaken(StoreError):
    """Another process has written to the run since it was read; nothing was written."""


class StaleLease(StoreError):
    """A result came under a lease that is not the current one; it was refused."""


def require_positive(**values: float | None) -> None:
    """Raise a `SetupError` that names the value which is not a positive number; None is none."""
    for name, value in values.items():
        if value is not None and not 0.0 < value < math.inf:
            raise SetupError(f"{name} is {value}: it must be a positive number")


def import_extra(module: str, extra: str) -> ModuleType:
    """Import an optional dependency.

    Raises:
        MissingExtra: The module is not installed; the message names the extra.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"this needs the package {module!r}: pip install 'kernelcast[{extra}]'"
        ) from error
