"""Rows of kernels written by language models, and the forecasts of them that the benches judge."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from _data import data_folder
from kernelcast.dataset import Rows, concatenate
from kernelcast.forecasters._source import SourceModel
from kernelcast.training._trials import Trials, cross_examine
from kernelcast.training.trees import train_source_model
from shared_rows import import_shared

SEARCHES = "llm_sol_mi350x"
KERNELBENCH = ("llm_kb_rtx4090", "llm_kb_a100", "llm_kb_small_sets", "llm_kernelbench_com")
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


def examined(rows: Rows, folds: int, seed: int) -> Trials:
    """Forecasts of these rows by models trained on the other folds' problems."""
    began = time.monotonic()

    def train(part: Rows) -> SourceModel:
        model = train_source_model(part, seed)
        seconds = time.monotonic() - began
        print(f"trained on {part.num_rows} rows, {seconds:.0f} s in all", flush=True)
        return model

    return cross_examine(rows, train, folds, seed)


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
