"""Inductor's max-autotune, which times the candidates that a `Tuner` chooses.

A program needs one line before it compiles: `selective(candidates=20, store="tuning.db")`.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch._inductor import select_algorithm

from kernelcast import Budget, SetupError, StoreError, Tuner
from kernelcast.integrations._package import check_version

check_version("torch", "2.13", "2.13")
_logger = logging.getLogger(__name__)


def selective(
    candidates: int = 20,
    *,
    store: str | Path | None = None,
    device: str | None = None,
    seed: int = 0,
) -> None:
    """Let max-autotune time fewer candidates from now on, chosen by earlier times.

    Each operation with its sizes and types is tuned by itself, and knows the times of other sizes.
    A candidate that states no parameters (ATen, C++, CUTLASS) is timed as ever. What is installed
    here ends with `clear_preprocessing_fns` and `clear_feedback_savers` of Inductor.

    Args:
        candidates: How many candidates with parameters to time for an operation and its sizes.
        store: A path or a database URL that keeps the times. What is tuned is not tuned again.
        device: Name of the device. By default what PyTorch calls it.
        seed: Seed of all choices.

    Raises:
        SetupError: There is no candidate to time.
    """
    if candidates < 1:
        raise SetupError(f"candidates is {candidates}: time at least 1")
    chooser = _Chooser(candidates, store, device, seed)
    select_algorithm.add_preprocessing_fn(chooser.choose)
    select_algorithm.add_feedback_saver(chooser.learn)


@dataclass(frozen=True)
class _Chooser:
    """Chooses candidates before Inductor compiles them, and learns their times afterwards."""

    candidates: int
    store: str | Path | None
    device: str | None
    seed: int
    running: dict[tuple[str, str], Tuner] = field(default_factory=dict)
    """By operation and call: the candidates are chosen, and not timed yet."""
    times: dict[str, dict[str, dict[str, float | None]]] = field(default_factory=dict)
    """Seconds by operation, call and candidate."""

    def choose(self, choices: list[Any]) -> list[Any]:
        """Return the candidates to time: as many with parameters as are wanted, and all others."""
        space = {text: _parameters(choice) for choice in choices if (text := _text(choice))}
        if not space:
            return choices
        key = ("+".join(sorted({_template(choice) for choice in choices})), self._call(choices[0]))
        tuner = self.running.get(key) or self._suggested(*key, list(space.values()))
        best = tuner.best
        kept = set() if best is None else {json.dumps(best.configuration)}
        if best is None or len(tuner.outcomes) < min(self.candidates, len(space)):
            self.running[key] = tuner
            kept.update(json.dumps(trial.configuration) for trial in tuner.in_flight)
        chosen = [choice for choice in choices if _text(choice) in {"", *kept}]
        for choice in chosen:
            choice.annotations[__name__] = key
        return chosen or choices

    def learn(self, timings: Mapping[Any, float], *_others: Any) -> None:
        """Report the times in milliseconds; a candidate that has none failed."""
        ms = {_text(choice): timing for choice, timing in timings.items()}
        for key in {choice.annotations.get(__name__) for choice in timings} & self.running.keys():
            tuner = self.running.pop(key)
            for trial in tuner.in_flight:
                seconds = ms.get(json.dumps(trial.configuration), inf) * 1e-3
                failed = not 0 < seconds < inf
                tuner.report(trial, seconds=None if failed else seconds, failed=failed)
            operation, call = key
            self.times.setdefault(operation, {})[call] = {
                json.dumps(outcome.configuration): outcome.seconds for outcome in tuner.outcomes
            }

    def _suggested(self, operation: str, call: str, points: list[dict[str, Any]]) -> Tuner:
        """Return a tuner that has suggested what to time."""
        known, budget = self.times.get(operation), Budget(measurements=self.candidates)
        make = partial(Tuner, points, device=call, known=known, budget=budget, seed=self.seed)
        try:
            tuner = make(store=self.store, kernel=operation)
            tuner.suggest(self.candidates)
        except StoreError as error:
            _logger.warning("%s of %s is tuned without the store: %s", operation, call, error)
            tuner = make()
            tuner.suggest(self.candidates)
        return tuner

    def _call(self, choice: Any) -> str:
        """Return the device, and the sizes, strides and types as Inductor tells them apart."""
        found = choice.layout.device
        name = getattr(torch.get_device_module(found), "get_device_name", lambda _: found.type)
        return (
            f"{self.device or name(found)} {select_algorithm.create_inputs_key(choice.input_nodes)}"
        )


def _template(choice: Any) -> str:
    """Return the name of what a candidate was made from."""
    if choice.decomposition is None:
        return re.sub(r"_\d+$", "", choice.name)
    operator, implementation, _ = choice.name.partition(f"_{choice.decomposition.__name__}")
    return f"{operator}{implementation}"


def _parameters(choice: Any) -> dict[str, int | float | str]:
    """Return the template and the parameters of a candidate; nothing if it states none."""
    stated = choice.decomposition_kwargs or dict(re.findall(r"(\w+)=([^,]+)", choice.description))
    if not stated:
        return {}
    return {"template": _template(choice)} | {name: _plain(v) for name, v in stated.items()}


def _plain(value: Any) -> int | float | str:
    if isinstance(value, str) and value.isdigit():
        return int(value)
    return value if isinstance(value, int | float | str) else str(value)


def _text(choice: Any) -> str:
    """Return a candidate's parameters as JSON, or an empty text."""
    parameters = _parameters(choice)
    return json.dumps(parameters) if parameters else ""
