# SPDX-License-Identifier: MIT
"""Several blocks mixed: neighbours in the order of blocks are read together and permuted as one.

celeres-dl takes one block after the other, so where labels are stored in runs a batch shows few of
them.  With K blocks at a time a batch shows those of K blocks, for K blocks of memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from .. import _core

if TYPE_CHECKING:
    from .shuffle import CDLShuffle, FeistelPermutation

__all__ = ["Mixed"]

_GROUP_TAG = 1 << 63  # plus the group: of the key for the order inside it


class Mixed:
    """The groups of `interleave` blocks of a CDLShuffle.

    A group's samples are numbered through its blocks, the short block last; these numbers, slots,
    are permuted.  Positions of the epoch run through the groups in order.

    Parameters
    ----------
    shuffle : CDLShuffle
    order : FeistelPermutation
        Of its blocks.
    order_seed : int
        Of the epoch.
    """

    def __init__(self, shuffle: CDLShuffle, order: FeistelPermutation, order_seed: int) -> None:
        self._shuffle, self._order, self._seed = shuffle, order, order_seed
        self._each = shuffle.interleave
        self._whole = self._each * shuffle.block_size  # samples of a group without the short block
        self._missing = shuffle.block_size - shuffle.last_block_size
        last = shuffle.num_blocks - 1
        self._short_group = order.inverse_permute(last) // self._each if last >= 0 else 0

    def _start(self, group):
        return group * self._whole - (self._missing if group > self._short_group else 0)

    def _group_at(self, position):
        if position < self._start(self._short_group + 1):
            return min(position // self._whole, self._short_group)
        return (position + self._missing) // self._whole

    def blocks(self, group: int) -> list[int]:
        """Blocks of a group in the order of their slots."""
        first = group * self._each
        stop = min(first + self._each, self._shuffle.num_blocks)
        found: list[int] = self._order.indices(first, stop).tolist()
        last = self._shuffle.num_blocks - 1
        if last in found:
            found.remove(last)
            found.append(last)
        return found

    def _size(self, group):
        return min(self._start(group + 1), self._shuffle.dataset_size) - self._start(group)

    def _inside(self, group):
        key = _core.feistel_hash(self._seed, _GROUP_TAG + group)
        return type(self._order)(key, self._size(group), self._shuffle.rounds)

    def slots(self, group: int, start: int, stop: int) -> np.ndarray:
        """(block's number in the group, offset in it) of a part of the group's order."""
        numbers = self._inside(group).indices(start, stop)
        return np.stack(np.divmod(numbers, np.uint64(self._shuffle.block_size)))

    def runs(self, first: int, count: int) -> Iterator[tuple[int, int, int]]:
        """(group, start, stop): the parts of groups' orders that `count` positions consist of."""
        while count > 0:
            group = self._group_at(first)
            start = first - self._start(group)
            stop = min(self._size(group), start + count)
            yield group, start, stop
            first, count = first + stop - start, count - (stop - start)

    def indices(self, start: int, stop: int) -> np.ndarray:
        """Samples at positions start..stop-1."""
        size = np.uint64(self._shuffle.block_size)
        parts = [np.empty(0, np.uint64)]
        for group, first, last in self.runs(start, stop - start):
            which, offsets = self.slots(group, first, last)
            parts.append(np.array(self.blocks(group), np.uint64)[which] * size + offsets)
        return np.concatenate(parts)

    def position(self, sample: int) -> int:
        """Position of a sample in the epoch."""
        block, offset = divmod(sample, self._shuffle.block_size)
        group = self._order.inverse_permute(block) // self._each
        slot = self.blocks(group).index(block) * self._shuffle.block_size + offset
        return self._start(group) + self._inside(group).inverse_permute(slot)

    def order_of(self, block_id: int) -> np.ndarray:
        """Offsets of a block's samples in the order in which they come."""
        group = self._order.inverse_permute(block_id) // self._each
        which, offsets = self.slots(group, 0, self._size(group))
        return offsets[which == self.blocks(group).index(block_id)]
