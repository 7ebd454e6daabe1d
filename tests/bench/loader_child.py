#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""One loader in a process of its own, run in turns by loader_bench.py.

    loader_child.py KIND FOLDER ARGUMENT

Reads one JSON command a line, writes one JSON answer a line: {"do": "check"} looks at the first
batches, {"do": "run", "seconds": s, "transform": name, "pause": s} times a run of its own with a few
batches before it that are not counted; the consumer sleeps for `pause` after each.  Between commands nothing runs: each run is ended.
"""

import hashlib
import json
import sys
import time

import numpy as np

WARMUP = 6


def touch(values):
    """A cheap consumer that still reads from every record."""
    if isinstance(values, list):
        return sum(int(record.flat[0]) for record in values)
    if isinstance(values, tuple):
        return int(values[0][::64].sum())
    return int(values.reshape(len(values), -1)[:, ::4096].sum())


def records(values):
    if isinstance(values, tuple):
        flat, cuts, shapes = (np.asarray(part) for part in values)
        return [flat[a:b].reshape(tuple(map(int, shape)))
                for a, b, shape in zip(cuts, cuts[1:], shapes)]  # fmt: skip
    return list(values)


def digest(record):
    record = np.ascontiguousarray(record)
    return hashlib.blake2b(record, digest_size=8).hexdigest() + str((record.shape, record.dtype))


def check(peer):
    """Digests of the records of three batches."""
    steps = peer.start(shown=True) if hasattr(peer, "SHOW") else peer.start()
    try:
        return [[digest(r) for r in records(peer.values(next(steps)))] for _ in range(3)]
    finally:
        steps.close()


def run(peer, seconds, transform, pause):
    """Batches a second, and the seconds of each."""
    steps = peer.start(transform) if transform else peer.start()
    try:
        for _ in range(WARMUP):
            batch = next(steps)
            touch(peer.values(batch))
        laps = []
        start = before = time.perf_counter()
        while before - start < seconds or not laps:
            batch = next(steps)
            touch(peer.values(batch))
            if pause:
                time.sleep(pause)
            now = time.perf_counter()
            laps.append(now - before)
            before = now
        laps.sort()
        return {"rate": len(laps) / (before - start), "p95": laps[int(0.95 * (len(laps) - 1))]}
    finally:
        steps.close()


def main():
    import loader_peers
    import loader_transforms

    kind, folder, argument = sys.argv[1:]
    peer = loader_peers.make(kind, folder, argument)
    print(json.dumps("open"), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "check":
            answer = check(peer)
        else:
            transform = loader_transforms.get(command.get("transform"))
            answer = run(peer, command["seconds"], transform, command.get("pause", 0))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
