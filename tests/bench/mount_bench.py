# SPDX-License-Identifier: MIT
"""What a mounted store costs a reader, beside squashfuse_ll and a folder of files.

    python tests/bench/mount_bench.py [--build build] [--rounds 5] [--json FILE] [--folder FOLDER]

Token records (int32[512], Zipf) and images (uint8[3, 224, 224]), each as a zstd store, a zstd
squashfs and a folder of .npy.  The reader is tests/bench/mount_reader.c: open, fstat, read to
the end, close, in random order, median µs.  "cold": a fresh mount, so the kernel has seen none
of it, with store and image in the page cache; "warm": the second pass; "stat": cold stat.  All
bytes are compared (a checksum over all files) before a figure counts.  The rounds are
interleaved, so that a slower minute meets all candidates alike; printed are the median of the
rounds and their spread.  Last, how soon a mount of ten million records answers, and its memory.
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import zrecord


class Bench:
    def __init__(self, build, folder):
        self.fs = build / "zrecordfs"
        self.reader = build / "bench" / "mount_reader"
        self.folder = folder
        self.point = folder / "mnt"
        self.point.mkdir()

    @contextlib.contextmanager
    def mounted(self, command, unmount=("fusermount3", "-u")):
        subprocess.run([*map(str, command), str(self.point)], check=True)
        try:
            yield self.point
        finally:
            while subprocess.run([*unmount, str(self.point)], capture_output=True).returncode:
                time.sleep(0.05)

    def read(self, path, count, *options):
        """Median µs, files a second and checksum of one pass."""
        out = subprocess.run(
            [self.reader, *options, path, str(count)], check=True, capture_output=True, text=True
        ).stdout.split()
        return float(out[0]), float(out[2]), out[3]


def make_tokens(count):
    rng = np.random.default_rng(7)
    return (rng.zipf(1.2, (count, 512)) % 50000).astype("<i4")


def make_images(count):
    """Smooth pictures with a little noise: about the entropy of photographs at this size."""
    rng = np.random.default_rng(7)
    y, x = np.mgrid[0:224, 0:224].astype("f4") / 224
    waves = rng.uniform(0.5, 6, (count, 3, 2, 1, 1)).astype("f4")
    images = np.sin(waves[:, :, 0] * x * 6) + np.cos(waves[:, :, 1] * y * 6)
    return np.clip(images * 60 + 128, 0, 255).astype("u1")


def prepare(folder, name, rows):
    """The same records as store, folder and squashfs; returns their paths."""
    store, files, image = folder / f"{name}.zr", folder / name, folder / f"{name}.sqsh"
    with zrecord.Dense.create(store, rows.dtype, rows.shape[1:], "zstd") as ds:
        ds.append(rows)
    files.mkdir()
    for i, row in enumerate(rows):
        np.save(files / f"{i:08d}.npy", row)
    subprocess.run(["mksquashfs", files, image, "-comp", "zstd", "-quiet", "-no-progress"], check=True)
    return store, files, image


def touch(*paths):
    """Brings files into the page cache."""
    for path in paths:
        for file in path.iterdir() if path.is_dir() else [path]:
            file.read_bytes()


def one_round(bench, name, paths, count, result, check):
    store, files, image = paths

    def note(what, figures):
        result.setdefault(f"{name} {what}", []).append(figures[0])
        if what.endswith("files/s"):
            result[f"{name} {what}"][-1] = figures[1]
        if figures[2] != check:
            sys.exit(f"{name} {what}: wrong bytes")

    touch(store, image)
    ours, squash = [bench.fs, store], ["squashfuse_ll", image]
    for label, command in (("zrecordfs", ours), ("squashfuse_ll", squash)):
        with bench.mounted(command) as point:
            note(f"cold {label}", bench.read(point, count))
            note(f"warm {label}", bench.read(point, count, "-r", "2"))
        with bench.mounted(command) as point:
            result.setdefault(f"{name} stat {label}", []).append(bench.read(point, count, "-s")[0])
        for readers in ("1", "2"):
            with bench.mounted(command) as point:
                note(f"cold {label}, {readers} readers, files/s", bench.read(point, count, "-j", readers))
    note("warm folder of files", bench.read(files, count))


def ten_millions(bench, count=10_000_000):
    """Milliseconds from the start of the command until a file answers, and the daemon's RSS."""
    store = bench.folder / "ten.zr"
    with zrecord.Dense.create(store, "|u1", (1,), "raw") as ds:
        for _ in range(10):
            ds.append(np.zeros((count // 10, 1), "u1"))
    milliseconds, rss = [], []
    for _ in range(5):
        start = time.monotonic()
        with bench.mounted([bench.fs, store]) as point:
            os.stat(point / f"{count - 1:08d}.npy")
            milliseconds.append((time.monotonic() - start) * 1e3)
            pid = json.loads((point / ".control").read_text())["pid"]
            status = Path(f"/proc/{pid}/status").read_text()
            rss.append(int(status.split("VmRSS:")[1].split()[0]) / 1024)
    return {"10M records: answers, ms": milliseconds, "10M records: RSS, MiB": rss}


def line(what, values):
    middle = statistics.median(values)
    return f"| {what} | {middle:.2f} | {min(values):.2f}–{max(values):.2f} |"


def ratio(result, over, under):
    return statistics.median(result[over]) / statistics.median(result[under])


def report(result):
    print("| work | median | spread |\n|---|---|---|")
    for what, values in result.items():
        print(line(what, values))
    print()
    for name in ("tokens", "images"):
        print(f"{name}: squashfuse_ll / zrecordfs, cold: {ratio(result, f'{name} cold squashfuse_ll', f'{name} cold zrecordfs'):.2f}"
              f" (stat {ratio(result, f'{name} stat squashfuse_ll', f'{name} stat zrecordfs'):.2f});"
              f" warm, folder / zrecordfs: {ratio(result, f'{name} warm folder of files', f'{name} warm zrecordfs'):.2f};"
              f" 2 readers / 1: {ratio(result, f'{name} cold zrecordfs, 2 readers, files/s', f'{name} cold zrecordfs, 1 readers, files/s'):.2f}")  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=Path, default=Path(__file__).resolve().parents[2] / "build")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=20000)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--folder", type=Path, help="where to work (default: a temporary folder)")
    options = parser.parse_args()
    for program in ("squashfuse_ll", "mksquashfs", "fusermount3"):
        if shutil.which(program) is None:
            sys.exit(f"{program} is not installed (packages squashfuse, squashfs-tools, fuse3)")

    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        bench = Bench(options.build.resolve(), Path(folder))
        result = {}
        for name, rows in (("tokens", make_tokens(options.tokens)), ("images", make_images(options.images))):
            paths = prepare(Path(folder), name, rows)
            check = bench.read(paths[1], len(rows))[2]
            for _ in range(options.rounds):
                one_round(bench, name, paths, len(rows), result, check)
        result.update(ten_millions(bench))
    report(result)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
