"""Many searches on one cluster and one store: cost per candidate, repeats and fair shares.

100 searches of 10,000 candidates each share the 64 slots of a Ray cluster and a PostgreSQL store
that waits for the disk at each commit. Each has its own session of the farm and its own
connections; a few driver processes hold them as threads. All search the same template with seeds of
their own, with the default forecaster, strategy `puct` and policy `top_k`, which measures 4 of 100
candidates. A measurement sleeps. It needs root, for a network of its own.

`cost_growth`: CPU of drivers and server per candidate in the last tenth of all candidates, divided
by that in the first. `repeats_measured`: kernels that two searches have measured, for want of the
cache; `repeats_cached`: results that the cache served. `fair_share`: the largest deviation of a
search's jobs from the mean, while all searches are hungry.

    python bench/farm_scale.py [--quick] [--searches N] [--candidates N] [--out JSON]
"""

from __future__ import annotations

import math
import multiprocessing
import os
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from _result import bench_parser, cannot_run, report, rounded
from farm_throughput import PORT, SleepingBackend, start_node
from kernelcast.errors import import_extra
from kernelcast.events import Event, Measured, Proposed, RunEnded, RunSpec
from kernelcast.farm._registry import Handle, Registry, _Slot, connect
from kernelcast.farm.ray import RayFarm
from kernelcast.forecasters import TreesForecaster
from kernelcast.parts import Parts
from kernelcast.policies import TopK
from kernelcast.proposers import TemplateProposer
from kernelcast.search import Search
from kernelcast.store import Store
from kernelcast.strategies import Puct
from kernelcast.testing import synthetic_problem
from kernelcast.types import Budget, Problem

sys.path.append(str(Path(__file__).parents[1]))  # a script sees its own folder, not the tests
from tests.own_network import HOST, run_inside
from tests.postgres import Server, running

SLOTS, DRIVERS, JOB_S = 64, 5, 4.0
POOL, MEASURED_PER_POOL = 100, 4
PARAMETERS = "ABCDEFG"
SPACE_PER_CANDIDATE = 2  # the more kernels there are for each candidate, the rarer are repeats
TENTHS = 10
PARTS = ("drivers", "server", "registry", "ray")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
ENVIRONMENT = {
    "KERNELCAST_INSIDE": "1",
    "RAY_AUTH_MODE": "disabled",  # the namespaces have no other inhabitant
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
}
# A server of its size: the settings of tests are for small stores.
SETTINGS: dict[str, str | int] = {
    "max_connections": 500,
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
}


def problem_for(candidates: int) -> Problem:
    """The synthetic problem with a template that fits the number of candidates."""
    values = math.ceil((SPACE_PER_CANDIDATE * candidates) ** (1 / len(PARAMETERS)))
    return synthetic_problem(PARAMETERS, values)


# ------------------------------------------------------------------------------------ the drivers


@dataclass(frozen=True)
class Counters:
    """What the searches have done so far, in memory that all processes share: a number a search."""

    considered: Any
    on_slots: Any
    cached: Any
    ended: Any
    ready: Any

    @classmethod
    def of(cls, searches: int) -> Counters:
        context = multiprocessing.get_context("spawn")
        considered, on_slots, cached, ended = (context.RawArray("q", searches) for _ in range(4))
        return cls(considered, on_slots, cached, ended, context.Barrier(searches + 1))


counters: Counters


def share_counters(shared: Counters) -> None:
    """Let a driver process count where the others do."""
    global counters
    counters = shared


@dataclass(frozen=True)
class Watch:
    """Counts the events of a search."""

    number: int

    def on_event(self, event: Event) -> None:
        number = self.number
        if isinstance(event, Proposed):
            counters.considered[number] += not event.duplicate
        elif isinstance(event, Measured):
            counters.on_slots[number] += not event.cached
            counters.cached[number] += event.cached
        elif isinstance(event, RunEnded):
            counters.ended[number] = 1


def search(number: int, url: str, problem: Problem, candidates: int) -> None:
    """Run one search from its beginning to its end."""
    try:
        farm = RayFarm(SleepingBackend(JOB_S), address=f"{HOST}:{PORT}")
        parts = Parts(
            TemplateProposer(local=0.0),
            TreesForecaster(),
            TopK(MEASURED_PER_POOL, POOL),
            Puct(),
            farm,
        )
        with Store.open(url) as store:
            spec, name = RunSpec(seed=number), f"search-{number}"
            run = Search(problem, parts, store, spec=spec, name=name, callbacks=[Watch(number)])
            counters.ready.wait()
            run.run(Budget(candidates=candidates))
    except BaseException:
        traceback.print_exc()
        counters.ready.abort()  # the others do not wait for it
        raise


def drive(numbers: Sequence[int], url: str, problem: Problem, candidates: int) -> None:
    """Run some searches as threads of this process."""
    connect(import_extra("ray", "ray"), f"{HOST}:{PORT}")  # a process joins a cluster once
    with ThreadPoolExecutor(len(numbers)) as threads:
        runs = [threads.submit(search, number, url, problem, candidates) for number in numbers]
        for run in runs:
            run.result()


# ------------------------------------------------------------------------------------ the watcher


def cpu_s(drivers: set[int]) -> dict[str, float]:
    """CPU seconds so far of the drivers, the server, the farm's registry and the rest of Ray."""
    used = dict.fromkeys(PARTS, 0.0)
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, tail = path.read_text().rpartition(")")
        except OSError:  # it has ended
            continue
        pid, _, name = head.partition(" (")
        ticks = [int(field) for field in tail.split()[11:15]]
        if int(pid) in drivers:
            used["drivers"] += sum(ticks[:2])
        elif name == "postgres":
            used["server"] += sum(ticks)  # with those of its children that have ended
        elif name.startswith("ray::Registry"):
            used["registry"] += sum(ticks[:2])
        elif int(pid) != os.getpid():
            used["ray"] += sum(ticks[:2])
    return {part: ticks / TICKS_PER_S for part, ticks in used.items()}


@dataclass(frozen=True)
class Mark:
    """What had happened at some time."""

    at_s: float
    considered: int
    cpu_s: dict[str, float]
    driver_mb: float

    @classmethod
    def now(cls, drivers: set[int]) -> Mark:
        pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in drivers]
        return cls(
            time.monotonic(),
            sum(counters.considered),
            cpu_s(drivers),
            max(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20,
        )

    def cpu_ms_per_candidate(self, since: Mark) -> dict[str, float]:
        count = self.considered - since.considered
        return {part: 1e3 * (self.cpu_s[part] - since.cpu_s[part]) / count for part in self.cpu_s}


@dataclass(frozen=True)
class Hungry:
    """Jobs that each search had run on slots at some time while none had ended."""

    at_s: float
    jobs: list[int]


def watch(
    drivers: set[int], candidates: int, done: threading.Event
) -> tuple[list[Mark], list[Hungry]]:
    """Return marks at each tenth of the candidates, and the first and last time all were hungry."""
    marks: list[Mark] = []
    hungry: list[Hungry] = []
    while len(marks) <= TENTHS and not done.wait(0.5):
        jobs = list(counters.on_slots)
        if min(jobs) > 0 and not any(counters.ended):
            hungry = [*hungry[:1], Hungry(time.monotonic(), jobs)]
        if sum(counters.considered) >= candidates * len(marks) / TENTHS:
            marks.append(Mark.now(drivers))
            print(progress(marks), file=sys.stderr, flush=True)
    return marks, hungry


def progress(marks: list[Mark]) -> str:
    """What has happened up to the last mark, as a line."""
    mark = marks[-1]
    line = f"{mark.considered:>9,} candidates, {sum(counters.on_slots):,} jobs"
    if len(marks) < 2:
        return line
    per_s = (mark.considered - marks[-2].considered) / (mark.at_s - marks[-2].at_s)
    cost = mark.cpu_ms_per_candidate(marks[-2])
    shown = ", ".join(f"{part} {ms:.2f}" for part, ms in cost.items())
    line += f", {sum(counters.cached):,} cached, {per_s:.0f} a second; CPU ms each: {shown}"
    return f"{line}; {mark.driver_mb:.0f} MB a driver"


# -------------------------------------------------------------------------------------- the judge


def judge_store(server: Server, url: str) -> dict[str, Any]:
    """What the store holds: candidates, repeats and bytes."""
    with server.connect(url.partition("@/")[2].partition("?")[0]) as connection:

        def one(query: str) -> Any:
            row = connection.execute(query.encode()).fetchone()
            assert row is not None
            return row[0]

        measured = (
            "SELECT CAST(payload AS json) #>> '{measurement,kernel_id}' AS kernel FROM events "
            "WHERE kind = 'measured' AND CAST(payload AS json) ->> 'purpose' = 'search' "
            "AND CAST(payload AS json) ->> 'cached' = "
        )
        repeated = f"SELECT kernel FROM ({measured}'false') m GROUP BY kernel HAVING count(*) > 1"
        candidates = one("SELECT count(*) FROM candidates")
        return {
            "searches": one("SELECT count(*) FROM runs"),
            "candidates": candidates,
            "kernels": one("SELECT count(*) FROM kernels"),
            "measured": one(f"SELECT count(*) FROM ({measured}'false') m"),
            "repeats_measured": one(f"SELECT count(*) FROM ({repeated}) r"),
            "repeats_cached": one(f"SELECT count(*) FROM ({measured}'true') m"),
            "bytes_per_candidate": one("SELECT pg_database_size(current_database())") / candidates,
            "wal_bytes_per_candidate": int(one("SELECT wal_bytes FROM pg_stat_wal")) / candidates,
            "commits_per_candidate": one(
                "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
            )
            / candidates,
        }


def judge_marks(marks: list[Mark], hungry: list[Hungry]) -> dict[str, Any]:
    """Cost of the first and the last tenth, and the fair share."""
    tenths = [mark.cpu_ms_per_candidate(since) for since, mark in pairwise(marks)]
    costs_ms = [tenth["drivers"] + tenth["server"] for tenth in tenths]
    began, ended = hungry[0], hungry[-1]
    jobs = [after - before for before, after in zip(began.jobs, ended.jobs, strict=True)]
    passed_s = marks[-1].at_s - marks[0].at_s
    registry_s = marks[-1].cpu_s["registry"] - marks[0].cpu_s["registry"]
    return {
        "cost_growth": costs_ms[-1] / costs_ms[0],
        "fair_share": max(abs(count - fmean(jobs)) for count in jobs) / fmean(jobs),
        "cpu_ms_per_candidate": {part: fmean(tenth[part] for tenth in tenths) for part in PARTS},
        "cpu_ms_by_tenth": costs_ms,
        "hungry_jobs": [min(jobs), max(jobs)],
        "hungry_utilisation": sum(jobs) * JOB_S / (SLOTS * (ended.at_s - began.at_s)),
        "candidates_per_s": (marks[-1].considered - marks[0].considered) / passed_s,
        "registry_cores": registry_s / passed_s,
        "driver_mb": [marks[1].driver_mb, marks[-1].driver_mb],
    }


class StillRegistry(Registry):
    """A registry with so many slots, without a cluster."""

    def __init__(self, slots: int) -> None:
        super().__init__()
        for index in range(slots):
            key = f"node.{index}"
            self._slots[key] = _Slot(Handle(key, "node", None, key), key, "device", "node", index)

    def _look(self) -> None:
        self._looked_s = math.inf

    def _check(self, slot: _Slot, limit_s: float = math.inf) -> None:
        """Find each slot free at once."""


def beat_ms(slots: int, sessions: int = 100) -> float:
    """CPU milliseconds of the registry for one message of a driver that holds its share."""
    registry = StillRegistry(slots)
    holding: dict[int, list[str]] = {key: [] for key in range(1, sessions + 1)}

    def round_of_beats() -> None:
        for key, held in holding.items():
            grant = registry.sync(key, "device", slots, held, [], 60.0)
            holding[key] = [slot.id for slot in grant.slots]

    for _ in range(3):  # in the first ones, the slots find their sessions
        round_of_beats()
    began_s = time.thread_time()
    round_of_beats()
    return 1e3 * (time.thread_time() - began_s) / sessions


def inside(options: Any) -> None:
    searches, each = options.searches, options.candidates // options.searches
    problem = problem_for(options.candidates)
    shared = Counters.of(searches)
    share_counters(shared)
    place = tempfile.TemporaryDirectory(prefix="farm-scale-")
    with place as folder, running(durable=True, **SETTINGS) as server:
        url = server.database()
        start_node(Path(folder), "node", SLOTS, head=True)
        context = multiprocessing.get_context("spawn")
        processes = min(DRIVERS, searches)
        done = threading.Event()
        with ProcessPoolExecutor(processes, context, share_counters, (shared,)) as pool:
            groups = [range(first, searches, processes) for first in range(processes)]
            drives = [pool.submit(drive, group, url, problem, each) for group in groups]
            drivers = set(pool._processes or {})
            threading.Thread(target=_await, args=(drives, done), daemon=True).start()
            shared.ready.wait()
            print(f"{searches} searches begin", file=sys.stderr, flush=True)
            marks, hungry = watch(drivers, each * searches, done)
            for each_drive in drives:
                each_drive.result()
        result = judge_store(server, url) | judge_marks(marks, hungry)
    result |= {
        "slots": SLOTS,
        "drivers": processes,
        "job_s": JOB_S,
        "beat_ms_by_slots": {str(slots): beat_ms(slots) for slots in (64, 1_000, 10_000)},
    }
    report(rounded(result), options, "ray", "psycopg")


def _await(drives: Sequence[Future[None]], done: threading.Event) -> None:
    for drive in drives:
        drive.exception()
    done.set()


def main() -> None:
    parser = bench_parser(__doc__, quick="10 searches and 50,000 candidates")
    parser.add_argument("--searches", type=int, help="number of searches; by default 100")
    parser.add_argument("--candidates", type=int, help="of all searches; by default 1,000,000")
    options = parser.parse_args()
    options.searches = options.searches or (10 if options.quick else 100)
    options.candidates = options.candidates or (50_000 if options.quick else 1_000_000)
    if os.getuid() != 0:
        cannot_run("needs root, to start the cluster in a network of its own")
    if "KERNELCAST_INSIDE" not in os.environ:
        raise SystemExit(run_inside([sys.executable, *sys.argv], ENVIRONMENT))
    inside(options)


if __name__ == "__main__":
    main()
