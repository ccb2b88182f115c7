"""What compiled code says about itself: pure readers of what compilers and disassemblers give.

Resources come from `ptxas -v`, `cuobjdump -res-usage` or the metadata at the end of AMD assembly;
the instruction mix from SASS, PTX, AMD assembly or objdump; occupancy from these and a `Device`.
Nothing here starts a process. Text that does not match is left out, never guessed at.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kernelcast.types import Device, Failure, FailureKind

# Every instruction but padding is in exactly one group and in `total`.
GROUPS = (
    "fma",
    "float",
    "mma",
    "special",
    "convert",
    "integer",
    "move",
    "load_global",
    "store_global",
    "load_shared",
    "store_shared",
    "load_local",
    "store_local",
    "load_constant",
    "async_copy",
    "tensor_memory",
    "atomic",
    "shuffle",
    "branch",
    "sync",
    "other",
)


# ----------------------------------------------------------------------------------- resources


@dataclass(frozen=True)
class Resources:
    """What one thread (registers, stack) or one block (shared) of a function takes.

    `shared_bytes` is what the source asks for, without what the system reserves. Spills are None
    where the tool does not tell them from other use of the stack.
    """

    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_store_bytes: int | None = None
    spill_load_bytes: int | None = None
    constant_bytes: int | None = None

    @property
    def spill_bytes(self) -> int | None:
        """Bytes stored and loaded by the instructions that spill."""
        if self.spill_store_bytes is None or self.spill_load_bytes is None:
            return None
        return self.spill_store_bytes + self.spill_load_bytes


def largest(resources: Iterable[Resources]) -> Resources | None:
    """Of several functions together: sizes are the largest, spills the sum."""
    each = list(resources)
    if not each:
        return None
    return Resources(
        registers=max(one.registers for one in each),
        shared_bytes=max(one.shared_bytes for one in each),
        stack_bytes=max(one.stack_bytes for one in each),
        spill_store_bytes=_total(one.spill_store_bytes for one in each),
        spill_load_bytes=_total(one.spill_load_bytes for one in each),
        constant_bytes=_total(one.constant_bytes for one in each),
    )


def _total(amounts: Iterable[int | None]) -> int | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None


_PTXAS_ENTRY = re.compile(r"Compiling entry function '([^']+)' for '([^']+)'")
_PTXAS_STACK = re.compile(
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
)
_PTXAS_USED = re.compile(r"Used (\d+) registers(.*)")
_PTXAS_SHARED = re.compile(r"(\d+)(?:\+(\d+))? bytes smem")
_PTXAS_CONSTANT = re.compile(r"(\d+) bytes cmem\[\d+\]")


def read_ptxas(log: str) -> dict[str, Resources]:
    """Resources by entry function from the log of `ptxas -v` (or `nvcc -Xptxas -v`)."""
    found: dict[str, Resources] = {}
    parts = _PTXAS_ENTRY.split(log)
    for name, text in zip(parts[1::3], parts[3::3], strict=True):
        stack, used = _PTXAS_STACK.search(text), _PTXAS_USED.search(text)
        if used is None:
            continue
        shared = _PTXAS_SHARED.search(used[2])
        constants = _PTXAS_CONSTANT.findall(used[2])
        found[name] = Resources(
            registers=int(used[1]),
            shared_bytes=int(shared[1]) if shared else 0,
            stack_bytes=int(stack[1]) if stack else 0,
            spill_store_bytes=int(stack[2]) if stack else 0,
            spill_load_bytes=int(stack[3]) if stack else 0,
            constant_bytes=sum(map(int, constants)) if constants else None,
        )
    return found


_USAGE = re.compile(
    r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)((?: CONSTANT\[\d+\]:\d+)*)"
)


def read_cuobjdump(listing: str, target: str) -> dict[str, Resources]:
    """Resources by function from `cuobjdump -res-usage`; it does not tell spills from the stack.

    From sm_90 on, what it calls SHARED contains the kilobyte that the system reserves.
    """
    reserved = _RESERVED_SHARED_BYTES if _capability(target) >= 90 else 0
    return {
        name: Resources(
            registers=int(registers),
            shared_bytes=max(0, int(shared) - reserved),
            stack_bytes=int(stack) + int(local),
            constant_bytes=sum(map(int, re.findall(r":(\d+)", constants))),
        )
        for name, registers, stack, shared, local, constants in _USAGE.findall(listing)
    }


_AMD_FIELD = re.compile(
    r"^ +(?:- +)?\.(vgpr_count|group_segment_fixed_size|private_segment_fixed_size|"
    r"vgpr_spill_count): +(\d+)$",
    re.MULTILINE,
)


def read_amdgcn(assembly: str) -> Resources | None:
    """Resources of the one kernel of a file of AMD assembly, from the metadata at its end.

    Registers are vector registers (those of the matrix unit are part of the count). Spills are
    counted in registers there: a spilled one is a store and a load of 4 bytes at the least.
    """
    stated = dict(_AMD_FIELD.findall(assembly.partition(".amdgpu_metadata")[2]))
    if "vgpr_count" not in stated:
        return None
    spilled = 4 * int(stated.get("vgpr_spill_count", 0))
    return Resources(
        registers=int(stated["vgpr_count"]),
        shared_bytes=int(stated.get("group_segment_fixed_size", 0)),
        stack_bytes=int(stated.get("private_segment_fixed_size", 0)),
        spill_store_bytes=spilled,
        spill_load_bytes=spilled,
    )


_PTX_BOUND = re.compile(r"^\.(?:reqntid|maxntid) (\d+(?:, *\d+)*)", re.MULTILINE)
_PTX_ENTRY = re.compile(r"\.entry\s+([\w$]+)")


def launch_bounds(ptx: str) -> dict[str, int]:
    """Threads a block by entry function, where `__launch_bounds__` or the compiler states them."""
    found = {}
    parts = _PTX_ENTRY.split(ptx)
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        if bound := _PTX_BOUND.search(text.partition("{")[0]):
            threads = 1
            for extent in bound[1].split(","):
                threads *= int(extent)
            found[name] = threads
    return found


_PTX_PARAMETER = re.compile(r"\.param (?:\.align \d+ )?\.[a-z](\d+)\b[^,)]*?(\[\d+\])?\s*(?:,|$)")


def parameter_widths(ptx: str) -> dict[str, tuple[int, ...]]:
    """Bytes of each parameter by entry function; a structure passed by value is its whole size."""
    found = {}
    parts = _PTX_ENTRY.split(ptx)
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        listed = text.partition("(")[2].partition(")")[0]
        found[name] = tuple(
            int(bits) // 8 * int(count.strip("[]") or 1)
            for bits, count in _PTX_PARAMETER.findall(listed.strip())
        )
    return found


# ----------------------------------------------------------------------------------- occupancy

_RESERVED_SHARED_BYTES = 1024


@dataclass(frozen=True)
class _Allocation:
    """In what units a core hands out its registers (to a warp) and shared memory (to a block)."""

    register_unit: int
    partitions: int
    shared_unit: int
    reserved_shared_bytes: int


def _allocation(device: Device) -> _Allocation:
    """NVIDIA: what cuda_occupancy.h (CUDA 13) assumes. AMD: the granules of LLVM's AMDGPU guide."""
    if device.target.startswith("sm_"):
        recent = _capability(device.target) >= 80
        return _Allocation(
            register_unit=256,
            partitions=4,
            shared_unit=128 if recent else 256,
            reserved_shared_bytes=_RESERVED_SHARED_BYTES if recent else 0,
        )
    if device.target.startswith("gfx9"):
        granule = 8 if device.target in ("gfx90a", "gfx942", "gfx950") else 4
        return _Allocation(granule * device.warp, 4, 512, 0)
    granule = 24 if device.target in ("gfx1100", "gfx1101") else 16
    return _Allocation(granule * device.warp, 2, 512, 0)


def occupancy(device: Device, registers: int, shared_bytes: int, block_threads: int) -> float:
    """The part of a core's warps that can be resident at once; 0 where a block does not fit.

    Registers go to warps in units of the device's generation, from the partition that the warp
    runs on; shared memory goes to blocks, with a kilobyte more for the system from sm_80 on.
    """
    units = _allocation(device)
    most_warps = device.threads_per_core // device.warp
    warps = -(-block_threads // device.warp)
    limits = [device.blocks_per_core, most_warps // warps]
    if registers:
        per_warp = _round_up(registers * device.warp, units.register_unit)
        warps_at_once = device.registers_per_core // units.partitions // per_warp * units.partitions
        # The hardware checks a launch as if its warps filled every partition.
        checked = per_warp * _round_up(warps, units.partitions)
        limits.append(warps_at_once // warps if checked <= device.registers_per_core else 0)
    per_block = _round_up(shared_bytes + units.reserved_shared_bytes, units.shared_unit)
    if shared_bytes > device.shared_bytes_per_block:
        limits.append(0)
    elif per_block:
        limits.append(device.shared_bytes_per_core // per_block)
    return min(limits) * warps / most_warps


def _round_up(amount: int, unit: int) -> int:
    return -(-amount // unit) * unit


def _capability(target: str) -> int:
    """80 of sm_80, 100 of sm_100a; 0 where it is no NVIDIA target."""
    number = re.fullmatch(r"sm_(\d+)[af]?", target)
    return int(number[1]) if number else 0


# ------------------------------------------------------------------------------------- the mix

_SASS_SECTION = re.compile(r"^\s*(?://-+ )?\.text\.(\S+?):?(?:\s+-+)?$", re.MULTILINE)
_SASS_INSTRUCTION = re.compile(
    r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:\{\s*)?(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)", re.MULTILINE
)
_SASS_BYTES = 16  # an instruction since Volta

_SASS_GROUPS: Mapping[str, str] = {
    opcode: group
    for group, opcodes in {
        "fma": "FFMA FFMA2 FFMA32I HFMA2 HFMA2_32I DFMA",
        "float": "FADD FADD2 FADD32I FMUL FMUL2 FMUL32I FMNMX FMNMX3 FSEL FSET FSETP FCHK FSWZADD "
        "HADD2 HADD2_32I HMUL2 HMUL2_32I HMNMX2 HSET2 HSETP2 DADD DMUL DSETP DMNMX",
        "special": "MUFU",
        "convert": "F2F F2I F2FP F2IP FRND I2F I2FP I2I I2IP",
        "integer": "IADD IADD3 IADD32I IMAD IMUL IMNMX IMNMX3 ISETP ISET ISCADD IDP IDP4A IABS LEA "
        "LOP LOP3 LOP32I PLOP3 SHF SHL SHR POPC FLO BREV BMSK BFE BFI SGXT PRMT VABSDIFF VABSDIFF4 "
        "VIADD VIADDMNMX VIMNMX VIMNMX3 UIADD3 UIMAD UISETP UIMNMX ULEA ULOP ULOP3 ULOP32I UPLOP3 "
        "USHF USHL USHR UPOPC UFLO UBREV UBMSK USGXT UPRMT UVIADD UVIMNMX XMAD",
        "move": "MOV MOV32I MOVM UMOV SEL USEL CS2R CS2UR S2R S2UR R2P P2R R2UR UR2UP UP2UR P2UR "
        "UR2R B2R R2B LEPC GETLMEMBASE",
        "load_global": "LD LDG",
        "store_global": "ST STG",
        "load_shared": "LDS LDSM",
        "store_shared": "STS STSM",
        "load_local": "LDL",
        "store_local": "STL",
        "load_constant": "LDC LDCU ULDC",
        "async_copy": "LDGSTS UBLKCP UBLKRED UBLKPF UTMALDG UTMASTG UTMAREDG UTMAPF",
        "tensor_memory": "LDTM STTM UTCCP UTCATOMSWS UTCSHIFT",
        "atomic": "ATOM ATOMG ATOMS RED REDG REDAS",
        "shuffle": "SHFL VOTE VOTEU MATCH REDUX CREDUX ELECT",
        "branch": "BRA BRX BRXU JMP JMX JMXU CALL RET EXIT BSSY BSYNC BREAK BMOV KILL RPCMOV BPT "
        "YIELD NANOSLEEP",
        "sync": "BAR DEPBAR LDGDEPBAR MEMBAR ERRBAR WARPSYNC WARPSYNC_ALL SYNCS ARRIVES FENCE CCTL "
        "CCTLL UCGABAR_ARV UCGABAR_WAIT WARPGROUP WARPGROUPDEPBAR ACQBULK UTMACMDFLUSH UTCBAR "
        "ENDCOLLECTIVE COLLECTIVE",
    }.items()
    for opcode in opcodes.split()
}


def sass_mix(listing: str, function: str | None = None) -> tuple[int, dict[str, int]]:
    """Bytes of code and instructions by group from `nvdisasm -c`; of one function, or of all."""
    text = listing
    if function is not None:
        parts = _SASS_SECTION.split(listing)
        named = zip(parts[1::2], parts[2::2], strict=True)
        text = "\n".join(part for name, part in named if name == function)
    opcodes = [each for each in _SASS_INSTRUCTION.findall(text) if each != "NOP"]
    return _SASS_BYTES * len(opcodes), _mix(map(_sass_group, opcodes))


def _sass_group(opcode: str) -> str:
    if opcode.endswith("MMA"):
        return "mma"
    return _SASS_GROUPS.get(opcode, "other")


_PTX_INSTRUCTION = re.compile(
    r"^\s*(?:@!?%\w+\s+)?([a-z][a-z0-9_]*)((?:\.[\w:]+)*)[ \t]*[^;\n]*;", re.MULTILINE
)
_PTX_FLOAT = re.compile(r"\.(?:bf16|f16|f32|f64|tf32)")
_PTX_GROUPS: Mapping[str, str] = {
    opcode: group
    for group, opcodes in {
        "mma": "mma wmma wgmma",
        "special": "ex2 lg2 rcp rsqrt sqrt sin cos tanh",
        "convert": "cvt",
        "move": "mov selp prmt cvta mapa getctarank",
        "atomic": "atom red multimem",
        "shuffle": "shfl vote match redux activemask elect",
        "branch": "bra brx call ret exit trap nanosleep",
        "sync": "bar barrier membar fence mbarrier griddepcontrol",
        "integer": "mad24 mul24 sad popc clz bfind brev bfe bfi and or xor not lop3 cnot shl shr "
        "shf dp4a dp2a bmsk szext fns vadd vsub rem set",
    }.items()
    for opcode in opcodes.split()
}
_PTX_SPACES = {".shared": "shared", ".local": "local", ".param": "constant", ".const": "constant"}


def ptx_mix(ptx: str) -> dict[str, int]:
    """Instructions by group from PTX: before register allocation, so nearer to the source."""
    bodies = "\n".join(part.partition("{")[2] for part in _PTX_ENTRY.split(ptx)[2::2])
    return _mix(_ptx_group(opcode, rest) for opcode, rest in _PTX_INSTRUCTION.findall(bodies))


def _ptx_group(opcode: str, rest: str) -> str:
    match opcode:
        case "ld" | "ldu" | "ldmatrix" | "st" | "stmatrix":
            verb = "load" if opcode.startswith("ld") else "store"
            space = "shared" if opcode.endswith("matrix") else "global"
            for name, known in _PTX_SPACES.items():
                if name in rest:
                    space = known
            return f"{verb}_{space}" if f"{verb}_{space}" in GROUPS else "other"
        case "cp":
            return "sync" if "group" in rest else "async_copy"
        case "tcgen05":
            return "mma" if rest.startswith(".mma") else "tensor_memory"
        case "fma" | "mad":
            return "fma" if _PTX_FLOAT.search(rest) else "integer"
        case "add" | "sub" | "mul" | "min" | "max" | "neg" | "abs" | "setp" | "div" | "copysign":
            return "float" if _PTX_FLOAT.search(rest) else "integer"
        case _:
            return _PTX_GROUPS.get(opcode, "other")


_AMD_INSTRUCTION = re.compile(
    r"^\s+((?:v|s|ds|global|flat|buffer|scratch|tbuffer|image|exp)_\w+)", re.MULTILINE
)
# In this order: the first that matches an instruction names its group.
_AMD_GROUPS = (
    (re.compile(r"v_(?:s?mfma|s?wmma)_"), "mma"),
    (re.compile(r"(?:global|flat|buffer|ds)_\w*atomic|ds_(?:add|min|max|inc|cmpst)_"), "atomic"),
    (re.compile(r"(?:global|buffer)_load_\w*lds|buffer_load_\w+_lds"), "async_copy"),
    (re.compile(r"(?:global|flat|buffer|tbuffer)_load"), "load_global"),
    (re.compile(r"(?:global|flat|buffer|tbuffer)_store"), "store_global"),
    (re.compile(r"scratch_load"), "load_local"),
    (re.compile(r"scratch_store"), "store_local"),
    (
        re.compile(r"ds_(?:bpermute|permute|swizzle)|v_(?:readlane|writelane|readfirstlane)"),
        "shuffle",
    ),
    (re.compile(r"v_permlane|\w+_dpp$"), "shuffle"),
    (re.compile(r"ds_(?:read|load)"), "load_shared"),
    (re.compile(r"ds_(?:write|store)"), "store_shared"),
    (re.compile(r"s_(?:load|buffer_load)"), "load_constant"),
    (re.compile(r"s_(?:branch|cbranch|endpgm|setpc|swappc|call|sethalt|sleep)"), "branch"),
    (re.compile(r"s_(?:barrier|wait|wakeup|sendmsg)|buffer_(?:wbl2|inv|gl)"), "sync"),
    (re.compile(r"v_(?:exp|log|rcp|rsq|sqrt|sin|cos)_"), "special"),
    (re.compile(r"v_cvt_"), "convert"),
    (re.compile(r"v_(?:pk_)?(?:fma|fmac|fmaak|fmamk|mac|mad|dot2)_\w*(?:f16|f32|f64)"), "fma"),
    (re.compile(r"[vs]_(?:mov|movk|accvgpr|cndmask|cselect|cmov|swap|perm|nop)"), "move"),
    (re.compile(r"v_\w*_(?:f16|f32|f64|bf16)"), "float"),
    (re.compile(r"[vs]_"), "integer"),
)


def amdgcn_mix(assembly: str) -> dict[str, int]:
    """Instructions by group from AMD assembly."""
    code = assembly.partition(".amdgpu_metadata")[0]
    names = (each for each in _AMD_INSTRUCTION.findall(code) if each != "s_nop")
    return _mix(map(_amd_group, names))


def _amd_group(instruction: str) -> str:
    found = (group for pattern, group in _AMD_GROUPS if pattern.match(instruction))
    return next(found, "other")


def _mix(groups: Iterable[str]) -> dict[str, int]:
    counted = Counter(groups)
    return {"total": counted.total()} | {group: counted[group] for group in GROUPS}


# What `object_mix` reads.
OBJDUMP_OPTIONS = ("-h", "-d", "-j", ".text", "--no-show-raw-insn")
_TEXT_SECTION = re.compile(r"^\s*\d+\s+\.text\s+([0-9a-f]+)", re.MULTILINE)
_FUNCTION = re.compile(r"^[0-9a-f]+ <(\S+)>:$", re.MULTILINE)
_INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\t(\S+)[ \t]*(.*)$", re.MULTILINE)
_PACKED = re.compile(r"[xyz]mm|\bv\d+\.\d+[bhsd]")
_SCALAR = re.compile(r"s[sd]$")


def object_mix(listing: str, function: str | None = None) -> tuple[int, dict[str, int]]:
    """Bytes of code, and instructions by kind, from objdump's listing; of one function, or of all.

    Kinds overlap: a vector load counts as vector and as memory. `stack` are accesses relative to
    the stack pointer, most of them spills.
    """
    text = listing
    if function is not None:
        parts = _FUNCTION.split(listing)
        named = zip(parts[1::2], parts[2::2], strict=True)
        text = "\n".join(part for name, part in named if name == function)
    mix: Counter[str] = Counter(
        dict.fromkeys(
            ("total", "vector", "zmm", "ymm", "scalar", "fma", "memory", "stack", "branch", "call"),
            0,
        )
    )
    instructions = _INSTRUCTION.findall(text)
    for _, mnemonic, operands in instructions:
        mix["total"] += 1
        if mnemonic.startswith("j"):
            mix["branch"] += 1
        elif mnemonic.startswith("call"):
            mix["call"] += 1
        elif _PACKED.search(operands):
            if _SCALAR.search(mnemonic):
                mix["scalar"] += 1
            else:
                mix["vector"] += 1
                mix["zmm"] += "zmm" in operands
                mix["ymm"] += "ymm" in operands and "zmm" not in operands
            mix["fma"] += mnemonic.startswith(("vfm", "vfnm"))
        if "(" in operands and not mnemonic.startswith(("lea", "nop")):
            mix["memory"] += 1
            mix["stack"] += "(%rsp" in operands
    section = _TEXT_SECTION.search(listing)
    code_bytes = int(section[1], 16) if section else 0
    if function is not None:  # up to its last instruction
        addresses = [int(address, 16) for address, _, _ in instructions]
        code_bytes = addresses[-1] - addresses[0] + 1 if addresses else 0
    return code_bytes, dict(mix)


# --------------------------------------------------------------------------------- shared libraries

_ELF_HEADER = struct.Struct("<16s HHI QQQ IHHHHHH")
_ELF_SECTION = struct.Struct("<II QQQQ II QQ")
_ELF_SYMBOL = struct.Struct("<IBBH QQ")
_DYNAMIC_SYMBOLS = 11
_MOST_LIBRARY_BYTES = 128 << 20


def foreign_imports(library: Path, is_foreign: Callable[[str], bool]) -> Failure | None:
    """Why not to load a library: what it wants of others is foreign to a kernel, or not said."""
    with library.open("rb") as file:
        imported = imported_symbols(file.read(_MOST_LIBRARY_BYTES))
    if imported is None:
        return Failure(kind=FailureKind.COMPILE_ERROR, message="the library names no symbols")
    if wanted := sorted(filter(is_foreign, imported)):
        message = f"wants of the system what no kernel needs: {', '.join(wanted)}"
        return Failure(kind=FailureKind.CHEATING, message=message)
    return None


def imported_symbols(library: bytes) -> set[str] | None:
    """What a 64-bit ELF library wants of others, by name; None where it does not say."""
    try:
        header = _ELF_HEADER.unpack_from(library)
        at, size, count = header[6], header[11], header[12]
        sections = [_ELF_SECTION.unpack_from(library, at + index * size) for index in range(count)]
        tables = [each for each in sections if each[1] == _DYNAMIC_SYMBOLS]
        if header[0][:4] != b"\x7fELF" or not tables:
            return None
        found = set()
        for _, _, _, _, start, length, strings, *_ in tables:
            names_at = sections[strings][4]
            for offset in range(start, start + length, _ELF_SYMBOL.size):
                name, _, _, section, _, _ = _ELF_SYMBOL.unpack_from(library, offset)
                if name and section == 0:
                    end = library.index(b"\0", names_at + name)
                    found.add(library[names_at + name : end].decode(errors="replace"))
        return found
    except (struct.error, IndexError, ValueError, OverflowError):
        return None
