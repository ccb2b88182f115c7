"""Rows of measured kernels and tables of rows: schema, reading, writing, checking, labels."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from kernelcast.bins import DEFAULT_BINS, Bins
from kernelcast.errors import SetupError, import_extra
from kernelcast.types import FailureKind, Record

Rows: TypeAlias = Any
"""A pyarrow.Table in the schema of `Row`; pyarrow is optional and ships no types."""

Status = Literal["ok", "reference"] | FailureKind

STATUSES = ("ok", "reference", *FailureKind)
SPLITS = ("problem", "family", "device")
UNSTATED = "unstated"
_MS = 1e-3
_NS = 1e-9
_ROW_GROUP = 65_536


class Row(Record):
    """One measured kernel, and what its speedup is against."""

    row_id: str = Field(description="unique in a file: the source's own key, or file and number")
    problem: str = Field(description="what is computed, under its published name and sizes")
    family: str = Field(description="the wider group the problem belongs to")
    language: str = Field(description="what the source is read as: see `canonical`")
    backend: str = Field(description="what the kernel is written against: cuda, triton, pytorch")
    device: str = Field(description="the hardware the times are true on, as the source names it")
    template: str | None = Field(
        default=None, description="source before parameters, of both kernels, where tuned"
    )
    candidate_id: str = Field(
        description="hash of the canonical source; of template and parameters where tuned; "
        "`sha:` and the source's own hash where the text was not published"
    )
    candidate_source: str | None = Field(default=None, description="the text that was compiled")
    candidate_parameters: str | None = Field(
        default=None,
        description="canonical JSON: sorted keys, no spaces, whole numbers as integers",
    )
    reference_id: str | None = Field(default=None, description="what the speedup is against")
    reference_source: str | None = Field(default=None, description="its text")
    reference_parameters: str | None = Field(default=None, description="its parameters")
    runtime_s: float | None = Field(
        default=None, description="null where it failed or only ratios were published"
    )
    reference_runtime_s: float | None = Field(default=None, description="null where not published")
    log2_speedup: float | None = Field(
        default=None, description="log2(reference / candidate time); null where it failed"
    )
    status: Status = Field(description="ok, reference, or the kind of failure")
    status_detail: str | None = Field(default=None, description="what the source says about it")
    samples: int | None = Field(default=None, description="timings behind runtime_s")
    runtime_std_s: float | None = Field(
        default=None, description="standard deviation of a single timing"
    )
    compile_s: float | None = Field(default=None, description="spent on compiling")
    benchmark_s: float | None = Field(default=None, description="device seconds spent on timing")
    search_id: str | None = Field(
        default=None, description="one search on one problem and device; splits keep it whole"
    )
    step: int | None = Field(default=None, description="order within the search")
    parent_id: str | None = Field(default=None, description="kernel it was made from")
    model: str | None = Field(default=None, description="language model that wrote it")
    source: str = Field(description="where the row comes from")
    source_url: str | None = Field(default=None, description="repository, revision and path")
    licence: str = Field(description="licence of the source; `unstated` where it has none")
    details: str | None = Field(default=None, description="JSON: what else the source says")


# Columns whose values rarely recur, so a dictionary of them saves nothing.
_PLAIN = frozenset(
    {"row_id", "candidate_id", "candidate_parameters", "parent_id", "status_detail", "details"}
)
_COUNTED = ("source", "family", "device", "status", "licence")
DESCRIBED = (*_COUNTED, "problem", "search_id")
"""The columns that `describe` needs."""


def schema() -> Any:
    """The Arrow schema, made from `Row`: texts that recur are dictionary-encoded."""
    pa = _arrow()
    recurring = pa.dictionary(pa.int32(), pa.string())
    numbers: dict[Any, Any] = {float: pa.float64(), int: pa.int64()}
    fields = []
    for name, field in Row.model_fields.items():
        optional = type(None) in get_args(field.annotation)
        annotation = get_args(field.annotation)[0] if optional else field.annotation
        kind = numbers.get(annotation, pa.string() if name in _PLAIN else recurring)
        fields.append(pa.field(name, kind, nullable=optional))
    return pa.schema(fields)


def to_table(rows: Iterable[Row]) -> Rows:
    """A table of records."""
    return _table_of([dict(row) for row in rows])


def to_rows(table: Rows) -> Iterator[Row]:
    """Records of a table, batch by batch: slow, meant for a few thousand rows."""
    for batch in table.to_batches(max_chunksize=1_000):
        for values in batch.to_pylist():
            yield Row(**values)


def read_rows(path: str | Path, columns: Sequence[str] | None = None, filters: Any = None) -> Rows:
    """Read the rows of a Parquet file.

    Args:
        path: a file that `write_rows` or `kernelcast data` wrote.
        columns: names of the columns to read; all by default.
        filters: which rows to read, as `pyarrow.parquet.read_table` takes it.

    Raises:
        SetupError: the file is not Parquet or does not hold rows.
    """
    pa, parquet = _arrow(), import_extra("pyarrow.parquet", "data")
    try:
        names = parquet.read_schema(path).names
        if missing := [name for name in Row.model_fields if name not in names]:
            raise SetupError(
                f"{path} has no column {missing[0]!r}, so it does not hold rows: "
                "make them with `kernelcast data import`"
            )
        wanted = None if columns is None else list(columns)
        return parquet.read_table(path, columns=wanted, filters=filters).unify_dictionaries()
    except (pa.ArrowInvalid, OSError) as error:
        raise SetupError(f"{path} cannot be read as Parquet: {error}") from error


def write_rows(path: str | Path, rows: Rows | Iterable[Row]) -> None:
    """Check rows and write them; an existing file is replaced in one step.

    Args:
        path: Parquet file to write; its folder is made.
        rows: a table, or records.

    Raises:
        SetupError: the rows break the schema (see `check_rows`).
    """
    table = rows if isinstance(rows, _arrow().Table) else to_table(rows)
    check_rows(table)
    # One template serves 100,000 rows: the writer must never fall back to plain text.
    options = {"compression": "zstd", "dictionary_pagesize_limit": 2**28}
    parquet = import_extra("pyarrow.parquet", "data")
    with (
        _unfinished(Path(path)) as draft,
        parquet.ParquetWriter(draft, table.schema, **options) as writer,
    ):
        for start in range(0, max(table.num_rows, 1), _ROW_GROUP):
            writer.write_table(_compacted(table.slice(start, _ROW_GROUP)))


@contextmanager
def _unfinished(path: Path) -> Iterator[Path]:
    """A draft beside the path, in a folder that is made; it replaces the path at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def concatenate(tables: Sequence[Rows]) -> Rows:
    """Join several tables into one."""
    return _arrow().concat_tables(tables).unify_dictionaries()


def matching(table: Rows, problem: str | None = None, device: str | None = None) -> Rows:
    """Rows whose problem and device contain these texts; a SetupError if there are none."""
    for column, text in (("problem", problem), ("device", device)):
        if text is not None:
            table = table.filter(_compute().match_substring(_text(table[column]), text))
            if not table.num_rows:
                raise SetupError(
                    f"no row's {column} contains {text!r}: `kernelcast data describe` lists them"
                )
    return table


def check_rows(table: Rows) -> None:
    """Raise SetupError if a table breaks the rules of `Row`."""
    pc, expected = _compute(), schema()
    if table.schema != expected:
        fields = list(table.schema)
        differing = {field.name for field in expected if field not in fields}
        differing |= set(table.schema.names) - set(expected.names)
        raise SetupError(f"these are not rows: {sorted(differing)} are not as `Row` has them")
    for field in expected:
        if not field.nullable and table[field.name].null_count:
            raise SetupError(f"column {field.name!r} has nulls: every row must state it")
    if repeated := table.num_rows - pc.count_distinct(table["row_id"]).as_py():
        raise SetupError(f"{repeated} row ids are there twice: import each file only once")
    statuses = _text(table["status"])
    if unknown := set(pc.unique(statuses).to_pylist()) - set(STATUSES):
        raise SetupError(f"unknown status {sorted(unknown)}: use one of {', '.join(STATUSES)}")
    failed = pc.invert(pc.is_in(statuses, _arrow().array(["ok", "reference"])))
    runtime_s, reference_s = table["runtime_s"], table["reference_runtime_s"]
    log2 = table["log2_speedup"]
    broken = {
        "a failed kernel has a runtime_s: leave it null": pc.and_(failed, runtime_s.is_valid()),
        "a failed kernel has a log2_speedup: leave it null": pc.and_(failed, log2.is_valid()),
        "log2_speedup must be finite, or null": pc.invert(pc.is_finite(log2)),
    }
    for name, times in (("runtime_s", runtime_s), ("reference_runtime_s", reference_s)):
        positive = pc.and_(pc.is_finite(times), pc.greater(times, 0))
        broken[f"{name} must be positive and finite, or null"] = pc.invert(positive)
    for rule, rows in broken.items():
        if pc.any(rows).as_py():
            raise SetupError(rule)


def labels(table: Rows, bins: Bins = DEFAULT_BINS) -> NDArray[np.int64]:
    """Bin of each row's speedup, -1 where there is none; published labels are never used."""
    log2 = table["log2_speedup"].to_numpy()
    label = np.full(len(log2), -1, dtype=np.int64)
    known = ~np.isnan(log2)
    label[known] = bins.indices(np.exp2(log2[known]))
    return label


def _arrow() -> ModuleType:
    return import_extra("pyarrow", "data")


def _compute() -> ModuleType:
    _arrow()
    return import_extra("pyarrow.compute", "data")


def _table(columns: Mapping[str, Any]) -> Rows:
    """A table of these columns (lists or Arrow arrays), with nulls for the rest of the schema."""
    pa = _arrow()
    count = len(columns["row_id"])

    def array(field: Any) -> Any:
        values = columns.get(field.name)
        if values is None:
            return pa.nulls(count, field.type)
        if isinstance(values, pa.Array):
            return values.cast(field.type)
        if pa.types.is_dictionary(field.type):
            return pa.array(values, pa.string()).dictionary_encode()
        return pa.array(values, field.type)

    return pa.table([array(field) for field in schema()], schema=schema())


def _table_of(records: Sequence[Mapping[str, Any]]) -> Rows:
    """A table of rows as mappings, with nulls for the columns they leave out."""
    return _table({name: [row.get(name) for row in records] for name in Row.model_fields})


def _text(column: Any) -> Any:
    """A dictionary-encoded column as plain text."""
    return column.cast(_arrow().string())


def _mapped(values: Any, change: Callable[[Any], str | None]) -> Any:
    """A column with each distinct value changed, as a dictionary-encoded array.

    The new dictionary holds only values that a row has, in the order of the old dictionary.
    """
    pa = _arrow()
    whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    encoded = whole if pa.types.is_dictionary(whole.type) else whole.dictionary_encode()
    used = pa.array(np.unique(encoded.indices.drop_null().to_numpy()), pa.int32())
    changed = [change(value) for value in encoded.dictionary.take(used).to_pylist()]
    distinct = pa.array(changed, pa.string()).dictionary_encode()
    place = _compute().index_in(encoded.indices, used)
    return pa.DictionaryArray.from_arrays(distinct.indices.take(place), distinct.dictionary)


def _compacted(table: Rows) -> Rows:
    """The same rows, with dictionaries that hold no more than they use."""
    is_dictionary = _arrow().types.is_dictionary
    columns = [
        _mapped(column, str) if is_dictionary(column.type) else column for column in table.columns
    ]
    return _arrow().table(columns, schema=table.schema)
