# SPDX-License-Identifier: MIT
"""What somebody sees who tries things at a prompt: reprs, names, and words about wrong arguments."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

import zrecord
from zrecord import CDLLoader, CDLShuffle, DataLoader, Dense, Mode, Ragged, Sampler, ZrecordError


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Dense.create("image", "u1", (2, 3)) as store:
        store.append(np.zeros((5, 2, 3), np.uint8))
    with Ragged.create("tokens", "i4", codec="raw") as store:
        store.append([np.zeros(n, np.int32) for n in (1, 2, 3)])
    return tmp_path


def notes(exc):
    return getattr(exc, "__notes__", [])


# ---------------------------------------------------------------- reprs


def test_repr_of_a_store_says_what_is_in_it(here):
    dense, ragged = zrecord.open("image"), zrecord.open("tokens")
    assert repr(dense) == "<zrecord.Dense 'image', reader: 5 records of uint8 (2, 3), zstd>"
    assert repr(ragged) == "<zrecord.Ragged 'tokens', reader: 3 records of int32, raw>"
    dense.close()
    assert repr(dense) == "<zrecord.Dense 'image', closed>"


def test_repr_of_a_writer_counts(here):
    with Dense.create("new", "f4", ()) as writer:
        writer.append(np.zeros(7, np.float32))
        assert repr(writer) == "<zrecord.Dense 'new', writer: 7 records of float32 (), zstd>"
    assert repr(writer) == "<zrecord.Dense 'new', closed>"


def test_repr_of_a_pickled_store_that_is_gone(here):
    text = pickle.dumps(zrecord.open("image"))
    os.rename("image", "elsewhere")
    assert repr(pickle.loads(text)).startswith("<zrecord.Dense 'image', reader")


def test_repr_of_a_loader(here):
    with zrecord.open("image") as image, DataLoader({"x": image}, batch_size=2, seed=3, transform=dict) as loader:
        next(loader)
        assert repr(loader) == "<zrecord.DataLoader of x: 5 records, batch_size=2, mode=CYCLIC, seed=3, step=1>"
    assert repr(loader) == "<zrecord.DataLoader, closed>"
    assert repr(DataLoader.__new__(DataLoader)) == "<zrecord.DataLoader, closed>"


def test_repr_of_block_datasets(here):
    dataset = zrecord.ZrecordBlockDataset("image", block_size=4)
    assert repr(dataset) == "<zrecord.ZrecordBlockDataset: 5 samples in blocks of 4>"
    assert repr(CDLLoader(dataset, 3)) == f"<zrecord.CDLLoader of {dataset!r}, batch_size=3, epoch=None>"


# ---------------------------------------------------------------- names


def test_submodules_need_no_import():
    code = (
        "import sys, zrecord\n"
        "assert 'TYPE_CHECKING' not in dir(zrecord)\n"
        "assert zrecord.cdl.CDLLoader is zrecord.CDLLoader\n"
        "assert zrecord.archive.load_archive is zrecord.load_archive\n"
        "assert 'torch' not in sys.modules\n"
        "assert not hasattr(zrecord, 'nope')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_torch_by_attribute():
    pytest.importorskip("torch")
    subprocess.run([sys.executable, "-c", "import zrecord; zrecord.torch.to_torch"], check=True)


def test_torch_by_attribute_without_torch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import zrecord\n"
        "assert not hasattr(zrecord, 'torch')\n"
        "try: zrecord.torch\n"
        "except AttributeError as exc: assert 'zrecord.torch cannot be imported' in str(exc), exc\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ---------------------------------------------------------------- wrong arguments


@pytest.mark.parametrize("streams", [None, 5, "ab", ["image"], "store", "stores"])
def test_streams_that_are_no_mapping(here, streams):
    image = zrecord.open("image")
    streams = {"store": image, "stores": [image]}.get(streams, streams) if isinstance(streams, str) else streams
    with pytest.raises(TypeError, match="streams must map names to stores, like .*, not "):
        DataLoader(streams)


def test_a_store_of_pairs_is_no_mapping_of_streams(here):
    with Dense.create("pairs", "i4", (2,)) as store:
        store.append(np.arange(6, dtype=np.int32).reshape(3, 2))
    with pytest.raises(TypeError, match="not Dense"):
        DataLoader(zrecord.open("pairs"))


@pytest.mark.parametrize("mode", ["cyclic", None, 2.0])
def test_a_mode_that_is_none(here, mode):
    with pytest.raises(TypeError, match=f"mode must be a Mode, like Mode.CYCLIC, not {mode!r}"):
        Sampler(10, 2, mode)
    with pytest.raises(TypeError, match="mode must be a Mode"):
        DataLoader({"image": zrecord.open("image")}, mode=mode)


@pytest.mark.parametrize("name,value", [("length", "a"), ("batch_size", 2.5), ("seed", None), ("block_size", "4")])
def test_numbers_of_a_sampler_are_named(name, value):
    options = {"length": 10, "batch_size": 2, "mode": Mode.BLOCK} | {name: value}
    with pytest.raises(TypeError, match=f"{name} must be an integer, not {type(value).__name__}"):
        Sampler(**options)


def test_what_ragged_cannot_append(here):
    with pytest.raises(TypeError, match="append takes an iterable of numpy arrays, not int"):
        with Ragged.create("new", "i4") as store:
            store.append(5)
    assert not os.path.exists("new")


def test_a_loader_of_what_is_no_dataset(here):
    with pytest.raises(TypeError, match="must be a BlockDataset, not str: it has no block_size"):
        CDLLoader("image")


@pytest.mark.parametrize("interleave", [1, 2])
@pytest.mark.parametrize("position", [-1, 10])
def test_a_position_outside(position, interleave):
    with pytest.raises(IndexError, match=rf"^position {position} is outside 0\.\.9$"):
        CDLShuffle(10, 3, interleave=interleave).permute(position)


def test_a_folder_that_is_missing(here):
    with pytest.raises(FileNotFoundError, match="nope"):
        zrecord.DirectoryBlockDataset("nope")
    with pytest.raises(NotADirectoryError):
        zrecord.DirectoryBlockDataset("image/meta.zr", block_size=3)
    with pytest.raises(ValueError, match="'nope' is missing"):
        zrecord.infer_block_size("nope")


# ---------------------------------------------------------------- what is no store


def test_opening_what_is_no_store_says_what_it_is(here):
    zrecord.save_archive({"x": np.zeros(3)}, "a.tdz")
    np.save("a.npy", np.zeros(3))
    os.mkdir("empty")
    words = {"a.tdz": ["it is a memmap archive: load_archive() opens it"],
             "a.npy": ["`zrecord import` makes a store of it"],
             "empty": []}
    for open_one in zrecord.open, Dense.open, Ragged.open:
        for path, expected in words.items():
            with pytest.raises(ZrecordError, match=f"^{path}: not a zrecord store") as info:
                open_one(path)
            assert notes(info.value) == expected
        with pytest.raises(ZrecordError) as info:
            open_one(".")
        assert "it holds stores, like " in notes(info.value)[0]


def test_a_warning_of_opening_names_the_line_that_opens(here):
    os.rename("image/side.zr", "x")
    os.rename("tokens/side.zr", "image/side.zr")
    for open_one in zrecord.open, Dense.open:
        with pytest.warns(zrecord.ZrecordWarning) as caught:
            open_one("image")
        assert [one.filename for one in caught] == [__file__]
