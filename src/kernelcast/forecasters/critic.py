"""The critic compares a proposer's claim with the change that it made, before any measurement.

It asks no model and runs nothing. It reads the claim, and the canonical source and the compiled
evidence of candidate and anchor. If the compiler makes the same code of both, or the claimed change
is absent and no other change makes the kernel faster, the forecast is a tie with an objection for
the proposer. Otherwise the forecast knows nothing and says so.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kernelcast.canonical import canonical_source, tokens
from kernelcast.distribution import Distribution
from kernelcast.types import Evidence, Forecast, Move, Observation, Query, Spend

_TIE_WIDTH_LOG2 = 0.02
_KNOWS_NOTHING_LOG2 = 2.0
_ALIGNMENT_BYTES = 16  # compilers pad functions to this
_VECTOR_KINDS = ("vector", "ymm", "zmm", "fma")
_LESS_CODE = 0.9
_NOT_CODE = {"kernel_id", "compile_s", "emulated", "emulation_cpu_s"}  # fields of evidence

_THREADS = re.compile(
    r"\bomp\b.*\b(?:parallel|task|taskloop|teams|sections)\b"
    r"|\bstd\s*::\s*(?:thread|jthread|async)\b|\bexecution\s*::\s*par"
    r"|\bpthread_create\b|\bGOMP_"
)
# Parts of a directive that change the run but not the instructions.
_IN_DIRECTIVES = re.compile(r"\d+|dynamic|guided|auto|runtime")
_LOOPS = frozenset({"for", "while"})
# Words of a source that show a move. Where there is none, a library or the compiler may make it.
_WORDS: Mapping[Move, re.Pattern[str]] = {
    "shared_memory": re.compile(r"\b(?:__shared__|__local|local)\b"),
    "warp_shuffle": re.compile(
        r"\b(?:__shfl\w*|__reduce_\w+|sub_group_\w+|cg\s*::\s*reduce|WarpReduce|WarpScan|shfl\w*)\b"
    ),
    "tensor_cores": re.compile(r"\b(?:wmma|mma|mma_sync|wgmma|tl\s*\.\s*dot|\w*_mma\w*)\b"),
    "async_copy": re.compile(
        r"\b(?:memcpy_async|__pipeline_\w+|cp_async\w*|async_work_group_\w+)\b"
    ),
    "precision": re.compile(
        r"\b(?:double|float64|float32|float|half2?|__half2?|_Float16|float16|fp16|kHalf|bfloat16\w*"
        r"|__nv_bfloat16\w*|bf16|kBFloat16|\w*e4m3\w*|\w*e5m2\w*|tf32|allow_tf32|fp32|fp64|kFloat"
        r"|__expf|__fdividef|fast_math|use_fast_math|ffast-math|int8\w*|autocast)\b"
    ),
}
_LIBRARIES = re.compile(
    r"\b(?:asm|cublas\w*|cutlass|cute|cudnn\w*|cub|matmul|mm|bmm|addmm|[Ll]inear|einsum|[Cc]onv\w*"
    r"|scaled_dot_product_attention|cooperative_groups|pipeline)\b|\s@\s"
)
_TRITON = re.compile(r"\btl\s*\.|\btriton\b")
# A launch in CUDA or HIP, and in Triton.
_LAUNCH = re.compile(r"<<<|\b\w+\s*\[[^\[\]\n]+\]\s*\(")


@dataclass(frozen=True)
class CriticForecaster:
    """Forecasts a tie with an objection if a claim does not hold, else a guess."""

    name: str = "critic"
    concurrency: int = 0
    refreshes: bool = False

    def quote(self, queries: Sequence[Query]) -> Spend:
        """Return no cost."""
        del queries
        return {}

    def forecast(self, queries: Sequence[Query]) -> list[Forecast]:
        """Judge each candidate by its claim and its evidence."""
        return [self._forecast(query) for query in queries]

    def learn(self, observations: Sequence[Observation]) -> None:
        """Do nothing: measurements do not change a claim."""

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
    """Whether a claimed change is present; None if that is unknown."""

    present: bool | None
    words: str = ""


_UNKNOWN = _Finding(None)


@dataclass(frozen=True)
class _Pair:
    """Anchor and candidate; evidence is None unless both compiled."""

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
    if any(findings[move].present for move in findings if move in (*claimed, *_TELLING)):
        return ""
    refuted = {
        findings[move].words: None
        for move in claimed
        if move in findings and findings[move].present is False
    }
    return "; ".join(refuted)


def _compiled(query: Query) -> tuple[Evidence, Evidence] | None:
    before, after = query.anchor_evidence, query.evidence
    if before is None or after is None or before.failure or after.failure:
        return None
    return (before, after) if before.is_built and after.is_built else None


def _is_same_code(pair: _Pair) -> bool:
    """Return whether both kernels compile to the same code, as far as the evidence shows.

    Evidence holds counts of instructions, not the instructions. Sources that differ in a constant
    may have equal counts and still differ.
    """
    if pair.evidence is None:
        return False
    before, after = (
        evidence.model_dump(exclude=_NOT_CODE, exclude_defaults=True) for evidence in pair.evidence
    )
    return (
        bool(before.get("instructions"))
        and before == after
        and _constants(pair.before, pair.language) == _constants(pair.after, pair.language)
    )


def _constants(source: str, language: str) -> list[str]:
    constants = []
    for kind, text in tokens(source, language):
        if kind == "number":
            constants.append(text)
        elif kind == "directive" and not text.startswith("#include"):
            constants += _IN_DIRECTIVES.findall(text)
    return sorted(constants)


def _vectorised(pair: _Pair) -> _Finding:
    """On CPUs: check for more vector instructions, wider ones, or more fused multiply-adds.

    Fewer of them in less code is unknown: the compiler may have stopped peeling a hot loop.
    """
    if pair.evidence is None:
        return _UNKNOWN
    before, after = (evidence.instructions for evidence in pair.evidence)
    if "vector" not in before or "vector" not in after:
        return _UNKNOWN
    if any(after.get(kind, 0) > before.get(kind, 0) for kind in _VECTOR_KINDS):
        return _Finding(present=True)
    if after.get("total", 0) < _LESS_CODE * before.get("total", 0):
        return _UNKNOWN
    counts = " now and ".join(f"{mix['vector']} of {mix['total']}" for mix in (after, before))
    return _Finding(
        present=False,
        words=f"no vectorisation is in the compiled code: {counts} before are vector instructions",
    )


def _parallelised(pair: _Pair) -> _Finding:
    """On CPUs: check whether the source starts threads in more places than before."""
    if pair.language != "cpp":
        return _UNKNOWN
    before, after = (len(_THREADS.findall(text)) for text in (pair.before, pair.after))
    if after and after <= before:
        return _UNKNOWN
    return _Finding(after > before, "nothing in the source starts threads")


def _has_fewer_passes(pair: _Pair) -> _Finding:
    """Check for fewer loops or launches; more may be remainders of wider steps."""
    loops, launches = (
        tuple(count(text, pair.language) for text in (pair.before, pair.after))
        for count in (_loops, _launches)
    )
    if loops[1] < loops[0] or launches[1] < launches[0]:
        return _Finding(present=True)
    if loops[1] > loops[0] or launches[1] > launches[0]:
        return _UNKNOWN
    counts = f"{loops[1]} loops" + (f" and {launches[1]} launches" if launches[1] else "")
    return _Finding(present=False, words=f"no pass was saved: there are {counts}, as before")


def _loops(source: str, language: str) -> int:
    return sum(text in _LOOPS for _, text in tokens(source, language))


def _launches(source: str, language: str) -> int:
    return 0 if language in ("cpp", "opencl") else len(_LAUNCH.findall(source))


def _unrolled(pair: _Pair) -> _Finding:
    """Check for more code; less may be unrolled code that the compiler vectorised."""
    if pair.evidence is None:
        return _UNKNOWN
    before, after = (evidence.code_bytes for evidence in pair.evidence)
    if not before or not after or after < before - _ALIGNMENT_BYTES:
        return _UNKNOWN
    return _Finding(
        after > before + _ALIGNMENT_BYTES,
        f"nothing was unrolled: {after} bytes of code, {before} before",
    )


def _has_word(move: Move, name: str) -> Callable[[_Pair], _Finding]:
    """Check for more words that show a move; none at all refutes it, but for what is hidden.

    Triton makes shared memory, shuffles and copies by itself, and libraries and assembly may hold
    what a source does not show.
    """

    def check(pair: _Pair) -> _Finding:
        before, after = (len(_WORDS[move].findall(text)) for text in (pair.before, pair.after))
        if after > before:
            return _Finding(present=True)
        is_hidden = _LIBRARIES.search(pair.after) or (
            move != "tensor_cores" and _TRITON.search(pair.after)
        )
        if after or is_hidden or pair.language == "cpp":
            return _UNKNOWN
        return _Finding(present=False, words=f"nothing in the source makes {name}")

    return check


def _has_other_types(pair: _Pair) -> _Finding:
    """Check whether the words of types and of fast arithmetic are others than before."""
    before, after = (
        Counter(_WORDS["precision"].findall(text)) for text in (pair.before, pair.after)
    )
    if before != after:
        return _UNKNOWN  # also a new variable has a type
    if _LIBRARIES.search(pair.after):
        return _UNKNOWN
    return _Finding(present=False, words="the types and the arithmetic are those of before")


def _is_coalesced(pair: _Pair) -> _Finding:
    """Where both kernels were emulated: check for fewer sectors a request, or more bytes in use."""
    if pair.evidence is None:
        return _UNKNOWN
    before, after = (
        [(case.sectors_per_request, case.used_bytes) for case in evidence.emulated]
        for evidence in pair.evidence
    )
    if not before or len(before) != len(after):
        return _UNKNOWN
    for (sectors, used), (sectors_now, used_now) in zip(before, after, strict=True):
        if sectors is None or used is None or sectors_now is None or used_now is None:
            return _UNKNOWN
        if sectors_now < sectors or used_now > used:
            return _Finding(present=True)
    used_text = f"{before[0][1]:.0%} of the bytes that move are used"
    return _Finding(present=False, words=f"nothing is better coalesced: {used_text}, as before")


_CHECKS: Mapping[Move, Callable[[_Pair], _Finding]] = {
    "vectorise": _vectorised,
    "parallelise": _parallelised,
    "fuse": _has_fewer_passes,
    "fewer_passes": _has_fewer_passes,
    "unroll": _unrolled,
    "shared_memory": _has_word("shared_memory", "use of shared memory"),
    "warp_shuffle": _has_word("warp_shuffle", "a warp's lanes exchange values"),
    "tensor_cores": _has_word("tensor_cores", "use of tensor cores"),
    "async_copy": _has_word("async_copy", "an asynchronous copy"),
    "precision": _has_other_types,
    "coalesce": _is_coalesced,
}
# Changes that make kernels fast whether or not they were claimed.
_TELLING: tuple[Move, ...] = (
    *("vectorise", "parallelise"),
    *("shared_memory", "warp_shuffle", "tensor_cores", "async_copy"),
)
