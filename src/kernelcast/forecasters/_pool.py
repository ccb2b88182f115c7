"""Kernels that are asked about together, of which none is measured: each is seen beside the others.

What sets a kernel apart from the rest of its pool tells more of its place than its text alone. So
does the number of others that are like it: a search comes back to what was fast.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kernelcast.forecasters._features import (
    ROWS_AT_ONCE,
    Counts,
    Digest,
    SourceFeatures,
    digest,
    likenesses,
)
from kernelcast.forecasters._gaussian import evenly
from kernelcast.types import Kernel, Query

Floats = NDArray[np.float64]

_MOST_OTHERS = 256  # with which each is compared
_LIKENESSES = ("mean", "most", "above 90", "above 97", "size", "near")


@dataclass(frozen=True)
class Pool:
    """The texts of all candidates and anchors of some queries, by kernel id."""

    digests: Mapping[str, Digest]

    @classmethod
    def of(cls, queries: Sequence[Query]) -> Pool:
        """Read each text once."""
        kernels = {
            kernel.id: (kernel, query.problem.entry)
            for query in queries
            for kernel in (query.candidate, query.anchor)
            if kernel.source
        }
        # Whatever the order of asking, the same others are compared.
        return cls(
            {
                name: digest(kernel.source, kernel.language, entry)
                for name, (kernel, entry) in sorted(kernels.items())
            }
        )

    @cached_property
    def _places(self) -> Mapping[str, int]:
        return {name: place for place, name in enumerate(self.digests)}

    def place(self, kernel: Kernel) -> int:
        """The kernel's row; -1 if it has no text."""
        return self._places.get(kernel.id, -1)

    @staticmethod
    def columns(features: SourceFeatures) -> tuple[str, ...]:
        """The names of the columns of `rows`."""
        about = (f"about {name}" for name in features.static_columns)
        return (*about, *(f"pool likeness {name}" for name in _LIKENESSES))

    def rows(self, features: SourceFeatures) -> Iterator[Floats]:
        """Yield one row a text, in blocks: its distance from the pool's mean, and its likenesses.

        The last column is the share of the others that are near, each by how near it is.
        """
        digests = tuple(self.digests.values())
        blocks = [digests[at : at + ROWS_AT_ONCE] for at in range(0, len(digests), ROWS_AT_ONCE)]
        total = known = np.zeros(len(features.static_columns))
        for block in blocks:
            static = np.stack([features.static(read) for read in block])
            total = total + np.nansum(static, axis=0)
            known = known + np.sum(~np.isnan(static), axis=0)
        mean = total / np.maximum(known, 1)
        chosen = evenly(len(digests), _MOST_OTHERS)
        others = np.stack([digests[place].pair_counts for place in chosen.tolist()])
        for number, block in enumerate(blocks):
            itself = np.equal.outer(np.arange(len(block)) + number * ROWS_AT_ONCE, chosen)
            static = np.stack([features.static(read) for read in block])
            size = np.full(len(block), np.log2(len(digests)))
            yield np.column_stack((static - mean, *_likenesses(block, others, itself, size)))


def _likenesses(
    block: Sequence[Digest], others: Counts, itself: NDArray[np.bool_], size: Floats
) -> tuple[Floats, ...]:
    """The columns of `_LIKENESSES`; `itself` marks the texts that are among the others."""
    alike = likenesses(np.stack([read.pair_counts for read in block]), others)
    alike[itself] = 0.0
    count = np.maximum(itself.shape[1] - itself.sum(axis=1), 1)
    near = np.where(itself, 0.0, np.exp(20.0 * (alike - 1.0)))
    return (
        alike.sum(axis=1) / count,
        alike.max(axis=1),
        np.sum(alike > 0.9, axis=1) / count,
        np.sum(alike > 0.97, axis=1) / count,
        size,
        near.sum(axis=1) / count,
    )
