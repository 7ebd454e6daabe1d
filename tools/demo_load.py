# SPDX-License-Identifier: MIT
"""Loads shuffled batches of the demo's stores in the current folder."""

import numpy as np

import zrecord

digits, labels, tokens = zrecord.open("digits"), zrecord.open("labels"), zrecord.open("tokens")

loader = zrecord.DataLoader(
    {"image": digits, "label": labels},
    batch_size=256,
    seed=42,
    transform=lambda batch: {"image": batch["image"].astype(np.float32) / 16, "label": batch["label"]},
)
for step, batch in zip(range(3), loader):
    image, label = batch["image"], batch["label"]
    print(f"batch {step}: image {image.dtype} {image.shape}, labels {label[:8].tolist()} ...")
loader.close()

lengths = [len(record) for record in tokens[0, 5, 2]]
print(f"records 0, 5 and 2 of the text have {lengths} words")
for store in (digits, labels, tokens):
    store.close()
