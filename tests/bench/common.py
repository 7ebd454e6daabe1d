# SPDX-License-Identifier: MIT
"""What the Python benchmarks share: data, stores of both packages, interleaved rounds, tables."""

import argparse
import ctypes
import importlib
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import zrecord

REPO = Path(__file__).resolve().parents[2]
REFERENCE = Path(os.environ.get("ZRECORD_REF_LOADERX", REPO / ".venv" / "ref" / "loaderx-2.0.0"))


def reference(module):
    """A module of the loaderx 2.0.0 wheel, or None where it is not installed."""
    if not (REFERENCE / "loaderx").is_dir():
        return None
    if str(REFERENCE) not in sys.path:
        sys.path.insert(0, str(REFERENCE))
        # Its threads may outlive its library at exit, and crash then: keep that loaded.
        ctypes.CDLL(str(REFERENCE / "loaderx" / "lib" / "libstore.so"))
    return importlib.import_module(f"loaderx.{module}")


# ---------------------------------------------------------------- data


def vision(count=2000, shape=(3, 224, 224), seed=1):
    """Smooth images: each channel a plane wave of its own."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0 : shape[1], 0 : shape[2]].astype(np.float32)
    images = np.empty((count, *shape), np.uint8)
    for image in images:
        for channel in image:
            fx, fy, phase = rng.uniform((0.005, 0.005, 0.0), (0.05, 0.05, 6.0)).astype(np.float32)
            channel[:] = 128 + 100 * np.sin(fx * x + fy * y + phase)
    return images


def zipf(rng, size, vocabulary=50_000):
    """Token ids whose frequencies fall as 1 / rank."""
    ids = np.exp(rng.random(size, dtype=np.float32) * np.float32(np.log(vocabulary)))
    return ids.astype(np.int32)


def tokens(count=200_000, width=512, seed=2):
    return zipf(np.random.default_rng(seed), (count, width))


def sequences(count=200_000, seed=3):
    """Sequences of 16..512 tokens, 146 in the mean."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(4.8, 0.62, count), 16, 512).astype(int)
    flat = zipf(rng, int(lengths.sum()))
    return np.split(flat, np.cumsum(lengths)[:-1])


# ---------------------------------------------------------------- measuring


def interleaved(contenders, plans, warmup=3, burst=20):
    """Seconds of every plan for each contender.

    Contenders take turns, `burst` plans at a time: loaders gather back to back, so a turn has to be
    long enough for threads to be awake and recycled memory to be warm, whoever's they are.
    """
    for plan in plans[:warmup]:
        for run in contenders.values():
            run(plan)
    times = {name: [] for name in contenders}
    for number, first in enumerate(range(0, len(plans), burst)):
        order = list(contenders.items())
        for name, run in order if number % 2 else reversed(order):
            for plan in plans[first : first + burst]:
                start = time.perf_counter()
                result = run(plan)
                times[name].append(time.perf_counter() - start)
                del result
    return times


def summary(times):
    """Median and the spread between the 10th and 90th percentile, in seconds."""
    ordered = sorted(times)
    return {
        "median": statistics.median(ordered),
        "p10": ordered[len(ordered) // 10],
        "p90": ordered[len(ordered) * 9 // 10],
        "rounds": len(ordered),
    }


def machine():
    return {
        "cpu": platform.processor() or platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "zrecord": zrecord.__version__,
        "reference": "loaderx 2.0.0" if reference("zrecord") else None,
    }


def options(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--only", default="", help="comma-separated parts of the names of workloads"
    )
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of records")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument(
        "--dir", type=Path, help="where the stores are built (default: a temporary folder)"
    )
    return parser


def workspace(chosen):
    return tempfile.TemporaryDirectory(prefix="zrecord-bench-", dir=chosen)


def wanted(name, only):
    return not only or any(part in name for part in only.split(","))


def report(title, columns, rows, path=None):
    """A Markdown table on stdout, and all figures as JSON where wanted."""
    print(f"\n### {title}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for row in rows:
        print("| " + " | ".join(str(row.get(column, "")) for column in columns) + " |")
    if path:
        path.write_text(json.dumps({"machine": machine(), "title": title, "rows": rows}, indent=1))
