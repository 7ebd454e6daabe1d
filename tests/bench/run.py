#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs the suite: store tables warm and cold, and what grows; writes JSON, Markdown and SVG.

    make bench-quick                            under 10 minutes on 2 cores
    make bench                                  everything
    build/bench-venv/bin/python tests/bench/run.py --size quick --only 'token Dense,levels' \\
        --backends zrecord,loaderx-2.0.0,npy,limit

Sections: the four workloads (vision Dense, vision Ragged, token Dense, token Ragged), records,
sizes, batches, threads, levels, single, loaders.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import loaders
import machine
import plots
import report
import scaling
import settings as sizes
import stores
import workloads
import zrecord

REPO = Path(__file__).resolve().parents[2]
SCALING = ("records", "sizes", "batches", "threads", "levels", "single", "loaders")
START = time.monotonic()


def say(text):
    print(f"[{time.monotonic() - START:5.0f} s] {text}", file=sys.stderr, flush=True)


def scaling_section(name, folder, settings, make):
    """One table of scaling.py or loaders.py."""
    dense = ("vision Dense", "token Dense")
    if name == "records":
        return scaling.lengths(folder, settings)
    if name == "sizes":
        return scaling.record_sizes(folder, settings)
    if name == "batches":
        return scaling.batches(make("token Dense"), folder, settings)
    if name == "single":
        return scaling.single(make("token Dense"), folder, settings)
    if name == "threads":
        return scaling.threads(map(make, dense), folder, settings)
    if name == "levels":
        some = [make(work, count) for work, count in zip(dense, settings.level_counts)]
        return scaling.levels(some, folder, settings)
    return loaders.table(map(make, dense), folder, settings)


def measure(settings, sections, folder, kept, only=None):
    """Everything asked for, as one JSON document.  `kept` holds prepared text between runs."""

    def make(name, count=None):
        return workloads.make(name, count or settings.counts[name], kept)

    result = {"settings": settings.name, "machine": machine.facts(folder), "tables": []}
    for name in sizes.WORKLOADS:
        if name in sections:
            say(f"{name}: records")
            workload = make(name)
            say(f"{name}: {workload.note}")
            table = stores.table(
                name, workload, Path(folder) / "stores", settings, zrecord.thread_count(), only
            )
            result["tables"].append(table)
    for name in SCALING:
        if name in sections:
            say(name)
            result[name] = scaling_section(name, folder, settings, make)
    return result


def with_earlier(result, out):
    """The result of a run in parts: what the last run into `out` measured of other sections stays."""
    try:
        earlier = json.loads((out / "bench.json").read_text())
    except FileNotFoundError:
        return result
    if earlier["settings"] != result["settings"]:
        raise SystemExit(f"{out}: its run was {earlier['settings']}, this one {result['settings']}")
    tables = {table["title"]: table for table in earlier["tables"] + result["tables"]}
    ordered = [tables[name] for name in sizes.WORKLOADS if name in tables]
    return {**earlier, **result, "tables": ordered}


def write(result, out):
    """The three forms of a result."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "bench.json").write_text(json.dumps(result))
    (out / "bench.md").write_text("# Measured\n\n" + report.document(result))
    try:
        drawn = plots.draw(result, out)
    except ImportError as error:
        drawn = [f"no plots: {error}"]
    say(f"wrote bench.json, bench.md, {', '.join(drawn)} to {out}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=sorted(sizes.ALL), default="full")
    parser.add_argument("--only", help="comma-separated sections")
    parser.add_argument("--backends", help="comma-separated beginnings of rows")
    parser.add_argument(
        "--dir", type=Path, default=REPO / "build" / "bench-data", help="for stores"
    )
    parser.add_argument("--out", type=Path, default=REPO / "build" / "bench-results")
    parser.add_argument("--without", help="comma-separated codecs to leave out")
    parser.add_argument("--add", action="store_true", help="keep other sections of the run in --out")
    options = parser.parse_args()
    known = (*sizes.WORKLOADS, *SCALING)
    sections = options.only.split(",") if options.only else known
    if unknown := set(sections) - set(known):
        parser.error(f"unknown sections: {', '.join(sorted(unknown))}")
    only = options.backends.split(",") if options.backends else None
    settings = sizes.ALL[options.size]
    if options.without:
        settings = settings.leaving_out(options.without.split(","))
    options.dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="run-", dir=options.dir) as folder:
        result = measure(settings, sections, folder, options.dir, only)
    if options.add:
        result = with_earlier(result, options.out)
    write(result, options.out)


if __name__ == "__main__":
    main()
