# SPDX-License-Identifier: MIT
"""Run by mount_bench.py: Python loaders over a folder of .npy files.

usage: mount_loader.py load FOLDER COUNT             µs a file, first and second pass, in random order
       mount_loader.py torch FOLDER COUNT WORKERS    seconds an epoch, first and second
"""

import sys
import time

import numpy as np


def load(folder, count):
    order = np.random.default_rng(1).permutation(count)
    names = [f"{folder}/{i:08d}.npy" for i in order]
    for _ in range(2):
        start = time.perf_counter()
        for name in names:
            np.load(name)
        print((time.perf_counter() - start) / count * 1e6)


def epochs(folder, count, workers):
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Folder(Dataset):
        def __len__(self):
            return count

        def __getitem__(self, i):
            return torch.from_numpy(np.load(f"{folder}/{i:08d}.npy"))

    loader = DataLoader(Folder(), 256, shuffle="/epoch/" not in folder, num_workers=workers, persistent_workers=True)
    iter(loader)  # the workers are there
    for _ in range(2):
        start = time.perf_counter()
        for _ in loader:
            pass
        print(time.perf_counter() - start)


if __name__ == "__main__":
    what, folder, count, *workers = sys.argv[1:]
    if what == "load":
        load(folder, int(count))
    else:
        epochs(folder, int(count), int(workers[0]))
