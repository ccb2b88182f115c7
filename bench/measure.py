"""Run the benches one after the other and hold each published figure against its bar.

    python bench/measure.py [--quick] [--only NAME ...]    run, and write bench/results/NAME.json
    python bench/measure.py --report [--only NAME ...]     run nothing: the results that are there

All benches take hours on two cores; `--only` names some of them. `--quick` runs the quick
mode of each: it shows that the benches work, writes no results, and is not held against the bars.
A bench that needs a part that is not installed is skipped, and the part is named. A bar that is
missed is printed as missed. The exit code is 1 if a bench crashed or its result lacks a figure.
The last line is one JSON object.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _result import bench_parser, report

BENCHES: dict[str, tuple[str, ...]] = {
    "canaries": (),
    "attacks": (),
    "timing": (),
    "overhead": (),
    "six_problems": (),
    "kernelbench": (),
    "modules": (),
    "search_real": ("--jobs", "2"),
    "scale_store": (),
    "farm_loop": (),
    "farm_throughput": (),
    "farm_faults": (),
    "farm_scale": (),
    "resume": (),
    "llm_faults": (),
    "llm_throughput": (),
    "injection": (),
    "critic": (),
    "recalibration": (),
    "search_replay": (),
    "emulator": (),
    "emulator_online": (),
    "emulator_share": (),
    "emulator_pairs": (),
    "coherence": (),
    "texts": (),
    "emulator_faults": (),
    "top_share": (),
    "track_l": (),
    "track_l_sources": (),
    "track_s": (),
    "track_x": (),
    "track_t": (),
    "integrations": (),
    "rewards_small": (),
    "supervised": (),
}
"""Each bench with the options of its full run, the quicker ones of a kind first."""
RESULTS = Path(__file__).with_name("results")


@dataclass(frozen=True)
class Figure:
    """A figure of a bench's JSON, and the bar that it is held against."""

    bench: str
    path: str
    """Keys and indices, separated by `/`."""
    at_least: float | str | None = None
    """A number, or the path of another figure of the same bench."""
    at_most: float | str | None = None

    def of(self, result: Any) -> Reading:
        """The figure in one result of its bench, and the bar there."""
        stated = self.at_most if self.at_least is None else self.at_least
        bar = _at(result, stated) if isinstance(stated, str) else stated
        return Reading(self, _at(result, self.path), bar)


@dataclass(frozen=True)
class Reading:
    """What one result says of a figure; None for what is missing there."""

    figure: Figure
    value: float | None
    bar: float | None

    @property
    def reached(self) -> bool | None:
        """Whether the bar is reached; None where there is nothing to compare."""
        if self.value is None or self.bar is None:
            return None
        return self.value <= self.bar if self.figure.at_least is None else self.value >= self.bar


FIGURES = (
    Figure("canaries", "undetected", at_most=0),
    Figure("attacks", "attacks", at_least=80),
    Figure("attacks", "accepted", at_most=0),
    Figure("attacks", "inflated", at_most=0),
    Figure("attacks", "wrong_reason", at_most=5),
    Figure("attacks", "honest", at_least=120),
    Figure("attacks", "rejected", at_most=0),
    Figure("timing", "false_faster", at_most=0.05),
    Figure("timing", "found_2pct", at_least=0.9),
    Figure("timing", "found_5pct", at_least=0.9),
    Figure("timing", "coverage", at_least=0.94),
    Figure("overhead", "ratio_at_10us"),
    Figure("overhead", "ratio_at_100us", at_most=3.0),
    Figure("overhead", "ratio_at_1ms", at_most=1.5),
    Figure("overhead", "ratio_at_10ms", at_most=1.5),
    Figure("overhead", "worst_from_1ms", at_most=1.5),
    Figure("overhead", "torch_10ms", at_most=1.3),
    Figure("six_problems", "at_least_3x", at_least=4),
    Figure("kernelbench", "problems", at_least=12),
    Figure("kernelbench", "answers", at_least=144),
    Figure("kernelbench", "verdicts_right", at_least="answers"),
    Figure("kernelbench", "proven"),
    Figure("modules", "rows", at_least=200),
    Figure("modules", "false_alarms"),
    Figure("modules", "caught"),
    Figure("modules", "auroc_text"),
    Figure("modules", "auroc_with", at_least=0.90),
    Figure("search_real", "geomean_gain", at_least=1.15),
    Figure("search_real", "losses", at_most=1),
    Figure("scale_store", "last_over_first", at_most=1.2),
    Figure("scale_store", "open_s", at_most=2),
    Figure("farm_loop", "sqlite_per_s", at_least=250),
    Figure("farm_loop", "postgres_per_s", at_least=150),
    Figure("farm_loop", "default_policy_per_s"),
    Figure("farm_loop", "growth", at_most=1.5),
    Figure("farm_loop", "crps_ratio", at_most=1.02),
    Figure("farm_throughput", "ratio_to_bare_ray", at_least=0.90),
    Figure("farm_throughput", "utilisation_1s", at_least=0.95),
    Figure("farm_throughput", "utilisation_100ms", at_least=0.90),
    Figure("farm_faults", "faults", at_least=100),
    Figure("farm_faults", "lost", at_most=0),
    Figure("farm_faults", "double_charged", at_most=0),
    Figure("farm_faults", "stale_offered", at_least=10),
    Figure("farm_faults", "stale_accepted", at_most=0),
    Figure("farm_faults", "slot_shared", at_most=0),
    Figure("farm_scale", "searches", at_least=100),
    Figure("farm_scale", "candidates", at_least=1_000_000),
    Figure("farm_scale", "cost_growth", at_most=1.2),
    Figure("farm_scale", "repeats_measured", at_most=0),
    Figure("farm_scale", "repeats_cached", at_least=1),
    Figure("farm_scale", "fair_share", at_most=0.10),
    Figure("resume", "lost", at_most=0),
    Figure("resume", "double_charged", at_most=0),
    Figure("resume", "overruns", at_most=0),
    Figure("resume", "state_mismatch", at_most=0),
    Figure("llm_faults", "untyped", at_most=0),
    Figure("llm_faults", "ledger_error_usd", at_most=0),
    Figure("llm_throughput", "ratio_to_bare", at_least=0.95),
    Figure("llm_throughput", "ratio_at_equal_server_time"),
    Figure("llm_throughput", "prefix_reused", at_least=0.60),
    Figure("llm_throughput", "prefix_reused_reference_order"),
    Figure("injection", "cases"),
    Figure("injection", "leaked", at_most=0),
    Figure("injection", "changed_share", at_most=0.01),
    Figure("critic", "recorded_edits/precision/value"),
    Figure("critic", "recorded_edits/recall/value"),
    Figure("critic", "written_kernels/llm_sol_mi350x/precision/value"),
    Figure("recalibration", "ratio_100", at_most=0.5),
    Figure("recalibration", "worst_increase_10", at_most=0.01),
    *(
        Figure("search_replay", f"conformal/{target}/rate", at_most=f"conformal/{target}/allowed")
        for target in ("0.01", "0.05", "0.1")
    ),
    Figure("search_replay", "tuner/50"),
    *(
        Figure("search_replay", f"strategies/{name}/with/100")
        for name in ("puct", "greedy", "islands", "best_of_n")
    ),
    Figure("emulator", "spearman_mean", at_least=0.75),
    Figure("emulator", "spearman_worst", at_least=0.40),
    Figure("emulator", "top10", at_least=0.95),
    Figure("emulator", "top10_random"),
    Figure("emulator", "top25"),
    Figure("emulator", "median_ratio"),
    Figure("emulator", "worst_log2_ratio", at_most=1.0),
    Figure("emulator", "configurations", at_least=300),
    Figure("emulator", "ratios/coverage_80"),
    Figure("emulator", "ratios/shipped_coverage_80"),
    Figure("emulator_online", "emulated/10", at_least=0.87),
    Figure("emulator_online", "emulated/25", at_least=0.94),
    Figure("emulator_online", "cold/10"),
    Figure("emulator_online", "cold/25"),
    Figure("emulator_online", "least_gain/10", at_least=-0.01),
    Figure("emulator_online", "least_gain/25", at_least=-0.01),
    Figure("emulator_share", "share", at_least=0.85),
    Figure("emulator_share", "kernels", at_least=200),
    Figure("emulator_pairs", "emulator_right", at_least=0.90),
    Figure("coherence", "self_ties", at_least=1.0),
    Figure("coherence", "asymmetry_log2", at_most=0.02),
    Figure("coherence", "contradictions", at_most=0),
    Figure("coherence", "known_right", at_least=0.80),
    Figure("coherence", "known_wrong_sure", at_most=0.03),
    Figure("coherence", "chains_agree"),
    Figure("coherence", "pairs", at_least=500),
    Figure("texts", "texts", at_least=5000),
    Figure("texts", "first/cpu_s"),
    Figure("texts", "first/peak_mb", at_most=500),
    Figure("texts", "again/cpu_s", at_most=15),
    Figure("texts", "again/peak_mb", at_most=500),
    Figure("texts", "changed", at_most=0),
    Figure("emulator_faults", "faults", at_least=40),
    Figure("emulator_faults", "noticed"),
    Figure("emulator_faults", "noticed_by_right_check", at_least=38),
    Figure("emulator_faults", "later/noticed"),
    Figure("emulator_faults", "later/noticed_by_right_check"),
    Figure("emulator_faults", "right_kernels", at_least=60),
    Figure("emulator_faults", "false_alarms", at_most=0),
    Figure("emulator_faults", "not_emulated", at_most=0),
    Figure("top_share", "worst_loss_top10", at_most=0.03),
    Figure("top_share", "mean_loss_top5"),
    Figure("top_share", "mean_loss_top1", at_most=0.02),
    Figure("track_l", "figures/crps/value", at_most=0.108),
    Figure("track_l", "figures/half_brier/value", at_most=0.200),
    Figure("track_l", "figures/ece/value", at_most=0.02),
    Figure("track_l", "figures/auroc_failure/value", at_least=0.84),
    Figure("track_l", "figures/auroc_beats_best/value", at_least=0.88),
    Figure("track_l", "figures/spearman_source_alone/value", at_least=0.55),
    Figure("track_l", "figures/auroc_ok_kernelbench/value", at_least=0.84),
    Figure("track_l_sources", "auroc_failure_nothing", at_least=0.70),
    Figure("track_l_sources", "auroc_failure_stepwise", at_least=0.78),
    Figure("track_l_sources", "auroc_failure_stored", at_least=0.78),
    Figure("track_l_sources", "crps_to_global_prior", at_most=0.85),
    Figure("track_l_sources", "crps_to_step_prior", at_most=1.0),
    Figure("track_l_sources", "ece", at_most=0.05),
    Figure("track_s", "figures/saved/value", at_least=0.40),
    Figure("track_s", "figures/within/value", at_least=0.95),
    Figure("track_s", "figures/pool_top/value", at_least=0.89),
    *(
        Figure("integrations", f"by_package/{package}/{knowing}/ahead", at_least=bar)
        for package in ("triton", "kernel_tuner", "optuna")
        for knowing, bar in (("cold", 0.03), ("sparse", 0.06))
    ),
    Figure("integrations", "least/against_random", at_least=-0.02),
    Figure("integrations", "optuna_tpe"),
    *(
        Figure("integrations", path, at_least=at_least, at_most=at_most)
        for system in ("openevolve", "shinka")
        for order in ("drawn", "like the parent")
        for path, at_least, at_most in (
            (f"{system}/softmax/{order}/mean/saved", 0.3, None),
            (f"{system}/softmax/{order}/mean/loss", None, 0.02),
        )
    ),
    Figure("integrations", "stalls", at_most=0),
    Figure("integrations", "helion/difference/0", at_least=0.0),
    Figure("rewards_small", "finite", at_least=1),
    Figure("rewards_small", "set_of/supervised/those/crps", at_most=0.105),
    Figure("rewards_small", "set_of/supervised/those/ece", at_most=0.05),
    Figure("rewards_small", "brier/crps", at_most="base_rates/crps"),
    Figure("rewards_small", "crps/crps", at_most="base_rates/crps"),
    Figure("supervised", "track_t/those/supervised/crps", at_most="track_t/those/base_rates/crps"),
    *(
        Figure("supervised", f"track_t/{pairs}/{arm}/crps")
        for pairs, arm in (
            ("those", "trees"),
            ("gpus", "supervised"),
            ("gpus", "trees"),
            ("problems", "supervised"),
            ("problems", "trees"),
        )
    ),
    Figure("supervised", "track_l/supervised/crps", at_most="track_l/prior/crps"),
    Figure("supervised", "track_l/trees/crps", at_most="track_l/prior/crps"),
    Figure("track_x", "CUDA-L1/overall/median_spearman"),
    Figure("track_x", "CUDA-L1/overall/median_error_log2"),
    Figure("track_t", "cold/10", at_least=0.80),
    Figure("track_t", "cold/25", at_least=0.88),
    Figure("track_t", "cold/50", at_least=0.93),
    Figure("track_t", "cold/100", at_least=0.97),
    *(
        Figure("track_t", f"cold/{budget}", at_least=f"kernel_tuner_best/{budget}")
        for budget in (5, 10, 25, 50, 100, 200)
    ),
    Figure("track_t", "sparse/10", at_least=0.94),
    Figure("track_t", "sparse/25", at_least=0.965),
    Figure("track_t", "sparse/50", at_least=0.98),
    Figure("track_t", "full/25", at_least=0.98),
    Figure("track_t", "full/50", at_least=0.99),
    *(
        Figure("track_t", f"full/{budget}", at_least=f"sibling_mean/{budget}")
        for budget in (5, 10, 25, 50)
    ),
    Figure("track_t", "spaces/full/convolution_milo@A100/3", at_least=0.886),
    Figure("track_t", "other_vendor/25", at_least=0.96),
    *(Figure("track_t", f"hostile/least_mean/{budget}", at_least=-0.01) for budget in (25, 50)),
    *(Figure("track_t", f"hostile/least_worst/{budget}", at_least=-0.03) for budget in (25, 50)),
    *(Figure("track_t", f"coverage/cold/{budget}", at_least=0.9) for budget in (25, 50, 100)),
    *(
        Figure("track_t", f"coverage/{arm}/{budget}", at_least=0.9)
        for arm in ("sparse", "full")
        for budget in (25, 50)
    ),
    Figure("track_t", "auroc_failure/cold/25", at_least=0.85),
    Figure("track_t", "optuna_tpe/25"),
    Figure("track_t", "suggest_ms/full", at_most=60),
    Figure("track_t", "device_seconds_ratio", at_most=1 / 3),
)
"""Every figure that is published or has a bar, in the order of `BENCHES`."""


def readings(bench: str, result: Any) -> list[Reading]:
    """Every figure of one result of a bench."""
    return [figure.of(result) for figure in FIGURES if figure.bench == bench]


def add_bars(bench: str, result: Any) -> None:
    """Put bar and verdict beside each value under `figures` of a bench's result."""
    for reading in readings(bench, result):
        _, name, _ = reading.figure.path.split("/")
        result["figures"][name] |= {"bar": reading.bar, "reached": reading.reached}


class Crashed(Exception):
    """A bench ended without a result."""


class Skipped(Exception):
    """A bench needs a part that is not installed."""


def run(name: str, *, quick: bool) -> Any:
    """The JSON of one run of a bench; what it prints on the way goes to standard error."""
    command = [sys.executable, str(Path(__file__).with_name(f"{name}.py"))]
    command += ["--quick"] if quick else [*BENCHES[name], "--out", str(RESULTS / f"{name}.json")]
    print(f"=== {name}", file=sys.stderr, flush=True)
    last = ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            last = line
            print(line, end="", file=sys.stderr, flush=True)
    if process.returncode == 2:
        raise Skipped(f"{name} is skipped: it needs a part that is not installed, see above")
    try:
        return json.loads(last)
    except json.JSONDecodeError:
        raise Crashed(f"{name} ended with exit code {process.returncode} and no result") from None


def recorded(name: str) -> Any:
    """The JSON that the last full run of a bench wrote."""
    path = RESULTS / f"{name}.json"
    if not path.exists():
        raise Skipped(f"{name} has no result yet: python bench/measure.py --only {name}")
    return json.loads(path.read_text())


def main() -> int:
    parser = bench_parser(__doc__, quick="the quick mode of each bench; writes no results")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these benches and no others")
    parser.add_argument("--report", action="store_true", help="run nothing: read bench/results")
    options = parser.parse_args()
    names: Sequence[str] = options.only or tuple(BENCHES)
    if unknown := [name for name in names if name not in BENCHES]:
        parser.error(f"no bench is named {', '.join(unknown)}; there are {', '.join(BENCHES)}")
    found: list[Reading] = []
    crashed, skipped = [], []
    for name in names:
        try:
            result = recorded(name) if options.report else run(name, quick=options.quick)
        except Crashed as error:
            crashed.append(str(error))
        except Skipped as reason:
            skipped.append(str(reason))
        else:
            found += readings(name, result)
    print(*table(found, quick=options.quick), *skipped, *crashed, sep="\n")
    missing = [each for each in found if each.value is None and not options.quick]
    rows = [
        {
            "bench": each.figure.bench,
            "figure": each.figure.path,
            "value": each.value,
            "bar": each.bar,
            "reached": None if options.quick else each.reached,
        }
        for each in found
    ]
    report({"figures": rows, "skipped": skipped, "crashed": crashed}, options)
    return int(bool(crashed or missing))


def table(found: Sequence[Reading], *, quick: bool) -> Iterator[str]:
    """One line a figure: bench, figure, value, bar, and whether it is reached."""
    yield f"{'bench':15} {'figure':47} {'value':>8}            bar"
    for each in found:
        figure = each.figure
        value = "missing" if each.value is None else f"{each.value:.4g}"
        verdict = {None: "", True: "reached", False: "MISSED"}[None if quick else each.reached]
        bar = ""
        if each.bar is not None:
            bar = f"{'at most' if figure.at_least is None else 'at least'} {each.bar:.4g}"
        line = f"{figure.bench:15} {figure.path:47} {value:>8}   {verdict:7}  {bar}"
        yield line.rstrip()


def _at(result: Any, path: str) -> float | None:
    """The number under a path, None if there is none."""
    for key in path.split("/"):
        try:
            result = result[int(key) if isinstance(result, list) else key]
        except (KeyError, IndexError, TypeError):
            return None
    return None if result is None else float(result)


if __name__ == "__main__":
    sys.exit(main())
