"""Import of the data sets released with the GPU Forecasters paper."""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kernelcast.bins import PAPER_BINS
from kernelcast.dataset._foreign import _backend, _KernelIds, _language, _numbered, _read_foreign
from kernelcast.dataset.keys import problem_family
from kernelcast.dataset.rows import _NS, UNSTATED, Row, Rows, Status, _arrow, to_table
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
    """Which columns of a released set of pairs hold what."""

    key: str
    problem: str
    reference: str
    candidate: str
    speedup: str
    details: tuple[str, ...]


_PAIR_SETS = {
    "eval-set": _PairColumns(
        "comparison_id", "pack", "anchor_code", "candidate_code", "aggregated_speedup", ()
    ),
    "rl-training-pool": _PairColumns(
        "row_id", "pack", "anchor_code", "candidate_code", "aggregated_speedup", ("pair_type",)
    ),
    "discovery-pairs": _PairColumns(
        "pair_id",
        "problem_id",
        "parent_code",
        "child_code",
        "g_speedup",
        ("benchmark_family", "parent_node_id", "child_node_id"),
    ),
}


def import_gpu_forecasters(
    path: str | Path, *, device: str | None = None, licence: str = UNSTATED
) -> Rows:
    """A Parquet file of the paper's released sets, told by its columns: pairs or search events.

    The published bins are left out: they contradict the speedup (see `labels`). Published keys
    recur, so a row's id is the key, `#`, and a hash of both kernels and the device; exact repeats
    get `.2`, `.3`. Events name no device, so it must be given for them. Forecasts are not
    measurements: see `import_predictions`.
    """
    path = Path(path)
    raw = _read_foreign(path, [])
    names = set(raw.column_names)
    if {"event_kind", "payload"} <= names:
        if not device:
            raise SetupError(f"{path} names no device: give it (--device)")
        try:
            return _search_events(path, raw, device, licence)
        except (KeyError, TypeError) as error:
            raise SetupError(f"{path}: an event's payload lacks {error}") from error
    for title, pair in _PAIR_SETS.items():
        wanted = {pair.key, pair.reference, pair.candidate, pair.speedup, pair.problem, "hardware"}
        if wanted <= names:
            return _pairs(path, raw, title, pair, licence)
    if "bin_probabilities" in names:
        raise SetupError(f"{path} holds forecasts, not measured kernels: use import_predictions")
    raise SetupError(f"{path} is none of the released sets: its columns are {sorted(names)}")


def _paper_problem(name: str, family: str | None = None) -> str:
    """The problem under a name that splits know: some are KernelBench's, of level 3."""
    found = re.search(r"\d+(?:_[A-Z]\w*)?$", name)
    if family == "kernelbench_l3" and not found:
        raise SetupError(f"cannot tell which KernelBench problem {name!r} is: it has no number")
    if found and (family == "kernelbench_l3" or re.match(r"\d+_[A-Z]", name)):
        return f"kb/level3/{found[0]}"
    return name


def _pairs(path: Path, raw: Any, title: str, pair: _PairColumns, licence: str) -> Rows:
    ids = _KernelIds()
    rows = []
    keys = []
    for entry in raw.to_pylist():
        reference, candidate = entry[pair.reference], entry[pair.candidate]
        backend = _backend(candidate)
        language = _language(backend, candidate)
        pair_hash = content_hash(f"{reference}\0{candidate}\0{entry['hardware']}")[:12]
        keys.append(f"{title}/{entry[pair.key]}#{pair_hash}")
        said = {name: entry[name] for name in pair.details} | {"key": entry[pair.key]}
        parent = entry.get("pair_type") == "parent_edit" or title == "discovery-pairs"
        reference_id = ids[reference, _language(_backend(reference), reference)]
        search = entry.get("source_search")
        problem = _paper_problem(entry[pair.problem], entry.get("benchmark_family"))
        if not entry[pair.speedup] or entry[pair.speedup] <= 0.0:
            raise SetupError(f"{path}: {entry[pair.key]} has no speedup")
        rows.append(
            {
                "problem": problem,
                "family": problem_family(problem),
                "language": language,
                "backend": backend,
                "device": entry["hardware"],
                "candidate_id": ids[candidate, language],
                "candidate_source": candidate,
                "reference_id": reference_id,
                "reference_source": reference,
                "log2_speedup": math.log2(entry[pair.speedup]),
                "status": "ok",
                "search_id": search and f"{search}@{problem}@{entry['hardware']}",
                "parent_id": reference_id if parent else None,
                "source": f"gpu-forecasters/{title}",
                "source_url": path.name,
                "licence": licence,
                "details": json.dumps(said),
            }
        )
    unique = _numbered(keys)
    return to_table(Row(row_id=key, **row) for key, row in zip(unique, rows, strict=True))


def _search_events(path: Path, raw: Any, device: str, licence: str) -> Rows:
    """Evaluations of recorded searches: each request joined to its outcome by request id.

    Evaluations that the harness lost say nothing about the kernel and are left out.
    """
    rows: list[Row] = []
    requests: dict[tuple[str, str], Mapping[str, Any]] = {}
    sources: dict[tuple[str, str], str] = {}
    steps: Counter[str] = Counter()
    ids = _KernelIds()

    def name(source: str) -> str:
        return ids[source, _language(_backend(source), source)]

    def add(search: str, code: str, parent: str | None, evaluation: Mapping[str, Any]) -> None:
        feedback = evaluation["observation"]["feedback"]
        status = _FEEDBACK.get(feedback["kind"])
        if status is None:
            return
        cases = feedback.get("per_case_speedups") or []
        steps[search] += 1
        problem = _paper_problem(search.split("__")[0])
        said = (
            feedback.get(key) for key in ("compilation_error", "runtime_error", "error_message")
        )
        ok = status == "ok"
        rows.append(
            Row(
                row_id=f"search-events/{search}/{steps[search] - 1}",
                problem=problem,
                family=problem_family(problem),
                language=_language(_backend(code), code),
                backend=_backend(code),
                device=device,
                candidate_id=name(code),
                candidate_source=code,
                runtime_s=_geometric_mean(cases, "runtime_ns") if ok else None,
                reference_runtime_s=_geometric_mean(cases, "ref_runtime_ns"),
                log2_speedup=math.log2(feedback["aggregated_speedup"]) if ok else None,
                status=status,
                status_detail=next((text for text in said if text), None),
                search_id=search,
                step=steps[search] - 1,
                parent_id=parent,
                source="gpu-forecasters/puct-search-events",
                source_url=path.name,
                licence=licence,
            )
        )

    ordered = sorted(raw.to_pylist(), key=lambda each: (each["source_search"], each["event_index"]))
    for event in ordered:
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
                add(search, request["code"], parent and name(parent), payload["evaluation"])
    return to_table(rows)


def _geometric_mean(cases: Sequence[Mapping[str, Any]], name: str) -> float | None:
    times = [case[name] for case in cases if case.get(name)]
    return float(np.exp(np.mean(np.log(times)))) * _NS if times else None


def import_predictions(path: str | Path, rows: Rows) -> Any:
    """The paper's published forecasts of its evaluation set, as a table of their own.

    `rows` are that set, imported. Forecasts name it by a key that several rows share; those say
    nothing about which row is meant and are left out, and their number is in the table's metadata
    (`ambiguous`). A forecast whose key is in no row is an error. Columns: row_id, forecaster,
    repeat, probabilities (of `PAPER_BINS`, renormalised; null where unread), raw_probability_sum,
    input_tokens, output_tokens, seconds.
    """
    pa = _arrow()
    named: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    eval_rows = rows.select(["row_id", "problem", "details"]).to_pylist()
    for row in eval_rows:
        named[json.loads(row["details"])["key"], row["problem"]].append(row["row_id"])
    columns = ["comparison_id", "pack", "surrogate_label", "repeat", "bin_probabilities"]
    found: list[dict[str, Any]] = []
    ambiguous = 0
    for entry in _read_foreign(Path(path), columns).to_pylist():
        key = (entry["comparison_id"], _paper_problem(entry["pack"]))
        if key not in named:
            raise SetupError(f"{path} forecasts {key}, which is in no row: import the eval set too")
        if len(named[key]) > 1:
            ambiguous += 1
            continue
        # Published bins count from 1.
        chances = {each["bin"] - 1: each["p"] for each in entry["bin_probabilities"] or ()}
        if not chances.keys() <= set(range(PAPER_BINS.count)):
            raise SetupError(f"{path}: {key} has bins other than 1 to {PAPER_BINS.count}")
        total = sum(chances.values())
        read = total > 0 and not entry.get("parse_failed")
        found.append(
            {
                "row_id": named[key][0],
                "forecaster": entry["surrogate_label"],
                "repeat": entry["repeat"],
                "probabilities": [chances.get(i, 0.0) / total for i in range(PAPER_BINS.count)]
                if read
                else None,
                "raw_probability_sum": total if read else None,
                "input_tokens": entry.get("input_tokens"),
                "output_tokens": entry.get("output_tokens"),
                "seconds": entry.get("elapsed_s"),
            }
        )
    kinds = {
        "row_id": pa.string(),
        "forecaster": pa.string(),
        "repeat": pa.int64(),
        "probabilities": pa.list_(pa.float64()),
        "raw_probability_sum": pa.float64(),
        "input_tokens": pa.int64(),
        "output_tokens": pa.int64(),
        "seconds": pa.float64(),
    }
    described = pa.schema(list(kinds.items()), metadata={"ambiguous": str(ambiguous)})
    return pa.Table.from_pylist(found, schema=described)
