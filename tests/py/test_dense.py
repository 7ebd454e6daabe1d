# SPDX-License-Identifier: MIT
"""Dense: creation, appending, every way to read."""

import gc
import pathlib

import numpy as np
import pytest

import zrecord
from zrecord import Dense

CODECS = ["raw", "zstd"]


@pytest.fixture
def data():
    return np.arange(120, dtype=np.int32).reshape(10, 3, 4)


@pytest.fixture(params=CODECS)
def store(request, tmp_path, data):
    with Dense.create(tmp_path / "s", data.dtype, data.shape[1:], request.param) as writer:
        writer.append(data)
    with Dense.open(tmp_path / "s") as reader:
        yield reader


def test_attributes_come_from_the_schema(store, tmp_path):
    assert len(store) == 10
    assert store.dtype == np.int32
    assert store.item_shape == (3, 4)
    assert store.codec in CODECS
    assert store.path == tmp_path / "s" and isinstance(store.path, pathlib.Path)
    assert not store.has_dict()
    assert not store._writable and not store.closed


def test_scalar_gives_one_record(store, data):
    for i in (0, 9, np.int64(3), np.uint8(7)):
        record = store[i]
        assert record.shape == (3, 4) and record.dtype == data.dtype
        assert np.array_equal(record, data[i])
        assert record.flags.c_contiguous and record.flags.writeable


def test_scalar_of_scalar_records_is_a_numpy_scalar(tmp_path):
    with Dense.create(tmp_path / "s", "<M8[ms]", ()) as writer:
        writer.append(np.arange(5).astype("<M8[ms]"))
    with Dense.open(tmp_path / "s") as reader:
        assert isinstance(reader[2], np.datetime64)
        assert reader[2] == np.datetime64(2, "ms")
        assert reader[1:3].tolist() == np.arange(1, 3).astype("<M8[ms]").tolist()


@pytest.mark.parametrize("dtype", [">i4", "S5", "U3", "V7", "?", ">c16", "f2", "S300"])
def test_scalar_records_of_odd_dtypes(tmp_path, dtype):
    dtype = np.dtype(dtype)
    data = np.frombuffer(np.random.default_rng(1).bytes(dtype.itemsize * 4), np.uint8)
    if dtype.kind in "SUb":
        data = np.array([1, 0, 1, 1]).astype(dtype)
    else:
        data = data.view(dtype)
    with Dense.create(tmp_path / "s", dtype, ()) as writer:
        writer.append(data)
    with Dense.open(tmp_path / "s") as reader:
        for i in range(4):
            assert type(reader[i]) is type(data[i])
            assert np.asarray(reader[i]).tobytes() == np.asarray(data[i]).tobytes()
        assert reader[:].tobytes() == data.tobytes()


@pytest.mark.parametrize(
    "key",
    [
        (0, 5, 2),
        [0, 5, 2],
        (),
        [],
        slice(None),
        slice(None, 4),
        slice(2, 100),
        slice(None, None, -1),
        slice(8, 1, -3),
        slice(20, 30),
        range(3),
        np.array([1, 1, 1]),
        np.array([3, 4], ">i2"),
        np.array([3, 4], np.uint8),
        np.array([9, 0], np.uint64),
        np.arange(10)[::-2],
        np.zeros(0),
        [True] * 5 + [False] * 5,
        np.arange(10) % 3 == 0,
        np.zeros(10, bool),
    ],
    ids=repr,
)
def test_lists_of_records(store, data, key):
    expected = data[np.arange(10)[key] if isinstance(key, slice) else mask_or_ids(key)]
    batch = store[key]
    assert batch.shape == expected.shape and np.array_equal(batch, expected)
    assert batch.flags.c_contiguous and batch.flags.writeable
    assert np.array_equal(store.__getitems__(key), expected)
    assert np.array_equal(store.gather(key), expected)


def mask_or_ids(key):
    array = np.asarray(key)
    return array if array.dtype == bool else array.astype(np.int64)


def test_nested_ids_are_flattened(store, data):
    key = np.array([[0, 1], [1, 0]])
    assert np.array_equal(store[key], data[[0, 1, 1, 0]])
    assert np.array_equal(store[key.T[:, ::-1]], data[key.T[:, ::-1].ravel()])
    assert np.array_equal(store[np.array(3)], data[3:4])


def test_gather_of_a_scalar_is_a_batch_of_one(store, data):
    assert np.array_equal(store.gather(3), data[3:4])
    assert np.array_equal(store.__getitems__(3), data[3:4])


@pytest.mark.parametrize(
    "key, error",
    [
        (-1, IndexError),
        (10, IndexError),
        (2**63, IndexError),
        (2**64, TypeError),
        (-(2**70), TypeError),
        ([-1], IndexError),
        ([0, 10], IndexError),
        (np.array([-1], np.int8), IndexError),
        (np.array([10], np.uint64), IndexError),
        (slice(-1, None), IndexError),
        (slice(None, -1), IndexError),
        (slice(None, None, 0), ValueError),
        (slice("a"), TypeError),
        (slice(None, None, 0.5), TypeError),
        (True, TypeError),
        (np.bool_(True), TypeError),
        (np.array(True), IndexError),
        ([True] * 9, IndexError),
        ([[True] * 10], IndexError),
        (1.0, TypeError),
        ([0.5], TypeError),
        (np.array([1.0]), TypeError),
        (np.float64(2), TypeError),
        ("a", TypeError),
        (b"a", TypeError),
        (None, TypeError),
        (..., TypeError),
        ({1, 2}, TypeError),
        (np.array([1, 2], object), TypeError),
        (np.array([1], "M8[s]"), TypeError),
        ([1, [2]], (ValueError, TypeError)),  # NumPy before 1.24 makes objects of it
    ],
    ids=repr,
)
def test_wrong_indices(store, key, error):
    with pytest.raises(error):
        store[key]
    with pytest.raises(error):
        store.gather(key)
    with pytest.raises(error):
        store.prefetch(key)


def test_messages_name_the_offending_id(store):
    with pytest.raises(IndexError, match="12 is outside 0..9"):
        store[[1, 12]]
    with pytest.raises(IndexError, match="negative.* -3 "):
        store[[1, -3]]
    with pytest.raises(TypeError, match="float64"):
        store[[1.5]]


@pytest.mark.parametrize("key", [12, np.uint64(12), 2**63, -3, [1, 12], np.array([12]), [-3]], ids=repr)
def test_messages_name_the_store(store, key):
    for call in (store.__getitem__, store.gather, store.prefetch):
        with pytest.raises(IndexError) as caught:
            call(key)
        assert str(caught.value).startswith(f"{store.path}: ")
    store.close()
    with pytest.raises(RuntimeError) as caught:
        store[0]
    assert str(caught.value) == f"{store.path}: the store is closed"


def test_iteration_ends(store, data):
    assert np.array_equal(np.stack(list(store)), data)
    assert np.array_equal(np.stack(list(reversed(store))), data[::-1])


def test_batches_belong_to_the_caller(store, data):
    first, second = store[:], store[:]
    first[...] = -1
    assert np.array_equal(second, data)
    assert np.array_equal(store[:], data)


def test_batch_outlives_the_store(tmp_path):
    data = np.random.default_rng(0).integers(0, 9, (64, 1000))
    with Dense.create(tmp_path / "s", data.dtype, (1000,)) as writer:
        writer.append(data)
    reader = Dense.open(tmp_path / "s")
    batch = reader[:]
    reader.close()
    del reader
    gc.collect()
    zrecord.trim_memory(0)
    assert np.array_equal(batch, data)


def test_out_is_filled_and_returned(store, data):
    out = np.empty((3, 3, 4), np.int32)
    assert store.gather([5, 5, 1], out) is out
    assert np.array_equal(out, data[[5, 5, 1]])
    assert store.gather([5, 5, 1], out=out) is out
    part = np.zeros((5, 3, 4), np.int32)
    store.gather([1, 2], out=part[2:4])
    assert np.array_equal(part[2:4], data[1:3]) and not part[[0, 1, 4]].any()


@pytest.mark.parametrize(
    "out, error",
    [
        (np.empty((2, 3, 4), np.int32), ValueError),
        (np.empty((3, 3, 4), np.int64), ValueError),
        (np.empty((3, 3, 4), ">i4"), ValueError),
        (np.empty((3, 12), np.int32), ValueError),
        (np.empty((3, 3, 8), np.int32)[:, :, ::2], ValueError),
        (np.empty((4, 3, 3), np.int32).T, ValueError),
        (bytearray(144), TypeError),
    ],
)
def test_out_that_does_not_fit(store, out, error):
    with pytest.raises(error):
        store.gather([0, 1, 2], out=out)


def test_out_must_be_writable(store):
    out = np.empty((1, 3, 4), np.int32)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="writable"):
        store.gather([0], out=out)


@pytest.mark.parametrize("count", [1, 255, 256, 257, 5000])
def test_long_lists(tmp_path, count):
    data = np.arange(5000, dtype=np.uint16)
    with Dense.create(tmp_path / "s", data.dtype, ()) as writer:
        writer.append(data)
    with Dense.open(tmp_path / "s") as reader:
        ids = np.random.default_rng(count).integers(0, 5000, count)
        assert np.array_equal(reader[ids], data[ids])
        assert np.array_equal(reader[ids.tolist()], data[ids])
        assert np.array_equal(reader[tuple(ids.tolist())], data[ids])


def test_empty_store(tmp_path):
    Dense.create(tmp_path / "s", "f4", (2,)).close()
    with Dense.open(tmp_path / "s") as reader:
        assert len(reader) == 0 and not reader
        assert reader[:].shape == (0, 2)
        assert reader[[]].dtype == np.float32
        assert reader[np.zeros(0, bool)].shape == (0, 2)
        assert list(reader) == []
        with pytest.raises(IndexError):
            reader[0]


def test_prefetch_is_only_a_hint(store, data):
    assert store.prefetch([1, 2, 3]) == 0  # just written, so in memory
    assert store.prefetch(slice(None)) == 0
    assert np.array_equal(store[[1, 2, 3]], data[1:4])


def test_reading_with_checksums(tmp_path, data):
    with Dense.create(tmp_path / "s", data.dtype, (3, 4), "raw") as writer:
        writer.append(data)
    with Dense.open(tmp_path / "s", checksums=True) as reader:
        assert np.array_equal(reader[:], data)
    with open(tmp_path / "s" / "data.zr", "r+b") as file:
        file.seek(50)
        file.write(b"\xff")
    with Dense.open(tmp_path / "s", checksums=True) as reader:
        with pytest.raises(zrecord.ZrecordError) as caught:
            reader[:]
        assert caught.value.code == -18 and caught.value.record == 1
    with Dense.open(tmp_path / "s") as reader:
        assert reader[:].shape == data.shape


# ---------------------------------------------------------------- writing


def test_append_takes_what_is_contiguous_and_what_is_not(tmp_path, data):
    parts = [
        data,
        data[::-1],
        np.asfortranarray(data),
        data[:, ::1][1:2],
        data.transpose(0, 2, 1).copy().transpose(0, 2, 1),
    ]
    with Dense.create(tmp_path / "s", data.dtype, (3, 4)) as writer:
        for part in parts:
            assert writer.append(part) is None
        assert len(writer) == sum(map(len, parts))
    with Dense.open(tmp_path / "s") as reader:
        assert np.array_equal(reader[:], np.concatenate(parts))


def test_append_of_a_mapped_file_and_of_a_subclass(tmp_path, data):
    np.save(tmp_path / "d.npy", data)
    with Dense.create(tmp_path / "s", data.dtype, (3, 4)) as writer:
        writer.append(np.load(tmp_path / "d.npy", mmap_mode="r"))
        writer.append(np.ma.array(data))
    with Dense.open(tmp_path / "s") as reader:
        assert np.array_equal(reader[:10], data) and np.array_equal(reader[10:], data)


def test_strided_batch_larger_than_a_piece(tmp_path):
    data = np.arange(40 << 20, dtype=np.uint16).reshape(-1, 2)[:, ::-1]
    with Dense.create(tmp_path / "s", data.dtype, (2,), "raw", durability="none") as writer:
        writer.append(data)
    with Dense.open(tmp_path / "s") as reader:
        assert np.array_equal(reader[:], data)


def test_append_of_scalars(tmp_path):
    with Dense.create(tmp_path / "s", "i8", ()) as writer:
        writer.append(np.array(3))
        writer.append(np.array([4, 5]))
    with Dense.open(tmp_path / "s") as reader:
        assert reader[:].tolist() == [3, 4, 5]


@pytest.mark.parametrize(
    "batch, error",
    [
        ([[1, 2]], TypeError),
        (b"12345678", TypeError),
        (np.int32(1), TypeError),
        (np.zeros(2, np.int32), ValueError),
        (np.zeros((1, 3), np.int32), ValueError),
        (np.zeros((1, 2, 1), np.int32), ValueError),
        (np.zeros((0, 2), np.int32), ValueError),
        (np.zeros((1, 2), np.int64), ValueError),
        (np.zeros((1, 2), ">i4"), ValueError),
        (np.zeros((1, 2), np.uint32), ValueError),
        (np.array(1, np.int32), ValueError),
    ],
)
def test_refused_batches_leave_the_writer_usable(tmp_path, batch, error):
    with Dense.create(tmp_path / "s", np.int32, (2,)) as writer:
        with pytest.raises(error):
            writer.append(batch)
        writer.append(np.ones((1, 2), np.int32))
    with Dense.open(tmp_path / "s") as reader:
        assert reader[:].tolist() == [[1, 1]]


def test_a_writer_cannot_be_read_nor_a_reader_appended_to(tmp_path, data):
    writer = Dense.create(tmp_path / "s", np.int32, (3, 4))
    assert writer._writable and len(writer) == 0
    for read in (
        lambda: writer[0],
        lambda: writer[:],
        lambda: writer.gather([0]),
        lambda: next(iter(writer)),
    ):
        with pytest.raises(RuntimeError, match="cannot be read"):
            read()
    writer.append(data)
    writer.close()
    writer.close()
    for use in (lambda: len(writer), lambda: writer[0], lambda: writer.append(data)):
        with pytest.raises(RuntimeError, match="closed"):
            use()
    assert writer.dtype == np.int32 and writer.item_shape == (3, 4)
    reader = Dense.open(tmp_path / "s")
    with pytest.raises(RuntimeError, match="cannot be appended"):
        reader.append(data)
    reader.close()
    reader.close()
    for use in (
        lambda: len(reader),
        lambda: reader[0],
        lambda: reader[:],
        lambda: reader.gather([]),
    ):
        with pytest.raises(RuntimeError, match="closed"):
            use()
    assert reader.closed and reader.codec == "zstd"


def test_nothing_is_there_before_close(tmp_path, data):
    path = tmp_path / "deep" / "er" / "s"
    writer = Dense.create(path, np.int32, (3, 4))
    writer.append(data)
    assert not path.exists()
    with pytest.raises(FileNotFoundError):
        Dense.open(path)
    writer.close()
    with Dense.open(path) as reader:
        assert np.array_equal(reader[:], data)


def test_leaving_by_an_exception_publishes_nothing(tmp_path, data):
    with pytest.raises(KeyError):
        with Dense.create(tmp_path / "s", np.int32, (3, 4)) as writer:
            writer.append(data)
            raise KeyError
    assert writer.closed
    assert list(tmp_path.iterdir()) == []


def test_abort_publishes_nothing(tmp_path, data):
    writer = Dense.create(tmp_path / "s", np.int32, (3, 4))
    writer.append(data)
    writer.abort()
    writer.abort()
    writer.close()
    assert list(tmp_path.iterdir()) == []


def test_a_forgotten_writer_warns_and_is_discarded(tmp_path, data):
    writer = Dense.create(tmp_path / "s", np.int32, (3, 4))
    writer.append(data)
    with pytest.warns(ResourceWarning, match="never closed"):
        del writer
        gc.collect()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "options",
    [
        {"level": 1},
        {"level": 19},
        {"tune": "read"},
        {"tune": "write"},
        {"tune": "default"},
        {"durability": "none"},
        {"checksums": False},
    ],
)
def test_options_change_the_bytes_not_the_records(tmp_path, data, options):
    with Dense.create(tmp_path / "s", np.int32, (3, 4), **options) as writer:
        writer.append(data)
    with zrecord.open(tmp_path / "s") as reader:
        assert np.array_equal(reader[:], data)
        result = zrecord.verify(reader)
    assert result.ok and result.checked == 10
    assert result.checksums_compared == options.get("checksums", True)


@pytest.mark.parametrize(
    "changes, error",
    [
        ({"dtype": object}, ValueError),
        ({"dtype": "i4,f4"}, ValueError),
        ({"dtype": np.dtype(("i4", (2,)))}, ValueError),
        ({"dtype": np.dtype("i4", metadata={"a": 1})}, ValueError),
        ({"dtype": "S"}, ValueError),
        ({"dtype": "U0"}, ValueError),
        ({"dtype": "nonsense"}, TypeError),
        ({"item_shape": 5}, ValueError),
        ({"item_shape": (-1,)}, ValueError),
        ({"item_shape": (1.5,)}, ValueError),
        ({"item_shape": (True,)}, ValueError),
        ({"item_shape": (0,)}, ValueError),
        ({"item_shape": (1,) * 64}, ValueError),
        ({"item_shape": (2**31,)}, ValueError),
        ({"item_shape": (2**62, 2**62)}, ValueError),
        ({"codec": "gzip"}, ValueError),
        ({"codec": None}, ValueError),
        ({"codec": 1}, ValueError),
        ({"codec": ["zstd"]}, ValueError),
        ({"codec": "zstd_dict"}, ValueError),
        ({"codec": "zstd_dict", "dict_bytes": b""}, ValueError),
        ({"dict_bytes": b"abc"}, ValueError),
        ({"dict_bytes": b""}, ValueError),
        ({"codec": "raw", "level": 3}, ValueError),
        ({"level": "high"}, TypeError),
        ({"level": 1000}, ValueError),
        ({"tune": "fast"}, ValueError),
        ({"durability": "maybe"}, ValueError),
    ],
    ids=repr,
)
def test_refused_creation_leaves_nothing(tmp_path, changes, error):
    arguments = {"dtype": "i4", "item_shape": (2,), **changes}
    with pytest.raises(error):
        Dense.create(tmp_path / "s", **arguments)
    assert list(tmp_path.iterdir()) == []


def test_only_open_and_create_construct(tmp_path):
    with pytest.raises(TypeError, match="open.*create"):
        Dense(tmp_path / "s")
    with pytest.raises(TypeError):
        Dense.__new__(Dense)
    with pytest.raises(TypeError):
        zrecord._core.Store()


def test_paths_of_every_kind(tmp_path, data, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in ("plain", b"bytes", pathlib.Path("object"), "größe 東", "sur\udcffrogate"):
        with Dense.create(path, "i4", (3, 4)) as writer:
            writer.append(data)
        with Dense.open(path) as reader:
            assert len(reader) == 10
            assert repr(reader)
    for bad in (5, None, "nul\0nul"):
        with pytest.raises((TypeError, ValueError)):
            Dense.open(bad)


def test_extension_dtype_says_what_is_lost(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    data = np.arange(6).astype(ml_dtypes.bfloat16)
    with pytest.warns(zrecord.ZrecordWarning, match="bfloat16.*stored as"):
        writer = Dense.create(tmp_path / "s", data.dtype, ())
    writer.append(data)
    writer.close()
    with Dense.open(tmp_path / "s") as reader:
        assert reader.dtype.kind == "V"
        assert np.array_equal(reader[:].view(data.dtype), data)


def test_subclasses_and_attributes(tmp_path, data):
    class Images(Dense):
        def __len__(self):
            return 3

    with Images.create(tmp_path / "s", "i4", (3, 4)) as writer:
        writer.append(data)
    images = Images.open(tmp_path / "s")
    assert isinstance(images, Images) and len(images) == 3
    images.note = "mine"
    assert np.array_equal(images[9], data[9])
    images.close()
