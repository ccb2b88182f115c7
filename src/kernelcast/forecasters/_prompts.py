"""What a language model reads when it is asked to forecast.

The model reads canonical source only, so that text in a kernel cannot address it. It also reads
what this run has measured, as differences from the anchor. The candidate comes last, as a
difference from the anchor if that is shorter. The prompt before it is the same for every candidate
of an anchor until another kernel is measured, so a server that caches prefixes reads it once.
"""

from __future__ import annotations

import difflib
import math
import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from importlib import resources
from string import Template
from typing import Any, Literal, get_args

from kernelcast.bins import BINS
from kernelcast.canonical import NameStyle, canonical_source
from kernelcast.errors import SetupError
from kernelcast.languages import dialect
from kernelcast.llm import Message, device_text, evidence_text, problem_text
from kernelcast.outcomes import POINTS, Outcomes
from kernelcast.types import (
    SMALLEST_CLAIM_LOG2,
    Kernel,
    Observation,
    Problem,
    Query,
    shortened,
)

Way = Literal["reasoned", "direct", "digits", "pairwise"]

RATIONALE_CHARACTERS = 200
REMEMBERED = 512
"""The latest measurements, of which a prompt lists the nearest."""

_CONTEXT_LINES = 2
_LONGEST_REFERENCE = 8_000  # characters
_MOST_MEASURED = 8  # measurements that a prompt lists
_LONGEST_CHANGE = 240  # characters of what differs in one of them
# A tuner's names and values, which its user states; anything longer could address the model.
_PLAIN_VALUE = re.compile(r"[-+.\w]{1,24}", re.ASCII)


class Prompts:
    """The prompts of one way to ask, with the form of the answer.

    `think` lets a model without hidden reasoning write before it answers. `names` says which of the
    author's names canonical source keeps.
    """

    def __init__(
        self,
        ask: Way = "reasoned",
        bins: str = "default",
        *,
        think: bool = False,
        names: NameStyle = "numbered",
    ) -> None:
        for name, value, known in (
            ("ask", ask, get_args(Way)),
            ("bins", bins, tuple(BINS)),
            ("names", names, get_args(NameStyle)),
        ):
            if value not in known:
                raise SetupError(f"{name} is one of {', '.join(known)}, not {value!r}")
        if think and ask != "reasoned":
            raise SetupError(f"think is for ask = 'reasoned': leave it out with {ask!r}")
        self.ask: Way = ask
        self.outcomes = Outcomes(BINS[bins])
        self.schema = _schema(self.outcomes.keys, think=think) if ask == "reasoned" else None
        self._names: NameStyle = names
        self._system = _prompt(f"{ask}.txt").safe_substitute(
            bins=self.outcomes.bins.table(),
            keys=", ".join(self.outcomes.keys),
            think=_THINK * think,
            outcomes=self.outcomes.table(),
            count=self.outcomes.count,
            ones="1" * self.outcomes.count,
        )
        self._user = _prompt("pair.txt" if ask == "pairwise" else "user.txt")

    def of(self, query: Query, measured: Sequence[Observation] = ()) -> list[list[Message]]:
        """Return the prompt, or both of `pairwise`; `measured` is what the run has measured."""
        if self.ask == "pairwise":
            return [self._of_pair(query), self._of_pair(query, candidate_first=True)]
        anchor, candidate = self._shown(query.anchor, query), self._shown(query.candidate, query)
        user = self._user.substitute(
            **self._task(query),
            anchor_speed=_speed_text(query),
            anchor_cases=_cases_text(query),
            anchor_evidence=evidence_text(query.anchor_evidence),
            anchor=anchor,
            measured=self._measured_text(query, measured),
            candidate_evidence=evidence_text(query.evidence),
            candidate=_shortest(anchor, candidate),
        )
        return [self._messages(user)]

    def _of_pair(self, query: Query, *, candidate_first: bool = False) -> list[Message]:
        pair = [
            (evidence_text(query.anchor_evidence), self._shown(query.anchor, query)),
            (evidence_text(query.evidence), self._shown(query.candidate, query)),
        ]
        (first_evidence, first), (second_evidence, second) = pair[:: -1 if candidate_first else 1]
        return self._messages(
            self._user.substitute(
                **self._task(query),
                first_evidence=first_evidence,
                first=first,
                second_evidence=second_evidence,
                second=second,
            )
        )

    def _messages(self, user: str) -> list[Message]:
        return [{"role": "system", "content": self._system}, {"role": "user", "content": user}]

    def _task(self, query: Query) -> dict[str, str]:
        return {
            "problem": _task_text(query.problem),
            "reference": self._reference_text(query),
            "device": device_text(query.device),
        }

    def _reference_text(self, query: Query) -> str:
        """The section on the source that is right by definition; empty if it is not known."""
        problem = query.problem
        if not problem.oracle_source.strip():
            return ""
        if problem.oracle_source == query.anchor.source:
            return "# Reference\nThe anchor is the reference.\n\n"
        # Nothing calls it here, so all that could be called is shown, such as its inputs.
        source = canonical_source(
            problem.oracle_source, "python", arguments=problem.argument_names, names=self._names
        )
        return f"# Reference\n{shortened(source.strip(), _LONGEST_REFERENCE)}\n\n"

    def _shown(self, kernel: Kernel, query: Query) -> str:
        """The canonical source of a kernel; of a recorded configuration, its values as well."""
        problem, source = query.problem, kernel.source
        values = _values(kernel)
        if dialect(kernel.language).family == "c":
            # It is a template and the values that a tuner gave the compiler.
            defines = [f"#define {name} {value}\n" for name, value in values.items()]
            source = "".join(define for define in defines if define not in source) + source
        shown = canonical_source(
            source,
            kernel.language,
            problem.entry,
            arguments=(*problem.argument_names, *values),
            names=self._names,
        )
        if not shown.strip():
            return "\n".join(f"{name} = {value}" for name, value in values.items())
        return shown.strip()

    # ------------------------------------------------------------------- what was measured

    def _measured_text(self, query: Query, measured: Sequence[Observation]) -> str:
        """What was measured, as differences from the anchor, the nearest to it first.

        It does not depend on the candidate, so that a server reads it once for all of an anchor's.
        """
        anchor = query.anchor
        others = [one for one in measured[-REMEMBERED:] if one.kernel.id != anchor.id]
        # A kernel whose text was not published differs in nothing that can be told.
        changes = [change for one in others if (change := self._change(query, one)) is not None]
        # Of two that are as near, the later one was written for a better parent.
        changes.reverse()
        nearest = sorted(changes, key=lambda change: change[0])[:_MOST_MEASURED]
        return "\n".join(line for _, line in nearest) or "Nothing yet but the anchor."

    def _change(self, query: Query, observation: Observation) -> tuple[int, str] | None:
        """How far a measured kernel is from the anchor, and what differs, in one line."""
        anchor, other = query.anchor, observation.kernel
        outcome = _outcome_text(observation, query.anchor_log2_speedup)
        if anchor.parameters is not None and other.parameters is not None:
            before = _values(anchor)
            changed = [
                f"{name} {before.get(name, 'none')} -> {value}"
                for name, value in _values(other).items()
                if before.get(name) != value
            ]
            return len(changed), f"- {outcome}: {', '.join(changed)}"
        if not other.source or not anchor.source:
            return None
        mine, theirs = _lines(self._shown(anchor, query)), _lines(self._shown(other, query))
        removed, added = mine - theirs, theirs - mine
        if not removed and not added:
            return None
        text = " | ".join([*(f"+ {line}" for line in added), *(f"- {line}" for line in removed)])
        if len(text) > _LONGEST_CHANGE:
            text = f"{text[:_LONGEST_CHANGE]}..."
        return removed.total() + added.total(), f"- {outcome}: {text}"


def _values(kernel: Kernel) -> dict[str, int | float | str]:
    """The parameters of a configuration that a prompt may hold."""
    return {
        name: value
        for name, value in (kernel.parameters or {}).items()
        if _PLAIN_VALUE.fullmatch(name) and _PLAIN_VALUE.fullmatch(str(value))
    }


def _task_text(problem: Problem) -> str:
    # A problem that is known by its kernels alone has no work and no cases to describe.
    return problem_text(problem) if problem.arguments else f"{problem.name}: {problem.summary}"


def _speed_text(query: Query) -> str:
    """Describe the anchor's speed; recorded kernels often have a ratio but no time."""
    ratio = f"{2.0**query.anchor_log2_speedup:.3g} times as fast as the reference"
    if not math.isfinite(query.anchor_runtime_s):
        return ratio
    return f"{query.anchor_runtime_s * 1e3:.4g} ms, {ratio}"


def _cases_text(query: Query) -> str:
    """The anchor's time in each case, if there are several."""
    if len(query.anchor_cases) < 2:
        return ""
    return "".join(
        f"- {case.case}: {case.runtime_s * 1e3:.4g} ms, "
        f"{2.0**case.log2_speedup:.3g} times as fast as the reference\n"
        for case in query.anchor_cases
    )


def _outcome_text(observation: Observation, anchor_log2: float) -> str:
    measurement = observation.measurement
    if measurement.failure is not None:
        return f"fails ({measurement.failure.kind.value.replace('_', ' ')})"
    assert measurement.log2_speedup is not None
    change = measurement.log2_speedup - anchor_log2
    if abs(change) <= SMALLEST_CLAIM_LOG2:
        return "as fast as the anchor"
    return f"{2.0**change:.3g} times as fast as the anchor"


@lru_cache(maxsize=2 * REMEMBERED)
def _lines(source: str) -> Counter[str]:
    return Counter(line.strip() for line in source.splitlines())


def _shortest(anchor: str, candidate: str) -> str:
    """Return the candidate, or its difference from the anchor if that is shorter."""
    lines = list(
        difflib.unified_diff(
            anchor.splitlines(), candidate.splitlines(), lineterm="", n=_CONTEXT_LINES
        )
    )
    if not lines:
        return "The same as the anchor."
    # The anchor's lines have no numbers, so a change is found by the lines around it.
    changes = ("@@" if line.startswith("@@") else line for line in lines[2:])
    difference = "As a difference from the anchor:\n" + "\n".join(changes)
    return difference if len(difference) < len(candidate) else candidate


_THINK = "think (up to 1,500 characters: work through the guide), then "


def _schema(outcomes: Sequence[str], *, think: bool) -> dict[str, Any]:
    # With a bounded text and whole numbers, the smallest model reaches the end. llama.cpp's grammar
    # takes minutes with twice the bound, so the prompt alone bounds the longer text.
    points = {"type": "integer", "minimum": 0, "maximum": POINTS}
    sentence = {"type": "string", "maxLength": RATIONALE_CHARACTERS}
    texts = {"think": {"type": "string"}} if think else {}
    return {
        "type": "object",
        "properties": {**texts, "rationale": sentence, **dict.fromkeys(outcomes, points)},
        "required": [*texts, "rationale", *outcomes],
        "additionalProperties": False,
    }


def _prompt(name: str) -> Template:
    folder = resources.files("kernelcast.forecasters") / "prompts"
    return Template((folder / name).read_text(encoding="utf-8").strip())
