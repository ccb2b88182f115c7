from __future__ import annotations

from typing import Any

import pytest

from kernelcast.canonical import kernel_id
from kernelcast.errors import ModelError
from kernelcast.problems import load_problem
from kernelcast.proposers.llm import LlmProposer
from kernelcast.protocols import Proposer
from kernelcast.testing import FAKE_DEVICE, ProposerContract
from kernelcast.types import Kernel, ProposalRequest, Resource
from tests.model_server import KERNELS, Reply, ScriptedServer, kernel_replies

PROBLEM = load_problem("softmax")
PARENT = "// keep this comment\n" + PROBLEM.seed_source


def request(count: int = 1, seed: int = 1, *, measured: bool = True) -> ProposalRequest:
    return ProposalRequest(
        ordinal=0,
        problem=PROBLEM,
        device=FAKE_DEVICE,
        parent=Kernel(id=kernel_id(PARENT, "cpp"), language="cpp", source=PARENT),
        parent_log2_speedup=0.5849625,
        parent_runtime_s=0.0061,
        parent_measured=measured,
        count=count,
        seed=seed,
    )


def proposer(server: ScriptedServer, **options: Any) -> LlmProposer:
    return LlmProposer(base_url=server.base_url, model="m", **options)


def test_each_answer_becomes_a_kernel_with_its_own_id() -> None:
    with ScriptedServer(*kernel_replies()) as server:
        proposals = proposer(server).propose(request(count=4))
    sources = [path.read_text() for path in sorted(KERNELS.glob("*.cpp"))]
    assert len(sources) == 4
    assert [kernel.source for kernel in proposals.kernels] == sources
    assert [kernel.id for kernel in proposals.kernels] == [
        kernel_id(source, "cpp") for source in sources
    ]
    assert (proposals.usage.input_tokens, proposals.usage.output_tokens) == (400, 80)
    assert proposals.failure == ""
    assert not proposals.exhausted


def test_questions_differ_in_their_seed_and_repeat_with_the_request() -> None:
    with ScriptedServer(*kernel_replies()) as server:
        for seed in (1, 1, 2**63):
            proposer(server).propose(request(count=3, seed=seed))
    seeds = [asked["seed"] for asked in server.requests]
    assert seeds[:3] == seeds[3:6]
    assert len(set(seeds)) == 6
    assert all(0 <= seed < 2**31 for seed in seeds)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply('{"idea": "tile", "kernel": "#include', finish_reason="length"), "cut off"),
        (Reply("Use more threads."), "not a JSON object"),
        (Reply('{"idea": "tile"}'), "no kernel"),
        (Reply('{"idea": "tile", "kernel": "  \\n"}'), "no kernel"),
        (Reply('{"idea": "tile", "kernel": ["int x;"]}'), "no kernel"),
        (Reply('{"idea": "tile", "kernel": "\\ud800"}'), "not a JSON object"),
        (Reply("overloaded", status=503), "overloaded"),
    ],
)
def test_an_answer_without_a_kernel_is_told_and_paid_for(reply: Reply, reason: str) -> None:
    with ScriptedServer(reply, kernel_replies()[0]) as server:
        proposals = proposer(server, max_attempts=1).propose(request(count=2))
    assert len(proposals.kernels) == 1
    assert reason in proposals.failure
    assert proposals.usage.tokens == (120 if reply.status != 200 else 240)


def test_an_endpoint_that_cannot_be_used_is_an_error() -> None:
    with (
        ScriptedServer(Reply("no such model", status=404)) as server,
        pytest.raises(ModelError, match="no such model"),
    ):
        proposer(server).propose(request())


@pytest.mark.parametrize(("measured", "origin"), [(True, "(measured)"), (False, "not measured")])
def test_the_prompt_holds_the_facts(measured: bool, origin: str) -> None:
    with ScriptedServer(*kernel_replies()) as server:
        proposer(server).propose(request(measured=measured))
    user = server.requests[0]["messages"][1]["content"]
    for fact in (
        PROBLEM.summary,
        "narrow: R=8000, C=120: x[8000, 120], y[8000, 120]",
        "1e-08 + 0.0001 * |expected|",
        FAKE_DEVICE.name,
        PARENT.strip(),
        "6.1 ms",
        "1.5 times as fast as the reference",
        origin,
    ):
        assert fact in user


def test_it_keeps_the_contract_and_its_quote() -> None:
    prices: dict[str, Any] = {
        "usd_per_million_input_tokens": 1.0,
        "usd_per_million_output_tokens": 4.0,
    }
    with ScriptedServer(Reply("", finish_reason="error")) as server:
        part = proposer(server, max_output_tokens=20, max_attempts=2, **prices)
        assert isinstance(part, Proposer)
        quote = part.quote(request(count=3))
        usage = part.propose(request(count=3)).usage
    assert set(quote) == {Resource.PROPOSAL_TOKENS, Resource.PROPOSAL_USD}
    assert 0 < usage.tokens <= quote[Resource.PROPOSAL_TOKENS]
    assert 0 < usage.usd <= quote[Resource.PROPOSAL_USD]


def test_a_real_model_is_asked_and_whatever_it_says_is_a_value(small_model: str) -> None:
    part = LlmProposer(base_url=small_model, model="SmolLM2-135M", max_output_tokens=40)
    proposals = part.propose(request())
    assert len(proposals.kernels) + bool(proposals.failure) == 1
    assert proposals.usage.input_tokens > 300
    assert 0 < proposals.usage.output_tokens <= 40
    assert proposals.usage.tokens <= part.quote(request())[Resource.PROPOSAL_TOKENS]
    assert proposals.usage.seconds > 0


class TestLlmProposer(ProposerContract):
    def setup_method(self) -> None:
        self.server = ScriptedServer(*kernel_replies()).__enter__()

    def teardown_method(self) -> None:
        self.server.__exit__()

    def make(self) -> LlmProposer:
        return proposer(self.server)
