"""Compilations with Inductor's max-autotune, for `test_inductor`: writes what each of them timed.

The candidates are Inductor's own. A driver that names a target, and recorded times, stand in for a
GPU. The last compilation times the implementations of a custom operator on the CPU.
"""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
from torch._inductor import config, select_algorithm
from torch._inductor.kernel.custom_op import CustomOpConfig, register_custom_op_autotuning

from kernelcast import SetupError
from kernelcast.integrations.inductor import selective

timed: list[Any] = []
warned: list[str] = []


class NoGpu:
    """A driver that is asked only for its target."""

    def get_current_target(self) -> Any:
        return triton.backends.compiler.GPUTarget("cuda", 86, 32)


def parameters(choice: Any) -> dict[str, int]:
    stated = (part.split("=") for part in choice.description.split(", ") if "=" in part)
    return {name: int(value) for name, value in stated if value.isdigit()}


def recorded(choices: list[Any]) -> list[Any]:
    """Give candidates a recorded time in place of a measurement; ATen's is the least."""

    def benchmark(choice: Any) -> Callable[..., float]:
        def time_ms(*args: Any, out: Any) -> float:
            at = parameters(choice)
            if not at:
                return 1e-4
            if at["BLOCK_K"] == 64:
                return math.inf
            return 1.0 + abs(at["BLOCK_M"] - 64) / 64 + abs(at["num_warps"] - 4) / 4

        return time_ms

    for choice in choices:
        choice.benchmark = benchmark(choice)
        if choice.description:
            choice.precompile = lambda: None
    return choices


def note(timings: dict[Any, float], *others: Any) -> None:
    timed.extend(parameters(choice) or choice.name for choice in timings)


def start(*, is_recorded: bool = True, **options: Any) -> None:
    """Begin as a new process would."""
    select_algorithm.clear_preprocessing_fns()
    select_algorithm.clear_feedback_savers()
    selective(**options)
    select_algorithm.add_feedback_saver(note)
    if is_recorded:
        select_algorithm.add_preprocessing_fn(recorded)


def compiled(function: Callable[..., Any], *arguments: torch.Tensor) -> list[Any]:
    """Compile a function; return the candidates that had times, from the disk too."""
    torch._dynamo.reset()
    timed.clear()
    result = torch.compile(function, dynamic=False)(*arguments)
    torch.testing.assert_close(result, function(*arguments), rtol=1e-3, atol=1e-3)
    return list(timed)


def product(rows: int) -> list[Any]:
    return compiled(torch.mm, torch.ones(rows, 256), torch.ones(256, 64))


def repeated(x: torch.Tensor, y: torch.Tensor, steps: int = 1) -> torch.Tensor:
    """Multiply, and then so often add nothing: no step needs a compiler."""
    result = torch.mm(x, y)
    for _ in range(1, steps):
        result = torch.addmm(result, x, y, alpha=0.0)
    return result


def of_custom_operator() -> list[Any]:
    @torch.library.custom_op("kernelcast::product", mutates_args=())  # type: ignore[untyped-decorator]
    def operator(x: torch.Tensor, y: torch.Tensor, steps: int = 1) -> torch.Tensor:
        return x @ y

    @operator.register_fake  # type: ignore[untyped-decorator]
    def _(x: torch.Tensor, y: torch.Tensor, steps: int = 1) -> torch.Tensor:
        return x.new_empty(x.shape[0], y.shape[1])

    configs = [CustomOpConfig(repeated, steps=steps) for steps in range(1, 7)]
    register_custom_op_autotuning(operator, configs=configs)
    return compiled(torch.ops.kernelcast.product, torch.ones(64, 128), torch.ones(128, 32))


def main(folder: Path) -> dict[str, Any]:
    class Note(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            warned.append(record.getMessage())

    logging.getLogger("kernelcast").addHandler(Note())
    config.max_autotune = True
    config.fx_graph_cache = False
    config.compile_threads = 1
    triton.runtime.driver.set_active(NoGpu())
    found: dict[str, Any] = {}
    with config.patch(cpu_backend="triton"):
        start(candidates=1000)
        found["all"] = product(128)
        start(candidates=6)
        found["first"] = product(256)
        found["second"] = product(512)
        start(candidates=6, store=folder / "tuning.db", device="GPU 1")
        found["stored"] = product(1024)
        start(candidates=6, store=folder / "tuning.db", device="GPU 1")
        found["again"] = product(1024)
        start(candidates=6, store=folder / "tuning.db", device="GPU 1")
        found["from the store"] = product(2048)
        (folder / "none.db").write_text("no store")
        start(candidates=6, store=folder / "none.db")
        found["without the store"] = product(4096)
    try:
        start(candidates=0)
    except SetupError as error:
        found["refused"] = str(error)
    start(candidates=2, is_recorded=False)
    found["custom operator"] = of_custom_operator()
    return {**found, "warned": warned}


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(main(Path(sys.argv[1]))))
