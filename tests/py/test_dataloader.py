# SPDX-License-Identifier: MIT
"""DataLoader: threads, order, state, failures, the end."""

import contextlib
import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref

import numpy as np
import pytest

import zrecord
import zrecord.dataloader
from zrecord import DataLoader, Dense, Ragged, Sampler


@pytest.fixture
def streams(tmp_path):
    x = np.arange(300, dtype=np.int64)
    with Dense.create(tmp_path / "x", "i8", ()) as writer:
        writer.append(x)
    with Dense.create(tmp_path / "y", "f4", (2, 3), "raw") as writer:
        writer.append(np.repeat(x, 6).reshape(-1, 2, 3).astype("f4"))
    with Ragged.create(tmp_path / "r", "i4") as writer:
        writer.append([np.full(i % 5 + 1, i, "i4") for i in range(300)])
    stores = {name: zrecord.open(tmp_path / name) for name in "xyr"}
    yield stores
    for store in stores.values():
        store.close()


def expected_ids(steps, length=300, batch_size=16, mode=2, seed=42):
    sampler = Sampler(length, batch_size, mode, seed)
    batches = []
    for step in steps:
        sampler.seek(step)
        batches.append(sampler.next().tolist())
    return batches


def no_threads_left():
    deadline = time.monotonic() + 5
    while any(t.name.startswith("zrecord") for t in threading.enumerate()):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
        gc.collect()  # does nothing while another thread collects
    return True


@pytest.fixture(autouse=True)
def ends_its_threads():
    yield
    gc.collect()
    assert no_threads_left()


def test_streams_line_up(streams):
    with DataLoader(streams, batch_size=16) as loader:
        for ids, batch in zip(expected_ids(range(50)), loader):
            assert list(batch) == ["x", "y", "r"]
            assert batch["x"].tolist() == ids
            assert batch["y"].shape == (16, 2, 3) and batch["y"][:, 0, 0].tolist() == ids
            assert isinstance(batch["r"], list) and [r[0] for r in batch["r"]] == ids
            assert batch["x"].flags.writeable and batch["y"].flags.c_contiguous


@pytest.mark.parametrize("mode", [0, 1, 2, Sampler.Mode.IID])
def test_modes_and_seeds(streams, mode):
    with DataLoader({"x": streams["x"]}, 1, 16, 2, mode, 7) as loader:
        got = [next(loader)["x"].tolist() for _ in range(20)]
    assert got == expected_ids(range(20), mode=mode, seed=7)


def test_it_is_endless(streams):
    with DataLoader({"x": streams["x"]}, batch_size=100) as loader:
        assert sum(len(b["x"]) for b in itertools.islice(loader, 50)) == 5000
        with pytest.raises(TypeError):
            len(loader)
        assert iter(loader) is loader


def test_a_batch_larger_than_the_store(streams):
    with DataLoader({"x": streams["x"]}, batch_size=1000) as loader:
        assert sorted(next(loader)["x"].tolist()) == list(range(300))


def test_transforms_run_at_the_same_time(streams):
    barrier = threading.Barrier(3, timeout=10)

    def transform(batch):
        barrier.wait()
        return batch["x"] * 2

    with DataLoader(
        {"x": streams["x"]}, transform_workers=3, batch_size=10, transform=transform
    ) as loader:
        for _ in range(9):
            assert (next(loader) % 2 == 0).all()
        barrier.abort()


def slow_at(step_ids):
    """A transform that is slow for every third batch."""
    count = itertools.count()

    def transform(batch):
        if next(count) % 3 == 0:
            time.sleep(0.01)
        return batch["x"].tolist()

    return transform


def test_unordered_gives_every_batch_once(streams):
    with DataLoader({"x": streams["x"]}, batch_size=16, transform=slow_at(3)) as loader:
        got = [next(loader) for _ in range(40)]
    expected = expected_ids(range(60))
    assert all(batch in expected for batch in got)
    assert len({tuple(batch) for batch in got}) == 40


def test_ordered_keeps_the_order(streams):
    with DataLoader(
        {"x": streams["x"]}, batch_size=16, transform=slow_at(3), ordered=True
    ) as loader:
        assert [next(loader) for _ in range(40)] == expected_ids(range(40))


def test_batches_under_way_are_bounded(streams):
    made, taken, most = 0, 0, 0
    lock = threading.Lock()

    def transform(batch):
        nonlocal made, most
        with lock:
            made += 1
            most = max(most, made - taken)
        return batch

    with DataLoader({"x": streams["x"]}, 2, 16, 3, transform=transform) as loader:
        for _ in range(30):
            time.sleep(0.002)
            next(loader)
            with lock:
                taken += 1
        assert loader.stats()["under_way"] <= 5
    assert most <= 6


def test_batches_handed_out_are_not_kept(streams):
    class Batch(dict):
        pass

    with DataLoader({"x": streams["x"]}, 1, 16, 1, transform=Batch, ordered=True) as loader:
        ref = weakref.ref(next(loader))
        next(loader)
        gc.collect()
        assert ref() is None


# ---------------------------------------------------------------- validation


def test_refused_streams(streams, tmp_path):
    with pytest.raises(ValueError, match="at least one"):
        DataLoader({})
    with pytest.raises(ValueError, match="'z'"):
        DataLoader({"x": streams["x"], "z": np.zeros(300)})
    with Dense.create(tmp_path / "w", "i4", ()) as writer:
        writer.append(np.zeros(7, "i4"))
        with pytest.raises(ValueError, match="opened for reading"):
            DataLoader({"w": writer})
    short = Dense.open(tmp_path / "w")
    with pytest.raises(ValueError, match="300.*7"):
        DataLoader({"x": streams["x"], "w": short})
    short.close()
    with pytest.raises(ValueError, match="opened for reading"):
        DataLoader({"w": short})
    Dense.create(tmp_path / "e", "i4", ()).close()
    with Dense.open(tmp_path / "e") as empty, pytest.raises(ValueError):
        DataLoader({"e": empty})


@pytest.mark.parametrize(
    "options, error",
    [
        ({"transform_workers": 0}, ValueError),
        ({"transform_workers": -1}, ValueError),
        ({"transform_workers": True}, TypeError),
        ({"transform_workers": 1.0}, TypeError),
        ({"prefetch_size": 0}, ValueError),
        ({"prefetch_size": False}, TypeError),
        ({"prefetch_size": "4"}, TypeError),
        ({"batch_size": 0}, ValueError),
        ({"batch_size": 1.5}, TypeError),
        ({"mode": 7}, ValueError),
        ({"seed": -1}, ValueError),
        ({"transform": 5}, TypeError),
    ],
    ids=repr,
)
def test_refused_options(streams, options, error):
    with pytest.raises(error):
        DataLoader({"x": streams["x"]}, **options)


# ---------------------------------------------------------------- failures


@pytest.mark.parametrize("ordered", [False, True])
def test_a_failing_transform_reaches_the_consumer(streams, ordered):
    def transform(batch):
        raise LookupError("mine")

    loader = DataLoader({"x": streams["x"]}, batch_size=16, transform=transform, ordered=ordered)
    with pytest.raises(LookupError, match="mine") as caught:
        next(loader)
    assert any("transforming the batch of step" in note for note in caught.value.__notes__)
    assert caught.traceback[-1].name == "transform"
    with pytest.raises(StopIteration):
        next(loader)
    assert no_threads_left()
    loader.close()


def test_ordered_gives_what_came_before_the_failure(streams):
    sampler_batches = expected_ids(range(10))

    def transform(batch):
        if batch["x"].tolist() == sampler_batches[7]:
            raise LookupError
        time.sleep(0.002)
        return batch["x"].tolist()

    loader = DataLoader({"x": streams["x"]}, batch_size=16, transform=transform, ordered=True)
    for ids in sampler_batches[:7]:
        assert next(loader) == ids
    with pytest.raises(LookupError):
        next(loader)
    assert loader.state_dict()["step"] == 7


def test_a_failing_gather_names_stream_and_step(tmp_path):
    with Dense.create(tmp_path / "d", "i8", (100,), "zstd") as writer:
        writer.append(np.random.default_rng(0).integers(0, 9, (50, 100)))
    with open(tmp_path / "d" / "data.zr", "r+b") as file:
        file.seek(10)
        file.write(b"\x00" * 40)
    with (
        Dense.open(tmp_path / "d") as store,
        DataLoader({"broken": store}, batch_size=50) as loader,
    ):
        with pytest.raises(zrecord.ZrecordError) as caught:
            next(loader)
        assert caught.value.code == -7 and caught.value.record is not None
        assert str(tmp_path / "d") in str(caught.value)
        assert f"record {caught.value.record}" in str(caught.value)
        assert str(caught.value).endswith("[stream 'broken', step 0]")


def test_a_stream_closed_underneath(streams):
    with DataLoader({"x": streams["x"]}, batch_size=16, prefetch_size=1) as loader:
        next(loader)
        streams["x"].close()
        with pytest.raises(RuntimeError, match="closed"):
            for _ in loader:
                pass


def test_base_exceptions_of_a_transform_are_not_lost(streams):
    def transform(batch):
        raise SystemExit(3)

    with DataLoader({"x": streams["x"]}, transform=transform) as loader:
        with pytest.raises(SystemExit):
            next(loader)


def test_a_transform_cannot_end_the_loader_by_stopiteration(streams):
    with DataLoader({"x": streams["x"]}, transform=lambda batch: next(iter([]))) as loader:
        with pytest.raises(RuntimeError, match="StopIteration"):
            next(loader)


# ---------------------------------------------------------------- the end


def test_close_is_prompt_in_any_state(streams):
    for transform in (zrecord.dataloader.identity, lambda batch: batch):
        for take in (0, 1, 5):
            loader = DataLoader({"x": streams["x"]}, batch_size=16, transform=transform)
            for _ in range(take):
                next(loader)
            start = time.monotonic()
            loader.close()
            assert time.monotonic() - start < 1
            assert no_threads_left()
            loader.close()
            with pytest.raises(StopIteration):
                next(loader)


def test_close_wakes_a_waiting_consumer(streams):
    gate = threading.Event()
    loader = DataLoader({"x": streams["x"]}, 1, 16, 1, transform=lambda batch: gate.wait())
    result = []
    consumer = threading.Thread(target=lambda: result.append(next(loader, "end")))
    consumer.start()
    time.sleep(0.05)
    loader._run.stop()
    consumer.join(5)
    assert result == ["end"]
    gate.set()
    loader.close()


def test_close_inside_a_transform(streams):
    done = threading.Event()

    def transform(batch):
        loader_box[0].close()
        done.set()
        return batch

    loader_box = []
    ready = threading.Event()
    loader = DataLoader(
        {"x": streams["x"]}, 1, 16, 1, transform=lambda b: (ready.wait(), transform(b))[1]
    )
    loader_box.append(loader)
    ready.set()
    assert done.wait(5)
    assert next(loader, "end") == "end"
    loader_box.clear()


def test_a_stuck_transform_does_not_hang_close(streams, monkeypatch):
    monkeypatch.setattr(zrecord.dataloader, "JOIN_SECONDS", 0.2)
    gate, entered = threading.Event(), threading.Event()
    loader = DataLoader(
        {"x": streams["x"]}, 1, transform=lambda batch: (entered.set(), gate.wait())
    )
    assert entered.wait(5)
    with pytest.warns(RuntimeWarning, match="left behind"):
        loader.close()
    gate.set()


def test_a_forgotten_loader_ends(streams):
    loader = DataLoader({"x": streams["x"]}, batch_size=16, transform=lambda batch: batch)
    next(loader)
    del loader
    gc.collect()
    assert no_threads_left()


def test_a_loader_in_a_cycle_is_collected(streams):
    """A collection may run in one of its own threads, inside its own lock."""

    def transform(batch):
        gc.collect()
        return batch

    for _ in range(20):
        loader = DataLoader({"x": streams["x"]}, 3, 16, 2, transform=transform)
        loader.me = loader
        next(loader)
        del loader
    gc.collect()
    assert no_threads_left()


def test_many_loaders_one_after_the_other(streams):
    for i in range(100):
        with DataLoader({"x": streams["x"]}, 2, 16, 2, transform=lambda batch: batch) as loader:
            if i % 2:
                next(loader)


PROGRAM = """
import sys, threading, time
import numpy as np, zrecord
path = sys.argv[1]
loader = zrecord.DataLoader({"x": zrecord.Dense.open(path)}, batch_size=16, transform=TRANSFORM)
next(loader)
"""


@pytest.mark.parametrize(
    "transform", ["zrecord.dataloader.identity", "lambda b: b", "lambda b: b['x'] * 2"]
)
def test_the_interpreter_exits_with_a_loader_open(streams, tmp_path, transform):
    for _ in range(3):
        result = subprocess.run(
            [sys.executable, "-c", PROGRAM.replace("TRANSFORM", transform), str(tmp_path / "x")],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_a_forked_child_is_told(streams):
    with DataLoader({"x": streams["x"]}, batch_size=16) as loader:
        next(loader)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                next(loader)
            except RuntimeError:
                loader.close()
                with DataLoader({"x": streams["x"]}, batch_size=16) as fresh:
                    status = 0 if next(fresh)["x"].tolist() == expected_ids([0])[0] else 2
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
        next(loader)


# ---------------------------------------------------------------- state


@pytest.mark.parametrize("options", [{}, {"ordered": True, "transform": lambda batch: batch}])
def test_state_resumes_exactly(streams, options):
    x = {"x": streams["x"]}
    expected = expected_ids(range(30))
    for cut in (0, 1, 7, 20):
        with DataLoader(x, batch_size=16, **options) as loader:
            for _ in range(cut):
                next(loader)
            time.sleep(0.01)
            state = loader.state_dict()
        assert state["step"] == cut and state["ahead"] == []
        with DataLoader(x, batch_size=16, **options) as loader:
            next(loader)
            loader.load_state_dict(state)
            assert [next(loader)["x"].tolist() for _ in range(30 - cut)] == expected[cut:]


def test_state_of_an_unordered_loader_loses_and_repeats_nothing(streams):
    x = {"x": streams["x"]}
    got = []
    state = None
    for _ in range(8):
        with DataLoader(x, batch_size=16, transform=slow_at(3)) as loader:
            if state:
                loader.load_state_dict(state)
            got += [next(loader) for _ in range(7)]
            state = loader.state_dict()
            assert state["step"] + len(state["ahead"]) == len(got)
    with DataLoader(x, batch_size=16, ordered=True) as loader:
        loader.load_state_dict(state)
        while len(got) < 80:
            got.append(next(loader)["x"].tolist())
    assert sorted(got) == sorted(expected_ids(range(80)))


def test_state_is_plain_data_and_checked(streams):
    import json

    with DataLoader({"x": streams["x"]}, batch_size=16) as loader:
        next(loader)
        state = json.loads(json.dumps(loader.state_dict()))
        loader.load_state_dict(state)
        assert next(loader)["x"].tolist() == expected_ids([1])[0]
        for key, value in (
            ("seed", 1),
            ("batch_size", 17),
            ("length", 299),
            ("mode", 0),
            ("version", 2),
        ):
            with pytest.raises(ValueError, match=key):
                loader.load_state_dict({**state, key: value})
        assert next(loader)["x"].tolist() == expected_ids([2])[0]
        for key in state:
            with pytest.raises(ValueError, match=key):
                loader.load_state_dict({name: state[name] for name in state if name != key})
        for bad in (None, [], "state", 3, [("step", 1)]):
            with pytest.raises(TypeError, match="mapping"):
                loader.load_state_dict(bad)
        for key, value in (("step", None), ("step", 1.0), ("ahead", 5), ("ahead", ["1"])):
            with pytest.raises(TypeError):
                loader.load_state_dict({**state, key: value})
        assert next(loader)["x"].tolist() == expected_ids([3])[0]


@pytest.mark.parametrize("transform", [None, lambda batch: batch])
def test_a_prefetch_size_far_beyond_memory_costs_nothing(streams, transform):
    """Room for a batch is made when it is gathered, and reads are queued for the next few alone."""
    program = {"transform": transform} if transform else {}
    with DataLoader({"x": streams["x"]}, 1, 16, prefetch_size=2_000_000, **program) as loader:
        assert len(next(loader)["x"]) == 16
    try:
        with DataLoader({"x": streams["x"]}, 1, 16, prefetch_size=2**31 - 1, **program) as loader:
            assert len(next(loader)["x"]) == 16
    except MemoryError:
        pass  # said at once, in words


def test_several_consumers(streams):
    got, lock = [], threading.Lock()
    with DataLoader(
        {"x": streams["x"]}, batch_size=16, ordered=True, transform=lambda b: b["x"].tolist()
    ) as loader:

        def consume():
            for _ in range(20):
                batch = next(loader)
                with lock:
                    got.append(batch)

        threads = [threading.Thread(target=consume) for _ in range(3)]
        [t.start() for t in threads]
        [t.join() for t in threads]
    assert sorted(got) == sorted(expected_ids(range(60)))


def test_no_warnings_in_normal_use(streams):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with DataLoader(streams, batch_size=16, transform=lambda batch: batch) as loader:
            for _ in range(10):
                next(loader)


# ---------------------------------------------------------------- state in a fresh process


RESUME = """
import json, sys, time
import zrecord
x, options, states = sys.argv[1], json.loads(sys.argv[2]), json.load(sys.stdin)
def transform(batch):
    time.sleep(hash(batch["x"].tobytes()) % 3 / 2000)
    return batch["x"].tolist()
rest = []
for state in states:
    with zrecord.DataLoader({"x": zrecord.open(x)}, transform=transform, batch_size=16, **options) as loader:
        loader.load_state_dict(state)
        rest.append([next(loader) for _ in range(12)])
json.dump(rest, sys.stdout)
"""


@pytest.mark.parametrize("workers, ordered", [(1, True), (4, True), (1, False), (3, False)])
def test_a_state_of_every_step_goes_on_in_a_fresh_process(streams, tmp_path, workers, ordered):
    import json

    options = {"transform_workers": workers, "ordered": ordered, "prefetch_size": 3}
    states, given = [], []
    with DataLoader(
        {"x": streams["x"]}, batch_size=16, transform=slow_at(3), **options
    ) as loader:
        for _ in range(15):
            states.append(loader.state_dict())
            given.append(next(loader))
    done = subprocess.run(
        [sys.executable, "-c", RESUME, tmp_path / "x", json.dumps(options)],
        input=json.dumps(states),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    expected = expected_ids(range(60))
    for cut, rest in enumerate(json.loads(done.stdout)):
        got = given[:cut] + rest
        if ordered:
            assert got == expected[: cut + 12]
        else:  # each once, and with nothing left out below the furthest but what is on its way
            assert len({tuple(batch) for batch in got}) == cut + 12
            steps = sorted(expected.index(batch) for batch in got)
            assert steps[-1] - (cut + 11) <= 3 + workers


def test_a_state_with_steps_that_are_not_ahead_is_refused(streams):
    with DataLoader({"x": streams["x"]}, batch_size=16) as loader:
        state = loader.state_dict()
        with pytest.raises(ValueError, match="ahead"):
            loader.load_state_dict({**state, "step": 5, "ahead": [5]})
        with pytest.raises(ValueError):
            loader.load_state_dict({**state, "step": -1})
        loader.load_state_dict({**state, "step": 5, "ahead": [6, 8]})
        got = [next(loader)["x"].tolist() for _ in range(4)]
        assert got == expected_ids([5, 7, 9, 10])


# ---------------------------------------------------------------- parts of the order


def test_start_step_begins_there(streams):
    with DataLoader({"x": streams["x"]}, batch_size=16, start_step=37) as loader:
        assert loader.state_dict()["step"] == 37
        assert [next(loader)["x"].tolist() for _ in range(9)] == expected_ids(range(37, 46))


@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_ranks_give_each_batch_once_between_them(streams, world_size):
    loaders = [
        DataLoader({"x": streams["x"]}, batch_size=16, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    for ids in expected_ids(range(25)):
        assert sum((next(loader)["x"].tolist() for loader in loaders), []) == ids
    # The state is that of the global batch: another number of ranks goes on with it.
    state = loaders[-1].state_dict()
    for loader in loaders:
        loader.close()
    with DataLoader({"x": streams["x"]}, batch_size=16) as loader:
        loader.load_state_dict(state)
        assert next(loader)["x"].tolist() == expected_ids([25])[0]


@pytest.mark.parametrize("mode", [2, 3])
def test_a_sampler_of_ones_own(streams, mode):
    sampler = Sampler(300, 16, mode, 5, **({"block_size": 20, "interleave": 3} if mode == 3 else {}))
    with DataLoader({"x": streams["x"]}, sampler=sampler) as loader:
        got = [next(loader)["x"].tolist() for _ in range(10)]
        state = loader.state_dict()
    assert got == [ids.tolist() for ids, _ in zip(sampler, range(10))]
    with DataLoader({"x": streams["x"]}, sampler=sampler) as loader:
        loader.load_state_dict(state)
    if mode == 3:
        other = Sampler(300, 16, 3, 5, block_size=21)
        with DataLoader({"x": streams["x"]}, sampler=other) as loader:
            with pytest.raises(ValueError, match="block_size"):
                loader.load_state_dict(state)


@pytest.mark.parametrize(
    "options, error",
    [
        ({"rank": 2, "world_size": 2}, ValueError),
        ({"rank": -1}, ValueError),
        ({"world_size": 0}, ValueError),
        ({"world_size": 17, "batch_size": 16}, ValueError),
        ({"start_step": -1}, ValueError),
        ({"start_step": 1.5}, TypeError),
        ({"start_step": 2**64 + 5}, ValueError),  # would be step 5
        ({"world_size": 2**64}, ValueError),  # would be none
        ({"rank": 2**64, "world_size": 2**64 + 1}, ValueError),
        ({"prefetch_size": 2**64}, ValueError),
        ({"transform_workers": 2**64}, ValueError),
        ({"packed": "nothing"}, ValueError),
        ({"packed": ["x"]}, ValueError),
        ({"packed": ["nothing"]}, ValueError),
        ({"sampler": 5}, TypeError),
        ({"sampler": Sampler(299, 16, 2)}, ValueError),
    ],
    ids=repr,
)
def test_refused_keywords(streams, options, error):
    with pytest.raises(error):
        DataLoader({"x": streams["x"]}, **options)


def test_packed_streams(streams):
    for packed in (True, ["r"], "r"):
        with DataLoader(streams, batch_size=16, packed=packed) as loader:
            for ids in expected_ids(range(5)):
                batch = next(loader)
                values, offsets, shapes = batch["r"]
                assert values[offsets[:-1]].tolist() == ids and batch["x"].tolist() == ids
                assert shapes.tolist() == [[i % 5 + 1] for i in ids]


# ---------------------------------------------------------------- figures


def test_stats_show_the_slow_part(streams):
    with DataLoader({"x": streams["x"]}, 1, 16, transform=lambda b: time.sleep(0.02)) as loader:
        for _ in range(5):
            next(loader)
        figures = loader.stats()
        assert figures["slowest"] == "transform" and figures["batches"] == 5
        assert figures["transform_seconds"] >= 0.1 > figures["gather_seconds"] >= 0
        assert figures["wait_seconds"] > 0 and figures["under_way"] <= 5
    with DataLoader({"x": streams["x"]}, batch_size=16) as loader:
        next(loader)
        deadline = time.monotonic() + 5
        while loader.stats()["ready"] < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
        figures = loader.stats()
        assert figures["ready"] == figures["under_way"] == 5 and figures["slowest"] == "consumer"


def test_a_progress_bar_counts_batches(streams, capsys):
    pytest.importorskip("tqdm", reason="tqdm is not installed (tools/setup.sh tests)")
    with DataLoader({"x": streams["x"]}, batch_size=16, progress=True, start_step=3) as loader:
        for _ in range(4):
            next(loader)
        assert loader._bar.n == 7
    assert "7batch" in capsys.readouterr().err.replace(" ", "")


# ---------------------------------------------------------------- interrupts and exits


INTERRUPTED = """
import os, signal, sys, threading, time
import zrecord
gate = threading.Event()
loader = zrecord.DataLoader({"x": zrecord.open(sys.argv[1])}, 1, 16, 1, transform=TRANSFORM)
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    while True:
        next(loader)
        if SLOW:
            time.sleep(0.001)
except KeyboardInterrupt:
    gate.set()
    rest = [next(loader) for _ in range(3)]
    loader.close()
    print("interrupted", loader.state_dict()["step"] >= 3)
"""


@pytest.mark.parametrize("transform", ["zrecord.dataloader.identity", "lambda b: gate.wait() or b"])
def test_an_interrupt_reaches_a_waiting_consumer_and_leaves_the_loader_usable(
    streams, tmp_path, transform
):
    program = INTERRUPTED.replace("TRANSFORM", transform)
    program = program.replace("SLOW", str("identity" in transform))
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "x"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "interrupted True\n"), done.stderr


@pytest.mark.parametrize("ordered", [True, False])
def test_an_interrupt_anywhere_in_next_stays_one_and_leaves_the_loader_usable(streams, ordered):
    """Signals come between calls; inside threading.Condition one comes out as a RuntimeError."""
    interrupted = 0
    with DataLoader(
        streams, 1, 4, 1, ordered=ordered, transform=lambda b: time.sleep(0.005) or b
    ) as loader:
        for place in range(1, 60):
            left = place

            def interrupt(frame, event, argument):
                nonlocal left
                left -= event in ("call", "c_return")
                if not left:
                    sys.setprofile(None)
                    raise KeyboardInterrupt

            sys.setprofile(interrupt)
            try:
                next(loader)
            except KeyboardInterrupt:
                interrupted += 1
            finally:
                sys.setprofile(None)
            next(loader)
    assert interrupted > 15


EXITS = {
    "in a transform that never ends": "transform=lambda b: threading.Event().wait()); time.sleep(0.1)",
    "with a slow consumer thread": """transform=lambda b: b)
def consume():
    for _ in loader: time.sleep(0.2)
threading.Thread(target=consume, daemon=True).start(); time.sleep(0.1)""",
    "with a waiting consumer thread": """transform=lambda b: threading.Event().wait())
threading.Thread(target=lambda: next(loader, 0), daemon=True).start(); time.sleep(0.1)""",
    "after a failure": """transform=lambda b: 1 / 0)
try: next(loader)
except ZeroDivisionError: pass""",
    "inside a thread": """transform=lambda b: b)
def own():
    global mine
    mine = zrecord.DataLoader({"x": zrecord.open(sys.argv[1])}, batch_size=16)
    next(mine)
threading.Thread(target=own).start()""",
    "in a generator": """transform=lambda b: b)
def batches():
    with loader:
        yield from loader
kept = batches(); next(kept)""",
    "by sys.exit in mid-batch": "transform=lambda b: b); next(loader); sys.exit(0)",
}


@pytest.mark.parametrize("state", EXITS)
def test_the_interpreter_exits(streams, tmp_path, state):
    program = (
        "import sys, threading, time, zrecord, zrecord.dataloader\n"
        "zrecord.dataloader.JOIN_SECONDS = 0.5\n"
        f"loader = zrecord.DataLoader({{'x': zrecord.open(sys.argv[1])}}, batch_size=16, {EXITS[state]}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "x"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_generator_over_a_loader_ends_it(streams):
    def batches():
        with DataLoader({"x": streams["x"]}, batch_size=16, transform=lambda b: b) as loader:
            yield from loader

    steps = batches()
    next(steps)
    steps.close()
    assert no_threads_left()


def test_a_loader_is_not_pickled(streams):
    import pickle

    with DataLoader({"x": streams["x"]}) as loader, pytest.raises(TypeError, match="state_dict"):
        pickle.dumps(loader)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_no_thread_of_the_engine_is_left(streams):
    def feeds():
        names = [open(f"/proc/self/task/{t}/comm").read() for t in os.listdir("/proc/self/task")]
        return names.count("zrecord-feed\n")

    loaders = [DataLoader({"x": streams["x"]}, batch_size=16) for _ in range(3)]
    assert feeds() == 3
    loaders[0].close()
    assert feeds() == 2
    del loaders
    gc.collect()
    assert feeds() == 0


# ---------------------------------------------------------------- calls from inside


INSIDE = """
import importlib, signal, sys, zrecord
identity = importlib.import_module("zrecord.dataloader").identity

def traced(where, call):
    # A signal handler may come between any two lines: so `call` at each line of the loader's own.
    calls = [0]
    def trace(frame, event, arg):
        if "dataloader.py" not in frame.f_code.co_filename:
            return None
        if event == "line" and frame.f_code.co_name in where and not inside[0]:
            inside[0] = True
            sys.settrace(None)
            call()
            sys.settrace(trace)
            inside[0] = False
            calls[0] += 1
        return trace
    inside = [False]
    sys.settrace(trace)
    return calls

x = zrecord.open(sys.argv[1])
for transform in (identity, lambda batch: batch):
    loader = zrecord.DataLoader({"x": x}, 2, 16, transform=transform)
"""


def run_inside(body, path):
    done = subprocess.run(
        [sys.executable, "-c", INSIDE + body, path], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_signal_handler_takes_a_sound_state_wherever_it_comes(streams, tmp_path):
    # Handlers of SIGTERM or SIGUSR1 write checkpoints while the loop is somewhere inside next().
    body = """
    states = []
    calls = traced(("_take_finished", "_take_gathered", "_finished_step", "consume"),
                   lambda: states.append((given, loader.state_dict(), loader.stats()["batches"])))
    for given in range(20):
        next(loader)
    sys.settrace(None)
    assert calls[0] > 20
    for given, state, _ in states:
        assert all(step > state["step"] for step in state["ahead"]), state
        assert state["step"] + len(state["ahead"]) in (given, given + 1), (given, state)
        loader.load_state_dict(state)
    loader.close()
"""
    run_inside(body, tmp_path / "x")


def test_close_by_a_signal_handler_ends_next_wherever_it_comes(streams, tmp_path):
    body = """
    import warnings
    warnings.simplefilter("error")  # a thread left behind
    loader.close()
    total = None
    at = 0
    while total is None or at < total:
        loader = zrecord.DataLoader({"x": x}, 2, 16, transform=transform)
        left = [at]
        def count():
            left[0] -= 1
            if left[0] == -1:
                loader.close()
        calls = traced(("_take_finished", "_take_gathered", "_finished_step", "consume"), count)
        for _, _batch in zip(range(4), loader):
            pass
        sys.settrace(None)
        if total is None:
            total = calls[0]
        loader.close()
        at += 1
    print(total)
"""
    assert min(map(int, run_inside(body, tmp_path / "x").split())) > 2


def test_a_finaliser_inside_the_loader_may_ask_it(streams):
    # Collections come anywhere, also while the loader's lock is held.
    with DataLoader({"x": streams["x"]}, 2, 16, transform=lambda batch: batch) as loader:
        with loader._run.lock:
            assert loader.state_dict()["step"] == 0 and loader.stats()["batches"] == 0
            loader.close()


def test_transforms_that_close_at_the_same_time_do_not_wait_for_each_other(streams):
    met = threading.Barrier(2)
    made = threading.Event()

    def transform(batch):
        made.wait(30)
        met.wait(30)
        loader.close()
        return batch

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = DataLoader({"x": streams["x"]}, 2, 16, transform=transform)
        made.set()
        for _ in loader:
            pass
        loader.close()
    assert not met.broken


@pytest.mark.parametrize("transform", [None, lambda batch: batch])
def test_a_forked_child_is_told_while_locks_are_held(streams, transform):
    options = {"transform": transform} if transform else {}
    with DataLoader({"x": streams["x"]}, 2, 16, **options) as loader:
        next(loader)
        held, let_go = threading.Event(), threading.Event()

        def hold():
            with loader._run.lock:
                held.set()
                let_go.wait(30)

        holder = threading.Thread(target=hold)
        holder.start()
        held.wait(30)
        pid = os.fork()
        if not pid:
            signal.alarm(10)
            told = 0
            for call in (loader.state_dict, loader.stats, loader.__next__):
                with contextlib.suppress(RuntimeError):
                    call()
                    os._exit(1)
                told += 1
            loader.close()
            os._exit(0 if told == 3 else 2)
        let_go.set()
        holder.join()
        assert os.waitpid(pid, 0)[1] == 0
