"""Train the source model that ships with kernelcast, and write its card.

    python tools/ship_model.py [--seed 0] [--out FOLDER]

Trains on all kernels of language models in the shared data but `llm_sol_mi350x`, which is kept for
evaluation. Without --out it writes `model.json.zst` and `card.md` to where the package reads them,
and the card to docs/reference/model-card.md too. The card says what the model was trained on, how
well it does on problems it has not seen, and where not to trust it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import math
import platform
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from kernelcast.dataset import Rows, problem_group
from kernelcast.errors import SetupError
from kernelcast.forecasters._source import SHIPPED
from kernelcast.judge.evaluation import Answer, evaluate
from kernelcast.training import check_publishable, cross_validate, train_source_model

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "bench"))

from _written import KERNELBENCH, rows_of  # noqa: E402

PACKAGE = ROOT / "src" / "kernelcast" / "forecasters" / "shipped"
PAGE = ROOT / "docs" / "reference" / "model-card.md"
FILES = (*KERNELBENCH, "llm_cuda_l1_5gpu", "llm_cuda_l2_hgemm")
_FEWEST = 30
_LARGEST_BYTES = 3_000_000

_LIMITS = """\
## Where it must not be trusted
- It was trained on KernelBench problems in PyTorch, CUDA and Triton, half-precision GEMMs, and ten
  harder problems. Other operators, languages (OpenCL, HIP, C++) and devices are outside of that:
  its forecasts are wider for sources made of unknown words, but its failure rates are then a guess.
- Two of its sources publish winners only, so it has seen too few slow kernels of their kind.
- Most of its rows come from single attempts, not from searches. In a long search it relies on what
  the run itself has measured; its first forecasts of a search are little better than a prior.
- It reads canonical source alone. It does not know shapes, strides or what the compiler makes of a
  kernel unless evidence is given, and it has not been trained on evidence.
- A forecast orders and filters. What is reported must have been measured.
"""


def main() -> None:
    """Train, judge and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the model and its card to this folder only")
    options = parser.parse_args()
    card = ship(rows_of(FILES), options.out or PACKAGE, options.seed)
    if options.out is None:
        PAGE.write_text(card)


def ship(rows: Rows, folder: Path, seed: int = 0) -> str:
    """Write the model and its card to a folder; return the card."""
    check_publishable(rows)
    path = folder / SHIPPED
    train_source_model(rows, seed).save(path)
    if path.stat().st_size > _LARGEST_BYTES:
        raise SetupError(f"{path} has {path.stat().st_size} bytes, more than the 3 MB of a wheel")
    searched: list[Answer] = []
    pooled: list[Answer] = []
    for fold in cross_validate(rows, seed=seed):
        searched += fold.searched()
        pooled += fold.pooled()
    card = model_card(rows, searched, pooled, path, seed)
    (folder / "card.md").write_text(card)
    return card


def model_card(
    rows: Rows, searched: Sequence[Answer], pooled: Sequence[Answer], model: Path, seed: int
) -> str:
    """The card as Markdown; every score is of problems that the judged model has not seen."""
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("kernelcast", "lightgbm", "numpy")
    )
    problems = {problem_group(name) for name in set(rows["problem"].to_pylist())}
    columns = (rows[name].to_pylist() for name in ("row_id", "source", "model"))
    maker = {
        row_id: f"{source}, {name or 'unnamed'}"
        for row_id, source, name in zip(*columns, strict=True)
    }
    parts = [
        "# The source model that ships with kernelcast\n",
        "LightGBM trees over a kernel's canonical source, its difference from the anchor, and\n"
        "what a search has measured, to P(failure) and a density over log2 speedup against the\n"
        "anchor.\n",
        f"Made by `python tools/ship_model.py` (seed {seed}) with Python "
        f"{platform.python_version()}, {versions}. "
        f"File: {model.name}, {model.stat().st_size:,} bytes, JSON, no pickle.\n",
        f"## Data\n{rows.num_rows:,} rows, {len(problems):,} problems.\n",
        _table(("source", "licence", "rows", "ran"), _data(rows)),
        "llm_sol_mi350x is kept for evaluation and is not among them.\n",
        "## Scores\nFive folds by problem: one operation under all its names and sizes, and all\n"
        "that share a kernel, stay together. CRPS in log2 speedup over kernels that ran;\n"
        "half-Brier and ECE over nine bins; AUROC of failure within the group.\n",
        "### Searches and pools, replayed step by step\n",
        _scores(searched, "device", lambda answer: answer.trial.query.device.name),
        _scores(searched, "family", lambda answer: answer.trial.query.problem.family),
        "### Texts alone: nothing measured but the reference\n",
        _scores(pooled, "source and model", lambda answer: maker[answer.trial.row_id]),
        "Mean rank correlation within a pool of at least five: "
        f"{evaluate(pooled).scores['spearman'].value:.2f}.\n",
        _LIMITS,
    ]
    return "\n".join(parts)


def _data(rows: Rows) -> Iterable[Sequence[object]]:
    columns = [rows[name].to_pylist() for name in ("source", "licence", "status")]
    total = Counter(zip(*columns[:2], strict=True))
    ran = Counter(
        (source, licence)
        for source, licence, status in zip(*columns, strict=True)
        if status == "ok"
    )
    return [(*key, total[key], ran[key]) for key in sorted(total)]


def _scores(answers: Sequence[Answer], what: str, group: Callable[[Answer], str]) -> str:
    groups: defaultdict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        groups[group(answer)].append(answer)
    lines = [
        (name, *_line(members))
        for name, members in sorted(groups.items())
        if len(members) >= _FEWEST
    ]
    header = (what, "kernels", "failed", "CRPS", "no change", "half-Brier", "ECE", "AUROC failure")
    return _table(header, [*lines, ("all", *_line(answers))])


def _line(answers: Sequence[Answer]) -> Sequence[object]:
    judged = evaluate(answers)
    scores = {name: estimate.value for name, estimate in judged.scores.items()}
    changes = [abs(a.trial.log2_speedup) for a in answers if a.trial.log2_speedup is not None]
    scores["no change"] = sum(changes) / max(len(changes), 1)
    timed = ("crps", "no change", "half_brier", "ece")
    if judged.timed < _FEWEST:
        scores |= dict.fromkeys(timed, math.nan)
    failed = sum(not answer.trial.ok for answer in answers) / len(answers)
    shown = [scores[name] for name in (*timed, "auroc_failure")]
    return (len(answers), f"{failed:.0%}", *("" if math.isnan(x) else f"{x:.3f}" for x in shown))


def _table(header: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    rule = ["---"] * len(header)
    rows = [f"| {' | '.join(map(str, line))} |" for line in (header, rule, *lines)]
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    main()
