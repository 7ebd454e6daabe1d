# SPDX-License-Identifier: MIT
"""Token ids from real text: what the installed Debian packages carry, cut into words.

Licences, program texts and documentation of this machine, each paragraph once (licence headers
and copied files would otherwise repeat).  A token is a word with the blank before it, up to three
digits, a few punctuation marks, or white space; ids are ranks by frequency, so that they follow
the law of the text and not one we chose.  Paragraphs are kept apart, as the Ragged workload wants
them.  How much text there is depends on the machine: the figures name it.
"""

import gzip
import json
import re
import sysconfig
from pathlib import Path

import numpy as np

# In this order until there are enough tokens.
ROOTS = (
    "/usr/share/common-licenses",
    sysconfig.get_path("stdlib"),
    "/usr/share/perl",
    "/usr/lib/python3/dist-packages",
    "/usr/share/doc",
    "/usr/share/man",
    "/usr/include",
    sysconfig.get_path("purelib"),
)
TOKEN = re.compile(rb" ?[A-Za-z]+| ?[0-9]{1,3}| ?[^\sA-Za-z0-9]{1,4}|\s+")
FEWEST, MOST = 16, 512  # tokens of a record, as in the seed's tables


def text(path):
    """The bytes of a text file, also a compressed one; None for anything else."""
    try:
        data = gzip.open(path).read() if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError):
        return None
    return None if b"\0" in data[:8192] else data


def paragraphs(roots):
    """Every paragraph of every text file under the roots, once."""
    seen = set()
    for root in roots:
        for path in sorted(Path(root).rglob("*")):
            if path.is_symlink() or not path.is_file():
                continue
            for paragraph in re.split(rb"\n\s*\n", text(path) or b""):
                digest = hash(paragraph.strip())
                if digest not in seen:
                    seen.add(digest)
                    yield paragraph + b"\n\n"


def tokenise(source, wanted):
    """Ids in order of appearance, where paragraphs end, and how many ids there are."""
    ids, ends, vocabulary, nbytes = [], [0], {}, 0
    total = 0
    for paragraph in source:
        nbytes += len(paragraph)
        words = TOKEN.findall(paragraph)
        part = np.fromiter(
            (vocabulary.setdefault(word, len(vocabulary)) for word in words), np.int32, len(words)
        )
        ids.append(part)
        total += len(part)
        ends.append(total)
        if total >= wanted:
            break
    flat = np.concatenate(ids) if ids else np.zeros(0, np.int32)
    return flat, np.array(ends), nbytes


def by_frequency(flat):
    """The same tokens, the most frequent one numbered 0."""
    counts = np.bincount(flat)
    rank = np.empty(len(counts), np.int32)
    rank[np.argsort(-counts, kind="stable")] = np.arange(len(counts), dtype=np.int32)
    return rank[flat]


def bounds(ends):
    """Starts of records: paragraphs, short ones joined with the next, long ones split."""
    cuts, start = [0], 0
    for end in ends[1:]:
        while end - start > MOST + FEWEST:
            start += MOST
            cuts.append(start)
        if end - start >= FEWEST:
            if end - start > MOST:
                cuts.append(start + (end - start) // 2)
            start = end
            cuts.append(start)
    return np.array(cuts)


def load(folder, wanted):
    """Flat ids, starts of records and facts, made once and kept in the folder."""
    base = Path(folder) / f"tokens-{wanted}"
    names = [base.with_suffix(end) for end in (".ids.npy", ".starts.npy", ".json")]
    if not all(name.exists() for name in names):
        flat, ends, nbytes = tokenise(paragraphs(ROOTS), wanted)
        if len(flat) < wanted // 100:
            raise RuntimeError(f"too little text on this machine: {len(flat)} tokens")
        facts = {"tokens": len(flat), "text_nbytes": nbytes, "vocabulary": int(flat.max()) + 1}
        base.parent.mkdir(parents=True, exist_ok=True)
        np.save(names[0], by_frequency(flat))
        np.save(names[1], bounds(ends))
        names[2].write_text(json.dumps(facts))
    return np.load(names[0]), np.load(names[1]), json.loads(names[2].read_text())
