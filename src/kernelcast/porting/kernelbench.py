"""Import of KernelBench's problems: files with a class `Model` and functions for its inputs."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from kernelcast.backends._proof import detect_sandbox
from kernelcast.backends._sandbox import Sandbox
from kernelcast.errors import ProblemError, SetupError
from kernelcast.porting._probe import Probe, Report
from kernelcast.porting.cases import timed_here
from kernelcast.porting.folder import Imported, name_of, summary_of, write_folder
from kernelcast.porting.limits import Sizes
from kernelcast.porting.problem import name_arrays, problem_file
from kernelcast.porting.python_file import defined, parsed, read_source, returned_names
from kernelcast.porting.seed import renamed, without
from kernelcast.porting.survey import Survey

_MODEL, _ENTRY = "Model", "ModelNew"
_INPUTS, _INIT = "get_inputs", "get_init_inputs"
_CAPS = (16, 64, 256)


def import_kernelbench(
    path: str | Path,
    to: str | Path = ".",
    *,
    full: bool = False,
    sandbox: Sandbox | None = None,
) -> Iterator[Imported]:
    """Make a problem folder of each file of KernelBench, and say what became of it.

    Args:
        path: A file, or a folder of files.
        to: Where the folders go.
        full: Time the file's own sizes too, if they are too large for this CPU.
        sandbox: What the files run in; the strongest of this machine by default.

    Raises:
        SetupError: There is no such file, or no file in the folder.
    """
    path = Path(path)
    files = sorted(path.glob("*.py")) if path.is_dir() else [path]
    if not path.exists() or not files:
        raise SetupError(f"{path}: there is no .py file; name one of KernelBench's, or a folder")
    sandbox = sandbox or detect_sandbox()
    for file in files:
        name = name_of(file.stem)
        folder = Path(to) / name
        try:
            notes = _import(file, folder, name, sandbox, full=full)
            yield Imported(name, file, folder, notes=tuple(notes))
        except ProblemError as error:
            yield Imported(name, file, refused=str(error))


def _import(file: Path, folder: Path, name: str, sandbox: Sandbox, *, full: bool) -> list[str]:
    source = read_source(file)
    tree = parsed(source, file.name)
    model = defined(tree, _MODEL, ast.ClassDef, file.name)
    defined(tree, _INPUTS, ast.FunctionDef, file.name)
    has_init = any(isinstance(node, ast.FunctionDef) and node.name == _INIT for node in tree.body)
    init = f"{_INIT}()" if has_init else "[]"
    with Probe(
        source, file.name, sandbox, reference=_MODEL, inputs=f"{_INPUTS}()", init=init
    ) as probe:
        # What a kernel's own text holds cannot vary with a case.
        seed = renamed(without(source, (_INPUTS, _INIT)), _MODEL, _ENTRY)
        subject = _File(probe, set(_stated(tree)) - set(_stated(ast.parse(seed))))
        survey = Survey.of(subject)
        timed = timed_here(survey, subject.own)
        cases = {"reduced" if timed.reduced else "main": (timed.sizes, True)}
        comments: dict[str, list[str]] = {}
        notes = []
        if timed.reduced:
            own = ", ".join(f"{name} = {subject.own[name]}" for name in survey.names)
            comments["cases"] = [f"The file's own sizes are too large for this CPU: {own}"]
            notes.append(f"timed at reduced sizes; its own are {own}")
            if full:
                cases = {"main": (survey.sizes(subject.own), True), **cases}
        if not survey.names:
            notes.append("no size varies")
        problem = problem_file(
            survey,
            cases,
            [timed],
            fields={
                "name": name,
                "family": _family(file),
                "summary": summary_of(ast.get_docstring(model), name.replace("_", " ")),
                "entry": _ENTRY,
            },
            module={"reference": _MODEL},
            names=name_arrays(survey, _parameters(model), _results(model)),
            draw=f"{_INPUTS}()",
            comments=comments,
        )
    write_folder(folder, problem, source, seed)
    return notes


class _File:
    """A file of KernelBench; its own integers are its sizes."""

    choices: Mapping[str, int] = {}

    def __init__(self, probe: Probe, free: Collection[str]) -> None:
        self._probe = probe
        self.where = probe.where
        numbers = probe.numbers()
        self.own: Mapping[str, int] = {
            name: number for name, number in numbers.items() if name in free and number > 0
        }

    def smaller(self) -> Iterator[Sizes]:
        for cap in _CAPS:
            yield {name: _halved(value, cap) for name, value in self.own.items()}
        yield dict(self.own)

    def report(self, sizes: Mapping[str, int], **options: Any) -> Report:
        return self._probe.report(sizes, {}, **options)

    def settle(self, _names: Collection[str]) -> set[str]:
        return set()


def _halved(value: int, cap: int) -> int:
    """A value halved until it is at most the cap, but never an odd one unless it is far above."""
    while value > cap and (value % 2 == 0 or value > 4 * cap):
        value //= 2
    return value


def _stated(tree: ast.Module) -> Iterator[str]:
    """Names that a file sets to constants at its top level, once."""
    found: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets, value = [node.target], node.value
        else:
            continue
        for target in targets:
            pairs = [(target, value)]
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs = list(zip(target.elts, value.elts, strict=False))
            for part, content in pairs:
                names = any(isinstance(each, ast.Name) for each in ast.walk(content))
                if isinstance(part, ast.Name) and not names:
                    found.append(part.id)
    return (name for name in dict.fromkeys(found) if found.count(name) == 1)


def _parameters(model: ast.ClassDef) -> dict[int, str]:
    """Names of the arguments of `forward`."""
    for node in model.body:
        if isinstance(node, ast.FunctionDef) and node.name == "forward":
            positional = [*node.args.posonlyargs, *node.args.args][1:]
            return {index: each.arg for index, each in enumerate(positional)}
    return {}


def _results(model: ast.ClassDef) -> dict[int, str]:
    """Names of what `forward` returns, if there is more than one result."""
    for node in model.body:
        if isinstance(node, ast.FunctionDef) and node.name == "forward":
            return returned_names(node)
    return {}


def _family(file: Path) -> str:
    level = file.resolve().parent.name
    return f"kernelbench_{level}" if level.startswith("level") else "kernelbench"
