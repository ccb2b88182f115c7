"""Write the recorded GPU space that ships with kernelcast, from the shared data.

    python tools/recorded_space.py

The space is chosen by a rule, not by its result: of the problems in `tuner_benchmark_hub` with at
least 2,000 configurations, all under the MIT licence, the first by name that was measured on three
or more GPUs of one maker; of these GPUs, the first three by name. `kernelcast demo` searches the
last of the three.

The times are the published ones, in milliseconds, unchanged.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import zstandard

ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared" / "data"
ROWS = "tuner_benchmark_hub.parquet"
FILE = ROOT / "src" / "kernelcast" / "dataset" / "recorded" / "convolution.json.zst"
COLUMNS = (
    *("problem", "gpu", "backend", "params", "candidate_ms", "status"),
    *("licence", "source_url_path"),
)
GPUS, LEAST_CONFIGURATIONS, LICENCE = 3, 2_000, "MIT"
FAILURES = {"runtime_error": "crash"}
"""Where kernelcast has another name than the data for what went wrong."""

Rows = list[dict[str, Any]]


def chosen(rows: Rows) -> tuple[str, dict[str, Rows]]:
    """The problem that the rule names, and its rows by GPU."""
    spaces: defaultdict[tuple[str, str], defaultdict[str, Rows]]
    spaces = defaultdict(lambda: defaultdict(list))
    for row in rows:
        maker = row["gpu"].partition(" ")[0]
        spaces[row["problem"], maker][row["gpu"]].append(row)
    for (problem, _), by_gpu in sorted(spaces.items()):
        large = {
            gpu: found
            for gpu, found in sorted(by_gpu.items())
            if len(found) >= LEAST_CONFIGURATIONS
            and all(row["licence"] == LICENCE for row in found)
        }
        if len(large) >= GPUS:
            return problem, {gpu: large[gpu] for gpu in list(large)[:GPUS]}
    raise SystemExit(f"no space of {ROWS} has {GPUS} GPUs of one maker under {LICENCE}")


def content(data: Path) -> dict[str, Any]:
    """The space by column: parameter values, and by GPU a time or the kind of failure."""
    problem, by_gpu = chosen(pq.read_table(data / ROWS, columns=list(COLUMNS)).to_pylist())
    outcomes = {gpu: {row["params"]: _outcome(row) for row in rows} for gpu, rows in by_gpu.items()}
    first = next(iter(outcomes.values()))
    if any(each.keys() != first.keys() for each in outcomes.values()):
        raise SystemExit(f"the GPUs of {problem} have not run the same configurations")
    configurations = sorted(
        ((text, json.loads(text)) for text in first), key=lambda pair: tuple(pair[1].values())
    )
    row = next(iter(by_gpu.values()))[0]
    repository, _, commit = row["source_url_path"].partition(":")[0].partition("@")
    return {
        "problem": problem.partition("/")[2],
        "language": row["backend"],
        "url": f"https://{repository}",
        "commit": commit,
        "licence": row["licence"],
        "parameters": {
            name: [values[name] for _, values in configurations] for name in configurations[0][1]
        },
        "runtime_ms": {
            gpu: [outcome[text] for text, _ in configurations] for gpu, outcome in outcomes.items()
        },
    }


def _outcome(row: dict[str, Any]) -> float | str:
    status: str = row["status"]
    return float(row["candidate_ms"]) if status == "ok" else FAILURES.get(status, status)


def main() -> None:
    """Write the file and say how large it is."""
    space = content(DATA)
    text = json.dumps(space, separators=(",", ":"))
    FILE.write_bytes(zstandard.ZstdCompressor(level=19).compress(text.encode()))
    gpus = ", ".join(space["runtime_ms"])
    print(f"{FILE}: {space['problem']} on {gpus}, {FILE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
