"""Pools of kernels to rank: a folder, rows, a tuner's space, or a problem's template."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelcast.canonical import as_kernel, language_of, read_kernel
from kernelcast.dataset._foreign import _load_json
from kernelcast.dataset.keys import device_group
from kernelcast.dataset.recordings import configured, recorded_kernel, recorded_observation
from kernelcast.dataset.rows import Rows
from kernelcast.dataset.trials import recorded_trials
from kernelcast.dataset.tuning import cache_parameter_names, cache_rows
from kernelcast.errors import SetupError
from kernelcast.types import Kernel, Language, Observation, Problem, Template


@dataclass(frozen=True)
class Pool:
    """Kernels to rank, and what is known already."""

    problem: Problem
    reference: Kernel
    """The kernel that speedups are against."""
    reference_s: float
    """Its runtime, nan if it was never timed."""
    labels: tuple[str, ...]
    kernels: tuple[Kernel, ...]
    known: tuple[Observation, ...] = ()
    device: str | None = None
    left_out: tuple[str, ...] = ()
    """Why a file of a folder is not ranked, one sentence a file."""


def folder_pool(folder: Path, reference: Path | None, problem: Problem | None) -> Pool:
    """The kernel files of a folder that are in the reference's language.

    Args:
        folder: where the kernel files are.
        reference: the reference; by default the file called `reference` or `seed`, else the
            problem's seed kernel.
        problem: what the kernels compute, if it is stated.

    Raises:
        SetupError: there is no reference, or no kernel beside it.
    """
    files = sorted(path for path in folder.iterdir() if language_of(path) is not None)
    if not files:
        raise SetupError(f"{folder} holds no kernel files: .cpp, .cc, .cu, .hip, .cl or .py")
    named = (path for path in files if path.stem in ("reference", "seed"))
    chosen = reference or next(named, None)
    if chosen is not None:
        anchor = read_kernel(chosen, problem.language if problem else None)
    elif problem is not None:
        anchor = as_kernel(problem.seed_source, problem.language)
    else:
        raise SetupError(
            f"nothing in {folder} is called reference or seed: say with --reference or --problem "
            "what the kernels are to be faster than"
        )
    language = anchor.language
    if problem is not None:
        problem = problem.in_language_of(anchor)
    names = {anchor.id: chosen.name if chosen is not None else "the reference"}
    kernels: list[Kernel] = []
    left_out: list[str] = []
    for path in files:
        if chosen is not None and path.resolve() == chosen.resolve():
            continue
        if (own := language_of(path, language)) != language:
            left_out.append(f"{path.name} is {own}, the reference is {language}")
            continue
        kernel = read_kernel(path, language)
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
    """The kernels of one problem in a table; those measured on this device are known.

    Raises:
        SetupError: the rows are of several problems, or nothing is left to rank.
    """
    problems = rows["problem"].unique().to_pylist()
    if len(problems) != 1:
        some = ", ".join(sorted(problems)[:4])
        raise SetupError(f"{len(problems)} problems in these rows: choose one (--problem): {some}")
    searches = list(recorded_trials(rows, "reference"))
    if not searches:
        raise SetupError("these rows name no kernel with a text or parameters")
    first = searches[0].trials[0].query
    known: dict[str, Observation] = {}
    kernels: dict[str, Kernel] = {}
    reference_s = math.nan
    for search in searches:
        here = device_group(search.device) == device_group(device)
        for trial in search.trials:
            candidate = trial.query.candidate
            kernels.setdefault(candidate.id, candidate)
            if here and trial.observation is not None:
                known[candidate.id] = trial.observation
                timing = trial.observation.measurement.timing
                if timing is not None and candidate.id == trial.query.anchor.id:
                    reference_s = timing.runtime_s
    return _pool(first.problem, first.anchor, reference_s, kernels.values(), known, device)


@dataclass(frozen=True)
class SpaceFile:
    """What a Kernel Tuner cache or a T1 specification states."""

    name: str
    device: str | None
    template: Template
    """The values of each parameter, and the restrictions that are known."""
    rows: Sequence[Mapping[str, Any]]
    """What was measured; none in a specification."""

    @property
    def seconds(self) -> dict[str, float | None]:
        """What was measured by its canonical parameters; None where it failed."""
        return {row["candidate_parameters"]: row["runtime_s"] for row in self.rows}


def read_space(
    path: Path, *, restrictions: Sequence[str] = (), language: Language, device: str | None = None
) -> SpaceFile:
    """Read a Kernel Tuner cache file or a T1 specification; see `space_pool` for the arguments.

    Raises:
        SetupError: the file is neither.
    """
    content = _load_json(path, unclosed="}}")
    rows: list[dict[str, Any]] = []
    constraints = list(restrictions)
    try:
        if "ConfigurationSpace" in content:
            name, space = (
                content["KernelSpecification"]["KernelName"],
                content["ConfigurationSpace"],
            )
            values = {entry["Name"]: _t1_values(entry) for entry in space["TuningParameters"]}
            constraints = [
                entry["Expression"] for entry in space.get("Conditions", ())
            ] + constraints
        else:
            name, device = content["kernel_name"], device or content["device_name"]
            common = {"problem": f"tuned/{name}", "device": device, "language": language}
            rows = cache_rows(content, {**common, "source_url": path.name})
            values = {name: tuple(spread) for name, spread in _cache_values(content, rows).items()}
    except (KeyError, TypeError, AttributeError, SyntaxError, ValueError) as error:
        raise SetupError(
            f"{path} is neither a Kernel Tuner cache nor a T1 specification: {error!r}"
        ) from error
    template = Template(source="", parameters=values, constraints=tuple(constraints))
    return SpaceFile(name, device, template, rows)


def space_pool(
    path: Path, *, restrictions: Sequence[str], language: Language, device: str | None
) -> Pool:
    """The unmeasured configurations of a Kernel Tuner cache file or of a T1 specification.

    Args:
        path: the file; the configurations that a cache holds are known.
        restrictions: expressions that a configuration must satisfy, which a cache does not name.
        language: language of the kernel.
        device: name of the device; by default the one in the cache.

    Raises:
        SetupError: the file is neither, or nothing is left to rank.
    """
    space = read_space(path, restrictions=restrictions, language=language, device=device)
    name, device, template, rows = space.name, space.device, space.template, space.rows
    problem = Problem.unstated(f"tuned/{name}", language, "", template=template)
    kernels = [configured(problem.name, language, c) for c in template.configurations()]
    if not kernels:
        raise SetupError(f"{path}: the restrictions admit no configuration")
    if rows and rows[0]["reference_id"]:
        reference, reference_s = (
            recorded_kernel(rows[0], "reference"),
            rows[0]["reference_runtime_s"],
        )
    else:  # Nothing was timed: forecasts are against the middle of the space.
        reference = Kernel(id=f"middle of {problem.name}", language=language, source="")
        reference_s = math.nan
    known: dict[str, Observation] = {}
    for row in rows:
        kernel = recorded_kernel(row, "candidate")
        if observation := recorded_observation(row, problem, kernel):
            known[kernel.id] = observation
    return _pool(problem, reference, reference_s, kernels, known, device)


def template_pool(problem: Problem) -> Pool:
    """Every configuration of a problem's template; sources are rendered when they are measured."""
    if problem.template is None:
        raise SetupError(f"{problem.name!r} has no template: rank a folder of kernels instead")
    configurations = problem.template.configurations()
    kernels = [configured(problem.name, problem.language, c) for c in configurations]
    return _pool(
        problem, as_kernel(problem.seed_source, problem.language), math.nan, kernels, {}, None
    )


def _pool(
    problem: Problem,
    reference: Kernel,
    reference_s: float,
    kernels: Iterable[Kernel],
    known: Mapping[str, Observation],
    device: str | None,
) -> Pool:
    unmeasured = tuple(kernel for kernel in kernels if kernel.id not in known)
    if not unmeasured:
        raise SetupError(f"all {len(known)} kernels of {problem.name!r} were measured on {device}")
    return Pool(
        problem=problem,
        reference=reference,
        reference_s=reference_s,
        labels=tuple(_label(kernel) for kernel in unmeasured),
        kernels=unmeasured,
        known=tuple(known.values()),
        device=device,
    )


def _label(kernel: Kernel) -> str:
    if kernel.parameters is None:
        return kernel.id[:12]
    return " ".join(f"{name}={value}" for name, value in kernel.parameters.items())


def _t1_values(parameter: Mapping[str, Any]) -> tuple[int | float | str, ...]:
    values = parameter["Values"]
    # Some T1 files write lists as text.
    return tuple(json.loads(values) if isinstance(values, str) else values)


def _cache_values(cache: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The values of each parameter; an old cache names only those of its entries."""
    names = cache_parameter_names(cache)
    if spread := cache.get("tune_params"):
        return {name: spread[name] for name in names}
    configurations = [json.loads(row["candidate_parameters"]) for row in rows]
    return {name: sorted({c[name] for c in configurations}) for name in names}
