"""The first schema: runs, events, snapshots, blobs, kernels, ledger, measurement cache."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def _run_id() -> sa.Column[int]:
    return sa.Column("run_id", sa.Integer, sa.ForeignKey("runs.id"), primary_key=True)


def upgrade() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(120), nullable=False, unique=True),
        sa.Column("created_at", sa.Float, nullable=False),
    )
    op.create_table(
        "events",
        _run_id(),
        sa.Column("seq", sa.Integer, primary_key=True),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("crc", sa.BigInteger, nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
    )
    op.create_index("events_by_kind", "events", ["run_id", "kind", "seq"])
    op.create_table(
        "snapshots",
        _run_id(),
        sa.Column("seq", sa.Integer, nullable=False),
        sa.Column("crc", sa.BigInteger, nullable=False),
        sa.Column("state", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "blobs",
        sa.Column("hash", sa.String(32), primary_key=True),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "kernels",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("language", sa.String(20), nullable=False),
        sa.Column("source_hash", sa.String(32), nullable=False),
        sa.Column("parameters", sa.Text, nullable=True),
    )
    op.create_table(
        "candidates",
        _run_id(),
        sa.Column("kernel_id", sa.String(32), primary_key=True),
    )
    op.create_table(
        "accounts",
        _run_id(),
        sa.Column("resource", sa.String(20), primary_key=True),
        sa.Column("cap", sa.Float, nullable=True),
        sa.Column("spent", sa.Float, nullable=False),
        sa.Column("reserved", sa.Float, nullable=False),
    )
    op.create_table(
        "entries",
        _run_id(),
        sa.Column("entry", sa.String(80), primary_key=True),
        sa.Column("resource", sa.String(20), primary_key=True),
        sa.Column("reserved", sa.Float, nullable=False),
        sa.Column("settled", sa.Float, nullable=True),
    )
    op.create_table(
        "measurements",
        sa.Column("kernel_id", sa.String(32), primary_key=True),
        sa.Column("problem_id", sa.String(32), primary_key=True),
        sa.Column("device_id", sa.String(120), primary_key=True),
        sa.Column("toolchain", sa.String(120), primary_key=True),
        sa.Column("payload", sa.Text, nullable=False),
    )


def downgrade() -> None:
    for name in ("measurements", "entries", "accounts", "candidates", "kernels", "blobs"):
        op.drop_table(name)
    for name in ("snapshots", "events", "runs"):
        op.drop_table(name)
