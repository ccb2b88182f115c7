"""Which kernels of the archive become parents. Pure functions of archive, seed and stagnation.

A kernel whose speed was only forecast counts by the lower end of what it may be: doubt is no
reward. All answer stagnation, `stale` measurements without a new best, once it has outlasted their
`patience`: they look further afield, the further the longer it lasts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernelcast.types import Node, content_hash


@dataclass(frozen=True)
class Greedy:
    """The fastest kernels; with chance `explore`, any kernel of the archive instead."""

    explore: float = 0.2
    patience: int = 16
    name: str = "greedy"

    def select(
        self, archive: Sequence[Node], count: int, seed: int, *, stale: int = 0
    ) -> list[str]:
        """Parents, the fastest first but where it explores; none twice."""
        rng = np.random.default_rng(seed)
        ranked = _ranked(archive)
        explore = 1.0 - (1.0 - self.explore) ** _restlessness(stale, self.patience)
        chosen: list[str] = []
        while ranked and len(chosen) < count:
            place = int(rng.integers(len(ranked))) if rng.random() < explore else 0
            chosen.append(ranked.pop(place).kernel_id)
        return chosen


@dataclass(frozen=True)
class Puct:
    """PUCT with max-reward backup, as the paper searches.

    score = Q + c * scale * P * sqrt(1 + T) / (1 + n), with rewards as speedups: Q the best child's
    reward (its own while it has none), scale the spread of rewards, P a prior by rank, n the
    expansions of the node and its descendants, T all expansions. Stagnation raises c. Parents
    chosen together are never of one lineage.
    """

    exploration: float = 1.0
    patience: int = 16
    name: str = "puct"

    def select(
        self, archive: Sequence[Node], count: int, seed: int, *, stale: int = 0
    ) -> list[str]:
        """Parents, the highest score first; `seed` plays no part."""
        del seed
        nodes = {node.kernel_id: node for node in archive}
        ranked = _ranked(archive)
        rewards = {node.kernel_id: 2.0 ** _sure_log2(node) for node in archive}
        scale = max(rewards.values()) - min(rewards.values())
        values = _best_children(nodes)
        rank_sum = len(ranked) * (len(ranked) + 1) / 2
        below = _expansions_below(nodes)
        total = sum(node.visits for node in archive)
        exploration = self.exploration * _restlessness(stale, self.patience)
        scores: dict[str, float] = {}
        for rank, node in enumerate(ranked):
            key = node.kernel_id
            value = 2.0 ** values[key] if key in values else rewards[key]
            prior = (len(ranked) - rank) / rank_sum
            bonus = exploration * scale * prior * math.sqrt(1 + total) / (1 + below[key])
            scores[key] = value + bonus
        chosen: list[str] = []
        barred: set[str] = set()
        for key in sorted(scores, key=lambda key: (-scores[key], key)):
            lineage = _lineage(nodes, key)
            if key in barred or any(other in lineage for other in chosen):
                continue
            chosen.append(key)
            barred.update(lineage)
            if len(chosen) == count:
                break
        return chosen


@dataclass(frozen=True)
class Islands:
    """MAP-Elites on a few islands: of each kind of kernel the fastest, and no kind forgotten.

    A kernel's island is that of its first ancestor below the seed, as far as the archive reaches;
    an island that nobody has settled begins at the seed. On it, the cells of `Node.behaviour` keep
    their fastest kernel each, and a cell is drawn by its speed and by how little was made of it.
    Parents chosen together come from neighbouring islands, in turn. Stagnation restarts from the
    least visited cell. Without compile-only evidence all behave alike: an island is then one cell.
    """

    islands: int = 4
    patience: int = 16
    name: str = "islands"

    def __post_init__(self) -> None:
        """Refuse a world without land."""
        if self.islands < 1:
            raise ValueError(f"islands must be at least 1, not {self.islands}")

    def select(
        self, archive: Sequence[Node], count: int, seed: int, *, stale: int = 0
    ) -> list[str]:
        """One parent an island, in turn from the island that the seed names; none twice."""
        rng = np.random.default_rng(seed)
        nodes = {node.kernel_id: node for node in archive}
        homes = {key: self._home(nodes, key) for key in nodes}
        chosen: list[str] = []
        for turn in range(min(count, len(nodes))):
            left = [node for node in archive if node.kernel_id not in chosen]
            here = [node for node in left if homes[node.kernel_id] == (seed + turn) % self.islands]
            unsettled = here or [node for node in left if homes[node.kernel_id] is None]
            chosen.append(self._draw(unsettled or left, rng, stale).kernel_id)
        return chosen

    def _home(self, nodes: dict[str, Node], key: str) -> int | None:
        """The island of a kernel; none is the seed's."""
        settlers = [each for each in _lineage(nodes, key) if nodes[each].origin != "seed"]
        return int(content_hash(settlers[-1])[:8], 16) % self.islands if settlers else None

    def _draw(self, members: Sequence[Node], rng: np.random.Generator, stale: int) -> Node:
        cells: dict[tuple[int, ...], list[Node]] = {}
        for node in _ranked(members):
            cells.setdefault(node.behaviour, []).append(node)
        ordered = [cells[key] for key in sorted(cells)]
        visits = np.array([sum(node.visits for node in cell) for cell in ordered], dtype=float)
        speeds = np.array([_sure_log2(cell[0]) for cell in ordered])
        if rng.random() >= 1.0 / _restlessness(stale, self.patience):
            return ordered[int(np.lexsort((-speeds, visits))[0])][0]
        weights = 2.0 ** (speeds - speeds.max()) / np.sqrt(1.0 + visits)
        return ordered[int(rng.choice(len(ordered), p=weights / weights.sum()))][0]


@dataclass(frozen=True)
class BestOfN:
    """Always the seed: independent samples, the baseline that any search must beat."""

    name: str = "best_of_n"

    def select(
        self, archive: Sequence[Node], count: int, seed: int, *, stale: int = 0
    ) -> list[str]:
        """The seed alone; where it is gone, what is nearest to one."""
        del count, seed, stale
        known = {node.kernel_id for node in archive}
        root = min(
            archive,
            key=lambda node: (node.origin != "seed", node.parent_id in known, node.kernel_id),
        )
        return [root.kernel_id]


def _sure_log2(node: Node) -> float:
    """The speed that is safe to count on: a forecast by its lower end."""
    return node.log2_speedup - node.std_log2


def _ranked(archive: Sequence[Node]) -> list[Node]:
    return sorted(archive, key=lambda node: (-_sure_log2(node), node.kernel_id))


def _restlessness(stale: int, patience: int) -> float:
    """1 while new bests come, then growing with how many times over patience is used up."""
    return max(1.0, stale / max(patience, 1))


def _best_children(nodes: dict[str, Node]) -> dict[str, float]:
    """Log2 speedup of each kernel's best child; what was evicted counts where none is left."""
    best: dict[str, float] = {}
    for node in nodes.values():
        if node.parent_id in nodes:
            best[node.parent_id] = max(best.get(node.parent_id, -math.inf), _sure_log2(node))
    for key, node in nodes.items():
        if key not in best and node.best_child is not None:
            best[key] = node.best_child
    return best


def _lineage(nodes: dict[str, Node], key: str) -> list[str]:
    """The node and its ancestors that are still in the archive."""
    line: list[str] = []
    current: str | None = key
    while current is not None and current in nodes:
        line.append(current)
        current = nodes[current].parent_id
    return line


def _expansions_below(nodes: dict[str, Node]) -> dict[str, int]:
    totals = dict.fromkeys(nodes, 0)
    for key, node in nodes.items():
        if node.visits:
            for ancestor in _lineage(nodes, key):
                totals[ancestor] += node.visits
    return totals
