"""What a row is, and tables of rows: schema, reading, writing, checking, labels."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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


# Nearly every value differs, so a dictionary of them would only cost.
_PLAIN = frozenset(
    {"row_id", "candidate_id", "candidate_parameters", "parent_id", "status_detail", "details"}
)
_COUNTED = ("source", "family", "device", "status", "licence")
DESCRIBED = (*_COUNTED, "problem", "search_id")
"""The columns that `describe` needs."""


def schema() -> Any:
    """The Arrow schema, made from `Row`: texts that recur are dictionary-encoded."""
    pa = _arrow()
    text = pa.string()
    recurring = pa.dictionary(pa.int32(), text)
    numbers: dict[Any, Any] = {float: pa.float64(), int: pa.int64()}
    fields = []
    for name, field in Row.model_fields.items():
        optional = type(None) in get_args(field.annotation)
        stated = get_args(field.annotation)[0] if optional else field.annotation
        kind = numbers.get(stated, text if name in _PLAIN else recurring)
        fields.append(pa.field(name, kind, nullable=optional))
    return pa.schema(fields)


def to_table(rows: Iterable[Row]) -> Rows:
    """Records as a table."""
    found = list(rows)
    return _table({name: [getattr(row, name) for row in found] for name in Row.model_fields})


def to_rows(table: Rows) -> Iterator[Row]:
    """A table as records, batch by batch; for a few thousand, not for hot paths."""
    for batch in table.to_batches(max_chunksize=1_000):
        for values in batch.to_pylist():
            yield Row(**values)


def read_rows(path: str | Path, columns: Sequence[str] | None = None, filters: Any = None) -> Rows:
    """The rows of a file; `columns` and `filters` (as pyarrow takes them) limit what is read."""
    pa = _arrow()
    parquet = import_extra("pyarrow.parquet", "data")
    try:
        names = parquet.read_schema(path).names
        if missing := [name for name in Row.model_fields if name not in names]:
            raise SetupError(
                f"{path} has no column {missing[0]!r}, so it does not hold rows: "
                "make them with `kernelcast data import`"
            )
        wanted = None if columns is None else list(columns)
        found = parquet.read_table(path, columns=wanted, filters=filters)
        return found.unify_dictionaries()
    except (pa.ArrowInvalid, OSError) as error:
        raise SetupError(f"{path} cannot be read as Parquet: {error}") from error


def write_rows(path: str | Path, rows: Rows | Iterable[Row]) -> None:
    """Check rows (a table or records) and write them; an existing file is replaced in one go."""
    pa = _arrow()
    table = rows if isinstance(rows, pa.Table) else to_table(rows)
    check_rows(table)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    # One template stands for 100,000 rows: it must never fall back to plain text.
    options = {"compression": "zstd", "dictionary_pagesize_limit": 2**28}
    parquet = import_extra("pyarrow.parquet", "data")
    try:
        with parquet.ParquetWriter(unfinished, table.schema, **options) as writer:
            for start in range(0, max(table.num_rows, 1), _ROW_GROUP):
                writer.write_table(_compacted(table.slice(start, _ROW_GROUP)))
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def concatenate(tables: Sequence[Rows]) -> Rows:
    """One table of several."""
    return _arrow().concat_tables(tables).unify_dictionaries()


def matching(table: Rows, problem: str | None = None, device: str | None = None) -> Rows:
    """The rows whose problem and device contain these texts; an error where there are none."""
    for column, text in (("problem", problem), ("device", device)):
        if text is not None:
            table = table.filter(_compute().match_substring(_text(table[column]), text))
            if not table.num_rows:
                raise SetupError(
                    f"no row's {column} contains {text!r}: `kernelcast data describe` lists them"
                )
    return table


def check_rows(table: Rows) -> None:
    """Refuse a table that breaks what `Row` promises."""
    pc = _compute()
    if table.schema != schema():
        differing = sorted(
            {field.name for field in schema() if field not in list(table.schema)}
            | (set(table.schema.names) - set(Row.model_fields))
        )
        raise SetupError(f"these are not rows: {differing} are not as `Row` has them")
    for field in table.schema:
        if not field.nullable and table[field.name].null_count:
            raise SetupError(f"column {field.name!r} has nulls: every row must state it")
    repeated = table.num_rows - pc.count_distinct(table["row_id"]).as_py()
    if repeated:
        raise SetupError(f"{repeated} row ids are there twice: import each file only once")
    statuses = _text(table["status"])
    unknown = set(pc.unique(statuses).to_pylist()) - set(STATUSES)
    if unknown:
        raise SetupError(f"unknown status {sorted(unknown)}: use one of {', '.join(STATUSES)}")
    timed = pc.is_in(statuses, _arrow().array(["ok", "reference"]))
    for name in ("runtime_s", "log2_speedup"):
        if pc.any(pc.and_(pc.invert(timed), pc.is_valid(table[name]))).as_py():
            raise SetupError(f"a failed kernel has a {name}: leave it null")
    for name in ("runtime_s", "reference_runtime_s"):
        if pc.any(
            pc.invert(pc.and_(pc.is_finite(table[name]), pc.greater(table[name], 0)))
        ).as_py():
            raise SetupError(f"{name} must be positive and finite, or null")
    if pc.any(pc.invert(pc.is_finite(table["log2_speedup"]))).as_py():
        raise SetupError("log2_speedup must be finite, or null")


def labels(table: Rows, bins: Bins = DEFAULT_BINS) -> NDArray[np.int64]:
    """The bin of each row's speedup, -1 where there is none; published labels are never used."""
    log2 = table["log2_speedup"].to_numpy()
    found = np.full(len(log2), -1, dtype=np.int64)
    known = ~np.isnan(log2)
    found[known] = bins.indices(np.exp2(log2[known]))
    return found


def _arrow() -> ModuleType:
    return import_extra("pyarrow", "data")


def _compute() -> ModuleType:
    _arrow()
    return import_extra("pyarrow.compute", "data")


def _table(columns: Mapping[str, Any]) -> Rows:
    """A table of these columns (lists or Arrow arrays), nulls for the rest of the schema."""
    pa = _arrow()
    count = len(columns["row_id"])
    arrays = []
    for field in schema():
        values = columns.get(field.name)
        if values is None:
            arrays.append(pa.nulls(count, field.type))
        elif isinstance(values, pa.Array):
            arrays.append(values.cast(field.type))
        elif pa.types.is_dictionary(field.type):
            arrays.append(pa.array(values, pa.string()).dictionary_encode())
        else:
            arrays.append(pa.array(values, field.type))
    return pa.table(arrays, schema=schema())


def _text(column: Any) -> Any:
    """A dictionary-encoded column as plain text."""
    return column.cast(_arrow().string())


def _mapped(values: Any, change: Callable[[Any], str | None]) -> Any:
    """A column with each distinct value changed, as a dictionary-encoded array.

    Its dictionary holds what the rows use, and nothing that a filter has left behind.
    """
    pa = _arrow()
    whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    encoded = whole if pa.types.is_dictionary(whole.type) else whole.dictionary_encode()
    used = np.unique(encoded.indices.drop_null().to_numpy())
    changed = [change(value) for value in encoded.dictionary.take(pa.array(used)).to_pylist()]
    distinct = dict.fromkeys(value for value in changed if value is not None)
    position = {value: index for index, value in enumerate(distinct)}
    lookup: list[int | None] = [None] * len(encoded.dictionary)
    for index, value in zip(used, changed, strict=True):
        lookup[index] = None if value is None else position[value]
    return pa.DictionaryArray.from_arrays(
        pa.array(lookup, pa.int32()).take(encoded.indices), pa.array(list(distinct), pa.string())
    )


def _compacted(table: Rows) -> Rows:
    """The same rows, with dictionaries that hold no more than they use."""
    pa = _arrow()
    columns = [
        _mapped(column, str) if pa.types.is_dictionary(column.type) else column
        for column in table.columns
    ]
    return pa.table(columns, schema=table.schema)
