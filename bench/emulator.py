"""Estimated against recorded times: tuner kernels that nobody had to run, on seven GPUs.

Configurations of the recorded spaces are compiled, some of their blocks are counted on the CPU, and
the estimate is compared with the published time. The model has the rates of data sheets and three
choices of its own, which are made by the other kernels: a kernel is judged by choices that have
seen none of its times (leave-kernel-out). `shipped` are the choices in the product.

    python bench/emulator.py [--quick] [--configurations 300] [--jobs 2] [--work emulator.jsonl]

Counts are appended to the work file, one line per configuration and target: an interrupted run goes
on. `top10` is the best time of a space over the best time of its ten lowest estimates.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy: processes share the cores instead

import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Drawing
from scipy.stats import spearmanr
from scipy.stats import t as student

from _data import Floats, Space, tuner_spaces
from _result import bench_parser, json_lines, report, rounded, save_figure
from _tuned_kernels import GPUS, GROUPS, launched
from kernelcast.backends.cuda import CudaBackend
from kernelcast.canonical import canonical_parameters
from kernelcast.devices import architecture, find_device
from kernelcast.emulator.model import Architecture, Choices, Work, estimate, stacked
from kernelcast.emulator.ptx import NotEmulated
from kernelcast.forecasters import emulated
from kernelcast.processes import workers
from kernelcast.types import Problem

TOP = (10, 25)
_LEAST_ROWS = 1000
_RANDOM_DRAWS = 500
_ACROSS = 6  # panels of the figure
_QUICK = ("convolution_milo", "dedispersion", "gemm", "hotspot_A4000", "pnpoly")


# ------------------------------------------------------------------------------------- counting


@dataclass(frozen=True)
class Job:
    """One configuration of a group of spaces, for one target."""

    group: str
    key: str
    target: str


@cache
def spaces() -> dict[str, list[Space]]:
    """The spaces of each group that ran on a GPU of NVIDIA."""
    known = [space for space in tuner_spaces(_LEAST_ROWS) if space.gpu in GPUS]
    return {
        group: [space for space in known if space.problem in problems]
        for group, problems in GROUPS.items()
    }


@cache
def times_ms(group: str) -> dict[str, dict[str, float]]:
    """Recorded times by space and configuration, of those that ran on every GPU of the group."""
    tables = {}
    for space in spaces()[group]:
        kernel = launched(space.problem)
        tables[f"{group}: {space.label}"] = {
            canonical_parameters(kernel.renamed(configuration)): float(ms)
            for configuration, ms in zip(space.configurations, space.runtime_ms, strict=True)
            if np.isfinite(ms) and kernel.serves(configuration)
        }
    common = set.intersection(*map(set, tables.values()))
    return {label: {key: table[key] for key in common} for label, table in tables.items()}


def chosen(group: str, count: int) -> list[str]:
    """Configurations at random, the same in every run."""
    keys = sorted(next(iter(times_ms(group).values())))
    order = np.random.default_rng(7).permutation(len(keys))
    return [keys[index] for index in order[:count]]


def targets(group: str) -> dict[str, list[str]]:
    """The devices of a group by target."""
    found: dict[str, list[str]] = {}
    for space in spaces()[group]:
        device = GPUS[space.gpu]
        found.setdefault(find_device(device).target, []).append(device)
    return {target: sorted(set(devices)) for target, devices in found.items()}


@cache
def _backend(target: str) -> CudaBackend:
    return CudaBackend(target)


def count(job: Job) -> dict[str, Any]:
    """Compile and count one configuration, as a user's process would."""
    kernel = launched(GROUPS[job.group][0])
    source = kernel.kernel.source(json.loads(job.key))
    problem = Problem.unstated(job.group, "cuda", source)
    problem = problem.model_copy(update={"entry": kernel.kernel.entry})
    answer: dict[str, Any] = asdict(job)
    began = time.perf_counter()
    try:
        counted = _backend(job.target).count(
            problem, None, source, kernel.arguments, kernel.variables
        )
        works = {
            device: asdict(counted.work(find_device(device)))
            for device in targets(job.group)[job.target]
        }
    except NotEmulated as error:
        return {**answer, "error": str(error)}
    answer |= {"works": works, "compile_s": counted.evidence.compile_s, "exact": counted.exact}
    return answer | {"count_cpu_s": counted.cpu_s, "wall_s": time.perf_counter() - began}


def collect(jobs: Sequence[Job], work: Path, processes: int) -> list[dict[str, Any]]:
    """The counts of all jobs: those of the work file, and the missing ones."""
    done = {Job(line["group"], line["key"], line["target"]): line for line in json_lines(work)}
    missing = [job for job in jobs if job not in done]
    with workers(processes) as pool, work.open("a") as out:
        runs = {pool.submit(count, job): job for job in missing}
        for number, run in enumerate(as_completed(runs), 1):
            line = run.result()
            out.write(json.dumps(line) + "\n")
            out.flush()
            done[runs[run]] = line
            if number % 50 == 0 or "error" in line:
                print(
                    f"{number}/{len(missing)} {line['group']} {line.get('error', '')}", flush=True
                )
    return [done[job] for job in jobs]


# ------------------------------------------------------------------------------------ estimating


@dataclass(frozen=True)
class Table:
    """Everything that was counted, a row for a configuration on a GPU."""

    group: Any
    label: Any
    recorded_s: Floats
    per_call: Floats
    """What the recorded time was divided by."""
    work: Work
    architecture: Architecture
    cores: Floats
    clock_hz: Floats
    bandwidth_bytes_s: Floats

    def rows(self, mask: Any) -> Table:
        """The rows of a mask."""

        def cut(value: Any) -> Any:
            if isinstance(value, Work | Architecture):
                return replace(
                    value, **{f.name: cut(getattr(value, f.name)) for f in fields(value)}
                )
            if isinstance(value, Mapping):
                return {key: part[mask] for key, part in value.items()}
            return value[mask]

        return replace(self, **{f.name: cut(getattr(self, f.name)) for f in fields(self)})

    def estimated_s(self, choices: Choices) -> Floats:
        """The model's times."""
        return np.asarray(
            estimate(
                self.work,
                self.architecture,
                self.cores,
                self.clock_hz,
                self.bandwidth_bytes_s,
                choices,
            ).seconds
        )

    def spaces(self) -> Iterator[tuple[str, Any]]:
        """Each space with the mask of its rows."""
        for label in sorted(set(self.label.tolist())):
            yield label, self.label == label


def table(lines: Sequence[Mapping[str, Any]]) -> Table:
    """Join counts with recorded times."""
    rows = []
    for line in lines:
        if "error" in line:
            continue
        group, key = line["group"], line["key"]
        for space in spaces()[group]:
            device = find_device(GPUS[space.gpu])
            if device.target != line["target"]:
                continue
            label = f"{group}: {space.label}"
            divisor = launched(space.problem).per_call
            calls = float(json.loads(key)[divisor]) if divisor else 1.0
            rows.append((group, label, times_ms(group)[label][key] * 1e-3, calls, device, line))
    devices = [row[4] for row in rows]
    constants = [architecture(device.target) or {} for device in devices]
    return Table(
        np.array([row[0] for row in rows]),
        np.array([row[1] for row in rows]),
        np.array([row[2] * row[3] for row in rows]),
        np.array([row[3] for row in rows]),
        stacked([Work(**row[5]["works"][row[4].name]) for row in rows]),
        Architecture(
            **{name: np.array([float(one[name]) for one in constants]) for name in constants[0]}
        ),
        np.array([device.cores for device in devices], float),
        np.array([device.clock_hz for device in devices]),
        np.array([device.bandwidth_bytes_s for device in devices]),
    )


CHOICES = tuple(
    Choices(overlap, hiding, division)
    for overlap in (1.5, 2.0, 3.0, 4.0)
    for hiding in (1.5, 2.0, 3.0, 4.0)
    for division in (1.0, 2.0, 3.0)
)


def best_choice(rows: Table) -> Choices:
    """The choice whose estimates order the spaces best."""

    def order(choice: Choices) -> float:
        estimates, recorded = (
            rows.estimated_s(choice) / rows.per_call,
            rows.recorded_s / rows.per_call,
        )
        return float(
            np.mean([_spearman(estimates[mask], recorded[mask]) for _, mask in rows.spaces()])
        )

    return max(CHOICES, key=order)


def leave_kernel_out(rows: Table) -> tuple[Floats, dict[str, Any]]:
    """The times of each kernel by what the others would choose, and that choice."""
    kernels = np.array([GROUP_KERNEL[group] for group in rows.group.tolist()])
    times, choices = np.zeros(len(kernels)), {}
    for kernel in sorted(set(kernels.tolist())):
        own = kernels == kernel
        choice = best_choice(rows.rows(~own))
        times[own] = rows.rows(own).estimated_s(choice)
        choices[kernel] = asdict(choice)
    return times, choices


GROUP_KERNEL = {group: group.partition("_")[0] for group in GROUPS}


def log2_estimates(work: Path) -> dict[str, dict[str, float]]:
    """Return log2 of the estimated seconds by label of a space and key, leave-kernel-out."""
    lines = [line for line in json_lines(work) if "error" not in line]
    rows = table(lines)
    times, _ = leave_kernel_out(rows)
    found: dict[str, dict[str, float]] = {}
    keys = (
        line["key"]
        for line in lines
        for space in spaces()[line["group"]]
        if find_device(GPUS[space.gpu]).target == line["target"]
    )
    seconds = times / rows.per_call
    for label, key, estimate_s in zip(rows.label.tolist(), keys, seconds.tolist(), strict=True):
        found.setdefault(label.partition(": ")[2], {})[key] = float(np.log2(estimate_s))
    return found


# ------------------------------------------------------------------------- ratios of estimates

_PAIRS = 2000  # of each space
SCALES = tuple(
    (slope, least, growth)
    for slope in (0.8, 0.85, 0.9, 0.95, 1.0)
    for least in (0.14, 0.18, 0.22, 0.26, 0.3)
    for growth in (0.0, 0.1, 0.2, 0.3)
)
"""Slope, least scale and its growth: what `forecasters/emulated.py` could say of a ratio."""


def ratios(rows: Table, estimated_s: Floats) -> dict[str, Any]:
    """How well pairs of a space are forecast by the ratio of their estimates.

    The constants of the forecast are those that the other kernels make most likely; `shipped` are
    the ones in the product.
    """
    rng = np.random.default_rng(1)
    pairs = {}
    for label, mask in rows.spaces():
        one, other = rng.integers(0, mask.sum(), (2, _PAIRS))
        kept = one != other
        estimate, truth = (
            np.log2(seconds[mask][other] / seconds[mask][one])[kept]
            for seconds in (estimated_s, rows.recorded_s)
        )
        pairs[label] = estimate, truth
    kernels = {label: GROUP_KERNEL[label.partition(":")[0]] for label in pairs}
    shipped = (emulated.SLOPE, emulated.LEAST_SCALE_LOG2, emulated.SCALE_GROWTH)
    by_space = {}
    for label, pair in pairs.items():
        others = [other for other in pairs if kernels[other] != kernels[label]]
        best = max(SCALES, key=lambda scales: sum(_fit_of(*pairs[o], *scales) for o in others))
        estimate, truth = pair
        by_space[label] = {
            "coverage_80": _coverage(*pair, *best),
            "shipped_coverage_80": _coverage(*pair, *shipped),
            "right_direction": float(np.mean(np.sign(estimate) == np.sign(truth))),
        }
    names = list(next(iter(by_space.values())))
    means = {name: float(np.mean([space[name] for space in by_space.values()])) for name in names}
    return {**means, "spaces": by_space}


def _fit_of(estimate: Floats, truth: Floats, *scales: float) -> float:
    slope, least, growth = scales
    scale = least + growth * np.abs(estimate)
    density = student.logpdf((truth - slope * estimate) / scale, emulated.FREEDOM) - np.log(scale)
    return float(density.mean())


def _coverage(estimate: Floats, truth: Floats, *scales: float) -> float:
    slope, least, growth = scales
    error = np.abs(truth - slope * estimate) / (least + growth * np.abs(estimate))
    return float(np.mean(error <= student.ppf(0.9, emulated.FREEDOM)))


# ---------------------------------------------------------------------------------------- scores


def scores(rows: Table, estimated_s: Floats) -> dict[str, Any]:
    """Figures of each space, and their means."""
    by_space = {}
    rng = np.random.default_rng(0)
    for label, mask in rows.spaces():
        recorded = (rows.recorded_s / rows.per_call)[mask]
        estimates = (estimated_s / rows.per_call)[mask]
        order = np.argsort(estimates, kind="stable")
        figures: dict[str, float] = {
            "configurations": int(mask.sum()),
            "spearman": _spearman(estimates, recorded),
            "median_log2_ratio": float(np.median(np.log2(estimates / recorded))),
        }
        for top in TOP:
            best = recorded.min()
            figures[f"top{top}"] = float(best / recorded[order[:top]].min())
            draws = [
                best / rng.choice(recorded, min(top, len(recorded)), replace=False).min()
                for _ in range(_RANDOM_DRAWS)
            ]
            figures[f"top{top}_random"] = float(np.mean(draws))
        by_space[label] = figures
    errors = np.abs(np.log2(estimated_s / rows.recorded_s))
    mean = {name: float(np.mean([f[name] for f in by_space.values()])) for name in figures}
    return {
        "spearman_mean": mean["spearman"],
        "spearman_worst": min(f["spearman"] for f in by_space.values()),
        **{name: mean[name] for name in mean if name.startswith("top")},
        "median_ratio": 2.0 ** float(np.median(np.log2(estimated_s / rows.recorded_s))),
        "worst_log2_ratio": max(abs(f["median_log2_ratio"]) for f in by_space.values()),
        "error_log2_80": float(np.quantile(errors, 0.8)),
        "spaces": by_space,
    }


def _spearman(one: Floats, other: Floats) -> float:
    return float(spearmanr(one, other)[0])


def draw(rows: Table, estimated_s: Floats, out: Path) -> None:
    """Estimated against recorded times, a panel a space."""
    count = sum(1 for _ in rows.spaces())
    figure = Drawing(figsize=(_ACROSS * 2.1, -(-count // _ACROSS) * 2.1), layout="constrained")
    for number, (label, mask) in enumerate(rows.spaces(), 1):
        axis = figure.add_subplot(-(-count // _ACROSS), _ACROSS, number)
        times = np.log2(np.stack([rows.recorded_s[mask], estimated_s[mask]]) * 1e3)
        axis.plot(*times, ".", markersize=3)
        ends = [times.min(), times.max()]
        axis.plot(ends, ends, color="0.6", linewidth=0.8)
        axis.xaxis.set_major_formatter(lambda power, _: f"{2.0**power:.3g}")
        axis.yaxis.set_major_formatter(lambda power, _: f"{2.0**power:.3g}")
        axis.locator_params(nbins=4)
        axis.set_title(label.partition(": ")[2], fontsize=7)
        axis.tick_params(labelsize=6)
    figure.supxlabel("recorded ms")
    figure.supylabel("estimated ms")
    save_figure(figure, out)


def main() -> None:
    parser = bench_parser(__doc__, quick="six configurations of five kernels, shipped choices")
    parser.add_argument("--configurations", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--work", type=Path, help="where counts gather; default: temporary")
    arguments = parser.parse_args()
    groups = _QUICK if arguments.quick else tuple(GROUPS)
    number = 6 if arguments.quick else arguments.configurations
    name = "emulator_quick.jsonl" if arguments.quick else "emulator.jsonl"
    work = arguments.work or Path(tempfile.gettempdir()) / name
    if arguments.quick and arguments.work is None:
        work.unlink(missing_ok=True)
    keys = {group: chosen(group, number) for group in groups}
    jobs = [
        Job(group, keys[group][index], target)
        for index in range(number)
        for group in groups
        if index < len(keys[group])
        for target in targets(group)
    ]
    lines = collect(jobs, work, arguments.jobs)
    rows = table(lines)
    shipped = scores(rows, rows.estimated_s(Choices()))
    result = {"configurations": number, "groups": len(groups)}
    if arguments.quick:
        result |= shipped
    else:
        times, choices = leave_kernel_out(rows)
        result |= {**scores(rows, times), "choices": choices}
        result["ratios"] = ratios(rows, times)
        result["shipped"] = {name: value for name, value in shipped.items() if name != "spaces"}
        if arguments.out:
            draw(rows, times, arguments.out)
    good = [line for line in lines if "error" not in line]
    result["not_emulated"] = len(lines) - len(good)
    result["cpu_s"] = {
        what: np.quantile([line[f"{what}_s"] for line in good], (0.25, 0.5, 0.75)).tolist()
        for what in ("compile", "count_cpu")
    }
    report(rounded(result), arguments, "scipy")


if __name__ == "__main__":
    main()
