"""Traces of a search by OpenTelemetry: one trace a run, in it one span a job."""

from __future__ import annotations

import os
from typing import Any

from kernelcast.errors import import_extra
from kernelcast.events import Event, Leased, Lost, Measured, RunEnded, Settled, Voided

_EXTRA = "traces"


class Traces:
    """Callback that makes a span of each job, from its lease until it is settled or lost.

    Args:
        run: Name of the run.
        exporter: Where spans go. By default it is the OTLP exporter, which the standard variables
            configure, such as OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_SERVICE_NAME.

    Raises:
        MissingExtra: OpenTelemetry is not installed.
    """

    def __init__(self, run: str, exporter: Any = None) -> None:
        sdk = import_extra("opentelemetry.sdk.trace", _EXTRA)
        export = import_extra("opentelemetry.sdk.trace.export", _EXTRA)
        if exporter is None:
            module = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
            exporter = import_extra(module, _EXTRA).OTLPSpanExporter()
        resources = import_extra("opentelemetry.sdk.resources", _EXTRA)
        service = os.environ.get("OTEL_SERVICE_NAME", "kernelcast")
        self._provider = sdk.TracerProvider(
            resource=resources.Resource.create({"service.name": service}), shutdown_on_exit=False
        )
        self._provider.add_span_processor(export.BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("kernelcast")
        trace = import_extra("opentelemetry.trace", _EXTRA)
        self._root = self._tracer.start_span("search", attributes={"kernelcast.run": run})
        self._context = trace.set_span_in_context(self._root)
        self._error = trace.StatusCode.ERROR
        self._jobs: dict[str, Any] = {}
        self._settled: Any = None

    def on_event(self, event: Event) -> None:
        """Begin or end a span. What a settled job has led to is in the event after it."""
        if isinstance(event, Leased):
            self._end(event.entry, "taken over")
            self._jobs[event.entry] = self._tracer.start_span(
                f"measure {event.purpose}",
                self._context,
                attributes={
                    "kernelcast.kernel": event.kernel_id,
                    "kernelcast.device": event.device,
                    "kernelcast.purpose": event.purpose,
                    "kernelcast.attempt": event.attempt,
                },
            )
        elif isinstance(event, Settled) and event.entry in self._jobs:
            self._settled = event
        elif isinstance(event, Measured) and self._settled is not None:
            failure = event.measurement.failure
            self._end(self._settled.entry, failure.kind if failure else "ok", self._settled)
        elif isinstance(event, Lost):
            self._end(event.entry, "lost", self._settled, event.reason)
        elif isinstance(event, Voided):
            self._end(event.entry, "voided")
        elif isinstance(event, RunEnded):
            self._root.set_attribute("kernelcast.ended", event.reason)

    def _end(
        self, entry: str, outcome: str, settled: Settled | None = None, reason: str = ""
    ) -> None:
        self._settled = None
        span = self._jobs.pop(entry, None)
        if span is None:
            return
        span.set_attribute("kernelcast.outcome", str(outcome))
        for resource, amount in (settled.spend if settled else {}).items():
            span.set_attribute(f"kernelcast.spent.{resource.value}", amount)
        if outcome != "ok":
            span.set_status(self._error, reason or str(outcome))
        span.end()

    def close(self) -> None:
        """End the trace, and send what has not been sent."""
        for entry in list(self._jobs):
            self._end(entry, "unfinished")
        self._root.end()
        self._provider.shutdown()
