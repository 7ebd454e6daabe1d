# SPDX-License-Identifier: MIT
"""Ragged: records with their own shapes."""

import gc
import weakref

import numpy as np
import pytest

import zrecord
from zrecord import Ragged


def some_records(count=40, seed=0, dtype=np.int32):
    rng = np.random.default_rng(seed)
    shapes = [tuple(rng.integers(1, 6, rng.integers(0, 5))) for _ in range(count)]
    return [rng.integers(0, 100, shape).astype(dtype) for shape in shapes]


def same(got, expected):
    assert isinstance(got, list) and len(got) == len(expected)
    for a, b in zip(got, expected):
        assert type(a) is np.ndarray
        assert a.shape == b.shape and a.dtype == b.dtype
        assert np.array_equal(a, b)


@pytest.fixture
def records():
    return some_records()


@pytest.fixture(params=["raw", "zstd"])
def store(request, tmp_path, records):
    with Ragged.create(tmp_path / "s", np.int32, request.param) as writer:
        writer.append(records)
    with Ragged.open(tmp_path / "s") as reader:
        yield reader


def test_attributes(store):
    assert len(store) == 40 and store.dtype == np.int32
    assert not hasattr(store, "item_shape")
    assert not store.has_dict()


def test_scalar_gives_one_record(store, records):
    for i in (0, 39, np.int64(7), np.uint8(8)):
        same([store[i]], [records[i]])
        assert store[i].flags.writeable and store[i].flags.c_contiguous


def test_lists_of_records(store, records):
    same(store[0, 5, 2], [records[i] for i in (0, 5, 2)])
    same(store[[3, 3]], [records[3]] * 2)
    same(store[:], records)
    same(store[::-3], records[::-3])
    same(store[()], [])
    same(store[np.zeros(0)], [])
    mask = np.arange(40) % 4 == 1
    same(store[mask], records[1::4])
    same(store[np.array([[0, 1], [1, 0]])], [records[i] for i in (0, 1, 1, 0)])
    same(store.gather(3), [records[3]])
    same(store.__getitems__(np.array([9, 8], ">u2")), [records[9], records[8]])
    same(list(store), records)


@pytest.mark.parametrize(
    "key, error",
    [
        (-1, IndexError),
        (40, IndexError),
        ([0.5], TypeError),
        (True, TypeError),
        (2**70, TypeError),
        (slice(-1, None), IndexError),
        ([True], IndexError),
        ("a", TypeError),
    ],
    ids=repr,
)
def test_wrong_indices(store, key, error):
    with pytest.raises(error):
        store[key]
    with pytest.raises(error):
        store.packed(key)


def test_out_is_refused(store):
    with pytest.raises(TypeError):
        store.gather([0], out=np.empty(5))


def test_records_of_a_batch_share_one_allocation(store, records):
    batch = store[:]
    owner = batch[0].base
    assert all(record.base is owner for record in batch)
    batch[0][...] = -1
    same(batch[1:], records[1:])
    same(store[:1], records[:1])
    last = batch[-1]
    del batch
    gc.collect()
    assert np.array_equal(last, records[-1])


@pytest.mark.parametrize("count", [1, 256, 257, 3000])
def test_long_lists(tmp_path, count):
    records = [np.full(i % 7 + 1, i, np.uint16) for i in range(3000)]
    with Ragged.create(tmp_path / "s", np.uint16) as writer:
        writer.append(records)
    with Ragged.open(tmp_path / "s") as reader:
        ids = np.random.default_rng(count).integers(0, 3000, count)
        same(reader[ids], [records[i] for i in ids])


@pytest.mark.parametrize("dtype", ["u1", "?", ">f8", "S3", "<U2", "V5", "c16", "g", "M8[us]"])
def test_dtypes(tmp_path, dtype):
    dtype = np.dtype(dtype)
    records = [np.zeros(n, dtype) for n in (1, 2, 17)] + [
        np.zeros((), dtype),
        np.zeros((2, 3), dtype),
    ]
    with Ragged.create(tmp_path / "s", dtype) as writer:
        writer.append(records)
    with Ragged.open(tmp_path / "s") as reader:
        batch = reader[:]
        for got, expected in zip(batch, records):
            assert got.dtype == dtype and got.shape == expected.shape
            assert got.tobytes() == expected.tobytes()
            address = got.__array_interface__["data"][0]
            assert got.flags.aligned == (address % dtype.alignment == 0)


# ---------------------------------------------------------------- packed


def unpack(packed):
    values, offsets, shapes = packed
    assert values.ndim == 1 and offsets.dtype == shapes.dtype == np.int64
    assert len(offsets) == len(shapes) + 1 and offsets[-1] == len(values)
    return [values[a:b].reshape(s[s >= 0]) for a, b, s in zip(offsets, offsets[1:], shapes)]


def test_packed_is_the_same_without_objects(store, records):
    same(unpack(store.packed(slice(None))), records)
    ids = [3, 3, 39, 0]
    same(unpack(store.packed(ids)), [records[i] for i in ids])
    assert store.packed(ids)[0].flags.writeable


def test_packed_of_nothing(store):
    values, offsets, shapes = store.packed([])
    assert values.dtype == np.int32 and len(values) == 0
    assert offsets.tolist() == [0] and len(shapes) == 0


def test_packed_of_scalars(tmp_path):
    with Ragged.create(tmp_path / "s", "f8") as writer:
        writer.append([np.array(1.5), np.array(2.5)])
    with Ragged.open(tmp_path / "s") as reader:
        values, offsets, shapes = reader.packed([1, 0])
        assert values.tolist() == [2.5, 1.5]
        assert offsets.tolist() == [0, 1, 2] and shapes.shape == (2, 0)


# ---------------------------------------------------------------- writing


def test_every_iterable_and_layout(tmp_path, records):
    more = [
        records[0],
        np.arange(20, dtype=np.int32)[::3],
        np.asfortranarray(np.arange(6, dtype=np.int32).reshape(2, 3)),
        np.arange(24, dtype=np.int32).reshape(2, 3, 4).T,
    ]
    with Ragged.create(tmp_path / "s", np.int32) as writer:
        writer.append(records)
        writer.append(tuple(more))
        writer.append(record for record in records)
        writer.append(iter(records))
        writer.append({i: record for i, record in enumerate(records)}.values())
        writer.append(np.arange(6, dtype=np.int32).reshape(2, 3))
        assert len(writer) == 4 * 40 + 4 + 2
    with Ragged.open(tmp_path / "s") as reader:
        same(
            reader[:],
            records + more + records * 3 + list(np.arange(6, dtype=np.int32).reshape(2, 3)),
        )


def test_rank_64_where_numpy_allows_it(tmp_path):
    rank = 64 if int(np.__version__.split(".")[0]) >= 2 else 32
    with Ragged.create(tmp_path / "s", "u1") as writer:
        writer.append([np.ones((1,) * rank, np.uint8)])
    with Ragged.open(tmp_path / "s") as reader:
        assert reader[0].shape == (1,) * rank


BAD = [
    (np.zeros(0, np.int32), ValueError),
    (np.zeros((3, 0), np.int32), ValueError),
    (np.zeros(3, np.int64), ValueError),
    (np.zeros(3, ">i4"), ValueError),
    ([1, 2], TypeError),
    (np.int32(1), TypeError),
    (b"abcd", TypeError),
    (None, TypeError),
]


@pytest.mark.parametrize("bad, error", BAD, ids=repr)
@pytest.mark.parametrize("wrap", [list, tuple, iter], ids=["list", "tuple", "iterator"])
def test_a_bad_record_leaves_the_writer_as_it_was(tmp_path, bad, error, wrap):
    good = np.arange(3, dtype=np.int32)
    with Ragged.create(tmp_path / "s", np.int32) as writer:
        writer.append([good])
        with pytest.raises(error):
            writer.append(wrap([good, good, bad]))
        assert len(writer) == 1
        writer.append([good])
    with Ragged.open(tmp_path / "s") as reader:
        same(reader[:], [good, good])


@pytest.mark.parametrize(
    "nothing",
    [[], (), iter([]), np.zeros((0, 3), np.int32)],
    ids=["list", "tuple", "iter", "array"],
)
def test_append_of_nothing(tmp_path, nothing):
    with Ragged.create(tmp_path / "s", np.int32) as writer:
        with pytest.raises(ValueError, match="at least one"):
            writer.append(nothing)


def test_append_of_no_iterable(tmp_path):
    with Ragged.create(tmp_path / "s", np.int32) as writer:
        for bad in (5, None, np.array(1, np.int32)):
            with pytest.raises(TypeError):
                writer.append(bad)
        with pytest.raises(TypeError):
            writer.append(np.arange(5, dtype=np.int32))


def test_a_generator_that_raises(tmp_path):
    def broken():
        yield np.ones(3, np.int32)
        raise KeyError("source")

    with Ragged.create(tmp_path / "s", np.int32) as writer:
        with pytest.raises(KeyError, match="source"):
            writer.append(broken())
        assert len(writer) == 0
        writer.append([np.ones(2, np.int32)])
    with Ragged.open(tmp_path / "s") as reader:
        assert len(reader) == 1


def late_failure():
    """More than a chunk of records, then a bad one."""
    big = np.zeros(1 << 20, np.int32)
    for _ in range(20):
        yield big
    yield "no array"


def test_a_late_failure_of_a_generator_publishes_nothing(tmp_path):
    writer = Ragged.create(tmp_path / "s", np.int32)
    with pytest.raises(TypeError):
        writer.append(late_failure())
    with pytest.raises(zrecord.ZrecordError, match="earlier append failed") as caught:
        writer.append([np.ones(1, np.int32)])
    assert caught.value.code == -16
    with pytest.raises(zrecord.ZrecordError, match="earlier append failed"):
        writer.close()
    assert writer.closed
    assert list(tmp_path.iterdir()) == []


def test_a_late_failure_of_a_list_leaves_the_writer_as_it_was(tmp_path):
    with Ragged.create(tmp_path / "s", np.int32) as writer:
        with pytest.raises(TypeError):
            writer.append(list(late_failure()))
        assert len(writer) == 0
        writer.append([np.ones(1, np.int32)])
    with Ragged.open(tmp_path / "s") as reader:
        assert len(reader) == 1


def test_a_long_generator_is_not_accumulated(tmp_path):
    alive, most = 0, 0

    def died():
        nonlocal alive
        alive -= 1

    class Tracked(np.ndarray):
        pass

    def source():
        nonlocal alive, most
        for i in range(300):
            record = np.full(1 << 20, i % 256, np.uint8).view(Tracked)
            weakref.finalize(record, died)
            alive += 1
            most = max(most, alive)
            yield record

    with Ragged.create(tmp_path / "s", np.uint8, "raw", durability="none") as writer:
        writer.append(source())
    assert most <= 66
    with Ragged.open(tmp_path / "s") as reader:
        assert len(reader) == 300 and reader[299][0] == 299 % 256


def test_an_iterable_must_not_append_to_the_same_writer(tmp_path):
    with Ragged.create(tmp_path / "s", np.int32) as writer:

        def greedy():
            yield np.ones(1, np.int32)
            writer.append([np.ones(1, np.int32)])

        with pytest.raises(RuntimeError, match="in use"):
            writer.append(greedy())

        def closing():
            yield np.ones(1, np.int32)
            writer.close()

        with pytest.raises(RuntimeError, match="in use"):
            writer.append(closing())
        writer.append([np.ones(2, np.int32)])
    with Ragged.open(tmp_path / "s") as reader:
        assert len(reader) == 1


def test_a_record_over_the_limit_is_refused_before_anything_is_copied(tmp_path):
    huge = np.broadcast_to(np.zeros(1, np.uint8), 2**31)
    with Ragged.create(tmp_path / "s", np.uint8) as writer:
        with pytest.raises(ValueError, match="exceeds the limit"):
            writer.append([huge])
        writer.append([np.zeros(1, np.uint8)])


def test_structured_and_object_dtypes(tmp_path):
    for dtype in (object, "i4,f4", "S", np.dtype("i4", metadata={"a": 1})):
        with pytest.raises(ValueError):
            Ragged.create(tmp_path / "s", dtype)
    assert list(tmp_path.iterdir()) == []


def test_empty_store(tmp_path):
    Ragged.create(tmp_path / "s", "f4").close()
    with Ragged.open(tmp_path / "s") as reader:
        assert len(reader) == 0 and reader[:] == [] and list(reader) == []


def test_recode_by_copying(store, tmp_path, records):
    with Ragged.create(tmp_path / "t", store.dtype, "zstd", level=9) as writer:
        writer.append(store[:])
    with Ragged.open(tmp_path / "t") as copy:
        same(copy[:], records)
