#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""An image classifier trained from zrecord stores, which stops in the middle and goes on as if it had not.

    train_images.py FOLDER --data IMAGES.npy LABELS.npy     writes the stores, trains, tests
    train_images.py FOLDER --stop-after 100                 leaves FOLDER/checkpoint.pt
    train_images.py FOLDER --resume                         ends where an unbroken run ends
    train_images.py FOLDER --files IMAGES LABELS            the same from folders of .npy files,
                                                            such as two mounted stores

The digits of tests/fixtures (1797 images of 8 by 8) reach 95 % on those that were not trained on.
"""

import argparse
import os
from pathlib import Path

import numpy as np
import torch
import zrecord
import zrecord.torch

BATCH = 64
SEED = 42


def write(folder, images, labels):
    """Every sixth image is for the test."""
    test = np.arange(len(images)) % 6 == 0
    for part, rows in (("train", ~test), ("test", test)):
        for name, data in (("images", images[rows]), ("labels", labels[rows])):
            with zrecord.Dense.create(folder / part / name, data.dtype, data.shape[1:]) as store:
                store.append(data)


class Files(torch.utils.data.Dataset):
    """What a loader that knows nothing of zrecord does: one .npy a sample, sorted by name."""

    def __init__(self, images, labels):
        self.pairs = [
            tuple(os.path.join(folder, name) for folder in (images, labels))
            for name in sorted(os.listdir(images))
        ]

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        image, label = map(np.load, self.pairs[i])
        return {"images": torch.from_numpy(image), "labels": torch.from_numpy(label)}


def store_batches(folder, step):
    """Endless batches from the stores, from a step on."""
    streams = {name: zrecord.Dense.open(folder / "train" / name) for name in ("images", "labels")}
    return zrecord.DataLoader(
        streams, batch_size=BATCH, seed=SEED, transform=zrecord.torch.to_torch, ordered=True,
        start_step=step,
    )  # fmt: skip


def file_batches(images, labels, steps):
    """The same batches from files, through torch's own loader."""
    data = Files(images, labels)
    sampler = zrecord.torch.BatchSampler(len(data), BATCH, seed=SEED, steps=steps)
    return torch.utils.data.DataLoader(data, batch_sampler=sampler, num_workers=2)


def scaled(images):
    return images.flatten(1).float() / 16


def accuracy(model, folder):
    images = zrecord.Dense.open(folder / "test" / "images")[:]
    labels = zrecord.Dense.open(folder / "test" / "labels")[:]
    guess = model(scaled(torch.from_numpy(images))).argmax(1)
    return (guess == torch.from_numpy(labels).long()).float().mean().item()


def train(batches, model, optimizer, first, last):
    for step, batch in zip(range(first, last), batches):
        loss = torch.nn.functional.cross_entropy(
            model(scaled(batch["images"])), batch["labels"].long()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path, nargs=2)
    parser.add_argument("--files", type=Path, nargs=2)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--stop-after", type=int)
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    if options.data:
        write(options.folder, *map(np.load, options.data))

    torch.manual_seed(SEED)
    torch.set_num_threads(1)  # the order of sums, and so the result, depends on their number
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    first, last = 0, options.stop_after or options.steps
    checkpoint = options.folder / "checkpoint.pt"
    if options.resume:
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["loader"]["step"]

    if options.files:
        train(file_batches(*options.files, last), model, optimizer, first, last)
    else:
        with store_batches(options.folder, 0) as batches:
            if options.resume:
                batches.load_state_dict(saved["loader"])
            train(batches, model, optimizer, first, last)
            state = batches.state_dict()  # a dict of numbers: what next() gave, not what is ahead
        if options.stop_after:
            parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**parts, "loader": state}, checkpoint)
    weights = sum(parameter.double().abs().sum().item() for parameter in model.parameters())
    print(f"accuracy {accuracy(model, options.folder):.4f} weights {weights!r}")


if __name__ == "__main__":
    main()
