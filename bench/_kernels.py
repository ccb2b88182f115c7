"""The collections of kernels under tests/attacks and tests/honest, and of PyTorch modules under
tests/modules, as values: what a file's header says, its problem, and its source. Used by the bench
and by its tests.

A header is the comment that a file begins with, one `key: value` a line; a line that is indented
continues the one before. `problem` names a bundled problem for C++, one of
tests/backends/gpu_problems.py for the languages of GPUs, and a folder of tests/modules/imported for
a module. The name of a module begins with `torch/`.
"""

from __future__ import annotations

import platform
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kernelcast.canonical import kernel_id
from kernelcast.problems import bundled_problems, load_problem
from kernelcast.types import FailureKind, Kernel, Language, Problem

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))  # a script sees its own folder, not the tests
from tests.backends.gpu_problems import KERNELS, TRITON_KERNELS, gpu_problem  # noqa: E402

ATTACKS = ROOT / "tests" / "attacks"
HONEST = ROOT / "tests" / "honest"
MODULES = ROOT / "tests" / "modules"
ROWS = range(1, 39)
NOT_KERNELS = {37}
"""Rows without kernels of a compiled language. 37 is a forged store or model file
(tests/test_store.py); a module's is the text of an error."""
NO_GAIN = "no gain"
"""What is expected of an attack that is harmless by construction: accepted, with no speedup."""

_LANGUAGES: dict[str, Language] = {".cpp": "cpp", ".py": "triton", ".cl": "opencl"}
_KEYS = {
    "attack": {"attack", "imitates", "problem", "expect", "needs"},
    "honest": {"honest", "problem", "needs"},
}
_OPTIONAL = {"needs"}
_OPENCL_KERNELS = ("axpy", "matmul", "row_sum", "scale", "softmax", "transpose", "vector_add")
_FEW_MODULES = (
    "r14_patched_comparison.py",
    "epilogue_registered_op.py",
)
_RENDERED = 4
_RENDERING_SEED = 20240531


class BadHeader(ValueError):
    """A file of a collection does not say what it is."""


@dataclass(frozen=True)
class Sample:
    """One kernel of a collection; `row` and `expect` are an attack's."""

    name: str
    problem: Problem
    source: str
    row: int = 0
    expect: str = ""
    needs: str = ""

    @property
    def language(self) -> Language:
        """What it is written in."""
        return self.problem.language

    @property
    def kernel(self) -> Kernel:
        """What a backend measures."""
        name = kernel_id(self.source, self.language)
        return Kernel(id=name, language=self.language, source=self.source)

    @property
    def runs_here(self) -> bool:
        """Whether this is the machine it is written for."""
        return self.needs in ("", platform.machine())


def attacks() -> list[Sample]:
    """Every attack, by name."""
    return [_read(path, "attack") for path in _files(ATTACKS, MODULES / "attacks")]


def honest() -> list[Sample]:
    """Every honest kernel: files, seeds, renderings of templates, and the tests' GPU kernels."""
    return [
        *(_read(path, "honest") for path in _files(HONEST, MODULES / "honest")),
        *_seeds_and_renderings(),
        *_gpu_kernels(),
    ]


def few_attacks() -> list[Sample]:
    """One attack for each row of the catalogue, of its languages the one that has the fewest.

    Modules are not among them.
    """
    by_row: dict[int, dict[Language, Sample]] = {}
    for sample in _compiled(attacks()):
        by_row.setdefault(sample.row, {}).setdefault(sample.language, sample)
    chosen: list[Sample] = []
    for _, samples in sorted(by_row.items(), key=lambda item: len(item[1])):
        count = Counter(sample.language for sample in chosen)
        chosen.append(min(samples.values(), key=lambda sample: count[sample.language]))
    return chosen


def few_honest() -> list[Sample]:
    """Six honest kernels, of all languages but modules."""
    known = sorted(_compiled(honest()), key=lambda sample: sample.language)
    return [known[index * (len(known) - 1) // 5] for index in range(6)]


def few_modules() -> list[Sample]:
    """An attack and an honest module, of one problem, that build nothing."""
    known = {sample.name: sample for sample in (*attacks(), *honest())}
    return [known[f"torch/{name}"] for name in _FEW_MODULES]


def read_header(text: str) -> dict[str, str]:
    """The keys and values that a file begins with."""
    fields: dict[str, str] = {}
    key = ""
    for line in text.splitlines():
        comment = re.match(r"(?://|#)( *)(.*)", line)
        if comment is None or line.startswith(("#include", "#pragma")):
            break
        indent, said = comment.groups()
        stated = re.match(r"(\w+): (.+)", said)
        if len(indent) > 1 and key:
            fields[key] += f" {said}"
        elif stated:
            key = stated[1]
            fields[key] = stated[2]
        else:
            break
    return fields


def _compiled(samples: list[Sample]) -> list[Sample]:
    return [sample for sample in samples if sample.language != "torch"]


def _files(*folders: Path) -> list[Path]:
    return [
        path for folder in folders for path in sorted(folder.iterdir()) if path.suffix in _LANGUAGES
    ]


def _read(path: Path, kind: str) -> Sample:
    source = path.read_text(encoding="utf-8")
    fields = read_header(source)
    known = _KEYS[kind]
    if missing := known - _OPTIONAL - set(fields):
        raise BadHeader(f"{path.name}: its header lacks {', '.join(sorted(missing))}")
    if unknown := set(fields) - known:
        raise BadHeader(f"{path.name}: its header has {', '.join(sorted(unknown))}")
    is_module = path.is_relative_to(MODULES)
    name = f"torch/{path.name}" if is_module else path.name
    problem = _problem(fields["problem"], "torch" if is_module else _LANGUAGES[path.suffix])
    if kind == "honest":
        return Sample(name, problem, source, needs=fields.get("needs", ""))
    stated = re.match(r"(\d+) \S", fields["attack"])
    if stated is None or int(stated[1]) not in ROWS:
        raise BadHeader(
            f"{path.name}: `attack` begins with a row of the catalogue, 1 to {ROWS[-1]}"
        )
    if not re.match(rf"r{int(stated[1]):02}_", path.name):
        raise BadHeader(f"{path.name}: its name begins with r{int(stated[1]):02}_")
    if fields["expect"] not in {*FailureKind, NO_GAIN}:
        raise BadHeader(f"{path.name}: `expect` is {', '.join(FailureKind)} or {NO_GAIN}")
    if "(seen: " not in fields["imitates"]:
        raise BadHeader(f"{path.name}: `imitates` says where it was seen: (seen: ...)")
    return Sample(name, problem, source, int(stated[1]), fields["expect"], fields.get("needs", ""))


@cache
def _problem(name: str, language: Language) -> Problem:
    if language == "cpp":
        return load_problem(name)
    if language == "torch":
        return load_problem(MODULES / "imported" / name)
    if language != "opencl":
        return gpu_problem(name, language)
    stated = gpu_problem(name, "cuda")
    seed_source = (KERNELS / f"{name}.cl").read_text()
    # `kernel` is a word of the language itself.
    changed = {"language": "opencl", "entry": "compute", "seed_source": seed_source}
    return stated.model_copy(update=changed)


def _seeds_and_renderings() -> Iterator[Sample]:
    rng = random.Random(_RENDERING_SEED)
    for name in bundled_problems("cpp"):
        problem = _problem(name, "cpp")
        yield Sample(f"{name} seed", problem, problem.seed_source)
        template = problem.template
        assert template is not None, f"{name} has no template"
        rendered = 0
        while rendered < _RENDERED:
            chosen = {key: rng.choice(values) for key, values in template.parameters.items()}
            if template.admits(chosen):
                rendered += 1
                stated = " ".join(f"{key}={value}" for key, value in chosen.items())
                yield Sample(f"{name} {stated}", problem, template.render(chosen))


def _gpu_kernels() -> Iterator[Sample]:
    for language, names in (("triton", TRITON_KERNELS), ("opencl", _OPENCL_KERNELS)):
        for name in names:
            problem = _problem(name, language)
            yield Sample(f"{name} {language}", problem, problem.seed_source)
