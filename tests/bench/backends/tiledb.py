# SPDX-License-Identifier: MIT
"""TileDB: dense arrays; a tile, the unit of reading, is one large record or 64 KiB of small ones.

Ragged records are a variable-length attribute.  Ids are asked for sorted and once each, which is
what a query of points gives back, and put in order afterwards.
"""

import numpy as np
import tiledb

from .base import Backend

TILE_NBYTES = 64 << 10


class Array(Backend):
    def __init__(self, label, folder, workload, codec):
        super().__init__(label, folder, workload)
        self.filters = tiledb.FilterList([tiledb.ZstdFilter(3)] if codec == "zstd" else [])

    def schema(self):
        w = self.workload
        mean = w.nbytes / len(w)
        shape = (len(w), *(() if w.ragged else w.records.shape[1:]))
        tiles = (min(len(w), max(1, int(TILE_NBYTES // mean))), *shape[1:])
        dims = [
            tiledb.Dim(name=f"d{axis}", domain=(0, n - 1), tile=tile, dtype=np.int32)
            for axis, (n, tile) in enumerate(zip(shape, tiles))
        ]
        attrs = [tiledb.Attr("values", dtype=w.dtype, var=w.ragged, filters=self.filters)]
        if w.ragged:
            attrs += [tiledb.Attr(f"dim{axis}", dtype=np.int64) for axis in range(w.ndim)]
        return tiledb.ArraySchema(tiledb.Domain(*dims), attrs=attrs)

    def create(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        tiledb.Array.create(str(self.path), self.schema())
        self.array = tiledb.open(str(self.path), "w")
        self.payload = self.workload.records
        if self.workload.ragged:
            values = np.empty(len(self.workload), object)
            values[:] = [record.reshape(-1) for record in self.workload.records]
            dims = np.array([record.shape for record in self.workload.records])
            self.payload = {"values": values}
            self.payload.update({f"dim{a}": dims[:, a].copy() for a in range(dims.shape[1])})

    def append(self):
        self.array[:] = self.payload

    def finish(self):
        del self.payload
        self.array.close()

    def open(self):
        self.array = tiledb.open(str(self.path), "r")

    def gather(self, ids):
        w = self.workload
        once, back = np.unique(ids, return_inverse=True)
        found = self.array.multi_index[once.tolist()]
        values = found["values"]
        if not w.ragged:
            return values.reshape(len(once), *w.records.shape[1:])[back]
        dims = np.stack([found[f"dim{axis}"] for axis in range(w.ndim)], axis=1).tolist()
        return [values[i].reshape(dims[i]).copy() for i in back.tolist()]

    def close(self):
        self.array.close()
