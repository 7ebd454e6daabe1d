# SPDX-License-Identifier: MIT
"""Run by test_mount_service.py: a folder of .npy files through torch's DataLoader.

usage: loader_script.py FOLDER START_METHOD WORKERS...   prints the sum of all bytes, a line each
"""

import os
import sys

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Folder(Dataset):
    def __init__(self, folder):
        self.paths = [os.path.join(folder, name) for name in sorted(os.listdir(folder))]

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        return torch.from_numpy(np.load(self.paths[i]))


def main():
    folder, method, *workers = sys.argv[1:]
    for count in map(int, workers):
        loader = DataLoader(
            Folder(folder), 16, shuffle=True, num_workers=count, multiprocessing_context=method if count else None
        )
        print(*[sum(int(batch.sum()) for batch in loader) for _ in range(2)])


if __name__ == "__main__":
    main()
