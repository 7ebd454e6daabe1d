# SPDX-License-Identifier: MIT
"""Where a reader stands: checked numbers, the share of a rank, and the state in 24 bytes."""

from __future__ import annotations

import operator
import struct
from collections.abc import Iterable, Iterator
from typing import Any, SupportsIndex

from .. import _core

__all__ = ["STATE_NBYTES", "Share", "as_size", "as_rounds", "fingerprint", "pack", "unpack"]

STATE_NBYTES = 24
ROUNDS_MAX = 255
U64 = 2**64 - 1
TAILS = ("uneven", "pad", "drop")

_EPOCH_UNSET = 2**32 - 1
_BITS_48 = 2**48 - 1
_LAYOUT = struct.Struct("<QIHIHI")  # seed, epoch, position (16 + 32 bits), seal (16 + 32)


def as_size(value: SupportsIndex, name: str, least: int = 0) -> int:
    """An integer in least..2**64-1."""
    number = operator.index(value)
    if not least <= number <= U64:
        raise ValueError(f"{name} must be in {least}..2**64-1, not {number}")
    return number


def as_rounds(value: SupportsIndex) -> int:
    number = operator.index(value)
    if not 0 <= number <= ROUNDS_MAX:
        raise ValueError(f"rounds must be in 0..{ROUNDS_MAX}, not {number}")
    return number


class Share:
    """The positions of an epoch that one rank takes: one run, so that its blocks are its own.

    tail says what happens to a length that the ranks do not divide.  'uneven': every sample
    exactly once, counts differ by one.  'pad': equal counts, the last ranks go on with the first
    samples.  'drop': equal counts, the last samples of the epoch are left out.
    """

    def __init__(self, length: int, rank: SupportsIndex, world_size: SupportsIndex, tail: str):
        self.length = length
        self.rank = operator.index(rank)
        self.world_size = operator.index(world_size)
        self.tail = tail
        if self.world_size < 1:
            raise ValueError(f"world_size must be positive, not {self.world_size}")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank {self.rank} is outside 0..{self.world_size - 1}")
        if tail not in TAILS:
            raise ValueError(f"unknown tail {tail!r}, expected one of {sorted(TAILS)}")
        if tail == "uneven":
            self.start = self.rank * length // self.world_size
            self.count = (self.rank + 1) * length // self.world_size - self.start
        else:
            self.count = length // self.world_size
            if tail == "pad" and length % self.world_size:
                self.count += 1
            self.start = self.rank * self.count

    def numbers(self) -> tuple[int, int]:
        """What a state has in common with those of the other ranks."""
        return self.world_size, TAILS.index(self.tail) if self.world_size > 1 else 0

    def runs(self, position: int) -> Iterator[tuple[int, int]]:
        """(first, count) in the epoch of what is left from this rank's `position` on."""
        first, count = self.start + position, self.count - position
        while count > 0:
            first %= self.length  # where padding begins
            here = min(count, self.length - first)
            yield first, here
            first, count = first + here, count - here


def fingerprint(numbers: Iterable[int]) -> int:
    """48 bits that tell one list of numbers from another."""
    value = 0
    for number in numbers:
        value = _core.feistel_hash(value, number & U64)
    return value >> 16


def _seal(seed: int, epoch: int, position: int, mark: int) -> int:
    """The fingerprint of the dataset and of the state itself, so that a changed byte shows."""
    return fingerprint((mark, seed, epoch, position))


def pack(seed: int, epoch: int | None, position: int, mark: int) -> bytes:
    """The state in STATE_NBYTES bytes; `epoch` is None before the first set_epoch."""
    if epoch is not None and not 0 <= epoch < _EPOCH_UNSET:
        raise OverflowError(f"epoch {epoch} does not fit into a packed state (0..2**32-2)")
    if not 0 <= position <= _BITS_48:
        raise OverflowError(f"position {position} does not fit into a packed state (48 bits)")
    seed &= U64
    epoch = _EPOCH_UNSET if epoch is None else epoch
    seal = _seal(seed, epoch, position, mark)
    high, low = position >> 32, position & 0xFFFFFFFF
    return _LAYOUT.pack(seed, epoch, high, low, seal >> 32, seal & 0xFFFFFFFF)


def unpack(state: Any, mark: int, count: int) -> tuple[int, int | None, int]:
    """(seed, epoch, position) of a packed state that belongs to the fingerprint `mark`.

    Raises
    ------
    ValueError
        It is no state, a damaged one, or one of another dataset.
    """
    raw = bytes(memoryview(state))
    if len(raw) != STATE_NBYTES:
        raise ValueError(f"a packed state has {STATE_NBYTES} bytes, not {len(raw)}")
    seed, epoch, high, low, seal_high, seal_low = _LAYOUT.unpack(raw)
    position = high << 32 | low
    if seal_high << 32 | seal_low != _seal(seed, epoch, position, mark):
        raise ValueError(
            "the packed state is damaged or belongs to another dataset: its size, block size, "
            "rounds, interleave, number of ranks or content differ"
        )
    if position > count + 1:  # ranks of one state may differ by one sample
        raise ValueError(f"the packed state is at sample {position} of an epoch of {count}")
    return seed, None if epoch == _EPOCH_UNSET else epoch, min(position, count)
