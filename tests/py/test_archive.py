# SPDX-License-Identifier: MIT
"""Memmap archives from Python: saving, mapping, writing through, and what other programs say."""

import copy
import ctypes
import functools
import gc
import multiprocessing
import os
import pickle
import shutil
import signal
import struct
import subprocess
import sys
import threading
import zipfile
import zlib

import numpy as np
import pytest

import zrecord
from zrecord import _core
from zrecord.archive import DTYPES, ArchiveTree, NestedArray
from zrecord.errors import ZrecordError

X = np.arange(3)
META_TAIL = (
    '"shape": [], "device": "cpu", "_type": "<class \'tensordict._td.TensorDict\'>", '
    '"_format_version": 1, "_class": "tensordict:TensorDict"}'
)


def make_tree(count=4):
    rng = np.random.default_rng(1)
    return {
        "image": rng.integers(0, 256, (count, 6, 5), np.uint8),
        "inner": {"x": rng.standard_normal((count, 3)), "flags": rng.random(count) > 0.5},
        "name": "a tree",
    }


def equal(a, b):
    assert a.keys() == b.keys()
    for key, value in a.items():
        if isinstance(value, dict):
            equal(value, b[key])
        elif isinstance(value, np.ndarray):
            assert value.dtype == b[key].dtype and np.array_equal(value, b[key]), key
        else:
            assert value == b[key]


@pytest.fixture
def archive(tmp_path):
    return zrecord.save_archive(make_tree(), tmp_path / "a.tdz", batch_size=4)


# ---------------------------------------------------------------- loading


def test_what_was_saved_comes_back(archive):
    tree = zrecord.load_archive(archive)
    equal(tree, make_tree())
    assert tree.batch_size == tree["inner"].batch_size == (4,)
    assert isinstance(tree, dict) and isinstance(tree["inner"], ArchiveTree)
    assert {key for key, _ in tree.leaves()} == {("image",), ("inner", "x"), ("inner", "flags")}


def test_leaves_are_views_of_one_mapping(archive):
    tree = zrecord.load_archive(archive)
    owners = {id(leaf.base) for _, leaf in tree.leaves()}
    assert len(owners) == 1
    for _, leaf in tree.leaves():
        assert leaf.flags.writeable and leaf.flags.c_contiguous and leaf.flags.aligned
        assert leaf.ctypes.data % 64 == 0


def test_changes_are_private_or_reach_the_file(archive):
    before = archive.read_bytes()
    zrecord.load_archive(archive)["image"][:] = 1
    assert archive.read_bytes() == before
    zrecord.load_archive(archive, mode="r+")["image"][:] = 1
    assert (zrecord.load_archive(archive)["image"] == 1).all()


def test_the_mapping_lives_as_long_as_a_leaf(archive):
    tree = zrecord.load_archive(archive)
    leaf = tree["inner"]["x"][1:, 1]
    expected = leaf.copy()
    del tree
    gc.collect()
    os.unlink(archive)
    assert np.array_equal(leaf, expected)


def test_an_open_archive_keeps_no_descriptor_per_leaf(tmp_path):
    path = zrecord.save_archive({str(i): np.arange(3) for i in range(500)}, tmp_path / "a.tdz")
    before = len(os.listdir("/proc/self/fd"))
    tree = zrecord.load_archive(path)
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    del tree
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("subpath", ["inner/x", "/inner//x/", ("inner", "x"), (("inner",), "x")])
def test_a_subpath_may_be_a_leaf(archive, subpath):
    leaf = zrecord.load_archive(archive, subpath=subpath)
    assert np.array_equal(leaf, make_tree()["inner"]["x"])


def test_a_subpath_that_leads_nowhere_is_named(archive):
    for subpath in ("nope", "inner/nope", "image/x", "name/x"):
        with pytest.raises(ZrecordError, match="there is no"):
            zrecord.load_archive(archive, subpath=subpath)
    assert zrecord.load_archive(archive, subpath="name") == "a tree"


def test_nested_keys(archive):
    tree = zrecord.load_archive(archive)
    assert tree["inner", "x"] is tree["inner"]["x"]
    with pytest.raises(KeyError):
        tree["inner", "nope"]


def test_wrong_arguments(archive, tmp_path):
    with pytest.raises(ValueError, match="mode"):
        zrecord.load_archive(archive, mode="w")
    with pytest.raises(FileNotFoundError):
        zrecord.load_archive(tmp_path / "nope.tdz")
    with pytest.raises(ZrecordError, match="regular file"):
        zrecord.load_archive(tmp_path)
    with pytest.raises(TypeError):
        zrecord.load_archive(archive, subpath=3)


def test_opening_reads_no_leaf(tmp_path):
    """Neither memory nor pages of the file: 64 MiB of leaves cost less than one of them."""
    path = zrecord.save_archive({f"x{i}": np.ones(1 << 20) for i in range(8)}, tmp_path / "a.tdz")

    def resident_kib():
        with open("/proc/self/status") as status:
            return sum(int(line.split()[1]) for line in status if line.startswith(("RssFile", "RssAnon")))

    zrecord.load_archive(path)  # what only the first call needs
    before = resident_kib()
    tree = zrecord.load_archive(path)
    assert resident_kib() - before < 4096
    assert tree["x3"].sum() == 1 << 20


def test_write_through_is_for_all_leaves_or_for_none(tmp_path):
    """One leaf that would have to be copied refuses the whole; a level without it can be opened."""
    values = np.arange(6, dtype=np.float64)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as z:
        z.writestr("meta.json", meta(good=values[:0], level=None, packed=values))
        z.writestr("level/meta.json", meta(x=values.astype(np.uint8)))
        z.writestr("level/x.memmap", values.astype(np.uint8).tobytes())
        z.writestr(zipfile.ZipInfo("packed.memmap"), values.tobytes(), zipfile.ZIP_DEFLATED)
    before = (tmp_path / "a.zip").read_bytes()
    with pytest.raises(ValueError, match="a.zip: cannot be opened with mode='r\\+': leaf packed is compressed"):
        zrecord.load_archive(tmp_path / "a.zip", mode="r+")
    assert (tmp_path / "a.zip").read_bytes() == before
    level = zrecord.load_archive(tmp_path / "a.zip", mode="r+", subpath="level")
    level["x"][2] = 77
    assert zrecord.load_archive(tmp_path / "a.zip")["level", "x"].tolist() == [0, 1, 77, 3, 4, 5]


WITHOUT = """
import sys, numpy as np
for name in sys.argv[2:]:
    sys.modules[name] = None
import zrecord
try:
    leaf = zrecord.load_archive(sys.argv[1])["x"]
    print(type(leaf).__module__, leaf.dtype, leaf.tolist())
except ValueError as exc:
    print(exc)
"""


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        ([], "numpy bfloat16 [0.0, 1.0, 2.0]"),
        (["torch"], "numpy bfloat16 [0.0, 1.0, 2.0]"),
        (["ml_dtypes"], "torch torch.bfloat16 [0.0, 1.0, 2.0]"),
        (["ml_dtypes", "torch"], "leaf x: NumPy has no bfloat16; install ml_dtypes or torch to load it"),
    ],
)
def test_bfloat16_is_what_the_environment_has(tmp_path, missing, expected):
    if "ml_dtypes" in missing and "torch" not in missing:
        pytest.importorskip("torch")
    values = np.arange(3).astype(pytest.importorskip("ml_dtypes").bfloat16)
    path = zrecord.save_archive({"x": values}, tmp_path / "a.tdz")
    done = subprocess.run([sys.executable, "-c", WITHOUT, path, *missing], capture_output=True, text=True, timeout=60)
    assert (done.stderr, done.stdout) == ("", f"{expected}\n")


# ---------------------------------------------------------------- processes and copies


def test_pickles_refer_to_the_file(tmp_path):
    path = zrecord.save_archive({"x": np.zeros(1_000_000)}, tmp_path / "a.tdz")
    tree = zrecord.load_archive(path)
    data = pickle.dumps(tree)
    assert len(data) < 2000
    equal(pickle.loads(data), tree)
    zrecord.save_archive({"x": np.ones(7)}, path)
    with pytest.raises(ValueError, match="another archive"):
        pickle.loads(data)


def test_a_changed_tree_is_pickled_by_value(archive):
    tree = zrecord.load_archive(archive)
    tree["new"] = np.arange(4)
    again = pickle.loads(pickle.dumps(tree))
    equal(again, tree)
    assert again.batch_size == (4,)
    tree = zrecord.load_archive(archive)
    tree["inner"].pop("x")
    assert "x" not in pickle.loads(pickle.dumps(tree))["inner"]


def test_deep_copies_hold_what_was_changed(archive):
    tree = zrecord.load_archive(archive)
    tree["image"][:] = 3
    duplicate = copy.deepcopy(tree)
    assert (duplicate["image"] == 3).all() and duplicate.batch_size == (4,)
    duplicate["image"][:] = 4
    assert (tree["image"] == 3).all()
    assert copy.copy(tree)["image"] is tree["image"]


def total(tree, queue):
    queue.put(int(tree["image"].sum()))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes_read_it(archive, method):
    context = multiprocessing.get_context(method)
    tree = zrecord.load_archive(archive)
    queue = context.Queue()
    process = context.Process(target=total, args=(tree, queue))
    process.start()
    assert queue.get(timeout=60) == int(make_tree()["image"].sum())
    process.join(60)
    assert process.exitcode == 0


def test_threads_load_at_once(archive):
    failures = []

    def load():
        try:
            for _ in range(50):
                equal(zrecord.load_archive(archive), make_tree())
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_file_cut_short_while_mapped_does_not_end_the_process(tmp_path):
    path = zrecord.save_archive({"x": np.ones(1 << 20)}, tmp_path / "a.tdz")
    script = (
        "import sys, os, zrecord\n"
        "tree = zrecord.load_archive(sys.argv[1])\n"
        "assert tree.intact\n"
        "os.truncate(sys.argv[1], 4096)\n"
        "tree['x'].sum(); tree['x'][5] = 1\n"
        "assert not tree.intact\n"
    )
    done = subprocess.run([sys.executable, "-c", script, path], timeout=60)
    assert done.returncode == 0


# ---------------------------------------------------------------- saving


@pytest.mark.parametrize("compression", [None, "stored", "deflate", "bzip2", "lzma", zipfile.ZIP_DEFLATED])
def test_compressions_round_trip(tmp_path, compression):
    tree = make_tree(300)
    path = zrecord.save_archive(tree, tmp_path / "a.tdz", compression=compression)
    equal(zrecord.load_archive(path), tree)
    equal(zrecord.load_archive(path, num_threads=2, checksums=True), tree)
    assert zipfile.ZipFile(path).testzip() is None
    assert zrecord.verify_archive(path).ok
    if compression not in (None, "stored"):
        with pytest.raises(ValueError, match="r\\+.*image.*compressed"):
            zrecord.load_archive(path, mode="r+")


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?", "c8", "c16"])
@pytest.mark.parametrize("order", ["<", ">"])
def test_dtypes_keep_their_values(tmp_path, dtype, order):
    values = np.arange(12).reshape(3, 4).astype(np.dtype(dtype).newbyteorder(order))
    loaded = zrecord.load_archive(zrecord.save_archive({"x": values}, tmp_path / "a.tdz"))["x"]
    assert loaded.dtype == np.dtype(dtype) and np.array_equal(loaded, values)


@pytest.mark.parametrize(
    "value", [np.array(["a"]), np.array([1], "M8[s]"), np.array([None]), np.zeros(2, "g"), np.zeros(2, "i4,f4")]
)
def test_dtypes_that_an_archive_cannot_hold(tmp_path, value):
    with pytest.raises(ValueError, match="leaf inner/bad"):
        zrecord.save_archive({"inner": {"bad": value}}, tmp_path / "a.tdz")
    assert os.listdir(tmp_path) == []


def test_strided_and_scalar_arrays(tmp_path):
    base = np.arange(24.0).reshape(4, 6)
    tree = {"t": base.T, "step": base[::2, ::-1], "zero": np.float32(3), "d0": np.array(7), "none": np.zeros((0, 3))}
    loaded = zrecord.load_archive(zrecord.save_archive(tree, tmp_path / "a.tdz"))
    for key, value in tree.items():
        assert np.array_equal(loaded[key], value) and loaded[key].shape == np.shape(value)


def test_values_survive(tmp_path):
    tree = {"s": "é", "i": -3, "f": float("inf"), "n": None, "l": [1, "a", {"b": None}], "big": 10**40, "e": {}}
    loaded = zrecord.load_archive(zrecord.save_archive(tree, tmp_path / "a.tdz"))
    assert dict(loaded) == tree


def test_keys_with_zeros_survive(tmp_path):
    """What JSON's C readers refuse; once the level was taken for a value, as it has a key "data"."""
    tree = {"a\0b": np.arange(3), "data": {"\0": np.arange(2)}, "\0v": [float("-inf"), 10**40, "\ud800\0"]}
    path = zrecord.save_archive(tree, tmp_path / "a.tdz")
    equal(dict(zrecord.load_archive(path)), tree)
    assert zipfile.ZipFile(path).testzip() is None


@pytest.mark.parametrize(
    ("tree", "error", "match"),
    [
        ({"a": {1: np.zeros(2)}}, TypeError, "strings"),
        ({"shape": np.zeros(2)}, ValueError, "'shape'"),
        ({"a": object()}, TypeError, "JSON"),
        ({"a": [object()]}, TypeError, "JSON"),
        ([1], TypeError, "dict"),
    ],
)
def test_trees_that_cannot_be_saved(tmp_path, tree, error, match):
    with pytest.raises(error, match=match):
        zrecord.save_archive(tree, tmp_path / "a.tdz")
    assert os.listdir(tmp_path) == []


def test_batch_sizes_are_checked(tmp_path):
    with pytest.raises(ValueError, match="inner/x.*batch size"):
        zrecord.save_archive({"inner": {"x": np.zeros(3)}}, tmp_path / "a.tdz", batch_size=4)
    with pytest.raises(ValueError, match="names"):
        zrecord.save_archive({}, tmp_path / "a.tdz", batch_size=4, names=("a", "b"))
    path = zrecord.save_archive({"x": np.zeros((4, 2))}, tmp_path / "a.tdz", batch_size=4, names=("t",))
    assert zrecord.load_archive(path).names == ("t",)


def test_saving_replaces_at_once_or_not_at_all(archive, tmp_path):
    tree = zrecord.load_archive(archive)
    os.chmod(archive, 0o640)
    zrecord.save_archive({"image": tree["image"][::-1]}, archive)  # from the file that it replaces
    assert np.array_equal(zrecord.load_archive(archive)["image"], make_tree()["image"][::-1])
    assert os.stat(archive).st_mode & 0o777 == 0o640
    assert np.array_equal(tree["image"], make_tree()["image"])
    with pytest.raises(FileExistsError):
        zrecord.save_archive({}, archive, existsok=False)
    with pytest.raises(ValueError):
        zrecord.save_archive({}, tmp_path)
    assert os.listdir(tmp_path) == ["a.tdz"]


def test_saving_follows_links_and_makes_folders(tmp_path):
    os.symlink("target.tdz", tmp_path / "link.tdz")
    zrecord.save_archive({"x": np.arange(3)}, tmp_path / "target.tdz")
    zrecord.save_archive({"x": np.arange(4)}, tmp_path / "link.tdz")
    assert (tmp_path / "link.tdz").is_symlink()
    assert len(zrecord.load_archive(tmp_path / "target.tdz")["x"]) == 4
    path = zrecord.save_archive({}, tmp_path / "new" / "er" / ("n" * 250 + ".tdz"))
    assert zrecord.load_archive(path) == {}


def test_progress_can_stop_a_save(tmp_path):
    def stop(done, total):
        raise KeyError("stop")

    with pytest.raises(KeyError):
        zrecord.save_archive({"x": np.zeros(1 << 22)}, tmp_path / "a.tdz", progress=stop)
    assert os.listdir(tmp_path) == []
    seen = []
    zrecord.save_archive({"x": np.zeros(1 << 22)}, tmp_path / "a.tdz", progress=lambda *a: seen.append(a))
    assert seen[-1][0] == seen[-1][1] >= 1 << 25 and seen == sorted(seen) and len(seen) > 1


def test_a_full_disk_leaves_what_was_there(tmp_path):
    resource = pytest.importorskip("resource")
    path = zrecord.save_archive({"x": np.zeros(10)}, tmp_path / "a.tdz")
    before = path.read_bytes()
    script = (
        "import sys, signal, resource, numpy as np, zrecord\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "try:\n    zrecord.save_archive({'x': np.ones(1 << 20)}, sys.argv[1])\n"
        "except OSError as exc:\n    print(exc)\n"
    )
    assert resource
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "cannot write" in done.stdout, done
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["a.tdz"]


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_save_leaves_nothing(tmp_path, sig):
    script = (
        "import sys, os, signal, numpy as np, zrecord\n"
        f"def kill(done, total):\n    os.kill(os.getpid(), {int(sig)})\n"
        "zrecord.save_archive({'x': np.ones(1 << 23)}, sys.argv[1], progress=kill)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, tmp_path / "a.tdz"], capture_output=True, timeout=60)
    assert done.returncode != 0
    assert os.listdir(tmp_path) == []


def test_a_copying_load_hears_signals(tmp_path):
    """One that comes while the engine works ends the call itself: nothing is made of what it read."""
    interrupt = functools.partial(getattr(ctypes.PyDLL(None), "raise"), signal.SIGINT)

    class Threads:
        """Turned into a number inside the call, which no bytecode follows."""

        __index__ = interrupt

    path = zrecord.save_archive({"x": np.arange(9)}, tmp_path / "a.tdz", compression="lzma")
    archive = _core.archive_open(path, False)
    trees = [ArchiveTree()]
    with pytest.raises(KeyboardInterrupt):
        archive.load((), trees.pop, DTYPES, None, None, None, Threads(), False, False)
    assert len(trees) == 1
    tree = archive.load((), trees.pop, DTYPES, None, None, None, 1, False, False)
    assert np.array_equal(tree["x"], np.arange(9))


# ---------------------------------------------------------------- preallocated archives


def test_memmap_like_makes_holes(tmp_path):
    row = np.zeros((64, 64), np.float32)
    tree = zrecord.memmap_like(
        {"x": np.broadcast_to(row, (100_000, *row.shape)), "n": {"y": ((100_000,), np.int64)}},
        tmp_path / "a.tdz",
        batch_size=100_000,
    )
    st = os.stat(tmp_path / "a.tdz")
    assert st.st_size > 100_000 * row.nbytes and st.st_blocks * 512 < 1 << 20
    assert tree.batch_size == (100_000,)
    tree["x"][77_777] = 1
    tree["n"]["y"][5] = 2
    again = zrecord.load_archive(tmp_path / "a.tdz")
    assert again["x"][77_777].all() and not again["x"][77_776].any() and again["n"]["y"][5] == 2


def test_memmap_like_has_sound_checksums(tmp_path):
    zrecord.memmap_like({"x": ((1 << 20,), "f4"), "y": ((3,), "i8")}, tmp_path / "a.tdz")
    assert zipfile.ZipFile(tmp_path / "a.tdz").testzip() is None
    with pytest.raises(ValueError):
        zrecord.memmap_like({"x": NestedArray(np.zeros(2), np.array([[2]]))}, tmp_path / "b.tdz")


def test_refresh_keeps_everything_but_the_checksums(archive):
    zrecord.load_archive(archive, mode="r+")["image"][0] = 9
    before = archive.read_bytes()
    zrecord.refresh_archive_checksums(archive)
    after = archive.read_bytes()
    assert sum(a != b for a, b in zip(before, after)) <= 8 and len(before) == len(after)
    assert zipfile.ZipFile(archive).testzip() is None


def test_refresh_mends_all_three_places(tmp_path):
    """The directory, local headers, and what stands behind the payloads of a streamed archive."""
    values = np.arange(200, dtype=np.uint8)
    pipe = NotSeekable()
    with zipfile.ZipFile(pipe, "w") as z:
        for name in ("x", "y"):
            z.writestr(f"{name}.memmap", values.tobytes())
        z.writestr("meta.json", meta(x=values, y=values))
    path = tmp_path / "a.zip"
    path.write_bytes(pipe.data)
    assert all(info.flag_bits & 8 for info in zipfile.ZipFile(path).infolist())  # the CRC follows
    zrecord.load_archive(path, mode="r+")["x"][7] = 0
    assert len(zrecord.verify_archive(path).findings) == 1 and zipfile.ZipFile(path).testzip() == "x.memmap"
    zrecord.refresh_archive_checksums(path)
    values[7] = 0
    crc = struct.pack("<I", zlib.crc32(values.tobytes()))
    data = path.read_bytes()
    assert data.count(b"PK\7\10" + crc) == 1 and data.count(crc, data.index(b"PK\1\2")) == 1
    assert zrecord.verify_archive(path).ok and zipfile.ZipFile(path).testzip() is None
    for checker in (["unzip", "-tq"], ["7z", "t"], ["bsdtar", "-xOf"]):
        assert subprocess.run([*checker, path], capture_output=True, timeout=60).returncode == 0


class NotSeekable:
    """A file that zipfile can only write on to."""

    def __init__(self):
        self.data = b""

    def write(self, data):
        self.data += data
        return len(data)

    def flush(self):
        pass


# ---------------------------------------------------------------- stores


def test_stores_are_leaves(tmp_path):
    values = np.random.default_rng(0).integers(0, 1000, (777, 5, 3), np.int32)
    with zrecord.Dense.create(tmp_path / "s", values.dtype, values.shape[1:]) as store:
        store.append(values)
    path = zrecord.save_archive({"x": zrecord.open(tmp_path / "s")}, tmp_path / "a.tdz", batch_size=777)
    assert np.array_equal(zrecord.load_archive(path)["x"], values)
    with zrecord.Dense.create(tmp_path / "t", values.dtype, values.shape[1:]) as store:
        store.append(zrecord.load_archive(path)["x"])
    assert np.array_equal(zrecord.open(tmp_path / "t")[:], values)


# ---------------------------------------------------------------- other programs


def meta(**leaves):
    """Of arrays; None is a level."""
    entries = [
        f'"{key}": {{"type": "TensorDict"}}'
        if a is None
        else f'"{key}": {{"device": "cpu", "shape": {list(a.shape)}, "dtype": "torch.{a.dtype}", "is_nested": false}}'
        for key, a in leaves.items()
    ]
    return "{" + ", ".join([*entries, META_TAIL])


@pytest.fixture
def folder(tmp_path):
    """A memmap directory, as other programs would zip it."""
    leaves = {"x": np.arange(1000, dtype=np.float64), "mask": np.arange(999) % 7 == 0}
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "meta.json").write_text(meta(**leaves))
    for key, value in leaves.items():
        (tmp_path / "dir" / f"{key}.memmap").write_bytes(value.tobytes())
    return tmp_path / "dir", leaves


FOREIGN = {
    "zip -0": ["sh", "-c", "zip -q -r -0 ../f.zip ."],
    "zip -9": ["sh", "-c", "zip -q -r -9 ../f.zip ."],
    "zip -fz": ["sh", "-c", "zip -q -r -fz ../f.zip ."],
    "zip streamed": ["sh", "-c", "zip -q -r - . | cat > ../f.zip"],
    "zip streamed -0": ["sh", "-c", "zip -q -r -0 - . | cat > ../f.zip"],
    "zip bzip2": ["sh", "-c", "zip -q -r -Z bzip2 ../f.zip ."],
    "7z": ["7z", "a", "-tzip", "../f.zip", "."],
    "7z stored": ["7z", "a", "-tzip", "-mx0", "../f.zip", "."],
    "7z lzma": ["7z", "a", "-tzip", "-mm=LZMA", "../f.zip", "."],
    "7z bzip2": ["7z", "a", "-tzip", "-mm=BZip2", "../f.zip", "."],
    "bsdtar": ["sh", "-c", "bsdtar -cf ../f.zip --format zip *"],
    "bsdtar ./": ["sh", "-c", "bsdtar -cf ../f.zip --format zip ."],
    "bsdtar stored": ["sh", "-c", "bsdtar -cf ../f.zip --format zip --options zip:compression=store *"],
}


@pytest.mark.parametrize("how", FOREIGN)
def test_zips_of_other_programs_open(folder, how):
    directory, leaves = folder
    subprocess.run(FOREIGN[how], cwd=directory, check=True, capture_output=True, timeout=60)
    path = directory.parent / "f.zip"
    assert zrecord.is_memmap_archive(path)
    equal(dict(zrecord.load_archive(path)), leaves)
    assert zrecord.verify_archive(path).ok
    zrecord.refresh_archive_checksums(path)
    assert zipfile.ZipFile(path).testzip() is None
    zrecord.unpack_memmap(path, directory.parent / "out")
    for key in leaves:
        assert (directory.parent / "out" / f"{key}.memmap").read_bytes() == leaves[key].tobytes()


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_zips_of_python_open(folder, method):
    directory, leaves = folder
    path = directory.parent / "f.zip"
    with zipfile.ZipFile(path, "w", method) as z:
        z.comment = b"a comment" * 50
        for name in os.listdir(directory):
            z.write(directory / name, name)
    equal(dict(zrecord.load_archive(path)), leaves)


def test_bytes_in_front_of_the_archive(archive):
    archive.write_bytes(b"#!/bin/sh\n" + archive.read_bytes())
    equal(zrecord.load_archive(archive), make_tree())


CHECKERS = [["unzip", "-tq"], ["zipinfo"], ["bsdtar", "-tf"], ["7z", "t"], [sys.executable, "-m", "zipfile", "-t"]]


@pytest.mark.parametrize(
    ("checker", "compression"),
    [
        (checker, compression)
        for checker in CHECKERS
        for compression in (None, "deflate", "bzip2", "lzma")
        if (checker[0], compression) != ("unzip", "lzma")  # Info-ZIP has no lzma
    ],
)
def test_other_programs_accept_what_is_written(tmp_path, checker, compression):
    path = zrecord.save_archive(make_tree(100), tmp_path / "a.tdz", compression=compression)
    done = subprocess.run([*checker, path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_other_programs_accept_odd_names(tmp_path):
    """Every file that is written, by whatever call: escapes, other scripts, long names, holes."""
    tree = {"a/b\\": X, "é中👩": {"..": X, "": {"\0": X}}, "k" * 240: X[:0], "l" * 240: X, "v": ["text"]}
    files = [zrecord.save_archive(tree, tmp_path / "a.tdz")]
    zrecord.unpack_memmap(files[0], tmp_path / "dir")
    files.append(zrecord.pack_memmap(tmp_path / "dir", tmp_path / "b.tdz"))
    files.append(zrecord.pack_memmap(tmp_path / "dir", tmp_path / "c.tdz", compression="deflate"))
    zrecord.memmap_like({**tree, "large": ((8 << 20,), "f8")}, tmp_path / "d.tdz")["large"][5] = 1
    files.append(zrecord.refresh_archive_checksums(tmp_path / "d.tdz"))
    files.append(zrecord.save_archive({}, tmp_path / "e.tdz"))
    for path in files:
        for checker in CHECKERS:
            done = subprocess.run([*checker, path], capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, (path, done)


def test_descriptions_come_first_at_each_level(tmp_path):
    tree = {"z": {"b": X, "a": {"y": X}}, "m": X, "Z": X, "a": {"x": X}, "v": "value"}
    path = zrecord.save_archive(tree, tmp_path / "a.tdz")
    names = ["meta.json", "Z.memmap", "m.memmap", "a/meta.json", "a/x.memmap", "v/meta.json"]
    names += ["z/meta.json", "z/b.memmap", "z/a/meta.json", "z/a/y.memmap"]
    assert zipfile.ZipFile(path).namelist() == names
    offsets = [info.header_offset for info in zipfile.ZipFile(path).infolist()]
    assert offsets == sorted(offsets)


def test_a_leaf_that_does_not_start_at_its_itemsize_is_copied(tmp_path):
    values = np.arange(5, dtype=np.float64)
    for pad in range(8):
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as z:
            z.writestr("meta.json", meta(x=values) + " " * pad)
            z.writestr("x.memmap", values.tobytes())
        loaded = zrecord.load_archive(tmp_path / "a.zip")["x"]
        assert np.array_equal(loaded, values) and loaded.flags.aligned
        offset = zipfile.ZipFile(tmp_path / "a.zip").getinfo("x.memmap").header_offset + 30 + 8
        if offset % 8:
            with pytest.raises(ValueError, match="leaf x.*multiple of its itemsize"):
                zrecord.load_archive(tmp_path / "a.zip", mode="r+")


# ---------------------------------------------------------------- sizes


def test_70000_leaves(tmp_path):
    path = zrecord.save_archive({f"k{i}": np.full(2, i) for i in range(70_000)}, tmp_path / "a.tdz")
    tree = zrecord.load_archive(path)
    assert len(tree) == 70_000 and tree["k69999"].tolist() == [69_999] * 2
    assert zrecord.load_archive(path, subpath="k12345").tolist() == [12_345] * 2
    assert len(zipfile.ZipFile(path).namelist()) == 70_001


def test_more_than_4_gib(tmp_path):
    """Sparse: members beyond 32 bits of offset and of size."""
    count = (4 << 30) + 4096
    tree = zrecord.memmap_like({"a": ((count,), "u1"), "b": ((3,), "i8"), "c": ((count,), "u1")}, tmp_path / "a.tdz")
    tree["a"][-1] = 1
    tree["b"][:] = 5
    tree["c"][-1] = 2
    del tree
    loaded = zrecord.load_archive(tmp_path / "a.tdz")
    assert loaded["a"][-1] == 1 and loaded["b"].tolist() == [5] * 3 and loaded["c"][-1] == 2
    with zipfile.ZipFile(tmp_path / "a.tdz") as z:
        assert [i.file_size for i in z.infolist()[1:]] == [count, 24, count]
        assert z.infolist()[2].header_offset > 4 << 30
    assert zrecord.load_archive(tmp_path / "a.tdz", subpath="b").tolist() == [5] * 3


# ---------------------------------------------------------------- packing


def test_pack_and_unpack(archive, tmp_path):
    zrecord.unpack_memmap(archive, tmp_path / "dir")
    assert sorted(os.listdir(tmp_path / "dir")) == ["image.memmap", "inner", "meta.json", "name"]
    zrecord.pack_memmap(tmp_path / "dir", tmp_path / "b.tdz", compression="deflate")
    equal(zrecord.load_archive(tmp_path / "b.tdz"), make_tree())


def test_unpacking_into_a_folder_replaces_only_its_files(archive, tmp_path):
    out = tmp_path / "dir"
    out.mkdir()
    (out / "other").write_text("mine")
    (out / "image.memmap").write_text("old")
    os.symlink("/etc/hostname", out / "meta.json")
    zrecord.unpack_memmap(archive, out)
    assert (out / "other").read_text() == "mine"
    assert (out / "image.memmap").read_bytes() == make_tree()["image"].tobytes()
    assert not (out / "meta.json").is_symlink()


def test_unpacking_does_not_follow_a_linked_folder(archive, tmp_path):
    out, elsewhere = tmp_path / "dir", tmp_path / "elsewhere"
    out.mkdir()
    elsewhere.mkdir()
    os.symlink(elsewhere, out / "inner")
    with pytest.raises(ZrecordError, match="inner.*no folder"):
        zrecord.unpack_memmap(archive, out)
    assert os.listdir(elsewhere) == [] and os.listdir(out) == ["inner"]


def test_unpacking_a_damaged_archive_writes_nothing(archive, tmp_path):
    data = bytearray(archive.read_bytes())
    at = data.find(make_tree()["inner"]["x"].tobytes())
    data[at + 3] ^= 1
    archive.write_bytes(data)
    (tmp_path / "old").mkdir()
    for out in ("new", "old"):
        with pytest.raises(ZrecordError, match="inner/x.memmap.*CRC-32"):
            zrecord.unpack_memmap(archive, tmp_path / out)
    assert sorted(os.listdir(tmp_path)) == ["a.tdz", "old"] and os.listdir(tmp_path / "old") == []
    names = zipfile.ZipFile(archive).namelist()
    assert [names[f[0]] for f in zrecord.verify_archive(archive).findings] == ["inner/x.memmap"]


def test_packing_refuses_links_and_special_files(folder):
    directory, _ = folder
    os.symlink("/etc/passwd", directory / "link.memmap")
    with pytest.raises(ValueError, match="link.memmap: is a symlink"):
        zrecord.pack_memmap(directory, directory.parent / "a.tdz")
    os.unlink(directory / "link.memmap")
    os.mkfifo(directory / "pipe")
    with pytest.raises(ValueError, match="pipe: is a special file"):
        zrecord.pack_memmap(directory, directory.parent / "a.tdz")
    os.unlink(directory / "pipe")
    with pytest.raises(ValueError, match="inside"):
        zrecord.pack_memmap(directory, directory / "a.tdz")
    shutil.copy(directory / "meta.json", directory.parent / "keep")
    os.unlink(directory / "meta.json")
    with pytest.raises(ValueError, match="meta.json"):
        zrecord.pack_memmap(directory, directory.parent / "a.tdz")
    assert not (directory.parent / "a.tdz").exists()


# ---------------------------------------------------------------- records


def test_leaves_are_streams_of_a_loader(tmp_path):
    tree = {"image": np.arange(100 * 6, dtype=np.uint8).reshape(100, 2, 3), "n": {"label": np.arange(100)}}
    loaded = zrecord.load_archive(zrecord.save_archive(tree, tmp_path / "a.tdz", batch_size=100))
    records = loaded.records()
    assert set(records) == {"image", "n/label"} and len(records["image"]) == 100
    ids = zrecord.Sampler(100, 32, zrecord.Mode.IID).next()
    assert np.array_equal(records["image"].gather(ids), tree["image"][ids])
    assert np.array_equal(records["n/label"][[5, 5, 99]], [5, 5, 99])
    with zrecord.DataLoader(loaded, batch_size=16) as loader:
        for _, batch in zip(range(10), loader):
            assert np.array_equal(batch["image"], tree["image"][batch["n/label"]])
    again = pickle.loads(pickle.dumps(records["n/label"]))
    assert np.array_equal(again[:], np.arange(100))
    del loaded, loader
    gc.collect()
    assert records["image"][99].tolist() == tree["image"][99].tolist()


def test_leaves_that_are_no_records(tmp_path):
    for tree in ({"a": np.zeros(3), "b": np.zeros(4)}, {"a": np.float32(1)}, {"a": np.zeros((3, 0))}):
        path = zrecord.save_archive(tree, tmp_path / "a.tdz")
        with pytest.raises(ValueError):
            zrecord.load_archive(path).records()


@pytest.mark.parametrize("threads", [1, 2])
def test_num_threads_is_the_number_of_threads(tmp_path, threads):
    """In a new process: workers are started by the first load that may use them, and stay."""
    tree = {f"x{i}": np.zeros(1 << 18, np.uint8) for i in range(8)}
    path = zrecord.save_archive(tree, tmp_path / "a.tdz", compression="deflate")
    code = """
import os, sys, zrecord
zrecord.set_thread_count(2)
before = len(os.listdir("/proc/self/task"))
zrecord.load_archive(sys.argv[1], num_threads=int(sys.argv[2]))
print(len(os.listdir("/proc/self/task")) - before)
"""
    done = subprocess.run([sys.executable, "-c", code, path, str(threads)], capture_output=True, text=True)
    assert (done.stderr, done.stdout) == ("", f"{threads - 1}\n")


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2"])
def test_numbers_of_threads_that_cannot_be(tmp_path, threads):
    path, folder = tmp_path / "a.tdz", tmp_path / "folder"
    zrecord.save_archive({"x": np.arange(5)}, path)
    zrecord.unpack_memmap(path, folder)
    calls = (
        lambda: zrecord.load_archive(path, num_threads=threads),
        lambda: zrecord.save_archive({"x": np.arange(5)}, tmp_path / "b.tdz", num_threads=threads),
        lambda: zrecord.pack_memmap(folder, tmp_path / "c.tdz", num_threads=threads),
        lambda: zrecord.unpack_memmap(path, tmp_path / "other", num_threads=threads),
    )
    for call in calls:
        with pytest.raises((TypeError, ValueError), match="num_threads|integer"):
            call()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.tdz", "folder"]
