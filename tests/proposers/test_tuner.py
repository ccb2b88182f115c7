"""The proposer follows its run: what is told decides, and a resumed run is told the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kernelcast import SetupError, Tuner
from kernelcast.canonical import canonical_parameters
from kernelcast.events import Measured, Proposed, RunSpec
from kernelcast.farm.local import LocalFarm
from kernelcast.forecasters.roofline import RooflineForecaster
from kernelcast.forecasters.trees import DeviceTimes
from kernelcast.parts import Parts
from kernelcast.policies import MeasureAll
from kernelcast.proposers.tuner import TunerProposer
from kernelcast.search import Search
from kernelcast.store import Store
from kernelcast.strategies import Puct
from kernelcast.testing import (
    ProposerContract,
    SyntheticBackend,
    make_request,
    synthetic_problem,
)
from kernelcast.types import Budget, Evidence, Failure, FailureKind, Kernel, Problem


class TestTunerProposer(ProposerContract):
    def make(self) -> Any:
        return TunerProposer()


class Strict(SyntheticBackend):
    """Compiles no kernel whose `A` is 4 or more."""

    def inspect(self, problem: Problem, kernel: Kernel) -> Evidence:
        evidence = super().inspect(problem, kernel)
        if kernel.parameters is None or int(kernel.parameters["A"]) < 4:
            return evidence
        failure = Failure(kind=FailureKind.COMPILE_ERROR, message="too much shared memory")
        return evidence.model_copy(update={"failure": failure})


def parts(backend: SyntheticBackend | None = None) -> Parts:
    farm = LocalFarm(backend or SyntheticBackend())
    return Parts(TunerProposer(), RooflineForecaster(), MeasureAll(), Puct(), farm)


def story(search: Search) -> list[tuple[str, str]]:
    told = []
    for event in search.log.events():
        if isinstance(event, Proposed):
            told.append(("proposed", event.kernel_id))
        elif isinstance(event, Measured):
            told.append((event.purpose, event.measurement.kernel_id))
    return told


def test_it_proposes_what_a_tuner_suggests() -> None:
    template = synthetic_problem().template
    assert template is not None
    tuner = Tuner(template, device=make_request(1).device.name, seed=4)
    request = make_request(3).model_copy(update={"run_seed": 4})
    proposed = [kernel.parameters for kernel in TunerProposer().propose(request).kernels]
    assert proposed == [trial.configuration for trial in tuner.suggest(3)]


def test_what_became_a_candidate_is_not_proposed_again() -> None:
    proposer, request = TunerProposer(), make_request(2)
    first = proposer.propose(request).kernels
    assert proposer.propose(request).kernels == first
    proposer.admit(first)
    assert not [kernel for kernel in proposer.propose(request).kernels if kernel in first]
    # What brought nothing new is passed over.
    fruitless = request.model_copy(update={"fruitless": 1, "count": 1})
    assert proposer.propose(fruitless).kernels == proposer.propose(request).kernels[1:]


def test_what_does_not_compile_is_learnt_without_a_measurement(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.db") as store:
        spec = RunSpec(seed=3, reuse=False, inspect=True)
        search = Search(synthetic_problem(), parts(Strict()), store, spec=spec, name="run")
        search.run(Budget(measurements=24))
        proposed = [search.log.kernel(key) for kind, key in story(search) if kind == "proposed"]
    refuted = [int((kernel.parameters or {})["A"]) >= 4 for kernel in proposed]
    # Half of the space does not compile. The tuner sees it after some tries.
    assert any(refuted)
    assert sum(refuted[12:]) <= 0.2 * len(refuted[12:])


@pytest.mark.parametrize(
    ("make", "inspects"), [(SyntheticBackend, False), (Strict, True)], ids=["plain", "inspecting"]
)
def test_a_resumed_search_goes_on_as_one_that_was_not_disturbed(
    make: type[SyntheticBackend], inspects: bool, tmp_path: Path
) -> None:
    spec = RunSpec(seed=3, reuse=False, inspect=inspects)
    with Store.open(tmp_path / "unbroken.db") as store:
        unbroken = Search(synthetic_problem(), parts(make()), store, spec=spec, name="run")
        unbroken.run(Budget(measurements=16))
        expected = story(unbroken)
        tried = [
            key
            for kind, key in expected
            if kind == "search" and unbroken.log.kernel(key).parameters
        ]
        assert len(set(tried)) == 16
    with Store.open(tmp_path / "broken.db") as store:
        broken = Search(synthetic_problem(), parts(make()), store, spec=spec, name="run")
        broken.begin(Budget(measurements=16))
        backend = make()
        for _ in range(9):
            job = broken.ask()
            assert job is not None
            broken.tell(job, backend.measure(broken.problem, job.kernel, job.seed, job.effort))
        broken.ask()  # in flight when the process ends
    with Store.open(tmp_path / "broken.db") as store:
        resumed = Search.resume(store, "run", parts=parts(make()))
        resumed.run(Budget(measurements=16))
        assert story(resumed) == expected


def test_times_on_other_devices_lead() -> None:
    template = synthetic_problem().template
    assert template is not None
    points = [canonical_parameters(point) for point in template.configurations()]
    times = {key: float(number) / 100 for number, key in enumerate(reversed(points))}
    proposer = TunerProposer(lambda *_: [DeviceTimes("NVIDIA A100", times)])
    (kernel,) = proposer.propose(make_request(1)).kernels
    assert kernel.parameters == json.loads(points[-1])


def test_a_problem_without_a_template_is_told() -> None:
    problem = synthetic_problem().model_copy(update={"template": None})
    with pytest.raises(SetupError, match="has no template"):
        TunerProposer().propose(make_request(1, problem=problem))
