"""Measured kernels as rows of Parquet files: one schema, importers of public formats, splits.

A table of rows is an Arrow table (pyarrow is the extra `data`), so that hundreds of thousands are
handled by column. `Row` is one row as a record. Joins are by key, never by row order; a key that
is missing or occurs twice is an error. Bins are not stored: `labels` computes them. Forecasts that
others published are a table of their own (`RecordedForecast`).
"""

from kernelcast.dataset.forecasts import (
    ByRow,
    RecordedForecast,
    forecasts_by_row,
    import_paper_predictions,
    read_forecasts,
    write_forecasts,
)
from kernelcast.dataset.histories import open_trees, open_tuner
from kernelcast.dataset.kernelbench import (
    Results,
    RunScore,
    import_kernelbench,
    read_results,
    result_entry,
    write_results,
)
from kernelcast.dataset.keys import device_group, problem_family, problem_group
from kernelcast.dataset.paper import import_gpu_forecasters
from kernelcast.dataset.pools import (
    Pool,
    SpaceFile,
    folder_pool,
    read_space,
    rows_pool,
    space_pool,
    template_pool,
)
from kernelcast.dataset.recordings import open_pool, open_replay, recording
from kernelcast.dataset.rows import (
    DESCRIBED,
    SPLITS,
    UNSTATED,
    Row,
    Rows,
    Status,
    check_rows,
    concatenate,
    labels,
    matching,
    read_rows,
    schema,
    to_rows,
    to_table,
    write_rows,
)
from kernelcast.dataset.runs import export_run, measured_events
from kernelcast.dataset.samples import Samples, is_kernelbench_run, read_samples
from kernelcast.dataset.splits import Split, check_leaks, describe, split_by
from kernelcast.dataset.trials import TRIED, Anchor, Order, Trial, Trials, recorded_trials
from kernelcast.dataset.tuning import import_kernel_tuner_cache, import_t4

__all__ = [
    "DESCRIBED",
    "SPLITS",
    "TRIED",
    "UNSTATED",
    "Anchor",
    "ByRow",
    "Order",
    "Pool",
    "RecordedForecast",
    "Results",
    "Row",
    "Rows",
    "RunScore",
    "Samples",
    "SpaceFile",
    "Split",
    "Status",
    "Trial",
    "Trials",
    "check_leaks",
    "check_rows",
    "concatenate",
    "describe",
    "device_group",
    "export_run",
    "folder_pool",
    "forecasts_by_row",
    "import_gpu_forecasters",
    "import_kernel_tuner_cache",
    "import_kernelbench",
    "import_paper_predictions",
    "import_t4",
    "is_kernelbench_run",
    "labels",
    "matching",
    "measured_events",
    "open_pool",
    "open_replay",
    "open_trees",
    "open_tuner",
    "problem_family",
    "problem_group",
    "read_forecasts",
    "read_results",
    "read_rows",
    "read_samples",
    "read_space",
    "recorded_trials",
    "recording",
    "result_entry",
    "rows_pool",
    "schema",
    "space_pool",
    "split_by",
    "template_pool",
    "to_rows",
    "to_table",
    "write_forecasts",
    "write_results",
    "write_rows",
]
