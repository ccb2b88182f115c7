"""Measured kernels as rows of Parquet: one schema, importers of public formats, leak-free splits.

Belongs here: what a row is, how foreign files and stored runs become rows, and how rows are parted
for training and testing. A table of rows is an Arrow table (pyarrow is the extra `data`), so that
hundreds of thousands are handled by column; `Row` is the same as a record, for a few at a time.

Joins are by key, never by row order, and a key that is missing or there twice is an error.
Bins are never stored: `labels` makes them from the speedup.
"""

from kernelcast.dataset.histories import History, open_trees
from kernelcast.dataset.kernelbench import import_kernelbench
from kernelcast.dataset.keys import (
    configuration_id,
    device_group,
    problem_family,
    problem_group,
)
from kernelcast.dataset.paper import import_gpu_forecasters, import_predictions
from kernelcast.dataset.pools import Pool, folder_pool, rows_pool, space_pool, template_pool
from kernelcast.dataset.recordings import open_pool, open_replay, recording
from kernelcast.dataset.rows import (
    DESCRIBED,
    SPLITS,
    STATUSES,
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
from kernelcast.dataset.runs import export_run
from kernelcast.dataset.splits import Split, check_leaks, describe, split_by
from kernelcast.dataset.trials import TRIED, Anchor, Order, Trial, Trials, recorded_trials
from kernelcast.dataset.tuning import import_kernel_tuner_cache, import_t4

__all__ = [
    "DESCRIBED",
    "SPLITS",
    "STATUSES",
    "TRIED",
    "UNSTATED",
    "Anchor",
    "History",
    "Order",
    "Pool",
    "Row",
    "Rows",
    "Split",
    "Status",
    "Trial",
    "Trials",
    "check_leaks",
    "check_rows",
    "concatenate",
    "configuration_id",
    "describe",
    "device_group",
    "export_run",
    "folder_pool",
    "import_gpu_forecasters",
    "import_kernel_tuner_cache",
    "import_kernelbench",
    "import_predictions",
    "import_t4",
    "labels",
    "matching",
    "open_pool",
    "open_replay",
    "open_trees",
    "problem_family",
    "problem_group",
    "read_rows",
    "recorded_trials",
    "recording",
    "rows_pool",
    "schema",
    "space_pool",
    "split_by",
    "template_pool",
    "to_rows",
    "to_table",
    "write_rows",
]
