# SPDX-License-Identifier: MIT
"""Mixed load on a mount, every byte compared: the long form of what the tests do for a moment.

    python tests/soak/soak.py [--seconds 600] [--build build] [--option transport=uring]...

Readers in random order and in order, mapping readers, listers, readers of the control file and of
views, prefetches and `zrecord ctl` commands, page-cache drops, and a hog of memory, all at once, as
processes.  `stats reset` is a command as well, so what the counters held is added up before each.  Ends with 0 when every byte was right, every process came to its end, and the daemon
ended by itself with 0 (a sanitizer build ends otherwise when it found something).
"""

import argparse
import json
import mmap
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import zrecord

COUNT, LARGE = 4000, 120
CONTEXT = multiprocessing.get_context("fork")
TOTALS = ("decodes", "decoded_bytes", "read_bytes", "cache_hits", "pushes", "kept", "prefetches", "drops", "errors")


def token(i):
    return np.arange(i, i + 500, dtype="<i4") * 3


def image(i):
    return (np.arange(150_000, dtype="<u4") * (i + 1) >> 7).astype("u1")


def make(folder):
    """A tree of two stores: many small records, few large ones."""
    for name, maker, count in (("tokens", token, COUNT), ("images", image, LARGE)):
        with zrecord.Dense.create(folder / name, maker(0).dtype, maker(0).shape, "zstd") as ds:
            ds.append(np.stack([maker(i) for i in range(count)]))
    return folder


def read(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        parts = []
        while part := os.read(fd, 1 << 20):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(fd)


class Load:
    """Each method is one kind of load: it does a little and returns, again and again."""

    def __init__(self, point, tool, seed, totals):
        self.point, self.tool, self.totals = point, tool, totals
        self.random = random.Random(seed)
        self.at = self.random.randrange(COUNT)

    def check(self, store, i):
        maker = token if store == "tokens" else image
        data = read(f"{self.point}/{store}/{i:08d}.npy")
        assert data.endswith(maker(i).tobytes()), f"{store} {i}: wrong bytes"

    def random_reader(self):
        for _ in range(50):
            self.check("tokens", self.random.randrange(COUNT))
        self.check("images", self.random.randrange(LARGE))

    def ordered_reader(self):
        for _ in range(200):
            self.at = (self.at + 1) % COUNT
            self.check("tokens", self.at)

    def ordered_images(self):
        for i in range(20):
            self.check("images", (self.at + i) % LARGE)
        self.at += 20

    def epoch_reader(self):
        seed = self.random.randrange(3)
        for i in range(100):
            data = read(f"{self.point}/tokens/.views/epoch/{seed}/{i:08d}.npy")
            first = np.frombuffer(data[-2000:], "<i4")
            assert np.array_equal(first, token(int(first[0]) // 3))

    def mapper(self):
        i = self.random.randrange(LARGE)
        with open(f"{self.point}/images/{i:08d}.npy", "rb") as file:
            with mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as memory:
                assert memory[-150_000:] == image(i).tobytes()
        rows = np.load(f"{self.point}/tokens/.views/all.npy", mmap_mode="r")
        ids = [self.random.randrange(COUNT) for _ in range(20)]
        assert np.array_equal(rows[ids], np.stack([token(i) for i in ids]))

    def lister(self):
        assert len(os.listdir(f"{self.point}/tokens")) == COUNT
        entries = list(os.scandir(f"{self.point}/images"))
        assert len(entries) == LARGE and all(entry.stat().st_size > 150_000 for entry in entries)

    def command(self, text):
        subprocess.run([self.tool, "ctl", f"{self.point}/tokens", *text.split()], capture_output=True)

    def reset(self):
        """Nobody else resets, so only what is counted in between is lost."""
        add_counters(self.totals, self.point)
        self.command("stats reset")

    def commander(self):
        start = self.random.randrange(COUNT - 100)
        for command in (f"prefetch {start}:{start + 100}", f"drop {start}:{start + 50}"):
            self.command(command)
        self.reset()
        read(f"{self.point}/tokens/.views/prefetch/0:64")
        data = read(f"{self.point}/tokens/.views/at/{start}:{start + 100}.npy")
        assert data.endswith(np.stack([token(i) for i in range(start, start + 100)]).tobytes())
        time.sleep(0.05)

    def dropper(self):
        """Takes pages and inodes away, as a machine short of memory does."""
        if os.geteuid() == 0:
            Path("/proc/sys/vm/drop_caches").write_text(self.random.choice(["1", "2", "3"]))
        for i in range(0, LARGE, 3):
            fd = os.open(f"{self.point}/images/{i:08d}.npy", os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
        time.sleep(0.3)

    def hog(self):
        hog = np.ones(64 << 20, "u1")
        time.sleep(0.2)
        del hog


KINDS = ["random_reader"] * 3 + ["ordered_reader"] * 2 + ["ordered_images", "epoch_reader", "mapper"] + [
    "lister", "commander", "dropper", "hog"]  # fmt: skip


def add_counters(totals, point):
    """Adds what the mount has counted since the last reset; its status."""
    status = json.loads(read(f"{point}/.control"))
    for i, name in enumerate(TOTALS):
        totals[i] += status["counters"][name]
    totals[len(TOTALS)] += sum(status["requests"].values())
    return status


def run_load(kind, seed, point, tool, totals, until, rounds):
    load = Load(point, tool, seed, totals)
    while time.monotonic() < until:
        getattr(load, kind)()
        rounds.value += 1


def all_right(processes, seconds):
    """Waits for the end of all; the names of those that failed or hang."""
    deadline = time.monotonic() + seconds + 120
    bad = []
    for name, process, rounds in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.exitcode != 0:
            bad.append(f"{name}: {'hangs' if process.exitcode is None else process.exitcode}")
            process.kill()
        print(f"{name}: {rounds.value} rounds", flush=True)
    return bad


def what_is_wrong(counted, status, options):
    """No request may fail, every kind of work must have been done, over the transport asked for."""
    wrong = [f"{counted['errors']} errors"] if counted["errors"] else []
    wrong += [f"no {name}" for name, count in counted.items() if name != "errors" and not count]
    wanted = [option.partition("=")[2] for option in options if option.startswith("transport=")]
    if wanted and wanted[-1] not in ("auto", status["transport"]):
        wrong.append(f"runs over {status['transport']}")
    return wrong


def main():
    repo = Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--build", type=Path, default=repo / "build")
    parser.add_argument("--option", action="append", default=[], help="for zrecordfs -o")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source")
        source.mkdir()
        make(source)
        point = Path(folder, "mnt")
        point.mkdir()
        command = [options.build.resolve() / "zrecordfs", "-f", "-o", ",".join(["cache=4M", *options.option])]
        log = open(Path(folder, "log"), "w+")
        daemon = subprocess.Popen([*command, source, point], stdout=log, stderr=log)
        while not os.path.ismount(point):
            assert daemon.poll() is None, "zrecordfs ended early"
            time.sleep(0.02)
        until = time.monotonic() + options.seconds
        totals = CONTEXT.Array("q", len(TOTALS) + 1, lock=False)
        processes = []
        for seed, kind in enumerate(KINDS):
            rounds = CONTEXT.Value("q", 0, lock=False)
            arguments = (kind, seed, str(point), options.build.resolve() / "zrecord", totals, until, rounds)
            processes.append((kind, CONTEXT.Process(target=run_load, args=arguments), rounds))
        for _, process, _ in processes:
            process.start()
        bad = all_right(processes, options.seconds)
        status = add_counters(totals, point)
        counted = dict(zip((*TOTALS, "requests"), totals))
        print(json.dumps({"transport": status["transport"], **counted}))
        bad += what_is_wrong(counted, status, options.option)
        unmounted = subprocess.run(["fusermount3", "-u", point], capture_output=True, text=True)
        try:
            code = daemon.wait(60)
        except subprocess.TimeoutExpired:
            daemon.kill()
            code = "hangs"
        if code != 0 or unmounted.returncode:
            bad.append(f"zrecordfs: {code} {unmounted.stderr}")
        log.seek(0)
        print(log.read()[-6000:])
    if bad:
        sys.exit("FAILED: " + "; ".join(bad))
    print("all right")


if __name__ == "__main__":
    main()
