from __future__ import annotations

from typing import Any

from kernelcast.strategies import Greedy, Puct
from kernelcast.testing import StrategyContract
from kernelcast.types import Node


class TestGreedy(StrategyContract):
    def make(self) -> Any:
        return Greedy()

    def test_takes_the_fastest_first(self) -> None:
        archive = [node("slow", -1.0), node("fast", 2.0), node("middle", 1.0)]
        assert Greedy(explore=0.0).select(archive, 2, seed=0) == ["fast", "middle"]

    def test_explores_as_often_as_told(self) -> None:
        archive = [node(f"{index:03}", float(-index)) for index in range(100)]
        chosen = [Greedy(explore=0.3).select(archive, 1, seed)[0] for seed in range(400)]
        elsewhere = sum(key != "000" for key in chosen)
        assert 80 <= elsewhere <= 160  # 30% of 400, four standard deviations around
        assert len(set(chosen)) > 30


class TestPuct(StrategyContract):
    def make(self) -> Any:
        return Puct()

    def test_without_exploration_the_best_child_counts(self) -> None:
        archive = [node("a", 0.0, best_child=3.0), node("b", 2.0), node("c", 1.0)]
        assert Puct(exploration=0.0).select(archive, 3, 0) == ["a", "b", "c"]

    def test_scores_as_the_formula_says(self) -> None:
        # Rewards 1 and 2: scale 1, priors 2/3 for b and 1/3 for a, T = 8.
        # a: 1 + c (1/3) 3 / 1 = 1 + c;  b: 2 + c (2/3) 3 / 9 = 2 + 2c/9;  equal at c = 9/7.
        archive = [node("a", 0.0), node("b", 1.0, visits=8)]
        assert Puct(exploration=9 / 7 - 0.01).select(archive, 1, 0) == ["b"]
        assert Puct(exploration=9 / 7 + 0.01).select(archive, 1, 0) == ["a"]

    def test_visits_below_a_node_count_for_it(self) -> None:
        # Alike but for a grandchild's visits; the tie would go to "a" by its name.
        archive = [
            node("a", 1.0),
            node("b", 1.0),
            node("a1", 0.0, parent="a"),
            node("a2", 0.0, parent="a1", visits=5),
        ]
        assert Puct().select(archive, 1, 0) == ["b"]

    def test_parents_chosen_together_are_of_different_lineages(self) -> None:
        archive = [
            node("root", 0.0),
            node("child", 3.0, parent="root"),
            node("grandchild", 2.9, parent="child"),
            node("other", 1.0),
        ]
        assert Puct(exploration=0.0).select(archive, 4, 0) == ["child", "other"]


def node(
    key: str,
    log2_speedup: float,
    *,
    parent: str | None = None,
    visits: int = 0,
    best_child: float | None = None,
) -> Node:
    return Node(
        kernel_id=key,
        parent_id=parent,
        log2_speedup=log2_speedup,
        origin="measured",
        visits=visits,
        best_child=best_child,
    )
