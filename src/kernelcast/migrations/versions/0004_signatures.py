"""Signatures of events, snapshots, kernels and measurements; a row of each signer."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_CACHE_KEY = ("kernel_id", "problem_id", "device_id", "toolchain", "protocol", "effort")
_KEYS = {"kernels": ("id",), "measurements": _CACHE_KEY}


def upgrade() -> None:
    for table in ("events", "snapshots"):
        op.add_column(table, sa.Column("mac", sa.LargeBinary, nullable=True))
    for table, key in _KEYS.items():
        # What was stored before has no signer.
        signer = sa.Column("signer", sa.String(16), nullable=False, server_default="")
        op.add_column(table, signer)
        op.add_column(table, sa.Column("mac", sa.LargeBinary, nullable=True))
        _set_key(table, (*key, "signer"))


def downgrade() -> None:
    for table, key in _KEYS.items():
        same = " AND ".join(f"other.{name} = {table}.{name}" for name in key)
        # The narrow key has room for one signer.
        op.execute(
            f"DELETE FROM {table} WHERE EXISTS (SELECT 1 FROM {table} AS other "
            f"WHERE {same} AND other.signer < {table}.signer)"
        )
        _set_key(table, key)
        for name in ("signer", "mac"):
            op.drop_column(table, name)
    for table in ("events", "snapshots"):
        op.drop_column(table, "mac")


def _set_key(table: str, key: tuple[str, ...]) -> None:
    connection = op.get_bind()
    if connection.dialect.name == "postgresql":  # the rights of tenants on the table stay
        op.drop_constraint(f"{table}_pkey", table)
        op.create_primary_key(f"{table}_pkey", table, list(key))
        return
    columns = [
        sa.Column(
            column["name"],
            column["type"],
            primary_key=column["name"] in key,
            nullable=column["nullable"],
            server_default=column["default"] and sa.text(column["default"]),
        )
        for column in sa.inspect(connection).get_columns(table)
    ]
    op.rename_table(table, f"old_{table}")
    op.create_table(table, *columns)
    op.execute(f"INSERT INTO {table} SELECT * FROM old_{table}")
    op.drop_table(f"old_{table}")
