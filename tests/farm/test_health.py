"""A slot's health: its noise, its memory, and whether two nodes agree."""

from __future__ import annotations

from kernelcast.farm._health import Health, disagree
from kernelcast.testing import SyntheticBackend, synthetic_kernels, synthetic_problem
from kernelcast.types import MEMORY_ERROR, Failure, FailureKind, Measurement


def measurement(noise_log2: float | None = 0.01, **fields: object) -> Measurement:
    kernels = synthetic_kernels(12)
    results = (SyntheticBackend().measure(synthetic_problem(), kernel, 0) for kernel in kernels)
    timed = next(result for result in results if result.timing is not None)
    return timed.model_copy(update={"noise_log2": noise_log2, **fields})


def failed(kind: FailureKind) -> Measurement:
    return measurement(timing=None, failure=Failure(kind=kind, message="an example"))


def test_the_first_check_says_what_is_usual() -> None:
    health = Health()
    assert health.see(measurement(0.2))
    assert not health.see(measurement(0.2)), "the same noise is the same check"
    assert health.see(measurement(0.5))
    assert health.reason == ""


def test_noise_that_grows_makes_a_slot_sick_until_it_is_as_before() -> None:
    health = Health()
    health.see(measurement(0.1))
    assert not health.see(measurement(0.31))
    assert health.reason == "its noise is 24.0%, and 7.2% was usual"
    assert not health.see(measurement(0.9))
    assert health.reason
    assert health.see(measurement(0.1))
    assert health.reason == ""


def test_less_than_a_per_cent_is_never_drift() -> None:
    health = Health()
    health.see(measurement(0.0001))
    assert health.see(measurement(0.01))


def test_much_noise_that_stays_the_same_becomes_usual() -> None:
    health = Health()
    health.see(measurement(0.1))
    assert [health.see(measurement(noise)) for noise in (0.9, 0.5, 0.52, 0.51)] == [0, 0, 0, 1]
    assert health.see(measurement(0.6))


def test_another_problem_has_its_own_noise() -> None:
    health = Health()
    health.see(measurement(0.1))
    assert health.see(measurement(0.9, problem_id="another"))


def test_a_memory_error_makes_a_slot_sick_until_its_next_good_check() -> None:
    health = Health()
    health.see(measurement())
    assert not health.see(measurement(conditions=(MEMORY_ERROR,)))
    assert health.reason == MEMORY_ERROR
    assert health.see(measurement())


def test_what_two_nodes_cannot_both_be_right_about() -> None:
    first = measurement()
    assert first.timing is not None

    def faster(log2: float, noise_log2: float = 0.01) -> Measurement:
        timing = first.timing
        assert timing is not None
        changed = timing.model_copy(update={"log2_speedup": timing.log2_speedup + log2})
        return measurement(noise_log2, timing=changed)

    assert not disagree(first, faster(0.2))
    assert disagree(first, faster(0.3))
    assert disagree(first, faster(-0.3))
    assert not disagree(first, faster(0.3, noise_log2=0.1))
    assert disagree(first, failed(FailureKind.CRASH))
    assert disagree(failed(FailureKind.WRONG_RESULT), first)
    assert not disagree(first, failed(FailureKind.TIMEOUT))
    assert not disagree(failed(FailureKind.CRASH), failed(FailureKind.WRONG_RESULT))


def test_an_unknown_noise_is_no_check_and_excuses_nothing() -> None:
    health = Health()
    assert not health.see(measurement(None))
    assert health.see(measurement(0.2))
    first = measurement(None)
    assert first.timing is not None
    far = first.timing.model_copy(update={"log2_speedup": first.timing.log2_speedup + 0.3})
    assert disagree(first, measurement(None, timing=far))
    assert not disagree(first, measurement(0.1, timing=far))
