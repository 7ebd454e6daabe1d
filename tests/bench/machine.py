# SPDX-License-Identifier: MIT
"""What the figures were measured on: facts that a table without them is worth nothing; and memory
that is alike for all sides."""

import datetime
import importlib.metadata
import mmap
import os
import platform
from pathlib import Path

PACKAGES = ("numpy", "h5py", "lmdb", "pyarrow", "array-record", "tiledb", "loaderx", "torch", "grain",
            "numba", "tensordict", "safetensors")  # fmt: skip


WARM_NBYTES = 768 << 20


def warm_memory():
    """Touches memory and frees it.  A virtual machine may give what is free back to its host, and
    then the first touch of a page costs ten times a later one (203 ms instead of 25 for 64 MiB here),
    for whichever side happens to get it."""
    block = mmap.mmap(-1, WARM_NBYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block.madvise(mmap.MADV_NOHUGEPAGE)  # huge ones are given back as soon as they are free
    for at in range(0, WARM_NBYTES, mmap.PAGESIZE):
        block[at] = 1
    block.close()


def _field(path, name):
    try:
        for line in Path(path).read_text().splitlines():
            if line.startswith(name):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return None


def _last_level_cache():
    caches = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    return max((path.read_text().strip() for path in caches), key=len, default="unknown")


def _file_system(folder):
    """Type of the file system that holds the folder."""
    place, best = str(Path(folder).resolve()), ("", "unknown")
    for line in Path("/proc/mounts").read_text().splitlines():
        _, point, kind = line.split()[:3]
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best[0]):
            best = (point, kind)
    return best[1]


def _version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def facts(folder):
    """CPU, memory, system and versions; nothing that names the machine or its folders."""
    import zrecord

    memory = int(_field("/proc/meminfo", "MemTotal").split()[0]) * 1024
    versions = {name: _version(name) for name in PACKAGES}
    versions["zrecord"] = zrecord.__version__
    return {
        "cpu": _field("/proc/cpuinfo", "model name") or platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "last_level_cache": _last_level_cache(),
        "memory_nbytes": memory,
        "kernel": platform.release(),
        "system": platform.freedesktop_os_release().get("PRETTY_NAME", "Linux"),
        "file_system": _file_system(folder),
        "python": platform.python_version(),
        "versions": {name: version for name, version in versions.items() if version},
        "date": datetime.date.today().isoformat(),
    }
