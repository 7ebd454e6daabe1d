# SPDX-License-Identifier: MIT
"""loaderx: the reference 2.0.0, and the newest that installs, in one process.

Both are called `loaderx`.  The reference lives in a folder of its own; it is imported from there
and then taken out of sys.modules again, which it bears because it imports nothing later.
"""

import ctypes
import importlib
import os
import sys
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from .base import Backend, Missing
from .zrecord import dictionary

REPO = Path(__file__).resolve().parents[3]
PLACES = (Path(sys.prefix) / "ref" / "loaderx-2.0.0", REPO / ".venv" / "ref" / "loaderx-2.0.0")


def _taken_out():
    return {
        name: sys.modules.pop(name)
        for name in list(sys.modules)
        if name == "loaderx" or name.startswith("loaderx.")
    }


@lru_cache
def reference():
    """The modules of loaderx 2.0.0 that the suite uses."""
    chosen = os.environ.get("ZRECORD_REF_LOADERX")
    for place in [Path(chosen)] if chosen else PLACES:
        if (place / "loaderx").is_dir():
            break
    else:
        raise Missing("loaderx 2.0.0 is not installed in its folder")
    # Its threads may outlive its library at exit, and crash then: keep that loaded.
    ctypes.CDLL(str(place / "loaderx" / "lib" / "libstore.so"))
    others = _taken_out()
    sys.path.insert(0, str(place))
    try:
        store = importlib.import_module("loaderx.zrecord")
        loader = importlib.import_module("loaderx.dataloader")
    finally:
        sys.path.remove(str(place))
        _taken_out()
        sys.modules.update(others)
    return SimpleNamespace(Dense=store.Dense, Ragged=store.Ragged, DataLoader=loader.DataLoader)


@lru_cache
def newest():
    """The module loaderx.zrecord of 2.8 or later; with 2.0.0 beside it, that one is not meant."""
    try:
        package = importlib.import_module("loaderx")
        if package.__version__.startswith("2.0."):
            raise Missing(f"the installed loaderx is {package.__version__}")
        return importlib.import_module("loaderx.zrecord")
    except ImportError as error:
        raise Missing(str(error)) from None


class Reference(Backend):
    """loaderx 2.0.0."""

    def __init__(self, label, folder, workload, codec):
        super().__init__(label, folder, workload)
        self.codec = codec
        self.package = reference()

    def create(self):
        w = self.workload
        dict_bytes = dictionary(w) if self.codec == "zstd_dict" else None
        if w.ragged:
            self.writer = self.package.Ragged.create(
                self.path, w.dtype, codec=self.codec, dict_bytes=dict_bytes
            )
        else:
            self.writer = self.package.Dense.create(
                self.path, w.dtype, w.records.shape[1:], codec=self.codec, dict_bytes=dict_bytes
            )

    def append(self):
        self.writer.append(self.workload.records)

    def finish(self):
        self.writer.close()
        del self.writer

    def open(self):
        kind = self.package.Ragged if self.workload.ragged else self.package.Dense
        self.store = kind.open(self.path)

    def gather(self, ids):
        return self.store[ids]

    def close(self):
        self.store.close()


class Newest(Backend):
    """loaderx 2.8: Dense as a tensor, Ragged in its packed form, which is the only one it has."""

    def __init__(self, label, folder, workload, codec):
        super().__init__(label, folder, workload)
        self.codec = codec
        self.package = newest()

    def create(self):
        w = self.workload
        options = {"codec": self.codec}
        if self.codec == "zstd_dict":
            options["dict_bytes"] = dictionary(w)
        if w.ragged:
            self.writer = self.package.Ragged.create(self.path, w.dtype, w.ndim, **options)
            self.payload = self.package.RaggedBatch.from_records(w.records)
        else:
            shape = w.records.shape[1:]
            self.writer = self.package.Dense.create(self.path, w.dtype, shape, **options)
            self.payload = w.records

    def append(self):
        self.writer.append(self.payload)

    def finish(self):
        self.writer.close()
        del self.writer, self.payload

    def open(self):
        kind = self.package.Ragged if self.workload.ragged else self.package.Dense
        self.store = kind.open(self.path)

    def gather(self, ids):
        batch = self.store[ids]
        if not self.workload.ragged:
            return np.from_dlpack(batch)
        fields = (batch.values, batch.cu_seqlens, batch.shapes)
        return tuple(map(np.from_dlpack, fields))

    def close(self):
        self.store.close()
