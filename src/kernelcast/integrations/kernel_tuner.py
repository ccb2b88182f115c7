"""Kernel Tuner's search, led by `Tuner`: it learns from failures and from times on other GPUs.

from kernel_tuner.strategies.wrapper import OptAlgWrapper
from kernelcast.integrations.kernel_tuner import Kernelcast

kernel_tuner.tune_kernel(..., strategy=OptAlgWrapper(Kernelcast(known=["gemm_A100.json"])),
                         strategy_options={"max_fevals": 50})
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernelcast import SetupError, Store, Tuner, read_times
from kernelcast.integrations._package import check_version

check_version("kernel_tuner", "1.4", "1.5")

from kernel_tuner.strategies.wrapper import OptAlg  # noqa: E402 - after the check

_FAILED = 1e20  # what older caches hold for a failure; newer ones name it
_SPENT_MS = ("compile_time", "verification_time", "benchmark_time")


class Kernelcast(OptAlg):  # type: ignore[misc]
    """A strategy of Kernel Tuner, to be wrapped in its `OptAlgWrapper`.

    Attributes:
        tuner: The tuner of the last run, for its forecasts; None before any.
    """

    def __init__(
        self,
        *,
        known: Mapping[str, Mapping[str, float | None]] | Iterable[str | Path] | str | Path = (),
        device: str | None = None,
        store: str | Path | Store | None = None,
        kernel: str | None = None,
        seed: int = 0,
        per_second: bool = False,
    ) -> None:
        """Make a strategy.

        Args:
            known: Files of the kernel on other GPUs: caches, finished or not, and rows (Parquet).
                Or seconds by device and JSON text of a configuration, as for `Tuner`.
            device: Name of the device; by default what Kernel Tuner calls it.
            store: A path, a database URL or an open store, where times are kept as they are
                measured. The next run goes on, and runs on other GPUs learn from them.
            kernel: Name of the kernel in the store and in rows; see `Tuner`.
            seed: Seed of all choices.
            per_second: Whether to choose by the expected gain per second of compiling and
                measuring.
        """
        super().__init__()
        self.tuner: Tuner | None = None
        self._known = [known] if isinstance(known, str | Path) else known
        self._device = device
        self._store, self._kernel = store, kernel
        self._seed, self._per_second = seed, per_second

    def __call__(self, func: Any, searchspace: Any) -> None:
        """Search until the budget of `strategy_options` is spent.

        Without a budget, the search ends when no improvement is expected. The fastest
        configuration of an earlier run is measured again first: Kernel Tuner's result holds it.

        Raises:
            SetupError: There are several objectives, one is not positive, or times of another
                objective would be mixed with seconds.
        """
        device = self._device or func.runner.get_device_info().name
        names = list(searchspace.tune_params)
        known = self._known
        if not isinstance(known, Mapping):
            known = read_times(known, names, kernel=self._kernel)
        objective = _objective(func)
        if objective != ("time", False) and (self._store is not None or device in known):
            raise SetupError(
                f"the objective is {objective[0]}, and a store or known times of {device} itself "
                "are seconds: leave them out, or tune with objective='time'"
            )
        self.tuner = None  # lets go of the store
        self.tuner = tuner = Tuner(
            [dict(zip(names, map(_plain, values), strict=True)) for values in searchspace.list],
            device=device,
            known=known,
            store=self._store,
            kernel=self._kernel,
            seed=self._seed,
            per_second=self._per_second,
        )
        if tuner.best is not None:
            self._measure(func, [tuner.best.configuration])
        has_budget = {"max_fevals", "time_limit"} & set(func.tuning_options.strategy_options)
        while has_budget or tuner.stop_reason is None:
            trials = tuner.suggest(func.runner.available_parallelism())
            if not trials:
                break
            self._measure(func, [trial.configuration for trial in trials])

    def _measure(self, func: Any, configurations: Sequence[Mapping[str, Any]]) -> None:
        """Evaluate configurations and learn from all results, from the last of a budget too."""
        assert self.tuner is not None
        seen = len(func.get_results())
        try:
            func.eval_all([tuple(configuration.values()) for configuration in configurations])
        finally:  # a spent budget ends the search by an exception
            for result in func.get_results()[seen:]:
                cost = _cost(result, _objective(func))
                spent_s = sum(result.get(name) or 0.0 for name in _SPENT_MS) * 1e-3
                self.tuner.report(
                    {name: _plain(result[name]) for name in func.searchspace.tune_params},
                    seconds=cost,
                    failed=cost is None,
                    cost_s=spent_s or None,
                )


def _objective(func: Any) -> tuple[str, bool]:
    """Return the name of the objective, and whether more of it is better."""
    (names, higher) = func.tuning_options.objective, func.tuning_options.objective_higher_is_better
    if len(names) != 1:
        raise SetupError(f"kernelcast tunes one objective, not {', '.join(names)}: name one")
    return names[0], higher[0]


def _cost(result: Mapping[str, Any], objective: tuple[str, bool]) -> float | None:
    """Return what to minimise: seconds, another objective, or the inverse of what to maximise."""
    name, is_higher_better = objective
    if "__error__" in result or not -math.inf < result[name] < _FAILED:
        return None
    if (value := float(result[name])) <= 0.0:
        raise SetupError(
            f"{name} is {value}, and kernelcast compares configurations by their ratio: "
            "define a metric that is always positive, and tune for that"
        )
    if is_higher_better:
        return 1.0 / value
    return value * 1e-3 if name == "time" else value


def _plain(value: Any) -> Any:
    """Return a value that JSON knows: parameters may be numbers of NumPy."""
    return value.item() if isinstance(value, np.generic) else value
