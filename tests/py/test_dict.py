# SPDX-License-Identifier: MIT
"""Dictionaries: training from every source, and stores that need them."""

import threading
import time

import numpy as np
import pytest

import zrecord
from zrecord import DICT_TIERS, Dense, Ragged, train_dict


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    words = rng.integers(0, 50_000, (500, 16))
    return words[rng.integers(0, 500, (3000, 8))].reshape(3000, 128).astype(np.int32)


def test_tiers():
    assert {tier: preset["size"] for tier, preset in DICT_TIERS.items()} == {
        "fast": 32 << 10,
        "balanced": 128 << 10,
        "max": 1 << 20,
    }
    assert DICT_TIERS["balanced"]["samples"] == 16 << 20


@pytest.mark.parametrize("tier", ["fast", "balanced", "max", None])
def test_a_dictionary_is_bytes_within_its_tier(rows, tier):
    dictionary = train_dict(rows, tier)
    assert isinstance(dictionary, bytes)
    assert 0 < len(dictionary) <= DICT_TIERS[tier or "balanced"]["size"]
    assert dictionary[:4] == b"\x37\xa4\x30\xec"


def test_sources(rows, tmp_path):
    with Dense.create(tmp_path / "d", rows.dtype, (128,)) as writer:
        writer.append(rows)
    with Ragged.create(tmp_path / "r", rows.dtype) as writer:
        writer.append([row[: 64 + i % 64] for i, row in enumerate(rows)])
    with Dense.open(tmp_path / "d") as dense, Ragged.open(tmp_path / "r") as ragged:
        sources = [
            rows,
            rows[:, ::2],
            dense,
            ragged,
            list(rows),
            iter(rows),
            [row.tobytes() for row in rows],
            (bytearray(row) for row in rows),
            rows.tolist(),
        ]
        for source in sources:
            assert train_dict(source, "fast")[:4] == b"\x37\xa4\x30\xec"


def test_path_also_gets_it(rows, tmp_path):
    dictionary = train_dict(rows, tier="fast", path=tmp_path / "d.dict")
    assert (tmp_path / "d.dict").read_bytes() == dictionary


@pytest.mark.parametrize("tier", ["huge", "", 5, "FAST"])
def test_unknown_tiers(rows, tier):
    with pytest.raises(ValueError, match="balanced"):
        train_dict(rows, tier)


def test_refused_sources(rows, tmp_path):
    for empty in (np.zeros((0, 4)), [], iter([]), np.array(1.0)):
        with pytest.raises(ValueError, match="at least one record"):
            train_dict(empty)
    with Dense.create(tmp_path / "w", "i4", ()) as writer:
        with pytest.raises(ValueError, match="writer"):
            train_dict(writer)
    with (
        Dense.open(tmp_path / "w") as empty,
        pytest.raises(ValueError, match="at least one record"),
    ):
        train_dict(empty)
    with pytest.raises(zrecord.ZrecordError) as caught:
        train_dict(np.zeros((2, 1), np.uint8))
    assert caught.value.code == -9


def test_an_iterable_is_read_only_as_far_as_needed():
    taken = 0

    def endless():
        nonlocal taken
        rng = np.random.default_rng(1)
        while True:
            taken += 1
            yield rng.integers(0, 30, 1 << 16).astype(np.uint8)

    train_dict(endless(), "fast")
    assert taken == (4 << 20) >> 16


@pytest.mark.parametrize("geometry", ["dense", "ragged"])
def test_stores_with_a_dictionary(rows, tmp_path, geometry):
    dictionary = train_dict(rows, "fast")
    if geometry == "dense":
        writer = Dense.create(tmp_path / "s", rows.dtype, (128,), "zstd_dict", dictionary)
    else:
        writer = Ragged.create(
            tmp_path / "s", rows.dtype, codec="zstd_dict", dict_bytes=bytearray(dictionary)
        )
    with writer:
        assert writer.has_dict()
        writer.append(rows if geometry == "dense" else list(rows))
    with zrecord.open(tmp_path / "s") as reader:
        assert reader.codec == "zstd_dict" and reader.has_dict()
        assert np.array_equal(np.stack(list(reader[:])), rows)
        assert np.array_equal(reader[7], rows[7])
        assert zrecord.verify(reader).ok
    assert (tmp_path / "s" / "dict.zr").read_bytes() == dictionary
    plain = tmp_path / "p"
    with Dense.create(plain, rows.dtype, (128,)) as writer:
        writer.append(rows)
    assert (tmp_path / "s" / "data.zr").stat().st_size < (plain / "data.zr").stat().st_size


def test_bytes_that_are_no_trained_dictionary(rows, tmp_path):
    """Raw content is a dictionary to zstd as well; whatever is taken must read back."""
    try:
        with Dense.create(
            tmp_path / "s", rows.dtype, (128,), "zstd_dict", rows[:50].tobytes()
        ) as writer:
            writer.append(rows)
    except zrecord.ZrecordError as exc:
        assert exc.code == -10
        assert list(tmp_path.iterdir()) == []
    else:
        with Dense.open(tmp_path / "s") as reader:
            assert np.array_equal(reader[:], rows)


def test_training_releases_the_gil(rows):
    ticks, stop = 0, threading.Event()

    def tick():
        nonlocal ticks
        while not stop.is_set():
            ticks += 1
            time.sleep(0.001)

    data = np.random.default_rng(2).integers(0, 40, (8 << 20,)).astype(np.uint8).reshape(-1, 512)
    thread = threading.Thread(target=tick)
    thread.start()
    start = time.monotonic()
    train_dict(data)
    elapsed = time.monotonic() - start
    stop.set()
    thread.join()
    assert ticks > elapsed * 50
