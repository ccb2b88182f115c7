"""Write docs/benchmarks.md, docs/best-found.png and the figures in README.md from bench/results.

    python tools/benchmarks_page.py           # write all three
    python tools/benchmarks_page.py --check   # exit with 1 if one of them differs from the results

Every number on the page comes from a JSON file that a script in bench/ wrote. Sentences that depend
on a number (a bar that is reached or missed, a list of problems) are computed too.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE, PICTURE, README = Path("docs/benchmarks.md"), Path("docs/best-found.png"), Path("README.md")
BLOCK = re.compile(r"(<!-- figures: [^\n]* -->\n).*?(<!-- end of figures -->)", re.S)
"""The part of README.md that this script fills in."""

Results = Mapping[str, Any]


def read_results(root: Path = ROOT) -> Results:
    """The content of each JSON file in bench/results, by the name of its script."""
    files = sorted((root / "bench/results").glob("*.json"))
    results = {path.stem: json.loads(path.read_text()) for path in files}
    if quick := [name for name, result in results.items() if result.get("quick")]:
        raise SystemExit(f"made with --quick, so not to be published: {', '.join(quick)}")
    return results


# Curves of the README's figure: every arm on the same spaces.

_BUDGETS = (5, 10, 25, 50, 100, 200)
_KERNEL_TUNER = "kernel_tuner/"


def best_found(results: Results, shared_with: str = "sparse") -> dict[str, dict[int, float]]:
    """Each arm's mean share of the best possible speed, on the spaces that one arm has run."""
    by_arm = results["track_t"]["spaces"]
    labels = by_arm[shared_with].keys()
    means = {
        arm: [fmean(values) for values in zip(*(spaces[label] for label in labels), strict=True)]
        for arm, spaces in by_arm.items()
        if labels <= spaces.keys()
    }
    strategies = [means.pop(arm) for arm in list(means) if arm.startswith(_KERNEL_TUNER)]
    means["kernel_tuner_best"] = [max(values) for values in zip(*strategies, strict=True)]
    return {arm: dict(zip(_BUDGETS, values, strict=False)) for arm, values in means.items()}


_CURVES = {
    "full": ("kernelcast, other GPUs known in full", "#0b3d91", "-", "o"),
    "sparse": ("kernelcast, 300 configurations of each other GPU known", "#1f6feb", "--", "s"),
    "cold": ("kernelcast, nothing known", "#2b8a3e", "-", "D"),
    "kernel_tuner_best": ("Kernel Tuner, best of its strategies", "#d1582b", "-", "^"),
    "random": ("random choice", "#777777", ":", "v"),
}


def picture_data(results: Results) -> str:
    """The numbers that the picture shows; they are also stored in the picture's file."""
    curves = best_found(results)
    rounded = {arm: {n: round(y, 4) for n, y in curves[arm].items()} for arm in _CURVES}
    return json.dumps({"spaces": len(results["track_t"]["spaces"]["sparse"]), **rounded})


def draw(results: Results, path: Path) -> None:
    """Best found by number of measurements, as a PNG that holds its numbers as metadata."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.2), dpi=150, layout="constrained")
    for arm, (label, colour, style, marker) in _CURVES.items():
        curve = best_found(results)[arm]
        axes.plot(
            list(curve), list(curve.values()), style, color=colour, marker=marker, label=label
        )
    axes.set_xscale("log")
    axes.set_xticks(_BUDGETS, [str(n) for n in _BUDGETS])
    axes.minorticks_off()
    axes.set_xlabel("kernels measured (log scale)")
    axes.set_ylabel("speed of the best kernel found\n(1 = best in the space)")
    spaces = len(results["track_t"]["spaces"]["sparse"])
    axes.set_title(
        f"Recorded GPU tuner spaces: mean over {spaces} spaces, "
        f"{results['track_t']['seeds']} seeds each",
        fontsize=11,
    )
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Description": picture_data(results)})
    pyplot.close(figure)


def readme_block(results: Results) -> str:
    """The sentences under the README's figure."""
    spaces, curves = results["track_t"]["spaces"]["sparse"], best_found(results)
    at = {arm: curve[25] for arm, curve in curves.items()}
    return _paragraphs(
        f"""
After 25 measurements, the best kernel found runs at {at["random"]:.2f} of the best possible speed
with random choice, {at["kernel_tuner_best"]:.2f} with Kernel Tuner's best strategy,
{at["cold"]:.2f} with kernelcast, and {at["sparse"]:.2f} to {at["full"]:.2f} with kernelcast when
other GPUs have run the same kernel. These are searches replayed on published measurements:
{len(spaces)} tuner spaces, {len(_gpus(spaces))} GPUs. The model's settings were chosen on these
spaces, with other seeds. [All benchmarks](docs/benchmarks.md), also the bars that were missed.
"""
    )


# The page: one section for each result.


def page(results: Results) -> str:
    """All of docs/benchmarks.md."""
    parts = [_INTRODUCTION]
    for name, section in SECTIONS.items():
        parts += [section(results[name]), _provenance(name, results[name])]
    return "\n".join(map(_paragraphs, parts))


def _provenance(name: str, result: Any) -> str:
    """Script, command, seeds and versions, as the result's file has them."""
    commands = result["command"]
    commands = [commands] if isinstance(commands, str) else commands
    script = f"bench/{name}.py"
    made_by = f"`{script}`" if (ROOT / script).exists() else "the commands below"
    seeds = (
        f"{result['seeds']} seeds"
        if "seeds" in result
        else f"seed {result['seed']}"
        if "seed" in result
        else "no seed recorded"
    )
    versions = ", ".join(f"{package} {number}" for package, number in result["versions"].items())
    return (
        f"**Made by** {made_by}, {seeds}, with {versions}. Result: `bench/results/{name}.json`."
        " Command as recorded:\n\n```text\n" + "\n".join(commands) + "\n```"
    )


def _paragraphs(text: str) -> str:
    """The text with each paragraph on one line; tables, lists and code keep their lines."""
    parts = re.split(r"(```.*?```)", text.strip(), flags=re.S)
    joined = (
        part if part.startswith("```") else re.sub(r"(?<=[^\n])\n(?=[^\n|#-])", " ", part)
        for part in parts
    )
    return re.sub(r"\n{3,}", "\n\n", "".join(joined)) + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _interval(pair: Sequence[float], form: str = ".3f") -> str:
    return f"{pair[0]:{form}} to {pair[1]:{form}}" if pair else ""


def _verdict(*, reached: bool) -> str:
    return "reached" if reached else "**missed**"


def _gpus(labels: Iterable[str]) -> set[str]:
    return {label.partition("@")[2] for label in labels}


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _track_t(result: Any) -> str:
    results = {"track_t": result}
    names = {
        "random": "random choice",
        "kernel_tuner_best": "Kernel Tuner, best strategy at each budget",
        "cold": "kernelcast, cold: nothing known",
        "sibling_mean": "no model: order by the mean of the other GPUs' times",
        "sparse": "kernelcast, sparse: 300 random configurations of each other GPU known",
        "full": "kernelcast, full: all configurations of each other GPU known",
        "other_vendor": "kernelcast, full, but only GPUs of the other maker known",
    }

    def table(shared_with: str, *arms: str) -> str:
        curves = best_found(results, shared_with)
        rows = [
            [names[arm], *(f"{curves[arm][n]:.3f}" if n in curves[arm] else "" for n in _BUDGETS)]
            for arm in arms
        ]
        return _table(["measurements", *map(str, _BUDGETS)], rows)

    count = {arm: len(spaces) for arm, spaces in result["spaces"].items()}
    seconds = result["device_seconds"]
    worst = result["worst"]
    return f"""
## Tuner spaces of real GPUs

**Question.** How near to the optimum of a recorded tuner space does a search come with few
measurements?

![Best found by number of measurements](best-found.png)

Scores are the best possible time over the best found time, as a mean over spaces. Every row of a
table covers the same spaces. The {count["sparse"]} spaces that other GPUs have run:

{table("sparse", "random", "kernel_tuner_best", "cold", "sibling_mean", "sparse", "full")}

All {count["cold"]} spaces, on {len(_gpus(result["spaces"]["cold"]))} GPUs:

{table("cold", "random", "kernel_tuner_best", "cold")}

The {count["other_vendor"]} spaces that GPUs of another maker have run:

{table("other_vendor", "cold", "other_vendor")}

The worst space after 50 measurements: cold {worst["cold"]["50"]:.3f}, sparse
{worst["sparse"]["50"]:.3f}, full {worst["full"]["50"]:.3f}, random {worst["random"]["50"]:.3f}.

Device seconds (compiling and timing) until the search is within 5% of the optimum, against Kernel
Tuner's `{result["device_seconds_against"]}`, as a geometric mean over the {count["cold_seconds"]}
spaces with recorded costs: cold {seconds["cold"]:.2f}, cold and choosing by gain per second
{seconds["cold_seconds"]:.2f}, sparse {seconds["sparse"]:.2f}, full {seconds["full"]:.2f}, the mean
of the other GPUs' times {seconds["sibling_mean"]:.2f}, random {seconds["random"]:.1f}.

**Data.** Tuned on these same spaces, with other seeds: the settings of the model were chosen there.
Judged on these spaces. One GPU is left out at a time; the other GPUs are what is known.

**Limits.** The spaces are replayed, not measured. Tuning and judging on the same spaces flatters
kernelcast. Where the complete tables of other GPUs are at hand, the plain mean of their times is
nearly as good. Kernel Tuner's `bayes_opt` was run with a fault repaired.
"""


def _top_share(result: Any) -> str:
    def row(name: str, values: Any) -> list[str]:
        pairs = zip(values[f"{name}mean"], values[f"{name}worst"], strict=True)
        return [f"{mean:.1%} / {worst:.1%}" for mean, worst in pairs]

    rows = [
        ["kernelcast", *row("", result)],
        ["mean of the other GPUs' times, no model", *row("sibling_mean_", result)],
        ["kernelcast without stand-ins", *row("", result["without_stand_ins"])],
    ]
    shares = [f"top {share:.0%}" for share in result["shares"]]
    return f"""
## Rank once and measure the top

**Question.** How much speed is lost if a space is ranked once, from other GPUs' tables, and only
the top share is measured?

Speed lost against the best of the space, mean / worst of {len(result["spaces"])} spaces:

{_table(["order by", *shares], rows)}

*Stand-ins* are tables of the same kernel at another size. They are used where no other GPU of the
same maker has run the kernel.

**Data.** Tuned on these same spaces, with other seeds: the settings of the model were chosen there.
Judged on these spaces.

**Limits.** Compare with the row that uses no model: a single ranking from complete tables does not
need one.
"""


def _search_replay(result: Any) -> str:
    def scores(arm: Mapping[str, float]) -> str:
        return " / ".join(f"{arm[n]:.3f}" for n in ("25", "50", "100"))

    strategies = [
        [f"`{name}`", scores(arms["without"]), scores(arms["with"])]
        for name, arms in result["strategies"].items()
    ]
    bounds = [
        [
            f"`conformal`, {float(target):.0%}",
            f"{arm['turned_away']:,}",
            f"{arm['rate']:.2%}",
            _verdict(reached=arm["held"]),
            f"{arm['found']['100']:.3f}",
            str(arm["selective_needs"]["100"] or "more than 100"),
        ]
        for target, arm in result["conformal"].items()
    ]
    gpus = {label.rpartition(" on ")[2] for label in result["spaces"]}
    plain = result["selective"]
    turned_away = [f"{plain['turned_away']:,}", f"{plain['rate']:.2%}"]
    found = f"{plain['found']['100']:.3f}"
    bounds.append(["`selective`, no bound", *turned_away, "none", found, "100"])
    columns = ["policy, bound", "turned away", "of these a new best", "bound", "found after 100"]
    return f"""
## Search strategies on recorded spaces

**Question.** Do forecasts help each search strategy, and does the policy `conformal` keep its
bound?

Best recorded time over best found time after 25 / 50 / 100 measurements, on
{len(result["spaces"])} spaces of {len(gpus)} GPUs:

{_table(["strategy", "measure everything", "choose by forecasts (`selective`)"], strategies)}

The policy `conformal` is given a bound for the share of the candidates turned away that would have
been a new best. The recording tells which would have been:

{_table([*columns, "`selective` needs for the same"], bounds)}

**Data.** Recorded tuner spaces; seeds take them in turn. The forecaster's settings were chosen on
spaces that include these.

**Limits.** A bound of 1% needs 99 audits before anything can be turned away
([why](explanation/search.md)), so that arm made more measurements than the others.
"""


_POLICIES = ("selective", "measure_all")


def _search_real(result: Any) -> str:
    problems = result["problems"]
    rows = [
        [
            name,
            f"{row['speedup']['measure_all']:.1f}x",
            f"{row['speedup']['selective']:.1f}x",
            f"{row['gain']:.2f}",
            _interval([row["low"], row["high"]], ".2f"),
            f"{row['seeds_won']}, {row['seeds_tied']}, {row['seeds_lost']}",
        ]
        for name, row in problems.items()
    ]

    def ratio(field: str) -> float:
        total = {arm: sum(row[field][arm] for row in problems.values()) for arm in _POLICIES}
        return float(total["selective"] / total["measure_all"])

    unproven = [name for name, row in problems.items() if row["low"] <= 1 <= row["high"]]
    equal_cost = geometric_mean(row["gain_at_equal_cost"] for row in problems.values())
    columns = ["problem", "measure everything", "`selective`", "gain", "95% interval"]
    return f"""
## Choosing by forecasts against measuring everything

**Question.** Does a real search find faster kernels if it chooses what to measure by forecasts?

{_table([*columns, "seeds won, tied, lost"], rows)}

The geometric mean of the gains is {result["geomean_gain"]:.2f}. `selective` won
{result["wins"]} problems, tied {result["ties"]} (within 2%) and lost {result["losses"]}. The
interval includes 1, so nothing is proven, for: {_listed(unproven)}. `selective` considered
{ratio("considered"):.0f} times as many candidates and used {ratio("device_s"):.2f} times the device
seconds, because each new best is measured twice. Stopped at equal device seconds, the gain within
the search is {equal_cost:.2f}.

**Data.** The bundled C++ problems, searched live: the same seeds, proposals, engine and number of
measurements for both. Kernels found were measured again, side by side. The problems also served
while the search was developed.

**Limits.** One shared machine with two virtual cores; another machine gives other numbers. Each
search had one core. The run is older than forecasters that learn from second measurements.
"""


def _six_problems(result: Any) -> str:
    rows = [
        [
            name,
            f"{row['speedup']:.1f}x",
            f"{row['low']:.1f}x to {row['high']:.1f}x",
            f"{row['considered']:,}",
            str(row["measured"]),
        ]
        for name, row in result["problems"].items()
    ]
    columns = ["problem", "speedup over the seed", "95% interval", "considered", "measured"]
    return f"""
## A search on each bundled problem

**Question.** How fast is the kernel that a default search finds?

{_table(columns, rows)}

{result["at_least_3x"]} of {result["of"]} problems reach 3x. Device:
{result["device"]}. Compiler: {result["toolchain"].partition(",")[0]}.

**Data.** The bundled C++ problems, which also served while the search was developed. The best
kernel was measured once more in fresh processes, in pairs with the seed kernel.

**Limits.** The seed kernels are naive on purpose, so these speedups say little about tuned code.
One shared machine with two virtual cores; another machine gives other numbers.
"""


def _bars(figures: Mapping[str, Any], names: Mapping[str, str]) -> str:
    rows = [
        [
            names[name],
            f"{figure['value']:.3f}",
            _interval(figure.get("interval", [])),
            f"{figure['bar']:g}",
            _verdict(reached=figure["reached"]),
        ]
        for name, figure in figures.items()
    ]
    return _table(["score", "value", "95% interval", "bar", "verdict"], rows)


def _track_s(result: Any) -> str:
    names = {
        "saved": "share of the distinct kernels not measured",
        "within": "share of the searches within 2% of their full best",
        "pool_top": "best of a pool found by measuring only the top-ranked kernel",
    }
    arms = result["chosen_elsewhere"]
    pools = result["pools"]
    return f"""
## Recorded searches of language-model agents

**Question.** How many measurements of a recorded search could have been saved?

{_bars(result["figures"], names)}

{result["searches"]} searches, {result["folds"]} folds. At the same rule for thresholds, a
random choice saves
{arms["random"]["saved"]:.1%} with {arms["random"]["within"]:.1%} of the searches within 2%;
measuring only the first kernels of each search saves {arms["first"]["saved"]:.1%} with
{arms["first"]["within"]:.1%}. In {pools["pools"]} pools a random kernel reaches
{pools["random"]:.3f} of the pool's best, the top-ranked one {pools["top"]:.3f}. With kernels that
fail counted as zero: {pools["random_with_failures"]:.3f} and {pools["top_with_failures"]:.3f}.

**Data.** `llm_sol_mi350x` (MI350X), in folds by problem. Models and thresholds come from the other
folds. The form of the score was chosen on these same searches.

**Limits.** One device and one collection of agents.
"""


def _track_l(result: Any) -> str:
    names = {
        "crps": "CRPS, log2 (lower is better)",
        "half_brier": "half-Brier score, nine bins (lower is better)",
        "ece": "calibration error, ECE (lower is better)",
        "auroc_failure": "AUROC of failure",
        "auroc_beats_best": 'AUROC of "over 5% faster than the best"',
        "spearman_source_alone": "rank correlation from the text alone",
        "auroc_ok_kernelbench": "AUROC of success, KernelBench sets",
    }
    priors = result["baselines"]
    baselines = [
        [names[score], f"{result['more'][score]:.3f}"]
        + [f"{priors[prior][score]:.3f}" for prior in ("per_step_prior", "global_prior")]
        for score in ("crps", "half_brier", "ece", "auroc_failure", "auroc_beats_best")
    ]
    missed = [names[name] for name, figure in result["figures"].items() if not figure["reached"]]
    return f"""
## Forecasts of kernels that language models wrote

**Question.** How good are the forecasts for problems that the model has never seen?

{_bars(result["figures"], names)}

{result["forecasts"]:,} forecasts against the best so far, {result["ran"]:,} of kernels that ran,
{result["folds"]} folds. Bars missed: {len(missed)} of {len(result["figures"])}. Against priors:

{_table(["score", "kernelcast", "prior of each step", "global prior"], baselines)}

**Data.** `llm_sol_mi350x` and the KernelBench sets, in folds by problem: trained on all folds but
one, judged on that one.

**Limits.** A prior is calibrated by construction, so its ECE is low. The first forecasts of a
search are little better than a prior ([model card](reference/model-card.md)).
"""


def _track_x(result: Any) -> str:
    rows = [
        [
            name,
            str(overall["gpus"]),
            str(overall["pairs"]),
            f"{overall['texts']:,}",
            f"{overall['median_spearman']:.2f}",
            f"{overall['lowest_spearman']:.2f}",
            f"{overall['median_error_log2']:.2f}",
            f"{overall['global_median_error_log2']:.2f}",
        ]
        for name in ("CUDA-L1", "compiled PyTorch")
        for overall in [result[name]["overall"]]
    ]
    columns = ["set", "GPUs", "pairs", "texts", "median rank correlation", "lowest"]
    columns += ["median error, log2", "error of the overall median, log2"]
    return f"""
## The same text on another GPU

**Question.** How well does the speedup on one GPU predict that of the same text on another?

{_table(columns, rows)}

**Data.** Published times of CUDA-L1 and of compiled PyTorch. Nothing was tuned.

**Limits.** No part of kernelcast is in it. It says what transfer between GPUs can give at most by
copying. CUDA-L1 publishes only kernels that won.
"""


def _critic(result: Any) -> str:
    names = {
        "recorded edits, text and instructions": result["recorded_edits"],
        "recorded edits, text alone": result["recorded_edits_by_text_alone"],
        **{f"`{name}`, text alone": row for name, row in result["written_kernels"].items()},
    }
    rows = [
        [
            name,
            f"{row['kernels']:,}",
            f"{row['not_worth_hardware']:,}",
            str(row["objections"]),
            str(row["right"]),
            f"{row['precision']['value']:.0%} ({_interval(row['precision']['interval'], '.0%')})",
            f"{row['recall']['value']:.0%}",
        ]
        for name, row in names.items()
    ]
    columns = ["collection", "kernels", "not worth hardware", "objections", "right"]
    columns += ["precision (95% interval)", "recall"]
    return f"""
## A critic that asks no model

**Question.** When the critic says "not worth hardware", is it right?

{_table(columns, rows)}

**Data.** Edits recorded in `tests/edits`, compiled and measured here, and kernels of recorded
searches.

**Limits.** Recall is low by design: the critic speaks only where text or instructions show that
nothing changed.
"""


def _attacks(result: Any) -> str:
    reached = result["accepted"] == result["rejected"] == 0
    return f"""
## Attacks and honest kernels

**Question.** Does a kernel that cheats get a time, and is an honest kernel ever refused?

Of {result["attacks"]} attacks, {result["accepted"]} were accepted and {result["wrong_reason"]} were
rejected for another reason than the expected one. Of {result["honest"]} honest kernels,
{result["rejected"]} were rejected. {result["skipped"]} were skipped. Bar (no attack accepted, no
honest kernel rejected): {_verdict(reached=reached)}.

**Data.** Kernels in `tests/attacks` and `tests/honest` (C++, OpenCL, Triton). The defences were
developed with these files.

**Limits.** A trick that is not in the catalogue may pass. Triton kernels were judged in the
interpreter; nothing was launched on a GPU.
"""


def _canaries(result: Any) -> str:
    return f"""
## The sandbox

**Question.** Does the sandbox notice when one of its mechanisms is missing?

The sandbox proves level {result["level"]} with {result["canaries"]} canaries. Each of its
{result["mechanisms"]} mechanisms was taken away in turn; {result["undetected"]} losses went
unnoticed. Bar (the reported level drops each time):
{_verdict(reached=result["undetected"] == 0)}.

**Data.** The mechanisms that are in force on the machine of the run.

**Limits.** The sandbox shares the Linux kernel of the machine. Mechanisms that a machine does not
offer are not tested there.
"""


def _timing(result: Any) -> str:
    rows = [
        [
            "the same kernel" if slowdown == "0" else f"{slowdown}% slower",
            str(result["comparisons"][slowdown]),
            f"{row['faster']:.1%}",
            f"{row['found']:.1%}",
        ]
        for slowdown, row in result["rows"].items()
    ]
    found = min(result["found_2pct"], result["found_5pct"])
    return f"""
## Timing on a busy machine

**Question.** Are equal kernels called equal and slow ones slow, with both cores kept busy?

{_table(["candidate", "comparisons", "called faster", "called slower"], rows)}

Coverage of the 95% interval where both kernels are the same: {result["coverage"]:.3f}.

- At most 5% of equal kernels called faster: {_verdict(reached=result["false_faster"] <= 0.05)}.
- At least 90% of slowdowns of 2% and 5% found: {_verdict(reached=found >= 0.9)}.
- Coverage of at least 0.94: {_verdict(reached=result["coverage"] >= 0.94)}.

**Data.** One kernel against itself and against copies that do 1% to 10% more work.

**Limits.** One shared machine with two virtual cores; another machine gives other numbers.
"""


def _overhead(result: Any) -> str:
    kinds = dict.fromkeys(name.rpartition(", ")[0] for name in result["rows"])
    rows = [
        [kind, *(f"{result['rows'][f'{kind}, {effort}']['ratio']:.2f}" for effort in efforts)]
        for efforts in [("screening", "normal")]
        for kind in kinds
    ]
    return f"""
## The price of a trusted measurement

**Question.** How much longer does a confined, verified measurement take than a bare loop?

Time of a measurement over the time of a bare loop with as many calls, sandbox level
{result["sandbox"]}:

{_table(["kernel", "screening effort", "normal effort"], rows)}

**Data.** A loop of a set length, and bundled problems.

**Limits.** Run with an earlier measuring loop. Machines that wake processes slowly pay more, most
of all for kernels below 1 ms. Kernels that stream through memory pay for fresh inputs.
"""


def _injection(result: Any) -> str:
    return f"""
## Text in a kernel cannot address the model

**Question.** Does text hidden in a kernel change the prompt that the model sees?

{result["kernels"]} kernels with {len(result["by_payload"])} payloads each: of {result["cases"]:,}
prompts, {result["changed"]} differ from the prompt of the clean kernel. Bar (none differs):
{_verdict(reached=result["changed"] == 0)}. Payloads: {_listed(list(result["by_payload"]))}.

**Data.** Kernels of this repository and of the measured data; payloads written for this test.

**Limits.** Only text that does not change the program. [What remains](explanation/canonical.md).
"""


def _llm_faults(result: Any) -> str:
    exact = result["untyped"] == 0 and result["ledger_error_usd"] == 0 and result["run_completed"]
    return f"""
## Faults of a model endpoint

**Question.** Does every fault of an endpoint end as documented, and is the ledger exact?

Of {result["faults"]} kinds of fault, {result["untyped"]} ended in another way than their table
states. A search of {result["run_candidates"]} candidates met {result["run_faults"]} faults of
{result["run_kinds_of_fault"]} kinds in {result["run_requests"]} requests; its ledger differs from
the server's books by ${result["ledger_error_usd"]:.2f}. Bar (every fault as stated, an exact
ledger): {_verdict(reached=exact)}.

**Data.** A faulty server on this machine.

**Limits.** Faults that the table does not list are not tested.
"""


def _llm_throughput(result: Any) -> str:
    slower = result["first_seconds_reference_order"] / result["first_seconds"]
    return f"""
## Throughput with a language model

**Question.** What does the client cost, and how much of the prompt does a server reuse?

For {result["candidates"]} candidates of one anchor, the server does not evaluate
{result["prefix_reused"]:.0%} of the prompt tokens again
({_verdict(reached=result["reached"]["prefix_reused"])}). In the paper's order of the prompt it is
{result["prefix_reused_reference_order"]:.0%}, and the whole takes {slower:.1f} times as long.

Tokens a second against a bare client that posts the same bodies: {result["ratio_to_bare"]:.2f}
times ({_verdict(reached=result["reached"]["ratio_to_bare"])}; median of
{result["pairs_of_turns"]} pairs of turns, 98% interval {_interval(result["interval"], ".2f")}); at
equal server time {result["ratio_at_equal_server_time"]:.2f} times. A turn of
{result["concurrency"]} forecasts spends {result["added_s"]["ours"]:.2f} s outside the server, the
bare client {result["added_s"]["bare"]:.2f} s.

**Data.** Configurations of a bundled template; a small model on llama.cpp's server.

**Limits.** The server shares two cores with the client, so most of the difference between turns is
the server.
"""


def _recalibration(result: Any) -> str:
    rows = [
        [outcomes, *(f"{result[f'ece_{kind}_{outcomes}']:.3f}" for kind in kinds)]
        for kinds in [("uncorrected", "corrected")]
        for outcomes in ("10", "100")
    ]
    return f"""
## A forecaster that is too sure of itself

**Question.** Does recalibration during a search correct a forecaster made three times too sure?

Mean calibration error (ECE) over {result["spaces"]} spaces:

{_table(["outcomes seen", "uncorrected", "corrected"], rows)}

- Error halved after 100 outcomes: {_verdict(reached=result["ratio_100"] <= 0.5)} (mean ratio
{result["ratio_100"]:.2f}; halved on {result["spaces_halved_100"]:.0%} of the spaces).
- The largest increase on one space after 10 outcomes is {result["worst_increase_10"]:.4f}.

**Data.** Recorded tuner spaces, on configurations that were not measured.

**Limits.** The over-confidence is made by construction.
"""


def _eval_smollm2(result: Any) -> str:
    names = {
        "accuracy": "accuracy",
        "crps": "CRPS, log2",
        "half_brier": "half-Brier score",
        "ece": "ECE",
        "auroc_failure": "AUROC of failure",
    }
    judged = {row["forecaster"]: row["scores"] for row in result["evaluations"]}
    rows = [
        [label, *(f"{score[0]:.2f} ({_interval(score[1:], '.2f')})" for score in scores)]
        for name, label in names.items()
        for scores in [[by_name[name] for by_name in judged.values()]]
    ]
    problems = result["evaluations"][0]["problems"]
    return f"""
## The smallest of models as a forecaster

**Question.** How good are the forecasts of a very small language model?

{result["model"]}; {result["kernels"]} kernels of {problems} problems; 95% intervals:

{_table(["score", *judged], rows)}

`hindsight` is a yardstick: it answers every question with the frequencies of all outcomes.

**Data.** Kernels of `llm_sol_mi350x`; nothing was trained on them.

**Limits.** **The accuracy of a strong model could not be measured here.** The sample is small. [How
to judge your own model](how-to/forecast-with-a-model.md).
"""


def _resume(result: Any) -> str:
    row = result.get("result", result)
    harm = ("lost", "double_charged", "overruns", "state_mismatch")
    return f"""
## Crash safety

**Question.** Is anything lost or charged twice if a run is killed?

{row["points"]} kills: {row["lost"]} measurements lost, {row["double_charged"]} charged twice,
{row["overruns"]} budgets passed, {row["state_mismatch"]} final states that differ from the run that
was never killed. Bar (none of these): {_verdict(reached=not any(row[name] for name in harm))}.

**Data.** One search, killed with SIGKILL at every store write and at random moments, then resumed.
Measurements are synthetic.

**Limits.** The process is killed, not the machine.
"""


def _scale_store(result: Any) -> str:
    row = result.get("result", result)
    return f"""
## A long run

**Question.** Does the cost of an event stay flat, and does a long run open quickly?

{row["events"]:,} events: the last tenth costs {row["last_over_first"]:.2f} times the first tenth
per event. Opening the run and asking for its best kernel takes {row["open_s"]:.2f} s.

**Data.** Synthetic events with realistic sizes.

**Limits.** SQLite on one machine; the seconds depend on its disk.
"""


_INTRODUCTION = """
# Benchmarks

`python tools/benchmarks_page.py` makes this page from `bench/results/*.json`. A script in `bench/`
wrote each of those files, with its command, seed and versions.

All runs were made on shared machines with two cores and no GPU. **No kernel has run on a GPU yet.**
Figures about GPUs are searches and forecasts replayed on measurements that others made and
published ([sources](how-to/measured-data.md)). Absolute times say little on a shared machine;
ratios of interleaved measurements say more.

A *bar* is a goal that the project set for itself. A bar that was not reached is marked **missed**.
Sections without a bar report a figure and judge nothing.
"""

SECTIONS: dict[str, Callable[[Any], str]] = {
    "track_t": _track_t,
    "top_share": _top_share,
    "search_replay": _search_replay,
    "search_real": _search_real,
    "six_problems": _six_problems,
    "track_s": _track_s,
    "track_l": _track_l,
    "track_x": _track_x,
    "critic": _critic,
    "attacks": _attacks,
    "canaries": _canaries,
    "timing": _timing,
    "overhead": _overhead,
    "injection": _injection,
    "llm_faults": _llm_faults,
    "llm_throughput": _llm_throughput,
    "recalibration": _recalibration,
    "eval_smollm2": _eval_smollm2,
    "resume": _resume,
    "scale_store": _scale_store,
}
"""One section for each result, in the order of the page."""


def stale(root: Path = ROOT) -> list[str]:
    """The files whose figures differ from bench/results."""
    results = read_results(root)
    readme, picture = (root / README).read_text(), root / PICTURE
    fresh = {
        str(PAGE): (root / PAGE).exists() and (root / PAGE).read_text() == page(results),
        str(README): _filled_in(readme, results) == readme,
        str(PICTURE): picture.exists() and numbers_in(picture) == picture_data(results),
    }
    return [name for name, is_fresh in fresh.items() if not is_fresh]


def _filled_in(readme: str, results: Results) -> str:
    """README.md with its block of figures made anew."""
    if not BLOCK.search(readme):
        raise SystemExit("README.md has no block <!-- figures: ... --> ... <!-- end of figures -->")
    text = readme_block(results)
    return BLOCK.sub(lambda match: match[1] + text + match[2], readme)


def numbers_in(picture: Path) -> str:
    """What `picture_data` gave when the picture was drawn."""
    from PIL import Image

    with Image.open(picture) as image:
        return str(image.info.get("Description", ""))


def main() -> int:
    """Write the three files, or check them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 on differences")
    if parser.parse_args().check:
        for name in (names := stale()):
            print(f"{name} differs from bench/results: run python tools/benchmarks_page.py")
        return int(bool(names))
    results = read_results()
    (ROOT / PAGE).write_text(page(results))
    (ROOT / README).write_text(_filled_in((ROOT / README).read_text(), results))
    draw(results, ROOT / PICTURE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
