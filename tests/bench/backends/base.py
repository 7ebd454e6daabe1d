# SPDX-License-Identifier: MIT
"""What the suite asks of a way to store records."""

import time
from pathlib import Path

import numpy as np


class Missing(Exception):
    """A backend cannot be used here; the text says why."""


class Backend:
    """One way to store the records of a workload: write them once, read any of them back.

    The order of calls is create, append (the only timed part of writing), finish, open, then
    gather any number of times, close; open may follow again.  Everything that the seed's
    methodology leaves out of the clock, such as encoding a record to bytes or publishing, belongs
    into the others.
    """

    geometries = ("dense", "ragged")
    reads = None  # the name of the backend whose files this one reads, where it writes none itself
    limit = False  # a bare program and no peer

    def __init__(self, label, folder, workload):
        self.name = label
        self.workload = workload
        self.path = Path(folder) / (self.reads or label).replace(" ", "_")

    # ------------------------------------------------------------ writing

    def create(self):
        """Everything before the first record."""

    def append(self):
        """Hand over all records.  Timed."""
        raise NotImplementedError

    def finish(self):
        """Everything after the last record."""

    # ------------------------------------------------------------ reading

    def open(self):
        raise NotImplementedError

    def gather(self, ids):
        """The records of these ids, in that order.  Timed."""
        raise NotImplementedError

    def close(self):
        """Let go of the files, mappings too."""

    def answer(self, ids):
        """The gathered records in a form that can be compared."""
        return self.gather(ids)

    def time(self, plans):
        """Seconds that each plan takes; its answer is dropped outside the clock."""
        seconds = []
        for ids in plans:
            start = time.perf_counter()
            answer = self.gather(ids)
            seconds.append(time.perf_counter() - start)
            del answer
        return seconds


# ---------------------------------------------------------------- what byte stores share


def encode(workload):
    """Each record as bytes: Dense its values; Ragged its dims, int64 each, before them."""
    if not workload.ragged:
        return [record.tobytes() for record in workload.records]
    return [np.array(r.shape, np.int64).tobytes() + r.tobytes() for r in workload.records]


def stack(parts, workload):
    """Bytes of Dense records as one writable array, with one copy."""
    joined = bytearray().join(parts)
    return np.frombuffer(joined, workload.dtype).reshape(-1, *workload.records.shape[1:])


def split(parts, workload):
    """Bytes of Ragged records as a list of arrays of their own."""
    ndim, dtype = workload.ndim, workload.dtype
    records = []
    for part in parts:
        shape = np.frombuffer(part, np.int64, ndim)
        records.append(np.frombuffer(bytearray(part), dtype, offset=8 * ndim).reshape(shape))
    return records


def decode(parts, workload):
    return (split if workload.ragged else stack)(parts, workload)


def groups(ids, size):
    """For stores that read whole groups: each group once, with places in the answer and rows."""
    order = np.argsort(ids, kind="stable")
    numbers, rows = np.divmod(ids[order], size)
    cuts = np.flatnonzero(np.diff(numbers)) + 1
    for places, inside in zip(np.split(order, cuts), np.split(rows, cuts)):
        yield int(ids[places[0]] // size), places, inside
