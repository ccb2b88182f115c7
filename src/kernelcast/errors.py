"""The exception tree, and the import helper that names the extra to install.

An exception means that the set-up is broken and says what to do about it. A kernel that fails is
not an exception: it is a `Measurement` with a failure.

KernelcastError
├── SetupError            something on this machine or in the user's files must be mended
│   ├── ProblemError      a problem folder is malformed
│   ├── MissingExtra      an optional dependency is not installed
│   ├── NoDevice          the kernel was built, and nothing here can run it
│   ├── ModelError        a language-model endpoint cannot be used until something is mended
│   └── UnknownComponent  no plug-in of that name
└── StoreError            the store is damaged, of another schema, or not what was asked for
    └── BudgetExceeded    a reservation would go past a cap; nothing was reserved
"""

from __future__ import annotations

import importlib
from types import ModuleType


class KernelcastError(Exception):
    """Base of everything kernelcast raises on purpose."""


class SetupError(KernelcastError):
    """Something on this machine or in the user's files must be mended; the message says what."""


class ProblemError(SetupError):
    """A problem folder is malformed."""


class MissingExtra(SetupError):
    """An optional dependency is not installed."""


class NoDevice(SetupError):
    """A kernel was built for a device that is not in this machine."""


class ModelError(SetupError):
    """A language-model endpoint cannot be used; the message says what to mend."""


class UnknownComponent(SetupError):
    """No plug-in of that name is installed."""


class StoreError(KernelcastError):
    """The store is damaged, of another schema, or does not hold what was asked for."""


class BudgetExceeded(StoreError):
    """A reservation would go past a cap; nothing was reserved."""


def import_extra(module: str, extra: str) -> ModuleType:
    """Import an optional dependency, or say which extra brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"this needs the package {module!r}: pip install 'kernelcast[{extra}]'"
        ) from error
