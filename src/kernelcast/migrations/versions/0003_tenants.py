"""The tenant of a run; on PostgreSQL a role other than the owner sees only its own runs."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_OF_RUNS = ("events", "snapshots", "candidates", "accounts", "entries")


def upgrade() -> None:
    if not _is_postgresql():
        op.add_column("runs", sa.Column("tenant", sa.Text, nullable=True))
        return
    role = sa.text("CAST(current_user AS text)")
    op.add_column("runs", sa.Column("tenant", sa.Text, nullable=True, server_default=role))
    op.execute("CREATE POLICY own ON runs USING (tenant = CAST(current_user AS text))")
    for table in _OF_RUNS:
        # The policy of `runs` holds in this query too.
        op.execute(
            f"CREATE POLICY own ON {table} "
            f"USING (EXISTS (SELECT 1 FROM runs WHERE runs.id = {table}.run_id))"
        )
    for table in ("runs", *_OF_RUNS):
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")


def downgrade() -> None:
    if _is_postgresql():
        for table in (*_OF_RUNS, "runs"):
            op.execute(f"DROP POLICY own ON {table}")
            op.execute(f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY")
    op.drop_column("runs", "tenant")


def _is_postgresql() -> bool:
    return op.get_bind().dialect.name == "postgresql"
