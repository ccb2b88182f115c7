"""Peek: this program's reading of a child's own memory.

An output is read where the child made it, so that the child has no part in copying it.
"""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

_MOST_PIECES = 512  # in one system call, which takes 1024


class _Piece(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("length", ctypes.c_size_t))


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.process_vm_readv.restype = ctypes.c_ssize_t
    libc.process_vm_readv.argtypes = [
        *(ctypes.c_int, ctypes.POINTER(_Piece), ctypes.c_ulong),
        *(ctypes.POINTER(_Piece), ctypes.c_ulong, ctypes.c_ulong),
    ]
    return libc


def may_peek(pid: int) -> bool:
    """Whether the system lets this program read the memory of a process."""
    target = ctypes.create_string_buffer(1)
    return _read(pid, [(ctypes.addressof(target), 0, 1)]) == -errno.EFAULT


def peek(pid: int, pieces: Sequence[tuple[int, NDArray[np.uint8]]]) -> bool:
    """Read memory of a process; False if some of it is not there.

    Args:
        pid: The process.
        pieces: Addresses there, and the memory here that takes what lies there.
    """
    for start in range(0, len(pieces), _MOST_PIECES):
        part = [
            (target.ctypes.data, address, target.size)
            for address, target in pieces[start : start + _MOST_PIECES]
        ]
        if _read(pid, part) != sum(length for _, _, length in part):
            return False
    return True


def _read(pid: int, pieces: Sequence[tuple[int, int, int]]) -> int:
    """Read pieces of (address here, address there, length); bytes, or the error's number below 0.

    The system reads less than it was asked for if a later page is not there.
    """
    count = len(pieces)
    here = (_Piece * count)(*(_Piece(target, length) for target, _, length in pieces))
    there = (_Piece * count)(*(_Piece(source, length) for _, source, length in pieces))
    read: int = _libc().process_vm_readv(pid, here, count, there, count, 0)
    return read if read >= 0 else -ctypes.get_errno()
