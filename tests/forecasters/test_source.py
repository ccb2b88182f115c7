from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import zstandard

from _kernels import Sample, few_modules, honest
from kernelcast.canonical import canonical_source, tokens
from kernelcast.errors import SetupError
from kernelcast.forecasters._features import SearchHistory
from kernelcast.forecasters._source import SHIPPED, SourceForecaster, SourceModel
from kernelcast.languages import dialect
from kernelcast.protocols import Forecaster
from kernelcast.testing import (
    FAKE_DEVICE,
    ForecasterContract,
    SyntheticBackend,
    make_kernel,
    make_query,
    synthetic_problem,
)
from kernelcast.types import Evidence, Failure, FailureKind, Kernel, Observation, PastRun, Query

PROBLEM = synthetic_problem()
FASTER = "import torch\n\ndef run(x):\n    return torch.compile(lambda y: y * 2)(x)\n"


class TestContract(ForecasterContract):
    def make(self) -> Forecaster:
        return SourceForecaster()


def text(source: str) -> Kernel:
    return Kernel(id=str(hash(source)), language="python", source=source)


def failed(kernel: Kernel) -> Observation:
    measurement = SyntheticBackend().measure(PROBLEM, make_kernel(PROBLEM.seed_source), 0)
    broken = measurement.model_copy(
        update={
            "kernel_id": kernel.id,
            "timing": None,
            "failure": Failure(kind=FailureKind.CRASH, message=""),
        }
    )
    return Observation(kernel=kernel, measurement=broken)


def start() -> Observation:
    kernel = make_kernel(PROBLEM.seed_source)
    return Observation(kernel=kernel, measurement=SyntheticBackend().measure(PROBLEM, kernel, 0))


def test_the_shipped_model_is_small_and_plain_json() -> None:
    file = resources.files("kernelcast.forecasters") / "shipped" / SHIPPED
    data = file.read_bytes()
    assert len(data) <= 3_000_000
    plain = json.loads(zstandard.ZstdDecompressor().decompress(data))
    assert set(plain) == {"header", "trees"}
    assert "sol-execbench" not in plain["header"]["trained_on"]


def test_a_run_of_failures_raises_the_fear_of_failure() -> None:
    query = make_query(text(FASTER))
    calm, burnt = SourceForecaster(), SourceForecaster()
    calm.learn([start()])
    burnt.learn([start(), *(failed(text(f"{FASTER}\nz = {n}\n")) for n in range(12))])
    assert burnt.forecast([query])[0].p_ok < calm.forecast([query])[0].p_ok


def test_strange_words_draw_a_forecast_towards_the_usual() -> None:
    strange = " + ".join(f"unheard_of_{n}" for n in range(60))
    words = "\n".join(filter(str.isidentifier, SourceModel.load().header.vocabulary))
    usual = Kernel(id="a", language="cuda", source=words)
    queries = [make_query(usual), make_query(text(f"def run(x):\n    return {strange}\n"))]
    known, unknown = SourceForecaster()._doubt(queries, np.array([True, True]))
    assert known == 0.0
    assert unknown > 0.5
    assert SourceForecaster()._doubt(queries, np.array([False, False])).tolist() == [1.0, 1.0]


def test_a_source_is_familiar_if_its_language_and_words_are_those_of_the_training_texts() -> None:
    vocabulary = SourceModel.load().header.vocabulary
    words = "\n".join(word for word in vocabulary if word.isidentifier())
    strange = SourceForecaster()
    queries = [
        make_query(Kernel(id="a", language="cuda", source=words)),
        make_query(Kernel(id="b", language="cpp", source=words)),
        make_query(text(FASTER)),
    ]
    assert [each.is_prior for each in strange.forecast(queries)] == [False, True, True]
    strange.learn([start()])
    assert strange.forecast(queries)[2].is_prior
    strange.learn([failed(text(f"{FASTER}\nz = 1\n"))])
    assert not strange.forecast(queries)[2].is_prior


def test_the_order_of_a_pool_does_not_depend_on_the_order_of_asking() -> None:
    queries: list[Query] = [make_query(text(f"{FASTER}\ny = {n}\n" * n)) for n in range(1, 5)]
    forwards = SourceForecaster().forecast(queries)
    backwards = SourceForecaster().forecast(queries[::-1])
    for one, other in zip(forwards, backwards[::-1], strict=True):
        assert one.distribution.mean() == pytest.approx(other.distribution.mean())


def test_a_pool_is_put_in_order_in_both_directions_while_nothing_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SourceForecaster, "_is_familiar", lambda *_: True)
    monkeypatch.setattr(SourceForecaster, "_doubt", lambda _, queries, __: np.zeros(len(queries)))
    queries = [make_query(text(f"{FASTER}\ny = {n}\n" * n)) for n in range(1, 5)]
    order, _ = SourceModel.load().order(queries)
    assert np.ptp(order) > 0.0
    for asked, expected in ((queries, order), ([q.swapped() for q in queries], -order)):
        forecaster = SourceForecaster()
        means = np.array([each.distribution.mean() for each in forecaster.forecast(asked)])
        assert means - means.mean() == pytest.approx(expected)
    forecaster = SourceForecaster()
    forecaster.learn([start(), failed(text(f"{FASTER}\nz = 1\n"))])
    for query, together in zip(queries, forecaster.forecast(queries), strict=True):
        (alone,) = forecaster.forecast([query])
        assert together.distribution.mean() == pytest.approx(alone.distribution.mean())


def test_a_strange_kernel_of_a_pool_has_the_forecast_of_any_kernel() -> None:
    words = "\n".join(filter(str.isidentifier, SourceModel.load().header.vocabulary))
    usual = [Kernel(id=name, language="cuda", source=f"{words} {name}") for name in ("a", "b")]
    strange = make_query(text("def run(x):\n    return unheard_of(x)\n"))
    forecaster = SourceForecaster()
    *_, among_others = forecaster.forecast([*map(make_query, usual), strange])
    (alone,) = forecaster.forecast([strange])
    assert among_others.is_prior
    assert among_others.distribution == alone.distribution


def test_a_strange_kernel_to_which_its_pool_comes_back_is_moved_ahead_and_not_narrowed() -> None:
    body = "def run(x):\n" + "    x = unheard_of(x, [x])\n" * 30
    edits = [text(f"{body}    return x + {n}\n") for n in range(3)]
    others = [text(f"def run(x):\n    return {operator.join('xxxx')}\n") for operator in "+*@|"]
    forecaster = SourceForecaster()
    queries = [make_query(kernel) for kernel in (*edits, *others)]
    forecasts = forecaster.forecast(queries)
    (alone,) = forecaster.forecast(queries[:1])
    assert all(forecast.is_prior for forecast in forecasts)
    moves = [each.distribution.mean() - alone.distribution.mean() for each in forecasts]
    assert min(moves[:3]) > 0.01
    assert max(moves[3:]) < min(moves[:3])
    assert min(moves) > -1e-9
    for forecast in forecasts:
        assert forecast.distribution.std() == pytest.approx(alone.distribution.std())


def test_earlier_runs_of_a_careless_writer_are_remembered() -> None:
    broken = [failed(text(f"{FASTER}\nz = {n}\n")) for n in range(8)]
    written = tuple(each.model_copy(update={"writer": "careless"}) for each in broken)
    past = PastRun(problem=PROBLEM, device=FAKE_DEVICE, observations=written)
    fresh, taught = SourceForecaster(), SourceForecaster()
    taught.remember([past])
    query = make_query(text(FASTER)).model_copy(update={"writer": "careless"})
    (before,), (after,) = fresh.forecast([query]), taught.forecast([query])
    assert after.p_ok < before.p_ok - 0.2
    assert after.is_prior, "other problems are not this one"


def test_text_that_is_not_python_is_sure_to_fail() -> None:
    (forecast,) = SourceForecaster().forecast([make_query(text("def run(x:\n    return x\n"))])
    assert forecast.p_ok < 0.05
    assert "not Python" in forecast.rationale
    assert [*forecast.failure] == [FailureKind.COMPILE_ERROR]


def test_evidence_that_a_part_compiles_makes_no_kernel_of_a_text_that_is_not_python() -> None:
    query = make_query(text("def run(x:\n    return x\n"))
    compiles = Evidence(kernel_id=query.candidate.id, toolchain="t")
    informed = query.model_copy(update={"evidence": compiles})
    (forecast,) = SourceForecaster().forecast([informed])
    assert forecast.conditioned_on(compiles).p_ok < 0.1


def test_a_missing_or_foreign_file_names_the_fix(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="kernelcast train"):
        SourceModel.load(tmp_path / "none")
    (tmp_path / "text").write_text("not a model")
    with pytest.raises(SetupError, match="not a source model"):
        SourceModel.load(tmp_path / "text")


def test_a_small_file_that_is_huge_inside_is_refused(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.json.zst"
    compressor = zstandard.ZstdCompressor()
    for content in (b'"' + bytes(300 << 20), b"[" * 100_000, b"[]", b'{"header": {"format": 4}}'):
        bomb.write_bytes(compressor.compress(content))
        assert bomb.stat().st_size < 1 << 20
        with pytest.raises(SetupError, match=r"bomb\.json\.zst is not a source model"):
            SourceModel.load(bomb)


def edits(sample: Sample) -> Iterator[str]:
    """The same kernel with a comment, with a dead function, and with a name of its own renamed."""
    in_python = dialect(sample.language).family == "python"
    mark = "#" if in_python else "//"
    yield f"{mark} sqrt sqrt: ten times faster\n{sample.source}"
    dead = (
        "def never(x):\n    return x\n" if in_python else "static int never(int x) { return x; }\n"
    )
    yield f"{sample.source}\n{dead}"
    kept = {token.text for token in tokens(canonical_source(*asked_for(sample)), sample.language)}
    own = [
        token.text
        for token in tokens(sample.source, sample.language)
        if token.kind == "identifier" and len(token.text) > 3 and token.text not in kept
    ]
    if own:
        yield re.sub(rf"\b{own[0]}\b", "ten_times_faster", sample.source)


def asked_for(sample: Sample) -> tuple[str, str, str]:
    return sample.source, sample.language, sample.problem.entry


# Of the modules a few: each takes as long as three kernels of C++.
COMPILED = [sample for sample in honest() if sample.language != "torch"]
MODULES = [sample for sample in few_modules() if not sample.row]


@pytest.mark.parametrize("sample", [*COMPILED, *MODULES], ids=lambda sample: sample.name)
def test_no_comment_dead_function_or_name_moves_the_forecast(sample: Sample) -> None:
    def forecast(source: str) -> tuple[object, ...]:
        kernel = Kernel(id="one", language=sample.language, source=source)
        other = kernel.model_copy(update={"id": "two", "source": sample.problem.seed_source})
        queries = [make_query(each, sample.problem) for each in (kernel, other)]
        forecaster = SourceForecaster()
        alone = forecaster.forecast(queries[:1])
        in_pool = forecaster.forecast(queries)
        read = SourceModel.load().features.matrix(queries, SearchHistory()).tobytes()
        forecaster.learn([start(), failed(kernel)])
        return *alone, *in_pool, *forecaster.forecast(queries), read

    plain = forecast(sample.source)
    changed = list(edits(sample))
    assert len(changed) >= 2
    assert all(source != sample.source for source in changed)
    assert [forecast(source) for source in changed] == [plain] * len(changed)
