# SPDX-License-Identifier: MIT
"""This package's stores."""

import zrecord

from .base import Backend


def dictionary(workload):
    """One dictionary of the records for everybody that takes one; trained outside the clock."""
    if "dictionary" not in workload.facts:
        workload.facts["dictionary"] = zrecord.train_dict(workload.records)
    return workload.facts["dictionary"]


class Store(Backend):
    """A store of any codec and tune; a Ragged gather gives a list of arrays."""

    def __init__(self, label, folder, workload, codec, **options):
        super().__init__(label, folder, workload)
        self.codec, self.options = codec, options

    def create(self):
        w = self.workload
        options = {"codec": self.codec, "durability": "none", **self.options}
        if self.codec == "zstd_dict":
            options["dict_bytes"] = dictionary(w)
        if w.ragged:
            self.writer = zrecord.Ragged.create(self.path, w.dtype, **options)
        else:
            self.writer = zrecord.Dense.create(self.path, w.dtype, w.records.shape[1:], **options)

    def append(self):
        self.writer.append(self.workload.records)

    def finish(self):
        self.writer.close()
        del self.writer

    def open(self):
        self.store = zrecord.open(self.path)

    def gather(self, ids):
        return self.store[ids]

    def close(self):
        self.store.close()


class Packed(Store):
    """The packed form of a Ragged gather: values, offsets and shapes, no object a record."""

    geometries = ("ragged",)

    def __init__(self, label, folder, workload, reads):
        self.reads = reads
        super().__init__(label, folder, workload, None)

    def gather(self, ids):
        return self.store.packed(ids)

    def answer(self, ids):
        values, offsets, shapes = self.store.packed(ids)
        return values, offsets, shapes.reshape(len(ids), -1)
