"""Kernels of a pool are told apart by what sets them apart from the others."""

from __future__ import annotations

import numpy as np
import pytest

from kernelcast.forecasters import _pool
from kernelcast.forecasters._features import SourceFeatures
from kernelcast.forecasters._pool import Pool
from kernelcast.testing.fakes import make_query
from kernelcast.types import Kernel, Query

FEATURES = SourceFeatures(("relu", "sin"))
COLUMNS = Pool.columns(FEATURES)


def kernel(number: int, body: str) -> Kernel:
    source = f"import torch\n\ndef run(x):\n    return {body}\n"
    return Kernel(id=f"k{number:03}", language="python", source=source)


def queries(*bodies: str) -> list[Query]:
    anchor = kernel(999, "")
    anchor = anchor.model_copy(update={"source": ""})
    return [
        make_query(kernel(number, body)).model_copy(update={"anchor": anchor})
        for number, body in enumerate(bodies)
    ]


def rows_of(pool: Pool) -> np.ndarray:
    return np.concatenate(list(pool.rows(FEATURES)))


def column(rows: np.ndarray, name: str) -> list[float]:
    return [float(value) for value in rows[:, COLUMNS.index(name)]]


def test_a_kernel_that_others_are_like_is_near_them() -> None:
    alike = "torch.relu(x) + torch.sin(x) * {}"
    pool = Pool.of(queries(alike.format(2), alike.format(3), "x.sum().exp().log().sqrt().mean()"))
    near = rows_of(pool)[:, -1]
    assert COLUMNS[-1] == "pool likeness near"
    assert near[0] == pytest.approx(near[1])
    assert near[0] > near[2] + 0.05


def test_columns_are_distances_from_the_mean_of_the_pool() -> None:
    rows = rows_of(Pool.of(queries("torch.relu(x)", "torch.relu(torch.relu(torch.relu(x)))")))
    assert column(rows, "about word relu") == pytest.approx([-0.5, 0.5])
    assert column(rows, "about word sin") == [0.0, 0.0]
    assert rows.shape == (2, len(COLUMNS))


def test_each_text_counts_once_and_none_is_no_member() -> None:
    asked = queries("torch.relu(x)", "torch.sin(x)")
    pool = Pool.of([*asked, *asked])
    assert list(pool.digests) == ["k000", "k001"]
    assert [pool.place(query.candidate) for query in asked] == [0, 1]
    assert pool.place(asked[0].anchor) == -1


def test_a_large_pool_is_compared_with_some_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = [f"torch.relu(x) * {n}" if n < 20 else f"x.sum().exp() + {n}" for n in range(40)]
    whole = rows_of(Pool.of(queries(*bodies)))
    monkeypatch.setattr(_pool, "_MOST_OTHERS", 20)
    monkeypatch.setattr(_pool, "ROWS_AT_ONCE", 7)
    part = rows_of(Pool.of(queries(*bodies)[::-1]))
    likeness = [name for name in COLUMNS if name.startswith("pool")]
    for name in likeness:
        assert column(part, name) == pytest.approx(column(whole, name), abs=0.1)
