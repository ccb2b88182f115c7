"""A run's forecaster remembers what earlier runs of the store measured, also after a resume."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from kernelcast.errors import StoreError
from kernelcast.events import ComponentSpec, RunSpec
from kernelcast.farm.local import LocalFarm
from kernelcast.forecasters.roofline import RooflineForecaster
from kernelcast.parts import Parts
from kernelcast.policies import MeasureAll
from kernelcast.proposers.template import TemplateProposer
from kernelcast.recall import past_runs, recallable
from kernelcast.search import Search
from kernelcast.store import Store
from kernelcast.strategies import Puct
from kernelcast.testing import FAKE_DEVICE, SyntheticBackend, synthetic_problem
from kernelcast.types import Budget, PastRun

BY_MODEL = RunSpec(
    reuse=False, components={"proposer": ComponentSpec(name="llm", options={"model": "m-1"})}
)
BY_TEMPLATE = RunSpec(reuse=False, components={"proposer": ComponentSpec(name="template")})


class Witness(RooflineForecaster):
    """Keeps what it is given to remember."""

    def remember(self, runs: Sequence[PastRun]) -> None:
        object.__setattr__(self, "past", list(runs))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store.db")


def search(store: Store, name: str, spec: RunSpec = BY_MODEL) -> tuple[Search, Witness]:
    witness = Witness()
    parts = Parts(TemplateProposer(), witness, MeasureAll(), Puct(), LocalFarm(SyntheticBackend()))
    return Search(synthetic_problem(), parts, store, spec=spec, name=name), witness


def test_ended_runs_are_remembered_in_their_order(store: Store) -> None:
    for name in ("first", "second"):
        search(store, name)[0].run(Budget(measurements=4))
    third, witness = search(store, "third")
    third.begin(Budget(measurements=2))
    assert [len(run.observations) for run in witness.past] == [4, 4]  # type: ignore[attr-defined]
    writers = {each.writer for run in witness.past for each in run.observations}  # type: ignore[attr-defined]
    assert writers == {"m-1"}
    assert third.state.started is not None
    assert dict(third.state.started.recalled) == {"second": 4, "first": 4}


def test_a_run_of_configurations_remembers_nothing(store: Store) -> None:
    search(store, "first")[0].run(Budget(measurements=3))
    second, witness = search(store, "second", BY_TEMPLATE)
    second.begin(Budget(measurements=2))
    assert second.state.started is not None
    assert not second.state.started.recalled
    assert not hasattr(witness, "past")


def test_a_resumed_run_remembers_what_it_did_when_it_began(store: Store) -> None:
    search(store, "first")[0].run(Budget(measurements=3))
    began, before = search(store, "second")
    began.begin(Budget(measurements=2))
    began.log.release()
    search(store, "later")[0].run(Budget(measurements=5))
    _, after = search(store, "unused")
    Search.resume(
        store,
        "second",
        parts=Parts(TemplateProposer(), after, MeasureAll(), Puct(), LocalFarm(SyntheticBackend())),
    )
    assert after.past == before.past  # type: ignore[attr-defined]


def test_runs_that_teach_nothing_here_are_left_out(store: Store) -> None:
    search(store, "tuned", BY_TEMPLATE)[0].run(Budget(measurements=3))
    search(store, "going on")[0].begin(Budget(measurements=3))
    assert recallable(store, FAKE_DEVICE.id, "cpp") == {}
    search(store, "ended")[0].run(Budget(measurements=3))
    assert recallable(store, FAKE_DEVICE.id, "cpp") == {"ended": 3}
    assert recallable(store, "another device", "cpp") == {}
    assert recallable(store, FAKE_DEVICE.id, "cuda") == {}
    (run,) = past_runs(store, {"ended": 2})
    assert len(run.observations) == 2


def test_a_run_that_was_not_written_here_teaches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Store.open(tmp_path / "store.db") as store:
        search(store, "theirs")[0].run(Budget(measurements=3))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    with Store.open(tmp_path / "store.db") as store:
        search(store, "ours")[0].run(Budget(measurements=3))
        assert recallable(store, FAKE_DEVICE.id, "cpp") == {"ours": 3}
        assert "Nothing is learnt from run theirs: it was not written here." in caplog.text
        with pytest.raises(StoreError, match=r"run 'theirs' was not written here.*--trust-store"):
            past_runs(store, {"ours": 3, "theirs": 3})
        with pytest.raises(StoreError, match="--trust-store"):
            Search.resume(store, "theirs", parts=search(store, "unused")[0].parts)
