"""The proof that a sandbox confines: canaries try to break it from inside, and give its level.

There is one canary for each mechanism and one for each thing that must be denied. The canaries
themselves run in the child (`_confine`); here are the targets they try to reach, the canaries that
each level requires, and the advice for a higher level.
"""

from __future__ import annotations

import errno
import os
import platform
import secrets
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any, get_args

from kernelcast.backends import _confine, _sandbox, _seccomp
from kernelcast.backends._sandbox import Grant, Level, Sandbox
from kernelcast.backends._seccomp import Profile
from kernelcast.errors import SetupError

_TMP, _OTHER_TMP = "/tmp", "/var/tmp"  # noqa: S108  (places that the sandbox must hide)
_CANARY_TIMEOUT_S = 120.0  # ends a canary that hangs; a machine that stalls is waited for
_GONE_WITHIN_S = 8.0  # less than a straggler of the canaries lives
_NEIGHBOUR_S = 3600  # outlives the canaries, and is killed after them
_NAMESPACES = ("user", "ipc", "pid", "net", "uts")
_OUT_OF_REACH = frozenset({"ptrace", "environ", "signal", "memory"})
_GOALS = _OUT_OF_REACH | {"write", "secret", "tcp", "udp", "unix", "abstract"}


@dataclass(frozen=True)
class Proof:
    """The level of a sandbox, and for each canary whether it was denied what it tried.

    Names of canaries are `<profile>: <canary>`. `trouble` is the last line that a canary's process
    printed.
    """

    level: Level
    canaries: Mapping[str, bool]
    trouble: str = ""

    def lacks(self, level: Level) -> list[str]:
        """The canaries that a level requires and that were not denied."""
        return sorted(name for name in required(level) if not self.canaries.get(name, False))


def required(level: Level) -> frozenset[str]:
    """The canaries that must be denied for a level, as far as this kernel has the mechanism."""
    if level == "S4":
        return frozenset({"a microVM or gVisor, which this version cannot use"})
    canaries: set[str] = set()
    for profile in get_args(Profile) if level != "S0" else ():
        names = _sandbox.LIMITS | {"environment"}
        if level == "S1":
            names |= _OUT_OF_REACH
        if level >= "S2":
            names |= _GOALS | {
                f"seccomp.{group}" for group in (*_seccomp.refused_groups(profile), "new")
            }
            if platform.machine() == "x86_64":
                names |= {"seccomp.arch"}
            if profile == "measure":
                names |= {"forks", "exec", "seccomp.seal"}
        if level == "S3":
            names |= _sandbox.BWRAP | {"leftovers"} | _sandbox.landlock_mechanisms()
            if profile == "compile" and _sandbox.limits_processes():
                names |= {"limit.processes"}
        canaries |= {f"{profile}: {name}" for name in names}
    return frozenset(canaries)


@cache
def prove(sandbox: Sandbox) -> Proof:
    """Run the canaries in both profiles: the level is the highest whose canaries are all denied."""
    canaries: dict[str, bool] = {}
    trouble = ""
    for profile in get_args(Profile):
        with tempfile.TemporaryFile() as messages:
            for name, denied in _run_canaries(sandbox, profile, messages).items():
                canaries[f"{profile}: {name}"] = denied
            messages.seek(0)
            trouble = trouble or messages.read(4096).decode(errors="replace").strip()
    levels: tuple[Level, ...] = ("S3", "S2", "S1")
    reached = (level for level in levels if not Proof(level, canaries).lacks(level))
    return Proof(next(reached, "S0"), canaries, trouble.rpartition("\n")[2])


def detect_sandbox() -> Sandbox:
    """The strongest sandbox that proves itself on this machine."""
    best, level = Sandbox(frozenset()), "S0"
    for most, mechanisms in _sandbox.mechanism_sets():
        if most <= level:
            break
        sandbox = Sandbox(mechanisms)
        if (reached := prove(sandbox).level) >= level:
            best, level = sandbox, reached
    return best


# ----------------------------------------------------------------------------------- the canaries


@contextmanager
def _targets() -> Iterator[tuple[dict[str, Any], Path, subprocess.Popen[bytes]]]:
    """What the canaries try to reach: facts about it, a folder to build in, and a process."""
    token = secrets.token_hex(16)
    with ExitStack() as stack:

        def folder(parent: str | None) -> Path:
            path = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=parent)))
            path.chmod(0o777)  # the sandbox must deny access, not the file's mode
            return path

        outside = folder(_OTHER_TMP if os.access(_OTHER_TMP, os.W_OK) else None)
        shared, build, in_tmp = folder(None), folder(None), folder(_TMP)
        for planted in (outside / "secret", shared / "shared"):
            planted.write_text(token)
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        named, abstract = str(outside / "socket"), f"\0outside-{token}"
        for address in (named, abstract):
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(address)
            listener.listen()
        Path(named).chmod(0o777)
        scratch = Path(_TMP) / f"kernelcast-canary-{token}"
        for leftover in (scratch, scratch.with_name(scratch.name + ".new")):
            stack.callback(leftover.unlink, missing_ok=True)
        neighbour = subprocess.Popen(["/bin/sleep", str(_NEIGHBOUR_S)], env={"TOKEN": token})
        stack.callback(neighbour.wait)
        stack.callback(neighbour.kill)
        facts = {
            "token": token,
            "namespaces": {
                kind: str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in _NAMESPACES
            },
            "shared": str(shared / "shared"),
            "in_tmp": str(in_tmp),
            "outside": str(outside / "written"),
            "secret": str(outside / "secret"),
            "tcp": tcp.getsockname(),
            "udp": udp.getsockname(),
            "unix": named,
            "abstract": abstract,
            "scratch": str(scratch),
            "neighbour": neighbour.pid,
            "parent": os.getpid(),
            "parent_started": _confine.process_started(os.getpid()),
            "int_80": platform.machine() == "x86_64",
        }
        yield facts, build, neighbour


def _run_canaries(sandbox: Sandbox, profile: Profile, messages: IO[bytes]) -> dict[str, bool]:
    """Whether each canary was denied; one that died before its report is missing."""
    with _targets() as (facts, build, neighbour), ExitStack() as stack:
        shared = Path(facts["shared"]).parent
        writable = (build,) if profile == "compile" else ()
        grant = Grant(profile, (shared,), writable, memory_bytes=1 << 30, cpu_s=10)
        report, report_write = os.pipe()
        never, never_write = os.pipe()
        for fd in (report, never_write):
            stack.callback(os.close, fd)
        facts |= {
            "profile": profile,
            "report": report_write,
            "never": never,
            "straggler": sandbox.wrapped,  # without a namespace of processes it always survives
            # The canaries of one profile end by themselves, those of the other are killed: nothing
            # may be left in either case.
            "linger": profile == "compile",
            "devices": [Path(device).name for device in sandbox.devices],
            "memory_bytes": grant.memory_bytes,
            "file_bytes": grant.file_bytes,
            "descriptors": grant.descriptors,
            "calls": _calls(profile) if _seccomp.is_supported() else {},
        }
        try:
            confined = sandbox.start(
                "_confine.run_canaries",
                [_confine.encode(facts)],
                grant,
                shared,
                inherited={**os.environ, "PATH_TO_TOKEN": facts["token"]},
                pass_fds=(report_write, never),
                output=messages,
            )
        finally:
            for fd in (report_write, never):
                os.close(fd)
        text = _read_report(report)
        if profile == "compile":
            os.kill(confined.pid, signal.SIGKILL)
        confined.ended_within(1.0)
        gone = sandbox.wrapped and confined.wait_until_gone(_GONE_WITHIN_S)
        confined.end()
        denied = {name: verdict == "1" for name, verdict in map(str.split, text.splitlines())}
        if denied.pop("end", False):
            denied |= {"leftovers": gone, "bwrap.death": gone}
        if denied.get("signal") and neighbour.poll() is not None:
            denied["signal"] = False
        return denied


def _calls(profile: Profile) -> dict[str, list[tuple[int, int, tuple[int, ...]]]]:
    """By group: system calls to try, the filter's error, and arguments that do no harm."""
    namespace = _seccomp.CLONE_NEWUSER if profile == "compile" else 0
    arguments: dict[str, tuple[int, ...]] = {
        "fork": (_confine.SIGCHLD, 0, 0, 0, 0, 0),
        "clone": (_confine.SIGCHLD | namespace, 0, 0, 0, 0, 0),
        "msgget": (-1, 0, 0, 0, 0, 0),
    }
    nonsense: tuple[int, ...] = (-1,) * 6
    calls = {"new": [(_seccomp.FIRST_UNKNOWN_CALL, int(errno.ENOSYS), nonsense)]}
    for group, error, numbers in _seccomp.refused_calls(profile):
        calls[group] = [
            (number, error, arguments.get(name, nonsense))
            for name, number in numbers.items()
            if name != "vfork"  # its child would run on the canary's stack
        ]
    return calls


def _read_report(fd: int) -> str:
    """The report, until it is complete, its writers are gone, or the time is up."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    deadline = time.monotonic() + _CANARY_TIMEOUT_S
    text = b""
    while (left_s := deadline - time.monotonic()) > 0 and poll.poll(left_s * 1e3):
        part = os.read(fd, 65536)
        text += part
        if not part or text.endswith(b"\nend 1\n"):
            break
    return text.rpartition(b"\n")[0].decode()


# ------------------------------------------------------------------------------- the requirement


def what_would_raise(proof: Proof) -> str:
    """What to do on this machine for the next level, in one sentence."""
    if proof.level == "S3":
        return "S4 takes gVisor or a microVM, which this version cannot use"
    if shutil.which("bwrap") is None:
        return "for S3: apt-get install bubblewrap"
    attempt = prove(Sandbox(next(_sandbox.mechanism_sets())[1]))
    if "measure: bwrap.user" not in attempt.canaries:
        return (
            f"for S3: let bubblewrap make namespaces ({attempt.trouble or 'it did not start'}): "
            "on Ubuntu sysctl kernel.apparmor_restrict_unprivileged_userns=0, in Docker "
            "--security-opt seccomp=unconfined --security-opt systempaths=unconfined"
        )
    if _sandbox.landlock_abi() == 0:
        return "for S3: a kernel with Landlock (Linux 5.13, started with landlock in lsm=)"
    return f"for S3, these must be denied: {', '.join(attempt.lacks('S3'))}"


def admit(sandbox: Sandbox, require: str | None, *, allow_unsafe: bool) -> Level:
    """The proven level of a sandbox.

    Raises:
        SetupError: The level is below `require`; or nothing is required, the level is S0 or S1,
            which leave files and the network open, and unsafe runs are not allowed.
    """
    if require is not None and require not in get_args(Level):
        raise SetupError(f"require is {require!r}; levels are {', '.join(get_args(Level))}")
    proof = prove(sandbox)
    if require is not None and proof.level < require:
        raise SetupError(
            f"the sandbox here reaches {proof.level}, and {require} is required; "
            f"{what_would_raise(proof)}"
        )
    if proof.level < "S2" and not allow_unsafe and require is None:
        fix = "--allow-unsafe" if proof.level == "S0" else "--require S1 or --allow-unsafe"
        raise SetupError(
            f"kernels cannot be kept from files and network here (level {proof.level}), so none is "
            f"run; {what_would_raise(proof)}; or, for kernels you trust, {fix}"
        )
    return proof.level
