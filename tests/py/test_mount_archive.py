# SPDX-License-Identifier: MIT
"""Mounted archives: levels, leaves and rows as files, alone and inside a tree of stores."""

import errno
import json
import os
import shutil
import subprocess
import time
import zipfile

import numpy as np
import pytest
from conftest import REPO
from mounting import mounted, needs_mount, read_raw, wait_for

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


@pytest.mark.parametrize("name,leaf", [("image.npy", "image"), ("n/x/00000005.npy", "n/x")])
def test_a_refused_write_is_explained(plain, tmp_path, name, leaf):
    with mounted(plain, tmp_path / "m", "-o", "rw") as m:
        (before,) = m.status()["archives"]
        assert before["writable"] and before["refused_write"] is None
        nbytes = os.path.getsize(m.path / name)
        with open(m.path / name, "r+b", buffering=0) as file:
            for number, (act, why) in enumerate(
                [
                    (lambda: np.save(m.path / name, np.zeros(3)), "dtype and shape stay"),
                    (lambda: os.pwrite(file.fileno(), b"XX", nbytes - 1), "would end beyond"),
                    (lambda: os.pwrite(file.fileno(), b"X", 0), "dtype and shape stay"),
                    (lambda: os.truncate(m.path / name, 5), "neither be cut"),
                ],
                1,
            ):
                for _ in range(3):
                    with pytest.raises(OSError):
                        act()
                (archive,) = m.status()["archives"]
                assert archive["refused_write"].startswith(f"{leaf}: ") and why in archive["refused_write"]
                assert m.log.count(f"{plain}: a write was refused: {leaf}: ") == number


def test_why_a_store_stays_read_only(tmp_path):
    with zrecord.Dense.create(tmp_path / "s", "<i4", (2,)) as ds:
        ds.append(np.zeros((3, 2), "<i4"))
    with mounted(tmp_path / "s", tmp_path / "m", "-o", "rw") as m:
        status = m.status()
        assert not status["options"]["rw"] and "a store is built once" in status["store"]["why_read_only"]
        assert status["stores"] == [status["store"]]
    with mounted(tmp_path / "s", tmp_path / "m") as m:
        assert m.status()["store"]["why_read_only"] is None


def test_what_cannot_be_written_through_is_mounted_read_only(tmp_path):
    path = zrecord.save_archive(TREE, tmp_path / "a.tdz", batch_size=7, compression="deflate")
    with mounted(path, tmp_path / "m", "-o", "rw") as m:
        check_files(m.path, path)
        with pytest.raises(OSError) as caught:
            open(m.path / "image.npy", "r+b")
        assert caught.value.errno == errno.EROFS
        assert "read-only: leaf" in m.log


def test_the_control_file_takes_nothing_because_leaves_do(plain, tmp_path):
    with mounted(plain, tmp_path / "m", "-o", "rw") as m:
        with pytest.raises(OSError) as caught:
            (m.path / ".control").write_text("stats reset\n")
        assert caught.value.errno in (errno.EROFS, errno.EACCES)


# ---------------------------------------------------------------- writing in a tree


def superblock_mode(path):
    with open("/proc/self/mountinfo") as lines:
        line = next(line for line in lines if line.split(" ")[4] == str(path))
    return line.split(" - ")[1].split(" ")[2].split(",")[0]


def set_item(path, index, value):
    array = np.load(path, mmap_mode="r+")
    array[index] = value
    array.flush()


@pytest.fixture
def tree(tmp_path):
    """A store, an archive that can be written and one that cannot."""
    source = tmp_path / "source"
    (source / "inner").mkdir(parents=True)
    zrecord.save_archive(TREE, source / "inner" / "plain.tdz", batch_size=7)
    zrecord.save_archive(TREE, source / "packed.tdz", batch_size=7, compression="deflate")
    with zrecord.Dense.create(source / "store", "i4", (3,)) as store:
        store.append(np.arange(6, dtype="i4").reshape(2, 3))
    return source


def refused(path):
    with pytest.raises(OSError) as caught:
        open(path, "r+b").close()
    return caught.value.errno in ((errno.EROFS,) if os.geteuid() == 0 else (errno.EROFS, errno.EACCES))


def test_archives_in_a_tree_take_writes(tree, tmp_path):
    with mounted(tree, tmp_path / "m", "-o", "rw") as m:
        assert superblock_mode(m.path) == "rw"
        inner = m.path / "inner" / "plain.tdz"
        check_files(inner, tree / "inner" / "plain.tdz")
        assert os.stat(inner / "image.npy").st_mode & 0o777 == 0o644
        set_item(inner / "image.npy", 3, 77)
        set_item(inner / "n" / "x" / "00000005.npy", ..., -1.5)
        assert (np.load(inner / "image" / "00000003.npy") == 77).all()
        for other in ("packed.tdz/image.npy", "store/00000001.npy", "inner/plain.tdz/meta.json"):
            assert os.stat(m.path / other).st_mode & 0o222 == 0 and refused(m.path / other)
        with pytest.raises(OSError) as caught:
            (m.path / "inner" / "new").mkdir()
        assert caught.value.errno in (errno.EROFS, errno.EACCES)
        assert np.load(m.path / "store" / "00000001.npy").tolist() == [3, 4, 5]
        status = m.status()
        assert status["options"]["rw"] is True
        archives = {archive["name"]: archive for archive in status["archives"]}
        manual = (REPO / "fs" / "zrecord.control.5").read_text()
        assert all(key in manual for key in archives["packed.tdz"])
        assert sorted(archives) == ["inner/plain.tdz", "packed.tdz"]
        assert archives["inner/plain.tdz"]["writable"] and archives["inner/plain.tdz"]["why_read_only"] is None
        assert not archives["packed.tdz"]["writable"] and "leaf" in archives["packed.tdz"]["why_read_only"]
    path = tree / "inner" / "plain.tdz"
    loaded = zrecord.load_archive(path, checksums=True)
    assert (loaded["image"][3] == 77).all() and loaded["n"]["x"][5] == -1.5
    assert zrecord.verify_archive(path).ok and zipfile.ZipFile(path).testzip() is None


def test_a_tree_with_nothing_to_write_has_a_read_only_superblock(tree, tmp_path):
    """It costs messages for each file otherwise, and mount(8) asks for rw unless told not to."""
    (tree / "inner" / "plain.tdz").rename(tmp_path / "plain.tdz")
    with mounted(tree, tmp_path / "m", "-o", "rw") as m:
        assert superblock_mode(m.path) == "ro" and m.status()["options"]["rw"] is False
        shutil.copy(tmp_path / "plain.tdz", tree / "late.tdz")
        check_files(m.path / "late.tdz", tree / "late.tdz")
        assert refused(m.path / "late.tdz" / "image.npy")
        why = {archive["name"]: archive["why_read_only"] for archive in m.status()["archives"]}
        assert "when the folder was mounted" in why["late.tdz"] and all(why.values())
    with mounted(tree, tmp_path / "m") as m:
        assert superblock_mode(m.path) == "ro" and refused(m.path / "late.tdz" / "image.npy")
        assert not m.status()["archives"][0]["writable"]


def test_an_archive_that_appears_takes_writes(tree, tmp_path):
    with mounted(tree, tmp_path / "m", "-o", "rw") as m:
        path = zrecord.save_archive({"x": np.arange(5)}, tree / "late.tdz", batch_size=5)
        set_item(m.path / "late.tdz" / "x.npy", 2, 99)
    assert zrecord.load_archive(path, checksums=True)["x"].tolist() == [0, 1, 99, 3, 4]
    assert zrecord.verify_archive(path).ok


def test_a_written_archive_is_the_same_source_as_before(tree, tmp_path):
    """Writes change the time of the file, by which others are told from it."""
    with mounted(tree, tmp_path / "m", "-o", "rw") as m:
        leaf = m.path / "inner" / "plain.tdz" / "image.npy"
        before, on_disk = os.stat(leaf).st_ino, os.stat(tree / "inner" / "plain.tdz").st_mtime_ns
        for value in (5, 6):
            set_item(leaf, 0, value)
            time.sleep(1.2)  # the kernel asks for the name again
            assert os.stat(leaf).st_ino == before and (np.load(leaf)[0] == value).all()
        assert os.stat(tree / "inner" / "plain.tdz").st_mtime_ns != on_disk
        others = [a["name"] for a in m.status()["archives"]]
        assert others.count("inner/plain.tdz") == 1
        # One that takes its place is another one.
        zrecord.save_archive({"image": np.zeros(3)}, tree / "inner" / "plain.tdz", batch_size=3)
        wait_for(lambda: os.stat(leaf).st_ino != before, what="the other archive")
        assert np.load(leaf).tolist() == [0, 0, 0]


def spoil(path, member):
    """Another byte than its checksum is of."""
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as z:
        info = z.getinfo(member)
    data[data.index(b"\x01\x02\x03\x04\x05\x06\x07\x08", info.header_offset)] ^= 0xFF
    path.write_bytes(data)
    assert not zrecord.verify_archive(path).ok


@pytest.mark.parametrize("where", ["tree", "alone"])
def test_checksums_follow_the_file_that_was_written(tree, tmp_path, where):
    """Moved away while mounted, its checksums are refreshed then, and those of the file that took
    its name are left alone: it is not what was written to."""
    path, gone = tree / "inner" / "plain.tdz", tmp_path / "gone.tdz"
    other = zrecord.save_archive({"y": np.arange(1, 200, dtype=np.uint8)}, tmp_path / "other.tdz")
    spoil(other, "y.memmap")
    with mounted(tree if where == "tree" else path, tmp_path / "m", "-o", "rw") as m:
        root = m.path / "inner" / "plain.tdz" if where == "tree" else m.path
        set_item(root / "image.npy", 3, 77)
        assert not zrecord.verify_archive(path).ok
        path.rename(gone)
        other.rename(path)
        wait_for(lambda: zrecord.verify_archive(gone).ok, what="the refresh of what was moved")
        assert (zrecord.load_archive(gone)["image"][3] == 77).all()
    assert not zrecord.verify_archive(path).ok and zrecord.verify_archive(gone).ok


def test_a_deleted_archive_ends_quietly(tree, tmp_path):
    with mounted(tree, tmp_path / "m", "-o", "rw") as m:
        leaf = m.path / "inner" / "plain.tdz" / "image.npy"
        with open(leaf, "r+b") as file:
            file.seek(-4, os.SEEK_END)
            (tree / "inner" / "plain.tdz").unlink()
            file.write(b"abcd")
        wait_for(lambda: not leaf.exists(), what="the end of the name")
        assert "checksums" not in m.log


def test_nothing_is_written_by_way_of_a_link(tree, tmp_path):
    """It may lead to what somebody else owns."""
    path = zrecord.save_archive(TREE, tmp_path / "outside.tdz", batch_size=7)
    (tree / "link.tdz").symlink_to(path)
    with mounted(tree, tmp_path / "m", "-o", "rw") as m:
        check_files(m.path / "link.tdz", path)
        assert refused(m.path / "link.tdz" / "image.npy")
        reasons = {archive["name"]: archive["why_read_only"] for archive in m.status()["archives"]}
        assert reasons["link.tdz"] == "it is a link"


def test_many_writers_in_a_tree(tree, tmp_path):
    """Each byte arrives while others are written and names are looked up."""
    import threading

    count = 64
    path = zrecord.save_archive({"x": np.zeros((count, 1000), np.int32)}, tree / "x.tdz", batch_size=count)
    with mounted(tree, tmp_path / "m", "-o", "rw") as m:
        inodes = set()

        def write(first):
            for row in range(first, count, 4):
                name = m.path / "x.tdz" / "x" / f"{row:08d}.npy"
                set_item(name, ..., np.arange(1000) + row)
                inodes.add(os.stat(m.path / "x.tdz").st_ino)

        threads = [threading.Thread(target=write, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(inodes) == 1
    loaded = zrecord.load_archive(path, checksums=True)["x"]
    assert np.array_equal(loaded, np.arange(1000) + np.arange(count)[:, None])
    assert zrecord.verify_archive(path).ok
