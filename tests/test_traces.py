"""Traces of real searches: by the SDK's exporter in memory, and by OTLP to a real server."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from kernelcast.events import Leased
from kernelcast.policies import MeasureAll
from kernelcast.store import Store
from kernelcast.traces import Traces
from kernelcast.types import Budget
from tests.test_measuring import LosingFarm
from tests.test_metrics import loses
from tests.test_search import make_parts, start


def test_a_run_is_one_trace_with_a_span_for_each_attempt(tmp_path: Path) -> None:
    exporter = InMemorySpanExporter()
    parts = make_parts(MeasureAll(pool_size=4), farm=LosingFarm(loses))
    with Store.open(tmp_path / "store.db") as store, closing(Traces("x", exporter)) as traces:
        state = start(store, parts, name="x", callbacks=[traces]).run(Budget(candidates=15)).state
        leases = [e for e in store.open_run("x").events("leased") if isinstance(e, Leased)]
    *spans, root = exporter.get_finished_spans()
    assert root.name == "search"
    assert dict(root.attributes or {}) == {"kernelcast.run": "x", "kernelcast.ended": state.ended}
    assert {span.context.trace_id for span in spans} == {root.context.trace_id}
    assert {span.parent.span_id for span in spans if span.parent} == {root.context.span_id}
    attributes = [span.attributes or {} for span in spans]
    assert [(a["kernelcast.kernel"], a["kernelcast.attempt"]) for a in attributes] == [
        (leased.kernel_id, leased.attempt) for leased in leases
    ]
    outcomes = Counter(a["kernelcast.outcome"] for a in attributes)
    assert outcomes["lost"] == state.lost > 0
    failed = sum(state.failures.values()) - state.quarantined
    assert outcomes["ok"] == len(leases) - state.lost - failed
    assert all(a["kernelcast.spent.device_s"] for a in attributes)
    assert {a["kernelcast.purpose"] for a in attributes} >= {"reference", "search"}


def test_the_standard_variables_say_where_a_trace_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[ExportTraceServiceRequest] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "tuning")
        with Store.open(tmp_path / "store.db") as store, closing(Traces("x")) as traces:
            start(store, make_parts(), name="x", callbacks=[traces]).run(Budget(measurements=3))
        server.shutdown()
        thread.join()
    (group,) = (spans for request in received for spans in request.resource_spans)
    names = {a.key: a.value.string_value for a in group.resource.attributes}
    assert names["service.name"] == "tuning"
    kinds = Counter(span.name for scope in group.scope_spans for span in scope.spans)
    assert kinds["search"] == 1
    assert kinds["measure search"] == 3
