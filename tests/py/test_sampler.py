# SPDX-License-Identifier: MIT
"""Sampler: a pure function of seed and step."""

import copy
import pickle
import threading

import numpy as np
import pytest

from zrecord import Mode, Sampler


def draws(sampler, count):
    return [sampler.next().copy() for _ in range(count)]


def test_next_is_a_view_of_one_reused_buffer():
    sampler = Sampler(1000, 16, Mode.IID)
    first = sampler.next()
    kept = first.copy()
    second = sampler.next()
    assert first.dtype == np.uint64 and first.shape == (16,)
    assert np.shares_memory(first, second)
    assert np.array_equal(first, second) and not np.array_equal(first, kept)
    del sampler
    assert first[0] == second[0]


def test_iteration_is_next():
    a, b = Sampler(50, 7, 2), Sampler(50, 7, 2)
    assert iter(a) is a
    for batch, _ in zip(a, range(20)):
        assert np.array_equal(batch, b.next())


def test_sequential_wraps_round():
    sampler = Sampler(5, 3, Sampler.Mode.SEQUENTIAL)
    assert [batch.tolist() for batch in draws(sampler, 4)] == [
        [0, 1, 2],
        [3, 4, 0],
        [1, 2, 3],
        [4, 0, 1],
    ]
    assert Sampler(2, 5, 0).next().tolist() == [0, 1, 0, 1, 0]


@pytest.mark.parametrize("length", [1, 2, 3, 5, 17, 64, 1000])
def test_cyclic_gives_each_record_once_a_cycle(length):
    size = max(1, length // 3)
    sampler = Sampler(length, size, Mode.CYCLIC)
    for _ in range(5):
        cycle = np.concatenate(draws(sampler, length // size))
        assert len(np.unique(cycle)) == len(cycle) and cycle.max() < length


def test_cyclic_has_at_most_length_ids():
    assert sorted(Sampler(3, 10, Mode.CYCLIC).next().tolist()) == [0, 1, 2]


def test_iid_is_in_range_and_even():
    counts = np.bincount(
        np.concatenate(draws(Sampler(10, 1000, Mode.IID), 100)).astype(int), minlength=10
    )
    assert len(counts) == 10
    expected = 10_000
    assert ((counts - expected) ** 2 / expected).sum() < 33.7  # chi-square, 9 degrees, p = 0.0001


@pytest.mark.parametrize("mode", list(Mode))
def test_seek_reaches_any_step(mode):
    sampler = Sampler(1000, 32, mode, seed=9)
    steps = draws(sampler, 200)
    for step in (0, 199, 7, 31):
        sampler.seek(step)
        assert sampler.step == step
        assert np.array_equal(sampler.next(), steps[step])
    sampler.seek(2**64 - 1)
    assert len(sampler.next()) == 32


@pytest.mark.parametrize("mode", [Mode.IID, Mode.CYCLIC])
def test_seed_and_step_decide(mode):
    a, b = Sampler(1000, 100, mode, 1), Sampler(1000, 100, mode, seed=1)
    assert all(np.array_equal(x, y) for x, y in zip(draws(a, 30), draws(b, 30)))
    assert not np.array_equal(
        Sampler(1000, 100, mode, 2).next(), Sampler(1000, 100, mode, 1).next()
    )


def test_the_default_seed_is_42():
    assert Sampler(10, 2, 2).seed == 42


def test_pickle_and_copy_keep_the_position():
    sampler = Sampler(1000, 10, Mode.CYCLIC, 5)
    sampler.seek(123)
    for twin in (pickle.loads(pickle.dumps(sampler)), copy.copy(sampler), copy.deepcopy(sampler)):
        assert (twin.length, twin.batch_size, twin.mode, twin.seed, twin.step) == (
            1000,
            10,
            2,
            5,
            123,
        )
        assert not np.shares_memory(twin.next(), sampler.next())
        sampler.seek(123)
        assert np.array_equal(twin.next().copy() * 0, sampler.next() * 0)
    assert repr(sampler) == "Sampler(1000, 10, Mode.CYCLIC, seed=5, step=124)"


@pytest.mark.parametrize(
    "arguments, error",
    [
        ((0, 1, 0), ValueError),
        ((-1, 1, 0), ValueError),
        ((2**64, 1, 0), ValueError),
        ((10, 0, 0), ValueError),
        ((10, -5, 0), ValueError),
        ((10, 1, 4), ValueError),
        ((2**62 + 1, 1, 3), ValueError),
        ((10, 1, -1), ValueError),
        ((10, 1, 2**40), ValueError),
        ((10, 1, 0, -1), ValueError),
        ((10, 1, 0, 2**64), ValueError),
        ((10.0, 1, 0), TypeError),
        (("10", 1, 0), TypeError),
        ((10, 1.5, 0), TypeError),
        ((10, 1, None), TypeError),
        ((10, 1, 0, 1.0), TypeError),
        ((10, 1), TypeError),
        ((2**63, 2**63, 1), MemoryError),
    ],
    ids=repr,
)
def test_refused_arguments(arguments, error):
    with pytest.raises(error):
        Sampler(*arguments)


@pytest.mark.parametrize(
    "keywords, error",
    [
        ({"interleave": 0}, ValueError),
        ({"interleave": 257}, ValueError),
        ({"interleave": 2**32 + 1}, ValueError),
        ({"block_size": 0}, ValueError),
        ({"block_size": -1}, ValueError),
        ({"block_size": 1.5}, TypeError),
        ({"blocks": 1}, TypeError),
    ],
    ids=repr,
)
def test_refused_blocks(keywords, error):
    with pytest.raises(error):
        Sampler(10, 1, Mode.BLOCK, **keywords)


@pytest.mark.parametrize(
    "step, error", [(-1, ValueError), (2**64, ValueError), (1.0, TypeError), ("1", TypeError)]
)
def test_refused_steps(step, error):
    sampler = Sampler(10, 2, 0)
    with pytest.raises(error):
        sampler.seek(step)
    assert sampler.next().tolist() == [0, 1]


def test_numpy_integers_are_integers():
    sampler = Sampler(np.int64(10), np.uint8(2), np.int32(0), np.uint64(3))
    sampler.seek(np.int16(1))
    assert sampler.next().tolist() == [2, 3]


def test_two_threads_on_one_sampler_get_an_error_or_a_whole_batch():
    sampler = Sampler(10**6, 1 << 16, Mode.IID)
    outcomes = []

    def draw():
        for _ in range(30):
            try:
                outcomes.append(len(sampler.next()))
            except RuntimeError as exc:
                outcomes.append(str(exc))

    threads = [threading.Thread(target=draw) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert set(outcomes) <= {1 << 16, "the sampler is in use by another thread"}
    assert sampler.step == outcomes.count(1 << 16)


@pytest.mark.parametrize("mode", list(Mode))
def test_sample_gives_any_step_and_moves_nothing(mode):
    sampler = Sampler(1000, 32, mode, seed=9, block_size=10, interleave=3)
    steps = draws(sampler, 50)
    for step in (0, 49, 7):
        ids = sampler.sample(step)
        assert ids.dtype == np.uint64 and np.array_equal(ids, steps[step])
        assert not np.shares_memory(ids, sampler.sample(step))
    assert sampler.step == 50


def test_sample_is_for_any_number_of_threads():
    sampler, wrong = Sampler(10**6, 4096, Mode.CYCLIC), []
    expected = [sampler.sample(step) for step in range(20)]

    def draw():
        for _ in range(10):
            for step in range(20):
                if not np.array_equal(sampler.sample(step), expected[step]):
                    wrong.append(step)

    threads = [threading.Thread(target=draw) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert wrong == []


@pytest.mark.parametrize("length", [1, 2, 3, 999, 1000, 1001, 5000])
@pytest.mark.parametrize("interleave", [1, 3, 256])
def test_block_gives_each_record_once_a_cycle_window_by_window(length, interleave):
    sampler = Sampler(length, length, Mode.BLOCK, 7, block_size=100, interleave=interleave)
    for cycle in range(3):
        ids = sampler.sample(cycle)
        assert np.array_equal(np.sort(ids), np.arange(length))
        assert most_open_at_once(ids // 100) <= interleave


def most_open_at_once(blocks):
    """How many blocks must be kept so that none is read twice."""
    first = {block: i for i, block in reversed(list(enumerate(blocks.tolist())))}
    last = {block: i for i, block in enumerate(blocks.tolist())}
    change = np.zeros(len(blocks) + 1, int)
    np.add.at(change, list(first.values()), 1)
    np.add.at(change, [i + 1 for i in last.values()], -1)
    return change.cumsum().max()


def test_interleaved_blocks_are_mixed_in_every_batch():
    one = Sampler(100_000, 256, Mode.BLOCK, block_size=1000, interleave=1)
    many = Sampler(100_000, 256, Mode.BLOCK, block_size=1000, interleave=16)
    assert len(set(one.sample(5) // 1000)) <= 2
    assert len(set(many.sample(5) // 1000)) == 16


def test_pickle_keeps_the_blocks():
    sampler = Sampler(1000, 10, Mode.BLOCK, 5, block_size=30, interleave=4)
    sampler.seek(7)
    twin = pickle.loads(pickle.dumps(sampler))
    assert (twin.block_size, twin.interleave, twin.step) == (30, 4, 7)
    assert np.array_equal(twin.next(), sampler.next())
    assert repr(twin) == (
        "Sampler(1000, 10, Mode.BLOCK, seed=5, block_size=30, interleave=4, step=8)"
    )
