# SPDX-License-Identifier: MIT
"""The bare programs of limit_worker.c as rows of their own: what nobody can beat on this machine.

They read the stores that zrecord wrote, without a check, into memory that is never given back;
the process answers requests on its standard input (limit_worker.c describes them).
"""

import os
import struct
import subprocess
from pathlib import Path

import numpy as np

from .base import Backend, Missing

REPO = Path(__file__).resolve().parents[3]
BUILD = Path(os.environ.get("ZRECORD_BUILD", REPO / "build"))
TIME, SHOW = 0, 1


def program():
    found = BUILD / "bench" / "limit_worker"
    if not found.exists():
        raise Missing(f"{found.name} is not built")
    return str(found)


class Bare(Backend):
    """Gathers of a zrecord store by one bare program with so many threads."""

    limit = True

    def __init__(self, label, folder, workload, reads, threads, level=None):
        self.reads = reads
        super().__init__(label, folder, workload)
        self.threads, self.level = threads, level
        self.program = program()

    def open(self):
        self.start("gather", self.workload.geometry)

    def start(self, *arguments):
        command = [self.program, arguments[0], str(self.path), *map(str, arguments[1:])]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe)

    def ask(self, op, plans):
        ids = np.ascontiguousarray(plans, np.uint64)
        header = struct.pack("4I", op, *ids.shape, self.threads)
        self.process.stdin.write(header + ids.tobytes())
        self.process.stdin.flush()

    def reply(self, nbytes):
        got = self.process.stdout.read(nbytes)
        if len(got) != nbytes:
            raise RuntimeError(f"{self.name}: limit_worker ended with {self.process.wait()}")
        return got

    def time(self, plans):
        self.ask(TIME, plans)
        return np.frombuffer(self.reply(8 * len(plans))).tolist()

    def answer(self, ids):
        """The payloads it gathered; their shapes are not its business."""
        w = self.workload
        self.ask(SHOW, ids[None])
        values = np.frombuffer(self.reply(struct.unpack("Q", self.reply(8))[0]), w.dtype)
        if not w.ragged:
            return values.reshape(-1, *w.records.shape[1:])
        expected = [w.records[i] for i in ids]
        offsets = np.cumsum([0] + [record.size for record in expected])
        return values, offsets, [record.shape for record in expected]

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        if self.process.wait():
            raise RuntimeError(f"{self.name}: limit_worker failed")

    def written(self, raw_store, target):
        """Seconds for the bare counterpart of an append: write, or encode with all threads."""
        command = [self.program, "append", str(raw_store), str(target)]
        if self.level is not None:
            command[1] = "encode"
            command += [str(self.threads), str(self.level)]
            if "dict" in self.reads:
                command.append(str(self.path))
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        Path(target).unlink()
        return float(done.stdout)


class Cold(Bare):
    """A raw store with nothing mapped: all reads of a batch queued through io_uring."""

    def open(self):
        prefix = 8 + 8 * self.workload.ndim if self.workload.ragged else 0
        room = 2 * self.workload.batch * max(r.nbytes for r in self.workload.records[:4096])
        self.start("cold", prefix, room + (1 << 20))
