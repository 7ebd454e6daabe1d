# SPDX-License-Identifier: MIT
"""Datasets that are read block by block: zrecord stores, HDF5, folders of files, arrays."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ..store import Dense, Ragged
from ..store import open as open_store
from . import state as _state

__all__ = [
    "DEFAULT_BLOCK_SIZE",
    "BlockDataset",
    "DirectoryBlockDataset",
    "HDF5BlockDataset",
    "NumpyBlockDataset",
    "ZrecordBlockDataset",
    "infer_block_size",
]

DEFAULT_BLOCK_SIZE = 256
_HDF5_SUFFIXES = (".h5", ".hdf5", ".he5")
_BLOCK_NBYTES = 4 << 20  # what a block of a zrecord store should have: long reads, small memory


def _raise(exc):
    raise exc


def _positive(block_size):
    return _state.as_size(block_size, "block_size", 1)


def _nbytes(data):
    """Bytes of the arrays and byte strings in a block."""
    if isinstance(data, (tuple, list)):
        return sum(map(_nbytes, data))
    if isinstance(data, (bytes, bytearray)):
        return len(data)
    return int(getattr(data, "nbytes", 0))


class BlockDataset(ABC):
    """A dataset that is read a block of neighbouring samples at a time.

    Subclasses give ``__len__``, :attr:`num_blocks`, :attr:`block_size`, :meth:`load_block` and
    :meth:`get_item`.  Only the last block may be shorter.  :meth:`load_block` is called from the
    threads of a loader, several at once.
    """

    @abstractmethod
    def __len__(self) -> int:
        """Samples in all."""

    @property
    @abstractmethod
    def num_blocks(self) -> int:
        """Blocks in all."""

    @property
    @abstractmethod
    def block_size(self) -> int:
        """Samples of each block but the last."""

    @abstractmethod
    def load_block(self, block_id: int) -> Any:
        """Read one block; what it is is between this and :meth:`get_item`."""

    @abstractmethod
    def get_item(self, block_data: Any, offset: int) -> Any:
        """One sample of a block: (item, label), for the default collation."""

    def get_block_size(self, block_id: int) -> int:
        """Samples of one block."""
        if block_id == self.num_blocks - 1:
            return len(self) - block_id * self.block_size
        return self.block_size

    def block_nbytes(self, block_data: Any) -> int:
        """Bytes that reading a block took, for a loader's counts."""
        return _nbytes(block_data)

    def fingerprint(self) -> int:
        """A number that tells this dataset from others of its size, checked by packed states."""
        return 0


class _Blocks(BlockDataset):
    """What the datasets here have in common."""

    _dataset_size: int
    _block_size: int

    def __len__(self) -> int:
        return self._dataset_size

    @property
    def num_blocks(self) -> int:
        return -(-self._dataset_size // self._block_size)

    @property
    def block_size(self) -> int:
        return self._block_size

    def __repr__(self) -> str:
        name = f"zrecord.{type(self).__name__}"
        return f"<{name}: {self._dataset_size} samples in blocks of {self._block_size}>"

    def _bounds(self, block_id):
        if not 0 <= block_id < self.num_blocks:
            raise IndexError(f"block {block_id} is outside 0..{self.num_blocks - 1}")
        start = block_id * self._block_size
        return start, min(start + self._block_size, self._dataset_size)


class _ArrayBlocks(_Blocks):
    """Blocks that are (data, labels) with one row a sample.

    Where nothing overrides their samples, a loader takes whole rows by :meth:`load_rows`.
    """

    transform: Callable[[Any], Any] | None = None

    def get_item(self, block_data: tuple[Any, Any], offset: int) -> tuple[Any, Any]:
        data, labels = block_data
        item = data[offset]
        if self.transform is not None:
            item = self.transform(item)
        return item, None if labels is None else labels[offset]

    def load_rows(self, block_id: int, offsets: np.ndarray) -> tuple[Any, Any]:
        """Samples of a block in the given order, as (data, labels)."""
        return self.take_rows(self.load_block(block_id), offsets)

    def take_rows(self, block_data: tuple[Any, Any], offsets: np.ndarray) -> tuple[Any, Any]:
        """Copies of samples of a loaded block in the given order."""
        data, labels = block_data
        return data[offsets], None if labels is None else labels[offsets]

    def gives_rows(self) -> bool:
        """Whether samples are just the rows: nobody transforms them or reads them otherwise."""
        own = next(cls for cls in _ROWS if isinstance(self, cls))
        mine = type(self)
        same = all(getattr(mine, f) is getattr(own, f) for f in ("load_block", "get_item"))
        return same and self.transform is None


class ZrecordBlockDataset(_ArrayBlocks):
    """Records of a store; a block is one gather.

    Parameters
    ----------
    store : Dense, Ragged or path-like
        Opened for reading.  A path is opened here.
    labels : Dense, array-like or path-like, optional
        One label a record.
    block_size : int, optional
        By default as many records as have 4 MiB, at most 4096.
    transform : callable, optional
        On each item.
    """

    def __init__(
        self,
        store: Dense | Ragged | str | os.PathLike[str],
        labels: Any = None,
        block_size: int | None = None,
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self.store = store if isinstance(store, (Dense, Ragged)) else open_store(store)
        if labels is not None and not isinstance(labels, (Dense, Ragged)):
            is_path = isinstance(labels, (str, os.PathLike))
            labels = open_store(labels) if is_path else np.asarray(labels)
        if labels is not None and len(labels) != len(self.store):
            raise ValueError(f"{len(self.store)} records, but {len(labels)} labels")
        self.labels = labels
        self.transform = transform
        self._mark: int | None = None
        self._dataset_size = len(self.store)
        self._block_size = (
            _store_block_size(self.store) if block_size is None else _positive(block_size)
        )

    def load_block(self, block_id: int) -> tuple[Any, Any]:
        start, stop = self._bounds(block_id)
        return self._read(slice(start, stop))

    def load_rows(self, block_id: int, offsets: np.ndarray) -> tuple[Any, Any]:
        start, stop = self._bounds(block_id)
        if len(offsets) == stop - start:
            # A cold disk gives a block faster in its own order than in that of its samples.
            for column in (self.store, self.labels):
                if isinstance(column, (Dense, Ragged)):
                    column.prefetch(slice(start, stop))
        return self._read(np.asarray(offsets, np.uint64) + np.uint64(start))

    def _read(self, ids):
        data = self.store.gather(ids)
        labels = self.labels
        if isinstance(labels, (Dense, Ragged)):
            labels = labels.gather(ids)
        elif labels is not None:
            labels = labels[ids]
        return data, labels

    def take_rows(self, block_data: tuple[Any, Any], offsets: np.ndarray) -> tuple[Any, Any]:
        data, labels = block_data
        if isinstance(data, list):
            data = [data[i].copy() for i in offsets]
        else:
            data = data[offsets]
        if isinstance(labels, list):
            labels = [labels[i].copy() for i in offsets]
        elif labels is not None:
            labels = labels[offsets]
        return data, labels

    def fingerprint(self) -> int:
        """The store's identity with its first, middle and last record, read once."""
        if self._mark is None:
            length = len(self.store)
            some = self.store.gather([0, length // 2, length - 1] if length else [])
            records = b"".join(np.asarray(record).tobytes() for record in some)
            self._mark = _number_of(b"%d:%b" % (self.store._pickle_state()[4], records))
        return self._mark


def _store_block_size(store):
    nbytes = math.prod(store.item_shape) * store.dtype.itemsize if isinstance(store, Dense) else 4096
    return max(1, min(4096, _BLOCK_NBYTES // nbytes))


class HDF5BlockDataset(_ArrayBlocks):
    """An HDF5 dataset; a block is a chunk, or as many rows as `block_size` says.

    Parameters
    ----------
    path : path-like
    data_key : str
    label_key : str, optional
        None, or a name that the file lacks: no labels.
    block_size : int, optional
        By default the rows of a chunk; 256 with a warning where the data has no chunks.
    transform : callable, optional
        On each item.

    Notes
    -----
    Needs h5py.  The file is opened when first read, anew in each process.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        data_key: str = "data",
        label_key: str | None = "labels",
        block_size: int | None = None,
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        h5py = _import_h5py()
        self.path = path
        self.data_key = data_key
        self.label_key = label_key
        self.transform = transform
        with h5py.File(path, "r") as file:
            data = file[data_key]
            self._dataset_size = data.shape[0]
            self._row = (tuple(data.shape[1:]), str(data.dtype))
            self._has_labels = label_key is not None and label_key in file
            chunks = data.chunks
        if block_size is not None:
            self._block_size = _positive(block_size)
        elif chunks is not None:
            self._block_size = chunks[0]
        else:
            self._block_size = DEFAULT_BLOCK_SIZE
            _warn_default(f"{data_key!r} of {os.fspath(path)!r} has no chunks")
        self._reset()

    def _reset(self) -> None:
        self._file: Any = None
        self._pid = 0
        self._lock = threading.Lock()

    def _opened(self):
        if self._pid != os.getpid():  # not opened yet, or by the parent
            with self._lock:
                if self._pid != os.getpid():
                    self._file = _import_h5py().File(self.path, "r")
                    self._pid = os.getpid()
        return self._file

    def load_block(self, block_id: int) -> tuple[Any, Any]:
        start, stop = self._bounds(block_id)
        file = self._opened()
        labels = file[self.label_key][start:stop] if self._has_labels else None
        return file[self.data_key][start:stop], labels

    def fingerprint(self) -> int:
        return _text_number(repr((self.data_key, self._row)))

    def close(self) -> None:
        """Close the file; reading opens it again."""
        file, mine = self._file, self._pid == os.getpid()
        self._reset()
        if file is not None and mine:
            file.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_file", "_pid", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()


class NumpyBlockDataset(_ArrayBlocks):
    """Arrays in memory, or mapped ones.

    Parameters
    ----------
    data : array-like
        A row a sample; not empty.
    labels : array-like, optional
    block_size : int
    """

    def __init__(self, data: Any, labels: Any = None, block_size: int = 1024) -> None:
        if len(data) == 0:
            raise ValueError("the dataset is empty")
        if labels is not None and len(labels) != len(data):
            raise ValueError(f"{len(data)} samples, but {len(labels)} labels")
        self.data = data
        self.labels = labels
        self._block_size = _positive(block_size)
        self._dataset_size = len(data)

    def load_block(self, block_id: int) -> tuple[Any, Any]:
        start, stop = self._bounds(block_id)
        return self.data[start:stop], None if self.labels is None else self.labels[start:stop]

    def gives_rows(self) -> bool:
        arrays = all(isinstance(a, np.ndarray) for a in (self.data, self.labels) if a is not None)
        return arrays and super().gives_rows()

    def fingerprint(self) -> int:
        if not isinstance(self.data, np.ndarray):
            return 0
        return _text_number(repr((self.data.shape[1:], self.data.dtype.str)))


class DirectoryBlockDataset(_Blocks):
    """A folder of files, a sample each; a block is a run of files, usually a folder's.

    Parameters
    ----------
    root : path-like
        Walked in sorted order, so that the order is the same on every machine.
    extensions : list of str, optional
        By default .jpg, .jpeg and .png.
    block_size : int, optional
        By default the files in the first subfolder; 256 with a warning where there is none.
    transform : callable, optional
        On each image.
    label_fn : callable, optional
        From a file's path to its label.

    Raises
    ------
    OSError
        The folder, or one in it, is missing or cannot be listed.

    Notes
    -----
    ``.npy`` files are arrays; all others are images, which need Pillow.  Loading a block asks the
    system to read its files; each is decoded when its sample is taken.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        extensions: Iterable[str] | None = None,
        block_size: int | None = None,
        transform: Callable[[Any], Any] | None = None,
        label_fn: Callable[[str], Any] | None = None,
    ) -> None:
        self.root = os.fspath(root)
        self.extensions = [e.lower() for e in extensions or (".jpg", ".jpeg", ".png")]
        self.transform = transform
        self.label_fn = label_fn
        self.files: list[str] = [
            os.path.join(folder, name)
            for folder, folders, names in os.walk(self.root, onerror=_raise)
            if folders.sort() is None  # type: ignore[func-returns-value]
            for name in sorted(names)
            if name.lower().endswith(tuple(self.extensions))
        ]
        self.labels: list[Any] = [label_fn(path) for path in self.files] if label_fn else []
        self._dataset_size = len(self.files)
        if block_size is not None:
            self._block_size = _positive(block_size)
            return
        inferred = _first_shard_size(self.root, tuple(self.extensions))
        if not inferred:
            _warn_default(f"{self.root!r} has no subfolder with such files first")
        self._block_size = inferred or DEFAULT_BLOCK_SIZE

    def load_block(self, block_id: int) -> list[tuple[str, Any]]:
        start, stop = self._bounds(block_id)
        files = self.files[start:stop]
        for path in files:
            _read_soon(path)
        labels = self.labels[start:stop] if self.labels else [None] * len(files)
        return list(zip(files, labels, strict=True))

    def get_item(self, block_data: list[tuple[str, Any]], offset: int) -> tuple[Any, Any]:
        path, label = block_data[offset]
        image = np.load(path) if path.lower().endswith(".npy") else _open_image(path)
        if self.transform is not None:
            image = self.transform(image)
        return image, label

    def block_nbytes(self, block_data: list[tuple[str, Any]]) -> int:
        return sum(os.path.getsize(path) for path, _ in block_data)

    def fingerprint(self) -> int:
        return _text_number("\0".join(os.path.relpath(path, self.root) for path in self.files))


_ROWS = (ZrecordBlockDataset, HDF5BlockDataset, NumpyBlockDataset)


def infer_block_size(source: str | os.PathLike[str], data_key: str = "data") -> int:
    """Block size that fits how a source is stored.

    Parameters
    ----------
    source : path-like
        An HDF5 file (rows of a chunk), a Parquet file (rows of a row group), a zrecord store, or a
        folder of folders (files of the first).
    data_key : str
        Of an HDF5 file.

    Raises
    ------
    ValueError
        The source does not say, or is missing, as in celeres-dl.
    """
    path = os.fspath(source)
    if not os.path.exists(path):
        raise ValueError(f"{path!r} is missing and does not say what a block is: give block_size")
    size = None
    with contextlib.suppress(ImportError, OSError, KeyError):
        if path.lower().endswith(_HDF5_SUFFIXES):
            with _import_h5py().File(path, "r") as file:
                size = (file[data_key].chunks or (None,))[0]
        elif path.lower().endswith(".parquet"):
            from pyarrow.parquet import read_metadata  # type: ignore[import-untyped,import-not-found,unused-ignore]

            metadata = read_metadata(path)
            size = metadata.row_group(0).num_rows if metadata.num_row_groups else None
        elif os.path.isfile(os.path.join(path, "meta.zr")):
            with open_store(path) as store:
                size = _store_block_size(store)
        elif os.path.isdir(path):
            size = _first_shard_size(path, "")
    if not size:
        raise ValueError(f"{path!r} does not say what a block is: give block_size")
    return int(size)


def _first_shard_size(root, extensions):
    """Files with one of the extensions in the first subfolder; None without subfolders."""
    with contextlib.suppress(OSError):
        folders = sorted(entry.path for entry in os.scandir(root) if entry.is_dir())
        if folders:
            return sum(name.lower().endswith(extensions) for name in os.listdir(folders[0]))
    return None


def _import_h5py():
    try:
        import h5py  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError:
        raise ImportError("HDF5 needs h5py: pip install h5py") from None
    return h5py


def _open_image(path):
    try:
        from PIL import Image  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise ImportError(f"{path!r} is an image, which needs Pillow: pip install Pillow") from None
    with Image.open(path) as image:
        return image.convert("RGB")


def _read_soon(path):
    """Ask for a file's pages; whoever opens it for reading sees what is wrong with it."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(fd)


def _warn_default(why):
    warnings.warn(
        f"{why}: blocks of {DEFAULT_BLOCK_SIZE} samples are taken; give block_size to choose",
        UserWarning,
        stacklevel=3,
    )


def _text_number(text):
    return _number_of(text.encode(errors="surrogateescape"))


def _number_of(raw):
    import hashlib

    return int.from_bytes(hashlib.sha256(raw).digest()[:8], "big")
