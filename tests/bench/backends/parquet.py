# SPDX-License-Identifier: MIT
"""Parquet: row groups of 256 records, no dictionary or statistics, which would only cost here.

A row group is the least that can be read; each one that a gather touches is read once for it.
"""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from . import base

ROWS = 256


class File(base.Backend):
    def __init__(self, label, folder, workload, codec):
        super().__init__(label, folder, workload)
        self.codec = codec
        fields = [("values", pa.binary() if workload.ragged else pa.binary(self.row_nbytes))]
        if workload.ragged:
            fields += [(f"dim{axis}", pa.int64()) for axis in range(workload.ndim)]
        self.schema = pa.schema(fields)

    @property
    def row_nbytes(self):
        return self.workload.records[0].nbytes

    def create(self):
        self.path.mkdir(parents=True)
        self.writer = pq.ParquetWriter(
            self.path / "records.parquet",
            self.schema,
            compression="none" if self.codec == "raw" else self.codec,
            use_dictionary=False,
            write_statistics=False,
        )

    def append(self):
        w = self.workload
        for start in range(0, len(w), ROWS):
            part = w.records[start : start + ROWS]
            columns = self.ragged(part) if w.ragged else self.dense(part)
            table = pa.table(columns, schema=self.schema)
            self.writer.write_table(table, row_group_size=ROWS)

    def dense(self, part):
        buffers = [None, pa.py_buffer(np.ascontiguousarray(part))]
        return [pa.Array.from_buffers(self.schema.field(0).type, len(part), buffers)]

    def ragged(self, part):
        payload = np.concatenate([r.reshape(-1) for r in part])
        offsets = np.cumsum([0] + [r.nbytes for r in part]).astype(np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(payload)]
        dims = np.array([r.shape for r in part], np.int64)
        values = pa.Array.from_buffers(pa.binary(), len(part), buffers)
        return [values, *(pa.array(np.ascontiguousarray(axis)) for axis in dims.T)]

    def finish(self):
        self.writer.close()
        del self.writer

    def open(self):
        place = self.path / "records.parquet"
        self.file = pq.ParquetFile(place, memory_map=True, pre_buffer=False)

    def gather(self, ids):
        w = self.workload
        out = [None] * len(ids)
        if not w.ragged:
            out = np.empty((len(ids), self.row_nbytes), np.uint8)
        for number, places, rows in base.groups(ids, ROWS):
            table = self.file.read_row_group(number)
            column = table.column(0).combine_chunks()
            if w.ragged:
                self.pick_lists(table, column, places, rows, out)
            else:
                values = np.frombuffer(column.buffers()[1], np.uint8)
                values = values.reshape(-1, self.row_nbytes)[column.offset :]
                out[places] = values[rows]
        return out if w.ragged else out.view(w.dtype).reshape(-1, *w.records.shape[1:])

    def pick_lists(self, table, column, places, rows, out):
        w = self.workload
        _, offsets, values = column.buffers()
        offsets = np.frombuffer(offsets, np.int32)[column.offset :]
        values = np.frombuffer(values, np.uint8)
        dims = np.stack([table.column(1 + a).to_numpy() for a in range(w.ndim)], axis=1)
        for place, row in zip(places.tolist(), rows.tolist()):
            payload = values[offsets[row] : offsets[row + 1]].copy()
            out[place] = payload.view(w.dtype).reshape(dims[row])

    def close(self):
        self.file.close()
