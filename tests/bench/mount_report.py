# SPDX-License-Identifier: MIT
"""Markdown, JSON and SVG of mount_bench.py's figures, and README's table.

python tests/bench/mount_report.py build/bench-results/mount.json [--readme README.md]
"""

import argparse
import json
import statistics
from pathlib import Path

BEGIN, END = "<!-- mount:begin -->", "<!-- mount:end -->"
OURS, PEER = "#1b6ca8", "#b8b8b8"
# What README shows: figures and the names of their columns.
SHOWN = [
    "token, random, cold", "token, stat, cold", "token, in order, after a listing", "token, second pass",
    "image, random, cold", "token, np.load, cold", "token, np.load, second pass", "tokens, DataLoader, first epoch",
    "tokens, DataLoader, second epoch",
]  # fmt: skip


def load(folder):
    path = Path(folder) / "mount.json"
    return json.loads(path.read_text()) if path.exists() else {"figures": {}, "skipped": {}}


def merged(old, new, sizes):
    """New figures replace old ones row by row, as only those of one run compare."""
    return {
        "sizes": sizes,
        "figures": {**old["figures"], **new["figures"]},
        "skipped": {**old["skipped"], **new["skipped"]},
    }


def number(value):
    if value == 0:
        return "0"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def cell(values):
    middle = number(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} ({number(min(values))}–{number(max(values))})"


def document(result, shown=None):
    """One table: a figure a line, a peer a column; µs or what the line says."""
    figures = {name: row for name, row in result["figures"].items() if shown is None or name in shown}
    names = list(dict.fromkeys(peer for row in figures.values() for peer in row))
    lines = ["| µs, median (spread) | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for name, row in figures.items():
        lines.append(f"| {name} | " + " | ".join(cell(row[peer]) if peer in row else "–" for peer in names) + " |")
    lines += [f"\nSKIP {name}: {reason}." for name, reason in result["skipped"].items()]
    return "\n".join(lines) + "\n"


def draw(result, path):
    """Bars on a logarithmic axis, a panel a figure."""
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "zrecord", "svg.fonttype": "none", "font.size": 7})
    from matplotlib.figure import Figure

    rows = [(name, row) for name, row in result["figures"].items() if len(row) > 1]
    if not rows:
        return
    columns = 3
    drawn = Figure((12, 1.9 * -(-len(rows) // columns)), layout="constrained")
    axes = drawn.subplots(-(-len(rows) // columns), columns, squeeze=False).flat
    for (name, row), axis in zip(rows, axes):
        peers = list(row)[::-1]
        colours = [OURS if peer.startswith("zrecordfs") else PEER for peer in peers]
        axis.barh(peers, [max(statistics.median(row[peer]), 1e-3) for peer in peers], color=colours)
        axis.set_xscale("log")
        axis.set_title(name)
    for axis in axes:
        axis.set_axis_off()
    drawn.savefig(path, metadata={"Date": None})


def save(result, folder):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mount.json").write_text(json.dumps(result, indent=1))
    (folder / "mount.md").write_text(document(result))
    draw(result, folder / "mount.svg")


def rewrite(text, part):
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{part}{END}{tail}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("json", type=Path)
    parser.add_argument("--readme", type=Path, help="rewrite the table of this file")
    options = parser.parse_args()
    result = json.loads(options.json.read_text())
    if options.readme:
        options.readme.write_text(rewrite(options.readme.read_text(), document(result, SHOWN)))
    else:
        print(document(result), end="")


if __name__ == "__main__":
    main()
