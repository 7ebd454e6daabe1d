# SPDX-License-Identifier: MIT
"""Batches of record ids as a pure function of length, seed and step."""

from __future__ import annotations

import enum

from . import _core

__all__ = ["Mode", "Sampler"]


class Mode(enum.IntEnum):
    """How a :class:`Sampler` walks over the records."""

    SEQUENTIAL = 0
    """In order, wrapping round at the end."""
    IID = 1
    """Uniformly at random with replacement."""
    CYCLIC = 2
    """Each cycle a fresh permutation, whose remainder below a batch is dropped."""
    BLOCK = 3
    """As CYCLIC, but block after block of neighbouring records."""


class Sampler(_core.Sampler):
    """Endless batches of record ids.

    Parameters
    ----------
    length : int
        Number of records, at least 1.
    batch_size : int
        Ids a batch, at least 1.
    mode : Mode or int
    seed : int
        In 0..2**64-1.
    block_size : int
        BLOCK: neighbouring records a block.
    interleave : int
        BLOCK: how many blocks, 1..256, are permuted as one.  A batch mixes records of so many, and
        whoever keeps so many in memory reads each block once a cycle.

    Notes
    -----
    A step's ids depend on nothing but these and the step, on every machine and for ever.  Pickles
    with its position.  One thread at a time; another one meanwhile gets a RuntimeError.
    """

    Mode = Mode

    def __repr__(self) -> str:
        mode = Mode(self.mode).name
        blocks = f", block_size={self.block_size}, interleave={self.interleave}"
        return (
            f"Sampler({self.length}, {self.batch_size}, Mode.{mode}, seed={self.seed}"
            f"{blocks if self.mode == Mode.BLOCK else ''}, step={self.step})"
        )
