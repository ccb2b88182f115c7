"""The collections of attacks and of honest kernels: complete, well formed, and judged rightly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

import _kernels  # benches are scripts: pytest has their folder on its path
import attacks as bench
from _kernels import ATTACKS, HONEST, NO_GAIN, ROWS, BadHeader, Sample, read_header
from kernelcast.types import CaseTiming, Failure, FailureKind, Language, Timing


def test_there_are_enough_and_every_row_of_the_catalogue_has_one() -> None:
    found = _kernels.attacks()
    assert len(found) >= 80
    assert {each.row for each in found} == set(ROWS)
    assert len({each.source for each in found}) == len(found)
    expected = Counter(each.expect for each in found)
    assert set(expected) == {*FailureKind, NO_GAIN}
    assert expected[NO_GAIN] <= 6
    languages = Counter(each.language for each in found)
    assert languages["cpp"] >= 60
    assert languages["triton"] >= 12
    assert languages["opencl"] >= 12
    assert len(_kernels.honest()) >= 60


def test_no_file_is_left_out() -> None:
    for folder, kind in ((ATTACKS, _kernels.attacks()), (HONEST, _kernels.honest())):
        files = {path.name for path in folder.iterdir() if path.is_file()}
        assert files <= {each.name for each in kind}


def test_honest_kernels_are_many_and_the_same_every_time() -> None:
    found = _kernels.honest()
    assert len({each.kernel.id for each in found}) >= len(found) - 1
    assert [each.source for each in found] == [each.source for each in _kernels.honest()]
    problems = Counter(each.problem.name for each in found if each.language == "cpp")
    assert len(problems) == 6
    assert min(problems.values()) >= 5


def test_a_header_is_read_with_its_continued_lines() -> None:
    text = "// attack: 3 hash\n// imitates: a\n//   b (seen: ours)\n#include <x>\n// expect: y\n"
    assert read_header(text) == {"attack": "3 hash", "imitates": "a b (seen: ours)"}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("// expect: cheating\n", "", "lacks expect"),
        ("// expect: cheating", "// expect: cheat", "`expect` is"),
        ("// attack: 3 ", "// attack: 32 ", "1 to 31"),
        ("// attack: 3 ", "// attack: 4 ", "begins with r04_"),
        ("(seen: ours)", "", "where it was seen"),
        ("// problem", "// reward: 1\n// problem", "has reward"),
    ],
)
def test_a_bad_header_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    header = (
        "// attack: 3 a\n// imitates: b (seen: ours)\n// problem: softmax\n// expect: cheating\n"
    )
    path = tmp_path / "r03_a.cpp"
    path.write_text(header)
    assert _kernels._read(path, "attack").row == 3
    path.write_text(header.replace(old, new))
    with pytest.raises(BadHeader, match=said):
        _kernels._read(path, "attack")


def timing(log2_speedup: float) -> Timing:
    case = CaseTiming(
        case="main", log2_ratios=(log2_speedup,), runtime_s=1.0, reference_runtime_s=1.0
    )
    return Timing(
        log2_speedup=log2_speedup,
        low=log2_speedup - 0.01,
        high=log2_speedup + 0.01,
        resolved=True,
        runtime_s=1.0,
        reference_runtime_s=1.0,
        cases=(case,),
    )


def test_what_counts_as_accepted_and_what_as_another_reason() -> None:
    found = {each.name: each for each in _kernels.attacks()}
    cached, harmless = found["r04_shape_cache.cpp"], found["r03_whole_hash.cpp"]
    honest = _kernels.honest()[0]
    wrong, cheating = (
        Failure(kind=kind, message="") for kind in (FailureKind.WRONG_RESULT, FailureKind.CHEATING)
    )

    def fault(sample: Sample, outcome: Timing | Failure | None) -> str:
        return bench._fault(sample, outcome)

    assert fault(cached, wrong) == ""
    assert fault(cached, cheating) == "wrong_reason"
    assert fault(cached, timing(-1.0)) == fault(cached, None) == "accepted"
    assert fault(harmless, timing(0.1)) == fault(harmless, wrong) == ""
    assert fault(harmless, timing(0.2)) == "accepted"
    assert fault(honest, timing(-1.0)) == fault(honest, None) == ""
    assert fault(honest, cheating) == "rejected"


# ---------------------------------------------------------------------------------- the verdicts


def test_the_few_are_of_every_row_and_of_all_languages() -> None:
    few = _kernels.few_attacks()
    assert sorted(sample.row for sample in few) == sorted(ROWS)
    languages = Counter(sample.language for sample in few)
    assert min(languages[language] for language in ("cpp", "triton", "opencl")) >= 6
    honest = _kernels.few_honest()
    assert len(honest) == 10
    assert {each.language for each in honest} == {"cpp", "triton", "opencl"}


@pytest.fixture(scope="module")
def judges() -> Iterator[Mapping[Language, bench.Judge]]:
    with ExitStack() as stack:
        yield bench.judges_here(stack)


# The kernels of one problem side by side: its seed kernel is then measured once.
FEW: list[Sample] = sorted(
    [*_kernels.few_attacks(), *_kernels.few_honest()],
    key=lambda sample: (sample.language, sample.problem.name),
)


@pytest.mark.slow
@pytest.mark.measures
@pytest.mark.parametrize("sample", FEW, ids=lambda sample: sample.name)
def test_no_attack_is_accepted_and_no_honest_kernel_rejected(
    sample: Sample, judges: Mapping[Language, bench.Judge]
) -> None:
    """One for each row; `make measure` judges them all."""
    if not sample.runs_here:
        pytest.skip(f"needs {sample.needs}")
    verdict = bench.verdict_on(sample, judges)
    assert verdict is not None, f"no backend for {sample.language} here"
    assert not verdict.fault, f"{verdict.got}: {verdict.message}"
