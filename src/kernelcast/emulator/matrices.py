"""Matrix instructions: `mma`, `ldmatrix`, `stmatrix` and `wmma`.

Where each lane holds which element of an `mma` fragment is documented. For `wmma` it is not: here a
fragment is the matrix row by row, divided among the lanes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from kernelcast.emulator.access import address, load_generic, places, store_generic
from kernelcast.emulator.arithmetic import emulates, from_bf16, to_bf16
from kernelcast.emulator.decoding import Decode, Read, Write, names_in
from kernelcast.emulator.lanes import WARP, Group, Step, Value
from kernelcast.emulator.memory import Ints, Mask
from kernelcast.emulator.ptx import SIZES

_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)$")
_LANE = np.arange(WARP)
_NAMES = "sync aligned row col satfinite"


def _warps(group: Group, mask: Mask | None, d: Decode) -> Ints:
    """Return the lanes, one row for each warp that takes part with all of its lanes."""
    lanes = group.lanes_of(mask)
    if (
        len(lanes) % WARP
        or (group.warp[lanes].reshape(-1, WARP) != group.warp[lanes][::WARP, None]).any()
    ):
        raise d.unknown("a warp that is not whole")
    return lanes.reshape(-1, WARP)


def _shape(d: Decode) -> tuple[int, int, int]:
    for name in d.instruction.modifiers:
        if match := _SHAPE.match(name):
            rows, columns, depth = map(int, match.groups())
            return rows, columns, depth
    raise d.unknown()


def _numbers(bits: Value, kind: str) -> Value:
    """Return the numbers in words (..., n): float64 or int64 (..., n * numbers of a word)."""
    if kind == "f64":
        return bits.view(np.float64)
    if kind in ("f32", "tf32", "s32"):
        word = bits.view(np.uint32)
        if kind == "s32":
            return word.view(np.int32).astype(np.int64)
        if kind == "tf32":
            word = word & np.uint32(0xFFFFE000)
        return word.view(np.float32).astype(np.float64)
    if kind in ("s8", "u8"):
        return np.ascontiguousarray(bits).view("i1" if kind == "s8" else "u1").astype(np.int64)
    halves = np.ascontiguousarray(bits).view(np.uint16)
    numbers = halves.view(np.float16) if kind == "f16" else from_bf16(halves)
    return numbers.astype(np.float64)


def _words(numbers: Value, kind: str) -> Value:
    """Return numbers (..., n) as words."""
    if kind == "f64":
        return numbers.view(np.uint64)
    if kind == "s32":
        return numbers.astype(np.int32).view(np.uint32)
    if kind == "f32":
        return numbers.astype(np.float32).view(np.uint32)
    bits = numbers.astype(np.float16).view(np.uint16) if kind == "f16" else to_bf16(numbers)
    return np.ascontiguousarray(bits).view(np.uint32)


def _gather(group: Group, reads: Sequence[Read], lanes: Ints) -> Value:
    """Return the words of some registers: (warps, lanes, registers)."""
    return np.stack([group.spread(read(group))[lanes] for read in reads], axis=-1)


def _spread(
    group: Group, writes: Sequence[Write], words: Value, lanes: Ints, mask: Mask | None
) -> None:
    for index, write in enumerate(writes):
        full = np.zeros(group.count, words.dtype)
        full[lanes] = words[..., index]
        write(group, full, mask)


def _product(a: Value, b: Value, c: Value, kind: str) -> Value:
    result: Value = np.matmul(a, b) + c
    return result.astype(np.int32).astype(np.int64) if kind == "s32" else result


# ------------------------------------------------------------------------------------------- mma


def _a_places(rows: int, registers: int, per: int) -> tuple[Ints, Ints]:
    """Return row and column of each element that a lane holds of the first factor."""
    row, column = np.zeros((2, WARP, registers * per), np.int64)
    halves = 2 if rows == 16 else 1
    for register in range(registers):
        for index in range(per):
            place = register * per + index
            row[:, place] = _LANE // 4 + 8 * (register % halves)
            column[:, place] = _LANE % 4 * per + index + register // halves * 4 * per
    return row, column


@emulates("mma")
def _mma(d: Decode) -> Step:
    rows, columns, depth = _shape(d)
    d.only(f"{_NAMES} m{rows}n{columns}k{depth}", "f16 bf16 tf32 f32 f64 s8 u8 s32")
    types = d.instruction.types
    if len(types) != 4 or rows not in (8, 16) or columns != 8 or (rows == 8 and types[1] == "f16"):
        raise d.unknown()
    result, first, second, summand = types
    per = max(1, 4 // SIZES[first])
    names = [names_in(text) for text in d.operands]
    word = "b64" if first == "f64" else "b32"
    wide = "b64" if result == "f64" else "b32"
    if len(names[1]) * per * WARP != rows * depth or len(names[2]) * per * WARP != columns * depth:
        raise d.unknown()
    reads = [
        [d.read(name, kind) for name in group]
        for group, kind in zip(names[1:], (word, word, wide), strict=True)
    ]
    writes = [d.write(name) for name in names[0]]
    a_row, a_column = _a_places(rows, len(names[1]), per)
    b_column, b_row = _a_places(8, len(names[2]), per)
    count = rows * columns // WARP
    c_row = _LANE[:, None] // 4 + 8 * (np.arange(count) // 2)
    c_column = _LANE[:, None] % 4 * 2 + np.arange(count) % 2

    def step(group: Group, mask: Mask | None) -> None:
        lanes = _warps(group, mask, d)
        words = [_gather(group, some, lanes) for some in reads]
        numbers = [
            _numbers(w, kind) for w, kind in zip(words, (first, second, summand), strict=True)
        ]
        a = np.zeros((len(lanes), rows, depth), numbers[0].dtype)
        b = np.zeros((len(lanes), depth, columns), numbers[1].dtype)
        c = np.zeros((len(lanes), rows, columns), numbers[2].dtype)
        a[:, a_row, a_column] = numbers[0]
        b[:, b_row, b_column] = numbers[1]
        c[:, c_row, c_column] = numbers[2]
        product = _product(a, b, c, result)
        _spread(group, writes, _words(product[:, c_row, c_column], result), lanes, mask)

    return step


# ------------------------------------------------------------------------- rows of shared memory


@emulates("ldmatrix", "stmatrix")
def _matrix_rows(d: Decode) -> Step:
    d.only("sync aligned m8n8 x1 x2 x4 trans shared shared::cta", "b16")
    loads = d.instruction.opcode == "ldmatrix"
    count, transposed = int(d.one_of("x1", "x2", "x4")[1:]), d.has("trans")
    registers, place = d.operands if loads else d.operands[::-1]
    names, where = names_in(registers), address(d, place)
    if len(names) != count:
        raise d.unknown()
    reads = [] if loads else [d.read(name, "b32") for name in names]
    writes = [d.write(name) for name in names] if loads else []
    row = _LANE[:, None] // 4 + np.zeros(2, np.int64)
    column = _LANE[:, None] % 4 * 2 + np.arange(2)
    if transposed:
        row, column = column, row
    instruction = d.instruction

    def step(group: Group, mask: Mask | None) -> None:
        lanes = _warps(group, mask, d)
        rows = lanes[:, : 8 * count].reshape(-1)
        addresses = places(group, where)[rows]
        if loads:
            data = load_generic(group, "shared", addresses, 16, rows, instruction)
            matrices = np.ascontiguousarray(data).view(np.uint16).reshape(-1, count, 8, 8)
            halves = np.ascontiguousarray(matrices[:, :, row, column])  # warps, count, lanes, 2
            words = halves.view(np.uint32)[..., 0].transpose(0, 2, 1)
            _spread(group, writes, words, lanes, mask)
            return
        words = _gather(group, reads, lanes)  # warps, lanes, count
        halves = np.ascontiguousarray(words).view(np.uint16).reshape(len(lanes), WARP, count, 2)
        matrices = np.zeros((len(lanes), count, 8, 8), np.uint16)
        matrices[:, :, row, column] = halves.transpose(0, 2, 1, 3)
        data = matrices.reshape(len(rows), 8).view(np.uint8)
        store_generic(group, "shared", addresses, data, rows, instruction)

    return step


# ------------------------------------------------------------------------------------------ wmma


@emulates("wmma")
def _wmma(d: Decode) -> Step:
    rows, columns, depth = _shape(d)
    d.only(
        f"{_NAMES} load store mma a b c d m{rows}n{columns}k{depth} shared shared::cta global",
        "f16 bf16 tf32 f32 f64 s8 u8 s32",
    )
    if d.has("mma"):
        return _wmma_product(d, rows, columns, depth)
    part = d.one_of("a", "b", "c", "d")
    height, width = {"a": (rows, depth), "b": (depth, columns)}.get(part, (rows, columns))
    loads, kind = d.has("load"), d.kind
    registers, place = d.operands[:2] if loads else d.operands[1::-1]
    names, where = names_in(registers), address(d, place)
    size = 4 if kind == "tf32" else SIZES[kind]
    per, word = max(1, 4 // size), "b64" if kind == "f64" else "b32"
    held = len(names) * per
    by_column = d.has("col")
    stride = d.read(d.operands[2], "u32") if len(d.operands) > 2 else None
    element = (_LANE[:, None] * held + np.arange(held)) % (height * width)
    row, column = element // width, element % width
    space = (d.one_of("shared", "shared::cta", "global") or "generic").partition("::")[0]
    reads = [] if loads else [d.read(name, word) for name in names]
    writes = [d.write(name) for name in names] if loads else []
    instruction = d.instruction

    def step(group: Group, mask: Mask | None) -> None:
        lanes = _warps(group, mask, d)
        pitch = np.full((), height if by_column else width) if stride is None else stride(group)
        steps = (pitch[lanes] if pitch.ndim else np.full(lanes.shape, pitch)).astype(np.int64)
        long, short = (column, row) if by_column else (row, column)
        offsets = (long * steps[..., None] + short) * size
        addresses = (places(group, where)[lanes][..., None] + offsets).reshape(-1)
        owners = np.repeat(lanes, held)
        if loads:
            data = load_generic(group, space, addresses, size, owners, instruction)
            words = np.ascontiguousarray(data).reshape(*lanes.shape, held * size)
            _spread(group, writes, words.view("u8" if word == "b64" else "u4"), lanes, mask)
            return
        words = np.ascontiguousarray(_gather(group, reads, lanes))
        data = words.view(np.uint8).reshape(-1, size)
        # Of the lanes that hold an element twice, the first ones write it.
        own = np.broadcast_to(_LANE[:, None] * held < height * width, (*lanes.shape, held))
        own = own.reshape(-1)
        store_generic(group, space, addresses[own], data[own], owners[own], instruction)

    return step


def _wmma_product(d: Decode, rows: int, columns: int, depth: int) -> Step:
    types = d.instruction.types
    names = [names_in(text) for text in d.operands]
    if len(types) == 2:  # f16: of the result and of the summand
        result, first, second, summand = types[0], "f16", "f16", types[1]
    elif len(types) == 4:
        result, first, second, summand = types
    else:
        raise d.unknown()
    word = "b64" if first == "f64" else "b32"
    reads = [[d.read(name, word) for name in group] for group in names[1:]]
    writes = [d.write(name) for name in names[0]]
    sizes = ((rows, depth), (depth, columns), (rows, columns))
    count = rows * columns // WARP

    def step(group: Group, mask: Mask | None) -> None:
        lanes = _warps(group, mask, d)
        matrices = []
        for some, kind, (height, width) in zip(reads, (first, second, summand), sizes, strict=True):
            numbers = _numbers(_gather(group, some, lanes), kind).reshape(len(lanes), -1)
            matrices.append(numbers[:, : height * width].reshape(len(lanes), height, width))
        a, b, c = matrices
        product = _product(a, b, c, result).reshape(len(lanes), WARP, count)
        _spread(group, writes, _words(product, result), lanes, mask)

    return step
