"""Ask a forecaster, but only what is not certain.

Every caller asks through `consult`, so that no forecast contradicts what is known: a kernel that
does not compile or is wrong when it is emulated fails, a kernel that compiles has no compile error,
and a kernel is as fast as itself. A certain outcome is not asked for, which saves its price.

Nor does a forecast contradict another one. If neither kernel of a pair was measured, a forecaster
is asked in both directions, and the forecast is the mean of its answer and of the mirror image of
the other: the forecast of the swapped pair is the mirror image.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from kernelcast.canonical import canonical_source
from kernelcast.distribution import Distribution
from kernelcast.errors import SetupError
from kernelcast.protocols import Forecaster
from kernelcast.types import SMALLEST_CLAIM_LOG2, Forecast, Query, Usage

# A kernel that does not run has no speed, but every forecast has a density.
_ANY_SPEED_STD_LOG2 = 1.0
_SAME = "nothing has changed but names, comments, layout or code that is never called"


@cache
def tie() -> Distribution:
    """Return the forecast of a kernel against itself."""
    # The whole band lies below the smallest speedup that may be claimed.
    return Distribution.normal(0.0, SMALLEST_CLAIM_LOG2 / 5.0)


def consult(forecaster: Forecaster, queries: Sequence[Query]) -> list[Forecast]:
    """Return one forecast per query, in order, consistent with what is known of the kernels."""
    known = [_certain(query, forecaster.name) for query in queries]
    uncertain = [query for query, certain in zip(queries, known, strict=True) if certain is None]
    answers = iter(_both_ways(forecaster, uncertain))
    return [
        next(answers).conditioned_on(query.evidence) if certain is None else certain
        for query, certain in zip(queries, known, strict=True)
    ]


def _both_ways(forecaster: Forecaster, queries: Sequence[Query]) -> list[Forecast]:
    """Ask about each pair, in both directions if neither kernel was measured."""
    answers = _ask(forecaster, queries)
    places = [at for at, query in enumerate(queries) if not query.anchor_measured]
    opposites = _ask(forecaster, [queries[at].swapped() for at in places])
    # Each pair of answers is dropped as soon as it is mixed: thousands of densities are large.
    while places:
        at = places.pop()
        answers[at] = _coherent(answers[at], opposites.pop())
    return answers


def _ask(forecaster: Forecaster, queries: Sequence[Query]) -> list[Forecast]:
    # A forecaster that asks others must not turn the pair around again.
    asked = [
        query if query.anchor_measured else query.model_copy(update={"anchor_measured": True})
        for query in queries
    ]
    answers = [*forecaster.forecast(asked)] if asked else []
    if len(answers) != len(asked):
        raise SetupError(
            f"the forecaster {forecaster.name!r} answered {len(answers)} of {len(asked)} queries; "
            "its forecast() must return one forecast per query, in order"
        )
    return answers


def _coherent(answer: Forecast, opposite: Forecast) -> Forecast:
    """Return the answer to a question about a pair, given the answer to the swapped one."""
    # An answer that could not be read counts only if both could not.
    weights = [0.0 if one.unparsed else 1.0 for one in (answer, opposite)]
    density = Distribution.mixture(
        [answer.distribution, opposite.distribution.mirrored()], weights if any(weights) else (1, 1)
    )
    return answer.model_copy(
        update={
            "distribution": density,
            "unparsed": answer.unparsed and opposite.unparsed,
            "is_prior": answer.is_prior or opposite.is_prior,
            "usage": Usage.total([answer.usage, opposite.usage]),
        }
    )


def _certain(query: Query, forecaster: str) -> Forecast | None:
    """Return the forecast for a kernel that evidence refutes or that is the anchor itself.

    An anchor is known to run: it was measured, or it is what a user replaces.
    """
    evidence = query.evidence
    failure = evidence.failure if evidence is not None else None
    if failure is None and not _is_same(query):
        return None
    return Forecast(
        forecaster=forecaster,
        anchor_id=query.anchor.id,
        anchor_log2_speedup=query.anchor_log2_speedup,
        distribution=Distribution.normal(0.0, _ANY_SPEED_STD_LOG2) if failure else tie(),
        failure={failure.kind: 1.0} if failure else {},
        rationale=f"it {evidence.verdict}: {failure.headline}" if evidence and failure else _SAME,
        objection="" if failure else _SAME,
    )


def _is_same(query: Query) -> bool:
    """Whether candidate and anchor have the same canonical source and parameters."""
    candidate, anchor = query.candidate, query.anchor
    if candidate.id == anchor.id:
        return True
    if (candidate.language, candidate.parameters) != (anchor.language, anchor.parameters):
        return False
    mine, other = (
        canonical_source(kernel.source, kernel.language, query.problem.entry)
        for kernel in (candidate, anchor)
    )
    return mine == other and bool(mine.strip())
