# SPDX-License-Identifier: MIT
"""CDLLoader: batches in the order of a block shuffle, from blocks that threads read ahead."""

from __future__ import annotations

import operator
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from . import state as _state
from .datasets import BlockDataset
from .plan import MixedPlan, Plan
from .prefetch import AsyncPrefetcher, BlockCache
from .shuffle import CDLShuffle

__all__ = ["CDLLoader", "default_collate", "torch_collate"]

_MISSING = object()


def default_collate(batch: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    """(items, labels) of a list of (item, label), as celeres-dl gives them.

    Arrays are stacked; items that are no arrays stay a list.  Labels become an array, or None
    where there are none.
    """
    if not batch:
        return np.array([]), None
    items: Any = [item for item, _ in batch]
    labels: Any = [label for _, label in batch if label is not None]
    if isinstance(items[0], np.ndarray):
        items = np.stack(items)
    if not labels:
        return items, None
    return items, np.stack(labels) if isinstance(labels[0], np.ndarray) else np.array(labels)


def torch_collate(batch: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    """(items, labels) of a list of (item, label) as torch tensors; imports torch."""
    import torch

    if not batch:
        return torch.tensor([]), None
    items: Any = [item for item, _ in batch]
    labels: Any = [label for _, label in batch if label is not None]
    return _as_tensor(items, torch), _as_tensor(labels, torch) if labels else None


def _as_tensor(values, torch):
    first = values[0]
    if isinstance(first, torch.Tensor):
        return torch.stack(values)
    if isinstance(first, np.ndarray):
        return torch.from_numpy(np.stack(values))
    if isinstance(first, np.generic) and _is_number(first.dtype):
        return torch.from_numpy(np.array(values))
    return torch.tensor(values) if isinstance(first, (int, float)) else values


def _is_number(dtype):
    return dtype.kind in "biufc"


def _rows_collate(data, labels):
    """What default_collate gives of the same samples."""
    if isinstance(data, np.ndarray) and data.ndim == 1:
        data = list(data)
    return data, labels


def _rows_torch_collate(data, labels):
    import torch

    if isinstance(data, np.ndarray):
        data = torch.from_numpy(data)
    if isinstance(labels, np.ndarray):
        labels = torch.from_numpy(labels) if _is_number(labels.dtype) else list(labels)
    return data, labels


class _Counts:
    """What was read, counted where it is read; any number of threads."""

    def __init__(self):
        self.lock = threading.Lock()
        self.blocks = self.records = self.nbytes = self.seeks = self.hits = self.samples = 0
        self.seconds = 0.0
        self.end = None  # the sample behind the last read

    def add(self, start, stop, nbytes, seconds):
        with self.lock:
            self.blocks += 1
            self.records += stop - start
            self.nbytes += nbytes
            self.seconds += seconds
            self.seeks += start != self.end
            self.end = stop

    def hit(self):
        with self.lock:
            self.hits += 1


class CDLLoader:
    """Batches of a block dataset in shuffled order.

    Parameters
    ----------
    dataset : BlockDataset
    batch_size : int
    seed : int
    prefetch : bool
        Read blocks ahead in threads; otherwise when they are needed.
    prefetch_depth : int
        Blocks read ahead.
    num_workers : int
        Threads that read.
    drop_last : bool
        Leave out a last batch of fewer samples.
    collate_fn : callable, optional
        From a list of what the dataset's ``get_item`` gives to a batch.  By default
        ``(items, labels)``, both stacked; with :func:`torch_collate` the same as tensors.
    rounds : int
        Of the Feistel networks.
    rank, world_size, tail
        The share of each epoch, as of :class:`CDLSampler`.
    cache_blocks : int
        Blocks kept after their use, those used last, also from one epoch to the next.
    interleave : int
        Blocks mixed at a time, as of :class:`CDLShuffle`; 1 is celeres-dl's order.

    Notes
    -----
    Each ``iter`` goes through the epoch once.  Never more than `prefetch_depth` + 1 blocks are in
    memory, or `prefetch_depth` + `interleave` where blocks are mixed, besides `cache_blocks` and
    what batches refer to.  What reading a block raises is raised by ``next``, naming the block.  Batches of arrays are the caller's to write to.
    """

    def __init__(
        self,
        dataset: BlockDataset,
        batch_size: int = 32,
        seed: int = 42,
        prefetch: bool = True,
        prefetch_depth: int = 2,
        num_workers: int = 2,
        drop_last: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        *,
        rounds: int = 6,
        rank: int = 0,
        world_size: int = 1,
        tail: str = "uneven",
        cache_blocks: int = 0,
        interleave: int = 1,
    ) -> None:
        if not isinstance(dataset, BlockDataset):  # others may have its parts
            for part in ("block_size", "num_blocks", "load_block", "get_item"):
                if not hasattr(dataset, part):
                    kind = type(dataset).__name__
                    raise TypeError(f"dataset must be a BlockDataset, not {kind}: it has no {part}")
        self.dataset = dataset
        self.batch_size = _state.as_size(batch_size, "batch_size", 1)
        self.seed = seed
        self.prefetch = bool(prefetch)
        self.prefetch_depth = _state.as_size(prefetch_depth, "prefetch_depth")
        self.num_workers = _state.as_size(num_workers, "num_workers", 1)
        self.drop_last = drop_last
        self.collate_fn: Callable[[list[Any]], Any] = collate_fn or default_collate
        self.shuffler = CDLShuffle(
            len(dataset), dataset.block_size, seed, rounds, interleave=interleave
        )
        self.cache = BlockCache(_state.as_size(cache_blocks, "cache_blocks"))
        self._share = _state.Share(len(dataset), rank, world_size, tail)
        self._resume = 0
        self._cursor = [0]  # samples that the newest iteration gave; shared with it
        self._counts = _Counts()

    def __len__(self) -> int:
        """Batches of an epoch of this rank."""
        count, size = self._share.count, self.batch_size
        return count // size if self.drop_last else -(-count // size)

    def __repr__(self) -> str:
        epoch = self.shuffler.epoch
        return f"<zrecord.CDLLoader of {self.dataset!r}, batch_size={self.batch_size}, epoch={epoch}>"

    # ------------------------------------------------------------ epochs

    def set_epoch(self, epoch: int) -> None:
        """Take the order of an epoch.  Constant time.

        Directly after :meth:`unpack_state` the epoch that was packed keeps its position.
        """
        shuffler = self.shuffler.like(self.shuffler.seed)
        shuffler.set_epoch(epoch)
        if shuffler.epoch != self.shuffler.epoch:
            self._resume = 0
            self._cursor = [0]
        self.shuffler = shuffler

    @property
    def epoch(self) -> int:
        """The epoch; 0 before the first :meth:`set_epoch`."""
        return self.shuffler.epoch or 0

    @property
    def block_order(self) -> list[int]:
        """All blocks of the dataset in the order in which the epoch reads them."""
        return self.shuffler.get_block_order()

    # ------------------------------------------------------------ iteration

    def __iter__(self) -> Iterator[Any]:
        """From the start of the epoch; once after unpack_state, from where that was."""
        position, self._resume = self._resume, 0
        self._cursor = cursor = [position]
        self._counts = counts = _Counts()
        shuffler = self.shuffler
        collate = self._rows_collate()
        load = self._load_block if collate is None else self._load_rows
        plan = MixedPlan(shuffler) if shuffler.interleave > 1 else Plan(shuffler)
        loaded = self._read(plan, position, lambda piece: load(plan, piece, counts))
        try:
            least = self.batch_size if self.drop_last else 1
            batches = (
                self._item_batches(plan.items(loaded), least)
                if collate is None
                else _row_batches(plan.rows(loaded), self.batch_size, least, collate)
            )
            for count, batch in batches:
                cursor[0] += count
                counts.samples += count
                yield batch
        finally:
            loaded.close()

    def _rows_collate(self):
        """How rows become a batch; None where samples have to be taken one by one."""
        gives_rows = getattr(self.dataset, "gives_rows", None)
        if gives_rows is None or not gives_rows():
            return None
        return {default_collate: _rows_collate, torch_collate: _rows_torch_collate}.get(
            self.collate_fn
        )

    def _read(self, plan, position, load):
        """(piece, what load gives) for the parts of blocks from a position of this rank on."""
        pieces = (
            piece
            for first, count in self._share.runs(position)
            for piece in plan.pieces(first, count)
        )
        if not self.prefetch or not self.prefetch_depth:
            for piece in pieces:
                yield piece, load(piece)
            return
        ahead = AsyncPrefetcher(load, self.prefetch_depth, 0, self.num_workers)
        ahead.start()
        try:
            waiting = []
            for piece in pieces:
                ahead.schedule(piece)
                waiting.append(piece)
                if len(waiting) > self.prefetch_depth:
                    piece = waiting.pop(0)
                    yield piece, ahead.get(piece)
            for piece in waiting:
                yield piece, ahead.get(piece)
        finally:
            ahead.stop()

    def _load_rows(self, plan, piece, counts):
        block_id, offsets = piece[0], plan.offsets(piece)
        dataset = self.dataset
        if self.cache.max_blocks:
            return dataset.take_rows(self._cached(block_id, counts), offsets)
        return self._counted(block_id, counts, lambda: dataset.load_rows(block_id, offsets))

    def _load_block(self, plan, piece, counts):
        return self._cached(piece[0], counts), plan.offsets(piece).tolist()

    def _cached(self, block_id, counts):
        block = self.cache.get(block_id, _MISSING)
        if block is not _MISSING:
            counts.hit()
            return block
        block = self._counted(block_id, counts, lambda: self.dataset.load_block(block_id))
        self.cache.put(block_id, block)
        return block

    def _counted(self, block_id, counts, load):
        began = time.perf_counter()
        try:
            block = load()
        except BaseException as exc:
            if hasattr(exc, "add_note"):  # Python 3.11
                exc.add_note(f"CDLLoader: reading block {block_id} of {self.dataset!r}")
            raise
        seconds = time.perf_counter() - began
        start = block_id * self.dataset.block_size
        stop = start + self.dataset.get_block_size(block_id)
        nbytes = getattr(self.dataset, "block_nbytes", lambda _: 0)(block)
        counts.add(start, stop, nbytes, seconds)
        return block

    def _item_batches(self, items, least):
        """(count, batch) by the dataset's get_item and the collate function; of `least` or more."""
        get_item, batch = self.dataset.get_item, []
        for block, offset in items:
            batch.append(get_item(block, offset))
            if len(batch) == self.batch_size:
                yield len(batch), self.collate_fn(batch)
                batch = []
        if len(batch) >= least:
            yield len(batch), self.collate_fn(batch)

    # ------------------------------------------------------------ state

    def get_state(self) -> dict[str, int]:
        """Seed, epoch and geometry as celeres-dl gives them: the start of the epoch."""
        return {
            "seed": self.seed,
            "epoch": self.epoch,
            "dataset_size": len(self.dataset),
            "block_size": self.dataset.block_size,
            **({"interleave": self.shuffler.interleave} if self.shuffler.interleave > 1 else {}),
        }

    @classmethod
    def from_checkpoint(
        cls, checkpoint: Mapping[str, int] | bytes, dataset: BlockDataset, **kwargs: Any
    ) -> CDLLoader:
        """A loader where another one was.

        Parameters
        ----------
        checkpoint : mapping or bytes-like
            Of :meth:`get_state`: the start of that epoch.  Of :meth:`pack_state`: the very sample.
        dataset : BlockDataset
        **kwargs
            Other arguments of the loader.

        Raises
        ------
        ValueError
            The checkpoint belongs to another dataset.
        """
        if not isinstance(checkpoint, Mapping):
            loader = cls(dataset, **kwargs)
            loader.unpack_state(checkpoint)
            return loader
        if "interleave" in checkpoint:
            kwargs = {"interleave": checkpoint["interleave"], **kwargs}
        loader = cls(dataset, seed=checkpoint["seed"], **kwargs)
        mine = loader.get_state()
        for key in ("dataset_size", "block_size"):
            if key in checkpoint and checkpoint[key] != mine[key]:
                raise ValueError(
                    f"the checkpoint has {key} {checkpoint[key]}, this dataset {mine[key]}"
                )
        loader.set_epoch(checkpoint["epoch"])
        return loader

    def _fingerprint(self):
        content = getattr(self.dataset, "fingerprint", lambda: 0)()
        numbers = (*self.shuffler.shape_numbers(), *self._share.numbers())
        return _state.fingerprint((*numbers, content))

    def pack_state(self, position: int | None = None) -> bytes:
        """Seed, epoch and position in exactly 24 bytes, for :meth:`unpack_state`.

        Parameters
        ----------
        position : int, optional
            Samples of this rank's epoch that were trained on.  By default those of all batches
            that the newest iteration gave; blocks read ahead do not count.

        Raises
        ------
        OverflowError
            The epoch is not in 0..2**32-2, or the position not below 2**48.
        ValueError
            The position is behind the end.
        """
        position = self._cursor[0] if position is None else operator.index(position)
        if not 0 <= position <= self._share.count:
            raise ValueError(f"position {position} is outside 0..{self._share.count}")
        s = self.shuffler
        return _state.pack(s.seed, s.epoch, position, self._fingerprint())

    def unpack_state(self, state: Any) -> None:
        """Go on where :meth:`pack_state` was: the next iteration gives what was not given.

        Every rank may take the state of any rank.  The batch size may have changed.

        Raises
        ------
        ValueError
            The state is damaged, or of another dataset, number of rounds or of ranks.
        """
        seed, epoch, position = _state.unpack(state, self._fingerprint(), self._share.count)
        shuffler = self.shuffler.like(seed)
        if epoch is not None:
            shuffler.set_epoch(epoch)
        self.shuffler, self.seed = shuffler, seed
        self._resume = position
        self._cursor = [position]

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        del state["_counts"]
        return {**state, "_cursor": list(self._cursor)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._counts = _Counts()

    # ------------------------------------------------------------ counts

    def get_io_stats(self) -> dict[str, Any]:
        """What the newest iteration has read so far, counted as it read.

        Returns
        -------
        dict
            Geometry: dataset_size, num_blocks, block_size.  Counts: blocks_read, records_read,
            bytes_read, cache_hits, samples (given), read_seconds (of all threads).  A seek is a
            read that did not begin where the one before ended: seeks_per_epoch;
            expected_locality_pct, records read without one; seeks_random_shuffle, one for each
            sample given; seek_reduction, the second over the first.  The keys of celeres-dl, which
            computes them from the geometry, are among these.
        """
        counts = self._counts
        with counts.lock:
            seeks, records, samples = counts.seeks, counts.records, counts.samples
            return {
                "dataset_size": len(self.dataset),
                "num_blocks": self.shuffler.num_blocks,
                "block_size": self.dataset.block_size,
                "expected_locality_pct": 100.0 * (records - seeks) / records if records else 0.0,
                "seeks_per_epoch": seeks,
                "seeks_random_shuffle": samples,
                "seek_reduction": samples / seeks if seeks else 1.0,
                "blocks_read": counts.blocks,
                "records_read": records,
                "bytes_read": counts.nbytes,
                "cache_hits": counts.hits,
                "samples": samples,
                "read_seconds": counts.seconds,
            }


# ---------------------------------------------------------------- rows


def _row_batches(loaded, batch_size, least, collate):
    """(count, batch) from parts of blocks: views of a part, or joined where parts meet.

    A last batch of fewer than `least` is left out.
    """
    parts, held = [], 0
    for rows in loaded:
        size, at = len(rows[0]), 0
        while size - at >= batch_size - held:
            take = batch_size - held
            parts.append(_part(rows, at, at + take))
            at += take
            yield batch_size, collate(*_join(parts))
            parts, held = [], 0
        if at < size:
            parts.append(_part(rows, at, size))
            held += size - at
    if held >= least:
        yield held, collate(*_join(parts))


def _part(rows, start, stop):
    return tuple(None if column is None else column[start:stop] for column in rows)


def _join(parts):
    if len(parts) == 1:
        return parts[0]
    return tuple(_join_column(column) for column in zip(*parts, strict=True))


def _join_column(column):
    if column[0] is None:
        return None
    if isinstance(column[0], list):
        return [record for part in column for record in part]
    return np.concatenate(column)
