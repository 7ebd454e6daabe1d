# SPDX-License-Identifier: MIT
"""The records that every backend gets: images and token sequences, of one shape or of many."""

from dataclasses import dataclass, field

import corpus
import numpy as np

BATCH = 256
WIDTH = 512  # tokens of a Dense record


@dataclass
class Workload:
    """Records in memory, and what the right answer to a gather is.

    Dense: `records` is one array (n, *shape).  Ragged: a list of arrays, views of one allocation.
    """

    name: str
    records: object
    note: str = ""
    batch: int = BATCH
    facts: dict = field(default_factory=dict)

    @property
    def ragged(self):
        return isinstance(self.records, list)

    @property
    def geometry(self):
        return "ragged" if self.ragged else "dense"

    @property
    def dtype(self):
        return self.records[0].dtype

    @property
    def ndim(self):
        """Rank of a record."""
        return self.records[0].ndim

    @property
    def nbytes(self):
        return sum(r.nbytes for r in self.records) if self.ragged else self.records.nbytes

    def __len__(self):
        return len(self.records)

    def take(self, ids):
        """What a gather of these ids must give."""
        return [self.records[i] for i in ids] if self.ragged else self.records[ids]


def wave(rng, height, width, out):
    """A plane wave in each channel: sin(ax + by + c), from its factors along the two axes."""
    for channel in out:
        fy, fx, phase = rng.uniform((0.005, 0.005, 0.0), (0.05, 0.05, 6.0))
        y, x = np.arange(height) * fy + phase, np.arange(width) * fx
        plane = np.outer(np.sin(y), np.cos(x)) + np.outer(np.cos(y), np.sin(x))
        channel[:] = 128 + 100 * plane


def vision_dense(count, seed=1, shape=(3, 224, 224)):
    """Smooth RGB images of one size."""
    rng = np.random.default_rng(seed)
    images = np.empty((count, *shape), np.uint8)
    for image in images:
        wave(rng, *shape[1:], image)
    return Workload("vision Dense", images, f"{count:,} × uint8 {shape}, smooth synthetic images")


def vision_ragged(count, seed=1):
    """The same images in sizes of their own: height and width lognormal, clipped to 64..512."""
    rng = np.random.default_rng(seed)
    sizes = np.clip(rng.lognormal(np.log(224), 0.4, (count, 2)), 64, 512).astype(int)
    images = []
    for height, width in sizes:
        image = np.empty((3, height, width), np.uint8)
        wave(rng, height, width, image)
        images.append(image)
    note = f"{count:,} × uint8 (3, H, W), H and W lognormal in 64..512 with median 224"
    return Workload("vision Ragged", images, note)


def source_note(facts):
    return (
        f"real text: licences, program texts and documentation of the installed Debian packages, "
        f"each paragraph once, by words ({facts['tokens']:,} tokens, "
        f"{facts['vocabulary']:,} different)"
    )


def token_dense(count, folder):
    """The text as one stream cut into rows of 512 tokens."""
    flat, _, facts = corpus.load(folder, count * WIDTH)
    rows = flat[: len(flat) // WIDTH * WIDTH].reshape(-1, WIDTH)[:count]
    note = f"{len(rows):,} × int32 ({WIDTH},) of {source_note(facts)}"
    return Workload("token Dense", rows, note, facts=facts)


def token_ragged(count, folder):
    """The paragraphs of the text: 16 to 512 tokens."""
    flat, starts, facts = corpus.load(folder, count * WIDTH)
    records = np.split(flat[: starts[-1]], starts[1:-1])[:count]
    lengths = np.array([len(record) for record in records])
    note = (
        f"{len(records):,} × int32 (16..512,), median {int(np.median(lengths))}, "
        f"mean {lengths.mean():.0f}, of {source_note(facts)}"
    )
    return Workload("token Ragged", records, note, facts=facts)


def make(name, count, folder):
    """A workload by its name; token text is kept in the folder."""
    if name.startswith("vision"):
        return (vision_ragged if name.endswith("Ragged") else vision_dense)(count)
    return (token_ragged if name.endswith("Ragged") else token_dense)(count, folder)
