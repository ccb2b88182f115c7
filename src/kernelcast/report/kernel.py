"""One kernel of a run, collected from its events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.table import Table

from kernelcast.events import Decided, Forecasted, Inspected, Measured, Proposed
from kernelcast.llm import rehearsal_text
from kernelcast.report.console import parameters_text
from kernelcast.report.tables import listing
from kernelcast.run import Run
from kernelcast.types import Decision, Emulated, Evidence, Forecast, Kernel, Rehearsal


@dataclass(frozen=True)
class KernelRecord:
    """A kernel with its proposal, evidence, last forecast, decision and measurements."""

    kernel: Kernel
    proposed: Proposed | None
    evidence: Evidence | None
    forecast: Forecast | None
    decision: Decision | None
    measurements: tuple[Measured, ...]

    @classmethod
    def of(cls, run: Run, kernel_id: str) -> KernelRecord:
        """Collect the record of a kernel from the events of a run."""
        proposed = evidence = forecast = decision = None
        measurements = []
        for event in run.events("proposed", "inspected", "forecasted", "decided", "measured"):
            match event:
                case Proposed(kernel_id=key, duplicate=False) if key == kernel_id:
                    proposed = event
                case Inspected(kernel_id=key) if key == kernel_id:
                    evidence = event.evidence
                case Forecasted(kernel_id=key) if key == kernel_id:
                    forecast = event.forecast
                case Decided(kernel_id=key) if key == kernel_id:
                    decision = event.decision
                case Measured() if event.measurement.kernel_id == kernel_id:
                    measurements.append(event)
        return cls(
            run.kernel(kernel_id), proposed, evidence, forecast, decision, tuple(measurements)
        )

    def facts(self) -> dict[str, Any]:
        """Return the record as plain data, for `--json`."""
        forecast, proposed = self.forecast, self.proposed
        return {
            "kernel_id": self.kernel.id,
            "language": self.kernel.language,
            "parameters": self.kernel.parameters,
            "parent_id": proposed.parent_id if proposed else None,
            "claim": proposed.claim.model_dump() if proposed else None,
            "forecast": _forecast_facts(forecast) if forecast else None,
            "decision": self.decision.model_dump() if self.decision else None,
            "evidence": self.evidence.model_dump(mode="json") if self.evidence else None,
            "measurements": [
                {
                    "purpose": event.purpose,
                    "reused": event.cached,
                    **event.measurement.model_dump(
                        mode="json", exclude={"timing": {"cases"}, "kernel_id": True}
                    ),
                }
                for event in self.measurements
            ],
            "source": self.kernel.source,
        }

    def table(self) -> Table:
        """Return the record as a table, without the source."""
        rows: list[tuple[str, str]] = []
        if self.kernel.parameters:
            rows.append(("parameters", parameters_text(self.kernel.parameters)))
        if self.proposed is not None:
            parent = f"from kernel {self.proposed.parent_id[:8]} by {self.proposed.proposer}"
            idea = self.proposed.claim.idea
            rows.append(("proposed", f"{parent}: {idea}" if idea else parent))
        if self.evidence is not None and self.evidence.rehearsal is not None:
            rows.append(("rehearsed", _rehearsal_text(self.evidence.rehearsal)))
        elif self.evidence is not None:
            rows.append(("compiled", _evidence_text(self.evidence)))
        if self.evidence is not None:
            rows += [("emulated", _emulated_text(estimate)) for estimate in self.evidence.emulated]
        if self.forecast is not None:
            rows.append(("forecast", _forecast_text(self.forecast)))
        if self.decision is not None:
            rows.append(("decision", f"{self.decision.action}: {self.decision.reason}"))
        rows += [(_PURPOSE[event.purpose], _measured_text(event)) for event in self.measurements]
        if not self.measurements:
            rows.append(("measured", "never"))
        return listing(f"Kernel {self.kernel.id}", rows)


_PURPOSE = {
    "reference": "measured (seed)",
    "search": "measured",
    "confirmation": "measured again",
}


def _forecast_facts(forecast: Forecast) -> dict[str, Any]:
    density = forecast.against_reference()
    low, high = density.interval(0.8)
    return {
        "forecaster": forecast.forecaster,
        "median_speedup": 2.0 ** density.quantile(0.5),
        "interval_80": [2.0**low, 2.0**high],
        "p_ok": forecast.p_ok,
        "p_failure": {kind.value: chance for kind, chance in forecast.failure.items()},
        "rationale": forecast.rationale,
        "objection": forecast.objection,
    }


def _forecast_text(forecast: Forecast) -> str:
    facts = _forecast_facts(forecast)
    low, high = facts["interval_80"]
    words = (
        f"~{facts['median_speedup']:.2f}x over the seed, 80% interval {low:.2f}x to {high:.2f}x, "
        f"P(runs and is right) {facts['p_ok']:.2f}, by {forecast.forecaster} (not a measurement)"
    )
    reason = forecast.objection or forecast.rationale
    return f"{words}: {reason}" if reason else words


def _evidence_text(evidence: Evidence) -> str:
    if evidence.failure is not None:
        return f"it {evidence.verdict}, by {evidence.toolchain}:\n{evidence.failure.message}"
    counted = {
        "bytes of code": evidence.code_bytes or None,
        "registers": evidence.registers,
        "bytes spilled": evidence.spill_bytes,
        "bytes of shared memory": evidence.shared_bytes,
    }
    known = ", ".join(f"{value} {name}" for name, value in counted.items() if value is not None)
    return f"yes, by {evidence.toolchain}: {known}" if known else f"yes, by {evidence.toolchain}"


def _rehearsal_text(rehearsal: Rehearsal) -> str:
    why = rehearsal.failure.message if rehearsal.failure else rehearsal.undecided
    text = f"the device is not here; it {rehearsal_text(rehearsal)}"
    return f"{text}\n{why}" if why else text


def _emulated_text(estimate: Emulated) -> str:
    low, high = (time_s * 1e3 for time_s in estimate.interval_s)
    return (
        f"case {estimate.case}: about {estimate.runtime_s * 1e3:.3g} ms ({low:.3g} to {high:.3g}), "
        f"bound by {estimate.bound_by} (not a measurement)"
    )


def _measured_text(event: Measured) -> str:
    measurement = event.measurement
    where = f"on {measurement.device_id}, sandbox {measurement.sandbox}"
    if event.cached:
        where = f"known from an earlier run, {where}"
    if measurement.failure is not None:
        kind = measurement.failure.kind.replace("_", " ")
        return f"{kind}, {where}:\n{measurement.failure.message}"
    timing = measurement.timing
    assert timing is not None
    return (
        f"{timing.runtime_s * 1e3:.3g} ms, {timing.speedup:.2f}x "
        f"({2.0**timing.low:.2f}x to {2.0**timing.high:.2f}x) over the seed's "
        f"{timing.reference_runtime_s * 1e3:.3g} ms, {where}"
    )
