"""Loading of problems: folders of data, bundled ones by name, others by path.

A folder holds problem.toml, reference.py, seed.cpp and, together, template.cpp and template.toml.
Everything that can be checked without running anything is checked here, and each complaint names
the file and the fix.
"""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kernelcast.errors import ProblemError
from kernelcast.expression import evaluate
from kernelcast.types import Argument, Case, Problem, Template

_BUNDLED = Path(__file__).with_name("bundled")
SUFFIXES = {"cpp": "cpp", "opencl": "cl", "cuda": "cu", "hip": "hip", "triton": "py"}


def bundled_problems() -> list[str]:
    """Names of the problems that come with kernelcast."""
    return sorted(folder.parent.name for folder in _BUNDLED.glob("*/problem.toml"))


def load_problem(name_or_path: str | Path) -> Problem:
    """A bundled problem by its name, or the problem in a folder."""
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
    suffix = SUFFIXES.get(str(fields.get("language")))
    if suffix is None:
        raise ProblemError(f"{toml}: set language to one of {', '.join(sorted(SUFFIXES))}")
    cases = _table(fields, "cases", toml)
    work = _table(fields, "work", toml)
    fields["oracle_source"] = _read(folder / "reference.py")
    fields["seed_source"] = _read(folder / f"seed.{suffix}")
    fields["template"] = _load_template(folder, suffix)
    try:
        fields["cases"] = [{"name": name, **case} for name, case in cases.items()]
        problem = Problem(**fields, **work)
    except (ValidationError, TypeError) as error:
        raise ProblemError(f"{toml}: {_complaint(error)}") from error
    _check_signature(problem, toml)
    for case in problem.cases:
        _check_case(problem, case, toml)
    _check_hidden(problem, toml)
    _check_reference(problem, folder / "reference.py")
    return problem


def _load_template(folder: Path, suffix: str) -> Template | None:
    source, toml = folder / f"template.{suffix}", folder / "template.toml"
    if not source.exists() and not toml.exists():
        return None
    text, fields = _read(source), _read_toml(toml)
    try:
        template = Template(source=text, **fields)
    except (ValidationError, TypeError) as error:
        raise ProblemError(f"{toml}: {_complaint(error)}") from error
    try:
        admitted = next(template.configurations(), None)
    except ProblemError as error:
        raise ProblemError(f"{toml}: constraints: {error}") from error
    if admitted is None:
        raise ProblemError(f"{toml}: no configuration satisfies the constraints; loosen one")
    return template


def _check_signature(problem: Problem, toml: Path) -> None:
    names = [argument.name for argument in problem.arguments]
    every = [*names, *problem.dimensions]
    if twice := {name for name in every if every.count(name) > 1}:
        raise ProblemError(f"{toml}: {', '.join(sorted(twice))} is named twice; rename one")
    if odd := [name for name in (*every, problem.entry) if not name.isidentifier()]:
        raise ProblemError(f"{toml}: {odd[0]!r} cannot be a name in code; rename it")
    if problem.language == "opencl" and problem.entry == "kernel":
        raise ProblemError(f"{toml}: `kernel` is a keyword of OpenCL C; name the entry otherwise")
    if "\n" in problem.name:
        raise ProblemError(f"{toml}: name must be one line; shorten it")
    roles = {argument.role for argument in problem.arguments}
    if missing := {"input", "output"} - roles:
        raise ProblemError(f"{toml}: add an argument with role = {missing.pop()!r}")
    if not problem.timed_cases:
        raise ProblemError(f"{toml}: no case is timed; drop `timed = false` from one of [cases]")


def _check_case(problem: Problem, case: Case, toml: Path) -> None:
    where = f"{toml}: [cases.{case.name}]"
    if set(case.dimensions) != set(problem.dimensions):
        raise ProblemError(f"{where}: dimensions must be exactly {', '.join(problem.dimensions)}")

    def positive(what: str, expression: str) -> None:
        try:
            value = evaluate(expression, case.dimensions)
        except (ProblemError, ArithmeticError, TypeError) as error:
            raise ProblemError(f"{where}: {what}: {error}") from error
        if not value > 0:
            raise ProblemError(f"{where}: {what} {expression!r} is {value}; it must be positive")

    for argument in problem.arguments:
        for expression in argument.shape:
            positive(f"shape of {argument.name}", expression)
        _check_fill(argument, case, where)
    positive("[work] flops", problem.flops)
    positive("[work] bytes", problem.bytes)


def _check_hidden(problem: Problem, toml: Path) -> None:
    if problem.hidden is None:
        return
    bounds = problem.hidden.dimensions
    where = f"{toml}: [hidden]"
    if set(bounds) != set(problem.dimensions):
        raise ProblemError(f"{where}: dimensions must be exactly {', '.join(problem.dimensions)}")
    for name, (low, high) in bounds.items():
        if not 1 <= low <= high:
            raise ProblemError(f"{where}: {name} = [{low}, {high}] must be [low, high], from 1 on")
    try:
        for constraint in problem.hidden.constraints:
            evaluate(constraint, {name: low for name, (low, _) in bounds.items()})
    except (ProblemError, ArithmeticError, TypeError) as error:
        raise ProblemError(f"{where}: {error}") from error


def _check_fill(argument: Argument, case: Case, where: str) -> None:
    if argument.role == "output" or argument.fill.kind == "normal":
        if argument.role == "input" and argument.dtype.startswith("int"):
            raise ProblemError(
                f"{where}: {argument.name} is {argument.dtype}; "
                'use fill = { kind = "integers", low = 0, high = ... }'
            )
        return
    try:
        low, high = (
            evaluate(str(bound), case.dimensions)
            for bound in (argument.fill.low, argument.fill.high)
        )
    except ProblemError as error:
        raise ProblemError(f"{where}: fill of {argument.name}: {error}") from error
    if not low < high:
        raise ProblemError(
            f"{where}: fill of {argument.name}: low {low} must be less than high {high}"
        )


def _check_reference(problem: Problem, path: Path) -> None:
    """Compare the signature of `reference` with the arguments, without running the file."""
    try:
        tree = ast.parse(problem.oracle_source, str(path))
    except SyntaxError as error:
        raise ProblemError(f"{path}:{error.lineno}: {error.msg}") from error
    inputs = [argument.name for argument in problem.arguments if argument.role == "input"]
    wanted = f"def reference({', '.join(inputs)}, *, {', '.join(problem.dimensions)})"
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "reference":
            positional = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
            keywords = {each.arg for each in node.args.kwonlyargs}
            if positional == inputs and keywords == set(problem.dimensions):
                return
            raise ProblemError(f"{path}:{node.lineno}: the signature must be `{wanted}`")
    raise ProblemError(f"{path}: define `{wanted}`")


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


def _complaint(error: ValidationError | TypeError) -> str:
    if isinstance(error, TypeError):
        return str(error)
    return "; ".join(
        f"{'.'.join(str(part) for part in each['loc'])}: {each['msg']}" for each in error.errors()
    )
