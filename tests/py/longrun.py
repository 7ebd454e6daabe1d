#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Epochs of a mixed loader that is disturbed all the time: nothing lost, nothing left, memory flat.

    .venv/bin/python tests/py/longrun.py [--epochs 24] [--records 40000] [--seed 1]

Four streams (Dense raw and zstd, Ragged as lists and packed) go through one loader with transforms
out of order.  At random steps a transform fails, a record turns out damaged, a stream is closed
underneath, the consumer walks away, closes the loader or goes on in a fresh one, each time from
the state_dict() before.  Every batch must come exactly once and be right; memory, threads and open
files at the end are those after the first epochs.  test_longrun.py runs a short form.
"""

import argparse
import gc
import os
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import zrecord
from zrecord import Dense, Ragged

BATCH = 64
FLAT_NBYTES = 12 << 20
EVENTS = ("transform", "damage", "closed stream", "walk away", "close", "exit block")


class Injected(Exception):
    """A transform's own failure."""


def write(folder, count):
    ids = np.arange(count)
    with Dense.create(folder / "raw", "i4", (64,), "raw") as store:
        store.append((ids[:, None] + np.arange(64)).astype("i4"))
    with Dense.create(folder / "zstd", "i8", (16,)) as store:
        store.append(np.repeat(ids, 16).reshape(-1, 16))
    for name in ("list", "packed"):
        with Ragged.create(folder / name, "i2") as store:
            store.append([np.full(i % 9 + 1, i % 30000, "i2") for i in range(count)])
    # The same records, but that some cannot be decoded.
    with Dense.create(folder / "damaged", "i8", (16,)) as store:
        store.append(np.repeat(ids, 16).reshape(-1, 16))
    with open(folder / "damaged" / "data.zr", "r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 200)


def opened(folder, damaged=False):
    names = {"raw": "raw", "zstd": "damaged" if damaged else "zstd", "list": "list", "packed": "packed"}
    return {name: zrecord.open(folder / place) for name, place in names.items()}


def look(batch):
    """The ids of a batch, if all four streams are right."""
    ids = batch["raw"][:, 0].astype(np.int64)
    assert (batch["raw"] == ids[:, None] + np.arange(64)).all()
    assert (batch["zstd"] == ids[:, None]).all()
    values, offsets, shapes = batch["packed"]
    assert (shapes[:, 0] == ids % 9 + 1).all() and (np.diff(offsets) == ids % 9 + 1).all()
    assert (values == np.repeat(ids % 30000, ids % 9 + 1)).all()
    assert all(len(r) == i % 9 + 1 and (r == i % 30000).all() for i, r in zip(ids, batch["list"]))
    return ids


def anonymous_nbytes():
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no Anonymous line in smaps_rollup")


def thread_names():
    """Of all threads; the engine's pool is called zrecord, and stays."""
    names = [thread.name for thread in threading.enumerate()]
    for path in Path("/proc/self/task").glob("*/comm"):
        try:
            names.append(path.read_text().strip())
        except OSError:  # it has just ended
            pass
    return names


def left_over():
    """What must not grow: bytes, Python threads, all threads, open files."""
    deadline = time.monotonic() + 10
    while gc.collect() or any(name.startswith("zrecord-") for name in thread_names()):
        if time.monotonic() > deadline:
            raise AssertionError(f"threads left: {thread_names()}")
        time.sleep(0.01)
    zrecord.trim_memory(0)
    tasks, files = (len(os.listdir(f"/proc/self/{name}")) for name in ("task", "fd"))
    return {"nbytes": anonymous_nbytes(), "threads": tasks, "files": files}


class Run:
    def __init__(self, folder, count, seed):
        self.folder, self.count, self.random = folder, count, random.Random(seed)
        self.state = None
        self.given = set()  # steps of this epoch and the one before
        self.events = dict.fromkeys(EVENTS, 0)

    def part(self, stop):
        """One loader, for some batches or to the step `stop`; ends in one of the events."""
        event = self.random.choice(EVENTS)
        wanted = self.random.randrange(1, 40)
        streams = opened(self.folder, damaged=event == "damage")
        fuse = [wanted if event == "transform" else -1]

        def transform(batch):
            fuse[0] -= 1
            if fuse[0] == 0:
                raise Injected
            time.sleep(self.random.random() * 2e-4)
            return look(batch)

        loader = zrecord.DataLoader(
            streams, self.random.randrange(1, 5), BATCH, self.random.randrange(1, 6), 2, 7,
            transform, packed=["packed"], ordered=self.random.random() < 0.3,
        )  # fmt: skip
        if self.state:
            loader.load_state_dict(self.state)
        try:
            for ids in loader:
                self.count_batch(ids, loader)
                wanted -= 1
                if self.state["step"] >= stop or (wanted < 0 and event not in ("transform", "damage")):
                    if event != "closed stream":
                        break
                    streams["raw"].close()
        except Injected:
            assert event == "transform"
        except zrecord.ZrecordError as error:
            assert event == "damage" and "[stream 'zstd', step " in str(error), error
        except RuntimeError as error:
            assert event == "closed stream" and "closed" in str(error), error
        self.events[event] += 1
        self.end(loader, streams, event)

    def end(self, loader, streams, event):
        if event == "exit block":
            with loader:
                pass
        elif event != "walk away":
            loader.close()
        del loader
        for store in streams.values():
            store.close()

    def count_batch(self, ids, loader):
        state = loader.state_dict()
        before = {"step": 0, "ahead": []} if self.state is None else self.state
        now = set(range(before["step"], state["step"])) | set(state["ahead"])
        (step,) = now - set(before["ahead"])
        assert step not in self.given, f"step {step} twice"
        assert (np.sort(ids) == np.sort(self.expected(step))).all(), f"step {step} is another"
        self.given.add(step)
        self.state = state

    def expected(self, step):
        sampler = zrecord.Sampler(self.count, BATCH, 2, 7)
        sampler.seek(step)
        return sampler.next().astype(np.int64)

    def epoch(self, number):
        steps = self.count // BATCH
        while (self.state or {"step": 0})["step"] < (number + 1) * steps:
            self.part((number + 1) * steps)
        missing = set(range(number * steps, (number + 1) * steps)) - self.given
        assert not missing, f"steps lost: {sorted(missing)}"
        self.given = {step for step in self.given if step >= number * steps}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--records", type=int, default=40000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), options.records)
        run = Run(Path(folder), options.records, options.seed)
        settled = None
        for number in range(options.epochs):
            run.epoch(number)
            now = left_over()
            print(f"epoch {number}: {now['nbytes'] / (1 << 20):.1f} MiB, {now['threads']} threads, "
                  f"{now['files']} files, {sum(run.events.values())} disturbances", flush=True)  # fmt: skip
            if number < max(1, options.epochs // 6):
                settled = now
                continue
            assert now["nbytes"] <= settled["nbytes"] + FLAT_NBYTES, (settled, now)
            assert now["threads"] <= settled["threads"] + 1 and now["files"] <= settled["files"]
        print(f"{options.epochs} epochs, every batch once; {run.events}")
        assert all(run.events.values()) or options.epochs < 6
    return 0


if __name__ == "__main__":
    sys.exit(main())
