"""What it costs to rank 5,000 texts: CPU seconds and peak memory, the first time and again.

The texts are recorded kernels, three in four of them Python modules (Triton, or CUDA in strings),
the others CUDA. `kernelcast rank` ranks each of the two folders in a process of its own, twice, and
compiles nothing. The cache is empty the first time. Figures are of whole processes, with imports.

- `first/cpu_s`, `again/cpu_s`: CPU seconds of both folders together.
- `first/peak_mb`, `again/peak_mb`: the most memory that one of the processes held.
- `changed`: kernels that are ranked otherwise when their texts are read from the cache.

    python bench/texts.py [--quick] [--texts 5000]
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from _data import read_columns
from _result import bench_parser, report, rounded
from _written import PUBLISHABLE, SEARCHES
from kernelcast.cache import ENVIRONMENT
from kernelcast.dataset._foreign import _language
from kernelcast.languages import BUILT_IN

_DEVICE = "H100-SXM5"
_SHARES = {".py": 0.75, ".cu": 0.25}
# The peak that wait4 reports may be that of this process, from which the other one was forked.
_SCRIPT = """
import atexit, shutil, sys
atexit.register(shutil.copyfile, "/proc/self/status", sys.argv.pop(1))
from kernelcast.cli import main
main()
"""


@dataclass(frozen=True)
class Cost:
    """What a process took, and the ranking that it printed."""

    cpu_s: float
    peak_mb: float
    lines: Sequence[str]


def write_folders(root: Path, count: int) -> dict[str, Path]:
    """Write `count` texts into one folder for each ending, evenly from all the data."""
    texts: dict[str, dict[str, None]] = {ending: {} for ending in _SHARES}
    for name in (*PUBLISHABLE, SEARCHES):
        columns = read_columns(name, ("backend", "candidate_code"))
        for backend, text in zip(*columns.values(), strict=True):
            language = _language(backend, text)
            if text and (language == "cuda" or BUILT_IN[language].family != "c"):
                texts[".cu" if language == "cuda" else ".py"][text] = None
    folders = {ending: root / ending.removeprefix(".") for ending in _SHARES}
    for ending, share in _SHARES.items():
        folders[ending].mkdir()
        chosen = [*texts[ending]]
        wanted = min(round(count * share), len(chosen))
        for number in range(wanted):
            name = "reference" if number == 0 else f"{number:04}"
            text = chosen[number * len(chosen) // wanted]
            (folders[ending] / f"{name}{ending}").write_text(text, encoding="utf-8")
    return folders


def rank(folder: Path, root: Path) -> Cost:
    """Rank a folder in a process of its own, with the cache in `root`."""
    status = root / "status"
    arguments = ["rank", str(folder), "--device", _DEVICE, "--no-compile", "--csv"]
    environment = os.environ | {ENVIRONMENT: str(root / "cache"), "OMP_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(status), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    peak_kb = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
    assert peak_kb
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(cpu_s, int(peak_kb[1]) / 1024, done.stdout.splitlines())


def main() -> None:
    parser = bench_parser(__doc__, quick="100 texts")
    parser.add_argument("--texts", type=int, default=5000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        folders = write_folders(root, 100 if options.quick else options.texts)
        written = {ending: len(list(folder.iterdir())) for ending, folder in folders.items()}
        times: dict[str, dict[str, Cost]] = {}
        for time in ("first", "again"):
            times[time] = {}
            for ending, folder in folders.items():
                cost = times[time][ending] = rank(folder, root)
                print(f"{time} {ending}: {cost.cpu_s:.1f} s, {cost.peak_mb:.0f} MB", flush=True)
        cache_mb = sum(file.stat().st_size for file in (root / "cache").iterdir()) / 2**20
    first, again = times["first"], times["again"]
    changed = sum(len({*first[end].lines} ^ {*again[end].lines}) for end in folders)
    result = {
        "texts": sum(written.values()),
        "written": written,
        "changed": changed,
        "cache_mb": cache_mb,
    }
    for time, costs in times.items():
        result[time] = {
            "cpu_s": sum(cost.cpu_s for cost in costs.values()),
            "peak_mb": max(cost.peak_mb for cost in costs.values()),
            "cpu_s_of": {ending: cost.cpu_s for ending, cost in costs.items()},
        }
    report(rounded(result), options)


if __name__ == "__main__":
    main()
