from __future__ import annotations

import importlib
import json
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast import dataset
from kernelcast.backends.replay import (
    UNRECORDED_DEVICE_S,
    Recorded,
    Recording,
    ReplayBackend,
    space_problem,
)
from kernelcast.canonical import canonical_parameters, kernel_id
from kernelcast.errors import SetupError
from kernelcast.events import Measured, RunSpec
from kernelcast.farm.local import LocalFarm
from kernelcast.forecasters.trees import TreesForecaster
from kernelcast.parts import Parts
from kernelcast.policies import MeasureAll, Selective
from kernelcast.proposers.pool import PoolProposer
from kernelcast.protocols import Policy
from kernelcast.search import Search
from kernelcast.store import Store
from kernelcast.strategies import Greedy
from kernelcast.testing import (
    FAKE_DEVICE,
    BackendContract,
    make_kernel,
    synthetic_problem,
)
from kernelcast.types import (
    Budget,
    Failure,
    FailureKind,
    Kernel,
    Parameters,
    Problem,
    Resource,
)

DATA = Path(os.environ.get("KERNELCAST_DATA", Path(__file__).parents[3] / "shared" / "data"))
CONVOLUTION = "hub/convolution_milo(4096x4096,15x15)"
A100 = "NVIDIA A100-PCIE-40GB"

SEED = synthetic_problem().seed_source
BROKEN, WRONG = "this is no program", SEED.replace("2.0f", "3.0f")
FAILURES = [
    Failure(kind=FailureKind.COMPILE_ERROR, message="expected a declaration"),
    Failure(kind=FailureKind.WRONG_RESULT, message="y[0] is 3, not 2"),
]


def texts() -> Recording:
    entries = [
        Recorded(1e-3, None, 1e-6, compile_s=0.5, benchmark_s=2.0),
        Recorded(None, FAILURES[0], compile_s=0.25),
        Recorded(None, FAILURES[1], compile_s=0.5, benchmark_s=0.0),
    ]
    ids = [kernel_id(source, "cpp") for source in (SEED, BROKEN, WRONG)]
    return Recording.from_rows(
        zip(ids, entries, strict=True),
        problem="synthetic",
        device=FAKE_DEVICE,
        language="cpp",
        source=SEED,
        reference=kernel_id(SEED, "cpp"),
    )


class TestReplayBackend(BackendContract):
    tie_log2 = 0.0

    def make(self) -> Any:
        return ReplayBackend(texts())

    def problem(self) -> Problem:
        return space_problem(texts())

    def broken_source(self) -> str:
        return BROKEN


ONE: Parameters = {"A": 1, "B": "x"}
BANG = Failure(kind=FailureKind.CRASH, message="bang")
PAIRS: list[tuple[str | Parameters, Recorded]] = [
    (ONE, Recorded(8e-3, std_s=8e-5)),
    ({"A": 2, "B": "x"}, Recorded(2e-3, std_s=2e-5)),
    ({"A": 1, "B": "y"}, Recorded(failure=BANG)),
    ({"A": 4, "B": "x"}, Recorded(4e-3)),
]


def configurations(
    rows: Sequence[tuple[str | Parameters, Recorded]] = PAIRS, reference: Parameters = ONE
) -> Recording:
    """Four configurations of A and B; {"A": 2, "B": "y"} was never recorded."""
    return Recording.from_rows(
        rows,
        problem="pairs",
        device=FAKE_DEVICE,
        language="cuda",
        source="__global__ void k() {}\n",
        reference=reference,
    )


def member(recording: Recording, parameters: Parameters) -> Kernel:
    problem = space_problem(recording)
    assert problem.template is not None
    source = problem.template.render(parameters)
    language = problem.language
    return Kernel(
        id=kernel_id(source, language), language=language, source=source, parameters=parameters
    )


def test_what_was_recorded_comes_back_exactly() -> None:
    recording = configurations()
    backend, problem = ReplayBackend(recording), space_problem(recording)
    measured = backend.measure(problem, member(recording, {"A": 2, "B": "x"}), 1)
    assert measured.timing is not None
    assert measured.timing.runtime_s == 2e-3
    assert measured.timing.reference_runtime_s == 8e-3
    assert measured.timing.log2_speedup == 2.0
    # Both times are known to 1%: 1.96 * sqrt(2) * 1% either side.
    assert measured.timing.high - 2.0 == pytest.approx(math.log2(1.0277), rel=0.02)
    assert 2.0 - measured.timing.low == pytest.approx(measured.timing.high - 2.0)
    assert measured.noise_log2 == pytest.approx(measured.timing.high - 2.0)
    assert measured == backend.measure(problem, member(recording, {"A": 2, "B": "x"}), 2)


def test_failures_keep_their_kind_and_only_compile_errors_show_without_running() -> None:
    recording = configurations()
    backend, problem = ReplayBackend(recording), space_problem(recording)
    kernel = member(recording, {"A": 1, "B": "y"})
    measured = backend.measure(problem, kernel, 0)
    assert measured.failure == BANG
    assert measured.timing is None
    assert backend.inspect(problem, kernel).failure is None


def test_recorded_device_seconds_are_charged_and_a_constant_where_there_are_none() -> None:
    recording = texts()
    backend, problem = ReplayBackend(recording), space_problem(recording)
    charged = [
        backend.measure(problem, make_kernel(source), 0).device_s
        for source in (SEED, BROKEN, WRONG)
    ]
    assert charged == [2.5, 0.25, 0.5]
    assert backend.quote(problem) == {Resource.MEASUREMENTS: 1, Resource.DEVICE_S: 2.5}
    assert backend.inspect(problem, make_kernel(SEED)).compile_s == 0.5

    unpriced = configurations()
    kernel = member(unpriced, {"A": 4, "B": "x"})
    measured = ReplayBackend(unpriced).measure(space_problem(unpriced), kernel, 0)
    assert measured.device_s == UNRECORDED_DEVICE_S


def test_the_seed_kernel_is_the_reference_with_or_without_its_parameters() -> None:
    recording = configurations()
    backend, problem = ReplayBackend(recording), space_problem(recording)
    named = member(recording, {"A": 1, "B": "x"})
    assert named.source == problem.seed_source
    bare = named.model_copy(update={"parameters": None})
    assert backend.measure(problem, bare, 0) == backend.measure(problem, named, 0)


def test_a_kernel_that_was_never_recorded_is_a_broken_set_up() -> None:
    recording = configurations()
    backend, problem = ReplayBackend(recording), space_problem(recording)
    for stranger in (member(recording, {"A": 2, "B": "y"}), make_kernel("void other() {}")):
        for ask in (backend.inspect, lambda p, k: backend.measure(p, k, 0)):
            with pytest.raises(SetupError, match=r"never recorded .*'pool'"):
                ask(problem, stranger)


def test_another_problem_is_a_broken_set_up() -> None:
    backend = ReplayBackend(configurations())
    with pytest.raises(SetupError, match="recording of 'pairs', not of 'synthetic'"):
        backend.measure(synthetic_problem(), make_kernel(SEED), 0)


def test_another_recording_is_another_toolchain() -> None:
    """Otherwise the measurement cache would answer for it."""
    same, other = configurations(), configurations([*PAIRS, ({"A": 2, "B": "y"}, Recorded(1e-3))])
    assert ReplayBackend(same).toolchain == ReplayBackend(configurations()).toolchain
    assert ReplayBackend(same).toolchain != ReplayBackend(other).toolchain


def test_the_problem_spans_the_recorded_values() -> None:
    template = space_problem(configurations()).template
    assert template is not None
    assert template.parameters == {"A": (1, 2, 4), "B": ("x", "y")}
    assert list(configurations().configurations)[1] == {"A": 2, "B": "x"}
    assert configurations().best_s == 2e-3
    assert space_problem(texts()).template is None


def test_a_reference_without_a_time_is_refused() -> None:
    references: list[Parameters] = [{"A": 1, "B": "y"}, {"A": 2, "B": "y"}]
    for reference in references:
        with pytest.raises(SetupError, match="no time for its reference"):
            configurations(reference=reference)


def test_a_recorded_kernel_is_timed_or_failed() -> None:
    for runtime_s, failure in ((None, None), (1.0, FAILURES[0])):
        with pytest.raises(ValueError, match="either a runtime or a failure"):
            Recorded(runtime_s, failure)


def test_a_kernel_recorded_several_times_has_its_median_time() -> None:
    entries = [Recorded(9e-3), Recorded(1e-3), Recorded(failure=BANG), Recorded(3e-3)]
    recording = configurations([(ONE, entry) for entry in entries])
    assert recording.entries[canonical_parameters(ONE)].runtime_s == 3e-3


@given(st.dictionaries(st.text(max_size=3), st.integers(-(2**40), 2**40) | st.text(max_size=3)))
def test_the_key_knows_a_configuration_in_any_order(parameters: dict[str, int | str]) -> None:
    backwards: dict[str, float | str] = {
        name: value if isinstance(value, str) else float(value)
        for name, value in reversed(parameters.items())
    }
    assert canonical_parameters(backwards) == canonical_parameters(parameters)
    assert json.loads(canonical_parameters(parameters)) == parameters


def test_the_key_tells_configurations_apart() -> None:
    keys: list[Parameters] = [{"A": 1}, {"A": "1"}, {"A": 1.5}, {"B": 1}, {"A": 1, "B": 1}]
    assert len({canonical_parameters(each) for each in keys}) == len(keys)


# --------------------------------------------------------------------------- a real recording


@pytest.fixture(scope="module")
def convolution(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """The first 400 configurations of a real space, the reference among them."""
    parquet = pytest.importorskip("pyarrow.parquet", reason="rows need kernelcast[data]")
    if not (DATA / "tuner_benchmark_hub.parquet").is_file():
        pytest.skip(f"needs the measured data in {DATA}: set KERNELCAST_DATA to its folder")
    # The whole file takes a minute to import; one space of it, with its companions, a second.
    folder = tmp_path_factory.mktemp("space")
    wanted = [("problem", "=", CONVOLUTION), ("gpu", "=", A100)]
    for name in ("tuner_benchmark_hub.parquet", "tuner_costs.parquet"):
        parquet.write_table(parquet.read_table(DATA / name, filters=wanted), folder / name)
    (folder / "tuner_kernels.parquet").symlink_to((DATA / "tuner_kernels.parquet").resolve())
    import_shared = importlib.import_module("shared_rows").import_shared
    rows = import_shared(folder / "tuner_benchmark_hub.parquet")
    whole = dataset.recording(rows, CONVOLUTION, A100)
    assert len(whole.entries) == 4362
    first = dict(islice(whole.entries.items(), 400))
    return replace(whole, entries=first | {whole.reference: whole.entries[whole.reference]})


def search(recording: Recording, folder: Path, policy: Policy, budget: Budget) -> Search:
    parts = Parts(
        proposer=PoolProposer(list(recording.configurations)),
        forecaster=TreesForecaster(),
        policy=policy,
        strategy=Greedy(),
        farm=LocalFarm(ReplayBackend(recording)),
    )
    store = Store.open(folder / "store.db")
    found = Search(space_problem(recording), parts, store, spec=RunSpec(seed=1), name="replayed")
    found.run(budget)
    return found


@pytest.mark.slow
def test_a_search_over_a_real_space_finds_what_was_recorded(
    convolution: Recording, tmp_path: Path
) -> None:
    done = search(
        convolution, tmp_path, Selective(pool_size=16, turnover=4), Budget(measurements=30)
    )
    state = done.state
    assert state.measured == 30
    measured = [
        event.measurement
        for event in done.store.open_run("replayed").events("measured")
        if isinstance(event, Measured) and event.purpose == "search"
    ]
    charged = 0.0
    for each in measured:
        kernel = done.store.kernel(each.kernel_id)
        assert kernel.parameters is not None
        recorded = convolution.entries[canonical_parameters(kernel.parameters)]
        charged += recorded.device_s
        assert each.failure == recorded.failure
        assert (each.timing.runtime_s if each.timing else None) == recorded.runtime_s
    # Confirmations and the reference cost device seconds as well.
    assert state.spent[Resource.DEVICE_S] >= charged > 30 * 0.1
    best_s = min(each.timing.runtime_s for each in measured if each.timing is not None)
    reference_s = convolution.entries[convolution.reference].runtime_s
    assert reference_s is not None
    assert done.result.confirmed
    fraction = done.result.speedup * convolution.best_s / reference_s
    assert fraction == pytest.approx(convolution.best_s / best_s)
    assert 0.6 < fraction <= 1.0


@pytest.mark.slow
def test_measuring_everything_finds_the_optimum(convolution: Recording, tmp_path: Path) -> None:
    small = replace(
        convolution,
        entries=dict(islice(convolution.entries.items(), 40))
        | {convolution.reference: convolution.entries[convolution.reference]},
    )
    done = search(small, tmp_path, MeasureAll(pool_size=4), Budget())
    reference_s = small.entries[small.reference].runtime_s
    assert reference_s is not None
    assert done.result.speedup == pytest.approx(reference_s / small.best_s)
    # Every configuration but the seed's own, which was measured as the reference.
    assert done.state.measured == len(small.entries) - 1
