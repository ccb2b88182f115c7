"""OpenEvolve behind a gate: programs that will hardly be a new best are not measured.

    from kernelcast.integrations.openevolve import gated

    run_evolution("initial.cpp", gated("evaluator.py", language="cpp"), config)

`combined_score` must grow with the speed in proportion: a speedup, or work in a second. The gate
learns it as the program's speedup, and a score of 0 as a failure.

A program that is not measured scores 0, so it never wins over one that is; its metrics say
`measured: 0`, and its artifacts why. What the gate expects of it is never in a score.
"""

from __future__ import annotations

import importlib.util
import math
import os
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from openevolve.evaluation_result import EvaluationResult
from openevolve.utils.metrics_utils import get_fitness_score

from kernelcast import Gate, Heard, SetupError, Verdict
from kernelcast.integrations._package import check_version

if TYPE_CHECKING:
    from kernelcast.types import Language

check_version("openevolve", "0.3", "0.4")

Evaluate = Callable[[str], Any]

_STAGES = ("evaluate_stage1", "evaluate_stage2", "evaluate_stage3")
_WRAPPER = '''"""{name} behind a gate. Written by kernelcast.integrations.openevolve.gated."""

from kernelcast.integrations.openevolve import gated_functions

globals().update(gated_functions({path!r}, {options!r}))
'''


def gated(
    evaluator: str | Path,
    *,
    language: Language,
    device: str | None = None,
    store: str | Path | None = None,
    task: str = "kernel",
    policy: str = "conformal",
    miss: float = 0.05,
    seed: int = 0,
) -> str:
    """Write an evaluator that asks a gate before the user's own measures, and return its path.

    It is a module beside the user's, `evaluator_gated.py` for `evaluator.py`. The gate stands
    before `evaluate`, and before the last of the stages if there are any: the earlier ones check
    each program as they did.

    Args:
        evaluator: The user's evaluator, a module with `evaluate`.
        language: Language of the programs.
        device: As of `Gate`, like all that follow.
        store: By default `evaluator_gate.db` beside the evaluator. A search on the same store goes
            on with what the gate knows.
        task: Name of what the programs compute.
        policy: Name of the policy.
        miss: The share of the programs that are not measured of which each may be a new best.
        seed: Seed of the audits.

    Raises:
        SetupError: There is no such evaluator, or the gate cannot be built.
        StoreError: The store cannot be opened.
    """
    path = Path(evaluator).resolve()
    if not path.is_file():
        raise SetupError(f"there is no evaluator {path}: give the path of your evaluator.py")
    store = str(store or path.with_name(f"{path.stem}_gate.db"))
    options = {
        "language": language,
        "device": device,
        "store": store if "://" in store else str(Path(store).resolve()),
        "task": task,
        "policy": policy,
        "miss": miss,
        "seed": seed,
    }
    Gate(**options)  # what is wrong with the options is said here and not in a worker
    wrapper = path.with_name(f"{path.stem}_gated.py")
    text = _WRAPPER.format(name=path.name, path=str(path), options=options)
    wrapper.write_text(text, encoding="utf-8")
    return str(wrapper)


def gated_functions(evaluator: str, options: Mapping[str, Any]) -> dict[str, Evaluate]:
    """Return the functions of an evaluator by name, those that measure behind a gate."""
    module = _loaded(evaluator)
    stages = [name for name in _STAGES if hasattr(module, name)]
    functions = {name: getattr(module, name) for name in ("evaluate", *stages)}
    gate = _gate(os.getpid(), **options)
    for name in {"evaluate", *stages[-1:]}:
        functions[name] = _behind(gate, functions[name])
    return functions


@cache
def _gate(process: int, **options: Any) -> Gate:
    """Open a gate once in a process: a cascade loads the evaluator anew for each program.

    Workers are forked, and a connection to a store must not be used on both sides.
    """
    del process
    return Gate(**options)


def _loaded(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("gated_evaluator", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _behind(gate: Gate, evaluate: Evaluate) -> Evaluate:
    def ask_and_evaluate(program_path: str) -> EvaluationResult:
        source = Path(program_path).read_text(encoding="utf-8")
        verdict = gate.ask(source)
        if verdict.known is not None:
            return _remembered(verdict.known)
        if not verdict.measure:
            return _not_measured(verdict)
        try:
            result = evaluate(program_path)
        except Exception as error:
            gate.tell(source, failure=f"{type(error).__name__}: {error}")
            raise
        if isinstance(result, EvaluationResult):
            return _measured(gate, source, result)
        metrics = result if isinstance(result, dict) else {"error": 0.0}
        return _measured(gate, source, EvaluationResult(metrics=metrics))

    return ask_and_evaluate


def _measured(gate: Gate, source: str, result: EvaluationResult) -> EvaluationResult:
    """Tell the gate the score that OpenEvolve goes by."""
    score = get_fitness_score(result.metrics)
    if score < 0.0:
        raise SetupError(
            f"combined_score is {score:g}: return a positive number that grows with the speed, "
            "e.g. 1 / seconds, and 0 for a program that fails"
        )
    if 0.0 < score < math.inf:
        gate.tell(source, speedup=score)
    else:
        gate.tell(source, failure=f"scored {score:g}")
    metrics = {**result.metrics, "combined_score": score, "measured": 1.0}
    return EvaluationResult(metrics=metrics, artifacts=result.artifacts)


def _remembered(known: Heard) -> EvaluationResult:
    note = "the same program was measured before"
    if known.failure is not None:
        note += f", and failed: {known.failure.message}"
    score = known.speedup or 0.0
    metrics = {"combined_score": score, "measured": 1.0}
    return EvaluationResult(metrics=metrics, artifacts={"kernelcast": note})


def _not_measured(verdict: Verdict) -> EvaluationResult:
    metrics = {"combined_score": 0.0, "measured": 0.0}
    note = f"not measured, which is no failure; a forecast: {verdict.reason}"
    return EvaluationResult(metrics=metrics, artifacts={"kernelcast": note})
