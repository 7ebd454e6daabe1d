# SPDX-License-Identifier: MIT
"""A mounted tree of stores: its shape, what changes on disk meanwhile, and `zrecord.open` inside it."""

import ctypes
import errno
import json
import os
import shutil
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from mounting import PROGRAM, SANITIZED, mounted, name_of, needs_mount, needs_root, npy, program, read_raw, wait_for
from test_mount import FileHandle, counting_rows, location, make_dense, make_ragged, overwrite

zrecord = pytest.importorskip("zrecord")
pytestmark = needs_mount

IMAGES = counting_rows(40, 3000)
LABELS = np.arange(40) % 12
TOKENS = [np.arange(n, dtype="i4") for n in (3, 1, 400)]


@pytest.fixture
def tree(tmp_path):
    """train/image, train/label and xsub/deep/er/tokens, beside things that are no stores."""
    root = tmp_path / "tree"
    make_dense(root / "train/image", IMAGES)
    make_dense(root / "train/label", LABELS, "raw")
    make_ragged(root / "xsub/deep/er/tokens", TOKENS)
    (root / "empty").mkdir()
    (root / "README").write_text("no store")
    (root / ".hidden").mkdir()
    return root


def walk(path):
    """{relative folder: number of files} of what find would see."""
    return {os.path.relpath(folder, path): len(names) for folder, _, names in os.walk(path)}


WALKED = {
    ".": 0, "empty": 0, "train": 0, "train/image": 40, "train/label": 40,
    "xsub": 0, "xsub/deep": 0, "xsub/deep/er": 0, "xsub/deep/er/tokens": 3,
}  # fmt: skip


# ---------------------------------------------------------------- memory


def test_stores_of_any_size_count_little_as_the_daemons_memory(tmp_path):
    """Small ones are mapped, and pages of a mapping count; what is too much for that is read."""
    rows = np.random.default_rng(1).integers(0, 256, (3000, 4096), "u1")
    for name in "abcdef":
        make_dense(tmp_path / "tree" / name, rows, "raw")
    big = make_dense(tmp_path / "big", np.concatenate([rows] * 4), "raw")
    for source, folders in ((tmp_path / "tree", "abcdef"), (big, ".")):
        with mounted(source, tmp_path / "m", "-o", "cache=1M") as m:
            before = m.rss()
            for folder in folders:
                array = np.load(m.path / folder / ".views/all.npy")
                assert np.array_equal(array[: len(rows)], rows)
            assert SANITIZED or m.rss() - before < 28 << 20


# ---------------------------------------------------------------- shape


def test_a_listing_in_a_tree_brings_attributes_along(tmp_path):
    """As that of a store by itself: nobody asks for names that were listed, and they can be read ahead."""
    rows = counting_rows(2000, 40)
    make_dense(tmp_path / "tree" / "inner" / "store", rows)
    with mounted(tmp_path / "tree", tmp_path / "m") as m:
        store = m.path / "inner" / "store"
        assert len(os.listdir(store)) == 2000
        with m.counting() as ops:
            assert all(os.stat(store / name_of(i)).st_size for i in range(2000))
        assert ops.get("LOOKUP", 0) < 10  # of folders, once a second
        assert read_raw(store / name_of(1999)) == npy(rows[1999])


@pytest.mark.parametrize("mode", ["auto", "always", "never"])
def test_the_tree_is_mirrored_at_any_depth(tree, tmp_path, mode):
    with mounted(tree, tmp_path / "m", "-o", f"readdirplus={mode}") as m:
        assert walk(m.path) == WALKED
        assert all(read_raw(m.path / "train/image" / name_of(i)) == npy(IMAGES[i]) for i in range(40))
        assert all(read_raw(m.path / "train/label" / name_of(i)) == npy(LABELS[i]) for i in range(40))
        assert all(read_raw(m.path / "xsub/deep/er/tokens" / name_of(i)) == npy(t) for i, t in enumerate(TOKENS))
        for absent in ("README", ".hidden", "train/image/meta.zr", "nothing", "train/.views"):
            assert not os.path.exists(m.path / absent)


def inodes(path):
    found = {}
    for folder, folders, names in os.walk(path):
        for entry in os.scandir(folder):
            found[os.path.relpath(entry.path, path)] = entry.inode()
    return found


def test_numbers_are_equal_in_stat_and_listings_unique_and_kept_over_remounts(tree, tmp_path):
    seen = []
    for mode in ("always", "never"):
        with mounted(tree, tmp_path / "m", "-o", f"readdirplus={mode}") as m:
            seen.append(inodes(m.path))
            assert seen[-1] == {name: os.stat(m / name).st_ino for name in seen[-1]}
            assert os.stat(m / "train/..").st_ino == os.stat(m.path).st_ino == 1
    assert seen[0] == seen[1]
    assert 0 not in seen[0].values() and len(set(seen[0].values())) == len(seen[0])


def test_attributes_of_folders_are_those_on_disk(tree, tmp_path):
    os.utime(tree / "xsub", ns=(10**18, 10**18))
    with mounted(tree, tmp_path / "m") as m:
        st = os.stat(m / "xsub")
        assert stat.S_ISDIR(st.st_mode) and st.st_mtime_ns == 10**18
        image = os.stat(m / "train/image")
        assert image.st_mtime_ns == os.stat(tree / "train/image/meta.zr").st_mtime_ns
        assert os.statvfs(m.path).f_files == 84


def test_a_store_in_a_tree_has_its_views_and_its_control_file(tree, tmp_path):
    with mounted(tree, tmp_path / "m") as m:
        image = m / "train/image"
        assert np.array_equal(np.load(image / ".views/all.npy", mmap_mode="r"), IMAGES)
        assert np.array_equal(np.load(image / ".views/at/5,1.npy"), IMAGES[[5, 1]])
        epoch = {name: os.stat(image / ".views/epoch/7" / name).st_ino for name in os.listdir(image / ".views/epoch/7")}
        assert sorted(epoch.values()) == sorted(os.stat(image / name).st_ino for name in os.listdir(image))
        whole = m.status()
        assert whole["store"] is None and whole["source"] == str(tree) and whole["broken"] == []
        names = {store["name"] for store in whole["stores"]}
        assert names == {"train/image", "train/label", "xsub/deep/er/tokens"}
        own = json.loads(read_raw(image / ".control"))
        assert own["store"]["name"] == "train/image" and own["store"]["path"] == str(tree / "train/image")
        part = json.loads(read_raw(m / "train/.control"))
        assert {store["name"] for store in part["stores"]} == {"train/image", "train/label"}


def test_links_to_stores_are_followed_and_others_are_not(tree, tmp_path):
    (tree / "again").symlink_to("train/image")
    (tree / "train/up").symlink_to("..")
    (tree / "gone").symlink_to("nowhere")
    with mounted(tree, tmp_path / "m") as m:
        assert walk(m.path) == {**WALKED, "again": 40}
        assert read_raw(m / "again" / name_of(3)) == npy(IMAGES[3])


def test_a_mountpoint_inside_the_tree_is_not_entered(tree):
    (tree / "mounts").mkdir()
    (tree / "link").symlink_to(tree / "mounts/m")
    with mounted(tree, tree / "mounts/m", "-s") as m:
        assert walk(m.path) == {**WALKED, "mounts": 0, "mounts/m.reports": 0}
        assert not os.path.exists(m.path / "link")


def test_a_tree_is_not_mounted_on_itself(tree):
    for place in (tree, tree.parent):
        ran = subprocess.run([PROGRAM, tree, place], capture_output=True, text=True, timeout=60)
        assert ran.returncode == 1 and "cannot be mounted" in ran.stderr and str(tree) in ran.stderr, ran


def test_folders_of_k_records_in_a_tree(tree, tmp_path):
    with mounted(tree, tmp_path / "m", "-o", "shard=16") as m:
        assert sorted(os.listdir(m / "train/image")) == ["00000000", "00000001", "00000002"]
        assert read_raw(m / "train/image/00000002" / name_of(39)) == npy(IMAGES[39])
        assert sum(walk(m.path).values()) == 83


# ---------------------------------------------------------------- real programs


def test_find_tar_and_rsync_take_the_tree(tree, tmp_path):
    with mounted(tree, tmp_path / "m") as m:
        found = subprocess.run([program("find"), m.path, "-type", "f"], capture_output=True, text=True)
        assert found.returncode == 0 and len(found.stdout.splitlines()) == 83 and found.stderr == ""
        packed = subprocess.run([program("tar"), "-cSf", tmp_path / "t.tar", "-C", m.path, "."], capture_output=True)
        assert packed.returncode == 0 and packed.stderr == b""
        (tmp_path / "out").mkdir()
        subprocess.run(["tar", "-xf", tmp_path / "t.tar", "-C", tmp_path / "out"], check=True)
        assert walk(tmp_path / "out") == WALKED
        assert (tmp_path / "out/train/image" / name_of(7)).read_bytes() == npy(IMAGES[7])
        subprocess.run([program("rsync"), "-a", f"{m.path}/", f"{tmp_path}/copy/"], check=True)
    with mounted(tree, tmp_path / "m") as m:
        environment = {**os.environ, "TZ": "Asia/Kolkata"}
        again = subprocess.run(
            ["rsync", "-ani", f"{m.path}/", f"{tmp_path}/copy/"], capture_output=True, text=True, env=environment
        )
        assert again.returncode == 0 and again.stdout == "", again


# ---------------------------------------------------------------- what changes


def test_new_stores_appear_and_removed_ones_go(tree, tmp_path):
    with mounted(tree, tmp_path / "m") as m:
        assert sorted(os.listdir(m.path)) == ["empty", "train", "xsub"]
        assert not os.path.exists(m / "train/mask")
        make_dense(tree / "train/mask", IMAGES[:5])
        make_dense(tree / "new/deep", IMAGES[:2])
        wait_for(lambda: os.path.exists(m / "train/mask"), 5, "seeing a new store")
        wait_for(lambda: sorted(os.listdir(m.path)) == ["empty", "new", "train", "xsub"], 5, "listing it")
        wait_for(lambda: sorted(os.listdir(m / "train")) == ["image", "label", "mask"], 5, "listing it")
        assert read_raw(m / "train/mask" / name_of(4)) == npy(IMAGES[4])
        assert read_raw(m / "new/deep" / name_of(1)) == npy(IMAGES[1])
        assert len(m.status()["stores"]) == 5
        shutil.rmtree(tree / "train/mask")
        wait_for(lambda: not os.path.exists(m / "train/mask"), 5, "seeing that it is gone")
        assert len(m.status()["stores"]) == 4


def test_a_replaced_store_never_mixes_with_the_old_one(tree, tmp_path):
    other = counting_rows(40, 3000, seed=9)
    with mounted(tree, tmp_path / "m") as m:
        path = m / "train/image" / name_of(3)
        held = os.open(path, os.O_RDONLY)
        assert read_raw(path) == npy(IMAGES[3])
        before = os.stat(path).st_ino
        make_dense(tmp_path / "next", other)
        shutil.rmtree(tree / "train/image")
        os.rename(tmp_path / "next", tree / "train/image")
        wait_for(lambda: read_raw(path) == npy(other[3]), 5, "seeing the new store")
        assert os.stat(path).st_ino != before
        assert os.pread(held, 1 << 20, 0) == npy(IMAGES[3]), "who had it open keeps what he opened"
        assert os.fstat(held).st_ino == before
        os.close(held)
        assert all(read_raw(m / "train/image" / name_of(i)) == npy(other[i]) for i in range(40))


def test_a_renamed_store_is_found_under_its_new_name(tree, tmp_path):
    with mounted(tree, tmp_path / "m") as m:
        read_raw(m / "train/image" / name_of(3))
        os.rename(tree / "train/image", tree / "train/pictures")
        wait_for(lambda: os.path.exists(m / "train/pictures"), 5, "seeing the new name")
        wait_for(lambda: not os.path.exists(m / "train/image"), 5, "losing the old name")
        assert read_raw(m / "train/pictures" / name_of(3)) == npy(IMAGES[3])


def test_broken_stores_are_named_and_do_not_stop_the_others(tree, tmp_path):
    (tree / "train/half").mkdir()
    (tree / "train/half/meta.zr").write_bytes(b"x" * 100)
    shutil.copytree(tree / "train/image", tree / "cut")
    os.truncate(tree / "cut/data.zr", 10)
    with mounted(tree, tmp_path / "m") as m:
        assert "train/half cannot be shown" in m.log and "cut cannot be shown" in m.log
        assert walk(m.path) == WALKED
        for name in ("train/half", "cut"):
            with pytest.raises(OSError) as caught:
                os.stat(m / name)
            assert caught.value.errno == errno.EIO
        broken = {entry["name"]: entry["message"] for entry in m.status()["broken"]}
        assert sorted(broken) == ["cut", "train/half"] and all(str(tree) in why for why in broken.values())
        shutil.rmtree(tree / "cut")
        make_dense(tree / "cut", IMAGES)
        wait_for(lambda: os.path.isdir(m / "cut"), 5, "seeing it repaired")
        assert [entry["name"] for entry in m.status()["broken"]] == ["train/half"]


def test_a_damaged_record_is_named_with_its_store(tree, tmp_path):
    offset, nbytes = location(tree / "train/image", 7)
    overwrite(tree / "train/image/data.zr", offset, b"\xff" * nbytes)
    with mounted(tree, tmp_path / "m") as m:
        for i in range(40):
            if i == 7:
                with pytest.raises(OSError) as caught:
                    read_raw(m / "train/image" / name_of(i))
                assert caught.value.errno == errno.EIO
            else:
                assert read_raw(m / "train/image" / name_of(i)) == npy(IMAGES[i])
        (found,) = m.status()["damaged"]["records"]
        assert (found["store"], found["name"]) == ("train/image", name_of(7))


def test_a_store_that_is_cut_short_fails_alone(tree, tmp_path):
    with mounted(tree, tmp_path / "m") as m:
        os.stat(m / "train/image")
        os.truncate(tree / "train/image/data.zr", 100)
        with pytest.raises(OSError):
            read_raw(m / "train/image" / name_of(39))
        assert all(read_raw(m / "train/label" / name_of(i)) == npy(LABELS[i]) for i in range(40))


def test_more_stores_than_are_kept_open(tmp_path):
    root = tmp_path / "many"
    for i in range(300):
        make_dense(root / f"{i:03d}", np.full(2, i, "i4"), "raw", durability="none")
    with mounted(root, tmp_path / "m") as m:
        before = inodes(m.path)
        assert len(before) == 900 and len(set(before.values())) == 900

        def check(i):
            return int(np.load(m / f"{i:03d}" / name_of(1))) == i

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(check, np.random.default_rng(1).integers(0, 300, 2000)))
        held = len(os.listdir(f"/proc/{m.pid}/fd"))
        assert held < 256 * 4 + 50, "readers that are not used are closed"
        assert inodes(m.path) == before


# ---------------------------------------------------------------- handles


def open_handle(m, handle):
    libc = ctypes.CDLL(None, use_errno=True)
    root = os.open(m.path, os.O_RDONLY)
    fd = libc.open_by_handle_at(root, ctypes.byref(handle), os.O_RDONLY)
    number = ctypes.get_errno()
    os.close(root)
    if fd < 0:
        raise OSError(number, os.strerror(number))
    return fd


def handle_of(path):
    libc = ctypes.CDLL(None, use_errno=True)
    handle, mount_id = FileHandle(nbytes=128), ctypes.c_int()
    assert libc.name_to_handle_at(-100, os.fsencode(path), ctypes.byref(handle), ctypes.byref(mount_id), 0) == 0
    return handle


@needs_root
def test_handles_into_a_tree_stay_resolvable_or_are_stale(tree, tmp_path):
    """What re-export over NFS needs: never another file."""
    with mounted(tree, tmp_path / "m") as m:
        record = handle_of(m / "xsub/deep/er/tokens" / name_of(2))
        folder = handle_of(m / "xsub/deep")
        image = handle_of(m / "train/image" / name_of(3))
        selection = handle_of(m / "train/image/.views/at/1,2.npy")
    shutil.rmtree(tree / "train/image")
    make_dense(tree / "train/image", IMAGES[::-1])
    with mounted(tree, tmp_path / "m") as m:
        fd = open_handle(m, record)  # before anybody has looked at it
        assert os.read(fd, 1 << 20) == npy(TOKENS[2])
        os.close(fd)
        fd = open_handle(m, folder)
        assert os.listdir(fd) == ["er"]
        os.close(fd)
        for stale in (image, selection):
            with pytest.raises(OSError) as caught:
                open_handle(m, stale)
            assert caught.value.errno == errno.ESTALE


# ---------------------------------------------------------------- zrecord.open inside a mount


def test_open_finds_the_store_below_a_mount(tree, tmp_path):
    with mounted(tree / "train/image", tmp_path / "m") as m:
        for inside in ("", name_of(3), ".views", ".views/all.npy", ".views/epoch/5", f".views/epoch/5/{name_of(0)}"):
            with zrecord.open(m / inside) as ds:
                assert ds.path == tree / "train/image" and np.array_equal(ds[:], IMAGES)
        with zrecord.Dense.open(m.path) as ds:
            assert len(ds) == 40
        with pytest.raises(ValueError):
            zrecord.Ragged.open(m.path)
        before = m.requests()
        with zrecord.open(m.path) as ds:
            ds[:]
            assert "READ" not in {op for op, n in m.requests().items() if n != before.get(op, 0)}


def test_open_finds_the_store_below_a_folder_of_a_tree(tree, tmp_path):
    with mounted(tree, tmp_path / "m", "-o", "shard=16") as m:
        with zrecord.open(m / "xsub/deep/er/tokens") as ds:
            assert [len(record) for record in ds[:]] == [3, 1, 400]
        with zrecord.open(m / "train/image/00000001" / name_of(20)) as ds:
            assert ds.path == tree / "train/image"
        with pytest.raises(zrecord.ZrecordError, match="2 stores.*train/image"):
            zrecord.open(m / "train")
        with pytest.raises(FileNotFoundError):
            zrecord.open(m / "nothing")


def test_open_of_an_archive_in_a_mount_says_what_reads_it(tmp_path):
    path = tmp_path / "data/a.tdz"
    path.parent.mkdir()
    zrecord.save_archive({"x": np.arange(3)}, path)
    for source, inside in ((path.parent, "a.tdz"), (path.parent, "a.tdz/x.npy"), (path, "")):
        with mounted(source, tmp_path / "m") as m, pytest.raises(zrecord.ZrecordError) as caught:
            zrecord.open(m / inside)
        assert f"zrecord.load_archive('{path}')" in str(caught.value)


def test_open_below_a_mount_says_when_the_store_is_another_by_now(tree, tmp_path):
    with mounted(tree / "train/image", tmp_path / "m") as m:
        shutil.rmtree(tree / "train/image")
        with pytest.raises(zrecord.ZrecordError, match="cannot be reached"):
            zrecord.open(m.path)
        make_dense(tree / "train/image", IMAGES[:3])
        with pytest.raises(zrecord.ZrecordError, match="another store"):
            zrecord.open(m.path)


def test_open_below_a_mount_of_a_path_that_is_not_utf8(tree, tmp_path):
    odd = os.path.join(os.fsencode(tmp_path), b"st\xff")
    shutil.copytree(os.fsencode(tree / "train/image"), odd)
    with mounted(os.fsdecode(odd), tmp_path / "m") as m, zrecord.open(m.path) as ds:
        assert np.array_equal(ds[:], IMAGES)


def test_a_control_file_outside_of_mounts_is_not_believed(tree, tmp_path):
    with mounted(tree / "train/image", tmp_path / "m") as m:
        (tmp_path / "trap").mkdir()
        (tmp_path / "trap/.control").write_bytes(read_raw(m / ".control"))
        with pytest.raises(zrecord.ZrecordError):
            zrecord.open(tmp_path / "trap")
