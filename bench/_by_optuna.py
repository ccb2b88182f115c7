"""Optuna's `study.optimize` on a recorded space, by the sampler of `kernelcast.integrations`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import optuna

from _data import Space
from kernelcast.canonical import canonical_parameters
from kernelcast.integrations.optuna import KernelcastSampler


def run(
    space: Space, seed: int, budget: int, known: Mapping[str, Mapping[str, float | None]] | None
) -> list[int]:
    """Return the configurations that the study tried, in order, each once.

    Args:
        space: The recorded space.
        seed: Seed of the sampler.
        budget: Trials.
        known: Seconds by device, other than the space's own.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    rows = {key: row for row, key in enumerate(space.keys)}
    values = {
        name: sorted({configuration[name] for configuration in space.configurations})
        for name in space.configurations[0]
    }
    chosen: list[int] = []

    def objective(trial: optuna.Trial) -> float:
        asked = {name: trial.suggest_categorical(name, values[name]) for name in values}
        chosen.append(rows[canonical_parameters(asked)])
        runtime_ms = float(space.runtime_ms[chosen[-1]])
        if not np.isfinite(runtime_ms):
            raise optuna.TrialPruned
        return runtime_ms * 1e-3

    sampler = KernelcastSampler(space.configurations, known=known, device=space.gpu, seed=seed)
    optuna.create_study(sampler=sampler).optimize(objective, n_trials=budget)
    return chosen
