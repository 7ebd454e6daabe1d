# SPDX-License-Identifier: MIT
"""Files in and out of the page cache, and asking whether that worked."""

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


def files(path):
    """The regular files of a backend: the path itself, or all below it."""
    path = Path(path)
    found = path.rglob("*") if path.is_dir() else [path]
    return [one for one in found if one.is_file()]


def drop(path):
    """Write the files back and let go of their pages.  They must not be mapped by anyone."""
    for one in files(path):
        fd = os.open(one, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def touch(path):
    """Read the files through once.

    A virtual machine's host unmaps memory that its guest leaves idle for a second or two, and each
    page's first use is then charged to whoever comes next, ten microseconds a page.
    """
    piece = bytearray(4 << 20)
    for one in files(path):
        with open(one, "rb", buffering=0) as file:
            while file.readinto(piece):
                pass


def resident(path):
    """Fraction of the files' pages that are in the page cache."""
    pages = there = 0
    for one in files(path):
        nbytes = one.stat().st_size
        if not nbytes:
            continue
        with open(one, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            vector = np.zeros(-(-nbytes // mmap.PAGESIZE), np.uint8)
            view = np.frombuffer(mapped, np.uint8)
            if _libc.mincore(view.ctypes.data, nbytes, vector.ctypes.data):
                raise OSError(ctypes.get_errno(), "mincore")
            del view
            pages += len(vector)
            there += int((vector & 1).sum())
    return there / pages if pages else 0.0


def disk_nbytes(path):
    """Allocated bytes, not apparent size."""
    return sum(one.stat().st_blocks * 512 for one in files(path))
