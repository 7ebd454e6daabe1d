# SPDX-License-Identifier: MIT
"""Several blocks mixed at a time: interleave of CDLShuffle, CDLSampler and CDLLoader."""

import itertools
import pickle

import numpy as np
import pytest
import zrecord
from zrecord import cdl as ours

SIZE = 1003
ITEMS = np.arange(SIZE * 3, dtype=np.float32).reshape(SIZE, 3)
LABELS = np.arange(SIZE, dtype=np.int16)


@pytest.mark.parametrize("interleave", [2, 3, 7, 100])
@pytest.mark.parametrize("size, block", [(1, 1), (2, 1), (7, 3), (9, 3), (10, 3), (100, 10), (101, 10), (5, 8)])
def test_it_is_a_permutation_with_its_inverse(size, block, interleave):
    for seed in range(6):
        shuffle = ours.CDLShuffle(size, block, seed, interleave=interleave)
        for epoch in (None, 0, 9):
            if epoch is not None:
                shuffle.set_epoch(epoch)
            order = shuffle.indices().tolist()
            assert sorted(order) == list(range(size))
            assert [shuffle.permute(i) for i in range(size)] == order
            assert [shuffle.inverse_permute(s) for s in order] == list(range(size))
            assert [triple[2] for triple in shuffle] == order == shuffle.get_shuffled_indices()
            for start, stop in itertools.combinations(range(0, size + 1, max(1, size // 5)), 2):
                assert shuffle.indices(start, stop).tolist() == order[start:stop]
            for block_id in range(shuffle.num_blocks):
                mine = [s % block for s in order if s // block == block_id]
                assert shuffle.get_intra_block_order(block_id) == mine
                assert shuffle.get_item_offset(block_id, 0) == mine[0]
                assert shuffle.get_item_offset(block_id, len(mine)) == 0


def test_a_group_holds_the_blocks_that_are_next_and_mixes_them():
    shuffle = ours.CDLShuffle(1000, 10, seed=1, interleave=20)
    shuffle.set_epoch(2)
    blocks = (shuffle.indices() // 10).tolist()
    order = shuffle.get_block_order()
    assert order == ours.CDLShuffle.from_state(shuffle.get_state()).get_block_order()
    for k in range(5):
        group = blocks[200 * k : 200 * (k + 1)]
        assert set(group) == set(order[20 * k : 20 * (k + 1)])
        assert len(set(group[:20])) > 8, "neighbours in the order come from many blocks"
        assert sum(a == b for a, b in itertools.pairwise(group)) < 40


def test_groups_seeds_and_epochs_differ():
    def orders(**options):
        shuffle = ours.CDLShuffle(4000, 10, interleave=10, **options)
        for epoch in (0, 1):
            shuffle.set_epoch(epoch)
            yield shuffle.indices()

    rows = [*orders(seed=1), *orders(seed=2)]
    for a, b in itertools.combinations(rows, 2):
        assert (a == b).mean() < 0.01
    inside = rows[0].reshape(40, 100) % 10
    assert len({tuple(row) for row in inside.tolist()}) == 40


def test_one_block_at_a_time_is_the_order_without_it():
    plain, one = ours.CDLShuffle(1000, 10, 3), ours.CDLShuffle(1000, 10, 3, interleave=1)
    assert np.array_equal(plain.indices(), one.indices())
    assert plain.pack_state() == one.pack_state()


def test_two_to_the_forty_samples():
    shuffle = ours.CDLShuffle(2**40 + 3, 1000, 5, interleave=16)
    for position in (0, 1, 2**39, 2**40, 2**40 + 2):
        assert shuffle.inverse_permute(shuffle.permute(position)) == position


@pytest.mark.parametrize("bad, error", [(0, ValueError), (-1, ValueError), (1.5, TypeError), (2**64, ValueError)])
def test_numbers_of_blocks_that_are_none(bad, error):
    for make in (
        lambda: ours.CDLShuffle(10, 2, interleave=bad),
        lambda: ours.CDLSampler(dataset_size=10, interleave=bad),
        lambda: ours.CDLLoader(ours.NumpyBlockDataset(ITEMS), interleave=bad),
    ):
        with pytest.raises(error):
            make()


# ---------------------------------------------------------------- samplers


@pytest.mark.parametrize("tail", ["uneven", "pad", "drop"])
def test_ranks_give_each_sample_once(tail):
    options = {"dataset_size": SIZE, "block_size": 64, "seed": 4, "interleave": 5, "tail": tail}
    whole = ours.CDLSampler(**options).indices().tolist()
    ranks = [list(ours.CDLSampler(**options, rank=r, world_size=3)) for r in range(3)]
    given = list(itertools.chain(*ranks))
    assert given[:SIZE] == whole[: len(given)]
    assert len({len(rank) for rank in ranks}) == (2 if tail == "uneven" and SIZE % 3 else 1)


def test_samplers_resume_and_refuse_states_of_other_mixes():
    def sampler(interleave=4, **options):
        return ours.CDLSampler(dataset_size=SIZE, block_size=50, seed=8, interleave=interleave, **options)

    one = sampler()
    one.set_epoch(3)
    whole = list(one)
    for position in (0, 1, 199, 200, 201, 777, SIZE):
        fresh = pickle.loads(pickle.dumps(sampler()))
        fresh.unpack_state(one.pack_state(position))
        fresh.set_epoch(3)
        assert list(fresh) == whole[position:]
    for other in (sampler(1), sampler(5)):
        with pytest.raises(ValueError, match="interleave"):
            other.unpack_state(one.pack_state(5))
    assert list(ours.CDLSampler.from_state(one.get_state())) == whole
    assert ours.TorchCDLSampler(range(SIZE), 50, 8, interleave=4).get_shuffled_indices() == list(sampler())


# ---------------------------------------------------------------- loaders


class Items(ours.NumpyBlockDataset):
    """Samples one by one, as subclasses of BlockDataset give them."""

    def gives_rows(self):
        return False


@pytest.fixture
def datasets(tmp_path):
    with zrecord.Dense.create(tmp_path / "d", ITEMS.dtype, ITEMS.shape[1:]) as store:
        store.append(ITEMS)
    with zrecord.Ragged.create(tmp_path / "r", ITEMS.dtype) as store:
        store.append([row[: 1 + i % 3] for i, row in enumerate(ITEMS)])
    return {
        "array": ours.NumpyBlockDataset(ITEMS, LABELS, 64),
        "no labels": ours.NumpyBlockDataset(ITEMS, None, 64),
        "items": Items(ITEMS, LABELS, 64),
        "Dense": ours.ZrecordBlockDataset(tmp_path / "d", labels=LABELS, block_size=64),
        "Ragged": ours.ZrecordBlockDataset(tmp_path / "r", labels=LABELS, block_size=64),
    }


@pytest.mark.parametrize("name", ["array", "no labels", "items", "Dense", "Ragged"])
@pytest.mark.parametrize("options", [{}, {"prefetch": False}, {"cache_blocks": 40}, {"world_size": 3, "rank": 1}], ids=repr)
def test_batches_are_the_samples_in_order(datasets, name, options):
    loader = ours.CDLLoader(datasets[name], 50, 7, interleave=4, **options)
    for epoch in (None, 0, 1):
        if epoch is not None:
            loader.set_epoch(epoch)
        share = {key: value for key, value in options.items() if key in ("rank", "world_size")}
        wanted = ours.CDLSampler(dataset_size=SIZE, block_size=64, seed=7, interleave=4, **share)
        if epoch is not None:
            wanted.set_epoch(epoch)
        ids = wanted.indices()
        batches = list(loader)
        assert len(batches) == len(loader)
        items = list(itertools.chain(*(x for x, _ in batches)))
        for got, i in zip(items, ids.tolist(), strict=True):
            assert np.array_equal(got, ITEMS[i][: 1 + i % 3] if name == "Ragged" else ITEMS[i])
        if name == "no labels":
            assert all(y is None for _, y in batches)
        else:
            assert np.array_equal(np.concatenate([y for _, y in batches]), LABELS[ids])
    if not options:
        assert loader.get_io_stats()["blocks_read"] == loader.shuffler.num_blocks


@pytest.mark.parametrize("name", ["array", "items", "Ragged"])
def test_a_loader_resumes_behind_any_batch(datasets, name):
    def fresh():
        return ours.CDLLoader(datasets[name], 30, 7, interleave=4)

    loader = fresh()
    loader.set_epoch(2)
    labels, states = [], [loader.pack_state()]
    for _, y in loader:
        labels.append(y)
        states.append(loader.pack_state())
    for i, state in enumerate(states):
        other = ours.CDLLoader.from_checkpoint(state, datasets[name], batch_size=30, interleave=4)
        other.set_epoch(2)
        got = [y for _, y in other]
        assert np.array_equal(np.concatenate([LABELS[:0], *got]), np.concatenate([LABELS[:0], *labels[i:]]))
    with pytest.raises(ValueError, match="interleave"):
        ours.CDLLoader(datasets[name], 30, 7).unpack_state(states[1])
    again = ours.CDLLoader.from_checkpoint(loader.get_state(), datasets[name], batch_size=30)
    assert np.array_equal(np.concatenate([y for _, y in again]), np.concatenate(labels))


def test_batches_of_sorted_labels_show_many_of_them():
    labels = np.arange(2000) // 200
    dataset = ours.NumpyBlockDataset(np.zeros((2000, 1)), labels, 100)

    def mean_count(interleave):
        batches = list(ours.CDLLoader(dataset, 50, interleave=interleave))
        return np.mean([len(set(y.tolist())) for _, y in batches])

    assert mean_count(1) <= 1.1 and mean_count(10) > 4


def test_a_failing_block_of_a_group_reaches_the_loop():
    class Broken(ours.NumpyBlockDataset):
        def load_block(self, block_id):
            if block_id == 7:
                raise OSError("no block 7")
            return super().load_block(block_id)

        load_rows = None

        def gives_rows(self):
            return False

    loader = ours.CDLLoader(Broken(ITEMS, LABELS, 64), 50, interleave=5)
    with pytest.raises(OSError, match="no block 7"):
        list(loader)
