"""Ordering a pool of kernels and measuring it, as `rank` does with one pool or with many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kernelcast import dataset
from kernelcast.cli.common import run_watched
from kernelcast.cli.forecast import ask
from kernelcast.cli.tune import tuned_forecasts
from kernelcast.events import RunSpec
from kernelcast.judge.ranking import Ranking
from kernelcast.parts import Parts, read_run
from kernelcast.proposers.pool import PoolProposer
from kernelcast.search import Result, Search
from kernelcast.store import Store
from kernelcast.types import Budget, Device, Evidence, Forecast, Kernel, Parameters, Problem

_KEYS = ("seed", "forecaster", "backend", "policy", "strategy", "farm")


@dataclass(frozen=True)
class Ordered:
    """A pool in order, what forecast it, and what compiling it showed, by kernel id."""

    ranking: Ranking
    spec: RunSpec
    forecaster: str
    note: str
    evidence: Mapping[str, Evidence]


@dataclass(frozen=True)
class Ordering:
    """How pools are ordered.

    Attributes:
        settings: Of the run that would measure them.
        model: Options of a language model.
        rows: Files of rows from which the default forecaster learns.
        trees: The default forecaster's model, if it is not the one that ships.
        compiles: Whether kernels are compiled first.
        quiet: Show no progress.
    """

    settings: Mapping[str, Any]
    model: Mapping[str, Any]
    rows: Sequence[str] = ()
    trees: Path | None = None
    compiles: bool = True
    quiet: bool = False

    def order(self, pool: dataset.Pool, device: Device) -> Ordered:
        """Forecast the kernels of a pool and order them."""
        settings = dict(self.settings)
        named = settings.get("forecaster", settings.get("forecaster.name", "trees"))
        if named == "trees":
            learnt = {"forecaster.model": str(self.trees)} if self.trees else {}
            settings = {"forecaster.history": list(self.rows), **learnt, **settings}
        spec = read_run(settings, problem=pool.problem, model=self.model, known=_KEYS).spec
        # Kernels with equal forecasts are ordered by chance, not by name.
        order = np.random.default_rng(spec.seed).permutation(len(pool.kernels)).tolist()
        kernels = tuple(pool.kernels[at] for at in order)
        shuffled = replace(pool, kernels=kernels)
        evidence: dict[str, Evidence] = {}
        configured = bool(kernels) and all(kernel.parameters is not None for kernel in kernels)
        if named == "trees" and configured:
            name, note = "tuner", "not compiled: these are configurations, not written kernels"
            forecasts: Sequence[Forecast] = tuned_forecasts(
                shuffled, device, list(self.rows), spec.seed
            )
        else:
            forecaster = spec.components["forecaster"]
            asked = ask(forecaster, shuffled, device, compiles=self.compiles, quiet=self.quiet)
            name, note, forecasts = asked.forecaster.name, asked.note, asked.forecasts
            evidence = {
                query.candidate.id: query.evidence for query in asked.queries if query.evidence
            }
        ranking = Ranking.of([pool.labels[at] for at in order], kernels, forecasts)
        return Ordered(ranking, spec, name, note, evidence)


def measure(
    problem: Problem,
    wanted: Sequence[Kernel | Parameters],
    spec: RunSpec,
    budget: Budget,
    store: str,
    *,
    quiet: bool,
) -> Result:
    """Measure kernels in this order, as a run; the policy may leave some out."""
    built = Parts.build(spec.components, problem)
    parts = replace(built, proposer=PoolProposer(wanted, ordered=True))
    with Store.open(store) as opened:
        live = Search(problem, parts, opened, spec=spec)
        return run_watched(live, budget, f"{problem.name} ({live.name})", quiet=quiet)
