"""Strategies: they choose the parents. Pure functions of archive, seed and `stale`.

A kernel whose speed was only forecast counts by the lower end of its forecast. Once `stale`, the
number of measurements since the last new best, exceeds `patience`, strategies explore more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from kernelcast.types import Node, content_hash

_Floats = NDArray[np.float64]
_Rows = NDArray[np.intp]


@dataclass(frozen=True)
class Greedy:
    """The fastest kernels; with chance `explore`, any kernel of the archive instead."""

    explore: float = 0.2
    patience: int = 16
    name: str = "greedy"

    def select(
        self, archive: Sequence[Node], count: int, seed: int, *, stale: int = 0
    ) -> list[str]:
        """Return parents, the fastest first except where it explores."""
        rng = np.random.default_rng(seed)
        ranked = _ranked(archive)
        explore = 1.0 - (1.0 - self.explore) ** _exploration(stale, self.patience)
        chosen: list[str] = []
        while ranked and len(chosen) < count:
            place = int(rng.integers(len(ranked))) if rng.random() < explore else 0
            chosen.append(ranked.pop(place).kernel_id)
        return chosen


@dataclass(frozen=True)
class Puct:
    """PUCT with max-reward backup, as in the paper.

    score = Q + c * scale * P * sqrt(1 + T) / (1 + n). Rewards are speedups: Q is the best child's
    reward (without children the own), scale the range of rewards, P a prior by rank, n the
    expansions of the node and its descendants, T all expansions. c grows with `stale`. Parents
    chosen together are never of one lineage.
    """

    exploration: float = 1.0
    patience: int = 16
    name: str = "puct"

    def select(
        self, archive: Sequence[Node], count: int, seed: int, *, stale: int = 0
    ) -> list[str]:
        """Return parents, the highest score first; `seed` is not used."""
        del seed
        # In the order of their ids, so that a stable sort breaks ties by id.
        archive = sorted(archive, key=attrgetter("kernel_id"))
        place = {node.kernel_id: index for index, node in enumerate(archive)}
        parents = np.array([place.get(node.parent_id or "", -1) for node in archive])
        visits = np.array([node.visits for node in archive])
        sure_log2 = np.array([_sure_log2(node) for node in archive])
        prior = np.empty(len(archive))
        prior[np.argsort(-sure_log2, kind="stable")] = np.arange(len(archive), 0, -1)
        prior /= prior.sum()
        rewards = 2.0**sure_log2
        exploration = self.exploration * _exploration(stale, self.patience)
        bonus = exploration * (rewards.max() - rewards.min()) * math.sqrt(1 + visits.sum()) * prior
        best_log2 = _best_children(archive, parents, sure_log2)
        scores = 2.0**best_log2 + bonus / (1 + _expansions_below(parents, visits))
        chosen: list[int] = []
        barred: set[int] = set()
        for index in np.argsort(-scores, kind="stable").tolist():
            lineage = _lineage(parents, index)
            if index in barred or not lineage.isdisjoint(chosen):
                continue
            chosen.append(index)
            barred |= lineage
            if len(chosen) == count:
                break
        return [archive[index].kernel_id for index in chosen]


@dataclass(frozen=True)
class Islands:
    """MAP-Elites on a few islands: keeps the fastest kernel of each kind.

    The first ancestor below the seed decides a kernel's island; an empty island begins at the seed.
    Each cell of `Node.behaviour` keeps its fastest kernel, and fast, rarely visited cells are drawn
    more often. Parents chosen together come from successive islands. With a large `stale`, the
    least visited cell is chosen. Without compile-only evidence an island is one cell.
    """

    islands: int = 4
    patience: int = 16
    name: str = "islands"

    def __post_init__(self) -> None:
        """Check the number of islands."""
        if self.islands < 1:
            raise ValueError(f"islands must be at least 1, not {self.islands}")

    def select(
        self, archive: Sequence[Node], count: int, seed: int, *, stale: int = 0
    ) -> list[str]:
        """Return one parent per island, beginning with the island of the seed."""
        rng = np.random.default_rng(seed)
        nodes = {node.kernel_id: node for node in archive}
        homes = {key: self._home(nodes, key) for key in nodes}
        chosen: list[str] = []
        for turn in range(min(count, len(nodes))):
            left = [node for node in archive if node.kernel_id not in chosen]
            here = [node for node in left if homes[node.kernel_id] == (seed + turn) % self.islands]
            members = here or [node for node in left if homes[node.kernel_id] is None] or left
            chosen.append(self._draw(members, rng, stale).kernel_id)
        return chosen

    def _home(self, nodes: dict[str, Node], key: str) -> int | None:
        """Return the island of a kernel; the seed has none."""
        first, node = None, nodes.get(key)
        while node is not None and node.origin != "seed":
            first, node = node.kernel_id, nodes.get(node.parent_id or "")
        return None if first is None else int(content_hash(first)[:8], 16) % self.islands

    def _draw(self, members: Sequence[Node], rng: np.random.Generator, stale: int) -> Node:
        cells: dict[tuple[int, ...], list[Node]] = {}
        for node in _ranked(members):
            cells.setdefault(node.behaviour, []).append(node)
        ordered = [cells[key] for key in sorted(cells)]
        visits = np.array([sum(node.visits for node in cell) for cell in ordered], dtype=float)
        speeds = np.array([_sure_log2(cell[0]) for cell in ordered])
        if rng.random() >= 1.0 / _exploration(stale, self.patience):
            return ordered[int(np.lexsort((-speeds, visits))[0])][0]
        weights = 2.0 ** (speeds - speeds.max()) / np.sqrt(1.0 + visits)
        return ordered[int(rng.choice(len(ordered), p=weights / weights.sum()))][0]


@dataclass(frozen=True)
class BestOfN:
    """Always choose the seed: independent samples, the baseline of every search."""

    name: str = "best_of_n"

    def select(
        self, archive: Sequence[Node], count: int, seed: int, *, stale: int = 0
    ) -> list[str]:
        """Return the seed; if it is not in the archive, a kernel without a known parent."""
        del count, seed, stale
        known = {node.kernel_id for node in archive}
        root = min(
            archive,
            key=lambda node: (node.origin != "seed", node.parent_id in known, node.kernel_id),
        )
        return [root.kernel_id]


def _sure_log2(node: Node) -> float:
    """Return the speed, less one standard deviation if it is a forecast."""
    return node.log2_speedup - node.std_log2


def _ranked(archive: Sequence[Node]) -> list[Node]:
    return sorted(archive, key=lambda node: (-_sure_log2(node), node.kernel_id))


def _exploration(stale: int, patience: int) -> float:
    """Return how many times `patience` is exceeded, at least 1."""
    return max(1.0, stale / max(patience, 1))


def _best_children(archive: Sequence[Node], parents: _Rows, sure_log2: _Floats) -> _Floats:
    """Return the log2 speedup of each kernel's best child or best evicted child, else its own."""
    best = np.full(len(archive), -np.inf)
    is_child = parents >= 0
    np.maximum.at(best, parents[is_child], sure_log2[is_child])
    evicted = np.array([np.nan if n.best_child is None else n.best_child for n in archive])
    return np.where(np.isfinite(best), best, np.where(np.isnan(evicted), sure_log2, evicted))


def _lineage(parents: _Rows, index: int) -> set[int]:
    """Return a kernel and its ancestors in the archive, by their places."""
    line: set[int] = set()
    while index >= 0:
        line.add(index)
        index = int(parents[index])
    return line


def _expansions_below(parents: _Rows, visits: _Rows) -> _Floats:
    """Return how often each kernel and its descendants were expanded."""
    totals = np.zeros(len(parents))
    descendants = ancestors = np.flatnonzero(visits)
    while len(ancestors):
        totals += np.bincount(ancestors, weights=visits[descendants], minlength=len(totals))
        above = parents[ancestors]
        descendants, ancestors = descendants[above >= 0], above[above >= 0]
    return totals
