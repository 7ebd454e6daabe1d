# SPDX-License-Identifier: MIT
"""Arrow IPC files: record batches of 256, mapped.

Dense is the fixed-shape tensor type, Ragged a list of values beside its dims.  Without a codec
the batches are views of the mapping, made once at open; with zstd a batch is decoded whole, once
for each gather that wants something of it.
"""

import numpy as np
import pyarrow as pa

from . import base

ROWS = 256


def ragged_columns(records, ndim):
    """Values as a list column, and the dims of each record."""
    values = pa.array(np.concatenate([r.reshape(-1) for r in records]))
    offsets = np.cumsum([0] + [r.size for r in records]).astype(np.int32)
    shapes = pa.array(np.array([r.shape for r in records], np.int64).reshape(-1))
    return (
        pa.ListArray.from_arrays(pa.array(offsets), values),
        pa.FixedSizeListArray.from_arrays(shapes, ndim),
    )


class File(base.Backend):
    def __init__(self, label, folder, workload, codec):
        super().__init__(label, folder, workload)
        self.codec = codec
        w = workload
        if w.ragged:
            fields = [("values", pa.list_(pa.from_numpy_dtype(w.dtype)))]
            fields.append(("shape", pa.list_(pa.int64(), w.ndim)))
        else:
            kind = pa.fixed_shape_tensor(pa.from_numpy_dtype(w.dtype), w.records.shape[1:])
            fields = [("values", kind)]
        self.schema = pa.schema(fields)

    def create(self):
        self.path.mkdir(parents=True)
        options = pa.ipc.IpcWriteOptions(compression=None if self.codec == "raw" else self.codec)
        place = str(self.path / "records.arrow")
        self.writer = pa.ipc.new_file(place, self.schema, options=options)

    def append(self):
        w = self.workload
        for start in range(0, len(w), ROWS):
            part = w.records[start : start + ROWS]
            if w.ragged:
                columns = list(ragged_columns(part, w.ndim))
            else:
                columns = [pa.FixedShapeTensorArray.from_numpy_ndarray(part)]
            self.writer.write_batch(pa.record_batch(columns, schema=self.schema))

    def finish(self):
        self.writer.close()
        del self.writer

    def open(self):
        self.map = pa.memory_map(str(self.path / "records.arrow"))
        self.reader = pa.ipc.open_file(self.map)
        self.views = None
        if self.codec == "raw":
            self.views = [self.view(i) for i in range(self.reader.num_record_batches)]

    def view(self, number):
        """A record batch as NumPy arrays."""
        batch = self.reader.get_batch(number)
        if not self.workload.ragged:
            return batch.column(0).to_numpy_ndarray()
        values, shapes = batch.column(0), batch.column(1)
        dims = shapes.flatten().to_numpy().reshape(-1, self.workload.ndim).tolist()
        return values.values.to_numpy(), values.offsets.to_numpy().tolist(), dims

    def gather(self, ids):
        views = self.views
        found = (
            (views[g] if views else self.view(g), at, rows)
            for g, at, rows in base.groups(ids, ROWS)
        )
        return (self.pick_lists if self.workload.ragged else self.pick_rows)(found, len(ids))

    def pick_rows(self, found, count):
        out = np.empty((count, *self.workload.records.shape[1:]), self.workload.dtype)
        for view, places, rows in found:
            for place, row in zip(places.tolist(), rows.tolist()):
                out[place] = view[row]
        return out

    def pick_lists(self, found, count):
        out = [None] * count
        for (values, offsets, dims), places, rows in found:
            for place, row in zip(places.tolist(), rows.tolist()):
                part = values[offsets[row] : offsets[row + 1]]
                out[place] = part.reshape(dims[row]).copy()
        return out

    def close(self):
        del self.views, self.reader
        self.map.close()
