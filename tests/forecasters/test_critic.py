from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kernelcast import scoring
from kernelcast.canonical import as_kernel
from kernelcast.certainty import consult
from kernelcast.events import Decided, Event, Forecasted, Measured, Proposed, RunSpec, RunStarted
from kernelcast.forecasters.cascade import CascadeForecaster
from kernelcast.forecasters.critic import CriticForecaster
from kernelcast.report.console import summary
from kernelcast.state import State
from kernelcast.testing import (
    FAKE_DEVICE,
    ForecasterContract,
    SyntheticBackend,
    make_kernel,
    make_query,
    synthetic_problem,
)
from kernelcast.types import (
    Budget,
    Claim,
    Decision,
    Emulated,
    Evidence,
    Failure,
    FailureKind,
    Forecast,
    Kernel,
    Language,
    Move,
    Problem,
)

PROBLEM = synthetic_problem()
SEED = PROBLEM.seed_source
LOOP = "  for (int64_t i = 0; i < N; ++i)"
THREADED = SEED.replace(LOOP, "#pragma omp parallel for\n" + LOOP)
UNROLLED = SEED.replace(LOOP, "#pragma GCC unroll 4\n" + LOOP)
TWICE = SEED.replace(f"{LOOP} y[i] = 2.0f * x[i];", f"{LOOP} y[i] = x[i];\n{LOOP} y[i] *= 2.0f;")
MIX = {"total": 100, "vector": 20, "ymm": 10, "zmm": 0, "memory": 30}


class TestCritic(ForecasterContract):
    def make(self) -> Any:
        return CriticForecaster()


def compiled(code_bytes: int = 400, failure: Failure | None = None, **mix: int) -> Evidence:
    counts = {} if failure else {**MIX, **mix}
    return Evidence(
        kernel_id="any",
        toolchain="g++",
        failure=failure,
        code_bytes=code_bytes,
        instructions=counts,
    )


def criticised(
    source: str,
    *moves: Move,
    anchor: str = SEED,
    before: Evidence | None = None,
    after: Evidence | None = None,
    forecaster: Any = None,
) -> Forecast:
    query = make_query(make_kernel(source), PROBLEM, 0.5).model_copy(
        update={
            "anchor": make_kernel(anchor),
            "anchor_evidence": before,
            "evidence": after,
            "claim": Claim(idea="it is faster", moves=moves),
        }
    )
    (answer,) = consult(forecaster or CriticForecaster(), [query])
    assert isinstance(answer, Forecast)
    return answer


def test_an_objection_is_a_narrow_tie_and_silence_a_guess_that_knows_nothing() -> None:
    objected = criticised(SEED, "vectorise")
    assert objected.objection == objected.rationale != ""
    assert objected.distribution.interval(0.9) == pytest.approx((0.0, 0.0), abs=0.05)
    silent = criticised(THREADED, "parallelise")
    assert silent.objection == silent.rationale == ""
    assert silent.distribution.mean() == pytest.approx(0.0)
    assert silent.distribution.std() > 1.5
    assert silent.p_ok == objected.p_ok == 1.0


@pytest.mark.parametrize(
    "source",
    [
        SEED,
        "// now with AVX-512\n" + SEED.replace("int64_t i", "int64_t i "),
        SEED.replace("float* x", "float* input").replace("x[i]", "input[i]"),
        SEED + "static int fast_path() { return 1; }\n",
    ],
    ids=["itself", "comment", "names", "never called"],
)
@pytest.mark.parametrize("moves", [(), ("vectorise",)])
def test_no_change_at_all_is_objected_to_whatever_is_claimed(
    source: str, moves: tuple[Move, ...]
) -> None:
    assert "nothing has changed" in criticised(source, *moves).objection


def test_the_same_code_is_no_change_unless_a_constant_or_anything_compiled_differs() -> None:
    rewritten = SEED.replace("2.0f * x[i]", "x[i] * 2.0f")
    same = criticised(rewritten, "other", before=compiled(), after=compiled())
    assert "same code" in same.objection
    assert not criticised(rewritten, before=compiled(), after=compiled(memory=31)).objection
    assert not criticised(rewritten, before=compiled(), after=compiled(416)).objection
    assert not criticised(rewritten, before=compiled()).objection
    for other in (
        SEED.replace("++i", "i += 1"),
        "#define STEP 1\n" + SEED.replace("++i", "i += STEP"),
        THREADED.replace("for\n", "for schedule(dynamic)\n"),
    ):
        assert not criticised(other, before=compiled(), after=compiled()).objection
    explicit = THREADED.replace("for\n", "for schedule(static)\n")
    same = criticised(explicit, anchor=THREADED, before=compiled(), after=compiled())
    assert "same code" in same.objection
    empty = Evidence(kernel_id="any", toolchain="t")
    assert not criticised(rewritten, before=empty, after=empty).objection


@pytest.mark.parametrize(
    ("mix", "objects"),
    [
        ({}, True),
        ({"vector": 18, "ymm": 8}, True),
        ({"vector": 20, "total": 120}, True),
        ({"vector": 21}, False),
        ({"vector": 20, "ymm": 12}, False),
        ({"vector": 12, "ymm": 0, "zmm": 12}, False),
        ({"vector": 20, "total": 80}, False),
    ],
    ids=["equal", "fewer", "diluted", "more", "wider", "widest", "larger share"],
)
def test_claimed_vectors_must_be_in_the_instructions(mix: Mapping[str, int], objects: bool) -> None:
    after = compiled(401, None, **mix)
    found = criticised(UNROLLED, "vectorise", before=compiled(), after=after)
    assert ("vector instructions" in found.objection) is objects


def test_claimed_threads_must_be_started() -> None:
    assert "starts threads" in criticised(UNROLLED, "parallelise").objection
    assert not criticised(THREADED, "parallelise").objection
    simd = SEED.replace(LOOP, "#pragma omp simd\n" + LOOP)
    assert criticised(simd, "parallelise").objection
    pooled = SEED.replace(LOOP, "  std::thread t([] {});\n  t.join();\n" + LOOP)
    assert not criticised("#include <thread>\n" + pooled, "parallelise").objection
    scheduled = THREADED.replace("for\n", "for schedule(dynamic)\n")
    assert not criticised(scheduled, "parallelise", anchor=THREADED).objection


@pytest.mark.parametrize("move", ["fuse", "fewer_passes"])
def test_claimed_fusion_must_save_a_loop(move: Move) -> None:
    other = TWICE.replace("y[i] = x[i]", "y[i] = x[i] + x[i]").replace("y[i] *= 2.0f", "y[i] *= 1")
    assert "2 loops, as before" in criticised(other, move, anchor=TWICE).objection
    assert not criticised(SEED, move, anchor=TWICE).objection
    # More loops may be the remainders of wider steps: that cannot be told.
    assert not criticised(TWICE, move).objection


def test_claimed_unrolling_must_make_more_code() -> None:
    for size, objects in ((400, True), (410, True), (600, False), (300, False)):
        after = compiled(size, memory=29)
        found = criticised(UNROLLED, "unroll", before=compiled(), after=after)
        assert bool(found.objection) is objects, size


CUDA_SEED = """#pragma kernelcast grid(N) block(32)
extern "C" __global__ void kernel(const float* x, float* y, int N) {
    y[blockIdx.x] = x[blockIdx.x];
}
"""


@pytest.mark.parametrize(
    ("move", "text"),
    [
        ("shared_memory", "__shared__ float tile[32];"),
        ("warp_shuffle", "float z = __shfl_down_sync(0xffffffffu, x[0], 1);"),
        ("tensor_cores", "nvcuda::wmma::mma_sync(a, b, c, a);"),
        ("async_copy", "__pipeline_memcpy_async(y, x, 16);"),
        ("precision", "double z = x[0];"),
    ],
)
def test_moves_of_gpus_must_be_in_the_source(move: Move, text: str) -> None:
    def objection(source: str, language: str, *moves: Move) -> str:
        seed, kernel = (as_kernel(each, language) for each in (CUDA_SEED, source))
        query = make_query(kernel, PROBLEM, 0.5).model_copy(
            update={"anchor": seed, "claim": Claim(idea="faster", moves=moves)}
        )
        return CriticForecaster().forecast([query])[0].objection

    changed = CUDA_SEED.replace("y[b", "y[1 * b")
    moved = CUDA_SEED.replace("    y[b", f"    {text}\n    y[b")
    assert objection(changed, "cuda", move)
    assert not objection(moved, "cuda", move)
    assert not objection(moved, "cuda", "unroll", move)
    # What a library, assembly or another compiler does is not seen.
    for hidden in ('asm volatile("x");', "cublasSgemm(h);"):
        assert not objection(changed.replace("    y[", f"    {hidden}\n    y["), "cuda", move)
    if move != "precision":
        assert not objection(changed.replace("__global__ ", ""), "cpp", move)


def test_claimed_coalescing_must_be_seen_by_the_emulator() -> None:
    def seen(sectors: float | None, used: float | None) -> Evidence:
        estimate = Emulated(
            case="main",
            runtime_s=1e-3,
            spread_log2=0.5,
            bound_by="memory",
            shares={},
            occupancy=1.0,
            limiter="threads",
            sectors_per_request=sectors,
            used_bytes=used,
            bank_conflicts=None,
            lane_efficiency=1.0,
            lines=(),
            exact=True,
            cpu_s=0.1,
        )
        return compiled().model_copy(update={"emulated": (estimate,)})

    changed = SEED.replace("2.0f", "3.0f")
    before = seen(8.0, 0.5)
    told = criticised(changed, "coalesce", before=before, after=seen(8.0, 0.5)).objection
    assert "50% of the bytes" in told
    for after in (seen(4.0, 0.5), seen(8.0, 1.0), seen(None, None), compiled()):
        assert not criticised(changed, "coalesce", before=before, after=after).objection


def test_what_cannot_be_checked_is_not_objected_to() -> None:
    assert not criticised(UNROLLED).objection
    assert not criticised(UNROLLED, "tile", "prefetch", "other").objection
    assert not criticised(UNROLLED, "vectorise", "unroll").objection
    failure = Failure(kind=FailureKind.COMPILE_ERROR, message="no")
    broken = compiled(failure=failure)
    assert not criticised(UNROLLED, "vectorise", before=compiled(), after=broken).objection


def test_a_false_claim_does_not_hide_what_makes_it_fast() -> None:
    """A kernel that says vectors and has threads is worth measuring; so is the reverse."""
    plain = compiled()
    assert not criticised(THREADED, "vectorise", before=plain, after=compiled(500)).objection
    wider = compiled(600, vector=60)
    assert not criticised(UNROLLED, "parallelise", before=plain, after=wider).objection
    # One claim of several that holds is enough.
    bigger = compiled(600)
    found = criticised(UNROLLED, "vectorise", "unroll", before=plain, after=bigger)
    assert not found.objection


@pytest.mark.parametrize(
    ("language", "before", "after"),
    [
        ("cuda", "__global__ void k(); void f() { k<<<1, 2>>>(); k<<<1, 2>>>(); }", 2),
        ("triton", "def f(x):\n    k[(4,)](x)\n    k[(8,)](x)\n", 2),
    ],
)
def test_launches_count_as_passes(language: Language, before: str, after: int) -> None:
    def kernel(source: str) -> Kernel:
        return Kernel(id=source, language=language, source=source)

    problem = Problem.unstated("p", language, before)
    query = make_query(kernel(before.replace("2", "3").replace("8", "16")), PROBLEM).model_copy(
        update={
            "problem": problem,
            "anchor": kernel(before),
            "claim": Claim(idea="one launch", moves=("fuse",)),
        }
    )
    (found,) = CriticForecaster().forecast([query])
    assert f"{after} launches, as before" in found.objection


def test_texts_that_were_not_published_are_not_compared() -> None:
    nameless = [Kernel(id=name, language="cpp", source="") for name in "ab"]
    query = make_query(nameless[0]).model_copy(update={"anchor": nameless[1]})
    assert not CriticForecaster().forecast([query])[0].objection


def test_other_parameters_of_one_text_are_another_kernel() -> None:
    tuned = [
        Kernel(id=str(value), language="cpp", source=SEED, parameters={"A": value})
        for value in (1, 2)
    ]
    query = make_query(tuned[0]).model_copy(update={"anchor": tuned[1]})
    assert not CriticForecaster().forecast([query])[0].objection


def test_the_cascade_names_it_first_and_hands_its_objection_on() -> None:
    cascade = CascadeForecaster()
    objected = criticised(UNROLLED, "parallelise", forecaster=cascade)
    assert "starts threads" in objected.objection
    assert [stage.forecaster for stage in objected.stages] == ["critic"]
    silent = criticised(THREADED, "parallelise", forecaster=cascade)
    assert not silent.objection
    assert [stage.forecaster for stage in silent.stages][:2] == ["critic", "roofline"]


def test_a_run_counts_how_often_an_objection_was_right() -> None:
    """Right: it failed, or is not faster than the anchor by more than noise."""
    seed = make_kernel(SEED)
    reference = SyntheticBackend().measure(PROBLEM, seed, 0)
    assert reference.timing is not None
    failure = Failure(kind=FailureKind.CRASH, message="gone")
    outcomes = [
        {"timing": reference.timing.model_copy(update={"log2_speedup": speed}), "failure": None}
        for speed in (0.5, 0.51, 0.6, 0.0)  # the anchor's is 0.5
    ] + [{"timing": None, "failure": failure}]
    objected = criticised(UNROLLED, "parallelise", forecaster=CascadeForecaster())
    audit = Decision(action="audit", score=0.1, reason="blind")
    state = State()
    started = RunStarted(
        spec=RunSpec(),
        problem=PROBLEM,
        device=FAKE_DEVICE,
        seed_kernel_id=seed.id,
        budget=Budget(),
    )
    events: list[Event] = [started, Measured(measurement=reference, purpose="reference")]
    for key, outcome in enumerate(outcomes):
        measured = reference.model_copy(update={"kernel_id": f"{key}", **outcome})
        met = scoring.judge(objected, measured, blind=True)
        events += [
            Proposed(kernel_id=f"{key}", parent_id=seed.id, proposer="p", request=key),
            Forecasted(kernel_id=f"{key}", forecast=objected),
            Decided(kernel_id=f"{key}", decision=audit),
            Measured(measurement=measured, purpose="search", calibration=met),
        ]
    for event in events:
        state.apply(event)
    critic = summary(state)["stages"]["critic"]
    assert critic["asked"] == critic["objected"] == critic["changed"] == 5
    assert (critic["objections_met"], critic["objections_right"]) == (5, 4)
    unknown = reference.model_copy(update={**outcomes[2], "noise_log2": None})
    met = scoring.judge(objected, unknown, blind=True)
    assert met is not None
    assert not met.objections, "a gain that may be noise says nothing about an objection"
