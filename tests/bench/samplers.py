#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Samplers and block shuffle beside NumPy, loaderx and celeres-dl; JSON, Markdown and SVG.

    make bench-samplers                                   all of it, about two minutes
    build/bench-venv/bin/python tests/bench/samplers.py --only batches,epoch

Sections: batches (index batches of 10^6 records), epoch (a whole epoch of 10^6 as one array),
blocks (CDLLoader over zrecord and HDF5, warm and cold).  What a contender gives is checked
before it is timed; rounds are interleaved, and every round has steps, epochs and files of its own.
"""

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

import machine
import numpy as np
import pagecache
import report
import zrecord
from backends import loaderx as others
from backends.base import Missing
from zrecord import cdl

REPO = Path(__file__).resolve().parents[2]
LENGTH = 1_000_000
SECTIONS = ("batches", "epoch", "blocks")
WHEELS = (
    Path(sys.prefix) / "ref" / "celeres-dl-0.1.0",
    REPO / ".venv" / "ref" / "celeres-dl-0.1.0",
)


def wheel():
    """The module of celeres-dl."""
    for place in WHEELS:
        if (place / "cdl").is_dir():
            sys.path.insert(0, str(place))
            try:
                return importlib.import_module("cdl")
            finally:
                sys.path.remove(str(place))
    raise Missing("celeres-dl 0.1.0 is not installed in its folder")


def timed(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def interleaved(makers, rounds, calls):
    """Seconds a call of each contender, a list of rounds; their order turns with every round."""
    seconds = {name: [] for name in makers}
    for number in range(rounds):
        names = list(makers)[number % len(makers) :] + list(makers)[: number % len(makers)]
        for name in names:
            call, count = makers[name](number), calls.get(name, 1)
            seconds[name].append(timed(lambda: [call() for _ in range(count)]) / count)
    return seconds


def row(name, values, **more):
    return {
        "backend": name,
        "median": statistics.median(values),
        "low": min(values),
        "high": max(values),
        **more,
    }


# ---------------------------------------------------------------- index batches


def loaderx_samplers():
    """(label, Sampler class) of the loaderx that are there, and why others are not."""
    found, missing = [], {}
    try:
        others.reference()
        place = next(p for p in others.PLACES if (p / "loaderx").is_dir())
        held = others._taken_out()
        sys.path.insert(0, str(place))
        try:
            sampler = importlib.import_module("loaderx.zsampler").Sampler
        finally:
            sys.path.remove(str(place))
            others._taken_out()
            sys.modules.update(held)
        found.append(("loaderx 2.0.0", sampler))
    except Missing as error:
        missing["loaderx 2.0.0"] = str(error)
    try:
        others.newest()
        version = importlib.import_module("loaderx").__version__
        found.append((f"loaderx {version}", importlib.import_module("loaderx.sampler").Sampler))
    except (Missing, ImportError) as error:
        missing["newest loaderx"] = str(error)
    return found, missing


def check_draws(name, mode, draw, batch):
    """In range, even, and without repetition where that is promised."""
    ids = np.concatenate([np.array(draw()) for _ in range(LENGTH // batch)]).astype(np.int64)
    assert 0 <= ids.min() and ids.max() < LENGTH, name
    counts = np.bincount(ids * 100 // LENGTH, minlength=100)
    expected = len(ids) / 100
    assert (np.abs(counts - expected) < 6 * expected**0.5).all(), f"{name} is not uniform"
    if mode in ("CYCLIC", "BLOCK"):
        assert len(np.unique(ids)) == len(ids), f"{name} repeats ids within a cycle"


def batches(rounds):
    peers, missing = loaderx_samplers()
    rows = []
    for mode, number in (("IID", 1), ("CYCLIC", 2), ("BLOCK", 3)):
        for batch in (256, 8192):
            makers = {}

            def sampler(cls, number=number, batch=batch, **options):
                return lambda seed: cls(LENGTH, batch, number, seed, **options).next

            mixed = {"block_size": 1024, "interleave": 8} if mode == "BLOCK" else {}
            makers["zrecord"] = sampler(zrecord.Sampler, **mixed)
            if mode != "BLOCK":
                makers.update({label: sampler(cls) for label, cls in peers})
            if mode == "IID":
                makers["numpy default_rng"] = lambda seed, batch=batch: (
                    lambda rng=np.random.default_rng(seed): rng.integers(0, LENGTH, batch, np.uint64)
                )
            for name, make in makers.items():
                check_draws(f"{name} {mode}", mode, make(99), batch)
            calls = dict.fromkeys(makers, 4000 if batch == 256 else 400)
            for name, values in interleaved(makers, rounds, calls).items():
                rows.append(row(name, values, mode=mode, batch=batch))
    return {"rows": rows, "skipped": missing}


# ---------------------------------------------------------------- whole epochs


def by_version():
    """ns an id of each vector unit, by the C program; nothing when it is not built."""
    program = REPO / "build" / "bench" / "lanes_limit"
    if not program.exists():
        return []
    lines = subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()
    names = ("IID", "CYCLIC", "BLOCK", "epoch")
    return [
        {"version": name, **dict(zip(names, map(float, values)))}
        for name, *values in (line.split("\t") for line in lines)
    ]


def epoch(rounds):
    theirs, missing = None, {}
    try:
        theirs = wheel()
    except Missing as error:
        missing["celeres-dl"] = str(error)

    def ours(number):
        shuffle = zrecord.CDLShuffle(LENGTH, 1024, number)
        return shuffle.indices

    makers = {"zrecord": ours}
    makers["numpy permutation"] = lambda number: (
        lambda rng=np.random.default_rng(number): rng.permutation(LENGTH)
    )
    if theirs:
        makers["celeres-dl"] = lambda number: (
            lambda s=theirs.CDLShuffle(LENGTH, 1024, number): np.fromiter(
                (sample for _, _, sample in s), np.uint64, LENGTH
            )
        )
        small = theirs.CDLShuffle(30_000, 1024, 1), zrecord.CDLShuffle(30_000, 1024, 1)
        assert list(small[0]) == list(small[1]), "the order is not the wheel's"
    calls = {"zrecord": 30, "numpy permutation": 5}
    rows = [row(name, v) for name, v in interleaved(makers, min(rounds, 3), calls).items()]
    return {"rows": rows, "skipped": missing, "versions": by_version(), "constant": constant(rounds)}


def constant(rounds):
    """µs of an epoch change and of reaching a place, for lengths of all magnitudes."""
    rows = []
    for length in (10**3, 10**6, 10**9, 10**12):
        sampler = zrecord.CDLSampler(dataset_size=length)
        shuffle = zrecord.CDLShuffle(length)
        place = length // 2
        makers = {
            "set_epoch": lambda number, s=sampler: lambda: s.set_epoch(number),
            "sample at a position": lambda number, s=shuffle, p=place: lambda: s.permute(p),
            "position of a sample": lambda number, s=shuffle, p=place: lambda: s.inverse_permute(p),
        }
        calls = dict.fromkeys(makers, 2000)
        for name, values in interleaved(makers, rounds, calls).items():
            rows.append(row(name, values, length=length))
    return rows


# ---------------------------------------------------------------- block loaders


def make_data(folder, count):
    """The same Zipf tokens as HDF5 in chunks of 1024, and as stores."""
    import h5py

    rng = np.random.default_rng(7)
    tokens = (rng.zipf(1.3, (count, 512)) % 50_000).astype("<i4")
    tokens[:, 0] = np.arange(count)
    labels = rng.integers(0, 10, count)
    with h5py.File(folder / "t.h5", "w") as file:
        file.create_dataset("data", data=tokens, chunks=(1024, 512))
        file.create_dataset("labels", data=labels)
    for codec in ("raw", "zstd"):
        for name, array in (("data", tokens), ("labels", labels)):
            path = folder / f"{codec}-{name}"
            with zrecord.Dense.create(path, array.dtype, array.shape[1:], codec) as store:
                store.append(array)
    return count


def random_store(folder, batch):
    """Batches of a full shuffle, each one gather."""
    data, labels = zrecord.open(folder / "raw-data"), zrecord.open(folder / "raw-labels")
    sampler = zrecord.Sampler(len(data), batch, zrecord.Mode.CYCLIC, seed=1)
    for _ in range(len(data) // batch):
        ids = sampler.next()
        yield data.gather(ids), labels.gather(ids)


def random_hdf5(folder, batch):
    """Batches of a full shuffle: the ids of each in the order that HDF5 wants."""
    import h5py

    with h5py.File(folder / "t.h5") as file:
        data, labels = file["data"], file["labels"]
        order = np.random.default_rng(1).permutation(len(data))
        for at in range(0, len(order) - batch + 1, batch):
            ids = np.sort(order[at : at + batch])
            yield data[ids], labels[ids]


def contenders(folder, batch, theirs):
    def ours(dataset, **options):
        loader = cdl.CDLLoader(dataset, batch, seed=int(time.monotonic_ns() % 2**32), **options)
        return iter(loader)

    def store(codec):
        return cdl.ZrecordBlockDataset(folder / f"{codec}-data", folder / f"{codec}-labels", 1024)

    makers = {
        "CDLLoader, zrecord raw": lambda: ours(store("raw")),
        "CDLLoader, zrecord zstd": lambda: ours(store("zstd")),
        "CDLLoader, HDF5": lambda: ours(cdl.HDF5BlockDataset(folder / "t.h5")),
        "random order, zrecord raw": lambda: random_store(folder, batch),
        "random order, HDF5": lambda: random_hdf5(folder, batch),
    }
    if theirs:
        makers["celeres-dl CDLLoader, HDF5"] = lambda: iter(
            theirs.CDLLoader(
                theirs.HDF5BlockDataset(str(folder / "t.h5")),
                batch,
                seed=int(time.monotonic_ns() % 2**32),
            )
        )
    return makers


def check_epoch(name, batches, count, batch):
    ids = np.concatenate([np.asarray(x)[:, 0] for x, _ in batches])
    assert len(np.unique(ids)) == len(ids) >= count - batch, f"{name} does not give an epoch"


def rate(make, count):
    """Samples a second of the first `count`, opening included, and every byte looked at."""
    given, start, batches = 0, time.perf_counter(), make()
    for x, _ in batches:
        given += len(x)
        x.max()
        if given >= count:
            break
    seconds = time.perf_counter() - start
    batches.close()
    return given / seconds


def blocks(rounds, count, folder, batch=64):
    theirs, missing = None, {}
    try:
        theirs = wheel()
    except Missing as error:
        missing["celeres-dl CDLLoader, HDF5"] = str(error)
    make_data(folder, count)
    makers = contenders(folder, batch, theirs)
    slow = {"random order, HDF5"}
    for name, make in makers.items():
        check_epoch(name, islice(make(), 20 if name in slow else None), 20 * batch if name in slow else count, batch)
    warm, cold = {name: [] for name in makers}, {name: [] for name in makers}
    for number in range(rounds):
        names = list(makers)[number % len(makers) :] + list(makers)[: number % len(makers)]
        for name in names:
            share = 1280 if name in slow else count
            warm[name].append(rate(makers[name], share))
    for number in range(max(2, rounds // 2)):
        for name in list(makers)[:: 1 if number % 2 else -1]:
            pagecache.drop(folder)
            cold[name].append(rate(makers[name], 1280 if name in slow else 10_240))
    return {
        "count": count,
        "batch": batch,
        "warm": [row(name, values) for name, values in warm.items()],
        "cold": [row(name, values) for name, values in cold.items()],
        "resident": pagecache.resident(folder),
        "skipped": missing,
    }


# ---------------------------------------------------------------- output


def spread(r):
    return f"−{100 * (1 - r['low'] / r['median']):.0f} +{100 * (r['high'] / r['median'] - 1):.0f} %"


def micro(seconds):
    return f"{seconds * 1e6:.2f}" if seconds < 1e-4 else f"{seconds * 1e6:,.0f}"


def batches_markdown(table):
    rows = table["rows"]
    ours = {(r["mode"], r["batch"]): r["median"] for r in rows if r["backend"] == "zrecord"}
    lines = [
        [
            f"{r['mode']} {r['batch']}",
            r["backend"],
            micro(r["median"]),
            spread(r),
            f"{r['median'] / ours[r['mode'], r['batch']]:.1f}x",
        ]
        for r in rows
    ]
    head = ["batch", "sampler", "µs", "spread", "zrecord is faster by"]
    return report.markdown(head, lines) + report.left_out(table["skipped"])


def epoch_markdown(table):
    ours = next(r["median"] for r in table["rows"] if r["backend"] == "zrecord")
    lines = [
        [r["backend"], f"{r['median'] * 1e3:,.2f} ms", spread(r), f"{r['median'] / ours:,.1f}x"]
        for r in table["rows"]
    ]
    parts = [
        report.markdown(["epoch of 10^6", "time", "spread", "zrecord is faster by"], lines)
        + report.left_out(table["skipped"])
    ]
    if table["versions"]:
        lines = [
            [v["version"], *(f"{v[k]:.2f}" for k in ("IID", "CYCLIC", "BLOCK", "epoch"))]
            for v in table["versions"]
        ]
        head = ["ns an id, from C", "IID 8192", "CYCLIC 8192", "BLOCK 8192", "celeres-dl epoch"]
        parts.append(report.markdown(head, lines))
    lengths = list(dict.fromkeys(r["length"] for r in table["constant"]))
    names = list(dict.fromkeys(r["backend"] for r in table["constant"]))
    found = {(r["backend"], r["length"]): r["median"] for r in table["constant"]}
    lines = [[name, *(f"{found[name, n] * 1e6:.2f}" for n in lengths)] for name in names]
    parts.append(report.markdown(["µs by records", *(f"{n:,}" for n in lengths)], lines))
    return "\n\n".join(parts)


def blocks_markdown(table):
    cold = {r["backend"]: r for r in table["cold"]}
    lines = [
        [
            r["backend"],
            f"{r['median'] / 1e3:,.1f}",
            spread(r),
            f"{cold[r['backend']]['median'] / 1e3:,.1f}",
            spread(cold[r["backend"]]),
        ]
        for r in sorted(table["warm"], key=lambda r: -r["median"])
    ]
    head = ["ksamples/s", "warm", "spread", "cold, first 10,240", "spread"]
    note = (
        f"{table['count']:,} × int32 (512,), batches of {table['batch']}, blocks and HDF5 chunks of "
        "1024, opening included; random order over HDF5 gives 1,280 samples."
    )
    return f"{note}\n\n" + report.markdown(head, lines) + report.left_out(table["skipped"])


WRITERS = {"batches": batches_markdown, "epoch": epoch_markdown, "blocks": blocks_markdown}
TITLES = {
    "batches": "Index batches of 10^6 records",
    "epoch": "Block shuffle: a whole epoch, its changes and its places",
    "blocks": "Block loaders",
}


def plot(result, path):
    import plots

    shown = [name for name in SECTIONS if name in result]
    drawn = plots.figure(8, 3.2 * len(shown))
    for axis, name in zip(drawn.subplots(len(shown), 1, squeeze=False)[:, 0], shown):
        rows = result[name]["warm" if name == "blocks" else "rows"]
        labels = [
            f"{r['backend']}, {r['mode']} {r['batch']}" if "mode" in r else r["backend"] for r in rows
        ]
        colours = [plots.OURS if "celeres" not in n and not n.startswith(("numpy", "loaderx", "random"))
                   else plots.PEER for n in labels]  # fmt: skip
        axis.barh(labels[::-1], [r["median"] for r in rows][::-1], color=colours[::-1])
        axis.set_xscale("log")
        axis.set_title(TITLES[name])
        axis.set_xlabel("samples a second" if name == "blocks" else "seconds")
    plots.save(drawn, path)


def write(result, out):
    out.mkdir(parents=True, exist_ok=True)
    (out / "samplers.json").write_text(json.dumps(result, indent=1))
    text = f"# Samplers and block shuffle\n\n{report.machine(result['machine'], 'make bench-samplers')}\n"
    for name in SECTIONS:
        if name in result:
            text += f"\n## {TITLES[name]}\n\n{WRITERS[name](result[name])}\n"
    (out / "samplers.md").write_text(text)
    print(text)
    try:
        plot(result, out / "samplers.svg")
    except ImportError:
        print("SKIP samplers.svg: matplotlib is not installed", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="comma-separated sections")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--count", type=int, default=100_000, help="records of the loaders' data")
    parser.add_argument("--dir", type=Path, default=REPO / "build" / "bench-data", help="for stores")
    parser.add_argument("--out", type=Path, default=REPO / "build" / "bench-results")
    options = parser.parse_args()
    sections = options.only.split(",") if options.only else SECTIONS
    if unknown := set(sections) - set(SECTIONS):
        parser.error(f"unknown sections: {', '.join(sorted(unknown))}")
    options.dir.mkdir(parents=True, exist_ok=True)
    result = {"machine": machine.facts(options.dir)}
    if "batches" in sections:
        result["batches"] = batches(options.rounds)
    if "epoch" in sections:
        result["epoch"] = epoch(options.rounds)
    if "blocks" in sections:
        with tempfile.TemporaryDirectory(prefix="run-", dir=options.dir) as folder:
            result["blocks"] = blocks(options.rounds, options.count, Path(folder))
    write(result, options.out)
    sys.stdout.flush()
    os._exit(0)  # threads of peers may crash while the interpreter goes away


if __name__ == "__main__":
    main()
