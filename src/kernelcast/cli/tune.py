"""The command that says which configurations to measure next, and forecasts that `rank` shares."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import click
from rich.text import Text

from kernelcast import dataset
from kernelcast.canonical import canonical_parameters
from kernelcast.certainty import tie
from kernelcast.cli.common import EXISTING_FILE, OUT, POSITIVE, json_option, option
from kernelcast.dataset.histories import open_history, read_times
from kernelcast.errors import SetupError
from kernelcast.report.tables import Report, table
from kernelcast.tuner import Outcome, RuntimeForecast, Tuner
from kernelcast.types import Budget, Device, FailureKind, Forecast, Parameters

_SHOWN_AFTER = (5, 10, 25, 50, 100, 200)


@click.command()
@click.argument("path", metavar="CACHE", type=EXISTING_FILE)
@option("--count -n", "Configurations to suggest.", POSITIVE, 5)
@option("--device", "Device that is measured on (default: the one in the cache).")
@option(
    "--history",
    "Times on other devices: rows (Parquet) or other caches (repeat).",
    EXISTING_FILE,
    multiple=True,
)
@option(
    "--restrict",
    "Condition on the space, e.g. 'block_x * block_y <= 1024' (repeat).",
    multiple=True,
    metavar="EXPRESSION",
)
@option("--replay", "Tune what the cache holds, as if nothing were measured, in N steps.", POSITIVE)
@option("--seed", "Seed of all choices.", int, 0)
@json_option
def tune(
    path: Path,
    count: int,
    device: str | None,
    history: Sequence[Path],
    restrict: tuple[str, ...],
    replay: int | None,
    seed: int,
    as_json: bool,
) -> None:
    """Say which configurations of CACHE to measure next, what they may gain, and when to stop.

    CACHE is a Kernel Tuner cache, finished or not, or a T1 specification. It names the space; what
    it holds is measured already. A cache does not hold its restrictions: state them. `--history`
    are times of the same kernel on other devices, which are believed as far as they agree with
    what is measured here. Forecasts are no measurements: intervals are 80%.

    \b
    Examples:
      kernelcast tune gemm_cache.json --restrict 'MWG * NWG <= 16384'
      kernelcast tune gemm_cache.json --history gemm_A100.json --history rows.parquet -n 10
      kernelcast tune gemm_cache.json --replay 50

    `--replay` shows how near to the fastest cached configuration so many measurements come.
    """
    space = dataset.read_space(path, restrictions=restrict, language="cuda", device=device)
    elsewhere = _times_elsewhere(space, history)
    if replay is not None:
        report = _replayed(space, elsewhere, replay, seed)
    else:
        name = space.device or "this device"
        known = {**elsewhere, name: space.seconds}
        tuner = Tuner(space.template, device=name, known=known, seed=seed)
        report = _suggested(space, tuner, count, sorted(elsewhere))
    report.show(OUT, as_json=as_json)


def _times_elsewhere(
    space: dataset.SpaceFile, history: Sequence[Path]
) -> dict[str, dict[str, float | None]]:
    """Return times on other devices than the space's own."""
    known = read_times(history, space.template.parameters, kernel=space.name)
    if history and not known:
        raise SetupError(f"--history has no times of {space.name!r} with its parameters: check it")
    known.pop(space.device or "", None)
    return known


def _suggested(
    space: dataset.SpaceFile, tuner: Tuner, count: int, elsewhere: Sequence[str]
) -> Report:
    """Report the next configurations, the best so far and why to stop."""
    trials = tuner.suggest(count)
    forecasts = tuner.forecast([trial.configuration for trial in trials])
    best, stop = tuner.best, tuner.stop_reason
    suggested = [_forecast_facts(forecast, best) for forecast in forecasts]
    facts = {
        "space": space.name,
        "device": space.device,
        "configurations": len(tuner.configurations),
        "measured": len(tuner.outcomes),
        "elsewhere": list(elsewhere),
        "best": best and {"configuration": dict(best.configuration), "seconds": best.seconds},
        "next": suggested,
        "stop_reason": stop,
    }
    head = (
        f"{space.name} on {space.device or 'a device'}: {len(tuner.configurations):,} "
        f"configurations, {len(tuner.outcomes):,} measured"
    )
    notes = [f"times of other devices: {', '.join(elsewhere)}"] if elsewhere else []
    if best is not None:
        notes.append(f"best so far: {_milliseconds(best.seconds)} {_label(best.configuration)}")
    columns = ("", "time", "80% interval", "speedup", "P(ok)", "configuration")
    shown = table(None, columns, left=(5,), yields=5)
    for number, forecast in enumerate(suggested, 1):
        low, high = forecast["interval_s"]
        speedup = forecast["speedup"]
        shown.add_row(
            str(number),
            f"~{_milliseconds(forecast['seconds'])}",
            f"{_milliseconds(low)} to {_milliseconds(high)}",
            "-" if speedup is None else f"~{speedup:.2f}x",
            f"{forecast['p_ok']:.2f}",
            _label(forecast["configuration"]),
        )
    last = f"stop: {stop}" if stop else f"measure these {len(suggested)}, then ask again"
    lines = [Text(head, style="bold"), *(Text(note, style="dim") for note in notes)]
    return Report(facts, [*lines, shown, Text(last)])


def tuned_forecasts(
    pool: dataset.Pool, device: Device, history: Sequence[str], seed: int
) -> list[Forecast]:
    """Forecast the configurations of a pool against its reference, by a tuner.

    Args:
        pool: The configurations, and what is known already.
        device: Device to forecast for.
        history: Files of rows of the problem on other devices.
        seed: Seed of the tuner.
    """
    reference = pool.reference
    own = {canonical_parameters(one.kernel.parameters or {}): one.measurement for one in pool.known}
    points = {canonical_parameters(k.parameters or {}): k.parameters or {} for k in pool.kernels}
    points |= {key: json.loads(key) for key in own}
    known: dict[str, dict[str, float | None]] = {
        device.name: {
            key: None if found.timing is None else found.timing.runtime_s
            for key, found in own.items()
        }
    }
    for times in open_history(history)(pool.problem, device) if history else ():
        known[times.device] = times.seconds
    tuner = Tuner(list(points.values()), device=device.name, known=known, seed=seed)
    against_s = pool.reference_s
    if math.isnan(against_s):
        # A reference that was never timed is forecast too; without one, the middle is speedup 1.
        is_there = canonical_parameters(reference.parameters or {}) in points
        alike = [reference.parameters or {}] if is_there else None
        against_s = median(forecast.seconds for forecast in tuner.forecast(alike))
    is_prior = not own and not any(points.keys() & times.keys() for times in known.values())
    failures = [found.failure.kind for found in own.values() if found.failure is not None]
    causes = Counter(failures or [FailureKind.CRASH])
    forecasts = []
    # The kernels come first in the space, in their order.
    answers = zip(pool.kernels, tuner.forecast(against_s=against_s), tuner.reasons(), strict=False)
    for kernel, forecast, why in answers:
        chance = 1.0 - forecast.p_ok
        told: dict[str, Any] = {
            "distribution": forecast.speedup,
            "failure": {kind: chance * n / causes.total() for kind, n in causes.items()},
            "rationale": why,
        }
        if kernel.id == reference.id or kernel.parameters == reference.parameters:
            # A space holds its reference, which may be its fastest kernel.
            told = {"distribution": tie(), "rationale": "the reference itself"}
        forecasts.append(
            Forecast(
                forecaster="tuner",
                anchor_id=reference.id,
                anchor_log2_speedup=0.0,
                is_prior=is_prior,
                **told,
            )
        )
    return forecasts


def _forecast_facts(forecast: RuntimeForecast, best: Outcome | None) -> dict[str, Any]:
    is_timed = best is not None and best.seconds is not None
    return {
        "configuration": dict(forecast.configuration),
        "seconds": forecast.seconds,
        "interval_s": list(forecast.interval_s),
        "speedup": 2.0 ** forecast.speedup.quantile(0.5) if is_timed else None,
        "p_ok": round(forecast.p_ok, 4),
    }


def _replayed(
    space: dataset.SpaceFile,
    elsewhere: Mapping[str, Mapping[str, float | None]],
    measurements: int,
    seed: int,
) -> Report:
    """Report what so many measurements of the cached configurations find."""
    outcomes = space.seconds
    times = [seconds for seconds in outcomes.values() if seconds is not None]
    if not times:
        raise SetupError("--replay needs a cache with times: this one holds none")
    tuner = Tuner(
        [json.loads(key) for key in outcomes],
        device=space.device,
        known=elsewhere,
        budget=Budget(measurements=min(measurements, len(outcomes))),
        seed=seed,
    )
    keys = {_label(json.loads(key)): key for key in outcomes}
    curve: list[float] = []
    while trials := tuner.suggest():
        seconds = outcomes[keys[_label(trials[0].configuration)]]
        tuner.report(trials[0], seconds=seconds, failed=seconds is None)
        best = tuner.best
        curve.append(0.0 if best is None or best.seconds is None else min(times) / best.seconds)
    facts = {
        "space": space.name,
        "device": space.device,
        "configurations": len(outcomes),
        "elsewhere": sorted(elsewhere),
        "fraction_of_the_optimum": [round(fraction, 4) for fraction in curve],
    }
    head = f"{space.name} on {space.device or 'a device'}, replayed: {len(outcomes):,} cached"
    points = [point for point in _SHOWN_AFTER if point < len(curve)] + [len(curve)]
    rows = [(str(point), f"{curve[point - 1]:.3f}") for point in points]
    columns = ("measurements", "best possible / best found")
    return Report(facts, [Text(head, style="bold"), table(None, columns, rows)])


def _label(configuration: Parameters) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(configuration.items()))


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.4g} ms"
