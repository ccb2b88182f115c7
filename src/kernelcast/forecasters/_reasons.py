"""Short reasons of a forecast: ranks on other devices, and the nearest measured configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from kernelcast.forecasters._encoding import Levels

Ranks = Mapping[str, int | None]
"""The rank of each configuration on a device, fastest first; None if it fails."""


def ranks_of(times: Mapping[str, float | None]) -> Ranks:
    """Rank configurations by their times; None is a failure."""
    timed = {key: time for key, time in times.items() if time is not None}
    ranks: dict[str, int | None] = dict.fromkeys(times)
    ranks |= {key: rank for rank, key in enumerate(sorted(timed, key=timed.__getitem__), 1)}
    return ranks


def reasons(
    asked: Mapping[str, Sequence[int]],
    measured: Levels,
    outcomes: Sequence[str],
    elsewhere: Mapping[str, Ranks],
) -> list[str]:
    """Return a reason for each configuration.

    Args:
        asked: The configurations by key, as levels of their parameters.
        measured: The levels of the measured ones, fastest first, so that the fastest of equally
            near ones is named.
        outcomes: What became of each, e.g. "took 2 ms".
        elsewhere: Ranks by device.
    """
    # Distances of 0 and 1 per parameter: small numbers take a quarter of the time.
    near = np.array(list(asked.values())).T.astype(np.int16)
    steps = np.zeros((len(asked), len(measured)), dtype=np.int16)
    for column, levels in zip(near, measured.T.astype(np.int16), strict=True):
        steps += column[:, None] != levels
    nearest = steps.argmin(axis=1).tolist() if outcomes else []
    texts = []
    for row, key in enumerate(asked):
        parts = _on_devices(key, elsewhere)
        if outcomes:
            at = nearest[row]
            parts.append(f"{steps[row, at]} parameters from one that {outcomes[at]}")
        texts.append("; ".join(parts) or "nothing is measured yet")
    return texts


def _on_devices(key: str, elsewhere: Mapping[str, Ranks]) -> list[str]:
    ranked = [
        (ranks[key], len(ranks), device) for device, ranks in elsewhere.items() if key in ranks
    ]
    failed = [device for rank, _, device in ranked if rank is None]
    places = sorted((rank / count, device) for rank, count, device in ranked if rank)
    top = [f"top {share:.1%} on {device}" for share, device in places[:2]]
    return top + [f"fails on {device}" for device in failed[:1]]
