"""Keys by which rows are joined and grouped: configurations, problems, devices."""

from __future__ import annotations

import re

from kernelcast.types import content_hash


def configuration_id(template_id: str, parameters: str) -> str:
    """The kernel id of a template under canonical parameters."""
    return content_hash(f"{template_id}\0{parameters}")


_KERNELBENCH = re.compile(r"(?:kb[^/]*|kernelbench)/level(\d+)/(?:level\d+_)?(\d+)")
_TUNED = re.compile(r"(?:hub|fjw|ktt|tuned)/(?:KTT_)?(\w+)|X?(\w+)\|")
_VARIANT = re.compile(r"_(?:milo|small|random|kernel)(?=_|$)")
_SIZES = re.compile(r"\(.*\)|#\d+$")


def problem_group(problem: str) -> str:
    """The group of a problem in a split: one operation under all its names and sizes.

    KernelBench problems are grouped by level and number (kb0 and kb0.1 differ in sizes), tuned
    kernels by what they compute, others by their name without sizes.
    """
    if match := _KERNELBENCH.match(problem):
        return f"kernelbench/level{match[1]}/{match[2]}"
    if match := _TUNED.match(problem):
        return f"tuned/{_VARIANT.sub('', match[1] or match[2])}"
    return "hgemm" if problem.startswith("hgemm/") else _SIZES.sub("", problem)


def problem_family(problem: str) -> str:
    """The family of an imported problem: its collection and level, or the tuned kernel."""
    group = problem_group(problem)
    if group.startswith("tuned/"):
        return group
    return group.split("__")[0] if "__" in group else group.rpartition("/")[0] or group


_DEVICE_NOISE = re.compile(
    r"\b(?:NVIDIA|AMD|GeForce|Tesla|Instinct|Radeon|Moore Threads|Laptop|GPU|Blackwell)\b"
    r"|[- ](?:PCIE|PCIe|SXM\d?|HBM\d?|\d+GB)\b| x\d+$"
)


def device_group(device: str) -> str:
    """The group of a device in a split: its model, without memory, board and vendor."""
    return " ".join(_DEVICE_NOISE.sub(" ", device).split()) or device
