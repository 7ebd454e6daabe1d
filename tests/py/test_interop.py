# SPDX-License-Identifier: MIT
"""Interchange with the loaderx 2.0.0 wheel, in both directions, and the same answers to any index.

The wheel is looked for in $ZRECORD_REF_LOADERX, else in .venv/ref/loaderx-2.0.0
(pip install --no-deps --target .venv/ref/loaderx-2.0.0 loaderx==2.0.0; it needs cffi and msgpack).
"""

import ctypes
import importlib
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import zrecord

REPO = Path(__file__).resolve().parents[2]
WHEEL = Path(os.environ.get("ZRECORD_REF_LOADERX", REPO / ".venv" / "ref" / "loaderx-2.0.0"))


@pytest.fixture(scope="module")
def loaderx():
    if not (WHEEL / "loaderx").is_dir():
        pytest.skip(f"the loaderx 2.0.0 wheel is not installed in {WHEEL}")
    for needed in ("cffi", "msgpack"):
        pytest.importorskip(needed)
    # Its threads may outlive its library at exit, and crash then: keep that loaded.
    ctypes.CDLL(str(WHEEL / "loaderx" / "lib" / "libstore.so"))
    sys.path.insert(0, str(WHEEL))
    try:
        modules = [
            importlib.import_module(f"loaderx.{m}")
            for m in ("zrecord", "utils", "zsampler", "dataloader")
        ]
    finally:
        sys.path.remove(str(WHEEL))
    assert sys.modules["loaderx"].__version__ == "2.0.0"
    yield SimpleNamespace(
        Dense=modules[0].Dense,
        Ragged=modules[0].Ragged,
        ZrecordError=modules[0].ZrecordError,
        train_dict=modules[1].train_dict,
        Sampler=modules[2].Sampler,
        DataLoader=modules[3].DataLoader,
    )


@pytest.fixture(scope="module")
def dictionary():
    rng = np.random.default_rng(0)
    return zrecord.train_dict(rng.integers(0, 20, (2000, 64), dtype=np.int32), "fast")


def fill(dtype, shape, seed=0):
    """An array of any dtype that a store may have."""
    dtype = np.dtype(dtype)
    rng = np.random.default_rng(seed)
    if dtype.kind == "V":
        count = int(np.prod(shape, dtype=int)) * dtype.itemsize
        return np.frombuffer(rng.bytes(count), dtype).reshape(shape)
    numbers = rng.integers(0, 100, shape)
    if dtype.kind == "c":
        return np.asarray(numbers + 1j * rng.integers(0, 9, shape)).astype(dtype)
    return np.asarray(numbers).astype(dtype)


CODECS = ["raw", "zstd", "zstd_dict"]
DTYPES = [
    "u1",
    "?",
    "<i2",
    ">i4",
    "<i8",
    ">u8",
    "f2",
    "<f4",
    ">f8",
    "g",
    "c8",
    ">c16",
    "M8[ns]",
    ">M8[D]",
    "m8[us]",
    "M8",
    "S1",
    "S7",
    "<U3",
    ">U2",
    "V5",
]
SHAPES = [(), (1,), (3,), (2, 0, 3), (2, 1, 3), (1, 2, 1, 2, 1, 2, 1, 2, 1), (1,) * 30]


def same(got, expected):
    assert type(got) is type(expected)
    assert len(got) == len(expected)
    for a, b in zip(got, expected):
        a, b = np.asarray(a), np.asarray(b)
        assert a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def create_dense(package, path, data, codec, dictionary):
    extra = (dictionary,) if codec == "zstd_dict" else ()
    with package.Dense.create(path, data.dtype, data.shape[1:], codec, *extra) as writer:
        for part in (data[:1], data[1:]):
            if len(part):
                writer.append(part)


def create_ragged(package, path, records, dtype, codec, dictionary):
    extra = (dictionary,) if codec == "zstd_dict" else ()
    with package.Ragged.create(path, dtype, codec, *extra) as writer:
        for part in (records[:1], records[1:]):
            if part:
                writer.append(part)


def pairs(loaderx):
    """(writer, reader) in both directions."""
    return [(loaderx, zrecord), (zrecord, loaderx)]


def compare(first, second, expected):
    """Both stores give what was written."""
    assert len(first) == len(second) == len(expected)
    assert first.dtype == second.dtype and first.codec == second.codec
    assert first.has_dict() == second.has_dict()
    ids = (
        np.random.default_rng(1).integers(0, len(expected), 3 * len(expected))
        if len(expected)
        else []
    )
    same(first[:], expected)
    same(second[:], expected)
    same(first[ids], second[ids])
    for i in range(min(3, len(expected))):
        same([first[i]], [second[i]])
        assert type(first[i]) is type(second[i])


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_dense_dtypes(loaderx, tmp_path, dictionary, dtype, codec):
    data = fill(dtype, (17, 2, 3))
    for number, (writer, reader) in enumerate(pairs(loaderx)):
        create_dense(writer, tmp_path / str(number), data, codec, dictionary)
        with (
            reader.Dense.open(tmp_path / str(number)) as a,
            writer.Dense.open(tmp_path / str(number)) as b,
        ):
            assert a.item_shape == b.item_shape == (2, 3)
            compare(a, b, data)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if 0 not in shape], ids=repr)
def test_dense_shapes(loaderx, tmp_path, dictionary, shape, codec):
    data = fill("<i4", (9, *shape))
    for number, (writer, reader) in enumerate(pairs(loaderx)):
        create_dense(writer, tmp_path / str(number), data, codec, dictionary)
        with (
            reader.Dense.open(tmp_path / str(number)) as a,
            writer.Dense.open(tmp_path / str(number)) as b,
        ):
            assert a.item_shape == b.item_shape == shape
            compare(a, b, data)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_ragged_dtypes_and_shapes(loaderx, tmp_path, dictionary, dtype, codec):
    records = [fill(dtype, shape, i) for i, shape in enumerate(SHAPES * 2) if 0 not in shape]
    for number, (writer, reader) in enumerate(pairs(loaderx)):
        create_ragged(writer, tmp_path / str(number), records, dtype, codec, dictionary)
        with (
            reader.Ragged.open(tmp_path / str(number)) as a,
            writer.Ragged.open(tmp_path / str(number)) as b,
        ):
            compare(a, b, records)


@pytest.mark.parametrize("codec", CODECS)
def test_large_and_tiny_records(loaderx, tmp_path, dictionary, codec):
    large = np.tile(fill("<i4", (3, 1 << 9)), 1 << 11)  # 4 MiB each
    tiny = fill("u1", (5000,))
    mixed = [large[0], tiny[:1], np.array(7, "<i4"), large[1].reshape(1 << 10, -1)]
    mixed[1] = mixed[1].astype("<i4")
    for number, (writer, reader) in enumerate(pairs(loaderx)):
        for name, data in (("large", large), ("tiny", tiny)):
            create_dense(writer, tmp_path / f"{name}{number}", data, codec, dictionary)
            with reader.Dense.open(tmp_path / f"{name}{number}") as store:
                assert np.array_equal(store[:], data)
                assert np.array_equal(store[::-2], data[::-2])
        create_ragged(writer, tmp_path / f"mixed{number}", mixed, "<i4", codec, dictionary)
        with reader.Ragged.open(tmp_path / f"mixed{number}") as store:
            same(store[:], mixed)


@pytest.mark.parametrize("codec", CODECS)
def test_empty_stores(loaderx, tmp_path, dictionary, codec):
    for number, (writer, reader) in enumerate(pairs(loaderx)):
        create_dense(writer, tmp_path / f"d{number}", np.zeros((0, 4), "f4"), codec, dictionary)
        create_ragged(writer, tmp_path / f"r{number}", [], "f4", codec, dictionary)
        with reader.Dense.open(tmp_path / f"d{number}") as store:
            assert len(store) == 0 and store[:].shape == (0, 4) and store.codec == codec
        with reader.Ragged.open(tmp_path / f"r{number}") as store:
            assert len(store) == 0 and store[:] == [] and store.codec == codec


def test_incompressible_records(loaderx, tmp_path):
    data = np.frombuffer(np.random.default_rng(0).bytes(64 * 1000), np.uint8).reshape(64, 1000)
    for number, (writer, reader) in enumerate(pairs(loaderx)):
        create_dense(writer, tmp_path / str(number), data, "zstd", None)
        with reader.Dense.open(tmp_path / str(number)) as store:
            assert np.array_equal(store[:], data)


@pytest.mark.parametrize(
    "options",
    [{"level": 1}, {"level": 12}, {"tune": "read"}, {"tune": "write"}, {"checksums": False}],
)
def test_our_options_are_read_there(loaderx, tmp_path, options):
    data = fill("<i4", (300, 128))
    with zrecord.Dense.create(tmp_path / "s", data.dtype, (128,), **options) as writer:
        writer.append(data)
    with loaderx.Dense.open(tmp_path / "s") as store:
        assert np.array_equal(store[:], data)


def test_dictionaries_are_interchangeable(loaderx, tmp_path):
    rows = np.random.default_rng(3).integers(0, 9, (3000, 64)).astype(np.int32)
    for number, (writer, reader) in enumerate(pairs(loaderx)):
        create_dense(
            writer, tmp_path / str(number), rows, "zstd_dict", reader.train_dict(rows, "fast")
        )
        with reader.Dense.open(tmp_path / str(number)) as store:
            assert np.array_equal(store[:], rows)
            assert reader.train_dict(store, "fast")[:4] == b"\x37\xa4\x30\xec"


def test_many_records_over_many_appends(loaderx, tmp_path):
    data = np.arange(20_000, dtype=np.int64).reshape(-1, 2)
    for number, (writer, reader) in enumerate(pairs(loaderx)):
        with writer.Dense.create(tmp_path / str(number), data.dtype, (2,)) as store:
            for start in range(0, len(data), 333):
                store.append(data[start : start + 333])
        with reader.Dense.open(tmp_path / str(number)) as store:
            assert np.array_equal(store[:], data)
            assert np.array_equal(store[9999], data[9999])


def test_an_unfinished_store_of_theirs_opens_empty(loaderx, tmp_path):
    writer = loaderx.Dense.create(tmp_path / "s", np.int32, (4,))
    writer.append(np.zeros((3, 4), np.int32))
    with pytest.raises(zrecord.ZrecordError) as caught:
        zrecord.open(tmp_path / "s")
    assert caught.value.code == -13


def test_rank_64_and_a_lone_dtype(loaderx, tmp_path):
    rank = 64 if int(np.__version__.split(".")[0]) >= 2 else 32
    record = np.ones((1,) * rank, np.uint8)
    for number, (writer, reader) in enumerate(pairs(loaderx)):
        create_ragged(writer, tmp_path / str(number), [record], "u1", "zstd", None)
        with reader.Ragged.open(tmp_path / str(number)) as store:
            assert store[0].shape == record.shape


# ---------------------------------------------------------------- the same interface


@pytest.fixture(scope="module")
def twins(loaderx, tmp_path_factory):
    """Readers of both packages on the same stores: Dense, Dense of scalars, Ragged."""
    folder = tmp_path_factory.mktemp("twins")
    create_dense(zrecord, folder / "d", fill("<i4", (10, 2)), "zstd", None)
    create_dense(zrecord, folder / "s", fill("<i8", (10,)), "raw", None)
    create_ragged(
        zrecord, folder / "r", [fill("<i4", (i + 1,)) for i in range(10)], "<i4", "zstd", None
    )
    stores = [
        (getattr(p, kind).open(folder / name))
        for kind, name in (("Dense", "d"), ("Dense", "s"), ("Ragged", "r"))
        for p in (zrecord, loaderx)
    ]
    yield list(zip(stores[::2], stores[1::2]))
    for store in stores:
        store.close()


def outcome(store, key):
    """The type of what it raises, or what it gives."""
    try:
        got = store[key]
    except (IndexError, TypeError, ValueError, OverflowError) as exc:
        for kind in (IndexError, TypeError, ValueError, OverflowError):
            if isinstance(exc, kind):
                return kind.__name__
    if isinstance(got, list):
        return ["list"] + [(record.shape, record.tobytes()) for record in got]
    return [type(got).__name__, got.shape, got.tobytes()]


near = st.integers(-3, 13)
wide = st.one_of(
    near,
    st.integers(-(2**66), 2**66),
    st.sampled_from([2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63)]),
)
floats = st.sampled_from([0.0, 1.0, 0.5, -1.0, float("nan")])
bounds = st.one_of(
    st.none(), near, st.integers(-(2**70), 2**70), floats, st.sampled_from(["a", True, np.int64(3)])
)
arrays = st.builds(
    lambda values, dtype, twist: twist(np.array(values).astype(dtype)),
    st.lists(st.integers(-2, 11), max_size=6),
    st.sampled_from(
        ["i1", "u1", "<i2", ">i2", "<i4", ">i8", "<i8", "<u8", ">u8", "f4", "?", "U2", "c8", "O"]
    ),
    st.sampled_from(
        [
            lambda a: a,
            lambda a: a[::-1],
            lambda a: a[::2],
            lambda a: a[None],
            lambda a: a.reshape(-1, 1),
            np.matrix,
        ]
    ),
)
masks = st.one_of(
    st.lists(st.booleans(), min_size=9, max_size=11),
    st.lists(st.booleans(), min_size=10, max_size=10).map(np.array),
    st.lists(st.booleans(), min_size=20, max_size=20).map(lambda m: np.array(m)[::2]),
)
items = st.one_of(
    near,
    st.integers(0, 9),
    st.integers(0, 9).map(np.int64),
    floats,
    st.booleans(),
    st.none(),
    st.just("1"),
)
keys = st.one_of(
    wide,
    near.map(np.int8),
    st.integers(0, 12).map(np.uint64),
    floats,
    st.booleans(),
    st.none(),
    st.just(...),
    st.text(max_size=2),
    st.binary(max_size=3),
    st.builds(slice, bounds, bounds, bounds),
    arrays,
    masks,
    st.lists(wide, max_size=5),
    st.lists(st.integers(0, 9), max_size=5).map(tuple),
    st.lists(items, max_size=4),
    st.lists(st.lists(st.integers(0, 9), min_size=2, max_size=2), max_size=3),
    st.builds(range, st.integers(0, 12)),
    st.sets(st.integers(0, 5), max_size=2),
    st.lists(st.integers(0, 9), max_size=4).map(iter),
    st.binary(max_size=3).map(memoryview),
    st.integers(-2, 11).map(np.array),
)


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
@settings(
    max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
@given(key=keys)
@example(key=())
@example(key=[])
@example(key=np.zeros((0, 3)))
@example(key=slice(None, None, -1))
@example(key=[[0, 1], [1, 0]])
def test_any_index_has_the_same_outcome(twins, key):
    for ours, theirs in twins:
        assert outcome(ours, key) == outcome(theirs, key)


def test_writers_refuse_the_same(loaderx, tmp_path):
    batches = [
        [1],
        np.zeros(2, "i4"),
        np.zeros((0, 2), "i4"),
        np.int32(3),
        np.zeros((1, 2), ">i4"),
        np.zeros((1, 3), "i4"),
        np.zeros((1, 2), "i4"),
    ]
    records = [
        [np.zeros(3, "i4")],
        [np.zeros(0, "i4")],
        [np.zeros(3, "i8")],
        [5],
        [],
        5,
        np.zeros((2, 3), "i4"),
        np.zeros(3, "i4"),
        [np.array(5, "i4")],
    ]
    outcomes = []
    for number, package in enumerate((zrecord, loaderx)):
        dense = package.Dense.create(tmp_path / f"d{number}", "i4", (2,))
        ragged = package.Ragged.create(tmp_path / f"r{number}", "i4")
        got = []
        for writer, values in ((dense, batches), (ragged, records)):
            for value in values:
                try:
                    got.append(writer.append(value))
                except (TypeError, ValueError) as exc:
                    got.append(type(exc))
        dense.close()
        ragged.close()
        outcomes.append(got)
    assert outcomes[0] == outcomes[1]


def test_creation_refuses_the_same(loaderx, tmp_path):
    cases = [
        (object, ()),
        ("i4,f4", ()),
        (np.dtype(("i4", 2)), ()),
        ("i4", 5),
        ("i4", (-1,)),
        ("i4", (1.5,)),
        ("i4", (0,)),
        ("i4", (True,)),
        ("i4", (2**31,)),
        ("nonsense", ()),
        ("S", ()),
        ("i4", (1,) * 64),
        ("i4", (), "gzip"),
        ("i4", (), None),
        ("i4", (), "zstd_dict"),
        ("i4", (), "zstd", b"abc"),
        ("i4", (), "zstd", b""),
    ]
    for case in cases:
        kinds = []
        for package in (zrecord, loaderx):
            with pytest.raises((TypeError, ValueError)) as caught:
                package.Dense.create(tmp_path / "s", *case)
            kinds.append(TypeError if isinstance(caught.value, TypeError) else ValueError)
        assert kinds[0] is kinds[1], case
    assert list(tmp_path.iterdir()) == []


def test_the_loader_takes_the_same_arguments(loaderx, tmp_path):
    create_dense(zrecord, tmp_path / "x", np.arange(100), "zstd", None)
    batches = []
    for package in (zrecord, loaderx):
        with package.Dense.open(tmp_path / "x") as store:
            loader = package.DataLoader({"x": store}, 1, 7, 2, 0, 3, lambda batch: batch["x"] * 2)
            batches.append([next(loader).tolist() for _ in range(20)])
            loader.close()
    assert sorted(batches[0]) == sorted(batches[1])
    assert batches[0][0] == [0, 2, 4, 6, 8, 10, 12]


def test_sequential_samplers_agree(loaderx):
    ours, theirs = zrecord.Sampler(1000, 7, 0), loaderx.Sampler(1000, 7, 0)
    for step in (0, 5, 143, 10**9):
        ours.seek(step)
        theirs.seek(step)
        assert ours.next().tolist() == theirs.next().tolist()


@pytest.mark.parametrize(
    "arguments",
    [(0, 1, 0), (1, 0, 0), (1, 1, 4), (1, 1, 0, -1), (2**64, 1, 0), (1.0, 1, 0), ("1", 1, 0)],
    ids=repr,
)
def test_samplers_refuse_the_same(loaderx, arguments):
    kinds = []
    for sampler in (zrecord.Sampler, loaderx.Sampler):
        with pytest.raises((TypeError, ValueError)) as caught:
            sampler(*arguments)
        kinds.append(caught.type)
    assert kinds[0] is kinds[1]
