#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Batches per second of the DataLoader, beside loaderx 2.0.0.

    python tests/bench/loader_bench.py [--only raw] [--rounds 5] [--json out.json]

Both read the same store with the same seed.  A round gives each loader a run of its own, one after
the other, so that neither prepares batches while the other is timed; the first batches of a run
are not counted.  Batches are looked at, not only received: one element of every record is summed.
"""

import sys
import time
from pathlib import Path

import numpy as np

import zrecord

sys.path.insert(0, str(Path(__file__).resolve().parent))
import common  # noqa: E402

BATCH, WARMUP = 256, 10


def touch(batch):
    """A cheap consumer that still reads from every record."""
    values = batch["x"]
    if isinstance(values, list):
        return sum(int(record.flat[0]) for record in values)
    return int(values.reshape(len(values), -1)[:, ::4096].sum())


def run(loader, batches):
    """Seconds a batch."""
    try:
        for _ in range(WARMUP):
            touch(next(loader))
        start = time.perf_counter()
        for _ in range(batches):
            touch(next(loader))
        return (time.perf_counter() - start) / batches
    finally:
        loader.close()


def check(path, ragged):
    """Sequential batches of both loaders hold the same records."""
    kind = "Ragged" if ragged else "Dense"
    packages = [(zrecord, zrecord.DataLoader)]
    if common.reference("zrecord"):
        packages.append((common.reference("zrecord"), common.reference("dataloader").DataLoader))
    first = []
    for package, loader_class in packages:
        with getattr(package, kind).open(path) as store:
            loader = loader_class({"x": store}, transform_workers=1, batch_size=BATCH, mode=0)
            first.append(next(loader)["x"])
            loader.close()
    for other in first[1:]:
        assert len(first[0]) == len(other)
        assert all(np.array_equal(a, b) for a, b in zip(first[0], other))


def workload(folder, name, data, codec, args):
    path = folder / f"{name}-{codec}"
    ragged = isinstance(data, list)
    kind = "Ragged" if ragged else "Dense"
    shape = () if ragged else (data.shape[1:],)
    with getattr(zrecord, kind).create(path, data[0].dtype, *shape, codec) as writer:
        writer.append(data)
    check(path, ragged)
    makers = {}
    ours = getattr(zrecord, kind).open(path)
    ours[:]  # warm
    makers["zrecord"] = lambda: zrecord.DataLoader({"x": ours}, batch_size=BATCH)
    makers["zrecord, own identity"] = lambda: zrecord.DataLoader(
        {"x": ours}, batch_size=BATCH, transform=lambda batch: batch
    )
    makers["zrecord ordered"] = lambda: zrecord.DataLoader(
        {"x": ours}, batch_size=BATCH, transform=lambda batch: batch, ordered=True
    )
    if common.reference("zrecord"):
        theirs = getattr(common.reference("zrecord"), kind).open(path)
        makers["loaderx 2.0.0"] = lambda: common.reference("dataloader").DataLoader(
            {"x": theirs}, batch_size=BATCH
        )
    times = {label: [] for label in makers}
    for number in range(args.rounds):
        order = list(makers.items())
        for label, make in order if number % 2 else reversed(order):
            times[label].append(run(make(), args.batches))
    reference = (
        common.summary(times["loaderx 2.0.0"])["median"] if "loaderx 2.0.0" in times else None
    )
    for label, samples in times.items():
        s = common.summary(samples)
        yield {
            "workload": f"{name} {codec}",
            "loader": label,
            "batches/s": round(1 / s["median"], 1),
            "p10-p90": f"{1 / s['p90']:.0f}-{1 / s['p10']:.0f}",
            "x loaderx": round(reference / s["median"], 2) if reference else "",
        }


def main():
    parser = common.options(__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=100, help="timed in a run")
    parser.set_defaults(rounds=5)
    args = parser.parse_args()
    makers = {
        "vision": (common.vision, 2000, ("raw", "zstd")),
        "tokens": (common.tokens, 200_000, ("raw",)),
        "ragged": (common.sequences, 200_000, ("raw",)),
    }
    table = []
    with common.workspace(args.dir) as folder:
        for name, (make, count, codecs) in makers.items():
            chosen = [codec for codec in codecs if common.wanted(f"{name} {codec}", args.only)]
            data = make(int(count * args.scale)) if chosen else None
            for codec in chosen:
                table += workload(Path(folder), name, data, codec, args)
    columns = ["workload", "loader", "batches/s", "p10-p90", "x loaderx"]
    common.report(f"DataLoader, batches of {BATCH}, identity transform", columns, table, args.json)


if __name__ == "__main__":
    main()
