"""Kernels and searches as numbers.

Belongs here: what a forecaster may know before a kernel is measured, and nothing learnt from data.
`digest` reads any source once; `SourceFeatures` turns a candidate, its anchor, the problem's
reference, the device and what the search has measured so far (`SearchHistory`) into one row of a
matrix. A row never depends on what is measured later.

Sources are compared by hashed counts of their tokens and token pairs, so that a thousand
candidates are held against a hundred measured kernels in one array operation.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kernelcast.canonical import Token, tokens
from kernelcast.types import Device, Evidence, FailureKind, Kernel, Observation, Query, Timing

Floats = NDArray[np.float64]
Counts = NDArray[np.float32]

# ---------------------------------------------------------------------------- one kernel's source

_WORD_SLOTS, _PAIR_SLOTS = 512, 1024
_COUNTED = ("+", "-", "*", "/", "%", "@", "**", "//", "=", "==", "<", "[", "(", ",", ".", ":", "&")
_SETTINGS = ("num_warps", "num_stages", "waves_per_eu", "BLOCK", "BLOCK_SIZE", "cache_size_limit")
_EMBEDDED = ("__global__", "#include", "torch::")
_LANGUAGES = ("triton", "python", "cuda", "hip", "opencl", "cpp")
_SCALARS = (
    *(f"op {each}" for each in _COUNTED),
    *(f"set {each}" for each in _SETTINGS),
    *(f"is {each}" for each in _LANGUAGES),
    "tokens",
    "distinct words",
    "calls",
    "numbers",
    "largest number",
    "mean size",
    "number product",
    "blocks product",
    "device functions",
)


@dataclass(frozen=True, eq=False)
class Digest:
    """What is kept of one source: counts, sizes, and a mark that is equal up to constants."""

    words: Counter[str]
    scalars: Floats
    word_counts: Counts
    pair_counts: Counts
    skeleton: int

    @property
    def empty(self) -> bool:
        """Whether there is no text: it was not published, or there is none."""
        return not self.words


@lru_cache(maxsize=8192)
def digest(source: str, language: str) -> Digest:
    """Read a source once; comments and layout do not count."""
    lexed = _with_embedded(tokens(source, language)) if source.strip() else ()
    texts = [token.text for token in lexed]
    words = Counter(token.text for token in lexed if token.kind in ("identifier", "directive"))
    marks = Counter(token.text for token in lexed if token.kind == "punctuator")
    values = np.array([_value(token.text) for token in lexed if token.kind == "number"])
    values = values[values > 0.0]
    settings = {
        name.text: _value(number.text)
        for name, mark, number in zip(lexed, lexed[1:], lexed[2:], strict=False)
        if mark.text == "=" and name.kind == "identifier" and number.kind == "number"
    }
    blocks = [value for name, value in settings.items() if "block" in name.lower() and value > 0.0]
    sizes = values[(values >= 16.0) & (values == np.floor(values))]
    calls = sum(
        1 for name, mark in pairwise(lexed) if mark.text == "(" and name.kind == "identifier"
    )
    scalars = np.array(
        [
            *(math.log2(1 + marks[each]) for each in _COUNTED),
            *(math.log2(max(settings.get(each, 0.5), 0.25)) for each in _SETTINGS),
            *(float(language == each) for each in _LANGUAGES),
            math.log2(1 + len(lexed)),
            math.log2(1 + len(words)),
            math.log2(1 + calls),
            math.log2(1 + values.size),
            math.log2(values.max()) if values.size else -20.0,
            float(np.log2(sizes).mean()) if sizes.size else 0.0,
            float(np.log2(values).sum()),
            float(np.log2(blocks).sum()),
            math.log2(1 + words["jit"] + words["__global__"]),
        ]
    )
    blank = " ".join("0" if token.kind == "number" else token.text for token in lexed)
    pairs = Counter(f"{a} {b}" for a, b in pairwise(texts))
    return Digest(
        words,
        scalars if lexed else np.full(len(_SCALARS), np.nan),
        _hashed(Counter(texts), _WORD_SLOTS),
        _hashed(pairs, _PAIR_SLOTS),
        zlib.crc32(blank.encode()) if lexed else -1,
    )


def _with_embedded(lexed: tuple[Token, ...]) -> tuple[Token, ...]:
    """Tokens, with those of C++ sources that lie in a Python module's strings in their place."""
    found: list[Token] = []
    for token in lexed:
        if token.kind == "string" and any(mark in token.text for mark in _EMBEDDED):
            found += tokens(token.text.strip("rRuU\"'").replace("\\n", "\n"), "cuda")
        else:
            found.append(token)
    return tuple(found)


def _value(text: str) -> float:
    try:
        plain = text.lower().replace("_", "").replace("'", "")
        return float(int(plain, 0)) if plain.startswith("0x") else float(plain.rstrip("ful"))
    except ValueError:
        return 0.0


def _hashed(counted: Counter[str], slots: int) -> Counts:
    found = np.zeros(slots, dtype=np.float32)
    for text, count in counted.items():
        found[zlib.crc32(text.encode()) % slots] += count
    return found


# --------------------------------------------------------------------------- what a search has seen

_TIE_LOG2 = 0.03
_REMEMBERED = 128  # kernels a candidate is compared with; a longer search forgets the oldest


@dataclass(frozen=True, eq=False)
class _Seen:
    """One measured kernel: `gain` is against the best before it, nan where it failed."""

    kernel: Kernel
    digest: Digest
    log2_speedup: float
    gain: float
    crashed: bool
    repeated: bool
    edit: Counts | None
    timing: Timing | None


class SearchHistory:
    """The measured kernels of one search, in order; grows by `add`, which costs microseconds."""

    def __init__(self) -> None:
        self.seen: list[_Seen] = []
        self.best: _Seen | None = None
        self.last_gain_at = 0
        self.gains = 0
        self.first_of: dict[str, _Seen] = {}

    def add(self, observation: Observation) -> None:
        """Take in one measurement."""
        kernel, measurement = observation.kernel, observation.measurement
        log2_speedup = measurement.log2_speedup
        value = math.nan if log2_speedup is None else log2_speedup
        read = digest(kernel.source, kernel.language)
        known = self.best
        compared = known is not None and not known.digest.empty and not read.empty
        entry = _Seen(
            kernel,
            read,
            value,
            value - known.log2_speedup if known else 0.0 * value,
            measurement.failure is not None
            and measurement.failure.kind is not FailureKind.WRONG_RESULT,
            kernel.id in self.first_of,
            read.pair_counts - known.digest.pair_counts if known and compared else None,
            measurement.timing,
        )
        if not math.isnan(value) and (known is None or value > known.log2_speedup):
            if known is not None and value > known.log2_speedup + _TIE_LOG2:
                self.last_gain_at, self.gains = len(self.seen), self.gains + 1
            self.best = entry
        self.seen.append(entry)
        self.first_of.setdefault(kernel.id, entry)


# ------------------------------------------------------------------------------------- the matrix

_DIFF = ("likeness", "added", "removed", "new words", "lost words", "same skeleton", "unlike known")
_HISTORY = (
    "measured",
    "distinct",
    "repeats",
    "failures",
    "failure rate",
    "failure streak",
    "crash rate",
    "since gain",
    "gains",
    "gain rate",
    "anchor log2 speedup",
    "anchor log2 us",
    "reference log2 us",
    *(f"{what} {ago}" for ago in range(3) for what in ("gain ago", "failed ago", "behind ago")),
    "gain mean",
    "gain std",
    "gain size",
    "gain most",
    "gain least",
    "tie rate",
    "late tie rate",
    "late gain",
    "anchor repeats",
    "last is anchor",
    "last is repeat",
)
_CASES = (
    "cases",
    "case least us",
    "case middle us",
    "case most us",
    "reference least us",
    "reference most us",
    "case speedup least",
    "case speedup most",
    "case speedup std",
    "case speedup slope",
    "small cases",
    "calls for time",
)
_NEIGHBOURS = (
    *(f"neighbour {n} {w}" for n in range(2) for w in ("likeness", "behind", "failed", "age")),
    *(f"{what} near {reach}" for reach in (4, 20) for what in ("failure", "behind", "weight")),
    "likeness mean",
    "above 95",
    "above 99",
    "unseen words",
    "words of failures",
    "edit likeness",
    "edit gain",
    "edit failed",
    "edit opposite",
)
_SURROUNDINGS = (
    "device log2 flops",
    "device log2 bandwidth",
    "device cores",
    "evidence failed",
    "evidence compile s",
    "evidence code bytes",
    "evidence instructions",
    "evidence log2 roofline",
)


class SourceFeatures:
    """Rows of a fixed layout over a vocabulary; static parts are kept per kernel id."""

    def __init__(self, vocabulary: Sequence[str]) -> None:
        self.vocabulary = tuple(vocabulary)
        self.static_columns = (*_SCALARS, *(f"word {each}" for each in self.vocabulary))
        self.columns = (
            *self.static_columns,
            *(f"reference {each}" for each in self.static_columns),
            *(f"anchor change {each}" for each in self.static_columns),
            *(
                f"{base} {each}"
                for base in ("reference", "anchor", "last", "near")
                for each in _DIFF
            ),
            *_HISTORY,
            *_CASES,
            *_NEIGHBOURS,
            *_SURROUNDINGS,
        )
        self._static: dict[tuple[str, str], Floats] = {}

    def static(self, kernel: Kernel) -> Floats:
        """What the source alone says; nan throughout where there is no text."""
        key = (kernel.id, kernel.language)
        if key not in self._static:
            if len(self._static) >= 8192:
                self._static.clear()
            self._static[key] = self._read(digest(kernel.source, kernel.language))
        return self._static[key]

    def _read(self, read: Digest) -> Floats:
        counts = np.array([read.words[word] for word in self.vocabulary], dtype=np.float64)
        counts = np.full(counts.size, np.nan) if read.empty else np.log2(1.0 + counts)
        return np.concatenate((read.scalars, counts))

    def matrix(self, queries: Sequence[Query], history: SearchHistory) -> Floats:
        """One row a query, in the order of `columns`; nan where a thing is not known."""
        groups: dict[tuple[str, float], list[int]] = {}
        for index, query in enumerate(queries):
            groups.setdefault((query.anchor.id, query.anchor_log2_speedup), []).append(index)
        rows = np.empty((len(queries), len(self.columns)))
        for members in groups.values():
            rows[members] = self._against_one_anchor([queries[i] for i in members], history)
        return rows

    def _against_one_anchor(self, queries: list[Query], history: SearchHistory) -> Floats:
        first = queries[0]
        digests = [digest(each.candidate.source, each.candidate.language) for each in queries]
        words = np.stack([each.word_counts for each in digests])
        pairs = np.stack([each.pair_counts for each in digests])
        skeletons = np.array([each.skeleton for each in digests])
        static = np.stack([self.static(each.candidate) for each in queries])
        told = ~np.isnan(static[:, :1])
        pair_mass = pairs.sum(axis=1)

        def difference(bases: Sequence[Digest]) -> Floats:
            """`_DIFF` of each candidate against its base (one base serves all)."""
            base_words = np.stack([each.word_counts for each in bases])
            base_pairs = np.stack([each.pair_counts for each in bases])
            more = words - base_words
            new = np.sum((words > 0) & (base_words == 0), axis=1)
            lost = np.sum((words == 0) & (base_words > 0), axis=1)
            apart = np.abs(pairs - base_pairs).sum(axis=1)
            together = pair_mass + base_pairs.sum(axis=1)
            found = np.column_stack(
                (
                    _likeness(apart, together),
                    np.log2(1.0 + np.maximum(more, 0.0).sum(axis=1)),
                    np.log2(1.0 + np.maximum(-more, 0.0).sum(axis=1)),
                    np.log2(1.0 + new),
                    np.log2(1.0 + lost),
                    skeletons == np.array([each.skeleton for each in bases]),
                    np.zeros(len(queries)),
                )
            )
            unknown = np.array([each.empty for each in bases])[:, None] | ~told
            found = np.where(unknown, np.nan, found)
            found[:, -1] = unknown[:, 0]
            return found

        reference = digest(first.problem.oracle_source, "python")
        anchor = digest(first.anchor.source, first.anchor.language)
        remembered = history.seen[-_REMEMBERED:]
        neighbours, nearest = self._neighbours(
            digests, words, pairs, told[:, 0], anchor, remembered, first.anchor_log2_speedup
        )
        last = remembered[-1].digest if remembered else _NOTHING
        shared = np.concatenate((self._read(reference), _history(history, first)))
        cases = _cases(history, first)
        calls = static[:, _SCALARS.index("calls")]
        return np.column_stack(
            (
                static,
                np.broadcast_to(shared[: static.shape[1]], static.shape),
                static - self._read(anchor),
                difference([reference]),
                difference([anchor]),
                difference([last]),
                difference(nearest),
                np.broadcast_to(shared[static.shape[1] :], (len(queries), len(_HISTORY))),
                np.broadcast_to(cases, (len(queries), len(cases))),
                calls - cases[1],
                neighbours,
                np.stack([_surroundings(each.device, each.evidence) for each in queries]),
            )
        )

    @staticmethod
    def _neighbours(
        digests: Sequence[Digest],
        words: Counts,
        pairs: Counts,
        told: NDArray[np.bool_],
        anchor: Digest,
        remembered: Sequence[_Seen],
        anchor_log2: float,
    ) -> tuple[Floats, list[Digest]]:
        """`_NEIGHBOURS` of each candidate, and the measured kernel most like it."""
        rows = np.full((len(digests), len(_NEIGHBOURS)), np.nan)
        known = [each for each in remembered if not each.digest.empty]
        if not known or not told.any():
            return rows, [_NOTHING] * len(digests)
        known_pairs = np.stack([each.digest.pair_counts for each in known])
        likeness = likenesses(pairs, known_pairs)
        behind = np.array([each.log2_speedup for each in known]) - anchor_log2
        failed = np.isnan(behind)
        order = np.argsort(-likeness, axis=1, kind="stable")
        columns: list[Floats] = []
        for place in range(2):
            if place < len(known):
                at = order[:, place]
                columns += [
                    np.take_along_axis(likeness, at[:, None], 1)[:, 0],
                    behind[at],
                    failed[at].astype(np.float64),
                    (len(known) - at).astype(np.float64),
                ]
            else:
                columns += [np.full(len(digests), np.nan)] * 4
        for reach in (4.0, 20.0):
            weight = np.exp(reach * (likeness - likeness.max(axis=1, keepdims=True)))
            running = weight[:, ~failed]
            total = running.sum(axis=1)
            with np.errstate(invalid="ignore", divide="ignore"):
                near = (running @ np.clip(behind[~failed], -3.0, 0.5)) / total
            columns += [weight[:, failed].sum(axis=1) / weight.sum(axis=1), near, total]
        known_words = np.stack([each.digest.word_counts > 0 for each in known])
        present = words > 0
        ran = known_words[~failed].any(axis=0)
        columns += [
            likeness.mean(axis=1),
            np.sum(likeness > 0.95, axis=1),
            np.sum(likeness > 0.99, axis=1),
            np.log2(1.0 + np.sum(present & ~known_words.any(axis=0), axis=1)),
            np.log2(1.0 + np.sum(present & known_words[failed].any(axis=0) & ~ran, axis=1)),
            *_edits(pairs, anchor, known),
        ]
        rows = np.column_stack(columns)
        rows[~told] = np.nan
        return rows, [known[i].digest for i in order[:, 0]]


_NOTHING = digest("", "python")


def likenesses(left: Counts, right: Counts) -> Floats:
    """Shared over all token pairs, of each of `left` with each of `right`; 1 is the same."""
    # Slow to import, and needed only where sources are compared.
    from scipy.spatial.distance import cdist

    apart = cdist(left, right, "cityblock")
    return _likeness(apart, left.sum(axis=1)[:, None] + right.sum(axis=1))


def _likeness(apart: NDArray[np.floating], together: NDArray[np.floating]) -> Floats:
    return np.asarray((together - apart) / np.maximum(together + apart, 1.0), dtype=np.float64)


def _edits(pairs: Counts, anchor: Digest, known: Sequence[_Seen]) -> list[Floats]:
    """The most alike of the edits made before, by its direction, and what came of it."""
    unknown = np.full(len(pairs), np.nan)
    tried = [each for each in known if each.edit is not None]
    if anchor.empty or not tried:
        return [unknown] * 4
    edits = np.stack([each.edit for each in tried if each.edit is not None])
    change = pairs - anchor.pair_counts
    size = np.linalg.norm(change, axis=1)[:, None] * np.linalg.norm(edits, axis=1)
    cosine = (change @ edits.T) / np.maximum(size, 1e-9)
    at = cosine.argmax(axis=1)
    gain = np.array([each.gain for each in tried])
    return [
        np.asarray(cosine.max(axis=1), dtype=np.float64),
        gain[at],
        np.isnan(gain)[at].astype(np.float64),
        np.asarray(cosine.min(axis=1), dtype=np.float64),
    ]


def _history(history: SearchHistory, query: Query) -> Floats:
    """`_HISTORY` as of now."""
    seen = history.seen
    count = len(seen)
    failed = [math.isnan(each.log2_speedup) for each in seen]
    streak = next((i for i, fails in enumerate(reversed(failed)) if not fails), count)
    gains = np.array([each.gain for each in seen if not math.isnan(each.gain)])
    fresh = np.array([x.gain for x in seen if not (math.isnan(x.gain) or x.repeated)])
    distinct = len(history.first_of)
    anchor_log2, runtime_s = query.anchor_log2_speedup, query.anchor_runtime_s
    anchor_us = math.log2(runtime_s * 1e6) if runtime_s > 0.0 else math.nan
    recent: list[float] = []
    for ago in range(1, 4):
        if ago <= count:
            each = seen[-ago]
            recent += [each.gain, float(failed[-ago]), each.log2_speedup - anchor_log2]
        else:
            recent += [math.nan] * 3
    return np.array(
        [
            count,
            distinct,
            count - distinct,
            sum(failed),
            (sum(failed) + 0.5) / (count + 3.0),
            streak,
            (sum(each.crashed for each in seen) + 0.2) / (count + 3.0),
            count - history.last_gain_at,
            history.gains,
            history.gains / max(count, 1),
            anchor_log2,
            anchor_us,
            anchor_us + anchor_log2,
            *recent,
            *_spread(gains),
            float(np.mean(np.abs(fresh) < _TIE_LOG2)) if fresh.size else math.nan,
            float(np.mean(np.abs(fresh[-3:]) < _TIE_LOG2)) if fresh.size else math.nan,
            float(fresh[-3:].mean()) if fresh.size else math.nan,
            sum(each.kernel.id == query.anchor.id for each in seen),
            float(bool(seen) and seen[-1].kernel.id == query.anchor.id),
            float(bool(seen) and seen[-1].repeated),
        ]
    )


def _spread(gains: Floats) -> list[float]:
    if not gains.size:
        return [math.nan] * 5
    size = float(np.abs(gains).mean())
    return [float(gains.mean()), float(gains.std()), size, float(gains.max()), float(gains.min())]


def _cases(history: SearchHistory, query: Query) -> Floats:
    """`_CASES` but the last: how the anchor's time is spread over cases of unlike size."""
    entry = history.first_of.get(query.anchor.id)
    timed = entry.timing.cases if entry and entry.timing else ()
    if not timed:
        return np.full(len(_CASES) - 1, np.nan)
    us = np.log2([each.runtime_s * 1e6 for each in timed])
    reference_us = np.log2([each.reference_runtime_s * 1e6 for each in timed])
    speedup = reference_us - us
    about = reference_us - reference_us.mean()
    varies = float(about @ about)
    return np.array(
        [
            len(timed),
            us.min(),
            np.median(us),
            us.max(),
            reference_us.min(),
            reference_us.max(),
            speedup.min() - speedup.mean(),
            speedup.max() - speedup.mean(),
            speedup.std(),
            float(about @ speedup) / varies if varies > 1e-6 else 0.0,
            float(np.mean(us < 4.0)),
        ]
    )


def _surroundings(device: Device, evidence: Evidence | None) -> Floats:
    """`_SURROUNDINGS`: 0 where the device's figures, or the evidence, are absent."""
    flops = max(device.peak_flops.values(), default=0.0)
    compiled = [0.0] * 5
    if evidence is not None:
        compiled = [
            float(evidence.failure is not None),
            evidence.compile_s,
            math.log2(1 + evidence.code_bytes),
            math.log2(1 + sum(evidence.instructions.values())),
            math.log2(evidence.roofline_s) if evidence.roofline_s else 0.0,
        ]
    return np.array(
        [
            math.log2(1.0 + flops),
            math.log2(1.0 + device.bandwidth_bytes_s),
            math.log2(1.0 + device.cores),
            *compiled,
        ]
    )


def choose_vocabulary(texts: Iterable[tuple[str, Digest]], size: int) -> tuple[str, ...]:
    """The words of most problems, most common first; `texts` pairs a problem with a source."""
    problems: dict[str, set[str]] = {}
    for problem, read in texts:
        for word in read.words:
            problems.setdefault(word, set()).add(problem)
    ordered = sorted(problems, key=lambda word: (-len(problems[word]), word))
    return tuple(ordered[:size])
