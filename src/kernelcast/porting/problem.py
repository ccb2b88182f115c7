"""Problem: what a survey of a file found, as the content of a problem.toml."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping, Sequence
from typing import Any

from kernelcast.errors import ProblemError
from kernelcast.expression import evaluate
from kernelcast.porting.cases import Timed, hidden_ranges, needed_error, small_cases
from kernelcast.porting.folder import ProblemFile
from kernelcast.porting.formula import added, multiplied
from kernelcast.porting.limits import Sizes
from kernelcast.porting.survey import Array, Formula, Survey

_HALF = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
_LARGEST_TOLERANCE = 0.1
_MARGIN = 2.0  # between the error that was seen and the tolerance
_LEAST_ATOL = 1e-8
_RESERVED = ("torch", "seed", "float", "True", "False", "None")


class Names:
    """Names of arrays, which are not those of dimensions, and each other's."""

    def __init__(self, taken: Sequence[str]) -> None:
        self._taken = {*taken, *_RESERVED}
        self.of: dict[str, str] = {}

    def give(self, array: str, wanted: str) -> None:
        """Name an array as wanted, or nearly so; one that has a name keeps it."""
        if array in self.of:
            return
        base = re.sub(r"\W+", "_", wanted, flags=re.ASCII).strip("_") or "x"
        base = f"x_{base}" if not base.isidentifier() or keyword.iskeyword(base) else base
        name, number = base, 2
        while name in self._taken:
            name, number = f"{base}_{number}", number + 1
        self._taken.add(name)
        self.of[array] = name


def name_arrays(
    survey: Survey, inputs: Mapping[int, str], outputs: Mapping[int, str]
) -> dict[str, str]:
    """Names of all arrays: as the file's code has them, or after the place where they stand.

    Args:
        survey: What is known of the file.
        inputs: The code's names, by the index of the argument or of the part of the only one.
        outputs: The same of the result.
    """
    names = Names(survey.names)
    parts = survey.call
    if len(parts) == 1 and isinstance(parts[0], dict) and "tuple" in parts[0]:
        parts = parts[0]["tuple"]
    for index, part in enumerate(parts):
        _name_parts(names, part, inputs.get(index, "x"))
    for output, passed in survey.passed.items():
        names.of[output] = names.of[passed]
    results = survey.returns
    several = isinstance(results, list) or (isinstance(results, dict) and "tuple" in results)
    results = (results if isinstance(results, list) else results["tuple"]) if several else [results]
    for index, part in enumerate(results):
        _name_parts(names, part, outputs.get(index, "out"))
    return names.of


def _name_parts(names: Names, part: Any, wanted: str) -> None:
    if isinstance(part, list):
        for number, each in enumerate(part, 1):
            _name_parts(names, each, f"{wanted}_{number}")
    elif isinstance(part, dict):
        ((kind, content),) = part.items()
        if kind == "array":
            names.give(content, wanted)
        elif kind == "tuple":
            _name_parts(names, content, wanted)
        elif kind == "dict":
            for key, each in content:
                _name_parts(names, each, str(key) if isinstance(key, str) else f"{wanted}_{key}")


def text_of(nested: Any, names: Mapping[str, str]) -> str:
    """A nested structure as it stands between the parentheses of a call."""
    if isinstance(nested, Formula):
        return str(nested)
    if isinstance(nested, float) and nested in (float("inf"), float("-inf")):
        return f"float('{nested}')"
    if isinstance(nested, float) and nested != nested:
        return "float('nan')"
    if isinstance(nested, list):
        return f"[{', '.join(text_of(each, names) for each in nested)}]"
    if not isinstance(nested, dict):
        return repr(nested)
    ((kind, content),) = nested.items()
    if kind == "array":
        return names[content]
    if kind == "torch":
        return f"torch.{content}"
    if kind == "tuple":
        inner = ", ".join(text_of(each, names) for each in content)
        return f"({inner},)" if len(content) == 1 else f"({inner})"
    pairs = (f"{text_of(key, names)}: {text_of(each, names)}" for key, each in content)
    return f"{{{', '.join(pairs)}}}"


def texts_of(nested: Sequence[Any], names: Mapping[str, str]) -> str:
    """Several arguments."""
    return ", ".join(text_of(each, names) for each in nested)


def returns_of(survey: Survey, names: Mapping[str, str]) -> str:
    """The returned value; the parts of a tuple without its parentheses."""
    returns = survey.returns
    if isinstance(returns, dict) and len(returns.get("tuple", ())) > 1:
        return texts_of(returns["tuple"], names)
    return text_of(returns, names)


def arguments_of(survey: Survey, names: Mapping[str, str]) -> list[dict[str, Any]]:
    """The [[arguments]]: inputs, then outputs."""
    passed = set(survey.passed.values())
    inputs = []
    for index, array in enumerate(survey.inputs):
        if array.name not in passed:
            fill = survey.fills[index] if survey.fills is not None else {"kind": "drawn"}
            inputs.append({**_argument(array, names, "input"), "fill": fill})
    outputs = {names[array.name]: _argument(array, names, "output") for array in survey.outputs}
    if not inputs:
        raise ProblemError(
            f"{survey.subject.where}: no argument is a tensor that it reads; let one be"
        )
    return [*inputs, *outputs.values()]


def _argument(array: Array, names: Mapping[str, str], role: str) -> dict[str, Any]:
    shape = [str(each) for each in array.shape]
    return {"name": names[array.name], "role": role, "dtype": array.dtype, "shape": shape}


def work_of(survey: Survey, sizes: Sizes) -> tuple[dict[str, str], str]:
    """The [work], and a comment on it."""
    parts = [multiplied([str(array.item_bytes), *map(str, array.shape)]) for array in survey.arrays]
    elements = added([multiplied(["1", *map(str, each.shape)]) for each in survey.outputs])
    flops, comment = elements, "flops: one for each element of the result, a lower bound"
    if survey.flops_of(sizes) > int(evaluate(elements, sizes)):
        flops = survey.work
        comment = "flops: matrix products and convolutions only, a lower bound"
    return {"flops": flops, "bytes": added(parts)}, comment


def tolerance_of(
    survey: Survey, timed: Sequence[Timed], stated: Sequence[tuple[float, float]] = ()
) -> tuple[dict[str, float], str, str]:
    """The [tolerance], the precision of the reference, and a comment."""
    base = survey.ask(survey.base, deep=True)
    reports = [each.report for each in timed] + ([base] if base is not None else [])
    error = needed_error(reports)
    half = any(array.dtype in _HALF for array in survey.arrays)
    if stated:
        rtol, atol = (max(pair[n] for pair in stated) for n in (0, 1))
        tolerance = {"rtol": float(rtol), "atol": float(max(atol, _LEAST_ATOL))}
        native = error is None or error > max(rtol, atol)
        return tolerance, "native" if native else "float64", "as the task's own check has it"
    if not any("float" in array.dtype for array in survey.outputs):
        exact = error is not None and error < _LEAST_ATOL
        return {"rtol": 0.0, "atol": 1e-4}, "float64" if exact else "native", ""
    usual = value = 1e-2 if half else 1e-4
    if error is None or _MARGIN * error > _LARGEST_TOLERANCE:
        return {"rtol": usual, "atol": usual}, "native", ""
    while value < _MARGIN * error:
        value = float(f"{10 * value:.0e}")
    comment = ""
    if value > usual:
        comment = f"raised from {usual:g}: PyTorch's own result is off by {error:.1e}"
    return {"rtol": value, "atol": value}, "float64", comment


def problem_file(
    survey: Survey,
    cases: Mapping[str, tuple[Sizes, bool]],
    timed: Sequence[Timed],
    *,
    fields: Mapping[str, Any],
    module: Mapping[str, Any],
    names: Mapping[str, str],
    draw: str,
    stated: Sequence[tuple[float, float]] = (),
    comments: Mapping[str, list[str]],
) -> ProblemFile:
    """The content of a problem.toml.

    Args:
        survey: What is known of the file.
        cases: Sizes by name, and whether they are timed.
        timed: The timed ones that were run.
        fields: Name, family, summary and entry.
        module: What is known of [module]: reference, and check.
        names: Names of the arrays.
        draw: How the file itself makes the arguments.
        stated: Tolerances that the file states.
        comments: Comments by table.
    """
    highs = {name: max(sizes[name] for sizes, _ in cases.values()) for name in survey.names}
    tolerance, precision, on_tolerance = tolerance_of(survey, timed, stated)
    work, on_work = work_of(survey, timed[0].sizes)
    called: dict[str, Any] = {}
    if survey.init is not None:
        called["init"] = texts_of(survey.init, names)
    called |= {"call": texts_of(survey.call, names), "returns": returns_of(survey, names)}
    called |= {"reference": module["reference"], "precision": precision}
    if survey.fills is None:
        called["draw"] = draw
    called |= {key: value for key, value in module.items() if key not in called}
    stated_names = {sizes_key(sizes, survey) for sizes, _ in cases.values()}
    listed = {
        name: {"dimensions": _shown(sizes, survey), **({} if is_timed else {"timed": False})}
        for name, (sizes, is_timed) in cases.items()
    }
    if not any(not is_timed for _, is_timed in cases.values()):
        for name, sizes in small_cases(survey, highs).items():
            if sizes_key(sizes, survey) not in stated_names:
                listed[name] = {"dimensions": _shown(sizes, survey), "timed": False}
    ranges = hidden_ranges(survey, highs)
    hidden: dict[str, Any] = {}
    if ranges:
        hidden["dimensions"] = {name: list(ends) for name, ends in ranges.items()}
        if survey.rules:
            hidden["constraints"] = survey.rules
    notes = {key: list(lines) for key, lines in comments.items()}
    notes["work"] = [on_work]
    if on_tolerance:
        notes["tolerance"] = [on_tolerance]
    if precision == "native":
        notes.setdefault("module", []).append("native: in float64 the file means something else")
    return ProblemFile(
        fields={**fields, "language": "torch", "dimensions": survey.names},
        module=called,
        arguments=arguments_of(survey, names),
        cases=listed,
        work=work,
        tolerance=tolerance,
        hidden=hidden,
        comments=notes,
    )


def sizes_key(sizes: Mapping[str, int], survey: Survey) -> tuple[int, ...]:
    """The values of the dimensions."""
    return tuple(sizes[name] for name in survey.names)


def _shown(sizes: Mapping[str, int], survey: Survey) -> dict[str, int]:
    return {name: sizes[name] for name in survey.names}
