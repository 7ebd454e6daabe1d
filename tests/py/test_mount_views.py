# SPDX-License-Identifier: MIT
""".views: arrays, gathers and epochs of a mounted store, and folders of K records."""

import errno
import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from mounting import SANITIZED, mounted, name_of, needs_mount, npy, read_raw, wait_for
from test_mount import counting_rows, location, make_dense, make_ragged, overwrite, settle

zrecord = pytest.importorskip("zrecord")
pytestmark = [needs_mount, pytest.mark.keeps_pages]

ROWS = counting_rows(300, 2048).view("<i4")  # two kernel pages hold four records and their header


@pytest.fixture(scope="module", params=["raw", "zstd"])
def tokens(request, tmp_path_factory):
    return make_dense(tmp_path_factory.mktemp("views") / "store", ROWS, request.param)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    rows = counting_rows(30, 150528).reshape(30, 3, 224, 224)
    return make_dense(tmp_path_factory.mktemp("views") / "images", rows), rows


# ---------------------------------------------------------------- names


def test_views_can_be_opened_and_are_listed_on_request_only(tokens, tmp_path):
    with mounted(tokens, tmp_path / "m") as m:
        assert len(os.listdir(m.path)) == 300
        assert sorted(os.listdir(m / ".views")) == ["all.npy", "at", "epoch", "prefetch"]
        assert [os.listdir(m / ".views" / name) for name in ("at", "epoch", "prefetch")] == [[], [], []]
        assert stat.S_ISDIR(os.stat(m / ".views").st_mode)
        listed = {entry.name: entry.inode() for entry in os.scandir(m / ".views")}
        assert listed == {name: os.stat(m / ".views" / name).st_ino for name in listed}
    with mounted(tokens, tmp_path / "m", "-o", "show_control") as m:
        entries = {entry.name: entry for entry in os.scandir(m.path)}
        assert len(entries) == 302 and entries[".views"].is_dir() and entries[".control"].is_file()
        assert entries[".views"].inode() == os.stat(m / ".views").st_ino


@pytest.mark.parametrize(
    "name",
    ["at/300.npy", "at/0,300.npy", "at/0:300,300.npy", "at/.npy", "at/1", "at/1.NPY", "at/a.npy", "at/-1.npy", "at/1,,2.npy",
     "at/18446744073709551616.npy", "at/5:1.npy", "at/0:9:0.npy", "epoch/042", "epoch/-1", "epoch/x", "epoch/1.5",
     "epoch/18446744073709551616", "epoch/1/00000300.npy", "epoch/1/0.npy", "prefetch/300", "prefetch/x", "all", "none"],
)  # fmt: skip
def test_names_that_mean_nothing_do_not_exist(tokens, tmp_path, name):
    with mounted(tokens, tmp_path / "m") as m, pytest.raises(FileNotFoundError):
        os.stat(m / ".views" / name)


def test_ragged_stores_have_no_arrays(tmp_path):
    store = make_ragged(tmp_path / "s", [np.arange(n, dtype="i4") for n in (3, 1, 4)])
    with mounted(store, tmp_path / "m") as m:
        assert sorted(os.listdir(m / ".views")) == ["epoch", "prefetch"]
        for name in ("all.npy", "at", "at/0.npy"):
            assert not os.path.exists(m / ".views" / name)
        assert len(os.listdir(m / ".views/epoch/3")) == 3


# ---------------------------------------------------------------- arrays


def test_all_is_the_store_as_one_array(tokens, tmp_path):
    with mounted(tokens, tmp_path / "m") as m:
        path = m / ".views/all.npy"
        assert read_raw(path) == npy(ROWS)
        st = os.stat(path)
        assert st.st_size == len(npy(ROWS)) and st.st_blocks == -(-st.st_size // 512)


def test_indexing_a_mapped_array_is_a_gather_and_decodes_nothing_twice(tokens, tmp_path):
    ids = np.random.default_rng(5).integers(0, 300, 256)
    with mounted(tokens, tmp_path / "m") as m, zrecord.open(tokens) as ds:
        array = np.load(m / ".views/all.npy", mmap_mode="r")
        assert isinstance(array, np.memmap) and array.shape == (300, 512)
        assert np.array_equal(array[ids], ds[ids])
        assert np.array_equal(array, ROWS)
        assert np.array_equal(array[ids], ds[ids])
        del array
        counters = m.status()["counters"]
        assert counters["decodes"] == 300, "rows cut by two requests are decoded for both at once"
        wait_for(lambda: m.status()["memory"]["cached_bytes"] == 0, what="dropping delivered rows")


def test_a_mapped_array_of_large_rows(images, tmp_path):
    store, rows = images
    with mounted(store, tmp_path / "m") as m:
        array = np.load(m / ".views/all.npy", mmap_mode="r")
        for i in np.random.default_rng(1).permutation(30):
            assert np.array_equal(array[i], rows[i])
        del array
        assert m.status()["counters"]["decodes"] == 30


def test_only_what_the_kernel_asks_for_is_decoded(tokens, tmp_path):
    with mounted(tokens, tmp_path / "m") as m:
        fd = os.open(m / ".views/all.npy", os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(fd, 1, 400_000)
        os.close(fd)
        assert m.status()["counters"]["decodes"] <= 4, "the rows of one page"


def test_reading_an_array_at_any_offset(tokens, tmp_path):
    whole = npy(ROWS)
    rng = np.random.default_rng(2)
    with mounted(tokens, tmp_path / "m", "-o", "cache=64K") as m:
        fd = os.open(m / ".views/all.npy", os.O_RDONLY)
        for _ in range(300):
            at, size = int(rng.integers(len(whole) + 10)), int(rng.integers(1, 40_000))
            if rng.integers(5) == 0:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            assert os.pread(fd, size, at) == whole[at : at + size]
        os.close(fd)
        assert m.status()["memory"]["cached_bytes"] <= 64 << 10


def test_threads_share_the_rows_of_an_array(tokens, tmp_path):
    with mounted(tokens, tmp_path / "m") as m:

        def check(seed):
            array = np.load(m / ".views/all.npy", mmap_mode="r")
            ids = np.random.default_rng(seed).integers(0, 300, 500)
            return np.array_equal(array[ids], ROWS[ids])

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(check, range(16)))
        assert m.status()["counters"]["decodes"] == 300


@pytest.mark.parametrize("text", ["0,5,2", "7", "0:256", "0:300:10", ":", "299:,0,0,0", "5:5", "290:4096", "0:4096:50,7", "300:", "500:600"])
def test_a_selection_is_a_gather_as_one_file(tokens, tmp_path, text):
    ids = []
    for part in text.split(","):
        fields = [int(field) if field else None for field in part.split(":")]
        ids += [fields[0]] if ":" not in part else range(300)[slice(*fields)]
    with mounted(tokens, tmp_path / "m") as m:
        path = m / ".views/at" / f"{text}.npy"
        expected = ROWS[np.array(ids, dtype=int)]
        assert read_raw(path) == npy(expected)
        assert np.array_equal(np.load(path), expected) and np.array_equal(np.load(path, mmap_mode="r"), expected)


def test_a_batch_of_256_random_records(tokens, tmp_path):
    ids = np.random.default_rng(3).integers(0, 300, 256)
    name = ",".join(map(str, ids)) + ".npy"
    assert len(name) > 900
    with mounted(tokens, tmp_path / "m") as m:
        assert np.array_equal(np.load(m / ".views/at" / name), ROWS[ids])
        assert m.status()["counters"]["decodes"] == 256, "one gather for all of the file's READs"
        wait_for(lambda: m.status()["memory"]["cached_bytes"] == 0, what="dropping what was delivered")


def test_a_large_selection_stays_within_the_cache(images, tmp_path):
    store, rows = images
    with mounted(store, tmp_path / "m", "-o", "cache=1M") as m:
        before = m.rss()
        array = np.load(m / ".views/at/0:30,0:30,0:30.npy", mmap_mode="r")
        assert np.array_equal(array[45], rows[15]) and np.array_equal(array[:60], np.concatenate([rows, rows]))
        assert m.status()["memory"]["cached_bytes"] <= 1 << 20
        assert SANITIZED or m.rss() - before < 8 << 20
        del array


def test_names_that_nobody_asks_for_again_are_forgotten(tokens, tmp_path):
    """The kernel keeps them as long as it has memory, whatever it was told."""
    with mounted(tokens, tmp_path / "m") as m:
        held = os.open(m / ".views/at/5,6.npy", os.O_RDONLY)
        for i in range(3000):
            assert os.stat(m / f".views/at/{i % 300},{i // 300}.npy").st_size == 128 + 4096
            if i % 3 == 0:
                os.stat(m / f".views/epoch/{i}")
        wait_for(lambda: m.status()["memory"]["control_texts"] < 1100, what="forgetting")
        assert os.pread(held, 9999, 0) == npy(ROWS[[5, 6]]), "an open file stays"
        os.close(held)
        assert read_raw(m / ".views/at/5,6.npy") == npy(ROWS[[5, 6]])


def test_an_array_of_an_empty_store(tmp_path):
    zrecord.Dense.create(tmp_path / "s", "<i4", (3,)).close()
    with mounted(tmp_path / "s", tmp_path / "m") as m:
        assert np.load(m / ".views/all.npy").shape == (0, 3)
        assert np.load(m / ".views/at/:.npy").shape == (0, 3)
        assert os.listdir(m / ".views/epoch/1") == []


def test_arrays_of_scalars_and_of_one_byte(tmp_path):
    labels = np.arange(5000) % 7
    with mounted(make_dense(tmp_path / "s", labels, "raw"), tmp_path / "m") as m:
        assert np.array_equal(np.load(m / ".views/all.npy"), labels)
        assert np.array_equal(np.load(m / ".views/at/4999,0.npy"), labels[[4999, 0]])
    flags = (np.arange(200_000) % 3).astype("u1")
    with mounted(make_dense(tmp_path / "t", flags, "raw"), tmp_path / "m") as m:
        assert np.array_equal(np.load(m / ".views/all.npy", mmap_mode="r"), flags)


def test_a_damaged_record_fails_where_it_lies(tmp_path):
    rows = counting_rows(300, 3000)
    store = make_dense(tmp_path / "s", rows)
    offset, nbytes = location(store, 7)
    overwrite(store / "data.zr", offset, b"\xff" * nbytes)
    with mounted(store, tmp_path / "m") as m:
        fd = os.open(m / ".views/all.npy", os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        with pytest.raises(OSError) as caught:
            os.pread(fd, 3000, 128 + 7 * 3000)
        assert caught.value.errno == errno.EIO
        assert os.pread(fd, 3000, 128 + 200 * 3000) == rows[200].tobytes()
        os.close(fd)
        with pytest.raises(OSError) as caught:
            read_raw(m / ".views/at/0,7.npy")
        assert caught.value.errno == errno.EIO
        assert np.array_equal(np.load(m / ".views/at/0,8.npy"), rows[[0, 8]])
        assert [entry["name"] for entry in m.status()["damaged"]["records"]] == [name_of(7)]


# ---------------------------------------------------------------- epochs


def test_an_epoch_is_the_cyclic_order_with_the_records_themselves(tokens, tmp_path):
    sampler = zrecord.Sampler(300, 1, 2, 42)
    order = [int(sampler.next()[0]) for _ in range(300)]
    assert sorted(order) == list(range(300)) != order
    with mounted(tokens, tmp_path / "m") as m:
        folder = m / ".views/epoch/42"
        settle(m)
        records = {name_of(i): os.stat(m / i).st_ino for i in range(300)}
        entries = {entry.name: entry.inode() for entry in os.scandir(folder)}
        assert entries == {name_of(at): records[name_of(i)] for at, i in enumerate(order)}
        assert [os.stat(folder / name_of(at)).st_ino for at in range(300)] == [records[name_of(i)] for i in order]
        assert all(read_raw(folder / name_of(at)) == npy(ROWS[i]) for at, i in enumerate(order))
        with m.counting() as delta:
            assert all(read_raw(m / i) == npy(ROWS[i]) for i in range(300))
        assert delta == {}, "pages read through the epoch are those of the records"
        other = [os.stat(m / ".views/epoch/43" / name_of(at)).st_ino for at in range(300)]
        assert sorted(other) == sorted(records.values()) and other != list(entries.values())


def test_seeds_up_to_64_bits(tokens, tmp_path):
    seed = 2**64 - 1
    sampler = zrecord.Sampler(300, 1, 2, seed)
    first = int(sampler.next()[0])
    with mounted(tokens, tmp_path / "m") as m:
        assert np.array_equal(np.load(m / f".views/epoch/{seed}/{name_of(0)}"), ROWS[first])


# ---------------------------------------------------------------- prefetch


def test_reading_a_prefetch_says_what_it_did(images, tmp_path):
    store, rows = images
    with mounted(store, tmp_path / "m") as m:
        path = m / ".views/prefetch/0:10"
        os.stat(path)
        assert m.status()["counters"]["prefetches"] == 0, "looking is not reading"
        fd = os.open(path, os.O_RDONLY)
        text = os.read(fd, 1 << 16)
        assert len(text) == os.fstat(fd).st_size
        os.close(fd)
        told = json.loads(text)
        assert told["prefetch"] == "0:10" and told["records"] == 10
        wait_for(lambda: m.status()["counters"]["decodes"] == 10, what="prefetching")
        assert m.status()["counters"]["prefetches"] == 10
        assert all(read_raw(m / i) == npy(rows[i]) for i in reversed(range(10)))  # in order, more would follow
        assert m.status()["counters"]["decodes"] == 10, "what was prefetched is not decoded again"


def test_a_prefetch_of_a_list_of_records(tokens, tmp_path):
    wanted = [int(i) for i in np.random.default_rng(4).permutation(300)[:100]]
    with mounted(tokens, tmp_path / "m") as m:
        os.listdir(m.path)
        (m / ".views/prefetch" / ",".join(map(str, wanted))).read_text()
        wait_for(lambda: m.status()["counters"]["pushes"] == 100, what="prefetching")
        with m.counting() as delta:
            assert all(read_raw(m / i) == npy(ROWS[i]) for i in wanted)
        assert "READ" not in delta and m.status()["counters"]["decodes"] == 100


# ---------------------------------------------------------------- shards


@pytest.mark.parametrize("mode", ["always", "never"])
def test_shards_are_folders_of_k_records(tokens, tmp_path, mode):
    with mounted(tokens, tmp_path / "plain") as plain, mounted(
        tokens, tmp_path / "m", "-o", f"shard=128,readdirplus={mode}"
    ) as m:
        assert sorted(os.listdir(m.path)) == ["00000000", "00000001", "00000002"]
        assert os.stat(m.path).st_nlink == 5 and os.stat(m / "00000001").st_nlink == 2
        found = {}
        for folder, _, names in os.walk(m.path):
            found.update({name: os.path.join(folder, name) for name in names})
        assert sorted(found) == [name_of(i) for i in range(300)]
        assert found[name_of(127)].endswith("/00000000/00000127.npy")
        assert found[name_of(299)].endswith("/00000002/00000299.npy")
        for i in (0, 127, 128, 299):
            assert read_raw(found[name_of(i)]) == npy(ROWS[i])
            assert os.stat(found[name_of(i)]).st_ino == os.stat(plain / i).st_ino
        for absent in ("00000003", name_of(0), "00000001/00000127.npy", "0"):
            assert not os.path.exists(m / absent)
        entries = {entry.name: entry.inode() for entry in os.scandir(m.path)}
        assert entries == {name: os.stat(m / name).st_ino for name in entries}
        assert np.array_equal(np.load(m / ".views/all.npy"), ROWS)
