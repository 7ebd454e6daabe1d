# SPDX-License-Identifier: MIT
"""The same records in every form that can be mounted, and how each is mounted and unmounted."""

import contextlib
import fcntl
import os
import shutil
import subprocess
import time
import zipfile
from pathlib import Path

import machine
import numpy as np
import zrecord

ENABLE_URING = Path("/sys/module/fuse/parameters/enable_uring")


def make_tokens(count):
    rng = np.random.default_rng(7)
    return (rng.zipf(1.2, (count, 512)) % 50000).astype("<i4")


def make_images(count):
    """Smooth pictures: about the entropy of photographs at this size."""
    rng = np.random.default_rng(7)
    y, x = np.mgrid[0:224, 0:224].astype("f4") / 224
    waves = rng.uniform(0.5, 6, (count, 3, 2, 1, 1)).astype("f4")
    images = np.sin(waves[:, :, 0] * x * 6) + np.cos(waves[:, :, 1] * y * 6)
    return np.clip(images * 60 + 128, 0, 255).astype("u1")


class Corpus:
    """Records as stores, a folder, and images of other file systems, each made when first asked
    for and kept in the folder."""

    def __init__(self, folder, name, make_rows, count):
        self.base = Path(folder) / f"{name}-{count}"
        self.name, self.count = name, count
        self._make_rows = make_rows
        self._rows = None

    def rows(self):
        if self._rows is None:
            self._rows = self._make_rows(self.count)
        return self._rows

    def path(self, kind):
        path = self.base.with_name(f"{self.base.name}.{kind}")
        if not path.exists():
            getattr(self, "_make_" + kind)(path)
        return path

    def _store(self, path, codec):
        rows = self.rows()
        with zrecord.Dense.create(path, rows.dtype, rows.shape[1:], codec) as ds:
            ds.append(rows)

    def _make_zstd(self, path):
        self._store(path, "zstd")

    def _make_raw(self, path):
        self._store(path, "raw")

    def _make_files(self, path):
        path.mkdir()
        for i, row in enumerate(self.rows()):
            np.save(path / f"{i:08d}.npy", row)

    def _make_sqsh(self, path):
        # Looking for duplicates compares every file with all others of its size: hours for 200,000.
        options = ["-comp", "zstd", "-no-duplicates", "-quiet", "-no-progress"]
        _run("mksquashfs", self.path("files"), path, *options)

    def _make_erofs(self, path):
        _run("mkfs.erofs", "-zlz4", "--quiet", path, self.path("files"))

    def _make_zip(self, path):
        with zipfile.ZipFile(path, "w") as archive:
            for file in sorted(self.path("files").iterdir()):
                archive.write(file, file.name)

    def _make_tar(self, path):
        _run("tar", "-cf", path, "-C", self.path("files"), ".")

    def touch(self, kind):
        """Brings it into the page cache."""
        path = self.path(kind)
        for file in path.iterdir() if path.is_dir() else [path]:
            file.read_bytes()


def _run(*command):
    subprocess.run([*map(str, command)], check=True, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def uring(enabled):
    """Whether the kernel offers io_uring to mounts made meanwhile; root only."""
    if not ENABLE_URING.exists() or os.geteuid() != 0:
        yield
        return
    with open(ENABLE_URING) as file:  # tests lock it as well while they want it otherwise
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            before = file.read().strip()
        except BlockingIOError:
            before = "Y"  # tests that run beside need it so, and put it back themselves
        fcntl.flock(file, fcntl.LOCK_SH)
        ENABLE_URING.write_text("Y" if enabled else "N")
        try:
            yield
        finally:
            ENABLE_URING.write_text(before)


class Peer:
    """One way to get at the records: what it mounts, with which command."""

    def __init__(self, name, kind, command, programs=(), root=False, limit=None):
        self.name, self.kind, self.command = name, kind, command
        self.programs, self.root = programs, root
        self.limit = limit  # so many files of a pass only, of those whose cost grows with their count

    def why_not(self):
        missing = [program for program in self.programs if shutil.which(program) is None]
        if missing:
            return f"{', '.join(missing)} is not installed"
        if self.root and os.geteuid() != 0:
            return "takes root"
        return None

    @contextlib.contextmanager
    def mounted(self, corpus, point, *options):
        """A fresh mount, its source in the page cache, memory for more of it; gives the folder of files."""
        corpus.touch(self.kind)
        machine.warm_memory()
        if self.command is None:
            yield corpus.path(self.kind)
            return
        with uring("transport=uring" in " ".join(self.command)):
            command = [part.format(source=corpus.path(self.kind), point=point) for part in self.command]
            subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            if self.name == "ratarmount" or self.name == "archivemount":
                wait_for_files(point)
            yield Path(point)
        finally:
            unmount(point)


def wait_for_files(point):
    deadline = time.monotonic() + 60
    while not os.path.exists(f"{point}/00000000.npy") and time.monotonic() < deadline:
        time.sleep(0.01)


def unmount(point):
    while os.path.ismount(point) and subprocess.run(["umount", point], capture_output=True).returncode:
        if os.geteuid() != 0:
            subprocess.run(["fusermount3", "-u", point], capture_output=True)
        time.sleep(0.05)
    time.sleep(0.1)  # the daemon's end


def peers(build):
    """All of them, ours first.  "plain loop" is ours as well, and only sleeps in read()."""
    fs = str(build / "zrecordfs")

    def ours(name, options, kind="zstd"):
        return Peer(name, kind, [fs, "-o", options, "{source}", "{point}"], [fs])

    loop = ["mount", "-o", "loop,ro", "{source}", "{point}", "-t"]
    return [
        ours("zrecordfs io_uring", "transport=uring"),
        ours("zrecordfs classic", "transport=classic"),
        ours("zrecordfs raw, io_uring", "transport=uring", "raw"),
        ours("plain loop", "transport=classic,spin=0,prefetch=off"),
        Peer("squashfuse_ll", "sqsh", ["squashfuse_ll", "{source}", "{point}"], ["squashfuse_ll", "mksquashfs"]),
        Peer("squashfuse", "sqsh", ["squashfuse", "{source}", "{point}"], ["squashfuse", "mksquashfs"]),
        Peer("kernel squashfs", "sqsh", [*loop, "squashfs"], ["mksquashfs"], root=True),
        Peer("kernel EROFS", "erofs", [*loop, "erofs"], ["mkfs.erofs"], root=True),
        Peer("fuse-zip", "zip", ["fuse-zip", "-r", "{source}", "{point}"], ["fuse-zip"]),
        Peer("ratarmount", "tar", ["ratarmount", "-c", "{source}", "{point}"], ["ratarmount"]),
        Peer("archivemount", "tar", ["archivemount", "-o", "readonly", "{source}", "{point}"], ["archivemount"],
             limit=200),
        Peer("ext4", "files", None),
    ]
