# SPDX-License-Identifier: MIT
"""The order: a shuffled order of blocks, and inside each block a shuffled order of samples.

Both are balanced Feistel networks with cycle walking (Black, Rogaway 2002) over SplitMix64's
finaliser (Steele, Lea, Flood 2014).  The order is celeres-dl's; the arithmetic is the engine's.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, SupportsIndex

from .. import _core
from . import state as _state
from .mixed import Mixed
from .state import U64, as_rounds, as_size

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["CDLShuffle", "FeistelPermutation", "SplitMix64"]

_ORDER_TAG = 0xB10C  # of the key for the order of blocks
_INSIDE_TAG = 0x10000  # plus the block: of the key for the order inside it
_GOLDEN = 0x9E3779B97F4A7C15
_PIECE = 4096  # samples turned into Python integers at once


class SplitMix64:
    """SplitMix64 (Steele, Lea, Flood 2014): a stream of 64-bit numbers, and its mixing as a hash.

    Parameters
    ----------
    seed : int
        First state, modulo 2**64.
    """

    __slots__ = ("state",)

    def __init__(self, seed: int) -> None:
        self.state: int = seed & U64

    def next(self) -> int:
        """The next number of the stream, 64 bits."""
        number = _core.feistel_hash(self.state, 0)
        self.state = (self.state + _GOLDEN) & U64
        return number

    @staticmethod
    def hash(key: int, data: int) -> int:
        """64 bits that depend on ``key ^ data`` alone."""
        return _core.feistel_hash(key, data)

    @staticmethod
    def derive_key(base_key: int, index: int) -> int:
        """Key number `index` of a base key; the same as :meth:`hash`."""
        return _core.feistel_hash(base_key, index)


class FeistelPermutation:
    """A permutation of 0..domain_size-1 in constant memory.

    Parameters
    ----------
    key : int
        Modulo 2**64.
    domain_size : int
        0..2**64-1.
    rounds : int
        0..255; 0 is the identity.

    Attributes
    ----------
    half_bits, half_mask, full_mask : int
        Width of either half of the network, and the masks of a half and of both.
    """

    __slots__ = ("domain_size", "full_mask", "half_bits", "half_mask", "key", "rounds")

    def __init__(self, key: int, domain_size: int, rounds: int = 6) -> None:
        self.key: int = key & U64
        self.domain_size: int = as_size(domain_size, "domain_size")
        self.rounds: int = as_rounds(rounds)
        self.half_bits: int = (max(2, (self.domain_size - 1).bit_length()) + 1) // 2
        self.half_mask: int = (1 << self.half_bits) - 1
        self.full_mask: int = (1 << 2 * self.half_bits) - 1

    def permute(self, index: int) -> int:
        """Image of `index`.  What lies outside 0..domain_size-1 is its own image."""
        if self.domain_size <= 1:
            return 0
        if not 0 <= index < self.domain_size:
            return index
        return int(_core.feistel_permute(self.key, self.domain_size, self.rounds, index, 1)[0])

    def inverse_permute(self, shuffled_index: int) -> int:
        """The index whose image is `shuffled_index`."""
        if self.domain_size <= 1:
            return 0
        if not 0 <= shuffled_index < self.domain_size:
            return shuffled_index
        return _core.feistel_inverse(self.key, self.domain_size, self.rounds, shuffled_index)

    def indices(self, start: int = 0, stop: int | None = None) -> npt.NDArray[np.uint64]:
        """Images of start..stop-1, by default of all, as one uint64 array."""
        start, stop = _range(start, stop, self.domain_size)
        return _core.feistel_permute(self.key, self.domain_size, self.rounds, start, stop - start)


def _range(start: SupportsIndex, stop: SupportsIndex | None, length: int) -> tuple[int, int]:
    start = operator.index(start)
    stop = length if stop is None else operator.index(stop)
    if not 0 <= start <= stop <= length:
        raise IndexError(f"positions {start}..{stop} are outside 0..{length}")
    return start, stop


class CDLShuffle:
    """The order of one epoch, block after block, in constant memory.

    Parameters
    ----------
    dataset_size : int
        Number of samples.
    block_size : int
        Neighbouring samples that are stored, and read, together; at least 1 is taken.
    seed : int
        Modulo 2**64.
    rounds : int
        Of the Feistel networks, 0..255.
    interleave : int
        Blocks mixed at a time: so many neighbours in the order of blocks are permuted as one.
        1 is celeres-dl's order.  A sample then costs as many steps, besides those of the networks.

    Attributes
    ----------
    num_blocks, last_block_size : int
    seed : int
        The base seed; :meth:`set_epoch` does not change it.
    epoch : int or None
        None until :meth:`set_epoch`: the order is then that of the seed itself.
    """

    __slots__ = (
        "_order_seed",
        "block_size",
        "dataset_size",
        "epoch",
        "interleave",
        "last_block_size",
        "num_blocks",
        "rounds",
        "seed",
    )

    def __init__(
        self,
        dataset_size: int,
        block_size: int = 1024,
        seed: int = 42,
        rounds: int = 6,
        *,
        interleave: int = 1,
    ) -> None:
        self.dataset_size: int = as_size(dataset_size, "dataset_size")
        self.interleave: int = as_size(interleave, "interleave", 1)
        self.block_size: int = as_size(max(1, operator.index(block_size)), "block_size")
        self.seed: int = operator.index(seed) & U64
        self.rounds: int = as_rounds(rounds)
        self.epoch: int | None = None
        self.num_blocks: int = -(-self.dataset_size // self.block_size)
        self.last_block_size: int = (
            self.dataset_size - (self.num_blocks - 1) * self.block_size if self.num_blocks else 0
        )
        self._order_seed = self.seed

    # ------------------------------------------------------------ blocks

    def get_block_to_load(self, position: int) -> int:
        """Block at `position` in the order of blocks; behind the end, the last block."""
        if position >= self.num_blocks:
            return self.num_blocks - 1
        return self._block_order().permute(position)

    def get_block_order(self) -> list[int]:
        """All blocks in the order in which they are read."""
        return self._block_order().indices().tolist()

    def get_block_size(self, block_id: int) -> int:
        """Samples of a block; 0 when there is no such block."""
        if block_id >= self.num_blocks:
            return 0
        return self.last_block_size if block_id == self.num_blocks - 1 else self.block_size

    def get_block_start(self, block_id: int) -> int:
        """First sample of a block."""
        return block_id * self.block_size

    def mixed(self) -> Mixed:
        """The groups of `interleave` blocks, for readers that take them apart."""
        return Mixed(self, self._block_order(), self._order_seed)

    def like(self, seed: int) -> CDLShuffle:
        """Of the same shape with another base seed, before :meth:`set_epoch`."""
        return CDLShuffle(
            self.dataset_size, self.block_size, seed, self.rounds, interleave=self.interleave
        )

    def _block_order(self):
        key = _core.feistel_hash(self._order_seed, _ORDER_TAG)
        return FeistelPermutation(key, self.num_blocks, self.rounds)

    # ------------------------------------------------------------ inside a block

    def _inside(self, block_id):
        key = _core.feistel_hash(self._order_seed, block_id + _INSIDE_TAG)
        return FeistelPermutation(key, self.get_block_size(block_id), self.rounds)

    def get_intra_block_order(self, block_id: int) -> list[int]:
        """Offsets of a block's samples in their order."""
        return self.intra_block_offsets(block_id).tolist()

    def intra_block_offsets(
        self, block_id: int, start: int = 0, stop: int | None = None
    ) -> npt.NDArray[np.uint64]:
        """The same as an array, or part of it."""
        if self.interleave > 1 and 0 <= block_id < self.num_blocks:
            start, stop = _range(start, stop, self.get_block_size(block_id))
            return self.mixed().order_of(block_id)[start:stop]
        return self._inside(block_id).indices(start, stop)

    def get_item_offset(self, block_id: int, position: int) -> int:
        """Offset of one sample of a block; 0 behind its end."""
        if position >= self.get_block_size(block_id):
            return 0
        if self.interleave > 1:
            return int(self.intra_block_offsets(block_id)[position])
        return self._inside(block_id).permute(position)

    # ------------------------------------------------------------ samples

    def __len__(self) -> int:
        return self.dataset_size

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """(block, offset in it, sample) for each sample of the epoch."""
        size = self.block_size
        for first in range(0, self.dataset_size, _PIECE):
            stop = min(first + _PIECE, self.dataset_size)
            for sample in self.indices(first, stop).tolist():
                yield sample // size, sample % size, sample

    def indices(self, start: int = 0, stop: int | None = None) -> npt.NDArray[np.uint64]:
        """Samples at positions start..stop-1, by default the whole epoch.

        Returns
        -------
        numpy.ndarray of uint64

        Notes
        -----
        The cost is that of the positions asked for, wherever they are.  Releases the GIL.
        """
        start, stop = _range(start, stop, self.dataset_size)
        if self.interleave > 1:
            return self.mixed().indices(start, stop)
        return _core.block_shuffle_ids(
            self.dataset_size, self.block_size, self._order_seed, self.rounds, start, stop - start
        )

    def get_shuffled_indices(self) -> list[int]:
        """All samples in their order, as a list; :meth:`indices` is the same as an array."""
        return self.indices().tolist()

    def permute(self, position: int) -> int:
        """Sample at a position of the epoch.

        Raises
        ------
        IndexError
            The position is outside 0..dataset_size-1.
        """
        position = operator.index(position)
        if not 0 <= position < self.dataset_size:
            raise IndexError(f"position {position} is outside 0..{self.dataset_size - 1}")
        return int(self.indices(position, position + 1)[0])

    def inverse_permute(self, index: int) -> int:
        """Position of a sample in the epoch, in constant time; IndexError outside."""
        index = operator.index(index)
        if not 0 <= index < self.dataset_size:
            raise IndexError(f"sample {index} is outside 0..{self.dataset_size - 1}")
        if self.interleave > 1:
            return self.mixed().position(index)
        return _core.block_shuffle_position(
            self.dataset_size, self.block_size, self._order_seed, self.rounds, index
        )

    def pieces(self, first: int, count: int) -> Iterator[tuple[int, int, int]]:
        """(block, start, stop): the parts of blocks' orders that `count` positions consist of.

        For interleave=1; otherwise they are those of :meth:`mixed`.
        """
        if not count:
            return
        order = self._block_order()
        last_rank = order.inverse_permute(self.num_blocks - 1)
        missing = self.block_size - self.last_block_size
        # Positions behind the short block count as if it were whole.
        after = (last_rank + 1) * self.block_size - missing
        whole = first + missing if first >= after else first
        rank, skip = divmod(whole, self.block_size)
        while count:
            block_id = order.permute(rank)
            stop = min(self.get_block_size(block_id), skip + count)
            yield block_id, skip, stop
            rank, skip, count = rank + 1, 0, count - (stop - skip)

    # ------------------------------------------------------------ epochs and state

    def set_epoch(self, epoch: int) -> None:
        """Take the order of an epoch, always derived from the base seed.  Constant time."""
        self.epoch = operator.index(epoch)
        self._order_seed = _core.feistel_hash(self.seed, self.epoch)

    def get_state(self) -> tuple[int, int, int]:
        """(seed of the current order, dataset_size, block_size)."""
        return (self._order_seed, self.dataset_size, self.block_size)

    @classmethod
    def from_state(
        cls, state: tuple[int, int, int], *, rounds: int = 6, interleave: int = 1
    ) -> CDLShuffle:
        """The order that :meth:`get_state` was taken of; its seed is the base seed from then on."""
        seed, dataset_size, block_size = state
        return cls(dataset_size, block_size, seed, rounds, interleave=interleave)

    def shape_numbers(self) -> tuple[int, ...]:
        """What a packed state must have in common with the order that it is given to."""
        numbers = (self.dataset_size, self.block_size, self.rounds)
        return numbers if self.interleave == 1 else (*numbers, ~self.interleave)

    def _fingerprint(self):
        return _state.fingerprint(self.shape_numbers())

    def pack_state(self, position: int = 0) -> bytes:
        """Base seed, epoch and a position in it, in exactly 24 bytes.

        Raises
        ------
        OverflowError
            The epoch is not in 0..2**32-2 or the position not below 2**48.
        """
        return _state.pack(self.seed, self.epoch, operator.index(position), self._fingerprint())

    def unpack_state(self, state: Any) -> int:
        """Go to the epoch of a packed state.

        Returns
        -------
        int
            The position that was packed.

        Raises
        ------
        ValueError
            The state is damaged or belongs to another dataset, block size or number of rounds.
        """
        seed, epoch, position = _state.unpack(state, self._fingerprint(), self.dataset_size)
        self.seed = self._order_seed = seed
        self.epoch = None
        if epoch is not None:
            self.set_epoch(epoch)
        return position

    def __repr__(self) -> str:
        return (
            f"CDLShuffle({self.dataset_size}, block_size={self.block_size}, seed={self.seed}, "
            f"rounds={self.rounds}, interleave={self.interleave}, epoch={self.epoch})"
        )
