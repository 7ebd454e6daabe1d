# SPDX-License-Identifier: MIT
"""Exceptions.  Each engine code is a ZrecordError; many are a built-in exception as well."""

from __future__ import annotations

import os
from typing import Any

__all__ = ["ZrecordError", "ZrecordWarning"]


class ZrecordWarning(UserWarning):
    """Something that was noticed and gone on without, e.g. checksums that belong to another store."""


class ZrecordError(RuntimeError):
    """A failure of the engine.

    Parameters
    ----------
    code : int
        One of the engine's permanent numbers, e.g. -7 for a damaged record.  A message alone will do,
        with code 0: so others rebuild an exception that came out of a worker process.
    message : str, optional
        Names file, record and reason; by default the meaning of the code alone.

    Attributes
    ----------
    code : int
    record : int or None
        The record it is about.
    errno : int
        What the failing system call said, or what fits the code best.
    path : pathlib.Path, str or None
        The store it is about.
    """

    # Names that OSError has too, for the classes below that are both.
    errno: Any
    strerror: Any
    filename: Any

    def __init__(
        self,
        code: int | str,
        message: str | None = None,
        record: int | None = None,
        errno: int = 0,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        if isinstance(code, str):
            message, code = code, 0
        if message is None:
            from ._core import code_text

            message = code_text(code)
        super().__init__(message)
        self.code = code
        self.record = record
        self.errno = errno
        self.path = path
        if isinstance(self, OSError):
            self.strerror = message
            self.filename = None if path is None else os.fspath(path)

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, self.args[0], self.record, self.errno, self.path)


class StoreNotFoundError(ZrecordError, FileNotFoundError):
    """There is no store at the path."""


class StoreExistsError(ZrecordError, FileExistsError):
    """The path to create is taken."""


class StorePermissionError(ZrecordError, PermissionError):
    """Access denied, or a read-only file system."""


class StoreIOError(ZrecordError, OSError):
    """The operating system reported a failure: an I/O error or a full disk."""


class StoreValueError(ZrecordError, ValueError):
    """An argument, a schema or the geometry is wrong."""


class StoreIndexError(ZrecordError, IndexError):
    """A record id outside 0..len-1."""


class StoreMemoryError(ZrecordError, MemoryError):
    """Out of memory."""


_CLASSES = {
    -1: StoreMemoryError,
    -2: StoreIOError,
    -3: StoreValueError,
    -4: StoreValueError,
    -5: StoreIOError,
    -11: StoreNotFoundError,
    -12: StoreExistsError,
    -17: StorePermissionError,
    -19: StoreIndexError,
    -20: StoreValueError,
    -21: StoreValueError,
    -23: StoreValueError,
}


def add_note(exc, text):
    """What a traceback shows below the message."""
    if hasattr(exc, "add_note"):  # Python 3.11
        exc.add_note(text)
    else:
        exc.__notes__ = [*getattr(exc, "__notes__", ()), text]


def make_error(code, message, record, errno, path):
    """The exception for an engine code."""
    return _CLASSES.get(code, ZrecordError)(code, message, record, errno, path)
