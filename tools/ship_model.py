"""Train the source model that ships with kernelcast, and write its card.

    python tools/ship_model.py [--seed 0] [--out FOLDER] [--card]

Trains on all kernels of language models in the shared data but `llm_sol_mi350x`, which is kept for
evaluation. Without --out it writes `model.json.zst` and `card.md` to where the package reads them,
and the card to docs/reference/model-card.md too. The card says what the model was trained on, how
well the same recipe does on sources that it has not seen (bench/results/track_l_sources.json), and
where not to trust it. With --card the model stays and only its card is written.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelcast.dataset import Rows, problem_group
from kernelcast.errors import SetupError
from kernelcast.forecasters._source import SHIPPED
from kernelcast.training import check_publishable, train_source_model

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "bench"))

from _written import PUBLISHABLE, rows_of  # noqa: E402

PACKAGE = ROOT / "src" / "kernelcast" / "forecasters" / "shipped"
PAGE = ROOT / "docs" / "reference" / "model-card.md"
JUDGED = ROOT / "bench" / "results" / "track_l_sources.json"
_LARGEST_BYTES = 3_000_000

_LIMITS = """\
## Where it must not be trusted
- It was trained on KernelBench problems in PyTorch, CUDA and Triton, half-precision GEMMs, and ten
  harder problems. Other operators, languages (OpenCL, HIP, C++) and devices are outside of that:
  its forecast of a source made of unknown words is that of any kernel, and says so.
- With nothing measured it knows neither how often this writer fails nor how fast the reference is:
  the tables above are then close to a coin and worse than the source's own prior. The order of a
  pool is then better than chance where kernels are edits of each other, and worse where kernels
  that are feared to fail are the faster ones: measure a few kernels first, or train a model on your
  own rows (`kernelcast train trees`), whose order carries (bench/track_s.py).
- Its trees carry little from source to source: the weight that they keep was learnt on sources that
  they had not seen. Most of what it knows in a search comes from that search and from the store.
- Two of its sources publish winners only; they teach it nothing about failure.
- It reads canonical source alone. It does not know shapes, strides or what the compiler makes of a
  kernel unless evidence is given, and it has not been trained on evidence.
- A forecast orders and filters. What is reported must have been measured.
"""


def main() -> None:
    """Train and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the model and its card to this folder only")
    parser.add_argument("--card", action="store_true", help="write the card of the model there")
    options = parser.parse_args()
    folder, judged = options.out or PACKAGE, json.loads(JUDGED.read_text())
    card = ship(rows_of(PUBLISHABLE), folder, judged, options.seed, trains=not options.card)
    if options.out is None:
        PAGE.write_text(card)


def ship(
    rows: Rows, folder: Path, judged: Mapping[str, Any], seed: int = 0, *, trains: bool = True
) -> str:
    """Write the model and its card to a folder; return the card.

    Args:
        rows: What the model is trained on.
        folder: Where it is written.
        judged: The result of `bench/track_l_sources.py`.
        seed: Seed of the training.
        trains: Whether to train, or to write the card of the model that is there.
    """
    check_publishable(rows)
    path = folder / SHIPPED
    if trains:
        train_source_model(rows, seed).save(path)
    if path.stat().st_size > _LARGEST_BYTES:
        raise SetupError(f"{path} has {path.stat().st_size} bytes, more than the 3 MB of a wheel")
    card = model_card(rows, judged, path, seed)
    (folder / "card.md").write_text(card)
    return card


def model_card(rows: Rows, judged: Mapping[str, Any], model: Path, seed: int) -> str:
    """The card as Markdown; every score is of a source that the judged model has not seen."""
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("kernelcast", "lightgbm", "numpy")
    )
    problems = {problem_group(name) for name in set(rows["problem"].to_pylist())}
    parts = [
        "# The source model that ships with kernelcast\n",
        "LightGBM trees over a kernel's canonical source, its difference from the anchor, and\n"
        "what a search has measured; and two regressions over their scores and a few signs,\n"
        "which a run refits: P(failure), and slower, tie or faster than the anchor. A run also\n"
        "learns from the texts that it measures, by a Gaussian process. The file holds no part\n"
        "of that process.\n",
        f"Made by `python tools/ship_model.py` (seed {seed}) with Python "
        f"{platform.python_version()}, {versions}. "
        f"File: {model.name}, {model.stat().st_size:,} bytes, JSON, no pickle.\n",
        f"## Data\n{rows.num_rows:,} rows, {len(problems):,} problems.\n",
        _table(("source", "licence", "rows", "ran"), _data(rows)),
        "llm_sol_mi350x is kept for evaluation and is not among them.\n",
        "## Scores\nEach source is forecast by a model that the same recipe trained without it\n"
        "(`bench/track_l_sources.py`): this is what a user with other kernels gets. AUROC of\n"
        "failure: 0.5 is a coin. CRPS is that of the forecasts over that of the source's own\n"
        "outcomes taken as the forecast (of all, and of each step), which no user knows\n"
        "beforehand: below 1 is better than that. ECE over nine bins.\n",
        *(f"### {title}\n\n{_judged(judged, way)}" for way, title in _WAYS.items()),
        "### The order of a pool with nothing measured\n",
        "Rank correlation with the speedups, and what the first kernel reaches of the best of its\n"
        "pool, beside a random one. A kernel that fails reaches nothing; the last two columns\n"
        "leave such kernels out.\n",
        _ordered(judged),
        _LIMITS,
    ]
    return "\n".join(parts)


_WAYS = {
    "nothing": "Nothing is measured but the reference",
    "stepwise": "Step by step, each search for itself",
    "stored": "Step by step, in a store that has the searches before",
}
_COLUMNS = (
    "auroc_failure",
    "to_global_prior",
    "to_step_prior",
    "ece",
    "coverage_80",
)


def _judged(judged: Mapping[str, Any], way: str) -> str:
    lines = []
    for source, ways in judged["sources"].items():
        if way not in ways:
            continue
        scores = ways[way]
        shown = [f"{scores[name]:.3f}" if name in scores else "" for name in _COLUMNS]
        lines.append((source, scores["kernels"], f"{scores['failed']:.0%}", *shown))
    header = ("source", "kernels", "failed", "AUROC failure", "CRPS to all", "CRPS to step", "ECE")
    return _table((*header, "80% interval holds"), lines)


def _ordered(judged: Mapping[str, Any]) -> str:
    names = (
        *("pools", "spearman", "pool_top_with_failures", "pool_random_with_failures"),
        *("pool_top", "pool_random"),
    )
    lines = [
        (source, *(ways["nothing"][name] for name in names))
        for source, ways in judged["sources"].items()
        if "pools" in ways["nothing"]
    ]
    columns = ("source", "pools", "rank correlation", "first kernel", "random kernel")
    return _table((*columns, "first that runs", "random that runs"), lines)


def _data(rows: Rows) -> Iterable[Sequence[object]]:
    columns = [rows[name].to_pylist() for name in ("source", "licence", "status")]
    total = Counter(zip(*columns[:2], strict=True))
    ran = Counter(
        (source, licence)
        for source, licence, status in zip(*columns, strict=True)
        if status == "ok"
    )
    return [(*key, total[key], ran[key]) for key in sorted(total)]


def _table(header: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    rule = ["---"] * len(header)
    rows = [f"| {' | '.join(map(str, line))} |" for line in (header, rule, *lines)]
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    main()
