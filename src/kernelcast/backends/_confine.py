"""The child's side of the sandbox: put it in force, and try to break it (the canaries).

A script for a bare interpreter that imports nothing of ours, like `_worker`. The parent
(`_sandbox`) decides the policy and encodes it. The child applies it in a fixed order, and nothing
untrusted runs before the last stage holds. The canaries run between the stages, so that no later
mechanism hides a missing one, and then once more with all in force.
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
if TYPE_CHECKING:  # these modules take longer to load than all others together
    from collections.abc import Callable, Iterator
    from typing import Any

    _Attempts = Iterator[tuple[str, Callable[[], Any]]]

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_SIGKILL, _SIGTERM, SIGCHLD, _SIGSYS = 9, 15, 17, 31
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_LANDLOCK_PATH_BENEATH = 1
_SECCOMP_SET_MODE_FILTER = 1
# Without this flag, kernels before 5.16 turn on a mitigation that slows the filtered process.
_SECCOMP_SPEC_ALLOW = 4
_SECCOMP_ALL_THREADS, _SECCOMP_LISTENER = 1, 8


def encode(value: Any) -> str:
    """Encode a policy as an argument of a command line."""
    return marshal.dumps(value).hex()


def decode(text: str) -> Any:
    """Undo `encode`."""
    return marshal.loads(bytes.fromhex(text))  # noqa: S302  (the parent encoded it)


def enforce(policy: dict[str, Any]) -> Iterator[str]:
    """Put the policy in force stage by stage; yield the name of each stage when it holds."""
    yield "namespaces"  # made by bubblewrap
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
    _load_filter(policy, "filter", os.getpid())
    yield "seccomp"


def seal(policy: dict[str, Any], reply_fd: int) -> None:
    """Kill the process from now on for any system call, in any thread, that no kernel needs."""
    _load_filter(policy, "seal", reply_fd, _SECCOMP_ALL_THREADS)


def listen(policy: dict[str, Any], reply_fd: int) -> int | None:
    """Put a seal in force that asks; return the listener, which lets calls pass.

    Once no process holds the listener, the calls are refused. A kernel without listeners has none
    to give, and the parent ends the process.
    """
    try:
        return _load_filter(policy, "seal", reply_fd, _SECCOMP_LISTENER) if policy["asks"] else None
    except OSError:
        return None


def confined(arguments: list[str]) -> list[str]:
    """Put the policy in the first argument in force, and return the other arguments."""
    for _ in enforce(decode(arguments[0])):
        pass
    return arguments[1:]


def run(arguments: list[str]) -> None:
    """Become another program (a compiler), confined."""
    command = confined(arguments)
    os.execv(command[0], command)  # noqa: S606


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


def filled(program: bytes, blanks: list[int], value: int) -> bytes:
    """Return a filter with a value in its blanks."""
    code = bytearray(program)
    for instruction in blanks:
        struct.pack_into("<I", code, 8 * instruction + 4, value)
    return bytes(code)


def _load_filter(policy: dict[str, Any], name: str, value: int, flags: int = 0) -> int | None:
    """Put a filter in force, with a value that only this process knows in its blanks."""
    program, blanks = policy[name]
    if not program:
        return None
    program = filled(program, blanks, value)
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    flags |= _SECCOMP_SPEC_ALLOW
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    return _checked(syscall(policy["seccomp_number"], _SECCOMP_SET_MODE_FILTER, flags, header))


# ------------------------------------------------------------------------------------ canaries

_FORKS = 64
_STRAGGLER_S = 30.0
_PTRACE_SEIZE = 0x4206
_MAP_NORESERVE = 0x4000
_ENOSYS = 38
_UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
_CREATE = os.O_WRONLY | os.O_CREAT
_DEVICES = {
    *("null", "zero", "full", "random", "urandom", "tty", "console", "core", "fd"),
    *("stdin", "stdout", "stderr", "pts", "ptmx", "shm"),
}
# mov eax, 20 (getpid); int 0x80; ret: a 32-bit system call.
_INT_80 = b"\xb8\x14\x00\x00\x00\xcd\x80\xc3"


def run_canaries(arguments: list[str]) -> None:
    """Try everything that the sandbox must deny, and report one line a canary."""
    policy, facts = decode(arguments[0]), decode(arguments[1])
    canaries = _Canaries(policy, facts)
    for stage in enforce(policy):
        for name, attempt in getattr(canaries, stage)():
            os.write(facts["report"], f"{name} {int(_denied(attempt))}\n".encode())
    os.write(facts["report"], b"end 1\n")
    if facts["linger"]:
        os.read(facts["never"], 1)


def _denied(attempt: Callable[[], Any]) -> bool:
    """Whether an attempt raises, or returns something false; without a result it got through."""
    try:
        result = attempt()
    except (OSError, ValueError):
        return True
    return result is not None and not result


class _Canaries:
    """By stage: names and attempts, each made before the next is asked for.

    `facts` are the targets that the parent made.
    """

    def __init__(self, policy: dict[str, Any], facts: dict[str, Any]) -> None:
        # The sandbox does not let these modules be read later.
        import socket
        import time

        self.policy, self.facts = policy, facts
        self.socket, self.sleep = socket, time.sleep
        self.libc = ctypes.CDLL(None, use_errno=True)

    def namespaces(self) -> _Attempts:
        facts = self.facts
        for kind, outside in facts["namespaces"].items():
            link = f"/proc/self/ns/{kind}"
            yield f"bwrap.{kind}", lambda: os.readlink(link) == outside  # noqa: B023
        yield "bwrap.files", lambda: os.stat("/etc/passwd")
        yield "bwrap.readonly", lambda: os.utime(facts["shared"])
        yield "bwrap.tmp", lambda: os.stat(facts["in_tmp"])
        yield "bwrap.proc", lambda: process_started(facts["parent"]) == facts["parent_started"]
        yield "bwrap.devices", lambda: {*os.listdir("/dev")} - _DEVICES - {*facts["devices"]}
        yield "bwrap.capabilities", self._renames_host
        yield "bwrap.session", lambda: os.getpgrp() == 0
        yield "environment", lambda: facts["token"] in os.environ.values()
        self._prepare_later_stages()

    def _prepare_later_stages(self) -> None:
        """Make what later stages need, while it is still allowed."""
        if self.facts["straggler"]:
            self._start_straggler()
        os.close(os.open(self.facts["scratch"], os.O_CREAT, 0o600))
        tcp = self.socket.socket(self.socket.AF_INET)
        tcp.bind(("127.0.0.1", 0))
        abstract = self.socket.socket(self.socket.AF_UNIX)
        abstract.bind("\0" + self.facts["token"])
        self.listeners = tcp, abstract
        for listener in self.listeners:
            listener.listen()
        release, self.hold = os.pipe()
        self.sibling = self._fork(release, self.hold, self.facts["report"])
        os.close(release)

    def _start_straggler(self) -> None:
        """Start a grandchild in its own session; it holds the tether that it inherits."""
        child = os.fork()
        if child == 0:
            os.setsid()
            if os.fork() == 0:
                os.close(self.facts["report"])
                self.sleep(_STRAGGLER_S)
            os._exit(0)
        os.waitpid(child, 0)

    def _fork(self, release: int, *closed: int) -> int:
        """Start a process that lives until the other end of a pipe is closed."""
        child = os.fork()
        if child == 0:
            for fd in closed:
                os.close(fd)
            os.read(release, 1)
            os._exit(0)
        return child

    def limits(self) -> _Attempts:
        facts = self.facts
        yield "limit.memory", self._maps_twice_the_memory
        yield "limit.cpu", lambda: resource.setrlimit(resource.RLIMIT_CPU, _UNLIMITED)
        yield "limit.core", lambda: resource.setrlimit(resource.RLIMIT_CORE, _UNLIMITED)
        size = facts["file_bytes"] + 1
        yield "limit.file", lambda: os.ftruncate(os.memfd_create("canary"), size)
        yield "limit.descriptors", lambda: os.dup2(facts["report"], facts["descriptors"])
        if facts["profile"] == "compile":
            yield "limit.processes", self._forks_many

    def landlock(self) -> _Attempts:
        scratch, (tcp, abstract) = self.facts["scratch"], self.listeners
        yield "landlock.write", lambda: os.open(scratch + ".new", _CREATE, 0o600)
        yield "landlock.read", lambda: os.open(scratch, os.O_RDONLY)
        yield "landlock.tcp", lambda: self._connects(tcp.family, tcp.getsockname())
        yield "landlock.abstract", lambda: self._connects(abstract.family, abstract.getsockname())
        yield "landlock.signal", lambda: os.kill(self.sibling, 0)
        if self.facts["int_80"]:
            yield "seccomp.arch", self._calls_in_32_bits
        if self.facts["profile"] == "measure":
            yield "seccomp.seal", self._opens_a_file_when_sealed

    def seccomp(self) -> _Attempts:
        facts, socket = self.facts, self.socket
        for group, calls in facts["calls"].items():
            yield f"seccomp.{group}", lambda: not all(map(self._refused, calls))  # noqa: B023
        yield "write", lambda: os.open(facts["outside"], _CREATE, 0o600)
        yield "secret", lambda: os.open(facts["secret"], os.O_RDONLY)
        yield "tcp", lambda: self._connects(socket.AF_INET, facts["tcp"])
        yield "udp", lambda: self._sends(facts["udp"])
        yield "unix", lambda: self._connects(socket.AF_UNIX, facts["unix"])
        yield "abstract", lambda: self._connects(socket.AF_UNIX, facts["abstract"])
        yield "ptrace", lambda: self.libc.ptrace(_PTRACE_SEIZE, facts["neighbour"], 0, 0) == 0
        yield "environ", self._reads_the_neighbours_environment
        yield "signal", self._ends_the_neighbour
        yield "memory", self._maps_twice_the_memory
        if facts["profile"] == "measure":
            yield "forks", self._forks_many
            yield "exec", lambda: os.posix_spawn("/bin/true", ["true"], {})

    def _renames_host(self) -> bool:
        """Whether the host's name can be set, to what it is: that needs a capability."""
        name = os.uname().nodename.encode()
        return bool(self.libc.sethostname(name, len(name)) == 0)

    def _reads_the_neighbours_environment(self) -> bytes:
        with open(f"/proc/{self.facts['neighbour']}/environ", "rb") as environment:
            return environment.read()

    def _ends_the_neighbour(self) -> bool:
        # In another namespace, the neighbour's id may be that of a process of ours.
        pid = self.facts["neighbour"]
        if pid in (os.getpid(), self.sibling):
            return False
        os.kill(pid, _SIGTERM)
        return True

    def _maps_twice_the_memory(self) -> mmap.mmap:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        return mmap.mmap(-1, 2 * self.facts["memory_bytes"], flags=flags)

    def _connects(self, family: int, address: str | bytes | tuple[str, int]) -> None:
        with self.socket.socket(family) as client:
            client.settimeout(1.0)
            client.connect(address)

    def _sends(self, address: tuple[str, int]) -> int:
        with self.socket.socket(self.socket.AF_INET, self.socket.SOCK_DGRAM) as client:
            return client.sendto(self.facts["token"].encode(), address)

    def _forks_many(self) -> bool:
        """Whether many processes can be alive at once."""
        release, hold = os.pipe()
        born: list[int] = []
        try:
            while len(born) < _FORKS:
                born.append(self._fork(release, hold))
        except OSError:
            pass
        os.close(hold)
        for child in born:
            os.waitpid(child, 0)
        os.close(release)
        return len(born) == _FORKS

    def _calls_in_32_bits(self) -> bool:
        """Whether a 32-bit system call gets past the filter; a kernel without them kills."""
        child = os.fork()
        if child == 0:
            _load_filter(self.policy, "filter", os.getpid())
            code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
            code.write(_INT_80)
            address = ctypes.addressof(ctypes.c_char.from_buffer(code))
            os._exit(ctypes.CFUNCTYPE(ctypes.c_int)(address)() != -_ENOSYS)
        return os.waitpid(child, 0)[1] == 1 << 8

    def _opens_a_file_when_sealed(self) -> bool:
        """Whether a sealed process survives a system call that no kernel needs."""
        child = os.fork()
        if child == 0:
            seal(self.policy, self.facts["report"])
            try:
                os.open("/dev/null", os.O_WRONLY)
            finally:
                os._exit(0)
        return os.waitpid(child, 0)[1] & 0x7F != _SIGSYS

    def _refused(self, call: tuple[int, int, tuple[int, ...]]) -> bool:
        """Whether the filter refuses a call: its error is not the kernel's."""
        number, error, values = call
        result = self.libc.syscall(number, *map(ctypes.c_long, values))
        if result == 0 and values[0] & 0xFF == SIGCHLD:
            os._exit(0)  # the child of a clone that should have been refused
        return bool(result == -1 and ctypes.get_errno() == error)


def process_started(pid: int) -> int:
    """When a process started, in ticks since boot; with the id, this identifies it."""
    with open(f"/proc/{pid}/stat", "rb") as stat:
        return int(stat.read().rpartition(b")")[2].split()[19])
