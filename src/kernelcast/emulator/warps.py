"""What the lanes of a warp tell each other: shuffles, votes, matches and reductions."""

from __future__ import annotations

import numpy as np

from kernelcast.emulator.arithmetic import REDUCTIONS, emulates
from kernelcast.emulator.decoding import Decode
from kernelcast.emulator.lanes import WARP, Group, Step, Value, no_step
from kernelcast.emulator.memory import Ints, Mask


def _chosen(group: Group, mask: Mask | None) -> Mask:
    return np.ones(group.count, np.bool_) if mask is None else mask


def _ballot(group: Group, holds: Value) -> Value:
    """Return, for each lane, the bits of the lanes of its warp for which something holds."""
    bits = np.where(holds, np.uint32(1) << group.lane.astype(np.uint32), np.uint32(0))
    sums = np.zeros(group.count, np.uint32)
    np.bitwise_or.at(sums, group.row, bits)
    return sums[group.row]


@emulates("shfl")
def _shuffle(d: Decode) -> Step:
    d.only("sync up down bfly idx", "b32")
    way = d.one_of("up", "down", "bfly", "idx")
    names = d.operands[0].split("|")
    write = d.write(names[0].strip())
    write_valid = d.write(names[1].strip()) if len(names) > 1 else None
    source, by, bounds = (d.read(text, "b32") for text in d.operands[1:4])

    def step(group: Group, mask: Mask | None) -> None:
        value, lane = group.spread(source(group)), group.lane
        shift = (by(group) & np.uint32(31)).astype(np.int64)
        limits = bounds(group).astype(np.int64)
        clamp, segment = limits & 31, (limits >> 8) & 31
        lowest = lane & segment
        highest = lowest | (clamp & ~segment)
        if way == "up":
            other = lane - shift
            valid = other >= highest
        elif way == "down":
            other = lane + shift
            valid = other <= highest
        elif way == "bfly":
            other = lane ^ shift
            valid = other <= highest
        else:
            other = lowest | (shift & ~segment)
            valid = other <= highest
        other = np.where(valid, other, lane)
        places = group.row + other
        # A lane that the block does not have gives what is there.
        inside = (places < group.count) & (
            group.warp[np.minimum(places, group.count - 1)] == group.warp
        )
        places = np.where(inside, places, np.arange(group.count))
        write(group, value[places], mask)
        if write_valid is not None:
            write_valid(group, valid & inside, mask)

    return step


@emulates("vote")
def _vote(d: Decode) -> Step:
    d.only("sync all any uni ballot", "pred b32")
    way = d.one_of("all", "any", "uni", "ballot")
    write, read = d.write(d.operands[0]), d.read(d.operands[1], "pred")

    def step(group: Group, mask: Mask | None) -> None:
        chosen, holds = _chosen(group, mask), group.spread(read(group))
        yes = _ballot(group, holds & chosen)
        present = _ballot(group, chosen)
        result = {
            "ballot": yes,
            "any": yes != 0,
            "all": yes == present,
            "uni": (yes == present) | (yes == 0),
        }[way]
        write(group, result, mask)

    return step


@emulates("activemask")
def _active(d: Decode) -> Step:
    d.only("", "b32")
    write = d.write(d.operands[0])
    return lambda group, mask: write(group, _ballot(group, _chosen(group, mask)), mask)


@emulates("match")
def _match(d: Decode) -> Step:
    d.only("any all sync", "b32 b64")
    names = d.operands[0].split("|")
    write, read = d.write(names[0].strip()), d.read(d.operands[1], d.kind)
    write_all = d.write(names[1].strip()) if len(names) > 1 else None
    together = d.has("all")

    def step(group: Group, mask: Mask | None) -> None:
        chosen, value = _chosen(group, mask), group.spread(read(group))
        result = np.zeros(group.count, np.uint32)
        for lane in range(WARP):
            places = np.minimum(group.row + lane, group.count - 1)
            there = (group.warp[places] == group.warp) & (group.lane[places] == lane)
            same = there & chosen[places] & (value[places] == value)
            result |= np.where(same, np.uint32(1 << lane), np.uint32(0))
        if together:
            everyone = result == _ballot(group, chosen)
            result = np.where(everyone, result, np.uint32(0))
            if write_all is not None:
                write_all(group, everyone, mask)
        write(group, result, mask)

    return step


@emulates("redux")
def _reduce(d: Decode) -> Step:
    d.only(f"sync {' '.join(REDUCTIONS)}", "u32 s32 b32")
    operation = REDUCTIONS[d.one_of(*REDUCTIONS)]
    write, read = d.write(d.operands[0]), d.read(d.operands[1], d.kind)

    def step(group: Group, mask: Mask | None) -> None:
        chosen, value = _chosen(group, mask), group.spread(read(group))
        rows = group.row[chosen]
        first = np.full(group.count, -1)
        lanes: Ints = np.flatnonzero(chosen)
        first[rows[::-1]] = lanes[::-1]
        result = value.copy()
        starts = first[first >= 0]
        result[group.row[starts]] = value[starts]
        others = lanes[~np.isin(lanes, starts)]
        operation.at(result, group.row[others], value[others])
        write(group, result[group.row], mask)

    return step


@emulates("bar", "barrier")
def _warp_barrier(d: Decode) -> Step:
    """`bar.warp.sync`: the lanes of a warp are together anyway."""
    d.only("warp sync")
    if not d.has("warp"):
        raise d.unknown()
    return no_step


@emulates("elect")
def _elect(d: Decode) -> Step:
    d.only("sync")
    names = d.operands[0].split("|")
    write_lane, write_elected = (d.write(name.strip()) for name in names)

    def step(group: Group, mask: Mask | None) -> None:
        present = _ballot(group, _chosen(group, mask)).astype(np.int64)
        leader = np.log2(np.maximum(present & -present, 1)).astype(np.uint32)
        write_lane(group, leader, mask)
        write_elected(group, group.lane == leader, mask)

    return step
