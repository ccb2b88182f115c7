"""Readers of what compilers and disassemblers say about compiled code.

Resources come from `ptxas -v` or the metadata at the end of AMD assembly; the instruction mix from
SASS, PTX, AMD assembly or objdump; occupancy from these and a `Device`. Nothing here starts a
process. Text that does not match is left out, never guessed at.
"""

from __future__ import annotations

import math
import re
import struct
import tomllib
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kernelcast.types import Device, Failure, FailureKind


def _sections(header: re.Pattern[str], text: str) -> list[tuple[str, str]]:
    """Name of each header, and the text up to the next."""
    parts = header.split(text)
    return list(zip(parts[1::2], parts[2::2], strict=True))


# ----------------------------------------------------------------------------------- resources


@dataclass(frozen=True)
class Resources:
    """What one thread (registers, stack, spills) or one block (shared) of a function takes.

    `shared_bytes` is what the source asks for, without what the system reserves. `spill_bytes` are
    stored and loaded by the instructions that spill.
    """

    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_bytes: int


def largest(resources: Iterable[Resources]) -> Resources | None:
    """Resources of several functions together: the largest sizes, and the sum of spills."""
    functions = list(resources)
    if not functions:
        return None
    return Resources(
        registers=max(function.registers for function in functions),
        shared_bytes=max(function.shared_bytes for function in functions),
        stack_bytes=max(function.stack_bytes for function in functions),
        spill_bytes=sum(function.spill_bytes for function in functions),
    )


_PTXAS_ENTRY = re.compile(r"Compiling entry function '([^']+)' for '[^']+'")
_PTXAS_STACK = re.compile(
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
)
_PTXAS_USED = re.compile(r"Used (\d+) registers(?:.*?\b(\d+)(?:\+\d+)? bytes smem)?")


def read_ptxas(log: str) -> dict[str, Resources]:
    """Resources by entry function from the log of `ptxas -v` (or `nvcc -Xptxas -v`)."""
    resources: dict[str, Resources] = {}
    for name, text in _sections(_PTXAS_ENTRY, log):
        if used := _PTXAS_USED.search(text):
            sizes = _PTXAS_STACK.search(text)
            stack, stores, loads = map(int, sizes.groups()) if sizes else (0, 0, 0)
            resources[name] = Resources(int(used[1]), int(used[2] or 0), stack, stores + loads)
    return resources


_AMD_FIELD = re.compile(
    r"^ +(?:- +)?\.(vgpr_count|group_segment_fixed_size|private_segment_fixed_size|"
    r"vgpr_spill_count): +(\d+)$",
    re.MULTILINE,
)


def read_amdgcn(assembly: str) -> Resources | None:
    """Resources of the one kernel in a file of AMD assembly, from the metadata at its end.

    Registers are vector registers, with those of the matrix unit. The metadata count spilled
    registers: each is at least a store and a load of 4 bytes.
    """
    fields = dict(_AMD_FIELD.findall(assembly.partition(".amdgpu_metadata")[2]))
    if "vgpr_count" not in fields:
        return None
    return Resources(
        registers=int(fields["vgpr_count"]),
        shared_bytes=int(fields.get("group_segment_fixed_size", 0)),
        stack_bytes=int(fields.get("private_segment_fixed_size", 0)),
        spill_bytes=8 * int(fields.get("vgpr_spill_count", 0)),
    )


_PTX_ENTRY = re.compile(r"\.entry\s+([\w$]+)")
_PTX_BOUND = re.compile(r"^\.(?:reqntid|maxntid) (\d+(?:, *\d+)*)", re.MULTILINE)
_PTX_PARAMETER = re.compile(r"\.param (?:\.align \d+ )?\.[a-z](\d+)\b[^,)]*?(\[\d+\])?\s*(?:,|$)")


def launch_bounds(ptx: str) -> dict[str, int]:
    """Threads a block by entry function, where `__launch_bounds__` or the compiler states them."""
    return {
        name: math.prod(map(int, bound[1].split(",")))
        for name, text in _sections(_PTX_ENTRY, ptx)
        if (bound := _PTX_BOUND.search(text.partition("{")[0]))
    }


def parameter_widths(ptx: str) -> dict[str, tuple[int, ...]]:
    """Bytes of each parameter by entry function; a structure passed by value is its whole size."""
    return {
        name: tuple(
            int(bits) // 8 * int(count.strip("[]") or 1)
            for bits, count in _PTX_PARAMETER.findall(
                text.partition("(")[2].partition(")")[0].strip()
            )
        )
        for name, text in _sections(_PTX_ENTRY, ptx)
    }


# ----------------------------------------------------------------------------------- occupancy


class _Allocation(NamedTuple):
    """Units in which a core hands out registers (to a warp) and shared memory (to a block)."""

    register_unit: int
    partitions: int
    shared_unit: int
    reserved_shared_bytes: int


def _allocation(device: Device) -> _Allocation:
    """NVIDIA: what cuda_occupancy.h (CUDA 13) assumes. AMD: the granules of LLVM's AMDGPU guide."""
    if number := re.fullmatch(r"sm_(\d+)[af]?", device.target):
        recent = int(number[1]) >= 80
        return _Allocation(256, 4, 128, 1024) if recent else _Allocation(256, 4, 256, 0)
    if device.target.startswith("gfx9"):
        granule = 8 if device.target in ("gfx90a", "gfx942", "gfx950") else 4
        return _Allocation(granule * device.warp, 4, 512, 0)
    granule = 24 if device.target in ("gfx1100", "gfx1101") else 16
    return _Allocation(granule * device.warp, 2, 512, 0)


@dataclass(frozen=True)
class Residency:
    """How many blocks a core holds at once, and what allows no more."""

    blocks: int
    occupancy: float
    """The share of a core's warps that are taken; 0 if a block does not fit."""
    limiter: str


def residency(device: Device, registers: int, shared_bytes: int, block_threads: int) -> Residency:
    """Return how many blocks a core holds at once.

    Registers go to warps in units of the device's generation, from the partition that the warp
    runs on. Shared memory goes to blocks, with a kilobyte more for the system from sm_80 on.
    """
    units = _allocation(device)
    most_warps = device.threads_per_core // device.warp
    warps = -(-block_threads // device.warp)
    limits = {"blocks": device.blocks_per_core, "threads": most_warps // warps}
    if registers:
        per_warp = _round_up(registers * device.warp, units.register_unit)
        warps_at_once = device.registers_per_core // units.partitions // per_warp * units.partitions
        # The hardware checks a launch as if its warps filled every partition.
        checked = per_warp * _round_up(warps, units.partitions)
        fits = checked <= device.registers_per_core
        limits["registers"] = warps_at_once // warps if fits else 0
    per_block = _round_up(shared_bytes + units.reserved_shared_bytes, units.shared_unit)
    if shared_bytes > device.shared_bytes_per_block:
        limits["shared memory"] = 0
    elif per_block:
        limits["shared memory"] = device.shared_bytes_per_core // per_block
    limiter = min(limits, key=lambda name: limits[name])
    blocks = limits[limiter]
    return Residency(blocks, blocks * warps / most_warps, limiter)


def _round_up(amount: int, unit: int) -> int:
    return -(-amount // unit) * unit


# ------------------------------------------------------------------------------------- the mix

_OPCODES = tomllib.loads(Path(__file__).with_name("opcodes.toml").read_text())
# Every instruction but padding is in exactly one group and in `total`.
GROUPS: tuple[str, ...] = tuple(_OPCODES.pop("groups").split())
_PATTERNS = {
    language: {
        group: re.compile(rf"(?:{'|'.join(expressions.split())})(?![^.])")
        for group, expressions in groups.items()
    }
    for language, groups in _OPCODES.items()
}
_SASS_SECTION = re.compile(r"^\s*(?://-+ )?\.text\.(\S+?):?(?:\s+-+)?$", re.MULTILINE)
_SASS_INSTRUCTION = re.compile(
    r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:\{\s*)?(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)", re.MULTILINE
)
_SASS_BYTES = 16  # of an instruction, since Volta
_PTX_INSTRUCTION = re.compile(
    r"^\s*(?:@!?%\w+\s+)?([a-z][a-z0-9_]*(?:\.[\w:]+)*)[ \t]*[^;\n]*;", re.MULTILINE
)
_AMD_INSTRUCTION = re.compile(
    r"^\s+((?:v|s|ds|global|flat|buffer|scratch|tbuffer|image|exp)_\w+)", re.MULTILINE
)


def sass_mix(listing: str, function: str | None = None) -> tuple[int, dict[str, int]]:
    """Bytes of code and instructions by group from `nvdisasm -c`; of one function, or of all."""
    mix = _mix("sass", _SASS_INSTRUCTION.findall(_code_of(_SASS_SECTION, listing, function)))
    return _SASS_BYTES * mix["total"], mix


def ptx_mix(ptx: str) -> dict[str, int]:
    """Instructions by group from PTX: before register allocation, so nearer to the source."""
    bodies = (text.partition("{")[2] for _, text in _sections(_PTX_ENTRY, ptx))
    return _mix("ptx", _PTX_INSTRUCTION.findall("\n".join(bodies)))


def amdgcn_mix(assembly: str) -> dict[str, int]:
    """Instructions by group from AMD assembly."""
    return _mix("amd", _AMD_INSTRUCTION.findall(assembly.partition(".amdgpu_metadata")[0]))


def _mix(language: str, instructions: Iterable[str]) -> dict[str, int]:
    mix: Counter[str] = Counter()
    for instruction, count in Counter(instructions).items():
        if instruction not in ("NOP", "s_nop"):
            groups = (g for g, pattern in _PATTERNS[language].items() if pattern.match(instruction))
            mix[next(groups, "other")] += count
    return {"total": mix.total()} | {group: mix[group] for group in GROUPS}


def _code_of(header: re.Pattern[str], listing: str, function: str | None) -> str:
    if function is None:
        return listing
    return "\n".join(text for name, text in _sections(header, listing) if name == function)


# The options of objdump for `object_mix`.
OBJDUMP_OPTIONS = ("-h", "-d", "-j", ".text", "--no-show-raw-insn")
_KINDS = ("total", "vector", "zmm", "ymm", "scalar", "fma", "memory", "stack", "branch", "call")
_TEXT_SECTION = re.compile(r"^\s*\d+\s+\.text\s+([0-9a-f]+)", re.MULTILINE)
_FUNCTION = re.compile(r"^[0-9a-f]+ <(\S+)>:$", re.MULTILINE)
_INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\t(\S+)[ \t]*(.*)$", re.MULTILINE)
_PACKED = re.compile(r"[xyz]mm|\bv\d+\.\d+[bhsd]")


def object_mix(listing: str, function: str | None = None) -> tuple[int, dict[str, int]]:
    """Bytes of code and instructions by kind from objdump's listing; of one function, or of all.

    Kinds overlap: a vector load counts as vector and as memory. `stack` are accesses relative to
    the stack pointer, most of them spills.
    """
    mix = dict.fromkeys(_KINDS, 0)
    instructions = _INSTRUCTION.findall(_code_of(_FUNCTION, listing, function))
    for _, mnemonic, operands in instructions:
        mix["total"] += 1
        if mnemonic.startswith("j"):
            mix["branch"] += 1
        elif mnemonic.startswith("call"):
            mix["call"] += 1
        elif _PACKED.search(operands):
            if mnemonic.endswith(("ss", "sd")):
                mix["scalar"] += 1
            else:
                mix["vector"] += 1
                mix["zmm"] += "zmm" in operands
                mix["ymm"] += "ymm" in operands and "zmm" not in operands
            mix["fma"] += mnemonic.startswith(("vfm", "vfnm"))
        if "(" in operands and not mnemonic.startswith(("lea", "nop")):
            mix["memory"] += 1
            mix["stack"] += "(%rsp" in operands
    if function is None:
        section = _TEXT_SECTION.search(listing)
        return int(section[1], 16) if section else 0, mix
    addresses = [int(address, 16) for address, _, _ in instructions]  # up to the last one's start
    return addresses[-1] - addresses[0] + 1 if addresses else 0, mix


# ------------------------------------------------------------------------- code of a restricted C

CODE_OPTIONS = ("-D", "-z", "-j", ".text", "-j", ".plt", "--no-show-raw-insn")
"""The options of objdump for `strange_instruction`: every byte that can run, also if it is marked
as data."""
# No compiler makes these of a language without a system, a clock, threads or modes: x86, then ARM.
_STRANGE = re.compile(
    r"\b(?:syscall|sysenter|sysexit|sysret\w?|int|into|iret\w?|lcall|ljmp|lret\w?|rdtscp?|rdpmc"
    r"|rdpid|rdrand|rdseed|cpuid|x[gs]etbv|(?:rd|wr)[fg]sbase|(?:rd|wr)pkru|v?ldmxcsr|fldcw|fldenv"
    r"|frstor|fxrstor\w*|xrstor\w*|popf\w?|cli|sti|hlt|in|out|ins\w|outs\w|xbegin|xend|xabort|xtest"
    r"|u?monitor\w?|u?mwait\w?|tpause|enqcmds?|senduipi"
    r"|svc|hvc|smc|mrs|msr|sysl?|blr)\b|\(bad\)|%[fg]s\b"
)
_BRANCH = re.compile(r"\b(?:j\w+|call|loop\w*)\s+([0-9a-f]+)$")
_INDIRECT = re.compile(r"\b(?:jmp|call)\w?\s+\*(\S*)")
_SECTION_OF_CODE = re.compile(r"^Disassembly of section (\S+):$", re.MULTILINE)
_SWITCH_REACH = 16


def strange_instruction(listing: str) -> str | None:
    """The first instruction that no compiler makes of OpenCL C, from objdump's listing.

    Besides system calls, clocks and modes, these are jumps into the middle of an instruction, calls
    of an address that is computed, and jumps to one that are no `switch`.
    """
    starts: set[int] = set()
    branches: list[tuple[int, str]] = []
    for section, code in _sections(_SECTION_OF_CODE, listing):
        recent: deque[str] = deque(maxlen=_SWITCH_REACH)
        for line in _INSTRUCTION.finditer(code):
            # Behind these are only names and addresses, in objdump's words.
            text = re.split(r"\s*[<#]", f"{line[2]} {line[3]}", maxsplit=1)[0].strip()
            starts.add(int(line[1], 16))
            if _STRANGE.search(text):
                return text
            if branch := _BRANCH.search(text):
                branches.append((int(branch[1], 16), text))
            elif (indirect := _INDIRECT.search(text)) and section != ".plt":
                register = re.escape(indirect[1])
                table = re.compile(rf"movslq \(%\w+,%\w+,4\),{register}$")
                if "call" in text or not any(map(table.search, recent)):
                    return text
            recent.append(text)
    return next((text for target, text in branches if target not in starts), None)


# --------------------------------------------------------------------------------- shared libraries

_ELF_HEADER = struct.Struct("<16s HHI QQQ IHHHHHH")
_ELF_SEGMENT = struct.Struct("<II QQQ QQQ")
_ELF_SECTION = struct.Struct("<II QQQQ II QQ")
_ELF_SYMBOL = struct.Struct("<IBBH QQ")
_DYNAMIC_SYMBOLS = 11
MOST_LIBRARY_BYTES = 32 << 20


def foreign_imports(library: Path, is_foreign: Callable[[str], bool]) -> Failure | None:
    """Why not to load a library: it is too large, hides its imports, or they are foreign."""
    with library.open("rb") as file:
        content = file.read(MOST_LIBRARY_BYTES + 1)
    if len(content) > MOST_LIBRARY_BYTES:
        message = f"the library has more than {MOST_LIBRARY_BYTES >> 20} MB"
        return Failure(kind=FailureKind.COMPILE_ERROR, message=message)
    imported = imported_symbols(content)
    if imported is None:
        return Failure(kind=FailureKind.COMPILE_ERROR, message="the library names no symbols")
    if foreign := sorted(filter(is_foreign, imported)):
        message = f"wants of the system what no kernel needs: {', '.join(foreign)}"
        return Failure(kind=FailureKind.CHEATING, message=message)
    return None


_CODE_SECTIONS = (b".text", b".plt")
_LOADED, _STACK = 1, 0x6474E551
_DYNAMIC, _STRINGS, _RELOCATIONS = 6, 3, 4
# Entries of the dynamic section: code that runs when it is loaded or unloaded, or is changed.
_STRANGE_ENTRIES = {12: "INIT", 13: "FINI", 22: "TEXTREL", 25: "INIT_ARRAY", 26: "FINI_ARRAY"}
_STRANGE_ENTRIES[32] = "PREINIT_ARRAY"
_INDIRECT_FUNCTIONS = (37, 1032)  # R_X86_64_IRELATIVE, R_AARCH64_IRELATIVE


def strange_part(library: bytes) -> str | None:
    """What no linker makes of OpenCL C: constructors, more code, or code that can be written."""
    try:
        header = _ELF_HEADER.unpack_from(library)
        segments = [
            _ELF_SEGMENT.unpack_from(library, header[5] + index * header[9])
            for index in range(header[10])
        ]
        sections = [
            _ELF_SECTION.unpack_from(library, header[6] + index * header[11])
            for index in range(header[12])
        ]
        names_at = sections[header[13]][4]
    except (struct.error, IndexError, OverflowError):
        return "tables that cannot be read"
    for kind, flags, *_ in segments:
        if kind in (_LOADED, _STACK) and flags & 1 and (flags & 2 or kind == _STACK):
            return "memory that can be written and executed"
    for name_at, kind, flags, _, start, length, *_ in sections:
        content = library[start : start + length]
        if flags & 4:  # it can be executed
            name = library[names_at + name_at : library.find(b"\0", names_at + name_at)]
            if name not in _CODE_SECTIONS:
                return f"code in {name!r:.80}"
        if kind == _DYNAMIC:
            for tag, _ in struct.iter_unpack("<QQ", content[: len(content) & -16]):
                if tag in _STRANGE_ENTRIES:
                    return _STRANGE_ENTRIES[tag]
        if kind == _STRINGS and re.search(rb"[^\0\x21-\x7e]", content):
            return "names that are no names"
        if kind == _RELOCATIONS:
            for _, what, _ in struct.iter_unpack("<QQQ", content[: len(content) // 24 * 24]):
                if what & 0xFFFFFFFF in _INDIRECT_FUNCTIONS:
                    return "functions that are chosen when it is loaded"
    return None


def imported_symbols(library: bytes) -> set[str] | None:
    """Names of the symbols that a 64-bit ELF library imports; None if it does not list them."""
    try:
        header = _ELF_HEADER.unpack_from(library)
        at, size, count = header[6], header[11], header[12]
        sections = [_ELF_SECTION.unpack_from(library, at + index * size) for index in range(count)]
        tables = [section for section in sections if section[1] == _DYNAMIC_SYMBOLS]
        if header[0][:4] != b"\x7fELF" or not tables:
            return None
        symbols = set()
        for _, _, _, _, start, length, strings, *_ in tables:
            names_at = sections[strings][4]
            for offset in range(start, start + length, _ELF_SYMBOL.size):
                name, _, _, section, _, _ = _ELF_SYMBOL.unpack_from(library, offset)
                if name and section == 0:
                    end = library.index(b"\0", names_at + name)
                    symbols.add(library[names_at + name : end].decode(errors="replace"))
        return symbols
    except (struct.error, IndexError, ValueError, OverflowError):
        return None
