# SPDX-License-Identifier: MIT
"""LMDB: big-endian ids as keys, appended in order in one transaction, read without copies."""

import lmdb

from . import base


class Environment(base.Backend):
    def create(self):
        self.path.mkdir(parents=True)
        # Pages of 4 KiB, and small values may fill them badly: room for twice that.
        room = 4 * (self.workload.nbytes + 4096 * len(self.workload)) + (64 << 20)
        self.env = lmdb.open(
            str(self.path), map_size=room, sync=False, metasync=False, writemap=True, lock=False
        )
        self.items = list(zip(self.keys(), base.encode(self.workload)))

    def keys(self):
        return [i.to_bytes(8, "big") for i in range(len(self.workload))]

    def append(self):
        with self.env.begin(write=True) as transaction:
            transaction.cursor().putmulti(self.items, append=True)

    def finish(self):
        del self.items
        self.env.close()

    def open(self):
        self.env = lmdb.open(str(self.path), readonly=True, lock=False, readahead=False)
        self.transaction = self.env.begin(buffers=True)
        self.numbers = self.keys()

    def gather(self, ids):
        numbers = self.numbers
        get = self.transaction.get
        return base.decode([get(numbers[i]) for i in ids.tolist()], self.workload)

    def close(self):
        self.transaction.abort()
        self.env.close()
