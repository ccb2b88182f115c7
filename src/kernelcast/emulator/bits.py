"""What the other register instructions do: logic, shifts, comparisons, conversions, moves."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kernelcast.emulator.arithmetic import emulates, from_bf16, rounded, to_bf16
from kernelcast.emulator.decoding import Decode, names_in, numpy_type
from kernelcast.emulator.lanes import Group, Step, Value, no_step, raw_type
from kernelcast.emulator.memory import LOCAL_WINDOW, SHARED_WINDOW, Mask
from kernelcast.emulator.ptx import SIZES

_LOGIC = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


@emulates("and", "or", "xor", "not", "cnot")
def _logic(d: Decode) -> Step:
    d.only("", "pred b16 b32 b64")
    opcode, kind = d.instruction.opcode, d.kind
    if opcode == "not":
        return d.mapped(np.invert, kind)
    if opcode == "cnot":
        return d.mapped(lambda a: (a == 0).astype(a.dtype), kind)
    return d.mapped(_LOGIC[opcode], kind, kind)


@emulates("lop3")
def _lop3(d: Decode) -> Step:
    d.only("", "b32")
    table = int(d.operands[4], 0)

    def look_up(a: Value, b: Value, c: Value) -> Value:
        result = np.zeros((), np.uint32)
        for index in range(8):
            if table >> index & 1:
                row = a if index & 4 else ~a
                row = row & (b if index & 2 else ~b)
                result = result | row & (c if index & 1 else ~c)
        return np.asarray(result, np.uint32)

    return d.mapped(look_up, "b32", "b32", "b32")


@emulates("shl", "shr")
def _shift(d: Decode) -> Step:
    d.only("", "b16 b32 b64 u16 u32 u64 s16 s32 s64")
    kind, left = d.kind, d.instruction.opcode == "shl"
    bits = 8 * SIZES[kind]

    def shift(value: Value, count: Value) -> Value:
        by = np.minimum(count, bits - 1).astype(value.dtype)
        moved: Value = value << by if left else value >> by
        if value.dtype.kind == "i" and not left:
            return moved  # the sign fills all places
        return np.where(count >= bits, np.zeros((), value.dtype), moved)

    return d.mapped(shift, kind, "u32")


@emulates("shf")
def _funnel(d: Decode) -> Step:
    d.only("l r wrap clamp", "b32")
    left, wraps = d.has("l"), d.has("wrap")

    def shift(low: Value, high: Value, count: Value) -> Value:
        by = (count & np.uint32(31) if wraps else np.minimum(count, np.uint32(32))).astype("u8")
        pair = low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32))
        moved: Value = (pair << by) >> np.uint64(32) if left else pair >> by
        return moved.astype(np.uint32)

    return d.mapped(shift, "b32", "b32", "u32")


@emulates("popc", "clz", "brev", "bfind", "ffs")
def _scan(d: Decode) -> Step:
    opcode, kind = d.instruction.opcode, d.kind
    bits = 8 * SIZES[kind]
    d.only("shiftamt" if opcode == "bfind" else "", "b32 b64 u32 u64 s32 s64")
    if opcode == "popc":
        return d.mapped(lambda a: np.bitwise_count(a).astype(np.uint32), f"u{bits}")
    if opcode == "brev":
        return d.mapped(lambda a: _reversed(a, bits), f"u{bits}")
    if opcode == "clz":
        return d.mapped(lambda a: (bits - 1 - _highest(a)).astype(np.uint32), f"u{bits}")
    counts_down = d.has("shiftamt")

    def find(value: Value) -> Value:
        if value.dtype.kind == "i":
            value = np.where(value < 0, ~value, value).view(raw_type(bits // 8))
        place = _highest(value)
        return np.where(place < 0, -1, bits - 1 - place if counts_down else place).astype(np.int32)

    return d.mapped(find, kind)


def _highest(value: Value) -> Value:
    """Return the position of the highest bit that is set, or -1."""
    place = np.full(value.shape, -1, np.int64)
    rest = value.astype(np.uint64)
    for step in (32, 16, 8, 4, 2, 1):
        above = rest >> np.uint64(step)
        moves = above > 0
        place = np.where(moves, place + step, place)
        rest = np.where(moves, above, rest)
    return np.where(value == 0, -1, place + 1)


def _reversed(value: Value, bits: int) -> Value:
    result = np.zeros_like(value)
    one = value.dtype.type(1)
    for index in range(bits):
        result = (result << one) | ((value >> value.dtype.type(index)) & one)
    return result


@emulates("bfe")
def _extract(d: Decode) -> Step:
    d.only("", "u32 s32 u64 s64")
    kind, bits = d.kind, 8 * SIZES[d.kind]

    def extract(value: Value, start: Value, length: Value) -> Value:
        raw = value.view(raw_type(bits // 8)).astype(np.uint64)
        position = np.minimum(start & np.uint32(0xFF), bits).astype(np.uint64)
        count = np.minimum(length & np.uint32(0xFF), bits).astype(np.uint64)
        ones = _ones(count)
        field = np.where(position >= 64, np.uint64(0), raw >> np.minimum(position, 63)) & ones
        if value.dtype.kind == "i":
            last = np.minimum(position + count, bits).astype(np.uint64) - np.uint64(1)
            is_negative = (count > 0) & ((raw >> np.minimum(last, 63)) & np.uint64(1) > 0)
            field = np.where(is_negative, field | ~_ones(np.minimum(count, bits - position)), field)
        return field.astype(raw_type(bits // 8)).view(value.dtype)

    return d.mapped(extract, kind, "u32", "u32")


@emulates("bfi")
def _insert(d: Decode) -> Step:
    d.only("", "b32 b64")
    kind, bits = d.kind, 8 * SIZES[d.kind]

    def insert(field: Value, value: Value, start: Value, length: Value) -> Value:
        position = np.minimum(start & np.uint32(0xFF), 64).astype(np.uint64)
        ones = _ones(np.minimum(length & np.uint32(0xFF), bits).astype(np.uint64))
        shift = np.minimum(position, 63)
        mask = np.where(position >= 64, np.uint64(0), ones << shift)
        moved = (field.astype(np.uint64) << shift) & mask
        whole: Value = (value.astype(np.uint64) & ~mask) | moved
        return whole.astype(value.dtype)

    return d.mapped(insert, kind, kind, "u32", "u32")


def _ones(count: Value) -> Value:
    """Return numbers whose lowest bits are set, so many of each."""
    below = (np.uint64(1) << np.minimum(count, 63).astype(np.uint64)) - np.uint64(1)
    return np.where(count >= 64, ~np.uint64(0), below)


@emulates("prmt")
def _permute(d: Decode) -> Step:
    d.only("", "b32")  # of the modes only the general one

    def permute(a: Value, b: Value, selector: Value) -> Value:
        pair = a.astype(np.uint64) | (b.astype(np.uint64) << np.uint64(32))
        result = np.zeros((), np.uint64)
        for index in range(4):
            choice = (selector >> np.uint32(4 * index)) & np.uint32(15)
            byte = (pair >> ((choice & np.uint32(7)).astype(np.uint64) * np.uint64(8))) & 0xFF
            sign = np.where(byte & 0x80, np.uint64(0xFF), np.uint64(0))
            byte = np.where(choice & np.uint32(8), sign, byte)
            result = result | (byte << np.uint64(8 * index))
        return np.asarray(result).astype(np.uint32)

    return d.mapped(permute, "b32", "b32", "b32")


# ------------------------------------------------------------------------------- comparisons

_COMPARE: dict[str, Callable[[Value, Value], Value]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}
_UNORDERED = {f"{name}u": name for name in ("eq", "ne", "lt", "le", "gt", "ge")}
_COMPARISONS = (*_COMPARE, *_UNORDERED, "num", "nan")


def _number(value: Value, kind: str) -> Value:
    return from_bf16(value) if kind == "bf16" else value


def _compared(d: Decode, kind: str) -> Callable[[Value, Value], Value]:
    name = d.one_of(*_COMPARISONS)
    is_float = kind in ("f16", "bf16", "f32", "f64")

    def compare(one: Value, other: Value) -> Value:
        a, b = _number(one, kind), _number(other, kind)
        if not is_float:
            return _COMPARE[name](a, b)
        missing = np.isnan(a) | np.isnan(b)
        if name in ("num", "nan"):
            return missing if name == "nan" else ~missing
        if name in _UNORDERED:
            return _COMPARE[_UNORDERED[name]](a, b) | missing
        return _COMPARE[name](a, b) & ~missing

    if not name or (not is_float and name not in _COMPARE):
        raise d.unknown()
    return compare


@emulates("setp")
def _setp(d: Decode) -> Step:
    d.only(" ".join((*_COMPARISONS, *_LOGIC, "ftz")))
    kind = d.kind
    if kind in ("f16x2", "bf16x2"):
        raise d.unknown()
    compare = _compared(d, kind)
    one, other = (d.read(text, kind) for text in d.operands[1:3])
    names = d.operands[0].split("|")
    writes = [d.write(name.strip()) for name in names]
    combined = d.one_of(*_LOGIC)
    further = d.read(d.operands[3], "pred") if combined else None

    def step(group: Group, mask: Mask | None) -> None:
        holds = compare(one(group), other(group))
        results = [holds, ~holds]
        if further is not None:
            results = [_LOGIC[combined](result, further(group)) for result in results]
        for write, result in zip(writes, results, strict=False):
            write(group, result, mask)

    return step


@emulates("set")
def _set(d: Decode) -> Step:
    d.only(" ".join((*_COMPARISONS, "ftz")), "u32 s32 f32 u16 s16 u64 s64 f64 b32 b16 b64")
    result, kind = d.instruction.types
    compare = _compared(d, kind)
    if result not in ("u32", "s32", "f32"):
        raise d.unknown()
    yes = np.float32(1) if result == "f32" else np.int32(-1)

    def choose(one: Value, other: Value) -> Value:
        return np.where(compare(one, other), yes, yes * 0)

    return d.mapped(choose, kind, kind)


@emulates("selp")
def _select(d: Decode) -> Step:
    d.only()
    return d.mapped(lambda a, b, c: _chosen(c, a, b), d.kind, d.kind, "pred")


@emulates("slct")
def _select_by_sign(d: Decode) -> Step:
    d.only("ftz")
    kind, by = d.instruction.types
    return d.mapped(lambda a, b, c: _chosen(c >= 0, a, b), kind, kind, by)


def _chosen(condition: Value, one: Value, other: Value) -> Value:
    return np.where(condition, one, other)


# ------------------------------------------------------------------------------- conversions

_TO_INTEGER: dict[str, Callable[[Value], Value]] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}
_FLOAT_MODES = "rn rz rm rp"


@emulates("cvt")
def _convert(d: Decode) -> Step:
    d.only(f"{_FLOAT_MODES} {' '.join(_TO_INTEGER)} sat ftz rna relu")
    types = d.instruction.types
    if len(types) == 3:  # two numbers into one word: cvt.rn.f16x2.f32 d, high, low
        raise d.unknown()
    result, kind = types
    if result in ("f16x2", "bf16x2"):
        half = _conversion(d, result[:-2], kind)

        def both(high: Value, low: Value) -> Value:
            bits = [half(low).view(np.uint16), half(high).view(np.uint16)]
            return bits[0].astype(np.uint32) | (bits[1].astype(np.uint32) << np.uint32(16))

        return d.mapped(both, kind, kind)
    return d.mapped(_conversion(d, result, kind), kind)


def _conversion(d: Decode, result: str, kind: str) -> Callable[[Value], Value]:
    floats = ("f16", "bf16", "f32", "f64")
    saturates = d.has("sat")
    if {result, kind} & {"pred", "f16x2", "bf16x2", "b128"}:
        raise d.unknown()
    if result == "tf32":
        return _to_tf32
    if kind in floats and result in floats:
        return _between_floats(d, result, kind)
    if kind in floats:
        integral = _TO_INTEGER.get(d.one_of(*_TO_INTEGER))
        if integral is None:
            raise d.unknown()
        limits = np.iinfo(numpy_type(result))

        def to_integer(value: Value) -> Value:
            numbers = integral(_number(value, kind).astype(np.float64))
            inside = np.clip(np.nan_to_num(numbers), float(limits.min), float(limits.max))
            whole = inside.astype(np.longdouble).astype(limits.dtype)
            whole = np.where(numbers >= float(limits.max), limits.max, whole).astype(limits.dtype)
            if kind == "f64" and limits.dtype.itemsize == 8:
                return np.where(np.isnan(numbers), np.int64(-(2**63)).astype(limits.dtype), whole)
            return np.where(np.isnan(numbers), np.zeros((), limits.dtype), whole)

        return to_integer
    if result in floats:
        mode = d.one_of("rz", "rm", "rp") or "rn"

        def to_float(value: Value) -> Value:
            exact = value.astype(np.longdouble)
            if result in ("f32", "f64"):
                return rounded(exact, result, mode)
            if result == "f16":
                return exact.astype(np.float16)
            return to_bf16(value.astype(np.float32))

        return to_float
    wanted = numpy_type(result)
    if not saturates:
        return lambda value: value.astype(wanted)
    limits = np.iinfo(wanted)

    def clipped(value: Value) -> Value:
        own = np.iinfo(value.dtype)
        low, high = max(limits.min, own.min), min(limits.max, own.max)
        return np.clip(value, value.dtype.type(low), value.dtype.type(high)).astype(wanted)

    return clipped


def _between_floats(d: Decode, result: str, kind: str) -> Callable[[Value], Value]:
    mode = d.one_of("rz", "rm", "rp") or "rn"
    integral = _TO_INTEGER.get(d.one_of(*_TO_INTEGER))
    saturates, positive = d.has("sat"), d.has("relu")
    narrows = SIZES[result] < SIZES[kind]

    def convert(value: Value) -> Value:
        numbers = _number(value, kind)
        if integral is not None:
            numbers = integral(numbers)
        if saturates:
            numbers = np.where(np.isnan(numbers), 0, np.clip(numbers, 0, 1)).astype(numbers.dtype)
        if positive:
            numbers = np.where(numbers < 0, np.zeros((), numbers.dtype), numbers)
        if result == "bf16":
            return to_bf16(numbers.astype(np.float32), mode)
        if result == "f16" and mode == "rz":
            narrow = numbers.astype(np.float16)
            too_large = np.abs(narrow.astype(numbers.dtype)) > np.abs(numbers)
            return np.where(too_large, np.nextafter(narrow, np.float16(0)), narrow)
        if narrows and result == "f32":
            return rounded(numbers, "f32", mode)
        return numbers.astype(numpy_type(result))

    return convert


def _to_tf32(value: Value) -> Value:
    """Round float32 to the 10 bits that tensor cores use, ties away from zero."""
    bits = value.view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


# ------------------------------------------------------------------------------------- moves


@emulates("mov")
def _move(d: Decode) -> Step:
    d.only()
    kind = d.kind
    target, source = d.operands
    if target.startswith("{"):
        names = names_in(target)
        part = f"b{8 * SIZES[kind] // len(names)}"
        read, writes = d.read(source, kind), [d.write(name) for name in names]
        shift, narrow = 8 * SIZES[part], raw_type(SIZES[part])

        def unpack(group: Group, mask: Mask | None) -> None:
            value = read(group)
            for index, write in enumerate(writes):
                piece = value >> value.dtype.type(index * shift)
                write(group, piece.astype(narrow), mask)

        return unpack
    if source.startswith("{"):
        names = names_in(source)
        part = f"b{8 * SIZES[kind] // len(names)}"
        reads, write = [d.read(name, part) for name in names], d.write(target)
        shift, wide = 8 * SIZES[part], np.dtype(raw_type(SIZES[kind])).type

        def pack(group: Group, mask: Mask | None) -> None:
            value = np.zeros((), wide)
            for index, read in enumerate(reads):
                value = value | (read(group).astype(wide) << wide(index * shift))
            write(group, np.asarray(value), mask)

        return pack
    if (symbol := d.symbol(source)) is not None:
        write = d.write(target)
        return lambda group, mask: write(group, symbol(group), mask)
    return d.mapped(lambda value: value, kind)


@emulates("cvta")
def _generic(d: Decode) -> Step:
    d.only("to global shared local const shared::cta", "u64 u32")
    window = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}
    space = d.one_of("shared", "shared::cta", "local", "global", "const").partition("::")[0]
    offset = np.uint64(window.get(space, 0))
    if d.kind != "u64":
        raise d.unknown()
    if d.has("to"):
        return d.mapped(lambda address: address - offset, "u64")
    return d.mapped(lambda address: address + offset, "u64")


@emulates("isspacep")
def _is_in_space(d: Decode) -> Step:
    d.only("global shared local const shared::cta")
    space = d.one_of("shared", "shared::cta", "local", "global").partition("::")[0]
    spans = {
        "shared": (SHARED_WINDOW, 1 << 63),
        "local": (LOCAL_WINDOW, SHARED_WINDOW),
        "global": (0, LOCAL_WINDOW),
    }
    if space not in spans:
        raise d.unknown()
    low, high = map(np.uint64, spans[space])
    return d.mapped(lambda address: (address >= low) & (address < high), "u64")


@emulates("prefetch", "prefetchu", "discard", "applypriority", "nanosleep", "membar", "fence")
def _nothing(_: Decode) -> Step:
    """What changes no value."""
    return no_step
