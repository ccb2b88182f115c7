"""Import of the data sets released with the GPU Forecasters paper."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kernelcast.dataset._foreign import _read_foreign, _text_id, _text_row
from kernelcast.dataset.rows import _NS, UNSTATED, Row, Rows, Status, to_table
from kernelcast.errors import SetupError
from kernelcast.types import FailureKind, content_hash

_FEEDBACK: dict[str, Status] = {
    "success": "ok",
    "compile_failed": FailureKind.COMPILE_ERROR,
    "runtime_error": FailureKind.CRASH,
    "incorrect": FailureKind.WRONG_RESULT,
}


@dataclass(frozen=True)
class _PairColumns:
    """The columns of a released set of pairs."""

    key: str
    problem: str
    reference: str
    candidate: str
    speedup: str
    details: tuple[str, ...]


_POOL = ("pack", "anchor_code", "candidate_code", "aggregated_speedup")
_DISCOVERY = ("problem_id", "parent_code", "child_code", "g_speedup")
_NODES = ("benchmark_family", "parent_node_id", "child_node_id")
_PAIR_SETS = {
    "eval-set": _PairColumns("comparison_id", *_POOL, details=()),
    "rl-training-pool": _PairColumns("row_id", *_POOL, details=("pair_type",)),
    "discovery-pairs": _PairColumns("pair_id", *_DISCOVERY, details=_NODES),
}


def import_gpu_forecasters(
    path: str | Path, *, device: str | None = None, licence: str = UNSTATED
) -> Rows:
    """Import a Parquet file of the paper's released sets: pairs of kernels, or search events.

    Published bins are left out, since they contradict the speedup (see `labels`). Published keys
    recur, so a row's id is the key, `#`, and a hash of both kernels and the device; exact repeats
    get `.2`, `.3`.

    Args:
        path: a file of a released set; its columns say which.
        device: where the kernels ran; needed for search events, which do not say.
        licence: licence of the rows.

    Raises:
        SetupError: the file is of no released set, or an entry lacks something.
    """
    path = Path(path)
    raw = _read_foreign(path)
    names = set(raw.column_names)
    if {"event_kind", "payload"} <= names:
        if not device:
            raise SetupError(f"{path} names no device: give it (--device)")
        try:
            return to_table(_search_rows(path, raw, device, licence))
        except (KeyError, TypeError) as error:
            raise SetupError(f"{path}: an event's payload lacks {error}") from error
    for title, pair in _PAIR_SETS.items():
        if {
            pair.key,
            pair.reference,
            pair.candidate,
            pair.speedup,
            pair.problem,
            "hardware",
        } <= names:
            return to_table(_pair_rows(path, raw, title, pair, licence))
    if "bin_probabilities" in names:
        raise SetupError(
            f"{path} holds forecasts, not measured kernels: "
            "`kernelcast data import paper-predictions` reads them"
        )
    raise SetupError(f"{path} is none of the released sets: its columns are {sorted(names)}")


def _paper_problem(name: str, family: str | None = None) -> str:
    """The problem under a name that splits know: some are KernelBench's, of level 3."""
    number = re.search(r"\d+(?:_[A-Z]\w*)?$", name)
    if family == "kernelbench_l3" and not number:
        raise SetupError(f"cannot tell which KernelBench problem {name!r} is: it has no number")
    if number and (family == "kernelbench_l3" or re.match(r"\d+_[A-Z]", name)):
        return f"kb/level3/{number[0]}"
    return name


def _pair_rows(path: Path, raw: Any, title: str, pair: _PairColumns, licence: str) -> list[Row]:
    rows = []
    repeats: Counter[str] = Counter()
    for entry in raw.to_pylist():
        reference, candidate, hardware = (
            entry[pair.reference],
            entry[pair.candidate],
            entry["hardware"],
        )
        if not entry[pair.speedup] or entry[pair.speedup] <= 0.0:
            raise SetupError(f"{path}: {entry[pair.key]} has no speedup")
        pair_hash = content_hash(f"{reference}\0{candidate}\0{hardware}")[:12]
        key = f"{title}/{entry[pair.key]}#{pair_hash}"
        repeats[key] += 1
        details = {name: entry[name] for name in pair.details} | {"key": entry[pair.key]}
        is_edit = entry.get("pair_type") == "parent_edit" or title == "discovery-pairs"
        search = entry.get("source_search")
        problem = _paper_problem(entry[pair.problem], entry.get("benchmark_family"))
        rows.append(
            _text_row(
                candidate,
                row_id=key if repeats[key] == 1 else f"{key}.{repeats[key]}",
                problem=problem,
                device=hardware,
                reference_id=_text_id(reference),
                reference_source=reference,
                log2_speedup=math.log2(entry[pair.speedup]),
                status="ok",
                search_id=search and f"{search}@{problem}@{hardware}",
                parent_id=_text_id(reference) if is_edit else None,
                source=f"gpu-forecasters/{title}",
                source_url=path.name,
                licence=licence,
                details=json.dumps(details),
            )
        )
    return rows


def _search_rows(path: Path, raw: Any, device: str, licence: str) -> list[Row]:
    """Evaluations of recorded searches: each request joined to its outcome by request id.

    Evaluations that the harness lost say nothing about the kernel and are left out.
    """
    rows: list[Row] = []
    requests: dict[tuple[str, str], Mapping[str, Any]] = {}
    sources: dict[tuple[str, str], str] = {}
    steps: Counter[str] = Counter()

    def add(search: str, source: str, parent: str | None, evaluation: Mapping[str, Any]) -> None:
        feedback = evaluation["observation"]["feedback"]
        status = _FEEDBACK.get(feedback["kind"])
        if status is None:
            return
        cases = feedback.get("per_case_speedups") or []
        errors = map(feedback.get, ("compilation_error", "runtime_error", "error_message"))
        ok = status == "ok"
        rows.append(
            _text_row(
                source,
                row_id=f"search-events/{search}/{steps[search]}",
                problem=_paper_problem(search.split("__")[0]),
                device=device,
                runtime_s=_geometric_mean_s(cases, "runtime_ns") if ok else None,
                reference_runtime_s=_geometric_mean_s(cases, "ref_runtime_ns"),
                log2_speedup=math.log2(feedback["aggregated_speedup"]) if ok else None,
                status=status,
                status_detail=next(filter(None, errors), None),
                search_id=search,
                step=steps[search],
                parent_id=parent and _text_id(parent),
                source="gpu-forecasters/puct-search-events",
                source_url=path.name,
                licence=licence,
            )
        )
        steps[search] += 1

    for event in sorted(
        raw.to_pylist(), key=lambda row: (row["source_search"], row["event_index"])
    ):
        search, payload = event["source_search"], event["payload"]
        payload = json.loads(payload) if isinstance(payload, str) else payload
        match event["event_kind"]:
            case "search_initialized":
                root = payload["root"]
                sources[search, root["ulid"]] = root["program_code"]
                add(search, root["program_code"], None, root["evaluation"])
            case "evaluation_requested":
                if (search, payload["request_id"]) in requests:
                    raise SetupError(f"{path}: request {payload['request_id']} is there twice")
                requests[search, payload["request_id"]] = payload
                sources[search, payload["child_ulid"]] = payload["code"]
            case "evaluation_completed":
                request = requests.pop((search, payload["request_id"]), None)
                if request is None:
                    raise SetupError(f"{path}: {payload['request_id']} was evaluated, never asked")
                parent = sources.get((search, request["parent_ulid"]))
                add(search, request["code"], parent, payload["evaluation"])
    return rows


def _geometric_mean_s(cases: Sequence[Mapping[str, Any]], name: str) -> float | None:
    times = [case[name] for case in cases if case.get(name)]
    return float(np.exp(np.mean(np.log(times)))) * _NS if times else None
