"""The keys by which rows are joined and grouped: configurations, problems, devices."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelcast.errors import SetupError
from kernelcast.types import content_hash


def configuration_id(template_id: str, parameters: str) -> str:
    """The kernel id of a template under canonical parameters."""
    return content_hash(f"{template_id}\0{parameters}")


_KERNELBENCH = re.compile(r"(?:kb[^/]*|kernelbench)/level(\d+)/(?:level\d+_)?(\d+)")
_TUNED = re.compile(r"(?:hub|fjw|ktt|tuned)/(?:KTT_)?(\w+)|X?(\w+)\|")
_VARIANT = re.compile(r"_(?:milo|small|random|kernel)(?=_|$)")
_SIZES = re.compile(r"\(.*\)|#\d+$")


def problem_group(problem: str) -> str:
    """What a split by problem holds together: one operation under all its names and sizes.

    KernelBench problems are known by level and number (kb0 and kb0.1 differ in sizes), tuned
    kernels by what they compute, others by their name without sizes.
    """
    if found := _KERNELBENCH.match(problem):
        return f"kernelbench/level{found[1]}/{found[2]}"
    if found := _TUNED.match(problem):
        return f"tuned/{_VARIANT.sub('', found[1] or found[2])}"
    return "hgemm" if problem.startswith("hgemm/") else _SIZES.sub("", problem)


def problem_family(problem: str) -> str:
    """The wider group of an imported problem: its collection and level, or what is tuned."""
    group = problem_group(problem)
    if group.startswith("tuned/"):
        return group
    return group.split("__")[0] if "__" in group else group.rpartition("/")[0] or group


_DEVICE_NOISE = re.compile(
    r"\b(?:NVIDIA|AMD|GeForce|Tesla|Instinct|Radeon|Moore Threads|Laptop|GPU|Blackwell)\b"
    r"|[- ](?:PCIE|PCIe|SXM\d?|HBM\d?|\d+GB)\b| x\d+$"
)


def device_group(device: str) -> str:
    """What a split by device holds together: the model, whatever its memory, board or vendor."""
    return " ".join(_DEVICE_NOISE.sub(" ", device).split()) or device


def _matches(left: Sequence[Any], right: Sequence[Any], what: str) -> NDArray[np.int64]:
    """For each key of `left` its place in `right`; keys that miss or are there twice are errors."""
    for name, keys in (("the rows", left), (what, right)):
        if len(set(keys)) != len(keys):
            twice = next(key for key, count in Counter(keys).items() if count > 1)
            raise SetupError(f"joining {what}: {twice} is there twice in {name}")
    place = {key: index for index, key in enumerate(right)}
    missing = [key for key in left if key not in place]
    if missing:
        raise SetupError(f"joining {what}: it lacks {len(missing)} keys, e.g. {missing[0]}")
    if len(right) > len(left):
        alone = next(iter(place.keys() - set(left)))
        raise SetupError(
            f"joining {what}: {len(right) - len(left)} of its keys are in no row, e.g. {alone}"
        )
    return np.array([place[key] for key in left], dtype=np.int64)
