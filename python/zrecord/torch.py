# SPDX-License-Identifier: MIT
"""Datasets and samplers for torch.utils.data, and batches as tensors without copies.

Whole batches, endless, in one process: :class:`zrecord.DataLoader` with
``transform=zrecord.torch.to_torch``.  With torch's own DataLoader and its worker processes:

loader = torch.utils.data.DataLoader(zrecord.torch.IterDataset(streams), batch_size=None, num_workers=2)
loader = torch.utils.data.DataLoader(
    zrecord.torch.MapDataset(streams, whole=True), collate_fn=zrecord.torch.collate,
    batch_sampler=zrecord.torch.BatchSampler(len(store), 256), num_workers=2)

Stores are pickled as paths and opened when a worker first reads, and a store opened before fork is
right in each child; so fork, spawn, forkserver and persistent workers all do.
"""

from __future__ import annotations

import importlib
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from .sampler import Mode, Sampler
from .store import Dense, Ragged

# Not as an import statement: checking the types of this file does not need torch.
torch: Any = importlib.import_module("torch")
_data: Any = importlib.import_module("torch.utils.data")
_Dataset: Any = _data.Dataset
_IterableDataset: Any = _data.IterableDataset
_Sampler: Any = _data.Sampler

__all__ = ["BatchSampler", "IterDataset", "MapDataset", "RecordSampler", "collate", "to_torch"]

# ---------------------------------------------------------------- tensors


def _tensor(array):
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError):  # the second for a foreign byte order
        raise TypeError(f"torch has no dtype for {array.dtype}: cast it in a transform") from None


def _jagged(values, offsets, shapes):
    """A nested tensor (n, length of each, *rest), or the three parts where `rest` differs."""
    rest = shapes[:1, 1:]
    if not shapes.size or shapes.min() < 1 or (shapes[:, 1:] != rest).any():
        return tuple(map(_tensor, (values, offsets, shapes)))
    rest = rest[0].tolist()
    rows = offsets // math.prod(rest)
    return torch.nested.nested_tensor_from_jagged(_tensor(values).reshape(-1, *rest), _tensor(rows))


def _pinned(tensor):
    return tensor.pin_memory()


def _unpinned(tensor):
    return tensor


def _convert(batch, last):
    if isinstance(batch, Mapping):
        return {name: _convert(value, last) for name, value in batch.items()}
    if isinstance(batch, tuple) and len(batch) == 3:
        parts = _jagged(*batch)
        return tuple(map(last, parts)) if isinstance(parts, tuple) else last(parts)
    if isinstance(batch, list):
        return [_convert(one, last) for one in batch]
    return last(_tensor(np.asarray(batch)))


def to_torch(batch: Any, pin_memory: bool | None = None) -> Any:
    """A batch as tensors over the same memory.

    Parameters
    ----------
    batch : dict, ndarray, list of ndarray, or packed tuple
        What a gather, :meth:`zrecord.Ragged.packed` or a loader gives.
    pin_memory : bool, optional
        Copy into pinned memory, for transfers that overlap; by default where there is a GPU.

    Returns
    -------
    Tensors in the same places.  A packed tuple becomes a nested tensor of jagged layout
    ``(n, length, *rest)`` where the records agree in all but their first dimension; else, and
    for scalars, a tuple of three tensors.

    Raises
    ------
    TypeError
        torch has no such dtype.
    """
    if pin_memory is None:
        pin_memory = torch.cuda.is_available()
    return _convert(batch, _pinned if pin_memory else _unpinned)


def collate(batch: Any) -> Any:
    """For ``collate_fn``: a batch that is whole already."""
    return batch


# ---------------------------------------------------------------- streams


class _Streams:
    """One store, or several by name, read at the same ids."""

    def __init__(self, streams, packed):
        self.single = isinstance(streams, (Dense, Ragged))
        self.stores = {"": streams} if self.single else dict(streams)
        self.packed = bool(packed)
        if not self.stores:
            raise ValueError("a dataset needs at least one stream")
        for name, store in self.stores.items():
            if not isinstance(store, (Dense, Ragged)) or store._writable or store.closed:
                raise ValueError(f"stream {name!r} is not a store opened for reading: {store!r}")
        lengths = {name: len(store) for name, store in self.stores.items()}
        self.length = next(iter(lengths.values()))
        if len(set(lengths.values())) != 1:
            raise ValueError(f"streams differ in their number of records: {lengths}")

    def record(self, i):
        values = {name: np.asarray(store[i]) for name, store in self.stores.items()}
        return values[""] if self.single else values

    def batch(self, ids):
        values = {
            name: (store.packed if isinstance(store, Ragged) and self.packed else store.gather)(ids)
            for name, store in self.stores.items()
        }
        return values[""] if self.single else values

    def prefetch(self, ids):
        for store in self.stores.values():
            store.prefetch(ids)


def _unchanged(value):
    return value


class MapDataset(_Dataset):
    """Records by their number, for torch's DataLoader and its samplers.

    Parameters
    ----------
    streams : Dense, Ragged, or mapping of str to them
        Opened for reading, all of the same length.
    packed : bool
        With `whole`: Ragged streams as nested tensors.
    whole : bool
        ``__getitems__``, which torch's DataLoader calls with the ids of a batch, gives the whole
        batch, to be passed through by ``collate_fn=zrecord.torch.collate``.  Otherwise it gives a
        list of records, as torch's own collation wants.  Either way one gather a batch.
    transform : callable, optional
        From a record to what ``ds[i]`` gives; with `whole` from a batch.  Must pickle, for workers
        that are spawned.
    """

    def __init__(
        self,
        streams: Dense | Ragged | Mapping[str, Dense | Ragged],
        *,
        packed: bool = False,
        whole: bool = False,
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self._streams = _Streams(streams, packed and whole)
        self._whole = bool(whole)
        self._transform = transform or _unchanged

    def __len__(self) -> int:
        return self._streams.length

    def __getitem__(self, i: Any) -> Any:
        return self._transform(to_torch(self._streams.record(operator.index(i)), pin_memory=False))

    def __getitems__(self, ids: Any) -> Any:
        batch = to_torch(self._streams.batch(ids), pin_memory=False)
        if self._whole:
            return self._transform(batch)
        if self._streams.single:
            return [self._transform(record) for record in batch]
        return [self._transform(dict(zip(batch, records))) for records in zip(*batch.values())]


# ---------------------------------------------------------------- steps


class _Steps:
    """Which ids belong to which step, for one rank."""

    def __init__(self, length, batch_size, mode, seed, sampler, rank, world_size):
        if sampler is None:
            sampler = Sampler(length, batch_size, mode, seed)
        elif sampler.length != length:
            raise ValueError(f"the sampler is for {sampler.length} records, not {length}")
        world_size, rank = operator.index(world_size), operator.index(rank)
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} must be in 0..{world_size - 1}")
        self.sampler = sampler
        count = sampler.batch_size
        if sampler.mode in (Mode.CYCLIC, Mode.BLOCK):
            count = min(count, length)
        self.part = slice(rank * count // world_size, (rank + 1) * count // world_size)
        if self.part.start == self.part.stop:
            raise ValueError(f"a batch of {count} records leaves none to rank {rank}")
        self.epoch_steps = max(1, length // count)

    def ids(self, step):
        return self.sampler.sample(step)[self.part]


class _Epochs:
    """A number that the dataset's copies in workers share, persistent ones too."""

    def __init__(self):
        self.value = torch.zeros(1, dtype=torch.int64).share_memory_()

    def get(self):
        return int(self.value[0])

    def set(self, epoch):
        epoch = operator.index(epoch)
        if epoch < 0:
            raise ValueError("an epoch is at least 0")
        self.value[0] = epoch


class BatchSampler(_Sampler):
    """For ``batch_sampler``: the ids of one step after the other, as :class:`zrecord.Sampler`.

    Parameters
    ----------
    length, batch_size, mode, seed
        As of :class:`zrecord.Sampler`.
    steps : int, optional
        Batches an epoch, by default ``length // batch_size``.  Epoch e is the steps from
        ``e * steps`` on.
    rank, world_size : int
        This sampler gives its part of each batch, as :class:`zrecord.DataLoader` does.
    sampler : zrecord.Sampler, optional
        In place of `batch_size`, `mode` and `seed`.

    Notes
    -----
    torch draws batches ahead of those it gives.  So to resume, count what you got:
    :meth:`seek` makes the next epoch's iteration begin at that step of it.
    """

    def __init__(
        self,
        length: int,
        batch_size: int = 256,
        mode: int = 2,
        seed: int = 42,
        *,
        steps: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        sampler: Sampler | None = None,
    ) -> None:
        self._steps = _Steps(length, batch_size, mode, seed, sampler, rank, world_size)
        self._count = self._steps.epoch_steps if steps is None else operator.index(steps)
        self._epoch = 0
        self._first = 0

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch `epoch`.  Constant time."""
        self._epoch = operator.index(epoch)

    def seek(self, step: int) -> None:
        """Make the next iteration begin at this batch of its epoch; later ones begin at 0."""
        if not 0 <= step <= self._count:
            raise ValueError(f"step {step} is not in an epoch of {self._count}")
        self._first = operator.index(step)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[list[int]]:
        first, self._first = self._first, 0
        start = self._epoch * self._count
        for step in range(start + first, start + self._count):
            yield self._steps.ids(step).tolist()


class RecordSampler(BatchSampler):
    """For ``sampler``: the same ids one by one."""

    def __len__(self) -> int:
        part = self._steps.part
        return self._count * (part.stop - part.start)

    def __iter__(self) -> Iterator[Any]:
        for ids in super().__iter__():
            yield from ids


class BatchIterator:
    """Batches of every `stride`-th step from `step` on; what :class:`IterDataset` iterates with.

    Pickles with its position.
    """

    def __init__(self, dataset, step, stop, stride):
        self._dataset, self._step, self._stop, self._stride = dataset, step, stop, stride

    def __iter__(self) -> BatchIterator:
        return self

    def __next__(self) -> Any:
        if self._stop is not None and self._step >= self._stop:
            raise StopIteration
        batch = self._dataset._batch(self._step, self._step + self._stride)
        self._step += self._stride
        return batch

    def state_dict(self) -> dict[str, int]:
        """The step that comes next."""
        return {"step": self._step}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on at a step that :meth:`state_dict` gave."""
        self._step = operator.index(state["step"])


class IterDataset(_IterableDataset):
    """Whole batches, for torch's DataLoader with ``batch_size=None``.

    Workers take turns: of W workers, number w gathers the steps w, w + W, ...; torch asks them in
    turn, so the order of batches is that of the steps, for any number of workers.

    Parameters
    ----------
    streams : Dense, Ragged, or mapping of str to them
    batch_size, mode, seed, rank, world_size, sampler
        As of :class:`BatchSampler`.
    steps : int, optional
        Batches an epoch; None is endless.
    start_step : int
        The first step.
    packed : bool
        Ragged streams as nested tensors.
    transform : callable, optional
        From batch to what is given; must pickle, for workers that are spawned.
    """

    def __init__(
        self,
        streams: Dense | Ragged | Mapping[str, Dense | Ragged],
        batch_size: int = 256,
        mode: int = 2,
        seed: int = 42,
        *,
        steps: int | None = None,
        start_step: int = 0,
        rank: int = 0,
        world_size: int = 1,
        packed: bool = False,
        transform: Callable[[Any], Any] | None = None,
        sampler: Sampler | None = None,
    ) -> None:
        self._streams = _Streams(streams, packed)
        self._steps = _Steps(
            self._streams.length, batch_size, mode, seed, sampler, rank, world_size
        )
        self._count = None if steps is None else operator.index(steps)
        self._first = operator.index(start_step)
        self._epoch = _Epochs()
        self._transform = transform or _unchanged

    def set_epoch(self, epoch: int) -> None:
        """Begin `epoch` epochs of `steps` further on, also in persistent workers."""
        if epoch and self._count is None:
            raise ValueError("an endless dataset has no epochs: give steps")
        self._epoch.set(epoch)

    def __len__(self) -> int:
        if self._count is None:
            raise TypeError("an endless dataset has no length")
        return self._count

    def __iter__(self) -> BatchIterator:
        worker = _data.get_worker_info()
        number, stride = (worker.id, worker.num_workers) if worker else (0, 1)
        start = self._first + self._epoch.get() * (self._count or 0)
        stop = None if self._count is None else start + self._count
        return BatchIterator(self, start + number, stop, stride)

    def _batch(self, step, coming):
        self._streams.prefetch(self._steps.ids(coming))
        batch = self._streams.batch(self._steps.ids(step))
        return self._transform(to_torch(batch, pin_memory=False))
