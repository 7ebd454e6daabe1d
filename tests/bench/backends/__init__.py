# SPDX-License-Identifier: MIT
"""Every way to store records that the tables compare, one file a peer."""

import importlib

from .base import Backend, Missing

__all__ = ["Backend", "Missing", "available", "limits", "names"]

# (row, module, class, arguments).  The order is that of the tables.
ROWS = (
    ("zrecord-raw", "zrecord", "Store", {"codec": "raw"}),
    ("zrecord-raw packed", "zrecord", "Packed", {"reads": "zrecord-raw"}),
    ("zrecord-zstd", "zrecord", "Store", {"codec": "zstd"}),
    ("zrecord-zstd packed", "zrecord", "Packed", {"reads": "zrecord-zstd"}),
    ("zrecord-zstd tune=read", "zrecord", "Store", {"codec": "zstd", "tune": "read"}),
    ("zrecord-zstd tune=write", "zrecord", "Store", {"codec": "zstd", "tune": "write"}),
    ("zrecord-zstd_dict", "zrecord", "Store", {"codec": "zstd_dict"}),
    ("zrecord-zstd_dict tune=read", "zrecord", "Store", {"codec": "zstd_dict", "tune": "read"}),
    ("zrecord-zstd_dict tune=write", "zrecord", "Store", {"codec": "zstd_dict", "tune": "write"}),
    ("loaderx-2.0.0-raw", "loaderx", "Reference", {"codec": "raw"}),
    ("loaderx-2.0.0-zstd", "loaderx", "Reference", {"codec": "zstd"}),
    ("loaderx-2.0.0-zstd_dict", "loaderx", "Reference", {"codec": "zstd_dict"}),
    ("loaderx-new-raw", "loaderx", "Newest", {"codec": "raw"}),
    ("loaderx-new-zstd", "loaderx", "Newest", {"codec": "zstd"}),
    ("loaderx-new-zstd_dict", "loaderx", "Newest", {"codec": "zstd_dict"}),
    ("npy-mmap-raw", "npy", "Mapped", {}),
    ("hdf5-raw", "hdf5", "File", {"codec": "raw"}),
    ("hdf5-gzip", "hdf5", "File", {"codec": "gzip"}),
    ("lmdb-raw", "lmdb", "Environment", {}),
    ("arrow-ipc-raw", "arrow", "File", {"codec": "raw"}),
    ("arrow-ipc-zstd", "arrow", "File", {"codec": "zstd"}),
    ("parquet-raw", "parquet", "File", {"codec": "raw"}),
    ("parquet-zstd", "parquet", "File", {"codec": "zstd"}),
    ("arrayrecord-raw", "arrayrecord", "File", {"codec": "raw"}),
    ("arrayrecord-zstd", "arrayrecord", "File", {"codec": "zstd"}),
    ("tiledb-raw", "tiledb", "Array", {"codec": "raw"}),
    ("tiledb-zstd", "tiledb", "Array", {"codec": "zstd"}),
)
# What the bare programs read, and the level at which they encode in place of an append.
LIMITS = (("raw", None), ("zstd", 3), ("zstd_dict", 19))


def names():
    return [row[0] for row in ROWS]


def wanted(name, only):
    """Whether a row is meant by a list of beginnings of names; None means all."""
    return only is None or any(name.startswith(part) for part in only)


def available(folder, workload, only=None, without=()):
    """The backends that can serve a workload here, and why the others cannot, by name.

    `only` keeps rows by the beginnings of their names, `without` leaves codecs out.
    """
    found, skipped = [], {}
    for name, module, kind, options in ROWS:
        if not wanted(name, only):
            continue
        if any(codec in name for codec in without):
            skipped[name] = "left out of a run of this size, since its encoder takes minutes"
            continue
        try:
            cls = getattr(importlib.import_module(f".{module}", __package__), kind)
            if workload.geometry in cls.geometries:
                found.append(_made(cls, name, folder, workload, options))
        except (ImportError, Missing) as error:
            skipped[name] = str(error) or type(error).__name__
    return found, skipped


def _made(cls, name, folder, workload, options):
    backend = cls(name, folder, workload, **options)
    if "-new-" in name:  # under its own number
        number = importlib.import_module("loaderx").__version__
        backend.name = name.replace("new", number) + (" packed" if workload.ragged else "")
    return backend


def limits(folder, workload, backends, threads):
    """The bare programs beside the zrecord stores among the backends: one thread, and all."""
    from . import limit

    there = {backend.name for backend in backends}
    found, skipped = [], {}
    for codec, level in LIMITS:
        store = f"zrecord-{codec}"
        if store not in there:
            continue
        for count in sorted({1, threads}):
            name = f"limit-{codec}, {count} thread{'s' if count > 1 else ''}"
            try:
                found.append(limit.Bare(name, folder, workload, store, count, level))
            except Missing as error:
                skipped[name] = str(error)
    return found, skipped
