# SPDX-License-Identifier: MIT
"""CDLSampler as a torch.utils.data.Sampler.  Importing this imports torch."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

from torch.utils.data import Sampler

from .sampler import CDLSampler

__all__ = ["TorchCDLSampler"]


class TorchCDLSampler(CDLSampler, Sampler):
    """CDLSampler that is a ``torch.utils.data.Sampler``.

    Parameters
    ----------
    data_source : sized
        The dataset, for its length.
    block_size, seed, rounds, rank, world_size, tail
        As of :class:`CDLSampler`.
    """

    def __init__(
        self,
        data_source: Sized | None = None,
        block_size: int = 1024,
        seed: int = 42,
        rounds: int = 6,
        *,
        dataset_size: int | None = None,
        **options: Any,
    ) -> None:
        CDLSampler.__init__(self, data_source, dataset_size, block_size, seed, rounds, **options)
