"""The collections of attacks and of honest kernels: complete, well formed, and judged rightly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

import _kernels  # benches are scripts: pytest has their folder on its path
import attacks as bench
from _kernels import (
    ATTACKS,
    HONEST,
    MODULES,
    NO_GAIN,
    NOT_KERNELS,
    ROWS,
    BadHeader,
    Sample,
    read_header,
)
from kernelcast.errors import SetupError
from kernelcast.types import CaseTiming, Failure, FailureKind, Language, Measurement, Timing


def test_there_are_enough_and_every_row_of_the_catalogue_has_one() -> None:
    found = _kernels.attacks()
    assert len(found) >= 300
    compiled = [each for each in found if each.language != "torch"]
    assert {each.row for each in compiled} == set(ROWS) - NOT_KERNELS
    assert {each.row for each in found} == set(ROWS)
    assert len({each.name for each in found}) == len({each.source for each in found}) == len(found)
    expected = Counter(each.expect for each in found)
    assert set(expected) == {*FailureKind, NO_GAIN}
    # They gain nothing, and nothing forbidden shows: see their headers. To a module, what is not
    # allowed is refused, and it may go on.
    harmless = Counter(each.language == "torch" for each in found if each.expect == NO_GAIN)
    assert harmless[False] <= 15
    assert harmless[True] <= 20
    languages = Counter(each.language for each in found)
    assert languages["cpp"] >= 220
    assert languages["triton"] >= 12
    assert languages["opencl"] >= 40
    assert languages["torch"] >= 100
    honest = _kernels.honest()
    assert sum(each.language == "torch" for each in honest) >= 40
    files = [each for each in honest if (HONEST / each.name).is_file()]
    assert len(files) >= 120
    assert Counter(each.language for each in files)["opencl"] >= 15


def test_no_file_is_left_out() -> None:
    for folder, kind in ((ATTACKS, _kernels.attacks()), (HONEST, _kernels.honest())):
        modules = MODULES / folder.name
        files = {path.name for path in folder.iterdir() if path.is_file()}
        files |= {f"torch/{path.name}" for path in modules.iterdir() if path.is_file()}
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
        ("// attack: 3 ", "// attack: 39 ", "1 to 38"),
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


def measured(log2_speedup: float, noise_log2: float | None = 0.02) -> Measurement:
    """A measurement with a time, whose interval is 0.01 wide on either side."""
    case = CaseTiming(
        case="main", log2_ratios=(log2_speedup,), runtime_s=1.0, reference_runtime_s=1.0
    )
    timing = Timing(
        log2_speedup=log2_speedup,
        low=log2_speedup - 0.01,
        high=log2_speedup + 0.01,
        resolved=True,
        runtime_s=1.0,
        reference_runtime_s=1.0,
        cases=(case,),
    )
    return Measurement(
        kernel_id="k",
        problem_id="p",
        device_id="d",
        toolchain="t",
        timing=timing,
        noise_log2=noise_log2,
        device_s=1.0,
    )


def test_what_counts_as_accepted_and_what_as_another_reason() -> None:
    found = {each.name: each for each in _kernels.attacks()}
    cached, harmless = found["r04_shape_cache.cpp"], found["r03_whole_hash.cpp"]
    honest = _kernels.honest()[0]
    wrong, cheating = (
        Failure(kind=kind, message="") for kind in (FailureKind.WRONG_RESULT, FailureKind.CHEATING)
    )

    def fault(sample: Sample, outcome: bench.Outcome) -> str:
        return bench._fault(sample, outcome)

    assert fault(cached, wrong) == ""
    assert fault(cached, cheating) == "wrong_reason"
    assert fault(cached, measured(-1.0)) == fault(cached, None) == "accepted"
    assert fault(harmless, measured(0.02)) == fault(harmless, wrong) == ""
    assert fault(harmless, measured(0.04)) == "accepted"
    assert fault(harmless, measured(0.04, noise_log2=0.05)) == ""
    assert fault(honest, measured(-1.0)) == fault(honest, None) == ""
    assert fault(honest, cheating) == "rejected"


def test_an_attack_that_is_reported_faster_is_inflated() -> None:
    found = {each.name: each for each in _kernels.attacks()}
    attack, honest = found["r04_shape_cache.cpp"], _kernels.honest()[0]

    def inflated(sample: Sample, log2_speedup: float) -> bool:
        return bench._judged(sample, lambda _sample, _seed: measured(log2_speedup), 1).inflated

    assert inflated(attack, 0.04)
    assert not inflated(attack, 0.02)
    assert not inflated(honest, 0.04)


# ---------------------------------------------------------------------------------- the verdicts


def test_the_few_are_of_every_row_and_of_all_languages() -> None:
    few = _kernels.few_attacks()
    assert sorted(sample.row for sample in few) == sorted(set(ROWS) - NOT_KERNELS)
    languages = Counter(sample.language for sample in few)
    assert min(languages[language] for language in ("cpp", "triton", "opencl")) >= 6
    honest = _kernels.few_honest()
    assert len(honest) == 6
    assert {each.language for each in honest} == {"cpp", "triton", "opencl"}
    modules = _kernels.few_modules()
    assert {each.language for each in modules} == {"torch"}
    assert sorted(bool(each.row) for each in modules) == [False, True]
    assert not any("load_inline" in each.source for each in modules)


def test_modules_are_left_out_where_pytorch_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(**_: object) -> None:
        raise SetupError("PyTorch is not installed")

    monkeypatch.setattr(bench, "TorchBackend", missing)
    with ExitStack() as stack:
        judges = bench.judges_here(stack)
    assert "torch" not in judges
    assert "modules are left out: PyTorch is not installed" in capsys.readouterr().err
    assert bench.verdict_on(_kernels.few_modules()[0], judges) is None


@pytest.fixture(scope="module")
def judges() -> Iterator[Mapping[Language, bench.Judge]]:
    with ExitStack() as stack:
        yield bench.judges_here(stack)


# The kernels of one problem side by side: its seed kernel is then measured once.
FEW: list[Sample] = sorted(
    [*_kernels.few_attacks(), *_kernels.few_honest(), *_kernels.few_modules()],
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
    if sample.language == "torch":
        pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
    verdict = bench.verdict_on(sample, judges)
    assert verdict is not None, f"no backend for {sample.language} here"
    assert not verdict.fault, f"{verdict.got}: {verdict.message}"
