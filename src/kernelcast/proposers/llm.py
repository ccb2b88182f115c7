"""A language model as proposer: a parent and its measured result in, a rewritten kernel out.

Nothing is compiled or judged here; an answer without a kernel is told in `Proposals.failure`.
"""

from __future__ import annotations

from importlib import resources
from string import Template
from typing import Any

from kernelcast.canonical import kernel_id
from kernelcast.llm import Client, Endpoint, Message, device_text, problem_text
from kernelcast.types import (
    Kernel,
    ProposalRequest,
    Proposals,
    Resource,
    Spend,
    Usage,
    content_hash,
)

_SCHEMA = {
    "type": "object",
    "properties": {
        "idea": {"type": "string", "maxLength": 300},
        "kernel": {"type": "string"},
    },
    "required": ["idea", "kernel"],
    "additionalProperties": False,
}


class LlmProposer:
    """Proposes by asking an OpenAI-compatible endpoint; `endpoint` takes `llm.Endpoint`'s fields.

    One question a kernel wanted, each with a seed of its own.
    """

    name = "llm"

    def __init__(
        self,
        *,
        max_output_tokens: int = 16384,
        temperature: float | None = 1.0,
        concurrency: int = 2,
        **endpoint: Any,
    ) -> None:
        self.concurrency = concurrency
        self._max_output_tokens = max_output_tokens
        self._temperature = temperature
        self._client = Client(Endpoint.from_options(endpoint))
        self._system = _prompt("system.txt")
        self._user = Template(_prompt("user.txt"))

    def quote(self, request: ProposalRequest) -> Spend:
        """The most that the kernels can cost, with every retry needed."""
        each = self._client.quote(
            self._messages(request), schema=_SCHEMA, max_output_tokens=self._max_output_tokens
        )
        return {
            Resource.PROPOSAL_TOKENS: float(request.count * each.tokens),
            Resource.PROPOSAL_USD: request.count * each.usd,
        }

    def propose(self, request: ProposalRequest) -> Proposals:
        """Up to `request.count` kernels, fewer where an answer held none."""
        kernels, usages, failures = [], [], []
        for index in range(request.count):
            answer = self._client.complete(
                self._messages(request),
                schema=_SCHEMA,
                max_output_tokens=self._max_output_tokens,
                # Servers differ in how large a seed they take; 31 bits fit all.
                seed=int(content_hash(f"{request.seed}/{index}"), 16) % 2**31,
                temperature=self._temperature,
            )
            usages.append(answer.usage)
            source = (answer.parsed or {}).get("kernel")
            language = request.problem.language
            if isinstance(source, str) and source.strip():
                kernels.append(
                    Kernel(id=kernel_id(source, language), language=language, source=source)
                )
            else:
                failures.append(answer.error or "the answer holds no kernel")
        return Proposals(
            kernels=tuple(kernels),
            usage=Usage(
                input_tokens=sum(usage.input_tokens for usage in usages),
                output_tokens=sum(usage.output_tokens for usage in usages),
                usd=sum(usage.usd for usage in usages),
                seconds=sum(usage.seconds for usage in usages),
            ),
            failure="; ".join(failures),
        )

    def _messages(self, request: ProposalRequest) -> list[Message]:
        user = self._user.substitute(
            problem=problem_text(request.problem),
            atol=request.problem.tolerance.atol,
            rtol=request.problem.tolerance.rtol,
            device=device_text(request.device),
            parent=request.parent.source.strip(),
            result=_result_text(request),
        )
        return [{"role": "system", "content": self._system}, {"role": "user", "content": user}]


def _result_text(request: ProposalRequest) -> str:
    origin = "measured" if request.parent_measured else "forecast, not measured"
    return (
        f"{request.parent_runtime_s * 1e3:.4g} ms (geometric mean of the timed cases), "
        f"{2.0**request.parent_log2_speedup:.3g} times as fast as the reference ({origin})"
    )


def _prompt(name: str) -> str:
    folder = resources.files("kernelcast.proposers") / "prompts"
    return (folder / name).read_text(encoding="utf-8").strip()
