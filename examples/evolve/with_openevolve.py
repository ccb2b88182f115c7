"""Searches a faster C++ softmax with OpenEvolve, which measures what a gate lets pass.

python with_openevolve.py --base-url http://127.0.0.1:8000/v1 --model NAME -n 100
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from openevolve import run_evolution
from openevolve.config import Config, EvaluatorConfig, LLMConfig, LLMModelConfig

from kernelcast import Gate
from kernelcast.integrations.openevolve import gated

HERE = Path(__file__).parent


def main() -> None:
    """Search, and say what was saved."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--base-url", required=True, help="any OpenAI-compatible endpoint")
    parser.add_argument("--model", required=True)
    parser.add_argument("-n", type=int, default=100, help="how many programs the model writes")
    parser.add_argument("--out", type=Path, default=Path("openevolve_run"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    store = options.out / "gate.db"
    model = LLMModelConfig(
        name=options.model,
        api_base=options.base_url,
        api_key=os.environ.get("OPENAI_API_KEY") or "none",
    )
    config = Config(
        language="cpp",
        diff_based_evolution=False,
        llm=LLMConfig(api_base=options.base_url, models=[model]),
        evaluator=EvaluatorConfig(cascade_evaluation=False),
    )
    found = run_evolution(
        str(HERE / "initial.cpp"),
        gated(HERE / "evaluator.py", language="cpp", store=store),
        config,
        iterations=options.n,
        output_dir=str(options.out),
        cleanup=False,
    )
    gate = Gate(language="cpp", store=store)
    print(f"{gate.to_measure} of {gate.asked} different programs were measured")
    print(f"the fastest is {found.best_score:.2f} times as fast as the first:\n{found.best_code}")


if __name__ == "__main__":
    main()
