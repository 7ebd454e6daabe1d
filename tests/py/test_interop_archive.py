# SPDX-License-Identifier: MIT
"""Memmap archives beside tensordict 0.15.3, both ways, for each class that it round-trips itself."""

import contextlib
import fractions
import io
import tempfile
import warnings
import zipfile

import numpy as np
import pytest

import zrecord
from zrecord.archive import ArchiveStack, ArchiveTree, NestedArray, PickledValue, ValueStack

torch = pytest.importorskip("torch")
tensordict = pytest.importorskip("tensordict")
from tensordict import (  # noqa: E402
    LazyStackedTensorDict,
    MetaData,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    TensorDictParams,
    tensorclass,
)

pytestmark = pytest.mark.filterwarnings("ignore")

DTYPES = [
    torch.float16,
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.bool,
    torch.complex64,
    torch.complex128,
]


@tensorclass
class Sample:
    image: torch.Tensor
    label: str
    extra: object = None


def arange(*shape, dtype=torch.float32):
    return torch.arange(int(np.prod(shape))).reshape(shape).to(dtype)


def plain():
    return TensorDict({"a": arange(3, 4), "b": arange(3, 1, dtype=torch.int64)}, [3], names=["time"])


def nested():
    inner = TensorDict({"x": arange(3, 2), "deeper": TensorDict({"y": arange(3)}, [3])}, [3])
    return TensorDict({"a": arange(3), "inner": inner, "none": TensorDict({}, [3])}, [3])


def all_dtypes():
    return TensorDict({str(d)[6:]: arange(5, 2).to(d) for d in DTYPES}, [5])


def odd_keys():
    keys = ["we/ird", "a b", "%", "", ".", "..", "é中", "q\"uote", "back\\slash", "tab\t", "meta.json", "nul\0", "\ufdd0"]
    td = TensorDict({key: arange(2) + i for i, key in enumerate(keys)}, [2])
    td["level /"] = TensorDict({"..": arange(2)}, [2])
    return td


def no_elements():
    return TensorDict({"a": arange(3, 0), "b": arange(3, 2), "c": torch.zeros(3, 0, 7)}, [3])


def scalars():
    return TensorDict({"a": torch.tensor(1.5), "b": {"c": torch.tensor(True)}}, [])


def lazy_stack():
    return LazyStackedTensorDict(*(TensorDict({"a": arange(2, i + 1)}, [2]) for i in range(3)), stack_dim=1)


def stack_inside():
    return TensorDict({"s": lazy_stack(), "x": arange(2, 3)}, [2])


def stack_of_stacks():
    return LazyStackedTensorDict(lazy_stack(), lazy_stack(), stack_dim=0)


def a_tensorclass():
    return Sample(image=arange(3, 2), label="cat", batch_size=[3])


def tensorclass_inside():
    return TensorDict({"sample": a_tensorclass(), "z": arange(3)}, [3])


def values():
    td = TensorDict({"x": arange(2)}, [2])
    for key, value in {"s": "text", "i": 3, "f": 0.5, "n": None, "d": {"k": [1, {"z": 2}]}}.items():
        td.set_non_tensor(key, value)
    td["meta"] = MetaData("m", batch_size=[2])
    td["stack"] = NonTensorStack("a", "b")
    return td


@tensorclass
class Pair:
    x: torch.Tensor
    other: object = None
    name: str = ""
    tags: dict = None


class Typed(tensordict.TypedTensorDict):
    x: torch.Tensor
    y: torch.Tensor


def tensorclass_in_tensorclass():
    inner = Pair(x=arange(3), name="in", batch_size=[3])
    return TensorDict({"p": Pair(x=arange(3, 2), other=inner, name="out", batch_size=[3])}, [3])


def tensorclass_with_values():
    return Pair(x=arange(3), name="é", tags={"a": [1, None, {"b": 2.5}]}, batch_size=[3])


def tensorclasses_stacked():
    stack = torch.stack([Pair(x=arange(2), name=f"n{i}", batch_size=[2]) for i in range(3)])
    return TensorDict({"s": stack}, [3])


def typed():
    return Typed(x=arange(3), y=arange(3, 2), batch_size=[3])


def mapped():
    return nested().memmap_()


def persistent():
    pytest.importorskip("h5py")
    with tempfile.TemporaryDirectory() as folder:
        return tensordict.PersistentTensorDict.from_dict(nested(), filename=f"{folder}/a.h5")


def other_batch_size():
    td = TensorDict({"a": arange(3, 2, 4)}, [3])
    td.batch_size = [3, 2]
    return td


def indexed():
    return TensorDict({"a": arange(2, 3, 4)}, [2, 3])[1]


def sub():
    return TensorDict({"a": arange(2, 3, 4)}, [2, 3])._get_sub_tensordict(1)


def expanded():
    return TensorDict({"a": arange(1, 3)}, [1]).expand(5)


def on_a_device():
    return TensorDict({"a": arange(2), "n": {"b": arange(2)}}, [2], device="cpu")


def empty():
    return TensorDict({}, [3, 0, 2])


def stack_of_different_keys():
    one = TensorDict({"a": arange(2), "b": arange(3)}, [])
    return LazyStackedTensorDict(one, TensorDict({"a": arange(2), "c": {"d": arange(1)}}, []), stack_dim=0)


def stack_with_names():
    td = LazyStackedTensorDict(*(TensorDict({"a": arange(2, 3)}, [2]) for _ in range(2)), stack_dim=0)
    td.names = ["s", "t"]
    return td


def stacks_of_values():
    td = TensorDict({"mixed": NonTensorStack(None, {"x": 1})}, [2])
    td["nested"] = NonTensorStack(NonTensorStack("a", "b"), NonTensorStack("c", "d"))
    td["pickled"] = NonTensorStack(fractions.Fraction(1, 2), fractions.Fraction(1, 3))
    return td


def several_nested_tensors():
    one = torch.nested.nested_tensor([arange(2, 3)])
    return TensorDict({"nt": one, "l": {"nt": torch.nested.nested_tensor([arange(2), arange(3)])}}, [])


def params_of_a_module():
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    return TensorDict.from_module(module, as_module=True)


def special_numbers():
    td = TensorDict({"x": arange(2)}, [2])
    td.set_non_tensor("numbers", [float("inf"), float("-inf"), 10**30])
    td.set_non_tensor("texts", ["\ud800", "\0"])
    td["zero\0"] = arange(2)
    return td


def nested_tensor():
    nt = torch.nested.nested_tensor([arange(2, 3), arange(4, 3)])
    return TensorDict({"nt": nt, "x": arange(2)}, [2])


def params():
    return TensorDictParams(TensorDict({"w": torch.nn.Parameter(arange(3)), "m": {"b": arange(2)}}))


def views():
    with tensordict.set_lazy_legacy(True):
        td = TensorDict({"a": arange(2, 1, 3, 4)}, [2, 1, 3])
        return TensorDict(
            {
                "permuted": td.permute(2, 0, 1).unsqueeze(0),
                "viewed": td.view(6).view(1, 6),
                "squeezed": td.squeeze(1).unsqueeze(0),
                "transposed": td.transpose(0, 2).unsqueeze(0),
            },
            [1],
        )


MAKERS = [
    plain,
    nested,
    all_dtypes,
    odd_keys,
    no_elements,
    scalars,
    lazy_stack,
    stack_inside,
    stack_of_stacks,
    a_tensorclass,
    tensorclass_inside,
    values,
    special_numbers,
    nested_tensor,
    params,
    views,
    tensorclass_in_tensorclass,
    tensorclass_with_values,
    tensorclasses_stacked,
    typed,
    mapped,
    persistent,
    other_batch_size,
    indexed,
    sub,
    expanded,
    on_a_device,
    empty,
    stack_of_different_keys,
    stack_with_names,
    stacks_of_values,
    several_nested_tensors,
    params_of_a_module,
]


def bits(value):
    """Shape and bytes of an array or tensor, whatever its dtype."""
    if isinstance(value, np.ndarray):
        return value.shape, np.ascontiguousarray(value).tobytes()
    flat = value.detach().contiguous().reshape(-1)
    return tuple(value.shape), flat.view(torch.uint8).numpy().tobytes()


def same(ours, theirs):
    """Every entry of tensordict's object is there, equal, and there is nothing else."""
    if isinstance(theirs, NonTensorStack):
        assert isinstance(ours, ValueStack) and list(ours) == theirs.tolist()
    elif isinstance(theirs, NonTensorData | MetaData):
        assert ours == theirs.data and isinstance(ours, type(theirs.data))
    elif isinstance(theirs, LazyStackedTensorDict):
        assert isinstance(ours, ArchiveStack) and ours.stack_dim == theirs.stack_dim
        assert len(ours) == len(theirs.tensordicts)
        for i, member in enumerate(theirs.tensordicts):
            same(ours[i], member)
    elif hasattr(theirs, "_tensordict") and not isinstance(theirs, TensorDict | TensorDictParams):
        same(ours, theirs._tensordict)
        assert type(theirs).__name__ in ours.type_name
    elif tensordict.is_tensor_collection(theirs):
        assert isinstance(ours, ArchiveTree)
        assert tuple(ours.batch_size) == tuple(theirs.batch_size)
        assert set(ours) == set(theirs.keys())
        if theirs._has_names():
            assert list(ours.names) == theirs.names
        for key in theirs.keys():
            same(ours[key], theirs.get(key))
    elif theirs.is_nested:
        parts = theirs.unbind()
        ours = ours.unbind() if isinstance(ours, torch.Tensor) else ours
        assert len(ours) == len(parts)
        for mine, part in zip(ours, parts):
            assert bits(mine) == bits(part)
    else:
        assert bits(ours) == bits(theirs)


def read_with_tensordict(path):
    return TensorDict.load_memmap(path, allow_pickle=True)


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("compression", [None, "deflate"])
def test_what_tensordict_writes_opens_here(tmp_path, maker, compression):
    td = maker()
    td.memmap(tmp_path / "a.tdz", compression=compression, archive=True)
    theirs = read_with_tensordict(tmp_path / "a.tdz")
    pickled = maker is stacks_of_values
    same(zrecord.load_archive(tmp_path / "a.tdz", allow_pickle=pickled), theirs)
    same(zrecord.load_archive(tmp_path / "a.tdz", torch=True, allow_pickle=pickled), theirs)
    assert zrecord.verify_archive(tmp_path / "a.tdz").ok


@pytest.mark.parametrize("maker", MAKERS)
def test_what_is_written_here_opens_there(tmp_path, maker):
    maker().memmap(tmp_path / "a.tdz", archive=True)
    tree = zrecord.load_archive(tmp_path / "a.tdz")
    zrecord.save_archive(tree, tmp_path / "b.tdz")
    if maker not in (params, params_of_a_module):  # a TensorDictParams comes back as the TensorDict inside
        assert type(read_with_tensordict(tmp_path / "b.tdz")) is type(
            read_with_tensordict(tmp_path / "a.tdz")
        ) or maker is views
    loaded = zrecord.load_archive(tmp_path / "b.tdz", allow_pickle=maker is stacks_of_values)
    same(loaded, read_with_tensordict(tmp_path / "b.tdz"))
    assert zipfile.ZipFile(tmp_path / "b.tdz").testzip() is None


def zip64_version():
    """What this Python's zipfile says of a zip64 member: 4.5, or 2.0 before 3.11.4, which also
    repeated the sizes outside of the extra field."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as z, z.open("a", "w", force_zip64=True) as member:
        member.write(b"a")
    return zipfile.ZipFile(buffer).infolist()[0].extract_version


def without_times(path):
    data = bytearray(path.read_bytes())
    is_old = zip64_version() != 45
    with zipfile.ZipFile(path) as z:
        at = z.start_dir
        for info in z.infolist():
            data[info.header_offset + 10 : info.header_offset + 14] = bytes(4)
            if is_old:
                data[info.header_offset + 4 : info.header_offset + 6] = bytes(2)
                data[info.header_offset + 18 : info.header_offset + 26] = bytes(8)
                data[at + 4 : at + 8] = bytes(4)
            data[at + 12 : at + 16] = bytes(4)
            at += 46 + len(info.orig_filename.encode()) + len(info.extra) + len(info.comment)
    return bytes(data)


@pytest.mark.parametrize("maker", [maker for maker in MAKERS if maker is not views])
def test_the_bytes_are_tensordicts(tmp_path, maker):
    """The same tree, saved by both: equal but for the time of day in the headers."""
    td = maker()
    if maker is values:
        td.del_("meta")  # MetaData comes back as its value, so it is saved as NonTensorData
    td.memmap(tmp_path / "a.tdz", archive=True)
    zrecord.save_archive(zrecord.load_archive(tmp_path / "a.tdz"), tmp_path / "b.tdz")
    assert without_times(tmp_path / "a.tdz") == without_times(tmp_path / "b.tdz")


def test_packing_and_unpacking_give_tensordicts_bytes(tmp_path):
    nested().memmap(tmp_path / "dir")
    tensordict.pack_memmap(tmp_path / "dir", tmp_path / "a.tdz")
    zrecord.pack_memmap(tmp_path / "dir", tmp_path / "b.tdz")
    assert without_times(tmp_path / "a.tdz") == without_times(tmp_path / "b.tdz")
    zrecord.unpack_memmap(tmp_path / "a.tdz", tmp_path / "out")
    assert (TensorDict.load_memmap(tmp_path / "out") == nested()).all()


def test_a_plain_dict_of_tensors_saves_as_tensordict_does(tmp_path):
    tree = {"a": arange(3, 4), "n": {"b": arange(3).to(torch.bfloat16)}}
    TensorDict(tree, [3]).save(tmp_path / "a.tdz")
    zrecord.save_archive(tree, tmp_path / "b.tdz", batch_size=3)
    assert without_times(tmp_path / "a.tdz") == without_times(tmp_path / "b.tdz")


def test_views_of_tensors_keep_their_values(tmp_path):
    base = arange(4, 6)
    tree = {
        "t": base.t(),
        "part": base[:, 1::2],
        "grad": arange(3).requires_grad_(),
        "conj": torch.view_as_complex(arange(3, 2)).conj(),
        "expanded": torch.ones(1).expand(5),
    }
    zrecord.save_archive(tree, tmp_path / "a.tdz")
    loaded = read_with_tensordict(tmp_path / "a.tdz")
    for key, value in tree.items():
        assert bits(loaded[key]) == bits(value.resolve_conj())


def test_bfloat16_stays_what_it_is(tmp_path):
    import ml_dtypes

    values = np.arange(8).astype(ml_dtypes.bfloat16)
    zrecord.save_archive({"x": values}, tmp_path / "a.tdz")
    assert read_with_tensordict(tmp_path / "a.tdz")["x"].dtype == torch.bfloat16
    loaded = zrecord.load_archive(tmp_path / "a.tdz")["x"]
    assert loaded.dtype == ml_dtypes.bfloat16 and loaded.tolist() == values.tolist()


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "complex32"])
def test_dtypes_that_tensordict_writes_but_cannot_read(tmp_path, name):
    values = arange(4, dtype=torch.float16).view(getattr(torch, name))
    with contextlib.suppress(KeyError):  # it writes the file, then fails to read it
        TensorDict({"x": values}).save(tmp_path / "a.tdz")
    assert bits(zrecord.load_archive(tmp_path / "a.tdz", torch=True)["x"]) == bits(values)
    assert bits(zrecord.load_archive(tmp_path / "a.tdz")["x"]) == bits(values)


def test_pickled_values_are_kept_but_not_loaded_unasked(tmp_path):
    td = TensorDict({"x": arange(2)}, [2])
    td.set_non_tensor("p", fractions.Fraction(1, 3))
    td.save(tmp_path / "a.tdz")
    tree = zrecord.load_archive(tmp_path / "a.tdz")
    assert isinstance(tree["p"], PickledValue) and tree["p"].load() == fractions.Fraction(1, 3)
    assert zrecord.load_archive(tmp_path / "a.tdz", allow_pickle=True)["p"] == fractions.Fraction(1, 3)
    zrecord.save_archive(tree, tmp_path / "b.tdz")
    assert read_with_tensordict(tmp_path / "b.tdz")["p"] == fractions.Fraction(1, 3)


def test_changes_here_are_seen_there_and_refreshed(tmp_path):
    plain().save(tmp_path / "a.tdz")
    zrecord.load_archive(tmp_path / "a.tdz", mode="r+")["a"][:] = 7
    assert (TensorDict.load_memmap(tmp_path / "a.tdz")["a"] == 7).all()
    assert not zrecord.verify_archive(tmp_path / "a.tdz").ok
    assert zipfile.ZipFile(tmp_path / "a.tdz").testzip() == "a.memmap"
    zrecord.refresh_archive_checksums(tmp_path / "a.tdz")
    assert zipfile.ZipFile(tmp_path / "a.tdz").testzip() is None
    assert zrecord.verify_archive(tmp_path / "a.tdz").ok


def test_an_archive_made_here_is_writable_there(tmp_path):
    zrecord.memmap_like({"x": ((1000, 8), "float32")}, tmp_path / "a.tdz", batch_size=1000)
    TensorDict.load_memmap(tmp_path / "a.tdz", mode="r+")["x"].add_(1)
    assert (zrecord.load_archive(tmp_path / "a.tdz")["x"] == 1).all()


@pytest.mark.parametrize("subpath", ["inner", "inner/deeper", ("inner", "deeper"), ("inner", ("deeper",))])
def test_subpaths_lead_where_tensordicts_lead(tmp_path, subpath):
    nested().save(tmp_path / "a.tdz")
    same(
        zrecord.load_archive(tmp_path / "a.tdz", subpath=subpath),
        TensorDict.load_memmap(tmp_path / "a.tdz", subpath=subpath),
    )


def test_subpaths_go_through_tensorclasses(tmp_path):
    tensorclass_inside().save(tmp_path / "a.tdz")
    image = zrecord.load_archive(tmp_path / "a.tdz", subpath="sample/image")
    assert bits(image) == bits(arange(3, 2))


def test_torch_leaves_share_the_mapping(tmp_path):
    plain().save(tmp_path / "a.tdz")
    tree = zrecord.load_archive(tmp_path / "a.tdz", mode="r+", torch=True)
    tree["a"].fill_(5)
    assert (zrecord.load_archive(tmp_path / "a.tdz")["a"] == 5).all()


def test_nested_tensors_come_as_list_and_as_tensor(tmp_path):
    nested_tensor().save(tmp_path / "a.tdz")
    mine = zrecord.load_archive(tmp_path / "a.tdz")["nt"]
    assert isinstance(mine, NestedArray) and mine.shapes.tolist() == [[2, 3], [4, 3]]
    assert zrecord.load_archive(tmp_path / "a.tdz", torch=True)["nt"].is_nested
    with pytest.raises(ValueError, match="nested tensor"):
        zrecord.load_archive(tmp_path / "a.tdz", mode="r+")
    zrecord.save_archive({"nt": nested_tensor()["nt"]}, tmp_path / "b.tdz")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = read_with_tensordict(tmp_path / "b.tdz")["nt"]
    assert all(bits(a) == bits(b) for a, b in zip(again.unbind(), nested_tensor()["nt"].unbind()))
