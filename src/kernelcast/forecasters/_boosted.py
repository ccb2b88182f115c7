"""Trees in LightGBM's text, read as data that is not trusted, and written anew.

LightGBM believes what a text says. A child that is not there is read outside of its arrays, and a
node that is its own child is a loop without end. So LightGBM is given only texts that are written
here, of numbers that were checked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

MOST_TREES = 100_000
MOST_LEAVES = 4_096
MOST_COLUMNS = 100_000
_NUMBER = r"-?[0-9]{1,32}(?:\.[0-9]{1,32})?(?:e-[0-9]{1,3}|e\+?[0-9]{1,2})?"
_LINE = re.compile(rf"{_NUMBER}(?: {_NUMBER})*")
_DECISIONS = frozenset({0, 2, 4, 6, 8, 10})  # by a threshold, and where a missing value goes
_NOTHING_ELSE = {"num_cat": "0", "is_linear": "0"}  # no sets of categories, no linear models


def plain_trees(text: str, columns: int, outputs: int) -> str:
    """The same trees, as a text of what a forecast needs and of nothing else.

    Args:
        text: What LightGBM wrote.
        columns: How many numbers a row has.
        outputs: How many scores a row gets.

    Raises:
        ValueError: The text is not what LightGBM writes.
    """
    head, *trees = text.partition("\nend of trees")[0].split("\nTree=")
    stated = _fields(head)
    if _count(stated, "max_feature_idx", MOST_COLUMNS) + 1 != columns:
        raise ValueError(f"its trees are not for {columns} columns")
    if _count(stated, "num_tree_per_iteration", outputs) != outputs:
        raise ValueError(f"its trees do not give {outputs} scores")
    if not 0 < len(trees) <= MOST_TREES or len(trees) % outputs:
        raise ValueError(f"it has {len(trees)} trees")
    if "average_output" in head.splitlines():
        raise ValueError("its scores are means")
    plain = [
        f"Tree={number}\n{_plain_tree(_fields(tree), columns)}\n"
        for number, tree in enumerate(trees)
    ]
    lines = (
        "tree\nversion=v4",
        f"num_class={outputs}\nnum_tree_per_iteration={outputs}",
        f"label_index=0\nmax_feature_idx={columns - 1}",
        f"feature_names={' '.join(f'Column_{column}' for column in range(columns))}",
        f"feature_infos={' '.join(['none'] * columns)}",
        f"tree_sizes={' '.join(str(len(tree)) for tree in plain)}",
    )
    return "\n".join((*lines, "", f"{''.join(plain)}end of trees\n"))


def _plain_tree(stated: Mapping[str, str], columns: int) -> str:
    """One tree, whose nodes are each the child of one earlier node."""
    leaves = _count(stated, "num_leaves", MOST_LEAVES)
    if leaves < 1 or any(stated.get(key, value) != value for key, value in _NOTHING_ELSE.items()):
        raise ValueError("a tree is of another kind than `kernelcast train trees` makes")
    nodes = leaves - 1
    written = {"num_leaves": str(leaves), "num_cat": "0"}
    if nodes:
        features = _whole_numbers(stated, "split_feature", nodes)
        if not all(0 <= feature < columns for feature in features):
            raise ValueError("a tree looks at a column that there is not")
        if not _DECISIONS.issuperset(_whole_numbers(stated, "decision_type", nodes)):
            raise ValueError("a tree decides by another rule")
        left, right = (
            _whole_numbers(stated, side, nodes) for side in ("left_child", "right_child")
        )
        _check_children(left, right)
        for key in ("split_feature", "threshold", "decision_type", "left_child", "right_child"):
            written[key] = _numbers(stated, key, nodes)
    written["leaf_value"] = _numbers(stated, "leaf_value", leaves)
    written |= {"is_linear": "0", "shrinkage": "1"}
    return "\n".join((*(f"{key}={value}" for key, value in written.items()), ""))


def _check_children(left: Sequence[int], right: Sequence[int]) -> None:
    """LightGBM adds a node below those that there are, so a child has a larger number."""
    nodes = len(left)
    children = [*left, *right]
    expected = {*range(1, nodes), *range(-nodes - 1, 0)}  # a leaf's number is counted from -1 down
    if len(expected) != len(children) or expected != set(children):
        raise ValueError("a tree has a node or a leaf that is not the child of one node")
    if any(0 <= child <= node for pair in (left, right) for node, child in enumerate(pair)):
        raise ValueError("a tree has a node that is its own ancestor")


def _fields(text: str) -> dict[str, str]:
    parts = (line.partition("=") for line in text.split("\n"))
    return {key: value for key, _, value in parts}


def _numbers(stated: Mapping[str, str], key: str, count: int) -> str:
    """That many finite numbers, in the words of the text: other words might be rounded otherwise.

    A threshold may be infinite: it divides numbers from what is missing.
    """
    line = stated.get(key, "")
    if line.count(" ") + 1 != count:
        raise ValueError(f"a tree has not {count} numbers in {key}")
    if not _LINE.fullmatch(line.replace("inf", "0") if key == "threshold" else line):
        raise ValueError(f"a tree has something else than finite numbers in {key}")
    return line


def _whole_numbers(stated: Mapping[str, str], key: str, count: int) -> list[int]:
    return [int(word) for word in _numbers(stated, key, count).split(" ")]


def _count(stated: Mapping[str, str], key: str, most: int) -> int:
    word = stated.get(key, "")
    if not re.fullmatch(r"[0-9]{1,9}", word) or int(word) > most:
        raise ValueError(f"{key} is no number up to {most}")
    return int(word)
