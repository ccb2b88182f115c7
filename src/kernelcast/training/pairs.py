"""Rows as questions to a language model, byte for byte as the forecaster asks them.

A trial becomes a prompt by the same `Prompts` as in a run, with the same history of measurements.
Rows are replayed by `dataset.recorded_trials` alone, so training, evaluation and runs agree.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from zlib import crc32

import numpy as np

from kernelcast.canonical import canonical_tokens
from kernelcast.dataset import Anchor, Order, Rows, Trial, recorded_trials
from kernelcast.errors import SetupError
from kernelcast.forecasters._prompts import REMEMBERED, Prompts
from kernelcast.llm import Message
from kernelcast.outcomes import CAUSES, Outcomes
from kernelcast.types import Observation

_NEAR = 0.95  # share of pairs of neighbouring tokens that two near-duplicates have in common
_KEYS = 8  # of a text, by which near-duplicates are looked for
_HEDGES = (0.25, 0.6, 1.2, 2.5)  # in bins: how wide an answer in digits that only shows the form is


@dataclass(frozen=True)
class Question:
    """A prompt as the forecaster sends it, the outcome, and what a trained model should answer."""

    messages: tuple[Message, ...]
    outcome: int
    answer: str
    problem: str = ""
    device: str = ""
    row_id: str = ""


def questions(
    rows: Rows,
    prompts: Prompts,
    *,
    anchor: Anchor = "best",
    order: Order = "recorded",
    limit: int | None = None,
    even: float = 0.5,
    seed: int = 0,
) -> list[Question]:
    """The questions that the forecaster would have asked along the recorded searches.

    Args:
        rows: Measured kernels.
        prompts: How they are asked; `pairwise` asks for nothing that rows hold.
        anchor: As in `recorded_trials`.
        order: As in `recorded_trials`.
        limit: Number of questions; all by default. They are spread evenly over problems and
            devices.
        even: The share of them that is also spread evenly over the outcomes. A forecaster is then
            calibrated for this mix, and not for what is usual of its problems.
        seed: Seed of the draw.

    Raises:
        SetupError: No row can be asked about.
    """
    if prompts.ask == "pairwise":
        raise SetupError("a model is trained on outcomes: ask in reasoned, direct or digits")
    asked = [
        (trial, measured, outcome)
        for trial, measured in _trials(rows, anchor, order, seed)
        if (outcome := _outcome(trial, prompts.outcomes)) is not None
    ]
    if not asked:
        raise SetupError(
            "no row has a kernel's text and an outcome: see `kernelcast data describe`"
        )
    rng = np.random.default_rng(seed)
    chosen = _balanced(asked, limit, even, rng)
    return [_question(*asked[at], prompts, rng) for at in chosen]


def without_near_duplicates(train: Rows, test: Rows) -> Rows:
    """Leave out of `train` what is nearly a kernel of `test`, under another problem or name.

    Two texts are near-duplicates if 95% of the pairs of neighbouring tokens in their canonical
    sources are the same.
    """
    import pyarrow as pa

    columns = (train[name].to_pylist() for name in ("candidate_id", "candidate_source", "language"))
    texts = {key: (source, language) for key, source, language in zip(*columns, strict=True)}
    columns = (test[name].to_pylist() for name in ("candidate_source", "language"))
    kept_apart = {(source, language) for source, language in zip(*columns, strict=True) if source}
    buckets: defaultdict[tuple[int, int], list[frozenset[int]]] = defaultdict(list)
    for source, language in kept_apart:
        members = _neighbours(source, language)
        for key in _keys(members):
            buckets[key].append(members)
    near = {
        kernel
        for kernel, (source, language) in texts.items()
        if source and _is_near(_neighbours(source, language), buckets)
    }
    kept = [kernel not in near for kernel in train["candidate_id"].to_pylist()]
    return train.filter(pa.array(kept))


def _trials(
    rows: Rows, anchor: Anchor, order: Order, seed: int
) -> Iterator[tuple[Trial, tuple[Observation, ...]]]:
    """Each trial with what its search had measured, as the forecaster remembers it."""
    for search in recorded_trials(rows, anchor, order=order, seed=seed):
        measured: tuple[Observation, ...] = ()
        for trial in search.trials:
            measured = (measured + trial.news)[-REMEMBERED:]
            query = trial.query
            if query.anchor.source or query.anchor.parameters is not None:
                yield trial, measured


def _outcome(trial: Trial, outcomes: Outcomes) -> int | None:
    failure = trial.observation.measurement.failure if trial.observation else None
    return outcomes.index(failure.kind if failure else None, trial.log2_speedup)


def _balanced(
    asked: Sequence[tuple[Trial, tuple[Observation, ...], int]],
    limit: int | None,
    even: float,
    rng: np.random.Generator,
) -> list[int]:
    """Positions of the questions that are asked, in a random order."""
    count = len(asked)
    if limit is None or limit >= count:
        return [int(at) for at in rng.permutation(count)]
    places = [(trial.query.problem.name, trial.query.device.name) for trial, _, _ in asked]
    outcomes = [(*place, asked[at][2]) for at, place in enumerate(places)]
    chosen: list[int] = []
    left = np.ones(count, dtype=bool)
    for number, keys in ((round(limit * even), outcomes), (limit, places)):
        sizes = Counter(keys)
        weight = np.array([1.0 / sizes[key] for key in keys]) * left
        draw = rng.choice(count, number - len(chosen), replace=False, p=weight / weight.sum())
        chosen += [int(at) for at in draw]
        left[draw] = False
    return [chosen[at] for at in rng.permutation(len(chosen))]


def _question(
    trial: Trial,
    measured: Sequence[Observation],
    outcome: int,
    prompts: Prompts,
    rng: np.random.Generator,
) -> Question:
    (messages,) = prompts.of(trial.query, measured)
    outcomes = prompts.outcomes
    answer = outcomes.letters[outcome]
    if prompts.ask == "digits":
        answer = outcomes.digits(_hedged(outcome, outcomes, rng), outcome)
    return Question(
        messages=tuple(messages),
        outcome=outcome,
        answer=answer,
        problem=trial.query.problem.name,
        device=trial.query.device.name,
        row_id=trial.row_id,
    )


def _hedged(outcome: int, outcomes: Outcomes, rng: np.random.Generator) -> list[float]:
    """Chances about what happened, as wide as it comes: an answer that shows the form alone."""
    chances = np.zeros(outcomes.count)
    if outcome < len(CAUSES):
        chances[outcome] = 1.0
    else:
        away = np.abs(np.arange(len(CAUSES), outcomes.count) - outcome)
        chances[len(CAUSES) :] = np.exp(-away / rng.choice(_HEDGES))
    return chances.tolist()


# --------------------------------------------------------------------------- near-duplicates


def _neighbours(source: str, language: str) -> frozenset[int]:
    """A number for each pair of neighbouring tokens in the canonical source."""
    tokens = [token.text for token in canonical_tokens(source, language)]
    return frozenset(crc32(f"{one}\0{other}".encode()) for one, other in pairwise(tokens))


def _keys(members: frozenset[int]) -> Iterator[tuple[int, int]]:
    """Keys of which two near-duplicates almost surely share one: the least of several hashes."""
    numbers = np.fromiter(members, dtype=np.uint64, count=len(members))
    for number in range(_KEYS if members else 0):
        mixed = (numbers + np.uint64(number)) * np.uint64(0x9E3779B97F4A7C15)
        yield number, int((mixed ^ (mixed >> np.uint64(29))).min())


def _is_near(members: frozenset[int], buckets: dict[tuple[int, int], list[frozenset[int]]]) -> bool:
    return any(
        len(members & other) >= _NEAR * len(members | other) for other in _met(members, buckets)
    )


def _met(
    members: frozenset[int], buckets: dict[tuple[int, int], list[frozenset[int]]]
) -> Iterable[frozenset[int]]:
    """What shares a key, each once."""
    return {other for key in _keys(members) for other in buckets.get(key, ())}
