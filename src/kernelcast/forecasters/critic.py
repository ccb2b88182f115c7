"""The critic: what a proposer says it did, held against what it did, before hardware is spent.

No model is asked and nothing is run: the words are the proposer's claim, the deed is the canonical
source and the compiled evidence of candidate and anchor. Where the compiler makes nothing of the
deed, or it lacks what was claimed and shows nothing else that makes kernels fast, the forecast is a
tie and an objection that the proposer can be told. Everywhere else it knows nothing, and says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kernelcast.canonical import canonical_source, tokens
from kernelcast.distribution import Distribution
from kernelcast.types import Evidence, Forecast, Move, Observation, Query, Spend

_TIE_WIDTH_LOG2 = 0.02
_KNOWS_NOTHING_LOG2 = 2.0
_ALIGNMENT_BYTES = 16  # to which compilers fill up functions
_VECTOR_KINDS = ("vector", "ymm", "zmm", "fma")
_LESS_CODE = 0.9

_THREADS = re.compile(
    r"\bomp\b.*\b(?:parallel|task|taskloop|teams|sections)\b"
    r"|\bstd\s*::\s*(?:thread|jthread|async)\b|\bexecution\s*::\s*par"
    r"|\bpthread_create\b|\bGOMP_"
)
# What a directive may hand to the runtime without another instruction.
_IN_DIRECTIVES = re.compile(r"\d+|dynamic|guided|auto|runtime")
_LOOPS = frozenset({"for", "while"})
# Of CUDA and HIP, of Triton: a function with its grid.
_LAUNCH = re.compile(r"<<<|\b\w+\s*\[[^\[\]\n]+\]\s*\(")


@dataclass(frozen=True)
class CriticForecaster:
    """A tie with an objection where a claim does not hold, else a guess that knows nothing."""

    name: str = "critic"
    concurrency: int = 0
    refreshes: bool = False

    def quote(self, queries: Sequence[Query]) -> Spend:
        """Reading is free."""
        del queries
        return {}

    def forecast(self, queries: Sequence[Query]) -> list[Forecast]:
        """One word on each candidate, by its claim and its evidence alone."""
        return [self._forecast(query) for query in queries]

    def learn(self, observations: Sequence[Observation]) -> None:
        """Nothing: what a claim says does not change with what is measured."""

    def _forecast(self, query: Query) -> Forecast:
        objection = _objection(query)
        width = _TIE_WIDTH_LOG2 if objection else _KNOWS_NOTHING_LOG2
        return Forecast(
            forecaster=self.name,
            anchor_id=query.anchor.id,
            anchor_log2_speedup=query.anchor_log2_speedup,
            distribution=Distribution.normal(0.0, width),
            rationale=objection,
            objection=objection,
            is_prior=not objection,
        )


@dataclass(frozen=True)
class _Finding:
    """Whether a claimed change is there: True, False or, where that cannot be told, None."""

    is_there: bool | None
    words: str = ""


_UNKNOWN = _Finding(None)


@dataclass(frozen=True)
class _Pair:
    """Anchor and candidate as the critic sees them; evidence only where both compiled."""

    language: str
    before: str
    after: str
    evidence: tuple[Evidence, Evidence] | None


def _objection(query: Query) -> str:
    anchor, candidate = query.anchor, query.candidate
    if not (anchor.source and candidate.source):
        return ""
    pair = _Pair(
        language=candidate.language,
        before=canonical_source(anchor.source, anchor.language, query.problem.entry),
        after=canonical_source(candidate.source, candidate.language, query.problem.entry),
        evidence=_compiled(query),
    )
    if candidate.parameters == anchor.parameters and _is_same_code(pair):
        return "the compiler makes the same code of it as of the kernel measured before"
    claimed = query.claim.moves
    if not any(move in _CHECKS for move in claimed):
        return ""
    findings = {move: check(pair) for move, check in _CHECKS.items()}
    if any(findings[move].is_there for move in findings if move in (*claimed, *_TELLING)):
        return ""
    refuted = {
        findings[move].words: None
        for move in claimed
        if move in findings and findings[move].is_there is False
    }
    return "; ".join(refuted)


def _compiled(query: Query) -> tuple[Evidence, Evidence] | None:
    before, after = query.anchor_evidence, query.evidence
    if before is None or after is None or before.failure or after.failure:
        return None
    return before, after


def _is_same_code(pair: _Pair) -> bool:
    """Whether the compiler made nothing of the difference, as far as it can be told.

    Evidence counts instructions and does not hold them: where the sources differ in a constant,
    the same instructions may work in other steps.
    """
    if pair.evidence is None:
        return False
    before, after = (
        each.model_dump(exclude={"kernel_id", "compile_s"}, exclude_defaults=True)
        for each in pair.evidence
    )
    return (
        bool(before.get("instructions"))
        and before == after
        and _constants(pair.before, pair.language) == _constants(pair.after, pair.language)
    )


def _constants(source: str, language: str) -> list[str]:
    found = []
    for kind, text in tokens(source, language):
        if kind == "number":
            found.append(text)
        elif kind == "directive" and not text.startswith("#include"):
            found += _IN_DIRECTIVES.findall(text)
    return sorted(found)


# ----------------------------------------------------------------------------- claim by claim


def _vectorised(pair: _Pair) -> _Finding:
    """On CPUs: whether more instructions work on vectors, on wider ones, or multiply and add.

    Fewer of them in less code may be a hot loop that the compiler no longer peels and repeats.
    """
    if pair.evidence is None:
        return _UNKNOWN
    before, after = (each.instructions for each in pair.evidence)
    if "vector" not in before or "vector" not in after:
        return _UNKNOWN
    if any(after.get(kind, 0) > before.get(kind, 0) for kind in _VECTOR_KINDS):
        return _Finding(is_there=True)
    if after.get("total", 0) < _LESS_CODE * before.get("total", 0):
        return _UNKNOWN
    counts = " now and ".join(f"{mix['vector']} of {mix['total']}" for mix in (after, before))
    return _Finding(
        is_there=False,
        words=f"no vectorisation is in the compiled code: {counts} before are vector instructions",
    )


def _parallelised(pair: _Pair) -> _Finding:
    """On CPUs: whether anything in the source starts threads, and more than before."""
    if pair.language != "cpp":
        return _UNKNOWN
    before, after = (len(_THREADS.findall(text)) for text in (pair.before, pair.after))
    if after and after <= before:
        return _UNKNOWN
    return _Finding(after > before, "nothing in the source starts threads")


def _has_fewer_passes(pair: _Pair) -> _Finding:
    """Whether there are fewer loops or launches; more may be remainders of wider steps."""
    loops, launches = (
        tuple(count(text, pair.language) for text in (pair.before, pair.after))
        for count in (_loops, _launches)
    )
    if loops[1] < loops[0] or launches[1] < launches[0]:
        return _Finding(is_there=True)
    if loops[1] > loops[0] or launches[1] > launches[0]:
        return _UNKNOWN
    told = f"{loops[1]} loops" + (f" and {launches[1]} launches" if launches[1] else "")
    return _Finding(is_there=False, words=f"no pass was saved: there are {told}, as before")


def _loops(source: str, language: str) -> int:
    return sum(text in _LOOPS for _, text in tokens(source, language))


def _launches(source: str, language: str) -> int:
    return 0 if language in ("cpp", "opencl") else len(_LAUNCH.findall(source))


def _unrolled(pair: _Pair) -> _Finding:
    """Whether there is more code; less may be unrolled code that the compiler made vectors of."""
    if pair.evidence is None:
        return _UNKNOWN
    before, after = (each.code_bytes for each in pair.evidence)
    if not before or not after or after < before - _ALIGNMENT_BYTES:
        return _UNKNOWN
    return _Finding(
        after > before + _ALIGNMENT_BYTES,
        f"nothing was unrolled: {after} bytes of code, {before} before",
    )


_CHECKS: Mapping[Move, Callable[[_Pair], _Finding]] = {
    "vectorise": _vectorised,
    "parallelise": _parallelised,
    "fuse": _has_fewer_passes,
    "fewer_passes": _has_fewer_passes,
    "unroll": _unrolled,
}
# What makes kernels fast whether or not it was claimed.
_TELLING: tuple[Move, ...] = ("vectorise", "parallelise")
