r"""Searches a faster C++ softmax with ShinkaEvolve, which measures what a gate lets pass.

python with_shinka.py --base-url http://127.0.0.1:8000/v1 --model NAME \
    --embedding-model NAME -n 100
"""

from __future__ import annotations

import argparse
from pathlib import Path

from shinka.core import EvolutionConfig, ShinkaEvolveRunner
from shinka.database import DatabaseConfig
from shinka.launch import LocalJobConfig

from kernelcast.integrations.shinka import gate_runner

HERE = Path(__file__).parent


def main() -> None:
    """Search, and say what was saved."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--base-url", required=True, help="any OpenAI-compatible endpoint")
    parser.add_argument("--model", required=True)
    parser.add_argument("--embedding-model", required=True, help="at the same endpoint")
    parser.add_argument("-n", type=int, default=100, help="how many programs the model writes")
    parser.add_argument("--out", type=Path, default=Path("shinka_run"))
    options = parser.parse_args()
    runner = ShinkaEvolveRunner(
        EvolutionConfig(
            num_generations=options.n + 1,
            language="cpp",
            llm_models=[f"local/{options.model}@{options.base_url}"],
            embedding_model=f"local/{options.embedding_model}@{options.base_url}",
            init_program_path=str(HERE / "initial.cpp"),
            results_dir=str(options.out),
            patch_types=["full"],
            patch_type_probs=[1.0],
            max_novelty_attempts=1,
        ),
        LocalJobConfig(eval_program_path=str(HERE / "evaluator.py")),
        DatabaseConfig(),
        max_evaluation_jobs=1,
    )
    gate = gate_runner(runner, language="cpp")
    runner.run()
    print(f"{gate.to_measure} of {gate.asked} different programs were measured")
    if gate.best is not None:
        speedup, source = gate.best.speedup, gate.best.source
        print(f"the fastest is {speedup:.2f} times as fast as the first:\n{source}")


if __name__ == "__main__":
    main()
