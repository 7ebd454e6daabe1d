# SPDX-License-Identifier: MIT
"""zrecord.torch: datasets, samplers and tensors; torch's workers under every start method."""

import importlib.util
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import zrecord
from zrecord import Dense, Mode, Ragged, Sampler

torch = pytest.importorskip("torch", reason="torch is not installed (tools/setup.sh tests)")
zt = pytest.importorskip("zrecord.torch")
DataLoader = torch.utils.data.DataLoader

N = 120
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*multi-threaded.*fork.*:DeprecationWarning", "ignore:.*max number of worker.*"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("torch")
    with Dense.create(folder / "x", "f4", (2, 3), "raw") as writer:
        writer.append(np.repeat(np.arange(N, dtype="f4"), 6).reshape(N, 2, 3))
    with Dense.create(folder / "y", "i8", ()) as writer:
        writer.append(np.arange(N))
    with Ragged.create(folder / "r", "i4") as writer:
        writer.append([np.full(i % 5 + 1, i, "i4") for i in range(N)])
    with Ragged.create(folder / "r2", "f4") as writer:
        writer.append([np.full((i % 4 + 1, 3), i, "f4") for i in range(N)])
    return folder


@pytest.fixture
def stores(folder):
    stores = {name: zrecord.open(folder / name) for name in ("x", "y", "r", "r2")}
    yield stores
    for store in stores.values():
        store.close()


def ids_of(steps, batch_size=16, mode=2, seed=42):
    sampler = Sampler(N, batch_size, mode, seed)
    result = []
    for step in steps:
        sampler.seek(step)
        result.append(sampler.next().tolist())
    return result


# ---------------------------------------------------------------- tensors


def test_dense_batches_become_tensors_over_the_same_memory(stores):
    batch = {"x": stores["x"][3, 1], "y": stores["y"][3, 1]}
    tensors = zt.to_torch(batch)
    for name in batch:
        assert tensors[name].data_ptr() == batch[name].ctypes.data
    tensors["x"][0, 0, 0] = 99  # writable, and the same
    assert batch["x"][0, 0, 0] == 99 and tensors["y"].tolist() == [3, 1]


@pytest.mark.parametrize("name", ["r", "r2"])
def test_packed_ragged_becomes_a_jagged_tensor_over_the_same_memory(stores, name):
    ids = [7, 0, 119, 4]
    packed = stores[name].packed(ids)
    nested = zt.to_torch(packed)
    assert nested.is_nested and nested.layout == torch.jagged and nested.shape[0] == 4
    assert nested.values().data_ptr() == packed[0].ctypes.data
    for tensor, array in zip(nested.unbind(), stores[name][ids]):
        assert tensor.shape == array.shape and (tensor.numpy() == array).all()


def test_records_that_agree_in_no_dimension_come_in_parts(tmp_path):
    with Ragged.create(tmp_path / "m", "i4") as writer:
        writer.append([np.zeros((2, 3), "i4"), np.ones((2, 4), "i4"), np.ones((), "i4")])
    with zrecord.open(tmp_path / "m") as store:
        for ids in ([0, 1], [0, 2], [2, 2]):
            values, offsets, shapes = zt.to_torch(store.packed(ids))
            assert offsets.tolist()[-1] == len(values) and len(shapes) == 2
        assert zt.to_torch(store.packed([0, 0])).shape[0] == 2
    assert [tensor.tolist() for tensor in zt.to_torch([np.zeros(1), np.ones(2)])] == [[0], [1, 1]]


def test_a_dtype_that_torch_lacks_is_named():
    with pytest.raises(TypeError, match="datetime64"):
        zt.to_torch(np.zeros(2, "M8[s]"))
    with pytest.raises(TypeError, match=">f4"):
        zt.to_torch(np.zeros(2, ">f4"))


def test_a_sampler_given_to_torch_stays_where_it_is(stores):
    sampler = zrecord.Sampler(len(stores["x"]), 8, 2, 5)
    kept = sampler.next().copy()
    view = sampler.next()
    before = view.copy()
    steps = list(zt.BatchSampler(len(stores["x"]), sampler=sampler))
    next(iter(zt.IterDataset(stores["x"], sampler=sampler)))
    assert steps[0] == kept.tolist() and sampler.step == 2 and (view == before).all()


def test_pinning_is_asked_of_torch_where_there_is_a_gpu(monkeypatch):
    """Without a GPU pin_memory() raises, so the call itself is looked for."""
    pinned = []
    monkeypatch.setattr(zt, "_pinned", lambda tensor: pinned.append(tensor) or tensor)
    zt.to_torch({"a": np.zeros(3)})
    assert not pinned or torch.cuda.is_available()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    zt.to_torch({"a": np.zeros(3), "b": [np.zeros(1), np.ones(1)]})
    assert len(pinned) >= 3
    del pinned[:]
    zt.to_torch(np.zeros(3), pin_memory=False)
    assert not pinned


def test_the_loader_gives_tensors(stores):
    options = {"transform": zt.to_torch, "ordered": True, "packed": True}
    with zrecord.DataLoader(stores, batch_size=16, **options) as loader:
        for ids in ids_of(range(5)):
            batch = next(loader)
            assert batch["y"].tolist() == ids
            assert [int(one[0]) for one in batch["r"].unbind()] == ids


# ---------------------------------------------------------------- map-style


def test_records_and_their_default_collation(stores):
    data = zt.MapDataset({"x": stores["x"], "y": stores["y"]})
    assert len(data) == N and data[5]["y"] == 5 and data[5]["x"].shape == (2, 3)
    loader = DataLoader(data, batch_size=10)
    batches = list(loader)
    assert len(batches) == N // 10 and batches[1]["y"].tolist() == list(range(10, 20))
    assert batches[1]["x"][:, 0, 0].tolist() == list(range(10, 20))
    alone = list(DataLoader(zt.MapDataset(stores["y"], transform=torch.neg), batch_size=50))
    assert alone[0].tolist() == [-i for i in range(50)]


def test_a_batch_is_one_gather(stores):
    calls = []
    data = zt.MapDataset({"x": stores["x"], "r": stores["r"]}, whole=True, packed=True)
    gather = data._streams.batch
    data._streams.batch = lambda ids: calls.append(list(ids)) or gather(ids)
    loader = DataLoader(
        data, batch_sampler=zt.BatchSampler(N, 16), collate_fn=zt.collate
    )
    got = [batch["x"][:, 0, 0].tolist() for batch in loader]
    assert got == calls == ids_of(range(N // 16))


@pytest.mark.parametrize("mode", list(Mode))
def test_samplers_of_every_mode(mode):
    batches = list(zt.BatchSampler(N, 16, mode, 7))
    assert batches == ids_of(range(len(batches)), mode=mode, seed=7) and len(batches) == N // 16
    assert list(zt.RecordSampler(N, 16, mode, 7)) == [i for batch in batches for i in batch]
    sampler = zt.BatchSampler(N, 16, mode, 7)
    sampler.set_epoch(3)
    sampler.seek(2)
    assert list(sampler) == ids_of(range(3 * 7 + 2, 4 * 7), mode=mode, seed=7)
    assert list(sampler) == ids_of(range(3 * 7, 4 * 7), mode=mode, seed=7)


def test_samplers_of_ranks_give_each_record_once():
    whole = list(zt.BatchSampler(N, 16))
    parts = [list(zt.BatchSampler(N, 16, rank=rank, world_size=3)) for rank in range(3)]
    assert [a + b + c for a, b, c in zip(*parts)] == whole
    assert len(zt.RecordSampler(N, 16, rank=0, world_size=3)) == sum(map(len, parts[0]))
    with pytest.raises(ValueError, match="rank"):
        zt.BatchSampler(N, 16, rank=3, world_size=3)
    with pytest.raises(ValueError, match="leaves none"):
        zt.BatchSampler(N, 2, rank=0, world_size=3)


# ---------------------------------------------------------------- iterable, workers


def steps_of(loader, count=None):
    batches = iter(loader)
    if count is None:
        return [batch["y"].tolist() for batch in batches]
    return [next(batches)["y"].tolist() for _ in range(count)]


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_workers_share_the_steps_and_keep_their_order(stores, workers):
    data = zt.IterDataset({"y": stores["y"], "r": stores["r"]}, 16, steps=11, start_step=5)
    loader = DataLoader(data, batch_size=None, num_workers=workers)
    assert steps_of(loader) == ids_of(range(5, 16)) and len(loader) == 11
    endless = zt.IterDataset({"y": stores["y"]}, 16)
    assert steps_of(DataLoader(endless, batch_size=None, num_workers=workers), 9) == ids_of(range(9))


def test_epochs_reach_persistent_workers(stores):
    data = zt.IterDataset({"y": stores["y"]}, 16, steps=4)
    loader = DataLoader(data, batch_size=None, num_workers=2, persistent_workers=True)
    for epoch in (0, 1, 5):
        data.set_epoch(epoch)
        assert steps_of(loader) == ids_of(range(4 * epoch, 4 * epoch + 4))
    with pytest.raises(ValueError, match="endless"):
        zt.IterDataset(stores["y"]).set_epoch(1)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_are_not_forked(stores, method):
    """A store pickles as its path; persistent workers live over two epochs."""
    streams = {"y": stores["y"], "r": stores["r"]}
    if method == "spawn":
        data = zt.IterDataset(streams, 16, steps=4, packed=True)
        options = {"batch_size": None}
    else:
        data = zt.MapDataset(streams, whole=True, packed=True)
        options = {"batch_sampler": zt.BatchSampler(N, 16, steps=4), "collate_fn": zt.collate}
    loader = DataLoader(
        data, num_workers=2, multiprocessing_context=method, persistent_workers=True, **options
    )
    assert steps_of(loader) == ids_of(range(4))
    if method == "spawn":
        data.set_epoch(2)
        assert steps_of(loader) == ids_of(range(8, 12))


def test_a_handle_opened_and_used_before_fork_is_right_in_each_child(stores):
    stores["x"][:]  # its thread pool and mapping are there
    data = zt.MapDataset({"x": stores["x"], "y": stores["y"]}, whole=True)
    for _ in range(3):
        loader = DataLoader(
            data, batch_sampler=zt.BatchSampler(N, 8), collate_fn=zt.collate, num_workers=3
        )
        for ids, batch in zip(ids_of(range(15), 8), loader):
            assert batch["y"].tolist() == ids and batch["x"][:, 1, 2].tolist() == ids


def test_ranks_of_an_iterable_dataset(stores):
    parts = [
        steps_of(zt.IterDataset({"y": stores["y"]}, 16, steps=6, rank=rank, world_size=2))
        for rank in range(2)
    ]
    assert [a + b for a, b in zip(*parts)] == ids_of(range(6))


def test_datasets_and_iterators_pickle_in_mid_epoch(stores):
    data = zt.IterDataset({"y": stores["y"], "r2": stores["r2"]}, 16, steps=8)
    steps = iter(data)
    assert next(steps)["y"].tolist() == ids_of([0])[0]
    again = pickle.loads(pickle.dumps(steps))
    rest = [batch["y"].tolist() for batch in again]
    assert rest == ids_of(range(1, 8)) == [batch["y"].tolist() for batch in steps]
    fresh = iter(pickle.loads(pickle.dumps(data)))
    fresh.load_state_dict({"step": 6})
    assert [batch["y"].tolist() for batch in fresh] == ids_of([6, 7])
    assert pickle.loads(pickle.dumps(zt.MapDataset(stores["y"])))[7] == 7


def test_a_failing_worker_names_store_and_record(tmp_path):
    with Dense.create(tmp_path / "d", "i8", (100,), "zstd") as writer:
        writer.append(np.random.default_rng(0).integers(0, 9, (50, 100)))
    with open(tmp_path / "d" / "data.zr", "r+b") as file:
        file.write(b"\0" * 40)
    with zrecord.open(tmp_path / "d") as store:
        loader = DataLoader(zt.IterDataset(store, 50, steps=2), batch_size=None, num_workers=1)
        with pytest.raises(zrecord.ZrecordError, match=r"d/data\.zr: record 0"):
            list(loader)


def test_refusals(stores, tmp_path):
    with pytest.raises(ValueError, match="at least one"):
        zt.MapDataset({})
    with pytest.raises(ValueError, match="opened for reading"):
        zt.MapDataset({"a": np.zeros(3)})
    with Dense.create(tmp_path / "s", "i4", ()) as writer:
        writer.append(np.zeros(7, "i4"))
    with zrecord.open(tmp_path / "s") as short, pytest.raises(ValueError, match="differ"):
        zt.IterDataset({"x": stores["x"], "s": short})
    with pytest.raises(ValueError, match="records, not"):
        zt.IterDataset(stores["x"], sampler=Sampler(7, 2, 0))
    with pytest.raises(TypeError):
        len(zt.IterDataset(stores["x"]))


# ---------------------------------------------------------------- without torch


BLOCKED = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "jax", "tqdm", "h5py"):
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Block())
import numpy, zrecord
assert not {"torch", "jax"} & set(sys.modules)
with zrecord.DataLoader({"x": zrecord.open(sys.argv[1])}, batch_size=16) as loader:
    assert next(loader)["x"].shape == (16, 2, 3)
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    zrecord.DataLoader({"x": zrecord.open(sys.argv[1])}, progress=True).close()
assert any("tqdm" in str(one.message) for one in caught)
try:
    import zrecord.torch
except ImportError as error:
    assert "torch is blocked" in str(error)
else:
    raise SystemExit("zrecord.torch without torch")
"""


def test_an_installation_with_numpy_alone_never_imports_torch(folder):
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, folder / "x"], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")


# In a process of its own: forks of later tests would meet its threads.
THROUGH_DLPACK = """
import sys, jax, zrecord
streams = {name: zrecord.open(sys.argv[1] + "/" + name) for name in "xyr"}
with zrecord.DataLoader(streams, batch_size=16, packed=True) as loader:
    batch = next(loader)
    x = jax.numpy.from_dlpack(batch["x"])
    assert x.shape == (16, 2, 3) and x[:, 0, 0].tolist() == batch["y"].tolist()
    assert jax.numpy.from_dlpack(batch["r"][0]).tolist() == batch["r"][0].tolist()
"""


def test_batches_reach_jax_through_dlpack(folder):
    if not importlib.util.find_spec("jax"):
        pytest.skip("jax is not installed (tools/setup.sh tests)")
    done = subprocess.run(
        [sys.executable, "-c", THROUGH_DLPACK, folder],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 0, done.stderr
