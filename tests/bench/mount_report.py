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
# What README shows: figures, and peers in their order.
SHOWN = [
    "token, stat, cold", "token, random, cold", "token, random, after a listing", "token, in order, after a listing",
    "token, in order, .views/epoch, after its listing", "token, second pass", "token, after .views/prefetch",
    "token, random, cold, 1 readers, all together", "token, random, cold, 2 readers, all together",
    "image, random, cold", "image, second pass", "token, np.load, cold", "token, np.load, second pass",
    "tar cf - of 200000 tokens, s", "cp -r of 200000 tokens, s",
]  # fmt: skip
SHOWN_PEERS = [
    "zrecordfs io_uring", "zrecordfs classic", "squashfuse_ll", "kernel squashfs", "kernel EROFS", "fuse-zip",
    "ratarmount", "ext4",
]  # fmt: skip


def load(folder):
    path = Path(folder) / "mount.json"
    return json.loads(path.read_text()) if path.exists() else {"figures": {}, "skipped": {}}


def is_like(old, new):
    """Measured alike: on one machine and day, with the same sizes, rounds and user."""

    def conditions_of(result):
        state = {name: value for name, value in result.get("state", {}).items() if name != "load"}
        return result.get("machine"), result.get("sizes"), state

    return conditions_of(old) == conditions_of(new)


def merged(old, new):
    """New figures replace old ones row by row, as only those of one run compare; none of a run
    that was not alike stays."""
    if not is_like(old, new):
        return new
    return {
        **new,
        "state": {**new["state"], "load": max(old["state"]["load"], new["state"]["load"])},
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


def table(figures, names):
    """A figure a line, a peer a column; µs or what the line says."""
    lines = ["| µs, median (spread) | " + " | ".join(names) + " |", "|---" + "|---:" * len(names) + "|"]
    for name, row in figures.items():
        lines.append(f"| {name} | " + " | ".join(cell(row[peer]) if peer in row else "–" for peer in names) + " |")
    return "\n".join(lines)


def conditions(result):
    """The machine, its state, and the command."""
    facts, state = result["machine"], result["state"]
    command = f'make bench-mount BENCH="--rounds {state["rounds"]} --tokens {state["tokens"]} --images {state["images"]}"'
    return (
        f"{facts['cpu']}, {facts['cpus']} CPUs, last-level cache {facts['last_level_cache']}, "
        f"{facts['memory_nbytes'] / (1 << 30):.0f} GiB, Linux {facts['kernel']}, sources on {facts['file_system']} and in "
        f"the page cache, mounted by {state['user']}, {state['tokens']:,} tokens and {state['images']:,} images, "
        f"{state['rounds']} interleaved rounds, load average before them at most {state['load']}; {facts['date']}. "
        f"Made by `{command}`."
    )


def document(result):
    figures = result["figures"]
    names = list(dict.fromkeys(peer for row in figures.values() for peer in row))
    skipped = [f"SKIP {name}: {reason}." for name, reason in result["skipped"].items()]
    return "\n\n".join([table(figures, names), conditions(result), *skipped]) + "\n"


def readme_part(result):
    figures = {name: result["figures"][name] for name in SHOWN if name in result["figures"]}
    names = [name for name in SHOWN_PEERS if any(name in row for row in figures.values())]
    return f"{table(figures, names)}\n\n{conditions(result)}\n"


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
    """The text with everything between the markers replaced."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"there must be one {BEGIN} before one {END}")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{part}\n{END}{rest.split(END)[1]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("json", type=Path)
    parser.add_argument("--readme", type=Path, help="rewrite the table of this file")
    options = parser.parse_args()
    result = json.loads(options.json.read_text())
    if options.readme:
        options.readme.write_text(rewrite(options.readme.read_text(), readme_part(result)))
    else:
        print(document(result), end="")


if __name__ == "__main__":
    main()
