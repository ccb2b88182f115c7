"""Triton's autotuner, which times the configurations that a `Tuner` chooses.

A kernel needs one line: `@triton.autotune(configs, key=["M"], **selective(measurements=50))`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from triton.language import dtype
from triton.runtime import driver

from kernelcast import Budget, SetupError, StoreError, Trial, Tuner
from kernelcast.integrations._package import check_version

check_version("triton", "3.3", "3.9")
_logger = logging.getLogger(__name__)


def selective(
    measurements: int = 50,
    *,
    device: str | Callable[[], str] | None = None,
    known: Mapping[str, Mapping[str, float | None]] | None = None,
    store: str | Path | None = None,
    kernel: str | None = None,
    key: Sequence[str] | None = None,
    seed: int = 0,
    stop_early: bool = False,
    early_config_prune: Callable[..., Sequence[Any]] | None = None,
    do_bench: Callable[..., Any] | None = None,
) -> dict[str, Any]:
    """Return arguments for one `@triton.autotune`: earlier times choose what is timed next.

    Each value of the autotuner's key is tuned by itself, and knows the times of those before it.

    Args:
        measurements: How many configurations to time for a value of the key, two or more.
        device: Name of the GPU, or a function that returns it.
        known: Seconds by device and by `json.dumps(config.all_kwargs())`; None where it failed.
        store: A path or a database URL that keeps the times. What is tuned is not tuned again.
        kernel: Name of the kernel in the store. A changed kernel needs another name.
        key: The list given to `@triton.autotune`. By default all plain arguments are the key.
        seed: Seed of all choices.
        stop_early: Whether to stop when no improvement is expected.
        early_config_prune: Leaves out configurations first, as Triton's function of this name.
        do_bench: Times a call, as Triton's function of this name. By default the driver's.

    Raises:
        SetupError: There are fewer than two measurements, or a store without names.
    """
    if measurements < 2:
        raise SetupError(f"measurements is {measurements}: to choose takes at least 2")
    if store is not None and (kernel is None or device is None):
        raise SetupError("a store needs kernel='NAME' and device=torch.cuda.get_device_name")
    budget = Budget(measurements=measurements)
    tuned: dict[str, dict[str, float | None]] = {}
    timing: dict[str, float] = {}

    def prune(configs: list[Any], named: Mapping[str, Any], /, **others: Any) -> list[Any]:
        if early_config_prune is not None:
            configs = list(early_config_prune(configs, named, **others))
        gpu = device() if callable(device) else device
        name = ", ".join(filter(None, [gpu, *_told({**named, **others}, key)]))
        space = {_text(config): config for config in configs}
        points, elsewhere = [json.loads(text) for text in space], {**(known or {}), **tuned}
        make = partial(Tuner, points, device=name, known=elsewhere, budget=budget, seed=seed)
        try:
            tuner = make(store=store, kernel=kernel)
            tuner.suggest()  # fails if another process has written since
        except StoreError as error:
            _logger.warning("%s on %s is tuned without the store: %s", kernel, name, error)
            tuner = make()
        if tuner.best and len(tuner.outcomes) >= min(measurements, len(space)):
            return [space[json.dumps(tuner.best.configuration)]]
        chosen = _Chosen(space, tuner, timing, stop_early=stop_early)
        tuned[name] = chosen.times
        return chosen

    def bench(call: Callable[[], Any], quantiles: Sequence[float]) -> Any:
        timing["ms"] = inf  # stays if it fails, which Triton catches
        times = (do_bench or driver.active.get_benchmarker())(call, quantiles=quantiles)
        timing["ms"] = times[0] if isinstance(times, Sequence) else times
        return times

    return {"prune_configs_by": {"early_config_prune": prune}, "do_bench": bench}


def _told(arguments: Mapping[str, Any], key: Sequence[str] | None) -> Iterator[str]:
    """Yield what tells one value of an autotuner's key from another."""
    names = arguments if key is None else key
    for name, value in arguments.items():
        if hasattr(value, "dtype"):
            yield f"{name}: {value.dtype}"
        elif name in names and name != "warmup" and isinstance(value, int | float | str | dtype):
            yield f"{name}={value}"


def _text(config: Any) -> str:
    """Return a configuration as JSON; a value that has none is its text."""
    return json.dumps(config.all_kwargs(), default=str)


class _Chosen(list[Any]):
    """All configurations; to iterate is to choose each when the one before was timed.

    Triton also reads the list and times nothing, to name a cached result or to compile ahead. Then
    it gets all of them, in an order that tells how many will be timed.
    """

    def __init__(
        self, space: dict[str, Any], tuner: Tuner, timing: dict[str, float], *, stop_early: bool
    ) -> None:
        configs, count = list(space.values()), tuner.budget.measurements
        super().__init__(configs[count:] + configs[:count])
        self._space, self._tuner, self._timing = space, tuner, timing
        self._stop_early, self._was_read = stop_early, False
        self.times: dict[str, float | None] = {}

    def __iter__(self) -> Iterator[Any]:
        text = _text(self[0]) if self._was_read else self._next()
        self._was_read = True  # what is read twice must be the same: it begins with no choice
        while text is not None:
            self._timing.clear()
            yield self._space[text]
            if (ms := self._timing.get("ms")) is None:
                yield from (config for config in self[:] if _text(config) != text)
                return
            seconds = ms * 1e-3 if 0 < ms < inf else None
            self._tuner.report(json.loads(text), seconds=seconds, failed=seconds is None)
            self.times[text] = seconds
            text = self._next()
        best = self._tuner.best  # maybe of an earlier process: Triton has no time of it
        last = json.dumps(best.configuration) if best else next(iter(self.times), _text(self[0]))
        if last not in self.times:
            yield self._space[last]

    def _next(self) -> str | None:
        trials: Sequence[Trial] = self._tuner.in_flight
        if not trials and not (self._stop_early and self._tuner.stop_reason):
            trials = self._tuner.suggest()
        return json.dumps(trials[0].configuration) if trials else None
