"""ShinkaEvolve behind a gate: proposals that will hardly be a new best are not evaluated.

    from kernelcast.integrations.shinka import gate_runner

    runner = ShinkaEvolveRunner(evo_config, job_config, db_config)
    gate_runner(runner, language="cuda")
    runner.run()

The gate takes the place of the novelty judge: what it turns away is a rejected proposal, for which
Shinka asks the model again up to `max_novelty_attempts` times, and which never enters the archive.
A judge that is there already is asked after the gate.

`combined_score` must grow with the speed in proportion: a speedup, or work in a second. The gate
learns it as the program's speedup, and an incorrect program as a failure.
"""

from __future__ import annotations

import asyncio
import logging
import math
from pathlib import Path
from typing import Any

from kernelcast import Gate, SetupError
from kernelcast.integrations._package import check_version

check_version("shinka-evolve", "0.0.5", "0.0.7")

Results = dict[str, Any]

_LOG = logging.getLogger(__name__)
_RECORDED_S = 0.2  # after which Shinka has recorded a rejected proposal


def gate_runner(runner: Any, *, store: str | Path | None = None, **options: Any) -> Gate:
    """Put a gate before the evaluations of a runner that has not begun, and return the gate.

    Args:
        runner: A `ShinkaEvolveRunner`.
        store: Where the gate keeps what it is told, by default `gate.db` in the folder of the
            run's results: a run that is resumed goes on with what is known.
        options: Options of `Gate`: `language="cuda"` and others.

    Raises:
        SetupError: The runner has no embedding model, or the gate cannot be built.
        StoreError: The store cannot be opened.
    """
    if runner.embedding_client is None:
        raise SetupError(
            "Shinka asks no judge about a program without an embedding: "
            "set EvolutionConfig(embedding_model=...)"
        )
    gate = Gate(store=store or Path(runner.results_dir) / "gate.db", **options)
    runner.novelty_judge = _Judge(gate, runner, runner.novelty_judge)
    runner.scheduler = _Scheduler(gate, runner.scheduler)
    return gate


class _Judge:
    """Asks the gate about each proposal, and then the judge that was there before."""

    def __init__(self, gate: Gate, runner: Any, judge: Any) -> None:
        self._gate = gate
        self._runner = runner
        self._judge = judge

    async def should_check_novelty_async(self, *_: Any) -> bool:
        return True

    async def assess_novelty_with_rejection_sampling_async(
        self, exec_fname: str, code_embedding: Any, parent_program: Any, db: Any
    ) -> tuple[bool, Results]:
        source = Path(exec_fname).read_text(encoding="utf-8")
        verdict = await asyncio.to_thread(self._gate.ask, source, parent_program.code)
        if not verdict.measure:
            # Shinka wakes up after an evaluation, else it waits for five seconds.
            wake = self._runner.slot_available.set
            asyncio.get_running_loop().call_later(_RECORDED_S, wake)
            note = f"not measured, which is no failure; a forecast: {verdict.reason}"
            return False, {"novelty_checks_performed": 1, "novelty_explanation": note}
        if self._judge is None or not await self._judge.should_check_novelty_async(
            code_embedding, parent_program.generation + 1, parent_program, db
        ):
            return True, {}
        judged: tuple[bool, Results]
        judged = await self._judge.assess_novelty_with_rejection_sampling_async(
            exec_fname, code_embedding, parent_program, db
        )
        return judged

    def log_novelty_skip_message(self, reason: str) -> None:
        _LOG.info("the gate was not asked: %s", reason)


class _Scheduler:
    """A scheduler that tells the gate what came of each job; all else is the user's."""

    def __init__(self, gate: Gate, scheduler: Any) -> None:
        self._gate = gate
        self._scheduler = scheduler
        self._sources: dict[str, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def run(self, exec_fname_t: str, results_dir_t: str) -> tuple[Results, float]:
        source = Path(exec_fname_t).read_text(encoding="utf-8")
        results, seconds = self._scheduler.run(exec_fname_t, results_dir_t)
        self._tell(source, results)
        return results, seconds

    async def submit_async_nonblocking(self, exec_fname_t: str, results_dir_t: str) -> Any:
        self._sources[results_dir_t] = Path(exec_fname_t).read_text(encoding="utf-8")
        return await self._scheduler.submit_async_nonblocking(exec_fname_t, results_dir_t)

    async def get_job_results_async(self, job_id: Any, results_dir: str) -> Results | None:
        results: Results | None
        results = await self._scheduler.get_job_results_async(job_id, results_dir)
        await asyncio.to_thread(self._tell, self._sources[results_dir], results or {})
        return results

    def _tell(self, source: str, results: Results) -> None:
        correct = results.get("correct", {})
        score = results.get("metrics", {}).get("combined_score") or 0.0
        if not correct.get("correct"):
            self._gate.tell(source, failure=str(correct.get("error") or "not correct"))
        elif 0.0 < score < math.inf:
            self._gate.tell(source, speedup=score)
        else:
            _LOG.warning("the gate learns nothing of combined_score %r: it must be positive", score)
