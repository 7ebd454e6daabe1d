# SPDX-License-Identifier: MIT
"""Mounted archives: levels, leaves and rows as files, alone and inside a tree of stores."""

import errno
import json
import os
import shutil
import subprocess
import zipfile

import numpy as np
import pytest
from mounting import mounted, needs_mount, read_raw

zrecord = pytest.importorskip("zrecord")
pytestmark = needs_mount

TREE = {
    "image": np.arange(7 * 300 * 200, dtype=np.uint8).reshape(7, 300, 200),
    "n": {"x": np.arange(7.0), "deep": {"flag": np.arange(7) % 2 == 0}},
    "e": np.zeros((7, 0), np.int16),
    "odd key/": np.arange(7, dtype=np.int32),
    "name": "text",
}


def leaves(tree, prefix=""):
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}/")
        elif isinstance(value, np.ndarray):
            yield prefix + key.replace(" ", "%20").replace("/", "%2F"), value


@pytest.fixture(params=[None, "deflate"])
def archive(tmp_path, request):
    return zrecord.save_archive(TREE, tmp_path / "a.tdz", batch_size=7, compression=request.param)


def check_files(root, archive):
    for path, value in leaves(TREE):
        loaded = np.load(root / f"{path}.npy")
        assert loaded.dtype == value.dtype and np.array_equal(loaded, value), path
        assert np.array_equal(np.load(root / f"{path}.npy", mmap_mode="r" if value.size else None), value)
        if value.size:
            assert sorted(os.listdir(root / path)) == [f"{i:08d}.npy" for i in range(7)]
            for i in range(7):
                row = np.load(root / path / f"{i:08d}.npy")
                assert np.array_equal(row, value[i]) and row.shape == value[i].shape
        else:
            assert not (root / path).exists()
    with zipfile.ZipFile(archive) as z:
        for name in ("meta.json", "n/meta.json", "n/deep/meta.json", "name/meta.json"):
            assert (root / name).read_bytes() == z.read(name)


def test_leaves_rows_and_meta(archive, tmp_path):
    with mounted(archive, tmp_path / "m") as m:
        check_files(m.path, archive)
        assert sorted(os.listdir(m.path / "n")) == ["deep", "meta.json", "x", "x.npy"]
        assert json.loads((m.path / ".control").read_text())["source"] == str(archive)


def test_names_that_do_not_exist(archive, tmp_path):
    with mounted(archive, tmp_path / "m") as m:
        for name in ("nope", "image.npy.npy", "image/00000007.npy", "image/7.npy", "n.npy", "e", ".views", "image.memmap"):
            assert not (m.path / name).exists(), name


def test_names_that_meet(tmp_path):
    """Of "x" and "x.npy" each array is there once; no name is listed twice or leads elsewhere."""
    tree = {
        "x": np.arange(3),
        "x.npy": np.arange(3) + 10,
        "meta.json": np.arange(3) + 20,
        ".control": np.arange(3) + 30,
        "y": np.arange(3) + 40,
        "y.npy": {"z": np.arange(3) + 50},
    }
    path = zrecord.save_archive(tree, tmp_path / "a.tdz", batch_size=3)
    with mounted(path, tmp_path / "m") as m:
        names = os.listdir(m.path)
        assert sorted(names) == sorted(
            ["meta.json", "meta.json.npy", ".control.npy", "x", "x.npy", "x.npy.npy", "y", "y.npy"]
        )
        for entry in os.scandir(m.path):
            assert entry.inode() == os.stat(entry.path).st_ino
            assert entry.is_dir() == os.path.isdir(entry.path)
        for key in ("x", "x.npy", "meta.json", ".control", "y.npy/z"):
            wanted = tree["y.npy"]["z"] if key == "y.npy/z" else tree[key]
            assert np.array_equal(np.load(m.path / f"{key}.npy"), wanted), key
        assert np.load(m.path / "y" / "00000002.npy") == 42
        assert json.loads((m.path / "meta.json").read_text())["x"]


def test_numbers_agree_and_parents_lead_back(archive, tmp_path):
    with mounted(archive, tmp_path / "m") as m:
        seen = {}
        for root, folders, files in os.walk(m.path):
            for entry in os.scandir(root):
                assert entry.inode() == os.stat(entry.path).st_ino != 0
                assert seen.setdefault(entry.inode(), entry.path) == entry.path
        before = {path: ino for ino, path in seen.items()}
        assert os.path.samefile(m.path / "n" / "deep" / ".." / "..", m.path)
    with mounted(archive, tmp_path / "m") as m:
        for path, ino in before.items():
            assert os.stat(path).st_ino == ino


def test_copies_are_whole_and_nothing_can_be_written(archive, tmp_path):
    with mounted(archive, tmp_path / "m") as m:
        subprocess.run(["cp", "-a", m.path, tmp_path / "copy"], check=True)
        for path, value in leaves(TREE):
            assert np.array_equal(np.load(tmp_path / "copy" / f"{path}.npy"), value)
        with pytest.raises(OSError) as caught:
            (m.path / "image.npy").write_bytes(b"")
        assert caught.value.errno == errno.EROFS


def test_archives_in_a_tree_of_stores(archive, tmp_path):
    source = tmp_path / "source"
    (source / "inner").mkdir(parents=True)
    shutil.copy(archive, source / "inner" / "a.tdz")
    (source / "text.tdz").write_text("no archive")
    (source / "other.txt").write_text("no archive")
    with zrecord.Dense.create(source / "store", "i4", (3,)) as store:
        store.append(np.arange(6, dtype="i4").reshape(2, 3))
    with mounted(source, tmp_path / "m") as m:
        assert sorted(os.listdir(m.path)) == ["inner", "store"]
        check_files(m.path / "inner" / "a.tdz", archive)
        assert np.load(m.path / "store" / "00000001.npy").tolist() == [3, 4, 5]
        with pytest.raises(OSError) as caught:
            os.stat(m.path / "text.tdz")
        assert caught.value.errno == errno.EIO


def test_a_damaged_leaf_is_an_error_of_that_leaf(tmp_path):
    path = zrecord.save_archive(TREE, tmp_path / "a.tdz", batch_size=7, compression="deflate")
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as z:
        info = z.getinfo("image.memmap")
    data[info.header_offset + 30 + len("image.memmap") + 20 + 9] ^= 0xFF
    path.write_bytes(data)
    with mounted(path, tmp_path / "m") as m:
        with pytest.raises(OSError) as caught:
            read_raw(m.path / "image.npy")
        assert caught.value.errno == errno.EIO
        assert np.array_equal(np.load(m.path / "n" / "x.npy"), TREE["n"]["x"])


def test_a_file_cut_short_below_the_mount(tmp_path):
    path = zrecord.save_archive({"x": np.ones((1000, 1000))}, tmp_path / "a.tdz", batch_size=1000)
    with mounted(path, tmp_path / "m") as m:
        os.truncate(path, 100_000)
        with pytest.raises(OSError) as caught:
            read_raw(m.path / "x.npy")
        assert caught.value.errno == errno.EIO
        assert (m.path / "meta.json").read_text().startswith("{")


def test_what_is_no_archive_is_not_mounted(tmp_path):
    from mounting import PROGRAM

    (tmp_path / "f.tdz").write_text("text")
    (tmp_path / "m").mkdir()
    done = subprocess.run([PROGRAM, tmp_path / "f.tdz", tmp_path / "m"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1 and "not a zip" in done.stderr


def test_many_leaves_in_one_level(tmp_path):
    count = 20_000
    path = zrecord.save_archive({f"k{i}": np.full(2, i) for i in range(count)}, tmp_path / "a.tdz")
    with mounted(path, tmp_path / "m") as m:
        names = os.listdir(m.path)
        assert len(names) == len(set(names)) == count + 1
        for i in (0, 777, count - 1):
            assert np.load(m.path / f"k{i}.npy").tolist() == [i, i]


# ---------------------------------------------------------------- writing


@pytest.fixture
def plain(tmp_path):
    return zrecord.save_archive(TREE, tmp_path / "a.tdz", batch_size=7)


def test_writes_reach_the_archive_and_its_checksums(plain, tmp_path):
    with mounted(plain, tmp_path / "m", "-o", "rw") as m:
        check_files(m.path, plain)
        leaf = np.load(m.path / "image.npy", mmap_mode="r+")
        leaf[3] = 77
        leaf.flush()
        del leaf
        row = np.load(m.path / "n" / "x" / "00000005.npy", mmap_mode="r+")
        row[...] = -1.5
        row.flush()
        del row
        with open(m.path / "odd%20key%2F.npy", "r+b") as file:
            file.seek(-4, os.SEEK_END)
            file.write(np.int32(-9).tobytes())
        assert (np.load(m.path / "image" / "00000003.npy") == 77).all()
        assert np.load(m.path / "n" / "x.npy")[5] == -1.5
    tree = zrecord.load_archive(plain, checksums=True)
    assert (tree["image"][3] == 77).all() and np.array_equal(tree["image"][4:], TREE["image"][4:])
    assert tree["n"]["x"].tolist() == [0, 1, 2, 3, 4, -1.5, 6] and tree["odd key/"][-1] == -9
    assert zrecord.verify_archive(plain).ok and zipfile.ZipFile(plain).testzip() is None


def test_only_payloads_can_be_written(plain, tmp_path):
    before = plain.read_bytes()
    with mounted(plain, tmp_path / "m", "-o", "rw") as m:
        path = m.path / "image.npy"
        with pytest.raises(OSError) as caught:
            path.write_bytes(b"short")
        assert caught.value.errno == errno.EPERM
        with open(path, "r+b", buffering=0) as file:
            with pytest.raises(OSError) as caught:
                os.pwrite(file.fileno(), b"X", 0)
            assert caught.value.errno == errno.EPERM
            with pytest.raises(OSError) as caught:
                os.pwrite(file.fileno(), b"XX", os.path.getsize(path) - 1)
            assert caught.value.errno == errno.EFBIG
        for action in (
            lambda: (m.path / "meta.json").write_text("{}"),
            lambda: (m.path / "new").write_text("x"),
            lambda: path.unlink(),
            lambda: path.rename(m.path / "other.npy"),
            lambda: path.chmod(0o600),
        ):
            with pytest.raises(OSError) as caught:
                action()
            assert caught.value.errno == errno.EROFS
    assert plain.read_bytes() == before


def test_what_cannot_be_written_through_is_mounted_read_only(tmp_path):
    path = zrecord.save_archive(TREE, tmp_path / "a.tdz", batch_size=7, compression="deflate")
    with mounted(path, tmp_path / "m", "-o", "rw") as m:
        check_files(m.path, path)
        with pytest.raises(OSError) as caught:
            open(m.path / "image.npy", "r+b")
        assert caught.value.errno == errno.EROFS
        assert "read-only: leaf" in m.log
