"""The tables of a store; `migrations` makes them."""

from __future__ import annotations

import sqlalchemy as sa

from kernelcast.types import CacheKey

metadata = sa.MetaData()
# SQLite numbers rows by itself only in a column of the type INTEGER, which has 64 bits there.
ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
# The first schema limited the length, which SQLite does not enforce.
_NAME = sa.Text().with_variant(sa.String(120), "sqlite")


def _signature() -> tuple[sa.Column[str], sa.Column[bytes]]:
    """Return the columns of a row that several signers may write: none hides another's."""
    signer = sa.Column("signer", sa.String(16), primary_key=True, server_default="")
    return signer, sa.Column("mac", sa.LargeBinary, nullable=True)


runs = sa.Table(
    "runs",
    metadata,
    sa.Column("id", ID, primary_key=True),
    sa.Column("name", _NAME, nullable=False, unique=True),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("tenant", sa.Text, nullable=True),  # role of the server that created the run
)
events = sa.Table(
    "events",
    metadata,
    sa.Column("run_id", ID, sa.ForeignKey("runs.id"), primary_key=True),
    sa.Column("seq", ID, primary_key=True),
    sa.Column("kind", sa.String(20), nullable=False),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("crc", sa.BigInteger, nullable=False),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Column("mac", sa.LargeBinary, nullable=True),  # the signature; see `keyring`
    sa.Index("events_by_kind", "run_id", "kind", "seq"),
)
snapshots = sa.Table(
    "snapshots",
    metadata,
    sa.Column("run_id", ID, sa.ForeignKey("runs.id"), primary_key=True),
    sa.Column("seq", ID, nullable=False),
    sa.Column("crc", sa.BigInteger, nullable=False),
    sa.Column("state", sa.LargeBinary, nullable=False),
    sa.Column("mac", sa.LargeBinary, nullable=True),
)
blobs = sa.Table(
    "blobs",
    metadata,
    sa.Column("hash", sa.String(32), primary_key=True),
    sa.Column("data", sa.LargeBinary, nullable=False),  # empty if it lies in an object store
)
kernels = sa.Table(
    "kernels",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("language", sa.String(20), nullable=False),
    sa.Column("source_hash", sa.String(32), nullable=False),
    sa.Column("parameters", sa.Text, nullable=True),
    *_signature(),
)
candidates = sa.Table(
    "candidates",
    metadata,
    sa.Column("run_id", ID, sa.ForeignKey("runs.id"), primary_key=True),
    sa.Column("kernel_id", sa.String(32), primary_key=True),
)
measurements = sa.Table(
    "measurements",
    metadata,
    sa.Column("kernel_id", sa.String(32), primary_key=True),
    sa.Column("problem_id", sa.String(32), primary_key=True),
    sa.Column("device_id", sa.Text, primary_key=True),
    sa.Column("toolchain", sa.Text, primary_key=True),
    sa.Column("protocol", sa.Text, primary_key=True),
    sa.Column("effort", sa.Text, primary_key=True),
    sa.Column("payload", sa.Text, nullable=False),
    *_signature(),
)
claims = sa.Table(
    "claims",
    metadata,
    sa.Column("kernel_id", sa.String(32), primary_key=True),
    sa.Column("problem_id", sa.String(32), primary_key=True),
    *(sa.Column(name, sa.Text, primary_key=True) for name in CacheKey._fields[2:]),
    sa.Column("run_id", ID, sa.ForeignKey("runs.id"), nullable=False),
    sa.Column("entry", sa.String(80), nullable=False),
    sa.Column("expires_at", sa.Float, nullable=False),
    sa.Index("claims_by_entry", "run_id", "entry"),
)
accounts = sa.Table(
    "accounts",
    metadata,
    sa.Column("run_id", ID, sa.ForeignKey("runs.id"), primary_key=True),
    sa.Column("resource", sa.String(20), primary_key=True),
    sa.Column("cap", sa.Float, nullable=True),
    sa.Column("spent", sa.Float, nullable=False),
    sa.Column("reserved", sa.Float, nullable=False),
)
entries = sa.Table(
    "entries",
    metadata,
    sa.Column("run_id", ID, sa.ForeignKey("runs.id"), primary_key=True),
    sa.Column("entry", sa.String(80), primary_key=True),
    sa.Column("resource", sa.String(20), primary_key=True),
    sa.Column("reserved", sa.Float, nullable=False),
    sa.Column("settled", sa.Float, nullable=True),
    sa.Column("lease", sa.Integer, nullable=True),
)


def matches(table: sa.Table, key: CacheKey) -> list[sa.ColumnElement[bool]]:
    """Return the conditions that a row has this key."""
    return [table.c[name] == value for name, value in key._asdict().items()]
