"""OpenEvolve behind a gate: programs that will hardly be a new best are not measured.

    from kernelcast.integrations.openevolve import gated

    run_evolution("initial.cpp", gated("evaluator.py", language="cpp"), config)

`combined_score` must grow with the speed in proportion: a speedup, or work in a second. The gate
learns it as the program's speedup, and a score of 0 as a failure.

A program that is not measured scores 0, so it never wins over one that is; its metrics say
`measured: 0`, and its artifacts why. What the gate expects of it is in no score.
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
from typing import Any

from openevolve.evaluation_result import EvaluationResult
from openevolve.utils.metrics_utils import get_fitness_score

from kernelcast import Gate, KernelOutcome, SetupError, Verdict
from kernelcast.integrations._package import check_version

check_version("openevolve", "0.3.2", "0.4")

Evaluate = Callable[[str], Any]

_STAGES = ("evaluate_stage1", "evaluate_stage2", "evaluate_stage3")
_WRAPPER = '''"""{name} behind a gate, written by kernelcast.integrations.openevolve."""

from kernelcast.integrations.openevolve import gated_functions

globals().update(gated_functions({path!r}, {options!r}))
'''


def gated(evaluator: str | Path, *, store: str | Path | None = None, **options: Any) -> str:
    """Write an evaluator that asks a gate before the user's own measures, and return its path.

    It is `evaluator_gated.py` beside `evaluator.py`. The gate stands before `evaluate` and, of a
    cascade, before the last stage: the earlier ones check each program as they did.

    Args:
        evaluator: The user's evaluator, a module with `evaluate`.
        store: Where the gate keeps what it is told, by default `evaluator_gate.db` beside the
            evaluator. A search on the same store goes on with what is known.
        options: Options of `Gate`, as texts and numbers: `language="cpp"` and others.

    Raises:
        SetupError: There is no such evaluator, or the gate cannot be built.
        StoreError: The store cannot be opened.
    """
    path = Path(evaluator).resolve()
    if not path.is_file():
        raise SetupError(f"there is no evaluator {path}: give the path of your evaluator.py")
    for name, value in options.items():
        if not isinstance(value, str | int | float | None):
            raise SetupError(f"{name}={value!r} cannot be given to OpenEvolve's workers: name it")
    kept = str(store or path.with_name(f"{path.stem}_gate.db"))
    options["store"] = kept if "://" in kept else str(Path(kept).resolve())
    Gate(**options)  # so that wrong options are refused here and not in a worker
    wrapper = path.with_name(f"{path.stem}_gated.py")
    text = _WRAPPER.format(name=path.name, path=str(path), options=options)
    wrapper.write_text(text, encoding="utf-8")
    return str(wrapper)


def gated_functions(evaluator: str, options: Mapping[str, Any]) -> dict[str, Evaluate]:
    """Return an evaluator's functions by name, those that measure behind a gate."""
    module = _loaded(evaluator)
    stages = [name for name in _STAGES if hasattr(module, name)]
    functions: dict[str, Evaluate] = {name: getattr(module, name) for name in ("evaluate", *stages)}
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
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
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
        if not isinstance(result, EvaluationResult):
            result = EvaluationResult(result if isinstance(result, dict) else {"error": 0.0})
        return _measured(gate, source, result)

    return ask_and_evaluate


def _measured(gate: Gate, source: str, result: EvaluationResult) -> EvaluationResult:
    """Tell the gate the score that OpenEvolve goes by."""
    score = get_fitness_score(result.metrics)
    if score < 0.0:
        raise SetupError(
            f"combined_score is {score:g}: return a positive number that grows with the speed, "
            "e.g. 1 / seconds, and 0 for a program that fails"
        )
    speed = {"speedup": score} if 0.0 < score < math.inf else {"failure": f"scored {score:g}"}
    gate.tell(source, **speed)
    metrics = {**result.metrics, "combined_score": score, "measured": 1.0}
    return EvaluationResult(metrics, result.artifacts)


def _remembered(known: KernelOutcome) -> EvaluationResult:
    note = "the same program was measured before"
    if known.failure is not None:
        note += f", and failed: {known.failure.message}"
    metrics = {"combined_score": known.speedup or 0.0, "measured": 1.0}
    return EvaluationResult(metrics, {"kernelcast": note})


def _not_measured(verdict: Verdict) -> EvaluationResult:
    note = f"not measured, which is no failure; a forecast: {verdict.reason}"
    return EvaluationResult({"combined_score": 0.0, "measured": 0.0}, {"kernelcast": note})
