"""The ledger of a run: what it may spend, has reserved and has spent of each resource.

Each method runs in the caller's transaction. A reservation that would exceed a cap is refused by
the database itself, so that two processes cannot exceed it together. The changes of a group of
events are written together: one statement per account, not three per event.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from kernelcast.errors import BudgetExceeded, StaleLease, StoreError
from kernelcast.tables import ID, accounts, entries
from kernelcast.types import Budget, Resource, Spend

CAP_SLACK = 1e-9  # caps are compared with sums of floats; a rounding error is not an overrun

# The statements are built once: building one costs more than running it.
_RUN = sa.bindparam("of_run", type_=ID)
_RESOURCE = sa.bindparam("of_resource", type_=sa.String)
_AMOUNT = sa.bindparam("amount", type_=sa.Float)
_RESERVED = sa.bindparam("more_reserved", type_=sa.Float)
_PEAK = sa.bindparam("peak", type_=sa.Float)
_ACCOUNT = (accounts.c.run_id == _RUN, accounts.c.resource == _RESOURCE)
_SET_CAP = accounts.update().where(*_ACCOUNT).values(cap=_AMOUNT)
_CHANGE_ACCOUNT = (
    accounts.update()
    .where(*_ACCOUNT)
    .values(reserved=accounts.c.reserved + _RESERVED, spent=accounts.c.spent + _AMOUNT)
)
_WITHIN_CAP = _CHANGE_ACCOUNT.where(
    sa.or_(
        accounts.c.cap.is_(None),
        accounts.c.cap + CAP_SLACK >= accounts.c.spent + accounts.c.reserved + _PEAK,
    )
)
_OPEN_ENTRIES = sa.select(entries).where(
    entries.c.run_id == _RUN,
    entries.c.entry.in_(sa.bindparam("of_entries", expanding=True)),
    entries.c.settled.is_(None),
)
_CHANGE_ENTRY = (
    entries.update()
    .where(
        entries.c.run_id == _RUN,
        entries.c.entry == sa.bindparam("of_entry", type_=sa.String),
        entries.c.resource == _RESOURCE,
    )
    .values(settled=sa.bindparam("settled"), lease=sa.bindparam("lease"))
)


@dataclass(frozen=True)
class Account:
    """Cap, spending and open reservations of one resource in one run."""

    cap: float | None
    spent: float
    reserved: float


@dataclass
class _Move:
    """The change of one account by a group of events; `peak` is the highest at a reservation."""

    reserved: float = 0.0
    spent: float = 0.0
    peak: float | None = None

    def reserve(self, amount: float) -> None:
        self.reserved += amount
        taken = self.reserved + self.spent
        self.peak = taken if self.peak is None else max(self.peak, taken)

    def close(self, promised: float, cost: float) -> None:
        self.reserved -= promised
        self.spent += cost


@dataclass
class _Entry:
    """An entry of the ledger; `cost` is None while it is open."""

    promised: dict[Resource, float]
    lease: int | None = None
    cost: Spend | None = None
    is_new: bool = True


class Ledger:
    """The accounts and some entries of one run, as one transaction sees them.

    Changes are collected; `write` makes all of them with a few statements.

    Args:
        connection: The connection of the transaction.
        run_id: Number of the run.
        names: Names of the entries of earlier transactions that will be leased or closed.
    """

    def __init__(
        self, connection: sa.Connection, run_id: int | None, names: Sequence[str] = ()
    ) -> None:
        self._connection = connection
        self._run_id = run_id
        self._moves: defaultdict[Resource, _Move] = defaultdict(_Move)
        self._entries: dict[str, _Entry] = {}
        if names:
            query = {"of_run": run_id, "of_entries": names}
            for row in connection.execute(_OPEN_ENTRIES, query):
                entry = _Entry({}, row.lease, is_new=False)
                entry = self._entries.setdefault(row.entry, entry)
                entry.promised[Resource(row.resource)] = row.reserved

    def accounts(self) -> dict[Resource, Account]:
        """Return the account of each resource."""
        query = sa.select(accounts).where(accounts.c.run_id == self._run_id)
        return {
            Resource(row.resource): Account(row.cap, row.spent, row.reserved)
            for row in self._connection.execute(query)
        }

    def set_caps(self, budget: Budget) -> None:
        """Replace the caps; the first call opens the accounts."""
        caps = budget.caps()
        for resource in Resource:
            key = {"of_run": self._run_id, "of_resource": resource}
            updated = self._connection.execute(_SET_CAP, {**key, "amount": caps.get(resource)})
            if updated.rowcount == 0:
                account = Account(cap=caps.get(resource), spent=0.0, reserved=0.0)
                row = {"run_id": self._run_id, "resource": resource, **vars(account)}
                self._connection.execute(accounts.insert(), row)

    def reserve(self, name: str, spend: Spend) -> None:
        """Reserve these amounts under a new entry.

        Raises:
            StoreError: The entry reserves nothing, or is not new.
        """
        if not spend or name in self._entries:
            problem = "is reserved twice" if spend else "reserves nothing: name what it may spend"
            raise StoreError(f"entry {name!r} {problem}")
        self._entries[name] = _Entry(dict(spend))
        for resource, amount in spend.items():
            self._moves[resource].reserve(amount)

    def lease(self, name: str, lease: int) -> None:
        """Let a result of this entry be accepted only under this lease.

        Raises:
            StoreError: The entry is not open.
        """
        self._open(name).lease = lease

    def close(self, name: str, spend: Spend, lease: int | None = None) -> None:
        """Close an entry that cost these amounts; a resource that is not named cost nothing.

        Raises:
            StaleLease: The entry has another lease.
            StoreError: The entry is not open, or did not reserve such a resource.
        """
        entry = self._open(name)
        if entry.lease != lease:
            raise StaleLease(
                f"entry {name!r} has lease {entry.lease}, its result came under {lease}"
            )
        if unreserved := set(spend) - set(entry.promised):
            raise StoreError(f"entry {name!r} is not open for {sorted(unreserved)}")
        entry.cost = spend
        for resource, amount in entry.promised.items():
            self._moves[resource].close(amount, spend.get(resource, 0.0))

    def _open(self, name: str) -> _Entry:
        entry = self._entries.get(name)
        if entry is None or entry.cost is not None:
            raise StoreError(
                f"entry {name!r} is not open: it was settled or voided before, or never reserved"
            )
        return entry

    def write(self) -> None:
        """Make the collected changes.

        Raises:
            BudgetExceeded: A reservation would exceed its cap.
        """
        # Two transactions that change the same accounts in the same order cannot deadlock.
        for resource, move in sorted(self._moves.items()):
            change = {
                "of_run": self._run_id,
                "of_resource": resource,
                "more_reserved": move.reserved,
                "amount": move.spent,
            }
            if move.peak is None:
                self._connection.execute(_CHANGE_ACCOUNT, change)
                continue
            change["peak"] = move.peak
            if self._connection.execute(_WITHIN_CAP, change).rowcount == 0:
                raise BudgetExceeded(f"reserving {move.peak:g} {resource} would pass the cap")
        rows: dict[bool, list[dict[str, object]]] = {True: [], False: []}
        for name, entry in self._entries.items():
            cost = entry.cost
            for resource, amount in entry.promised.items():
                settled = None if cost is None else cost.get(resource, 0.0)
                change = {"settled": settled, "lease": entry.lease}
                if entry.is_new:
                    key = {"run_id": self._run_id, "entry": name, "resource": resource}
                    rows[True].append({**key, "reserved": amount, **change})
                else:
                    key = {"of_run": self._run_id, "of_entry": name, "of_resource": resource}
                    rows[False].append({**key, **change})
        for is_new, statement in ((True, entries.insert()), (False, _CHANGE_ENTRY)):
            if rows[is_new]:
                self._connection.execute(statement, rows[is_new])
