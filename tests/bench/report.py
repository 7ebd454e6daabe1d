#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Markdown from the JSON of a run, and README's tables between their markers.

python tests/bench/report.py build/bench-results/bench.json                    # to stdout
python tests/bench/report.py build/bench-results/bench.json --readme README.md
"""

import argparse
import json
import sys
from pathlib import Path

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
COMMANDS = {"full": "make bench", "quick": "make bench-quick"}

# ---------------------------------------------------------------- numbers


def number(value):
    """Three significant digits, thousands separated, no exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def mebibytes(value):
    return f"{number(value / (1 << 20))} MiB"


def throughput(value):
    return "–" if value is None else f"{mebibytes(value)}/s"


def milliseconds(value):
    return f"{value * 1e3:.2f} ms" if value >= 1e-3 else f"{value * 1e6:.0f} µs"


def spread(row):
    """How far the rounds lie from their median."""
    middle = row["records_per_second"]
    return f"−{100 * (1 - row['low'] / middle):.0f} +{100 * (row['high'] / middle - 1):.0f} %"


def markdown(columns, rows):
    """A table; every column but the first is aligned to the right."""
    lines = [f"| {' | '.join(columns)} |", f"|---{'|---:' * (len(columns) - 1)}|"]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


def left_out(skipped):
    """One sentence for each reason why rows are missing."""
    reasons = {}
    for name, reason in skipped.items():
        reasons.setdefault(reason, []).append(name)
    return "".join(f"\n\nSKIP {', '.join(who)}: {why}." for why, who in reasons.items())


# ---------------------------------------------------------------- store tables


def best_limits(rows):
    """Of the bare programs that differ in threads, the faster; everything else as it is."""
    best = {}
    for row in rows:
        if row["limit"]:
            codec = row["backend"].split(",")[0]
            held = best.get(codec)
            if held is None or rate(row) > rate(held):
                best[codec] = row
    return [row for row in rows if not row["limit"] or row in best.values()]


def rate(row):
    return row["gather"]["records_per_second"]


def write_of_limit(row, rows):
    """The bare append is measured once for a codec, with all threads."""
    codec = row["backend"].split(",")[0]
    for other in rows:
        if other["limit"] and other["backend"].startswith(codec + ","):
            if "write_bytes_per_second" in other:
                return other["write_bytes_per_second"]
    return None


def store_table(table):
    columns = [
        "backend", "logical write", "logical gather", "krecords/s", "spread", "p95", "disk", "ratio"
    ]  # fmt: skip
    lines = []
    for row in best_limits(table["rows"]):
        write = row.get("write_bytes_per_second")
        if row["limit"]:
            write = write_of_limit(row, table["rows"])
        disk, ratio = "–", "–"
        if "disk_nbytes" in row:
            disk, ratio = mebibytes(row["disk_nbytes"]), f"{row['ratio']:.2f}x"
        lines.append(
            [
                f"*{row['backend']}*" if row["limit"] else row["backend"],
                throughput(write),
                throughput(row["gather_bytes_per_second"]),
                number(rate(row) / 1e3),
                spread(row["gather"]),
                milliseconds(row["gather"]["p95_seconds"]),
                disk,
                ratio,
            ]
        )
    return markdown(columns, lines) + left_out(table["skipped"])


def cold_table(tables):
    """Cold gathers of all workloads side by side, in krecords/s."""
    names = list(dict.fromkeys(row["backend"] for t in tables for row in t["cold"]))
    lines = []
    for name in names:
        cells = []
        for table in tables:
            found = [row for row in table["cold"] if row["backend"] == name]
            cells.append(number(rate(found[0]) / 1e3) if found else "–")
        lines.append([f"*{name}*" if name.startswith("limit") else name, *cells])
    return markdown(["backend", *(table["title"] for table in tables)], lines)


# ---------------------------------------------------------------- ratios


def ratios(tables):
    """zrecord over its measures: the same codec of others, the mapped array, the bare program."""
    lines = []
    for table in tables:
        by_name = {row["backend"]: row for row in table["rows"]}
        limits = {r["backend"].split(",")[0]: r for r in best_limits(table["rows"]) if r["limit"]}
        for name, row in by_name.items():
            if not name.startswith("zrecord-") or "tune" in name:
                continue
            codec = name.split()[0].removeprefix("zrecord-")
            packed = name.endswith(" packed")
            newest = [r for n, r in by_name.items() if n.startswith("loaderx-")
                      and "2.0.0" not in n and n.split("-")[-1].split()[0] == codec
                      and n.endswith("packed") == packed]  # fmt: skip
            others = [
                by_name.get(f"loaderx-2.0.0-{codec}"),
                newest[0] if newest else None,
                by_name.get("npy-mmap-raw") if codec == "raw" else None,
                limits.get(f"limit-{codec}"),
            ]
            limit = others[3]
            bare = write_of_limit(limit, table["rows"]) if limit else None
            writes = [others[0].get("write_bytes_per_second") if others[0] else None, bare]
            lines.append(
                [f"{table['title']}, {name.removeprefix('zrecord-')}"]
                + [f"{rate(row) / rate(other):.2f}" if other else "–" for other in others]
                + [over(row.get("write_bytes_per_second"), other) for other in writes]
            )
    columns = ["zrecord: gather over", "loaderx 2.0.0", "newest loaderx", "npy-mmap", "limit"]
    return markdown([*columns, "write over loaderx 2.0.0", "limit"], lines)


def over(mine, other):
    return f"{mine / other:.2f}" if mine and other else "–"


# ---------------------------------------------------------------- scaling


def pivot(table, key, shown, cell, head):
    """Rows by one key, a column a backend."""
    names = list(dict.fromkeys(row[shown] for row in table["rows"]))
    keys = list(dict.fromkeys(row[key] for row in table["rows"]))
    lines = []
    for value in keys:
        found = {row[shown]: row for row in table["rows"] if row[key] == value}
        lines.append([f"{value:,}" if isinstance(value, int) else value]
                     + [cell(found[name]) if name in found else "–" for name in names])  # fmt: skip
    return markdown([head, *names], lines) + left_out(table["skipped"])


def krecords(row):
    return number(row["records_per_second"] / 1e3)


def records_table(table):
    columns = ["records", "backend", "open", "memory", "of it at open", "krecords/s"]
    lines = [
        [
            f"{row['records']:,}",
            row["backend"],
            f"{row['open_seconds'] * 1e6:.0f} µs",
            mebibytes(row["anon_nbytes"]),
            mebibytes(row["open_anon_nbytes"]),
            krecords(row),
        ]
        for row in table["rows"]
    ]
    return markdown(columns, lines) + left_out(table["skipped"])


def levels_table(table):
    columns = ["records", "store", "ratio", "write", "gather", "krecords/s"]
    lines = [
        [
            row["workload"],
            row["store"],
            f"{row['ratio']:.2f}x",
            throughput(row["write_bytes_per_second"]),
            throughput(row["bytes_per_second"]),
            krecords(row),
        ]
        for row in table["rows"]
    ]
    return markdown(columns, lines)


def threads_table(table):
    rows = [{**row, "what": f"{row['workload']}, {row['backend']}"} for row in table["rows"]]
    return pivot({**table, "rows": rows}, "threads", "what", krecords, "krecords/s, threads")


def single_table(table):
    lines = [[row["backend"], f"{row['seconds'] * 1e9:,.0f} ns"] for row in table["rows"]]
    return markdown(["ds[i]", "a record"], lines) + left_out(table["skipped"])


def loaders_table(table):
    return pivot(
        table, "workload", "loader", lambda row: number(row["batches_per_second"]), "batches/s"
    )


# Section of the JSON, heading, how it is shown.
SCALING = (
    ("records", "Number of records: int64 scalars, raw, in a fresh process",
     records_table),
    ("sizes", "Record sizes: random bytes, raw, batches of at most 256 records and 32 MiB",
     lambda t: pivot(t, "record_nbytes", "backend", lambda row: throughput(row["bytes_per_second"]),
                     "bytes a record")),
    ("batches", "Batch sizes: token Dense, krecords/s",
     lambda t: pivot(t, "batch", "backend", krecords, "batch")),
    ("threads", "Threads", threads_table),
    ("levels", "Levels and tunes", levels_table),
    ("single", "One record by its number, token Dense", single_table),
    ("loaders", "DataLoader, batches of 256, identity transform", loaders_table),
)  # fmt: skip

# ---------------------------------------------------------------- documents


def machine(facts, command):
    versions = ", ".join(f"{name} {number}" for name, number in sorted(facts["versions"].items()))
    cores = "core" if facts["cpus"] == 1 else "cores"
    return (
        f"{facts['cpu']}, {facts['cpus']} {cores}, last-level cache {facts['last_level_cache']}, "
        f"{facts['memory_nbytes'] / (1 << 30):.0f} GiB of memory, {facts['system']}, "
        f"Linux {facts['kernel']}, {facts['file_system']}, Python {facts['python']}; {versions}; "
        f"{facts['date']}. Made by `{command}`."
    )


METHOD = """\
Columns as in loaderx 2.0.0's tables: logical bytes over the seconds of append calls, and of random
gathers of {batch} records; p95 is one gather's latency; disk is allocated blocks. Each backend gets
the same records and the same fresh random plans, in interleaved rounds in one process, with a warm
page cache, as its own writer left it; before a turn its files are read through and some other plans
run untimed. Every record and every planned answer is compared before anything is timed. Figures are
medians of the rounds, spread is the slowest and the fastest round. *limit* rows are bare C programs
without checks that reuse one output buffer (`tests/bench/bare.h`); their writes are fallocate and
write, or all cores in the encoder at levels 3 and 19. *packed* is a Ragged gather without an array
object for each record."""


def sections(result):
    """(heading, text) of everything that was measured, in order."""
    tables = result["tables"]
    for table in tables:
        yield f"{table['title']}", f"{table['note']}.\n\n{store_table(table)}"
    if tables:
        yield "Ratios", ratios(tables)
        yield (
            "Cold",
            "One random batch right after the page cache let go of the files, krecords/s.\n\n"
            + cold_table(tables),
        )
    for key, heading, show in SCALING:
        if key in result:
            yield heading, show(result[key])


def document(result, level="##", only=None):
    """The facts and all sections as Markdown; `only` chooses headings."""
    command = COMMANDS.get(result["settings"], f"tests/bench/run.py --size {result['settings']}")
    parts = [machine(result["machine"], command)]
    if result["tables"]:
        parts.append(METHOD.format(batch=result["tables"][0]["batch"]))
    for heading, text in sections(result):
        if only is None or heading in only:
            parts.append(f"{level} {heading}\n\n{text}")
    return "\n\n".join(parts) + "\n"


def readme_part(result):
    """What README shows: the store tables, ratios, cold, levels; the rest is in the results."""
    shown = {table["title"] for table in result["tables"]}
    shown |= {"Ratios", "Cold", "Levels and tunes"}
    return document(result, "###", shown)


def rewrite(text, part):
    """The text with everything between the markers replaced."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"there must be one {BEGIN} before one {END}")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n\n{part}\n{END}{after}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("json", type=Path)
    parser.add_argument("--readme", type=Path, help="rewrite the tables of this file")
    options = parser.parse_args()
    if not options.json.exists():
        sys.exit(f"{options.json} is not there: make bench or make bench-quick first")
    result = json.loads(options.json.read_text())
    if options.readme:
        options.readme.write_text(rewrite(options.readme.read_text(), readme_part(result)))
    else:
        print(document(result), end="")


if __name__ == "__main__":
    main()
