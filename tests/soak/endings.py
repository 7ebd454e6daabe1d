# SPDX-License-Identifier: MIT
"""Mounts that end at any moment, by any way, with work in flight: each daemon has to end in time.

    python tests/soak/endings.py [--rounds 200] [--build build] [--busy 4] [--seconds 5] [--transport classic,uring]

A round mounts, lets some readers go at it (or none), and after a random pause, often none at all,
ends the mount: an unmount, a lazy one, a signal, or the kernel's abort.  Beside it run programs
that only burn CPU.  Root only, since io_uring and abort are.
"""

import argparse
import collections
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import zrecord

CONTEXT = multiprocessing.get_context("fork")
TOKENS, IMAGES = 3000, 60
ENABLE_URING = Path("/sys/module/fuse/parameters/enable_uring")


def make(folder):
    with zrecord.Dense.create(folder / "tokens", "<i4", (512,), "zstd") as ds:
        ds.append(np.arange(TOKENS * 512, dtype="<i4").reshape(TOKENS, 512) // 7)
    with zrecord.Dense.create(folder / "images", "u1", (150_000,), "zstd") as ds:
        ds.append(np.random.default_rng(1).integers(0, 8, (IMAGES, 150_000), dtype="u1"))
    return folder


# ---------------------------------------------------------------- what goes on meanwhile


def in_order(point):
    os.listdir(point / "tokens")
    for i in range(TOKENS):
        (point / "tokens" / f"{i:08d}.npy").read_bytes()


def images_in_order(point):
    os.listdir(point / "images")
    for i in range(IMAGES):
        (point / "images" / f"{i:08d}.npy").read_bytes()


def at_random(point):
    while True:
        (point / "tokens" / f"{random.randrange(TOKENS):08d}.npy").read_bytes()


def prefetch(point):
    for name in ("tokens", "images"):
        os.listdir(point / name)
        (point / name / ".views" / "prefetch" / ":").read_bytes()


def mapped(point):
    np.load(point / "tokens" / ".views" / "all.npy", mmap_mode="r").sum()


LOADS = (in_order, images_in_order, at_random, prefetch, mapped)


def run_load(load, seed, point):
    random.seed(seed)
    try:
        load(point)
    except OSError:
        pass  # it is being taken away


def start_loads(point):
    chosen = random.sample(LOADS, random.randrange(4))
    started = [CONTEXT.Process(target=run_load, args=(load, random.random(), point)) for load in chosen]
    for process in started:
        process.start()
    return [load.__name__ for load in chosen], started


def stop_loads(started):
    for process in started:
        process.kill()
        process.join()


# ---------------------------------------------------------------- ways to end


def device_of(point):
    """Its line of mountinfo gives MAJOR:MINOR; None when it is not mounted."""
    lines = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return next((fields[2] for fields in lines if fields[4] == str(point)), None)


def unmount(point, daemon):
    """Nobody may use it any more; what the daemon pushes goes on until then."""
    while device_of(point) and subprocess.run(["fusermount3", "-u", point], capture_output=True).returncode:
        time.sleep(0.001)


def unmount_lazily(point, daemon):
    subprocess.run(["umount", "-l", point], check=True)


def terminate(point, daemon):
    daemon.send_signal(random.choice([signal.SIGTERM, signal.SIGINT, signal.SIGHUP]))


def abort(point, daemon):
    device = device_of(point)
    if device:
        (point.parent / "connections" / device.partition(":")[2] / "abort").write_text("1")


WAYS = (unmount, unmount_lazily, terminate, abort)


def mount(program, transport, source, point, log):
    command = [program, "-f", "-o", f"transport={transport},{random.choice(['cache=4M', 'cache=64M'])}", source, point]
    daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    while not device_of(point) and daemon.poll() is None:
        time.sleep(0.0005)
    return daemon


def await_answer(point, log, daemon):
    """Sometimes not at all: then the end comes while the transports are being started."""
    while b"is mounted on" not in Path(log.name).read_bytes() and daemon.poll() is None:
        time.sleep(0.001)


def run_round(options, transport, source, point):
    """(a line that says what was done, seconds until the end, None when there was none)."""
    way = random.choice(WAYS)
    is_early = random.random() < 0.15
    with tempfile.NamedTemporaryFile() as log:
        daemon = mount(options.build / "zrecordfs", transport, source, point, log)
        if not is_early:
            await_answer(point, log, daemon)
        names, loads = ([], []) if is_early else start_loads(point)
        pause = random.choice([0, 0, random.random() * 0.02, random.random() * 0.3])
        time.sleep(pause)
        if way is unmount:
            stop_loads(loads)
        start = time.monotonic()
        way(point, daemon)
        if way is unmount_lazily:
            stop_loads(loads)  # it lasts as long as somebody uses it
        told = f"{transport} {way.__name__} after {pause * 1e3:.1f} ms{', early' * is_early}, {' '.join(names)}"
        try:
            code = daemon.wait(options.seconds)
            seconds = time.monotonic() - start
            if code != 0 and not is_early:
                print(f"{told}: code {code}: {Path(log.name).read_text()}")
                seconds = None
        except subprocess.TimeoutExpired:
            print(f"{told}: no end; its threads:")
            show_threads(daemon.pid)
            daemon.kill()
            seconds = None
        daemon.wait()
        stop_loads(loads)
        while device_of(point):
            subprocess.run(["umount", "-l", point])
    return way.__name__, seconds


def show_threads(pid):
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            stat = (task / "stat").read_text().rpartition(")")[2].split()
            policy = os.sched_getscheduler(int(task.name))
            print(" ", (task / "comm").read_text().strip(), stat[0], f"policy {policy}", (task / "stack").read_text().split("\n")[:6])
        except OSError:
            pass


def burn():
    while True:
        pass


def main():
    repo = Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--build", type=Path, default=repo / "build")
    parser.add_argument("--busy", type=int, default=4, help="programs that burn CPU beside it")
    parser.add_argument("--seconds", type=float, default=5, help="in which each daemon has to end")
    parser.add_argument("--transport", default="classic,uring")
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    options.build = options.build.resolve()
    seed = options.seed if options.seed is not None else random.randrange(1 << 32)
    print("seed", seed, flush=True)
    random.seed(seed)
    burners = [CONTEXT.Process(target=burn, daemon=True) for _ in range(options.busy)]
    for burner in burners:
        burner.start()
    took = collections.defaultdict(list)
    failures = 0
    before = ENABLE_URING.read_text().strip()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source")
        source.mkdir()
        make(source)
        point = Path(folder, "mnt")
        point.mkdir()
        connections = Path(folder, "connections")
        connections.mkdir()
        subprocess.run(["mount", "-t", "fusectl", "none", connections], check=True)
        try:
            if "uring" in options.transport:
                ENABLE_URING.write_text("Y")
            for _ in range(options.rounds):
                transport = random.choice(options.transport.split(","))
                way, seconds = run_round(options, transport, source, point)
                failures += seconds is None
                took[transport, way].append(seconds or 0)
        finally:
            ENABLE_URING.write_text(before)
            stop_loads(burners)
            for path in (connections, point):
                subprocess.run(["umount", "-l", path], stderr=subprocess.DEVNULL)
    for key, all_seconds in sorted(took.items()):
        print(*key, f"{len(all_seconds)} times, at most {max(all_seconds):.2f} s")
    if failures:
        sys.exit(f"FAILED: {failures} of {options.rounds}")
    print("all ended")


if __name__ == "__main__":
    main()
