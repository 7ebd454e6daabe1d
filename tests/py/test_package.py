# SPDX-License-Identifier: MIT
"""The package itself: imports, stubs, symbols, threads setting, leaks."""

import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import zrecord
from zrecord import _core

REPO = Path(__file__).resolve().parents[2]
PACKAGE = Path(zrecord.__file__).parent


def python(code, *arguments, timeout=120):
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def test_version_is_the_headers():
    header = (REPO / "engine" / "zrecord.h").read_text()
    assert zrecord.__version__ == re.search(r'ZR_VERSION_STRING "(.*)"', header)[1]
    assert zrecord.__version__ == importlib.metadata.version("zrecord")


def test_public_names():
    for name in zrecord.__all__:
        assert getattr(zrecord, name).__doc__, name
        assert name in dir(zrecord)
    with pytest.raises(AttributeError, match="nonsense"):
        zrecord.nonsense
    from zrecord import DataLoader, Dense, Mode, Ragged, Sampler, ZrecordError, open, train_dict  # noqa: F401

    assert Sampler.Mode is Mode


def test_import_brings_in_numpy_and_little_else():
    code = """
import sys, numpy
before = set(sys.modules)
import zrecord
new = {m.split(".")[0] for m in set(sys.modules) - before} - {"zrecord"}
print(sorted(new - sys.stdlib_module_names), len(new) < 20)
print("zrecord.dataloader" in sys.modules)
zrecord.DataLoader
"""
    result = python(code)
    assert result.stderr == "", result.stderr
    assert result.stdout.splitlines() == ["[] True", "False"]


def test_only_the_init_function_is_exported():
    if not shutil.which("nm"):
        pytest.skip("nm is not installed (binutils)")
    text = subprocess.run(
        ["nm", "-D", "--defined-only", _core.__file__], capture_output=True, text=True, check=True
    )
    names = {line.split()[-1] for line in text.stdout.splitlines()}
    assert names - {"_init", "_fini"} == {"PyInit__core"}


def test_the_extension_needs_only_the_c_library():
    if not shutil.which("readelf"):
        pytest.skip("readelf is not installed (binutils)")
    text = subprocess.run(
        ["readelf", "-d", _core.__file__], capture_output=True, text=True, check=True
    ).stdout
    needed = set(re.findall(r"NEEDED.*\[(.*?)\]", text))
    assert all(
        re.match(
            r"(libc|libm|libpthread|libdl|ld-linux.*|libpython.*|libgcc_s|lib[au]san|libtsan)\.so",
            n,
        )
        for n in needed
    ), needed


# ---------------------------------------------------------------- stubs


def mypy(*arguments, cwd, module="mypy"):
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    return subprocess.run(
        [sys.executable, "-m", module, *arguments], cwd=cwd, capture_output=True, text=True
    )


def test_stubs_match_the_extension(tmp_path):
    assert (PACKAGE / "py.typed").exists()
    result = mypy("--ignore-disjoint-bases", "zrecord._core", cwd=tmp_path, module="mypy.stubtest")
    assert result.returncode == 0, result.stdout + result.stderr


def test_mypy_accepts_the_package_and_its_use(tmp_path):
    (tmp_path / "use.py").write_text(
        "import numpy as np\n"
        "import zrecord\n"
        "with zrecord.Dense.create('p', np.uint8, (3,), level=3) as w:\n"
        "    w.append(np.zeros((1, 3), np.uint8))\n"
        "d = zrecord.Dense.open('p')\n"
        "shape: tuple[int, ...] = d.item_shape\n"
        "n: int = len(d)\n"
        "r = zrecord.Ragged.open('q')\n"
        "values, offsets, shapes = r.packed([1, 2])\n"
        "s = zrecord.Sampler(10, 2, zrecord.Mode.IID)\n"
        "s.seek(3)\n"
        "loader = zrecord.DataLoader({'x': d, 'r': r}, batch_size=3)\n"
        "state: dict[str, object] = loader.state_dict()\n"
        "blocks = zrecord.ZrecordBlockDataset(d, block_size=64)\n"
        "packed: bytes = zrecord.CDLLoader(blocks, batch_size=8, rank=0, world_size=2).pack_state()\n"
        "first: int = next(iter(zrecord.CDLSampler(blocks)))\n"
        "wrong: int = zrecord.train_dict([b'x'])  # expected\n"
    )
    result = mypy("use.py", cwd=tmp_path)
    errors = [line for line in result.stdout.splitlines() if ": error:" in line]
    assert len(errors) == 1 and errors[0].startswith("use.py:17:"), result.stdout
    result = mypy("-p", "zrecord", cwd=tmp_path)
    assert result.returncode == 0, result.stdout


# ---------------------------------------------------------------- settings


def test_thread_count_can_be_set():
    default = zrecord.thread_count()
    assert default >= 1
    try:
        zrecord.set_thread_count(3)
        assert zrecord.thread_count() == 3
    finally:
        zrecord.set_thread_count(0)
    assert zrecord.thread_count() == default
    for bad, error in ((-1, ValueError), (10**6, ValueError), ("2", TypeError), (1.5, TypeError)):
        with pytest.raises(error):
            zrecord.set_thread_count(bad)


def test_idle_memory_can_be_returned(tmp_path):
    with zrecord.Dense.create(tmp_path / "s", "u1", (1 << 16,), "raw") as writer:
        writer.append(np.zeros((64, 1 << 16), np.uint8))
    with zrecord.Dense.open(tmp_path / "s") as store:
        store[:]
        assert _core.idle_memory() >= 64 << 16
        zrecord.trim_memory(0)
        assert _core.idle_memory() == 0


def test_batches_reuse_memory(tmp_path):
    with zrecord.Dense.create(tmp_path / "s", "u1", (1 << 16,), "raw") as writer:
        writer.append(np.zeros((64, 1 << 16), np.uint8))
    with zrecord.Dense.open(tmp_path / "s") as store:
        addresses = set()
        for _ in range(10):
            batch = store[:]
            addresses.add(batch.ctypes.data)
            del batch
        assert len(addresses) == 1


# ---------------------------------------------------------------- leaks

LEAK_PROGRAM = """
import gc, os, pickle, sys, warnings
import numpy as np, zrecord
from zrecord import Dense, Ragged, Sampler
warnings.simplefilter("ignore")
root = sys.argv[1]
data = np.arange(3000 * 16, dtype="i4").reshape(-1, 16)
with Dense.create(root + "/d", "i4", (16,)) as w: w.append(data)
with Dense.create(root + "/s", "M8[s]", ()) as w: w.append(np.arange(100).astype("M8[s]"))
with Ragged.create(root + "/r", "i4") as w: w.append([row[:1 + i % 16] for i, row in enumerate(data)])
d, s, r = Dense.open(root + "/d"), Dense.open(root + "/s"), Ragged.open(root + "/r")
out = np.empty((300, 16), "i4")
ids = np.arange(300)
sampler = Sampler(3000, 300, 2)

def raises(f, *a, **k):
    try: f(*a, **k)
    except Exception: pass
    else: raise AssertionError(f)

def read():
    d[5]; d[ids]; d[list(range(300))]; d[::7]; d[np.ones(3000, bool)]; d[ids.astype(">i2")]; d.gather(ids, out); d[()]
    s[5]; s[:]; r[5]; r[ids]; r.packed(ids); r.packed([]); r[()]; list(s); d.prefetch(ids)
    d.dtype; d.codec; d.path; d.item_shape; d.closed; repr(d); len(d); s.has_dict()
    sampler.next(); sampler.seek(3); pickle.loads(pickle.dumps(sampler)).next()

def errors():
    for key in (-1, 2**70, [0.5], None, "a", [9999], True, np.ones(3, bool), slice(-1, 2), [1, [2]], {}):
        raises(d.__getitem__, key); raises(r.__getitem__, key); raises(r.packed, key)
    raises(d.gather, [1], out=np.empty(3)); raises(d.append, data); raises(Sampler, 0, 1, 2); raises(Sampler, 1, 1, 9)
    raises(Dense.open, root + "/none"); raises(Ragged.open, root + "/d"); raises(Dense.create, root + "/d", "i4", ())
    raises(sampler.seek, -1); raises(Dense, 1)

def open_close():
    a = Dense.open(root + "/d"); a[3]; b = pickle.loads(pickle.dumps(a)); b[3]; a.close(); zrecord.verify(b)
    zrecord.open(root + "/r")[0]; pickle.loads(pickle.dumps(d))

def write():
    w = Ragged.create(root + "/w", "i4", durability="none")
    w.append([data[0], data[1][::2]]); w.append(iter([data[0]])); w.append((data[0], np.asfortranarray(data[:3])))
    raises(w.append, [data[0], 5]); raises(w.append, iter([data[0], None])); raises(w.append, []); raises(w.append, 5)
    w.abort()
    w = Dense.create(root + "/w", "i4", (16,), "raw", durability="none")
    w.append(data[:5]); w.append(data[::-1][:5]); raises(w.append, data[0]); raises(w.append, [1])
    del w
    raises(zrecord.train_dict, np.zeros((2, 1), "u1"))

def resident():
    with open("/proc/self/statm") as f: return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def references():
    gc.collect()
    watched = [data, ids, out, d, s, r, d.dtype, d.codec, d.path, d.item_shape, np.dtype("u8"), Dense, Ragged, zrecord._core.Block]
    return [sys.getrefcount(x) for x in watched], sys.getallocatedblocks()

def growth(work, rounds):
    before, blocks = references(); memory = resident()
    for _ in range(rounds): work()
    after, now = references()
    return [b - a for a, b in zip(before, after)], now - blocks, resident() - memory

# Caches grow now and then; a leak grows by one or more a round, every time.
for work, rounds in ((read, 200), (errors, 200), (open_close, 100), (write, 100)):
    for _ in range(20): work()
    for attempt in range(4):
        counts, blocks, nbytes = growth(work, rounds)
        if all(abs(c) < rounds / 2 for c in counts) and blocks < rounds / 2 and nbytes < 1 << 20: break
    else: raise AssertionError((work.__name__, counts, blocks, nbytes))
"""


def test_nothing_leaks(tmp_path):
    result = python(LEAK_PROGRAM, tmp_path, timeout=300)
    assert result.returncode == 0, result.stderr[-2000:]


def test_wheel_in_an_empty_environment(tmp_path):
    """The wheel needs NumPy alone: its files are put where only NumPy can be found besides."""
    site = tmp_path / "site"
    shutil.copytree(PACKAGE, site / "zrecord", ignore=shutil.ignore_patterns("__pycache__"))
    numpy_home = Path(np.__file__).parent
    for name in ("numpy", "numpy.libs"):
        if (numpy_home.parent / name).exists():
            (site / name).symlink_to(numpy_home.parent / name)
    code = """
import sys; sys.path.insert(0, sys.argv[1])
import numpy as np, zrecord
assert zrecord.__file__.startswith(sys.argv[1])
d = np.random.default_rng(0).integers(0, 9, (3000, 32)).astype("u1")
with zrecord.Dense.create(sys.argv[2], d.dtype, (32,), "zstd_dict", zrecord.train_dict(d, "fast")) as w: w.append(d)
with zrecord.open(sys.argv[2]) as s: assert np.array_equal(s[:], d)
"""
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(site), str(tmp_path / "s")],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
