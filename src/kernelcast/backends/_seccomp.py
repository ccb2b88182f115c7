"""Seccomp filters as classic BPF programs: the system calls that a confined process may make.

`syscalls.toml` lists the calls. A filter is a program and its blanks: the instructions that compare
with a number which only the confined process knows, and which it fills in itself.
"""

from __future__ import annotations

import errno
import os
import platform
import signal
import struct
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

Profile = Literal["measure", "compile"]
Sealing = Literal["computes", "loads", "interprets", "asks"]
Filter = tuple[bytes, list[int]]
_Instruction = tuple[int, int, int, int]  # operation, jump if true, jump if false, operand

_MACHINES = {"x86_64": (0, 0xC000003E, 317), "aarch64": (1, 0xC00000B7, 277)}
FIRST_UNKNOWN_CALL = 463  # calls from here on are newer than `syscalls.toml`
CLONE_NEWUSER = 0x10000000
_CLONE_THREAD, _CLONE_VFORK = 0x10000, 0x4000
_CLONE_NEW = 0x7E020000
_PROT_WRITE, _PROT_EXEC = 2, 4
_MAP_ANONYMOUS = 0x20
_STDOUT, _STDERR = 1, 2
_SIGCANCEL = 32
_MEMBARRIER_GLOBAL = 1

_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_LOAD_NUMBER, _LOAD_ARCH = (_LOAD, 0, 0, 0), (_LOAD, 0, 0, 4)
# Low halves of the arguments.
_LOAD_FIRST, _LOAD_THIRD, _LOAD_FOURTH = (_LOAD, 0, 0, 16), (_LOAD, 0, 0, 32), (_LOAD, 0, 0, 40)
_ALLOW, _KILL = (_RETURN, 0, 0, 0x7FFF0000), (_RETURN, 0, 0, 0x80000000)
# A listener is asked. If there is none, the call fails with ENOSYS.
_ASK = (_RETURN, 0, 0, 0x7FC00000)

# Tests of the first argument that skip the refusal of a call.
_EXCEPTIONS: Mapping[tuple[str, str], _Instruction] = {
    ("processes", "clone"): (_IF_ANY_BIT, 1, 0, _CLONE_THREAD),
    ("namespaced_clone", "clone"): (_IF_ANY_BIT, 0, 1, _CLONE_NEW),
    ("others", "tgkill"): (_IF_EQUAL, 1, 0, 0),  # a blank: the id of the process itself
    ("others", "prlimit64"): (_IF_EQUAL, 1, 0, 0),
}
# Tests in the seal: each ends in `allow, kill`, and falls through to the first to allow.
_SEAL_CHECKS: Mapping[str, list[_Instruction]] = {
    "mmap": [_LOAD_THIRD, (_IF_ANY_BIT, 1, 0, _PROT_EXEC)],
    "mprotect": [_LOAD_THIRD, (_IF_ANY_BIT, 1, 0, _PROT_EXEC)],
    # A thread, for which its creator does not wait: that would look like starvation.
    "clone": [
        _LOAD_FIRST,
        (_IF_ANY_BIT, 2, 0, _CLONE_VFORK),
        (_IF_ANY_BIT, 0, 1, _CLONE_THREAD),
    ],
    # Not GLOBAL, which waits for all of the machine's processors.
    "membarrier": [_LOAD_FIRST, (_IF_EQUAL, 1, 0, _MEMBARRIER_GLOBAL)],
    # `abort` and `pthread_cancel`. A process that stops itself would look like a starved one.
    "tgkill": [_LOAD_THIRD, (_IF_EQUAL, 1, 0, signal.SIGABRT), (_IF_EQUAL, 0, 1, _SIGCANCEL)],
    "write": [
        _LOAD_FIRST,
        (_IF_EQUAL, 2, 0, _STDOUT),
        (_IF_EQUAL, 1, 0, _STDERR),
        (_IF_EQUAL, 0, 1, 0),  # a blank: the descriptor of the reply
    ],
}
# Of a process that still loads libraries: a file may be mapped to execute, not to write as well.
_LOADING_CHECKS: Mapping[str, list[_Instruction]] = {
    **_SEAL_CHECKS,
    "mmap": [
        _LOAD_THIRD,
        (_IF_ANY_BIT, 0, 3, _PROT_EXEC),
        (_IF_ANY_BIT, 3, 0, _PROT_WRITE),
        _LOAD_FOURTH,
        (_IF_ANY_BIT, 1, 0, _MAP_ANONYMOUS),
    ],
}
# Of a process that interprets Python. PyTorch's libraries make code as they run (oneDNN).
_INTERPRETING_CHECKS: Mapping[str, list[_Instruction]] = {
    name: checks for name, checks in _SEAL_CHECKS.items() if name not in ("mmap", "mprotect")
}
_CHECKS: Mapping[Sealing, Mapping[str, list[_Instruction]]] = {
    "computes": _SEAL_CHECKS,
    "loads": _LOADING_CHECKS,
    "interprets": _INTERPRETING_CHECKS,
    "asks": _INTERPRETING_CHECKS,
}
# Groups of `syscalls.toml` that are allowed beside `kernel`.
_FURTHER: Mapping[Sealing, tuple[str, ...]] = {
    "computes": (),
    "loads": ("loading",),
    "interprets": ("loading", "python"),
    "asks": ("loading", "python"),
}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("syscalls.toml").read_text())


def _numbers(calls: Mapping[str, list[int]]) -> dict[str, int]:
    """Number of each call on this machine."""
    column = _MACHINES[platform.machine()][0]
    return {name: row[column] for name, row in calls.items() if row[column] >= 0}


def is_supported() -> bool:
    """Whether the numbers of this machine's system calls are known."""
    return platform.machine() in _MACHINES


def call_number() -> int:
    """Number of the system call `seccomp`; 0 if it is not known."""
    return _MACHINES[platform.machine()][2] if is_supported() else 0


def refused_groups(profile: Profile | None = None) -> list[str]:
    """Names of the groups of calls that a profile refuses; of all profiles by default."""
    groups = _table()["refused"]
    return [name for name, group in groups.items() if profile in (None, *group["profiles"])]


def refused_calls(profile: Profile) -> Iterator[tuple[str, int, dict[str, int]]]:
    """Groups that a profile refuses: the name, the error returned, and the calls' numbers."""
    for name in refused_groups(profile):
        group = _table()["refused"][name]
        yield name, getattr(errno, group["error"]), _numbers(group["calls"])


def refusing_filter(mechanisms: frozenset[str], profile: Profile) -> Filter:
    """Filter that refuses the calls of the profile's groups; the blank is the process id."""
    if not any(name.startswith("seccomp.") for name in mechanisms):
        return b"", []
    code: list[_Instruction] = []
    own_pid: list[int] = []
    if "seccomp.arch" in mechanisms:
        code += [*_require_arch(), _refuse(errno.ENOSYS)]
    code.append(_LOAD_NUMBER)
    if "seccomp.new" in mechanisms:  # includes the x32 calls, which start at 2**30
        code += [(_IF_AT_LEAST, 0, 1, FIRST_UNKNOWN_CALL), _refuse(errno.ENOSYS)]
    for group, error, calls in refused_calls(profile):
        if f"seccomp.{group}" not in mechanisms:
            continue
        for name, number in calls.items():
            exception = _EXCEPTIONS.get((group, name))
            if exception is None:
                code += _on_call(number, _refuse(error))
                continue
            if name == "tgkill":
                own_pid.append(len(code) + 2)
            code += _on_call(number, _LOAD_FIRST, exception, _refuse(error), _ALLOW)
    return _packed([*code, _ALLOW]), own_pid


def sealing_filter(
    mechanisms: frozenset[str], profile: Profile, sealing: Sealing = "computes"
) -> Filter:
    """Filter for a process with a kernel; the blank is the descriptor of the reply.

    A sealed process may compute, take memory without execute permission, run threads, and write to
    its outputs (which are discarded) and its reply. Any other system call kills it. If it `loads`
    libraries, it may also read files and map them to execute. If it `interprets` Python, it may
    also look at files and make code; any other call is refused, because Python modules try things
    and go on without them. If it `asks`, a listener may let any other call pass.
    """
    asks = sealing == "asks"
    interprets = asks or sealing == "interprets"
    if "seccomp.seal" not in mechanisms or (profile != "measure" and not interprets):
        return b"", []
    checks_of = _CHECKS[sealing]
    otherwise = _ASK if asks else _refuse(errno.EPERM) if interprets else _KILL
    code = [*_require_arch(), _KILL, _LOAD_NUMBER]
    reply_fd: list[int] = []
    if asks:  # of two listeners, the later one is asked
        code += _on_call(call_number(), _refuse(errno.EPERM))
    for name, number in _numbers(_table()["kernel"]).items():
        checks = checks_of.get(name, [])
        if name == "write":
            reply_fd.append(len(code) + len(checks))
        code += _on_call(number, *checks, _ALLOW, *([otherwise] if checks else []))
    looks: list[_Instruction] = [(_IF_EQUAL, 0, 1, os.O_RDONLY | os.O_CLOEXEC)]
    if interprets:
        looks = [(_IF_ANY_BIT, 1, 0, _WRITING)]
    for number in _numbers(_table()["lookup"]).values():
        opened = _ALLOW if sealing != "computes" else _refuse(errno.EACCES)
        refused = [_ASK if asks else _refuse(errno.EACCES)] if interprets else []
        code += _on_call(number, _LOAD_THIRD, *looks, opened, *refused)
    for group in _FURTHER[sealing]:
        for number in _numbers(_table()[group]).values():
            code += _on_call(number, _ALLOW)
    return _packed([*code, otherwise]), reply_fd


def _require_arch() -> list[_Instruction]:
    """Skip the next instruction on the architecture of this machine."""
    return [_LOAD_ARCH, (_IF_EQUAL, 1, 0, _MACHINES[platform.machine()][1])]


def _on_call(number: int, *body: _Instruction) -> list[_Instruction]:
    return [(_IF_EQUAL, 0, len(body), number), *body]


def _refuse(error: int) -> _Instruction:
    return _RETURN, 0, 0, 0x00050000 | error


def _packed(code: list[_Instruction]) -> bytes:
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in code)
