# SPDX-License-Identifier: MIT
"""The order of a block shuffle (zrecord.cdl) beside the celeres-dl wheel: shuffles and samplers."""

import copy
import importlib
import pickle
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import zrecord
from zrecord import cdl as ours

WHEEL = Path(sys.executable).parents[1] / "ref" / "celeres-dl-0.1.0"


def load_wheel():
    if "cdl" not in sys.modules:
        if not WHEEL.exists():
            pytest.skip(f"{WHEEL} is missing (tools/setup.sh tests)")
        sys.path.insert(0, str(WHEEL))
        try:
            importlib.import_module("cdl")
        finally:
            sys.path.remove(str(WHEEL))
    return sys.modules["cdl"]


@pytest.fixture(scope="session")
def wheel():
    return load_wheel()


GEOMETRIES = [
    (1, 1, 42, 6),
    (1, 1024, 0, 6),
    (2, 1, 3, 6),
    (3, 2, 3, 6),
    (10, 3, 42, 6),
    (100, 7, 2**64 - 1, 4),
    (1000, 1000, 5, 6),
    (1000, 5000, 5, 6),
    (1025, 64, 7, 1),
    (4096, 64, -1, 2),
    (5000, 0, 9, 6),
    (5001, 1024, 2**70 + 3, 8),
    (10_000, 17, 42, 0),
]


# ---------------------------------------------------------------- the same order


def test_the_wheel_is_what_setup_installed(wheel):
    assert wheel.__version__ == "0.1.0" and not wheel.shuffle.USING_NATIVE


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=repr)
def test_order_is_the_wheels(wheel, geometry):
    theirs, mine = wheel.CDLShuffle(*geometry), ours.CDLShuffle(*geometry)
    assert list(mine) == list(theirs)
    assert mine.get_shuffled_indices() == theirs.get_shuffled_indices()
    assert mine.indices().dtype == np.uint64 and mine.indices().tolist() == list(
        theirs.get_shuffled_indices()
    )
    assert mine.get_block_order() == theirs.get_block_order()
    assert len(mine) == len(theirs)
    for name in ("dataset_size", "block_size", "seed", "num_blocks", "last_block_size"):
        assert getattr(mine, name) == getattr(theirs, name), name
    assert mine.get_state() == theirs.get_state()
    for block in {0, theirs.num_blocks // 2, theirs.num_blocks - 1, theirs.num_blocks}:
        assert mine.get_block_size(block) == theirs.get_block_size(block)
        assert mine.get_block_start(block) == theirs.get_block_start(block)
        assert mine.get_intra_block_order(block) == theirs.get_intra_block_order(block)
        assert mine.get_block_to_load(block) == theirs.get_block_to_load(block)
        for position in (0, 1, 10_000):
            assert mine.get_item_offset(block, position) == theirs.get_item_offset(block, position)


def test_an_empty_dataset_as_the_wheel(wheel):
    theirs, mine = wheel.CDLShuffle(0), ours.CDLShuffle(0)
    assert list(mine) == list(theirs) == [] and mine.indices().shape == (0,)
    assert (mine.num_blocks, mine.last_block_size) == (theirs.num_blocks, theirs.last_block_size)
    assert mine.get_block_order() == []


@pytest.mark.parametrize("epoch", [0, 1, 7, 2**40, -3])
def test_epochs_are_the_wheels(wheel, epoch):
    theirs = wheel.CDLSampler(dataset_size=3000, block_size=100, seed=11)
    mine = ours.CDLSampler(dataset_size=3000, block_size=100, seed=11)
    assert list(mine) == list(theirs)
    theirs.set_epoch(epoch), mine.set_epoch(epoch)
    assert list(mine) == list(theirs) == mine.get_shuffled_indices() == mine.indices().tolist()
    assert mine.get_state() == theirs.get_state()
    assert (mine.epoch, mine.num_blocks) == (theirs.epoch, theirs.num_blocks)
    assert mine.get_block_order() == theirs.get_block_order()
    shuffle, reference = ours.CDLShuffle(3000, 100, 11), wheel.CDLShuffle(3000, 100, 11)
    shuffle.set_epoch(epoch), reference.set_epoch(epoch)
    assert shuffle.get_shuffled_indices() == reference.get_shuffled_indices()
    assert shuffle.get_state() == reference.get_state()
    assert (
        ours.CDLShuffle.from_state(reference.get_state()).get_shuffled_indices()
        == reference.get_shuffled_indices()
    )


def test_set_epoch_always_starts_from_the_base_seed(wheel):
    """The wheel's CDLShuffle compounds: its epoch 5 depends on the epochs before."""
    walked, direct = ours.CDLShuffle(1000, 50), ours.CDLShuffle(1000, 50)
    compounding = wheel.CDLShuffle(1000, 50)
    for epoch in range(6):
        walked.set_epoch(epoch), compounding.set_epoch(epoch)
    direct.set_epoch(5)
    assert np.array_equal(walked.indices(), direct.indices()) and walked.seed == 42
    assert compounding.get_shuffled_indices() != walked.get_shuffled_indices()
    sampler = wheel.CDLSampler(dataset_size=1000, block_size=50)
    sampler.set_epoch(5)
    assert list(sampler) == walked.get_shuffled_indices()


def test_hash_stream_and_permutation_are_the_wheels(wheel):
    for key, data in ((0, 0), (1, 2), (2**64 - 1, 2**63), (2**70, -5)):
        assert ours.SplitMix64.hash(key, data) == wheel.SplitMix64.hash(key, data)
        assert ours.SplitMix64.derive_key(key, data) == wheel.SplitMix64.derive_key(key, data)
    a, b = ours.SplitMix64(-9), wheel.SplitMix64(-9)
    assert [a.next() for _ in range(5)] == [b.next() for _ in range(5)] and a.state == b.state
    for size in (0, 1, 2, 3, 5, 17, 100, 1000):
        for rounds in (0, 1, 6):
            a, b = (m.FeistelPermutation(77, size, rounds) for m in (ours, wheel))
            assert [a.permute(i) for i in range(size + 3)] == [b.permute(i) for i in range(size + 3)]
            inverse = [a.inverse_permute(i) for i in range(size + 3)]
            assert inverse == [b.inverse_permute(i) for i in range(size + 3)]


def test_where_the_wheel_is_not_bijective_ours_is(wheel):
    """It rounds log2(2**50 + 1) down to 50 and so maps positions 0 and 2**50 to one sample."""
    size = 2**50 + 1
    theirs, mine = wheel.FeistelPermutation(9, size), ours.FeistelPermutation(9, size)
    assert theirs.permute(0) == theirs.permute(2**50)
    assert mine.permute(0) != mine.permute(2**50)
    for position in (0, 1, 12345, 2**49, 2**50):
        assert mine.permute(position) < size
        assert mine.inverse_permute(mine.permute(position)) == position
    shuffle = ours.CDLShuffle(size, block_size=1)
    assert shuffle.inverse_permute(shuffle.permute(2**50)) == 2**50


# ---------------------------------------------------------------- beyond the wheel


@pytest.mark.parametrize("size, block", [(1, 1), (10, 3), (1000, 64), (1025, 1024), (777, 1)])
def test_inverse_is_the_inverse(size, block):
    shuffle = ours.CDLShuffle(size, block, seed=3)
    for position, sample in enumerate(shuffle.get_shuffled_indices()):
        assert shuffle.permute(position) == sample
        assert shuffle.inverse_permute(sample) == position
    for bad in (-1, size):
        with pytest.raises(IndexError):
            shuffle.permute(bad)
        with pytest.raises(IndexError):
            shuffle.inverse_permute(bad)


@pytest.mark.parametrize("size, block", [(1, 1), (10, 3), (1000, 64), (1025, 1024), (99, 1)])
def test_pieces_are_the_order_block_by_block(size, block):
    shuffle = ours.CDLShuffle(size, block, seed=4)
    whole = shuffle.indices()
    for first in range(0, size, max(1, size // 13)):
        for count in {0, 1, size - first, (size - first) // 2}:
            pieces = list(shuffle.pieces(first, count))
            ids = [shuffle.intra_block_offsets(b, i, j) + np.uint64(b * block) for b, i, j in pieces]
            assert np.array_equal(
                np.concatenate([np.empty(0, np.uint64), *ids]), whole[first : first + count]
            )


def test_any_part_of_an_epoch_is_reached_directly():
    shuffle = ours.CDLShuffle(2**40 + 7, block_size=2**20, seed=1)
    middle = shuffle.indices(2**39, 2**39 + 1000)
    assert len(set(middle.tolist())) == 1000 and middle.max() < 2**40 + 7
    assert shuffle.permute(2**39 + 500) == middle[500]
    for bad in ((-1, 3), (5, 4), (0, 2**41)):
        with pytest.raises(IndexError):
            shuffle.indices(*bad)


def test_epochs_and_state_take_no_memory():
    sampler = ours.CDLSampler(dataset_size=10**12)
    tracemalloc.start()
    for epoch in range(100):
        sampler.set_epoch(epoch)
        next(iter(sampler))
        sampler.pack_state()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000
    assert len(sampler.pack_state()) == 24


@pytest.mark.parametrize(
    "arguments, error",
    [
        ((-1,), ValueError),
        ((2**64,), ValueError),
        ((1.5,), TypeError),
        ((10, 2.0), TypeError),
        ((10, 2**64), ValueError),
        ((10, 2, "x"), TypeError),
        ((10, 2, 42, -1), ValueError),
        ((10, 2, 42, 256), ValueError),
    ],
    ids=repr,
)
def test_refused_arguments(arguments, error):
    with pytest.raises(error):
        ours.CDLShuffle(*arguments)
    with pytest.raises(ValueError, match="data_source or dataset_size"):
        ours.CDLSampler()


# ---------------------------------------------------------------- state


@pytest.mark.parametrize("epoch", [None, 0, 3])
def test_packed_state_resumes_at_every_sample(epoch):
    sampler = ours.CDLSampler(dataset_size=103, block_size=10, seed=2**64 - 3)
    if epoch is not None:
        sampler.set_epoch(epoch)
    whole = list(sampler)
    for position in range(104):
        walker = ours.CDLSampler(dataset_size=103, block_size=10, seed=2**64 - 3)
        if epoch is not None:
            walker.set_epoch(epoch)
        given = [sample for sample, _ in zip(iter(walker), range(position), strict=False)]
        state = walker.pack_state(position)
        assert isinstance(state, bytes) and len(state) == 24 and given == whole[:position]
        fresh = ours.CDLSampler(dataset_size=103, block_size=10, seed=0)
        fresh.unpack_state(state)
        if epoch is not None:
            fresh.set_epoch(epoch)  # as a training loop does
        assert list(fresh) == whole[position:]
        assert list(fresh) == whole  # the next epoch is whole
        fresh.unpack_state(bytearray(state))
        fresh.set_epoch(99)
        assert len(list(fresh)) == 103


def test_packed_state_follows_the_iteration():
    sampler = ours.CDLSampler(dataset_size=100, block_size=10)
    whole, states = list(sampler), []
    for sample in sampler:
        states.append((sample, sampler.pack_state()))
    for i, (sample, state) in enumerate(states):
        assert sample == whole[i]
        other = ours.CDLSampler(dataset_size=100, block_size=10)
        other.unpack_state(state)
        assert list(other) == whole[i + 1 :]


@pytest.mark.parametrize(
    "other",
    [
        {"dataset_size": 101},
        {"block_size": 11},
        {"rounds": 4},
        {"world_size": 2},
        {"world_size": 2, "tail": "pad"},
    ],
    ids=repr,
)
def test_packed_state_of_another_dataset_is_refused(other):
    state = ours.CDLSampler(dataset_size=100, block_size=10).pack_state(5)
    sampler = ours.CDLSampler(**{"dataset_size": 100, "block_size": 10, **other})
    before = list(sampler)
    with pytest.raises(ValueError, match="another dataset"):
        sampler.unpack_state(state)
    assert list(sampler) == before


def test_damaged_states_are_refused():
    sampler = ours.CDLSampler(dataset_size=100, block_size=10)
    state = sampler.pack_state(5)
    for bad in (b"", state[:23], state + b"\0"):
        with pytest.raises(ValueError, match="24 bytes"):
            sampler.unpack_state(bad)
    for bit in range(8 * 24):
        broken = bytearray(state)
        broken[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match="damaged"):
            sampler.unpack_state(broken)
    with pytest.raises(ValueError, match="damaged"):
        sampler.unpack_state(state[8:] + state[:8])
    for bad in (-1, 101):
        with pytest.raises(ValueError, match="position"):
            sampler.pack_state(bad)
    with pytest.raises(TypeError):
        sampler.unpack_state("state")
    sampler.set_epoch(2**32)
    with pytest.raises(OverflowError, match="epoch"):
        sampler.pack_state()


def test_dict_state_is_the_wheels_both_ways(wheel):
    mine = ours.CDLSampler(dataset_size=500, block_size=30, seed=8, rounds=4)
    theirs = wheel.CDLSampler(dataset_size=500, block_size=30, seed=8, rounds=4)
    mine.set_epoch(6), theirs.set_epoch(6)
    assert mine.get_state() == theirs.get_state()
    assert list(wheel.CDLSampler.from_state(mine.get_state())) == list(mine)
    assert list(ours.CDLSampler.from_state(theirs.get_state())) == list(theirs)
    state = dict(theirs.get_state())
    del state["rounds"]
    assert list(ours.CDLSampler.from_state(state)) == list(wheel.CDLSampler.from_state(state))


def test_shuffle_packs_a_position():
    shuffle = ours.CDLShuffle(1000, 10, seed=5)
    shuffle.set_epoch(3)
    other = ours.CDLShuffle(1000, 10)
    assert other.unpack_state(shuffle.pack_state(77)) == 77
    assert (other.seed, other.epoch) == (5, 3)
    assert np.array_equal(other.indices(), shuffle.indices())


@pytest.mark.parametrize("twin", [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_copies_and_pickles_keep_their_place(twin):
    sampler = ours.CDLSampler(dataset_size=100, block_size=10, seed=3, rank=1, world_size=2)
    sampler.set_epoch(4)
    whole = list(sampler)
    sampler.unpack_state(sampler.pack_state(7))
    assert list(twin(sampler)) == whole[7:] == list(sampler)
    shuffle = ours.CDLShuffle(100, 10)
    shuffle.set_epoch(2)
    assert list(twin(shuffle)) == list(shuffle)


# ---------------------------------------------------------------- ranks


@pytest.mark.parametrize("size", [1, 7, 100, 101, 1003])
@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_ranks_share_an_epoch(size, world):
    whole = ours.CDLSampler(dataset_size=size, block_size=10)
    whole.set_epoch(1)
    shares = {}
    for tail in ("uneven", "pad", "drop"):
        ranks = [
            ours.CDLSampler(
                dataset_size=size, block_size=10, rank=rank, world_size=world, tail=tail
            )
            for rank in range(world)
        ]
        for sampler in ranks:
            sampler.set_epoch(1)
            assert len(list(sampler)) == len(sampler) == len(sampler.indices())
        shares[tail] = [list(sampler) for sampler in ranks]
    assert sorted(sum(shares["uneven"], [])) == list(range(size))  # every sample exactly once
    assert {len(share) for share in shares["uneven"]} <= {size // world, -(-size // world)}
    assert {len(share) for share in shares["pad"]} == {-(-size // world)}
    assert set(sum(shares["pad"], [])) == set(range(size))
    assert sum(shares["pad"], [])[:size] == list(whole)
    assert {len(share) for share in shares["drop"]} == {size // world}
    assert sum(shares["drop"], []) == list(whole)[: size // world * world]


def test_a_rank_reads_few_blocks_of_others():
    ranks = [
        ours.CDLSampler(dataset_size=10_000, block_size=100, rank=r, world_size=4) for r in range(4)
    ]
    blocks = [set(np.unique(sampler.indices() // 100)) for sampler in ranks]
    assert sum(map(len, blocks)) <= 100 + 3


def test_every_rank_resumes_from_the_state_of_one():
    size, world = 103, 4
    ranks = [
        ours.CDLSampler(dataset_size=size, block_size=10, rank=r, world_size=world)
        for r in range(world)
    ]
    whole = [list(sampler) for sampler in ranks]
    state = ranks[0].pack_state(11)
    rest = []
    for rank in range(world):
        sampler = ours.CDLSampler(dataset_size=size, block_size=10, rank=rank, world_size=world)
        sampler.unpack_state(state)
        rest.append(list(sampler))
    assert rest == [share[11:] for share in whole]


def test_refused_ranks():
    for bad in ({"rank": 2, "world_size": 2}, {"rank": -1}, {"world_size": 0}, {"tail": "wrap"}):
        with pytest.raises(ValueError):
            ours.CDLSampler(dataset_size=10, **bad)


# ---------------------------------------------------------------- names and torch


def test_names_are_the_wheels(wheel):
    for name in wheel.__all__:
        assert getattr(ours, name).__doc__, name
    for module in ("shuffle", "sampler", "loader", "datasets", "prefetch"):
        importlib.import_module(f"zrecord.cdl.{module}")
    for name in ours.__all__:
        assert name in dir(ours)
        if hasattr(zrecord, name):
            assert getattr(zrecord, name) is getattr(ours, name)
    for name in ("CDLSampler", "CDLLoader", "CDLShuffle", "TorchCDLSampler", "ZrecordBlockDataset"):
        assert name in zrecord.__all__
    with pytest.raises(AttributeError):
        _ = ours.nonsense


def test_nothing_imports_torch_or_h5py_until_asked():
    code = """
import sys, zrecord, zrecord.cdl
from zrecord import CDLSampler, CDLLoader, HDF5BlockDataset, infer_block_size, torch_collate
print(sorted({"torch", "h5py", "PIL", "pyarrow", "jax"} & set(sys.modules)))
from zrecord import TorchCDLSampler
print("torch" in sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.splitlines() == ["[]", "True"], result.stderr


def test_without_torch_the_torch_sampler_is_the_plain_one():
    code = """
import sys
sys.modules["torch"] = None
from zrecord import CDLSampler, TorchCDLSampler
assert TorchCDLSampler is CDLSampler
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_torch_sampler_in_a_data_loader(wheel):
    data = pytest.importorskip("torch.utils.data")
    dataset = list(range(1000))
    mine = zrecord.TorchCDLSampler(dataset, block_size=64, seed=42)
    theirs = wheel.CDLSampler(dataset, block_size=64, seed=42)
    assert isinstance(mine, data.Sampler) and isinstance(mine, zrecord.CDLSampler)
    for epoch in range(2):
        mine.set_epoch(epoch), theirs.set_epoch(epoch)
        loader = data.DataLoader(dataset, sampler=mine, batch_size=128)
        assert sum((batch.tolist() for batch in loader), []) == list(theirs)
    restored = zrecord.TorchCDLSampler.from_state(mine.get_state())
    assert list(restored) == list(mine)


def test_a_torch_training_loop_resumes_inside_an_epoch():
    data = pytest.importorskip("torch.utils.data")
    dataset = list(range(1000))

    def batches(sampler):
        return [b.tolist() for b in data.DataLoader(dataset, sampler=sampler, batch_size=64)]

    sampler = zrecord.CDLSampler(dataset, block_size=100)
    sampler.set_epoch(5)
    whole = batches(sampler)
    state = sampler.pack_state(4 * 64)  # the loop's own count: a loader draws ahead
    fresh = zrecord.CDLSampler(dataset, block_size=100)
    fresh.unpack_state(state)
    fresh.set_epoch(5)
    assert batches(fresh) == whole[4:]
