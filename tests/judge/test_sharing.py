"""Arms are served the same where they ask the same, and never what another arm learnt."""

from __future__ import annotations

from pathlib import Path

from kernelcast.judge.sharing import SharedProposer
from kernelcast.proposers.pool import PoolProposer
from kernelcast.proposers.template import TemplateProposer
from kernelcast.tape import Tape
from kernelcast.testing import (
    make_kernel,
    make_request,
    synthetic_kernels,
)
from kernelcast.types import (
    Attempt,
    Claim,
    ProposalRequest,
    Proposals,
    Resource,
    Spend,
    Usage,
)


def shared(seed: int = 0) -> SharedProposer:
    return SharedProposer(TemplateProposer(), seed, Tape(Proposals))


def ids(answer: Proposals) -> list[str]:
    return [kernel.id for kernel in answer.kernels]


def test_children_are_the_same_however_many_are_asked_for_at_once() -> None:
    parent, other = synthetic_kernels(2)
    at_once = ids(shared().propose(make_request(20, seed=1, parent=parent)))
    assert len(set(at_once)) == 20
    one_by_one = shared()
    found = []
    for step in range(20):
        one_by_one.propose(make_request(3, seed=step, parent=other))  # what else an arm does
        found += ids(one_by_one.propose(make_request(1, seed=50 + step, parent=parent)))
    assert found == at_once


def test_seeds_and_parents_have_children_of_their_own() -> None:
    parent, other = synthetic_kernels(2)
    first = ids(shared(0).propose(make_request(20, parent=parent)))
    assert first != ids(shared(1).propose(make_request(20, parent=parent)))
    assert first != ids(shared(0).propose(make_request(20, parent=other)))


def test_a_small_pool_is_served_to_its_last_member() -> None:
    members = synthetic_kernels(25)
    proposer = SharedProposer(PoolProposer(members), 0, Tape(Proposals))
    seen: set[str] = set()
    for ordinal in range(200):
        request = make_request(2, seed=ordinal).model_copy(
            update={"fruitless": 0 if len(seen) < 10 else 12}
        )
        seen |= set(ids(proposer.propose(request)))
    assert seen == {kernel.id for kernel in members}


def test_an_ordered_pool_keeps_its_order_and_ends() -> None:
    members = synthetic_kernels(5)
    proposer = SharedProposer(PoolProposer(members, ordered=True), 0, Tape(Proposals))
    parent = synthetic_kernels(7)[-1]
    found = ids(proposer.propose(make_request(2)))
    found += ids(proposer.propose(make_request(1, parent=parent)))
    last = proposer.propose(make_request(9))
    assert found + ids(last) == [kernel.id for kernel in members]
    assert proposer.propose(make_request(1)).exhausted


class Writer:
    """A slow proposer that never gives the same answer twice, for a price."""

    name = "writer"
    concurrency = 1
    repairs = False

    def __init__(self) -> None:
        self.asked = 0

    def quote(self, request: ProposalRequest) -> Spend:
        return {Resource.PROPOSAL_TOKENS: 100.0, Resource.PROPOSAL_USD: 1.0}

    def propose(self, request: ProposalRequest) -> Proposals:
        self.asked += 1
        kernel = make_kernel(f"int k{self.asked};")
        claims = {kernel.id: Claim(idea=f"idea {self.asked}")}
        usage = Usage(input_tokens=5, usd=0.25)
        return Proposals(kernels=(kernel,), claims=claims, usage=usage)


def test_what_a_model_wrote_is_served_to_the_other_arm_at_its_price(tmp_path: Path) -> None:
    writer, path = Writer(), tmp_path / "tape.jsonl"
    tape = Tape(Proposals, path)
    first, second = (SharedProposer(writer, 0, tape) for _ in range(2))
    answers = [first.propose(make_request(1)) for _ in range(2)]
    again = [second.propose(make_request(1, seed=9)) for _ in range(2)]
    assert again == answers
    assert writer.asked == 2
    assert again[1].usage.usd == 0.25
    assert again[1].claims
    third = second.propose(make_request(1))
    assert writer.asked == 3

    with path.open("a") as file:
        file.write('{"key": "torn')
    later = SharedProposer(writer, 0, Tape(Proposals, path))
    assert [later.propose(make_request(1)) for _ in range(3)] == [*answers, third]
    assert writer.asked == 3
    later.propose(make_request(1))
    assert len(Tape(Proposals, path)) == 4  # the torn line did not spoil the next
    assert SharedProposer(writer, 1, Tape(Proposals, path)).propose(make_request(1)) not in answers


def test_an_arm_is_not_served_what_was_written_from_anothers_measurements() -> None:
    def request(change: float) -> ProposalRequest:
        claim = Claim(idea="unroll")
        attempt = Attempt(claim=claim, outcome="measured", log2_change=change, measured=True)
        return make_request(1).model_copy(update={"history": (attempt,)})

    writer, tape = Writer(), Tape(Proposals)

    def asks(wish: ProposalRequest) -> Proposals:
        return SharedProposer(writer, 0, tape).propose(wish)

    plain, faster = asks(make_request(1)), asks(request(1.0))
    assert plain != faster
    assert asks(request(-1.0)) not in (plain, faster)
    assert asks(request(1.01)) == faster  # the same but for noise
    assert writer.asked == 3
    bold = asks(make_request(1).model_copy(update={"bold": True}))
    assert bold not in (plain, faster)
    assert SharedProposer(writer, 0, tape, "another").propose(make_request(1)) != plain
