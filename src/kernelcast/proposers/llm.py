"""A language model as proposer: it edits a parent kernel.

The model improves the parent, crosses it with a second one, writes another kernel from the idea up,
or repairs a kernel that was sent back, by search/replace edits or a whole source, and states what
it did. `_question` says what it is told. Nothing is compiled here. `Proposals.failure` reports an
answer without a kernel, or with an edit that does not apply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np

from kernelcast.canonical import as_kernel
from kernelcast.llm import Client, Endpoint, Reply, Request
from kernelcast.proposers._question import question_text, system_text
from kernelcast.types import (
    Attempt,
    Claim,
    Kernel,
    Move,
    ProposalRequest,
    Proposals,
    Resource,
    Spend,
    Usage,
    content_hash,
)

_MOVES: tuple[Move, ...] = get_args(Move)
_LONGEST_IDEA = 300
_MOST_MOVES = 4
_SHOWN_SEARCH = 60

_TEXT = {"type": "string"}
_EDIT = {
    "type": "object",
    "properties": {"search": _TEXT, "replace": _TEXT},
    "required": ["search", "replace"],
    "additionalProperties": False,
}
_SCHEMA = {
    "type": "object",
    "properties": {
        # Shorter than _LONGEST_IDEA: llama.cpp's grammar takes minutes with longer bounds.
        "idea": {"type": "string", "maxLength": 200},
        "moves": {
            "type": "array",
            "items": {"type": "string", "enum": list(_MOVES)},
            "maxItems": _MOST_MOVES,
        },
        "edits": {"type": "array", "items": _EDIT},
        "kernel": _TEXT,
    },
    "required": ["idea", "moves"],
    "additionalProperties": False,
}


class LlmProposer:
    """Proposer that asks an OpenAI-compatible endpoint; `endpoint` takes `llm.Endpoint`'s fields.

    It asks one question per kernel, each with its own seed. A share of `cross_share` of the
    requests with a second parent asks to cross the two.
    """

    name = "llm"
    repairs = True

    def __init__(
        self,
        *,
        max_output_tokens: int = 16384,
        temperature: float | None = 1.0,
        cross_share: float = 0.25,
        concurrency: int = 2,
        **endpoint: Any,
    ) -> None:
        self.concurrency = concurrency
        self._max_output_tokens = max_output_tokens
        self._temperature = temperature
        self._cross_share = cross_share
        options = {**endpoint, "concurrency": max(1, concurrency)}
        self._client = Client(Endpoint.from_options(options))
        self._system = system_text()

    def quote(self, request: ProposalRequest) -> Spend:
        """Return the highest possible cost of the kernels, with all retries."""
        question = self._client.quote(self._question(request, 0))
        return {
            Resource.PROPOSAL_TOKENS: float(request.count * question.tokens),
            Resource.PROPOSAL_USD: request.count * question.usd,
        }

    def propose(self, request: ProposalRequest) -> Proposals:
        """Return up to `request.count` kernels; an answer without a kernel gives none."""
        edited = request.repair.kernel if request.repair else request.parent
        language = request.problem.language
        kernels: list[Kernel] = []
        claims: dict[str, Claim] = {}
        missed: list[Attempt] = []
        usages, failures = [], []
        for index in range(request.count):
            answer = self._client.ask(self._question(request, index))
            usages.append(answer.usage)
            source, failure = _written(answer, edited.source)
            if failure:
                failures.append(failure)
                if answer.parsed:
                    missed.append(Attempt(claim=_claim(answer.parsed), outcome=failure))
                continue
            kernel = as_kernel(source, language)
            kernels.append(kernel)
            claims[kernel.id] = _claim(answer.parsed or {})
        return Proposals(
            kernels=tuple(kernels),
            claims=claims,
            missed=tuple(missed),
            usage=Usage.total(usages),
            failure="; ".join(failures),
        )

    def _question(self, request: ProposalRequest, index: int) -> Request:
        crosses = np.random.default_rng(request.seed).random() < self._cross_share
        return Request(
            messages=[
                {"role": "system", "content": self._system},
                {"role": "user", "content": question_text(request, crosses=crosses)},
            ],
            schema=_SCHEMA,
            max_output_tokens=self._max_output_tokens,
            # All servers accept a seed of 31 bits.
            seed=int(content_hash(f"{request.seed}/{index}"), 16) % 2**31,
            temperature=self._temperature,
        )


def apply_edits(source: str, edits: Sequence[Any]) -> tuple[str, str]:
    """Apply edits in order; return (source, "") or ("", the reason why one does not apply).

    Each edit holds `search`, which must occur exactly once in the text so far, and `replace`.
    """
    for number, edit in enumerate(edits, start=1):
        fields = edit if isinstance(edit, Mapping) else {}
        search, replace = fields.get("search"), fields.get("replace")
        if not isinstance(search, str) or not isinstance(replace, str) or not search:
            return "", f"edit {number} needs two texts, `search` and `replace`"
        if (times := source.count(search)) != 1:
            shown = " ".join(search.split())[:_SHOWN_SEARCH]
            return "", f"edit {number} does not apply: its search occurs {times} times: {shown}"
        source = source.replace(search, replace)
    return source, ""


def _written(answer: Reply, edited: str) -> tuple[str, str]:
    """Return (the source in an answer, "") or ("", the reason why there is none)."""
    parsed = answer.parsed or {}
    kernel, edits = parsed.get("kernel"), parsed.get("edits")
    if isinstance(kernel, str) and kernel.strip():
        return kernel, ""
    if isinstance(edits, list) and edits:
        source, failure = apply_edits(edited, edits)
        return source, failure or ("" if source.strip() else "the edits leave no kernel")
    reason = f" ({answer.error})" if answer.error else ""
    return "", f"the answer holds no kernel and no edits{reason}"


def _claim(parsed: Mapping[str, Any]) -> Claim:
    idea, moves = parsed.get("idea"), parsed.get("moves")
    # Without a grammar, a model spells a move in its own way.
    texts = moves if isinstance(moves, list) else []
    named = [f"{text}".lower().replace("ize", "ise") for text in texts]
    known: dict[str, Move] = {move: move for move in _MOVES}
    return Claim(
        idea=" ".join(idea.split())[:_LONGEST_IDEA] if isinstance(idea, str) else "",
        moves=tuple(dict.fromkeys(known.get(name, "other") for name in named)),
    )
