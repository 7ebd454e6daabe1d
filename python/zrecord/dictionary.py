# SPDX-License-Identifier: MIT
"""Training of zstd dictionaries, which many small, similar records share."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from . import _core
from .store import Dense, Ragged

__all__ = ["DICT_TIERS", "train_dict"]

DICT_TIERS = {
    "fast": {"size": 32 << 10, "samples": 4 << 20},
    "balanced": {"size": 128 << 10, "samples": 16 << 20},
    "max": {"size": 1 << 20, "samples": 64 << 20},
}


def _array_samples(array, budget):
    """Rows at a stride over the whole array, and the size of each."""
    if array.ndim == 0 or len(array) == 0:
        raise ValueError("a dictionary needs at least one record to train on")
    row_nbytes = array.nbytes // len(array)
    count = max(1, min(len(array), budget // max(row_nbytes, 1)))
    rows = np.unique(np.linspace(0, len(array) - 1, count).astype(np.intp))
    return np.ascontiguousarray(array[rows]), np.full(len(rows), row_nbytes, np.uintp)


def _iterable_samples(records, budget):
    """Records from the front until the budget is used up."""
    samples, sizes = bytearray(), []
    for record in records:
        if not isinstance(record, (bytes, bytearray)):
            record = np.asarray(record).tobytes()
        samples += record
        sizes.append(len(record))
        if len(samples) >= budget:
            break
    if not sizes:
        raise ValueError("a dictionary needs at least one record to train on")
    return samples, np.array(sizes, np.uintp)


def _train(source, tier):
    preset = DICT_TIERS[tier]
    if isinstance(source, (Dense, Ragged)):
        if source._writable:
            raise ValueError(
                "a dictionary is trained on a store opened for reading, not on a writer"
            )
        if len(source) == 0:
            raise ValueError("a dictionary needs at least one record to train on")
        return _core.train_store(source, tier)
    if isinstance(source, np.ndarray):
        samples, sizes = _array_samples(source, preset["samples"])
        samples = samples.reshape(-1).view(np.uint8)
    else:
        samples, sizes = _iterable_samples(source, preset["samples"])
    return _core.train_samples(samples, sizes, preset["size"])


def train_dict(
    source: np.ndarray[Any, Any] | Dense | Ragged | Iterable[Any],
    tier: str | None = None,
    path: str | os.PathLike[str] | None = None,
) -> bytes:
    """Train a dictionary for ``codec='zstd_dict'``.

    Parameters
    ----------
    source : numpy.ndarray, Dense, Ragged or iterable
        The settled data: rows of an array or records of a store, taken at a stride over all of
        it; or an iterable of arrays or bytes, taken from its front.
    tier : {'balanced', 'fast', 'max'}, optional
        Sizes of dictionary and sample, see `DICT_TIERS`.
    path : path-like, optional
        Also write the dictionary to this file.

    Returns
    -------
    bytes
        What ``dict_bytes=`` of ``create`` takes, for any number of stores.

    Raises
    ------
    ValueError
        The tier is unknown, or there is no record.
    ZrecordError
        The samples are too few or too small.
    """
    tier = "balanced" if tier is None else tier
    if tier not in DICT_TIERS:
        raise ValueError(f"unknown tier {tier!r}, expected one of {sorted(DICT_TIERS)}")
    result = _train(source, tier)
    if path is not None:
        Path(path).write_bytes(result)
    return result
