"""Kill a run with SIGKILL at every store write, and at random moments; resume it; count the harm.

A 50-candidate search runs in a child process on a store of its own. A hook on the database engine
numbers every write and commit; the child is killed at the n-th, for each n in turn (--quick: a
sample of them), then at random moments. After each kill the run is resumed to its end and checked:

- lost: measurements that the search had acknowledged and the store no longer has;
- double_charged: kernels charged more than once, or charges without a measurement;
- overruns: caps passed, before or after the resume;
- state_mismatch: final state differs from its replay, from the ledger's tables, or from the run
  that was never killed.

Measurements come from the synthetic backend: what is on trial is the store and the loop.

    python bench/resume.py [--quick] [--seed 0]
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from _result import bench_parser, report
from kernelcast.events import Event, Measured, RunSpec
from kernelcast.farm.local import LocalFarm
from kernelcast.forecasters.trees import TreesForecaster
from kernelcast.parts import Parts
from kernelcast.policies import Selective
from kernelcast.proposers.template import TemplateProposer
from kernelcast.run import Run
from kernelcast.search import Search
from kernelcast.store import Store
from kernelcast.strategies import Puct
from kernelcast.testing import SyntheticBackend, synthetic_problem
from kernelcast.types import Budget, Resource

BUDGET = Budget(measurements=24, device_s=100.0, candidates=50)
NAME = "killed"


def parts() -> Parts:
    return Parts(
        proposer=TemplateProposer(),
        forecaster=TreesForecaster(),
        policy=Selective(pool_size=12, turnover=4),
        strategy=Puct(),
        farm=LocalFarm(SyntheticBackend()),
    )


class Acknowledge:
    """Notes each acknowledged measurement where a SIGKILL cannot take it back."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def on_event(self, event: Event) -> None:
        if isinstance(event, Measured):
            os.write(self._file, f"{event.purpose} {event.measurement.kernel_id}\n".encode())


def hook_writes(store: Store, on_write: Callable[[], None]) -> None:
    """Call `on_write` before every statement that writes and before every commit."""

    def statement(_connection: Any, _cursor: Any, text: str, *_: Any) -> None:
        if not text.lstrip().upper().startswith(("SELECT", "PRAGMA")):
            on_write()

    sa.event.listen(store.engine, "before_cursor_execute", statement)
    sa.event.listen(store.engine, "commit", lambda _connection: on_write())


def search(folder: Path, on_write: Callable[[], None] | None = None) -> Run:
    """Start the run, or resume it where it exists, and take it to its end."""
    acknowledge = Acknowledge(folder / "acknowledged")
    with Store.open(folder / "store.db") as store:
        if on_write is not None:
            hook_writes(store, on_write)
        if store.runs():
            live = Search.resume(store, NAME, parts=parts(), callbacks=[acknowledge])
        else:
            live = Search(
                synthetic_problem(),
                parts(),
                store,
                spec=RunSpec(seed=1),
                name=NAME,
                callbacks=[acknowledge],
            )
        live.run(BUDGET)
        return store.open_run(NAME)


def killed_child(folder: Path, at_write: int | None, after_s: float | None) -> None:
    """Run the search in a child that is killed at its n-th write, or after some time."""
    child = os.fork()
    if child == 0:
        count = 0

        def on_write() -> None:
            nonlocal count
            count += 1
            if count == at_write:
                os.kill(os.getpid(), signal.SIGKILL)

        search(folder, on_write)
        os._exit(0)
    if after_s is not None:
        time.sleep(after_s)
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def outcome(run: Run) -> dict[str, Any]:
    """What must not depend on crashes."""
    state = run.state
    return {
        "archive": {key: node.model_dump() for key, node in state.archive.items()},
        "best": state.best,
        "counts": (state.considered, state.measured, state.dropped, state.trusted, state.audited),
        "measurements": state.spent.get(Resource.MEASUREMENTS),
        "open": sorted(state.open),
    }


def overruns(store: Store) -> int:
    with store.engine.connect() as connection:
        rows = connection.execute(sa.text("SELECT cap, spent, reserved FROM accounts")).all()
    return sum(cap is not None and spent + reserved > cap + 1e-9 for cap, spent, reserved in rows)


def check(folder: Path, expected: dict[str, Any]) -> Counter[str]:
    """Resume the run in this folder to its end and count what is wrong."""
    harm: Counter[str] = Counter()
    with Store.open(folder / "store.db") as store:
        harm["overruns"] += overruns(store)
    acknowledged = (folder / "acknowledged").read_text().splitlines()
    run = search(folder)
    with Store.open(folder / "store.db") as store:
        harm["overruns"] += overruns(store)
        run = store.open_run(NAME)
        measured = [event for event in run.events("measured") if isinstance(event, Measured)]
        kept = Counter(f"{event.purpose} {event.measurement.kernel_id}" for event in measured)
        harm["lost"] += sum((Counter(acknowledged) - kept).values())
        searched = Counter(e.measurement.kernel_id for e in measured if e.purpose == "search")
        charged = round(run.ledger()[Resource.MEASUREMENTS].spent)
        harm["double_charged"] += sum(count - 1 for count in searched.values())
        harm["double_charged"] += abs(charged - len(searched))
        state = run.state
        ledger = {key: account.spent for key, account in run.ledger().items() if account.spent}
        agrees = all(abs(ledger.get(key, 0) - amount) < 1e-9 for key, amount in state.spent.items())
        wrong = state != run.replay() or not agrees or outcome(run) != expected
        harm["state_mismatch"] += wrong
    return harm


def main() -> None:
    parser = bench_parser(__doc__, quick="24 writes and 3 random moments")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    harm: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as base:
        writes = 0

        def count() -> None:
            nonlocal writes
            writes += 1

        whole = Path(base) / "whole"
        whole.mkdir()
        began = time.perf_counter()
        expected = outcome(search(whole, count))
        duration_s = time.perf_counter() - began
        at_writes = list(range(1, writes + 1))
        moments = 50
        if arguments.quick:
            at_writes, moments = sorted(rng.sample(at_writes, 24)), 3
        points: list[tuple[int | None, float | None]] = [(n, None) for n in at_writes]
        points += [(None, rng.uniform(0, duration_s)) for _ in range(moments)]
        print(f"{writes} writes, one run takes {duration_s:.1f} s, {len(points)} kills", flush=True)
        for index, (at_write, after_s) in enumerate(points):
            folder = Path(base) / f"kill-{index}"
            folder.mkdir()
            (folder / "acknowledged").touch()
            killed_child(folder, at_write, after_s)
            harm += check(folder, expected)
            if sys.stderr.isatty() or index % 50 == 49:
                print(
                    f"{index + 1}/{len(points)} kills, harm so far: {dict(harm)}", file=sys.stderr
                )
    names = ("lost", "double_charged", "overruns", "state_mismatch")
    result = {"points": len(points)} | {name: harm[name] for name in names}
    report(result, arguments, "sqlalchemy")
    sys.exit(any(harm[name] for name in names))


if __name__ == "__main__":
    main()
