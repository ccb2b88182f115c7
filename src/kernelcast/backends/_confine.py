"""The child's end of the sandbox: put it in force, and try to break it (the canaries).

A script for a bare interpreter that imports nothing of ours, like `_worker`. The parent
(`_sandbox`) decides the policy and encodes it; here it is applied, in a fixed order, and nothing
untrusted runs before the last stage holds. The canaries run between the stages, so that each
mechanism is tried where no later one can hide its absence, and then once more with all in force.
"""
# pathlib takes 10 ms to import.
# ruff: noqa: PTH112, PTH115, PTH116, PTH123, PTH208

from __future__ import annotations

import ctypes
import marshal
import mmap
import os
import resource
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:  # these modules would cost more to load than all the others
    from collections.abc import Callable, Iterator
    from typing import Any

    _Songs = Iterator[tuple[str, Callable[[], Any]]]

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_SIGKILL = 9
_SIGTERM = 15
SIGCHLD = 17
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_LANDLOCK_PATH_BENEATH = 1
_SECCOMP_SET_MODE_FILTER = 1
# Without it, kernels before 5.16 turn on a mitigation that slows the filtered process.
_SECCOMP_SPEC_ALLOW = 4
_SECCOMP_ALL_THREADS = 1
_SIGSYS = 31


def encode(value: Any) -> str:
    """A policy as an argument of a command line."""
    return marshal.dumps(value).hex()


def decode(text: str) -> Any:
    """The inverse of `encode`."""
    return marshal.loads(bytes.fromhex(text))  # noqa: S302  (the parent's own words)


def enforce(policy: dict[str, Any]) -> Iterator[str]:
    """Put the policy in force, stage by stage; each name is given when its stage holds."""
    yield "namespaces"  # by whoever started this process
    libc = ctypes.CDLL(None, use_errno=True)
    if policy["uid"] is not None:
        uid = policy["uid"]
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    if policy["die_with_parent"]:
        _checked(libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0))
    for which, soft, hard in policy["limits"]:
        resource.setrlimit(which, (soft, hard))
    yield "limits"
    _checked(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _landlock(libc, *policy["landlock"])
    yield "landlock"
    _seccomp(libc, policy)
    yield "seccomp"


def seal(policy: dict[str, Any], reply_fd: int) -> None:
    """Allow every thread only what a kernel needs, from now on; anything else is its end."""
    libc = ctypes.CDLL(None, use_errno=True)
    _load_filter(libc, policy, policy["seal"], policy["reply_fd"], reply_fd, _SECCOMP_ALL_THREADS)


def confined(arguments: list[str]) -> list[str]:
    """Put the policy in the first argument in force; the other arguments."""
    for _ in enforce(decode(arguments[0])):
        pass
    return arguments[1:]


def run(arguments: list[str]) -> None:
    """Become another program (a compiler), confined."""
    command = confined(arguments)
    os.execv(command[0], command)  # noqa: S606  (this is the task)


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _landlock(
    libc: ctypes.CDLL,
    handled: tuple[int, int, int],
    rights_of_files: int,
    rules: list[tuple[str, int]],
) -> None:
    if not any(handled):
        return
    attributes = struct.pack("<3Q", *handled)
    ruleset = _checked(libc.syscall(_LANDLOCK_CREATE, attributes, len(attributes), 0))
    for path, access in rules:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        allowed = access & handled[0]
        if not os.path.isdir(path):
            allowed &= rights_of_files
        if allowed:
            rule = struct.pack("<Qi", allowed, fd)
            _checked(libc.syscall(_LANDLOCK_ADD, ruleset, _LANDLOCK_PATH_BENEATH, rule, 0))
        os.close(fd)
    _checked(libc.syscall(_LANDLOCK_RESTRICT, ruleset, 0))
    os.close(ruleset)


def _seccomp(libc: ctypes.CDLL, policy: dict[str, Any]) -> None:
    _load_filter(libc, policy, policy["filter"], policy["own_pid"], os.getpid())


def _load_filter(
    libc: ctypes.CDLL,
    policy: dict[str, Any],
    program: bytes,
    blanks: list[int],
    value: int,
    flags: int = 0,
) -> None:
    """Put a filter in force, with a value that only this process knows filled into its blanks."""
    if not program:
        return
    filled = bytearray(program)
    for instruction in blanks:
        struct.pack_into("<I", filled, 8 * instruction + 4, value)
    buffer = ctypes.create_string_buffer(bytes(filled), len(filled))
    header = struct.pack("@HP", len(filled) // 8, ctypes.addressof(buffer))
    flags |= _SECCOMP_SPEC_ALLOW
    _checked(libc.syscall(policy["seccomp_number"], _SECCOMP_SET_MODE_FILTER, flags, header))


# ------------------------------------------------------------------------------------ canaries

_FORKS = 64
_STRAGGLER_S = 3.0
_PTRACE_SEIZE = 0x4206
_MAP_NORESERVE = 0x4000
_ENOSYS = 38
_DEVICES = {
    *("null", "zero", "full", "random", "urandom", "tty", "console", "core", "fd"),
    *("stdin", "stdout", "stderr", "pts", "ptmx", "shm"),
}
# mov eax, 20 (getpid); int 0x80; ret: a system call by the 32-bit door.
_INT_80 = b"\xb8\x14\x00\x00\x00\xcd\x80\xc3"


def sing(arguments: list[str]) -> None:
    """Try everything that the sandbox must deny, and write one line a canary to the report."""
    policy, bait = decode(arguments[0]), decode(arguments[1])
    canaries = _Canaries(policy, bait)
    for stage in enforce(policy):
        for name, try_it in getattr(canaries, stage)():
            denied = _denied(try_it)
            os.write(bait["report"], f"{name} {int(denied)}\n".encode())
    os.write(bait["report"], b"end 1\n")
    if bait["linger"]:
        os.read(bait["never"], 1)


def _denied(attempt: Callable[[], Any]) -> bool:
    """An attempt is denied if it fails, or says that it got nothing."""
    try:
        return not attempt()
    except (OSError, ValueError):
        return True


class _Canaries:
    """By stage: names, and attempts that return something true if they got through."""

    def __init__(self, policy: dict[str, Any], bait: dict[str, Any]) -> None:
        # Later, the sandbox would not let these modules be read.
        import socket
        import time

        self.policy, self.bait = policy, bait
        self.socket, self.sleep = socket, time.sleep
        self.libc = ctypes.CDLL(None, use_errno=True)

    def namespaces(self) -> _Songs:
        bait = self.bait
        for kind, outside in bait["namespaces"].items():
            link = f"/proc/self/ns/{kind}"
            yield f"bwrap.{kind}", self._is_link(link, outside)
        yield "bwrap.files", lambda: os.stat("/etc/passwd")
        yield "bwrap.readonly", self._touches(bait["shared"])
        yield "bwrap.tmp", lambda: os.stat(bait["in_tmp"])
        yield "bwrap.proc", lambda: process_started(bait["parent"]) == bait["parent_started"]
        yield "bwrap.devices", lambda: {*os.listdir("/dev")} - _DEVICES - {*bait["devices"]}
        yield "bwrap.capabilities", lambda: _rename_host(self.libc) == 0
        yield "bwrap.session", lambda: os.getpgrp() == 0
        yield "environment", lambda: bait["token"] in os.environ.values()
        self._prepare_later_stages()

    def _prepare_later_stages(self) -> None:
        """What later stages need, made while it is still allowed."""
        if self.bait["straggler"]:
            self._start_straggler()
        os.close(os.open(self.bait["scratch"], os.O_CREAT, 0o600))
        tcp = self.socket.socket(self.socket.AF_INET)
        tcp.bind(("127.0.0.1", 0))
        abstract = self.socket.socket(self.socket.AF_UNIX)
        abstract.bind("\0" + self.bait["token"])
        for listener in (tcp, abstract):
            listener.listen()
        self.listeners = tcp, abstract
        self.own_tcp, self.own_abstract = tcp.getsockname(), "\0" + self.bait["token"]
        release, hold = os.pipe()
        self.hold = hold
        self.sibling = os.fork()
        if self.sibling == 0:
            for fd in (hold, self.bait["report"]):
                os.close(fd)
            os.read(release, 1)
            os._exit(0)
        os.close(release)

    def _start_straggler(self) -> None:
        """A grandchild in a session of its own, which holds the tether that it inherited."""
        child = os.fork()
        if child == 0:
            os.setsid()
            if os.fork() == 0:
                os.close(self.bait["report"])
                self.sleep(_STRAGGLER_S)
            os._exit(0)
        os.waitpid(child, 0)

    def limits(self) -> _Songs:
        bait = self.bait
        yield "limit.memory", self._twice_the_memory
        yield "limit.cpu", self._lifts(resource.RLIMIT_CPU)
        yield "limit.core", self._lifts(resource.RLIMIT_CORE)
        yield "limit.file", self._a_byte_too_many
        yield "limit.descriptors", lambda: os.dup2(bait["report"], bait["descriptors"])
        if bait["profile"] == "compile":
            yield "limit.processes", lambda: self._forks() == _FORKS

    def landlock(self) -> _Songs:
        bait, socket = self.bait, self.socket
        create = os.O_WRONLY | os.O_CREAT
        yield "landlock.write", lambda: os.open(bait["scratch"] + ".new", create, 0o600)
        yield "landlock.read", lambda: os.open(bait["scratch"], os.O_RDONLY)
        yield "landlock.tcp", lambda: self._connects(socket.AF_INET, self.own_tcp)
        yield "landlock.abstract", lambda: self._connects(socket.AF_UNIX, self.own_abstract)
        yield "landlock.signal", lambda: self._signals(self.sibling, 0)
        if bait["int_80"]:
            yield "seccomp.arch", self._other_door
        if bait["profile"] == "measure":
            yield "seccomp.seal", self._opens_a_file_when_sealed

    def seccomp(self) -> _Songs:
        bait, socket = self.bait, self.socket
        for group, calls in bait["calls"].items():
            yield f"seccomp.{group}", self._passes(calls)
        yield "write", lambda: os.open(bait["outside"], os.O_WRONLY | os.O_CREAT, 0o600)
        yield "secret", lambda: os.open(bait["secret"], os.O_RDONLY)
        yield "tcp", lambda: self._connects(socket.AF_INET, bait["tcp"])
        yield "udp", lambda: self._sends(bait["udp"])
        yield "unix", lambda: self._connects(socket.AF_UNIX, bait["unix"])
        yield "abstract", lambda: self._connects(socket.AF_UNIX, bait["abstract"])
        yield "ptrace", lambda: self.libc.ptrace(_PTRACE_SEIZE, bait["neighbour"], 0, 0) == 0
        yield "environ", self._reads_the_neighbours_environment
        yield "signal", self._ends_the_neighbour
        yield "memory", self._twice_the_memory
        if bait["profile"] == "measure":
            yield "forks", lambda: self._forks() == _FORKS
            yield "exec", lambda: os.posix_spawn("/bin/true", ["true"], {})

    def _is_link(self, path: str, target: str) -> Callable[[], bool]:
        return lambda: os.readlink(path) == target

    def _touches(self, path: str) -> Callable[[], bool]:
        def touch() -> bool:
            os.utime(path)
            return True

        return touch

    def _lifts(self, which: int) -> Callable[[], bool]:
        def lift() -> bool:
            resource.setrlimit(which, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            return True

        return lift

    def _signals(self, pid: int, number: int) -> bool:
        os.kill(pid, number)
        return True

    def _passes(self, calls: list[tuple[int, int, tuple[int, ...]]]) -> Callable[[], bool]:
        return lambda: not all(map(self._refused, calls))

    def _reads_the_neighbours_environment(self) -> bytes:
        with open(f"/proc/{self.bait['neighbour']}/environ", "rb") as environment:
            return environment.read()

    def _ends_the_neighbour(self) -> bool:
        # In a namespace of its own, the neighbour's number may by chance be one of ours.
        pid = self.bait["neighbour"]
        return pid not in (os.getpid(), self.sibling) and self._signals(pid, _SIGTERM)

    def _twice_the_memory(self) -> mmap.mmap:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        return mmap.mmap(-1, 2 * self.bait["memory_bytes"], flags=flags)

    def _a_byte_too_many(self) -> bool:
        os.ftruncate(os.memfd_create("canary"), self.bait["file_bytes"] + 1)
        return True

    def _connects(self, family: int, address: str | tuple[str, int]) -> bool:
        with self.socket.socket(family) as client:
            client.settimeout(1.0)
            client.connect(address)
        return True

    def _sends(self, address: tuple[str, int]) -> int:
        with self.socket.socket(self.socket.AF_INET, self.socket.SOCK_DGRAM) as client:
            return client.sendto(self.bait["token"].encode(), address)

    def _forks(self) -> int:
        """How many processes can be alive at once, up to a bound."""
        release, hold = os.pipe()
        born: list[int] = []
        try:
            while len(born) < _FORKS:
                child = os.fork()
                if child == 0:
                    os.close(hold)
                    os.read(release, 1)
                    os._exit(0)
                born.append(child)
        except OSError:
            pass
        os.close(hold)
        for child in born:
            os.waitpid(child, 0)
        os.close(release)
        return len(born)

    def _other_door(self) -> bool:
        """Whether a 32-bit system call gets past the filter; a kernel without them kills."""
        child = os.fork()
        if child == 0:
            _seccomp(self.libc, self.policy)
            code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
            code.write(_INT_80)
            address = ctypes.addressof(ctypes.c_char.from_buffer(code))
            os._exit(ctypes.CFUNCTYPE(ctypes.c_int)(address)() != -_ENOSYS)
        return os.waitpid(child, 0)[1] == 1 << 8

    def _opens_a_file_when_sealed(self) -> bool:
        """Whether a loaded kernel outlives what none needs."""
        child = os.fork()
        if child == 0:
            seal(self.policy, self.bait["report"])
            try:
                os.open("/dev/null", os.O_WRONLY)
            finally:
                os._exit(0)
        return os.waitpid(child, 0)[1] & 0x7F != _SIGSYS

    def _refused(self, call: tuple[int, int, tuple[int, ...]]) -> bool:
        """Whether the filter, and not the kernel, answers: its error is not the kernel's."""
        number, error, values = call
        result = self.libc.syscall(number, *map(ctypes.c_long, values))
        if result == 0 and values[0] & 0xFF == SIGCHLD:
            os._exit(0)  # the child of a clone that should have been refused
        return result == -1 and ctypes.get_errno() == error


def _rename_host(libc: ctypes.CDLL) -> int:
    """Set the host's name to what it is: needs a capability, changes nothing."""
    name = os.uname().nodename.encode()
    return int(libc.sethostname(name, len(name)))


def process_started(pid: int) -> int:
    """When a process started, in ticks since boot: with the id, its identity."""
    with open(f"/proc/{pid}/stat", "rb") as stat:
        return int(stat.read().rpartition(b")")[2].split()[19])
