"""The parent's end of the sandbox: what confines untrusted code here, and the proof that it does.

A `Sandbox` is a set of mechanisms; a `Grant` is what one process may still do. Namespaces are made
by bubblewrap; limits, Landlock and seccomp are put in force by the child (`_confine`) before it
touches anything untrusted. What is available is not what is enforced: the level that is reported
is decided by canaries that run inside, one for each mechanism and one for each thing to be denied.

S3  namespaces, Landlock, seccomp and limits, each proven by its own canary
S2  everything that a kernel could want is denied, but there is no isolation of processes
S1  another user, and limits: the parent is out of reach, files and the network are not
S0  nothing that could be proven
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import secrets
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import IO, Any, Literal, get_args

from kernelcast.backends import _confine
from kernelcast.backends._patience import Patience
from kernelcast.errors import SetupError

Level = Literal["S0", "S1", "S2", "S3", "S4"]
Profile = Literal["measure", "compile"]

_HERE = str(Path(__file__).parent)
_LAUNCH = "import sys; sys.path.append(sys.argv[1]); import {0}; {0}.{1}(sys.argv[2:])"
_INHERITED = ("LANG", "LD_LIBRARY_PATH", "PATH")
_NOBODY = 65534
_SYSTEM_TREES = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store"),
    *("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d"),
    "/sys/devices/system/cpu",
)
_HARMLESS_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_TMP, _OTHER_TMP = "/tmp", "/var/tmp"  # noqa: S108  (what is hidden from the confined)
_GONE_WITHIN_MS = 1500
_SONG_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Grant:
    """What one confined process may use; all else is denied.

    `measure` may start neither process nor program and write no file. `compile` may do both, but
    write only beneath `writable`. Without `cpu_s` there is no limit on CPU time.
    """

    profile: Profile
    readable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    memory_bytes: int = 4 << 30
    cpu_s: int | None = None
    most_descriptors: int | None = None

    @property
    def file_bytes(self) -> int:
        """The largest file that may be written."""
        return 128 << 20 if self.profile == "compile" else 0

    @property
    def descriptors(self) -> int:
        """How many files may be open."""
        return self.most_descriptors or (256 if self.profile == "compile" else 64)


def bare_environment(source: Mapping[str, str] = os.environ, **extra: str) -> dict[str, str]:
    """An environment by allow-list, so that no key reaches untrusted code or its compiler."""
    return {name: source[name] for name in _INHERITED if name in source} | extra


def kill_group(process: subprocess.Popen[bytes]) -> int:
    """End a session leader with all of its group, reap it, and return its status."""
    if process.returncode is None:
        # Before reaping: until then the process id cannot belong to anybody else.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


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
_NAMESPACES = ("user", "ipc", "pid", "net", "uts")
_BWRAP = frozenset(_BWRAP_FLAGS) | {
    *("bwrap.files", "bwrap.readonly", "bwrap.tmp", "bwrap.proc", "bwrap.devices")
}
_LIMITS = frozenset({"limit.memory", "limit.cpu", "limit.core", "limit.file", "limit.descriptors"})
_MOST_PROCESSES = 48

_READ_RIGHTS = 0b1101  # execute, read a file, read a folder
_READ_ONLY = 0b1100
_WRITE_RIGHTS = 0b1_1111_1111_0010  # write, remove and make of every kind
_REFER, _TRUNCATE, _DEVICE_IOCTL = 1 << 13, 1 << 14, 1 << 15
_RIGHTS_OF_FILES = 0b111 | _TRUNCATE | _DEVICE_IOCTL
_TCP = 0b11
_ABSTRACT_SOCKETS, _SIGNALS = 1, 2
_LANDLOCK_SINCE = {
    "landlock.read": 1,
    "landlock.write": 1,
    "landlock.tcp": 4,
    "landlock.abstract": 6,
    "landlock.signal": 6,
}

_BOTH: tuple[Profile, ...] = ("measure", "compile")
_MEASURE: tuple[Profile, ...] = ("measure",)
# What seccomp refuses: the error it answers with, the profiles, and each system call with its
# number on x86_64 and on aarch64. The error is one that the kernel itself would not give to the
# canaries' arguments, so that they can tell who refused.
_REFUSED: dict[str, tuple[int, tuple[Profile, ...], str]] = {
    "sockets": (errno.EPERM, _BOTH, "socket 41 198, socketpair 53 199"),
    "ptrace": (
        errno.ENOSYS,
        _BOTH,
        "ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271, kcmp 312 272, "
        "process_madvise 440 440, process_mrelease 448 448, pidfd_getfd 438 438",
    ),
    "mounts": (
        errno.ENOSYS,
        _BOTH,
        "mount 165 40, umount2 166 39, pivot_root 155 41, chroot 161 51, open_tree 428 428, "
        "move_mount 429 429, fsopen 430 430, fsconfig 431 431, fsmount 432 432, fspick 433 433, "
        "mount_setattr 442 442, swapon 167 224, swapoff 168 225, quotactl 179 60, "
        "quotactl_fd 443 443, name_to_handle_at 303 264, open_by_handle_at 304 265, "
        "fanotify_init 300 262",
    ),
    "kernel": (
        errno.ENOSYS,
        _BOTH,
        "bpf 321 280, perf_event_open 298 241, add_key 248 217, request_key 249 218, "
        "keyctl 250 219, userfaultfd 323 282, io_uring_setup 425 425, io_uring_enter 426 426, "
        "io_uring_register 427 427, kexec_load 246 104, kexec_file_load 320 294, "
        "init_module 175 105, finit_module 313 273, delete_module 176 106, reboot 169 142, "
        "settimeofday 164 170, clock_settime 227 112, adjtimex 159 171, clock_adjtime 305 266, "
        "acct 163 89, syslog 103 116, iopl 172 -, ioperm 173 -, modify_ldt 154 -, "
        "personality 135 92, vmsplice 278 75, memfd_secret 447 447",
    ),
    "namespaces": (errno.ENOSYS, _BOTH, "unshare 272 97, setns 308 268, clone3 435 435"),
    "namespaced_clone": (errno.EPERM, ("compile",), "clone 56 220"),
    "processes": (errno.EPERM, _MEASURE, "fork 57 -, vfork 58 -, clone 56 220"),
    "programs": (errno.EPERM, _MEASURE, "execve 59 221, execveat 322 281"),
    "ipc": (errno.ENOSYS, _MEASURE, "shmget 29 194, semget 64 190, msgget 68 186, mq_open 240 180"),
    "others": (
        errno.EPERM,
        _MEASURE,
        "kill 62 129, tkill 200 130, tgkill 234 131, rt_sigqueueinfo 129 138, "
        "rt_tgsigqueueinfo 297 240, pidfd_send_signal 424 424, pidfd_open 434 434, "
        "prlimit64 302 261, setpriority 141 140, sched_setattr 314 274, "
        "sched_setscheduler 144 119, sched_setparam 142 118, ioprio_set 251 30",
    ),
}
# What a loaded kernel may still ask the system for; anything else ends it (`_seal`).
_KERNEL_CALLS = (
    "read 0 63, write 1 64, close 3 57, fstat 5 80, newfstatat 262 79, lseek 8 62, ioctl 16 29, "
    "mmap 9 222, mprotect 10 226, munmap 11 215, mremap 25 216, madvise 28 233, brk 12 214, "
    "clone 56 220, clone3 435 435, set_robust_list 273 99, set_tid_address 218 96, rseq 334 293, "
    "futex 202 98, membarrier 324 283, sched_yield 24 124, sched_getaffinity 204 123, "
    "sched_setaffinity 203 122, sched_getparam 143 121, sched_getscheduler 145 120, "
    "getcpu 309 168, getpid 39 172, gettid 186 178, tgkill 234 131, prctl 157 167, "
    "prlimit64 302 261, getrlimit 97 163, getrusage 98 165, sysinfo 99 179, uname 63 160, "
    "rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, sigaltstack 131 132, "
    "nanosleep 35 101, clock_nanosleep 230 115, clock_gettime 228 113, clock_getres 229 114, "
    "gettimeofday 96 169, restart_syscall 219 128, getrandom 318 278, exit 60 93, "
    "exit_group 231 94"
)
# Counting the processors, glibc first looks for a file, and does without where it is refused.
_LOOKS_FOR_A_FILE = "openat 257 56"
_MACHINES = {"x86_64": (0, 0xC000003E, 317), "aarch64": (1, 0xC00000B7, 277)}
_FIRST_UNKNOWN_CALL = 463  # what later kernels add; new system calls bear one number everywhere
_CLONE_THREAD = 0x10000
_CLONE_NEW = 0x7E020000
_CLONE_NEWUSER = 0x10000000

_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCH_AT, _FIRST_ARGUMENT_AT, _THIRD_ARGUMENT_AT = 0, 4, 16, 32
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_PROT_EXEC = 4
_STDOUT, _STDERR = 1, 2


def _numbered(calls: str) -> Iterator[tuple[str, int]]:
    """Names and numbers on this machine."""
    column = 1 + _MACHINES[platform.machine()][0]
    for row in calls.split(", "):
        words = row.split()
        if words[column] != "-":
            yield words[0], int(words[column])


def _filter(mechanisms: frozenset[str], profile: Profile) -> tuple[bytes, list[int]]:
    """A classic BPF program for seccomp, and which instructions compare with the own process id."""
    code: list[tuple[int, int, int, int]] = []
    own_pid: list[int] = []
    if "seccomp.arch" in mechanisms:
        code += [
            (_LOAD, 0, 0, _ARCH_AT),
            (_IF_EQUAL, 1, 0, _MACHINES[platform.machine()][1]),
            (_RETURN, 0, 0, _REFUSE | errno.ENOSYS),
        ]
    code.append((_LOAD, 0, 0, _NUMBER_AT))
    if "seccomp.new" in mechanisms:  # and with them x32, which counts from 2**30
        code += [
            (_IF_AT_LEAST, 0, 1, _FIRST_UNKNOWN_CALL),
            (_RETURN, 0, 0, _REFUSE | errno.ENOSYS),
        ]
    for group, (error, profiles, _) in _REFUSED.items():
        if f"seccomp.{group}" not in mechanisms or profile not in profiles:
            continue
        refuse = (_RETURN, 0, 0, _REFUSE | error)
        for name, number in _numbered(_REFUSED[group][2]):
            # Each looks at the low half of the first argument: what jumps over the refusal.
            allowed_if = {
                ("clone", "processes"): (_IF_ANY_BIT, 1, 0, _CLONE_THREAD),
                ("clone", "namespaced_clone"): (_IF_ANY_BIT, 0, 1, _CLONE_NEW),
                ("tgkill", "others"): (_IF_EQUAL, 1, 0, 0),
                ("prlimit64", "others"): (_IF_EQUAL, 1, 0, 0),
            }.get((name, group))
            if allowed_if is None:
                code += [(_IF_EQUAL, 0, 1, number), refuse]
                continue
            if name == "tgkill":
                own_pid.append(len(code) + 2)
            code += [
                (_IF_EQUAL, 0, 4, number),
                (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
                allowed_if,
                refuse,
                (_RETURN, 0, 0, _ALLOW),
            ]
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("<HBBI", *each) for each in code), own_pid


def _seal() -> tuple[bytes, list[int]]:
    """The filter for a loaded kernel, and which instruction compares with the reply's descriptor.

    It may compute, take memory without execute permission, run threads, and write to its outputs
    (which lead nowhere) and its reply; whatever else it asks for kills it.
    """
    code: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, _ARCH_AT),
        (_IF_EQUAL, 1, 0, _MACHINES[platform.machine()][1]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
    ]
    reply_fd = []
    allow, kill = (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _KILL)
    for name, number in _numbered(_KERNEL_CALLS):
        match name:
            case "mmap" | "mprotect":
                checks = [(_LOAD, 0, 0, _THIRD_ARGUMENT_AT), (_IF_ANY_BIT, 1, 0, _PROT_EXEC)]
            case "clone":
                checks = [(_LOAD, 0, 0, _FIRST_ARGUMENT_AT), (_IF_ANY_BIT, 0, 1, _CLONE_THREAD)]
            case "write":
                checks = [
                    (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
                    (_IF_EQUAL, 2, 0, _STDOUT),
                    (_IF_EQUAL, 1, 0, _STDERR),
                    (_IF_EQUAL, 0, 1, 0),
                ]
                reply_fd.append(len(code) + len(checks))
            case _:
                checks = []
        code += [(_IF_EQUAL, 0, len(checks) + (2 if checks else 1), number), *checks, allow]
        code += [kill] if checks else []
    ((_, openat),) = _numbered(_LOOKS_FOR_A_FILE)
    code += [
        (_IF_EQUAL, 0, 3, openat),
        (_LOAD, 0, 0, _THIRD_ARGUMENT_AT),
        (_IF_EQUAL, 0, 1, os.O_RDONLY | os.O_CLOEXEC),
        (_RETURN, 0, 0, _REFUSE | errno.EACCES),
        kill,
    ]
    return b"".join(struct.pack("<HBBI", *each) for each in code), reply_fd


@cache
def landlock_abi() -> int:
    """Version of Landlock in this kernel; 0 where there is none."""
    return max(0, int(ctypes.CDLL(None).syscall(444, None, 0, 1)))


def _unasked() -> frozenset[str]:
    """What bubblewrap does anyway for others than root; asked for all the same, but no choice."""
    return frozenset({"bwrap.user", "bwrap.capabilities"} if os.getuid() != 0 else ())


def _counts_processes_by_namespace() -> bool:
    """Whether a limit on processes bites: never for root, and for others since Linux 5.14."""
    version = tuple(map(int, platform.release().split("-")[0].split(".")[:2]))
    return os.getuid() != 0 and version >= (5, 14)


# ----------------------------------------------------------------------------------- the sandbox


@dataclass(frozen=True)
class Sandbox:
    """The mechanisms that confine a process here, and the devices it may open (none by default)."""

    mechanisms: frozenset[str]
    devices: tuple[str, ...] = ()

    @classmethod
    def detect(cls, devices: tuple[str, ...] = ()) -> Sandbox:
        """The strongest sandbox that proves itself on this machine."""
        best, level = cls(frozenset(), devices), "S0"
        for most, mechanisms in _rungs():
            if most <= level:
                break
            sandbox = cls(mechanisms, devices)
            if (reached := prove(sandbox).level) >= level:
                best, level = sandbox, reached
        return best

    @property
    def wrapped(self) -> bool:
        """Whether bubblewrap is part of it."""
        return any(each.startswith("bwrap.") for each in self.mechanisms)

    @property
    def uid(self) -> int | None:
        """The user that confined processes become, if not the parent's."""
        return _NOBODY if "uid" in self.mechanisms else None

    def own(self, folder: Path) -> None:
        """Let confined processes write in a folder of ours, where another user runs them."""
        if self.uid is not None:
            folder.parent.chmod(0o711)
            os.chown(folder, self.uid, self.uid)

    def run_program(
        self, program: Sequence[str], grant: Grant, folder: Path, output: IO[bytes] | int
    ) -> Confined:
        """Start a program, a compiler say, in a folder; both its outputs go to `output`."""
        found = Path(program[0])
        trees = () if _is_beneath(found, _SYSTEM_TREES) else (program_tree(found),)
        grant = replace(grant, readable=(*grant.readable, *trees))
        return self.start(
            "_confine.run", program, grant, folder, output=output, TMPDIR=str(folder), LC_ALL="C"
        )

    def start(
        self,
        task: str,
        arguments: Sequence[str],
        grant: Grant,
        folder: Path,
        *,
        pass_fds: Sequence[int] = (),
        output: IO[bytes] | int = subprocess.DEVNULL,
        source: Mapping[str, str] = os.environ,
        **environment: str,
    ) -> Confined:
        """Start a function of a child-side module (`_worker.main`) in a bare interpreter.

        It gets the policy as its first argument, and must put it in force before anything else.
        """
        module, function = task.split(".")
        command = [
            *(self._bwrap(grant, folder) if self.wrapped else ()),
            os.path.realpath(sys.executable),
            *("-I", "-S", "-c", _LAUNCH.format(module, function), _HERE),
            _confine.encode(self._policy(grant)),
            *arguments,
        ]
        everything = "environment" not in self.mechanisms
        kept = {**source} if everything else bare_environment(source)
        # From a thread that lives as long as this process: "die with the parent" means the thread
        # that started the child.
        started = _starter(os.getpid()).submit(
            _spawn,
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=pass_fds,
            start_new_session=True,
            cwd=folder,
            env=kept | environment,
        )
        process, tether = started.result()
        return Confined(process, tether, wrapped=self.wrapped)

    def _policy(self, grant: Grant) -> dict[str, Any]:
        filtered = any(each.startswith("seccomp.") for each in self.mechanisms)
        program, own_pid = _filter(self.mechanisms, grant.profile) if filtered else (b"", [])
        sealed = "seccomp.seal" in self.mechanisms and grant.profile == "measure"
        seal, reply_fd = _seal() if sealed else (b"", [])
        return {
            "uid": self.uid,
            "die_with_parent": not self.wrapped,
            "limits": list(self._limits(grant)),
            "landlock": self._landlock(grant),
            "filter": program,
            "own_pid": own_pid,
            "seal": seal,
            "reply_fd": reply_fd,
            "seccomp_number": _MACHINES[platform.machine()][2] if program else 0,
        }

    def _limits(self, grant: Grant) -> Iterator[tuple[int, int, int]]:
        wanted = {
            "limit.memory": (resource.RLIMIT_AS, grant.memory_bytes),
            "limit.cpu": (resource.RLIMIT_CPU, grant.cpu_s),
            "limit.core": (resource.RLIMIT_CORE, 0),
            "limit.file": (resource.RLIMIT_FSIZE, grant.file_bytes),
            "limit.descriptors": (resource.RLIMIT_NOFILE, grant.descriptors),
        }
        if grant.profile == "compile":
            wanted["limit.processes"] = (resource.RLIMIT_NPROC, _MOST_PROCESSES)
        for name, (which, most) in wanted.items():
            if name in self.mechanisms and most is not None:
                # At the soft limit of CPU time comes a signal that tells why; at the hard one not.
                yield which, most, most + (name == "limit.cpu")

    def _landlock(self, grant: Grant) -> tuple[tuple[int, int, int], int, list[tuple[str, int]]]:
        """What is restricted (files, TCP, scope), what applies to files, and the exceptions."""
        abi = landlock_abi()
        write = _WRITE_RIGHTS
        for since, right in ((2, _REFER), (3, _TRUNCATE), (5, _DEVICE_IOCTL)):
            write |= right if abi >= since else 0
        files = 0
        files |= _READ_RIGHTS if "landlock.read" in self.mechanisms else 0
        files |= write if "landlock.write" in self.mechanisms else 0
        scope = _ABSTRACT_SOCKETS if "landlock.abstract" in self.mechanisms else 0
        scope |= _SIGNALS if "landlock.signal" in self.mechanisms else 0
        read = _READ_RIGHTS if grant.profile == "compile" else _READ_ONLY
        rules = [(path, read) for path in (*_SYSTEM_TREES, *map(str, grant.readable))]
        rules += [(str(path), write | _READ_ONLY) for path in grant.writable]
        rules += [(path, _READ_ONLY) for path in _HARMLESS_DEVICES]
        rules += [(path, write | _READ_ONLY) for path in ("/dev/null", *self.devices)]
        handled = (files, _TCP if "landlock.tcp" in self.mechanisms else 0, scope)
        return handled, _RIGHTS_OF_FILES, [rule for rule in rules if Path(rule[0]).exists()]

    def _bwrap(self, grant: Grant, folder: Path) -> Iterator[str]:
        found = shutil.which("bwrap")
        if found is None:
            raise SetupError("bubblewrap is gone: apt-get install bubblewrap")
        yield found
        for name, flags in _BWRAP_FLAGS.items():
            if name in self.mechanisms or name in _unasked():
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
        # A /proc of its own can be mounted only by whoever owns the namespace of processes.
        if self.mechanisms >= {"bwrap.proc", "bwrap.pid"}:
            yield from ("--proc", "/proc")
        else:
            yield from ("--ro-bind", "/proc", "/proc")
        if "bwrap.devices" in self.mechanisms:
            yield from ("--dev", "/dev")
            for device in self.devices:
                yield from ("--dev-bind", device, device)
        else:
            yield from ("--dev-bind", "/dev", "/dev")
        for path in (*_interpreter_trees(), *map(str, grant.readable)):
            yield from (bind, path, path)
        for writable in grant.writable:
            yield from ("--bind", str(writable), str(writable))
        yield from ("--chdir", str(folder), "--")


def _rungs() -> Iterator[tuple[Level, frozenset[str]]]:
    """Mechanisms that this machine may be able to put in force, the strongest set first, each with
    the highest level that it could reach.
    """
    plain = _LIMITS | {"environment"}
    other_user = plain | ({"uid"} if os.getuid() == 0 else set())
    inner = {name for name, since in _LANDLOCK_SINCE.items() if landlock_abi() >= since}
    if platform.machine() in _MACHINES:
        inner |= {f"seccomp.{group}" for group in _REFUSED}
        inner |= {"seccomp.new", "seccomp.arch", "seccomp.seal"}
    if shutil.which("bwrap") is not None:
        counted = {"limit.processes"} if _counts_processes_by_namespace() else set()
        yield "S3", (plain | inner | _BWRAP | counted) - _unasked()
    yield "S2", other_user | inner
    yield "S1", other_user
    yield "S0", plain


@cache
def _starter(_process_id: int) -> ThreadPoolExecutor:
    """One thread from which this process starts its children; a fork needs one of its own."""
    return ThreadPoolExecutor(1, thread_name_prefix="kernelcast-start")


# A process forked off by another thread would inherit the ends of pipes that are closed here once
# the child has started, and keep `Popen` waiting, for as long as it lives, to hear that it has.
_no_forks = threading.Lock()
os.register_at_fork(
    before=_no_forks.acquire, after_in_parent=_no_forks.release, after_in_child=_no_forks.release
)


def _spawn(
    command: list[str], *, pass_fds: Sequence[int], **how: Any
) -> tuple[subprocess.Popen[bytes], int]:
    """A new process, and an end of a pipe whose other end it and its descendants hold."""
    with _no_forks, ExitStack() as on_failure:
        held, tether = os.pipe()
        on_failure.callback(os.close, held)
        try:
            process = subprocess.Popen(command, pass_fds=(*pass_fds, tether), **how)
        finally:
            os.close(tether)
        on_failure.pop_all()
    return process, held


def _is_beneath(path: Path, trees: Sequence[str]) -> bool:
    return any(path.is_relative_to(tree) for tree in trees)


def program_tree(program: Path) -> Path:
    """What to show of a program installed outside the system: its prefix, but never a home."""
    program = program.resolve()
    prefix = program.parent.parent
    whole = program.parent.name == "bin" and not Path.home().is_relative_to(prefix)
    return prefix if whole else program.parent


@cache
def _interpreter_trees() -> tuple[str, ...]:
    program = Path(os.path.realpath(sys.executable))
    prefix = Path(os.path.realpath(sys.base_prefix))
    parts = (program, prefix / "lib", prefix / "lib64", Path(_HERE))
    return tuple(str(p) for p in parts if p.exists() and not _is_beneath(p, _SYSTEM_TREES))


class Confined:
    """A confined process with all of its descendants."""

    def __init__(self, process: subprocess.Popen[bytes], tether: int, *, wrapped: bool) -> None:
        self._process = process
        self._wrapped = wrapped
        self._tether: int | None = tether
        self.pid = process.pid

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def ended_within(self, timeout_s: float) -> bool:
        """Whether it ends within a limit (see `Patience`).

        `Popen.wait` would look only every 50 ms.
        """
        if not self.alive:
            return True
        pidfd = os.pidfd_open(self.pid)  # not reaped yet, so the number is still its own
        try:
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            if poll.poll(int(timeout_s * 1e3) + 1):
                return True
            patience = Patience(self.pid, timeout_s)
            while left_s := patience.left_s():
                if poll.poll(int(left_s * 1e3) + 1):
                    return True
            return False
        finally:
            os.close(pidfd)

    def end(self) -> int:
        """Kill it if need be, wait until nothing of it is left, and say how it ended.

        A status below zero is the signal it died of.
        """
        status = kill_group(self._process)
        self.wait_until_gone()
        # Bubblewrap reports the signal that its child died of as a shell does.
        return 128 - status if self._wrapped and status > 128 else status

    def wait_until_gone(self) -> bool:
        """Whether all descendants are gone: each holds the tether until it dies."""
        if self._tether is None:
            return True
        poll = select.poll()
        poll.register(self._tether, 0)
        gone = bool(poll.poll(_GONE_WITHIN_MS))
        os.close(self._tether)
        self._tether = None
        return gone


# -------------------------------------------------------------------------------------- the proof


@dataclass(frozen=True)
class Proof:
    """Which canaries were denied what they tried, and the level that follows.

    Names are `<profile>: <canary>`.
    """

    level: Level
    canaries: Mapping[str, bool]
    trouble: str = ""

    def lacks(self, level: Level) -> list[str]:
        """The canaries that would have to be denied for a level, and were not."""
        return sorted(each for each in required(level) if not self.canaries.get(each, False))


_GOALS = frozenset(
    {
        *("write", "secret", "tcp", "udp", "unix", "abstract"),
        *("ptrace", "environ", "signal", "memory"),
    }
)
_OUT_OF_REACH = frozenset({"ptrace", "environ", "signal", "memory"})


def required(level: Level) -> frozenset[str]:
    """The canaries that must be denied for a level, as far as this kernel has the mechanism."""
    if level == "S4":
        return frozenset({"a microVM or gVisor, which this version cannot use"})
    required: set[str] = set()
    for profile in get_args(Profile):
        names = _LIMITS | {"environment"}
        if level == "S1":
            names |= _OUT_OF_REACH
        if level >= "S2":
            names |= _GOALS | {"seccomp.new"}
            names |= {f"seccomp.{name}" for name, row in _REFUSED.items() if profile in row[1]}
            if platform.machine() == "x86_64":
                names |= {"seccomp.arch"}
            if profile == "measure":
                names |= {"forks", "exec", "seccomp.seal"}
        if level == "S3":
            names |= _BWRAP | {"leftovers"}
            names |= {name for name, since in _LANDLOCK_SINCE.items() if landlock_abi() >= since}
            if profile == "compile" and _counts_processes_by_namespace():
                names |= {"limit.processes"}
        required |= {f"{profile}: {name}" for name in names}
    return frozenset(required) if level != "S0" else frozenset()


@cache
def prove(sandbox: Sandbox) -> Proof:
    """Run the canaries in both profiles: the level is the highest whose canaries are all denied."""
    canaries: dict[str, bool] = {}
    said = ""
    for profile in get_args(Profile):
        with tempfile.TemporaryFile() as messages:
            with _bait() as bait:
                for name, denied in _sing(sandbox, profile, bait, messages).items():
                    canaries[f"{profile}: {name}"] = denied
            messages.seek(0)
            said = said or messages.read(4096).decode(errors="replace").strip()
    levels: tuple[Level, ...] = ("S3", "S2", "S1")
    found = (level for level in levels if not Proof(level, canaries).lacks(level))
    return Proof(next(found, "S0"), canaries, said.rpartition("\n")[2])


@dataclass(frozen=True)
class _Bait:
    """What the canaries try to reach outside, and the folders they are given."""

    shared: Path
    build: Path
    neighbour: subprocess.Popen[bytes]
    facts: dict[str, Any]


@contextmanager
def _bait() -> Iterator[_Bait]:
    token = secrets.token_hex(16)
    with ExitStack() as stack:

        def folder(parent: str | None) -> Path:
            made = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=parent)))
            made.chmod(0o777)  # the sandbox is to deny, not the file's mode
            return made

        outside = folder(_OTHER_TMP if os.access(_OTHER_TMP, os.W_OK) else None)
        shared, build, in_tmp = folder(None), folder(None), folder(_TMP)
        for planted in (outside / "secret", shared / "shared"):
            planted.write_text(token)
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        named = stack.enter_context(socket.socket(socket.AF_UNIX))
        named.bind(str(outside / "socket"))
        (outside / "socket").chmod(0o777)
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind(f"\0outside-{token}")
        for each in (named, abstract):
            each.listen()
        scratch = Path(_TMP) / f"kernelcast-canary-{token}"
        for leftover in (scratch, scratch.with_name(scratch.name + ".new")):
            stack.callback(leftover.unlink, missing_ok=True)
        neighbour = subprocess.Popen(["/bin/sleep", "60"], env={"TOKEN": token})
        stack.callback(neighbour.wait)
        stack.callback(neighbour.kill)
        yield _Bait(
            shared,
            build,
            neighbour,
            {
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
                "unix": str(outside / "socket"),
                "abstract": f"\0outside-{token}",
                "scratch": str(scratch),
                "neighbour": neighbour.pid,
                "parent": os.getpid(),
                "parent_started": _confine.process_started(os.getpid()),
                "int_80": platform.machine() == "x86_64",
            },
        )


def _sing(sandbox: Sandbox, profile: Profile, bait: _Bait, messages: IO[bytes]) -> dict[str, bool]:
    """Verdicts by canary; what a canary did not live to report is missing."""
    writable = (bait.build,) if profile == "compile" else ()
    grant = Grant(profile, (bait.shared,), writable, memory_bytes=1 << 30, cpu_s=10)
    report, report_write = os.pipe()
    never, never_write = os.pipe()
    facts = bait.facts | {
        "profile": profile,
        "report": report_write,
        "never": never,
        "straggler": sandbox.wrapped,  # without a namespace of processes it is sure to survive
        # One profile's canaries end by themselves, the other's are killed: nothing may be left
        # either way.
        "linger": profile == "compile",
        "devices": [Path(device).name for device in sandbox.devices],
        "memory_bytes": grant.memory_bytes,
        "file_bytes": grant.file_bytes,
        "descriptors": grant.descriptors,
        "calls": _calls(profile) if platform.machine() in _MACHINES else {},
    }
    try:
        confined = sandbox.start(
            "_confine.sing",
            [_confine.encode(facts)],
            grant,
            bait.shared,
            pass_fds=(report_write, never),
            output=messages,
            source=dict(os.environ, PATH_TO_TOKEN=facts["token"]),
        )
    finally:
        for fd in (report_write, never):
            os.close(fd)
    text = _read_report(report, _SONG_TIMEOUT_S)
    if profile == "measure":
        confined.ended_within(1.0)
    else:
        os.kill(confined.pid, signal.SIGKILL)
        confined.ended_within(1.0)
    gone = confined.wait_until_gone() and sandbox.wrapped
    confined.end()
    for fd in (report, never_write):
        os.close(fd)
    verdicts = {name: denied == "1" for name, denied in map(str.split, text.splitlines())}
    if verdicts.pop("end", False):
        verdicts |= {"leftovers": gone, "bwrap.death": gone}
    if verdicts.get("signal") and bait.neighbour.poll() is not None:
        verdicts["signal"] = False
    return verdicts


def _calls(profile: Profile) -> dict[str, list[tuple[int, int, tuple[int, ...]]]]:
    """By group: system calls to try, the filter's error, and arguments that can do no harm."""
    arguments: dict[str, tuple[int, ...]] = {
        "fork": (_confine.SIGCHLD, 0, 0, 0, 0, 0),
        "clone": (
            _confine.SIGCHLD | (_CLONE_NEWUSER if profile == "compile" else 0),
            0,
            0,
            0,
            0,
            0,
        ),
        "msgget": (-1, 0, 0, 0, 0, 0),
    }
    nonsense: tuple[int, ...] = (-1,) * 6
    calls = {"new": [(_FIRST_UNKNOWN_CALL, int(errno.ENOSYS), nonsense)]}
    for group, (error, profiles, _) in _REFUSED.items():
        if profile in profiles:
            calls[group] = [
                (number, error, arguments.get(name, nonsense))
                for name, number in _numbered(_REFUSED[group][2])
                if name != "vfork"  # its child would run on the canary's stack
            ]
    return calls


def _read_report(fd: int, timeout_s: float) -> str:
    """The report, until it is complete, its writers are gone, or the time is up."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    deadline = time.monotonic() + timeout_s
    text = b""
    while (left_s := deadline - time.monotonic()) > 0 and poll.poll(left_s * 1e3):
        part = os.read(fd, 65536)
        text += part
        if not part or text.endswith(b"\nend 1\n"):
            break
    return text.rpartition(b"\n")[0].decode()


# ------------------------------------------------------------------------------- what is demanded


def what_would_raise(proof: Proof) -> str:
    """What to do on this machine for the next level, in one sentence."""
    if proof.level == "S3":
        return "S4 takes gVisor or a microVM, which this version cannot use"
    if shutil.which("bwrap") is None:
        return "for S3: apt-get install bubblewrap"
    tried = prove(Sandbox(next(_rungs())[1]))
    if "measure: bwrap.user" not in tried.canaries:
        return (
            f"for S3: let bubblewrap make namespaces ({tried.trouble or 'it did not start'}): "
            "on Ubuntu sysctl kernel.apparmor_restrict_unprivileged_userns=0, in Docker "
            "--security-opt seccomp=unconfined --security-opt systempaths=unconfined"
        )
    if landlock_abi() == 0:
        return "for S3: a kernel with Landlock (Linux 5.13, started with landlock in lsm=)"
    return f"for S3, these must be denied: {', '.join(tried.lacks('S3'))}"


def admit(sandbox: Sandbox, require: str | None, *, allow_unsafe: bool) -> Level:
    """The proven level, or a `SetupError` if it is not enough."""
    if require is not None and require not in get_args(Level):
        raise SetupError(f"require is {require!r}; levels are {', '.join(get_args(Level))}")
    proof = prove(sandbox)
    if require is not None and proof.level < require:
        raise SetupError(
            f"the sandbox here reaches {proof.level}, and {require} is required; "
            f"{what_would_raise(proof)}"
        )
    if proof.level == "S0" and not allow_unsafe and require is None:
        raise SetupError(
            "kernels cannot be confined here (level S0), so none is run; "
            f"{what_would_raise(proof)}; or, for kernels you trust, --allow-unsafe"
        )
    return proof.level
