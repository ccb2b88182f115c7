"""Loads, stores, atomics and asynchronous copies, with the checks of every address."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import numpy as np

from kernelcast.emulator.arithmetic import REDUCTIONS, emulates, from_bf16, of_halves, to_bf16
from kernelcast.emulator.decoding import Address, Decode, names_in, numpy_type
from kernelcast.emulator.lanes import Group, Step, Value, poison, raw_type
from kernelcast.emulator.memory import LOCAL_WINDOW, POISON, SHARED_WINDOW, Bytes, Ints, Mask
from kernelcast.emulator.ptx import SIZES, Instruction, read_number

_SPACES = ("global", "shared", "shared::cta", "local", "const", "param")
_CACHING = (
    "ca cg cs lu cv wb wt nc volatile relaxed weak acquire release acq_rel mmio cta cluster gpu "
    "sys L1::evict_normal L1::evict_unchanged L1::evict_first L1::evict_last L1::no_allocate "
    "L2::64B L2::128B L2::256B L2::evict_first L2::evict_last L2::evict_normal"
)
_ADDRESS = re.compile(r"\[ ?([%\w$@]+) ?(?:\+ ?(-?\w+))? ?\]$")


def address(d: Decode, text: str) -> Address:
    """Read an operand such as `[%rd1+16]`."""
    match = _ADDRESS.match(text)
    if match is None:
        raise d.unknown()
    name, offset = match[1], read_number(match[2] or "0")
    if offset is None:
        raise d.unknown()
    if name in d.function.registers:
        kind = d.function.registers[name]
        return Address(d.read(name, f"b{8 * SIZES[kind]}"), offset)
    if (symbol := d.symbol(name)) is not None:
        return Address(symbol, offset)
    if (number := read_number(name)) is not None:
        constant = np.full((), number, np.uint64)
        return Address(lambda _: constant, offset)
    raise d.unknown()


def places(group: Group, where: Address) -> Ints:
    """Return the address of each lane."""
    return group.spread(where.read(group).astype(np.int64) + where.offset)


def load(
    group: Group, space: str, addresses: Ints, size: int, lanes: Ints, instruction: Instruction
) -> Bytes:
    """Return `size` bytes for each of some lanes; what may not be read is poison."""
    content, index, good = _resolve(group, space, addresses, size, lanes, instruction)
    unit = _unit(size)
    result = np.full((len(lanes), size // unit), 0, raw_type(unit))
    view = content.view(raw_type(unit))
    start = np.where(good, index, 0) // unit
    for part in range(size // unit):
        result[:, part] = view[start + part]
    if not good.all():
        result.view(np.uint8).reshape(len(lanes), size)[~good] = POISON
    if space in ("shared", "local"):
        _watch_poison(group, space, addresses[good], result[good, 0], instruction)
    if space == "shared":
        _watch_reads(group, index[good], size, lanes[good], instruction)
    return result.view(np.uint8).reshape(len(lanes), size)


def store(
    group: Group, space: str, addresses: Ints, data: Bytes, lanes: Ints, instruction: Instruction
) -> None:
    """Write the bytes of each of some lanes; what may not be written is left out."""
    size = data.shape[1]
    content, index, good = _resolve(group, space, addresses, size, lanes, instruction)
    if not good.all():
        index, data, lanes = index[good], data[good], lanes[good]
    unit = _unit(size)
    view, values = content.view(raw_type(unit)), np.ascontiguousarray(data).view(raw_type(unit))
    start = index // unit
    before = [view[start + part] for part in range(size // unit)] if space == "shared" else []
    for part in range(size // unit):
        view[start + part] = values[:, part]
    if before:
        after = [view[start + part] for part in range(size // unit)]
        changed = [old != values[:, part] for part, old in enumerate(before)]
        lost = [new != values[:, part] for part, new in enumerate(after)]
        _watch_writes(group, index, unit, changed, lost, lanes, instruction)


def _unit(size: int) -> int:
    return min(size, 8)


def _resolve(
    group: Group, space: str, addresses: Ints, size: int, lanes: Ints, instruction: Instruction
) -> tuple[Bytes, Ints, Mask]:
    """Return the memory of a space, where each access is in it, and which ones may be made."""
    machine = group.machine
    aligned = addresses % size == 0
    content: Bytes
    if space == "shared":
        inside = (addresses >= 0) & (addresses + size <= machine.layout.shared_bytes)
        content = group.wave.shared
        index = addresses + group.block[lanes] * group.wave.shared_bytes
    elif space == "local":
        limit = group.local.shape[1]
        inside = (addresses >= 0) & (addresses + size <= limit)
        content = group.local.reshape(-1)
        index = addresses + lanes * limit
    else:
        content, index, inside = machine.arena.locate(addresses, size)
    if not aligned.all():
        place = _place(group, space, addresses[np.argmin(aligned)])
        machine.report("misaligned", f"{size} bytes at {place}", instruction)
    if not inside.all():
        place = _place(group, space, addresses[np.argmin(inside)])
        machine.report("out_of_bounds", f"{size} bytes at {place}", instruction)
    return content, index, inside & aligned


def _place(group: Group, space: str, address: int) -> str:
    """Say where an address of a space is."""
    if space == "shared":
        return f"byte {address} of shared memory, which has {group.machine.layout.shared_bytes}"
    if space == "local":
        return f"byte {address} of local memory, which has {group.local.shape[1]}"
    return group.machine.arena.describe(int(address))


def _watch_poison(
    group: Group, space: str, addresses: Ints, values: Value, instruction: Instruction
) -> None:
    """Note that values of shared or local memory may be there since the kernel began."""
    unwritten = values == poison(f"b{8 * values.itemsize}", group.machine.poison)
    if unwritten.any():
        place = _place(group, space, addresses[np.argmax(unwritten)])
        group.machine.report("unwritten", place, instruction)


def _watch_reads(
    group: Group, index: Ints, size: int, lanes: Ints, instruction: Instruction
) -> None:
    """Let the shadow of shared memory see a load."""
    warps, grain = group.warp[lanes], group.machine.grain
    for start in range(0, size, grain):
        _clash(group, group.wave.shadow.read((index + start) // grain, warps), instruction)


def _watch_writes(
    group: Group,
    index: Ints,
    unit: int,
    changed: list[Mask],
    lost: list[Mask],
    lanes: Ints,
    instruction: Instruction,
) -> None:
    """Let the shadow of shared memory see a store of some units."""
    warps, shadow, grain = group.warp[lanes], group.wave.shadow, group.machine.grain
    for part, (change, loss) in enumerate(zip(changed, lost, strict=True)):
        for start in range(part * unit, (part + 1) * unit, grain):
            words = (index + start) // grain
            _clash(group, shadow.write(words, warps, change, loss), instruction)


def _clash(group: Group, word: int | None, instruction: Instruction) -> None:
    if word is not None:
        byte = group.machine.grain * word % group.wave.shared_bytes
        message = f"two warps use byte {byte} of shared memory without a barrier between"
        group.machine.report("race", message, instruction)


def _space(d: Decode) -> str:
    return (d.one_of(*_SPACES) or "generic").partition("::")[0]


def by_space(space: str, addresses: Ints) -> list[tuple[str, Mask | None, Ints]]:
    """Divide generic addresses by their space: (space, which of them, address in the space)."""
    if space != "generic":
        return [("global" if space in ("const", "global") else space, None, addresses)]
    in_shared, in_local = addresses >= SHARED_WINDOW, (addresses >= LOCAL_WINDOW)
    in_local &= ~in_shared
    parts: list[tuple[str, Mask | None, Ints]] = []
    for name, chosen, base in (
        ("shared", in_shared, SHARED_WINDOW),
        ("local", in_local, LOCAL_WINDOW),
        ("global", ~in_shared & ~in_local, 0),
    ):
        if chosen.all() and len(chosen):
            return [(name, None, addresses - base)]
        if chosen.any():
            parts.append((name, chosen, addresses - base))
    return parts


def load_generic(
    group: Group, space: str, addresses: Ints, size: int, lanes: Ints, instruction: Instruction
) -> Bytes:
    """Load from a space, or from the one that each address names."""
    result = np.full((len(lanes), size), POISON, np.uint8)
    for name, chosen, inner in by_space(space, addresses):
        if chosen is None:
            return load(group, name, inner, size, lanes, instruction)
        result[chosen] = load(group, name, inner[chosen], size, lanes[chosen], instruction)
    return result


def store_generic(
    group: Group, space: str, addresses: Ints, data: Bytes, lanes: Ints, instruction: Instruction
) -> None:
    """Store to a space, or to the one that each address names."""
    for name, chosen, inner in by_space(space, addresses):
        if chosen is None:
            store(group, name, inner, data, lanes, instruction)
        else:
            store(group, name, inner[chosen], data[chosen], lanes[chosen], instruction)


def _vector(d: Decode) -> int:
    return int((d.one_of("v2", "v4", "v8") or "v1")[1:])


def scatter(group: Group, values: Value, lanes: Ints) -> Value:
    """Return values of some lanes as values of all lanes."""
    if len(lanes) == group.count:
        return values
    full = np.zeros(group.count, values.dtype)
    full[lanes] = values
    return full


@emulates("ld", "ldu")
def _load(d: Decode) -> Step:
    d.only(f"{' '.join(_SPACES)} v2 v4 v8 {_CACHING}")
    kind, count, space, instruction = d.kind, _vector(d), _space(d), d.instruction
    width = SIZES[kind]
    writes = [d.write(name) for name in names_in(d.operands[0])]
    if len(writes) != count or len(d.operands) > 2:
        raise d.unknown()
    wanted = numpy_type(kind)
    if space == "param" and d.function.is_entry:
        match = _ADDRESS.match(d.operands[1])
        if match is not None and match[1] in d.machine.parameters:
            start = d.machine.parameters[match[1]] + int(match[2] or "0", 0)
            content = d.machine.parameter_bytes[start : start + width * count]
            constants = content.copy().view(wanted)

            def constant(group: Group, mask: Mask | None) -> None:
                for index, write in enumerate(writes):
                    write(group, constants[index : index + 1].reshape(()), mask)

            return constant
    space = "local" if space == "param" else space
    where = address(d, d.operands[1])

    def step(group: Group, mask: Mask | None) -> None:
        lanes = group.lanes_of(mask)
        data = load_generic(
            group, space, places(group, where)[lanes], width * count, lanes, instruction
        )
        values = np.ascontiguousarray(data).view(wanted)
        for index, write in enumerate(writes):
            write(group, scatter(group, np.ascontiguousarray(values[:, index]), lanes), mask)

    return step


@emulates("st")
def _store(d: Decode) -> Step:
    d.only(f"{' '.join(_SPACES)} v2 v4 v8 {_CACHING}")
    kind, count, space, instruction = d.kind, _vector(d), _space(d), d.instruction
    reads = [d.read(name, kind) for name in names_in(d.operands[1])]
    if len(reads) != count or len(d.operands) > 2:
        raise d.unknown()
    space = "local" if space == "param" else space
    where, raw = address(d, d.operands[0]), raw_type(SIZES[kind])

    def step(group: Group, mask: Mask | None) -> None:
        lanes = group.lanes_of(mask)
        data = np.empty((len(lanes), count), raw)
        for index, read in enumerate(reads):
            value = read(group).view(raw)
            data[:, index] = value[lanes] if value.ndim else value
        store_generic(
            group, space, places(group, where)[lanes], data.view(np.uint8), lanes, instruction
        )

    return step


# ----------------------------------------------------------------------------------- atomics


def _half_add(old: Value, value: Value, kind: str) -> Value:
    if kind == "bf16":
        return to_bf16(from_bf16(old) + from_bf16(value))
    total = old.view(np.float16).astype(np.float32) + value.view(np.float16).astype(np.float32)
    return total.astype(np.float16).view(np.uint16)


_ATOMICS: dict[str, Callable[[Value, Value], Value]] = {
    **REDUCTIONS,
    "exch": lambda _, value: value,
    "inc": lambda old, value: np.where(old >= value, np.zeros_like(old), old + old.dtype.type(1)),
    "dec": lambda old, value: np.where((old == 0) | (old > value), value, old - old.dtype.type(1)),
}


@emulates("atom", "red")
def _atomic(d: Decode) -> Step:
    d.only(f"{' '.join(_SPACES)} {' '.join(_ATOMICS)} cas noftz {_CACHING}")
    kind, space, instruction = d.kind, _space(d), d.instruction
    name = d.one_of("cas", *_ATOMICS)
    returns = d.instruction.opcode == "atom"
    operands = d.operands[1:] if returns else d.operands
    write = d.write(d.operands[0]) if returns else None
    where = address(d, operands[0])
    reads = [d.read(text, kind) for text in operands[1:]]
    size = SIZES[kind]
    if not name or len(reads) != (2 if name == "cas" else 1):
        raise d.unknown()
    if kind in ("f16x2", "bf16x2", "f16", "bf16"):
        if name != "add":
            raise d.unknown()
        halves = kind.removesuffix("x2")
        add_halves = partial(_half_add, kind=halves)
        combine: Callable[[Value, Value], Value] = (
            of_halves(add_halves)
            if kind.endswith("x2")
            else (lambda old, value: add_halves(old.view("u2"), value.view("u2")))
        )
    else:
        combine = _ATOMICS.get(name, np.add)
    wanted = numpy_type(kind)

    def step(group: Group, mask: Mask | None) -> None:
        lanes = group.lanes_of(mask)
        values = [read(group) for read in reads]
        values = [value[lanes] if value.ndim else np.full(len(lanes), value) for value in values]
        result = np.zeros(len(lanes), wanted)
        for part, chosen, inner in by_space(space, places(group, where)[lanes]):
            picked = slice(None) if chosen is None else chosen
            own = lanes[picked]
            content, index, good = _resolve(group, part, inner[picked], size, own, instruction)
            view = content.view(wanted)
            left = np.flatnonzero(good)
            offsets = index // size
            if part == "shared":
                for start in range(0, size, group.machine.grain):
                    words = (index[good] + start) // group.machine.grain
                    clash = group.wave.shadow.add(words, group.warp[own[good]])
                    _clash(group, clash, instruction)
            given = [value[picked] for value in values]
            before = np.zeros(len(own), wanted)
            while len(left):  # of the accesses to one address, one at a time
                _, first = np.unique(offsets[left], return_index=True)
                turn = left[first]
                old = view[offsets[turn]]
                before[turn] = old
                if name == "cas":
                    new = np.where(old == given[0][turn], given[1][turn], old)
                else:
                    new = combine(old, given[0][turn])
                view[offsets[turn]] = new.astype(wanted) if new.dtype.kind != "V" else new
                left = np.delete(left, first)
            if part == "shared":
                raw = before[good].view(raw_type(size))
                _watch_poison(group, part, inner[picked][good], raw, instruction)
            result[picked] = before
        if write is not None:
            write(group, scatter(group, result, lanes), mask)

    return step


# ------------------------------------------------------------------------ asynchronous copies


@emulates("cp")
def _copy_async(d: Decode) -> Step:
    if not d.has("async") or d.has("bulk") or d.has("mbarrier"):
        raise d.unknown()
    if d.one_of("commit_group", "wait_group", "wait_all"):
        d.only("async commit_group wait_group wait_all")
        return _copies_end(d)
    d.only(f"async ca cg shared shared::cta global {_CACHING}")
    target, source = (address(d, text) for text in d.operands[:2])
    size = read_number(d.operands[2])
    if size not in (4, 8, 16):
        raise d.unknown()
    length = d.read(d.operands[3], "u32") if len(d.operands) > 3 else None
    instruction = d.instruction

    def step(group: Group, mask: Mask | None) -> None:
        lanes = group.lanes_of(mask)
        data = np.zeros((len(lanes), size), np.uint8)
        count = np.full(len(lanes), size)
        if length is not None:
            stated = length(group)
            count = (stated[lanes] if stated.ndim else np.full(len(lanes), stated)).astype(np.int64)
        addresses = places(group, source)[lanes]
        reading = count > 0
        if reading.any():
            data[reading] = load(
                group, "global", addresses[reading], size, lanes[reading], instruction
            )
        data[np.arange(size) >= count[:, None]] = 0
        to = places(group, target)[lanes]
        # Until it is waited for, what it writes is not there.
        poisoned = np.full_like(data, group.machine.poison)
        store(group, "shared", to, poisoned, lanes, instruction)
        group.copies.add(to, data, lanes, instruction)

    return step


def _copies_end(d: Decode) -> Step:
    if d.has("commit_group"):
        return lambda group, _: group.copies.commit()
    most = 0
    if d.has("wait_group"):
        number = read_number(d.operands[0])
        if number is None:
            raise d.unknown()
        most = number

    def step(group: Group, _: Mask | None) -> None:
        if d.has("wait_all"):
            group.copies.commit()
        for to, data, lanes, instruction in group.copies.take(most):
            store(group, "shared", to, data, lanes, instruction)

    return step
