# SPDX-License-Identifier: MIT
"""HDF5 through h5py: contiguous without a codec, small chunks with gzip.

Chunks are the unit of reading, so they hold one large record, or small ones up to 16 KiB, near the
least that h5py advises.  Small records are asked for as one list of ids, sorted and without repeats
as h5py wants it; large ones one by one, which is faster for them.
"""

import h5py
import numpy as np

from .base import Backend

CHUNK_NBYTES = 16 << 10


class File(Backend):
    def __init__(self, label, folder, workload, codec):
        super().__init__(label, folder, workload)
        self.codec = codec

    def create(self):
        w = self.workload
        self.path.mkdir(parents=True)
        self.file = h5py.File(self.path / "records.h5", "w", libver="latest")
        shape = (sum(r.size for r in w.records),) if w.ragged else w.records.shape
        options = {}
        if self.codec == "gzip":
            rows = max(1, CHUNK_NBYTES // w.records[0].nbytes)
            mean = max(w.nbytes // len(w), CHUNK_NBYTES) // w.dtype.itemsize
            chunk = (min(mean, shape[0]),) if w.ragged else (rows, *shape[1:])
            options = {"compression": "gzip", "chunks": chunk}
        self.values = self.file.create_dataset("values", shape, w.dtype, **options)

    def append(self):
        w = self.workload
        self.values[...] = (
            np.concatenate([r.reshape(-1) for r in w.records]) if w.ragged else (w.records)
        )

    def finish(self):
        records = self.workload.records
        if self.workload.ragged:
            self.file["offsets"] = np.cumsum([0] + [r.size for r in records])
            self.file["shapes"] = np.array([r.shape for r in records])
        self.file.close()

    def open(self):
        self.file = h5py.File(self.path / "records.h5", "r")
        self.values = self.file["values"]
        if self.workload.ragged:
            self.offsets = self.file["offsets"][:].tolist()
            self.shapes = self.file["shapes"][:].tolist()

    def gather(self, ids):
        values = self.values
        if self.workload.ragged:
            offsets, shapes = self.offsets, self.shapes
            return [values[offsets[i] : offsets[i + 1]].reshape(shapes[i]) for i in ids.tolist()]
        if self.workload.records[0].nbytes < CHUNK_NBYTES:
            once, back = np.unique(ids, return_inverse=True)
            return values[once][back]
        out = np.empty((len(ids), *values.shape[1:]), values.dtype)
        for place, i in enumerate(ids.tolist()):
            out[place] = values[i]
        return out

    def close(self):
        self.file.close()
