# SPDX-License-Identifier: MIT
"""Memmap archives beside tensordict, torch.save and safetensors, on the same trees.

    python tests/bench/archive_bench.py [--only NAME ...] [--rounds N] [--out FOLDER] [--folder FOLDER]

Every candidate writes and reads the same tensors; what it reads is compared with them before its
time counts.  The candidates take turns in each round, in another order each time; figures are
medians of the rounds with the slowest and fastest.  The page cache is warm, nothing is synced,
saves go to new files.
torch.save and safetensors hold flat dicts with dotted keys, which are not nested again on loading.
Writes archives.json, archives.md and SVG plots into the folder.  --readme README.md runs nothing, but
puts the tables of the last run between that file's markers.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import machine
import numpy as np
import plots
import report
import safetensors
import safetensors.torch
import tensordict
import torch
import zrecord
from rounds import rotated

MIB = 1 << 20
LEAVES = (10, 100, 1000, 10_000, 100_000)
OURS, THEIRS = "zrecord", "tensordict"


# ---------------------------------------------------------------- trees


def flat(count=8, nbytes=256 * MIB):
    return {f"leaf{i}": torch.rand(nbytes // count // 4) for i in range(count)}


def small(count=2000, nbytes=50 * MIB, groups=100):
    each = max(1, nbytes // count // 4)
    return {
        f"group{g}": {f"leaf{i}": torch.rand(each) for i in range(count // groups)}
        for g in range(groups)
    }


def masks(count=2000, nbytes=49 * MIB, groups=100):
    each = nbytes // count
    return {
        f"group{g}": {
            f"leaf{i}": (torch.rand(each) > 0.9).to(torch.uint8) for i in range(count // groups)
        }
        for g in range(groups)
    }


def as_numpy(tree):
    return {k: as_numpy(v) if isinstance(v, dict) else v.numpy() for k, v in tree.items()}


def dotted(tree, prefix=""):
    flat_tree = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat_tree.update(dotted(value, f"{prefix}{key}."))
        else:
            flat_tree[f"{prefix}{key}"] = value
    return flat_tree


def leaves_of(loaded):
    """(dotted key, numpy array) of whatever a candidate loads."""
    if isinstance(loaded, tensordict.TensorDictBase):
        for key, value in loaded.items(True, True):
            yield ".".join(key) if isinstance(key, tuple) else key, value.numpy()
    elif isinstance(loaded, zrecord.archive.ArchiveTree):
        for key, value in loaded.leaves():
            yield ".".join(key), value if isinstance(value, np.ndarray) else value.numpy()
    else:
        for key, value in loaded.items():
            yield key, value.numpy()


def check(name, loaded, tree):
    found = dict(leaves_of(loaded))
    wanted = dotted(tree)
    if found.keys() != wanted.keys() or any(
        not np.array_equal(found[key], value.numpy()) for key, value in wanted.items()
    ):
        sys.exit(f"{name}: what it loads is not what was saved")


# ---------------------------------------------------------------- candidates


class Candidate:
    """One format: how it saves a tree and opens it again."""

    def __init__(self, name, suffix, prepare, save, load):
        self.name, self.suffix = name, suffix
        self.prepare, self._save, self._load = prepare, save, load

    def at(self, folder, what):
        return folder / f"{what}-{self.name}{self.suffix}"

    def save(self, prepared, folder, what, **options):
        self._save(prepared, self.at(folder, what), **options)

    def load(self, folder, what, **options):
        return self._load(self.at(folder, what), **options)


def save_tensordict(td, path, **options):
    td.save(path, **options)


def torch_load(path):
    return torch.load(path, mmap=True, weights_only=True)


CANDIDATES = [
    Candidate(OURS, ".tdz", as_numpy, zrecord.save_archive, zrecord.load_archive),
    Candidate(
        f"{OURS}, torch leaves",
        ".tdz",
        lambda tree: tree,
        zrecord.save_archive,
        lambda path, **o: zrecord.load_archive(path, torch=True, **o),
    ),
    Candidate(
        THEIRS,
        ".tdz",
        lambda tree: tensordict.TensorDict(tree, []),
        save_tensordict,
        tensordict.TensorDict.load_memmap,
    ),
    Candidate("torch.save", ".pt", dotted, torch.save, torch_load),
    Candidate(
        "safetensors",
        ".safetensors",
        dotted,
        safetensors.torch.save_file,
        safetensors.torch.load_file,
    ),
]
ARCHIVES = [c for c in CANDIDATES if c.name in (OURS, THEIRS)]


def race(works, rounds, before=None):
    """{name: seconds of each round}; works is {name: function}, which may tell its seconds itself.
    before(name) makes room for works that write, which also get warm memory."""
    seconds = {name: [] for name in works}
    for name, work in works.items():
        if before:
            before(name)
        work()  # the first call imports and allocates
    for number in range(rounds):
        for name in rotated(list(works), number):
            if before:
                before(name)
                machine.warm_memory()
            start = time.perf_counter()
            told = works[name]()
            took = time.perf_counter() - start
            seconds[name].append(told if isinstance(told, float) else took)
            told = None  # else the next candidate's time would hold the freeing of this one's tree
    return seconds


# ---------------------------------------------------------------- tables


class Bench:
    def __init__(self, folder, options):
        self.folder, self.rounds, self.most_leaves = folder, options.rounds, options.leaves
        self.limit_program = options.limit
        self.tables = {}

    def note(self, table, title, seconds):
        rows = [
            {"candidate": n, "seconds": statistics.median(s), "low": min(s), "high": max(s)}
            for n, s in seconds.items()
        ]
        self.tables.setdefault(table, []).append({"work": title, "rows": rows})
        print(f"{table}, {title}: " + ", ".join(f"{r['candidate']} {report.milliseconds(r['seconds'])}" for r in rows), flush=True)  # fmt: skip

    def save_all(self, tree, what, candidates=CANDIDATES, **options):
        for candidate in candidates:
            candidate.save(candidate.prepare(tree), self.folder, what, **options)
            check(candidate.name, candidate.load(self.folder, what), tree)

    def anew(self, what):
        """For race: saves go to new files, since ext4 writes a new file out before the rename by
        which it replaces one, and the next candidate would find the disk busy with that."""
        at = {c.name: c.at(self.folder, what) for c in CANDIDATES}
        return lambda name: name in at and at[name].unlink(missing_ok=True)

    def limit(self, what, *args):
        """The seconds that the bare program needs for the same."""

        def run():
            path = self.folder / "limit"
            done = subprocess.run([self.limit_program, what, path, *map(str, args)], check=True, capture_output=True)  # fmt: skip
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            return float(done.stdout)

        return run

    def save(self):
        for what, tree in (("256 MiB in 8 leaves", flat()), ("50 MiB in 2000 leaves", small())):
            prepared = {c.name: (c, c.prepare(tree)) for c in CANDIDATES}
            self.save_all(tree, "save")
            works = {
                n: lambda c=c, p=p: c.save(p, self.folder, "save") for n, (c, p) in prepared.items()
            }
            if self.limit_program and what.startswith("256"):
                works["limit: fallocate and write"] = self.limit("save", 256)
                works["limit: the same and windows"] = self.limit("map", 256)
            self.note("save", what, race(works, self.rounds, self.anew("save")))

    def open(self):
        for what, tree in (("2000 leaves", small()), ("8 leaves", flat())):
            self.save_all(tree, "open")
            works = {c.name: lambda c=c: c.load(self.folder, "open") for c in CANDIDATES}
            self.note("open", what, race(works, self.rounds * 3))

    def read(self):
        """Open, and add up every leaf by the same function."""
        for what, tree in (("256 MiB in 8 leaves", flat()), ("50 MiB in 2000 leaves", small())):
            self.save_all(tree, "read")

            def total(candidate):
                loaded = candidate.load(self.folder, "read")
                return sum(int(a.view(np.uint32).max()) for _, a in leaves_of(loaded))

            works = {c.name: lambda c=c: total(c) for c in CANDIDATES}
            if len({total(c) for c in CANDIDATES}) != 1:
                sys.exit("read: sums differ")
            works["limit: the tensors in memory"] = lambda t=tree: sum(
                int(a.numpy().view(np.uint32).max()) for a in dotted(t).values()
            )
            self.note("read", what, race(works, self.rounds))

    def pack(self):
        tree = small()
        source = self.folder / "dir"
        tensordict.TensorDict(tree, []).memmap(source)
        packs = {OURS: zrecord.pack_memmap, THEIRS: tensordict.pack_memmap}
        unpacks = {OURS: zrecord.unpack_memmap, THEIRS: tensordict.unpack_memmap}
        works = {n: lambda n=n, f=f: f(source, self.folder / f"{n}.tdz") for n, f in packs.items()}
        clean = lambda name: (self.folder / f"{name}.tdz").unlink(missing_ok=True)  # noqa: E731
        self.note("pack", "pack 2000 leaves", race(works, self.rounds, clean))
        for name, pack in packs.items():
            pack(source, self.folder / f"{name}.tdz")
            check(name, zrecord.load_archive(self.folder / f"{name}.tdz"), tree)
        out = self.folder / "out"
        works = {n: lambda f=f: f(self.folder / f"{THEIRS}.tdz", out) for n, f in unpacks.items()}
        clean = lambda name: shutil.rmtree(out, ignore_errors=True)  # noqa: E731
        for name, work in works.items():
            clean(name)
            work()
            check(name, tensordict.TensorDict.load_memmap(out), tree)
        if self.limit_program:
            works["limit: bare files"] = self.limit("unpack", 2000, 50 * MIB // 2000)
        self.note("pack", "unpack 2000 leaves", race(works, self.rounds, clean))
        clean(None)

    def deflate(self):
        tree = masks()
        self.save_all(tree, "masks", ARCHIVES, compression="deflate")
        for threads in (1, 2):
            works = {
                c.name: lambda c=c, t=threads: c.load(self.folder, "masks", num_threads=t)
                for c in ARCHIVES
            }
            self.note("deflate", f"49 MiB of masks, {threads} threads", race(works, self.rounds))

    def scaling(self):
        """What grows with the number of leaves of 512 bytes; and one leaf of them by its path."""
        for count in [n for n in LEAVES if n <= self.most_leaves]:
            tree = small(count, count * 512, max(1, count // 100))
            # tensordict maps each leaf when it saves, and the kernel allows 65,530 mappings: beyond
            # that it only reads the file that was saved here.
            savers = ARCHIVES if count < 65_000 else ARCHIVES[:1]
            self.save_all(tree, "many", savers)
            if len(savers) == 1:
                shutil.copy(savers[0].at(self.folder, "many"), ARCHIVES[1].at(self.folder, "many"))
            rounds = max(3, self.rounds // 2) if count < 100_000 else 3
            prepared = {c.name: (c, c.prepare(tree)) for c in savers}
            saves = {
                n: lambda c=c, p=p: c.save(p, self.folder, "many") for n, (c, p) in prepared.items()
            }
            self.note("save by leaves", count, race(saves, rounds, self.anew("many")))
            works = {c.name: lambda c=c: c.load(self.folder, "many") for c in ARCHIVES}
            self.note("open by leaves", count, race(works, rounds))
            path = {c.name: c.at(self.folder, "many") for c in ARCHIVES}
            works = {
                OURS: lambda: zrecord.load_archive(path[OURS], subpath="group0/leaf0"),
                f"{THEIRS} (its group)": lambda: tensordict.TensorDict.load_memmap(
                    path[THEIRS], subpath="group0"
                ),
            }
            self.note("one leaf by leaves", count, race(works, rounds))

    def nbytes(self):
        for size in (1, 4, 16, 64, 256):
            tree = flat(8, size * MIB)
            self.save_all(tree, "bytes", ARCHIVES)
            prepared = {c.name: (c, c.prepare(tree)) for c in ARCHIVES}
            saves = {
                n: lambda c=c, p=p: c.save(p, self.folder, "bytes") for n, (c, p) in prepared.items()
            }
            self.note("save by MiB", size, race(saves, self.rounds, self.anew("bytes")))
            works = {c.name: lambda c=c: c.load(self.folder, "bytes") for c in ARCHIVES}
            self.note("open by MiB", size, race(works, self.rounds))


WORKS = ["save", "open", "read", "pack", "deflate", "scaling", "nbytes"]


# ---------------------------------------------------------------- output


def cell(row):
    return f"{report.milliseconds(row['seconds'])} ({report.milliseconds(row['low'])}–{report.milliseconds(row['high'])})"


def by_candidate(entry):
    return {row["candidate"]: row for row in entry["rows"]}


def ratio(entry):
    """Of tensordict's time to ours."""
    rows = by_candidate(entry)
    theirs = next((r for n, r in rows.items() if n.startswith(THEIRS)), None)
    return f"{theirs['seconds'] / rows[OURS]['seconds']:.1f}×" if theirs and OURS in rows else "–"


def document(result):
    parts = []
    for table, entries in result["tables"].items():
        names = list(dict.fromkeys(row["candidate"] for e in entries for row in e["rows"]))
        rows = [
            [str(e["work"]), *(cell(r) if r else "–" for r in map(by_candidate(e).get, names)), ratio(e)]
            for e in entries
        ]
        columns = [table, *names, f"{THEIRS} / {OURS}"]
        parts.append(f"## {table.capitalize()}\n\n{report.markdown(columns, rows)}")
    return "\n\n".join([*parts, report.machine(result["machine"], "make bench-archives")]) + "\n"


BEGIN, END = "<!-- archives:begin -->", "<!-- archives:end -->"


def median(row):
    return report.milliseconds(row["seconds"]) if row else "–"


def short_tables(result):
    """Medians alone: one table of works, and one of what grows with the leaves."""
    parts = []
    for first, chosen in (
        ("work", [t for t in result["tables"] if " by " not in t]),
        ("work by leaves", [t for t in result["tables"] if t.endswith("by leaves")]),
    ):
        entries = [(t, e) for t in chosen for e in result["tables"][t]]
        if entries:
            names = list(dict.fromkeys(row["candidate"] for _, e in entries for row in e["rows"]))
            rows = [
                [title(t, e), *(median(by_candidate(e).get(n)) for n in names), ratio(e)]
                for t, e in entries
            ]
            parts.append(report.markdown([first, *names, f"{THEIRS} / {OURS}"], rows))
    return "\n\n".join([*parts, report.machine(result["machine"], "make bench-archives")])


def title(table, entry):
    work = str(entry["work"])
    return work if table in work else f"{table.removesuffix(' by leaves')}, {work}"


def put_into(readme, result):
    before, rest = readme.read_text().split(BEGIN)
    readme.write_text(f"{before}{BEGIN}\n{short_tables(result)}\n{END}{rest.split(END)[1]}")


def draw(result, folder):
    for table in ("save by leaves", "open by leaves", "one leaf by leaves", "save by MiB", "open by MiB"):
        entries = result["tables"].get(table)
        if entries:
            drawn = plots.figure(6, 4)
            axis = drawn.subplots()
            for name in by_candidate(entries[0]):
                points = [(e["work"], by_candidate(e)[name]["seconds"] * 1e3) for e in entries if name in by_candidate(e)]  # fmt: skip
                axis.plot(*zip(*points), marker="o", label=name)
            axis.set(xscale="log", yscale="log", xlabel=table.rpartition(" ")[2], ylabel="ms", title=table)
            axis.grid(alpha=0.3)
            axis.legend()
            plots.save(drawn, folder / f"archives-{table.replace(' ', '-')}.svg")
    entries = [e | {"table": t} for t in ("save", "open", "read", "pack", "deflate") for e in result["tables"].get(t, ())]
    if entries:
        drawn = plots.figure(9, 1.1 * len(entries) + 1)
        for axis, e in zip(np.atleast_1d(drawn.subplots(len(entries), 1)), entries):
            rows = e["rows"][::-1]
            colours = [plots.OURS if r["candidate"].startswith(OURS) else plots.PEER for r in rows]
            axis.barh([r["candidate"] for r in rows], [r["seconds"] * 1e3 for r in rows], color=colours)
            axis.set(xscale="log", title=f"{e['table']}, {e['work']}: ms")
            axis.grid(axis="x", alpha=0.3)
        plots.save(drawn, folder / "archives.svg")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    root = Path(__file__).resolve().parents[2]
    parser.add_argument("--only", nargs="*", choices=WORKS, default=WORKS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--leaves", type=int, default=LEAVES[-1], help="at most so many in `scaling`")
    parser.add_argument("--out", type=Path, default=root / "build" / "bench-results")
    parser.add_argument("--limit", type=Path, help="build/bench/archive_limit, for the rows of bare C")
    parser.add_argument("--folder", type=Path, help="where to work (default: a temporary folder)")
    parser.add_argument("--readme", type=Path, help="only put the tables of the last run there")
    options = parser.parse_args()
    if options.readme:
        put_into(options.readme, json.loads((options.out / "archives.json").read_text()))
        return
    torch.manual_seed(7)
    options.out.mkdir(parents=True, exist_ok=True)
    target = options.out / "archives.json"
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        bench = Bench(Path(folder), options)
        for work in options.only:
            getattr(bench, work)()
        result = {"machine": machine.facts(folder), "tables": bench.tables}
    if target.exists() and set(options.only) != set(WORKS):  # a part of an earlier run anew
        result["tables"] = json.loads(target.read_text())["tables"] | result["tables"]
    target.write_text(json.dumps(result, indent=1))
    (options.out / "archives.md").write_text(document(result))
    draw(result, options.out)
    print(document(result))


if __name__ == "__main__":
    main()
