# SPDX-License-Identifier: MIT
"""The loaders that the DataLoader tables compare, each as it is meant to be used.

A peer is opened once in a process of its own (loader_child.py).  `start` begins a run and gives
something with `next()` and `close()`; `values` is what it holds of the one stream: an array
(n, ...), a list of arrays, or a packed tuple.  Random order without replacement where the loader
has that, batches of 256, workers and prefetch as the package sets them.
"""

import ctypes
import importlib
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np

BATCH = 256
PLACES = ("zrecord-raw", "zrecord-zstd")  # stores under a workload's folder


def drop_name(batch):
    return batch["x"]


class Peer:
    def __init__(self, folder, argument):
        self.folder = Path(folder)
        self.open(argument)

    def store(self, codec):
        return self.folder / f"zrecord-{codec}"


class Zrecord(Peer):
    """DataLoader of this package; the argument is codec, then options."""

    def open(self, argument):
        import zrecord

        codec, *options = argument.split()
        self.package = zrecord
        self.x = zrecord.open(self.store(codec))
        self.options = {name: True for name in options}

    def start(self, transform=None):
        options = dict(self.options)
        if transform:
            options["transform"] = lambda batch: {"x": transform(batch["x"])}
        return self.package.DataLoader({"x": self.x}, batch_size=BATCH, **options)

    values = staticmethod(drop_name)


class Gather(Peer):
    """The engine's gather in a plain loop: what a loader that costs nothing would give."""

    def open(self, argument):
        import zrecord

        codec, *options = argument.split()
        self.x = zrecord.open(self.store(codec))
        self.sampler = zrecord.Sampler(len(self.x), BATCH, zrecord.Mode.CYCLIC)
        self.gather = self.x.packed if options == ["packed"] else self.x.gather

    def start(self, transform=None):
        return self

    def __next__(self):
        return self.gather(self.sampler.next())

    def close(self):
        pass

    values = staticmethod(lambda batch: batch)


class Bare(Peer):
    """limit_worker.c, two threads that copy or decode the same batches: no check, no Python.

    Its consumer does not look at the records; a run of the check asks to be shown them.
    """

    TIME, SHOW, THREADS = 0, 1, 2

    def open(self, codec):
        import zrecord
        from backends.limit import program

        with zrecord.open(self.store(codec)) as x:
            self.shape, self.dtype, length = (BATCH, *x.item_shape), x.dtype, len(x)
        self.sampler = zrecord.Sampler(length, BATCH, zrecord.Mode.CYCLIC)
        command = [program(), "gather", str(self.store(codec)), "dense"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def start(self, transform=None, shown=False):
        self.shown = shown
        return self

    def __next__(self):
        request = struct.pack("4I", self.SHOW if self.shown else self.TIME, 1, BATCH, self.THREADS)
        self.process.stdin.write(request + self.sampler.next().tobytes())
        self.process.stdin.flush()
        answer = self.process.stdout.read(8)
        if not self.shown:
            return np.zeros((1, 1))
        nbytes = struct.unpack("Q", answer)[0]
        return np.frombuffer(self.process.stdout.read(nbytes), self.dtype).reshape(self.shape)

    def close(self):
        pass  # the process ends with its input

    values = staticmethod(lambda batch: batch)


class Loaderx2(Peer):
    """loaderx 2.0.0, which reads this package's stores."""

    def open(self, codec):
        place = Path(os.environ["ZRECORD_REF_LOADERX"])
        # Its threads may outlive its library at exit, and crash then: keep that loaded.
        ctypes.CDLL(str(place / "loaderx" / "lib" / "libstore.so"))
        sys.path.insert(0, str(place))
        stores = importlib.import_module("loaderx.zrecord")
        self.loader = importlib.import_module("loaderx.dataloader").DataLoader
        kind = stores.Ragged if "Ragged" in self.folder.name else stores.Dense
        self.x = kind.open(self.store(codec))

    def start(self, transform=None):
        if not transform:
            return self.loader({"x": self.x}, batch_size=BATCH)
        return self.loader(
            {"x": self.x}, batch_size=BATCH, transform=lambda b: {"x": transform(b["x"])}
        )

    values = staticmethod(drop_name)


class LoaderxNew(Peer):
    """The newest loaderx that installs here, on stores that it wrote (its layout is another)."""

    def open(self, codec):
        stores = importlib.import_module("loaderx.zrecord")
        self.loader = importlib.import_module("loaderx.dataloader").Loader
        self.sampler = importlib.import_module("loaderx.sampler").Sampler
        kind = stores.Ragged if "Ragged" in self.folder.name else stores.Dense
        self.x = kind.open(self.folder / f"loaderx-{codec}")

    def start(self, transform=None):
        options = {}
        if transform:
            options["transform"] = lambda shards: [{"x": transform(np.from_dlpack(s["x"]))}
                                                   for s in shards]  # fmt: skip
        return self.loader({"x": [self.x]}, self.sampler(len(self.x), BATCH, 2), **options)

    @staticmethod
    def values(shards):
        x = shards[0]["x"]
        if hasattr(x, "cu_seqlens"):
            return tuple(map(np.from_dlpack, (x.values, x.cu_seqlens, x.shapes)))
        return np.from_dlpack(x)


class Mapped:
    """Rows of a mapped .npy; as a list of samples, as torch's own examples do it."""

    def __init__(self, path):
        self.path, self.rows = path, np.load(path, mmap_mode="r")

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return np.array(self.rows[i])


class MappedBatches(Mapped):
    """The same with a whole batch at once."""

    def __getitems__(self, ids):
        return self.rows[ids]


class Torch(Peer):
    """torch.utils.data.DataLoader over a mapped .npy; the argument is workers, then a method."""

    def open(self, argument):
        self.torch = importlib.import_module("torch")
        data = importlib.import_module("torch.utils.data")
        workers, *options = argument.split()
        whole = "batched" in options
        self.loader = data.DataLoader(
            (MappedBatches if whole else Mapped)(self.folder / "records.npy"),
            batch_size=BATCH,
            shuffle=True,
            num_workers=int(workers),
            drop_last=True,
            persistent_workers=int(workers) > 0,
            collate_fn=self.torch.from_numpy if whole else None,
            multiprocessing_context="spawn" if "spawn" in options else None,
        )

    def start(self, transform=None):
        return Epochs(self.loader)

    values = staticmethod(lambda batch: batch.numpy())


class Epochs:
    """One finite epoch after the other."""

    def __init__(self, loader):
        self.loader, self.steps = loader, iter(())

    def __next__(self):
        try:
            return next(self.steps)
        except StopIteration:
            self.steps = iter(self.loader)
            return next(self.steps)

    def close(self):
        pass  # its workers are persistent, as its users keep them


class Grain(Peer):
    """grain over ArrayRecord: its threads, or worker processes for an argument above 0."""

    def open(self, argument):
        import grain

        codec, *options = argument.split()
        workers = int(options[0]) if options else 0
        kind, shape = np.load(self.folder / "schema.npy", allow_pickle=False), None
        record = np.zeros(1, kind.dtype)[0]
        shape, dtype = kind.shape, record.dtype
        path = str(self.folder / f"{codec}.array_record")
        source = grain.sources.ArrayRecordDataSource([path])
        steps = (
            grain.MapDataset.source(source)
            .shuffle(seed=42)
            .repeat()
            .map(lambda record: np.frombuffer(record, dtype).reshape(shape))
            .batch(BATCH, drop_remainder=True)
        )
        self.steps = steps.to_iter_dataset()
        if workers:
            self.steps = self.steps.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))

    def start(self, transform=None):
        steps = iter(self.steps)
        return steps if hasattr(steps, "close") else Closing(steps)

    values = staticmethod(np.asarray)


class Closing:
    def __init__(self, steps):
        self.steps = steps

    def __next__(self):
        return next(self.steps)

    def close(self):
        self.steps = None


KINDS = {
    "zrecord": Zrecord,
    "gather": Gather,
    "bare": Bare,
    "loaderx-2.0.0": Loaderx2,
    "loaderx-new": LoaderxNew,
    "torch": Torch,
    "grain": Grain,
}


def make(kind, folder, argument):
    return KINDS[kind](folder, argument)
