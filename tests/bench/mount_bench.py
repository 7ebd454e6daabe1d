# SPDX-License-Identifier: MIT
"""What a mounted store costs its readers, beside every other way to mount the same records.

    python tests/bench/mount_bench.py [--rows cold,stat,...] [--peers 'zrecordfs,squashfuse_ll'] [--rounds 3]

Token records (int32[512], Zipf) and images (uint8[3, 224, 224]).  "Cold": a fresh mount, so that the
kernel has seen nothing of it, with store or image in the page cache, and free memory touched before
(machine.warm_memory).  The reader is mount_reader.c: open, fstat, read to the end, close, in random
order unless said otherwise; what counts is its median in µs.  A checksum over all bytes is compared with the folder's before a figure counts.  The rounds
are interleaved, so that a slower minute meets all alike; shown are their median and spread.
Results go to build/bench-results/mount.json, .md and .svg, and later runs of other rows add to them when measured alike.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import machine
import mount_peers
import mount_report
import numpy as np
import zrecord
from mount_peers import Corpus

HERE = Path(__file__).resolve().parent
# torch is one of the tests' frameworks.
TESTS_PYTHON = HERE.parents[1] / ".venv" / "bin" / "python"
LOADER_PYTHON = TESTS_PYTHON if TESTS_PYTHON.exists() else sys.executable
FEW_ENOUGH_FOR_FILES = 300_000  # making more takes longer than the whole benchmark
LISTINGS = {
    "ls -f": ["ls", "-f"],
    "ls -l": ["ls", "-l"],
    "find -size": ["find", ".", "-size", "+9"],
    "du": ["du", "-s"],
}


def make_many(count):
    """Tokens; beyond what is ever copied, rows that are quickly made, for listings alone."""
    if count <= FEW_ENOUGH_FOR_FILES:
        return mount_peers.make_tokens(count)
    return np.zeros((count, 512), "<i4") + np.arange(count, dtype="<i4")[:, None]


class Bench:
    def __init__(self, build, folder, sizes):
        self.build = build
        self.reader = build / "bench" / "mount_reader"
        self.point = tempfile.mkdtemp(dir=folder)
        self.tokens = Corpus(folder, "tokens", mount_peers.make_tokens, sizes["tokens"])
        self.images = Corpus(folder, "images", mount_peers.make_images, sizes["images"])
        self.many = {n: Corpus(folder, "many", make_many, n) for n in sizes["many"]}
        self.checks = {}
        self.limit = None  # of the peer being measured

    def read(self, path, corpus, *options):
        """(median µs, files a second) of one pass, its bytes checked."""
        if self.limit:
            options = (*options, "-n", str(self.limit))
        out = self.run_reader(path, corpus, *options)
        if "-s" not in options and out[3] != self.expected(corpus, options):
            sys.exit(f"{path}: wrong bytes")
        return float(out[0]), float(out[2])

    def run_reader(self, path, corpus, *options):
        command = [self.reader, *options, path, str(corpus.count)]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.split()

    def expected(self, corpus, options):
        """The checksum of the same pass over the folder; a whole pass has the same in any order."""
        key = (corpus.base, options if "-n" in options else ())
        if key not in self.checks:
            self.checks[key] = self.run_reader(corpus.path("files"), corpus, *key[1])[3]
        return self.checks[key]

    def seconds(self, *command, cwd=None):
        start = time.perf_counter()
        subprocess.run([*map(str, command)], check=True, stdout=subprocess.DEVNULL, cwd=cwd)
        return time.perf_counter() - start

    def loader(self, *arguments):
        command = [LOADER_PYTHON, HERE / "mount_loader.py", *map(str, arguments)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return [float(line) for line in done.stdout.split()]


def requests(path):
    """Requests that reached the daemon, without those for the control file."""
    status = json.loads((path / ".control").read_text())
    counts = dict(status["requests"])
    counts["LOOKUP"] -= status["counters"]["control_lookups"]
    counts["READ"] = counts.get("READ", 0) - status["counters"]["control_reads"]
    return counts["LOOKUP"] + counts["READ"]


# ---------------------------------------------------------------- rows: name -> (unit, measure)
# measure(bench, peer) gives {figure name: value}; each begins with a fresh mount.


def cold(bench, peer):
    with peer.mounted(bench.tokens, bench.point) as path:
        first = bench.read(path, bench.tokens)[0]
        return {"token, random, cold": first, "token, second pass": bench.read(path, bench.tokens, "-r", "2")[0]}


def stat(bench, peer):
    with peer.mounted(bench.tokens, bench.point) as path:
        return {"token, stat, cold": bench.read(path, bench.tokens, "-s")[0]}


def parallel(bench, peer):
    figures = {}
    for readers in (1, 2):
        with peer.mounted(bench.tokens, bench.point) as path:
            microseconds = 1e6 / bench.read(path, bench.tokens, "-j", str(readers))[1]
            figures[f"token, random, cold, {readers} readers, all together"] = microseconds
    return figures


def listed(bench, peer):
    figures = {}
    for name, options in (("random", ["-l"]), ("in order", ["-l", "-o"])):
        with peer.mounted(bench.tokens, bench.point) as path:
            figures[f"token, {name}, after a listing"] = bench.read(path, bench.tokens, *options)[0]
    return figures


def epoch(bench, peer):
    if not peer.name.startswith("zrecordfs"):
        return {}
    with peer.mounted(bench.tokens, bench.point) as path:
        return {"token, in order, .views/epoch, after its listing":
                bench.read(path / ".views" / "epoch" / "7", bench.tokens, "-l", "-o")[0]}  # fmt: skip


def prefetch(bench, peer):
    if not peer.name.startswith("zrecordfs"):
        with peer.mounted(bench.tokens, bench.point) as path:
            bench.read(path, bench.tokens)
            return {"token, after .views/prefetch": bench.read(path, bench.tokens, "-r", "3")[0]}
    with peer.mounted(bench.tokens, bench.point) as path:
        os.listdir(path)
        (path / ".views" / "prefetch" / f"0:{bench.tokens.count}").read_bytes()
        while json.loads((path / ".control").read_text())["pending"]["prefetch_records"]:
            time.sleep(0.02)
        time.sleep(0.05)
        before = requests(path)
        figure = bench.read(path, bench.tokens)[0]
        return {"token, after .views/prefetch": figure, "its requests to the daemon": requests(path) - before}


def copies(bench, peer):
    corpus = bench.many[min(bench.many)]
    if peer.command is None:
        drop_inodes()
    with peer.mounted(corpus, bench.point) as path:
        if peer.command is None:
            drop_inodes()
        return {f"tar cf - of {corpus.count} tokens, s": bench.seconds("sh", "-c", f"tar cf - -C {path} . | cat")}


def copy_tree(bench, peer):
    """To memory, so that every side writes at the same speed, and little of the time."""
    corpus = bench.many[min(bench.many)]
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=memory) as target:
        with peer.mounted(corpus, bench.point) as path:
            if peer.command is None:
                drop_inodes()
            seconds = bench.seconds("cp", "-r", path, f"{target}/copy")
        copied = sum(entry.name.endswith(".npy") for entry in os.scandir(f"{target}/copy"))
        if copied != corpus.count:
            sys.exit(f"cp -r from {peer.name}: {copied} of {corpus.count} files")
        return {f"cp -r of {corpus.count} tokens, s": seconds}


def drop_inodes():
    """Dentries and inodes only: the pages of local files stay where inodes are kept, else not."""
    os.sync()
    if os.geteuid() == 0:
        Path("/proc/sys/vm/drop_caches").write_text("2")


def images(bench, peer):
    figures = {}
    for readers in (1, 2):
        with peer.mounted(bench.images, bench.point) as path:
            middle, rate = bench.read(path, bench.images, "-j", str(readers))
            if readers == 1:
                figures["image, random, cold"] = middle
                figures["image, second pass"] = bench.read(path, bench.images, "-r", "2")[0]
            figures[f"image, random, cold, {readers} readers, all together"] = 1e6 / rate
    return figures


def python(bench, peer):
    with peer.mounted(bench.tokens, bench.point) as path:
        first, second = bench.loader("load", path, bench.tokens.count)
        return {"token, np.load, cold": first, "token, np.load, second pass": second}


def torch(bench, peer):
    figures = {}
    for corpus in (bench.tokens, bench.images):
        with peer.mounted(corpus, bench.point) as path:
            first, second = bench.loader("torch", path, corpus.count, 2)
            figures[f"{corpus.name}, DataLoader, first epoch, s"] = first
            figures[f"{corpus.name}, DataLoader, second epoch, s"] = second
    if peer.name.startswith("zrecordfs"):
        with peer.mounted(bench.tokens, bench.point) as path:
            os.listdir(path / ".views" / "epoch" / "7")
            first = bench.loader("torch", path / ".views" / "epoch" / "7", bench.tokens.count, 2)[0]
            figures["tokens, DataLoader, .views/epoch, first epoch, s"] = first
    return figures


def listings(bench, peer):
    figures = {}
    for count, corpus in bench.many.items():
        if peer.command is None and count > FEW_ENOUGH_FOR_FILES:
            continue
        for name, command in LISTINGS.items():
            with peer.mounted(corpus, bench.point) as path:
                if peer.command is None:
                    drop_inodes()
                figures[f"{name}, {count}, µs an entry"] = bench.seconds(*command, cwd=path) / count * 1e6
    return figures


def timed_bursts(*ways, bursts=10, length=10):
    """Median µs of each way, called with numbers 0, 1, ...: in turns, but in bursts with a pause before
    each, since the threads of a gather stay awake for a moment, which would be the next one's loss."""
    spent = [[] for _ in ways]
    for burst in range(bursts):
        for way, seconds in zip(ways, spent):
            time.sleep(0.02)
            for i in range(burst * length, (burst + 1) * length):
                begun = time.perf_counter()
                way(i)
                seconds.append(time.perf_counter() - begun)
    return [statistics.median(seconds) * 1e6 for seconds in spent]


def gather(bench, peer):
    """A gather of 256 through .views/at against the engine's own."""
    if not peer.name.startswith("zrecordfs"):
        return {}
    starts = np.random.default_rng(5).permutation(bench.tokens.count - 256)[:100]
    expected = bench.tokens.rows()
    # Touched before: fresh memory costs more than anything else, and the gather's own is used again too.
    buffer = memoryview(bytearray(b"x" * (1 << 20)))
    with peer.mounted(bench.tokens, bench.point) as path, zrecord.open(bench.tokens.path(peer.kind)) as ds:
        ids = [np.arange(start, start + 256) for start in starts]
        names = [os.fsencode(path / ".views" / "at" / f"{start}:{start + 256}.npy") for start in starts]

        def read(i):
            fd = os.open(names[i], os.O_RDONLY)
            nbytes = 0
            while got := os.readv(fd, [buffer[nbytes:]]):
                nbytes += got
            os.close(fd)
            return buffer[nbytes - 256 * 2048 : nbytes]

        mounted, own = timed_bursts(read, lambda i: ds.gather(ids[i]))
        if any(read(i) != expected[start : start + 256].tobytes() for i, start in enumerate(starts)):
            sys.exit("wrong bytes in .views/at")
    return {"gather of 256 through .views/at": mounted, "the engine's own": own}


def ten_millions(bench, peer):
    if not peer.name.startswith("zrecordfs") or peer.kind != "zstd":
        return {}
    store = Path(bench.point).parent / "ten-millions.zr"
    if not store.exists():
        with zrecord.Dense.create(store, "|u1", (1,), "raw") as ds:
            for _ in range(10):
                ds.append(np.zeros((1_000_000, 1), "u1"))
    command = [part.format(source=store, point=bench.point) for part in peer.command]
    with mount_peers.uring("uring" in peer.name):
        start = time.monotonic()
        subprocess.run(command, check=True)
        os.stat(f"{bench.point}/09999999.npy")
        milliseconds = (time.monotonic() - start) * 1e3
    try:
        pid = json.loads(Path(bench.point, ".control").read_text())["pid"]
        status = Path(f"/proc/{pid}/status").read_text()
        return {"mount of 10,000,000 answers, ms": milliseconds,
                "its memory, MiB": int(status.split("VmRSS:")[1].split()[0]) / 1024}  # fmt: skip
    finally:
        mount_peers.unmount(bench.point)


def idle(bench, peer):
    """CPU time and wake-ups of the daemon in the second that begins 100 ms after a burst."""
    if not peer.name.startswith("zrecordfs") or peer.kind != "zstd":
        return {}
    with peer.mounted(bench.tokens, bench.point) as path:
        bench.read(path, bench.tokens, "-n", "2000")
        pid = json.loads((path / ".control").read_text())["pid"]
        time.sleep(0.1)

        def spent():
            tasks = Path(f"/proc/{pid}/task").iterdir()
            return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)

        before = spent()
        time.sleep(1)
        return {"idle daemon, µs of CPU a second": (spent() - before) / 1e3}


ROWS = {
    "cold": cold, "stat": stat, "parallel": parallel, "listed": listed, "epoch": epoch, "prefetch": prefetch,
    "tar": copies, "cp": copy_tree, "images": images, "python": python, "torch": torch, "listings": listings,
    "gather": gather, "ten": ten_millions, "idle": idle,
}  # fmt: skip


LIMITED_ROWS = ("cold", "stat", "parallel", "listed")  # where a part of the files tells as much


# ---------------------------------------------------------------- main


def chosen_peers(build, wanted, skipped):
    for peer in mount_peers.peers(build):
        if wanted and not any(peer.name.startswith(name) for name in wanted):
            continue
        reason = peer.why_not()
        if reason:
            skipped[peer.name] = reason
        else:
            yield peer


def state(options):
    """What else a figure depends on."""
    return {
        "user": "root" if os.geteuid() == 0 else "an ordinary user",
        "load": round(os.getloadavg()[0], 1),
        "rounds": options.rounds,
        "tokens": options.tokens,
        "images": options.images,
    }


def measure(bench, row, peers, rounds, result):
    for _ in range(rounds):
        for peer in peers:
            if peer.limit and row not in LIMITED_ROWS:
                result["skipped"][f"{peer.name}, {row}"] = "takes some ms a file, and each more the more there are"
                continue
            bench.limit = peer.limit
            try:
                figures = ROWS[row](bench, peer)
            except (OSError, subprocess.SubprocessError) as failure:
                result["skipped"][f"{peer.name}, {row}"] = f"failed: {failure}"
                mount_peers.unmount(bench.point)
                continue
            for name, value in figures.items():
                result["figures"].setdefault(name, {}).setdefault(peer.name, []).append(value)


def main():
    repo = HERE.parents[1]
    os.environ["PATH"] += os.pathsep + str(Path(sys.executable).parent)  # ratarmount
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=Path, default=repo / "build")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", default=",".join(ROWS), help="of " + ",".join(ROWS))
    parser.add_argument("--peers", default="", help="names they begin with, comma-separated")
    parser.add_argument("--tokens", type=int, default=20000)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--many", default="200000,1000000")
    parser.add_argument("--folder", type=Path, help="keeps the corpora (default: a temporary one)")
    parser.add_argument("--results", type=Path, default=repo / "build" / "bench-results")
    options = parser.parse_args()
    rows = options.rows.split(",")
    unknown = set(rows) - set(ROWS)
    if unknown:
        parser.error(f"no such rows: {', '.join(sorted(unknown))}")
    sizes = {"tokens": options.tokens, "images": options.images, "many": list(map(int, options.many.split(",")))}

    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(exist_ok=True)
        bench = Bench(options.build.resolve(), folder, sizes)
        result = mount_report.load(options.results)
        skipped = {}
        peers = list(chosen_peers(options.build.resolve(), [n for n in options.peers.split(",") if n], skipped))
        fresh = {"figures": {}, "skipped": skipped, "machine": machine.facts(folder), "sizes": sizes}
        fresh["state"] = state(options)
        try:
            for row in rows:
                measure(bench, row, peers, options.rounds, fresh)
                mount_report.save(mount_report.merged(result, fresh), options.results)
        finally:
            os.rmdir(bench.point)
    print(mount_report.document(fresh))


if __name__ == "__main__":
    main()
