# SPDX-License-Identifier: MIT
"""demo_text.py SOURCE FOLDER: turns the text files of SOURCE into one .npy of word ids a paragraph."""

import re
import sys
from pathlib import Path

import numpy as np


def paragraphs(source):
    for path in sorted(source.iterdir()):
        if path.is_file() and not path.is_symlink():
            for paragraph in path.read_text(errors="replace").split("\n\n"):
                words = re.findall(r"\w+|[^\w\s]", paragraph)
                if words:
                    yield words


def main(source, folder):
    ids = {}
    folder.mkdir()
    count = tokens = 0
    for count, words in enumerate(paragraphs(source), start=1):
        record = np.array([ids.setdefault(word, len(ids)) for word in words], dtype=np.int32)
        np.save(folder / f"{count - 1:08d}.npy", record)
        tokens += len(words)
    print(f"{count} paragraphs, {tokens} words, {len(ids)} different ones")


main(Path(sys.argv[1]), Path(sys.argv[2]))
