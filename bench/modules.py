"""What is known of recorded KernelBench modules before hardware, against how they ended on it.

Each module of the recorded sets (llm_kb_rtx4090, llm_kb_a100, llm_kb_small_sets) goes the way of
`kernelcast rank`: its reference is imported by `porting`, and `TorchBackend.inspect` rehearses it
for a GPU that is not here. Left out are rows that failed for their machine (no kernel image for it,
out of memory, not timed) and sources whose rows are no modules. A *false alarm* is a module that
ran and whose rehearsal says that it fails; *caught* is one that failed and whose rehearsal says so.
A module that is right in a timed case and wrong at other sizes counts as right, as the recorded
harnesses try no other sizes; `other_sizes` counts these.

P(ok) is judged by its AUROC within each set, source and model, weighted by rows. `auroc_text` is
that of the text alone: trees of the shipped recipe, trained on other problems (those that ship have
seen these rows). `auroc_with` adds the rehearsal by Bayes' rule, with likelihood ratios that are
fitted on the other sets.

    python bench/modules.py [--quick] [--rows 0] [--reading] [--work FOLDER]
        [--out bench/results/modules.json]

An import takes from 8 to more than 100 CPU seconds, reading 0.1 and running some 15. `--work` keeps
all, so that a run goes on where another one stopped. With --reading modules are read alone; the
rows of such a run are judged as `reading_alone` beside those of a run with both stages. With
--report nothing is rehearsed: the rows that are there are judged.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import numpy as np

from _result import bench_parser, cannot_run, json_lines, report, rounded
from _written import KERNELBENCH, folds_of, rows_of
from kernelcast import types
from kernelcast.backends.torch import TorchBackend
from kernelcast.canonical import as_kernel
from kernelcast.distribution import Distribution
from kernelcast.errors import KernelcastError, SetupError
from kernelcast.porting import import_kernelbench
from kernelcast.problems import load_problem
from kernelcast.scoring import auroc
from kernelcast.types import (
    Evidence,
    FailureKind,
    Forecast,
    Problem,
    Rehearsal,
    content_hash,
)

SETS = ("llm_kb_rtx4090", "llm_kb_a100", "llm_kb_small_sets")
_DEVICE = "RTX-4090"
_ENVIRONMENT = ("no kernel image", "out of memory", "correct but not timed", "toolchain")
_BACKENDS = ("cuda", "pytorch", "triton")
_NO_MODULES = ("SSnTi1111/KernelBench_main", "robust-kbench")
"""Sources of the small sets whose rows are the CUDA file alone."""
_OUTCOMES = ("refuted", "read", "failed", "passed", "undecided")
_KINDS = (FailureKind.COMPILE_ERROR, FailureKind.WRONG_RESULT, FailureKind.CRASH)
_FEWEST_OF_A_CLASS = 5
_QUICK_ROWS = 3
_AT_A_TIME = 12


@dataclass(frozen=True)
class Module:
    """A recorded module, and how it ended."""

    row_id: str
    set: str
    group: str
    problem: str
    status: str
    source: str
    reference: str

    @property
    def ok(self) -> bool:
        return self.status == "ok"


Case = tuple[Module, Rehearsal]
Stage = Literal["reading", "running"]


def main() -> None:
    parser = bench_parser(__doc__, quick=f"{_QUICK_ROWS} rows, read alone")
    parser.add_argument("--rows", type=int, default=0, help="rows of the sample; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--reading", action="store_true", help="the first stage alone, which is cheap"
    )
    parser.add_argument("--work", type=Path, help="where results gather; default: temporary")
    parser.add_argument(
        "--no-import", action="store_true", help="import no further reference: read its modules"
    )
    parser.add_argument(
        "--report", action="store_true", help="rehearse nothing: judge what is there"
    )
    options = parser.parse_args()
    began = time.process_time()
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        sample = modules(options.seed)
        count = _QUICK_ROWS if options.quick else options.rows or len(sample)
        stage: Stage = "reading" if options.reading or options.quick else "running"
        if not options.report:
            rehearse(sample[:count], work, stage, imports=not options.no_import)
        read, ran = (_judged(sample, work, stage) for stage in ("reading", "running"))
        judged = ran or read
        if not judged:
            cannot_run("no row was rehearsed: run without --report, or name another --work")
        texts = _texts(work, options)
        result = judge(judged, texts)
        result["reading_alone"] = judge(read, texts) if read and ran else {}
    result["seed"] = options.seed
    result["cpu_s"] = round(time.process_time() - began, 1)
    report(result, options, "torch")


def modules(seed: int) -> list[Module]:
    """All rows, in a random order of references, each with a few modules at a time.

    An import costs more than a module. Of a reference, sets and those that ran and failed take
    turns.
    """
    of_reference: defaultdict[str, list[Module]] = defaultdict(list)
    for name in SETS:
        rows = rows_of([name])
        for row in rows.to_pylist():
            detail = (row["status_detail"] or "").lower()
            if row["status"] == "reference" or row["backend"] not in _BACKENDS:
                continue
            if row["source"] in _NO_MODULES:
                continue
            if not (row["candidate_source"] and row["reference_source"]):
                continue
            if row["status"] != "ok" and any(word in detail for word in _ENVIRONMENT):
                continue
            module = Module(
                row["row_id"],
                name,
                f"{row['source']}, {row['model'] or 'unnamed'}",
                row["problem"],
                row["status"],
                row["candidate_source"],
                row["reference_source"],
            )
            of_reference[module.reference].append(module)
    generator = random.Random(seed)
    references = sorted(of_reference)
    generator.shuffle(references)
    turns = [_turns(of_reference[reference], generator) for reference in references]
    return [
        module
        for first in range(0, max(map(len, turns)), _AT_A_TIME)
        for members in turns
        for module in members[first : first + _AT_A_TIME]
    ]


def _turns(members: Sequence[Module], generator: random.Random) -> list[Module]:
    """Modules, so that sets, and those that ran and failed, take turns."""
    kinds: defaultdict[tuple[str, bool], list[Module]] = defaultdict(list)
    for module in generator.sample(members, len(members)):
        kinds[module.set, module.ok].append(module)
    turns = zip_longest(*(of_kind for _, of_kind in sorted(kinds.items())))
    return [module for turn in turns for module in turn if module is not None]


# ------------------------------------------------------------------------------------- to rehearse


def _judged(sample: Sequence[Module], work: Path, stage: str) -> list[Case]:
    """The modules whose rehearsal up to a stage the work has, in the order of the sample."""
    done = {line["row"]: line for line in json_lines(work / f"{stage}.jsonl")}
    return [
        (module, Rehearsal.model_validate(done[module.row_id]["rehearsal"]))
        for module in sample
        if module.row_id in done
    ]


def _of_recorded_sizes(rehearsal: Rehearsal) -> Rehearsal:
    """A rehearsal without a failure at other sizes, which the recorded harnesses do not try."""
    return rehearsal.model_copy(update={"failure": None} if rehearsal.timed_is_right else {})


def rehearse(sample: Sequence[Module], work: Path, stage: Stage, *, imports: bool) -> None:
    """Rehearse the modules that the work file has not, and add them to it.

    A module that was only read, as its reference was not imported, is rehearsed again when it is.
    """
    path = work / f"{stage}.jsonl"
    done = {line["row"]: line["imported"] for line in json_lines(path)}
    backend = TorchBackend(device=_DEVICE, rehearses=stage)
    with closing(backend), path.open("a") as lines:
        for number, module in enumerate(sample, 1):
            if done.get(module.row_id):
                continue
            problem = imported(module.reference, work, imports=imports)
            if problem is None and (module.row_id in done or stage == "running"):
                continue
            try:
                evidence = backend.inspect(
                    problem or _unimported(module), as_kernel(module.source, "torch")
                )
            except SetupError as error:
                print(f"{module.row_id}: {error}", flush=True)
                continue
            assert evidence.rehearsal is not None
            line = {
                "row": module.row_id,
                "status": module.status,
                "imported": problem is not None,
                "rehearsal": evidence.rehearsal.model_dump(mode="json", exclude_defaults=True),
            }
            lines.write(json.dumps(line) + "\n")
            lines.flush()
            outcome = evidence.rehearsal.outcome
            print(f"{number} {module.row_id} {module.status} {outcome}", flush=True)


def imported(reference: str, work: Path, *, imports: bool) -> Problem | None:
    """The problem of a reference's text, imported once; None if there is none."""
    name = f"r{content_hash(reference)[:16]}"
    note = work / "problems" / f"{name[1:]}.json"
    if not note.exists() and not imports:
        return None
    if not note.exists():
        file = work / "references" / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        note.parent.mkdir(exist_ok=True)
        file.write_text(reference)
        (made,) = import_kernelbench(file, note.parent)
        note.write_text(json.dumps({"folder": str(made.folder or ""), "refused": made.refused}))
    try:
        folder = json.loads(note.read_text())["folder"]
        return load_problem(folder) if folder else None
    except (KernelcastError, ValueError):
        return None


def _unimported(module: Module) -> Problem:
    """A problem that states its entry alone: the module is imported, and not called."""
    problem = Problem.unstated(module.problem, "torch", module.reference)
    return problem.model_copy(update={"entry": "ModelNew"})


# ---------------------------------------------------------------------------------------- to judge


def judge(
    judged: Sequence[Case], texts: Mapping[str, Mapping[FailureKind, float]]
) -> dict[str, Any]:
    """The figures over rows that were rehearsed."""
    other_sizes = sum(rehearsal.timed_is_right for _, rehearsal in judged)
    judged = [(module, _of_recorded_sizes(rehearsal)) for module, rehearsal in judged]
    said = [(module, rehearsal, rehearsal.failure is not None) for module, rehearsal in judged]
    ran = [rehearsal for _, rehearsal in judged if rehearsal.stage == "running"]
    tables = {name: ratios(judged, without=name) for name in SETS}
    before, after = [], []
    for module, rehearsal in judged:
        if module.row_id not in texts:
            continue
        forecast = _forecast(texts[module.row_id])
        evidence = Evidence(kernel_id="", toolchain="", rehearsal=rehearsal)
        with mock.patch.dict(types._RATIOS, tables[module.set]):
            conditioned = forecast.conditioned_on(evidence)
        before.append((module, forecast.p_ok))
        after.append((module, conditioned.p_ok))
    by_stage = {
        stage: {
            "rows": sum(rehearsal.stage == stage for rehearsal in (each for _, each in judged)),
            "false_alarms": sum(
                fails and module.ok and rehearsal.stage == stage
                for module, rehearsal, fails in said
            ),
            "caught": sum(
                fails and not module.ok and rehearsal.stage == stage
                for module, rehearsal, fails in said
            ),
        }
        for stage in ("reading", "running")
    }
    return {
        "rows": len(judged),
        "ok": sum(module.ok for module, _ in judged),
        "false_alarms": sum(fails and module.ok for module, _, fails in said),
        "caught": sum(fails and not module.ok for module, _, fails in said),
        "auroc_text": _within(before),
        "auroc_with": _within(after),
        "forecast": len(before),
        "by_stage": by_stage,
        "decided_by_running": sum(not rehearsal.undecided for rehearsal in ran),
        "other_sizes": other_sizes,
        "traced": sum(rehearsal.operators is not None for _, rehearsal in judged),
        "cpu_s_row": rounded(float(np.mean([rehearsal.cpu_s for _, rehearsal in judged]))),
        "sets": {
            name: _set(
                [each for each in judged if each[0].set == name],
                [each for each in before if each[0].set == name],
                [each for each in after if each[0].set == name],
            )
            for name in SETS
        },
        "ratios": {
            outcome: {kind.value: round(value, 3) for kind, value in table.items()}
            for outcome, table in ratios(judged, without="").items()
        },
        "said_of_false_alarms": [
            rehearsal.failure.headline
            for module, rehearsal in judged
            if module.ok and rehearsal.failure is not None
        ],
    }


def _set(
    judged: Sequence[Case],
    before: Sequence[tuple[Module, float]],
    after: Sequence[tuple[Module, float]],
) -> dict[str, Any]:
    counts = Counter((rehearsal.outcome, module.status) for module, rehearsal in judged)
    return {
        "rows": len(judged),
        "failed": sum(not module.ok for module, _ in judged),
        "caught": sum(not module.ok and each.failure is not None for module, each in judged),
        "false_alarms": sum(module.ok and each.failure is not None for module, each in judged),
        "auroc_text": _within(before),
        "auroc_with": _within(after),
        "outcomes": {f"{said}, {status}": n for (said, status), n in sorted(counts.items())},
    }


def ratios(judged: Sequence[Case], *, without: str) -> dict[str, dict[FailureKind, float]]:
    """P(outcome | fails so) over P(outcome | runs), of the rows of all other sets.

    Half a row is added to each count. All rows must have gone through the same stages.
    """
    counts: Counter[tuple[str, str]] = Counter(
        (rehearsal.outcome, module.status) for module, rehearsal in judged if module.set != without
    )

    def share(outcome: str, status: str) -> float:
        among = counts.total() and sum(counts[each, status] for each in _OUTCOMES)
        return (counts[outcome, status] + 0.5) / (among + 0.5 * len(_OUTCOMES))

    return {
        outcome: {kind: share(outcome, kind) / share(outcome, "ok") for kind in _KINDS}
        for outcome in _OUTCOMES
    }


def _within(scored: Sequence[tuple[Module, float]]) -> float | None:
    """AUROC of P(ok) within each set, source and model with enough of both, weighted by rows."""
    groups: defaultdict[tuple[str, str], list[tuple[float, bool]]] = defaultdict(list)
    for module, p_ok in scored:
        groups[module.set, module.group].append((p_ok, module.ok))
    values, weights = [], []
    for members in groups.values():
        ok = [outcome for _, outcome in members]
        if min(sum(ok), len(ok) - sum(ok)) >= _FEWEST_OF_A_CLASS:
            values.append(auroc([chance for chance, _ in members], ok))
            weights.append(len(ok))
    return round(float(np.average(values, weights=weights)), 4) if values else None


def _forecast(failure: Mapping[FailureKind, float]) -> Forecast:
    return Forecast(
        forecaster="trees",
        anchor_id="",
        anchor_log2_speedup=0.0,
        distribution=Distribution.normal(0.0, 1.0),
        failure=failure,
    )


def _texts(work: Path, options: Any) -> dict[str, dict[FailureKind, float]]:
    """P(failure) by cause from the text alone, by trees of other problems; kept in the work."""
    path = work / "texts.jsonl"
    if not path.exists() and (options.quick or options.report):
        return {}
    if not path.exists():
        lines = [
            json.dumps([answer.trial.row_id, answer.trial.ok, dict(answer.forecast.failure)])
            for fold in folds_of(rows_of(KERNELBENCH), 5, options.seed)
            for answer in fold.pooled()
        ]
        path.write_text("\n".join(lines) + "\n")
    return {
        row: {FailureKind(kind): chance for kind, chance in failure.items()}
        for row, _, failure in json_lines(path)
    }


if __name__ == "__main__":
    main()
