# SPDX-License-Identifier: MIT
"""What CDLLoader reads in which order, and how what was read becomes samples in order.

A piece is what one read gives: a tuple whose first element is the block.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .shuffle import CDLShuffle

__all__ = ["MixedPlan", "Plan"]


class Plan:
    """One block after the other."""

    def __init__(self, shuffle: CDLShuffle) -> None:
        self._shuffle = shuffle

    def pieces(self, first: int, count: int) -> Iterator[tuple[int, ...]]:
        """What to read for `count` positions of the epoch."""
        return self._shuffle.pieces(first, count)

    def offsets(self, piece: tuple[int, ...]) -> np.ndarray:
        """Of the piece's samples in its block, in the order in which rows() expects them."""
        return self._shuffle.intra_block_offsets(*piece)

    def rows(self, loaded: Iterator[tuple[Any, Any]]) -> Iterator[Any]:
        """Columns of rows in the order of the epoch, from (piece, columns)."""
        return (rows for _, rows in loaded)

    def items(self, loaded: Iterator[tuple[Any, Any]]) -> Iterator[tuple[Any, int]]:
        """(block's data, offset) in the order of the epoch, from (piece, (data, offsets))."""
        return ((block, offset) for _, (block, offsets) in loaded for offset in offsets)


class MixedPlan(Plan):
    """Several blocks at a time: a piece is (block, its number in the group, group, start, stop)."""

    def __init__(self, shuffle: CDLShuffle) -> None:
        super().__init__(shuffle)
        self._mixed = shuffle.mixed()

    def pieces(self, first: int, count: int) -> Iterator[tuple[int, ...]]:
        """The blocks of one group after the other, those that have samples in the part."""
        for group, start, stop in self._mixed.runs(first, count):
            present = np.unique(self._mixed.slots(group, start, stop)[0]).tolist()
            blocks = self._mixed.blocks(group)
            for number in present:
                yield blocks[number], number, group, start, stop

    def offsets(self, piece: tuple[int, ...]) -> np.ndarray:
        number, group, start, stop = piece[1:]
        which, offsets = self._mixed.slots(group, start, stop)
        return offsets[which == number]

    def _groups(self, loaded):
        """(number of the block of each sample, {number: what its piece gave})."""
        for part, pieces in itertools.groupby(loaded, lambda one: one[0][2:]):
            yield self._mixed.slots(*part)[0], {piece[1]: data for piece, data in pieces}

    def rows(self, loaded: Iterator[tuple[Any, Any]]) -> Iterator[Any]:
        for which, columns in self._groups(loaded):
            places = {number: np.flatnonzero(which == number) for number in columns}
            yield tuple(
                _placed(len(which), [(places[n], columns[n][k]) for n in columns])
                for k in range(len(next(iter(columns.values()))))
            )

    def items(self, loaded: Iterator[tuple[Any, Any]]) -> Iterator[tuple[Any, int]]:
        for which, read in self._groups(loaded):
            left = {number: (block, iter(offsets)) for number, (block, offsets) in read.items()}
            for number in which.tolist():
                block, offsets = left[number]
                yield block, next(offsets)


def _placed(count, parts):
    """One column from parts (places, values): an array, a list, or None where there is none."""
    first = parts[0][1]
    if first is None:
        return None
    out = [None] * count
    if not isinstance(first, list):
        out = np.empty((count, *first.shape[1:]), first.dtype)
    for places, values in parts:
        if isinstance(out, np.ndarray):
            out[places] = values
        else:
            for place, value in zip(places.tolist(), values, strict=True):
                out[place] = value
    return out
