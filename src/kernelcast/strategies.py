"""Which kernels of the archive become parents. Pure functions of the archive and a seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernelcast.types import Node


@dataclass(frozen=True)
class Greedy:
    """The fastest kernels; with chance `explore`, any kernel of the archive instead."""

    explore: float = 0.2
    name: str = "greedy"

    def select(self, archive: Sequence[Node], count: int, seed: int) -> list[str]:
        """Parents, the fastest first but where it explores; none twice."""
        rng = np.random.default_rng(seed)
        ranked = sorted(archive, key=lambda node: (-node.log2_speedup, node.kernel_id))
        chosen: list[str] = []
        while ranked and len(chosen) < count:
            place = int(rng.integers(len(ranked))) if rng.random() < self.explore else 0
            chosen.append(ranked.pop(place).kernel_id)
        return chosen


@dataclass(frozen=True)
class Puct:
    """PUCT with max-reward backup, as the paper searches.

    score = Q + c * scale * P * sqrt(1 + T) / (1 + n), with rewards as speedups: Q the best child's
    reward (its own while it has none), scale the spread of rewards, P a prior by rank, n the
    expansions of the node and its descendants, T all expansions. Parents chosen together are
    never of one lineage.
    """

    exploration: float = 1.0
    name: str = "puct"

    def select(self, archive: Sequence[Node], count: int, seed: int) -> list[str]:
        """Parents, the highest score first; `seed` plays no part."""
        del seed
        nodes = {node.kernel_id: node for node in archive}
        rewards = {node.kernel_id: 2.0**node.log2_speedup for node in archive}
        scale = max(rewards.values()) - min(rewards.values())
        ranked = sorted(archive, key=lambda node: (-node.log2_speedup, node.kernel_id))
        rank_sum = len(ranked) * (len(ranked) + 1) / 2
        below = _expansions_below(nodes)
        total = sum(node.visits for node in archive)
        scores: dict[str, float] = {}
        for rank, node in enumerate(ranked):
            key = node.kernel_id
            value = rewards[key] if node.best_child is None else 2.0**node.best_child
            prior = (len(ranked) - rank) / rank_sum
            bonus = self.exploration * scale * prior * math.sqrt(1 + total) / (1 + below[key])
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
