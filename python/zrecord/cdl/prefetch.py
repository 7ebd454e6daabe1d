# SPDX-License-Identifier: MIT
"""Blocks ahead of their consumer: a small cache and threads that load what comes next."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

__all__ = ["AsyncPrefetcher", "BlockCache", "SyncPrefetcher"]

_MISSING = object()


class BlockCache:
    """The blocks used last, at most `max_blocks`; any number of threads.

    Parameters
    ----------
    max_blocks : int
        0 keeps nothing.
    """

    def __init__(self, max_blocks: int = 2) -> None:
        self.max_blocks = max_blocks
        self._blocks: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, block_id: Hashable, default: Any = None) -> Any:
        """The block, now the newest, or `default`."""
        with self._lock:
            if block_id not in self._blocks:
                return default
            self._blocks.move_to_end(block_id)
            return self._blocks[block_id]

    def put(self, block_id: Hashable, data: Any) -> None:
        """Keep a block and let go of the oldest ones beyond `max_blocks`."""
        with self._lock:
            self._blocks[block_id] = data
            self._blocks.move_to_end(block_id)
            while len(self._blocks) > self.max_blocks:
                self._blocks.popitem(last=False)

    def clear(self) -> None:
        """Let go of all."""
        with self._lock:
            self._blocks.clear()

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, block_id: Hashable) -> bool:
        with self._lock:
            return block_id in self._blocks

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.max_blocks,)  # blocks are not worth carrying


class SyncPrefetcher:
    """The interface of :class:`AsyncPrefetcher`, loading when asked, in the caller's thread."""

    def __init__(self, load_fn: Callable[[Any], Any], cache_size: int = 2, **ignored: Any) -> None:
        self.load_fn = load_fn
        self.cache = BlockCache(cache_size)

    def start(self) -> None:
        """Nothing to start."""

    def stop(self) -> None:
        """Empty the cache."""
        self.cache.clear()

    def schedule(self, block_id: Any) -> None:
        """Nothing happens ahead."""

    def prefetch_ahead(self, current_pos: int, block_order: Sequence[Any]) -> None:
        """Nothing happens ahead."""

    def get(self, block_id: Any, timeout: float | None = None) -> Any:
        """The block; raises what loading it raises."""
        block = self.cache.get(block_id, _MISSING)
        if block is _MISSING:
            block = self.load_fn(block_id)
            self.cache.put(block_id, block)
        return block


class AsyncPrefetcher:
    """Loads blocks in threads before they are asked for.

    Parameters
    ----------
    load_fn : callable
        From a block's id, any hashable, to its data; called from several threads at once.
    prefetch_depth : int
        Blocks that :meth:`prefetch_ahead` schedules.
    cache_size : int
        Blocks kept after they were given.
    num_workers : int
        Threads.

    Notes
    -----
    What a thread raised is raised by :meth:`get` of that block.  A block that was loaded and not
    asked for yet is kept until it is, besides the cache.
    """

    def __init__(
        self,
        load_fn: Callable[[Any], Any],
        prefetch_depth: int = 2,
        cache_size: int = 4,
        num_workers: int = 2,
    ) -> None:
        self.load_fn = load_fn
        self.prefetch_depth = prefetch_depth
        self.num_workers = num_workers
        self.cache = BlockCache(cache_size)
        self._pool: ThreadPoolExecutor | None = None
        self._pending: dict[Any, Future[Any]] = {}
        self._lock = threading.Lock()

    def start(self) -> None:
        """Make the threads; without, every :meth:`get` loads in its own thread."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.num_workers, "zrecord-cdl")

    def stop(self) -> None:
        """Drop what was scheduled, wait for loads under way, empty the cache."""
        pool, self._pool = self._pool, None
        with self._lock:
            pending, self._pending = self._pending, {}
        for future in pending.values():
            future.cancel()
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)
        self.cache.clear()

    def schedule(self, block_id: Any) -> None:
        """Begin to load a block, unless that is done or under way."""
        with self._lock:
            pool = self._pool
            if pool is not None and block_id not in self._pending and block_id not in self.cache:
                self._pending[block_id] = pool.submit(self.load_fn, block_id)

    def prefetch_ahead(self, current_pos: int, block_order: Sequence[Any]) -> None:
        """Schedule the `prefetch_depth` blocks that follow a position of an order."""
        for block_id in block_order[current_pos + 1 : current_pos + 1 + self.prefetch_depth]:
            self.schedule(block_id)

    def get(self, block_id: Any, timeout: float | None = None) -> Any:
        """The block, waiting for it where it is under way.

        Parameters
        ----------
        block_id : hashable
        timeout : float, optional
            Seconds to wait for a load under way; TimeoutError after that.
        """
        with self._lock:
            future = self._pending.pop(block_id, None)
        block = self.cache.get(block_id, _MISSING) if future is None else future.result(timeout)
        if block is _MISSING:
            block = self.load_fn(block_id)
        self.cache.put(block_id, block)
        return block
