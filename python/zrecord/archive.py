# SPDX-License-Identifier: MIT
"""Memmap archives: a tree of arrays in one file that is mapped, not read.

The files are those of tensordict's memmap archives (``.tdz``), in both directions.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from . import _core
from .archive_layout import EXTENSIONS, NAMES, Layout
from .archive_tree import (
    ArchiveStack,
    ArchiveTree,
    Levels,
    NestedArray,
    PickledValue,
    ValueDict,
    ValueStack,
    flat_key,
)
from .errors import StoreValueError
from .store import Dense

__all__ = [
    "ArchiveStack",
    "ArchiveTree",
    "ArchiveVerifyResult",
    "NestedArray",
    "PickledValue",
    "ValueDict",
    "ValueStack",
    "is_memmap_archive",
    "load_archive",
    "memmap_like",
    "pack_memmap",
    "refresh_archive_checksums",
    "save_archive",
    "unpack_memmap",
    "verify_archive",
]

DTYPES = {name: dtype for dtype, name in NAMES.items()}
COMPRESSIONS = {
    None: None,
    "stored": None,
    "deflate": "deflate",
    "deflated": "deflate",
    "bzip2": "bzip2",
    "lzma": "lzma",
    0: None,
    8: "deflate",
    12: "bzip2",
    14: "lzma",
}

Progress = Callable[[int, int], object]


# ---------------------------------------------------------------- loading


def _torch_leaf(path, name, data, shape):
    import torch

    dtype = getattr(torch, name.removeprefix("torch."), None)
    if dtype is None:
        raise ValueError(f"leaf {path}: this torch has no {name}")
    if data.size == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(data).view(dtype).view(shape)


def _extension_leaf(path, name, data, shape):
    """A dtype that NumPy alone does not have: through ml_dtypes, else torch."""
    short = name.removeprefix("torch.")
    if short in EXTENSIONS:
        try:
            import ml_dtypes
        except ImportError:
            pass
        else:
            if hasattr(ml_dtypes, short):
                return data.view(getattr(ml_dtypes, short)).reshape(shape)
    try:
        return _torch_leaf(path, name, data, shape)
    except ImportError:
        raise ValueError(
            f"leaf {path}: NumPy has no {short}; install ml_dtypes or torch to load it"
        ) from None


def _numpy_nested(path, name, data, shapes):
    dtype = DTYPES.get(name)
    values = data.view(dtype) if dtype else _extension_leaf(path, name, data, (-1,))
    try:
        return NestedArray(values, shapes)
    except ValueError as exc:
        raise ValueError(f"leaf {path}: {exc}") from exc


def _torch_nested(path, name, data, shapes):
    import torch

    parts = NestedArray(_torch_leaf(path, name, data, (-1,)), shapes)
    return torch.nested.as_nested_tensor(list(parts)) if parts else parts


def _keys(subpath):
    if subpath is None:
        return ()
    if isinstance(subpath, str):
        return tuple(part for part in subpath.split("/") if part)
    return flat_key(subpath)


def _threads(num_threads):
    """0 stands for as many as the process may use, here as in the engine."""
    if num_threads is None:
        return 0
    count = operator.index(num_threads)
    if count < 1:
        raise ValueError(f"num_threads must be at least 1, not {count}")
    return min(count, 2**31 - 1)


def load_archive(
    path: str | os.PathLike[str],
    mode: str | None = "r",
    subpath: str | tuple[Any, ...] | None = None,
    num_threads: int | None = None,
    *,
    torch: bool = False,
    checksums: bool = False,
    allow_pickle: bool = False,
) -> Any:
    """Open an archive: a tree of arrays over one mapping of the file.

    Opening costs as much as there are leaves, whatever their size; pages are read when they are
    touched.  What is compressed, or does not start at a multiple of its itemsize (zip files of
    other programs), is copied, in parallel, with its CRC-32 checked; Ctrl-C ends that.

    Parameters
    ----------
    path : path
        A zip file with a ``meta.json`` at its root, from here or from tensordict.
    mode : {"r", "r+"}
        ``"r"``: leaves are copy-on-write, changes stay in this process.  ``"r+"``: changes reach
        the file, for all leaves or not at all; its checksums are stale afterwards, see
        :func:`refresh_archive_checksums`.
    subpath : str or tuple of str, optional
        ``"a/b"`` or ``("a", "b")``: that level, or that leaf alone.
    num_threads : int, optional
        For copying, at least 1; by default, and at most, as many as the process may use.
    torch : bool
        Leaves are torch tensors over the same mapping.
    checksums : bool
        Compare every leaf with its CRC-32.  Reads all of them.
    allow_pickle : bool
        Unpickle values that were pickled, which can run any code; by default they are given as
        :class:`PickledValue`.

    Returns
    -------
    ArchiveTree
        Nested dicts of numpy.ndarray, writable, by key; lists, strings and numbers as they were
        saved; a lazy stack as ArchiveStack, a nested tensor as NestedArray.  bfloat16 and float8
        have the dtypes of ml_dtypes, or are torch tensors where that is missing.  The mapping
        lives as long as any leaf.  For a subpath that leads to a leaf, that array.

    Raises
    ------
    ZrecordError
        No such file (also FileNotFoundError), not an archive, or damaged; never a partial tree.
    ValueError
        An argument is wrong, or ``"r+"`` is not possible: the message names the leaf.
    """
    if mode not in ("r", "r+", None):
        raise ValueError(f"mode must be 'r' or 'r+', not {mode!r}")
    writable = mode == "r+"
    path = os.fspath(path)
    keys = _keys(subpath)
    archive = _core.archive_open(path, writable)
    options = (mode, keys, num_threads, torch, checksums, allow_pickle)
    tree = archive.load(
        keys,
        ArchiveTree,
        {} if torch else DTYPES,
        _torch_leaf if torch else _extension_leaf,
        _torch_nested if torch else _numpy_nested,
        Levels(allow_pickle),
        _threads(num_threads),
        checksums,
        writable,
    )
    if isinstance(tree, ArchiveTree):
        tree._origin = (archive, _reopen, (os.path.abspath(path), options))
    return tree


def _reopen(path, options, identity):
    mode, keys, num_threads, torch, checksums, allow_pickle = options
    tree = load_archive(
        path,
        mode,
        keys or None,
        num_threads,
        torch=torch,
        checksums=checksums,
        allow_pickle=allow_pickle,
    )
    if tree._origin[0].identity != identity:
        raise StoreValueError(-3, f"{path}: another archive than the one that was pickled", path=path)
    return tree


# ---------------------------------------------------------------- records


class ArchiveRecords(Dense):
    """The rows of one leaf of an archive, as a Dense store opened for reading.

    Pickled by reference, as the tree is.
    """

    _root: Any
    _key: tuple[str, ...]

    def __reduce__(self) -> Any:
        return _reopen_records, (self._root, self._key)


def _reopen_records(root, key):
    return _records_of(root, key, root[key])


def _records_of(root, key, leaf):
    import numpy as np

    if not isinstance(leaf, np.ndarray):
        raise ValueError(f"leaf {'/'.join(key)} is no array of records")
    path = Path(root._origin[2][0]) if root._origin else Path()
    name = "/".join(key)
    records = _core.store_of_array(ArchiveRecords, path / name, f"{path}/{name}", leaf)
    records._root, records._key = root, key
    return records


def archive_records(tree):
    leaves = dict(tree.leaves())
    lengths = {"/".join(key): leaf.shape[:1] for key, leaf in leaves.items() if hasattr(leaf, "shape")}
    if len(set(lengths.values())) != 1 or len(lengths) != len(leaves) or () in lengths.values():
        raise ValueError(f"leaves that share no first dimension are no records: {lengths}")
    return {"/".join(key): _records_of(tree, key, leaf) for key, leaf in leaves.items()}


# ---------------------------------------------------------------- saving


def _compression(compression, level):
    try:
        method = COMPRESSIONS[compression]
    except (KeyError, TypeError):
        raise ValueError(
            f"compression must be 'stored', 'deflate', 'bzip2' or 'lzma', not {compression!r}"
        ) from None
    return method, level or 0


def _prepare(path, existsok):
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a directory, not a place for an archive")
    if path.exists() and not existsok:
        raise FileExistsError(f"{path} exists already")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _layout(tree, batch_size, names, like):
    layout = Layout(like)
    if not isinstance(tree, Mapping):
        raise TypeError(f"a tree is a dict of arrays, not {type(tree).__name__}")
    if batch_size is not None:
        batch_size = (batch_size,) if isinstance(batch_size, int) else tuple(batch_size)
    layout.add_root(tree, batch_size, names)
    return layout


def save_archive(
    tree: Mapping[str, Any],
    path: str | os.PathLike[str],
    *,
    batch_size: int | tuple[int, ...] | None = None,
    names: tuple[str | None, ...] | None = None,
    compression: str | int | None = None,
    compresslevel: int | None = None,
    num_threads: int | None = None,
    existsok: bool = True,
    durable: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Save nested dicts of arrays as one archive, in parallel.

    The file appears at `path` when it is complete; one that was there is replaced then.  For
    the same tree it has the bytes that tensordict writes, but for the time of day.

    Parameters
    ----------
    tree : mapping
        By string keys: numpy.ndarray, torch.Tensor, opened Dense stores (read in pieces),
        NestedArray, further mappings, and what JSON can hold; or an ArchiveTree.
    path : path
        Missing folders are made.
    batch_size : tuple of int, optional
        Leading dimensions of all leaves; nested dicts have the same.  By default that of an
        ArchiveTree, else ``()``.
    names : tuple of str or None, optional
        Of the batch dimensions.
    compression : {"stored", "deflate", "bzip2", "lzma"}, optional
        Of leaves.  Compressed ones are inflated when they are loaded, instead of mapped.
    compresslevel : int, optional
        1..12 for deflate, 1..9 for the others.
    num_threads : int, optional
        At least 1; by default, and at most, as many as the process may use.
    existsok : bool
        Whether a file at `path` may be replaced.
    durable : bool
        Wait until the file is on the disk before it takes its place.
    progress : callable, optional
        Called with bytes done and in all.

    Returns
    -------
    pathlib.Path

    Raises
    ------
    TypeError, ValueError
        The tree holds what an archive cannot: object or datetime dtypes, keys that are no
        strings or need the name of another key's file (``"a.memmap"`` for a dict beside an array
        ``"a"``), values that JSON cannot hold, itself, or more than 1024 levels below each other.
        The message names the key.
    ZrecordError
        Writing failed, e.g. on a full disk; what was at `path` is still there.
    """
    layout = _layout(tree, batch_size, names, False)
    method, level = _compression(compression, compresslevel)
    target = _prepare(path, existsok)
    _core.archive_save(
        target, layout.sources, method, level, existsok, durable, _threads(num_threads), 0, progress
    )
    return target


def memmap_like(
    tree: Mapping[str, Any],
    path: str | os.PathLike[str],
    *,
    batch_size: int | tuple[int, ...] | None = None,
    names: tuple[str | None, ...] | None = None,
    existsok: bool = True,
    torch: bool = False,
) -> ArchiveTree:
    """Make an archive of zeros with the shapes of a tree, and open it with ``"r+"``.

    No data is made: the file is a hole until something is written, so
    ``{"x": np.broadcast_to(x, (1_000_000, *x.shape))}`` costs nothing.

    Parameters
    ----------
    tree : mapping
        As for :func:`save_archive`; leaves may also be anything with ``shape`` and ``dtype``, or
        ``(shape, dtype)``.
    path, batch_size, names, existsok
        As for :func:`save_archive`.
    torch : bool
        As for :func:`load_archive`.

    Returns
    -------
    ArchiveTree
    """
    layout = _layout(tree, batch_size, names, True)
    target = _prepare(path, existsok)
    _core.archive_save(target, layout.sources, None, 0, existsok, False, 0, 0, None)
    made: ArchiveTree = load_archive(target, "r+", torch=torch)
    return made


# ---------------------------------------------------------------- whole files


def pack_memmap(
    prefix: str | os.PathLike[str],
    archive_path: str | os.PathLike[str],
    *,
    compression: str | int | None = None,
    compresslevel: int | None = None,
    num_threads: int | None = None,
    existsok: bool = True,
    progress: Progress | None = None,
) -> Path:
    """Pack a memmap directory into an archive.

    Parameters
    ----------
    prefix : path
        A directory with a ``meta.json``, as tensordict's ``memmap`` leaves it.  Symlinks and
        special files in it are refused.
    archive_path : path
        Outside of it.
    compression, compresslevel, num_threads, existsok, progress
        As for :func:`save_archive`.

    Returns
    -------
    pathlib.Path
    """
    method, level = _compression(compression, compresslevel)
    archive_path = Path(archive_path)
    _core.archive_pack(
        prefix, archive_path, method, level, existsok, False, _threads(num_threads), progress
    )
    return archive_path


def unpack_memmap(
    archive_path: str | os.PathLike[str],
    prefix: str | os.PathLike[str],
    *,
    num_threads: int | None = None,
    progress: Progress | None = None,
) -> Path:
    """Extract an archive into a memmap directory.

    Every member is checked and written beside its place first; then all move in, and when one
    cannot, those before it move back: all of the archive, or nothing has changed.  Files of the
    same names are replaced, links are not followed. The folder of a store is refused.

    Parameters
    ----------
    archive_path, prefix : path
        Missing folders are made.
    num_threads, progress
        As for :func:`save_archive`.

    Returns
    -------
    pathlib.Path
        `prefix`.
    """
    prefix = Path(prefix)
    prefix.parent.mkdir(parents=True, exist_ok=True)
    _core.archive_unpack(archive_path, prefix, False, _threads(num_threads), progress)
    return prefix


def is_memmap_archive(path: str | os.PathLike[str]) -> bool:
    """Whether there is a zip file with a ``meta.json`` at its root.  Never raises."""
    return _core.archive_is(path)


def refresh_archive_checksums(
    archive_path: str | os.PathLike[str], *, progress: Progress | None = None
) -> Path:
    """Compute the checksums of an archive again, after its leaves were changed in place.

    Parameters
    ----------
    archive_path : path
    progress : callable, optional
        Called with members done and in all.

    Returns
    -------
    pathlib.Path
    """
    archive_path = Path(archive_path)
    _core.archive_refresh(archive_path, progress)
    return archive_path


class ArchiveVerifyResult(NamedTuple):
    """What :func:`verify_archive` found.

    Attributes
    ----------
    checked : int
        Members read.
    findings : tuple of (int, int, str)
        Position, engine code and message of each bad member.
    """

    checked: int
    findings: tuple[tuple[int, int, str], ...]

    @property
    def ok(self) -> bool:
        return not self.findings


def verify_archive(
    path: str | os.PathLike[str], *, progress: Progress | None = None
) -> ArchiveVerifyResult:
    """Read every member of an archive and compare it with its checksums.

    Parameters
    ----------
    path : path
    progress : callable, optional
        Called with members done and in all.

    Returns
    -------
    ArchiveVerifyResult

    Raises
    ------
    ZrecordError
        It cannot be opened as an archive at all.
    """
    checked, _, findings = _core.archive_verify(path, progress)
    return ArchiveVerifyResult(checked, tuple(findings))
