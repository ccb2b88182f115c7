"""`kernelcast compare` as a user types it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kernelcast.backends.cpp import CppBackend
from kernelcast.cli import main
from kernelcast.cli.compare import _arms
from kernelcast.errors import SetupError
from kernelcast.parts import part_spec, read_run
from kernelcast.problems import load_problem
from kernelcast.types import Effort, Kernel, Measurement, Problem, Timing

pytestmark = pytest.mark.measures


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), catch_exceptions=False)


def made_up(
    backend: CppBackend, problem: Problem, kernel: Kernel, seed: int, effort: Effort = "screening"
) -> Measurement:
    """A speed by the kernel's id, at once; the seed kernel is as fast as itself."""
    log2 = int(kernel.id[:4], 16) / 2**15 if kernel.parameters else 0.0
    timing = Timing(
        log2_speedup=log2,
        low=log2,
        high=log2,
        resolved=True,
        runtime_s=1e-3 / 2.0**log2,
        reference_runtime_s=1e-3,
        cases=(),
    )
    return Measurement(
        kernel_id=kernel.id,
        problem_id=problem.id,
        device_id=backend.device.id,
        toolchain=backend.toolchain,
        timing=timing,
        device_s=0.5,
        effort=effort,
    )


def test_a_comparison_is_told_drawn_and_not_run_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    command = (
        *("compare", "softmax", "--arm", "policy=selective policy.pool_size=4"),
        *("--arm", "policy=measure_all"),
        *("--seeds", "2", "-n", "3", "--forecaster", "roofline", "--out", "compared"),
    )
    monkeypatch.setattr(CppBackend, "measure", made_up)
    shown = invoke(*command)
    assert shown.exit_code == 0, shown.output
    said = " ".join(shown.stdout.split())  # where lines break depends on the device's name
    assert "equal measurements (2 of 2 seeds, 3 measurements)" in said
    assert "total cost a run, the device at $1 an hour" in said
    assert "at equal measurements:" in said
    assert "at equal cost:" in said
    assert "2 seeds are few" in said
    assert Path("compared/compare.png").read_bytes().startswith(b"\x89PNG")

    def never(*arguments: Any, **options: Any) -> Measurement:
        raise AssertionError("measured again")

    monkeypatch.setattr(CppBackend, "measure", never)
    again = invoke(*command, "--json")
    assert again.exit_code == 0, again.output
    facts = json.loads(again.stdout)
    assert facts == json.loads(Path("compared/compare.json").read_text())
    assert facts["complete"]
    assert list(facts["arms"]) == ["selective pool_size=4", "measure_all"]
    for row in facts["arms"].values():
        assert row["measured"] == 6
        assert len(row["speedups"]) == 2
        # A reference, three measurements and at least one confirmation, half a second each.
        assert row["device_s"] >= 2.5
        assert row["total_usd"] == pytest.approx(row["device_s"] / 3600.0, abs=1e-6)
    (pair,) = facts["pairs"]
    assert (pair["arm"], pair["against"]) == ("selective pool_size=4", "measure_all")
    told = pair["equal_measurements"]
    assert told["won"] + told["tied"] + told["lost"] == 2
    assert told["low"] <= told["gain"] <= told["high"]
    ours, theirs = (row["speedups"] for row in facts["arms"].values())
    assert told["log2_differences"] == pytest.approx(
        [math.log2(a / b) for a, b in zip(ours, theirs, strict=True)], abs=1e-3
    )


@pytest.mark.slow
@pytest.mark.full
def test_a_real_comparison_on_this_machine() -> None:
    assert invoke("init", "mine").exit_code == 0
    command = ("compare", "mine", "--vary", "strategy=greedy,puct", "--policy", "measure_all")
    found = invoke(*command, "--seeds", "2", "-n", "1", "--json")
    assert found.exit_code == 0, found.output
    facts = json.loads(found.stdout)
    assert facts["complete"]
    for row in facts["arms"].values():
        assert row["measured"] == 2
        assert min(row["speedups"]) >= 1.0
        assert row["device_s"] > 0.0


def test_ctrl_c_leaves_what_is_done_and_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: Any, **options: Any) -> Measurement:
        raise KeyboardInterrupt

    monkeypatch.setattr(CppBackend, "measure", interrupted)
    shown = invoke("compare", "softmax", "--vary", "strategy=greedy,puct", "--out", "c")
    assert shown.exit_code == 0, shown.output
    assert "no verdict: 0 seeds" in shown.stdout
    assert "to go on: the same command again" in shown.stdout
    facts = json.loads(Path("c/compare.json").read_text())
    assert not facts["complete"]
    assert facts["pairs"][0]["equal_cost"]["gain"] is None


def test_mistakes_end_in_one_line_that_names_the_fix() -> None:
    for vary, words in {
        "backend=cpp,cuda": "one of policy, strategy, forecaster, proposer",
        "policy": "two arms or more",
        "policy=selective": "two arms or more",
        "policy=selective,selective": "none of them twice",
        "proposer=llm,template": "--base-url and --model",
        "policy=nope,selective": "no policy is called 'nope'",
        "policy.nope=1,2": "unknown policy.nope; known: policy.audit_share",
    }.items():
        found = invoke("compare", "softmax", "--vary", vary)
        assert found.exit_code == 1, vary
        assert words in found.stderr, vary
    both = invoke("compare", "softmax", "--vary", "policy=top_k,selective", "--policy", "top_k")
    assert "leave out --policy" in both.stderr


def test_arms_are_stated_by_settings() -> None:
    kind, arms = _arms(None, ("policy=selective policy.pool_size=8", "policy=top_k"))
    assert kind == "policy"
    assert arms["selective pool_size=8"] == {"policy": "selective", "policy.pool_size": 8}
    assert arms["top_k"] == {"policy": "top_k"}
    _, options = _arms("policy.audit_share=0.1,0.2", ())
    assert list(options) == ["audit_share=0.1", "audit_share=0.2"]
    stages = """forecaster=cascade forecaster.stages=[{"name":"trees"},{"name":"roofline"}]"""
    _, nested = _arms(None, (stages, "forecaster=trees"))
    cascade, _ = nested.values()
    assert cascade["forecaster.stages"] == [{"name": "trees"}, {"name": "roofline"}]
    with pytest.raises(SetupError, match="not in policy and strategy"):
        _arms(None, ("policy=top_k", "strategy=greedy"))


def test_models_differ_by_their_options() -> None:
    _, arms = _arms(None, ("proposer.model=small proposer.temperature=0.5", "proposer.model=large"))
    model = {"base_url": "http://localhost:8000/v1", "ask": "direct"}
    shared = {"proposer": "llm", "proposer.concurrency": 4}
    small, large = (
        read_run({**shared, **arm}, problem=load_problem("softmax"), model=model).spec.components
        for arm in arms.values()
    )
    assert small["proposer"].options == {
        "base_url": "http://localhost:8000/v1",
        "model": "small",
        "temperature": 0.5,
        "concurrency": 4,
    }
    assert large["proposer"].options["model"] == "large"
    asked = part_spec("forecaster", {"name": "llm", "model": "m", "samples": 3}, model)
    assert (asked.options["temperature"], asked.options["ask"]) == (1.0, "direct")
    with pytest.raises(SetupError, match="--base-url and --model"):
        part_spec("proposer", {"name": "llm", "model": "m"})


def test_a_wrong_arm_is_refused_before_another_one_has_run(tmp_path: Path) -> None:
    told = invoke("compare", "softmax", "--vary", "policy=measure_all,nope", "--out", "compared")
    assert told.exit_code == 1
    assert "no policy is called 'nope'; installed: conformal" in told.output
    assert not Path("compared").exists()


def test_a_template_is_tuned_unless_a_part_that_chooses_is_named() -> None:
    softmax = load_problem("softmax")
    written = softmax.model_copy(update={"template": None})

    def chosen(problem: Problem = softmax, **settings: Any) -> tuple[str, str]:
        dotted = {key.replace("__", "."): value for key, value in settings.items()}
        components = read_run(dotted, problem=problem).spec.components
        return components["proposer"].name, components["policy"].name

    assert chosen() == chosen(seed=3) == ("tuner", "measure_all")
    assert chosen(proposer="tuner", forecaster="roofline") == ("tuner", "measure_all")
    assert chosen(proposer="tuner", policy="top_k") == ("tuner", "top_k")
    for part in ({"policy__audit_share": 0.2}, {"forecaster": "roofline"}, {"strategy": "greedy"}):
        assert chosen(**part) == ("template", "selective")
    assert chosen(policy="measure_all") == ("template", "measure_all")
    assert chosen(problem=written) == ("template", "selective")
