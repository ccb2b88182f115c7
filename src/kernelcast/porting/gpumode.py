"""GPU MODE's tasks: import of folders with task.yml and reference.py, and files to submit."""

from __future__ import annotations

import ast
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile
from pathlib import Path
from typing import Any

from kernelcast.backends._proof import detect_sandbox
from kernelcast.backends._sandbox import Sandbox
from kernelcast.errors import ProblemError, SetupError, import_extra
from kernelcast.porting._probe import Failed, Probe, Report
from kernelcast.porting.cases import MOST_BYTES, Timed, tells, timed_here
from kernelcast.porting.folder import Imported, name_of, summary_of, write_folder
from kernelcast.porting.limits import Sizes
from kernelcast.porting.problem import name_arrays, problem_file, sizes_key, tolerance_of
from kernelcast.porting.python_file import (
    defined,
    parsed,
    read_source,
    returned_names,
)
from kernelcast.porting.seed import without
from kernelcast.porting.survey import Survey
from kernelcast.types import Kernel, Problem

_TASK, _REFERENCE, _SUBMISSION = "task.yml", "reference.py", "submission.py"
_KERNEL, _GENERATE, _CHECK = "ref_kernel", "generate_input", "check_implementation"
_ENTRY = "custom_kernel"
_MOST_TIMED, _MOST_TESTS = 4, 6
_MOST_CHARACTERS = 1 << 20
_DIRECTIVE = "#!POPCORN"
_REFUSED_WORD = "stream"  # anywhere in a file: GPU MODE takes it for work that it does not time

Spec = Mapping[str, Any]


def import_gpumode(
    path: str | Path,
    to: str | Path = ".",
    *,
    full: bool = False,
    sandbox: Sandbox | None = None,
) -> Iterator[Imported]:
    """Make a problem folder of a task, or of each task in a folder, and say what became of it.

    Args:
        path: The folder of a task, or one of such folders.
        to: Where the problem folders go.
        full: Time all benchmarks at their own sizes, even if they are too large for this CPU.
        sandbox: What the files run in; the strongest of this machine by default.

    Raises:
        SetupError: There is no task, or no package that reads task.yml.
    """
    path = Path(path)
    tasks = (
        [path] if (path / _TASK).is_file() else sorted(p.parent for p in path.glob(f"*/{_TASK}"))
    )
    if not tasks:
        raise SetupError(f"{path}: there is no {_TASK}; name the folder of a task of GPU MODE")
    import_extra("yaml", "gpumode")
    sandbox = sandbox or detect_sandbox()
    for task in tasks:
        name = name_of(task.resolve().name)
        folder = Path(to) / name
        try:
            if folder.resolve() == task.resolve():
                raise ProblemError(f"{folder} is the task itself: name another place by --to")
            notes = _import(task, folder, name, sandbox, full=full)
            yield Imported(name, task, folder, notes=tuple(notes))
        except ProblemError as error:
            yield Imported(name, task, refused=str(error))


def submission_file(
    problem: Problem, kernel: Kernel, leaderboard: str | None = None, gpus: Sequence[str] = ()
) -> tuple[str, list[str]]:
    """Return the file that submits a kernel to GPU MODE, and what to know of it.

    GPU MODE reads leaderboard and GPUs from the first comment lines, up to a line of another kind.

    Args:
        problem: The imported problem that the kernel solves.
        kernel: The kernel.
        leaderboard: Its name; by default the one that the task's own submission.py states, or else
            the problem's name.
        gpus: Names of GPUs, e.g. `A100`; GPU MODE asks for them if there is none.

    Raises:
        SetupError: The problem is no task of GPU MODE.
    """
    if problem.language != "torch" or problem.entry != _ENTRY:
        raise SetupError(
            f"{problem.name} is no task of GPU MODE: its entry is {problem.entry}, not {_ENTRY}"
        )
    stated = _directives(problem.seed_source).get("leaderboard", [problem.name])
    header = [f"{_DIRECTIVE} leaderboard {leaderboard or stated[0]}"]
    if gpus:
        header.append(f"{_DIRECTIVE} gpus {' '.join(gpus)}")
    lines = kernel.source.splitlines()
    text = list(dropwhile(lambda line: line.startswith(_DIRECTIVE) or not line.strip(), lines))
    notes = []
    if leaderboard is None and "leaderboard" not in _directives(problem.seed_source):
        notes.append(f"the leaderboard is taken to be {stated[0]}: see --leaderboard")
    if any(_REFUSED_WORD in line.lower() for line in text):
        notes.append(f"GPU MODE refuses files with the word {_REFUSED_WORD!r}, also in a comment")
    return "\n".join([*header, "", *text]).rstrip() + "\n", notes


def _directives(source: str) -> dict[str, list[str]]:
    """What the first comment lines of a submission state, by their first word."""
    stated: dict[str, list[str]] = {}
    for line in source.splitlines():
        if not line.startswith("#"):
            break
        mark, *words = line.split()
        if mark == _DIRECTIVE and len(words) > 1:
            stated[words[0].lower()] = words[1:]
    return stated


def _import(task: Path, folder: Path, name: str, sandbox: Sandbox, *, full: bool) -> list[str]:
    spec = _spec(task / _TASK)
    source = read_source(task / _REFERENCE)
    where = f"{name}/{_REFERENCE}"
    tree = parsed(source, where)
    kernel = defined(tree, _KERNEL, ast.FunctionDef, where)
    generate = defined(tree, _GENERATE, ast.FunctionDef, where)
    cases = _Cases(where, *_cases(spec, generate, task / _TASK))
    with Probe(source, where, sandbox, reference=_KERNEL, inputs="[]", init=None) as probe:
        probe.numbers()  # says why the file does not load, if it does not
        subject = _Task(probe, cases)
        survey = Survey.of(subject)
        timed, listed, comments, notes = _chosen(survey, cases, full=full)
        stated = _tolerances(survey, subject, tree)
        tolerance = tolerance_of(survey, timed, stated)[0]
        seed, on_seed = _seed(task, source, survey, subject, max(tolerance.values()))
        for key, values in cases.choices_of.items():
            meaning = ", ".join(f"{n} is {value!r}" for n, value in enumerate(values, 1))
            comments.setdefault("", []).append(f"{key}: {meaning}")
        problem = problem_file(
            survey,
            listed,
            timed,
            fields={
                "name": name,
                "family": "gpumode",
                "summary": summary_of(
                    str(spec.get("description") or ast.get_docstring(kernel) or ""),
                    name.replace("_", " "),
                ),
                "entry": _ENTRY,
            },
            module={
                "reference": _KERNEL,
                **({} if stated or not _has(tree, _CHECK) else {"check": _CHECK}),
            },
            names=name_arrays(survey, _unpacked(kernel), returned_names(kernel)),
            draw=cases.draw(),
            stated=stated,
            comments=comments,
        )
    write_folder(folder, problem, source, seed)
    return [*notes, *on_seed]


@dataclass
class _Cases:
    """The tests and benchmarks of a task, as sizes.

    A key is a dimension if it is a positive integer in all of them, nothing if it is the same in
    all, and else the number of a choice.
    """

    where: str
    tests: list[dict[str, Any]]
    benchmarks: list[dict[str, Any]]
    seeded: bool
    choices_of: dict[str, list[Any]] = field(default_factory=dict)
    fixed: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in self.benchmarks[0]:
            values = self._values(key)
            if len(values) == 1 and not _is_size(values[0]):
                self.fixed[key] = values[0]
            elif not all(map(_is_size, values)):
                self.choices_of[key] = values

    def _values(self, key: str) -> list[Any]:
        found = {repr(spec[key]): spec[key] for spec in (*self.benchmarks, *self.tests)}
        return list(found.values())

    def sizes(self, spec: Spec) -> Sizes:
        """The dimensions of a case."""
        shown: Sizes = {}
        for key, value in spec.items():
            if key in self.choices_of:
                names = list(map(repr, self.choices_of[key]))
                shown[key] = names.index(repr(value)) + 1
            elif key not in self.fixed:
                shown[key] = value
        return shown

    def settle(self, keys: Collection[str]) -> set[str]:
        """Make these keys choices, or nothing if they are the same in all cases."""
        for key in keys:
            values = self._values(key)
            if len(values) == 1:
                self.fixed[key] = values[0]
            else:
                self.choices_of[key] = values
        return {key for key in keys if key in self.choices_of}

    def draw(self) -> str:
        """The expression by which the file makes the arguments."""
        words = []
        for key in self.benchmarks[0]:
            text = key
            if key in self.fixed:
                text = repr(self.fixed[key])
            elif key in self.choices_of:
                text = f"{dict(enumerate(self.choices_of[key], 1))!r}[{key}]"
            words.append(f"{key}={text}")
        words += ["seed=seed"] if self.seeded else []
        return f"[{_GENERATE}({', '.join(words)})]"


class _Task:
    """A task that can be asked about given sizes."""

    def __init__(self, probe: Probe, cases: _Cases) -> None:
        self._probe, self._cases = probe, cases
        self.where = probe.where

    @property
    def own(self) -> Mapping[str, int]:
        return self._cases.sizes(self._cases.benchmarks[0])

    @property
    def choices(self) -> Mapping[str, int]:
        return {key: len(values) for key, values in self._cases.choices_of.items()}

    def smaller(self) -> Iterator[Sizes]:
        specs = (*self._cases.tests, *self._cases.benchmarks)
        yield from sorted(
            map(self._cases.sizes, specs), key=lambda sizes: math.prod(sizes.values(), start=1)
        )

    def report(self, sizes: Mapping[str, int], **options: Any) -> Report:
        return self._probe.report({}, sizes, inputs=self._cases.draw(), **options)

    def settle(self, _names: Collection[str]) -> set[str]:
        return self._cases.settle(_names)


_Listed = dict[str, tuple[Sizes, bool]]


def _chosen(
    survey: Survey, cases: _Cases, *, full: bool
) -> tuple[list[Timed], _Listed, dict[str, list[str]], list[str]]:
    """The timed cases that were run, all cases by name, comments and notes."""
    found: dict[tuple[int, ...], Timed] = {}
    for spec in cases.benchmarks:
        timed = timed_here(survey, cases.sizes(spec))
        found.setdefault(sizes_key(timed.sizes, survey), timed)
    kept = _spread(sorted(found.values(), key=lambda timed: survey.bytes_of(timed.sizes)))
    comments: dict[str, list[str]] = {}
    notes = []
    listed: _Listed = {}
    if full:
        for number, spec in enumerate(cases.benchmarks, 1):
            listed[f"benchmark_{number}"] = (survey.sizes(cases.sizes(spec)), True)
    for number, timed in enumerate(kept, 1):
        if full and not timed.reduced:
            continue
        name = "reduced" if timed.reduced else "main"
        listed[name if len(kept) == 1 else f"{name}_{number}"] = (timed.sizes, True)
    if any(timed.reduced for timed in found.values()) or len(kept) < len(cases.benchmarks):
        comments["cases"] = ["The task's own benchmarks, as far as they fit this CPU:"]
        comments["cases"] += [_words(cases.sizes(spec), survey) for spec in cases.benchmarks]
    if any(timed.reduced for timed in kept):
        notes.append("timed at reduced sizes")
    known = {sizes_key(sizes, survey) for sizes, _ in listed.values()}
    tests = [survey.sizes(cases.sizes(spec)) for spec in cases.tests]
    left_out = 0
    for number, sizes in enumerate(tests, 1):
        key = sizes_key(sizes, survey)
        if key in known:
            continue
        count = sum(not is_timed for _, is_timed in listed.values())
        if survey.bytes_of(sizes) > MOST_BYTES or count == _MOST_TESTS or not survey.runs(sizes):
            left_out += 1
            continue
        if not tells(survey, sizes):
            notes.append(f"test {number} left out: its result hardly depends on the inputs")
            continue
        known.add(key)
        listed[f"test_{number}"] = (sizes, False)
    if left_out:
        notes.append(f"{left_out} of {len(tests)} tests left out: too large, or too many")
    return kept, listed, comments, notes


def _spread(timed: Sequence[Timed]) -> list[Timed]:
    """A few of the timed cases, from the smallest to the largest."""
    if len(timed) <= _MOST_TIMED:
        return list(timed)
    last = len(timed) - 1
    places = {round(n * last / (_MOST_TIMED - 1)) for n in range(_MOST_TIMED)}
    return [timed[place] for place in sorted(places)]


def _words(sizes: Sizes, survey: Survey) -> str:
    return ", ".join(f"{name} = {sizes[name]}" for name in survey.names)


def _tolerances(survey: Survey, subject: _Task, tree: ast.Module) -> list[tuple[float, float]]:
    """What the task's own check allows, if it asks for it by GPU MODE's helpers."""
    if not _has(tree, _CHECK):
        return []
    try:
        report = subject.report(survey.base, check=_CHECK)
    except Failed:
        return []
    return [pair for pair in report.tolerances if all(math.isfinite(part) for part in pair)]


def _seed(
    task: Path, source: str, survey: Survey, subject: _Task, tolerance: float
) -> tuple[str, list[str]]:
    """The submission of the folder if it is right, or else the reference."""
    reference = without(source, (_GENERATE, _CHECK))
    reference += f"\n\ndef {_ENTRY}(data):\n    return {_KERNEL}(data)\n"
    if not (task / _SUBMISSION).is_file():
        return reference, []
    submission = read_source(task / _SUBMISSION)
    try:
        error = subject.report(survey.base, submission=submission).submission_error
    except Failed:
        error = None
    if error is not None and error <= tolerance:
        return submission, [f"begins with {_SUBMISSION}"]
    return reference, [f"begins with the reference: {_SUBMISSION} does not give its results here"]


def _spec(path: Path) -> dict[str, Any]:
    """The content of task.yml."""
    yaml = import_extra("yaml", "gpumode")
    text = read_source(path)
    try:
        spec = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ProblemError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(spec, dict):
        raise ProblemError(f"{path} is no table: add tests and benchmarks")
    if spec.get("lang", "py") != "py":
        raise ProblemError(f"{path}: lang is {spec['lang']!r}; only tasks with lang: py are read")
    return spec


def _cases(
    spec: Mapping[str, Any], generate: ast.FunctionDef, path: Path
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], bool]:
    """Tests and benchmarks with all keys, without seeds, and whether there are seeds."""
    listed = {}
    for name in ("tests", "benchmarks"):
        cases = spec.get(name) or []
        good = isinstance(cases, list) and all(isinstance(case, dict) for case in cases)
        if not good or not all(_is_plain(case) for case in cases):
            raise ProblemError(f"{path}: {name} must be a list of tables of numbers and words")
        listed[name] = [dict(case) for case in cases]
    tests, benchmarks = listed["tests"], listed["benchmarks"] or listed["tests"]
    if not benchmarks:
        raise ProblemError(f"{path} has no benchmarks and no tests: add one")
    defaults = _defaults(generate)
    keys = list(dict.fromkeys(key for case in (*benchmarks, *tests) for key in case))
    complete = []
    for cases in (tests, benchmarks):
        filled = []
        for case in cases:
            if missing := [key for key in keys if key not in case and key not in defaults]:
                raise ProblemError(
                    f"{path}: a case has no {missing[0]!r}, which others have: state it in all"
                )
            filled.append({key: case.get(key, defaults.get(key)) for key in keys if key != "seed"})
        complete.append(filled)
    return complete[0], complete[1], "seed" in keys


def _is_plain(case: Mapping[Any, Any]) -> bool:
    """Whether the keys are names, and the values numbers, words, or lists of them."""
    values = [
        part for value in case.values() for part in (value if isinstance(value, list) else [value])
    ]
    return all(isinstance(key, str) and key.isidentifier() for key in case) and all(
        value is None
        or isinstance(value, bool | int | str)
        or (isinstance(value, float) and math.isfinite(value))
        for value in values
    )


def _is_size(value: Any) -> bool:
    return type(value) is int and value > 0


def _defaults(function: ast.FunctionDef) -> dict[str, Any]:
    """Literal defaults of a function's arguments."""
    positional = [*function.args.posonlyargs, *function.args.args]
    given = function.args.defaults
    pairs = list(zip(positional[len(positional) - len(given) :], given, strict=True))
    keywords = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    pairs += [(argument, default) for argument, default in keywords if default is not None]
    return {
        argument.arg: default.value
        for argument, default in pairs
        if isinstance(default, ast.Constant)
    }


def _unpacked(kernel: ast.FunctionDef) -> dict[int, str]:
    """The names that a kernel gives to the parts of its argument, or the argument's own."""
    parameters = [*kernel.args.posonlyargs, *kernel.args.args]
    data = parameters[0].arg if parameters else ""
    for node in ast.walk(kernel):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Name):
            continue
        if node.value.id == data and isinstance(node.targets[0], ast.Tuple):
            parts = node.targets[0].elts
            return {
                n: part.id
                for n, part in enumerate(parts)
                if isinstance(part, ast.Name) and part.id.strip("_")
            }
    return {0: data} if data else {}


def _has(tree: ast.Module, name: str) -> bool:
    for node in tree.body:
        if getattr(node, "name", None) == name:
            return True
        for target in node.targets if isinstance(node, ast.Assign) else ():
            if isinstance(target, ast.Name) and target.id == name:
                return True
    return False
