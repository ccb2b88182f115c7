"""Which candidates Helion's search would measure: by its random forest, and by our forecasts.

A population is drawn from a recorded space: configurations that were measured, and candidates. Both
searches are Helion's own classes. They learn the measured times and keep a tenth of the candidates,
as in a generation of Helion's default search. The recall is the share of the fastest candidates
that they keep.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from _data import Floats, Space
from _result import cannot_run
from track_t import spaces

try:
    import torch
    from helion import Config
    from helion.autotuner import EnumFragment, IntegerFragment, LFBOTreeSearch, PowerOfTwoFragment
    from helion.autotuner.base_search import PopulationMember
    from helion.autotuner.external import _ExternalKernelAdapter, create_user_config_spec

    from kernelcast.integrations.helion import KernelcastSearch
except ImportError:
    cannot_run("Helion is missing: pip install 'helion>=1.5,<1.6' torch")

MEASURED, CANDIDATES, KEPT, FASTEST = 100, 200, 20, 10
TUNED_ON = ("convolution", "expdist", "hotspot", "KTT_convolution")
"""Problems on which the adapter's constants were chosen; no population is drawn from them."""
_RESAMPLED = 10_000


def compare(seeds: Sequence[int]) -> dict[str, Any]:
    """Return the mean recall of both, with the 95% interval of the difference over spaces."""
    by_space: dict[str, dict[str, float]] = {}
    for space in spaces():
        if space.label.startswith(TUNED_ON):
            continue
        recalls = np.array([recalls_of(space, seed) for seed in seeds])
        ours, forest = recalls.mean(axis=0).tolist()
        by_space[space.label] = {"kernelcast": ours, "random_forest": forest}
    means = np.array([list(each.values()) for each in by_space.values()])
    ours, forest = means.mean(axis=0).tolist()
    return {
        "helion": {
            "kernelcast": ours,
            "random_forest": forest,
            "difference": _interval(means[:, 0] - means[:, 1]),
            "populations": len(by_space) * len(seeds),
            "by_space": by_space,
        }
    }


def recalls_of(space: Space, seed: int) -> tuple[float, float]:
    """The recall of our search, and of Helion's, on one population."""
    rng = np.random.default_rng([seed, 5])
    drawn = rng.choice(len(space.keys), MEASURED + CANDIDATES, replace=False).tolist()
    measured, candidates = drawn[:MEASURED], drawn[MEASURED:]
    fastest = set(sorted(candidates, key=lambda index: float(space.runtime_ms[index]))[:FASTEST])
    kept = [chosen(cls, space, measured, candidates) for cls in (KernelcastSearch, LFBOTreeSearch)]
    ours, forest = (len(fastest.intersection(each)) / FASTEST for each in kept)
    return ours, forest


def chosen(cls: Any, space: Space, measured: Sequence[int], candidates: Sequence[int]) -> list[int]:
    """The candidates that a search class of Helion keeps, having measured others."""
    values = {name: {each[name] for each in space.configurations} for name in space.parameters}
    tunables = {name: _fragment(list(values[name])) for name in space.parameters}
    spec = create_user_config_spec(tunables)
    kernel = _ExternalKernelAdapter(spec, lambda _: print, (), device=torch.device("cpu"))
    search = cls(kernel, ())
    members = {index: _member(search, space, index) for index in (*measured, *candidates)}
    for index in measured:
        member = members[index]
        member.perfs.append(float(space.runtime_ms[index]))
        encoded = search.config_gen.encode_config(member.flat_values)
        search._append_training_sample(encoded, member.perf, member.config, member.fn, member)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of scikit-learn about its own threads
        search._fit_surrogate()
        kept = search._surrogate_select([members[index] for index in candidates], KEPT)
    index_of = {id(members[index]): index for index in candidates}
    return [index_of[id(member)] for member in kept]


def _member(search: Any, space: Space, index: int) -> Any:
    point = space.configurations[index]
    config = Config(**{name: point[name] for name in space.parameters})
    return PopulationMember(print, [], search.config_gen.flatten(config), config)


def _fragment(values: list[Any]) -> Any:
    """What a Helion kernel would declare: powers of two as such, other numbers as integers."""
    if not all(isinstance(value, int) for value in values):
        return EnumFragment(tuple(sorted(values, key=str)))
    low, high = min(values), max(values)
    if low > 0 and all(value.bit_count() == 1 for value in values):
        return PowerOfTwoFragment(low, high)
    return IntegerFragment(low, high)


def _interval(differences: Floats) -> list[float]:
    rng = np.random.default_rng(0)
    drawn = rng.choice(differences, (_RESAMPLED, len(differences)))
    low, high = np.quantile(drawn.mean(axis=1), (0.025, 0.975))
    return [float(low), float(high)]
