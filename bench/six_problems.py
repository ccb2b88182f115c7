"""Search each bundled C++ problem with 60 measurements; measure what was found once more.

For each problem the default search (proposer `tuner`) runs on this machine's CPU; then its best
kernel is measured again in a fresh backend with a fresh seed, in pairs against the naive seed
kernel. Reported is that last ratio, never the one the search picked by.

    python bench/six_problems.py [--quick] [--only NAME] [--measurements 60] [--seed 0]
"""

from __future__ import annotations

import json
import secrets
import tempfile
import time
from pathlib import Path
from typing import Any

from _result import bench_parser, report
from kernelcast.backends.cpp import CppBackend
from kernelcast.events import RunSpec
from kernelcast.parts import Parts
from kernelcast.problems import bundled_problems, load_problem
from kernelcast.search import Search
from kernelcast.store import Store
from kernelcast.types import Budget


def main() -> None:
    parser = bench_parser(__doc__, quick="one problem, 12 measurements")
    parser.add_argument("--only", choices=bundled_problems("cpp"), help="this problem alone")
    parser.add_argument("--measurements", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    names = [arguments.only] if arguments.only else bundled_problems("cpp")
    measurements = arguments.measurements
    if arguments.quick:
        names, measurements = ["cross_entropy"], 12
    problems: dict[str, dict[str, Any]] = {}
    backend = CppBackend()
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "store.db") as store:
        for name in names:
            began = time.monotonic()
            problem = load_problem(name)
            search = Search(
                problem, Parts.build({}, problem), store, spec=RunSpec(seed=arguments.seed)
            )
            result = search.run(Budget(measurements=measurements))
            again = backend.measure(problem, result.kernel, secrets.randbits(48))
            timing = again.timing
            assert timing is not None, f"{name}: the best kernel fails on fresh inputs: {again}"
            problems[name] = {
                "speedup": round(timing.speedup, 3),
                "low": round(2.0**timing.low, 3),
                "high": round(2.0**timing.high, 3),
                "resolved": timing.resolved,
                "considered": result.state.considered,
                "measured": result.state.measured,
                "ended": result.state.ended or "",
                "seconds": round(time.monotonic() - began, 1),
            }
            print(name, json.dumps(problems[name]), flush=True)
    backend.close()
    report(
        {
            "problems": problems,
            "at_least_3x": sum(row["speedup"] >= 3 for row in problems.values()),
            "of": len(problems),
            "measurements": measurements,
            "seed": arguments.seed,
            "toolchain": backend.toolchain,
            "device": backend.device.id,
        },
        arguments,
    )


if __name__ == "__main__":
    main()
