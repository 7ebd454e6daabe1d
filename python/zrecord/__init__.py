# SPDX-License-Identifier: MIT
"""zrecord: compact, compressed, immutable containers of records.

import zrecord

with zrecord.Dense.create("images", images.dtype, images.shape[1:]) as store:
    store.append(images)

images = zrecord.Dense.open("images")
labels = zrecord.Dense.open("labels")
with zrecord.DataLoader({"image": images, "label": labels}, batch_size=256) as loader:
    batch = next(loader)
"""

from typing import TYPE_CHECKING

from . import _core
from ._core import set_thread_count, thread_count, trim_memory
from .dictionary import DICT_TIERS, train_dict
from .errors import ZrecordError, ZrecordWarning
from .sampler import Mode, Sampler
from .store import Dense, Ragged, open
from .verification import VerifyResult, verify

if TYPE_CHECKING:
    from . import torch as torch
    from .archive import (
        is_memmap_archive,
        load_archive,
        memmap_like,
        pack_memmap,
        refresh_archive_checksums,
        save_archive,
        unpack_memmap,
        verify_archive,
    )
    from .cdl import (
        BlockDataset,
        CDLLoader,
        CDLSampler,
        CDLShuffle,
        DirectoryBlockDataset,
        HDF5BlockDataset,
        NumpyBlockDataset,
        TorchCDLSampler,
        ZrecordBlockDataset,
        infer_block_size,
        torch_collate,
    )
    from .dataloader import DataLoader

__version__ = _core.version

__all__ = [
    "BlockDataset",
    "CDLLoader",
    "CDLSampler",
    "CDLShuffle",
    "DICT_TIERS",
    "DataLoader",
    "Dense",
    "DirectoryBlockDataset",
    "HDF5BlockDataset",
    "Mode",
    "NumpyBlockDataset",
    "Ragged",
    "Sampler",
    "TorchCDLSampler",
    "VerifyResult",
    "ZrecordBlockDataset",
    "ZrecordError",
    "ZrecordWarning",
    "infer_block_size",
    "is_memmap_archive",
    "load_archive",
    "memmap_like",
    "open",
    "pack_memmap",
    "refresh_archive_checksums",
    "save_archive",
    "set_thread_count",
    "thread_count",
    "torch_collate",
    "train_dict",
    "trim_memory",
    "unpack_memmap",
    "verify",
    "verify_archive",
]


# What brings in threads, atexit handlers or other packages: only who uses it pays for them.
_LAZY = {"DataLoader": "dataloader"} | dict.fromkeys(
    (
        "BlockDataset",
        "CDLLoader",
        "CDLSampler",
        "CDLShuffle",
        "DirectoryBlockDataset",
        "HDF5BlockDataset",
        "NumpyBlockDataset",
        "TorchCDLSampler",
        "ZrecordBlockDataset",
        "infer_block_size",
        "torch_collate",
    ),
    "cdl",
) | dict.fromkeys(
    (
        "is_memmap_archive",
        "load_archive",
        "memmap_like",
        "pack_memmap",
        "refresh_archive_checksums",
        "save_archive",
        "unpack_memmap",
        "verify_archive",
    ),
    "archive",
)


# Not in dir(): what looks at each name there, as help() does, would import torch.
_LAZY_MODULES = ("archive", "cdl", "dataloader", "torch")


def __getattr__(name):
    from importlib import import_module

    if name in _LAZY_MODULES:
        try:
            return import_module(f".{name}", __name__)
        except ImportError as exc:  # hasattr() knows nothing of it
            raise AttributeError(f"zrecord.{name} cannot be imported: {exc}") from exc
    if name in _LAZY:
        globals()[name] = getattr(import_module(f".{_LAZY[name]}", __name__), name)
        return globals()[name]
    raise AttributeError(f"module 'zrecord' has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *__all__} - {"TYPE_CHECKING"})
