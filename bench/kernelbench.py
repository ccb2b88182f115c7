"""Answers of language models to KernelBench's kind of problem: verdicts, and what is gained.

Run: python bench/kernelbench.py [--quick] [--only NAME] [--out FILE]
Each of the twelve problems of tests/modules is searched as a user searches it: the proposer `llm`
asks a server, which gives it twelve recorded answers one after the other, and each is built,
verified and timed in the sandbox on this machine's CPU, on one thread. The verdict on each answer
is compared with the one that its file states. Reported is the best kernel that a search ended with,
against the seed, which is eager PyTorch: by its second, independent measurement, never by the one
that it was picked by. It is `proven` if the whole interval of that lies above the noise and above
1%. Milliseconds are of this machine; ratios are what counts. --quick takes two problems, and of
their answers those that compile nothing. The last line is one JSON object.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import dropwhile
from typing import Any

from _kernels import MODULES, ROOT, read_header
from _result import bench_parser, cannot_run, report
from kernelcast.canonical import kernel_id
from kernelcast.errors import SetupError
from kernelcast.events import Measured
from kernelcast.parts import Parts, read_run
from kernelcast.run import Run
from kernelcast.search import Result, Search
from kernelcast.store import Store
from kernelcast.types import FailureKind, Measurement

sys.path.append(str(ROOT))  # a script sees its own folder, not the tests
from tests.model_server import Reply, ScriptedServer

PROBLEMS = sorted(path.name for path in (MODULES / "imported").iterdir())
QUICK_PROBLEMS = ("chain", "moments")
OK = "ok"
NOT_MEASURED = "not measured"
LEVEL = "S3"


@dataclass(frozen=True)
class Answer:
    """A recorded answer: its file, the verdict that is due, and the module as a model gave it."""

    name: str
    idea: str
    expect: str
    source: str

    @property
    def id(self) -> str:
        """What its measurement names."""
        return kernel_id(self.source, "torch")

    @property
    def reply(self) -> Reply:
        """What a server says."""
        return Reply(json.dumps({"idea": self.idea[:200], "moves": [], "kernel": self.source}))


def answers(problem: str) -> list[Answer]:
    """The recorded answers to a problem, by their files' names."""
    return [
        _answer(path.name, path.read_text(encoding="utf-8"))
        for path in sorted((MODULES / "answers" / problem).glob("*.py"))
    ]


def _answer(name: str, text: str) -> Answer:
    fields = read_header(text)
    if fields.keys() != {"answer", "expect"} or fields["expect"] not in {OK, *FailureKind}:
        raise ValueError(f"{name}: a header states `answer` and `expect`, not {fields}")
    # The header is ours: a model's answer does not say what is to be thought of it.
    lines = dropwhile(lambda line: line.startswith("#"), text.splitlines(keepends=True))
    return Answer(name, fields["answer"], fields["expect"], "".join(lines))


def searched(problem: str, known: Sequence[Answer]) -> dict[str, Any]:
    """Search a problem with these answers, and compare verdicts; or why that was not possible."""
    began = time.monotonic()
    replies = iter([answer.reply for answer in known])
    with ScriptedServer(lambda _: next(replies, Reply("{}"))) as server:
        run = read_run(
            {
                "problem": str(MODULES / "imported" / problem),
                "proposer": "llm",
                "proposer.concurrency": 1,  # one after the other
                "policy": "measure_all",
                "backend.threads": 1,
                "backend.require": LEVEL,
                "budget.candidates": len(known),
            },
            model={"base_url": server.base_url, "model": "recorded"},
        )
        parts = Parts.build(run.spec.components, run.problem)
        with closing(parts.farm), Store.open("sqlite://") as store:
            search = Search(run.problem, parts, store, spec=run.spec)
            row = row_of(search.run(run.budget), search.log, known)
    return {**row, "seconds": round(time.monotonic() - began, 1)}


def row_of(result: Result, log: Run, known: Sequence[Answer]) -> dict[str, Any]:
    """What came of each answer, and the best kernel by its second measurement."""
    events = [event for event in log.events("measured") if isinstance(event, Measured)]
    first = {
        event.measurement.kernel_id: event.measurement
        for event in reversed(events)
        if event.purpose == "search"
    }
    again = {
        event.measurement.kernel_id: event.measurement
        for event in events
        if event.purpose == "confirmation"
    }
    got = {answer.name: verdict_of(first.get(answer.id)) for answer in known}
    wrong = {
        answer.name: _told(answer, first.get(answer.id))
        for answer in known
        if got[answer.name] != answer.expect
    }
    return {
        "answers": len(known),
        "verdicts_right": len(known) - len(wrong),
        **best_of(again.get(result.kernel.id)),
        "answer": next((each.name for each in known if each.id == result.kernel.id), "seed"),
        "sandbox": min((each.sandbox for each in first.values()), default=""),
        "verdicts": got,
        "wrong": wrong,
    }


def verdict_of(measurement: Measurement | None) -> str:
    """One word, as a header has it."""
    if measurement is None:
        return NOT_MEASURED
    return measurement.failure.kind.value if measurement.failure else OK


def best_of(again: Measurement | None) -> dict[str, Any]:
    """The figures of the best kernel; of the seed, if no answer was faster twice."""
    if again is None or again.timing is None:
        return {
            "speedup": 1.0,
            "low": 1.0,
            "high": 1.0,
            "proven": False,
            "eager_ms": None,
            "best_ms": None,
        }
    timing = again.timing
    return {
        "speedup": round(timing.speedup, 3),
        "low": round(2.0**timing.low, 3),
        "high": round(2.0**timing.high, 3),
        "proven": again.faster,
        "eager_ms": round(timing.reference_runtime_s * 1e3, 4),
        "best_ms": round(timing.runtime_s * 1e3, 4),
    }


def _told(answer: Answer, measurement: Measurement | None) -> str:
    failure = measurement.failure if measurement else None
    said = f": {failure.message.strip()[:300]}" if failure else ""
    return f"expected {answer.expect}, got {verdict_of(measurement)}{said}"


def summary(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The figures over all problems; those that could not be searched count as not right."""
    return {
        "problems": len(rows),
        "answers": sum(row["answers"] for row in rows.values()),
        "verdicts_right": sum(row["verdicts_right"] for row in rows.values()),
        "proven": sum(row["proven"] for row in rows.values()),
        "best": rows,
    }


def _lines(name: str, row: dict[str, Any]) -> Iterator[str]:
    """A row of the table, and what is wrong with it."""
    eager_ms, best_ms = (
        "-" if row[key] is None else f"{row[key]:.3f}" for key in ("eager_ms", "best_ms")
    )
    interval = f"{row['low']:.2f} to {row['high']:.2f}"
    yield (
        f"{name:12} {row['answers']:7} {row['verdicts_right']:5}  {row['speedup']:6.2f}x "
        f"{interval:>14}  {'yes' if row['proven'] else 'no':6} {eager_ms:>9} {best_ms:>9}  "
        f"{row['answer']}"
    )
    for answer, words in row["wrong"].items():
        yield f"  {answer}: {words.splitlines()[0]}"


def main() -> None:
    """Print a row a problem."""
    parser = bench_parser(__doc__, quick="two problems, answers that compile nothing")
    parser.add_argument("--only", choices=PROBLEMS, help="this problem alone")
    options = parser.parse_args()
    names = [options.only] if options.only else QUICK_PROBLEMS if options.quick else PROBLEMS
    rows: dict[str, dict[str, Any]] = {}
    print(
        f"{'problem':12} answers right  speedup       interval  proven  eager ms   best ms  answer"
    )
    for name in names:
        known = answers(name)
        if options.quick:
            known = [answer for answer in known if "load_inline" not in answer.source]
        try:
            rows[name] = searched(name, known)
        except SetupError as error:
            if not rows and "PyTorch is not installed" in str(error):
                cannot_run(str(error))
            wrong = {"": f"not searched: {error}"}
            nothing = {"answers": len(known), "verdicts_right": 0, "answer": "", "wrong": wrong}
            rows[name] = {**nothing, **best_of(None)}
        for line in _lines(name, rows[name]):
            print(line, flush=True)
    report(summary(rows), options, "torch")


if __name__ == "__main__":
    main()
