"""A strategy of one's own: parents are the winners of small tournaments.

pip install ./examples/tournament
kernelcast search softmax --strategy tournament
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernelcast import Node


@dataclass(frozen=True)
class Tournament:
    """Of `size` kernels drawn at random the fastest; of fewer while no new best is found."""

    size: int = 4
    patience: int = 16
    name: str = "tournament"

    def __post_init__(self) -> None:
        """Refuse what cannot be; the message reaches whoever wrote the search file."""
        if self.size < 1 or self.patience < 1:
            raise ValueError("size and patience are at least 1")

    def select(
        self, archive: Sequence[Node], count: int, seed: int, *, stale: int = 0
    ) -> list[str]:
        """The winners of as many tournaments as there are parents wanted; none plays on."""
        # The order of the archive means nothing, so it must not decide who is drawn.
        players = sorted(archive, key=lambda node: node.kernel_id)
        rng = np.random.default_rng(seed)
        # A smaller tournament is won by luck more often: that is how this strategy explores.
        size = max(1, self.size - stale // self.patience)
        winners: list[str] = []
        while players and len(winners) < count:
            drawn = rng.choice(len(players), size=min(size, len(players)), replace=False)
            # A speed that was only forecast counts by its lower end.
            best = max(drawn, key=lambda at: players[at].log2_speedup - players[at].std_log2)
            winners.append(players.pop(int(best)).kernel_id)
        return winners
