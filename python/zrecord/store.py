# SPDX-License-Identifier: MIT
"""Dense and Ragged: containers of records.  What is called often is in the C base classes."""

from __future__ import annotations

import contextlib
import itertools
import math
import operator
import os
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from . import _core
from .errors import ZrecordError, ZrecordWarning, add_note
from .mounts import container_below

if TYPE_CHECKING:
    from numpy.typing import DTypeLike
    from typing_extensions import Buffer, Self

    PathLike = str | bytes | os.PathLike[str] | os.PathLike[bytes]

__all__ = ["Dense", "Ragged", "open"]

_CODECS = {"raw": 0, "zstd": 1, "zstd_dict": 2}
_TUNES = {None: 0, "default": 0, "read": 1, "write": 2}
_DURABILITY = {"fsync": 0, "none": 1}
_NOT_A_STORE = -8  # ZR_E_FORMAT
_HINT_ENTRIES_MAX = 1000
_MAX_NDIM = _core.MAX_NDIM if int(np.__version__.split(".", 1)[0]) >= 2 else 32


def _one_of(choices, value, what):
    try:
        return choices[value]
    except (KeyError, TypeError):
        names = sorted(name for name in choices if name is not None)
        raise ValueError(f"unknown {what} {value!r}, expected one of {names}") from None


def _check_dtype(dtype):
    """The dtype as numpy.dtype, if its dtype string can stand for it."""
    dtype = np.dtype(dtype)
    if dtype.fields is not None:
        raise ValueError(f"structured dtype {dtype} cannot be stored: make one store a field")
    if dtype.subdtype is not None:
        raise ValueError(
            f"subarray dtype {dtype} cannot be stored: put its dimensions in the shape"
        )
    if dtype.metadata is not None:
        raise ValueError("dtype metadata cannot be stored")
    if dtype.hasobject:
        raise ValueError(f"{dtype} holds Python objects, which cannot be stored")
    if dtype.itemsize == 0:
        raise ValueError(f"dtype {dtype} has no size: give the width, e.g. {dtype.kind}16")
    if np.dtype(dtype.str) != dtype:
        warnings.warn(
            f"dtype {dtype} is stored as {dtype.str!r}, which is what a reader will give: "
            f"view() its arrays as {dtype}",
            ZrecordWarning,
            stacklevel=4,
        )
    return dtype


def _check_shape(item_shape, dtype):
    try:
        dims = tuple(item_shape)
        if any(isinstance(dim, (bool, np.bool_)) for dim in dims):
            raise TypeError
        dims = tuple(map(operator.index, dims))
    except TypeError:
        raise ValueError(
            f"item_shape must be an iterable of integers, not {item_shape!r}"
        ) from None
    if any(dim < 0 for dim in dims):
        raise ValueError(f"item_shape {dims} has a negative dimension")
    if len(dims) >= _MAX_NDIM:
        raise ValueError(f"item_shape has rank {len(dims)}, it must be below {_MAX_NDIM}")
    nbytes = math.prod(dims) * dtype.itemsize
    if not 0 < nbytes <= _core.MAX_RECORD_NBYTES:
        raise ValueError(f"a record of {nbytes} bytes is outside 1..{_core.MAX_RECORD_NBYTES}")
    return dims


def _mapped(nbytes):
    """The engine's number, where 0 stands for all; no record fits into one byte."""
    if nbytes is None:
        return 0
    nbytes = operator.index(nbytes)
    if nbytes < 0:
        raise ValueError(f"mapped_nbytes must be at least 0, not {nbytes}")
    return min(max(nbytes, 1), 2**64 - 1)


def _check_dict(codec, dict_bytes):
    if codec != "zstd_dict":
        if dict_bytes is not None:
            raise ValueError("dict_bytes needs codec='zstd_dict'")
        return None
    if not dict_bytes:
        raise ValueError("codec='zstd_dict' needs dict_bytes, as train_dict() makes them")
    return bytes(dict_bytes)


def _create(
    cls, geometry, path, dtype, item_shape, codec, dict_bytes, level, tune, durability, checksums
):
    dtype = _check_dtype(dtype)
    dims = () if geometry == _core.RAGGED else _check_shape(item_shape, dtype)
    number = _one_of(_CODECS, codec, "codec")
    if codec == "raw" and level is not None:
        raise ValueError("codec='raw' has no level")
    path, location = _place(path)
    return _core.store_create(
        cls,
        path,
        location,
        geometry,
        dtype,
        dims,
        number,
        _check_dict(codec, dict_bytes),
        0 if level is None else operator.index(level),
        _one_of(_TUNES, tune, "tune"),
        _one_of(_DURABILITY, durability, "durability"),
        bool(checksums),
    )


def _place(path):
    """The path as given, and the absolute one that survives a change of directory."""
    path = Path(os.fsdecode(path))
    return path, os.path.abspath(path)


def _place_to_read(path):
    """The same for a store to be read, which a mount may show at that path."""
    given, location = _place(path)
    below = container_below(location)
    return (given, location) if below == location else (Path(below), below)


def _hint(path):
    """What a path is that is no store, where zrecord knows it."""
    if os.path.isfile(path):
        if _core.archive_is(path):
            return "it is a memmap archive: load_archive() opens it"
        return "`zrecord import` makes a store of it" if path.endswith((".npy", ".npz")) else None
    with contextlib.suppress(OSError), os.scandir(path) as entries:
        for entry in itertools.islice(entries, _HINT_ENTRIES_MAX):
            if os.path.exists(os.path.join(entry.path, "meta.zr")):
                return f"it holds stores, like {entry.name}: open one of them"
    return None


@contextlib.contextmanager
def _hinting(path):
    """Adds that to the error.  No frame of its own, which warnings would count."""
    try:
        yield
    except ZrecordError as exc:
        hint = _hint(path) if exc.code == _NOT_A_STORE else None
        if hint:
            add_note(exc, hint)
        raise


def _reopen(state):
    return _core.store_pending(*state)


class _Store:
    """What needs no speed and is the same for both geometries."""

    def has_dict(self: Any) -> bool:
        """Whether the records are compressed against a dictionary."""
        return self.codec == "zstd_dict"

    def __enter__(self) -> Self:
        return self

    def __exit__(self: Any, exc_type: object, exc: object, traceback: object) -> None:
        # A build that failed half-way must not look like a finished store.
        if exc_type is None:
            self.close()
        else:
            self.abort()

    def __reduce__(self: Any) -> tuple[Any, ...]:
        return _reopen, (self._pickle_state(),)

    def __repr__(self: Any) -> str:
        state = "closed" if self.closed else "writer" if self._writable else "reader"
        what = ""
        with contextlib.suppress(RuntimeError):  # its store is gone, or it was closed meanwhile
            if not self.closed:
                shape = f" {self.item_shape}" if isinstance(self, Dense) else ""
                what = f": {len(self)} records of {self.dtype}{shape}, {self.codec}"
        return f"<zrecord.{type(self).__name__} {str(self.path)!r}, {state}{what}>"


class Dense(_Store, _core.Dense):
    """Records that all have one dtype and one shape.

    Made by :meth:`create` (append-only until :meth:`close` publishes it) or :meth:`open` (read-only).

    ``ds[i]`` is record `i`: an array of `item_shape`, or a NumPy scalar where that is ``()``.
    Everything else between the brackets is a list of records: ``ds[0, 5, 2]``, ``ds[:4]``, a bool
    mask of full length, an integer array.  It gives one array ``(n, *item_shape)``, writable,
    C-contiguous and the caller's alone.  Ids are in ``0..len(ds)-1``, never negative.

    A reader may be used by any number of threads, in a child after ``fork``, and pickled: the
    copy opens the same path when first used, and raises :class:`ZrecordError` if another store
    is there by then.
    """

    @classmethod
    def open(
        cls, path: PathLike, *, checksums: bool = False, mapped_nbytes: int | None = None
    ) -> Self:
        """Open a published store for reading.

        Parameters
        ----------
        path : path-like
        checksums : bool
            Compare every record read with its checksum.
        mapped_nbytes : int, optional
            Bytes of the records' file that are read through a mapping, and so count among the
            process's resident memory while they are in the page cache; what lies behind them is
            copied by the system.  By default all of it, which is fastest.

        Raises
        ------
        FileNotFoundError
            Nothing is there.
        ValueError
            It is a Ragged store, or its schema is none.
        ZrecordError
            It is damaged, of another program's layout, or being written.
        """
        limit = _mapped(mapped_nbytes)
        place, location = _place_to_read(path)
        with _hinting(location):
            return _core.store_open(place, location, cls, None, checksums, limit)

    @classmethod
    def create(
        cls,
        path: PathLike,
        dtype: DTypeLike,
        item_shape: Iterable[SupportsIndex],
        codec: str = "zstd",
        dict_bytes: Buffer | None = None,
        *,
        level: int | None = None,
        tune: str | None = None,
        durability: str = "fsync",
        checksums: bool = True,
    ) -> Self:
        """Begin a store; it appears at `path` when :meth:`close` succeeds.

        Parameters
        ----------
        path : path-like
            Must not exist.  Missing parent directories are made.
        dtype : dtype-like
            Any dtype that its dtype string describes: not structured, not of objects.
        item_shape : iterable of int
            Shape of one record, ``()`` for scalars; 1 byte to 2 GiB.
        codec : {'zstd', 'raw', 'zstd_dict'}
        dict_bytes : bytes-like, optional
            From :func:`train_dict`; exactly with ``'zstd_dict'``.
        level : int, optional
            zstd level; by default parameters of zrecord's own, as `tune` says.
        tune : {None, 'default', 'read', 'write'}
            What the compression is chosen for.
        durability : {'fsync', 'none'}
            Whether :meth:`close` waits until the store is on the disk.
        checksums : bool
            Write the sidecar with a checksum for each record.

        Raises
        ------
        ValueError
            An argument is wrong.
        FileExistsError
            The path is taken.
        ZrecordError
            It cannot be created there; every engine failure is one.
        """
        return _create(
            cls,
            _core.DENSE,
            path,
            dtype,
            item_shape,
            codec,
            dict_bytes,
            level,
            tune,
            durability,
            checksums,
        )


class Ragged(_Store, _core.Ragged):
    """Records of one dtype that each have their own shape.

    Made by :meth:`create` or :meth:`open`, as :class:`Dense`.  ``rs[i]`` is record `i` with exactly
    the shape it was appended with; a list of records, ``rs[0, 5, 2]``, is a list of writable arrays
    over one allocation.  :meth:`packed` gives the same without an object for each record.
    """

    @classmethod
    def open(
        cls, path: PathLike, *, checksums: bool = False, mapped_nbytes: int | None = None
    ) -> Self:
        """Open a published store for reading, as :meth:`Dense.open`."""
        limit = _mapped(mapped_nbytes)
        place, location = _place_to_read(path)
        with _hinting(location):
            return _core.store_open(place, location, None, cls, checksums, limit)

    @classmethod
    def create(
        cls,
        path: PathLike,
        dtype: DTypeLike,
        codec: str = "zstd",
        dict_bytes: Buffer | None = None,
        *,
        level: int | None = None,
        tune: str | None = None,
        durability: str = "fsync",
        checksums: bool = True,
    ) -> Self:
        """Begin a store; it appears at `path` when :meth:`close` succeeds.

        Parameters as of :meth:`Dense.create`, without a shape.
        """
        return _create(
            cls,
            _core.RAGGED,
            path,
            dtype,
            (),
            codec,
            dict_bytes,
            level,
            tune,
            durability,
            checksums,
        )


def open(
    path: PathLike, *, checksums: bool = False, mapped_nbytes: int | None = None
) -> Dense | Ragged:
    """Open a published store of either geometry for reading.

    Given a path inside a mount of zrecordfs (the folder of a store, a record, a view), opens the
    store below it and leaves the mount out.

    Returns
    -------
    Dense or Ragged

    Raises
    ------
    As :meth:`Dense.open`.
    """
    limit = _mapped(mapped_nbytes)
    place, location = _place_to_read(path)
    with _hinting(location):
        return _core.store_open(place, location, Dense, Ragged, checksums, limit)
