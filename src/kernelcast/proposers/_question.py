"""What a model is told when it is asked for a kernel.

The text begins with what all questions of a run share (problem, definition, device, form), then
with what all questions about a parent share (source, times, evidence, advice). It ends with the
task, so that a server with a prefix cache reads the beginning once. All parts but the sources that
are to be edited have a greatest length.

Sources stand between fences. What a compiler, a kernel or a check said is a stranger's text: each
of its lines begins with a bar, and the system prompt says that such lines are data.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from string import Template
from typing import get_args

from kernelcast.llm import (
    device_text,
    evidence_text,
    history_text,
    problem_text,
    quoted_text,
)
from kernelcast.proposers._advice import advice, form
from kernelcast.types import SPECIAL_WORDS, Move, Problem, ProposalRequest, shortened

_TRIED_OFTEN = 3  # fruitless requests in a row after which the prompt mentions them
_LONGEST_DEFINITION = 8_000  # characters
_LONGEST_PARTNER = 16_000
_LONGEST_COMPLAINT = 4_000
_FENCES = {"cpp": "cpp", "cuda": "cuda", "hip": "cpp", "opencl": "c"}


def system_text() -> str:
    """Return the rules, which are the same for all problems."""
    return _prompt("system.txt").substitute(moves=", ".join(get_args(Move)))


def question_text(request: ProposalRequest, *, crosses: bool) -> str:
    """Return what one question says; `crosses`: the task is to cross parent and partner."""
    problem, kind = request.problem, request.device.kind
    return _prompt("user.txt").substitute(
        problem=problem_text(problem),
        atol=problem.tolerance.atol,
        rtol=problem.tolerance.rtol,
        special=_special_text(problem),
        untimed=_untimed_text(problem),
        definition=_definition_text(problem),
        device=device_text(request.device),
        form=form(problem.language, kind) or "As the parent is.",
        parent=_fenced(request.parent.source, problem.language),
        result=_result_text(request),
        advice="\n".join(f"- {line}" for line in advice(request)) or "Nothing in particular.",
        history=history_text(request.history) or "Nothing yet.",
        task=_task_text(request, crosses=crosses),
    )


def _task_text(request: ProposalRequest, *, crosses: bool) -> str:
    language, repair = request.problem.language, request.repair
    if repair is not None:
        return _prompt("repair.txt").substitute(
            number=repair.number,
            complaint=quoted_text(shortened(repair.complaint.strip(), _LONGEST_COMPLAINT)),
            kernel=_fenced(repair.kernel.source, language),
        )
    if request.bold:
        return _prompt("rewrite.txt").template
    if request.partner is not None and crosses:
        task = _prompt("cross.txt").substitute(
            speed=_speed_text(request.partner_log2_speedup),
            partner=_fenced(shortened(request.partner.source, _LONGEST_PARTNER), language),
        )
    else:
        task = _prompt("improve.txt").template
    if request.fruitless >= _TRIED_OFTEN:
        task += f"\n\nThe last {request.fruitless} answers brought no new kernel: do otherwise."
    return task


def _definition_text(problem: Problem) -> str:
    """The source that is right by definition, cut where it is long."""
    if not problem.oracle_source.strip():
        return "Its source is not known."
    return _fenced(shortened(problem.oracle_source.strip(), _LONGEST_DEFINITION), "python")


def _result_text(request: ProposalRequest) -> str:
    """The parent's times, the slowest case first, and what inspection shows of it."""
    origin = "measured" if request.parent_measured else "forecast, not measured"
    speed = _speed_text(request.parent_log2_speedup)
    lines = [
        f"{request.parent_runtime_s * 1e3:.4g} ms (geometric mean of the timed cases), "
        f"{speed} ({origin})"
    ]
    if len(request.parent_cases) > 1:
        lines += [
            f"- {case.case}: {case.runtime_s * 1e3:.4g} ms, {_speed_text(case.log2_speedup)}"
            for case in request.parent_cases
        ]
    if request.parent_evidence is not None:
        lines.append(evidence_text(request.parent_evidence))
    return "\n".join(lines)


def _special_text(problem: Problem) -> str:
    held = [
        f"{array.name}: {', '.join(SPECIAL_WORDS[special] for special in array.special)}"
        for array in problem.arguments
        if array.special
    ]
    rule = "\nInputs may hold special values, which count like in IEEE arithmetic: "
    return rule + "; ".join(held) if held else ""


def _untimed_text(problem: Problem) -> str:
    """The shapes beside the timed ones that must be right."""
    cases = [
        "(" + ", ".join(f"{name}={size}" for name, size in case.dimensions.items()) + ")"
        for case in problem.cases
        if not case.timed
    ]
    hidden = problem.hidden.dimensions if problem.hidden else {}
    ranges = ", ".join(f"{name} from {low} to {high}" for name, (low, high) in hidden.items())
    parts = [", ".join(cases), f"shapes drawn for each measurement: {ranges}" if ranges else ""]
    told = "; ".join(part for part in parts if part)
    return f"\nAlso checked, not timed: {told}" if told else ""


def _speed_text(log2_speedup: float) -> str:
    return f"{2.0**log2_speedup:.3g} times as fast as the reference"


def _fenced(source: str, language: str) -> str:
    """A source between fences that do not occur in it."""
    fence = "```"
    while fence in source:
        fence += "`"
    return f"{fence}{_FENCES.get(language, 'python')}\n{source.strip()}\n{fence}"


@cache
def _prompt(name: str) -> Template:
    folder = resources.files("kernelcast.proposers") / "prompts"
    return Template((folder / name).read_text(encoding="utf-8").strip())
