#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""How well block shuffles mix, beside a full shuffle; JSON, Markdown and SVG.

    make bench-samplers
    build/bench-venv/bin/python tests/bench/shuffle_quality.py [--records 100000] [--seeds 10]

For each order of the records of an epoch:
  seeks      runs of blocks that have to be read, when the blocks that the order mixes are kept
  locality   samples whose block was at hand
  entropy    of the labels in a batch of 64, in % of that of 10 equal classes, for labels at random
             places and for the worst case: stored sorted by class
  distance   |id - the id before|: how many pairs of neighbours lie that far apart, in parts of the
             length; a full shuffle has a triangle
  accuracy   of a small network on handwritten digits (tests/fixtures/digits.npy) after 12 epochs,
             mean and deviation over seeds, stored as they come and sorted by class
"""

import argparse
import json
import sys
from pathlib import Path

import machine
import numpy as np
import report
import zrecord

REPO = Path(__file__).resolve().parents[2]
FIXTURES = REPO / "tests" / "fixtures"
BATCH, CLASSES, EPOCHS = 64, 10, 12
EDGES = np.array([0, 1e-5, 1e-3, 1e-2, 0.1, 0.25, 0.5, 0.75, 1.0])


def orders(length, block_size):
    """name: (epoch of (seed, epoch), block size, blocks kept)."""

    def sampler(mode, interleave=1):
        return lambda seed, epoch: zrecord.Sampler(
            length, length, mode, seed, block_size=block_size, interleave=interleave
        ).sample(epoch).astype(np.int64)

    def celeres(seed, epoch):
        shuffle = zrecord.CDLShuffle(length, block_size, seed)
        shuffle.set_epoch(epoch)
        return shuffle.indices().astype(np.int64)

    found = {
        "full shuffle (NumPy)": (
            lambda seed, epoch: np.random.default_rng([seed, epoch]).permutation(length), 1),
        "CYCLIC": (sampler(zrecord.Mode.CYCLIC), 1),
        "celeres-dl's order": (celeres, 1),
        "BLOCK": (sampler(zrecord.Mode.BLOCK), 1),
    }  # fmt: skip
    for interleave in (4, 16, 64):
        found[f"BLOCK, interleave={interleave}"] = (
            sampler(zrecord.Mode.BLOCK, interleave), interleave)  # fmt: skip
    found["in order"] = (lambda seed, epoch: np.arange(length), 1)
    return found


# ---------------------------------------------------------------- reading


def block_reads(ids, block_size, kept):
    """Blocks in the order in which they are read, when the `kept` used last stay at hand."""
    held, reads = {}, []
    blocks = ids // block_size
    changes = np.flatnonzero(np.diff(blocks, prepend=-1))
    for block in blocks[changes].tolist():
        if block not in held:
            reads.append(block)
            if len(held) == kept:
                del held[next(iter(held))]
        else:
            del held[block]
        held[block] = True
    return np.array(reads)


def reading(ids, block_size, kept):
    reads = block_reads(ids, block_size, kept)
    seeks = 1 + int((np.diff(reads) != 1).sum())
    return {"seeks": seeks, "locality": 100 * (1 - len(reads) / len(ids))}


# ---------------------------------------------------------------- mixing


def entropy(labels):
    """Mean entropy of the labels of whole batches, in % of log2(CLASSES)."""
    whole = labels[: len(labels) // BATCH * BATCH].reshape(-1, BATCH)
    share = np.stack([(whole == c).mean(1) for c in range(CLASSES)], 1)
    bits = -(share * np.log2(np.where(share > 0, share, 1))).sum(1)
    return 100 * bits.mean() / np.log2(CLASSES)


def mixing(ids, seed):
    length = len(ids)
    at_random = np.random.default_rng(seed).integers(0, CLASSES, length)
    by_class = np.arange(length) * CLASSES // length
    distance = np.abs(np.diff(ids)) / length
    counts = np.histogram(distance, EDGES)[0] / len(distance)
    ranks = ids - ids.mean()
    return {
        "entropy": entropy(at_random[ids]),
        "entropy_sorted": entropy(by_class[ids]),
        "distance": counts.tolist(),
        "mean_distance": float(distance.mean()),
        "serial_correlation": float((ranks[1:] * ranks[:-1]).mean() / (ranks**2).mean()),
    }


# ---------------------------------------------------------------- training


def train(images, labels, order, seed):
    """Accuracy on the last fifth of a network of 64-32-10 trained on the rest by plain SGD."""
    rng = np.random.default_rng(seed)
    split = len(images) * 4 // 5
    x, y = images[:split], labels[:split]
    w1, b1 = rng.normal(0, 0.18, (64, 32)), np.zeros(32)
    w2, b2 = rng.normal(0, 0.25, (32, CLASSES)), np.zeros(CLASSES)
    for epoch in range(EPOCHS):
        ids = order(seed, epoch)
        for at in range(0, len(ids) - 31, 32):
            chosen = ids[at : at + 32]
            inputs, target = x[chosen], np.eye(CLASSES)[y[chosen]]
            hidden = np.maximum(inputs @ w1 + b1, 0)
            scores = hidden @ w2 + b2
            share = np.exp(scores - scores.max(1, keepdims=True))
            share /= share.sum(1, keepdims=True)
            slope = (share - target) / len(chosen)
            back = (slope @ w2.T) * (hidden > 0)
            w2 -= 0.3 * hidden.T @ slope
            b2 -= 0.3 * slope.sum(0)
            w1 -= 0.3 * inputs.T @ back
            b1 -= 0.3 * back.sum(0)
    hidden = np.maximum(images[split:] @ w1 + b1, 0)
    return float(((hidden @ w2 + b2).argmax(1) == labels[split:]).mean())


def digits(sort):
    """Images in 0..1 and labels; the part to train on sorted by class, if asked for."""
    images = np.load(FIXTURES / "digits.npy").reshape(-1, 64) / 16.0
    labels = np.load(FIXTURES / "digits_labels.npy").astype(int)
    split = len(images) * 4 // 5
    if sort:
        by_class = np.argsort(labels[:split], kind="stable")
        images[:split], labels[:split] = images[:split][by_class], labels[:split][by_class]
    return images, labels, split


def training(seeds, block_size=16):
    """{order: {stored: [accuracy of each seed]}}; the blocks are small, as the data is."""
    result = {}
    for stored in ("as they come", "sorted by class"):
        images, labels, split = digits(stored != "as they come")
        for name, (order, _) in orders(split, block_size).items():
            if name == "in order" and stored != "as they come":
                continue  # learns the last class only
            scores = [train(images, labels, order, seed) for seed in range(seeds)]
            result.setdefault(name, {})[stored] = scores
    return result


# ---------------------------------------------------------------- output


def measure(length, block_size, seeds):
    rows = []
    scores = training(seeds)
    for name, (order, kept) in orders(length, block_size).items():
        ids = order(1, 1)
        assert np.array_equal(np.sort(ids), np.arange(length)), f"{name} is no permutation"
        rows.append(
            {
                "order": name,
                **reading(ids, block_size, kept),
                **mixing(ids, 5),
                "accuracy": scores[name],
            }
        )
    return {"records": length, "block_size": block_size, "seeds": seeds, "rows": rows}


def accuracy(scores):
    return f"{100 * np.mean(scores):.2f} ± {100 * np.std(scores):.2f}" if scores else "–"


def markdown(result):
    full = result["rows"][0]
    lines = [
        [
            r["order"],
            f"{r['seeks']:,}",
            f"{r['locality']:.2f} %",
            f"{r['entropy']:.2f} % ({r['entropy'] - full['entropy']:+.2f})",
            f"{r['entropy_sorted']:.2f} % ({r['entropy_sorted'] - full['entropy_sorted']:+.2f})",
            f"{r['serial_correlation']:+.4f}",
            accuracy(r["accuracy"].get("as they come")),
            accuracy(r["accuracy"].get("sorted by class")),
        ]
        for r in result["rows"]
    ]
    head = [
        "order", "seeks", "locality", "batch entropy", "stored by class", "serial correlation",
        "accuracy %", "stored by class",
    ]  # fmt: skip
    edges = [f"{a:g}–{b:g}" for a, b in zip(EDGES, EDGES[1:])]
    histogram = [[r["order"], *(f"{100 * c:.1f}" for c in r["distance"])] for r in result["rows"]]
    return (
        f"{result['records']:,} records in blocks of {result['block_size']:,}, batches of {BATCH}; "
        f"digits: {EPOCHS} epochs, blocks of 16, {result['seeds']} seeds.\n\n"
        + report.markdown(head, lines)
        + "\n\nNeighbours by their distance, in parts of the length, %:\n\n"
        + report.markdown(["order", *edges], histogram)
    )


def plot(result, path):
    import plots

    drawn = plots.figure(9, 4)
    axis = drawn.subplots()
    width = 0.8 / len(result["rows"])
    for i, r in enumerate(result["rows"]):
        axis.bar(np.arange(len(r["distance"])) + i * width, r["distance"], width, label=r["order"])
    axis.set_xticks(np.arange(len(EDGES) - 1) + 0.4)
    axis.set_xticklabels([f"{a:g}–{b:g}" for a, b in zip(EDGES, EDGES[1:])])
    axis.set_xlabel("distance of neighbours, parts of the length")
    axis.set_ylabel("share of pairs")
    axis.legend()
    plots.save(drawn, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--block-size", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=REPO / "build" / "bench-results")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    result = measure(options.records, options.block_size, options.seeds)
    result["machine"] = machine.facts(options.out)
    (options.out / "shuffle_quality.json").write_text(json.dumps(result, indent=1))
    text = f"# Quality of block shuffles\n\n{markdown(result)}\n"
    (options.out / "shuffle_quality.md").write_text(text)
    print(text)
    try:
        plot(result, options.out / "shuffle_quality.svg")
    except ImportError:
        print("SKIP shuffle_quality.svg: matplotlib is not installed", file=sys.stderr)


if __name__ == "__main__":
    main()
