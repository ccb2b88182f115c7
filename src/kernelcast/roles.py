"""Roles of a PostgreSQL server: what a tenant's searches and a worker may do with a store.

The owner of the tables may do everything. The schema's policies show any other role only the runs
that it has created itself.
"""

from __future__ import annotations

from typing import Literal

import sqlalchemy as sa

from kernelcast.errors import StoreError

Duty = Literal["tenant", "worker"]
RIGHTS: dict[Duty, dict[str, str]] = {
    "tenant": {
        "runs": "SELECT, INSERT",
        "events": "SELECT, INSERT",
        "snapshots": "SELECT, INSERT, DELETE",
        "candidates": "SELECT, INSERT",
        "accounts": "SELECT, INSERT, UPDATE",
        "entries": "SELECT, INSERT, UPDATE",
        "kernels": "SELECT, INSERT",
        "blobs": "SELECT, INSERT",
        "measurements": "SELECT, INSERT, DELETE",
        "claims": "SELECT, INSERT, UPDATE, DELETE",
        "alembic_version": "SELECT",
    },
    "worker": {"kernels": "SELECT", "blobs": "SELECT", "alembic_version": "SELECT"},
}
"""Rights on tables by duty. No role but the owner changes or deletes an event."""


def grant(engine: sa.Engine, role: str, duty: Duty) -> None:
    """Give an existing role the rights of a duty, and take all others on the store from it.

    Raises:
        StoreError: The store is a file.
    """
    if engine.dialect.name != "postgresql":
        raise StoreError("a file has no roles: keep the store on a PostgreSQL server")
    name = engine.dialect.identifier_preparer.quote_identifier(role)
    with engine.begin() as connection:
        for table in RIGHTS["tenant"]:
            connection.exec_driver_sql(f"REVOKE ALL ON {table} FROM {name}")
        connection.exec_driver_sql(f"REVOKE ALL ON SEQUENCE runs_id_seq FROM {name}")
        for table, rights in RIGHTS[duty].items():
            connection.exec_driver_sql(f"GRANT {rights} ON {table} TO {name}")
        if duty == "tenant":
            connection.exec_driver_sql(f"GRANT USAGE ON SEQUENCE runs_id_seq TO {name}")
