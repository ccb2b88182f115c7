"""The measurements of a search: which is next, which are under way, and what came of them.

Another run may be measuring the same kernel: then this one waits for its result, which the cache
gives to both. The file holds no decision: what waits to be measured is in the state.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from kernelcast import events, scoring, types
from kernelcast.doubts import Doubts, retractions
from kernelcast.errors import SetupError
from kernelcast.events import Event
from kernelcast.journal import Journal
from kernelcast.protocols import Farm
from kernelcast.run import KernelClaim
from kernelcast.store import Store
from kernelcast.thinking import Thinking, observation_of, pending_of
from kernelcast.types import Job, Kernel, Loss, Measurement, Resource

_CLAIM_POLL_S = 0.5  # after which a kernel that another run measures is looked for again
_RENEWAL_S = 15.0  # between two renewals of the claims of jobs that wait for a slot
_POISON = 2  # workers that a kernel may end before it is quarantined


class Measuring:
    """The jobs of a search, on all of its devices.

    Args:
        journal: Where results are entered.
        store: Its cache has the measurements of other runs.
        thinking: Learns from the results.
    """

    def __init__(self, journal: Journal, store: Store, thinking: Thinking) -> None:
        self._journal = journal
        self._store = store
        self._thinking = thinking
        self._farm = journal.parts.farm
        self.farms = {farm.device.id: farm for farm in (self._farm, *self._farm.others)}
        """The farm of each device; the first is the one that the search decides for."""
        self.jobs: dict[str, Job] = {}
        """What is under way, by entry."""
        self.adopted: dict[Future[Measurement | Loss], Job] = {}
        """What an earlier process had submitted."""
        self.claimed: dict[str, float] = {}
        """Kernels that other runs measure, and when to look again."""
        self._renewed_s = time.monotonic()
        self._doubts = Doubts(list(self.farms.values()), journal.seed)

    def adopt(self) -> None:
        """Take over the jobs that outlived the process that submitted them, by new leases."""
        adopted = [
            (farm, *job)
            for farm in self.farms.values()
            for job in farm.adopt(self._journal.log.key).items()
        ]
        for farm, entry, future in adopted:
            leased = self._journal.state.leases.get(entry)
            if leased is None:
                farm.cancel(entry)
                continue
            leased = leased.model_copy(update={"lease": leased.lease + 1})
            self._journal.stage([leased])
            self.adopted[future] = self._job(leased)
        self._journal.commit()

    def retract(self) -> None:
        """Take back what a farm does not believe any more; it is measured again."""
        if doubted := self._doubts.collect(self._journal.state):
            self._journal.commit()
            self._journal.stage(retractions(self._journal.log, doubted))

    def busy(self) -> int:
        """Return the number of kernels that are measured or wait for it."""
        waiting = set(self._journal.state.pending) - set(self.claimed)
        return len(self._running(self._farm.device.id) | waiting)

    def _running(self, device: str) -> set[str]:
        """Return the kernels whose jobs are under way on a device."""
        return {job.kernel.id for job in self.jobs.values() if job.device == device}

    def next_jobs(self, room: int) -> list[Job]:
        """Reserve measurements while there is room for them."""
        jobs: list[Job] = []
        under_way = sum(job.device == self._farm.device.id for job in self.jobs.values())
        while under_way + len(jobs) < room and (job := self.next_job()) is not None:
            jobs.append(job)
        return jobs

    def next_job(self) -> Job | None:
        """Reserve a measurement on the first device: what is most urgent."""
        state = self._journal.state
        running = self._running(self._farm.device.id)
        if state.reference is None:
            return None if running else self._reserve("reference", self._journal.seed_kernel_id)
        for key in state.unconfirmed:
            overtaken = state.archive[key].log2_speedup <= state.incumbent.log2_speedup
            if key not in running and not overtaken:
                return self._reserve("confirmation", key)
        if self._journal.stopped is not None:
            return None
        if (repeated := self._doubts.repeat(running)) is not None:
            return self._reserve("confirmation", repeated)
        for key in list(state.pending):
            if key not in running and not self._recall(key):
                return self._reserve("search", key)
        return None

    def next_elsewhere(self) -> Job | None:
        """Reserve a measurement on another device that has a free slot."""
        for farm in self._farm.others:
            running = self._running(farm.device.id)
            other = self._journal.state.elsewhere.get(farm.device.id)
            if len(running) >= farm.slots:
                continue
            if other is None or other.reference is None:
                if not running:
                    return self._reserve("reference", self._journal.seed_kernel_id, farm)
                continue
            for key, log2_speedup in other.unconfirmed.items():
                if key not in running and log2_speedup > other.best_log2:
                    return self._reserve("confirmation", key, farm)
            waiting = [key for key in other.waiting if key not in running]
            if waiting and self._journal.stopped is None:
                fastest = max(waiting, key=other.waiting.__getitem__)
                return self._reserve("search", fastest, farm)
        return None

    def _reserve(self, purpose: types.Purpose, key: str, farm: Farm | None = None) -> Job | None:
        farm = farm or self._farm
        # Reference and confirmations do not count as measurements.
        spend: dict[Resource, float] = {
            resource: cost
            for resource, cost in farm.quote(self._journal.problem).items()
            if purpose == "search" or resource != Resource.MEASUREMENTS
        }
        entry = self._journal.reserve(purpose, spend)
        if entry is None:
            return None
        leased = events.Leased(
            entry=entry,
            lease=1,
            attempt=self._journal.state.losses.get(key, 0) + 1,
            purpose=purpose,
            kernel_id=key,
            device=farm.device.id,
        )
        claims = []
        if purpose == "search" and self._journal.spec.reuse and farm is self._farm:
            claims.append(KernelClaim(self._cache_key(key), entry, self._claim_s()))
        self._journal.log.stage([leased], claims=claims)
        return self._job(leased)

    def _job(self, leased: events.Leased) -> Job:
        job = Job(
            entry=leased.entry,
            purpose=leased.purpose,
            kernel=self._journal.kernel(leased.kernel_id),
            seed=self._journal.seed(leased.entry),
            run=self._journal.log.key,
            attempt=leased.attempt,
            lease=leased.lease,
            device=leased.device,
            avoid=self._doubts.node_of(leased.kernel_id),
        )
        self.jobs[job.entry] = job
        return job

    def _recall(self, key: str) -> bool:
        """Use another run's measurement of this kernel, or wait for it; it costs nothing."""
        if not self._journal.spec.reuse:
            return False
        if time.monotonic() < self.claimed.get(key, 0.0):
            return True
        cache_key = self._cache_key(key)
        known = self._store.cached_measurement(cache_key)
        if known is not None:
            self.claimed.pop(key, None)
            self._record(self._journal.kernel(key), known, "search", [], cached=True)
            return True
        if self._journal.log.is_claimed(cache_key):
            self.claimed[key] = time.monotonic() + _CLAIM_POLL_S
            return True
        self.claimed.pop(key, None)
        return False

    def _cache_key(self, key: str) -> types.CacheKey:
        farm = self._farm
        return types.CacheKey(
            kernel_id=key,
            problem_id=self._journal.problem.id,
            device_id=farm.device.id,
            toolchain=farm.toolchain,
            protocol=types.TIMING_PROTOCOL,
            effort="screening",
        )

    def _claim_s(self) -> float:
        """Return the seconds for which a claim holds unless it is renewed."""
        return 2.0 * self._farm.quote(self._journal.problem).get(Resource.DEVICE_S, 0.0) + 60.0

    def wait(self, futures: Collection[Future[Any]]) -> set[Future[Any]]:
        """Wait until one of the futures is done, or it is time to look for claimed kernels again.

        Until then other runs are kept from measuring what this one has queued: a slot may come
        late.
        """
        now_s = time.monotonic()
        if self._journal.spec.reuse and self.jobs and now_s - self._renewed_s >= _RENEWAL_S:
            self._renewed_s = now_s
            self._journal.log.renew_claims(self._claim_s())
        if not futures:
            time.sleep(_CLAIM_POLL_S)
        pause_s = _CLAIM_POLL_S if self.claimed else _RENEWAL_S
        return wait(futures, pause_s, return_when=FIRST_COMPLETED).done

    def give_way(self, jobs: Sequence[Job]) -> list[Job]:
        """Withdraw the jobs whose kernels other runs began to measure first; return the others."""
        contested = self._journal.log.contested
        for job in [job for job in jobs if job.entry in contested]:
            self._journal.stage([events.Voided(entry=job.entry, lease=job.lease)])
            self.claimed[job.kernel.id] = time.monotonic() + _CLAIM_POLL_S
            del self.jobs[job.entry]
        self._journal.commit()
        return [job for job in jobs if job.entry not in contested]

    def settle(self, job: Job, outcome: Measurement | Loss) -> None:
        """Enter what came of a job.

        Raises:
            SetupError: The problem's seed kernel fails.
            StaleLease: The job was lost or taken over before; nothing is entered.
        """
        self._thinking.results += 1
        promised = self._journal.state.entries.get(job.entry, {})
        if isinstance(outcome, Loss):
            # It made no measurement, but it may have used all the seconds that it could.
            spend = {Resource.DEVICE_S: promised.get(Resource.DEVICE_S, 0.0)}
            settled = events.Settled(entry=job.entry, spend=spend, unknown=True, lease=job.lease)
            lost = events.Lost(
                entry=job.entry,
                kernel_id=job.kernel.id,
                attempt=job.attempt,
                reason=outcome.reason,
                suspect=outcome.suspect,
            )
            self._journal.stage([settled, lost])
            del self.jobs[job.entry]
            if self._journal.state.suspects[job.kernel.id] >= _POISON:
                self._quarantine(job, outcome)
            return
        spend = {
            resource: outcome.device_s if resource is Resource.DEVICE_S else amount
            for resource, amount in promised.items()
        }
        settled = events.Settled(entry=job.entry, spend=spend, lease=job.lease)
        self._record(job.kernel, outcome, job.purpose, [settled])
        del self.jobs[job.entry]
        self._check_seed(job, outcome)

    def _quarantine(self, job: Job, loss: Loss) -> None:
        """Record a kernel that ended several workers as one that crashes."""
        reason = f"it ended {_POISON} workers, at last so: {loss.reason}"
        farm = self.farms[job.device]
        measurement = Measurement(
            kernel_id=job.kernel.id,
            problem_id=self._journal.problem.id,
            device_id=farm.device.id,
            toolchain=farm.toolchain,
            failure=types.Failure(kind=types.FailureKind.CRASH, message=reason),
            device_s=0.0,
            effort=job.effort,
            protocol=types.TIMING_PROTOCOL,
        )
        quarantined = events.Quarantined(kernel_id=job.kernel.id, reason=reason)
        self._record(job.kernel, measurement, job.purpose, [quarantined])
        self._check_seed(job, measurement)

    def _check_seed(self, job: Job, measurement: Measurement) -> None:
        if job.purpose == "reference" and measurement.failure is not None:
            raise SetupError(
                f"the seed kernel of problem {self._journal.problem.name!r} fails on {job.device} "
                f"({measurement.failure.kind}): {measurement.failure.message}"
            )

    def _record(
        self,
        kernel: Kernel,
        measurement: Measurement,
        purpose: types.Purpose,
        before: list[Event],
        *,
        cached: bool = False,
    ) -> None:
        """Record a measurement after the events `before`, and learn from it."""
        event = events.Measured(measurement=measurement, purpose=purpose, cached=cached)
        if measurement.device_id != self._farm.device.id:
            self._journal.stage([*before, event])
            return
        if not cached:
            self._doubts.compare(measurement, purpose, self._journal.state.incumbent.log2_speedup)
        pending = pending_of(event, self._journal.state)
        if pending is not None:
            calibration = scoring.judge(
                pending.candidate.forecast, measurement, blind=pending.audit
            )
            event = event.model_copy(update={"calibration": calibration})
        observation = observation_of(kernel, event, self._journal.state, self._journal.spec.writer)
        self._journal.stage([*before, event])
        if purpose != "reference":
            # A confirmation too: the first measurement may have been too high by chance.
            self._thinking.learn(observation)
        if self._journal.state.hopeless is not None:
            self._journal.stop(
                f"stopped: the first {self._journal.state.measured} measurements failed alike"
            )
        if self._journal.state.left(Resource.MEASUREMENTS) < 1:
            self._journal.stop("budget spent: all measurements made")
