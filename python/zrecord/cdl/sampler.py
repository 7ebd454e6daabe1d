# SPDX-License-Identifier: MIT
"""CDLSampler: the order of a block shuffle, sample by sample, for any loader that takes a sampler."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sized
from typing import TYPE_CHECKING, Any

import numpy as np

from . import state as _state
from .shuffle import CDLShuffle

if TYPE_CHECKING:
    import numpy.typing as npt

    from .torch_sampler import TorchCDLSampler

__all__ = ["CDLSampler", "TorchCDLSampler"]

_PIECE = 4096  # samples turned into Python integers at once


class CDLSampler:
    """Samples of a dataset, in the order of a block shuffle.

    Parameters
    ----------
    data_source : sized, optional
        The dataset, for its length.  Either this or `dataset_size`.
    dataset_size : int, optional
    block_size : int
        Neighbouring samples that are stored together.
    seed : int
    rounds : int
        Of the Feistel networks.
    rank, world_size : int
        Which share of each epoch, of how many; no communication is needed.
    tail : {'uneven', 'pad', 'drop'}
        Where the ranks do not divide the length.  'uneven': every sample exactly once, ranks differ
        by one sample.  'pad': equal shares, the last ones go on with the epoch's first samples.
        'drop': equal shares, the epoch's last samples are left out.
    interleave : int
        Blocks mixed at a time, as of :class:`CDLShuffle`.

    Notes
    -----
    Before the first :meth:`set_epoch` the order is that of the seed itself, as in celeres-dl.
    """

    def __init__(
        self,
        data_source: Sized | None = None,
        dataset_size: int | None = None,
        block_size: int = 1024,
        seed: int = 42,
        rounds: int = 6,
        *,
        rank: int = 0,
        world_size: int = 1,
        tail: str = "uneven",
        interleave: int = 1,
    ) -> None:
        if data_source is not None:
            dataset_size = len(data_source)
        elif dataset_size is None:
            raise ValueError("give data_source or dataset_size")
        self._shuffler = CDLShuffle(dataset_size, block_size, seed, rounds, interleave=interleave)
        self._dataset_size = self._shuffler.dataset_size
        self._share = _state.Share(self._dataset_size, rank, world_size, tail)
        self.block_size = block_size
        self.seed = seed
        self.rounds = rounds
        self._resume = 0  # where the next iteration starts
        self._cursor = [0]  # samples that the newest iteration gave; shared with it

    # ------------------------------------------------------------ iteration

    def __iter__(self) -> Iterator[int]:
        """From the start of the epoch; once after unpack_state, from where that was."""
        position, self._resume = self._resume, 0
        shuffler, runs = self._shuffler, list(self._share.runs(position))
        cursor = self._cursor = [position]
        for first, count in runs:
            for start in range(first, first + count, _PIECE):
                stop = min(start + _PIECE, first + count)
                for sample in shuffler.indices(start, stop).tolist():
                    cursor[0] += 1
                    yield sample

    def __len__(self) -> int:
        """Samples of this rank in an epoch."""
        return self._share.count

    def indices(self) -> npt.NDArray[np.uint64]:
        """All samples of this rank in their order, as one uint64 array."""
        runs = [self._shuffler.indices(first, first + n) for first, n in self._share.runs(0)]
        return runs[0] if len(runs) == 1 else np.concatenate([np.empty(0, np.uint64), *runs])

    def get_shuffled_indices(self) -> list[int]:
        """The same as a list."""
        return self.indices().tolist()

    def get_block_order(self) -> list[int]:
        """All blocks of the dataset in the order in which the epoch reads them."""
        return self._shuffler.get_block_order()

    # ------------------------------------------------------------ epochs

    def set_epoch(self, epoch: int) -> None:
        """Take the order of an epoch.  Constant time.

        Directly after :meth:`unpack_state` the epoch that was packed keeps its position, so that a
        training loop can begin with its usual ``set_epoch``.
        """
        shuffler = self._shuffler.like(self._shuffler.seed)
        shuffler.set_epoch(epoch)
        if self._shuffler.epoch != shuffler.epoch:
            self._resume = 0
            self._cursor = [0]
        self._shuffler = shuffler

    @property
    def epoch(self) -> int:
        """The epoch; 0 before the first :meth:`set_epoch`."""
        return self._shuffler.epoch or 0

    @property
    def num_blocks(self) -> int:
        """Blocks of the dataset."""
        return self._shuffler.num_blocks

    # ------------------------------------------------------------ state

    def get_state(self) -> dict[str, int]:
        """Seed, epoch and geometry as celeres-dl gives them: the start of the epoch."""
        state = {
            "seed": self.seed,
            "epoch": self.epoch,
            "dataset_size": self._dataset_size,
            "block_size": self.block_size,
            "rounds": self.rounds,
        }
        mixed = self._shuffler.interleave
        return state if mixed == 1 else {**state, "interleave": mixed}

    @classmethod
    def from_state(cls, state: Mapping[str, int], **options: Any) -> CDLSampler:
        """A sampler at the start of the epoch that :meth:`get_state` was taken in.

        Parameters
        ----------
        state : mapping
        **options
            rank, world_size, tail.
        """
        sampler = cls(
            dataset_size=state["dataset_size"],
            block_size=state["block_size"],
            seed=state["seed"],
            rounds=state.get("rounds", 6),
            **{"interleave": state.get("interleave", 1), **options},
        )
        sampler.set_epoch(state["epoch"])
        return sampler

    def _fingerprint(self):
        return _state.fingerprint((*self._shuffler.shape_numbers(), *self._share.numbers()))

    def pack_state(self, position: int | None = None) -> bytes:
        """Seed, epoch and position in exactly 24 bytes, for :meth:`unpack_state`.

        Parameters
        ----------
        position : int, optional
            Samples of this rank's epoch that were trained on.  By default what the newest
            iteration has given; a loader with workers draws ahead, so give its own count.

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
        s = self._shuffler
        return _state.pack(s.seed, s.epoch, position, self._fingerprint())

    def unpack_state(self, state: Any) -> None:
        """Go on where :meth:`pack_state` was: the next iteration gives what was not given.

        Every rank may take the state of any rank.

        Parameters
        ----------
        state : bytes-like

        Raises
        ------
        ValueError
            It is damaged, or of another dataset size, block size, number of rounds or of ranks.
        """
        seed, epoch, position = _state.unpack(state, self._fingerprint(), self._share.count)
        shuffler = self._shuffler.like(seed)
        if epoch is not None:
            shuffler.set_epoch(epoch)
        self._shuffler, self.seed = shuffler, seed
        self._resume = position
        self._cursor = [position]


def __getattr__(name):
    # Without torch it is CDLSampler itself, as in celeres-dl.
    if name == "TorchCDLSampler":
        try:
            from .torch_sampler import TorchCDLSampler as sampler
        except ImportError:
            sampler = CDLSampler
        globals()[name] = sampler
        return sampler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
