"""The parent's side of the sandbox: start processes that run untrusted code, confined.

A `Sandbox` is a set of mechanisms; a `Grant` is what one process may still do. Bubblewrap makes
the namespaces. The child (`_confine`) puts limits, Landlock and seccomp in force before it touches
anything untrusted. `_proof` tests with canaries which level the mechanisms reach:

S3  namespaces, Landlock, seccomp and limits, each proven by its own canary
S2  everything that a kernel could want is denied, but processes are not isolated
S1  another user, and limits: the parent is out of reach, files and the network are not
S0  nothing is proven
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import select
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Literal

from kernelcast.backends import _confine, _seccomp
from kernelcast.backends._patience import Patience
from kernelcast.errors import SetupError

Level = Literal["S0", "S1", "S2", "S3", "S4"]

_HERE = str(Path(__file__).parent)
_LAUNCH = "import sys; sys.path += [sys.argv[1], {2!r}]; import {0}; {0}.{1}(sys.argv[2:])"
_INHERITED = ("LANG", "LD_LIBRARY_PATH", "PATH")
_NOBODY = 65534
_SYSTEM_TREES = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store"),
    *("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d"),
    "/sys/devices/system/cpu",
)
_HARMLESS_FILES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom", "/proc/cpuinfo")
_TMP = "/tmp"  # noqa: S108  (hidden from confined processes)
_GONE_WITHIN_S = 1.5
LAST_BREATH_S = 1.0  # between the end of a process's pipe and its own
_MOST_PROCESSES = 48
MOST_THREADS = 4 * (os.cpu_count() or 1) + 32
"""How many threads a kernel may run. Root has no limit, so the parent counts them."""

# -------------------------------------------------------------------------------- the mechanisms

_BWRAP_FLAGS = {
    "bwrap.user": ("--unshare-user",),
    "bwrap.ipc": ("--unshare-ipc",),
    "bwrap.pid": ("--unshare-pid",),
    "bwrap.net": ("--unshare-net",),
    "bwrap.uts": ("--unshare-uts",),
    "bwrap.capabilities": ("--cap-drop", "ALL"),
    "bwrap.session": ("--new-session",),
    "bwrap.death": ("--die-with-parent",),
}
BWRAP = frozenset(_BWRAP_FLAGS) | {
    *("bwrap.files", "bwrap.readonly", "bwrap.tmp", "bwrap.proc", "bwrap.devices")
}
LIMITS = frozenset({"limit.memory", "limit.cpu", "limit.core", "limit.file", "limit.descriptors"})

_READ_RIGHTS = 0b1101  # execute, read a file, read a folder
_READ_ONLY = 0b1100
_WRITE_RIGHTS = 0b1_1111_1111_0010  # write, remove and make of every kind
_REFER, _TRUNCATE, _DEVICE_IOCTL = 1 << 13, 1 << 14, 1 << 15
_RIGHTS_OF_FILES = 0b111 | _TRUNCATE | _DEVICE_IOCTL
_FILES, _NETWORK, _SCOPE = range(3)
# By mechanism: the first version of Landlock that has it, what it restricts, and the rights.
_LANDLOCK = {
    "landlock.read": (1, _FILES, _READ_RIGHTS),
    "landlock.write": (1, _FILES, _WRITE_RIGHTS),
    "landlock.tcp": (4, _NETWORK, 0b11),
    "landlock.abstract": (6, _SCOPE, 1),
    "landlock.signal": (6, _SCOPE, 2),
}


@cache
def landlock_abi() -> int:
    """Version of Landlock in this kernel; 0 without Landlock."""
    return max(0, int(ctypes.CDLL(None).syscall(444, None, 0, 1)))


def landlock_mechanisms() -> set[str]:
    """The mechanisms that this kernel's version of Landlock has."""
    return {name for name, (since, _, _) in _LANDLOCK.items() if landlock_abi() >= since}


def limits_processes() -> bool:
    """Whether a limit on processes works: never for root, and for others since Linux 5.14."""
    version = tuple(map(int, platform.release().split("-")[0].split(".")[:2]))
    return os.getuid() != 0 and version >= (5, 14)


def _implied() -> frozenset[str]:
    """Mechanisms that bubblewrap always uses if it does not run as root."""
    return frozenset({"bwrap.user", "bwrap.capabilities"} if os.getuid() != 0 else ())


def mechanism_sets() -> Iterator[tuple[Level, frozenset[str]]]:
    """Sets of mechanisms to try here, strongest first, with the highest level each can reach."""
    plain = LIMITS | {"environment"}
    other_user = plain | ({"uid"} if os.getuid() == 0 else set())
    inner = landlock_mechanisms()
    if _seccomp.is_supported():
        groups = (*_seccomp.refused_groups(), "new", "arch", "seal")
        inner |= {f"seccomp.{group}" for group in groups}
    if shutil.which("bwrap") is not None:
        processes = {"limit.processes"} if limits_processes() else set()
        yield "S3", (plain | inner | BWRAP | processes) - _implied()
    yield "S2", other_user | inner
    yield "S1", other_user
    yield "S0", plain


# ----------------------------------------------------------------------------------- the sandbox


@dataclass(frozen=True)
class Grant:
    """What one confined process may use; everything else is denied.

    A process of profile `measure` starts no process or program and writes no file. One of profile
    `compile` may do both, but write only beneath `writable`. CPU time is unlimited without `cpu_s`.
    A sealed process with `loads` may still load libraries. One that `interprets` Python may also
    look at files and make code, and what else it asks for is refused and does not end it. The seal
    of one that also `asks` is in force before it has compiled, and asks the parent until then.
    """

    profile: _seccomp.Profile
    readable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    memory_bytes: int = 4 << 30
    cpu_s: int | None = None
    most_descriptors: int | None = None
    loads: bool = False
    interprets: bool = False
    asks: bool = False

    @property
    def sealing(self) -> _seccomp.Sealing:
        """What the process may do once it is sealed."""
        if self.asks:
            return "asks"
        return "interprets" if self.interprets else "loads" if self.loads else "computes"

    @property
    def file_bytes(self) -> int:
        """Size of the largest file that may be written."""
        return 128 << 20 if self.profile == "compile" else 0

    @property
    def descriptors(self) -> int:
        """Number of files that may be open."""
        return self.most_descriptors or (256 if self.profile == "compile" else 64)


@dataclass(frozen=True)
class Sandbox:
    """The mechanisms that confine a process here, and the devices it may open (none by default)."""

    mechanisms: frozenset[str]
    devices: tuple[str, ...] = ()

    @property
    def wrapped(self) -> bool:
        """Whether processes run in bubblewrap."""
        return any(name.startswith("bwrap.") for name in self.mechanisms)

    @property
    def uid(self) -> int | None:
        """The user that confined processes become; None if it is the parent's."""
        return _NOBODY if "uid" in self.mechanisms else None

    def own(self, folder: Path) -> None:
        """Let confined processes write in a folder of ours, if they run as another user."""
        if self.uid is not None:
            folder.parent.chmod(0o711)
            os.chown(folder, self.uid, self.uid)

    def start(
        self,
        task: str,
        arguments: Sequence[str],
        grant: Grant,
        folder: Path,
        *,
        environment: Mapping[str, str] = MappingProxyType({}),
        inherited: Mapping[str, str] = os.environ,
        pass_fds: Sequence[int] = (),
        output: IO[bytes] | int = subprocess.DEVNULL,
    ) -> Confined:
        """Start a function of a child-side module (`_worker.main`) in a bare interpreter.

        The task `/folder/module.function` is that of a module elsewhere, which `grant` must show.

        The function gets the policy as its first argument and must put it in force first. Its
        environment is `environment` and a few variables of `inherited`: no secret reaches untrusted
        code or its compiler.
        """
        elsewhere, _, name = task.rpartition("/")
        module, function = name.split(".")
        kept = _INHERITED if "environment" in self.mechanisms else inherited
        variables = {name: inherited[name] for name in kept if name in inherited}
        command = [
            *(self._bwrap(grant, folder, environment) if self.wrapped else ()),
            os.path.realpath(sys.executable),
            *("-I", "-S", "-c", _LAUNCH.format(module, function, elsewhere or _HERE), _HERE),
            _confine.encode(self._policy(grant)),
            *arguments,
        ]
        # The thread lives as long as this process: "die with parent" means the thread that started
        # the child.
        started = _starter(os.getpid()).submit(
            _spawn,
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=pass_fds,
            start_new_session=True,
            cwd=folder,
            env=variables if self.wrapped else variables | {**environment},
        )
        process, tether = started.result()
        return Confined(process, tether, wrapped=self.wrapped)

    def seal(self, grant: Grant, reply_fd: int) -> bytes:
        """Return the filter that seals a process which answers by this descriptor, or nothing."""
        sealing = _seccomp.sealing_filter(self.mechanisms, grant.profile, grant.sealing)
        return _confine.filled(*sealing, reply_fd)

    def _policy(self, grant: Grant) -> dict[str, Any]:
        seal = _seccomp.sealing_filter(self.mechanisms, grant.profile, grant.sealing)
        return {
            "uid": self.uid,
            "die_with_parent": not self.wrapped,
            "limits": list(self._limits(grant)),
            "landlock": self._landlock(grant),
            "filter": _seccomp.refusing_filter(self.mechanisms, grant.profile),
            "seal": seal,
            "asks": bool(seal[0]) and grant.asks,
            "seccomp_number": _seccomp.call_number(),
        }

    def _limits(self, grant: Grant) -> Iterator[tuple[int, int, int]]:
        limits = {
            "limit.memory": (resource.RLIMIT_AS, grant.memory_bytes),
            "limit.cpu": (resource.RLIMIT_CPU, grant.cpu_s),
            "limit.core": (resource.RLIMIT_CORE, 0),
            "limit.file": (resource.RLIMIT_FSIZE, grant.file_bytes),
            "limit.descriptors": (resource.RLIMIT_NOFILE, grant.descriptors),
        }
        processes = _MOST_PROCESSES if grant.profile == "compile" else MOST_THREADS
        limits["limit.processes"] = (resource.RLIMIT_NPROC, processes)
        for name, (which, most) in limits.items():
            if name in self.mechanisms and most is not None:
                # At the soft limit of CPU time comes SIGXCPU, which names the reason; at the hard
                # limit comes SIGKILL.
                yield which, most, most + (name == "limit.cpu")

    def _landlock(self, grant: Grant) -> tuple[tuple[int, ...], int, list[tuple[str, int]]]:
        """What is restricted (files, TCP, scope), what applies to files, and the exceptions."""
        write = _WRITE_RIGHTS
        for since, right in ((2, _REFER), (3, _TRUNCATE), (5, _DEVICE_IOCTL)):
            write |= right if landlock_abi() >= since else 0
        handled = [0, 0, 0]
        for name, (_, field, rights) in _LANDLOCK.items():
            if name in self.mechanisms:
                handled[field] |= write if name == "landlock.write" else rights
        read = _READ_RIGHTS if grant.profile == "compile" else _READ_ONLY
        rules = [(path, read) for path in (*_SYSTEM_TREES, *map(str, grant.readable))]
        rules += [(path, _READ_ONLY) for path in _HARMLESS_FILES]
        writable = (*map(str, grant.writable), "/dev/null", *self.devices)
        rules += [(path, write | _READ_ONLY) for path in writable]
        return tuple(handled), _RIGHTS_OF_FILES, [rule for rule in rules if Path(rule[0]).exists()]

    def _bwrap(
        self,
        grant: Grant,
        folder: Path,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> Iterator[str]:
        bwrap = shutil.which("bwrap")
        if bwrap is None:
            raise SetupError("bubblewrap is gone: apt-get install bubblewrap")
        yield bwrap
        for name, flags in _BWRAP_FLAGS.items():
            if name in self.mechanisms or name in _implied():
                yield from flags
        bind = "--ro-bind" if "bwrap.readonly" in self.mechanisms else "--bind"
        if "bwrap.files" in self.mechanisms:
            for tree in map(Path, _SYSTEM_TREES):
                if tree.is_symlink():
                    yield from ("--symlink", str(tree.readlink()), str(tree))
                elif tree.exists():
                    yield from (bind, str(tree), str(tree))
        else:
            yield from (bind, "/", "/")
        private = "bwrap.tmp" in self.mechanisms
        yield from ("--tmpfs", _TMP) if private else ("--bind", _TMP, _TMP)
        # Only the owner of the process namespace can mount its /proc.
        owned = self.mechanisms >= {"bwrap.proc", "bwrap.pid"}
        yield from ("--proc", "/proc") if owned else ("--ro-bind", "/proc", "/proc")
        if "bwrap.devices" in self.mechanisms:
            yield from ("--dev", "/dev")
            for device in self.devices:
                yield from ("--dev-bind", device, device)
        else:
            yield from ("--dev-bind", "/dev", "/dev")
        for path in (*interpreter_trees(), *map(str, grant.readable)):
            yield from (bind, path, path)
        for path in map(str, grant.writable):
            yield from ("--bind", path, path)
        for name, value in environment.items():
            yield from ("--setenv", name, value)
        yield from ("--chdir", str(folder), "--")


@cache
def interpreter_trees() -> tuple[str, ...]:
    """What Python itself consists of, beside what lies in the system's trees."""
    program = Path(os.path.realpath(sys.executable))
    prefix = Path(os.path.realpath(sys.base_prefix))
    parts = (program, prefix / "lib", prefix / "lib64", Path(_HERE))
    return tuple(
        str(part)
        for part in parts
        if part.exists() and not any(part.is_relative_to(tree) for tree in _SYSTEM_TREES)
    )


# ----------------------------------------------------------------------------------- the process


@cache
def _starter(_process_id: int) -> ThreadPoolExecutor:
    """The one thread from which this process starts its children; a fork needs its own."""
    return ThreadPoolExecutor(1, thread_name_prefix="kernelcast-start")


# A process that another thread forks now would inherit the pipe by which `Popen` learns that the
# child has started, and `Popen` would wait as long as that process lives.
_no_forks = threading.Lock()
os.register_at_fork(
    before=_no_forks.acquire, after_in_parent=_no_forks.release, after_in_child=_no_forks.release
)


def _spawn(
    command: list[str], *, pass_fds: Sequence[int], **options: Any
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a process; the second result is a pipe whose other end it and its descendants hold."""
    with _no_forks, ExitStack() as on_failure:
        held, tether = os.pipe()
        on_failure.callback(os.close, held)
        try:
            process = subprocess.Popen(command, pass_fds=(*pass_fds, tether), **options)
        finally:
            os.close(tether)
        on_failure.pop_all()
    return process, held


class Confined:
    """A confined process with all of its descendants."""

    def __init__(self, process: subprocess.Popen[bytes], tether: int, *, wrapped: bool) -> None:
        self._process = process
        self._wrapped = wrapped
        self._tether: int | None = tether
        self.pid = process.pid

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def ended_within(self, timeout_s: float, *, sealed: bool = True) -> bool:
        """Whether the process ends within a limit (see `Patience`).

        `Popen.wait` looks only every 50 ms.
        """
        if not self.alive:
            return True
        pidfd = os.pidfd_open(self.pid)  # the process is not reaped, so the id is still its own
        try:
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            ended = poll.poll(int(timeout_s * 1e3) + 1)
            return bool(ended or Patience(self.pid, timeout_s, sealed=sealed).wait(poll))
        finally:
            os.close(pidfd)

    def fate(self) -> int:
        """End a process that no longer answers. One that is already dying keeps its own status.

        The launcher passes on the status of the process within, a moment after its death.
        """
        self.ended_within(LAST_BREATH_S)
        return self.end()

    def end(self) -> int:
        """Kill the process with its group and wait until nothing of it is left.

        Returns:
            The exit status; below zero, the signal that ended the process.
        """
        if self._process.returncode is None:
            # The process is not reaped yet, so the id is still its own.
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        status = self._process.wait()
        self.wait_until_gone()
        # Bubblewrap reports the signal that ended its child as a shell does.
        return 128 - status if self._wrapped and status > 128 else status

    def wait_until_gone(self, within_s: float = _GONE_WITHIN_S) -> bool:
        """Whether all descendants end in time: each holds the tether until then."""
        if self._tether is None:
            return True
        poll = select.poll()
        poll.register(self._tether, 0)
        gone = bool(poll.poll(within_s * 1e3))
        os.close(self._tether)
        self._tether = None
        return gone


def death(status: int) -> str:
    """How a process with a status below zero died."""
    name = f"signal {-status}"
    with suppress(ValueError):
        name = signal.Signals(-status).name
    return f"died of {name}"
