"""The frozen records that cross module boundaries.

Only data and what can be derived from it alone: no I/O, no policy, no language knowledge.
Speedups are log2 and, unless a name says otherwise, against the problem's reference kernel.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from functools import cached_property
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from kernelcast.distribution import Distribution
from kernelcast.expression import evaluate

_NUMBER = re.compile(r"[-+]?(?:0x[0-9a-f]+|\d+(?:\.\d*)?(?:e[-+]?\d+)?)", re.I)

Language = Literal["cpp", "opencl", "cuda", "hip", "triton", "python"]
Parameters = Mapping[str, int | float | str]
SMALLEST_CLAIM_LOG2 = math.log2(1.01)  # below one percent nothing is claimed to be faster


class Record(BaseModel):
    """Base of all records: frozen, closed, comparable, JSON in and out."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


def content_hash(text: str | bytes) -> str:
    """The 32 hexadecimal digits under which content is addressed."""
    data = text.encode() if isinstance(text, str) else text
    return hashlib.sha256(data).hexdigest()[:32]


# ---------------------------------------------------------------------------------- problems


class Fill(Record):
    """How an input array is filled; bounds of `integers` are expressions, `high` exclusive."""

    kind: Literal["normal", "uniform", "integers"] = "normal"
    mean: float = 0.0
    std: float = 1.0
    low: float | str = 0.0
    high: float | str = 1.0


class Argument(Record):
    """One array a kernel is handed, in the order of the C signature."""

    name: str
    role: Literal["input", "output"]
    dtype: Literal["float32", "float64", "int32", "int64"]
    shape: tuple[str, ...]
    fill: Fill = Fill()

    def extent(self, dimensions: Mapping[str, int]) -> tuple[int, ...]:
        """The array's shape in a case of these dimensions."""
        return tuple(int(evaluate(each, dimensions)) for each in self.shape)


class Case(Record):
    """A named set of dimensions; an untimed case is for correctness only.

    `scale` multiplies what floating-point inputs are filled with.
    """

    name: str
    dimensions: Mapping[str, int]
    timed: bool = True
    scale: float = 1.0


class Hidden(Record):
    """From where the shapes are drawn that no kernel is told of: inclusive bounds a dimension."""

    dimensions: Mapping[str, tuple[int, int]]
    constraints: tuple[str, ...] = ()


class Tolerance(Record):
    """|output - oracle| <= atol + rtol * |oracle|, element by element."""

    rtol: float
    atol: float


class Template(Record):
    """A source governed by macros, and the finite space of their values."""

    source: str
    parameters: Mapping[str, tuple[int | float | str, ...]]
    constraints: tuple[str, ...] = ()

    def admits(self, parameters: Parameters) -> bool:
        """Whether every constraint holds."""
        return all(evaluate(each, parameters) for each in self.constraints)

    def render(self, parameters: Parameters) -> str:
        """The kernel's source: one #define a parameter before the template."""
        defines = "".join(f"#define {name} {value}\n" for name, value in parameters.items())
        return defines + self.source

    def configurations(self) -> Iterator[dict[str, int | float | str]]:
        """Every admitted configuration, in a fixed order."""
        for values in itertools.product(*self.parameters.values()):
            configuration = dict(zip(self.parameters, values, strict=True))
            if self.admits(configuration):
                yield configuration


class Problem(Record):
    """What to compute: signature, cases, tolerances, work, the reference and where to start."""

    name: str
    family: str
    summary: str
    language: Language
    entry: str
    dimensions: tuple[str, ...]
    arguments: tuple[Argument, ...]
    cases: tuple[Case, ...]
    flops: str
    bytes: str
    tolerance: Tolerance
    oracle_source: str
    seed_source: str
    template: Template | None = None
    hidden: Hidden | None = None

    @classmethod
    def unstated(
        cls,
        name: str,
        language: Language,
        seed_source: str,
        *,
        family: str = "unstated",
        summary: str = "shapes and dtypes are not stated",
        oracle_source: str = "",
        template: Template | None = None,
    ) -> Problem:
        """A problem known by its kernels alone: it can be ranked or replayed, not measured."""
        return cls(
            name=name,
            family=family,
            summary=summary,
            language=language,
            entry="unstated",
            dimensions=(),
            arguments=(),
            cases=(Case(name="unstated", dimensions={}),),
            flops="0",
            bytes="0",
            tolerance=Tolerance(rtol=0.0, atol=0.0),
            oracle_source=oracle_source,
            seed_source=seed_source,
            template=template,
        )

    @cached_property
    def id(self) -> str:
        """Address of everything that a measured time depends on."""
        stated = self.model_dump_json(exclude={"summary", "template"}, exclude_defaults=True)
        return content_hash(stated)

    @property
    def timed_cases(self) -> tuple[Case, ...]:
        """The cases that count for the speedup."""
        return tuple(case for case in self.cases if case.timed)


class Kernel(Record):
    """Source in one language; its id is the hash of its canonical source."""

    id: str
    language: Language
    source: str
    parameters: Parameters | None = None


class Device(Record):
    """The hardware a time is true on. Peaks are nominal; `source` says where they come from.

    A core is a CPU's, an SM or a CU. `target` is what compilers call the architecture. Of the
    figures with a default, 0 means that it is not known or that the device has no such thing.
    """

    name: str
    kind: Literal["cpu", "gpu", "replay"]
    cores: int
    clock_hz: float
    peak_flops: Mapping[str, float]
    bandwidth_bytes_s: float
    source: str
    target: str = ""
    cache_bytes: int = 0
    warp: int = 0
    registers_per_core: int = 0
    shared_bytes_per_core: int = 0
    shared_bytes_per_block: int = 0
    threads_per_core: int = 0
    blocks_per_core: int = 0

    @property
    def id(self) -> str:
        """Name under which measurements on this device are kept."""
        return f"{self.name} x{self.cores}"


# ------------------------------------------------------------------------------ measurements


# How precise a measurement is to be: half-widths of 3%, 1% and 0.5%.
Effort = Literal["screening", "normal", "final"]


class FailureKind(StrEnum):
    """Why a kernel has no time."""

    COMPILE_ERROR = "compile_error"
    WRONG_RESULT = "wrong_result"
    CRASH = "crash"
    TIMEOUT = "timeout"
    CHEATING = "cheating"


class Failure(Record):
    """A typed failure and what there is to say about it."""

    kind: FailureKind
    message: str

    @property
    def headline(self) -> str:
        """The line of the message that says the most: a compiler's first error, else the first."""
        lines = [line.strip() for line in self.message.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line]
        named = [line for line in errors if "error:" in line]  # not the count of them
        return next(iter((*named, *errors, *lines)), "")

    def is_like(self, other: Failure) -> bool:
        """Whether both are of one kind and their headlines differ in nothing but numbers."""
        mine, theirs = (_NUMBER.sub("#", failure.headline) for failure in (self, other))
        return self.kind == other.kind and mine == theirs


class CaseTiming(Record):
    """Paired log2 ratios (reference over candidate) of one case, in the order measured."""

    case: str
    log2_ratios: tuple[float, ...]
    runtime_s: float
    reference_runtime_s: float


class Timing(Record):
    """What was timed: the median paired log2 speedup and its interval.

    Over several cases, speedup and runtimes are geometric means.
    """

    log2_speedup: float
    low: float
    high: float
    resolved: bool
    runtime_s: float
    reference_runtime_s: float
    cases: tuple[CaseTiming, ...]

    @property
    def speedup(self) -> float:
        """Speedup against the reference kernel, as a ratio."""
        return float(2.0**self.log2_speedup)


class Measurement(Record):
    """Kernel x problem x device: a timing, or a typed failure; never both, never neither.

    `noise_log2` is the largest ratio that the reference against itself still shows, `sandbox` the
    proven level, and `conditions` what was not as it should be on the machine.
    """

    kernel_id: str
    problem_id: str
    device_id: str
    toolchain: str
    timing: Timing | None = None
    failure: Failure | None = None
    noise_log2: float = 0.0
    device_s: float
    sandbox: Literal["S0", "S1", "S2", "S3", "S4"] = "S0"
    effort: Effort = "screening"
    conditions: tuple[str, ...] = ()

    def model_post_init(self, _context: Any) -> None:
        """Refuse a measurement that is both or neither."""
        if (self.timing is None) == (self.failure is None):
            raise ValueError("a measurement has either a timing or a failure")

    @property
    def log2_speedup(self) -> float | None:
        """Log2 speedup against the reference, None for a failed kernel."""
        return self.timing.log2_speedup if self.timing else None

    @property
    def faster(self) -> bool:
        """Whether it may be called faster: its interval lies above the noise and above 1%."""
        floor = max(self.noise_log2, SMALLEST_CLAIM_LOG2)
        return self.timing is not None and self.timing.low > floor


# Kinds of instructions, as `backends._inspect` names them on CPUs and GPUs.
_ARITHMETIC = ("vector", "scalar", "fma", "float", "mma", "special")
_WIDE = ("vector", "mma")
_MEMORY = ("memory", "load_global", "store_global")


class Evidence(Record):
    """What compiling alone tells, handed to forecasters with the query.

    None is what the compiler does not say. Registers and stack are of one thread, shared memory of
    one block; spills are the bytes that the code stores and loads for want of registers. Where a
    source holds several GPU functions, sizes are the largest of them and counts their sum; a call
    makes at least so many `launches`.
    """

    kernel_id: str
    toolchain: str
    failure: Failure | None = None
    compile_s: float = 0.0
    code_bytes: int = 0
    instructions: Mapping[str, int] = {}
    roofline_s: float | None = None
    target: str = ""
    registers: int | None = None
    spill_bytes: int | None = None
    shared_bytes: int | None = None
    stack_bytes: int | None = None
    block_threads: int | None = None
    occupancy: float | None = None
    launches: int | None = None

    @property
    def behaviour(self) -> tuple[int, ...]:
        """The cell of a coarse grid in which kernels of one kind meet.

        Registers, shared memory, launches, size of the code and arithmetic intensity (instructions
        that compute for each that touches memory), where a step is a doubling, and how many
        instructions in four work on vectors or matrices.
        """
        mix = self.instructions
        computing, moving, wide = (
            sum(mix.get(each, 0) for each in kinds) for kinds in (_ARITHMETIC, _MEMORY, _WIDE)
        )
        total = mix.get("total") or sum(mix.values()) or 1
        sizes = (self.registers, self.shared_bytes, self.launches, self.code_bytes)
        return (
            *((each or 0).bit_length() for each in sizes),
            round(math.log2((computing + 1) / (moving + 1))),
            round(4 * wide / total),
        )


# ------------------------------------------------------------------- proposals and their past

Move = Literal[
    "vectorise",
    "unroll",
    "tile",
    "fuse",
    "parallelise",
    "reorder",
    "precompute",
    "fewer_divisions",
    "fewer_passes",
    "prefetch",
    "align",
    "library",
    "other",
]


class Claim(Record):
    """What a proposer says it did; nobody has checked it."""

    idea: str = ""
    moves: tuple[Move, ...] = ()


class Attempt(Record):
    """What was tried on a kernel and what came of it.

    `log2_change` is against the kernel it was tried on, by measurement or, where not `measured`,
    by forecast; None where there is only a failure or an objection, which `outcome` names.
    """

    claim: Claim
    outcome: str
    log2_change: float | None = None
    measured: bool = False


class Repair(Record):
    """A kernel that is sent back to its proposer, once, with what is wrong with it."""

    kernel: Kernel
    complaint: str


# ------------------------------------------------------------------- forecasts and decisions


class Usage(Record):
    """What an answer cost; `unknown` where part of it is an upper bound that nobody confirmed."""

    input_tokens: int = 0
    output_tokens: int = 0
    usd: float = 0.0
    seconds: float = 0.0
    unknown: bool = False

    @property
    def tokens(self) -> int:
        """Tokens read and written."""
        return self.input_tokens + self.output_tokens

    @classmethod
    def total(cls, usages: Iterable[Usage]) -> Usage:
        """What several answers cost, one after the other."""
        each = list(usages)
        return cls(
            input_tokens=sum(one.input_tokens for one in each),
            output_tokens=sum(one.output_tokens for one in each),
            usd=math.fsum(one.usd for one in each),
            seconds=math.fsum(one.seconds for one in each),
            unknown=any(one.unknown for one in each),
        )


class Stage(Record):
    """One step of a forecast that was made in several: who was asked, and what it answered.

    `changed` where the decision after it was another than before; who `objected` ended the asking.
    """

    forecaster: str
    distribution: Distribution
    p_ok: float
    p_new_best: float
    changed: bool = False
    objected: bool = False
    usage: Usage = Usage()


class Forecast(Record):
    """P(failure by cause), and a density over log2 speedup against a measured anchor if it runs.

    `uncorrected` is what recalibration was given, `stages` what a cascade asked, in order. An
    `objection` says why hardware should not be spent, in words for the proposer. `is_prior` says
    that no measured kernel like this one is known: the forecast is what holds of any kernel.
    """

    forecaster: str
    anchor_id: str
    anchor_log2_speedup: float
    distribution: Distribution
    failure: Mapping[FailureKind, float] = {}
    usage: Usage = Usage()
    raw_probability_sum: float | None = None
    unparsed: bool = False
    rationale: str = ""
    objection: str = ""
    uncorrected: Forecast | None = None
    stages: tuple[Stage, ...] = ()
    is_prior: bool = False

    @property
    def p_ok(self) -> float:
        """Probability that the kernel compiles, runs and is right."""
        return max(0.0, 1.0 - sum(self.failure.values()))

    def given(self, evidence: Evidence | None) -> Forecast:
        """The same forecast in agreement with what compiling showed.

        A kernel that does not compile has no other outcome. One that compiles has no chance of a
        compile error, and its other outcomes keep their proportions.
        """
        if evidence is None:
            return self
        if evidence.failure is not None:
            return self.model_copy(update={"failure": {evidence.failure.kind: 1.0}})
        if FailureKind.COMPILE_ERROR not in self.failure:
            return self
        others = {
            kind: chance
            for kind, chance in self.failure.items()
            if kind is not FailureKind.COMPILE_ERROR
        }
        left = self.p_ok + sum(others.values())
        failure = {kind: chance / left for kind, chance in others.items()} if left else {}
        return self.model_copy(update={"failure": failure})

    def against_reference(self) -> Distribution:
        """The same density, over log2 speedup against the problem's reference."""
        return self.distribution.shift(self.anchor_log2_speedup)

    def chance_above(self, log2_speedup: float) -> float:
        """Probability that the kernel runs, and at more than this against the reference."""
        return self.p_ok * self.against_reference().probability_above(log2_speedup)


class Decision(Record):
    """What is done with a candidate, with the score and the reason."""

    action: Literal["drop", "trust", "measure", "audit"]
    score: float
    reason: str


class Candidate(Record):
    """A proposed kernel on which nothing final has been decided.

    `chain_std` is how unsure its parent's own speed is, 0 where that was measured; `repairs` the
    kernel that it is to replace, where it was sent back.
    """

    kernel_id: str
    parent_id: str
    ordinal: int
    forecast: Forecast | None = None
    evidence: Evidence | None = None
    claim: Claim = Claim()
    chain_std: float = 0.0
    repairs: str | None = None


class Node(Record):
    """A kernel in the archive of parents. Only `origin` forecast was never measured.

    `visits` counts the proposals made from this very kernel. `std_log2` is how unsure its speed is,
    added up since the last measured kernel of its lineage; `behaviour` the cell of its evidence.
    """

    kernel_id: str
    parent_id: str | None
    log2_speedup: float
    origin: Literal["seed", "measured", "forecast"]
    confirmed: bool = False
    visits: int = 0
    best_child: float | None = None
    std_log2: float = 0.0
    behaviour: tuple[int, ...] = ()


class Audit(Record):
    """What became of a candidate that was measured whatever its forecast.

    `p_new_best` is what had been forecast of it, 0 where it was objected to; `new_best` whether it
    was one.
    """

    p_new_best: float
    new_best: bool


class View(Record):
    """What a policy may know of the run when it decides.

    `stale` counts the measurements since the last new best; `audits` are the latest.
    """

    seed: int
    incumbent_log2: float
    noise_log2: float
    measured: int
    free_slots: int
    measurements_left: float
    proposals_exhausted: bool
    stale: int = 0
    considered: int = 0
    audits: tuple[Audit, ...] = ()


class Job(Record):
    """One measurement to make, under the ledger entry that pays for it."""

    entry: str
    purpose: Literal["reference", "search", "confirmation"]
    kernel: Kernel
    seed: int

    @property
    def effort(self) -> Effort:
        """The candidates are screened; what the run stands on is measured with more care."""
        efforts: dict[str, Effort] = {"search": "screening", "reference": "normal"}
        return efforts.get(self.purpose, "final")


class Observation(Record):
    """One measured kernel as a forecaster is taught it; of one measured again, the later holds.

    `forecast` is what was forecast of it when it was chosen, and `chosen` the probability with
    which it was: below 1 for audits, which are drawn whatever their forecast.
    """

    kernel: Kernel
    measurement: Measurement
    evidence: Evidence | None = None
    forecast: Forecast | None = None
    chosen: float = 1.0


class Query(Record):
    """One question to a forecaster: this candidate against that measured anchor.

    `incumbent_log2` is what a new best would have to beat, where that is known; `claim` what the
    proposer says it did.
    """

    problem: Problem
    device: Device
    candidate: Kernel
    anchor: Kernel
    anchor_log2_speedup: float
    anchor_runtime_s: float
    evidence: Evidence | None = None
    anchor_evidence: Evidence | None = None
    incumbent_log2: float | None = None
    claim: Claim = Claim()


class ProposalRequest(Record):
    """A wish for children of one parent; `ordinal` numbers the requests of a run.

    `proposed` counts the kernels that were proposed in it before, duplicates too.
    `fruitless` counts the requests just before that brought nothing new: look further afield.
    `partner` is a second parent of another lineage, whose ideas may be taken over; `history` what
    was tried in this lineage, the latest last; `repair` a child that was sent back, to be put
    right instead of writing another.
    """

    ordinal: int
    problem: Problem
    device: Device
    parent: Kernel
    parent_log2_speedup: float
    parent_runtime_s: float
    parent_measured: bool
    count: int
    seed: int
    proposed: int = 0
    fruitless: int = 0
    partner: Kernel | None = None
    partner_log2_speedup: float = 0.0
    history: tuple[Attempt, ...] = ()
    repair: Repair | None = None


class Proposals(Record):
    """What a proposer answered: kernels it has not compiled, and what the answer cost.

    `claims` are what it says of each, by kernel id; `missed` what it tried and could not make a
    kernel of, and `failure` why there are fewer than were asked for.
    """

    kernels: tuple[Kernel, ...]
    claims: Mapping[str, Claim] = {}
    missed: tuple[Attempt, ...] = ()
    usage: Usage = Usage()
    exhausted: bool = False
    failure: str = ""


# ------------------------------------------------------------------------------------ ledger


class Resource(StrEnum):
    """What can be spent."""

    MEASUREMENTS = "measurements"
    DEVICE_S = "device_s"
    FORECAST_TOKENS = "forecast_tokens"
    FORECAST_USD = "forecast_usd"
    PROPOSAL_TOKENS = "proposal_tokens"
    PROPOSAL_USD = "proposal_usd"


Spend = Mapping[Resource, float]


class Budget(Record):
    """Caps on what a run may spend; None is no cap. `candidates` bounds what is considered."""

    measurements: int | None = Field(default=None, ge=0)
    device_s: float | None = Field(default=None, ge=0)
    forecast_usd: float | None = Field(default=None, ge=0)
    proposal_usd: float | None = Field(default=None, ge=0)
    candidates: int | None = Field(default=None, ge=0)

    def caps(self) -> dict[Resource, float]:
        """The caps the ledger enforces."""
        stated = self.model_dump(exclude={"candidates"}, exclude_none=True)
        return {Resource(name): float(cap) for name, cap in stated.items()}
