"""The public surface, and what a plain install brings."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
HEAVY = {"torch", "ray", "openai", "pyarrow"}
PUBLIC = {
    "kernelcast": """
        Argument Attempt Audit Backend BestByShape Bins Budget BudgetExceeded Callback Candidate
        Case Claim ComponentSpec DEFAULT_BINS Decision Device Distribution Event Evidence Failure
        FailureKind Farm Forecast Forecaster Gate Job Kernel KernelOutcome KernelcastError Loss
        Measurement MissingExtra ModelError NoDevice Node Observation Outcome Overtaken
        PAPER_BINS Parts Policy Problem
        ProblemError ProposalRequest Proposals Proposer Query Repair Resource Result Run
        RunSpec RuntimeForecast Search SetupError ShapeChoice Spend StaleLease State Store
        StoreError
        Strategy Template Timing Trial Tuner UnknownComponent Usage Verdict View bundled_problems
        load_problem read_times
    """,
    "kernelcast.backends": """
        Arena Build Child CppBackend CudaBackend Grant Launch LaunchingChild Level LibraryChild
        MeasuringBackend OpenClBackend Recorded Recording ReplayBackend Sandbox ToolRun
        TritonBackend detect_cpu device_flush_bytes driver_grant find_device library_fault
        native_mix no_launch read_launch run_tool
    """,
    "kernelcast.canonical": """
        NameStyle Token as_kernel canonical_parameters canonical_source
        canonical_tokens is_c
        kernel_id language_of read_kernel tokens
    """,
    "kernelcast.dataset": """
        Anchor ByRow DESCRIBED Order Pool RecordedForecast Results Row Rows RunScore SPLITS
        Samples SpaceFile Split Status TRIED Trial Trials UNSTATED
        check_leaks check_rows concatenate describe device_group export_run folder_pool
        forecasts_by_row import_paper_predictions read_forecasts write_forecasts
        import_gpu_forecasters import_kernel_tuner_cache import_kernelbench import_t4
        is_kernelbench_run labels matching measured_events open_pool open_replay open_trees
        open_tuner problem_family problem_group read_results read_rows read_samples read_space
        recorded_trials recording result_entry rows_pool schema space_pool split_by template_pool
        to_rows to_table write_results write_rows
    """,
    "kernelcast.farm": """
        LocalFarm RayFarm
    """,
    "kernelcast.forecasters": """
        CascadeForecaster CriticForecaster EmulatedForecaster LlmForecaster
        RecalibratedForecaster RooflineForecaster SpaceForecaster TreesForecaster
    """,
    "kernelcast.integrations.helion": """
        KernelcastSearch
    """,
    "kernelcast.integrations.inductor": """
        selective
    """,
    "kernelcast.integrations.kernel_tuner": """
        Kernelcast
    """,
    "kernelcast.integrations.optuna": """
        KernelcastSampler
    """,
    "kernelcast.integrations.openevolve": """
        gated gated_functions
    """,
    "kernelcast.integrations.triton": """
        selective
    """,
    "kernelcast.integrations.vllm_moe": """
        MoeTuner
    """,
    "kernelcast.judge": """
        Answer Arm Comparison Cost Cut Estimate Evaluation Outcome Paired Plan Questions
        Ranked Ranking Replayed SCORES SharedFarm SharedProposer answered ask ask_at_once
        asked_queries best_so_far draw drawn_out evaluate hindsight known_then mean_interval
        recorded_answers
        replay_search replay_space run_plan summarise
    """,
    "kernelcast.languages": """
        Dialect dialect element_type ending_of endings names of_ending
    """,
    "kernelcast.llm": """
        Answer Client Endpoint Message Outcome Price Reply Request Schema TokenLogprob
        device_text evidence_text find_object history_text problem_text quoted_text rehearsal_text
    """,
    "kernelcast.policies": """
        Conformal MeasureAll Selective TopK ValueOfInformation
    """,
    "kernelcast.porting": """
        Imported import_gpumode import_kernelbench submission_file
    """,
    "kernelcast.proposers": """
        LlmProposer PoolProposer TemplateProposer TunerProposer configured_kernel
    """,
    "kernelcast.report": """
        KernelRecord Progress draw_best_so_far draw_comparison draw_evaluations summary
        summary_table
    """,
    "kernelcast.strategies": """
        BestOfN Greedy Islands Puct
    """,
    "kernelcast.testing": """
        BackendContract BrokenBackend FAKE_DEVICE FarmContract ForecasterContract
        PolicyContract ProposerContract RendezvousBackend StoreContract StrategyContract
        SyntheticBackend example_gate example_history example_tuning make_candidate make_estimate
        make_kernel
        make_query make_request make_view synthetic_kernels synthetic_problem
    """,
    "kernelcast.training": """
        Fold adapter_command check_publishable cross_validate export_gguf export_merged load_base
        train_source_model verifiers_taskset write_verl_rows
    """,
}
IMPORT_EVERYTHING = """
import importlib, json, pkgutil, sys
import kernelcast
for name in kernelcast.__all__:
    getattr(kernelcast, name)
modules = [m.name for m in pkgutil.walk_packages(kernelcast.__path__, "kernelcast.")
           if ".migrations" not in m.name and ".bundled" not in m.name and ".scaffold" not in m.name
           and ".integrations." not in m.name  # each imports the system that it is for
           and not m.name.endswith("._worker")]
for name in modules:
    importlib.import_module(name)
print(json.dumps({"modules": modules, "loaded": sorted(sys.modules)}))
"""


def public_names(package: str) -> list[str]:
    """Return what a package exports; a module without `__all__` exports what it defines."""
    module = import_module(package)
    own = [name for name, value in vars(module).items() if inspect.getmodule(value) is module]
    return sorted(getattr(module, "__all__", [name for name in own if not name.startswith("_")]))


@pytest.mark.parametrize("package", PUBLIC)
def test_the_public_names_are_these(package: str) -> None:
    assert public_names(package) == sorted(PUBLIC[package].split())


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_function_and_class_has_a_docstring(package: str) -> None:
    for name in public_names(package):
        value = getattr(import_module(package), name)
        if not (inspect.isfunction(value) or inspect.isclass(value)):
            continue
        assert value.__doc__, f"{package}.{name}"
        for key, member in vars(value).items():
            if inspect.isfunction(member) and not key.startswith("_"):
                assert inspect.getdoc(getattr(value, key)), f"{package}.{name}.{key}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_import_only_public_names(page: Path) -> None:
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.S):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Import):
                modules = {alias.name for alias in node.names}
                own = {name for name in modules if name.startswith("kernelcast.")}
                assert own <= {name for name in PUBLIC if ".integrations." in name}
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kernelcast"):
                assert node.module in PUBLIC, f"{page.name} imports from {node.module}"
                packages = {name.rpartition(".")[2] for name in PUBLIC}
                known = {*PUBLIC[node.module].split(), *packages}
                assert {alias.name for alias in node.names} <= known


def test_importing_the_package_imports_a_module_when_a_name_of_it_is_used() -> None:
    code = (
        "import sys, kernelcast\n"
        "assert 'Search' in dir(kernelcast) and not hasattr(kernelcast, 'nothing')\n"
        "assert 'numpy' not in sys.modules and 'kernelcast.bins' not in sys.modules\n"
        "assert kernelcast.Bins.__module__ == 'kernelcast.bins'\n"
        "assert 'kernelcast.search' not in sys.modules\n"
        "from kernelcast import *\n"
        "assert Search.__module__ == 'kernelcast.search'\n"
        "import kernelcast.testing\n"
        "assert 'kernelcast.testing.fakes' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_everything_loads_nothing_heavy() -> None:
    output = subprocess.run(
        [sys.executable, "-c", IMPORT_EVERYTHING], capture_output=True, text=True, check=True
    ).stdout
    report = json.loads(output)
    assert "kernelcast.search" in report["modules"]
    assert not HEAVY & set(report["loaded"])
