"""Pools of kernels to choose from: a folder, rows, a tuner's space, or a problem's template.

A pool says what is computed, which kernels there are, which of them were measured already, and
against which kernel speedups are told.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelcast.canonical import canonical_parameters, kernel_id, language_of, read_kernel
from kernelcast.dataset._foreign import _load_json
from kernelcast.dataset.keys import configuration_id, device_group
from kernelcast.dataset.recordings import recorded_observation
from kernelcast.dataset.rows import Rows
from kernelcast.dataset.trials import recorded_trials
from kernelcast.dataset.tuning import cached_configurations
from kernelcast.errors import SetupError
from kernelcast.types import Kernel, Language, Observation, Parameters, Problem, Template


@dataclass(frozen=True)
class Pool:
    """Kernels to rank. `reference_s` is nan where the reference was never timed.

    `left_out` says of each file of a folder that is not ranked why it is not.
    """

    problem: Problem
    reference: Kernel
    reference_s: float
    labels: tuple[str, ...]
    kernels: tuple[Kernel, ...]
    known: tuple[Observation, ...] = ()
    device: str | None = None
    left_out: tuple[str, ...] = ()


def folder_pool(folder: Path, reference: Path | None, problem: Problem | None) -> Pool:
    """The kernel files of a folder that are in the reference's language.

    The reference is the file named, else the one called `reference` or `seed`, else the problem's
    seed kernel.
    """
    files = sorted(path for path in folder.iterdir() if language_of(path) is not None)
    named = [path for path in files if path.stem in ("reference", "seed")]
    chosen = reference or (named[0] if named else None)
    if not files:
        raise SetupError(f"{folder} holds no kernel files: .cpp, .cc, .cu, .hip, .cl or .py")
    if chosen is not None:
        anchor = read_kernel(chosen)
    elif problem is not None:
        anchor = _text_kernel(problem.seed_source, problem.language)
    else:
        raise SetupError(
            f"nothing in {folder} is called reference or seed: say with --reference or --problem "
            "what the kernels are to be faster than"
        )
    language = anchor.language
    if problem is not None and problem.language != language:
        raise SetupError(
            f"the reference is a {language} kernel and {problem.name!r} a {problem.language} "
            f"problem: name a problem in {language}"
        )
    names = {anchor.id: chosen.name if chosen is not None else "the reference"}
    kernels: list[Kernel] = []
    left_out: list[str] = []
    for path in files:
        if chosen is not None and path.resolve() == chosen.resolve():
            continue
        if language_of(path) != language:
            left_out.append(f"{path.name} is {language_of(path)}, the reference is {language}")
            continue
        kernel = read_kernel(path)
        if kernel.id in names:
            left_out.append(f"{path.name} is the same kernel as {names[kernel.id]}")
            continue
        names[kernel.id] = path.name
        kernels.append(kernel)
    if not kernels:
        why = f" ({'; '.join(left_out)})" if left_out else ""
        raise SetupError(f"{folder} holds no {language} kernel beside the reference{why}: add some")
    return Pool(
        problem=problem or Problem.unstated(folder.name, language, anchor.source),
        reference=anchor,
        reference_s=math.nan,
        labels=tuple(names[kernel.id] for kernel in kernels),
        kernels=tuple(kernels),
        left_out=tuple(left_out),
    )


def rows_pool(rows: Rows, device: str) -> Pool:
    """The kernels of one problem in a table: what was measured on this device is known already."""
    problems = rows["problem"].unique().to_pylist()
    if len(problems) != 1:
        some = ", ".join(sorted(problems)[:4])
        raise SetupError(f"{len(problems)} problems in these rows: choose one (--problem): {some}")
    here = device_group(device)
    known: dict[str, Observation] = {}
    kernels: dict[str, Kernel] = {}
    reference, reference_s, problem = None, math.nan, None
    for trials in recorded_trials(rows, "reference"):
        problem = problem or trials.trials[0].query.problem
        for trial in trials.trials:
            candidate = trial.query.candidate
            kernels.setdefault(candidate.id, candidate)
            reference = reference or trial.query.anchor
            if device_group(trials.device) == here and trial.observation is not None:
                known[candidate.id] = trial.observation
                timing = trial.observation.measurement.timing
                if timing is not None and candidate.id == trial.query.anchor.id:
                    reference_s = timing.runtime_s
    if problem is None or reference is None:
        raise SetupError("these rows name no kernel with a text or parameters")
    return _pool(problem, reference, reference_s, kernels.values(), known, device)


def space_pool(
    path: Path, *, restrictions: Sequence[str], language: Language, device: str | None
) -> Pool:
    """The space of a Kernel Tuner cache file or of a T1 specification, as far as it is unmeasured.

    A cache names values, not restrictions: those are given. Configurations it holds are known.
    """
    content = _load_json(path, unclosed="}}")
    try:
        if "ConfigurationSpace" in content:
            stated = content["ConfigurationSpace"]
            values = {each["Name"]: _values(each) for each in stated["TuningParameters"]}
            limits = [each["Expression"] for each in stated.get("Conditions", ())]
            name, cached = content["KernelSpecification"]["KernelName"], []
        else:
            names, entries = content["tune_params_keys"], content["cache"].values()
            cached = cached_configurations(entries, names)
            spread = content.get("tune_params") or _observed(cached, names)
            values = {name: tuple(spread[name]) for name in names}
            limits, name = [], content["kernel_name"]
            device = device or content["device_name"]
    except (KeyError, TypeError, AttributeError, SyntaxError, ValueError) as error:
        raise SetupError(
            f"{path} is neither a Kernel Tuner cache nor a T1 specification: {error!r}"
        ) from error
    template = Template(source="", parameters=values, constraints=(*limits, *restrictions))
    problem = Problem.unstated(f"tuned/{name}", language, "", template=template)
    kernels = {
        key: _configuration(problem, configuration)
        for configuration in template.configurations()
        if (key := canonical_parameters(configuration))
    }
    timed = sorted((each.runtime_s, each.parameters) for each in cached if each.runtime_s)
    # The configuration of median time, as the importer of caches has it.
    reference_s, key = timed[(len(timed) - 1) // 2] if timed else (math.nan, "")
    if not kernels:
        raise SetupError(f"{path}: the restrictions admit no configuration")
    # Where nothing was timed, no configuration: forecasts are then against the middle of the space.
    reference = (
        _configuration(problem, json.loads(key))
        if timed
        else Kernel(id=f"middle of {problem.name}", language=language, source="")
    )
    known: dict[str, Observation] = {}
    for each in cached:
        kernel = _configuration(problem, json.loads(each.parameters))
        row: Mapping[str, Any] = {
            "status": each.status,
            "status_detail": each.detail,
            "log2_speedup": math.log2(reference_s / each.runtime_s) if each.runtime_s else None,
            "runtime_s": each.runtime_s,
            "reference_runtime_s": reference_s,
            "device": device,
            "details": None,
        }
        learnt = recorded_observation(row, problem, kernel)
        if learnt is not None:
            known[kernel.id] = learnt
    return _pool(problem, reference, reference_s, kernels.values(), known, device)


def template_pool(problem: Problem) -> Pool:
    """Every configuration of a problem's template; sources are rendered when they are measured."""
    if problem.template is None:
        raise SetupError(f"{problem.name!r} has no template: rank a folder of kernels instead")
    kernels = [_configuration(problem, each) for each in problem.template.configurations()]
    reference = _text_kernel(problem.seed_source, problem.language)
    return _pool(problem, reference, math.nan, kernels, {}, None)


def _pool(
    problem: Problem,
    reference: Kernel,
    reference_s: float,
    kernels: Any,
    known: Mapping[str, Observation],
    device: str | None,
) -> Pool:
    left = [kernel for kernel in kernels if kernel.id not in known]
    if not left:
        raise SetupError(f"all {len(known)} kernels of {problem.name!r} were measured on {device}")
    return Pool(
        problem=problem,
        reference=reference,
        reference_s=reference_s,
        labels=tuple(_label(kernel) for kernel in left),
        kernels=tuple(left),
        known=tuple(known.values()),
        device=device,
    )


def _label(kernel: Kernel) -> str:
    if kernel.parameters is None:
        return kernel.id[:12]
    return " ".join(f"{name}={value}" for name, value in kernel.parameters.items())


def _text_kernel(text: str, language: Language) -> Kernel:
    return Kernel(id=kernel_id(text, language), language=language, source=text)


def _configuration(problem: Problem, parameters: Parameters) -> Kernel:
    return Kernel(
        id=configuration_id(problem.name, canonical_parameters(parameters)),
        language=problem.language,
        source="",
        parameters=parameters,
    )


def _values(parameter: Mapping[str, Any]) -> tuple[int | float | str, ...]:
    values = parameter["Values"]
    # T1 writes lists as text in some files.
    return tuple(json.loads(values) if isinstance(values, str) else values)


def _observed(cached: Sequence[Any], names: Sequence[str]) -> dict[str, list[Any]]:
    """The values that occur: all that an old cache tells of its space."""
    seen = [json.loads(each.parameters) for each in cached]
    return {name: sorted({each[name] for each in seen}) for name in names}
