# SPDX-License-Identifier: MIT
"""Processes and threads: fork, spawn, pickles, closing under a gather."""

import copy
import gc
import multiprocessing
import os
import pickle
import resource
import shutil
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import zrecord
from zrecord import Dense, Ragged, ZrecordError

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")

DATA = np.arange(4000 * 64, dtype=np.int32).reshape(4000, 64)


@pytest.fixture
def path(tmp_path):
    with Dense.create(tmp_path / "s", "i4", (64,)) as writer:
        writer.append(DATA)
    return tmp_path / "s"


def child_status(work):
    """Exit status of a forked child that runs work()."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if work() is not False else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def reads_right(store, seed=0, rounds=20):
    rng = np.random.default_rng(seed)
    for _ in range(rounds):
        ids = rng.integers(0, len(DATA), 256)
        if not np.array_equal(np.stack(list(store[ids])), DATA[ids]):
            return False
    return True


# ---------------------------------------------------------------- fork


def test_a_reader_opened_before_fork_works_in_the_child(path):
    with Dense.open(path) as store:
        assert reads_right(store)
        assert child_status(lambda: reads_right(store, 1)) == 0
        assert child_status(lambda: child_status(lambda: reads_right(store, 2)) == 0) == 0
        assert reads_right(store)


def test_fork_while_other_threads_gather(path):
    stop = threading.Event()
    with Dense.open(path) as store:

        def work():
            while not stop.is_set():
                reads_right(store, rounds=1)

        threads = [threading.Thread(target=work) for _ in range(3)]
        [t.start() for t in threads]
        try:
            for i in range(20):
                assert child_status(lambda: reads_right(store, i, rounds=3)) == 0
        finally:
            stop.set()
            [t.join() for t in threads]


def test_parent_and_children_read_different_records(path):
    with Dense.open(path) as store:
        context = multiprocessing.get_context("fork")
        with context.Pool(3) as pool:
            results = [pool.apply_async(reads_right, (store, seed)) for seed in range(12)]
            assert reads_right(store, 99)
            assert all(result.get(60) for result in results)


def test_a_closed_child_does_not_close_the_parent(path):
    with Dense.open(path) as store:
        assert child_status(store.close) == 0
        assert reads_right(store)


def test_a_writer_is_the_parents_alone(tmp_path):
    writer = Dense.create(tmp_path / "w", "i4", (64,))
    writer.append(DATA[:10])

    def misuse():
        for use in (lambda: writer.append(DATA[:10]), writer.close, writer.abort):
            try:
                use()
            except RuntimeError as exc:
                assert "child" in str(exc)
            else:
                return False

    assert child_status(misuse) == 0
    box = [writer]
    assert (
        child_status(lambda: (box.clear(), globals().pop("nothing", None), gc.collect()) and None)
        == 0
    )
    writer.append(DATA[10:])
    writer.close()
    with Dense.open(tmp_path / "w") as store:
        assert np.array_equal(store[:], DATA)


# ---------------------------------------------------------------- pickles


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_get_readers_and_samplers(path, method):
    context = multiprocessing.get_context(method)
    with Dense.open(path) as store, context.Pool(2) as pool:
        assert pool.starmap(reads_right, [(store, seed) for seed in range(4)]) == [True] * 4


def test_a_pickle_is_small_and_opens_when_used(path):
    with Dense.open(path, checksums=True) as store:
        text = pickle.dumps(store)
    assert len(text) < 500
    twin = pickle.loads(text)
    assert type(twin) is Dense and twin.path == path and not twin.closed
    assert twin.dtype == np.int32
    assert twin.item_shape == (64,)
    for use in (
        lambda s: len(s) == 4000,
        reads_right,
        lambda s: s.codec == "zstd",
        lambda s: np.array_equal(s[3], DATA[3]),
        lambda s: len(s.gather([1])) == 1,
        lambda s: s.has_dict() is False,
        lambda s: s.prefetch([1]) >= 0,
        lambda s: zrecord.verify(s).ok,
        lambda s: len(pickle.dumps(s)) < 500,
    ):
        fresh = pickle.loads(text)
        assert use(fresh)
        fresh.close()
    twin.close()
    with pytest.raises(RuntimeError, match="closed"):
        twin[0]


def test_ragged_and_copies(tmp_path):
    with Ragged.create(tmp_path / "r", "i4") as writer:
        writer.append([DATA[0], DATA[1, :5]])
    with Ragged.open(tmp_path / "r") as store:
        for twin in (copy.copy(store), copy.deepcopy(store), pickle.loads(pickle.dumps(store))):
            assert twin.packed([1])[0].tolist() == DATA[1, :5].tolist()
            twin.close()
        assert len(store) == 2


def test_a_pickle_survives_a_change_of_directory(path, monkeypatch, tmp_path):
    monkeypatch.chdir(path.parent)
    with Dense.open("s") as store:
        text = pickle.dumps(store)
    monkeypatch.chdir("/")
    twin = pickle.loads(text)
    assert np.array_equal(twin[5], DATA[5])
    twin.close()


def test_a_pickle_knows_its_store(path):
    with Dense.open(path) as store:
        twin = pickle.loads(pickle.dumps(store))
        gone = pickle.loads(pickle.dumps(store))
    shutil.rmtree(path)
    with pytest.raises(FileNotFoundError):
        gone[0]
    time.sleep(0.02)
    with Dense.create(path, "i4", (64,)) as writer:
        writer.append(DATA[::-1])
    with pytest.raises(ZrecordError, match="not the store that was pickled"):
        twin[0]


def test_writers_and_closed_readers_do_not_pickle(path, tmp_path):
    with Dense.create(tmp_path / "w", "i4", ()) as writer:
        with pytest.raises(TypeError, match="writer"):
            pickle.dumps(writer)
    store = Dense.open(path)
    store.close()
    with pytest.raises(RuntimeError, match="closed"):
        pickle.dumps(store)


def test_first_use_of_a_pickle_by_many_threads(path):
    with Dense.open(path) as store:
        text = pickle.dumps(store)
    for _ in range(20):
        twin = pickle.loads(text)
        results = in_threads(8, lambda i: reads_right(twin, i, rounds=1))
        assert results == [True] * 8
        twin.close()


# ---------------------------------------------------------------- threads


def in_threads(count, work):
    """Results, or exceptions, of work(i) run at once."""
    barrier, results = threading.Barrier(count), [None] * count

    def run(i):
        barrier.wait()
        try:
            results[i] = work(i)
        except BaseException as exc:
            results[i] = exc

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    [t.start() for t in threads]
    [t.join(60) for t in threads]
    return results


def test_concurrent_gathers(path):
    with Dense.open(path) as store:
        assert in_threads(6, lambda i: reads_right(store, i, rounds=50)) == [True] * 6


@pytest.mark.parametrize("geometry", ["dense", "ragged"])
def test_close_while_others_gather(tmp_path, geometry):
    """Each gather gives right records or says that the store is closed; nothing crashes."""
    if geometry == "dense":
        with Dense.create(tmp_path / "s", "i4", (64,)) as writer:
            writer.append(DATA)
    else:
        with Ragged.create(tmp_path / "s", "i4") as writer:
            writer.append(list(DATA))
    for _ in range(30):
        store = zrecord.open(tmp_path / "s")

        def work(i, store=store):
            if i == 0:
                time.sleep(0.003)
                return store.close()
            while True:
                assert reads_right(store, i, rounds=1)

        results = in_threads(5, work)
        assert results[0] is None
        assert all(isinstance(r, RuntimeError) and "closed" in str(r) for r in results[1:])


def test_a_changing_index_array_is_harmless(path):
    """Ids are copied before the GIL goes, so another thread may overwrite them."""
    ids = np.zeros(100_000, np.int64)
    stop = threading.Event()

    def scribble():
        while not stop.is_set():
            ids[:] = 2**62
            ids[:] = 5

    thread = threading.Thread(target=scribble)
    thread.start()
    try:
        with Dense.open(path) as store:
            for _ in range(20):
                try:
                    assert (store[ids] == DATA[0]).all() or True
                except IndexError:
                    pass
    finally:
        stop.set()
        thread.join()


def test_appends_from_several_threads_are_whole_batches(tmp_path):
    writer = Ragged.create(tmp_path / "s", "i4")

    def work(i):
        for j in range(20):
            writer.append([np.full(3, i * 100 + j, "i4")] * 5)

    assert in_threads(4, work) == [None] * 4
    assert len(writer) == 400
    writer.close()
    with Ragged.open(tmp_path / "s") as store:
        runs = np.stack(store[:])[:, 0].reshape(80, 5)
    assert (runs == runs[:, :1]).all()
    assert sorted(runs[:, 0]) == sorted(i * 100 + j for i in range(4) for j in range(20))


def test_gather_lets_other_threads_run(path):
    """A long gather does not stop the others: the GIL is away."""
    ticks, stop = 0, threading.Event()

    def tick():
        nonlocal ticks
        while not stop.is_set():
            ticks += 1
            time.sleep(0.0005)

    thread = threading.Thread(target=tick)
    with Dense.open(path) as store:
        ids = np.random.default_rng(0).integers(0, len(DATA), 400_000)
        thread.start()
        start = time.monotonic()
        store[ids]
        elapsed = time.monotonic() - start
    stop.set()
    thread.join()
    assert ticks >= min(20, elapsed * 100)


# ---------------------------------------------------------------- the end of a process


def run_program(code, *arguments):
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("end", ["", "raise SystemExit(0)", "import os; os._exit(0)"])
def test_a_writer_open_at_exit_publishes_nothing(tmp_path, end):
    code = f"import sys, zrecord; w = zrecord.Dense.create(sys.argv[1], 'i4', ())\n{end}"
    result = run_program(code, tmp_path / "s")
    assert (result.returncode, result.stderr) == (0, "")
    assert not (tmp_path / "s").exists()
    with Dense.create(tmp_path / "s", "i4", ()) as writer:
        writer.append(np.zeros(3, "i4"))
    assert len(list(tmp_path.iterdir())) == 1


def test_ctrl_c_while_waiting_for_a_batch(path):
    code = """
import os, signal, sys, threading
import zrecord, zrecord.dataloader
zrecord.dataloader.JOIN_SECONDS = 0.2
stuck = threading.Event()
loader = zrecord.DataLoader({"x": zrecord.open(sys.argv[1])}, 1, transform=lambda batch: stuck.wait())
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    next(loader)
except KeyboardInterrupt:
    print("interrupted")
"""
    result = run_program(code, path)
    assert (result.returncode, result.stdout, result.stderr) == (0, "interrupted\n", "")


def test_a_thousand_opens(path):
    """First all at once, then one after the other without a trace."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    try:
        readers = [Dense.open(path) for _ in range(1000)]
        assert all(np.array_equal(reader[i], DATA[i]) for i, reader in enumerate(readers))
        del readers
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    before = len(os.listdir("/proc/self/fd")), len(open("/proc/self/maps").readlines())
    for _ in range(1000):
        Dense.open(path)[[1, 2]]
    after = len(os.listdir("/proc/self/fd")), len(open("/proc/self/maps").readlines())
    assert after[0] == before[0] and after[1] <= before[1] + 8  # idle buffers may stay
