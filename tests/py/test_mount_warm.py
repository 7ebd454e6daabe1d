# SPDX-License-Identifier: MIT
"""Pushing ahead of readers that go in order: what it saves, and that it keeps to its limits."""

import os
import time
from pathlib import Path

import numpy as np
import pytest
from mounting import mounted, needs_mount, npy, read_raw, wait_for

zrecord = pytest.importorskip("zrecord")
pytestmark = [needs_mount, pytest.mark.keeps_pages]

COUNT = 2000
AHEAD = 256  # records of 2 KiB: what is pushed before a reader (fs/streams.c)
MARKER = 64  # of which every such one is left to its READ


@pytest.fixture(scope="module")
def rows():
    return np.arange(COUNT * 512, dtype="<i4").reshape(COUNT, 512) // 7


@pytest.fixture(scope="module", params=["raw", "zstd"])
def store(request, tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("warm") / "store"
    with zrecord.Dense.create(path, rows.dtype, rows.shape[1:], request.param) as ds:
        ds.append(rows)
    return path


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    rows = np.random.default_rng(5).integers(0, 8, (150, 150_000), dtype="u1")
    path = tmp_path_factory.mktemp("warm") / "images"
    with zrecord.Dense.create(path, rows.dtype, rows.shape[1:]) as ds:
        ds.append(rows)
    return path, rows


def counters(m):
    return m.status()["counters"]


def settled(m):
    """Counters once everything that belongs before the readers is there."""
    wait_for(lambda: m.status()["pending"]["ahead_records"] == 0, what="pushing")
    return counters(m)


def test_a_reader_in_order_finds_its_records_pushed(store, rows, tmp_path):
    with mounted(store, tmp_path / "m") as m:
        os.listdir(m.path)
        for i in range(10):
            assert read_raw(m / i) == npy(rows[i])
        pushed = settled(m)["pushes"]
        assert AHEAD * 0.8 < pushed <= AHEAD + MARKER
        with m.counting() as delta:  # all of it lies in the page cache, but for markers
            for i in range(20, 20 + AHEAD // 2):
                assert read_raw(m / i) == npy(rows[i])
        assert delta.get("READ", 0) <= AHEAD // 2 // MARKER + 1 and set(delta) <= {"READ"}
        assert settled(m)["pushes"] > pushed, "the markers told where the reader is"


def wake_ups(m):
    """How often each thread that pushes was woken, in the order they were made."""
    counts = []
    for task in sorted(Path(f"/proc/{m.pid}/task").iterdir(), key=lambda task: int(task.name)):
        if (task / "comm").read_text().strip() == "zrecordfs-ahead":
            status = (task / "status").read_text()
            counts.append(int(status.split("nonvoluntary")[0].split("voluntary_ctxt_switches:")[1]))
    return counts


def test_no_more_threads_follow_a_reader_than_it_leaves_cpus(store, rows, tmp_path):
    """Two on one CPU take turns, and the reader waits for ms for what the one that waits has locked."""
    spare = len(os.sched_getaffinity(0)) - 1
    with mounted(store, tmp_path / "m") as m:
        wait_for(lambda: all(wake_ups(m)), what="the threads' first sleep")
        time.sleep(0.05)
        before = wake_ups(m)
        if not 1 <= spare < len(before):
            pytest.skip(f"all {len(before)} threads may follow a reader, which leaves {spare} CPUs")
        os.listdir(m.path)
        for i in range(COUNT):
            assert read_raw(m / i) == npy(rows[i])
        assert settled(m)["pushes"] > COUNT // 4
        after = wake_ups(m)
        assert after[spare:] == before[spare:] and after != before
        (m.path / ".views/prefetch/0:2000:3").read_bytes()
        wait_for(lambda: all(map(int.__gt__, wake_ups(m)[spare:], after[spare:])), what="prefetching by all of them")


def test_each_record_is_decoded_once_and_every_byte_is_right(store, rows, tmp_path):
    with mounted(store, tmp_path / "m") as m:
        os.listdir(m.path)
        for i in range(COUNT):
            assert read_raw(m / i) == npy(rows[i])
            if i < 10 or i % 50 == 0:
                settled(m)
        status = counters(m)
        assert status["decodes"] <= COUNT + 20, "a reader may meet what is being pushed right now"
        assert status["pushes"] > COUNT * 0.9
        with m.counting() as delta:
            for i in range(COUNT):
                assert read_raw(m / i) == npy(rows[i])
        assert delta == {}, "a second pass asks nothing"


def test_pushing_stops_when_the_reader_stops(store, tmp_path):
    with mounted(store, tmp_path / "m") as m:
        os.listdir(m.path)
        for i in range(100, 110):
            read_raw(m / i)
        pushed = settled(m)["pushes"]
        assert 0 < pushed <= AHEAD + MARKER
        time.sleep(0.3)
        assert counters(m)["pushes"] == pushed


def test_a_random_reader_is_not_taken_for_one_in_order(store, rows, tmp_path):
    """With a number for prefetch=, since what is read as a whole is pushed in no order else."""
    with mounted(store, tmp_path / "m", f"--prefetch={AHEAD}") as m:
        os.listdir(m.path)
        for i in np.random.default_rng(3).permutation(COUNT):
            assert read_raw(m / int(i)) == npy(rows[i])
        status = counters(m)
        assert status["pushes"] + status["kept"] < COUNT / 10 and status["decodes"] < COUNT * 1.1


def test_records_the_kernel_does_not_know_are_kept_for_it(store, rows, tmp_path):
    with mounted(store, tmp_path / "m") as m:  # without a listing
        for i in range(10):
            read_raw(m / i)
        status = settled(m)
        # Each of the ten may be met between its LOOKUP and its READ: the kernel knows no others.
        assert status["kept"] >= AHEAD * 0.8 and status["pushes"] <= 10
        hits = status["cache_hits"]
        with m.counting() as delta:
            for i in range(20, 120):
                assert read_raw(m / i) == npy(rows[i])
        assert delta == {"LOOKUP": 100, "READ": 100}
        assert counters(m)["cache_hits"] - hits >= 99, "decoded before they were asked for"


def test_how_far_ahead_is_an_option(store, tmp_path):
    for option, low, high in (("off", 0, 0), ("0", 0, 0), ("12", 6, 24), ("auto", 100, AHEAD + MARKER)):
        with mounted(store, tmp_path / "m", "-o", f"prefetch={option}") as m:
            os.listdir(m.path)
            for i in range(10):
                read_raw(m / i)
            assert low <= settled(m)["pushes"] <= high, option
            assert m.status()["options"]["prefetch"] == (0 if option == "off" else int(option) if option.isdigit() else option)


def test_large_records_stay_within_the_cache_option(images, tmp_path):
    path, rows = images
    with mounted(path, tmp_path / "m", "--cache=2M") as m:
        most = 0
        for i in range(150):  # the kernel does not know them: they are kept here
            assert read_raw(m / i) == npy(rows[i])
            if i % 10 == 9:
                settled(m)
            most = max(most, m.status()["memory"]["cached_bytes"])
        assert 0 < most <= 2 << 20
        assert counters(m)["kept"] > 0 and counters(m)["decodes"] <= 160


def test_large_records_are_pushed_but_for_a_last_page(images, tmp_path):
    path, rows = images
    with mounted(path, tmp_path / "m") as m:
        os.listdir(m.path)
        for i in range(150):
            assert read_raw(m / i) == npy(rows[i])
            settled(m)
        status = counters(m)
        assert status["decodes"] <= 153 and status["pushes"] > 120
        assert status["read_bytes"] < 0.3 * rows.nbytes, "the rest came without being asked for"
        wait_for(lambda: m.status()["memory"]["cached_bytes"] == 0, what="dropping delivered records")


def test_a_damaged_record_on_the_way_is_skipped(store, rows, tmp_path):
    entry = np.fromfile(store / "meta.zr", "<u4", 4, offset=4096 + 16 * 30)
    with open(store / "data.zr", "r+b") as file:
        offset = int(entry[0]) | int(entry[1]) << 32
        file.seek(offset)
        good = file.read(int(entry[2]))
        file.seek(offset)
        file.write(b"\xff" * len(good))
    try:
        with mounted(store, tmp_path / "m") as m:
            os.listdir(m.path)
            for i in range(200):
                if i == 30 and m.status()["store"]["codec"] == "zstd":
                    with pytest.raises(OSError):
                        read_raw(m / i)
                elif i != 30:
                    assert read_raw(m / i) == npy(rows[i])
            assert settled(m)["pushes"] > 100
    finally:
        with open(store / "data.zr", "r+b") as file:
            file.seek(offset)
            file.write(good)


def test_several_readers_in_order_at_once(store, rows, tmp_path):
    with mounted(store, tmp_path / "m") as m:
        os.listdir(m.path)
        starts = (0, 500, 1000, 1500)

        for step in range(400):
            for start in starts:
                assert read_raw(m / (start + step)) == npy(rows[start + step])
            if step < 10 or step % 20 == 0:
                settled(m)
        status = settled(m)
        assert status["pushes"] > 4 * 300 and status["decodes"] <= COUNT


def test_ending_while_records_are_being_pushed(images, tmp_path):
    path, _ = images
    for _ in range(5):
        with mounted(path, tmp_path / "m") as m:
            os.listdir(m.path)
            for i in range(12):
                read_raw(m / i)


# ---------------------------------------------------------------- all of it, in no order

SWEPT_AFTER = 256  # READs, or a sixteenth of the store: then the rest is pushed as well,
GRANTED = 64  # so many records for each READ that is still seen
MOST_GRANTED = 256


def shuffled(seed=4):
    """All records, no two neighbours read soon after each other."""
    return [int(i) for i in np.random.default_rng(seed).permutation(COUNT)]


def test_a_reader_of_all_in_no_order_finds_the_rest_pushed(store, rows, tmp_path):
    order = shuffled()
    with mounted(store, tmp_path / "m") as m:
        os.listdir(m.path)
        for i in order[:SWEPT_AFTER]:
            assert read_raw(m / i) == npy(rows[i])
        for i in order[SWEPT_AFTER : SWEPT_AFTER + 200]:
            assert read_raw(m / i) == npy(rows[i])
            settled(m)
        with m.counting() as delta:  # but for markers
            for i in order[SWEPT_AFTER + 200 :]:
                assert read_raw(m / i) == npy(rows[i])
        assert set(delta) <= {"READ"} and delta.get("READ", 0) <= COUNT // MARKER
        assert settled(m)["decodes"] <= COUNT + 20, "a reader may meet what is being pushed right now"


def test_a_reader_in_no_order_that_stops_is_not_worked_for(store, rows, tmp_path):
    order = shuffled()
    with mounted(store, tmp_path / "m") as m:
        os.listdir(m.path)
        done = 0
        while settled(m)["pushes"] == 0:
            assert read_raw(m / order[done]) == npy(rows[order[done]])
            done += 1
        assert SWEPT_AFTER * 0.9 < done < SWEPT_AFTER * 1.2, "a few may look like a step in order"
        assert settled(m)["pushes"] <= GRANTED
        for i in order[done : done + 40]:
            read_raw(m / i)
        pushes = settled(m)["pushes"]
        assert pushes <= 41 * GRANTED
        time.sleep(0.2)
        assert counters(m)["pushes"] == pushes, "nothing is pushed that no READ granted"


def test_browsing_at_random_pushes_nothing(store, rows, tmp_path):
    with mounted(store, tmp_path / "m") as m:
        os.listdir(m.path)
        for i in shuffled()[: SWEPT_AFTER - 60]:
            assert read_raw(m / i) == npy(rows[i])
        assert settled(m)["pushes"] == 0


@pytest.mark.parametrize("options", [["--prefetch=off"], ["--prefetch=100"]])
def test_only_who_is_not_told_how_far_to_go_pushes_in_no_order(store, rows, tmp_path, options):
    with mounted(store, tmp_path / "m", *options) as m:
        os.listdir(m.path)
        for i in shuffled()[: SWEPT_AFTER * 2]:
            assert read_raw(m / i) == npy(rows[i])
        assert settled(m)["pushes"] == 0


def test_who_has_not_listed_gets_nothing_pushed_in_no_order(store, rows, tmp_path):
    """The kernel holds no inodes for it, and keeping so much here is no help."""
    with mounted(store, tmp_path / "m") as m:
        for i in shuffled()[: SWEPT_AFTER * 2]:
            assert read_raw(m / i) == npy(rows[i])
        status = settled(m)
        assert status["pushes"] == 0 and status["kept"] <= 1
