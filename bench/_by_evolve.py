"""Whole searches of OpenEvolve and ShinkaEvolve on recorded answers, with and without a gate.

Their own controllers run, with a loopback server for the model. It answers with kernels of a pool
(`_evolve_pool`), each once; the evaluator, the user's, looks the speedup up. So all searches of a
seed see the same kernels. Their order is either drawn by the seed, whatever the model is asked, or
follows the parents that the system chooses: of a few kernels that are drawn, the model answers the
one that shares most lines with the parent that it was shown.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from _evolve_pool import Answer, pool, seed_source

sys.path.append(str(Path(__file__).parents[1]))  # a script sees its own folder, not the tests
from tests.model_server import Reply, ScriptedServer

Options = Mapping[str, Any]

_EVALUATOR = """
import argparse
import json
from pathlib import Path

HERE = Path(__file__).parent
SPEEDUPS = json.loads((HERE / "speedups.json").read_text())


def evaluate(program_path):
    text = Path(program_path).read_text()
    text = "\\n".join(line for line in text.splitlines() if "EVOLVE-BLOCK" not in line).strip()
    with (HERE / "measured.jsonl").open("a") as file:
        file.write(json.dumps(text) + "\\n")
    return {"combined_score": SPEEDUPS[text] or 0.0}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--program_path")
    parser.add_argument("--results_dir", type=Path)
    options = parser.parse_args()
    metrics = evaluate(options.program_path)
    correct = {"correct": metrics["combined_score"] > 0.0}
    (options.results_dir / "metrics.json").write_text(json.dumps(metrics))
    (options.results_dir / "correct.json").write_text(json.dumps(correct))
"""


@dataclass(frozen=True)
class End:
    """What one search measured, of so many candidates and not counting the initial program."""

    candidates: int
    measured: int
    best: float
    best_of_all: float
    longest_gap: int
    """The most candidates in a row that were not measured."""


PROBLEMS = {"openevolve": ("softmax", "layernorm", "matmul"), "shinka": ("softmax",)}
"""By system; a search of ShinkaEvolve takes four times as long. Softmax is judged: `TextProcess`
was chosen on the others."""
ORDERS = ("drawn", "like the parent")
JUDGED = range(10, 20)
"""Seeds that are judged; `Gate.least_chance` was chosen on 20 to 39."""
_ANSWERS = 140  # of one search
_DRAWN = 12  # of which the model answers the one that is most like the parent
_PROGRAM = re.compile(r"// EVOLVE-BLOCK-START\n(.*?)\n// EVOLVE-BLOCK-END", re.DOTALL)


@dataclass
class Answers:
    """What the model answers in one search that begins with the seed kernel."""

    seed: int
    seed_source: str
    kernels: Sequence[Answer]
    follow_parents: bool = False
    given: list[Answer] = field(default_factory=list)
    """What it has answered, in order."""

    @classmethod
    def of(cls, problem: str, seed: int, order: str) -> Answers:
        """Draw the answers of one search."""
        kernels = random.Random(seed).sample(pool(problem), _ANSWERS)
        return cls(seed, seed_source(problem), kernels, order == ORDERS[1])

    def replier(self) -> Callable[[dict[str, Any]], Reply]:
        """Return what answers a request: the next kernel, or the embedding of any."""
        left = list(self.kernels)
        draw = random.Random(self.seed)

        def reply(request: dict[str, Any]) -> Reply:
            if "messages" not in request:
                return _embedding(str(request["input"]))
            answer = left[0]
            if self.follow_parents:
                parent = _lines(_PROGRAM.findall(request["messages"][-1]["content"])[-1])
                some = draw.sample(left, min(_DRAWN, len(left)))
                answer = max(some, key=lambda one: _shared(parent, _lines(one.source)))
            left.remove(answer)
            self.given.append(answer)
            return Reply(f"```cpp\n{_marked(answer.source)}```")

        return reply


def _lines(source: str) -> set[str]:
    return {line.strip() for line in source.splitlines()}


def _shared(one: set[str], other: set[str]) -> float:
    return len(one & other) / len(one | other)


def search(system: str, problem: str, order: str, seed: int, *, is_gated: bool) -> End:
    """Run one search, in a folder that is removed afterwards."""
    run = {"openevolve": run_openevolve, "shinka": run_shinka}[system]
    gate = {"language": "cpp", "seed": seed} if is_gated else None
    with tempfile.TemporaryDirectory() as folder:
        return run(Answers.of(problem, seed, order), Path(folder), gate)


def summary(ends: Sequence[tuple[End, End]]) -> dict[str, Any]:
    """Compare pairs of searches: with the gate, and without."""
    saved = [1 - gated.measured / plain.measured for gated, plain in ends]
    loss = [1 - gated.best / plain.best for gated, plain in ends]
    return {
        "mean": {"saved": fmean(saved), "loss": fmean(loss)},
        "saved": saved,
        "loss": loss,
        "gap": [gated.longest_gap for gated, _ in ends],
        "measured": [[gated.measured, plain.measured] for gated, plain in ends],
    }


def run_openevolve(answers: Answers, folder: Path, gate: Options | None) -> End:
    """Search with OpenEvolve, in a folder of its own.

    Args:
        answers: What the model answers.
        folder: Where everything is written.
        gate: Options of the gate; None to measure everything.
    """
    from openevolve import run_evolution
    from openevolve.config import (
        Config,
        DatabaseConfig,
        EvaluatorConfig,
        LLMConfig,
        LLMModelConfig,
    )

    from kernelcast.integrations.openevolve import gated

    evaluator = _prepare(answers, folder)
    chosen = evaluator if gate is None else gated(evaluator, **gate)
    with ScriptedServer(answers.replier()) as server:
        model = LLMModelConfig(name="recorded", api_base=server.base_url, api_key="none")
        config = Config(
            log_level="CRITICAL",
            random_seed=answers.seed,
            language="cpp",
            diff_based_evolution=False,
            max_code_length=1_000_000,
            llm=LLMConfig(api_base=server.base_url, models=[model]),
            database=DatabaseConfig(log_prompts=False),
            evaluator=EvaluatorConfig(cascade_evaluation=False, max_retries=0),
        )
        run_evolution(
            str(folder / "initial.cpp"),
            str(chosen),
            config,
            iterations=len(answers.kernels),
            output_dir=str(folder / "output"),
            cleanup=False,
        )
    return _end(answers, folder)


def run_shinka(answers: Answers, folder: Path, gate: Options | None) -> End:
    """Search with ShinkaEvolve; the arguments are those of `run_openevolve`."""
    import numpy as np
    from shinka.core import EvolutionConfig, ShinkaEvolveRunner
    from shinka.database import DatabaseConfig
    from shinka.launch import LocalJobConfig

    from kernelcast.integrations.shinka import gate_runner

    random.seed(answers.seed)
    np.random.seed(answers.seed)  # noqa: NPY002 - what Shinka draws from
    evaluator = _prepare(answers, folder)
    with ScriptedServer(answers.replier()) as server:
        runner = ShinkaEvolveRunner(
            EvolutionConfig(
                num_generations=len(answers.kernels) + 1,
                language="cpp",
                llm_models=[f"local/recorded@{server.base_url}"],
                llm_dynamic_selection=None,
                embedding_model=f"local/recorded@{server.base_url}",
                init_program_path=str(folder / "initial.cpp"),
                results_dir=str(folder / "results"),
                patch_types=["full"],
                patch_type_probs=[1.0],
                max_patch_resamples=1,
                max_novelty_attempts=1,
            ),
            LocalJobConfig(eval_program_path=str(evaluator)),
            DatabaseConfig(),
            banner_style="minimal",
            verbose=False,
            max_evaluation_jobs=1,
            max_proposal_jobs=1,
            max_db_workers=1,
        )
        if gate is not None:
            gate_runner(runner, **gate)
        runner.run()
    return _end(answers, folder)


def _prepare(answers: Answers, folder: Path) -> Path:
    """Write the initial program, the evaluator and its table; return the evaluator."""
    speedups = {answer.source.strip(): answer.speedup for answer in answers.kernels}
    speedups[answers.seed_source.strip()] = 1.0
    (folder / "speedups.json").write_text(json.dumps(speedups))
    (folder / "initial.cpp").write_text(_marked(answers.seed_source))
    evaluator = folder / "evaluator.py"
    evaluator.write_text(_EVALUATOR)
    return evaluator


def _marked(source: str) -> str:
    return f"// EVOLVE-BLOCK-START\n{source}\n// EVOLVE-BLOCK-END\n"


def _embedding(text: str) -> Reply:
    """Return one of no meaning: nothing is chosen by it."""
    vector = [byte / 255 for byte in hashlib.sha256(text.encode()).digest()[:8]]
    data = [{"object": "embedding", "index": 0, "embedding": vector}]
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    body = {"object": "list", "model": "recorded", "data": data, "usage": usage}
    return Reply(body=json.dumps(body))


def _end(answers: Answers, folder: Path) -> End:
    lines = (folder / "measured.jsonl").read_text().splitlines()
    kernels = answers.given
    order = {answer.source.strip(): place for place, answer in enumerate(kernels)}
    first, *texts = map(json.loads, lines)
    assert first == answers.seed_source.strip(), "the initial program is measured first"
    assert len(kernels) == len(answers.kernels), "the model was asked for all of its answers"
    places = [order[text] for text in texts]
    assert len(set(places)) == len(places), "nothing is measured twice"
    ends = [-1, *sorted(places), len(kernels)]
    return End(
        candidates=len(kernels),
        measured=len(places),
        best=max([1.0, *(kernels[place].speedup or 0.0 for place in places)]),
        best_of_all=max([1.0, *(answer.speedup or 0.0 for answer in kernels)]),
        longest_gap=max(after - before - 1 for before, after in pairwise(ends)),
    )
