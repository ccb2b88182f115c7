"""What the arithmetic instructions of PTX compute: integers, floating point, bits, conversions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kernelcast.emulator.decoding import Decode, numpy_type
from kernelcast.emulator.lanes import Group, Step, Value
from kernelcast.emulator.memory import Mask
from kernelcast.emulator.ptx import SIZES

Builder = Callable[[Decode], Step]
BUILDERS: dict[str, Builder] = {}
"""What makes a step of each opcode."""

_FLOATS = frozenset({"f16", "bf16", "f16x2", "bf16x2", "f32", "f64"})
_ROUNDING = "rn rz rm rp"
REDUCTIONS: dict[str, np.ufunc] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
"""What atomics and warps combine numbers by."""
_LOW16 = np.uint32(0xFFFF)


def emulates(*opcodes: str) -> Callable[[Builder], Builder]:
    """Register what makes steps of these opcodes."""

    def register(builder: Builder) -> Builder:
        BUILDERS.update(dict.fromkeys(opcodes, builder))
        return builder

    return register


# ---------------------------------------------------------------------------- floating point


def from_bf16(bits: Value) -> Value:
    """Return the numbers of some bfloat16 bits, as float32."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def to_bf16(numbers: Value, mode: str = "rn") -> Value:
    """Round float32 to the bits of bfloat16."""
    bits, shift = np.asarray(numbers, np.float32).view(np.uint32), np.uint32(16)
    if mode == "rn":
        bits = bits + np.uint32(0x7FFF) + ((bits >> shift) & np.uint32(1))
    return np.where(np.isnan(numbers), np.uint32(0x7FFF), bits >> shift).astype(np.uint16)


def rounded(wide: Value, kind: str, mode: str) -> Value:
    """Round numbers of a wider type to float32 or float64 in the direction that a mode names."""
    narrow = wide.astype(numpy_type(kind))
    if mode in ("", "rn"):
        return narrow
    one = narrow.dtype.type
    if mode == "rm":
        return np.where(narrow > wide, np.nextafter(narrow, one(-np.inf)), narrow)
    if mode == "rp":
        return np.where(narrow < wide, np.nextafter(narrow, one(np.inf)), narrow)
    return np.where(np.abs(narrow) > np.abs(wide), np.nextafter(narrow, one(0)), narrow)


def flushed(numbers: Value) -> Value:
    """Return float32 numbers, zero in place of those that are too small to be normal."""
    tiny = np.float32(np.finfo(np.float32).tiny)
    return np.where(np.abs(numbers) < tiny, np.copysign(np.float32(0), numbers), numbers)


def _float_step(d: Decode, compute: Callable[..., Value], count: int) -> Step:
    """Make a step that computes with numbers of the instruction's type and rounds the result."""
    kind, mode = d.kind, d.one_of("rz", "rm", "rp") or "rn"
    if kind in ("f16x2", "bf16x2"):
        return d.mapped(of_halves(_in_half(kind[:-2], compute, d)), *[kind] * count)
    if kind in ("f16", "bf16"):
        return d.mapped(_in_half(kind, compute, d), *[kind] * count)
    wide: Any = np.float64 if kind == "f32" else np.longdouble
    is_fused, flush, saturate = d.instruction.opcode in ("fma", "mad"), d.has("ftz"), d.has("sat")

    def number(*sources: Value) -> Value:
        if flush:
            sources = tuple(map(flushed, sources))
        if is_fused or mode != "rn":
            result = rounded(compute(*(source.astype(wide) for source in sources)), kind, mode)
        else:
            result = compute(*sources)
        if flush:
            result = flushed(result)
        if saturate:
            result = np.where(np.isnan(result), 0, np.clip(result, 0, 1)).astype(result.dtype)
        return result

    return d.mapped(number, *[kind] * count)


def _in_half(kind: str, compute: Callable[..., Value], d: Decode) -> Callable[..., Value]:
    """Return a function on bits of a half-precision type."""
    wide: Any = np.float64 if d.instruction.opcode == "fma" else np.float32
    saturate, positive = d.has("sat"), d.has("relu")

    def half(*sources: Value) -> Value:
        if kind == "f16":
            numbers = [source.view(np.float16).astype(wide) for source in sources]
        else:
            numbers = [from_bf16(source).astype(wide) for source in sources]
        result = compute(*numbers)
        if saturate:
            result = np.where(np.isnan(result), 0, np.clip(result, 0, 1))
        if positive:
            result = np.where(result < 0, 0, result)
        if kind == "f16":
            return np.asarray(result).astype(np.float16).view(np.uint16)
        return to_bf16(np.asarray(result).astype(np.float32))

    return half


def of_halves(compute: Callable[..., Value]) -> Callable[..., Value]:
    """Apply a function to the lower and the upper half of each word."""

    def both(*sources: Value) -> Value:
        low = compute(*[(source & _LOW16).astype(np.uint16) for source in sources])
        high = compute(*[(source >> np.uint32(16)).astype(np.uint16) for source in sources])
        return low.astype(np.uint32) | (high.astype(np.uint32) << np.uint32(16))

    return both


def _least(d: Decode, choose: Callable[..., Value]) -> Callable[..., Value]:
    """Return min or max: a NaN loses against a number, but with the modifier NaN it wins."""
    keep = d.has("NaN")

    def compute(*sources: Value) -> Value:
        result = choose(*sources[:2])
        for source in sources[2:]:
            result = choose(result, source)
        if keep:
            missing = np.isnan(sources[0])
            for source in sources[1:]:
                missing = missing | np.isnan(source)
            result = np.where(missing, np.float64(np.nan).astype(result.dtype), result)
        return result

    return compute


@emulates("add", "sub", "mul", "fma", "mad", "div", "min", "max", "neg", "abs")
def _arithmetic(d: Decode) -> Step:
    opcode = d.instruction.opcode
    if d.kind not in _FLOATS:
        return _INTEGER[opcode](d)
    if opcode in ("min", "max"):
        d.only("ftz NaN")
        count = len(d.operands) - 1
        return _float_step(d, _least(d, np.fmin if opcode == "min" else np.fmax), count)
    if opcode in ("neg", "abs"):
        d.only("ftz")
        return _float_step(d, np.negative if opcode == "neg" else np.abs, 1)
    if opcode == "div":
        d.only(f"{_ROUNDING} ftz approx full")
        return _float_step(d, np.divide, 2)
    d.only(f"{_ROUNDING} ftz sat relu")
    if opcode in ("fma", "mad"):
        return _float_step(d, lambda a, b, c: a * b + c, 3)
    return _float_step(d, {"add": np.add, "sub": np.subtract, "mul": np.multiply}[opcode], 2)


_FUNCTIONS: dict[str, Callable[..., Value]] = {
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "rcp": lambda x: 1 / x,
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
}


@emulates(*_FUNCTIONS)
def _function(d: Decode) -> Step:
    d.only(f"{_ROUNDING} ftz approx")
    return _float_step(d, _FUNCTIONS[d.instruction.opcode], 1)


@emulates("copysign")
def _copysign(d: Decode) -> Step:
    d.only("", "f32 f64")
    return d.mapped(lambda sign, size: np.copysign(size, sign), d.kind, d.kind)


@emulates("testp")
def _testp(d: Decode) -> Step:
    tests: dict[str, Callable[[Value], Value]] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda x: ~np.isnan(x),
        "notanumber": np.isnan,
        "normal": lambda x: np.isfinite(x) & (np.abs(x) >= np.finfo(x.dtype).tiny),
        "subnormal": lambda x: (x != 0) & (np.abs(x) < np.finfo(x.dtype).tiny),
    }
    d.only(" ".join(tests), "f32 f64")
    return d.mapped(tests[d.one_of(*tests)], d.kind)


# ---------------------------------------------------------------------------------- integers


def _wide(kind: str) -> str:
    return f"{kind[0]}{16 * SIZES[kind]}"


def high_product(a: Value, b: Value) -> Value:
    """Return the upper half of the products of 64-bit integers."""
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    x, y = a.view(np.uint64), b.view(np.uint64)
    x0, x1, y0, y1 = x & low, x >> shift, y & low, y >> shift
    middle = x1 * y0 + ((x0 * y0) >> shift)
    other = x0 * y1 + (middle & low)
    high = x1 * y1 + (middle >> shift) + (other >> shift)
    if a.dtype.kind == "i":
        high = high - np.where(a < 0, y, np.uint64(0)) - np.where(b < 0, x, np.uint64(0))
    result: Value = high.view(a.dtype)
    return result


def _integer_sum(d: Decode) -> Step:
    add = d.instruction.opcode == "add"
    if d.has("cc"):
        return _carrying(d)
    d.only("sat", "u16 s16 u32 s32 u64 s64 u16x2 s16x2")
    if d.has("sat"):
        if d.kind != "s32":
            raise d.unknown()
        low, high = np.int64(-(2**31)), np.int64(2**31 - 1)

        def saturated(a: Value, b: Value) -> Value:
            exact = a.astype(np.int64) + b if add else a.astype(np.int64) - b
            return np.clip(exact, low, high).astype(np.int32)

        return d.mapped(saturated, "s32", "s32")
    return d.mapped(np.add if add else np.subtract, d.kind, d.kind)


def _integer_product(d: Decode) -> Step:
    kind, with_sum = d.kind, d.instruction.opcode == "mad"
    if d.has("cc"):
        return _carrying(d)
    d.only("lo hi wide", "u16 s16 u32 s32 u64 s64")
    size, half = SIZES[kind], 8 * SIZES[kind]
    if d.has("wide"):
        result = _wide(kind)
        wide = numpy_type(result)
        if with_sum:
            return d.mapped(lambda a, b, c: a.astype(wide) * b.astype(wide) + c, kind, kind, result)
        return d.mapped(lambda a, b: a.astype(wide) * b.astype(wide), kind, kind)

    def product(a: Value, b: Value) -> Value:
        if not d.has("hi"):
            return a * b
        if size == 8:
            return high_product(a, b)
        wide = numpy_type(_wide(kind))
        high: Value = ((a.astype(wide) * b.astype(wide)) >> half).astype(a.dtype)
        return high

    if with_sum:
        return d.mapped(lambda a, b, c: product(a, b) + c, kind, kind, kind)
    return d.mapped(product, kind, kind)


def quotient(a: Value, b: Value) -> Value:
    """Divide integers towards zero; what is divided by zero has all bits set."""
    safe = np.where(b == 0, 1, b).astype(b.dtype)
    result = a // safe
    if a.dtype.kind == "i":
        result = result + ((a % safe != 0) & ((a < 0) != (safe < 0))).astype(a.dtype)
    return np.where(b == 0, np.full((), -1, np.int64).astype(a.dtype), result)


def _integer_quotient(d: Decode) -> Step:
    d.only("", "u16 s16 u32 s32 u64 s64")
    return d.mapped(quotient, d.kind, d.kind)


def _integer_least(d: Decode) -> Step:
    d.only("", "u16 s16 u32 s32 u64 s64")
    return d.mapped(np.minimum if d.instruction.opcode == "min" else np.maximum, d.kind, d.kind)


def _integer_sign(d: Decode) -> Step:
    d.only("", "s16 s32 s64")
    return d.mapped(np.negative if d.instruction.opcode == "neg" else np.abs, d.kind)


def _refused(d: Decode) -> Step:
    raise d.unknown()


_INTEGER: dict[str, Builder] = {
    "add": _integer_sum,
    "sub": _integer_sum,
    "mul": _integer_product,
    "mad": _integer_product,
    "fma": _refused,
    "div": _integer_quotient,
    "min": _integer_least,
    "max": _integer_least,
    "neg": _integer_sign,
    "abs": _integer_sign,
}


@emulates("rem")
def _remainder(d: Decode) -> Step:
    d.only("", "u16 s16 u32 s32 u64 s64")
    return d.mapped(lambda a, b: a - quotient(a, b) * b, d.kind, d.kind)


@emulates("addc", "subc", "madc")
def _carrying(d: Decode) -> Step:
    """Sums with the carry flag, 32 bits at a time."""
    d.only("cc lo hi", "u32 s32 b32")
    opcode = d.instruction.opcode
    sources = [d.read(text, "u32") for text in d.operands[1:]]
    write = d.write(d.operands[0])
    takes, sets = opcode.endswith("c") and opcode != "c", d.has("cc")
    signed = d.kind == "s32"

    def step(group: Group, mask: Mask | None) -> None:
        values = [source(group).astype(np.int64) for source in sources]
        if opcode.startswith("mad"):
            if signed and d.has("hi"):
                factors = [source(group).view(np.int32).astype(np.int64) for source in sources[:2]]
                product = (factors[0] * factors[1]) >> 32
            else:
                full = values[0].astype(np.uint64) * values[1].astype(np.uint64)
                product = (full >> np.uint64(32) if d.has("hi") else full).astype(np.int64)
            values = [product & 0xFFFFFFFF, values[2]]
        carry = group.carry.astype(np.int64) if takes else 0
        one, two = values
        exact = one - two - carry if "sub" in opcode else one + two + carry
        if sets:
            flag = (exact < 0) | (exact > 0xFFFFFFFF)
            group.carry = np.where(True if mask is None else mask, flag, group.carry)
        write(group, (exact & 0xFFFFFFFF).astype(np.uint32), mask)

    return step


@emulates("mul24", "mad24")
def _product24(d: Decode) -> Step:
    d.only("lo", "u32 s32")
    shift = np.uint32(8)

    def low24(value: Value) -> Value:
        return (value << 8) >> 8 if value.dtype.kind == "i" else (value << shift) >> shift

    if d.instruction.opcode == "mad24":
        return d.mapped(lambda a, b, c: low24(a) * low24(b) + c, *[d.kind] * 3)
    return d.mapped(lambda a, b: low24(a) * low24(b), d.kind, d.kind)


@emulates("sad")
def _sad(d: Decode) -> Step:
    d.only("", "u16 s16 u32 s32 u64 s64")
    return d.mapped(lambda a, b, c: np.maximum(a, b) - np.minimum(a, b) + c, *[d.kind] * 3)


@emulates("dp4a", "dp2a")
def _dot(d: Decode) -> Step:
    d.only("lo hi", "u32 s32")
    types = d.instruction.types
    kinds = types if len(types) == 2 else types * 2
    signed = [kind == "s32" for kind in kinds]

    def part(word: Value, index: int, bits: int, *, is_signed: bool) -> Value:
        piece = (word >> np.uint32(index * bits)).astype(f"u{bits // 8}")
        return (piece.view(f"i{bits // 8}") if is_signed else piece).astype(np.int64)

    def dot4(a: Value, b: Value, c: Value) -> Value:
        exact = sum(
            part(a, i, 8, is_signed=signed[0]) * part(b, i, 8, is_signed=signed[1])
            for i in range(4)
        )
        return (exact + c.astype(np.int64)).astype(np.uint32)

    def dot2(a: Value, b: Value, c: Value) -> Value:
        start = 2 if d.has("hi") else 0
        exact = sum(
            part(a, i, 16, is_signed=signed[0]) * part(b, start + i, 8, is_signed=signed[1])
            for i in range(2)
        )
        return (exact + c.astype(np.int64)).astype(np.uint32)

    compute = dot4 if d.instruction.opcode == "dp4a" else dot2
    return d.mapped(compute, "u32", "u32", "s32" if any(signed) else "u32")
