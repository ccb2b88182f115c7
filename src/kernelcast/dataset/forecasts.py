"""Recorded forecasts: what others forecast of published rows, and how it is joined to the rows.

A forecast names its row by the source's own key, which several rows may share. It is therefore
joined by the key, the problem, and its place among the forecasts with that key: the second
forecast of a key is of the second row with it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from kernelcast.bins import BINS, PAPER_BINS
from kernelcast.dataset._foreign import _read_foreign
from kernelcast.dataset.paper import _paper_problem
from kernelcast.dataset.rows import Rows, _arrow, _unfinished
from kernelcast.distribution import Distribution
from kernelcast.errors import SetupError, import_extra
from kernelcast.types import Forecast, Query, Record, Usage


class RecordedForecast(Record):
    """One forecast of one row, against the row's own reference."""

    key: str = Field(description="the row's id up to its `#`: set and the source's own key")
    problem: str = Field(description="the row's problem")
    occurrence: int = Field(description="1 for the first row of this problem with this key")
    forecaster: str = Field(description="who made the forecast")
    repeat: int = Field(description="number of the forecaster's answer about this row")
    bins: str = Field(description="name of the bins: see `bins`")
    probabilities: tuple[float, ...] | None = Field(
        description="one per bin, with a sum of 1; null where the answer could not be read"
    )
    raw_probability_sum: float | None = Field(description="their sum as the forecaster stated them")
    unparsed: bool = Field(description="the answer could not be read: it counts as uniform")
    input_tokens: int | None = Field(description="tokens read; null where not published")
    output_tokens: int | None = Field(description="tokens written; null where not published")
    seconds: float | None = Field(description="how long the answer took")

    def about(self, query: Query) -> Forecast:
        """Return the forecast as an answer to the query of its row."""
        bins = BINS[self.bins]
        uniform = (1.0 / bins.count,) * bins.count
        return Forecast(
            forecaster=self.forecaster,
            anchor_id=query.anchor.id,
            anchor_log2_speedup=query.anchor_log2_speedup,
            distribution=Distribution.from_bins(bins, self.probabilities or uniform),
            raw_probability_sum=self.raw_probability_sum,
            unparsed=self.unparsed,
            usage=Usage(
                input_tokens=self.input_tokens or 0,
                output_tokens=self.output_tokens or 0,
                seconds=self.seconds or 0.0,
            ),
        )


ByRow = Mapping[str, Sequence[RecordedForecast]]
"""The forecasts of one forecaster by row id, in the order of their repeats."""

_PREDICTIONS = (
    *("comparison_id", "pack", "surrogate_label", "repeat", "bin_probabilities", "parse_failed"),
    *("raw_probability_sum", "input_tokens", "output_tokens", "elapsed_s"),
)


def import_paper_predictions(paths: Sequence[str | Path]) -> list[RecordedForecast]:
    """Import the paper's released forecasts of its evaluation set.

    Args:
        paths: Parquet files, each of other forecasts; the order of a key's entries is kept.

    Raises:
        SetupError: a file is of another kind, or states bins other than 1 to 8.
    """
    forecasts = []
    seen: Counter[tuple[str, str, str, int]] = Counter()
    for path in map(Path, paths):
        for entry in _read_foreign(path, _PREDICTIONS).select(_PREDICTIONS).to_pylist():
            key, problem = f"eval-set/{entry['comparison_id']}", _paper_problem(entry["pack"])
            same = (key, problem, entry["surrogate_label"], entry["repeat"])
            seen[same] += 1
            total, probabilities = _read_bins(path, entry)
            published = entry["raw_probability_sum"]
            forecasts.append(
                RecordedForecast(
                    key=key,
                    problem=problem,
                    occurrence=seen[same],
                    forecaster=entry["surrogate_label"],
                    repeat=entry["repeat"],
                    bins=PAPER_BINS.name,
                    probabilities=probabilities,
                    raw_probability_sum=total if published is None else published,
                    unparsed=probabilities is None,
                    input_tokens=entry["input_tokens"],
                    output_tokens=entry["output_tokens"],
                    seconds=entry["elapsed_s"],
                )
            )
    return forecasts


def _read_bins(
    path: Path, entry: Mapping[str, Any]
) -> tuple[float | None, tuple[float, ...] | None]:
    """Return the stated sum and the normalised probabilities; None where they cannot be read."""
    stated = [] if entry["parse_failed"] else entry["bin_probabilities"] or []
    numbers = [each["bin"] for each in stated]
    if unknown := sorted(set(numbers) - set(range(1, PAPER_BINS.count + 1)), key=str):
        raise SetupError(
            f"{path}: {entry['comparison_id']} has the bins {unknown}; "
            f"the paper's are 1 to {PAPER_BINS.count}"
        )
    chances = [math.nan if each["p"] is None else each["p"] for each in stated]
    total = math.fsum(chances) if all(map(math.isfinite, chances)) else math.nan
    if len(set(numbers)) < len(numbers) or min(chances, default=0.0) < 0.0 or not total > 0.0:
        return None, None
    mass = dict(zip(numbers, chances, strict=True))
    return total, tuple(mass.get(at + 1, 0.0) / total for at in range(PAPER_BINS.count))


def read_forecasts(path: str | Path) -> list[RecordedForecast]:
    """Read the recorded forecasts that `write_forecasts` or `kernelcast data import` wrote.

    Raises:
        SetupError: the file is not Parquet, holds no forecasts, or they are not all in one table
            of `BINS`.
    """
    pa, parquet = _arrow(), import_extra("pyarrow.parquet", "data")
    try:
        table = parquet.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise SetupError(f"{path} cannot be read as Parquet: {error}") from error
    if table.schema.names != list(RecordedForecast.model_fields):
        raise SetupError(
            f"{path} does not hold recorded forecasts: "
            "make them with `kernelcast data import paper-predictions`"
        )
    forecasts = [RecordedForecast(**values) for values in table.to_pylist()]
    if not forecasts:
        raise SetupError(f"{path} holds no forecast")
    bins = {forecast.bins for forecast in forecasts}
    if len(bins) > 1 or not bins <= set(BINS):
        raise SetupError(f"{path} names the bins {sorted(bins)}: one of {', '.join(BINS)} is known")
    return forecasts


def write_forecasts(path: str | Path, forecasts: Iterable[RecordedForecast]) -> None:
    """Write recorded forecasts as Parquet; an existing file is replaced in one step."""
    pa = _arrow()
    kinds = {
        **dict.fromkeys(("key", "problem", "forecaster", "bins"), pa.string()),
        **dict.fromkeys(("occurrence", "repeat", "input_tokens", "output_tokens"), pa.int64()),
        **dict.fromkeys(("raw_probability_sum", "seconds"), pa.float64()),
        "probabilities": pa.list_(pa.float64()),
        "unparsed": pa.bool_(),
    }
    schema = pa.schema([(name, kinds[name]) for name in RecordedForecast.model_fields])
    table = pa.Table.from_pylist([dict(forecast) for forecast in forecasts], schema=schema)
    with _unfinished(Path(path)) as draft:
        import_extra("pyarrow.parquet", "data").write_table(table, draft, compression="zstd")


def forecasts_by_row(forecasts: Iterable[RecordedForecast], rows: Rows) -> dict[str, ByRow]:
    """Join recorded forecasts to the rows that they are of.

    Args:
        forecasts: Each forecaster must have forecast each row once in each of its repeats.
        rows: The imported set, whole and in its published order.

    Returns:
        By forecaster, its forecasts by row id.

    Raises:
        SetupError: a forecast is of no row, or a key has more or fewer forecasts than rows.
    """
    ids: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row_id, problem in zip(
        rows["row_id"].to_pylist(), rows["problem"].to_pylist(), strict=True
    ):
        ids[row_id.rpartition("#")[0], problem].append(row_id)
    rounds: dict[tuple[str, int], dict[tuple[str, str], list[RecordedForecast]]] = defaultdict(dict)
    for forecast in forecasts:
        of_key = rounds[forecast.forecaster, forecast.repeat]
        of_key.setdefault((forecast.key, forecast.problem), []).append(forecast)
    joined: dict[str, dict[str, list[RecordedForecast]]] = defaultdict(lambda: defaultdict(list))
    for (forecaster, repeat), of_key in sorted(rounds.items()):
        for place in {**ids, **of_key}:
            told = sorted(of_key.get(place, ()), key=lambda forecast: forecast.occurrence)
            row_ids = ids.get(place, [])
            if [forecast.occurrence for forecast in told] != [*range(1, len(row_ids) + 1)]:
                key, problem = place
                raise SetupError(
                    f"{key!r} of {problem!r} is the key of {len(row_ids)} rows and of {len(told)} "
                    f"forecasts by {forecaster}, repeat {repeat}: give the rows that were "
                    "forecast, all of them, and each file of forecasts once"
                )
            for row_id, forecast in zip(row_ids, told, strict=True):
                joined[forecaster][row_id].append(forecast)
    return {forecaster: dict(by_row) for forecaster, by_row in joined.items()}
