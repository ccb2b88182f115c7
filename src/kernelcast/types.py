"""The frozen records that cross module boundaries, on one page (hence above 600 lines).

They hold data and what derives from it alone: no I/O, no policy, no language knowledge. Speedups
are log2 and, unless a name says otherwise, against the problem's reference kernel.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from kernelcast import dtypes
from kernelcast.distribution import Distribution
from kernelcast.expression import evaluate

_NUMBER = re.compile(r"[-+]?(?:0x[0-9a-f]+|\d+(?:\.\d*)?(?:e[-+]?\d+)?)", re.I)

# `languages.py` lists those that are built in. A record may name one that is not installed here.
Language = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=20)]
Parameters = Mapping[str, int | float | str]
SMALLEST_CLAIM_LOG2 = math.log2(1.01)  # no kernel is called faster for less than 1%
UNSTATED_ENTRY = "unstated"  # of a problem that is known by its kernels alone


def shortened(text: str, most: int) -> str:
    """Return a text of at most about so many characters: a mark stands for what is left out."""
    if len(text) <= most:
        return text
    head, tail = 2 * most // 3, most // 3
    return f"{text[:head]}\n[... {len(text) - head - tail} characters ...]\n{text[-tail:]}"


class Record(BaseModel):
    """Base of all records: frozen, closed, comparable, JSON in and out."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


def content_hash(text: str | bytes) -> str:
    """Return the 32 hexadecimal digits that identify some content."""
    data = text.encode() if isinstance(text, str) else text
    return hashlib.sha256(data).hexdigest()[:32]


# ---------------------------------------------------------------------------------- problems


Special = Literal["nan", "inf", "denormal"]
SPECIAL_WORDS: Mapping[Special, str] = {"nan": "NaN", "inf": "infinity", "denormal": "denormals"}


class Fill(Record):
    """How an input array is filled. Bounds may be expressions; `high` is exclusive.

    `drawn`: by the problem's own code, as its `Module` says.
    """

    kind: Literal["normal", "uniform", "integers", "drawn"] = "normal"
    mean: float = 0.0
    std: float = 1.0
    low: float | str = 0.0
    high: float | str = 1.0


class Argument(Record):
    """One array argument of a kernel, in the order of the C signature.

    `special` are the values beside ordinary numbers that an input may hold, and that kernels must
    treat as the oracle does.
    """

    name: str
    role: Literal["input", "output"]
    dtype: dtypes.Name
    shape: tuple[str, ...]
    fill: Fill = Fill()
    special: tuple[Special, ...] = ()

    def extent(self, dimensions: Mapping[str, int]) -> tuple[int, ...]:
        """Return the array's shape for these dimensions."""
        return tuple(int(evaluate(length, dimensions)) for length in self.shape)


class Case(Record):
    """A named set of dimensions; an untimed case only tests correctness.

    `scale` multiplies floating-point inputs. `special` is what inputs of a hidden case hold.
    """

    name: str
    dimensions: Mapping[str, int]
    timed: bool = True
    scale: float = 1.0
    special: Mapping[str, Special] = {}


class Hidden(Record):
    """Inclusive range of each dimension for hidden test shapes."""

    dimensions: Mapping[str, tuple[int, int]]
    constraints: tuple[str, ...] = ()


class Tolerance(Record):
    """Allowed error of each element: |output - oracle| <= atol + rtol * |oracle|."""

    rtol: float
    atol: float


class Module(Record):
    """How the Python of a problem is called: a PyTorch module, or a function of tensors.

    Texts are written as between the parentheses of a call. Their names are arguments, which are
    tensors, and dimensions, which are integers; beside them stand literals, tuples, lists and
    dictionaries. An output that is named in `call` is written by the entry and not made by it.

    `init`: arguments of the class; None if the entry is a function. `call`: arguments of each call;
    all inputs if empty. `returns`: what it returns; all outputs if empty. `reference`: the class or
    function of reference.py that is right by definition. `precision`: the one that it is computed
    in; `native` if float64 is not what it means. `draw`: an expression of dimensions and `seed` by
    which reference.py makes the arguments of a call. `check`: a function of reference.py that also
    judges an output, by True or by True and words.
    """

    init: str | None = None
    call: str = ""
    returns: str = ""
    reference: str = "Model"
    precision: Literal["float64", "native"] = "float64"
    draw: str = ""
    check: str = ""


class Template(Record):
    """A source with macros, and the finite space of their values."""

    source: str = ""
    parameters: Mapping[str, tuple[int | float | str, ...]]
    constraints: tuple[str, ...] = ()

    def admits(self, parameters: Parameters) -> bool:
        """Return True if every constraint holds."""
        return all(evaluate(constraint, parameters) for constraint in self.constraints)

    def render(self, parameters: Parameters) -> str:
        """Return the kernel's source: one #define per parameter, then the template."""
        defines = "".join(f"#define {name} {value}\n" for name, value in parameters.items())
        return defines + self.source

    def configurations(self) -> Iterator[dict[str, int | float | str]]:
        """Yield every admitted configuration, in a fixed order."""
        for values in itertools.product(*self.parameters.values()):
            configuration = dict(zip(self.parameters, values, strict=True))
            if self.admits(configuration):
                yield configuration


class Problem(Record):
    """What to compute: signature, cases, tolerance, work, oracle, seed kernel and template."""

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
    module: Module | None = None

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
        """Return a problem of unknown shapes, which can be ranked or replayed but not measured."""
        return cls(
            name=name,
            family=family,
            summary=summary,
            language=language,
            entry=UNSTATED_ENTRY,
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
        """Hash of everything that a measured time depends on."""
        return content_hash(
            self.model_dump_json(exclude={"summary", "template"}, exclude_defaults=True)
        )

    def in_language_of(self, seed: Kernel) -> Problem:
        """Return the problem for kernels of another language, with this one as the seed.

        A problem in that language already keeps its own seed and template.
        """
        if seed.language == self.language:
            return self
        changes = {"language": seed.language, "seed_source": seed.source, "template": None}
        return Problem(**{**dict(self), **changes})

    @property
    def argument_names(self) -> tuple[str, ...]:
        """The names of arrays and dimensions, in the order of the C signature."""
        return (*(argument.name for argument in self.arguments), *self.dimensions)

    @property
    def timed_cases(self) -> tuple[Case, ...]:
        """The cases that the speedup is averaged over."""
        return tuple(case for case in self.cases if case.timed)


class Kernel(Record):
    """Source code in one language; `id` is the hash of its canonical source."""

    id: str
    language: Language
    source: str
    parameters: Parameters | None = None


class Device(Record):
    """The hardware of a measured time. Peaks are nominal; `source` says where they come from.

    A core is a CPU core, an SM or a CU. `target` is the compilers' name of the architecture. A
    figure of 0 is unknown, or the device has no such thing.
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
        """Name of the device in measurements."""
        return f"{self.name} x{self.cores}"


# ------------------------------------------------------------------------------ measurements


# Precision of a measurement: half-widths of 3%, 1% and 0.5%.
Effort = Literal["screening", "normal", "final"]
MEMORY_ERROR = "uncorrected memory errors"
"""The condition of a measurement in which the device's memory failed."""
MAY_BE_FAST = "the kernel may be fast"
"""What a timeout says that is the machine's fault."""
TIMING_PROTOCOL = "pairs-2"
"""Version of the timing protocol (`backends._timing`). Times of two versions do not compare: a
change of the statistic or of what is timed takes a new one."""
REPORTED = "reported"
"""Toolchain and protocol of a time that another program measured: it serves no other run."""


class FailureKind(StrEnum):
    """Why a kernel has no time."""

    COMPILE_ERROR = "compile_error"
    WRONG_RESULT = "wrong_result"
    CRASH = "crash"
    TIMEOUT = "timeout"
    CHEATING = "cheating"


class Failure(Record):
    """Why a kernel has no time, with a message."""

    kind: FailureKind
    message: str

    @classmethod
    def of(cls, text: str) -> Failure:
        """Return the failure of a kind that has this name, else a crash with this message."""
        kinds = {kind.value: kind for kind in FailureKind}
        return cls(kind=kinds.get(text, FailureKind.CRASH), message=text)

    @property
    def is_mendable(self) -> bool:
        """Whether a proposer may repair the kernel: not if it cheats, or the machine was busy."""
        return self.kind is not FailureKind.CHEATING and MAY_BE_FAST not in self.message

    @property
    def headline(self) -> str:
        """The first line of the message with "error:" (compilers), with "error", or at all."""
        lines = [line.strip() for line in self.message.splitlines() if line.strip()]
        matches = [line for word in ("error:", "error", "") for line in lines if word in line]
        return matches[0] if matches else ""

    def is_like(self, other: Failure) -> bool:
        """Return True if kinds are equal and headlines differ only in numbers."""
        mine, theirs = (_NUMBER.sub("#", failure.headline) for failure in (self, other))
        return self.kind == other.kind and mine == theirs


class CaseTiming(Record):
    """Paired log2 ratios (reference over candidate) of one case, in order of measurement."""

    case: str
    log2_ratios: tuple[float, ...]
    runtime_s: float
    reference_runtime_s: float


class CaseSpeed(Record):
    """How fast a kernel is in one case; the log2 speedup is against the reference."""

    case: str
    runtime_s: float
    log2_speedup: float


class Timing(Record):
    """The median paired log2 speedup and its interval; geometric means over several cases."""

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

    @property
    def speeds(self) -> tuple[CaseSpeed, ...]:
        """The speed of each case, the slowest first."""
        speeds = (
            CaseSpeed(
                case=timing.case,
                runtime_s=timing.runtime_s,
                log2_speedup=statistics.median(timing.log2_ratios or (self.log2_speedup,)),
            )
            for timing in self.cases
        )
        return tuple(sorted(speeds, key=lambda speed: -speed.runtime_s))


class Measurement(Record):
    """A timing or a failure of one kernel, for one problem on one device.

    `noise_log2`: the largest log2 ratio of the reference to itself; None if it is not known.
    `sandbox`: the proven level of isolation. `conditions`: disturbances on the machine. `slot`:
    where it was made, "node/number"; empty on this machine.
    """

    kernel_id: str
    problem_id: str
    device_id: str
    toolchain: str
    timing: Timing | None = None
    failure: Failure | None = None
    noise_log2: float | None = None
    device_s: float
    sandbox: Literal["S0", "S1", "S2", "S3", "S4"] = "S0"
    effort: Effort = "screening"
    protocol: str = "pairs-1"  # of measurements that were stored without it
    conditions: tuple[str, ...] = ()
    slot: str = ""

    def model_post_init(self, _context: Any) -> None:
        """Check that there is either a timing or a failure."""
        if (self.timing is None) == (self.failure is None):
            raise ValueError("a measurement has either a timing or a failure")

    @classmethod
    def reported(
        cls,
        kernel_id: str,
        problem: Problem,
        device: Device,
        *,
        log2_speedup: float | None = None,
        reference_s: float = math.nan,
        failure: Failure | str | None = None,
        cost_s: float = 0.0,
        effort: Effort = "screening",
    ) -> Measurement:
        """Return what another program measured: it states a result, and neither noise nor interval.

        Args:
            kernel_id: The kernel.
            problem: What it computes.
            device: What it was measured on.
            log2_speedup: Against the reference; None if it failed.
            reference_s: Seconds of the reference; NaN if they are not known.
            failure: Why it has no time; a text is read by `Failure.of`.
            cost_s: Device seconds that it took.
            effort: The precision that was asked for.
        """
        timing = None
        if log2_speedup is not None:
            timing = Timing(
                log2_speedup=log2_speedup,
                low=log2_speedup,
                high=log2_speedup,
                resolved=False,
                runtime_s=reference_s * 2.0**-log2_speedup,
                reference_runtime_s=reference_s,
                cases=(),
            )
        if isinstance(failure, str):
            failure = Failure.of(failure)
        return cls(
            kernel_id=kernel_id,
            problem_id=problem.id,
            device_id=device.id,
            toolchain=REPORTED,
            timing=timing,
            failure=failure,
            device_s=cost_s,
            effort=effort,
            protocol=REPORTED,
        )

    @property
    def log2_speedup(self) -> float | None:
        """Log2 speedup against the reference; None for a failed kernel."""
        return self.timing.log2_speedup if self.timing else None

    @property
    def node(self) -> str:
        """Name of the node whose slot made it."""
        return self.slot.rpartition("/")[0]

    @property
    def faster(self) -> bool:
        """True if the interval lies above the noise and above 1%; False if no noise is known."""
        if self.timing is None or self.noise_log2 is None:
            return False
        return self.timing.low > max(self.noise_log2, SMALLEST_CLAIM_LOG2)


# Kinds of instructions, by their names in `backends._inspect`.
_ARITHMETIC = ("vector", "scalar", "fma", "float", "mma", "special")
_WIDE = ("vector", "mma")
_MEMORY = ("memory", "load_global", "store_global")


class Emulated(Record):
    """What emulating the compiled code says of a kernel on a device: an estimate, no measurement.

    `shares` are the times that each part of the hardware alone would take, as shares of the
    estimate; `bound_by` is the largest. `spread_log2` is how far four of five estimates of known
    kernels are from the truth. `used_bytes` is the share of the bytes that global memory moves
    which some lane wants; `bank_conflicts` how many times the turns that shared memory would need
    without them. `lines` are the costliest lines of the source with their shares. None: there is no
    such access. `exact` says that the counts are not sampled.
    """

    case: str
    runtime_s: float
    spread_log2: float
    bound_by: str
    shares: Mapping[str, float]
    occupancy: float
    limiter: str
    sectors_per_request: float | None
    used_bytes: float | None
    bank_conflicts: float | None
    lane_efficiency: float
    lines: tuple[tuple[int, float], ...]
    exact: bool
    cpu_s: float

    @property
    def interval_s(self) -> tuple[float, float]:
        """The times that hold the truth of four of five kernels."""
        factor = 2.0**self.spread_log2
        return self.runtime_s / factor, self.runtime_s * factor

    def facts(self) -> list[tuple[str, str]]:
        """Return what makes the time, in words."""
        shares = sorted(self.shares.items(), key=lambda share: -share[1])
        shown = ", ".join(f"{name} {share:.0%}" for name, share in shares if share >= _SHOWN_SHARE)
        facts = [
            ("bound by", self.bound_by),
            ("alone would take", shown),
            ("occupancy", f"{self.occupancy:.0%}, limited by {self.limiter}"),
            ("busy lanes", f"{self.lane_efficiency:.0%}"),
        ]
        if self.sectors_per_request is not None:
            used = f"{self.used_bytes:.0%} of their bytes are used"
            facts.append(
                ("global memory", f"{self.sectors_per_request:.1f} sectors a request, {used}")
            )
        if self.bank_conflicts is not None:
            conflicts = f"{self.bank_conflicts:.1f} times the turns that it needs without conflicts"
            facts.append(
                ("shared memory", conflicts if self.bank_conflicts > 1 else "no conflicts")
            )
        if not self.exact:
            sampled = "addresses depend on data: some turns of loops were not run"
            facts.append(("sampled", sampled))
        return facts


_SHOWN_SHARE = 0.05


def _ratios(compile_error: float, wrong_result: float, crash: float) -> dict[FailureKind, float]:
    kinds = (FailureKind.COMPILE_ERROR, FailureKind.WRONG_RESULT, FailureKind.CRASH)
    return dict(zip(kinds, (compile_error, wrong_result, crash), strict=True))


# P(outcome | the module fails so) / P(outcome | it runs), fitted by `bench/modules.py`: `read` on
# 2,010 recorded modules that were read alone, the others on 208 that were rehearsed whole.
_RATIOS: Mapping[RehearsalOutcome, Mapping[FailureKind, float]] = {
    "refuted": _ratios(108.0, 5.5, 107.0),
    "read": _ratios(0.29, 0.99, 0.98),
    "failed": _ratios(6.2, 24.5, 7.2),
    "passed": _ratios(0.042, 0.15, 0.088),
    "undecided": _ratios(1.6, 1.2, 0.36),
}
_LONGEST_VERDICT = 200
_LEAST_FEAR = 0.01  # of the failure that a rehearsal names, whatever a forecaster thinks of it
# What evidence says against a kernel, by the kind of its failure; else it does not compile.
_EMULATED_VERDICTS = {
    FailureKind.WRONG_RESULT: "is wrong when it is emulated",
    FailureKind.CRASH: "fails when it is emulated",
}


RehearsalOutcome = Literal["refuted", "read", "failed", "passed", "undecided"]


class Launched(Record):
    """Launches of one GPU function with one geometry, and how many of them a call makes."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0
    count: int = 1


class Operators(Record):
    """What a module's forward calls beside what the reference's does, with counts by name.

    `left`: operators of PyTorch. `replaced`: those of the reference that it does not call. `own`:
    functions of extensions. `moved_bytes` is what all of them read and write in the first timed
    case, if every one ran alone; None if an extension's output is not known.
    """

    left: Mapping[str, int] = {}
    replaced: Mapping[str, int] = {}
    own: Mapping[str, int] = {}
    moved_bytes: int | None = None
    reference_moved_bytes: int | None = None


class Rehearsal(Record):
    """What a module showed on the CPU, without the device that it is written for.

    `failure` is a verdict that may be wrong; with `timed_is_right`, it is about an untimed case
    alone. `undecided` says why the module was not run, or not to its end. `stage` is the last one
    that it reached: its text was read and imported without its extensions, or it also ran on small
    cases, its extensions built for the CPU. `operators` is None where the module cannot be traced.
    """

    failure: Failure | None = None
    timed_is_right: bool = False
    stage: Literal["reading", "running"] = "reading"
    undecided: str = ""
    cpu_s: float = 0.0
    launches: tuple[Launched, ...] = ()
    operators: Operators | None = None

    @property
    def outcome(self) -> RehearsalOutcome:
        """What came of it, as the ratios are fitted for."""
        if self.stage == "reading":
            return "read" if self.failure is None else "refuted"
        if self.failure is not None:
            return "failed"
        return "undecided" if self.undecided else "passed"

    @property
    def verdict(self) -> str:
        """What seems to be wrong, in a line; empty if nothing does."""
        if self.failure is None:
            return ""
        how = "read" if self.stage == "reading" else "run on a CPU"
        return f"it seems to fail when it is {how}: {self.failure.headline[:_LONGEST_VERDICT]}"

    @property
    def likelihood_ratios(self) -> Mapping[FailureKind, float]:
        """How many times likelier this outcome is for modules that fail so than for those that run.

        From recorded modules, by `bench/modules.py`.
        """
        return _RATIOS[self.outcome]


class Evidence(Record):
    """Facts from compiling a kernel and from emulating it, without running it on its device.

    None is unknown. Registers and stack are per thread, shared memory is per block, spills are
    bytes stored and loaded for lack of registers. If a source has several GPU functions, sizes are
    their maxima and counts their sums. `launches` is the least number per call; `launched` is the
    geometry in the first timed case, where the source states it.

    `emulated` has an estimate for each timed case; if it has none, `not_emulated` says why.
    `unchecked` says why the small cases were not emulated to check their results. Both are empty
    for kernels that are never emulated. `rehearsal` stands in where the device is not here and a
    module cannot be built for it. `emulation_cpu_s` is what all of that took.
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
    launched: Launched | None = None
    emulated: tuple[Emulated, ...] = ()
    not_emulated: str = ""
    unchecked: str = ""
    emulation_cpu_s: float = 0.0
    rehearsal: Rehearsal | None = None

    @property
    def estimated_log2_s(self) -> float | None:
        """The mean over the timed cases of log2 of the estimated seconds; None if not emulated."""
        if not self.emulated:
            return None
        return sum(math.log2(case.runtime_s) for case in self.emulated) / len(self.emulated)

    @property
    def compiles(self) -> bool:
        """True if the kernel compiles, whatever emulation finds."""
        return self.failure is None or self.failure.kind in _EMULATED_VERDICTS

    @property
    def is_built(self) -> bool:
        """True if the kernel compiles for its device, which a rehearsal does not show."""
        return self.compiles and self.rehearsal is None

    @property
    def verdict(self) -> str:
        """What a kernel that is not worth a measurement does: "does not compile"; else empty."""
        if self.failure is None:
            return ""
        return _EMULATED_VERDICTS.get(self.failure.kind, "does not compile")

    @property
    def behaviour(self) -> tuple[int, ...]:
        """The kernel's cell in a coarse grid, for kernels of one kind.

        Registers, shared memory, launches, code size and arithmetic intensity (arithmetic per
        memory instruction), in doublings, and the quarters of all instructions that are vector or
        matrix instructions.
        """
        mix = self.instructions
        computing, moving, wide = (
            sum(mix.get(kind, 0) for kind in kinds) for kinds in (_ARITHMETIC, _MEMORY, _WIDE)
        )
        total = mix.get("total") or sum(mix.values()) or 1
        sizes = (self.registers, self.shared_bytes, self.launches, self.code_bytes)
        return (
            *((size or 0).bit_length() for size in sizes),
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
    "shared_memory",
    "coalesce",
    "warp_shuffle",
    "tensor_cores",
    "async_copy",
    "precision",
    "library",
    "other",
]


class Claim(Record):
    """A proposer's own, unchecked description of a kernel."""

    idea: str = ""
    moves: tuple[Move, ...] = ()


class Attempt(Record):
    """An idea that was tried on a kernel, and its outcome.

    `log2_change` is against that kernel, by measurement or, if not `measured`, by forecast; None
    for a failure or an objection, which `outcome` names.
    """

    claim: Claim
    outcome: str
    log2_change: float | None = None
    measured: bool = False


class Repair(Record):
    """A kernel that is sent back to its proposer, with a complaint.

    `number`: which repair it is of the kernel that was proposed first, from 1.
    """

    kernel: Kernel
    complaint: str
    number: int = 1


# ------------------------------------------------------------------- forecasts and decisions


class Usage(Record):
    """Cost of an answer; `unknown` if part of it is an unconfirmed upper bound."""

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
        """Return the sum of several costs."""
        terms = list(usages)
        return cls(
            input_tokens=sum(term.input_tokens for term in terms),
            output_tokens=sum(term.output_tokens for term in terms),
            usd=math.fsum(term.usd for term in terms),
            seconds=math.fsum(term.seconds for term in terms),
            unknown=any(term.unknown for term in terms),
        )


class Stage(Record):
    """One stage of a cascade: the forecaster and its answer.

    `changed`: the decision differs from the one before this stage. An objection ends the cascade.
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

    `uncorrected`: the forecast before recalibration. `stages`: those of a cascade, in order.
    `objection`: why the kernel should not be measured, in words for the proposer. `is_prior`: no
    similar kernel was measured, so the forecast is that of any kernel.
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
        """Probability that the kernel compiles, runs and is correct."""
        return max(0.0, 1.0 - sum(self.failure.values()))

    def conditioned_on(self, evidence: Evidence | None) -> Forecast:
        """Return the forecast after compiling, or after a rehearsal.

        A compile error has probability 1 if the kernel failed to compile, else 0, where the other
        outcomes keep their proportions. A rehearsal may be wrong: it changes the probabilities by
        Bayes' rule.
        """
        if evidence is None:
            return self
        if evidence.failure is not None:
            return self.model_copy(update={"failure": {evidence.failure.kind: 1.0}})
        if evidence.rehearsal is not None:
            return self._after(evidence.rehearsal)
        others = dict(self.failure)
        if others.pop(FailureKind.COMPILE_ERROR, None) is None:
            return self
        left = self.p_ok + sum(others.values())
        failure = {kind: chance / left for kind, chance in others.items()} if left else {}
        return self.model_copy(update={"failure": failure})

    def _after(self, rehearsal: Rehearsal) -> Forecast:
        fears = dict(self.failure)
        if rehearsal.failure is not None:
            named = rehearsal.failure.kind
            fears[named] = max(fears.get(named, 0.0), _LEAST_FEAR)
        ratios = rehearsal.likelihood_ratios
        usual = ratios[FailureKind.WRONG_RESULT]  # of failures that recorded modules do not have
        joint = {kind: chance * ratios.get(kind, usual) for kind, chance in fears.items()}
        total = self.p_ok + sum(joint.values())
        failure = {kind: chance / total for kind, chance in joint.items()} if total else fears
        rationale = "; ".join(filter(None, (rehearsal.verdict, self.rationale)))
        return self.model_copy(update={"failure": failure, "rationale": rationale})

    def against_reference(self) -> Distribution:
        """Return the density over log2 speedup against the problem's reference."""
        return self.distribution.shift(self.anchor_log2_speedup)

    def chance_above(self, log2_speedup: float) -> float:
        """Return the probability that the kernel runs and exceeds this against the reference."""
        return self.p_ok * self.against_reference().probability_above(log2_speedup)

    def gain(self, over_log2: float) -> float:
        """Return the expected log2 speedup beyond a level, which is 0 if the kernel fails.

        It is the one score by which kernels are chosen: policies take the level of the best so far,
        and a ranking takes the level that one kernel of the pool is expected to exceed.
        """
        return self.p_ok * self.against_reference().expected_improvement(over_log2)


class Decision(Record):
    """The action on a candidate, with its score and reason."""

    action: Literal["drop", "trust", "measure", "audit"]
    score: float
    reason: str

    @property
    def measures(self) -> bool:
        """Whether the candidate is measured."""
        return self.action in ("measure", "audit")


class Candidate(Record):
    """A proposed kernel without a decision.

    `chain_std`: standard deviation of the parent's speed, 0 if it was measured. `repair`: how many
    repairs led from the kernel that was proposed first to this one.
    """

    kernel_id: str
    parent_id: str
    ordinal: int
    forecast: Forecast | None = None
    evidence: Evidence | None = None
    claim: Claim = Claim()
    chain_std: float = 0.0
    repair: int = 0


class Node(Record):
    """A kernel in the archive of parents; it was measured unless its `origin` is "forecast".

    `visits`: number of proposals from this kernel. `std_log2`: standard deviation of its speed,
    accumulated since the last measured kernel of its lineage. `behaviour`: cell of its evidence.
    `cases`: the speed of each case, the slowest first; empty if it was not measured.
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
    cases: tuple[CaseSpeed, ...] = ()
    evidence: Evidence | None = None


class Audit(Record):
    """Forecast and outcome of a candidate that was measured whatever its forecast.

    `p_new_best` is 0 if there was an objection.
    """

    p_new_best: float
    new_best: bool


class View(Record):
    """The state of a run, as far as a policy sees it.

    `noise_log2`: that of the reference; None if it is not known. `stale`: number of measurements
    since the last new best. `audits`: the latest ones.
    """

    seed: int
    incumbent_log2: float
    noise_log2: float | None
    measured: int
    free_slots: int
    measurements_left: float
    proposals_exhausted: bool
    stale: int = 0
    considered: int = 0
    audits: tuple[Audit, ...] = ()


Purpose = Literal["reference", "search", "confirmation"]


class Job(Record):
    """One attempt at a measurement, and the ledger entry that pays for it; `run` is `Run.key`.

    A result is accepted only under the current `lease` of its entry; a driver that continues a
    run takes over its jobs by a new lease. `device` is the id of the device to measure on. `avoid`
    is the node whose result it checks: another node measures it, if there is one.
    """

    entry: str
    purpose: Purpose
    kernel: Kernel
    seed: int
    run: str = ""
    attempt: int = 1
    lease: int = 1
    device: str = ""
    avoid: str = ""

    @property
    def effort(self) -> Effort:
        """The precision: candidates are screened, reference and confirmations are more precise."""
        efforts: dict[str, Effort] = {"search": "screening", "reference": "normal"}
        return efforts.get(self.purpose, "final")


class CacheKey(NamedTuple):
    """What makes two measurements comparable, so that one can serve for the other."""

    kernel_id: str
    problem_id: str
    device_id: str
    toolchain: str
    protocol: str
    effort: Effort

    @classmethod
    def of(cls, measurement: Measurement) -> CacheKey:
        """Return the key of a measurement."""
        return cls(*(getattr(measurement, name) for name in cls._fields))


class Loss(Record):
    """An attempt that ended without a measurement, through no fault of the set-up.

    `suspect`: the kernel may be the cause, because its worker died or fell silent beside a healthy
    machine.
    """

    reason: str
    suspect: bool = False


class Observation(Record):
    """One measured kernel for a forecaster to learn; a later one of the same kernel replaces it.

    `writer`: what wrote it, such as the name of a model; empty if unknown. `forecast`: the one when
    it was chosen. `chosen`: the probability of that choice, below 1 for audits, which are drawn
    whatever their forecast.
    """

    kernel: Kernel
    measurement: Measurement
    writer: str = ""
    evidence: Evidence | None = None
    forecast: Forecast | None = None
    chosen: float = 1.0


class PastRun(Record):
    """What another run measured on this device, in the order in which it did."""

    problem: Problem
    device: Device
    observations: tuple[Observation, ...]


class Query(Record):
    """One question to a forecaster: a candidate against an anchor.

    `anchor_measured`: False if neither kernel was measured, so that each may stand for the anchor.
    `anchor_cases`: the anchor's speed by case, the slowest first; empty if it is not known.
    `writer`: what wrote the candidate, such as the name of a model; empty if unknown.
    `incumbent_log2`: the speed that a new best must exceed, if known.
    """

    problem: Problem
    device: Device
    candidate: Kernel
    writer: str = ""
    anchor: Kernel
    anchor_log2_speedup: float
    anchor_runtime_s: float
    anchor_cases: tuple[CaseSpeed, ...] = ()
    anchor_measured: bool = True
    evidence: Evidence | None = None
    anchor_evidence: Evidence | None = None
    incumbent_log2: float | None = None
    claim: Claim = Claim()

    def swapped(self) -> Query:
        """Return the question with candidate and anchor exchanged."""
        return self.model_copy(
            update={
                "candidate": self.anchor,
                "anchor": self.candidate,
                "evidence": self.anchor_evidence,
                "anchor_evidence": self.evidence,
                "anchor_cases": (),
                "claim": Claim(),
            }
        )


class ProposalRequest(Record):
    """A request for children of one parent; `ordinal` numbers the requests of a run.

    `proposed`: number of kernels proposed before in the run, with duplicates. `fruitless`: number
    of last requests without a new kernel. `partner`: a second parent of another lineage, whose
    ideas may be used. `history`: attempts in this lineage, the latest last. `repair`: a child to
    repair instead of writing a new one. `run_seed`: the run's own seed, equal in all requests.

    `parent_cases`: the parent's speed by case, the slowest first; empty if it was not measured.
    `parent_evidence`: None if it was not inspected. `bold`: small steps bring nothing more, so the
    child should be another idea.
    """

    ordinal: int
    problem: Problem
    device: Device
    parent: Kernel
    parent_log2_speedup: float
    parent_runtime_s: float
    parent_measured: bool
    parent_cases: tuple[CaseSpeed, ...] = ()
    parent_evidence: Evidence | None = None
    count: int
    seed: int
    proposed: int = 0
    fruitless: int = 0
    partner: Kernel | None = None
    partner_log2_speedup: float = 0.0
    history: tuple[Attempt, ...] = ()
    repair: Repair | None = None
    bold: bool = False
    run_seed: int = 0


class Proposals(Record):
    """A proposer's answer: kernels that are not compiled yet, and the cost of the answer.

    `claims`: by kernel id. `missed`: attempts without a kernel. `failure`: why there are fewer
    kernels than requested.
    """

    kernels: tuple[Kernel, ...]
    claims: Mapping[str, Claim] = {}
    missed: tuple[Attempt, ...] = ()
    usage: Usage = Usage()
    exhausted: bool = False
    failure: str = ""


# ------------------------------------------------------------------------------------ ledger


class Resource(StrEnum):
    """A resource that a run spends."""

    MEASUREMENTS = "measurements"
    DEVICE_S = "device_s"
    FORECAST_TOKENS = "forecast_tokens"
    FORECAST_USD = "forecast_usd"
    PROPOSAL_TOKENS = "proposal_tokens"
    PROPOSAL_USD = "proposal_usd"
    CPU_S = "cpu_s"


Spend = Mapping[Resource, float]


class Budget(Record):
    """Caps on what a run may spend and on the candidates it considers; None is no cap."""

    measurements: int | None = Field(default=None, ge=0)
    device_s: float | None = Field(default=None, ge=0)
    forecast_usd: float | None = Field(default=None, ge=0)
    proposal_usd: float | None = Field(default=None, ge=0)
    candidates: int | None = Field(default=None, ge=0)

    def caps(self) -> dict[Resource, float]:
        """Return the caps that the ledger enforces."""
        caps = ((resource, vars(self).get(resource)) for resource in Resource)
        return {resource: float(cap) for resource, cap in caps if cap is not None}
