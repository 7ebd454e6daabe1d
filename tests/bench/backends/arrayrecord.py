# SPDX-License-Identifier: MIT
"""ArrayRecord: groups of one record, no read-ahead, as its own data source does."""

from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

from . import base


class File(base.Backend):
    def __init__(self, label, folder, workload, codec):
        super().__init__(label, folder, workload)
        self.codec = "uncompressed" if codec == "raw" else "zstd:3"

    def create(self):
        self.path.mkdir(parents=True)
        self.encoded = base.encode(self.workload)
        place = str(self.path / "records.array_record")
        self.writer = ArrayRecordWriter(place, f"group_size:1,{self.codec}")

    def append(self):
        write = self.writer.write
        for record in self.encoded:
            write(record)

    def finish(self):
        del self.encoded
        self.writer.close()

    def open(self):
        place = str(self.path / "records.array_record")
        self.reader = ArrayRecordReader(place, "readahead_buffer_size:0")

    def gather(self, ids):
        return base.decode(self.reader.read(ids.tolist()), self.workload)

    def close(self):
        self.reader.close()
