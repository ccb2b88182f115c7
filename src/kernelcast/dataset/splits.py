"""Splits by problem, family or device that cannot leak, and what a table holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelcast.dataset.keys import device_group, problem_group
from kernelcast.dataset.rows import (
    _COUNTED,
    SPLITS,
    Rows,
    _arrow,
    _compacted,
    _compute,
    _mapped,
    _text,
)
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
# What must not be on both sides. One kernel on two devices is what a split by device is about.
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
    """Part rows by problem, family or device: into `folds`, or with the groups `held_out`.

    Groups that share a kernel or a search stay in one fold, since parting them would leak; where
    groups are named, what they share with others is an error. Folds are of about equal size, and
    `seed` decides which groups share one. See `problem_group` and `device_group`.
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
        return [_parted(table, tested, by, "held_out")]
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
    for each in shuffled[np.argsort(-sizes[shuffled], kind="stable")]:
        fold_of[each] = np.argmin(filled)
        filled[fold_of[each]] += sizes[each]
    return [_parted(table, fold_of[bundle] == fold, by, f"fold{fold}") for fold in range(folds)]


def check_leaks(train: Rows, test: Rows, by: str) -> None:
    """Refuse two sides that share a problem, family, kernel, search or device they must not."""
    pc = _compute()
    for what in _APART[by]:
        ours, theirs = (pc.unique(_text(_grouped(side, what))) for side in (train, test))
        shared = ours.filter(pc.is_in(ours, theirs.drop_null())).to_pylist()
        if shared:
            raise SetupError(
                f"split by {by} leaks: {len(shared)} {what} groups are on both sides, e.g. "
                f"{', '.join(map(str, shared[:3]))}: hold them out together, or use folds"
            )


def _grouped(table: Rows, what: str) -> Any:
    column, group = _GROUPS[what]
    return _mapped(table[column], group)


def _parted(table: Rows, tested: NDArray[np.bool_], by: str, name: str) -> Split:
    mask = _arrow().array(tested)
    sides = (table.filter(each) for each in (_compute().invert(mask), mask))
    split = Split(name, *map(_compacted, sides))
    check_leaks(split.train, split.test, by)
    return split


def _bundles(table: Rows, groups: Any, by: str) -> NDArray[np.int64]:
    """For each group the number of its bundle: groups that are linked by what must not part."""
    # Slow to import, and needed only where rows are split.
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    codes = groups.indices.to_numpy()
    ends = [np.arange(len(groups.dictionary))]
    starts = [ends[0]]
    count = len(groups.dictionary)
    for what in _APART[by][1:]:
        links = _grouped(table, what)
        known = links.indices.is_valid().to_numpy(zero_copy_only=False)
        starts.append(codes[known])
        ends.append(count + links.indices.drop_null().to_numpy())
        count += len(links.dictionary)
    start, end = np.concatenate(starts), np.concatenate(ends)
    graph = coo_matrix((np.ones(len(start), dtype=np.int8), (start, end)), shape=(count, count))
    _, bundle = connected_components(graph, directed=False)
    return np.unique(bundle[: len(groups.dictionary)], return_inverse=True)[1].astype(np.int64)


def describe(table: Rows) -> dict[str, Any]:
    """What is in a table: counts of rows, and of those that ran, as plain data."""
    statuses = np.asarray(_text(table["status"]).to_pylist(), dtype=object)
    ok = statuses == "ok"
    by: dict[str, dict[str, dict[str, int]]] = {}
    for column in _COUNTED:
        encoded = _mapped(table[column], str)
        codes = encoded.indices.to_numpy()
        counts = np.bincount(codes, minlength=len(encoded.dictionary))
        right = np.bincount(codes[ok], minlength=len(encoded.dictionary))
        found = zip(encoded.dictionary.to_pylist(), counts.tolist(), right.tolist(), strict=True)
        by[column] = {
            name: {"rows": rows, "ok": fine}
            for name, rows, fine in sorted(found, key=lambda each: (-each[1], each[0]))
        }
    return {
        "rows": table.num_rows,
        "problems": len(_mapped(table["problem"], problem_group).dictionary),
        "searches": len(_mapped(table["search_id"], str).dictionary),
        "by": by,
    }
