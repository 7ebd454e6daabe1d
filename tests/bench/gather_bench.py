#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Random gathers and appends through Python, beside loaderx 2.0.0 and a NumPy mapping.

    python tests/bench/gather_bench.py [--only tokens] [--rounds 100] [--json out.json]

Same process, same records, a fresh random plan of 256 ids a round that every contender runs
before the next; answers are compared first.  Append times exclude creating and closing.
"""

import sys
import time
from pathlib import Path

import numpy as np

import zrecord

sys.path.insert(0, str(Path(__file__).resolve().parent))
import common  # noqa: E402

BATCH = 256


def build(package, geometry, path, data, codec, dictionary):
    """A store of the data made by one package; seconds spent in append."""
    kwargs = {"codec": codec, "dict_bytes": dictionary if codec == "zstd_dict" else None}
    if geometry == "dense":
        writer = package.Dense.create(path, data.dtype, data.shape[1:], **kwargs)
    else:
        writer = package.Ragged.create(path, data[0].dtype, **kwargs)
    start = time.perf_counter()
    writer.append(data)
    seconds = time.perf_counter() - start
    writer.close()
    return seconds


def open_store(package, geometry, path):
    return (package.Dense if geometry == "dense" else package.Ragged).open(path)


def check(readers, plan):
    """All contenders give the same records."""
    name, first = next(iter(readers.items()))
    expected = first(plan)
    for other, run in readers.items():
        got = run(plan)
        if isinstance(got, tuple):
            got = np.split(got[0], got[1][1:-1])
        assert len(got) == len(expected), (name, other)
        for a, b in zip(expected, got):
            assert a.shape == b.shape and np.array_equal(a, b), (name, other)


def contenders(ours, reference, geometry, mapped):
    runs = {"zrecord": ours.__getitem__}
    if geometry == "dense":
        out = np.empty((BATCH, *ours.item_shape), ours.dtype)
        runs["zrecord out="] = lambda plan: ours.gather(plan, out)
    else:
        runs["zrecord packed"] = ours.packed
    if reference is not None:
        runs["loaderx 2.0.0"] = reference.__getitem__
    if mapped is not None:
        runs["numpy mmap"] = mapped.__getitem__
    return runs


def workload(folder, name, geometry, data, codec, rounds):
    dictionary = zrecord.train_dict(data) if codec == "zstd_dict" else None
    packages = {"zrecord": zrecord}
    if common.reference("zrecord"):
        packages["loaderx 2.0.0"] = common.reference("zrecord")
    stores, append = {}, {}
    for label, package in packages.items():
        path = folder / f"{name}-{codec}-{label.split()[0]}"
        append[label] = build(package, geometry, path, data, codec, dictionary)
        stores[label] = open_store(package, geometry, path)
    mapped = None
    if geometry == "dense" and codec == "raw":
        np.save(folder / f"{name}.npy", data)
        mapped = np.load(folder / f"{name}.npy", mmap_mode="r")
    runs = contenders(stores["zrecord"], stores.get("loaderx 2.0.0"), geometry, mapped)
    rng = np.random.default_rng()
    plans = [rng.integers(0, len(data), BATCH) for _ in range(rounds)]
    check(runs, plans[0])
    for store in stores.values():
        store[:]  # warm
    times = common.interleaved(runs, plans)
    nbytes = data.nbytes if geometry == "dense" else sum(record.nbytes for record in data)
    return rows(f"{name} {codec}", times, nbytes / len(data), append, nbytes)


def rows(name, times, record_nbytes, append, nbytes):
    reference = (
        common.summary(times["loaderx 2.0.0"])["median"] if "loaderx 2.0.0" in times else None
    )
    for label, samples in times.items():
        s = common.summary(samples)
        yield {
            "workload": name,
            "reader": label,
            "ms": round(s["median"] * 1e3, 4),
            "p10-p90": f"{s['p10'] * 1e3:.3f}-{s['p90'] * 1e3:.3f}",
            "k rec/s": round(BATCH / s["median"] / 1e3, 1),
            "GB/s": round(BATCH * record_nbytes / s["median"] / 1e9, 2),
            "x loaderx": round(reference / s["median"], 2) if reference else "",
            "append MB/s": round(nbytes / append[label] / 1e6) if label in append else "",
        }


def scalar_rows(folder, rounds):
    """ns for one record by its number."""
    data = np.arange(100_000, dtype=np.int64)
    path = folder / "scalars"
    build(zrecord, "dense", path, data, "raw", None)
    ours = zrecord.Dense.open(path)
    reference = common.reference("zrecord")
    runs = {"zrecord": ours.__getitem__}
    if reference:
        runs["loaderx 2.0.0"] = reference.Dense.open(path).__getitem__
    plans = [np.random.default_rng().integers(0, len(data), 1000).tolist() for _ in range(rounds)]
    times = common.interleaved(
        {name: lambda plan, get=get: [get(i) for i in plan] for name, get in runs.items()}, plans
    )
    for label, samples in times.items():
        yield {
            "workload": "int64 scalar, ds[i]",
            "reader": label,
            "ns": round(common.summary(samples)["median"] * 1e6),
        }


def main():
    args = common.options(__doc__.splitlines()[0]).parse_args()
    sizes = {
        "vision": int(2000 * args.scale),
        "tokens": int(200_000 * args.scale),
        "ragged": int(200_000 * args.scale),
    }
    makers = {
        "vision": ("dense", common.vision, ("raw", "zstd")),
        "tokens": ("dense", common.tokens, ("raw", "zstd", "zstd_dict")),
        "ragged": ("ragged", common.sequences, ("raw", "zstd")),
    }
    table = []
    with common.workspace(args.dir) as folder:
        for name, (geometry, make, codecs) in makers.items():
            chosen = [codec for codec in codecs if common.wanted(f"{name} {codec}", args.only)]
            data = make(sizes[name]) if chosen else None
            for codec in chosen:
                table += workload(Path(folder), name, geometry, data, codec, args.rounds)
        singles = (
            list(scalar_rows(Path(folder), args.rounds))
            if common.wanted("scalar", args.only)
            else []
        )
    columns = ["workload", "reader", "ms", "p10-p90", "k rec/s", "GB/s", "x loaderx", "append MB/s"]
    common.report(f"Gather of {BATCH} random records", columns, table, args.json)
    common.report("One record", ["workload", "reader", "ns"], singles)


if __name__ == "__main__":
    main()
