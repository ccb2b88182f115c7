"""Questions and rewards for other trainers: verl's rows and reward function, verifiers' taskset.

Neither package is needed to import this module: each calls it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

from kernelcast.dataset import Rows, read_rows
from kernelcast.errors import SetupError, import_extra
from kernelcast.forecasters._prompts import Prompts
from kernelcast.training.pairs import questions
from kernelcast.training.rewards import Asked, Reward


def write_verl_rows(
    path: str | Path,
    rows: Rows,
    *,
    ask: Asked = "digits",
    bins: str = "default",
    limit: int | None = None,
    seed: int = 0,
) -> int:
    """Write the questions about rows as a Parquet file in verl's schema.

    Args:
        path: File to write.
        rows: Measured kernels, as `kernelcast.dataset.read_rows` reads them.
        ask: How the model answers: in digits, or in reasoned points.
        bins: Name of the table of bins.
        limit: Number of questions; all by default.
        seed: Seed of the draw.

    Returns:
        The number of questions.

    Raises:
        SetupError: No row can be asked about, or a name is not known.
    """
    pa, parquet = import_extra("pyarrow", "data"), import_extra("pyarrow.parquet", "data")
    asked = [
        {
            "data_source": "kernelcast",
            "prompt": [dict(message) for message in question.messages],
            "ability": "forecast",
            "reward_model": {"style": "rule", "ground_truth": question.outcome},
            "extra_info": {
                "index": index,
                "ask": ask,
                "bins": bins,
                "problem": question.problem,
                "device": question.device,
                "row_id": question.row_id,
            },
        }
        for index, question in enumerate(
            questions(rows, _prompts(ask, bins), limit=limit, seed=seed)
        )
    ]
    parquet.write_table(pa.Table.from_pylist(asked), path)
    return len(asked)


def compute_score(
    data_source: str,  # noqa: ARG001
    solution_str: str,
    ground_truth: int | str,
    extra_info: Mapping[str, Any] | None = None,
    *,
    reward: str = "crps",
    ask: str = "digits",
    bins: str = "default",
) -> float:
    """verl's reward function: what an answer earns.

    Args:
        data_source: Not used.
        solution_str: The answer.
        ground_truth: Number of the outcome.
        extra_info: A row of `write_verl_rows` says here how it was asked, which the answer is then
            read by, whatever `ask` and `bins` are.
        reward: One of `rewards.REWARDS`.
        ask: How the model answers, where the row does not say it.
        bins: Name of the table of bins, where the row does not say it.

    Raises:
        SetupError: A name is not known.
    """
    told = {"ask": ask, "bins": bins, **(extra_info or {})}
    return _reward(reward, told["ask"], told["bins"])(solution_str, int(ground_truth))


def verifiers_taskset() -> type[Any]:
    """Return the taskset of verifiers (0.4, its API `verifiers.v1`), as a class.

    verifiers finds a taskset in a top-level module of that name, which lists it in `__all__`. Its
    options are `rows` (a Parquet file), `ask`, `reward`, `bins`, `limit` and `seed`.

    Example:
        >>> Forecasts = verifiers_taskset()  # doctest: +SKIP
        >>> __all__ = ["Forecasts"]  # doctest: +SKIP
    """
    import verifiers.v1 as vf

    class ForecastsConfig(vf.TasksetConfig):  # type: ignore[misc]
        rows: Path = Path("rows.parquet")
        ask: Asked = "digits"
        reward: str = "crps"
        bins: str = "default"
        limit: int | None = None
        seed: int = 0

    class ForecastData(vf.TaskData):  # type: ignore[misc]
        outcome: int
        ask: Asked
        reward: str
        bins: str

    class ForecastTask(vf.Task[ForecastData, vf.State, vf.TaskConfig]):  # type: ignore[misc]
        @vf.reward  # type: ignore[untyped-decorator]
        async def forecast(self, trace: Any) -> float:
            data = self.data
            return _reward(data.reward, data.ask, data.bins)(trace.last_reply, data.outcome)

    class Forecasts(vf.Taskset[ForecastTask, ForecastsConfig]):  # type: ignore[misc]
        def load(self) -> Iterator[Any]:
            config = self.config
            _reward(config.reward, config.ask, config.bins)  # a wrong name ends it before a task
            prompts = _prompts(config.ask, config.bins)
            rows = read_rows(config.rows)
            for question in questions(rows, prompts, limit=config.limit, seed=config.seed):
                system, user = question.messages
                data = ForecastData(
                    id=question.row_id,
                    name=f"{question.problem} on {question.device}",
                    system_prompt=system["content"],
                    prompt=user["content"],
                    outcome=question.outcome,
                    **{name: getattr(config, name) for name in ("ask", "reward", "bins")},
                )
                yield ForecastTask(data, config.task)

    return Forecasts


def _prompts(ask: str, bins: str) -> Prompts:
    if ask not in get_args(Asked):
        raise SetupError(f"ask is one of {', '.join(get_args(Asked))} here, not {ask!r}")
    return Prompts(ask, bins)  # type: ignore[arg-type]


@lru_cache
def _reward(name: str, ask: str, bins: str) -> Reward:
    return Reward.named(name, outcomes=_prompts(ask, bins).outcomes, asked=ask)
