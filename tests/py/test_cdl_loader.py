# SPDX-License-Identifier: MIT
"""CDLLoader and the block datasets (zrecord.cdl) beside the celeres-dl wheel."""

import gc
import importlib
import os
import pickle
import threading
import time
import warnings

import numpy as np
import pytest
from test_cdl import load_wheel

import zrecord
from zrecord import cdl as ours


@pytest.fixture(scope="session")
def wheel():
    return load_wheel()


@pytest.fixture(scope="session")
def h5py():
    return pytest.importorskip("h5py")


IMAGES = np.arange(1003 * 6, dtype=np.float32).reshape(1003, 2, 3)
LABELS = np.arange(1003, dtype=np.int16) % 10


@pytest.fixture
def hdf5_path(tmp_path, h5py):
    path = tmp_path / "train.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("data", data=IMAGES, chunks=(64, 2, 3))
        file.create_dataset("labels", data=LABELS)
    return str(path)


@pytest.fixture
def stores(tmp_path):
    for name, array in (("image", IMAGES), ("label", LABELS)):
        with zrecord.Dense.create(tmp_path / name, array.dtype, array.shape[1:]) as store:
            store.append(array)
    return tmp_path / "image", tmp_path / "label"


def same(a, b):
    """Equal down to types, as a program that changes its import lines would notice."""
    assert type(a) is type(b), (type(a), type(b))
    if isinstance(a, (tuple, list)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype and np.array_equal(a, b)
    else:
        assert a == b


def same_epochs(mine, theirs, epochs=(None, 0, 5)):
    assert len(mine) == len(theirs)
    for epoch in epochs:
        if epoch is not None:
            mine.set_epoch(epoch), theirs.set_epoch(epoch)
        same(list(mine), list(theirs))
        assert mine.block_order == theirs.block_order
        assert mine.get_state() == theirs.get_state()


# ---------------------------------------------------------------- the same batches


@pytest.mark.parametrize("prefetch", [True, False])
@pytest.mark.parametrize("batch, block, drop", [(32, 100, False), (100, 64, True), (7, 5, False)])
def test_numpy_batches_are_the_wheels(wheel, prefetch, batch, block, drop):
    for data, labels in ((IMAGES, LABELS), (IMAGES, None), (LABELS, IMAGES), (LABELS, LABELS)):
        loaders = [
            m.CDLLoader(
                m.NumpyBlockDataset(data, labels, block_size=block),
                batch_size=batch,
                seed=3,
                prefetch=prefetch,
                drop_last=drop,
            )
            for m in (ours, wheel)
        ]
        same_epochs(*loaders)


def test_lists_as_data_are_the_wheels(wheel):
    data, labels = [f"text {i}" for i in range(100)], list(range(100))
    same_epochs(
        *(m.CDLLoader(m.NumpyBlockDataset(data, labels, 10), batch_size=8) for m in (ours, wheel))
    )


@pytest.mark.parametrize("options", [{}, {"transform": lambda x: x * 2}, {"label_key": None}])
def test_hdf5_batches_are_the_wheels(wheel, hdf5_path, options):
    mine, theirs = (m.HDF5BlockDataset(hdf5_path, **options) for m in (ours, wheel))
    assert (mine.block_size, mine.num_blocks, len(mine)) == (64, 16, 1003)
    for block in (0, 15):
        assert mine.get_block_size(block) == theirs.get_block_size(block)
        same(mine.load_block(block), theirs.load_block(block))
        same(mine.get_item(mine.load_block(block), 3), theirs.get_item(theirs.load_block(block), 3))
    same_epochs(ours.CDLLoader(mine, 50), wheel.CDLLoader(theirs, 50))


def test_hdf5_block_sizes(tmp_path, h5py, hdf5_path):
    assert ours.HDF5BlockDataset(hdf5_path, block_size=10).num_blocks == 101
    with h5py.File(tmp_path / "plain.h5", "w") as file:
        file.create_dataset("x", data=LABELS)
    with pytest.warns(UserWarning, match="has no chunks: blocks of 256"):
        assert ours.HDF5BlockDataset(tmp_path / "plain.h5", "x").block_size == 256
    with pytest.raises(KeyError):
        ours.HDF5BlockDataset(tmp_path / "plain.h5")
    with pytest.raises(ValueError, match="block_size"):
        ours.HDF5BlockDataset(hdf5_path, block_size=0)


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "folder"
    for shard in range(4):
        (root / f"shard{shard}").mkdir(parents=True)
        for i in range(5 if shard == 0 else 7):
            np.save(root / f"shard{shard}" / f"{i}.npy", np.full((2, 2), 10 * shard + i))
    (root / "notes.txt").write_text("no sample")
    return root


def test_directory_gives_its_files_shard_by_shard(folder, wheel):
    def label(path):
        return int(os.path.basename(path)[:-4])

    mine = ours.DirectoryBlockDataset(str(folder), extensions=[".NPY"], label_fn=label)
    theirs = wheel.DirectoryBlockDataset(str(folder), extensions=[".NPY"], label_fn=label)
    assert mine.block_size == theirs.block_size == 5
    assert sorted(mine.files) == sorted(theirs.files) == mine.files and len(mine) == 26
    items = {}
    loader = ours.CDLLoader(mine, batch_size=4)
    for images, labels in loader:
        assert images.shape[1:] == (2, 2) and labels.shape == (len(images),)
        items.update(zip(images[:, 0, 0].tolist(), labels.tolist(), strict=True))
    assert items == {10 * s + i: i for s in range(4) for i in range(5 if s == 0 else 7)}
    stats = loader.get_io_stats()
    assert stats["bytes_read"] == sum(os.path.getsize(path) for path in mine.files)


def test_directory_without_shards_warns(tmp_path):
    with pytest.warns(UserWarning, match="blocks of 256 samples"):
        dataset = ours.DirectoryBlockDataset(tmp_path)
    assert (len(dataset), dataset.num_blocks, dataset.block_size) == (0, 0, 256)
    assert list(ours.CDLLoader(dataset)) == []


def test_images_need_pillow(tmp_path):
    (tmp_path / "a.png").write_bytes(b"not an image")
    dataset = ours.DirectoryBlockDataset(tmp_path, block_size=1)
    try:
        import PIL  # noqa: F401
    except ImportError:
        with pytest.raises(ImportError, match="Pillow"):
            next(iter(ours.CDLLoader(dataset)))
    else:
        with pytest.raises(OSError):
            next(iter(ours.CDLLoader(dataset)))


def test_a_subclass_with_items_of_its_own(wheel):
    class Squares(ours.BlockDataset):
        num_blocks, block_size = 11, 10

        def __len__(self):
            return 103

        def load_block(self, block_id):
            return [i * i for i in range(block_id * 10, min(block_id * 10 + 10, 103))]

        def get_item(self, block_data, offset):
            return block_data[offset], {"square": block_data[offset]}

    theirs = type("Theirs", (wheel.BlockDataset,), dict(Squares.__dict__))
    options = {"batch_size": 10, "collate_fn": list}
    same_epochs(ours.CDLLoader(Squares(), **options), wheel.CDLLoader(theirs(), **options))
    assert Squares().get_block_size(10) == theirs().get_block_size(10) == 3


def test_a_subclass_of_arrays_with_items_of_its_own():
    class Negative(ours.NumpyBlockDataset):
        def get_item(self, block_data, offset):
            item, label = super().get_item(block_data, offset)
            return -item, label

    images = np.concatenate([x for x, _ in ours.CDLLoader(Negative(IMAGES, LABELS))])
    assert images.max() == 0 and sorted(-images[:, 0, 0]) == sorted(IMAGES[:, 0, 0])


def test_torch_collate_gives_tensors(wheel):
    torch = pytest.importorskip("torch")
    for data, labels in ((IMAGES, LABELS), (IMAGES, IMAGES), (IMAGES, None)):
        mine = ours.CDLLoader(
            ours.NumpyBlockDataset(data, labels, 100), 64, collate_fn=ours.torch_collate
        )
        theirs = ours.CDLLoader(
            ours.NumpyBlockDataset(data, labels, 100), 64, collate_fn=lambda b: ours.torch_collate(b)
        )
        for (x, y), (p, q) in zip(mine, theirs, strict=True):
            assert torch.equal(x, p) and x.dtype == p.dtype
            assert (y is None and q is None) or (torch.equal(y, q) and y.dtype == q.dtype)
    batch = [(np.ones(3, np.float32), 1), (np.zeros(3, np.float32), 2)]
    for a, b in zip(ours.torch_collate(batch), wheel.loader.torch_collate(batch), strict=True):
        assert torch.equal(a, b) and a.dtype == b.dtype
    assert ours.torch_collate([])[1] is None


# ---------------------------------------------------------------- zrecord stores


def test_a_store_gives_what_the_array_gives(stores):
    image, label = stores
    dataset = ours.ZrecordBlockDataset(zrecord.open(image), zrecord.open(label), block_size=100)
    array = ours.NumpyBlockDataset(IMAGES, LABELS, block_size=100)
    same_epochs(ours.CDLLoader(dataset, 64, seed=1), ours.CDLLoader(array, 64, seed=1))
    for options in ({"cache_blocks": 3}, {"prefetch": False}, {"collate_fn": ours.loader.default_collate}):
        same(list(ours.CDLLoader(dataset, 64, **options)), list(ours.CDLLoader(array, 64)))
    by_item = ours.CDLLoader(dataset, 64, collate_fn=lambda batch: ours.loader.default_collate(batch))
    same(list(by_item), list(ours.CDLLoader(array, 64)))


def test_a_block_of_a_store_is_one_gather_announced_in_order(stores):
    gathers, announced = [], []

    class Counting(zrecord.Dense):
        def gather(self, ids, out=None):
            gathers.append(len(ids))
            return super().gather(ids, out)

        def prefetch(self, ids):
            announced.append((ids.start, ids.stop))
            return super().prefetch(ids)

    dataset = ours.ZrecordBlockDataset(Counting.open(stores[0]), LABELS, block_size=100)
    batches = list(ours.CDLLoader(dataset, 32))
    assert sorted(gathers) == [3] + 10 * [100] and sum(len(x) for x, _ in batches) == 1003
    assert sorted(announced) == [(i, min(i + 100, 1003)) for i in range(0, 1003, 100)]


def test_batches_of_a_store_are_the_callers(stores):
    for images, labels in ours.CDLLoader(ours.ZrecordBlockDataset(*stores, block_size=50), 16):
        assert images.flags.writeable and images.flags.c_contiguous and labels.flags.writeable
        images += 1
        labels[:] = 0
    first = np.concatenate([x for x, _ in ours.CDLLoader(ours.ZrecordBlockDataset(*stores), 16)])
    assert sorted(first[:, 0, 0]) == sorted(IMAGES[:, 0, 0])


def test_writing_to_batches_leaves_cached_blocks_alone():
    loader = ours.CDLLoader(ours.NumpyBlockDataset(IMAGES.copy(), LABELS.copy(), 100), cache_blocks=99)
    before = [(x.copy(), y.copy()) for x, y in loader]
    for x, y in loader:
        x[:], y[:] = -1, -1
    same(list(loader), before)


def test_ragged_records_come_as_lists(tmp_path):
    records = [np.arange(i % 7, dtype=np.int32) + i for i in range(1, 200) if i % 7]
    with zrecord.Ragged.create(tmp_path / "r", np.int32) as store:
        store.append(records)
    dataset = ours.ZrecordBlockDataset(tmp_path / "r", block_size=20)
    for options in ({}, {"cache_blocks": 2}):
        got = [r for batch, labels in ours.CDLLoader(dataset, 16, **options) for r in batch]
        order = ours.CDLShuffle(len(records), 20).get_shuffled_indices()
        assert all(np.array_equal(r, records[i]) for r, i in zip(got, order, strict=True))


def test_transform_is_called_on_each_item(stores):
    dataset = ours.ZrecordBlockDataset(*stores, block_size=64, transform=lambda x: x.sum())
    items = [x for batch, _ in ours.CDLLoader(dataset) for x in batch]
    assert sorted(items) == sorted(IMAGES.sum((1, 2)).tolist())


def test_block_sizes_of_stores(stores, tmp_path):
    assert ours.ZrecordBlockDataset(stores[0]).block_size == 4096  # records of 24 bytes
    with zrecord.Dense.create(tmp_path / "big", np.uint8, (3 << 20,)) as store:
        store.append(np.zeros((2, 3 << 20), np.uint8))
    assert ours.ZrecordBlockDataset(tmp_path / "big").block_size == 1
    with pytest.raises(ValueError, match="1003 records, but 2 labels"):
        ours.ZrecordBlockDataset(stores[0], [1, 2])


def test_a_damaged_record_names_store_and_record(tmp_path):
    with zrecord.Dense.create(tmp_path / "s", np.uint8, (100,), "zstd") as store:
        store.append(np.random.default_rng(0).integers(0, 255, (50, 100), np.uint8))
    data = bytearray((tmp_path / "s" / "data.zr").read_bytes())
    data[len(data) // 2 - 4 : len(data) // 2 + 4] = b"\xff" * 8
    (tmp_path / "s" / "data.zr").write_bytes(data)
    store = zrecord.Dense.open(tmp_path / "s", checksums=True)
    with pytest.raises(zrecord.ZrecordError) as caught:
        list(ours.CDLLoader(ours.ZrecordBlockDataset(store, block_size=10), 5))
    assert caught.value.record is not None and str(tmp_path / "s") in str(caught.value)


# ---------------------------------------------------------------- inference


def test_infer_block_size(wheel, tmp_path, hdf5_path, folder, stores):
    assert ours.infer_block_size(hdf5_path) == wheel.infer_block_size(hdf5_path) == 64
    assert ours.infer_block_size(str(folder)) == wheel.infer_block_size(str(folder)) == 5
    assert ours.infer_block_size(stores[0]) == 4096
    (tmp_path / "flat").mkdir()
    for bad in (tmp_path / "flat", tmp_path / "none.h5", tmp_path / "none.parquet", "nowhere"):
        with pytest.raises(ValueError, match="give block_size"):
            ours.infer_block_size(str(bad))


# ---------------------------------------------------------------- state and ranks


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("batch", [16, 100])
def test_a_loader_resumes_behind_any_batch(stores, world, batch):
    dataset = ours.ZrecordBlockDataset(*stores, block_size=64)
    options = {"batch_size": batch, "rank": world - 1, "world_size": world, "tail": "pad"}
    loader = ours.CDLLoader(dataset, seed=9, **options)
    loader.set_epoch(4)
    whole, states = [], [loader.pack_state()]
    for x, y in loader:
        whole.append((x, y))
        states.append(loader.pack_state())
    for i, state in enumerate(states):
        assert len(state) == 24
        fresh = ours.CDLLoader.from_checkpoint(state, dataset, **options)
        fresh.set_epoch(4)
        same(list(fresh), whole[i:])
        fresh.set_epoch(5)
        assert len(list(fresh)) == len(whole)


def test_a_loader_resumes_at_any_sample_and_with_another_batch_size(stores):
    dataset = ours.ZrecordBlockDataset(*stores, block_size=64)
    loader = ours.CDLLoader(dataset, batch_size=1003)
    ((whole, _),) = list(loader)
    for position in (0, 1, 63, 64, 65, 500, 1002, 1003):
        loader.unpack_state(loader.pack_state(position))
        rest = [x for x, _ in loader]
        assert np.array_equal(np.concatenate([*rest, whole[:0]]), whole[position:])


def test_a_state_knows_its_dataset(stores, tmp_path):
    loader = ours.CDLLoader(ours.ZrecordBlockDataset(*stores, block_size=64))
    state = loader.pack_state()
    with zrecord.Dense.create(tmp_path / "other", IMAGES.dtype, IMAGES.shape[1:]) as store:
        store.append(IMAGES + 1)
    others = [
        ours.CDLLoader(ours.ZrecordBlockDataset(tmp_path / "other", block_size=64)),
        ours.CDLLoader(ours.ZrecordBlockDataset(*stores, block_size=65)),
        ours.CDLLoader(ours.ZrecordBlockDataset(*stores, block_size=64), world_size=2),
    ]
    for other in others:
        with pytest.raises(ValueError, match="another dataset"):
            other.unpack_state(state)
    ours.CDLLoader(ours.ZrecordBlockDataset(*stores, block_size=64)).unpack_state(state)


def test_checkpoints_of_the_wheel(wheel):
    theirs = wheel.CDLLoader(wheel.NumpyBlockDataset(IMAGES, LABELS, 64), 50, seed=7)
    theirs.set_epoch(3)
    mine = ours.CDLLoader.from_checkpoint(
        theirs.get_state(), ours.NumpyBlockDataset(IMAGES, LABELS, 64), batch_size=50
    )
    same(list(mine), list(theirs))
    with pytest.raises(ValueError, match="block_size 64, this dataset 65"):
        ours.CDLLoader.from_checkpoint(
            theirs.get_state(), ours.NumpyBlockDataset(IMAGES, LABELS, 65)
        )


@pytest.mark.parametrize("tail", ["uneven", "pad", "drop"])
def test_ranks_of_a_loader_share_an_epoch(tail):
    dataset = ours.NumpyBlockDataset(np.arange(1003), block_size=10)
    shares = [
        [i for x, _ in ours.CDLLoader(dataset, 64, rank=r, world_size=4, tail=tail) for i in x]
        for r in range(4)
    ]
    every = sorted(sum(shares, []))
    if tail == "uneven":
        assert every == list(range(1003))
    elif tail == "pad":
        assert len(every) == 1004 and sorted(set(every)) == list(range(1003))
    else:
        assert len(every) == len(set(every)) == 1000


def test_pickled_loaders_go_on_and_leave_their_blocks(stores, hdf5_path):
    for dataset in (
        ours.ZrecordBlockDataset(*stores, block_size=64),
        ours.HDF5BlockDataset(hdf5_path),
    ):
        loader = ours.CDLLoader(dataset, 100, cache_blocks=2)
        whole = list(loader)
        loader.unpack_state(loader.pack_state(300))
        twin = pickle.loads(pickle.dumps(loader))
        same(list(twin), whole[3:])


def test_a_forked_child_reads_on_its_own(hdf5_path, stores):
    for dataset in (
        ours.HDF5BlockDataset(hdf5_path),
        ours.ZrecordBlockDataset(*stores, block_size=64),
    ):
        loader = ours.CDLLoader(dataset, 100)
        whole = list(loader)
        pid = os.fork()
        if pid == 0:
            try:
                same(list(loader), whole)
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        same(list(loader), whole)


# ---------------------------------------------------------------- prefetch


class Watched(ours.BlockDataset):
    """Counts its loads; block `bad` fails, and all wait while `gate` is closed."""

    num_blocks, block_size = 20, 10

    def __init__(self, bad=None):
        self.bad = bad
        self.gate = threading.Event()
        self.gate.set()
        self.loads, self.threads, self.lock = [], set(), threading.Lock()

    def __len__(self):
        return 200

    def load_block(self, block_id):
        with self.lock:
            self.loads.append(block_id)
            self.threads.add(threading.current_thread().name)
        assert self.gate.wait(30)
        if block_id == self.bad:
            raise OSError(f"block {block_id} is unreadable")
        return np.arange(block_id * 10, block_id * 10 + 10)

    def get_item(self, block_data, offset):
        return block_data[offset], None


def wait_until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_blocks_are_read_ahead_and_no_further(depth):
    dataset = Watched()
    loader = ours.CDLLoader(dataset, batch_size=10, prefetch_depth=depth, num_workers=2)
    for given, _ in enumerate(loader, 1):
        wait_until(lambda given=given: len(dataset.loads) >= min(20, given + depth))
        assert len(dataset.loads) <= min(20, given + depth + 1)
    assert sorted(dataset.loads) == list(range(20))
    assert dataset.loads[:1] == loader.block_order[:1]
    assert all(name.startswith("zrecord-cdl") for name in dataset.threads)
    assert len(dataset.threads) <= 2


def test_workers_load_at_the_same_time():
    dataset = Watched()
    dataset.gate.clear()
    batches = iter(ours.CDLLoader(dataset, batch_size=10, prefetch_depth=4, num_workers=3))
    consumer = threading.Thread(target=lambda: next(batches))
    consumer.start()
    wait_until(lambda: len(dataset.loads) == 3)
    dataset.gate.set()
    consumer.join()
    batches.close()
    assert len(dataset.threads) == 3


@pytest.mark.parametrize("prefetch", [True, False])
def test_a_failed_block_reaches_the_consumer(prefetch):
    order = ours.CDLLoader(Watched()).block_order
    dataset = Watched(bad=order[3])
    loader = ours.CDLLoader(dataset, batch_size=10, prefetch=prefetch)
    given = []
    with pytest.raises(OSError, match="is unreadable") as caught:
        for x, _ in loader:
            given.append(x)
    assert len(given) == 3
    assert any(f"block {order[3]}" in note for note in getattr(caught.value, "__notes__", ["block " + str(order[3])]))
    assert not any(t.name.startswith("zrecord-cdl") for t in threading.enumerate())
    dataset.bad = None  # readable again: go on from there
    loader.unpack_state(loader.pack_state())
    assert len(list(loader)) == 17


@pytest.mark.parametrize("end", ["close", "forget", "break"])
def test_leaving_an_epoch_ends_its_threads(end):
    loader = ours.CDLLoader(Watched(), batch_size=10, prefetch_depth=3)
    batches = iter(loader)
    next(batches)
    if end == "close":
        batches.close()
    elif end == "forget":
        del batches
        gc.collect()
    else:
        for _ in batches:
            break
        del batches
    wait_until(lambda: not any(t.name.startswith("zrecord-cdl") for t in threading.enumerate()))


def test_two_epochs_at_once_do_not_disturb_each_other():
    loader = ours.CDLLoader(ours.NumpyBlockDataset(IMAGES, LABELS, 100), 64)
    whole = list(loader)
    for (a, b), expected in zip(zip(loader, loader, strict=True), whole, strict=True):
        same(a, expected)
        same(b, expected)


def test_cache_keeps_the_blocks_used_last():
    dataset = Watched()
    loader = ours.CDLLoader(dataset, batch_size=10, cache_blocks=20)
    for _ in range(3):
        list(loader)
    assert sorted(dataset.loads) == list(range(20))
    stats = loader.get_io_stats()
    assert (stats["blocks_read"], stats["cache_hits"]) == (0, 20)
    small = ours.CDLLoader(Watched(), batch_size=10, cache_blocks=3, prefetch=False)
    list(small)
    assert len(small.cache) == 3 and all(b in small.cache for b in small.block_order[-3:])


# ---------------------------------------------------------------- counts


def test_io_stats_are_counted(wheel, stores):
    dataset = ours.ZrecordBlockDataset(stores[0], block_size=100)
    loader = ours.CDLLoader(dataset, 64)
    assert set(wheel.CDLLoader(wheel.NumpyBlockDataset(IMAGES), 64).get_io_stats()) <= set(
        loader.get_io_stats()
    )
    assert loader.get_io_stats()["blocks_read"] == 0
    batches = iter(loader)
    next(batches), next(batches)
    partial = loader.get_io_stats()
    assert partial["samples"] == 128 and 2 <= partial["blocks_read"] <= 3 + 2  # one has 3 records
    list(batches)
    stats = loader.get_io_stats()
    order = loader.block_order
    jumps = 1 + sum(b != a + 1 for a, b in zip(order, order[1:], strict=False))
    assert stats["blocks_read"] == 11 and stats["records_read"] == stats["samples"] == 1003
    assert stats["bytes_read"] == IMAGES.nbytes and stats["read_seconds"] > 0
    loader = ours.CDLLoader(dataset, 64, num_workers=1)
    list(loader)
    stats = loader.get_io_stats()
    assert stats["seeks_per_epoch"] == jumps
    assert stats["seek_reduction"] == 1003 / jumps
    assert stats["expected_locality_pct"] == 100 * (1003 - jumps) / 1003


# ---------------------------------------------------------------- the wheel's own pieces


@pytest.mark.parametrize("name", ["AsyncPrefetcher", "SyncPrefetcher"])
def test_prefetchers(name):
    loads = []

    def load(block):
        loads.append(block)
        if block == 7:
            raise OSError("unreadable")
        return block * 10

    prefetcher = getattr(ours, name)(load, prefetch_depth=2, cache_size=3, num_workers=2)
    assert prefetcher.get(1) == 10  # also before start
    prefetcher.start()
    prefetcher.start()
    order = [1, 2, 3, 7, 5]
    for position, block in enumerate(order):
        prefetcher.prefetch_ahead(position, order)
        if block == 7:
            with pytest.raises(OSError, match="unreadable"):
                prefetcher.get(block)
        else:
            assert prefetcher.get(block) == block * 10
    assert sorted(loads) == [1, 2, 3, 5, 7] and 5 in prefetcher.cache
    prefetcher.stop()
    prefetcher.stop()
    assert prefetcher.get(2) == 20 and len(loads) == 6


def test_block_cache_is_least_recently_used():
    cache = ours.BlockCache(max_blocks=2)
    cache.put(1, "a"), cache.put(2, "b")
    assert cache.get(1) == "a"
    cache.put(3, "c")
    assert 2 not in cache and cache.get(2) is None and 1 in cache and 3 in cache
    cache.clear()
    assert len(cache) == 0 and cache.get(1) is None
    nothing = ours.BlockCache(0)
    nothing.put(1, "a")
    assert 1 not in nothing


def test_refused_arguments():
    dataset = ours.NumpyBlockDataset(LABELS)
    for bad in (
        {"batch_size": 0},
        {"num_workers": 0},
        {"prefetch_depth": -1},
        {"cache_blocks": -1},
        {"rank": 1},
        {"tail": "wrap"},
        {"rounds": 300},
    ):
        with pytest.raises(ValueError):
            ours.CDLLoader(dataset, **bad)
    for bad in (([],), (LABELS, LABELS[:3]), (LABELS, None, 0)):
        with pytest.raises(ValueError):
            ours.NumpyBlockDataset(*bad)
    with pytest.raises(IndexError):
        dataset.load_block(dataset.num_blocks)
    with pytest.raises(TypeError):
        ours.BlockDataset()


# ---------------------------------------------------------------- the wheel's README


def test_readme_of_the_wheel_after_changing_import_lines(hdf5_path):
    from zrecord import CDLLoader, CDLSampler, HDF5BlockDataset

    data = pytest.importorskip("torch.utils.data")
    items = list(range(3000))
    sampler = CDLSampler(items, block_size=1024, seed=42)
    loader = data.DataLoader(items, sampler=sampler, batch_size=128)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        assert sorted(int(i) for batch in loader for i in batch) == items
    assert sampler.get_state()["epoch"] == 2

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataset = HDF5BlockDataset(hdf5_path)
    loader = CDLLoader(dataset, batch_size=64, seed=42)
    for epoch in range(3):
        loader.set_epoch(epoch)
        count = 0
        for images, labels in loader:
            assert images.shape[1:] == (2, 3) and len(labels) == len(images)
            count += len(images)
        assert count == 1003
        state = loader.get_state()
    assert state == {"seed": 42, "epoch": 2, "dataset_size": 1003, "block_size": 64}
    sampler = CDLSampler(data_source=dataset, block_size=1024, seed=42, rounds=6)
    loader = CDLLoader(dataset=dataset, batch_size=64, seed=42, prefetch=True, prefetch_depth=2)
    assert len(list(loader)) == len(loader) == 16


def test_torch_collate_leaves_labels_that_are_no_numbers(wheel):
    pytest.importorskip("torch")
    collate = importlib.import_module("cdl.loader").torch_collate
    data, labels = np.arange(40.0), np.array(list("ab") * 20)
    rows, theirs = (
        list(m.CDLLoader(m.NumpyBlockDataset(data.reshape(40, 1), labels, 8), 16, collate_fn=fn))
        for m, fn in ((ours, ours.torch_collate), (wheel, collate))
    )
    items = ours.torch_collate([(np.ones(2), label) for label in labels])
    assert [batch[1] for batch in rows] == [batch[1] for batch in theirs]
    assert items[1] == labels.tolist()


def test_a_batch_that_is_dropped_is_not_collated(wheel):
    def collate(batch):
        assert len(batch) == 16
        return batch

    lists = [np.ones(i % 3) for i in range(40)]
    for m in (wheel, ours):
        assert len(list(m.CDLLoader(m.NumpyBlockDataset(lists, None, 8), 16, drop_last=True, collate_fn=collate))) == 2
        assert list(m.CDLLoader(m.NumpyBlockDataset(lists, None, 8), 64, drop_last=True)) == []
