"""How much of its slots a Ray farm uses: against bare Ray actors, and under a whole search.

A cluster of two nodes is started in namespaces of its own (needs root). Jobs only sleep, so many
slots share a process. Bare actors are called by a loop that does nothing else: one call a slot, the
next when it returns. The same kernels are sent to both, by turns in alternating order. A search
measures every candidate of a template of two million configurations with the default forecaster and
a durable SQLite store; its utilisation is the slot seconds of its measurements over those that
passed between the first and the last of them.

    python bench/farm_throughput.py [--quick] [--out bench/results/farm_throughput.json]

The last line is JSON: `ratio_to_bare_ray` (jobs a second, median of 9 pairs, with its range),
`utilisation_1s` (64 slots of 1 s jobs) and `utilisation_100ms` (8 slots of 100 ms jobs).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

from _result import bench_parser, cannot_run, report
from kernelcast.errors import import_extra
from kernelcast.events import RunSpec
from kernelcast.farm.ray import RayFarm
from kernelcast.forecasters import TreesForecaster
from kernelcast.parts import Parts
from kernelcast.policies import MeasureAll
from kernelcast.proposers import TemplateProposer
from kernelcast.search import Search
from kernelcast.store import Store
from kernelcast.strategies import Puct
from kernelcast.testing import SyntheticBackend, synthetic_kernels, synthetic_problem
from kernelcast.types import Budget, Effort, Job, Kernel, Measurement, Problem

sys.path.append(str(Path(__file__).parents[1]))  # a script sees its own folder, not the tests
from tests.own_network import HOST, run_inside

PORT, PROCESSES = 6379, 2
PAIRS, RATE_SLOTS, RATE_S = 9, 16, 0.05


class SleepingBackend(SyntheticBackend):
    """Measures for as long as it is told to."""

    def __init__(self, job_s: float) -> None:
        super().__init__()
        self.job_s = job_s

    def measure(
        self, problem: Problem, kernel: Kernel, seed: int, effort: Effort = "screening"
    ) -> Measurement:
        time.sleep(self.job_s)
        return super().measure(problem, kernel, seed, effort)


class BareSlots:
    """Some slots in a process, without anything around them."""

    def __init__(self, job_s: float) -> None:
        self.backend, self.problem = SleepingBackend(job_s), synthetic_problem()

    def measure(self, kernel: Kernel, seed: int) -> Measurement:
        return self.backend.measure(self.problem, kernel, seed)


def start_node(folder: Path, name: str, slots: int, *, head: bool) -> None:
    role = ["--head", f"--port={PORT}", f"--temp-dir={folder}", "--include-dashboard=false"]
    options = [
        *(role if head else [f"--address={HOST}:{PORT}"]),
        f"--node-ip-address={HOST}",
        f"--node-name={name}",
        "--num-cpus=2",
        "--object-store-memory=80000000",
        "--disable-usage-stats",
        f'--resources={{"kernelcast_slot": {slots}}}',
        f"--labels=kernelcast-device=sleeping,kernelcast-shared={slots}",
    ]
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = os.environ | {"PYTHONPATH": path}
    subprocess.run(
        ["ray", "start", *options], check=True, stdout=subprocess.DEVNULL, env=environment
    )


def jobs_per_s(count: int, work: Callable[[list[Kernel]], None]) -> float:
    kernels = synthetic_kernels(count)
    began_s = time.perf_counter()
    work(kernels)
    return count / (time.perf_counter() - began_s)


def bare_work(actors: list[Any]) -> Callable[[list[Kernel]], None]:
    ray = import_extra("ray", "ray")

    def work(kernels: list[Kernel]) -> None:
        idle = list(actors)
        running: dict[Any, Any] = {}
        queue = list(enumerate(kernels))
        while queue or running:
            while queue and idle:
                actor = idle.pop()
                seed, kernel = queue.pop()
                running[actor.measure.remote(kernel, seed)] = actor
            ended, _ = ray.wait(list(running), num_returns=1)
            ended, _ = ray.wait(list(running), num_returns=len(running), timeout=0)
            for reference in ended:
                ray.get(reference)
                idle.append(running.pop(reference))

    return work


def farm_work(farm: RayFarm) -> Callable[[list[Kernel]], None]:
    problem = synthetic_problem()

    def work(kernels: list[Kernel]) -> None:
        jobs = [
            Job(entry=f"search-{time.time_ns()}-{seed}", purpose="search", kernel=kernel, seed=seed)
            for seed, kernel in enumerate(kernels)
        ]
        for future in [farm.submit(problem, job) for job in jobs]:
            assert isinstance(future.result(), Measurement)

    return work


def ratios(pairs: int, count: int) -> list[float]:
    ray = import_extra("ray", "ray")
    with closing(RayFarm(SleepingBackend(RATE_S), RATE_SLOTS, f"{HOST}:{PORT}")) as farm:
        each = RATE_SLOTS // PROCESSES
        bare = ray.remote(num_cpus=0, max_concurrency=each)(BareSlots)
        hosts = [bare.remote(RATE_S) for _ in range(PROCESSES)]
        works = {"bare": bare_work(hosts * each), "farm": farm_work(farm)}
        for work in works.values():
            jobs_per_s(4 * RATE_SLOTS, work)
        found = []
        for pair in range(pairs):
            order = ["bare", "farm"] if pair % 2 else ["farm", "bare"]
            rates = {name: jobs_per_s(count, works[name]) for name in order}
            print({name: round(rate, 1) for name, rate in rates.items()}, file=sys.stderr)
            found.append(rates["farm"] / rates["bare"])
        for host in hosts:
            ray.kill(host)
    return found


def utilisation(job_s: float, slots: int, count: int) -> float:
    farm = RayFarm(SleepingBackend(job_s), slots, f"{HOST}:{PORT}")
    while farm.slots < slots:
        time.sleep(0.1)
    times_s: list[float] = []

    class Watch:
        def on_event(self, event: Any) -> None:
            if event.kind == "measured":
                times_s.append(time.perf_counter())

    parts = Parts(
        TemplateProposer(), TreesForecaster(), MeasureAll(pool_size=2 * slots), Puct(), farm
    )
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "store.db") as store:
        search = Search(
            synthetic_problem("ABCDEFG", 8),
            parts,
            store,
            spec=RunSpec(reuse=False),
            callbacks=[Watch()],
        )
        search.run(Budget(measurements=count))
    # The reference is measured alone; the last jobs end together. Both ends are left out.
    inner = times_s[slots : len(times_s) - slots]
    return (len(inner) - 1) * job_s / ((inner[-1] - inner[0]) * slots)


def main() -> None:
    parser = bench_parser(__doc__, "one pair of each, and shorter runs")
    options = parser.parse_args()
    if os.getuid() != 0:
        cannot_run("needs root, to start the cluster in a network of its own")
    if "KERNELCAST_INSIDE" not in os.environ:
        raise SystemExit(run_inside([sys.executable, *sys.argv], {"KERNELCAST_INSIDE": "1"}))
    with tempfile.TemporaryDirectory() as folder:
        for number in range(PROCESSES):
            start_node(Path(folder), f"node{number}", 64 // PROCESSES, head=number == 0)
        found = ratios(1 if options.quick else PAIRS, 200 if options.quick else 600)
        repeats = 1 if options.quick else 9
        one_s, tenth_s = [], []
        for _ in range(repeats):
            one_s.append(utilisation(1.0, 64, 320 if options.quick else 960))
            tenth_s.append(utilisation(0.1, 8, 160 if options.quick else 960))
            print(f"{one_s[-1]:.3f} {tenth_s[-1]:.3f}", file=sys.stderr)
        result = {
            "ratio_to_bare_ray": median(found),
            "ratio_range": [min(found), max(found)],
            "utilisation_1s": median(one_s),
            "utilisation_1s_range": [min(one_s), max(one_s)],
            "utilisation_100ms": median(tenth_s),
            "utilisation_100ms_range": [min(tenth_s), max(tenth_s)],
        }
        report(result, options, "ray")


if __name__ == "__main__":
    main()
