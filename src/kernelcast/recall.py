"""What earlier runs of a store measured, for a forecaster to remember.

A run recalls the latest runs that had ended when it began. It records which ones and how many of
their measurements, so that a resumed run remembers the same.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from kernelcast import events
from kernelcast.events import RunSpec
from kernelcast.store import Store
from kernelcast.types import Language, Observation, PastRun

_logger = logging.getLogger(__name__)
_TUNES = ("template", "tuner")  # proposers of configurations
_MOST_RUNS = 30  # that are looked at
_MOST_MEASUREMENTS = 150  # a second or two of reading


def tunes(spec: RunSpec) -> bool:
    """Return whether a run proposes configurations, which earlier runs say nothing about."""
    proposer = spec.components.get("proposer")
    return proposer is not None and proposer.name in _TUNES


def recallable(store: Store, device_id: str, language: Language) -> dict[str, int]:
    """Return how many measurements to recall of each run, the latest run first.

    Only ended runs on the device, in the language, with written kernels are recalled: the
    configurations of a template say nothing about how a model writes. A run that was not written
    here is left out, which is logged.
    """
    recalled: dict[str, int] = {}
    left = _MOST_MEASUREMENTS
    for info in sorted(store.runs(), key=lambda run: -run.created_at)[:_MOST_RUNS]:
        if not left:
            break
        run = store.open_run(info.name)
        state, started = run.state, run.state.started
        if started is None or not state.ended or not state.measured:
            continue
        if started.device.id != device_id or started.problem.language != language:
            continue
        if "proposer" not in started.spec.components or tunes(started.spec):
            continue
        if not run.is_own:
            _logger.warning("Nothing is learnt from run %s: it was %s.", run.name, run.written)
            continue
        recalled[info.name] = min(state.measured, left)
        left -= recalled[info.name]
    return recalled


def past_runs(store: Store, recalled: Mapping[str, int]) -> list[PastRun]:
    """Return the measurements that are recalled, the earliest run first.

    Raises:
        StoreError: One of the runs is no longer as it was written here.
    """
    past = []
    for name, count in list(recalled.items())[::-1]:
        run = store.open_run(name)
        run.check_own()
        started = run.state.started
        assert started is not None
        measured = [
            event.measurement
            for event in run.events("measured")
            if isinstance(event, events.Measured)
            and event.purpose == "search"
            and not event.cached  # the run that made it may be recalled too
            and event.measurement.device_id == started.device.id
        ][:count]
        kernels = run.kernels([measurement.kernel_id for measurement in measured])
        observations = [
            Observation(kernel=kernel, measurement=measurement, writer=started.spec.writer)
            for kernel, measurement in zip(kernels, measured, strict=True)
        ]
        past.append(
            PastRun(
                problem=started.problem, device=started.device, observations=tuple(observations)
            )
        )
    return past
