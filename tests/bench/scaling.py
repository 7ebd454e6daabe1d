# SPDX-License-Identifier: MIT
"""How cost grows: with the number of records, their size, the batch, threads, and levels.

Each function gives one table: rows of plain numbers with the raw rounds.  Dense stores throughout;
peers are loaderx 2.0.0 and a mapped .npy where they have the notion.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
from collections import deque
from pathlib import Path

import backends as registry
import checks
import numpy as np
import pagecache
import plans
import rounds
import workloads
import zrecord

PEERS = ("zrecord-raw", "loaderx-2.0.0-raw", "npy-mmap-raw")


class Rates:
    """Gather rates of some backends on one workload, in interleaved rounds."""

    def __init__(self, workload, folder, settings, only):
        self.workload, self.settings = workload, settings
        self.found, self.skipped = registry.available(Path(folder), workload, only)
        self.found = [b for b in self.found if b.name in only]

    def __enter__(self):
        for backend in self.found:
            shutil.rmtree(backend.path, ignore_errors=True)
            backend.create()
            backend.append()
            backend.finish()
            backend.open()
            ids = plans.draw(1, len(self.workload), self.workload.batch, 3)[0]
            expected = self.workload.take(ids)
            checks.compare(backend.name, backend.answer(ids), expected, ids)
        return self

    def __exit__(self, *exc):
        for backend in self.found:
            backend.close()
            shutil.rmtree(backend.path, ignore_errors=True)

    def rows(self, batch, **labels):
        """Rates of all backends at one batch size."""
        s = self.settings
        share = {b.name: self.share(b, batch) for b in self.found}
        seconds = {b.name: [] for b in self.found}
        most = max(share.values(), default=0)
        for number, drawn in enumerate(
            plans.rounds(s.scaling_rounds, most, len(self.workload), batch)
        ):
            for backend in rounds.rotated(self.found, number):
                seconds[backend.name].append(backend.time(drawn[: share[backend.name]]))
        mean = self.workload.nbytes / len(self.workload)
        for backend in self.found:
            summary = rounds.summary(seconds[backend.name], batch)
            yield {
                **labels,
                "batch": batch,
                "backend": backend.name,
                **summary,
                "bytes_per_second": summary["records_per_second"] * mean,
            }

    def share(self, backend, batch):
        probe = plans.draw(2, len(self.workload), batch, 5)
        seconds = max(min(backend.time(probe)), 1e-7)
        return max(1, min(2000, int(self.settings.scaling_seconds / seconds)))


# ---------------------------------------------------------------- number of records

CHUNK = 10**6


def scalars(start, count):
    return np.arange(start, start + count, dtype=np.int64)


def build_scalars(package, path, length):
    """A store of int64 scalars, chunk by chunk."""
    with package.Dense.create(path, np.dtype(np.int64), (), codec="raw") as store:
        for start in range(0, length, CHUNK):
            store.append(scalars(start, min(CHUNK, length - start)))


def memory_nbytes():
    """Anonymous and mapped memory of this process."""
    status = Path("/proc/self/status").read_text()
    fields = {line.split(":")[0]: line.split()[1] for line in status.splitlines() if "kB" in line}
    return {"anon": int(fields["RssAnon"]) * 1024, "file": int(fields["RssFile"]) * 1024}


def child(kind, path, seconds):
    """What a fresh process pays for one store: printed as JSON for `lengths`."""
    opener = open_scalars(kind)
    before = memory_nbytes()
    opening = []
    for _ in range(20):
        held = None
        opening.append(rounds.timed(lambda: opener(path)))
    opened = memory_nbytes()
    held = opener(path)
    length = len(held)
    probe = plans.draw(1, length, workloads.BATCH, 1)[0]
    if not np.array_equal(held[probe], probe):
        raise checks.WrongAnswer(f"{kind}: another answer in {path}")
    rates, spent, seed = [], 0.0, 0
    while spent < seconds or len(rates) < 3:
        drawn = plans.draw(20, length, workloads.BATCH, (17, seed))
        spent += (block := rounds.timed(lambda: [held[ids] for ids in drawn]))
        rates.append(20 * workloads.BATCH / block)
        seed += 1
    after = memory_nbytes()
    print(
        json.dumps(
            {
                "open_seconds": statistics.median(opening),
                "open_anon_nbytes": opened["anon"] - before["anon"],
                "anon_nbytes": after["anon"] - before["anon"],
                "mapped_nbytes": after["file"] - before["file"],
                "records_per_second": statistics.median(rates),
                "low": min(rates),
                "high": max(rates),
            }
        )
    )


def open_scalars(kind):
    if kind == "zrecord":
        return zrecord.open
    if kind == "npy-mmap":
        return lambda path: np.load(path, mmap_mode="r")
    from backends import loaderx

    return loaderx.reference().Dense.open


def lengths(folder, settings):
    """10^3 to 10^8 scalars: opening, memory and gathers of 256."""
    folder = Path(folder)
    rows, skipped = [], {}
    packages = {"zrecord": zrecord}
    try:
        from backends import loaderx

        packages["loaderx-2.0.0"] = loaderx.reference()
    except registry.Missing as error:
        skipped["loaderx-2.0.0"] = str(error)
    length = 1000
    while length <= settings.largest_length:
        for name in (*packages, "npy-mmap"):
            path = folder / f"scalars-{name}"
            if name in packages:
                shutil.rmtree(path, ignore_errors=True)
                building = rounds.timed(build_scalars, packages[name], path, length)
            else:
                path = path.with_suffix(".npy")
                building = rounds.timed(np.save, path, scalars(0, length))
            done = subprocess.run(
                [sys.executable, __file__, name, str(path), str(settings.scaling_seconds)],
                check=True,
                capture_output=True,
                text=True,
            )
            row = {"records": length, "backend": name, "build_seconds": building}
            rows.append({**row, **json.loads(done.stdout)})
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        length *= 10
    return {"rows": rows, "skipped": skipped}


# ---------------------------------------------------------------- sizes, batches, threads

RECORD_SIZES = tuple(1 << bits for bits in (4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26))
BATCHES = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536)


def record_sizes(folder, settings):
    """Raw records of 16 B to 64 MiB, in batches of at most 256 and 32 MiB."""
    rows, skipped = [], {}
    for size in RECORD_SIZES:
        count = max(3, min(settings.record_nbytes // size, 10**6))
        if settings.name == "tiny" and size > settings.record_nbytes:
            break
        records = np.random.default_rng(size).integers(0, 256, (count, size), np.uint8)
        batch = max(1, min(workloads.BATCH, (32 << 20) // size))
        workload = workloads.Workload("sizes", records, batch=batch)
        with Rates(workload, folder, settings, PEERS) as rates:
            rows += rates.rows(batch, record_nbytes=size, records=count)
            skipped.update(rates.skipped)
    return {"rows": rows, "skipped": skipped}


def batches(workload, folder, settings):
    """Token records in batches of 1 to 65,536."""
    only = (*PEERS, "zrecord-zstd", "loaderx-2.0.0-zstd")
    rows = []
    with Rates(workload, folder, settings, only) as rates:
        for batch in BATCHES:
            if settings.name != "tiny" or batch <= 64:
                rows += rates.rows(batch)
    return {"rows": rows, "skipped": rates.skipped}


def threads(some, folder, settings):
    """1 to N threads, for images and tokens, raw and zstd."""
    rows = []
    everything = os.cpu_count() if settings.name != "tiny" else 2
    counts = sorted({1, 2, 4, 8, 16, 32, 64, zrecord.thread_count()})
    for workload in some:
        with Rates(workload, folder, settings, ("zrecord-raw", "zrecord-zstd")) as rates:
            for count in counts:
                if count > max(everything, zrecord.thread_count()):
                    break
                zrecord.set_thread_count(count)
                try:
                    rows += rates.rows(workload.batch, threads=count, workload=workload.name)
                finally:
                    zrecord.set_thread_count(0)
    return {"rows": rows, "skipped": {}}


def single(workload, folder, settings):
    """One record by its number, ds[i]: the cost of a call."""
    rows = []
    with Rates(workload, folder, settings, PEERS) as rates:
        for backend in rates.found:
            held = getattr(backend, "store", None)
            get = (held if held is not None else backend.values).__getitem__
            if not np.array_equal(get(1), workload.records[1]):
                raise checks.WrongAnswer(f"{backend.name}: another answer for record 1")
            samples = []
            for k in range(settings.scaling_rounds + 2):
                ids = plans.draw(1, len(workload), 2000, (23, k))[0].tolist()
                # Each record is dropped before the next, as a loop over them does.
                samples.append(rounds.timed(lambda: deque(map(get, ids), maxlen=0)) / len(ids))
            rows.append(
                {
                    "backend": backend.name,
                    "seconds": statistics.median(samples),
                    "low": min(samples),
                    "high": max(samples),
                }
            )
    return {"rows": rows, "skipped": rates.skipped}


# ---------------------------------------------------------------- levels and tunes


def levels(some, folder, settings):
    """Levels and tunes of zstd with and without a dictionary: ratio, write, read."""
    from backends.zrecord import Store

    rows = []
    choices = [{"level": level} for level in settings.levels]
    choices += [{"tune": tune} for tune in ("default", "read", "write")]
    for workload in some:
        for codec in ("zstd", "zstd_dict"):
            if codec in settings.without(workload):
                continue
            for choice in choices:
                label = f"{codec} " + " ".join(f"{k}={v}" for k, v in choice.items())
                store = Store(label, folder, workload, codec, **choice)
                rows.append(one_level(store, label, workload, settings))
    return {"rows": rows, "skipped": {}}


def one_level(store, label, workload, settings):
    shutil.rmtree(store.path, ignore_errors=True)
    store.create()
    writing = rounds.timed(store.append)
    store.finish()
    store.open()
    checks.sweep(store, workload)
    seconds = []
    for drawn in plans.rounds(settings.scaling_rounds, 400, len(workload), workload.batch, 29):
        probe = store.time(drawn[:2])
        share = max(1, min(len(drawn), int(settings.scaling_seconds / max(min(probe), 1e-7))))
        seconds.append(store.time(drawn[:share]))
    store.close()
    mean = workload.nbytes / len(workload)
    summary = rounds.summary(seconds, workload.batch)
    result = {
        "workload": workload.name,
        "store": label,
        "ratio": workload.nbytes / pagecache.disk_nbytes(store.path),
        "write_bytes_per_second": workload.nbytes / writing,
        **summary,
        "bytes_per_second": summary["records_per_second"] * mean,
    }
    shutil.rmtree(store.path)
    return result


if __name__ == "__main__":
    child(sys.argv[1], sys.argv[2], float(sys.argv[3]))
