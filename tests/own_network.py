"""Commands in a network and a process tree of their own, as clusters of Ray need them here."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

# Ray ignores 127.0.0.1 as the address of a node.
HOST = "10.99.0.1"
ON_LOOPBACK = f"ip link set lo up; ip addr add {HOST}/24 dev lo"
RAY = {
    "RAY_raylet_start_wait_time_s": "180",
    "RAY_worker_niceness": "0",  # as `kernelcast farm up` sets it
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_enable_metrics_collection": "0",
}
_UNSHARE = ("unshare", "--net", "--pid", "--fork", "--mount-proc", "--kill-child")


def run_inside(
    command: Sequence[str], environment: dict[str, str] | None = None, network: str = ON_LOOPBACK
) -> int:
    """Run a command as root in new namespaces, and return its code; its processes end with it."""
    script = f'{network}; "$@"; exit $?'
    variables = {**os.environ, **RAY, **(environment or {})}
    return subprocess.run(
        [*_UNSHARE, "bash", "-c", script, "_", *command], env=variables
    ).returncode
