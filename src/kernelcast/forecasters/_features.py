"""Kernels and searches as numbers.

`digest` reads a kernel's canonical source once. `SourceFeatures` turns a candidate, its anchor, the
problem's reference and what the search has measured so far (`SearchHistory`) into one row of a
matrix. A row never depends on what is measured later, nor on anything that canonical source leaves
out: comments, the author's names, dead functions.

Sources are compared by hashed counts of their tokens and token pairs, so that a thousand
candidates are compared with a hundred measured kernels in one array operation.
"""

from __future__ import annotations

import json
import math
import re
import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernelcast.cache import kept
from kernelcast.canonical import Token, canonical_tokens, is_c, tokens
from kernelcast.canonical.lint import FAULT_KINDS, FaultKind, faults
from kernelcast.forecasters._experience import FAULTY
from kernelcast.types import FailureKind, Kernel, Observation, Query, Timing

Floats = NDArray[np.float64]
Counts = NDArray[np.float32]

# ---------------------------------------------------------------------------- one kernel's source

_WORD_SLOTS, _PAIR_SLOTS = 512, 1024
_NO_TEXT = -1  # in place of a skeleton
_COUNTED = ("+", "-", "*", "/", "%", "@", "**", "//", "=", "==", "<", "[", "(", ",", ".", ":", "&")
_SETTINGS = ("num_warps", "num_stages", "waves_per_eu", "cache_size_limit")
_LANGUAGES = ("triton", "python", "cuda", "hip", "opencl", "cpp")
_NUMBERED = re.compile(r"(?:func|[MTfmgPvuapC])\d+")  # the author's names in canonical source


class Terms(NamedTuple):
    """All tokens of a text as rising hashes, with how often each occurs.

    The definition of a macro is one token.
    """

    hashes: NDArray[np.uint32]
    counts: Counts

    @classmethod
    def of(cls, texts: Iterable[str]) -> Terms:
        """Count texts of tokens."""
        counted = Counter(zlib.crc32(text.encode()) for text in texts)
        ordered = sorted(counted)
        counts = [counted[term] for term in ordered]
        return cls(np.array(ordered, np.uint32), np.array(counts, np.float32))


@dataclass(frozen=True, eq=False)
class Digest:
    """Counts, sizes and a hash of one canonical source.

    `words` are those of the language and its libraries; `names` counts uses of the author's names.
    `skeleton` is equal for sources that differ in constants only.
    """

    words: Counter[str]
    names: int
    scalars: Floats
    word_counts: Counts
    pair_counts: Counts
    terms: Terms
    skeleton: int

    def encode(self) -> bytes:
        """Return the digest as bytes, which `decode` reads."""
        plain = json.dumps([self.words, self.names, self.skeleton, self.scalars.size])
        arrays = (self.scalars, self.word_counts, self.pair_counts, *self.terms)
        return b"\n".join((plain.encode(), b"".join(array.tobytes() for array in arrays)))

    @classmethod
    def decode(cls, data: bytes) -> Digest:
        """Read what `encode` returned."""
        plain, _, arrays = data.partition(b"\n")
        words, names, skeleton, size = json.loads(plain)
        scalars = np.frombuffer(arrays, np.float64, size)
        counts = np.frombuffer(arrays, np.float32, _WORD_SLOTS + _PAIR_SLOTS, scalars.nbytes)
        hashes, term_counts = np.split(
            np.frombuffer(arrays, np.uint32, offset=scalars.nbytes + counts.nbytes), 2
        )
        return cls(
            Counter({sys.intern(word): count for word, count in words.items()}),
            names,
            scalars,
            counts[:_WORD_SLOTS],
            counts[_WORD_SLOTS:],
            Terms(hashes, term_counts.view(np.float32)),
            skeleton,
        )

    @property
    def empty(self) -> bool:
        """True if there is no text, or none was published."""
        return self.skeleton == _NO_TEXT

    def coverage(self, vocabulary: Collection[str]) -> float:
        """Share of all names and words that the vocabulary knows."""
        known = sum(count for word, count in self.words.items() if word in vocabulary)
        return known / max(self.words.total() + self.names, 1)


@lru_cache(maxsize=8192)
@kept(Digest.encode, Digest.decode)
def digest(source: str, language: str, entry: str | None = None) -> Digest:
    """Read the canonical form of a source, in which nothing depends on the author's names."""
    whole = _canonical_tokens(source, language, entry) if source.strip() else []
    lexed = [part for token in whole for part in _macro_tokens(token)]
    own = {t.text for t in lexed if t.kind == "identifier" and _NUMBERED.fullmatch(t.text)}

    def plain(token: Token) -> str:
        """The number of a name changes with every name before it, so only its kind is kept."""
        return token.text.rstrip("0123456789") if token.text in own else token.text

    texts = list(map(plain, lexed))
    named = Counter(t.text for t in lexed if t.kind in ("identifier", "directive"))
    words = Counter({text: count for text, count in named.items() if text not in own})
    blank = ["0" if t.kind == "number" else text for t, text in zip(lexed, texts, strict=True)]
    faulty = Counter(fault.kind for fault in faults(source, language, entry))
    scalars = np.array(list(_scalars(lexed, words, own, language, faulty).values()))
    return Digest(
        words,
        named.total() - words.total(),
        scalars if lexed else np.full(scalars.size, np.nan),
        _hashed(Counter(texts), _WORD_SLOTS),
        _hashed(_joined_pairs(texts), _PAIR_SLOTS),
        Terms.of(map(plain, whole)),
        zlib.crc32(" ".join(blank).encode()) if lexed else _NO_TEXT,
    )


def _scalars(
    lexed: Sequence[Token],
    words: Counter[str],
    own: Collection[str],
    language: str,
    faulty: Mapping[FaultKind, int],
) -> dict[str, float]:
    marks = Counter(t.text for t in lexed if t.kind == "punctuator")
    values = np.array([_value(t.text) for t in lexed if t.kind == "number"])
    values = values[values > 0.0]
    assigned = {
        name.text: _value(number.text)
        for name, mark, number in zip(lexed, lexed[1:], lexed[2:], strict=False)
        if mark.text == "=" and name.kind == "identifier" and number.kind == "number"
    }
    chosen = [value for name, value in assigned.items() if name in own and value > 1.0]
    sizes = values[(values >= 16.0) & (values == np.floor(values))]
    calls = sum(name.kind == "identifier" and mark.text == "(" for name, mark in pairwise(lexed))
    return {
        **{f"op {mark}": math.log2(1 + marks[mark]) for mark in _COUNTED},
        **{f"set {name}": math.log2(max(assigned.get(name, 0.5), 0.25)) for name in _SETTINGS},
        **{f"is {name}": float(language == name) for name in _LANGUAGES},
        "tokens": math.log2(1 + len(lexed)),
        "distinct words": math.log2(1 + len(words)),
        "distinct names": math.log2(1 + len(own)),
        "calls": math.log2(1 + calls),
        "numbers": math.log2(1 + values.size),
        "largest number": math.log2(values.max()) if values.size else -20.0,
        "mean size": np.log2(sizes).mean() if sizes.size else 0.0,
        "number product": np.log2(values).sum(),
        "assigned product": np.log2(chosen).sum(),
        "device functions": math.log2(1 + words["jit"] + words["__global__"]),
        **{f"{FAULTY}{kind}": float(faulty.get(kind, 0)) for kind in FAULT_KINDS},
    }


_SCALARS = tuple(_scalars((), Counter(), (), "", {}))


def _canonical_tokens(source: str, language: str, entry: str | None) -> list[Token]:
    """Tokens of the canonical source; those of C++ in a Python module's strings in their place."""
    lexed: list[Token] = []
    for token in canonical_tokens(source, language, entry):
        if token.kind == "string" and is_c(token.text):
            lexed += tokens(token.text.strip("rRuU\"'").replace("\\n", "\n"), "cuda")
        else:
            lexed.append(token)
    return lexed


def _macro_tokens(token: Token) -> Sequence[Token]:
    """The tokens of a macro's definition; any other token itself."""
    if token.kind != "directive" or not token.text.startswith("#define "):
        return (token,)
    return (Token("directive", "#define"), *tokens(token.text.removeprefix("#define "), "cuda"))


def _value(text: str) -> float:
    try:
        plain = text.lower().replace("_", "").replace("'", "")
        value = float(int(plain, 0)) if plain.startswith("0x") else float(plain.rstrip("ful"))
    except OverflowError:
        value = math.inf
    except ValueError:
        value = 0.0
    return min(value, sys.float_info.max)


def _joined_pairs(texts: Sequence[str]) -> Counter[str]:
    """Count neighbours; a pair is written once, however often it occurs."""
    joined: Counter[str] = Counter()
    for (left, right), count in Counter(pairwise(texts)).items():
        joined[f"{left} {right}"] += count
    return joined


def _hashed(counted: Counter[str], slots: int) -> Counts:
    places = [zlib.crc32(text.encode()) % slots for text in counted]
    return np.bincount(places, list(counted.values()), minlength=slots).astype(np.float32)


# --------------------------------------------------------------------------- what a search has seen

_TIE_LOG2 = 0.03
_REMEMBERED = 128  # kernels that a candidate is compared with, the latest ones


@dataclass(frozen=True, eq=False)
class _Measured:
    """One measured kernel; `log2_speedup` and `gain` over the best before are nan if it failed."""

    kernel: Kernel
    digest: Digest
    timing: Timing | None
    log2_speedup: float
    gain: float
    crashed: bool
    edit: Counts | None


class SearchHistory:
    """The measured kernels of one search, in order."""

    def __init__(self) -> None:
        self.measured: list[_Measured] = []
        self.best: _Measured | None = None
        self.last_gain_at = 0
        self.gains = 0
        self.by_id: dict[str, _Measured] = {}

    def begin(self, start: Kernel, entry: str | None = None) -> None:
        """Take in the kernel that all speedups are against."""
        read = digest(start.source, start.language, entry)
        self.best = _Measured(start, read, None, 0.0, 0.0, crashed=False, edit=None)
        self.measured.append(self.best)
        self.by_id.setdefault(start.id, self.best)

    def add(self, observation: Observation, entry: str | None = None) -> None:
        """Take in one measurement of a kernel with this entry."""
        kernel, measurement, best = observation.kernel, observation.measurement, self.best
        log2_speedup = measurement.log2_speedup
        value = math.nan if log2_speedup is None else log2_speedup
        read = digest(kernel.source, kernel.language, entry)
        failure = measurement.failure
        edit = None
        if best is not None and not best.digest.empty and not read.empty:
            edit = read.pair_counts - best.digest.pair_counts
        measured = _Measured(
            kernel,
            read,
            measurement.timing,
            value,
            value - best.log2_speedup if best else 0.0 * value,
            failure is not None and failure.kind is not FailureKind.WRONG_RESULT,
            edit,
        )
        if not math.isnan(value) and (best is None or value > best.log2_speedup):
            if measured.gain > _TIE_LOG2:
                self.last_gain_at, self.gains = len(self.measured), self.gains + 1
            self.best = measured
        self.measured.append(measured)
        self.by_id.setdefault(kernel.id, measured)

    def columns(self, anchor_id: str, anchor_log2: float, anchor_s: float) -> dict[str, float]:
        """What the search has measured, seen from an anchor."""
        count = len(self.measured)
        failed = [math.isnan(kernel.log2_speedup) for kernel in self.measured]
        streak = next((ago for ago, fails in enumerate(reversed(failed)) if not fails), count)
        gains = np.array([k.gain for k in self.measured if not math.isnan(k.gain)])
        anchor_us = math.log2(anchor_s * 1e6) if anchor_s > 0.0 else math.nan
        columns = {
            "measured": count,
            "failures": sum(failed),
            "failure rate": (sum(failed) + 0.5) / (count + 3.0),
            "failure streak": streak,
            "crash rate": (sum(kernel.crashed for kernel in self.measured) + 0.2) / (count + 3.0),
            "since gain": count - self.last_gain_at,
            "gains": self.gains,
            "gain rate": self.gains / max(count, 1),
            "anchor log2 speedup": anchor_log2,
            "anchor log2 us": anchor_us,
            "reference log2 us": anchor_us + anchor_log2,
        }
        for ago in range(1, 4):
            kernel = self.measured[-ago] if ago <= count else None
            columns |= {
                f"gain {ago} ago": kernel.gain if kernel else math.nan,
                f"failed {ago} ago": float(failed[-ago]) if kernel else math.nan,
                f"behind {ago} ago": kernel.log2_speedup - anchor_log2 if kernel else math.nan,
            }
        known = gains if gains.size else np.array([math.nan])
        columns |= {
            "gain mean": known.mean(),
            "gain std": known.std(),
            "gain size": np.abs(known).mean(),
            "gain most": known.max(),
            "gain least": known.min(),
            "tie rate": np.mean(np.abs(gains) < _TIE_LOG2) if gains.size else math.nan,
            "late tie rate": np.mean(np.abs(gains[-3:]) < _TIE_LOG2) if gains.size else math.nan,
            "late gain": known[-3:].mean(),
            "last is anchor": bool(count) and self.measured[-1].kernel.id == anchor_id,
        }
        return columns | self._case_columns(anchor_id)

    def _case_columns(self, anchor_id: str) -> dict[str, float]:
        """How the anchor's time is spread over cases of unlike size; nan if unknown."""
        measured = self.by_id.get(anchor_id)
        cases = measured.timing.cases if measured and measured.timing else ()
        us = np.log2([case.runtime_s * 1e6 for case in cases] or [math.nan])
        reference_us = np.log2([case.reference_runtime_s * 1e6 for case in cases] or [math.nan])
        speedup = reference_us - us
        about = reference_us - reference_us.mean()
        return {
            "cases": len(cases) or math.nan,
            "case least us": us.min(),
            "case middle us": np.median(us),
            "case most us": us.max(),
            "reference least us": reference_us.min(),
            "reference most us": reference_us.max(),
            "case speedup least": speedup.min() - speedup.mean(),
            "case speedup most": speedup.max() - speedup.mean(),
            "case speedup std": speedup.std(),
            "case speedup slope": about @ speedup / max(about @ about, 1e-6),
            "small cases": np.mean(us < 4.0) if cases else math.nan,
        }


# ------------------------------------------------------------------------------------- the matrix

_BASES = ("reference", "anchor", "last", "near")
_DIFFERENCES = ("likeness", "added", "removed", "new words", "lost words", "same skeleton")
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
_HISTORY = tuple(SearchHistory().columns("", math.nan, math.nan))
_NOTHING = digest("", "python")
ROWS_AT_ONCE = 512  # of which arrays are in memory at once


class SourceFeatures:
    """Rows of a fixed layout over a vocabulary of words."""

    def __init__(self, vocabulary: Sequence[str]) -> None:
        self.vocabulary = tuple(vocabulary)
        self.static_columns = (*_SCALARS, *(f"word {word}" for word in self.vocabulary))
        self.columns = (
            *self.static_columns,
            *(f"reference {name}" for name in self.static_columns),
            *(f"anchor change {name}" for name in self.static_columns),
            *(f"{base} {name}" for base in _BASES for name in _DIFFERENCES),
            *_HISTORY,
            "calls for time",
            *_NEIGHBOURS,
        )
        self.static = lru_cache(maxsize=8192)(self._static)

    def _static(self, read: Digest) -> Floats:
        """Columns of one source alone; nan if there is no text."""
        counts = np.array([read.words[word] for word in self.vocabulary], dtype=np.float64)
        counts = np.full(counts.size, np.nan) if read.empty else np.log2(1.0 + counts)
        return np.concatenate((read.scalars, counts))

    def matrix(self, queries: Sequence[Query], history: SearchHistory) -> Floats:
        """Return one row a query, in the order of `columns`; nan where a thing is not known."""
        groups: dict[tuple[str, ...], list[int]] = {}
        for index, query in enumerate(queries):
            # Without a measurement, what is known of an anchor is its text alone.
            anchor = query.anchor.id if history.measured else ""
            seen_from = (anchor, str(query.anchor_log2_speedup), str(query.anchor_runtime_s))
            groups.setdefault(seen_from, []).append(index)
        rows = np.empty((len(queries), len(self.columns)))
        for group in groups.values():
            for start in range(0, len(group), ROWS_AT_ONCE):
                members = group[start : start + ROWS_AT_ONCE]
                rows[members] = self._of_one_state([queries[i] for i in members], history)
        return rows

    def _of_one_state(self, queries: list[Query], history: SearchHistory) -> Floats:
        """Return rows of queries that differ in nothing but texts, if anything is measured."""
        first, count = queries[0], len(queries)
        digests = [candidate_digest(query) for query in queries]
        anchors = [
            digest(query.anchor.source, query.anchor.language, query.problem.entry)
            for query in queries
        ]
        words = np.stack([read.word_counts for read in digests])
        pairs = np.stack([read.pair_counts for read in digests])
        static = np.stack([self.static(read) for read in digests])
        reference = digest(first.problem.oracle_source, "python")
        known = history.measured[-_REMEMBERED:]
        last = known[-1].digest if known else _NOTHING
        known = [kernel for kernel in known if not kernel.digest.empty]
        log2_speedup = first.anchor_log2_speedup
        neighbours, nearest = _neighbours(words, pairs, anchors[0], known, log2_speedup)
        seen = history.columns(first.anchor.id, log2_speedup, first.anchor_runtime_s)
        calls = static[:, _SCALARS.index("calls")]
        bases = ([reference], anchors, [last], nearest)
        return np.column_stack(
            (
                static,
                np.broadcast_to(self.static(reference), static.shape),
                static - np.stack([self.static(anchor) for anchor in anchors]),
                *(_differences(digests, base) for base in bases),
                np.broadcast_to(list(seen.values()), (count, len(seen))),
                calls - seen["case least us"],
                neighbours,
            )
        )


def candidate_digest(query: Query) -> Digest:
    """The digest of a query's candidate."""
    return digest(query.candidate.source, query.candidate.language, query.problem.entry)


def likenesses(left: Counts, right: Counts) -> Floats:
    """Shared over all token pairs, of each of `left` with each of `right`; 1 is the same."""
    # Slow to import, and needed only where sources are compared.
    from scipy.spatial.distance import cdist

    apart = cdist(left, right, "cityblock")
    return _likeness(apart, left.sum(axis=1)[:, None] + right.sum(axis=1))


def _likeness(apart: NDArray[np.floating], together: NDArray[np.floating]) -> Floats:
    return np.asarray((together - apart) / np.maximum(together + apart, 1.0), dtype=np.float64)


def _differences(digests: Sequence[Digest], bases: Sequence[Digest]) -> Floats:
    """`_DIFFERENCES` of each candidate from its base (one base serves all); nan without a text."""
    words, base_words = (np.stack([d.word_counts for d in part]) for part in (digests, bases))
    pairs, base_pairs = (np.stack([d.pair_counts for d in part]) for part in (digests, bases))
    skeletons, base_skeletons = (np.array([d.skeleton for d in part]) for part in (digests, bases))
    more = words - base_words
    columns = np.column_stack(
        (
            _likeness(
                np.abs(pairs - base_pairs).sum(axis=1), pairs.sum(axis=1) + base_pairs.sum(axis=1)
            ),
            np.log2(1.0 + np.maximum(more, 0.0).sum(axis=1)),
            np.log2(1.0 + np.maximum(-more, 0.0).sum(axis=1)),
            np.log2(1.0 + np.sum((words > 0) & (base_words == 0), axis=1)),
            np.log2(1.0 + np.sum((words == 0) & (base_words > 0), axis=1)),
            skeletons == base_skeletons,
        )
    )
    unknown = (skeletons == _NO_TEXT) | (base_skeletons == _NO_TEXT)
    return np.where(unknown[:, None], np.nan, columns)


def _neighbours(
    words: Counts,
    pairs: Counts,
    anchor: Digest,
    known: Sequence[_Measured],
    anchor_log2: float,
) -> tuple[Floats, list[Digest]]:
    """`_NEIGHBOURS` of each candidate, and the measured kernel most like it."""
    present = words > 0
    has_text = words.sum(axis=1) > 0
    if not known or not has_text.any():
        return np.full((len(words), len(_NEIGHBOURS)), np.nan), [_NOTHING] * len(words)
    likeness = likenesses(pairs, np.stack([kernel.digest.pair_counts for kernel in known]))
    behind = np.array([kernel.log2_speedup for kernel in known]) - anchor_log2
    failed = np.isnan(behind)
    order = np.argsort(-likeness, axis=1, kind="stable")
    columns: list[Floats] = []
    for place in range(2):
        at = order[:, min(place, len(known) - 1)]
        nth = np.column_stack(
            (likeness[np.arange(len(at)), at], behind[at], failed[at], len(known) - at)
        )
        columns += list(nth.T if place < len(known) else np.full_like(nth, np.nan).T)
    for reach in (4.0, 20.0):
        weight = np.exp(reach * (likeness - likeness.max(axis=1, keepdims=True)))
        running = weight[:, ~failed]
        total = running.sum(axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            near = (running @ np.clip(behind[~failed], -3.0, 0.5)) / total
        columns += [weight[:, failed].sum(axis=1) / weight.sum(axis=1), near, total]
    known_words = np.stack([kernel.digest.word_counts > 0 for kernel in known])
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
    rows[~has_text] = np.nan
    return rows, [known[i].digest for i in order[:, 0]]


def _edits(pairs: Counts, anchor: Digest, known: Sequence[_Measured]) -> list[Floats]:
    """The most alike of the edits made before, by its direction, and its outcome."""
    tried = [(kernel.edit, kernel.gain) for kernel in known if kernel.edit is not None]
    if anchor.empty or not tried:
        return [np.full(len(pairs), np.nan)] * 4
    edits, gain = np.stack([edit for edit, _ in tried]), np.array([gain for _, gain in tried])
    change = pairs - anchor.pair_counts
    size = np.linalg.norm(change, axis=1)[:, None] * np.linalg.norm(edits, axis=1)
    cosine = (change @ edits.T).astype(np.float64) / np.maximum(size, 1e-9)
    at = cosine.argmax(axis=1)
    return [cosine.max(axis=1), gain[at], np.isnan(gain[at]).astype(float), cosine.min(axis=1)]


def choose_vocabulary(texts: Iterable[tuple[str, Digest]], size: int) -> tuple[str, ...]:
    """The words of most problems, most common first; `texts` pairs a problem with a source."""
    problems: defaultdict[str, set[str]] = defaultdict(set)
    for problem, read in texts:
        for word in read.words:
            problems[word].add(problem)
    ordered = sorted(problems, key=lambda word: (-len(problems[word]), word))
    return tuple(ordered[:size])
