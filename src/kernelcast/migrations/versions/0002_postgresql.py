"""Wide ids and partitions by run on PostgreSQL; leases; a cache by protocol and effort."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_PARTITIONS = 16
_NARROW_KEY = ("kernel_id", "problem_id", "device_id", "toolchain")
_KEY = (*_NARROW_KEY, "protocol", "effort")


def upgrade() -> None:
    effort = "json_extract(payload, '$.effort')"
    if _is_postgresql():
        effort = "CAST(payload AS json) ->> 'effort'"
        _set_types(sa.BigInteger(), "BIGINT", sa.Text())
        _remake_rows(sa.BigInteger(), {"postgresql_partition_by": "HASH (run_id)"})
    op.add_column("entries", sa.Column("lease", sa.Integer, nullable=True))
    op.create_table(
        "claims",
        sa.Column("kernel_id", sa.String(32), primary_key=True),
        sa.Column("problem_id", sa.String(32), primary_key=True),
        *(sa.Column(name, sa.Text, primary_key=True) for name in _KEY[2:]),
        sa.Column(
            "run_id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            sa.ForeignKey("runs.id"),
            nullable=False,
        ),
        sa.Column("entry", sa.String(80), nullable=False),
        sa.Column("expires_at", sa.Float, nullable=False),
    )
    op.create_index("claims_by_entry", "claims", ["run_id", "entry"])
    _remake(
        "measurements",
        [
            sa.Column("kernel_id", sa.String(32), primary_key=True),
            sa.Column("problem_id", sa.String(32), primary_key=True),
            *(sa.Column(name, sa.Text, primary_key=True) for name in _KEY[2:]),
            sa.Column("payload", sa.Text, nullable=False),
        ],
        f"SELECT {', '.join(_NARROW_KEY)}, 'pairs-1', coalesce({effort}, 'screening'), payload "
        "FROM old_measurements",
    )


def downgrade() -> None:
    _remake(
        "measurements",
        [
            sa.Column("kernel_id", sa.String(32), primary_key=True),
            sa.Column("problem_id", sa.String(32), primary_key=True),
            sa.Column("device_id", sa.String(120), primary_key=True),
            sa.Column("toolchain", sa.String(120), primary_key=True),
            sa.Column("payload", sa.Text, nullable=False),
        ],
        # The narrow key has room for one: the cheapest, as a search measures.
        f"SELECT {', '.join(_NARROW_KEY)}, payload FROM (SELECT *, row_number() OVER "
        f"(PARTITION BY {', '.join(_NARROW_KEY)} ORDER BY protocol DESC, effort DESC) AS place "
        "FROM old_measurements) AS ordered WHERE place = 1",
    )
    op.drop_table("claims")
    with op.batch_alter_table("entries") as entries:
        entries.drop_column("lease")
    if _is_postgresql():
        _remake_rows(sa.Integer(), {})
        _set_types(sa.Integer(), "INTEGER", sa.String(120))


def _is_postgresql() -> bool:
    return op.get_bind().dialect.name == "postgresql"


def _set_types(number: sa.Integer, name: str, text: sa.String) -> None:
    op.alter_column("runs", "id", type_=number)
    op.alter_column("runs", "name", type_=text)
    op.execute(f"ALTER SEQUENCE runs_id_seq AS {name}")
    for table, column in (("snapshots", "run_id"), ("snapshots", "seq"), ("accounts", "run_id")):
        op.alter_column(table, column, type_=number)


def _remake_rows(number: sa.Integer, options: dict[str, Any]) -> None:
    """Make the tables that grow with a run anew, with or without partitions."""

    def run_id() -> sa.Column[int]:
        return sa.Column("run_id", number, sa.ForeignKey("runs.id"), primary_key=True)

    tables: dict[str, list[sa.Column[Any]]] = {
        "events": [
            run_id(),
            sa.Column("seq", number, primary_key=True),
            sa.Column("kind", sa.String(20), nullable=False),
            sa.Column("at", sa.Float, nullable=False),
            sa.Column("crc", sa.BigInteger, nullable=False),
            sa.Column("payload", sa.Text, nullable=False),
        ],
        "candidates": [run_id(), sa.Column("kernel_id", sa.String(32), primary_key=True)],
        "entries": [
            run_id(),
            sa.Column("entry", sa.String(80), primary_key=True),
            sa.Column("resource", sa.String(20), primary_key=True),
            sa.Column("reserved", sa.Float, nullable=False),
            sa.Column("settled", sa.Float, nullable=True),
        ],
    }
    op.drop_index("events_by_kind", "events")
    for name, columns in tables.items():
        names = ", ".join(column.name for column in columns)
        _remake(name, columns, f"SELECT {names} FROM old_{name}", options)
    op.create_index("events_by_kind", "events", ["run_id", "kind", "seq"])


def _remake(
    name: str, columns: list[sa.Column[Any]], rows: str, options: dict[str, Any] | None = None
) -> None:
    op.rename_table(name, f"old_{name}")
    if _is_postgresql():
        op.drop_constraint(f"{name}_pkey", f"old_{name}")
    op.create_table(name, *columns, **options or {})
    for part in range(_PARTITIONS if options else 0):
        op.execute(
            f"CREATE TABLE {name}_{part} PARTITION OF {name} "
            f"FOR VALUES WITH (MODULUS {_PARTITIONS}, REMAINDER {part})"
        )
    op.execute(f"INSERT INTO {name} {rows}")
    op.drop_table(f"old_{name}")
