"""A run on the terminal: the live view while it searches, and its summary afterwards.

Measured and forecast kernels are always told apart; a forecast is never shown as a result.
"""

from __future__ import annotations

import time
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from kernelcast.bins import DEFAULT_BINS
from kernelcast.events import Decided, Event, Measured
from kernelcast.report.terminal import Terminal
from kernelcast.state import State
from kernelcast.types import Resource

_REFRESH_S = 0.25
_UNIFORM_HALF_BRIER = 0.5 * (1.0 - 1.0 / DEFAULT_BINS.count)
_PLAIN_EVERY_S = 5.0


def summary(state: State) -> dict[str, Any]:
    """A run's standing as plain data, for `--json`."""
    calibration = state.calibration
    best = state.incumbent
    return {
        "problem": state.started.problem.name if state.started else None,
        "best": {
            "kernel_id": best.kernel_id,
            "speedup": round(2.0**best.log2_speedup, 4),
            "measured_twice": best.confirmed,
            "origin": best.origin,
        },
        "considered": state.considered,
        "duplicates": state.duplicates,
        "measured": state.measured,
        "cached": state.cached,
        "confirmations": state.confirmations,
        "trusted": state.trusted,
        "dropped": state.dropped,
        "audited": state.audited,
        "failures": dict(state.failures),
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


def summary_table(state: State, title: str) -> Table:
    """The same for a reader."""
    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    best = state.incumbent
    how = "the seed kernel itself" if best.origin == "seed" else "measured twice"
    table.add_row("best speedup", Text(f"{2.0**best.log2_speedup:.2f}x  ({how})", style="green"))
    failed = ", ".join(f"{count} {kind}" for kind, count in state.failures.items()) or "none"
    table.add_row("measured", f"{state.measured} ({state.audited} audits), failed: {failed}")
    table.add_row(
        "not measured",
        f"{state.dropped} dropped, {state.trusted} trusted, {len(state.open)} open, "
        f"{state.duplicates} duplicates",
    )
    table.add_row("budget", _budget_text(state))
    table.add_row("calibration", _calibration_text(state))
    for name, sums in state.stages.items():
        right = f", alone CRPS {sums.crps_sum / sums.met:.3f}" if sums.met else ""
        if sums.objected:
            right += (
                f", objected to {sums.objected}: of {sums.objections_met} measured all the same, "
                f"{sums.objections_right} rightly"
            )
        cost = f", {sums.tokens:,} tokens, ${sums.usd:.4f}" if sums.tokens else ""
        table.add_row(
            f"stage {name}", f"asked {sums.asked}, changed {sums.changed} decisions{cost}{right}"
        )
    if state.ended:
        table.add_row("ended", state.ended)
    return table


def archive_table(state: State, limit: int) -> Table:
    """The best kernels of the archive, forecasts marked as such."""
    table = Table(title=f"Archive, best {limit}", title_justify="left")
    for column in ("kernel", "speedup", "basis", "children"):
        table.add_column(column, justify="right" if column == "speedup" else "left")
    ranked = sorted(state.archive.values(), key=lambda node: -node.log2_speedup)
    for node in ranked[:limit]:
        basis = "measured twice" if node.confirmed else node.origin
        style = "dim italic" if node.origin == "forecast" else ""
        speedup = f"{2.0**node.log2_speedup:.2f}x"
        if node.origin == "forecast":
            speedup = f"~{speedup}"
        table.add_row(node.kernel_id[:12], speedup, basis, str(node.visits), style=style)
    return table


class Progress:
    """A callback that keeps a live view on a terminal, or a line now and then elsewhere."""

    def __init__(self, console: Terminal) -> None:
        self._console = console
        self._state: State | None = None
        self._title = ""
        self._last = 0.0
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def watch(self, state: State, title: str) -> None:
        """Begin to show this run."""
        self._state, self._title = state, title
        if self._console.is_terminal:
            self._live.start()

    def on_event(self, event: Event) -> None:
        """Redraw, not too often."""
        pause = _REFRESH_S if self._console.is_terminal else _PLAIN_EVERY_S
        if self._state is None or time.monotonic() - self._last < pause:
            return
        if isinstance(event, Measured | Decided):
            self._last = time.monotonic()
            self._draw(self._state)

    def close(self) -> None:
        """Take the live view off the screen."""
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


def _budget_text(state: State) -> str:
    parts: list[str] = []
    for resource, unit in (
        (Resource.MEASUREMENTS, "measurements"),
        (Resource.DEVICE_S, "device s"),
        (Resource.FORECAST_USD, "forecast $"),
        (Resource.PROPOSAL_USD, "proposal $"),
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
    if not calibration.timed:
        return "no forecast has met its outcome yet"
    return (
        f"{calibration.timed} forecasts met outcomes ({calibration.blind} blind): "
        f"80% intervals held {calibration.coverage_80:.0%}, CRPS {calibration.crps:.3f}, "
        f"ECE {calibration.expected_calibration_error:.2f}, "
        f"half-Brier {calibration.half_brier:.2f} (a uniform guess: {_UNIFORM_HALF_BRIER:.2f})"
    )
