#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The DataLoader tables: batches a second, memory, transforms and import time, beside other loaders.

    tests/bench/loader_bench.py [--size full] [--only vision,tokens,ragged,transforms,memory,import]
                                [--peers zrecord,loaderx] [--out build/loader-results] [--add]
    tests/bench/loader_bench.py --readme README.md

Each loader lives in a process of its own; a round gives each a run of a few seconds, one after the
other in changing order, and a run is ended before the next begins.  Figures are medians of the
rounds.  Before anything is timed, every record of the first batches is compared with what was
written.  Run with build/loaders-venv, which `make bench-loaders` makes.

With --add, rows that an earlier run of the same size did not have join its results; how much slower
than zrecord each row is was measured inside its own run.  --readme runs nothing, but puts the tables
of the last run between that file's markers.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import loader_child
import machine
import numpy as np
import report
import rounds
import workloads
import zrecord

REPO = Path(__file__).resolve().parents[2]
CHILD = Path(__file__).with_name("loader_child.py")
REFERENCE = Path(sys.prefix) / "ref" / "loaderx-2.0.0"
SECTIONS = ("vision", "tokens", "ragged", "transforms", "memory", "import")
# Rows of each section: (name, kind, argument).
VISION = (
    ("zrecord raw", "zrecord", "raw"),
    ("zrecord zstd", "zrecord", "zstd"),
    ("gather loop raw", "gather", "raw"),
    ("gather loop zstd", "gather", "zstd"),
    ("bare C raw", "bare", "raw"),
    ("bare C zstd", "bare", "zstd"),
    ("loaderx-2.0.0 raw", "loaderx-2.0.0", "raw"),
    ("loaderx-2.0.0 zstd", "loaderx-2.0.0", "zstd"),
    ("loaderx-new raw", "loaderx-new", "raw"),
    ("loaderx-new zstd", "loaderx-new", "zstd"),
    ("torch, in process", "torch", "0"),
    ("torch, 1 worker", "torch", "1"),
    ("torch, 2 workers", "torch", "2"),
    ("torch, 4 workers", "torch", "4"),
    ("torch, 2 workers, spawn", "torch", "2 spawn"),
    ("torch, in process, whole batches", "torch", "0 batched"),
    ("torch, 2 workers, whole batches", "torch", "2 batched"),
    ("grain, threads", "grain", "raw"),
    ("grain, 2 processes", "grain", "raw 2"),
)
TOKENS = (
    ("zrecord raw", "zrecord", "raw"),
    ("zrecord zstd", "zrecord", "zstd"),
    ("gather loop raw", "gather", "raw"),
    ("gather loop zstd", "gather", "zstd"),
    ("loaderx-2.0.0 raw", "loaderx-2.0.0", "raw"),
    ("loaderx-2.0.0 zstd", "loaderx-2.0.0", "zstd"),
    ("loaderx-new raw", "loaderx-new", "raw"),
    ("loaderx-new zstd", "loaderx-new", "zstd"),
)
RAGGED = (
    ("zrecord raw, packed", "zrecord", "raw packed"),
    ("zrecord raw, list", "zrecord", "raw"),
    ("zrecord zstd, packed", "zrecord", "zstd packed"),
    ("gather loop raw, packed", "gather", "raw packed"),
    ("loaderx-2.0.0 raw, list", "loaderx-2.0.0", "raw"),
    ("loaderx-2.0.0 zstd, list", "loaderx-2.0.0", "zstd"),
    ("loaderx-new raw, packed", "loaderx-new", "raw"),
)
TRANSFORMED = ("zrecord raw", "zrecord zstd", "loaderx-2.0.0 raw", "loaderx-2.0.0 zstd")
TRANSFORMED += ("loaderx-new raw", "loaderx-new zstd")
MEMORY = ("zrecord raw", "zrecord zstd", "loaderx-2.0.0 raw", "loaderx-2.0.0 zstd", "loaderx-new raw")
MEMORY += ("loaderx-new zstd", "torch, 2 workers", "torch, 2 workers, spawn", "grain, threads")
DONE = "note.txt"  # in a workload's folder, once all its stores are written
BEGIN, END = "<!-- loaders:begin -->", "<!-- loaders:end -->"
SLOW_SECONDS = 0.03  # of a consumer that lets every queue fill
SIZES = {
    "full": ({"vision Dense": 2000, "token Dense": 200_000, "token Ragged": 200_000}, 1.0, 7),
    "quick": ({"vision Dense": 2000, "token Dense": 100_000, "token Ragged": 100_000}, 0.4, 5),
    "tiny": ({"vision Dense": 300, "token Dense": 600, "token Ragged": 600}, 0.02, 1),
}


class Missing(Exception):
    """A loader that cannot take part, and why."""


# ---------------------------------------------------------------- data


def write_stores(workload, folder):
    """The records as every loader wants them."""
    folder.mkdir(parents=True, exist_ok=True)
    shape = () if workload.ragged else (workload.records.shape[1:],)
    kind = zrecord.Ragged if workload.ragged else zrecord.Dense
    for codec in ("raw", "zstd"):
        with kind.create(folder / f"zrecord-{codec}", workload.dtype, *shape, codec) as store:
            store.append(workload.records)
    if not workload.ragged:
        np.save(folder / "records.npy", workload.records)
        np.save(folder / "schema.npy", np.zeros(workload.records.shape[1:], workload.dtype))
    for write in (write_loaderx, write_arrayrecord):
        try:
            write(workload, folder)
        except ImportError as error:
            print(f"SKIP {write.__name__}: {error}", file=sys.stderr)


def kept(name, folder):
    """The Dense workload of an earlier run with --keep, or None; images take long to make."""
    done, records = folder / DONE, folder / "records.npy"
    if not done.exists() or not records.exists():
        return None
    return workloads.Workload(name, np.load(records, mmap_mode="r"), done.read_text())


def write_loaderx(workload, folder):
    import loaderx.zrecord as stores

    for codec in ("raw", "zstd"):
        place = folder / f"loaderx-{codec}"
        if workload.ragged:
            writer = stores.Ragged.create(place, workload.dtype, workload.ndim, codec=codec)
            writer.append(stores.RaggedBatch.from_records(workload.records))
        else:
            writer = stores.Dense.create(
                place, workload.dtype, workload.records.shape[1:], codec=codec
            )
            writer.append(workload.records)
        writer.close()


def write_arrayrecord(workload, folder):
    from array_record.python.array_record_module import ArrayRecordWriter

    if not workload.name.startswith("vision"):
        return
    writer = ArrayRecordWriter(str(folder / "raw.array_record"), "group_size:1,uncompressed")
    for record in workload.records:
        writer.write(record.tobytes())
    writer.close()


# ---------------------------------------------------------------- loaders as processes


class Loader:
    """A loader in its process; None of its threads run between commands."""

    def __init__(self, name, kind, argument, folder):
        self.name = name
        environment = {**os.environ, "ZRECORD_REF_LOADERX": str(REFERENCE)}
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", CHILD, kind, folder, argument],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            text = self.process.communicate()[1].strip().splitlines()
            raise Missing(text[-1] if text else f"ended with {self.process.returncode}")
        return json.loads(line)

    def ask(self, **command):
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self):
        if self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for pipe in (self.process.stdout, self.process.stderr):
            pipe.close()


def launched(rows, folder, wanted):
    """The loaders that start here, and why the others do not."""
    found, skipped = [], {}
    for name, kind, argument in rows:
        if wanted and not any(name.startswith(part) for part in wanted):
            continue
        try:
            found.append(Loader(name, kind, argument, folder))
        except Missing as error:
            skipped[name] = str(error)
    return found, skipped


def check(loaders, workload):
    """Every record of the first batches is one that was written, and not the same one always."""
    written = set(map(loader_child.digest, workload.records))
    for loader in loaders:
        for batch in loader.ask(do="check"):
            if len(batch) != workload.batch or set(batch) - written or len(set(batch)) < 32:
                raise AssertionError(f"{loader.name}: a batch that is none of the workload")


# ---------------------------------------------------------------- tables


def ours(middle, name):
    """What a row is measured against: this package's loader on a store of the same codec."""
    codec = "zstd" if "zstd" in name else "raw"
    return middle.get(f"zrecord {codec}") or middle.get(f"zrecord {codec}, packed")


def rates(loaders, seconds, number, **command):
    """Interleaved rounds: for each loader the medians of its runs."""
    laps = {loader.name: [] for loader in loaders}
    for k in range(number):
        for loader in rounds.rotated(loaders, k):
            laps[loader.name].append(loader.ask(do="run", seconds=seconds, **command))
    middle = {name: statistics.median(run["rate"] for run in runs) for name, runs in laps.items()}
    return [
        {
            "loader": name,
            "batches_per_second": middle[name],
            "ratio": ours(middle, name) / middle[name] if ours(middle, name) else None,
            "low": min(run["rate"] for run in runs),
            "high": max(run["rate"] for run in runs),
            "p95_seconds": statistics.median(run["p95"] for run in runs),
            "rounds": [run["rate"] for run in runs],
        }
        for name, runs in laps.items()
    ]


def throughput(rows, workload, folder, seconds, number, wanted):
    loaders, skipped = launched(rows, folder, wanted)
    try:
        check(loaders, workload)
        return {"note": workload.note, "rows": rates(loaders, seconds, number), "skipped": skipped}
    finally:
        for loader in loaders:
            loader.close()


def transforms(workload, folder, seconds, number, wanted):
    """The same loaders with a transform of the batch written in three ways."""
    rows = [row for row in VISION if row[0] in TRANSFORMED]
    loaders, skipped = launched(rows, folder, wanted)
    result = []
    try:
        for name in ("python", "numpy", "numba"):
            try:
                if name == "numba":
                    __import__("numba")
            except ImportError as error:
                skipped["numba"] = str(error)
                continue
            for row in rates(loaders, seconds, number, transform=name):
                result.append({**row, "transform": name})
    finally:
        for loader in loaders:
            loader.close()
    return {"rows": result, "skipped": skipped}


# ---------------------------------------------------------------- memory


def tree(pid):
    """A process and all below it."""
    found, parents = [pid], {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(path.parent.name))
    for one in found:
        found += parents.get(one, [])
    return found


def proportional_nbytes(pid):
    """Sums of the proportional set sizes of a process tree: all, and without pages of files."""
    total, anonymous = 0, 0
    for one in tree(pid):
        try:
            text = Path(f"/proc/{one}/smaps_rollup").read_text()
        except OSError:
            continue
        sizes = dict(line.split()[:2] for line in text.splitlines()[1:])
        total += int(sizes["Pss:"])
        anonymous += int(sizes["Pss_Anon:"]) + int(sizes["Pss_Shmem:"])
    return total * 1024, anonymous * 1024


def peak(loader, seconds, pause):
    """Highest sizes during a run; sampling slows the run, which is not timed."""
    done = threading.Event()
    highest = (0, 0)

    def sample():
        nonlocal highest
        while not done.wait(0.02):
            highest = tuple(map(max, highest, proportional_nbytes(loader.process.pid)))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        loader.ask(do="run", seconds=seconds, pause=pause)
    finally:
        done.set()
        thread.join()
    return highest


def memory(folder, seconds, wanted):
    """Peaks with a consumer that only looks at the batches, and with a slow one."""
    rows = [row for row in VISION if row[0] in MEMORY]
    result, missing = [], {}
    for row in rows:
        loaders, skipped = launched([row], folder, wanted)
        missing.update(skipped)
        for loader in loaders:
            for name, pause in (("fast", 0), ("slow", SLOW_SECONDS)):
                total, anonymous = peak(loader, seconds, pause)
                result.append(
                    {
                        "loader": loader.name,
                        "consumer": name,
                        "peak_pss_nbytes": total,
                        "peak_anonymous_nbytes": anonymous,
                    }
                )
            loader.close()
    return {"rows": result, "skipped": missing}


# ---------------------------------------------------------------- import


IMPORTS = {
    "python": "pass",
    "numpy": "import numpy",
    "zrecord": "import zrecord",
    "zrecord and DataLoader": "import zrecord; zrecord.DataLoader",
    "loaderx 2.0.0 and its DataLoader": "import sys; sys.path.insert(0, REFERENCE); "
    "from loaderx.dataloader import DataLoader",
}


def imports(number):
    """Milliseconds of a fresh interpreter that imports and ends."""
    seconds = {name: [] for name in IMPORTS}
    for _ in range(number * 4):
        for name, code in IMPORTS.items():
            code = code.replace("REFERENCE", repr(str(REFERENCE)))
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            seconds[name].append(time.perf_counter() - start)
    return {
        "rows": [
            {"what": name, "seconds": statistics.median(laps)} for name, laps in seconds.items()
        ]
    }


# ---------------------------------------------------------------- report


def rate_table(table):
    lines = []
    for row in table["rows"]:
        middle = row["batches_per_second"]
        lines.append(
            [
                row["loader"],
                report.number(middle),
                f"−{100 * (1 - row['low'] / middle):.0f} +{100 * (row['high'] / middle - 1):.0f} %",
                report.milliseconds(row["p95_seconds"]),
                f"{row['ratio']:.2f}" if row["ratio"] else "–",
            ]
        )
    columns = ["loader", "batches/s", "spread", "p95", "zrecord over it"]
    return report.markdown(columns, lines) + report.left_out(table["skipped"])


def transform_table(table):
    return report.pivot(
        table, "loader", "transform", lambda r: report.number(r["batches_per_second"]), "batches/s"
    )


def memory_table(table):
    lines = []
    for name in dict.fromkeys(row["loader"] for row in table["rows"]):
        cells = [row for row in table["rows"] if row["loader"] == name]
        lines.append(
            [name]
            + [report.mebibytes(row[key]) for row in cells
               for key in ("peak_pss_nbytes", "peak_anonymous_nbytes")]
        )  # fmt: skip
    columns = ["loader", "peak PSS", "without files", "slow consumer", "without files"]
    return report.markdown(columns, lines) + report.left_out(table["skipped"])


def import_table(table):
    lines = [[row["what"], f"{row['seconds'] * 1e3:.1f} ms"] for row in table["rows"]]
    return report.markdown(["a process that imports", "all of it"], lines)


HEADINGS = (
    ("vision", "Images, Dense", rate_table),
    ("tokens", "Tokens, Dense", rate_table),
    ("ragged", "Tokens, Ragged", rate_table),
    ("transforms", "Transforms of images", transform_table),
    ("memory", "Memory, images", memory_table),
    ("import", "Import", import_table),
)


def document(result, level="##"):
    parts = [report.machine(result["machine"], f"make bench-loaders SIZE={result['size']}")]
    for key, heading, show in HEADINGS:
        if key in result:
            note = result[key].get("note")
            text = (f"{note}.\n\n" if note else "") + show(result[key])
            parts.append(f"{level} {heading}\n\n{text}")
    return "\n\n".join(parts) + "\n"


def joined(earlier, result):
    """The earlier result with the sections and rows that it did not have."""
    if earlier["size"] != result["size"]:
        return result
    for key in SECTIONS:
        if key in result:
            mine = earlier.setdefault(key, result[key])
            known = {identity(row) for row in mine["rows"]}
            mine["rows"] += [row for row in result[key]["rows"] if identity(row) not in known]
            here = {row["loader"] for row in mine["rows"] if "loader" in row}
            skipped = {**mine.get("skipped", {}), **result[key].get("skipped", {})}
            mine["skipped"] = {name: why for name, why in skipped.items() if name not in here}
    return earlier


def identity(row):
    return tuple(row.get(key) for key in ("loader", "transform", "consumer", "what"))


def rewrite(text, result):
    """README's text with the tables between its markers."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"there must be one {BEGIN} before one {END}")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{document(result, '####')}\n{END}{rest.split(END)[1]}"


# ---------------------------------------------------------------- running


def measure(options, folder):
    counts, seconds, number = SIZES[options.size]
    wanted = options.peers.split(",") if options.peers else None
    sections = options.only.split(",") if options.only else SECTIONS
    result = {"size": options.size, "machine": machine.facts(folder)}
    tables = {"vision": ("vision Dense", VISION), "tokens": ("token Dense", TOKENS),
              "ragged": ("token Ragged", RAGGED)}  # fmt: skip
    images = folder / "vision Dense"
    for key, (name, rows) in tables.items():
        on_images = key == "vision" and {"transforms", "memory"} & set(sections)
        if key not in sections and not on_images:
            continue
        place = folder / name
        workload = kept(name, place) or workloads.make(name, counts[name], options.dir)
        if not (place / DONE).exists():
            shutil.rmtree(place, ignore_errors=True)
            write_stores(workload, place)
            (place / DONE).write_text(workload.note)
        if key in sections:
            result[key] = throughput(rows, workload, place, seconds, number, wanted)
    if "transforms" in sections:
        result["transforms"] = transforms(None, images, seconds, number, wanted)
    if "memory" in sections:
        result["memory"] = memory(images, 3 * seconds, wanted)
    if "import" in sections:
        result["import"] = imports(number)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=sorted(SIZES), default="full")
    parser.add_argument("--only", help="comma-separated sections")
    parser.add_argument("--peers", help="comma-separated beginnings of rows")
    parser.add_argument("--dir", type=Path, default=REPO / "build" / "bench-data")
    parser.add_argument("--out", type=Path, default=REPO / "build" / "loader-results")
    parser.add_argument("--keep", action="store_true", help="keep the data for the next run")
    parser.add_argument("--add", action="store_true", help="add to the results of an earlier run")
    parser.add_argument("--readme", type=Path, help="only put the tables of the last run there")
    options = parser.parse_args()
    target = options.out / "loaders.json"
    if options.readme:
        text = rewrite(options.readme.read_text(), json.loads(target.read_text()))
        options.readme.write_text(text)
        return
    folder = options.dir / f"loaders-{options.size}"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        result = measure(options, folder)
    finally:
        if not options.keep:
            shutil.rmtree(folder)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.add and target.exists():
        result = joined(json.loads(target.read_text()), result)
    target.write_text(json.dumps(result))
    (options.out / "loaders.md").write_text("# Measured\n\n" + document(result))
    print(document(result))


if __name__ == "__main__":
    main()
