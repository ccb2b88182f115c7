"""Rows as questions to a forecaster."""

from __future__ import annotations

import pytest

from kernelcast import dataset
from kernelcast.types import FailureKind
from tests.test_dataset_recordings import UNTIMED, row, text

pytest.importorskip("pyarrow", reason="rows need kernelcast[data]")


def searched(step: int, log2: float | None, key: str, **values: object) -> dataset.Row:
    known: dict[str, object] = {
        "row_id": f"step {step}",
        "search_id": "s",
        "step": step,
        "candidate_id": key,
        "candidate_source": f"def f():\n    return {int(key.encode().hex(), 16)}\n",
        "log2_speedup": log2,
        "status": "ok" if log2 is not None else FailureKind.CRASH,
    }
    if log2 is None:
        known["runtime_s"] = None
    return text(step, "", **(known | values))


SEARCH = [
    searched(3, 0.5, "c"),
    searched(0, 0.0, "start", candidate_source=None),
    searched(1, 1.0, "a"),
    searched(2, None, "b"),
    searched(4, 1.1, "a"),
    searched(5, 2.0, "d"),
]


def test_a_search_is_in_order_and_anchored_at_the_best_so_far() -> None:
    (found,) = dataset.recorded_trials(dataset.to_table(SEARCH))
    assert found.ordered
    assert found.search == "s"
    assert [each.query.candidate.id for each in found.trials] == ["a", "b", "c", "d"]
    anchors = [each.query.anchor_log2_speedup for each in found.trials]
    assert anchors == [0.0, 1.0, 1.0, 1.0]
    assert [each.query.anchor.id for each in found.trials][1:] == ["a", "a", "a"]
    assert [each.log2_speedup for each in found.trials] == [1.0, None, -0.5, 1.0]
    assert [each.ok for each in found.trials] == [True, False, True, True]
    learnt = [each.observation for each in found.trials]
    assert learnt[1] is not None
    assert learnt[1].measurement.failure is not None
    assert learnt[3] is not None
    assert learnt[3].measurement.log2_speedup == 2.0


def test_a_search_learns_its_reference_and_unpublished_kernels_but_no_repeats() -> None:
    (found,) = dataset.recorded_trials(dataset.to_table(SEARCH))
    reference = found.trials[0].query.anchor.id
    learnt = [[each.kernel.id for each in trial.news] for trial in found.trials]
    assert learnt == [[reference, "start"], ["a"], ["b"], ["c"]]
    first = found.trials[0].news[0].measurement
    assert first.log2_speedup == 0.0
    again = searched(6, 0.1, reference)
    (same,) = dataset.recorded_trials(dataset.to_table([*SEARCH, again]))
    assert same.trials == found.trials


def test_kernels_without_a_step_are_one_pool_or_a_search_in_random_order() -> None:
    rows = [
        searched(n, 1.0 * n, f"{n}", search_id=f"{n % 2}").model_copy(update={"step": None})
        for n in range(6)
    ]
    others = [row.model_copy(update={"row_id": f"of s {row.row_id}"}) for row in SEARCH]
    table = dataset.to_table([*rows, *others])
    pool, search = dataset.recorded_trials(table)
    assert (pool.ordered, pool.search, len(pool.trials)) == (False, None, 6)
    assert {trial.query.anchor_log2_speedup for trial in pool.trials} == {0.0}
    assert not any(trial.news for trial in pool.trials)
    shuffled, unchanged = dataset.recorded_trials(table, order="shuffled", seed=1)
    assert shuffled.ordered
    assert unchanged == search
    ids = [trial.query.candidate.id for trial in shuffled.trials]
    assert sorted(ids) == ["0", "1", "2", "3", "4", "5"] != ids
    (everything,) = dataset.recorded_trials(table, order="none")
    assert (everything.ordered, len(everything.trials)) == (False, 10)


def test_the_future_does_not_change_a_question() -> None:
    (whole,) = dataset.recorded_trials(dataset.to_table(SEARCH))
    (part,) = dataset.recorded_trials(dataset.to_table([each for each in SEARCH if each.step != 5]))
    assert part.trials == whole.trials[:3]


def test_the_reference_can_be_the_anchor_throughout() -> None:
    (found,) = dataset.recorded_trials(dataset.to_table(SEARCH), "reference")
    assert {each.query.anchor_log2_speedup for each in found.trials} == {0.0}
    assert [each.log2_speedup for each in found.trials] == [1.0, None, 0.5, 2.0]


def test_tuned_kernels_are_a_pool_without_order() -> None:
    rows = [row(1), row(2, runtime_s=2e-3, log2_speedup=1.0), row(3, device="another")]
    one, other = dataset.recorded_trials(dataset.to_table(rows))
    assert (one.ordered, one.device, other.device) == (False, "g", "another")
    assert [each.query.candidate.parameters for each in one.trials] == [{"A": 1}, {"A": 2}]
    assert one.trials[0].query.anchor.parameters == {"A": 1}
    assert one.trials[0].query.candidate.source == "int t;\n"


def test_right_but_untimed_counts_for_success_and_teaches_nothing() -> None:
    (found,) = dataset.recorded_trials(dataset.to_table([row(1, **UNTIMED)]))
    (only,) = found.trials
    assert only.ok
    assert only.log2_speedup is None
    assert only.observation is None
    assert only.query.anchor_runtime_s == 4e-3


def test_a_pair_of_a_pool_is_anchored_at_its_own_reference() -> None:
    """Published pairs of one problem have many anchors; one candidate may be in several."""

    def paired(row_id: str, candidate: str, reference: str, log2: float) -> dataset.Row:
        return searched(0, log2, candidate).model_copy(
            update={
                "row_id": row_id,
                "step": None,
                "reference_id": reference,
                "reference_source": f"# {reference}\n",
            }
        )

    rows = [
        paired("1", "a", "x", 1.0),
        paired("2", "a", "y", -1.0),
        paired("3", "b", "y", 2.0),
        paired("4", "a", "x", 1.1),
    ]
    (pool,) = dataset.recorded_trials(dataset.to_table(rows))
    assert [each.row_id for each in pool.trials] == ["1", "2", "3"], "a repeated pair counts once"
    anchors = [each.query.anchor for each in pool.trials]
    assert [each.id for each in anchors] == ["x", "y", "y"]
    assert [each.source for each in anchors] == ["# x\n", "# y\n", "# y\n"]
    assert [each.log2_speedup for each in pool.trials] == [1.0, -1.0, 2.0]


MODULE = "import torch\n\n\nclass Model(torch.nn.Module):\n    pass\n"


def test_a_plain_reference_says_what_is_computed() -> None:
    """As the model that ships was taught: the reference beside the anchor, read as Python."""
    row_of = searched(1, 1.0, "a", reference_source=MODULE, language="triton")
    (found,) = dataset.recorded_trials(dataset.to_table([row_of]))
    query = found.trials[0].query
    assert query.problem.oracle_source == query.anchor.source == MODULE
    assert query.anchor.language == "python"
    kernel = MODULE + "@triton.jit\ndef f():\n    pass\n"
    written = searched(1, 1.0, "a", reference_source=kernel, language="triton")
    (found,) = dataset.recorded_trials(dataset.to_table([written]))
    query = found.trials[0].query
    assert query.problem.oracle_source == ""
    assert query.anchor.language == "triton"


def test_times_by_shape_are_learnt() -> None:
    details = '{"ms": [1.0, 4.0], "ref_ms": [2.0, 4.0]}'
    (found,) = dataset.recorded_trials(dataset.to_table([searched(1, 0.5, "a", details=details)]))
    learnt = found.trials[0].observation
    assert learnt is not None
    assert learnt.measurement.timing is not None
    cases = learnt.measurement.timing.cases
    assert [each.runtime_s for each in cases] == pytest.approx([1e-3, 4e-3])
    assert [each.reference_runtime_s for each in cases] == pytest.approx([2e-3, 4e-3])
