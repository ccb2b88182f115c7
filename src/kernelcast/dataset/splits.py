"""Splits by problem, family or device that cannot leak, and counts of a table's rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelcast.dataset.keys import device_group, problem_group
from kernelcast.dataset.rows import _COUNTED, SPLITS, Rows, _arrow, _compacted, _mapped
from kernelcast.errors import SetupError


@dataclass(frozen=True)
class Split:
    """Rows to train on, and rows to test on that share nothing with them."""

    name: str
    train: Rows
    test: Rows


_GROUPS: dict[str, tuple[str, Callable[[str], str]]] = {
    "problem": ("problem", problem_group),
    "family": ("family", str),
    "device": ("device", device_group),
    "kernel": ("candidate_id", str),
    "search": ("search_id", str),
}
# What must not be on both sides. A split by device is about one kernel on two devices.
_APART = {
    "problem": ("problem", "kernel", "search"),
    "family": ("family", "problem", "kernel", "search"),
    "device": ("device", "search"),
}


def split_by(
    table: Rows,
    by: str,
    *,
    folds: int | None = None,
    held_out: Sequence[str] | None = None,
    seed: int = 0,
) -> list[Split]:
    """Split rows by problem, family or device. See `problem_group` and `device_group`.

    Args:
        table: the rows.
        by: one of `SPLITS`.
        folds: number of folds of about equal size. Groups that share a kernel or a search stay
            in one fold, since parting them would leak.
        held_out: groups to test on, in place of folds.
        seed: decides which groups share a fold.

    Raises:
        SetupError: a group is unknown, there are too few groups, or a held-out group shares a
            kernel or a search with others.
    """
    if by not in SPLITS:
        raise SetupError(f"rows are split by {', '.join(SPLITS)}, not by {by!r}")
    if (folds is None) == (held_out is None):
        raise SetupError("say either into how many folds, or which groups are held out")
    groups = _grouped(table, by)
    codes = groups.indices.to_numpy()
    if held_out is not None:
        known = groups.dictionary.to_pylist()
        named = {_GROUPS[by][1](name) for name in held_out}
        if unknown := sorted(named - set(known)):
            some = ", ".join(sorted(known)[:8])
            raise SetupError(f"no {by} {unknown[0]!r} in these rows; there are {some}")
        tested = np.isin(codes, [known.index(name) for name in named])
        return [_split(table, tested, by, "held_out")]
    assert folds is not None
    bundle = _bundles(table, groups, by)[codes]
    sizes = np.bincount(bundle)
    if folds > len(sizes):
        raise SetupError(
            f"{folds} folds, but only {len(sizes)} groups that share nothing: ask for fewer"
        )
    shuffled = np.random.default_rng(seed).permutation(len(sizes))
    filled = np.zeros(folds, dtype=np.int64)
    fold_of = np.empty(len(sizes), dtype=np.int64)
    for largest in shuffled[np.argsort(-sizes[shuffled], kind="stable")]:
        fold_of[largest] = np.argmin(filled)
        filled[fold_of[largest]] += sizes[largest]
    return [_split(table, fold_of[bundle] == fold, by, f"fold{fold}") for fold in range(folds)]


def check_leaks(train: Rows, test: Rows, by: str) -> None:
    """Raise SetupError if two sides share a problem, kernel, search or device they must not."""
    for what in _APART[by]:
        sides = (set(_grouped(side, what).dictionary.to_pylist()) for side in (train, test))
        if shared := sorted(set.intersection(*sides)):
            raise SetupError(
                f"split by {by} leaks: {len(shared)} {what} groups are on both sides, e.g. "
                f"{', '.join(shared[:3])}: hold them out together, or use folds"
            )


def _grouped(table: Rows, what: str) -> Any:
    column, group = _GROUPS[what]
    return _mapped(table[column], group)


def _split(table: Rows, tested: NDArray[np.bool_], by: str, name: str) -> Split:
    train, test = (_compacted(table.filter(_arrow().array(mask))) for mask in (~tested, tested))
    check_leaks(train, test, by)
    return Split(name, train, test)


def _bundles(table: Rows, groups: Any, by: str) -> NDArray[np.int64]:
    """Number of each group's bundle: the groups linked to it by what must not be parted."""
    # Slow to import, and needed only for splits.
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    codes = groups.indices.to_numpy()
    count = len(groups.dictionary)
    starts, ends = [np.arange(count)], [np.arange(count)]
    for what in _APART[by][1:]:
        links = _grouped(table, what)
        starts.append(codes[links.is_valid().to_numpy(zero_copy_only=False)])
        ends.append(count + links.indices.drop_null().to_numpy())
        count += len(links.dictionary)
    start, end = np.concatenate(starts), np.concatenate(ends)
    graph = coo_matrix((np.ones(len(start), dtype=np.int8), (start, end)), shape=(count, count))
    _, bundle = connected_components(graph, directed=False)
    return np.unique(bundle[: len(groups.dictionary)], return_inverse=True)[1].astype(np.int64)


def describe(table: Rows) -> dict[str, Any]:
    """Count the rows of a table, and those that ran, by source, family, device and so on."""
    ok = np.array(table["status"].to_pylist(), dtype=object) == "ok"
    by: dict[str, dict[str, dict[str, int]]] = {}
    for column in _COUNTED:
        values = np.array(table[column].to_pylist(), dtype=object)
        rows, ran = Counter(values), Counter(values[ok])
        ordered = sorted(rows, key=lambda value: (-rows[value], value))
        by[column] = {value: {"rows": rows[value], "ok": ran[value]} for value in ordered}
    return {
        "rows": table.num_rows,
        "problems": len(_mapped(table["problem"], problem_group).dictionary),
        "searches": len(_mapped(table["search_id"], str).dictionary),
        "by": by,
    }
