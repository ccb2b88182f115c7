"""Measures a C++ softmax on this machine: how many times as fast as the first program it is.

OpenEvolve calls `evaluate`. ShinkaEvolve starts this file for each program.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from kernelcast import load_problem
from kernelcast.backends.cpp import CppBackend
from kernelcast.canonical import as_kernel


def measure(program_path: str | Path) -> tuple[float, str]:
    """Compile, check and time a program; return its speedup, or 0 and why it failed."""
    kernel = as_kernel(Path(program_path).read_text(encoding="utf-8"), "cpp")
    backend = CppBackend()
    try:
        measurement = backend.measure(load_problem("softmax"), kernel, seed=0)
    finally:
        backend.close()
    if measurement.log2_speedup is None:
        return 0.0, str(measurement.failure)
    return 2.0**measurement.log2_speedup, ""


def evaluate(program_path: str) -> object:
    """Return what OpenEvolve asks for; the model reads why a program failed."""
    from openevolve.evaluation_result import EvaluationResult

    speedup, failure = measure(program_path)
    return EvaluationResult({"combined_score": speedup}, {"failure": failure} if failure else {})


def main() -> None:
    """Write what ShinkaEvolve reads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program_path", type=Path, required=True)
    parser.add_argument("--results_dir", type=Path, required=True)
    options = parser.parse_args()
    speedup, failure = measure(options.program_path)
    correct = {"correct": not failure, "error": failure}
    (options.results_dir / "metrics.json").write_text(json.dumps({"combined_score": speedup}))
    (options.results_dir / "correct.json").write_text(json.dumps(correct))


if __name__ == "__main__":
    main()
