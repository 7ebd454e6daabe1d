# SPDX-License-Identifier: MIT
"""A mapped .npy: one array for Dense; values, offsets and shapes for Ragged."""

import numpy as np

from .base import Backend


class Mapped(Backend):
    def create(self):
        w = self.workload
        self.path.mkdir(parents=True)
        shape = (sum(r.size for r in w.records),) if w.ragged else w.records.shape
        self.target = np.lib.format.open_memmap(self.path / "values.npy", "w+", w.dtype, shape)

    def append(self):
        if self.workload.ragged:
            np.concatenate([r.reshape(-1) for r in self.workload.records], out=self.target)
        else:
            self.target[:] = self.workload.records

    def finish(self):
        del self.target
        if self.workload.ragged:
            records = self.workload.records
            np.save(self.path / "offsets.npy", np.cumsum([0] + [r.size for r in records]))
            np.save(self.path / "shapes.npy", np.array([r.shape for r in records]))

    def open(self):
        # A plain array over the mapping: slices of a memmap object cost more.
        self.values = np.asarray(np.load(self.path / "values.npy", mmap_mode="r"))
        if self.workload.ragged:
            self.offsets = np.load(self.path / "offsets.npy").tolist()
            self.shapes = np.load(self.path / "shapes.npy").tolist()

    def gather(self, ids):
        if not self.workload.ragged:
            return self.values[ids]
        values, offsets, shapes = self.values, self.offsets, self.shapes
        return [values[offsets[i] : offsets[i + 1]].reshape(shapes[i]).copy() for i in ids.tolist()]

    def close(self):
        del self.values
