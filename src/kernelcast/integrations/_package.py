"""The check that a system is installed in a version that its adapter is tested with."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

from kernelcast import MissingExtra, SetupError


def check_version(package: str, lowest: str, newest: str) -> None:
    """Check that a package is installed, from version `lowest` to `newest`.

    Further parts of a version do not count: "3.9" includes 3.9.1.

    Raises:
        MissingExtra: It is not installed.
        SetupError: Its version is another.
    """
    try:
        installed = version(package)
    except PackageNotFoundError as error:
        raise MissingExtra(f"{package} is not installed: pip install '{package}'") from error
    low, high, own = (_numbers(text) for text in (lowest, newest, installed))
    if own < low or own[: len(high)] > high:
        after = ".".join(map(str, (*high[:-1], high[-1] + 1)))
        raise SetupError(
            f"kernelcast works with {package} {lowest} to {newest}, and this is {installed}: "
            f"pip install '{package}>={lowest},<{after}'"
        )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", re.split(r"[+a-z]", text)[0]))
