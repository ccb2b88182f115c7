"""Remove each mechanism of the sandbox in turn: its canary must get through, the level must drop.

Run: python bench/canaries.py [--out FILE]
The output is a table, and JSON on the last line: the number of mechanisms in force here, and how
many of them can be removed undetected.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace

from _result import bench_parser, report
from kernelcast.backends._proof import detect_sandbox, prove


def main() -> int:
    """Print one row a mechanism; fail if one can be removed undetected."""
    options = bench_parser(__doc__, quick="the same: all mechanisms").parse_args()
    whole = detect_sandbox()
    intact = prove(whole)
    undetected = 0
    print(f"intact: level {intact.level}, {len(intact.canaries)} canaries")
    began = time.monotonic()
    for mechanism in sorted(whole.mechanisms):
        proof = prove(replace(whole, mechanisms=whole.mechanisms - {mechanism}))
        passed = sorted(
            name
            for name, denied in intact.canaries.items()
            if denied and not proof.canaries.get(name, False)
        )
        own = any(name.endswith(f": {mechanism}") for name in passed)
        started = bool(proof.canaries)
        detected = started and own and proof.level < intact.level
        undetected += not detected
        mark = "" if detected else "   UNDETECTED" if started else "   DID NOT START"
        print(f"without {mechanism:26} {proof.level}  {', '.join(passed)}{mark}", flush=True)
    seconds = round(time.monotonic() - began, 1)
    report(
        {
            "mechanisms": len(whole.mechanisms),
            "undetected": undetected,
            "level": intact.level,
            "canaries": len(intact.canaries),
            "seconds": seconds,
        },
        options,
    )
    return int(undetected > 0)


if __name__ == "__main__":
    sys.exit(main())
