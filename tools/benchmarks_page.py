"""Write docs/benchmarks.md, docs/best-found.png and the figures in README.md from bench/results.

    python tools/benchmarks_page.py           # write all three
    python tools/benchmarks_page.py --check   # exit with 1 if one of them differs from the results

The page's text is tools/benchmarks.md. Its fields are filled in from the JSON files that the
scripts in bench/ wrote: `{track_t[seeds]}` is `seeds` in bench/results/track_t.json. What a file
does not hold as it is shown (tables, counts, ratios) is computed here and named like a field.
`{track_t[bars]}` is a table of the section's figures against their bars in bench/measure.py.
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
sys.path.insert(0, str(ROOT / "bench"))

from measure import readings  # noqa: E402

TEMPLATE = Path(__file__).with_name("benchmarks.md")
PAGE, PICTURE, README = Path("docs/benchmarks.md"), Path("docs/best-found.png"), Path("README.md")
BLOCK = re.compile(r"(<!-- figures: [^\n]* -->\n).*?(<!-- end of figures -->)", re.S)
"""The part of README.md that this script fills in."""
README_TEXT = (
    "After 25 measurements, the best kernel found runs at {random[25]:.2f} of the best possible "
    "speed with random choice, {kernel_tuner_best[25]:.2f} with Kernel Tuner's best strategy, "
    "{cold[25]:.2f} with kernelcast, and {sparse[25]:.2f} to {full[25]:.2f} with kernelcast when "
    "other GPUs have run the same kernel. These are searches replayed on published measurements: "
    "{spaces} tuner spaces, {gpus} GPUs. The model's settings were chosen on these spaces. "
    "[All benchmarks](docs/benchmarks.md), also the bars that were missed.\n"
)

Results = Mapping[str, Any]


def read_results(root: Path = ROOT) -> Results:
    """The content of each JSON file in bench/results, by the name of its script."""
    files = sorted((root / "bench/results").glob("*.json"))
    results = {path.stem: json.loads(path.read_text()) for path in files}
    if quick := [name for name, result in results.items() if result.get("quick")]:
        raise SystemExit(f"made with --quick, so not to be published: {', '.join(quick)}")
    return results


# The picture: every arm on the same spaces.

_BUDGETS = (5, 10, 25, 50, 100, 200)
_CURVES = {
    "full": ("kernelcast, other GPUs known in full", "#0b3d91", "-", "o"),
    "sparse": ("kernelcast, 300 configurations of each other GPU known", "#1f6feb", "--", "s"),
    "cold": ("kernelcast, nothing known", "#2b8a3e", "-", "D"),
    "kernel_tuner_best": ("Kernel Tuner, best of its strategies", "#d1582b", "-", "^"),
    "random": ("random choice", "#777777", ":", "v"),
}


def best_found(track_t: Any, shared_with: str = "sparse") -> dict[str, dict[int, float]]:
    """Each arm's mean share of the best possible speed, on the spaces that one arm has run."""
    labels = track_t["spaces"][shared_with].keys()
    means = {
        arm: [fmean(values) for values in zip(*(spaces[label] for label in labels), strict=True)]
        for arm, spaces in track_t["spaces"].items()
        if labels <= spaces.keys()
    }
    strategies = [means.pop(arm) for arm in list(means) if arm.startswith("kernel_tuner/")]
    means["kernel_tuner_best"] = [max(values) for values in zip(*strategies, strict=True)]
    return {arm: dict(zip(_BUDGETS, values, strict=False)) for arm, values in means.items()}


def picture_data(results: Results) -> str:
    """The numbers that the picture shows; they are also stored in the picture's file."""
    curves = best_found(results["track_t"])
    return json.dumps({arm: {n: round(y, 4) for n, y in curves[arm].items()} for arm in _CURVES})


def numbers_in(picture: Path) -> str:
    """What `picture_data` gave when the picture was drawn."""
    from PIL import Image

    with Image.open(picture) as image:
        return str(image.info.get("Description", ""))


def draw(results: Results, path: Path) -> None:
    """Best found by number of measurements, as a PNG that holds its numbers as metadata."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    track_t = results["track_t"]
    figure, axes = pyplot.subplots(figsize=(8, 4.2), dpi=150, layout="constrained")
    for arm, (label, colour, style, marker) in _CURVES.items():
        budgets, found = zip(*best_found(track_t)[arm].items(), strict=True)
        axes.plot(budgets, found, style, color=colour, marker=marker, label=label)
    axes.set_xscale("log")
    axes.set_xticks(_BUDGETS, [str(n) for n in _BUDGETS])
    axes.minorticks_off()
    axes.set_xlabel("kernels measured (log scale)")
    axes.set_ylabel("speed of the best kernel found\n(1 = best in the space)")
    spaces = len(track_t["spaces"]["sparse"])
    title = f"Recorded GPU tuner spaces: mean over {spaces} spaces, {track_t['seeds']} seeds each"
    axes.set_title(title, fontsize=11)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Description": picture_data(results)})
    pyplot.close(figure)


# The page: what its template names and the JSON files do not hold as it is shown.


def page(results: Results) -> str:
    """All of docs/benchmarks.md."""
    fields: dict[str, Any] = {"missed": _missed(results)}
    for name, result in results.items():
        # `str.format` takes `[25]` for a number, so numbers are keys here.
        numbered = json.loads(json.dumps(result), object_hook=_numbered)
        computed = _COMPUTED[name](numbered) if name in _COMPUTED else {}
        common = {"bars": _bars(name, result), "made_by": _made_by(name, result)}
        fields[name] = {**numbered, **computed, **common}
    return TEMPLATE.read_text().format(**fields)


def _numbered(fields: dict[str, Any]) -> dict[str | int, Any]:
    return {int(key) if key.isdigit() else key: value for key, value in fields.items()}


def _missed(results: Results) -> str:
    judged = [
        reading
        for name, result in results.items()
        for reading in readings(name, result)
        if reading.reached is not None
    ]
    missed = [r.figure for r in judged if not r.reached]
    names = ", ".join(f"`{figure.bench}` {_short(figure.path)}" for figure in missed)
    return f"{len(missed)} of {len(judged)}" + (f": {names}" if names else "")


def _short(path: str) -> str:
    return "`" + path.removeprefix("figures/").removesuffix("/value") + "`"


def _bars(name: str, result: Any) -> str:
    """A table of the figures that have a bar."""
    rows = []
    for reading in readings(name, result):
        if reading.bar is None or reading.value is None:
            continue
        figure = reading.figure
        at_least = figure.at_least is not None
        stated = figure.at_least if at_least else figure.at_most
        rows.append(
            {
                "figure": _short(figure.path),
                "value": reading.value,
                "bar": f"{'at least' if at_least else 'at most'} {reading.bar:.4g}",
                "of": f" (`{stated}`)" if isinstance(stated, str) else "",
                "verdict": "reached" if reading.reached else "**missed**",
            }
        )
    columns = {
        "figure": "{figure}",
        "value": "{value:.4g}",
        "bar": "{bar}{of}",
        "verdict": "{verdict}",
    }
    return _table(columns, rows)


def _made_by(name: str, result: Any) -> str:
    """Script, seeds, versions and command, as the result's file has them."""
    commands = [result["command"]] if isinstance(result["command"], str) else result["command"]
    script = f"bench/{name}.py"
    made_by = f"`{script}`" if (ROOT / script).exists() else "the commands below"
    seeds = "no seed recorded"
    if "seeds" in result or "seed" in result:
        seeds = f"{result['seeds']} seeds" if "seeds" in result else f"seed {result['seed']}"
    versions = ", ".join(f"{package} {number}" for package, number in result["versions"].items())
    return (
        f"**Made by** {made_by}, {seeds}, with {versions}."
        f" Result: `bench/results/{name}.json`. Command as recorded:\n\n"
        "```text\n" + "\n".join(commands) + "\n```"
    )


def _table(columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> str:
    """A Markdown table; each column is a format that its rows fill in."""
    cells = [[form.format(**row) for form in columns.values()] for row in rows]
    lines = [list(columns), ["---"] * len(columns), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _named(rows: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"name": name, **row} for name, row in rows.items()]


def _gpus(labels: Iterable[str], mark: str = "@") -> int:
    return len({label.rpartition(mark)[2] for label in labels})


_ARMS = {
    "random": "random choice",
    "optuna_tpe": "Optuna's TPE",
    "kernel_tuner_best": "Kernel Tuner, best strategy at each budget",
    "cold": "kernelcast, cold: nothing known",
    "sibling_mean": "no model: order by the mean of the other GPUs' times",
    "sparse": "kernelcast, sparse: 300 random configurations of each other GPU known",
    "full": "kernelcast, full: all configurations of each other GPU known",
    "other_vendor": "kernelcast, full, but only GPUs of the other maker known",
}


def _track_t(result: Any) -> dict[str, Any]:
    def table(shared_with: str, *arms: str) -> str:
        curves = best_found(result, shared_with)
        rows = [
            {"arm": _ARMS[arm]}
            | {f"at{n}": f"{curves[arm][n]:.3f}" if n in curves[arm] else "" for n in _BUDGETS}
            for arm in arms
        ]
        return _table({"measurements": "{arm}"} | {str(n): f"{{at{n}}}" for n in _BUDGETS}, rows)

    def lost(by_budget: Any) -> list[float]:
        return [by_budget[25], by_budget[50]]

    hostile = result["hostile"]
    plain = ("random", "kernel_tuner_best", "cold")
    return {
        "count": {arm: len(spaces) for arm, spaces in result["spaces"].items()},
        "gpus": _gpus(result["spaces"]["cold"]),
        "shared_table": table("sparse", *plain, "sibling_mean", "sparse", "full"),
        "whole_table": table("cold", "optuna_tpe", *plain),
        "other_vendor_table": table("other_vendor", "cold", "other_vendor"),
        "hostile_lost": _span(-value for arm in hostile["mean"].values() for value in lost(arm)),
        "hostile_worst": f"{max(-v for arm in hostile['worst'].values() for v in lost(arm)):.2f}",
    }


def _span(values: Iterable[float]) -> str:
    """Return the least and the most of some values."""
    ordered = sorted(values)
    return f"{ordered[0]:.3f} to {ordered[-1]:.3f}"


def _top_share(result: Any) -> dict[str, Any]:
    no_model = {name: result[f"sibling_mean_{name}"] for name in ("mean", "worst")}
    rows = [
        {"order": "kernelcast", **result},
        {"order": "mean of the other GPUs' times, no model", **no_model},
        {"order": "kernelcast without stand-ins", **result["without_stand_ins"]},
    ]
    shares = {
        f"top {share:.0%}": f"{{mean[{place}]:.1%}} / {{worst[{place}]:.1%}}"
        for place, share in enumerate(result["shares"])
    }
    return {"table": _table({"order by": "{order}"} | shares, rows), "count": len(result["spaces"])}


def _emulator(result: Any) -> dict[str, Any]:
    columns = {
        "kernel and GPU": "{name}",
        "configurations": "{configurations}",
        "rank correlation": "{spearman:.2f}",
        "best of the top 10": "{top10:.3f}",
        "of 10 at random": "{top10_random:.3f}",
        "median estimated / recorded": "{ratio:.2f}",
    }
    rows = [
        {**row, "name": row["name"].partition(": ")[2], "ratio": 2.0 ** row["median_log2_ratio"]}
        for row in _named(result["spaces"])
    ]
    return {
        "table": _table(columns, rows),
        "count": len(rows),
        "gpus": _gpus(result["spaces"]),
        "factor": 2.0 ** result["error_log2_80"],
    }


def _emulator_online(result: Any) -> dict[str, Any]:
    names = {"cold": "cold", "emulated": "with estimates"}
    columns = {"search": "{name}"} | {
        f"after {point}": f"{{at[{point}]:.3f}}" for point in result["cold"]
    }
    rows = [{"name": name, "at": result[arm]} for arm, name in names.items()]
    return {"table": _table(columns, rows)}


def _emulator_faults(result: Any) -> dict[str, Any]:
    columns = {"check": "{name}", "faults": "{faults}", "noticed by it": "{noticed}"}
    others = (
        f"{one['fault']} ({one['check']}, found by {one['noticed_by'] or 'none'})"
        for one in (*result["otherwise"], *result["later"]["otherwise"])
    )
    return {
        "table": _table(columns, _named(result["by_check"])),
        "others": "; ".join(others) or "none",
    }


def _search_replay(result: Any) -> dict[str, Any]:
    scores = "{{{0}[25]:.3f}} / {{{0}[50]:.3f}} / {{{0}[100]:.3f}}"
    columns = {
        "strategy": "`{name}`",
        "measure everything": scores.format("without"),
        "choose by forecasts (`selective`)": scores.format("with"),
    }
    bounds = [
        arm
        | {
            "policy": f"`conformal`, {float(target):.0%}",
            "held": "held" if arm["held"] else "**missed**",
            "needs": arm["selective_needs"][100] or "more than 100",
        }
        for target, arm in result["conformal"].items()
    ]
    unbound = {"policy": "`selective`, no bound", "held": "none", "needs": 100}
    return {
        "strategies_table": _table(columns, _named(result["strategies"])),
        "bounds_table": _table(
            {
                "policy, bound": "{policy}",
                "turned away": "{turned_away:,}",
                "of these a new best": "{rate:.2%}",
                "bound": "{held}",
                "found after 100": "{found[100]:.3f}",
                "`selective` needs for the same": "{needs}",
            },
            [*bounds, unbound | result["selective"]],
        ),
        "count": len(result["spaces"]),
        "gpus": _gpus(result["spaces"], " on "),
    }


def _search_real(result: Any) -> dict[str, Any]:
    rows = _named(result["problems"])

    def ratio(field: str) -> float:
        selective, everything = (
            fmean(row[field][arm] for row in rows) for arm in ("selective", "measure_all")
        )
        return selective / everything

    columns = {
        "problem": "{name}",
        "measure everything": "{speedup[measure_all]:.1f}x",
        "`selective`": "{speedup[selective]:.1f}x",
        "gain": "{gain:.2f}",
        "95% interval": "{low:.2f} to {high:.2f}",
        "seeds won, tied, lost": "{seeds_won}, {seeds_tied}, {seeds_lost}",
    }
    unproven = [row["name"] for row in rows if row["low"] <= 1 <= row["high"]]
    return {
        "table": _table(columns, rows),
        "unproven": ", ".join(unproven) or "none",
        "considered_ratio": ratio("considered"),
        "device_s_ratio": ratio("device_s"),
        "gain_at_equal_cost": geometric_mean(row["gain_at_equal_cost"] for row in rows),
    }


def _integrations(result: Any) -> dict[str, Any]:
    baselines = {
        "random choice": result["random"],
        **{f"Kernel Tuner's `{name}`": mean for name, mean in result["kernel_tuner"].items()},
        "Optuna's TPE": result["optuna_tpe"],
        "Optuna's GP sampler": result["optuna_gp"],
    }
    packages = {"triton": "Triton", "kernel_tuner": "Kernel Tuner", "optuna": "Optuna"}
    knowing = {"cold": "nothing known", "sparse": "300 configurations of each other GPU known"}
    rows = [
        {"name": name, "mean": mean, "ahead": "", "worst": ""} for name, mean in baselines.items()
    ]
    rows += [
        {
            "name": f"kernelcast in {packages[package]}, {knowing[known]}",
            "mean": arm["mean"],
            "ahead": f"{arm['ahead']:+.3f}",
            "worst": f"{arm['worst_against_random']:+.3f}",
        }
        for known in knowing
        for package in packages
        for arm in (result["by_package"][package][known],)
    ]
    columns = {
        "what chooses": "{name}",
        "best possible / best found": "{mean:.3f}",
        "ahead of the best of the packages' own": "{ahead}",
        "ahead of random in its worst space": "{worst}",
    }
    systems = [
        {"name": name, "problem": problem, "order": order}
        | {"searches": len(arm["gap"]), "longest": max(arm["gap"])}
        | arm["mean"]
        | {"most": max(arm["loss"]), "least_saved": min(arm["saved"])}
        for key, name in (("openevolve", "OpenEvolve"), ("shinka", "ShinkaEvolve"))
        for problem, orders in result[key].items()
        for order, arm in orders.items()
    ]
    written = {
        "system": "{name}",
        "problem": "{problem}",
        "order of the answers": "{order}",
        "searches": "{searches}",
        "measurements saved": "{saved:.0%}",
        "in the search that saves least": "{least_saved:.0%}",
        "loss of speed": "{loss:.1%}",
        "largest loss": "{most:.1%}",
        "most candidates in a row without a measurement": "{longest}",
    }
    return {
        "table": _table(columns, rows),
        "writing": _table(written, systems),
        "count": len(result["spaces"]["random"]),
    }


def _six_problems(result: Any) -> dict[str, Any]:
    columns = {
        "problem": "{name}",
        "speedup over the seed": "{speedup:.1f}x",
        "95% interval": "{low:.1f}x to {high:.1f}x",
        "considered": "{considered:,}",
        "measured": "{measured}",
    }
    compiler = result["toolchain"].partition(",")[0]
    return {"table": _table(columns, _named(result["problems"])), "compiler": compiler}


def _kernelbench(result: Any) -> dict[str, Any]:
    columns = {
        "problem": "{name}",
        "answers judged rightly": "{verdicts_right} of {answers}",
        "speedup over eager PyTorch": "{speedup:.2f}x",
        "95% interval": "{low:.2f}x to {high:.2f}x",
        "proven": "{is_proven}",
        "best answer": "{answer}",
    }
    rows = [row | {"is_proven": "yes" if row["proven"] else "no"} for row in _named(result["best"])]
    return {"table": _table(columns, rows)}


def _modules(result: Any) -> dict[str, Any]:
    columns = {
        "set": "`{name}`",
        "rows": "{rows}",
        "failed": "{failed}",
        "caught": "{caught}",
        "false alarms": "{false_alarms}",
        "AUROC, text alone": "{auroc_text}",
        "AUROC, with rehearsal": "{auroc_with}",
    }
    alone = result["reading_alone"]
    return {
        "table": _table(columns, _judged_sets(result)),
        "alarms": _quoted(result["said_of_false_alarms"]),
        "table_alone": _table(columns, _judged_sets(alone)),
        "alarms_alone": _quoted(alone["said_of_false_alarms"]),
    }


def _judged_sets(result: Any) -> list[dict[str, Any]]:
    rows = _named(result["sets"])
    return [
        {key: "too few" if value is None else value for key, value in row.items()} for row in rows
    ]


def _quoted(sentences: Sequence[str]) -> str:
    return "; ".join(f"`{words}`" for words in sentences[:10]) or "nothing, as there is none"


_SCORES = {
    "accuracy": "accuracy",
    "crps": "CRPS, log2 (lower is better)",
    "half_brier": "half-Brier score, nine bins (lower is better)",
    "ece": "calibration error, ECE (lower is better)",
    "auroc_failure": "AUROC of failure",
    "auroc_beats_best": 'AUROC of "over 5% faster than the best"',
}


def _track_l(result: Any) -> dict[str, Any]:
    rows = [
        {"score": _SCORES[name], "interval": result["figures"][name]["interval"]}
        | {
            "ours": result["more"][name],
            "step": step,
            "all": result["baselines"]["global_prior"][name],
        }
        for name, step in result["baselines"]["per_step_prior"].items()
    ]
    columns = {
        "score": "{score}",
        "kernelcast": "{ours:.3f}",
        "95% interval": "{interval[0]:.3f} to {interval[1]:.3f}",
        "prior of each step": "{step:.3f}",
        "global prior": "{all:.3f}",
    }
    return {"table": _table(columns, rows)}


def _track_l_sources(result: Any) -> dict[str, Any]:
    ways = ("nothing", "stepwise", "stored")
    columns = {"source": "{name}", "kernels": "{kernels}", "failed": "{failed:.0%}"}
    columns |= {f"AUROC of failure, {way}": f"{{auroc_{way}}}" for way in ways}
    columns |= {"CRPS to all, stored": "{crps}", "to each step": "{step}", "ECE": "{ece}"}
    rows = []
    for name, scores in result["sources"].items():
        stored = scores.get("stored", {})
        shown = {"crps": "to_global_prior", "step": "to_step_prior", "ece": "ece"}
        row = {
            key: f"{stored[score]:.2f}" if score in stored else "" for key, score in shown.items()
        }
        for way in ways:
            known = scores.get(way, {}).get("auroc_failure")
            row[f"auroc_{way}"] = "" if known is None else f"{known:.2f}"
        kernels, failed = scores["nothing"]["kernels"], scores["nothing"]["failed"]
        rows.append({"name": name, "kernels": kernels, "failed": failed, **row})
    pools = [
        {"name": name, **scores["nothing"]}
        for name, scores in result["sources"].items()
        if "pools" in scores["nothing"]
    ]
    order = {
        "source": "{name}",
        "pools": "{pools}",
        "rank correlation": "{spearman:.2f}",
        "first kernel reaches": "{pool_top_with_failures:.2f}",
        "random kernel": "{pool_random_with_failures:.2f}",
        "first that runs": "{pool_top:.2f}",
        "random that runs": "{pool_random:.2f}",
    }
    return {"table": _table(columns, rows), "order": _table(order, pools)}


def _track_x(result: Any) -> dict[str, Any]:
    columns = {
        "set": "{name}",
        "GPUs": "{overall[gpus]}",
        "pairs": "{overall[pairs]}",
        "texts": "{overall[texts]:,}",
        "median rank correlation": "{overall[median_spearman]:.2f}",
        "lowest": "{overall[lowest_spearman]:.2f}",
        "median error, log2": "{overall[median_error_log2]:.2f}",
        "error of the overall median, log2": "{overall[global_median_error_log2]:.2f}",
    }
    return {"table": _table(columns, _named({k: v for k, v in result.items() if "overall" in v}))}


def _critic(result: Any) -> dict[str, Any]:
    collections = {
        "recorded edits, text and instructions": result["recorded_edits"],
        "recorded edits, text alone": result["recorded_edits_by_text_alone"],
        **{f"`{name}`, text alone": row for name, row in result["written_kernels"].items()},
    }
    columns = {
        "collection": "{name}",
        "kernels": "{kernels:,}",
        "not worth hardware": "{not_worth_hardware:,}",
        "objections": "{objections}",
        "right": "{right}",
        "precision": "{precision[value]:.0%}",
        "95% interval": "{precision[interval][0]:.0%} to {precision[interval][1]:.0%}",
        "recall": "{recall[value]:.0%}",
    }
    return {"table": _table(columns, _named(collections))}


def _timing(result: Any) -> dict[str, Any]:
    rows = [
        {
            "candidate": f"{slower}% slower" if slower else "the same kernel",
            "comparisons": result["comparisons"][slower],
            **row,
        }
        for slower, row in result["rows"].items()
    ]
    columns = {
        "candidate": "{candidate}",
        "comparisons": "{comparisons}",
        "called faster": "{faster:.1%}",
        "called slower": "{found:.1%}",
    }
    return {"table": _table(columns, rows)}


def _overhead(result: Any) -> dict[str, Any]:
    kernels = dict.fromkeys(name.rpartition(", ")[0] for name in result["rows"])
    rows = [
        {"kernel": kernel}
        | {effort: result["rows"][f"{kernel}, {effort}"]["ratio"] for effort in _EFFORTS}
        for kernel in kernels
    ]
    columns = {f"{effort} effort": f"{{{effort}:.2f}}" for effort in _EFFORTS}
    return {"table": _table({"kernel": "{kernel}"} | columns, rows)}


_EFFORTS = ("screening", "normal")


def _injection(result: Any) -> dict[str, Any]:
    return {"payloads": ", ".join(result["by_payload"]), "payload_count": len(result["by_payload"])}


def _llm_throughput(result: Any) -> dict[str, Any]:
    return {"slower": result["first_seconds_reference_order"] / result["first_seconds"]}


def _eval_smollm2(result: Any) -> dict[str, Any]:
    scores = {row["forecaster"]: row["scores"] for row in result["evaluations"]}
    rows = [
        {"score": _SCORES[name]} | {who: values[name] for who, values in scores.items()}
        for name in ("accuracy", "crps", "half_brier", "ece", "auroc_failure")
    ]
    form = "{{{0}[0]:.2f}} ({{{0}[1]:.2f}} to {{{0}[2]:.2f}})"
    columns = {"score": "{score}"} | {f"`{who}`": form.format(who) for who in scores}
    return {"table": _table(columns, rows), "problems": result["evaluations"][0]["problems"]}


def _rewards_small(result: Any) -> dict[str, Any]:
    names = {
        "base_rates": "base rates by problem, no model",
        "supervised": "supervised letters, no rewards",
        "warm": "warm start",
        "correctness": "correctness",
        "brier": "correctness + Brier",
        "crps": "correctness + CRPS",
    }
    columns = {
        "arm": "{name}",
        "CRPS": "{crps:.3f} ({crps_interval[0]:.3f} to {crps_interval[1]:.3f})",
        "half-Brier": "{half_brier:.3f} ({half_brier_interval[0]:.3f} to "
        "{half_brier_interval[1]:.3f})",
        "ECE": "{ece:.2f}",
        "AURC": "{aurc:.2f}",
        "error rate": "{error:.2f}",
        "Spearman": "{spearman:.2f}",
        "distinct": "{distinct:.0f}",
    }
    rows = [{"name": name, **result[arm]} for arm, name in names.items()]
    sets = [
        {"name": name}
        | {
            f"{kind}_{score}": result["set_of"][arm][kind][score]
            for kind in ("gpus", "problems", "those")
            for score in ("crps", "half_brier", "ece")
        }
        for arm, name in names.items()
    ]
    of_sets = {"arm": "{name}"} | {
        f"{kind}: CRPS, half-Brier, ECE": f"{{{key}_crps:.3f}}, {{{key}_half_brier:.3f}}, "
        f"{{{key}_ece:.2f}}"
        for key, kind in (("gpus", "GPUs"), ("problems", "problems"), ("those", "those pairs"))
    }
    differences = [
        {"name": f"{names[arm]}, against {names[rival].split(',')[0]}", **scores}
        for arm, rivals in result["differences"].items()
        for rival, scores in rivals.items()
    ]
    form = "{{{0}[0]:+.3f}} to {{{0}[1]:+.3f}}"
    of_differences = {"arm": "{name}"} | {
        title: form.format(score)
        for score, title in (("crps", "CRPS"), ("half_brier", "half-Brier"))
    }
    return {
        "table": _table(columns, rows),
        "sets_table": _table(of_sets, sets),
        "differences_table": _table(of_differences, differences),
        "runs": result["brier"]["runs"],
        "verdict": ", ".join(result["reproduced"]) or "no reward",
    }


def _supervised(result: Any) -> dict[str, Any]:
    names = {
        "supervised": "supervised letters",
        "trees": "default, one measured",
        "trees_after_25": "default, 26 measured",
        "base_rates": "base rates by problem",
    }
    sets = {
        "those": "three problems, other GPUs",
        "gpus": "other GPUs",
        "problems": "other problems",
        "as_they_come": "both, as they come",
    }
    columns = {
        "pairs": "{pairs}",
        "forecaster": "{name}",
        "CRPS": "{crps:.3f}",
        "half-Brier": "{half_brier:.3f}",
        "ECE": "{ece:.2f}",
        "Spearman": "{spearman:.2f}",
    }
    rows = [
        {"pairs": title, "name": name, **result["track_t"][kind][arm]}
        for kind, title in sets.items()
        for arm, name in names.items()
    ]
    written = {
        "forecaster": "{name}",
        "CRPS": "{crps:.3f}",
        "half-Brier": "{half_brier:.3f}",
        "ECE": "{ece:.2f}",
        "AUROC of failure": "{auroc_failure:.2f}",
        "AUROC of a gain": "{auroc_gain:.2f}",
    }
    of_l = [
        {"name": name, **result["track_l"][arm]}
        for arm, name in (
            ("supervised", "supervised letters"),
            ("trees", "trees"),
            ("prior", "shares of the outcomes"),
        )
    ]
    learnt = {
        "fold": "{fold}",
        "weights": "{name}",
        "training questions": "{training:.2f}",
        "problems left out": "{new_problems:.2f}",
    }
    losses = [
        {"fold": fold["fold"], "name": title.format(**loss), **loss}
        for fold in result["track_l"]["folds"]
        for kind, title in (
            ("base_rates", "shares of the outcomes"),
            ("kept", "step {step}, kept"),
            ("last", "step {step}, the last"),
        )
        for loss in (fold["losses"][kind],)
    ]
    return {
        "table": _table(columns, rows),
        "written": _table(written, of_l),
        "learnt": _table(learnt, losses),
    }


_COMPUTED: dict[str, Callable[[Any], dict[str, Any]]] = {
    "critic": _critic,
    "eval_smollm2": _eval_smollm2,
    "injection": _injection,
    "integrations": _integrations,
    "kernelbench": _kernelbench,
    "modules": _modules,
    "llm_throughput": _llm_throughput,
    "overhead": _overhead,
    "rewards_small": _rewards_small,
    "search_real": _search_real,
    "search_replay": _search_replay,
    "six_problems": _six_problems,
    "supervised": _supervised,
    "timing": _timing,
    "emulator": _emulator,
    "emulator_faults": _emulator_faults,
    "emulator_online": _emulator_online,
    "top_share": _top_share,
    "track_l": _track_l,
    "track_l_sources": _track_l_sources,
    "track_t": _track_t,
    "track_x": _track_x,
}


# Writing and checking.


def stale(root: Path = ROOT) -> list[str]:
    """The files whose figures differ from bench/results."""
    results = read_results(root)
    readme, picture = (root / README).read_text(), root / PICTURE
    fresh = {
        PAGE: (root / PAGE).exists() and (root / PAGE).read_text() == page(results),
        README: _filled_in(readme, results) == readme,
        PICTURE: picture.exists() and numbers_in(picture) == picture_data(results),
    }
    return [str(name) for name, is_fresh in fresh.items() if not is_fresh]


def _filled_in(readme: str, results: Results) -> str:
    """README.md with its block of figures made anew."""
    if not BLOCK.search(readme):
        raise SystemExit("README.md has no block <!-- figures: ... --> ... <!-- end of figures -->")
    spaces = results["track_t"]["spaces"]["sparse"]
    counts = {"spaces": len(spaces), "gpus": _gpus(spaces)}
    text = README_TEXT.format(**best_found(results["track_t"]), **counts)
    return BLOCK.sub(lambda match: match[1] + text + match[2], readme)


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
