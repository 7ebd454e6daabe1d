# SPDX-License-Identifier: MIT
"""What a mount shows: files, attributes, listings, the control file, and what they cost."""

import contextlib
import ctypes
import errno
import itertools
import json
import mmap
import os
import resource
import shutil
import stat
import subprocess
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest
from mounting import SANITIZED, is_mounted, mounted, name_of, needs_mount, needs_root, npy, read_raw, unmount, wait_for

zrecord = pytest.importorskip("zrecord")
pytestmark = [needs_mount, pytest.mark.keeps_pages]

CODECS = ["raw", "zstd"]


def make_dense(path, rows, codec="zstd", **options):
    with zrecord.Dense.create(path, rows.dtype, rows.shape[1:], codec, **options) as ds:
        ds.append(rows)
    return path


def make_ragged(path, arrays, codec="zstd", dtype=None):
    with zrecord.Ragged.create(path, dtype or arrays[0].dtype, codec) as ds:
        ds.append(arrays)
    return path


def counting_rows(count, nbytes, seed=1):
    """Rows of compressible bytes, each different."""
    rng = np.random.default_rng(seed)
    rows = np.cumsum(rng.integers(0, 2, (count, nbytes), dtype="u1"), axis=1, dtype="u1")
    rows[:, :8] = np.arange(count, dtype="<u8").view("u1").reshape(count, 8)
    return rows


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    """300 records of 2 KiB, as a zstd store, and their rows."""
    rows = counting_rows(300, 2048).view("<i4")
    return make_dense(tmp_path_factory.mktemp("tokens") / "store", rows), rows


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """40 records of 147 KiB: more than the kernel reads at once by default."""
    rows = counting_rows(40, 150528).reshape(40, 3, 224, 224)
    return make_dense(tmp_path_factory.mktemp("images") / "store", rows), rows


# ---------------------------------------------------------------- files

DTYPES = ["|u1", "|b1", "<f2", "<f4", ">i4", "<c16", "<M8[ns]", "<m8[s]", "|S5", "<U3", "|V7"]
SHAPES = [(), (1,), (5,), (2, 3), (1, 2, 1, 2, 1, 2, 1, 2, 1)]


def sample(dtype, shape, seed):
    dtype = np.dtype(dtype)
    count = int(np.prod(shape, dtype=int))
    raw = np.random.default_rng(seed).integers(0, 100, count * dtype.itemsize, dtype="u1")
    if dtype.kind == "b":
        raw &= 1
    if dtype.kind == "U":
        raw = raw.view("<u4") % 1000 + 32
    return np.frombuffer(raw.tobytes(), dtype).reshape(shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_file_is_what_numpy_save_writes(tmp_path, dtype):
    for index, shape in enumerate(SHAPES):
        rows = np.stack([sample(dtype, shape, seed) for seed in range(3)])
        store = make_dense(tmp_path / f"dense{index}", rows, CODECS[index % 2])
        with mounted(store, tmp_path / f"m{index}") as m:
            for i in range(3):
                assert (m / i).read_bytes() == npy(rows[i]), shape
    arrays = [sample(dtype, shape, 9) for shape in SHAPES]
    for codec in CODECS:
        store = make_ragged(tmp_path / codec, arrays, codec)
        with mounted(store, tmp_path / f"m{codec}") as m:
            for i, array in enumerate(arrays):
                assert (m / i).read_bytes() == npy(array)


def test_a_store_with_a_dictionary(tmp_path):
    rows = counting_rows(2000, 512)
    plain = make_dense(tmp_path / "plain", rows)
    with zrecord.open(plain) as source:
        dictionary = zrecord.train_dict(source, "fast")
    store = make_dense(tmp_path / "store", rows, "zstd_dict", dict_bytes=dictionary)
    with mounted(store, tmp_path / "m") as m:
        for i in (0, 7, 1999):
            assert (m / i).read_bytes() == npy(rows[i])
        assert m.status()["store"]["codec"] == "zstd_dict"


def test_records_of_one_byte_and_of_megabytes(tmp_path):
    arrays = [np.frombuffer(np.random.default_rng(n).bytes(n), "u1") for n in (1, 4095, 4096, 5_000_001)]
    for codec in CODECS:
        with mounted(make_ragged(tmp_path / codec, arrays, codec), tmp_path / f"m{codec}") as m:
            for i, array in enumerate(arrays):
                assert (m / i).read_bytes() == npy(array)


@pytest.mark.parametrize("geometry", ["dense", "ragged"])
def test_an_empty_store_is_an_empty_folder(tmp_path, geometry):
    if geometry == "dense":
        zrecord.Dense.create(tmp_path / "s", "<i4", (3,)).close()
    else:
        zrecord.Ragged.create(tmp_path / "s", "<i4").close()
    with mounted(tmp_path / "s", tmp_path / "m") as m:
        assert os.listdir(m.path) == []
        assert m.status()["store"]["length"] == 0
        with pytest.raises(FileNotFoundError):
            (m / 0).stat()


def test_reading_at_any_offset(images, tmp_path):
    store, rows = images
    whole = npy(rows[3])
    with mounted(store, tmp_path / "m") as m, open(m / 3, "rb", buffering=0) as file:
        for offset in (0, 1, 127, 128, 4095, 4096, 131071, 131072, len(whole) - 1, len(whole), len(whole) + 9):
            for size in (1, 10, 5000, 200000):
                assert os.pread(file.fileno(), size, offset) == whole[offset : offset + size]


def test_shared_read_only_mmap(images, tmp_path):
    store, rows = images
    with mounted(store, tmp_path / "m") as m:
        with open(m / 5, "rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as memory:
            assert memory[:] == npy(rows[5])
        array = np.load(m / 6, mmap_mode="r")
        assert isinstance(array, np.memmap) and np.array_equal(array, rows[6])
        del array


# ---------------------------------------------------------------- names and attributes


def test_only_canonical_names_exist(tokens, tmp_path):
    store, _ = tokens
    with mounted(store, tmp_path / "m") as m:
        absent = ["0.npy", "000000000.npy", "0000000.npy", "+0000001.npy", "00000300.npy", "99999999.npy",
                  "18446744073709551616.npy", "00000001", "00000001.NPY", ".view", "x" * 255]  # fmt: skip
        for name in absent:
            assert not os.path.exists(m / name), name
        settle(m)
        with m.counting() as delta:
            assert not os.path.exists(m / "0.npy")
        assert delta == {}, "absent names are remembered too"


def test_names_grow_with_the_store(tmp_path):
    rows = np.zeros((1, 1), "u1")
    with mounted(make_dense(tmp_path / "s", rows), tmp_path / "m") as m:
        assert os.listdir(m.path) == ["00000000.npy"]


def test_attributes_are_truthful(tmp_path):
    rows = counting_rows(3, 5000)
    store = make_dense(tmp_path / "s", rows)
    os.chown(store, 12, 34) if os.geteuid() == 0 else None
    with mounted(store, tmp_path / "m") as m:
        container = os.stat(store / "meta.zr")
        owner = os.stat(store)
        for i in range(3):
            st = os.stat(m / i)
            size = len(npy(rows[i]))
            assert (st.st_size, st.st_blocks) == (size, -(-size // 512))
            assert st.st_mode == stat.S_IFREG | 0o444 and st.st_nlink == 1
            assert st.st_mtime_ns == st.st_ctime_ns == st.st_atime_ns == container.st_mtime_ns
            assert (st.st_uid, st.st_gid) == (owner.st_uid, owner.st_gid)
        root = os.stat(m.path)
        assert root.st_mode == stat.S_IFDIR | 0o555 and root.st_nlink == 2 and root.st_ino == 1
        assert root.st_mtime_ns == container.st_mtime_ns


def test_inode_numbers_are_the_same_everywhere_and_after_a_remount(tokens, tmp_path):
    store, _ = tokens
    seen = []
    for options in ([], ["-o", "readdirplus=never"], ["-o", "readdirplus=always"]):
        with mounted(store, tmp_path / "m", *options) as m:
            entries = {entry.name: entry.inode() for entry in os.scandir(m.path)}
            assert all(entries.values())
            assert entries == {name: os.stat(m / name).st_ino for name in entries}
            with open(m / 7, "rb") as file:
                assert os.fstat(file.fileno()).st_ino == entries[name_of(7)]
            seen.append(entries)
    assert seen[0] == seen[1] == seen[2] and len(set(seen[0].values())) == 300


def test_owner_and_mode_options(tokens, tmp_path):
    store, _ = tokens
    with mounted(store, tmp_path / "m", "-o", "uid=1234,gid=56,umask=027", "-o", "allow_other") as m:
        st = os.stat(m / 0)
        assert (st.st_uid, st.st_gid, stat.S_IMODE(st.st_mode)) == (1234, 56, 0o440)
        assert stat.S_IMODE(os.stat(m.path).st_mode) == 0o550
    with mounted(store, tmp_path / "m", "--uid=1", "--gid", "2", "--umask=0", "--allow-other") as m:
        st = os.stat(m / 0)
        assert (st.st_uid, st.st_gid, stat.S_IMODE(st.st_mode)) == (1, 2, 0o444)


def test_statfs_tells_the_size_and_that_nothing_is_free(tokens, tmp_path):
    store, _ = tokens
    with mounted(store, tmp_path / "m") as m:
        st = os.statvfs(m.path)
        disk = sum(512 * os.stat(path).st_blocks for path in store.iterdir())
        assert st.f_blocks * st.f_frsize == disk
        assert (st.f_bfree, st.f_bavail, st.f_ffree, st.f_files) == (0, 0, 0, 301)
        assert st.f_namemax == 255


def test_the_mount_says_what_it_is(tokens, tmp_path):
    store = tmp_path / "a store, with \\ and spaces"
    shutil.copytree(tokens[0], store)
    with mounted(store, tmp_path / "m") as m:
        line = next(line for line in open("/proc/self/mountinfo") if f" {m.path} " in line)
        options, _, tail = line.partition(" - ")
        kind, source, superblock = tail.split(" ", 2)
        assert kind == "fuse.zrecordfs"
        assert source.replace("\\040", " ").replace("\\134", "\\") == str(store)
        assert "ro" in superblock.strip().split(",") and "default_permissions" in superblock
        assert "nosuid" in options and "nodev" in options


# ---------------------------------------------------------------- listings


def test_listings_are_complete_with_types(tokens, tmp_path):
    store, _ = tokens
    names = [name_of(i) for i in range(300)]
    for mode in ("auto", "always", "never"):
        with mounted(store, tmp_path / "m", f"--readdirplus={mode}") as m:
            assert sorted(os.listdir(m.path)) == names
            assert all(entry.is_file(follow_symlinks=False) for entry in os.scandir(m.path))
            ops = m.requests()
            assert ("READDIRPLUS" in ops) == (mode != "never")
            assert ("READDIR" in ops) == (mode == "never")


@pytest.fixture(scope="module")
def long_store(tmp_path_factory):
    path = tmp_path_factory.mktemp("long") / "store"
    return make_dense(path, np.zeros((310_000, 1), "u1"), "raw")


def test_a_long_listing_makes_no_inodes_until_one_is_asked_for(long_store, tmp_path):
    """What ls -f, ls -l and find do: names only; each stat'ed at once; many, then their stats."""
    with mounted(long_store, tmp_path / "m") as m:
        with m.counting() as ops:
            assert len(os.listdir(m.path)) == 310_000
        assert "LOOKUP" not in ops
        with m.counting() as ops:
            os.stat(m / 300_000)
        assert ops == {"LOOKUP": 1}
    with mounted(long_store, tmp_path / "m") as m, m.counting() as ops:
        assert sum(entry.stat().st_size == 129 for entry in os.scandir(m.path)) == 310_000
    assert ops["LOOKUP"] < 3000
    with mounted(long_store, tmp_path / "m") as m, m.counting() as ops, os.scandir(m.path) as entries:
        for names in iter(lambda: list(itertools.islice(entries, 10_000)), []):
            assert all(entry.stat().st_size == 129 for entry in names)
    assert ops["LOOKUP"] < 13_000
    with mounted(long_store, tmp_path / "m", "-o", "readdirplus=always") as m, m.counting() as ops:
        assert sum(entry.stat().st_size == 129 for entry in os.scandir(m.path)) == 310_000
    assert "LOOKUP" not in ops


def getdents(fd, size):
    """Raw getdents64: (d_ino, d_off, d_type, name) of one call with that buffer."""
    buffer = ctypes.create_string_buffer(size)
    got = ctypes.CDLL(None, use_errno=True).syscall(217, fd, buffer, size)
    assert got >= 0, os.strerror(ctypes.get_errno())
    raw, entries, at = buffer.raw[:got], [], 0
    while at < got:
        ino, off = int.from_bytes(raw[at : at + 8], "little"), int.from_bytes(raw[at + 8 : at + 16], "little")
        length = int.from_bytes(raw[at + 16 : at + 18], "little")
        entries.append((ino, off, raw[at + 18], raw[at + 19 : at + length].split(b"\0")[0].decode()))
        at += length
    return entries


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="knows the system call's number on x86_64 only")
@pytest.mark.parametrize("mode", ["always", "never"])
def test_listings_for_any_buffer_size_and_after_seekdir(tokens, tmp_path, mode):
    store, _ = tokens
    with mounted(store, tmp_path / "m", "-o", f"readdirplus={mode}") as m:
        everything = None
        for size in (48, 64, 100, 1000, 4096, 65536, 1 << 20):
            fd = os.open(m.path, os.O_RDONLY)
            entries = []
            while part := getdents(fd, size):
                entries += part
            os.close(fd)
            everything = everything or entries
            assert entries == everything and len(entries) == 302
        fd = os.open(m.path, os.O_RDONLY)
        for index in (0, 1, 2, 100, 300, 301):
            os.lseek(fd, everything[index][1], os.SEEK_SET)
            rest = []
            while part := getdents(fd, 4096):
                rest += part
            assert rest == everything[index + 1 :]
        os.close(fd)


def test_a_million_records_list_linearly_in_flat_memory(tmp_path):
    seconds = {}
    for count in (250_000, 1_000_000):
        store = make_dense(tmp_path / str(count), np.zeros((count, 1), "u1"), "raw")
        with mounted(store, tmp_path / "m") as m:
            before = m.rss()
            start = time.monotonic()
            assert sum(1 for _ in os.scandir(m.path)) == count
            seconds[count] = time.monotonic() - start
            assert SANITIZED or m.rss() - before < 8 << 20
    assert seconds[1_000_000] < 12 * seconds[250_000] + 1, seconds


# ---------------------------------------------------------------- the control file


def test_the_control_file_describes_the_mount(images, tmp_path):
    store, _ = images
    with mounted(store, tmp_path / "m", "-o", "cache=5M,threads=3") as m:
        status = m.status()
        described = status["store"]
        assert described["path"] == str(store) and described["length"] == 40
        assert described["geometry"] == "dense" and described["dtype"] == "|u1"
        assert described["item_shape"] == [3, 224, 224] and described["codec"] == "zstd"
        assert status["options"]["cache"] == 5 << 20 and status["options"]["threads"] == 3
        assert status["mountpoint"] == str(m.path) and status["pid"] == m.process.pid
        assert status["damaged"]["records"] == [] and status["warnings"] == []
        read_raw(m / 0)
        later = m.status()
        assert later["counters"]["decodes"] == status["counters"]["decodes"] + 1
        assert later["latency_us"]["READ"]["p50"] > 0


def test_the_control_file_is_frozen_at_open_with_its_true_size(tokens, tmp_path):
    store, _ = tokens
    with mounted(store, tmp_path / "m") as m:
        fd = os.open(m / ".control", os.O_RDONLY)
        size = os.fstat(fd).st_size
        first = os.pread(fd, 1 << 20, 0)
        assert len(first) == size > 500
        read_raw(m / 0)
        assert m.status()["counters"]["decodes"] == 1
        assert os.pread(fd, 1 << 20, 0) == first
        assert b"".join(os.pread(fd, 7, at) for at in range(0, size, 7)) == first
        assert os.pread(fd, 10, size) == b"" and os.pread(fd, 10, size + 5000) == b""
        os.close(fd)
        assert json.loads(first)["counters"]["decodes"] == 0
        json.loads((m / ".control").read_text())  # with Python's own file object
        assert subprocess.run(["cat", m / ".control"], capture_output=True, check=True).stdout.endswith(b"}\n")


def test_the_control_file_is_listed_on_request_only(tokens, tmp_path):
    store, _ = tokens
    with mounted(store, tmp_path / "m") as m:
        assert ".control" not in os.listdir(m.path)
    with mounted(store, tmp_path / "m", "-o", "show_control") as m:
        entries = {entry.name: entry.inode() for entry in os.scandir(m.path)}
        assert len(entries) == 302 and entries[".control"] == os.stat(m / ".control").st_ino


def test_many_control_texts_are_given_back(tokens, tmp_path):
    store, _ = tokens
    with mounted(store, tmp_path / "m") as m:
        for _ in range(2000):
            m.status()
        assert m.status()["memory"]["control_texts"] < 50
        held = [os.open(m / ".control", os.O_RDONLY) for _ in range(100)]
        texts = {os.read(fd, 1 << 20) for fd in held}
        assert len(texts) == 100, "each open sees its own counters"
        for fd in held:
            os.close(fd)


def test_isatty_is_answered(tokens, tmp_path):
    store, _ = tokens
    with mounted(store, tmp_path / "m") as m, open(m / 0, "rb") as file:
        assert not os.isatty(file.fileno())
        assert m.requests()["IOCTL"] >= 1


# ---------------------------------------------------------------- what it costs


def settle(m):
    """Lets the kernel ask its once-only questions (OPEN, FLUSH, STATX ...)."""
    read_raw(m / 0)
    os.stat(m / 0)


def test_a_cold_file_costs_lookup_and_read_and_a_second_pass_nothing(tokens, tmp_path):
    store, rows = tokens
    with mounted(store, tmp_path / "m") as m:
        settle(m)
        with m.counting() as first:
            for i in range(1, 300):
                assert len(read_raw(m / i)) == os.stat(m / i).st_size
        assert first == {"LOOKUP": 299, "READ": 299}
        with m.counting() as second:
            for i in range(1, 300):
                assert read_raw(m / i) == npy(rows[i])
        assert second == {}


def test_after_a_listing_a_file_costs_its_read(tokens, tmp_path):
    store, _ = tokens
    with mounted(store, tmp_path / "m", "--prefetch=off") as m:
        settle(m)
        os.listdir(m.path)
        with m.counting() as delta:
            for i in range(1, 300):
                os.stat(m / i)
        assert delta == {}, "the listing brought the attributes"
        with m.counting() as delta:
            for i in range(1, 300):
                read_raw(m / i)
        assert delta == {"READ": 299}
        with m.counting() as delta:
            os.listdir(m.path)
        assert delta == {}, "the listing is remembered"


def test_a_python_file_costs_one_ioctl_more(tokens, tmp_path):
    store, _ = tokens
    with mounted(store, tmp_path / "m") as m:
        settle(m)
        with m.counting() as delta:
            np.load(m / 9)
        assert {op: delta[op] for op in ("LOOKUP", "READ")} == {"LOOKUP": 1, "READ": 1}
        assert set(delta) <= {"LOOKUP", "READ", "IOCTL"} and delta.get("IOCTL", 0) <= 1


def test_no_message_for_extended_attributes_a_second_time(tokens, tmp_path):
    store, _ = tokens
    with mounted(store, tmp_path / "m") as m:
        for i in range(50):
            with pytest.raises(OSError) as caught:
                os.getxattr(m / i, "user.x")
            assert caught.value.errno == errno.EOPNOTSUPP
            os.access(m / i, os.R_OK)
        ops = m.requests()
        assert ops.get("GETXATTR", 0) <= 1 and ops.get("ACCESS", 0) == 0


def read_ahead_file(path):
    device = os.stat(path).st_dev
    return f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb"


@needs_root
def test_read_ahead_is_raised_as_far_as_records_need(tokens, images, tmp_path):
    for store, expected in ((tokens[0], 128), (images[0], 148)):
        with mounted(store, tmp_path / "m") as m:
            assert int(open(read_ahead_file(m.path)).read()) == expected
    huge = make_dense(tmp_path / "huge", np.zeros((1, 3 << 20), "u1"))
    with mounted(huge, tmp_path / "m") as m:
        assert int(open(read_ahead_file(m.path)).read()) == 1024


def test_a_large_record_is_decoded_once_however_it_is_sliced(images, tmp_path):
    store, rows = images
    with mounted(store, tmp_path / "m", "--prefetch=off") as m:
        if os.geteuid() == 0:  # as an ordinary user finds it
            with open(read_ahead_file(m.path), "w") as file:
                file.write("128")
        for i in range(20):
            assert read_raw(m / i) == npy(rows[i])
        status = m.status()
        assert status["counters"]["decodes"] == 20
        assert m.requests()["READ"] == 40
        assert status["counters"]["cache_hits"] + status["counters"]["cache_waits"] == 20
        wait_for(lambda: m.status()["memory"]["cached_bytes"] == 0, what="dropping delivered records")
        for i in range(20, 30):  # page after page, by a mapping
            array = np.load(m / i, mmap_mode="r")
            assert array[0, 0, 0] == rows[i, 0, 0, 0] and array[2, 223, 223] == rows[i, 2, 223, 223]
            assert np.array_equal(array, rows[i])
            del array
        assert m.status()["counters"]["decodes"] == 30


def test_partly_read_records_stay_within_the_cache_option(images, tmp_path):
    store, rows = images
    with mounted(store, tmp_path / "m", "--cache=1M") as m:
        for i in range(40):
            fd = os.open(m / i, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
            os.pread(fd, 1, 0)
            os.close(fd)
        assert 0 < m.status()["memory"]["cached_bytes"] <= 1 << 20


# ---------------------------------------------------------------- damage


def location(store, record):
    entry = np.fromfile(store / "meta.zr", "<u4", 4, offset=4096 + 16 * record)
    return int(entry[0]) | int(entry[1]) << 32, int(entry[2])


def overwrite(path, offset, data):
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


@pytest.mark.parametrize("geometry", ["dense", "ragged"])
def test_a_damaged_record_is_eio_for_that_record_only(tmp_path, geometry):
    rows = counting_rows(20, 3000)
    store = make_dense(tmp_path / "s", rows) if geometry == "dense" else make_ragged(tmp_path / "s", list(rows))
    offset, nbytes = location(store, 7)
    overwrite(store / "data.zr", offset, b"\xff" * nbytes)
    with mounted(store, tmp_path / "m") as m:
        assert len(os.listdir(m.path)) == 20
        for i in range(20):
            if i == 7:
                for _ in range(3):
                    with pytest.raises(OSError) as caught:
                        read_raw(m / i)
                    assert caught.value.errno == errno.EIO
            else:
                assert read_raw(m / i) == npy(rows[i])
        damaged = m.status()["damaged"]
        assert [entry["name"] for entry in damaged["records"]] == [name_of(7)]
        assert damaged["records"][0]["record"] == 7 and damaged["failures"] >= 3
        assert m.log.count("record 7:") == 1, "logged once"


def test_checksums_find_a_flipped_byte_in_a_raw_store(tmp_path):
    rows = counting_rows(20, 3000)
    store = make_dense(tmp_path / "s", rows, "raw")
    offset, _ = location(store, 7)
    overwrite(store / "data.zr", offset + 100, bytes([rows[7, 100] ^ 1]))
    with mounted(store, tmp_path / "m") as m:
        assert read_raw(m / 7) != npy(rows[7]), "not looked for unless asked"
    with mounted(store, tmp_path / "m", "-o", "checksums") as m:
        with pytest.raises(OSError) as caught:
            read_raw(m / 7)
        assert caught.value.errno == errno.EIO
        assert m.status()["damaged"]["records"][0]["code"] == "ZR_E_CHECKSUM"
        assert all(read_raw(m / i) == npy(rows[i]) for i in range(20) if i != 7)


def test_a_record_whose_size_is_unknown_keeps_its_name(tmp_path):
    rows = counting_rows(20, 3000)
    store = make_ragged(tmp_path / "s", list(rows))
    for path in store.iterdir():
        if path.name not in ("meta.zr", "data.zr"):
            path.unlink()  # sizes then come from the start of each record
    offset, nbytes = location(store, 7)
    overwrite(store / "data.zr", offset, b"\xff" * nbytes)
    for mode in ("always", "never"):
        with mounted(store, tmp_path / "m", "-o", f"readdirplus={mode}") as m:
            assert sorted(os.listdir(m.path)) == [name_of(i) for i in range(20)]
            with pytest.raises(OSError) as caught:
                os.stat(m / 7)
            assert caught.value.errno == errno.EIO
            assert all(os.stat(m / i).st_size == len(npy(rows[i])) for i in range(20) if i != 7)
            assert [entry["record"] for entry in m.status()["damaged"]["records"]] == [7]


def test_data_that_shrinks_under_the_mount_is_an_error_not_a_death(tmp_path):
    rows = np.random.default_rng(3).integers(0, 256, (20, 5000), "u1")
    store = make_dense(tmp_path / "s", rows, "raw")
    with mounted(store, tmp_path / "m") as m:
        os.truncate(store / "data.zr", 40_000)
        assert read_raw(m / 1) == npy(rows[1])
        with pytest.raises(OSError) as caught:
            read_raw(m / 15)
        assert caught.value.errno == errno.EIO
        assert read_raw(m / 2) == npy(rows[2])


# ---------------------------------------------------------------- many at once


def digest_all(path):
    total = 0
    for i in range(300):
        total += int(np.load(path / name_of(i)).astype("i8").sum())
    return total


def test_readers_in_parallel_get_the_right_bytes(tokens, tmp_path):
    store, rows = tokens
    expected = int(rows.astype("i8").sum())
    with mounted(store, tmp_path / "m") as m, ProcessPoolExecutor(8) as pool:
        assert list(pool.map(digest_all, [m.path] * 16)) == [expected] * 16


def test_threads_read_pieces_of_the_same_large_records(images, tmp_path):
    store, rows = images
    wholes = [npy(row) for row in rows]

    def read_pieces(seed):
        rng = np.random.default_rng(seed)
        for _ in range(150):
            i, at, size = int(rng.integers(40)), int(rng.integers(150_000)), int(rng.integers(1, 60_000))
            fd = os.open(m / i, os.O_RDONLY)
            assert os.pread(fd, size, at) == wholes[i][at : at + size]
            if rng.integers(10) == 0:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)

    with mounted(store, tmp_path / "m", "--cache=1M") as m, ThreadPoolExecutor(8) as pool:
        list(pool.map(read_pieces, range(8)))


def test_five_thousand_open_files(tmp_path):
    rows = counting_rows(5000, 600)
    store = make_dense(tmp_path / "s", rows)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8000), hard))
    try:
        with mounted(store, tmp_path / "m") as m:
            before = m.rss()
            fds = [os.open(m / i, os.O_RDONLY) for i in range(5000)]
            try:
                assert all(os.pread(fd, 8, 128) == rows[i, :8].tobytes() for i, fd in enumerate(fds))
                assert SANITIZED or m.rss() - before < 8 << 20
            finally:
                for fd in fds:
                    os.close(fd)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def possible_cpus():
    with open("/sys/devices/system/cpu/possible") as file:
        return int(file.read().strip().rpartition("-")[2]) + 1


@pytest.mark.parametrize("options", [["-s", "--prefetch=off"], ["-d"], ["--threads=16", "--spin=0"], ["--spin=1000"]])
def test_other_ways_to_serve(tokens, tmp_path, options, transport):
    store, rows = tokens
    with mounted(store, tmp_path / "m", *options) as m, ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda i: read_raw(m / i) == npy(rows[i]), range(300))) == [True] * 300
        names = [open(f"/proc/{m.pid}/task/{task}/comm").read() for task in os.listdir(f"/proc/{m.pid}/task")]
        expected = 1 if transport == "classic" else 1 + possible_cpus()
        assert options[0] != "-s" or names.count("zrecordfs-serve\n") == expected, names
        assert ("READ" in m.log) == (options == ["-d"])


def test_ten_mounts_of_one_store(tokens, tmp_path):
    store, rows = tokens
    with contextlib.ExitStack() as stack:
        mounts = [stack.enter_context(mounted(store, tmp_path / f"m{n}")) for n in range(10)]
        for m in mounts:
            assert read_raw(m / 42) == npy(rows[42])


def test_a_store_deleted_under_the_mount_goes_on_working(tokens, tmp_path):
    store, rows = tokens
    shutil.copytree(store, tmp_path / "s")
    with mounted(tmp_path / "s", tmp_path / "m") as m:
        shutil.rmtree(tmp_path / "s")
        assert all(read_raw(m / i) == npy(rows[i]) for i in range(0, 300, 50))


# ---------------------------------------------------------------- handles


class FileHandle(ctypes.Structure):
    _fields_ = [("nbytes", ctypes.c_uint), ("type", ctypes.c_int), ("bytes", ctypes.c_char * 128)]


@needs_root
def test_file_handles_stay_resolvable_after_a_remount(tokens, tmp_path):
    """What re-export over NFS needs."""
    store, rows = tokens
    libc = ctypes.CDLL(None, use_errno=True)
    handle, mount_id = FileHandle(nbytes=128), ctypes.c_int()
    with mounted(store, tmp_path / "m") as m:
        assert libc.name_to_handle_at(-100, os.fsencode(m / 9), ctypes.byref(handle), ctypes.byref(mount_id), 0) == 0
    with mounted(store, tmp_path / "m") as m:
        root = os.open(m.path, os.O_RDONLY)
        fd = libc.open_by_handle_at(root, ctypes.byref(handle), os.O_RDONLY)
        assert fd >= 0, os.strerror(ctypes.get_errno())
        assert os.read(fd, 1 << 20) == npy(rows[9])
        os.close(fd)
        os.close(root)


@pytest.mark.xfail(SANITIZED, reason="sanitizers have threads of their own", strict=False)
def test_an_idle_daemon_uses_no_cpu(tokens, tmp_path):
    store, _ = tokens
    with mounted(store, tmp_path / "m", "-o", "spin=1000") as m:
        for i in range(100):
            read_raw(m / i)
        time.sleep(0.1)

        def ticks():
            fields = open(f"/proc/{m.process.pid}/stat").read().rpartition(")")[2].split()
            switches = sum(
                int(line.split()[1])
                for task in os.listdir(f"/proc/{m.process.pid}/task")
                for line in open(f"/proc/{m.process.pid}/task/{task}/status")
                if "ctxt_switches" in line
            )
            return int(fields[11]) + int(fields[12]), switches

        before = ticks()
        time.sleep(1)
        assert ticks() == before


def test_unmounting_a_busy_mount_is_refused_and_reading_goes_on(tokens, tmp_path):
    store, rows = tokens
    with mounted(store, tmp_path / "m") as m:
        fd = os.open(m / 1, os.O_RDONLY)
        done = unmount(m.path)
        assert done.returncode != 0 and "busy" in done.stderr.lower()
        assert is_mounted(m.path) and os.read(fd, 1 << 20) == npy(rows[1])
        os.close(fd)


def cpu_nsec(pid):
    """What each thread of a process has used."""
    tasks = os.listdir(f"/proc/{pid}/task")
    return {int(tid): int(open(f"/proc/{pid}/task/{tid}/schedstat").read().split()[0]) for tid in tasks}


@contextlib.contextmanager
def stopped(tid):
    """One thread of a child stands still meanwhile, as a debugger does it."""
    seize, interrupt, detach, every_kind = 0x4206, 0x4207, 17, 0x40000000
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if libc.ptrace(seize, tid, None, None) != 0:
        pytest.skip(f"ptrace: {os.strerror(ctypes.get_errno())}")
    libc.ptrace(interrupt, tid, None, None)
    os.waitpid(tid, every_kind)
    try:
        yield
    finally:
        libc.ptrace(detach, tid, None, None)


def test_small_files_do_not_wait_for_a_huge_decode(tmp_path):
    nbytes = 128 << 20
    store = make_ragged(tmp_path / "s", [*counting_rows(2000, 100), np.zeros(nbytes, "u1")])

    def first_bytes(path):
        with open(path, "rb", buffering=0) as file:
            return file.read(6)

    with mounted(store, tmp_path / "m", "--threads=4") as m, ThreadPoolExecutor(2) as readers:

        def worked_nsec(tid):
            return cpu_nsec(m.pid)[tid] - before.get(tid, 0)

        settle(m)
        before = cpu_nsec(m.pid)
        huge = readers.submit(first_bytes, m / 2000)
        while max(map(worked_nsec, cpu_nsec(m.pid))) < 10_000_000:
            time.sleep(0.001)
        with stopped(max(cpu_nsec(m.pid), key=worked_nsec)):  # in the middle of it
            small = readers.submit(lambda: [len(read_raw(m / i)) for i in range(0, 1900, 97)])
            assert small.result(timeout=30) == [228] * 20
            assert m.status()["counters"]["decoded_bytes"] < nbytes and not huge.done()
        assert huge.result() == b"\x93NUMPY"
