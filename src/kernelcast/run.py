"""The log of a run: its events, and everything that is derived from them.

Events are applied to the state when they are staged. `Run.commit` writes all that are staged, and
what is derived from them, in one transaction, so that a crash leaves either all of it or none.

Each event has the checksum of all payloads up to it, which finds damage, and a signature over its
content and its place, which finds what was not written with the keys here (`keyring`).
"""

from __future__ import annotations

import time
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import sqlalchemy as sa
import zstandard
from pydantic import ValidationError
from sqlalchemy.exc import IntegrityError, ProgrammingError

from kernelcast import tables
from kernelcast.errors import BudgetExceeded, Overtaken, StaleLease, StoreError
from kernelcast.events import (
    EVENT,
    BudgetChanged,
    Event,
    Leased,
    Measured,
    Proposed,
    Reserved,
    Retracted,
    RunStarted,
    Settled,
    Voided,
)
from kernelcast.ledger import CAP_SLACK, Account, Ledger
from kernelcast.state import State
from kernelcast.types import CacheKey, FailureKind, Kernel, Resource

if TYPE_CHECKING:
    from kernelcast.store import Store

SNAPSHOT_EVERY = 5_000
_PAGE = 2_000  # events read at a time
_RECENT_KERNELS = 4_096  # kept in memory per run

Origin = Literal["here", "elsewhere", "earlier"]
"""Where a run was written: with a key that is here, with another one, or before there were keys."""
_IN_WORDS: Mapping[Origin, str] = {
    "here": "written here",
    "elsewhere": "not written here",
    "earlier": "written by an earlier kernelcast, without signatures",
}


class KernelClaim(NamedTuple):
    """A kernel that an entry measures; others may measure it after `lease_s`."""

    key: CacheKey
    entry: str
    lease_s: float


class Run:
    """The log of one run and the state of its events. A second concurrent writer is refused."""

    def __init__(self, store: Store, run_id: int | None, name: str, created_at: float) -> None:
        self.store = store
        self.name = name
        self.key = f"{name}@{created_at}"
        """Name and time of creation: no run of another store has the same."""
        self.origin: Origin = "here"
        self._id = run_id
        self._created_at = created_at
        self.state = State()
        self._crc = 0
        self._snapshot_seq = 0
        self._staged: list[Event] = []
        self._staged_kernels: list[Kernel] = []
        self._claims: list[KernelClaim] = []
        self.contested: set[str] = set()
        """Entries of the last commit whose kernels another run measures already."""
        self._recent: dict[str, Kernel] = {}  # with all that are staged

    # ------------------------------------------------------------------------------- origin

    @property
    def is_own(self) -> bool:
        """Whether every event was written with a key that is here."""
        return self.origin == "here"

    @property
    def written(self) -> str:
        """Where the run was written, in words."""
        return _IN_WORDS[self.origin]

    def check_own(self) -> None:
        """Refuse to execute, continue or learn from a run that was not written here.

        Raises:
            StoreError: The run was not written with a key that is here.
        """
        if not self.is_own:
            raise StoreError(
                f"run {self.name!r} was {self.written}: kernelcast runs nothing of it and learns "
                f"nothing from it. Read it with `kernelcast show {self.name}`. If you trust what "
                f"wrote it, sign it with your key: `kernelcast show {self.name} --trust-store`; or "
                "copy the key of the machine that wrote it"
            )

    def sign(self) -> None:
        """Sign all events and kernels with the key here, so that the run counts as written here.

        Its measurements are not given to other runs: the cache keeps to what was signed before.

        Raises:
            StoreError: The run is damaged, another process holds it, or this role of the server
                may not change events.
        """
        self.hold()
        state = self.replay()
        macs = [self.store.keyring.sign(*self._signed(row)) for row in self._rows()]
        self.origin = "elsewhere"  # whatever a snapshot says
        ids = {event.kernel_id for event in self.events("proposed") if isinstance(event, Proposed)}
        if state.started is not None:
            ids.add(state.started.seed_kernel_id)
        kernels = self.store.kernels(sorted(ids), foreign=True)
        place = (tables.events.c.run_id == self._id, tables.events.c.seq == sa.bindparam("of_seq"))
        signing = tables.events.update().where(*place).values(mac=sa.bindparam("new_mac"))
        try:
            with self.store.engine.begin() as connection:
                for start in range(0, len(macs), _PAGE):
                    page = enumerate(macs[start : start + _PAGE], start)
                    connection.execute(signing, [{"of_seq": n, "new_mac": mac} for n, mac in page])
                if kernels:
                    self.store._write_kernels(connection, kernels)
                connection.execute(
                    tables.snapshots.delete().where(tables.snapshots.c.run_id == self._id)
                )
        except ProgrammingError as error:
            raise StoreError(
                f"run {self.name!r} cannot be signed ({error.orig}): the owner of the tables can"
            ) from error
        self.load()

    # ------------------------------------------------------------------------------- holding

    def hold(self) -> None:
        """Keep other processes from writing to this run until the store is closed.

        Raises:
            StoreError: Another process holds the run.
        """
        locks = self.store._locks
        if locks is not None and self._id is not None and not locks.take(self._id):
            raise StoreError(
                f"run {self.name!r} is running: {self.holder()} holds it. Wait until it ends, or "
                "stop it with Ctrl-C there"
            )

    def release(self) -> None:
        """Allow other processes to write to this run again."""
        locks = self.store._locks
        if locks is not None and self._id is not None:
            locks.release(self._id)

    def holder(self) -> str | None:
        """Return the process that holds this run, unless it is this one: "process 12 on host"."""
        locks = self.store._locks
        return locks.holder(self._id) if locks is not None and self._id is not None else None

    # ------------------------------------------------------------------------------- writing

    def append(self, new: Sequence[Event], kernels: Sequence[Kernel] = ()) -> None:
        """Stage events and commit them; see `stage` and `commit`."""
        self.stage(new, kernels)
        self.commit()

    def stage(
        self,
        new: Sequence[Event],
        kernels: Sequence[Kernel] = (),
        claims: Sequence[KernelClaim] = (),
    ) -> None:
        """Apply events to the state; `commit` writes them with all others that are staged.

        Args:
            new: The events, in order.
            kernels: The kernels that the events name and the store may not have yet.
            claims: What the events begin to measure, so that other runs wait for the result.

        Raises:
            BudgetExceeded: A reservation would exceed a cap; none of the new events is staged.
            StoreError: The events do not fit the run; none of them is staged.
        """
        self.check_own()
        applied = 0
        try:
            for event in new:
                self._check_entry(event)
                applied += 1
                self.state.apply(event)
        except BaseException as error:
            if applied:
                self._restore()
            if isinstance(error, KeyError):
                raise StoreError(f"an event names {error}, which the run does not have") from error
            raise
        self._staged.extend(new)
        self._staged_kernels.extend(kernels)
        self._claims.extend(claims)
        self._recent.update((kernel.id, kernel) for kernel in kernels)

    def _check_entry(self, event: Event) -> None:
        """Refuse a reservation above a cap, and an entry that is closed twice."""
        if isinstance(event, Reserved):
            for resource, amount in event.spend.items():
                if amount > self.state.left(resource) + CAP_SLACK:
                    raise BudgetExceeded(f"reserving {amount:g} {resource} would pass the cap")
        elif isinstance(event, Settled | Voided):
            current = self.state.leases.get(event.entry)
            if event.lease != (current and current.lease):
                raise StaleLease(
                    f"entry {event.entry!r} has lease {current and current.lease}, its result came "
                    f"under {event.lease}"
                )
            if event.entry not in self.state.entries:
                raise StoreError(
                    f"entry {event.entry!r} is not open: it was settled or voided before, or never "
                    "reserved"
                )

    def _restore(self) -> None:
        """Set the state to that of the written and the staged events."""
        self.load()
        for event in self._staged:
            self.state.apply(event)

    def commit(self) -> list[Event]:
        """Write the staged events durably in one transaction, and return them.

        Raises:
            BudgetExceeded: Another process has reserved in the meantime; nothing was written.
            StoreError: Another process writes to the run, or an entry is used twice; nothing was
                written.
        """
        new, kernels, claims = self._staged, self._staged_kernels, self._claims
        self.contested = set()
        if not new:
            return []
        self._staged, self._staged_kernels, self._claims = [], [], []
        rows: list[dict[str, Any]] = []
        crc, now = self._crc, time.time()
        for seq, event in enumerate(new, start=self.state.events - len(new)):
            payload = event.model_dump_json()
            crc = zlib.crc32(payload.encode(), crc)
            row = {"seq": seq, "kind": event.kind, "at": now, "crc": crc, "payload": payload}
            rows.append({**row, "mac": self.store.keyring.sign("event", self.key, *row.values())})
        began = False

        def write() -> int:
            nonlocal began
            with self.store.engine.begin() as connection:
                # A server that went away may have committed before it did.
                written = self._written(connection, rows[-1]) if began else None
                if written is not None:
                    return written
                began = True
                run_id = self._id if self._id is not None else self._create(connection)
                numbered = [{"run_id": run_id, **row} for row in rows]
                connection.execute(tables.events.insert(), numbered)
                if kernels:
                    self.store._write_kernels(connection, kernels)
                self._project(connection, run_id, new)
                if claims:
                    self.contested = self._claim(connection, run_id, claims)
                return run_id

        try:
            run_id = self.store.patiently(write)
        except BaseException as error:
            # The state has events that the store has not: take it from the store.
            self.load()
            if isinstance(error, IntegrityError):
                raise Overtaken(
                    f"run {self.name!r} was written to by another process, or an entry was used "
                    f"twice: open the run again ({error.orig})"
                ) from error
            raise
        self._id, self._crc = run_id, crc
        while len(self._recent) > _RECENT_KERNELS:
            del self._recent[next(iter(self._recent))]
        if self.state.events - self._snapshot_seq >= SNAPSHOT_EVERY:
            self._snapshot()
        return new

    def _written(self, connection: sa.Connection, row: Mapping[str, Any]) -> int | None:
        """Return the number of the run if this event is in the store."""
        query = sa.select(tables.events.c.run_id).join(tables.runs)
        same = (tables.events.c.seq == row["seq"], tables.events.c.crc == row["crc"])
        run_id: int | None = connection.scalar(query.where(tables.runs.c.name == self.name, *same))
        return run_id

    def _claim(
        self, connection: sa.Connection, run_id: int, claims: Sequence[KernelClaim]
    ) -> set[str]:
        """Claim kernels to measure, and return the entries of those that another run has.

        It may also have measured one since this run looked.
        """
        now = time.time()
        rows = [
            {**claim.key._asdict(), "run_id": run_id, "entry": claim.entry, "now": now}
            | {"expires_at": now + claim.lease_s}
            for claim in sorted(claims, key=lambda claim: claim.key)
        ]
        connection.execute(self.store._claim, rows)
        mine = sa.select(tables.claims.c.entry).where(
            tables.claims.c.run_id == run_id,
            tables.claims.c.entry.in_([claim.entry for claim in claims]),
        )
        measurements = tables.measurements
        known = [sa.and_(*tables.matches(measurements, claim.key)) for claim in claims]
        query = sa.select(measurements.c.kernel_id).where(sa.or_(*known))
        own = measurements.c.signer.in_(self.store.keyring.signers)
        measured = set(connection.scalars(query.where(own)))
        held = set(connection.scalars(mine))
        return {c.entry for c in claims if c.entry not in held or c.key.kernel_id in measured}

    def is_claimed(self, key: CacheKey) -> bool:
        """Return whether another run measures this kernel at present."""
        query = sa.select(tables.claims.c.entry).where(
            *tables.matches(tables.claims, key),
            tables.claims.c.run_id != self._id,
            tables.claims.c.expires_at >= time.time(),
        )
        with self.store.connect() as connection:
            return connection.scalar(query) is not None

    def renew_claims(self, lease_s: float) -> None:
        """Let what this run has claimed and not yet measured be claimed for longer."""
        mine = tables.claims.update().where(tables.claims.c.run_id == self._id)

        def write() -> None:
            with self.store.engine.begin() as connection:
                connection.execute(mine.values(expires_at=time.time() + lease_s))

        self.store.patiently(write)

    def _create(self, connection: sa.Connection) -> int:
        insert = tables.runs.insert().values(name=self.name, created_at=self._created_at)
        key = connection.execute(insert).inserted_primary_key
        assert key is not None
        return int(key[0])

    def _project(self, connection: sa.Connection, run_id: int, new: Sequence[Event]) -> None:
        earlier = [e.entry for e in new if isinstance(e, Leased | Settled | Voided)]
        ledger = Ledger(connection, run_id, earlier)
        fresh: list[dict[str, Any]] = []
        cache: list[dict[str, Any]] = []
        for event in new:
            match event:
                case Proposed(duplicate=False):
                    fresh.append({"run_id": run_id, "kernel_id": event.kernel_id})
                case RunStarted() | BudgetChanged():
                    ledger.set_caps(event.budget)
                case Reserved():
                    ledger.reserve(event.entry, event.spend)
                case Leased():
                    ledger.lease(event.entry, event.lease)
                case Settled():
                    ledger.close(event.entry, event.spend, event.lease)
                case Voided():
                    ledger.close(event.entry, {}, event.lease)
                case Retracted(purpose="search"):
                    connection.execute(
                        tables.measurements.delete().where(
                            tables.measurements.c.kernel_id == event.kernel_id,
                            tables.measurements.c.device_id == event.device,
                        )
                    )
                case Measured(purpose="search", cached=False, measurement=measurement):
                    # A busy machine may have caused a timeout: other runs measure again.
                    failure = measurement.failure
                    if failure is None or failure.kind is not FailureKind.TIMEOUT:
                        payload = measurement.model_dump_json()
                        key = CacheKey.of(measurement)
                        signature = self.store._signature("measurement", *key, payload)
                        cache.append({**key._asdict(), "payload": payload, **signature})
        ledger.write()
        if closed := [e.entry for e in new if isinstance(e, Settled | Voided) and e.lease]:
            connection.execute(
                tables.claims.delete().where(
                    tables.claims.c.run_id == run_id, tables.claims.c.entry.in_(closed)
                )
            )
        if cache:
            cache.sort(key=lambda row: [row[name] for name in CacheKey._fields])
            connection.execute(self.store._insert_new[tables.measurements], cache)
        if fresh:
            connection.execute(tables.candidates.insert(), fresh)

    def _snapshot(self) -> None:
        state = self.store._compressor.compress(self.state.model_dump_json().encode())
        place = ("snapshot", self.key, self.state.events, self._crc)
        mac = self.store.keyring.sign(*place, state)
        with self.store.engine.begin() as connection:
            connection.execute(
                tables.snapshots.delete().where(tables.snapshots.c.run_id == self._id)
            )
            connection.execute(
                tables.snapshots.insert().values(
                    run_id=self._id, seq=self.state.events, crc=self._crc, state=state, mac=mac
                )
            )
        self._snapshot_seq = self.state.events

    # ------------------------------------------------------------------------------- reading

    def load(self) -> None:
        """Set the state from the last snapshot and the events after it.

        Raises:
            StoreError: An event is damaged.
        """
        self.state, self._crc, self._snapshot_seq, self.origin = State(), 0, 0, "here"
        with self.store.connect() as connection:
            row = connection.execute(
                sa.select(tables.snapshots).where(tables.snapshots.c.run_id == self._id)
            ).one_or_none()
        if row is not None and self.store.keyring.signed(
            row.mac, "snapshot", self.key, row.seq, row.crc, row.state
        ):
            # Ignore a snapshot of another version: the events are folded from the first one.
            with suppress(zstandard.ZstdError, ValidationError):
                state = self.store._decompressor.decompress(row.state)
                self.state = State.model_validate_json(state)
                self._crc, self._snapshot_seq = row.crc, row.seq
        self._crc = self._fold(self.state, self._crc)

    def replay(self) -> State:
        """Return the state folded from the first event, without a snapshot.

        `origin` is that of all events then.
        """
        state = State()
        self._fold(state, 0)
        return state

    def _fold(self, state: State, crc: int) -> int:
        """Apply the events that a state lacks, and note where they were written."""
        first, signed, unsigned = state.events, 0, 0
        for row in self._rows(tables.events.c.seq >= state.events):
            crc = zlib.crc32(row.payload.encode(), crc)
            if row.seq != state.events or crc != row.crc:
                raise self._damaged(row.seq)
            signed += self._is_signed(row)
            unsigned += row.mac is None
            try:
                state.apply(EVENT.validate_json(row.payload))
            except (ValueError, LookupError, AssertionError) as error:
                raise self._damaged(row.seq) from error
        if signed < state.events - first:
            self.origin = "earlier" if unsigned == state.events else "elsewhere"
        return crc

    def _damaged(self, seq: int) -> StoreError:
        return StoreError(
            f"run {self.name!r} is damaged at event {seq}: restore the store from a backup; "
            "nothing after that event can be trusted"
        )

    def _is_signed(self, row: Any) -> bool:
        return self.store.keyring.signed(row.mac, *self._signed(row))

    def _signed(self, row: Any) -> tuple[Any, ...]:
        """Return what the signature of an event is made of."""
        return "event", self.key, row.seq, row.kind, row.at, row.crc, row.payload

    def _rows(self, *conditions: sa.ColumnElement[bool]) -> Iterator[Any]:
        """Yield rows in order, page by page: no connection is taken while the caller works."""
        query = sa.select(tables.events).order_by(tables.events.c.seq)
        query = query.where(tables.events.c.run_id == self._id, *conditions).limit(_PAGE)
        after = -1
        while True:
            with self.store.connect() as connection:
                page = connection.execute(query.where(tables.events.c.seq > after)).all()
            yield from page
            if len(page) < _PAGE:
                return
            after = page[-1].seq

    def catch_up(self) -> None:
        """Apply what other processes have written since to the state.

        Raises:
            StoreError: An event is damaged.
        """
        self._crc = self._fold(self.state, self._crc)

    def events(self, *kinds: str, after: int = 0) -> Iterator[Event]:
        """Yield the run's events in order: all, or those of these kinds.

        Args:
            kinds: The kinds.
            after: How many events of the run to pass over.

        Raises:
            StoreError: An event of a run that was written here was changed or removed since.
        """
        conditions = [tables.events.c.seq >= after]
        if kinds:
            conditions.append(tables.events.c.kind.in_(kinds))
        known = self.state.kinds - Counter(event.kind for event in self._staged)
        end = known.total()
        # Of some kinds, the state does not know how many come after an event.
        expected = (
            sum(known[kind] for kind in kinds or known) - after if not (kinds and after) else 0
        )
        for row in self._rows(*conditions):
            if self.is_own and not self._is_signed(row):
                raise self._changed(f"event {row.seq} was changed")
            expected -= row.seq < end
            yield EVENT.validate_json(row.payload)
        if self.is_own and expected > 0:
            raise self._changed(f"{expected} of its events are missing")

    def _changed(self, what: str) -> StoreError:
        return StoreError(
            f"run {self.name!r}: {what} by something else than kernelcast here. Restore the store "
            f"from a backup; or, if you trust what changed it, `kernelcast show {self.name} "
            "--trust-store`"
        )

    def kernel(self, kernel_id: str) -> Kernel:
        """Return a kernel of this run with its source; see `kernels`."""
        return self.kernels([kernel_id])[0]

    def kernels(self, ids: Sequence[str]) -> list[Kernel]:
        """Return stored and staged kernels with their sources, in the order of the ids.

        Raises:
            StoreError: A kernel is not in the store, or its source is damaged.
        """
        missing = [key for key in ids if key not in self._recent]
        if missing:
            stored = self.store.kernels(missing, foreign=not self.is_own)
            self._recent.update(zip(missing, stored, strict=True))
        return [self._recent[key] for key in ids]

    def seen(self, kernel_ids: Collection[str]) -> set[str]:
        """Return those of these kernels that were proposed in this run before."""
        staged = {event.kernel_id for event in self._staged if isinstance(event, Proposed)}
        query = sa.select(tables.candidates.c.kernel_id).where(
            tables.candidates.c.run_id == self._id,
            tables.candidates.c.kernel_id.in_(list(kernel_ids)),
        )
        with self.store.connect() as connection:
            return set(connection.scalars(query)) | staged.intersection(kernel_ids)

    def find_kernel(self, prefix: str) -> str:
        """Return the id of the kernel of this run that begins with `prefix`, or of the "best".

        Raises:
            StoreError: There is no such kernel, or more than one.
        """
        best, seed = self.state.incumbent.kernel_id, self.state.started
        if prefix == "best":
            return best
        query = sa.select(tables.candidates.c.kernel_id).where(
            tables.candidates.c.run_id == self._id,
            tables.candidates.c.kernel_id.startswith(prefix, autoescape=True),
        )
        with self.store.connect() as connection:
            matches: set[str] = set(connection.scalars(query.limit(5)))
        if seed is not None and seed.seed_kernel_id.startswith(prefix):
            matches.add(seed.seed_kernel_id)
        if len(matches) == 1:
            return matches.pop()
        if matches:
            raise StoreError(f"{prefix!r} may be {' or '.join(sorted(matches))}: write more of it")
        raise StoreError(
            f"run {self.name!r} has no kernel {prefix!r}: `kernelcast show {self.name}` lists the "
            "best ones"
        )

    def ledger(self) -> dict[Resource, Account]:
        """Return the accounts as the database has them."""
        with self.store.connect() as connection:
            return Ledger(connection, self._id).accounts()
