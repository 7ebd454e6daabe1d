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
    from .dataloader import DataLoader

__version__ = _core.version

__all__ = [
    "DICT_TIERS",
    "DataLoader",
    "Dense",
    "Mode",
    "Ragged",
    "Sampler",
    "VerifyResult",
    "ZrecordError",
    "ZrecordWarning",
    "open",
    "set_thread_count",
    "thread_count",
    "train_dict",
    "trim_memory",
    "verify",
]


def __getattr__(name):
    # The loader brings in threading and atexit handlers: only who uses it pays for them.
    if name == "DataLoader":
        from .dataloader import DataLoader

        globals()[name] = DataLoader
        return DataLoader
    raise AttributeError(f"module 'zrecord' has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *__all__})
