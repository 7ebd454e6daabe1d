# SPDX-License-Identifier: MIT
"""Block shuffle: read storage block by block, train on a shuffled order, keep 24 bytes of state.

What celeres-dl 0.1.0 calls ``cdl``, with its names, signatures and order of samples::

    from zrecord.cdl import CDLLoader, HDF5BlockDataset

    loader = CDLLoader(HDF5BlockDataset("train.h5"), batch_size=64, seed=42)
    for epoch in range(100):
        loader.set_epoch(epoch)
        for images, labels in loader:
            ...

`CDLShuffle` is the order itself, `CDLSampler` gives it to a torch DataLoader, and `CDLLoader` reads
whole blocks ahead of the consumer from a `BlockDataset`.  Whoever has zrecord stores takes
`ZrecordBlockDataset`.  Beyond celeres-dl: inverses, resuming inside an epoch, ranks, counted I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .datasets import (
    BlockDataset,
    DirectoryBlockDataset,
    HDF5BlockDataset,
    NumpyBlockDataset,
    ZrecordBlockDataset,
    infer_block_size,
)
from .loader import CDLLoader, torch_collate
from .prefetch import AsyncPrefetcher, BlockCache, SyncPrefetcher
from .sampler import CDLSampler
from .shuffle import CDLShuffle, FeistelPermutation, SplitMix64

if TYPE_CHECKING:
    from .torch_sampler import TorchCDLSampler

__all__ = [
    "AsyncPrefetcher",
    "BlockCache",
    "BlockDataset",
    "CDLLoader",
    "CDLSampler",
    "CDLShuffle",
    "DirectoryBlockDataset",
    "FeistelPermutation",
    "HDF5BlockDataset",
    "NumpyBlockDataset",
    "SplitMix64",
    "SyncPrefetcher",
    "TorchCDLSampler",
    "ZrecordBlockDataset",
    "infer_block_size",
    "torch_collate",
]


def __getattr__(name):
    # Its base class is torch's: only who asks for it imports torch.
    if name == "TorchCDLSampler":
        from . import sampler

        globals()[name] = sampler.TorchCDLSampler
        return globals()[name]
    raise AttributeError(f"module 'zrecord.cdl' has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *__all__})
