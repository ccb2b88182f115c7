"""Faults in a search on a Ray cluster: is a result lost, charged twice, or accepted when stale?

A search runs on four raylets with four slots each, every raylet in a network namespace of its own,
with a durable PostgreSQL store. Faults come one after the other: SIGKILL of a worker, of a raylet,
of the driver, SIGSTOP of a worker past its lease, a cut network, a restart of PostgreSQL. The
driver also offers late results of lost attempts and of taken-over jobs to its own run.

`lost`: acknowledged events that the store does not have. `double_charged`: entries that were closed
twice, and accounts that differ from the sum of their entries. `stale_accepted`: offered late
results that were not refused. `slot_shared`: measurements that began on a slot while another
process still used it. It needs root, for the namespaces.

    python bench/farm_faults.py [--quick] [--seed N] [--out JSON]
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from _result import bench_parser, report
from kernelcast.errors import StaleLease
from kernelcast.events import Event, Lost, Measured, RunSpec, Settled, Voided
from kernelcast.farm._slot import _alive
from kernelcast.forecasters import RooflineForecaster
from kernelcast.parts import Parts
from kernelcast.policies import MeasureAll
from kernelcast.proposers import TemplateProposer
from kernelcast.search import Search
from kernelcast.store import Store
from kernelcast.strategies import Puct
from kernelcast.testing import SyntheticBackend, synthetic_problem
from kernelcast.types import (
    Budget,
    Effort,
    Job,
    Kernel,
    Loss,
    Measurement,
    Problem,
    Resource,
    Template,
)

sys.path.append(str(Path(__file__).parents[1]))  # a script sees its own folder, not the tests
from tests.own_network import HOST as HEAD
from tests.own_network import run_inside
from tests.postgres import Server, running

NODES = (2, 3, 4, 5)
SLOTS = 4
LEASE_S = 8.0
JOB_S = 0.4
KINDS = {"worker": 40, "stop": 15, "raylet": 12, "driver": 15, "network": 10, "postgres": 8}
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",  # the namespaces have no other inhabitant
    "RAY_DEDUP_LOGS": "0",
    "OMP_NUM_THREADS": "1",
}


class MarkingBackend(SyntheticBackend):
    """Takes `JOB_S` a kernel, and marks the slot that it uses meanwhile."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def measure(
        self, problem: Problem, kernel: Kernel, seed: int, effort: Effort = "screening"
    ) -> Measurement:
        import ray

        context: Any = ray.get_runtime_context()
        _, index, _ = context.get_actor_name().split(".")
        slot = self._folder / "slots" / f"{_address()}.{index}"
        with suppress(FileNotFoundError):
            other = int(slot.read_text() or 0)
            if other != os.getpid() and _alive(other):
                with (self._folder / "shared").open("a") as file:
                    file.write(f"{slot.name} {other} {os.getpid()}\n")
        slot.write_text(str(os.getpid()))
        time.sleep(JOB_S)
        slot.unlink(missing_ok=True)
        return super().measure(problem, kernel, seed, effort)


def _address() -> str:
    """Return the address of this network namespace, which names the node."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((HEAD, 9))
        return str(probe.getsockname()[0])


# ------------------------------------------------------------------------------------ the driver


class Driver:
    """Runs the search or continues it, acknowledges events in a file, and offers late results."""

    def __init__(self, url: str, folder: Path) -> None:
        from kernelcast.farm import RayFarm

        self.folder = folder
        self.jobs: dict[str, Job] = {}
        self.late: list[Job] = []
        self.farm = RayFarm(MarkingBackend(folder), address=f"{HEAD}:6379", lease_s=LEASE_S)
        submit = self.farm.submit

        def submit_and_offer(problem: Problem, job: Job) -> Future[Measurement | Loss]:
            # The loop submits right after a commit: a good moment for what comes too late.
            late, self.late = self.late, []
            for lost in late:
                self.offer(lost)
            self.jobs[job.entry] = job
            return submit(problem, job)

        self.farm.submit = submit_and_offer  # type: ignore[method-assign]
        problem = synthetic_problem()
        template = Template(
            source=problem.seed_source, parameters=dict.fromkeys("ABCDEFG", (1, 2, 4, 8, 16, 32))
        )
        parts = Parts(
            proposer=TemplateProposer(),
            forecaster=RooflineForecaster(),
            policy=MeasureAll(),
            strategy=Puct(),
            farm=self.farm,
        )
        store = Store.open(url)
        problem = problem.model_copy(update={"template": template})
        if store.runs():
            self.search = Search.resume(store, "faults", parts=parts, callbacks=[self])
            for job in list(self.search._measuring.jobs.values()):
                self.offer(job.model_copy(update={"lease": job.lease - 1}))
        else:
            self.search = Search(
                problem, parts, store, spec=RunSpec(reuse=False), name="faults", callbacks=[self]
            )

    def offer(self, job: Job) -> None:
        """Offer a result under a lease that is not the current one."""
        measurement = SyntheticBackend().measure(self.search.problem, job.kernel, job.seed)
        try:
            self.search.tell(job, measurement)
        except StaleLease:
            self._note("stale", "refused")
        else:
            self._note("stale", "accepted")

    def on_event(self, event: Event) -> None:
        if isinstance(event, Settled | Voided):
            self._note("acknowledged", f"{event.kind} {event.entry}")
        elif isinstance(event, Measured):
            self._note("acknowledged", f"measured {event.purpose} {event.measurement.kernel_id}")
        elif isinstance(event, Lost) and event.entry in self.jobs:
            self.late.append(self.jobs.pop(event.entry))
        if (self.folder / "stop").exists():
            self.search.stop("all faults are made")

    def _note(self, name: str, line: str) -> None:
        with (self.folder / name).open("a") as file:
            file.write(line + "\n")


def drive(url: str, folder: str) -> None:
    Driver(url, Path(folder)).search.run(Budget(measurements=1_000_000))


# -------------------------------------------------------------------------------------- the cluster


def _shell(command: str) -> None:
    subprocess.run(command, shell=True, check=True, stdout=subprocess.DEVNULL)


class Cluster:
    """A Ray head, raylets in namespaces of their own, a PostgreSQL server and a driver."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder = folder
        self.server = server
        self.url = server.database()
        here = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1])])
        paths = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
        self.environment = {**os.environ, "PYTHONPATH": paths}
        (folder / "slots").mkdir()
        _shell(
            "mount -t tmpfs none /run; mkdir -p /run/netns; "
            f"ip link add br0 type bridge; ip addr add {HEAD}/24 dev br0; ip link set br0 up"
        )
        self._ray("--head", "--port=6379", f"--node-ip-address={HEAD}", "--num-cpus=2")
        for node in NODES:
            _shell(
                f"ip netns add n{node}; ip link add v{node} type veth peer name e{node}; "
                f"ip link set v{node} master br0 up; ip link set e{node} netns n{node}; "
                f"ip -n n{node} addr add 10.99.0.{node}/24 dev e{node}; "
                f"ip -n n{node} link set e{node} up; ip -n n{node} link set lo up"
            )
            self.start_raylet(node)
        self.driver: subprocess.Popen[bytes] | None = None
        self.endings = 0
        """How often the driver ended by itself."""

    def _ray(self, *options: str, prefix: tuple[str, ...] = ()) -> None:
        command = [*prefix, sys.executable, "-m", "ray.scripts.scripts", "start", *options]
        command += ["--include-dashboard=false"] if "--head" in options else []
        with (self.folder / "ray.log").open("a") as log:
            subprocess.run(command, env=self.environment, check=True, stdout=log, stderr=log)

    def start_raylet(self, node: int) -> None:
        self._ray(
            f"--address={HEAD}:6379",
            f"--node-ip-address=10.99.0.{node}",
            f"--node-name=node{node}",
            "--num-cpus=1",
            f'--resources={{"kernelcast_slot": {SLOTS}}}',
            prefix=("ip", "netns", "exec", f"n{node}"),
        )

    def start_driver(self) -> None:
        program = f"import farm_faults; farm_faults.drive({self.url!r}, {str(self.folder)!r})"
        with (self.folder / "driver.log").open("a") as log:
            self.driver = subprocess.Popen(
                [sys.executable, "-c", program], env=self.environment, stdout=log, stderr=log
            )

    def raylet(self, node: int) -> int | None:
        """Return the process of a node's raylet."""
        address = f"--node_ip_address=10.99.0.{node}".encode()
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                program, *options = path.read_bytes().split(b"\0")
                if program.endswith(b"/raylet") and address in options:
                    return int(path.parent.name)
        return None

    def busy(self) -> list[int]:
        """Return the processes that use a slot now."""
        pids = []
        for path in (self.folder / "slots").iterdir():
            with suppress(OSError, ValueError):
                pids.append(int(path.read_text()))
        return [pid for pid in pids if _alive(pid)]

    def measured(self) -> int:
        path = self.folder / "acknowledged"
        return path.read_text().count("measured") if path.exists() else 0


def _later(delay_s: float, repair: Callable[..., None], *arguments: Any) -> None:
    timer = threading.Timer(delay_s, repair, arguments)
    timer.daemon = True  # the end does not wait for it
    timer.start()


def _fault(cluster: Cluster, kind: str, rng: random.Random) -> bool:
    """Make a fault; return False if there is nothing to break at present."""
    match kind:
        case "worker" | "stop":
            pids = cluster.busy()
            if not pids:
                return False
            with suppress(ProcessLookupError):
                os.kill(rng.choice(pids), signal.SIGKILL if kind == "worker" else signal.SIGSTOP)
        case "raylet":
            node = rng.choice(NODES)
            pid = cluster.raylet(node)
            if pid is None or sum(cluster.raylet(n) is not None for n in NODES) < len(NODES):
                return False
            os.kill(pid, signal.SIGKILL)
            _later(3.0, cluster.start_raylet, node)
        case "driver":
            assert cluster.driver is not None
            cluster.driver.kill()
            cluster.driver.wait()
            cluster.start_driver()
        case "network":
            node = rng.choice(NODES)
            _shell(f"ip link set v{node} down")
            _later(rng.uniform(2.0, 12.0), _shell, f"ip link set v{node} up")
        case "postgres":
            cluster.server.stop(rng.choice([signal.SIGINT, signal.SIGQUIT]))
            time.sleep(rng.uniform(0.0, 2.0))
            cluster.server.start()
    return True


def _await(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 600
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"gave up waiting for {what}")
        time.sleep(0.2)


def _break(cluster: Cluster, faults: int, rng: random.Random) -> Counter[str]:
    made: Counter[str] = Counter()
    shares = [(kind, max(1, round(faults * share / 100))) for kind, share in KINDS.items()]
    kinds = [kind for kind, count in shares for _ in range(count)][:faults]
    kinds += ["worker"] * (faults - len(kinds))
    rng.shuffle(kinds)
    for kind in kinds:
        # Each fault meets a search that works, with results since the last fault.
        enough = cluster.measured() + 3
        _await(partial(_has_measured, cluster, enough), f"results after {made.total()} faults")
        _await(partial(_fault, cluster, kind, rng), f"something to break by {kind}")
        made[kind] += 1
        print(f"{made.total():3d} {kind:9s} measured {cluster.measured()}", flush=True)
    return made


def _has_measured(cluster: Cluster, count: int) -> bool:
    assert cluster.driver is not None
    if cluster.driver.poll() is not None:
        print("the driver ended by itself and is started again", flush=True)
        cluster.endings += 1
        cluster.start_driver()
    return cluster.measured() >= count


def _judge(cluster: Cluster) -> dict[str, int]:
    """Hold the store against what was acknowledged."""
    with Store.open(cluster.url) as store:
        run = store.open_run("faults")
        stored: Counter[str] = Counter()
        closings: Counter[str] = Counter()
        spent: Counter[Resource] = Counter()
        for event in run.events():
            if isinstance(event, Settled | Voided):
                stored[f"{event.kind} {event.entry}"] += 1
                closings[event.entry] += 1
            if isinstance(event, Settled):
                for resource, amount in event.spend.items():
                    spent[resource] += amount  # type: ignore[assignment]
            elif isinstance(event, Measured):
                stored[f"measured {event.purpose} {event.measurement.kernel_id}"] += 1
        accounts = run.ledger()
        wrong = [
            resource
            for resource, account in accounts.items()
            if abs(account.spent - spent[resource]) > 1e-6 or abs(account.reserved) > 1e-6
        ]
        acknowledged = Counter((cluster.folder / "acknowledged").read_text().splitlines())
        state = run.state
    stale = Counter((cluster.folder / "stale").read_text().split())
    shared = cluster.folder / "shared"
    return {
        "lost": sum((acknowledged - stored).values()),
        "double_charged": sum(count > 1 for count in closings.values()) + len(wrong),
        "stale_offered": stale.total(),
        "stale_accepted": stale["accepted"],
        "slot_shared": len(shared.read_text().splitlines()) if shared.exists() else 0,
        "measured": state.measured,
        "attempts_lost": state.lost,
        "quarantined": state.quarantined,
    }


def _inside(options: Any) -> None:
    place = tempfile.TemporaryDirectory(prefix="farm-faults-")
    with place as name, running(durable=True) as server:
        folder = Path(name)
        folder.chmod(0o755)
        cluster = Cluster(folder, server)
        cluster.start_driver()
        try:
            made = _break(cluster, 15 if options.quick else 100, random.Random(options.seed))
            (folder / "stop").touch()
            assert cluster.driver is not None
            finished = cluster.driver.wait(timeout=900) == 0
            result = _judge(cluster)
        finally:
            if options.logs:
                shutil.copytree(folder, options.logs, dirs_exist_ok=True)
    figures = {"faults": made.total(), **result, "finished": finished, "kinds": dict(made)}
    report({**figures, "driver_endings": cluster.endings}, options, "ray", "psycopg")


def main() -> None:
    parser = bench_parser(__doc__, quick="15 faults")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--logs", type=Path, help="folder for the logs of driver and cluster")
    parser.add_argument("--inside", action="store_true", help="this process has its namespaces")
    options = parser.parse_args()
    if options.inside:
        _inside(options)
        return
    command = [sys.executable, *sys.argv, "--inside"]
    raise SystemExit(run_inside(command, ENVIRONMENT, network="ip link set lo up"))


if __name__ == "__main__":
    main()
