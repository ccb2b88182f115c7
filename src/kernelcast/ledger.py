"""The ledger of a run: what it may spend, has reserved and has spent of each resource.

Each method runs in the caller's transaction. A reservation that would exceed a cap is refused by
the database itself, so that two processes cannot exceed it together.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from kernelcast.errors import BudgetExceeded, StoreError
from kernelcast.types import Budget, Resource, Spend

_CAP_SLACK = 1e-9  # caps are compared with sums of floats; a rounding error is not an overrun

metadata = sa.MetaData()
_accounts = sa.Table(
    "accounts",
    metadata,
    sa.Column("run_id", sa.Integer, sa.ForeignKey("runs.id"), primary_key=True),
    sa.Column("resource", sa.String(20), primary_key=True),
    sa.Column("cap", sa.Float, nullable=True),
    sa.Column("spent", sa.Float, nullable=False),
    sa.Column("reserved", sa.Float, nullable=False),
)
_entries = sa.Table(
    "entries",
    metadata,
    sa.Column("run_id", sa.Integer, sa.ForeignKey("runs.id"), primary_key=True),
    sa.Column("entry", sa.String(80), primary_key=True),
    sa.Column("resource", sa.String(20), primary_key=True),
    sa.Column("reserved", sa.Float, nullable=False),
    sa.Column("settled", sa.Float, nullable=True),
)

# The statements are built once: building one costs more than running it.
_RUN = sa.bindparam("of_run", type_=sa.Integer)
_RESOURCE = sa.bindparam("of_resource", type_=sa.String)
_ENTRY = sa.bindparam("of_entry", type_=sa.String)
_AMOUNT = sa.bindparam("amount", type_=sa.Float)
_PROMISED = sa.bindparam("promised", type_=sa.Float)
_ACCOUNT = (_accounts.c.run_id == _RUN, _accounts.c.resource == _RESOURCE)
_SET_CAP = _accounts.update().where(*_ACCOUNT).values(cap=_AMOUNT)
_TAKEN = _accounts.c.spent + _accounts.c.reserved + _AMOUNT
_RESERVE = (
    _accounts.update()
    .where(*_ACCOUNT, sa.or_(_accounts.c.cap.is_(None), _accounts.c.cap + _CAP_SLACK >= _TAKEN))
    .values(reserved=_accounts.c.reserved + _AMOUNT)
)
_SETTLE_ACCOUNT = (
    _accounts.update()
    .where(*_ACCOUNT)
    .values(reserved=_accounts.c.reserved - _PROMISED, spent=_accounts.c.spent + _AMOUNT)
)
_OF_ENTRY = (_entries.c.run_id == _RUN, _entries.c.entry == _ENTRY)
_OPEN_ENTRY = sa.select(_entries.c.resource, _entries.c.reserved).where(
    *_OF_ENTRY, _entries.c.settled.is_(None)
)
_SETTLE_ENTRY = (
    _entries.update().where(*_OF_ENTRY, _entries.c.resource == _RESOURCE).values(settled=_AMOUNT)
)


@dataclass(frozen=True)
class Account:
    """Cap, spending and open reservations of one resource in one run."""

    cap: float | None
    spent: float
    reserved: float


class Ledger:
    """The accounts of one run, as one transaction sees them."""

    def __init__(self, connection: sa.Connection, run_id: int | None) -> None:
        self._connection = connection
        self._run_id = run_id

    def accounts(self) -> dict[Resource, Account]:
        """Return the account of each resource."""
        query = sa.select(_accounts).where(_accounts.c.run_id == self._run_id)
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
                self._connection.execute(_accounts.insert(), row)

    def reserve(self, entry: str, spend: Spend) -> None:
        """Reserve these amounts under a new entry.

        Raises:
            BudgetExceeded: An amount would exceed its cap.
            StoreError: The entry reserves nothing.
        """
        if not spend:
            raise StoreError(f"entry {entry!r} reserves nothing: name what it may spend")
        for resource, amount in spend.items():
            key = {"of_run": self._run_id, "of_resource": resource}
            if self._connection.execute(_RESERVE, {**key, "amount": amount}).rowcount == 0:
                raise BudgetExceeded(f"reserving {amount:g} {resource} would pass the cap")
        rows = [
            {"run_id": self._run_id, "entry": entry, "resource": resource, "reserved": amount}
            for resource, amount in spend.items()
        ]
        self._connection.execute(_entries.insert(), rows)

    def close(self, entry: str, spend: Spend) -> None:
        """Close an entry that cost these amounts; a resource that is not named cost nothing.

        Raises:
            StoreError: The entry is not open, or did not reserve such a resource.
        """
        key = {"of_run": self._run_id, "of_entry": entry}
        rows = self._connection.execute(_OPEN_ENTRY, key).all()
        unreserved = set(spend) - {Resource(row.resource) for row in rows}
        if not rows or unreserved:
            raise StoreError(
                f"entry {entry!r} is not open for {sorted(unreserved) or 'any resource'}: "
                "it was settled or voided before, or never reserved"
            )
        settled = [
            {
                **key,
                "of_resource": row.resource,
                "promised": row.reserved,
                "amount": spend.get(Resource(row.resource), 0.0),
            }
            for row in rows
        ]
        self._connection.execute(_SETTLE_ENTRY, settled)
        self._connection.execute(_SETTLE_ACCOUNT, settled)
