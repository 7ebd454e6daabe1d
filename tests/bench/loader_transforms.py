# SPDX-License-Identifier: MIT
"""What the transforms table runs on each batch of images: one normalisation, written three ways."""

from functools import lru_cache

import numpy as np

MEAN, SCALE = np.float32(127.5), np.float32(1 / 127.5)
EVERY = 8  # of the pixels in both directions, so that Python's loop is over a sample, not a pixel


def python_loop(images):
    """One record after the other in Python."""
    out = np.empty((len(images), 3, images.shape[2] // EVERY, images.shape[3] // EVERY), np.float32)
    for i in range(len(images)):
        small = images[i][:, ::EVERY, ::EVERY]
        for channel in range(len(small)):
            values = (small[channel].astype(np.float32) - MEAN) * SCALE
            out[i, channel] = values - float(values.mean())
    return out


def with_numpy(images):
    """The whole batch at once."""
    out = (images[:, :, ::EVERY, ::EVERY].astype(np.float32) - MEAN) * SCALE
    out -= out.mean((2, 3), keepdims=True)
    return out


@lru_cache
def compiled():
    import numba

    @numba.njit(nogil=True, parallel=False)
    def normalise(images):
        n, channels, height, width = images.shape
        out = np.empty((n, channels, height // EVERY, width // EVERY), np.float32)
        for i in range(n):
            for c in range(channels):
                total = 0.0
                for y in range(height // EVERY):
                    for x in range(width // EVERY):
                        value = (np.float32(images[i, c, y * EVERY, x * EVERY]) - MEAN) * SCALE
                        out[i, c, y, x] = value
                        total += value
                mean = np.float32(total / (height // EVERY * (width // EVERY)))
                for y in range(height // EVERY):
                    for x in range(width // EVERY):
                        out[i, c, y, x] -= mean
        return out

    normalise(np.zeros((1, 3, 2 * EVERY, 2 * EVERY), np.uint8))
    return normalise


def get(name):
    """None for None; numba compiles here, outside of what is timed."""
    if name is None:
        return None
    return {"python": python_loop, "numpy": with_numpy}.get(name) or compiled()
