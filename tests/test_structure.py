"""How arguments are nested: the text, and what the process that calls makes of it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.backends import _module
from kernelcast.errors import ProblemError
from kernelcast.expression import MOST_CHARACTERS
from kernelcast.structure import array_names, nested

ARRAYS = ("x", "y", "w", "state")
DIMENSIONS = {"N": 48, "K": 7}
OBJECTS = {name: object() for name in ARRAYS}

Written = tuple[str, Any, list[str]]  # a text, what it means, and its arrays in their order


def written() -> st.SearchStrategy[Written]:
    """Structures as a person writes them."""
    numbers = st.one_of(st.integers(-(10**9), 10**9), st.floats(-1e6, 1e6).map(lambda x: x + 0.0))
    words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)
    plain = st.one_of(numbers, words, st.booleans(), st.none())
    leaves: st.SearchStrategy[Written] = st.one_of(
        plain.map(lambda value: (repr(value), value, [])),
        st.sampled_from(ARRAYS).map(lambda name: (name, OBJECTS[name], [name])),
        st.sampled_from([("N", 48), ("K // 2", 3), ("-(N * K)", -336), ("N / 32", 1.5)]).map(
            lambda pair: (pair[0], pair[1], [])
        ),
    )

    def names(parts: list[Written]) -> list[str]:
        return [name for _, _, found in parts for name in found]

    def combined(inner: st.SearchStrategy[Written]) -> st.SearchStrategy[Written]:
        several = st.lists(inner, max_size=3)
        keys = st.one_of(words, st.integers(2, 99))
        return st.one_of(
            several.map(
                lambda parts: (
                    f"[{', '.join(text for text, _, _ in parts)}]",
                    [value for _, value, _ in parts],
                    names(parts),
                )
            ),
            several.map(
                lambda parts: (
                    f"({''.join(f'{text}, ' for text, _, _ in parts)})",
                    tuple(value for _, value, _ in parts),
                    names(parts),
                )
            ),
            st.dictionaries(keys, inner, max_size=3).map(
                lambda named: (
                    "{" + ", ".join(f"{key!r}: {each[0]}" for key, each in named.items()) + "}",
                    {key: value for key, (_, value, _) in named.items()},
                    names(list(named.values())),
                )
            ),
        )

    return st.recursive(leaves, combined, max_leaves=8)


@given(st.lists(written(), max_size=4))
def test_what_is_built_is_what_python_would_pass(parts: list[Written]) -> None:
    text = ", ".join(each[0] for each in parts)
    built = _module.build(nested(text, ARRAYS, DIMENSIONS), OBJECTS)
    wanted = [value for _, value, _ in parts]
    assert built == wanted
    assert repr(built) == repr(wanted)  # 1 is not 1.0, nor a list a tuple
    given_names = [name for _, _, found in parts for name in found]
    assert [name for name in array_names(text) if name in ARRAYS] == given_names


@given(st.lists(written(), min_size=1, max_size=4))
def test_what_is_built_comes_apart_again(parts: list[Written]) -> None:
    structure = nested(", ".join(each[0] for each in parts), ARRAYS, DIMENSIONS)
    names = [name for _, _, found in parts for name in found]
    built = _module.build(structure, OBJECTS)
    assert list(_module.flatten(structure, built)) == [(name, OBJECTS[name]) for name in names]
    value = built[0] if len(built) == 1 else tuple(built)  # as a function returns one or several
    assert _module.returned(structure, value) == {name: OBJECTS[name] for name in names}


@given(st.text(max_size=30) | st.text("xN0(),[]{}:.*=\"'+- \nfor", max_size=30))
def test_any_text_is_arguments_or_a_problem_error(text: str) -> None:
    try:
        structure = nested(text, ARRAYS, DIMENSIONS)
    except ProblemError:
        return
    _module.build(structure, OBJECTS)
    array_names(text)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", []),
        ("x,", [{"array": "x"}]),
        ("float('inf'), -float('inf')", None),
        ("float('inf')", [math.inf]),
        ("float('-inf')", [-math.inf]),
        ("torch.float16, N", [{"torch": "float16"}, 48]),
        ("[x, (None, True)]", [[{"array": "x"}, {"tuple": [None, True]}]]),
        ("{'eps': 1e-5, 2: x}", [{"dict": [["eps", 1e-5], [2, {"array": "x"}]]}]),
        ("K > 3, not K", [True, False]),
    ],
)
def test_structures_are_json_values(text: str, wanted: list[Any] | None) -> None:
    if wanted is None:
        with pytest.raises(ProblemError):
            nested(text, ARRAYS, DIMENSIONS)
    else:
        assert nested(text, ARRAYS, DIMENSIONS) == wanted


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x, scale=2", "no list of positional arguments"),
        ("**x", "no list of positional arguments"),
        ("x)(y", "no list of positional arguments"),
        ("x) + f(y", "no list of positional arguments"),
        ("x, (", "cannot stand between the parentheses of a call"),
        ("x #", "cannot stand between the parentheses of a call"),
        ("x\0", "cannot stand between the parentheses of a call"),
        ("(" * 500 + ")" * 500, "cannot stand between the parentheses of a call"),
        ("N" * (MOST_CHARACTERS + 1), f"it has more than {MOST_CHARACTERS} characters"),
        ("x, unknown", "unknown name 'unknown'"),
        ("torch", "unknown name 'torch'"),
        ("numpy.float32", ""),
        ("torch.nn.functional", ""),
        ("*x", ""),
        ("[*x]", ""),
        ("x[0]", ""),
        ("x + 1", ""),
        ("f(x)", ""),
        ("float(x)", ""),
        ("torch.load('f')", ""),
        ("[x for x in y]", ""),
        ("x for x in y", ""),
        ("lambda: x", ""),
        ("(z := 3)", ""),
        ("{x}", ""),
        ("b'bytes'", ""),
        ("...", ""),
        ("1j", ""),
        ("f'{x}'", ""),
        ("await x", ""),
        ("10 ** 10 ** 10", ""),
        ("2" + "*9999999999" * 20, ""),
        ("N // 0", "cannot work out"),
        ("{N: x}", "{N: x}: write the keys as literals"),
        ("{**x}", "write the keys as literals"),
        ("-" * 900 + "1", ""),
    ],
)
def test_what_is_no_structure_is_refused(text: str, words: str) -> None:
    with pytest.raises(ProblemError) as raised:
        nested(text, ARRAYS, DIMENSIONS)
    assert words in str(raised.value)
    assert len(str(raised.value)) < 2 * MOST_CHARACTERS + 200


def test_names_are_in_the_order_of_the_text() -> None:
    assert array_names("w, (x, [y]), {'a': state, 'b': (x, K // N)}") == [
        *("w", "x", "y", "state", "x", "K", "N")
    ]
    assert array_names("torch.float32, 'x', None") == []
    assert array_names("float('inf'), x") == ["x"]
