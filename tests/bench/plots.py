# SPDX-License-Identifier: MIT
"""SVG plots of a run: bars for the store tables, lines for what grows."""

from pathlib import Path

import report

OURS, PEER, BARE = "#1b6ca8", "#b8b8b8", "#e0a030"


def figure(width, height):
    import matplotlib

    matplotlib.use("Agg")
    # The same figures give the same file.
    matplotlib.rcParams.update({"svg.hashsalt": "zrecord", "svg.fonttype": "none", "font.size": 9})
    from matplotlib.figure import Figure

    return Figure((width, height), layout="constrained")


def save(drawn, path):
    drawn.savefig(path, metadata={"Date": None})


def colour(row):
    if row["limit"]:
        return BARE
    return OURS if row["backend"].startswith("zrecord") else PEER


def bars(table, path):
    """Gather and write rates of a store table, on a logarithmic axis."""
    rows = report.best_limits(table["rows"])[::-1]
    drawn = figure(9, 0.22 * len(rows) + 1)
    left, right = drawn.subplots(1, 2, sharey=True)
    names = [row["backend"] for row in rows]
    left.barh(names, [report.rate(row) / 1e3 for row in rows], color=[colour(r) for r in rows])
    left.set_xlabel(f"random gather of {table['batch']}, krecords/s")
    writes = [row.get("write_bytes_per_second") for row in rows]
    writes = [
        (report.write_of_limit(row, table["rows"]) if row["limit"] else write) or 0
        for row, write in zip(rows, writes)
    ]
    right.barh(names, [write / (1 << 20) for write in writes], color=[colour(r) for r in rows])
    right.set_xlabel("append, MiB/s")
    for axis in (left, right):
        axis.set_xscale("log")
        axis.grid(axis="x", alpha=0.3)
    drawn.suptitle(table["title"])
    save(drawn, path)


def lines(table, key, value, labels, path):
    """One line a backend, both axes logarithmic."""
    drawn = figure(6, 4)
    axis = drawn.subplots()
    for name in dict.fromkeys(row["backend"] for row in table["rows"]):
        points = [(row[key], value(row)) for row in table["rows"] if row["backend"] == name]
        axis.plot(*zip(*points), marker="o", markersize=3, label=name)
    axis.set(xscale="log", yscale="log", xlabel=labels[0], ylabel=labels[1])
    axis.grid(alpha=0.3)
    axis.legend()
    save(drawn, path)


def threads(table, path):
    named = [
        {**row, "backend": f"{row['workload']}, {row['backend'].removeprefix('zrecord-')}"}
        for row in table["rows"]
    ]
    lines({"rows": named}, "threads", krecords, ("threads", "krecords/s"), path)


def levels(table, path):
    """Ratio against gather rate; each point is a level or tune."""
    works = list(dict.fromkeys(row["workload"] for row in table["rows"]))
    drawn = figure(5 * len(works), 4)
    for axis, work in zip(drawn.subplots(1, len(works), squeeze=False)[0], works):
        rows = [row for row in table["rows"] if row["workload"] == work]
        for row in rows:
            axis.plot(
                row["ratio"], krecords(row), "o", color=OURS if "tune" in row["store"] else PEER
            )
            axis.annotate(row["store"], (row["ratio"], krecords(row)), fontsize=6)
        axis.set(title=work, xlabel="ratio", ylabel="krecords/s")
        axis.grid(alpha=0.3)
    save(drawn, path)


def krecords(row):
    return row["records_per_second"] / 1e3


def draw(result, folder):
    """Every plot that a result has figures for; the names of the files."""
    folder = Path(folder)
    before = set(folder.glob("*.svg"))
    for old in before:
        old.unlink()
    for table in result["tables"]:
        bars(table, folder / f"{table['title'].lower().replace(' ', '-')}.svg")
    if "records" in result:
        lines(
            result["records"],
            "records",
            krecords,
            ("records", "krecords/s"),
            folder / "records.svg",
        )
        lines(
            result["records"],
            "records",
            lambda row: row["open_seconds"] * 1e6,
            ("records", "open, µs"),
            folder / "open.svg",
        )
    if "sizes" in result:
        lines(
            result["sizes"],
            "record_nbytes",
            lambda row: row["bytes_per_second"] / 1e9,
            ("bytes a record", "GB/s"),
            folder / "sizes.svg",
        )
    if "batches" in result:
        lines(result["batches"], "batch", krecords, ("batch", "krecords/s"), folder / "batches.svg")
    if "threads" in result:
        threads(result["threads"], folder / "threads.svg")
    if "levels" in result:
        levels(result["levels"], folder / "levels.svg")
    return sorted(path.name for path in folder.glob("*.svg"))
