"""A run on the terminal: the live view while it searches, and its summary afterwards.

Forecasts are always marked; a forecast is never shown as a result.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from kernelcast.bins import DEFAULT_BINS
from kernelcast.events import Decided, Event, Measured
from kernelcast.report.tables import listing, table
from kernelcast.report.terminal import Terminal
from kernelcast.state import State
from kernelcast.types import Kernel, Parameters, Resource

_REFRESH_S = 0.25
_UNIFORM_HALF_BRIER = 0.5 * (1.0 - 1.0 / DEFAULT_BINS.count)
_PLAIN_EVERY_S = 5.0
_ENOUGH_FORECASTS = 20  # outcomes that make scores of forecasts meaningful


def summary(state: State) -> dict[str, Any]:
    """Return the state of a run as plain data, for `--json`."""
    calibration = state.calibration
    return {
        "problem": state.started.problem.name if state.started else None,
        "best": _best(state),
        "best_elsewhere": {
            device: {
                "kernel_id": other.best,
                "speedup": round(2.0**other.best_log2, 4),
                "measured": other.measured,
            }
            for device, other in state.elsewhere.items()
        },
        "considered": state.considered,
        "duplicates": state.duplicates,
        "measured": state.measured - state.cached,
        "reused": state.cached,
        "confirmations": state.confirmations,
        "retracted": state.retracted,
        "trusted": state.trusted,
        "dropped": state.dropped,
        "audited": state.audited,
        "failures": dict(state.failures),
        "first_failures": {
            kind: {"kernel_id": first.kernel_id, "message": first.failure.message}
            for kind, first in state.first_failures.items()
        },
        "spent": {resource.value: round(amount, 6) for resource, amount in state.spent.items()},
        "budget": state.budget.model_dump(exclude_none=True),
        "noise_log2": state.noise_log2,
        "calibration": {
            "forecasts_met": calibration.count,
            "of_these_blind": calibration.blind,
            "crps_log2": calibration.crps,
            "half_brier": calibration.half_brier,
            "half_brier_of_a_uniform_guess": _UNIFORM_HALF_BRIER,
            "expected_calibration_error": calibration.expected_calibration_error,
            "coverage_of_80_percent_interval": calibration.coverage_80,
        },
        "stages": {
            name: {
                **sums.model_dump(exclude={"crps_sum"}),
                "crps_log2": sums.crps_sum / sums.met if sums.met else None,
            }
            for name, sums in state.stages.items()
        },
        "ended": state.ended,
    }


def _best(state: State) -> dict[str, Any]:
    """Return the best kernel: speedup and milliseconds, with intervals if it was timed."""
    node = state.incumbent
    best: dict[str, Any] = {
        "kernel_id": node.kernel_id,
        "speedup": round(2.0**node.log2_speedup, 4),
        "measured_twice": node.confirmed,
        "origin": node.origin,
    }
    timing = state.best_measurement.timing if state.best_measurement else None
    if timing is not None:
        ms, middle = timing.runtime_s * 1e3, timing.log2_speedup
        best |= {
            "speedup_interval": [round(2.0**timing.low, 4), round(2.0**timing.high, 4)],
            "ms": ms,
            # As wide as the speedup's: times by themselves move with the machine, ratios do not.
            "ms_interval": [ms * 2.0 ** (middle - end) for end in (timing.high, timing.low)],
            "seed_ms": timing.reference_runtime_s * 1e3,
        }
    return best


def summary_table(state: State, title: str, parameters: Parameters | None = None) -> Table:
    """Return the state of a run as a table; `parameters` are those of the best kernel."""
    best = _best(state)
    rows: list[tuple[str, str | Text]] = [
        ("best speedup", Text(_speedup_text(best), style="green")),
    ]
    if "ms" in best:
        low, high = best["ms_interval"]
        time_text = f"{best['ms']:.3g} ms ({low:.3g} to {high:.3g} ms)"
        rows.append(
            ("time of a call", f"{time_text}; the seed kernel takes {best['seed_ms']:.3g} ms")
        )
    if parameters:
        rows.append(("parameters", parameters_text(parameters)))
    for device, other in state.elsewhere.items():
        kernel = f" (kernel {other.best[:8]})" if other.best else ": nothing faster was found"
        there = f"{2.0**other.best_log2:.2f}x{kernel}; {other.measured} measured there"
        rows.append((f"best on {device}", there))
    if state.retracted:
        rows.append(("retracted", f"{state.retracted} results of slots that drifted or lied"))
    made = f"{state.measured - state.cached} kernels ({state.audited} audits)"
    reused = f", {state.cached} more known from earlier runs" if state.cached else ""
    rows.append(("measured", f"{made}{reused}; {sum(state.failures.values())} failed"))
    for kind, first in state.first_failures.items():
        count = f"{state.failures[kind]} x {kind.replace('_', ' ')}"
        shown = f"{count}, first: {first.failure.headline} (kernel {first.kernel_id[:8]})"
        rows.append(("failed", Text(shown, style="red")))
    unmeasured = f"{state.dropped} dropped, {state.trusted} trusted, {len(state.open)} open"
    rows.append(("not measured", f"{unmeasured}, {state.duplicates} duplicates"))
    rows.append(("spent", _spent_text(state)))
    if state.calibration.timed >= _ENOUGH_FORECASTS:
        rows.append(("forecasts", _calibration_text(state)))
    for name, sums in state.stages.items():
        cost = f", {sums.tokens:,} tokens, ${sums.usd:.4f}" if sums.tokens else ""
        alone = f", alone CRPS {sums.crps_sum / sums.met:.3f}" if sums.met else ""
        objections = (
            f", objected to {sums.objected}: of {sums.objections_met} measured all the same, "
            f"{sums.objections_right} rightly"
        )
        changed = f"asked {sums.asked}, changed {sums.changed} decisions"
        rows.append(
            (f"stage {name}", f"{changed}{cost}{alone}{objections if sums.objected else ''}")
        )
    if state.ended:
        rows.append(("ended", state.ended))
    return listing(title, rows)


def _speedup_text(best: Mapping[str, Any]) -> str:
    if best["origin"] == "seed":
        return "1.00x (the seed kernel itself: nothing faster was found)"
    interval = ""
    if "speedup_interval" in best:
        low, high = best["speedup_interval"]
        interval = f" ({low:.2f}x to {high:.2f}x)"
    return f"{best['speedup']:.2f}x{interval}, measured twice"


def parameters_text(parameters: Parameters) -> str:
    """Return the parameters of a template on one line."""
    return " ".join(f"{name}={value}" for name, value in parameters.items())


def archive_table(state: State, limit: int, kernel: Callable[[str], Kernel]) -> Table:
    """Return the best kernels with the parameters in which they differ from the best.

    Forecasts are marked as such.
    """
    ranked = sorted(state.archive.values(), key=lambda node: -node.log2_speedup)[:limit]
    best = kernel(state.incumbent.kernel_id).parameters or {}
    title = f"The best {len(ranked)}" if len(ranked) > 1 else "The only kernel so far"
    columns = ("kernel", "speedup", "basis", *(["differs from the best in"] if best else []))
    built = table(title, columns, left=(0, 2, 3), yields=len(columns) - 1)
    for node in ranked:
        basis = "measured twice" if node.confirmed and node.origin != "seed" else node.origin
        mark = "~" if node.origin == "forecast" else ""
        cells = [node.kernel_id[:8], f"{mark}{2.0**node.log2_speedup:.2f}x", basis]
        if best:
            own = kernel(node.kernel_id).parameters or {}
            cells.append(
                parameters_text({key: own[key] for key in own if own[key] != best.get(key)})
            )
        built.add_row(*cells, style="dim italic" if mark else "")
    return built


class _Log(logging.Handler):
    """Prints warnings above the live view."""

    def __init__(self, console: Terminal) -> None:
        super().__init__(logging.WARNING)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Print one message."""
        self._console.print(record.getMessage(), style="yellow")


class Progress:
    """Callback that shows a live view on a terminal, or prints a line every few seconds.

    `log` is a handler for the library's loggers.
    """

    def __init__(self, console: Terminal) -> None:
        self._console = console
        self._state: State | None = None
        self._title = ""
        self._last = 0.0
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self.log = _Log(console)

    def watch(self, state: State, title: str) -> None:
        """Start to show this run."""
        self._state, self._title = state, title
        if self._console.is_terminal:
            self._live.start()

    def on_event(self, event: Event) -> None:
        """Redraw, at most every `_REFRESH_S` (elsewhere `_PLAIN_EVERY_S`) seconds."""
        pause = _REFRESH_S if self._console.is_terminal else _PLAIN_EVERY_S
        if self._state is None or time.monotonic() - self._last < pause:
            return
        if isinstance(event, Measured | Decided):
            self._last = time.monotonic()
            self._draw(self._state)

    def close(self) -> None:
        """Remove the live view."""
        self._live.stop()

    def _draw(self, state: State) -> None:
        if not self._console.is_terminal:
            best = 2.0**state.incumbent.log2_speedup
            self._console.print(
                f"{self._title}: best {best:.2f}x, measured {state.measured}, "
                f"dropped {state.dropped}, trusted {state.trusted}, audited {state.audited}"
            )
            return
        cap = state.budget.measurements
        parts: list[Any] = [summary_table(state, self._title)]
        if cap:
            parts.append(ProgressBar(total=cap, completed=min(state.measured, cap), width=60))
        self._live.update(Group(*parts), refresh=True)


def _spent_text(state: State) -> str:
    parts: list[str] = []
    for resource, unit in (
        (Resource.MEASUREMENTS, "measurements"),
        (Resource.DEVICE_S, "device s"),
        (Resource.FORECAST_USD, "forecast $"),
        (Resource.PROPOSAL_USD, "proposal $"),
        (Resource.CPU_S, "CPU s of emulation"),
    ):
        spent, left = state.spent.get(resource, 0.0), state.left(resource)
        if spent or left != float("inf"):
            rest = "" if left == float("inf") else f" ({left:.4g} left)"
            parts.append(f"{spent:.4g} {unit}{rest}")
    tokens = sum(
        state.spent.get(kind, 0.0) for kind in (Resource.FORECAST_TOKENS, Resource.PROPOSAL_TOKENS)
    )
    if tokens:
        parts.append(f"{tokens:,.0f} tokens")
    return ", ".join(parts) or "nothing spent"


def _calibration_text(state: State) -> str:
    calibration = state.calibration
    return (
        f"80% intervals held {calibration.inside_80} of {calibration.timed} outcomes "
        f"({calibration.blind} of them blind audits); CRPS {calibration.crps:.3f}, "
        f"ECE {calibration.expected_calibration_error:.2f}, "
        f"half-Brier {calibration.half_brier:.2f} (a uniform guess: {_UNIFORM_HALF_BRIER:.2f})"
    )
