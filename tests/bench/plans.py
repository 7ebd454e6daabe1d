# SPDX-License-Identifier: MIT
"""Which records are asked for: fresh random ids in every round, the same for every backend.

A small fixed set of plans would be answered from the last-level cache and flatter everybody.
"""

import numpy as np


def draw(count, length, batch, seed):
    """`count` batches of uniform ids with repeats, as one array (count, batch)."""
    return np.random.default_rng(seed).integers(0, length, (count, batch))


def rounds(number, count, length, batch, seed=7):
    """Plans of each round: `number` arrays (count, batch), all different."""
    return [draw(count, length, batch, (seed, k)) for k in range(number)]


def sweep(length, batch):
    """Every id once, in order, in batches."""
    for start in range(0, length, batch):
        yield np.arange(start, min(start + batch, length))
