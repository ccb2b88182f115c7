"""Loading of problems: bundled ones by name, others by the path of their folder.

A folder holds problem.toml, reference.py, seed.cpp and, together, template.cpp and template.toml. A
seed in a further language (seed.cu, ...) makes it a problem in that language, without a template.
Cases that suit only a CPU or only a GPU say so, and are left out for the other.
Everything that can be checked without running code is checked here. Each error names the file and
the fix.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from kernelcast.dtypes import dtype_of
from kernelcast.errors import ProblemError, UnknownComponent
from kernelcast.expression import evaluate
from kernelcast.languages import dialect, element_type, names
from kernelcast.structure import array_names, nested
from kernelcast.types import Argument, Case, Language, Problem, Template

_BUNDLED = Path(__file__).with_name("bundled")


def bundled_problems(language: Language | None = None) -> list[str]:
    """Names of the problems that come with kernelcast: all, or those stated in a language."""
    return sorted(
        toml.parent.name
        for toml in _BUNDLED.glob("*/problem.toml")
        if language is None or _read_toml(toml)["language"] == language
    )


def load_problem(
    name_or_path: str | Path,
    *,
    language: Language | None = None,
    device: Literal["cpu", "gpu"] = "cpu",
) -> Problem:
    """Load a bundled problem by its name, or the problem in a folder.

    Args:
        name_or_path: The name or the folder.
        language: The language of the seed, if it is not the one that problem.toml states.
        device: Which kind its cases are for, where some suit only a CPU or only a GPU.

    Raises:
        ProblemError: There is no such problem, it has no seed in that language, or a file of it
            has an error.
    """
    folder = _BUNDLED / name_or_path
    if str(name_or_path) not in bundled_problems():
        folder = Path(name_or_path)
        if not folder.is_dir():
            raise ProblemError(
                f"{str(name_or_path)!r} is neither a folder nor a bundled problem; "
                f"bundled: {', '.join(bundled_problems())}"
            )
    toml = folder / "problem.toml"
    fields = _read_toml(toml)
    ending = _seed_ending(str(fields.get("language")))
    if ending is None:
        raise ProblemError(
            f"{toml}: set language to one of {', '.join(filter(_seed_ending, names()))}; a package "
            "adds another by an entry point in the group kernelcast (docs/how-to/own-backend.md)"
        )
    cases, work = (_table(fields, name, toml) for name in ("cases", "work"))
    cases = _cases_for(device, cases, toml)
    fields["oracle_source"] = _read(folder / "reference.py")
    if language in (None, fields["language"]):
        fields["template"] = _load_template(folder, ending)
    else:
        ending = _ending_of_seed(folder, str(language))
        fields["language"] = language
    fields["seed_source"] = _read(folder / f"seed{ending}")
    with _complaints(str(toml)):
        fields["cases"] = [{"name": name, **case} for name, case in cases.items()]
        problem = Problem(**fields, **work)
    _check_signature(problem, toml)
    _check_module(problem, toml)
    for case in problem.cases:
        _check_case(problem, case, f"{toml}: [cases.{case.name}]")
    _check_hidden(problem, f"{toml}: [hidden]")
    _check_reference(problem, folder / "reference.py")
    return problem


def _cases_for(kind: str, cases: dict[str, Any], toml: Path) -> dict[str, Any]:
    """The cases without those that state the other kind of device."""
    chosen = {}
    for name, stated in cases.items():
        case = dict(stated) if isinstance(stated, dict) else stated
        suits = case.pop("device", kind) if isinstance(case, dict) else kind
        if suits not in ("cpu", "gpu"):
            raise ProblemError(f'{toml}: [cases.{name}] device is "cpu" or "gpu", not {suits!r}')
        if suits == kind:
            chosen[name] = case
    return chosen


def _seed_ending(language: Language) -> str | None:
    """The ending of a seed in a language; None if there is none, or no such language."""
    with suppress(UnknownComponent):  # the caller says which there are
        return next(iter(dialect(language).endings), None)
    return None


def _ending_of_seed(folder: Path, language: str) -> str:
    ending = _seed_ending(language)
    if ending is not None and (folder / f"seed{ending}").exists():
        return ending
    known = ((name, _seed_ending(name)) for name in names())
    written = [name for name, ending in known if ending and (folder / f"seed{ending}").exists()]
    advice = f"; add seed{ending}" if ending else ""
    raise ProblemError(
        f"{folder} has no seed in {language}, only in {', '.join(sorted(written))}{advice}"
    )


def _load_template(folder: Path, ending: str) -> Template | None:
    source, toml = folder / f"template{ending}", folder / "template.toml"
    if not source.exists() and not toml.exists():
        return None
    text, fields = _read(source), _read_toml(toml)
    with _complaints(str(toml)):
        template = Template(source=text, **fields)
    with _complaints(f"{toml}: constraints"):
        admitted = next(template.configurations(), None)
    if admitted is None:
        raise ProblemError(f"{toml}: no configuration satisfies the constraints; loosen one")
    return template


def _check_signature(problem: Problem, toml: Path) -> None:
    names = problem.argument_names
    if twice := {name for name in names if names.count(name) > 1}:
        raise ProblemError(f"{toml}: {', '.join(sorted(twice))} is named twice; rename one")
    if odd := [name for name in (*names, problem.entry) if not name.isidentifier()]:
        raise ProblemError(f"{toml}: {odd[0]!r} cannot be a name in code; rename it")
    if problem.language == "opencl" and problem.entry == "kernel":
        raise ProblemError(f"{toml}: `kernel` is a keyword of OpenCL C; name the entry otherwise")
    if "\n" in problem.name:
        raise ProblemError(f"{toml}: name must be one line; shorten it")
    for argument in problem.arguments:
        dtype = dtype_of(argument.dtype)
        if not element_type(problem.language, dtype.name):
            raise ProblemError(
                f"{toml}: {argument.name} is {dtype.name}, which {problem.language} does not have; "
                "use another dtype, for example a wider one or its bytes as uint8"
            )
        holds_numbers = argument.role == "input" and dtype.is_float
        if argument.special and not (holds_numbers and argument.fill.kind != "integers"):
            raise ProblemError(
                f"{toml}: {argument.name} cannot hold special values, only inputs of "
                "floating-point numbers can; delete its `special`"
            )
        if "inf" in argument.special and not dtype.has_infinity:
            raise ProblemError(
                f"{toml}: {argument.name} is {dtype.name}, which has no infinity; delete "
                "'inf' from its `special`"
            )
    if missing := {"input", "output"} - {argument.role for argument in problem.arguments}:
        raise ProblemError(f"{toml}: add an argument with role = {missing.pop()!r}")
    if not problem.timed_cases:
        raise ProblemError(f"{toml}: no case is timed; drop `timed = false` from one of [cases]")


def _check_module(problem: Problem, toml: Path) -> None:
    """Check that calls name what the problem has, and that no array is left out."""
    module = problem.module
    if module is None:
        if problem.language == "torch":
            raise ProblemError(
                f"{toml}: add a [module] table, which says how {problem.entry} is called: "
                'call = "x, y" (docs/how-to/import-problems.md)'
            )
        return
    arrays = [argument.name for argument in problem.arguments]
    inputs = [argument.name for argument in problem.arguments if argument.role == "input"]
    dimensions = next(iter(problem.cases)).dimensions
    for key, text in (("init", module.init), ("call", module.call), ("returns", module.returns)):
        with _complaints(f"{toml}: [module] {key}"):
            nested(text or "", () if key == "init" else arrays, dimensions)
    passed, returned = (array_names(text) for text in (module.call, module.returns))
    for text, known, missing in (
        (module.call, passed, set(inputs)),
        (module.returns, passed + returned, set(arrays) - set(inputs)),
    ):
        if text and (left_out := sorted(missing - set(known))):
            raise ProblemError(f"{toml}: [module] leaves out {left_out[0]}; name it in {text!r}")
    drawn = [argument.name for argument in problem.arguments if argument.fill.kind == "drawn"]
    if drawn != (inputs if module.draw else []):
        raise ProblemError(
            f"{toml}: `draw` of [module] makes all inputs or none: give each input the fill "
            '{ kind = "drawn" }, or none of them'
        )


def _check_case(problem: Problem, case: Case, where: str) -> None:
    _check_dimensions(problem, case.dimensions, where)
    if case.special:
        raise ProblemError(f"{where}: state `special` in [[arguments]], not in a case")
    positive = [("[work] flops", problem.flops), ("[work] bytes", problem.bytes)]
    for argument in problem.arguments:
        positive += [(f"shape of {argument.name}", expression) for expression in argument.shape]
        _check_fill(argument, case, where)
    for what, expression in positive:
        with _complaints(f"{where}: {what}"):
            value = evaluate(expression, case.dimensions)
        if not value > 0:
            raise ProblemError(f"{where}: {what} {expression!r} is {value}; it must be positive")


def _check_hidden(problem: Problem, where: str) -> None:
    if problem.hidden is None:
        return
    bounds = problem.hidden.dimensions
    _check_dimensions(problem, bounds, where)
    for name, (low, high) in bounds.items():
        if not 1 <= low <= high:
            raise ProblemError(f"{where}: {name} = [{low}, {high}] must be [low, high], from 1 on")
    with _complaints(where):
        for constraint in problem.hidden.constraints:
            evaluate(constraint, {name: low for name, (low, _) in bounds.items()})


def _check_dimensions(problem: Problem, names: Iterable[str], where: str) -> None:
    if set(names) != set(problem.dimensions):
        raise ProblemError(f"{where}: dimensions must be exactly {', '.join(problem.dimensions)}")


def _check_fill(argument: Argument, case: Case, where: str) -> None:
    name, fill = argument.name, argument.fill
    if argument.role == "output" or fill.kind == "drawn":
        return
    dtype = dtype_of(argument.dtype)
    if dtype.name == "bool":
        if fill.kind != "integers" or {fill.low, fill.high} - {0.0, 1.0, 2.0}:
            raise ProblemError(f'{where}: {name} is bool; use fill = {{ kind = "integers" }}')
        return
    if fill.kind == "normal":
        if not dtype.is_float:
            raise ProblemError(
                f"{where}: {name} is {argument.dtype}; "
                'use fill = { kind = "integers", low = 0, high = ... }'
            )
        return
    with _complaints(f"{where}: fill of {name}"):
        low, high = (evaluate(str(bound), case.dimensions) for bound in (fill.low, fill.high))
    if not low < high:
        raise ProblemError(f"{where}: fill of {name}: low {low} must be less than high {high}")
    if not dtype.is_float and not dtype.lowest <= low < high <= dtype.largest + 1:
        raise ProblemError(
            f"{where}: fill of {name}: {dtype.name} holds {dtype.lowest:.0f} to "
            f"{dtype.largest:.0f}, not {low:.0f} up to {high:.0f}"
        )


def _check_reference(problem: Problem, path: Path) -> None:
    """Compare the signature of `reference` with the arguments, without running the file."""
    try:
        tree = ast.parse(problem.oracle_source, str(path))
    except SyntaxError as error:
        raise ProblemError(f"{path}:{error.lineno}: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ProblemError(f"{path}: it is no Python: {error}") from error
    if problem.module is not None and problem.module.reference != "reference":
        _require_definitions(problem, tree, path)
        return
    inputs = [argument.name for argument in problem.arguments if argument.role == "input"]
    wanted = f"def reference({', '.join(inputs)}, *, {', '.join(problem.dimensions)})"
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "reference":
            positional = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
            keywords = {argument.arg for argument in node.args.kwonlyargs}
            if positional == inputs and keywords == set(problem.dimensions):
                return
            raise ProblemError(f"{path}:{node.lineno}: the signature must be `{wanted}`")
    raise ProblemError(f"{path}: define `{wanted}`")


def _require_definitions(problem: Problem, tree: ast.Module, path: Path) -> None:
    """Require what `[module]` names of reference.py at its top level."""
    assert problem.module is not None
    defined = {getattr(node, "name", None) for node in tree.body}
    for name in filter(None, (problem.module.reference, problem.module.check)):
        assigned = (
            isinstance(target, ast.Name) and target.id == name
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
        )
        if name not in defined and not any(assigned):
            raise ProblemError(f"{path}: define {name} at its top level, as [module] names it")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ProblemError(f"{path} is missing; add it to the problem's folder") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ProblemError(f"{path} cannot be read: {error}") from error


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_read(path))
    except tomllib.TOMLDecodeError as error:
        raise ProblemError(f"{path} is not valid TOML: {error}") from error


def _table(fields: dict[str, Any], name: str, path: Path) -> dict[str, Any]:
    table = fields.pop(name, None)
    if not isinstance(table, dict) or not table:
        raise ProblemError(f"{path}: add a [{name}] table")
    return table


@contextmanager
def _complaints(where: str) -> Iterator[None]:
    """Turn what records and expressions complain about into a ProblemError that says where."""
    try:
        yield
    except ValidationError as error:
        complaints = (
            f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in error.errors()
        )
        raise ProblemError(f"{where}: {'; '.join(complaints)}") from error
    except (ProblemError, ArithmeticError, TypeError) as error:
        raise ProblemError(f"{where}: {error}") from error
