"""A sampler for Optuna over a listed space, led by `Tuner`.

    study = optuna.create_study(sampler=KernelcastSampler(configurations))
    study.optimize(objective, n_trials=50)

The objective suggests the parameters of a configuration and returns the kernel's time in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import RLock
from typing import Any

from kernelcast import SetupError, Store, Tuner
from kernelcast.integrations._package import check_version

check_version("optuna", "4.0", "5.0")

import optuna  # noqa: E402 - after the check
from optuna.trial import FrozenTrial, TrialState  # noqa: E402

Configuration = Mapping[str, int | float | str]
Values = Sequence[float] | None


class KernelcastSampler(optuna.samplers.BaseSampler):  # type: ignore[misc]
    """Suggests each configuration once, and stops the study after the last one.

    A failed or pruned trial is a configuration that does not run. Trials that another process, an
    earlier run or `enqueue_trial` added to the study are learnt. Threads may share a sampler
    (`n_jobs`); each study needs its own. Its attribute `tuner` forecasts.
    """

    def __init__(
        self,
        configurations: Sequence[Configuration],
        *,
        known: Mapping[str, Mapping[str, float | None]] | None = None,
        device: str | None = None,
        store: str | Path | Store | None = None,
        seed: int = 0,
    ) -> None:
        """Make a sampler.

        Args:
            configurations: The space: each configuration that may be measured.
            known: Seconds by device and JSON text of a configuration, as for `Tuner`.
            device: Name of the device that is measured on.
            store: A path, a database URL or an open store, where times are kept beside Optuna's
                storage. One process at a time tunes the space on the device with it.
            seed: Seed of all choices.

        Raises:
            SetupError: There is no configuration, one is there twice, or one lacks a parameter.
        """
        if len({frozenset(configuration) for configuration in configurations}) > 1:
            raise SetupError("every configuration states the same parameters: add what one lacks")
        self.tuner = Tuner(configurations, known=known, device=device, store=store, seed=seed)
        # An objective need not suggest what is the same everywhere.
        self._varying = [
            name for name in configurations[0] if len({point[name] for point in configurations}) > 1
        ]
        self._listed = {self._key(configuration): configuration for configuration in configurations}
        self._chosen: dict[int, Configuration] = {}
        self._learnt: set[int] = set()
        # The fastest of an earlier run comes first, so that the study holds it.
        self._next = [] if self.tuner.best is None else [self.tuner.best.configuration]
        self._study_name: str | None = None
        self._lock = RLock()

    def infer_relative_search_space(self, *_: Any) -> dict[str, Any]:
        """Return nothing: the space is known when the objective suggests the first parameter."""
        return {}

    def sample_relative(self, *_: Any) -> dict[str, Any]:
        """Return nothing, since there is no relative search space."""
        return {}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, *_: Any
    ) -> int | float | str:
        """Return a parameter of the trial's configuration, which is chosen for the first one."""
        with self._lock:
            if self._study_name not in (None, study.study_name):
                raise SetupError("the sampler is of another study: make one for each")
            self._study_name = study.study_name
            if trial.number not in self._chosen:
                self._chosen[trial.number] = self._choose(study)
            configuration = self._chosen[trial.number]
        if param_name not in configuration:
            names = ", ".join(configuration)
            raise SetupError(f"the configurations have no {param_name!r}: suggest {names}")
        return configuration[param_name]

    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Values
    ) -> None:
        """Learn from a trial, and stop the study if no configuration is left."""
        with self._lock:
            self._learn(trial, state, values)
            begun = len(self.tuner.outcomes) + len(self.tuner.in_flight)
            if begun == len(self.tuner.configurations):
                with suppress(RuntimeError):  # nothing to stop between ask and tell
                    study.stop()

    def _choose(self, study: optuna.Study) -> Configuration:
        if study.directions != [optuna.study.StudyDirection.MINIMIZE]:
            raise SetupError("kernelcast minimises one time: create_study(direction='minimize')")
        elsewhere = set()
        for trial in study.get_trials(deepcopy=False):
            if trial.state.is_finished():
                self._learn(trial, trial.state, trial.values)
            elif trial.number not in self._chosen:
                elsewhere.add(self._key(trial.params))
        if self._next:
            return self._next.pop()
        for suggested in iter(self.tuner.suggest, []):
            if self._key(suggested[0].configuration) not in elsewhere:
                return suggested[0].configuration
        try:
            study.stop()
        except RuntimeError:
            raise SetupError("every configuration was tried: ask no further") from None
        raise optuna.TrialPruned("every configuration was tried")

    def _learn(self, trial: FrozenTrial, state: TrialState, values: Values) -> None:
        if trial.number in self._learnt:
            return
        self._learnt.add(trial.number)
        chosen, key = self._chosen.pop(trial.number, None), self._key(trial.params)
        measured = chosen if key is None else self._listed.get(key)  # values may be enqueued
        if measured is None:
            return
        value = values[0] if state == TrialState.COMPLETE and values else math.inf
        if value <= 0.0:
            raise SetupError(f"trial {trial.number} has the value {value}: return seconds, above 0")
        is_time = value < math.inf
        self.tuner.report(measured, seconds=value if is_time else None, failed=not is_time)

    def _key(self, parameters: Mapping[str, Any]) -> tuple[Any, ...] | None:
        is_whole = parameters.keys() >= set(self._varying)
        return tuple(parameters[name] for name in self._varying) if is_whole else None
