"""Turn the shared data (published measurements in one folder of Parquet files) into rows.

    python bench/shared_rows.py ../shared/data/llm_sol_mi350x.parquet --out rows.parquet

A path is one file or the whole folder. `docs/how-to/measured-data.md` lists the files.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelcast.canonical import canonical_parameters, kernel_id
from kernelcast.dataset._foreign import _kernel_id, _language, _read_foreign
from kernelcast.dataset.keys import configuration_id, problem_family
from kernelcast.dataset.rows import (
    _MS,
    Rows,
    _arrow,
    _compute,
    _mapped,
    _table,
    concatenate,
    write_rows,
)
from kernelcast.errors import SetupError
from kernelcast.types import FailureKind

_SHARED_COLUMNS = [
    "source",
    "problem",
    "backend",
    "gpu",
    "reference_code",
    "candidate_code",
    "params",
    "reference_ms",
    "candidate_ms",
    "speedup",
    "status",
    "n_samples",
    "std_ms",
    "licence",
    "source_url_path",
    "status_detail",
    "model",
    "search_id",
    "step",
    "parent_sha",
    "candidate_sha",
    "reference_sha",
]
_SHARED_STATUS = {"runtime_error": FailureKind.CRASH}
_SHARED_DETAIL = {
    "timeout": FailureKind.TIMEOUT,
    "check_timeout": FailureKind.TIMEOUT,
    "reward_hack": FailureKind.CHEATING,
}
_REFERENCE_PARAMETERS = "reference_params="
# Files with more columns for the rows of another file.
_SHARED_JOINED = {"tuner_costs": "tuner_benchmark_hub", "tuner_samples": "tuner_benchmark_hub"}


def import_shared(path: str | Path) -> Rows:
    """Import a file of the shared data, which is known by its name, or the whole folder.

    Tuned kernels get their template (tuner_kernels) and costs (tuner_costs) from the files beside
    them, joined by problem, device and parameters. The single timings in tuner_samples have no
    place in a row, which holds their number and spread.
    """
    path = Path(path)
    if path.is_dir():
        files = [file for file in sorted(path.glob("*.parquet")) if file.stem not in _SHARED_JOINED]
        if not files:
            raise SetupError(f"{path} holds no Parquet files: give the folder that does")
        return concatenate([import_shared(file) for file in files])
    if host := _SHARED_JOINED.get(path.stem):
        raise SetupError(f"{path.name} holds no rows of its own: import {host}.parquet beside it")
    raw = _read_foreign(path, _SHARED_COLUMNS)
    get = {name: raw[name].to_pylist() for name in raw.column_names if not name.endswith("_code")}
    count = raw.num_rows
    status = [
        _SHARED_DETAIL.get(detail or "", _SHARED_STATUS.get(state, state))
        for state, detail in zip(get["status"], get["status_detail"], strict=True)
    ]
    measured = [state in ("ok", "reference") for state in status]
    problem = get["problem"]
    if path.stem == "ref_kernelbenchx_6gpu":
        # One name stands for all sizes; the parameters hold the number of the size.
        numbers = [json.loads(text)["i"] for text in get["params"]]
        problem = [f"{name}#{number}" for name, number in zip(problem, numbers, strict=True)]
    columns: dict[str, Any] = {
        "row_id": [f"{path.stem}/{number}" for number in range(count)],
        "problem": problem,
        "family": _mapped(_arrow().array(problem), problem_family),
        "backend": raw["backend"].combine_chunks().dictionary_encode(),
        "device": raw["gpu"].combine_chunks().dictionary_encode(),
        "runtime_s": _seconds(raw["candidate_ms"], measured),
        "reference_runtime_s": _seconds(raw["reference_ms"]),
        "log2_speedup": _log2_speedups(raw, measured),
        "status": status,
        "samples": get["n_samples"],
        "runtime_std_s": _seconds(raw["std_ms"]),
        "search_id": None  # timings of references name a machine there, not a search
        if path.stem.startswith("ref_")
        else _whole_searches(get["search_id"], problem, get["gpu"]),
        "step": get["step"],
        "model": get["model"],
        "source": get["source"],
        "source_url": get["source_url_path"],
        "licence": get["licence"],
    }
    if path.stem.startswith("tuner_"):
        columns |= _tuned_columns(path, raw, get)
    else:
        columns |= _published_kernels(raw, get)
        columns |= {"status_detail": get["status_detail"], "details": get["params"]}
    if path.stem.startswith("noise_"):
        # Hashes are of a session; one kernel was measured in all sessions of a set-up.
        setups = [{**json.loads(text), "session": None} for text in get["params"]]
        columns["candidate_id"] = [
            configuration_id(name, canonical_parameters(setup))
            for name, setup in zip(problem, setups, strict=True)
        ]
    return _table(columns)


def _seconds(milliseconds: Any, where: Sequence[bool] | None = None) -> Any:
    pa, pc = _arrow(), _compute()
    seconds = pc.multiply(milliseconds.combine_chunks().cast(pa.float64()), _MS)
    return seconds if where is None else pc.if_else(pa.array(where), seconds, None)


def _log2_speedups(raw: Any, where: Sequence[bool]) -> Any:
    """Log2 of the ratio of both times if published, else of the published, rounded ratio."""
    pa, pc = _arrow(), _compute()
    ratio = pc.coalesce(pc.divide(raw["reference_ms"], raw["candidate_ms"]), raw["speedup"])
    log2 = pc.log2(ratio.combine_chunks().cast(pa.float64()))
    return pc.if_else(pa.array(where), log2, None)


def _whole_searches(
    searches: Sequence[str | None], problems: Sequence[str], devices: Sequence[str]
) -> list[str | None]:
    """Search ids that hold one problem and device: some sources give a whole campaign one id."""
    seen: defaultdict[str | None, tuple[set[str], set[str]]] = defaultdict(lambda: (set(), set()))
    for search, problem, device in zip(searches, problems, devices, strict=True):
        seen[search][0].add(problem)
        seen[search][1].add(device)
    return [
        search
        and search
        + (f"@{problem}" if len(seen[search][0]) > 1 else "")
        + (f"@{device}" if len(seen[search][1]) > 1 else "")
        for search, problem, device in zip(searches, problems, devices, strict=True)
    ]


def _published_kernels(raw: Any, get: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Columns of kernels published as text, or by their hash alone."""
    candidates, references = raw["candidate_code"].to_pylist(), raw["reference_code"].to_pylist()
    languages = [
        _language(backend, candidate or reference)
        for backend, candidate, reference in zip(
            get["backend"], candidates, references, strict=True
        )
    ]
    by_sha: dict[str, str] = {}
    for shas, sources in (("reference_sha", references), ("candidate_sha", candidates)):
        for sha, source, language in zip(get[shas], sources, languages, strict=True):
            if sha and source:
                by_sha[sha] = _kernel_id(source, language)

    def named(sha: str | None) -> str | None:
        return by_sha.get(sha, f"sha:{sha}") if sha else None

    return {
        "language": languages,
        "candidate_id": [named(sha) for sha in get["candidate_sha"]],
        "candidate_source": candidates,
        "reference_id": [named(sha) for sha in get["reference_sha"]],
        "reference_source": references,
        "parent_id": [named(sha) for sha in get["parent_sha"]],
    }


def _tuned_columns(path: Path, raw: Any, get: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Columns of tuned kernels: template, parameters and costs."""
    if path.stem == "tuner_kernels":
        sources = raw["reference_code"].to_pylist()
        ids = list(map(kernel_id, sources, get["backend"]))
        return {
            "language": get["backend"],
            "template": sources,
            "candidate_id": ids,
            "details": get["params"],
        }
    pa = _arrow()
    beside = _read_foreign(_beside(path, "tuner_kernels"), ["problem", "reference_code", "backend"])
    kernels = {
        row["problem"]: (row["reference_code"], row["backend"])
        for row in beside.select(["problem", "reference_code", "backend"]).to_pylist()
    }
    unknown = {name for name in get["problem"] if name not in kernels and "KTT" not in name}
    if unknown:
        raise SetupError(f"tuner_kernels.parquet has no template of {sorted(unknown)}")
    # The template's own language, so that one configuration has one id on every device.
    template_ids = {name: kernel_id(*kernel) for name, kernel in kernels.items()}
    canonical = {text: canonical_parameters(json.loads(text)) for text in set(get["params"])}
    references = {
        text: canonical_parameters(json.loads(text.removeprefix(_REFERENCE_PARAMETERS)))
        for text in set(get["status_detail"])
    }
    keys = [
        (problem, device, canonical[text])
        for problem, device, text in zip(get["problem"], get["gpu"], get["params"], strict=True)
    ]
    columns: dict[str, Any] = {
        "language": _mapped(raw["backend"], lambda backend: _language(backend, None)),
        "template": _mapped(raw["problem"], lambda name: kernels.get(name, (None, ""))[0]),
        "candidate_id": [
            configuration_id(template_ids.get(problem, problem), parameters)
            for problem, _, parameters in keys
        ],
        "candidate_parameters": [parameters for _, _, parameters in keys],
        "reference_id": _mapped(
            pa.array(
                f"{problem}\0{references[text]}"
                for problem, text in zip(get["problem"], get["status_detail"], strict=True)
            ),
            lambda key: configuration_id(
                template_ids.get(key.split("\0")[0], key.split("\0")[0]), key.split("\0")[1]
            ),
        ),
        "reference_parameters": [references[text] for text in get["status_detail"]],
    }
    if path.stem == "tuner_benchmark_hub":
        columns |= _measuring_costs(path, keys)
    return columns


def _beside(path: Path, stem: str) -> Path:
    other = path.with_name(f"{stem}.parquet")
    if not other.exists():
        raise SetupError(f"{path.name} needs {other.name} beside it: put both into one folder")
    return other


def _measuring_costs(path: Path, keys: Sequence[tuple[str, str, str]]) -> dict[str, Any]:
    """Compile and benchmark seconds, for the spaces for which they were published."""
    pa = _arrow()
    names = ["problem", "gpu", "params", "compile_ms", "benchmark_ms"]
    costs = _read_foreign(_beside(path, "tuner_costs"), names)
    theirs = [
        (problem, device, canonical_parameters(json.loads(text)))
        for problem, device, text in zip(*(costs[n].to_pylist() for n in names[:3]), strict=True)
    ]
    spaces = {key[:2] for key in theirs}
    priced = np.array([key[:2] in spaces for key in keys])
    wanted = [key for key in keys if key[:2] in spaces]
    places = _matches(wanted, theirs, "tuner_costs.parquet")
    columns = {}
    for name, published in (("compile_s", "compile_ms"), ("benchmark_s", "benchmark_ms")):
        values = np.full(len(keys), np.nan)
        values[priced] = costs[published].to_numpy()[places] * _MS
        columns[name] = pa.array(values, from_pandas=True)
    return columns


def _matches(left: Sequence[Any], right: Sequence[Any], what: str) -> NDArray[np.int64]:
    """Index in `right` of each key of `left`; a key that is missing or occurs twice is an error."""
    for name, keys in (("the rows", left), (what, right)):
        if len(set(keys)) != len(keys):
            twice = next(key for key, count in Counter(keys).items() if count > 1)
            raise SetupError(f"joining {what}: {twice} is there twice in {name}")
    place = {key: index for index, key in enumerate(right)}
    missing = [key for key in left if key not in place]
    if missing:
        raise SetupError(f"joining {what}: it lacks {len(missing)} keys, e.g. {missing[0]}")
    if len(right) > len(left):
        alone = next(iter(place.keys() - set(left)))
        raise SetupError(
            f"joining {what}: {len(right) - len(left)} of its keys are in no row, e.g. {alone}"
        )
    return np.array([place[key] for key in left], dtype=np.int64)


def main() -> None:
    """Import the files named on the command line and write their rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH")
    parser.add_argument("--out", type=Path, required=True, help="Parquet file of rows")
    options = parser.parse_args()
    rows = concatenate([import_shared(path) for path in options.paths])
    write_rows(options.out, rows)
    print(f"{rows.num_rows:,} rows written to {options.out}")


if __name__ == "__main__":
    main()
