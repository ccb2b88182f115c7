"""Rows of kernels written by language models, and models trained on folds of them."""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from _data import data_folder
from kernelcast.dataset import Rows, concatenate
from kernelcast.judge.evaluation import Answer
from kernelcast.judge.ranking import Ranking
from kernelcast.training.folds import Fold, cross_validate
from shared_rows import import_shared

SEARCHES = "llm_sol_mi350x"
KERNELBENCH = ("llm_kb_rtx4090", "llm_kb_a100", "llm_kb_small_sets", "llm_kernelbench_com")
PUBLISHABLE = (*KERNELBENCH, "llm_cuda_l1_5gpu", "llm_cuda_l2_hgemm")
"""What the model that ships is trained on."""
AGENTS = ("gpt-5.6-sol", "GLM-5.2")


def rows_of(names: Sequence[str], problems: int | None = None) -> Rows:
    """The rows of these files, of every n-th problem if there are more than `problems`."""
    return concatenate([_rows(name, problems) for name in names])


def searched_rows(problems: int | None = None) -> Rows:
    """The recorded searches of both agents; later timings of their winners are left out."""
    rows = rows_of([SEARCHES], problems)
    kept = pc.and_(
        pc.equal(rows["source"].cast("string"), "sol-execbench-rocm"),
        pc.is_in(rows["model"].cast("string"), value_set=_strings(AGENTS)),
    )
    return rows.filter(kept).unify_dictionaries()


def folds_of(rows: Rows, folds: int, seed: int) -> Iterator[Fold]:
    """The folds of these rows, each announced with the time that its training took."""
    began = time.monotonic()
    for fold in cross_validate(rows, folds, seed):
        print(f"fold {fold.number}: {time.monotonic() - began:.0f} s", flush=True)
        yield fold


def pool_tops(
    pooled: Sequence[Answer], best: Mapping[str, float] | None = None
) -> dict[str, float]:
    """What the one top-ranked kernel of a pool reaches of the pool's best, mean over the pools.

    Among texts that ran, and among all, where a failed kernel reaches nothing.

    Args:
        pooled: Forecasts of all texts of each problem and device, with nothing measured.
        best: The best log2 speedup of each problem; by default that of the pool's texts. The text
            of the best kernel may be unpublished, so that no ranking can pick it.
    """
    pools: defaultdict[tuple[str, str], list[Answer]] = defaultdict(list)
    for answer in pooled:
        query = answer.trial.query
        pools[query.problem.name, query.device.name].append(answer)
    reached: defaultdict[str, list[float]] = defaultdict(list)
    for (problem, _), pool in pools.items():
        ran = [answer for answer in pool if answer.trial.log2_speedup is not None]
        if len(pool) < 2 or not ran:
            continue
        top = max(map(_speedup, ran)) if best is None else 2.0 ** best[problem]
        for members, suffix in ((ran, ""), (pool, "_with_failures")):
            shares = {answer.trial.row_id: _speedup(answer) / top for answer in members}
            kernels = [answer.trial.query.candidate for answer in members]
            forecasts = [answer.forecast for answer in members]
            first = Ranking.of(list(shares), kernels, forecasts).members[0].label
            reached[f"top{suffix}"].append(shares[first])
            reached[f"random{suffix}"].append(float(np.mean(list(shares.values()))))
    means = {name: round(float(np.mean(shares)), 4) for name, shares in reached.items()}
    return {**means, "pools": len(reached["top"])}


def _speedup(answer: Answer) -> float:
    """Over the reference; 0 of a kernel that failed."""
    log2_speedup = answer.trial.log2_over_reference
    return 0.0 if log2_speedup is None else 2.0**log2_speedup


def _rows(name: str, problems: int | None) -> Rows:
    path = data_folder() / f"{name}.parquet"
    if problems is None:
        return import_shared(path)
    raw = pq.read_table(path)
    found = sorted(set(raw["problem"].to_pylist()))
    chosen = found[:: max(len(found) // problems, 1)][:problems]
    with tempfile.TemporaryDirectory() as folder:
        part = Path(folder) / path.name
        pq.write_table(raw.filter(pc.is_in(raw["problem"], value_set=_strings(chosen))), part)
        return import_shared(part)


def _strings(values: Sequence[str]) -> Any:
    import pyarrow as pa

    return pa.array(list(values), pa.string())
