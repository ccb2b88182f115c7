"""A tuned kernel as Kernel Tuner states it: a template, and how each configuration is launched."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernelcast.errors import SetupError
from kernelcast.types import Parameters

BLOCK_SIZES = ("block_size_x", "block_size_y", "block_size_z")
"""Parameters that are the threads of a block, by Kernel Tuner's convention."""
_UNROLLING = "loop_unroll_factor"


@dataclass(frozen=True)
class TunedKernel:
    """A template whose macros are the parameters of a configuration.

    Args:
        template: The source, without the macros.
        entry: Name of the function that is launched.
        problem_size: Threads, or elements, in x, y and z.
        divisors: Parameters whose product one block covers of the problem size, in x, y and z.
        block: Parameters that are the threads of a block, in x, y and z.
        defines: Further macros.
    """

    template: str
    entry: str
    problem_size: Sequence[int]
    divisors: Sequence[Sequence[str]] = tuple((name,) for name in BLOCK_SIZES)
    block: Sequence[str] = BLOCK_SIZES
    defines: Mapping[str, Any] = field(default_factory=dict)

    def source(self, configuration: Parameters) -> str:
        """Return the source of a configuration, with a line that states its launch.

        A parameter `loop_unroll_factor...` of 0 leaves the loop to the compiler.
        """
        lines, template = [], self.template
        for name, value in {**self.defines, **configuration}.items():
            if not name.startswith(_UNROLLING):
                lines.append(f"#define {name} {value}")
            elif value:
                lines.append(f"constexpr int {name} = {value};")  # a pragma expands no macro
            else:
                template = re.sub(rf"^[ \t]*#pragma unroll {name}\b.*$", "", template, flags=re.M)
        grid, block = (
            ", ".join(map(str, extent))
            for extent in (self.grid(configuration), self.threads(configuration))
        )
        lines.append(f"#pragma kernelcast grid({grid}) block({block})")
        return "\n".join([*lines, template])

    def threads(self, configuration: Parameters) -> tuple[int, int, int]:
        """Return the threads of a block; an extent without a parameter is 1."""
        x, y, z = [*(self._value(configuration, name) for name in self.block), 1, 1, 1][:3]
        return x, y, z

    def grid(self, configuration: Parameters) -> tuple[int, int, int]:
        """Return the blocks of the grid."""
        extents = [
            -(-size // math.prod(self._value(configuration, name) for name in names))
            for size, names in zip(self.problem_size, self.divisors, strict=False)
        ]
        x, y, z = [*extents, 1, 1, 1][:3]
        return x, y, z

    def _value(self, configuration: Parameters, name: str) -> int:
        return int(configuration.get(name, self.defines.get(name, 1)))


def from_cache(
    cache: Mapping[str, Any], template: str, divisors: Sequence[Sequence[str]] | None = None
) -> TunedKernel:
    """Return the kernel of a Kernel Tuner cache, launched by its conventions.

    Args:
        cache: The content of the cache file.
        template: The source that was tuned, which a cache does not hold.
        divisors: Parameters whose product one block covers, in x, y and z, if they are not the
            threads of a block alone (`grid_div_x`, ... of `tune_kernel`).

    Raises:
        SetupError: The cache lacks something.
    """
    try:
        size, ranges = cache["problem_size"], cache["tune_params"]
        sizes = [int(extent) for extent in (size if isinstance(size, list) else [size])]
        constants = {name: values[0] for name, values in ranges.items() if len(values) == 1}
        entry = str(cache["kernel_name"])
    except (KeyError, TypeError, ValueError) as error:
        raise SetupError(f"this is not a Kernel Tuner cache: it lacks {error}") from error
    by_block = tuple((name,) for name in BLOCK_SIZES)
    return TunedKernel(template, entry, sizes, divisors or by_block, defines=constants)
