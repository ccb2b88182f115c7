"""Which rows a model that ships may learn from."""

from __future__ import annotations

from kernelcast.dataset import UNSTATED, Rows
from kernelcast.errors import SetupError

EVALUATION_ONLY = ("sol-execbench-rocm",)
"""Sources that were published for evaluation only."""


def check_publishable(rows: Rows) -> None:
    """Raise SetupError for rows that no published model may learn from."""
    if UNSTATED in set(rows["licence"].to_pylist()):
        raise SetupError(
            "some rows state no licence: leave them out of a model that ships "
            "(filter the rows on their licence)"
        )
    barred = {
        source for source in set(rows["source"].to_pylist()) if source.startswith(EVALUATION_ONLY)
    }
    if barred:
        raise SetupError(
            f"rows of {', '.join(sorted(barred))} are for evaluation only: "
            "leave llm_sol_mi350x out of a model that ships"
        )
