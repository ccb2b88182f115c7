"""Samples of a KernelBench run: the kernels that were generated for each of many problems."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kernelcast.canonical import as_kernel, read_kernel
from kernelcast.dataset.kernelbench import sample_files
from kernelcast.dataset.pools import Pool
from kernelcast.errors import SetupError
from kernelcast.problems import load_problem
from kernelcast.types import Kernel, Problem

_NUMBERED = re.compile(r"(\d+)_")
_LEVEL = re.compile(r"kernelbench_level(\d+)")


@dataclass(frozen=True)
class Samples:
    """The samples of one problem, which speedups over its seed are forecast for."""

    number: int
    """The problem's number in its level."""
    pool: Pool
    by_kernel: Mapping[str, tuple[int, ...]]
    """Numbers of the samples that are one kernel, by its id; the reference may be among them."""

    @property
    def count(self) -> int:
        """How many samples there are."""
        return sum(map(len, self.by_kernel.values()))

    def numbers_of(self, kernel: Kernel) -> str:
        """The numbers of the samples that are a kernel, in words."""
        return " = ".join(map(str, self.by_kernel[kernel.id]))


def is_kernelbench_run(path: Path) -> bool:
    """Whether a path is a folder with samples of KernelBench."""
    return path.is_dir() and bool(sample_files(path))


def read_samples(folder: Path, problems: Path) -> tuple[list[Samples], list[str]]:
    """Read the samples of a KernelBench run by problem, and why some are left out.

    Args:
        folder: The run: files `level_L_problem_P_sample_S_kernel.py`.
        problems: A folder of imported problems, whose names begin with their numbers (`23_Softmax`,
            as `kernelcast problem import kernelbench` names them), or one of these problems.

    Raises:
        SetupError: The run mixes levels, its level is not that of the problems, or it has a sample
            of none of them.
    """
    files = sample_files(folder)
    level, *others = sorted({level for level, _ in files.values()})
    if others:
        raise SetupError(f"{folder} mixes levels: give each level a folder of its own")
    known = _numbered_problems(problems)
    grouped: dict[int, dict[int, Path]] = {}
    for (number, sample), (_, path) in sorted(files.items()):
        grouped.setdefault(number, {})[sample] = path
    found = []
    for number in sorted(grouped.keys() & known.keys()):
        problem = load_problem(known[number])
        stated = _LEVEL.fullmatch(problem.family)
        if stated and int(stated[1]) != level:
            raise SetupError(
                f"{known[number]} is of level {stated[1]}, the samples in {folder} are of level "
                f"{level}: name the problems of that level"
            )
        found.append(_samples(number, grouped[number], problem))
    missing = sorted(grouped.keys() - known.keys())
    if not found:
        raise SetupError(
            f"{folder} has samples of problem {missing[0]}, and {problems} has no folder "
            f"{missing[0]}_...: name the folder that `kernelcast problem import kernelbench` filled"
        )
    left_out = []
    if missing:
        which = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
        left_out.append(f"samples of problems without a folder: {which}")
    return found, left_out


def _samples(number: int, files: Mapping[int, Path], problem: Problem) -> Samples:
    reference = as_kernel(problem.seed_source, problem.language)
    kernels: dict[str, Kernel] = {}
    by_kernel: dict[str, tuple[int, ...]] = {}
    labels: dict[str, str] = {}
    left_out: list[str] = []
    for sample, path in files.items():
        try:
            kernel = read_kernel(path, problem.language)
        except SetupError as error:  # one that is no text must not stop the others
            left_out.append(f"sample {sample}: {error}")
            continue
        kernels.setdefault(kernel.id, kernel)
        labels.setdefault(kernel.id, path.name)
        by_kernel[kernel.id] = (*by_kernel.get(kernel.id, ()), sample)
    kernels.pop(reference.id, None)
    pool = Pool(
        problem=problem,
        reference=reference,
        reference_s=math.nan,
        labels=tuple(labels[key] for key in kernels),
        kernels=tuple(kernels.values()),
        left_out=(*left_out, *_copies(by_kernel, reference.id)),
    )
    return Samples(number, pool, by_kernel)


def _copies(by_kernel: Mapping[str, tuple[int, ...]], reference: str) -> tuple[str, ...]:
    """Which samples are copies of each other or of the reference, a sentence each."""
    sentences = []
    for key, (first, *others) in by_kernel.items():
        if key == reference:
            same = ", ".join(map(str, (first, *others)))
            sentences.append(f"sample {same}: the same kernel as the reference")
        elif others:
            same = ", ".join(map(str, others))
            sentences.append(f"sample {same}: the same kernel as sample {first}")
    return tuple(sentences)


def _numbered_problems(folder: Path) -> dict[int, Path]:
    """Folders of problems by the number that their names begin with."""
    single = (folder / "problem.toml").exists()
    folders = [folder.resolve()] if single else sorted(folder.glob("*/"))
    found: dict[int, Path] = {}
    for place in folders:
        match = _NUMBERED.match(place.name)
        if match is None or not (place / "problem.toml").exists():
            continue
        if (number := int(match[1])) in found:
            raise SetupError(f"{found[number]} and {place} are both problem {number}: remove one")
        found[number] = place
    if not found:
        raise SetupError(
            f"{folder} holds no imported problem, such as 23_Softmax/: make them by `kernelcast "
            "problem import kernelbench KernelBench/level1/ --to problems/` and name problems/"
        )
    return found
