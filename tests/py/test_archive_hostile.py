# SPDX-License-Identifier: MIT
"""Archives that lie: each is refused in words, none gives a partial tree, none ends the process."""

import io
import json
import os
import struct
import warnings
import zipfile

import numpy as np
import pytest

import zrecord
from zrecord.errors import ZrecordError

PLAIN = {
    "shape": [2],
    "device": "cpu",
    "_type": "<class 'tensordict._td.TensorDict'>",
    "_format_version": 1,
    "_class": "tensordict:TensorDict",
}
X = np.arange(2, dtype=np.float32).tobytes()


def leaf(shape, dtype="float32", nested=False):
    return {"device": "cpu", "shape": shape, "dtype": f"torch.{dtype}", "is_nested": nested}


def meta(**entries):
    return json.dumps({**entries, **PLAIN})


def make_zip(members, method=zipfile.ZIP_STORED, **attributes):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as z, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, data in members:
            info = zipfile.ZipInfo(name)
            info.compress_type = method
            for key, value in attributes.items():
                setattr(info, key, value)
            z.writestr(info, data)
    return buffer.getvalue()


SOUND = make_zip([("meta.json", meta(x=leaf([2]))), ("x.memmap", X)])
CENTRAL = SOUND.rindex(b"PK\1\2")  # of x.memmap
LOCAL = SOUND.index(b"PK\3\4", 4)
END = SOUND.index(b"PK\5\6")


def patched(offset, fmt, *values, data=SOUND):
    data = bytearray(data)
    struct.pack_into(fmt, data, offset, *values)
    return bytes(data)


def with_meta(entries):
    return make_zip([("meta.json", json.dumps({**entries, **PLAIN})), ("x.memmap", X)])


def with_names(*names):
    return make_zip([("meta.json", meta(x=leaf([2]))), *((name, X) for name in names)])


HOSTILE = {
    "no zip": (b"some text, but long enough to hold an end record", "not a zip"),
    "empty": (b"", "not a zip"),
    "encrypted": (patched(CENTRAL + 8, "<H", 1), "x.memmap: is encrypted"),
    "strong encryption": (patched(CENTRAL + 8, "<H", 0x40), "x.memmap: is encrypted"),
    "unknown method": (patched(CENTRAL + 10, "<H", 99, data=patched(LOCAL + 8, "<H", 99)), "method 99"),
    "headers differ in method": (patched(LOCAL + 8, "<H", 8), "differ in its method"),
    "headers differ in name": (patched(LOCAL + 30, "<c", b"y"), "differ in its name"),
    "headers differ in size": (patched(LOCAL + 22, "<I", 4), "differ in its size"),
    "sizes differ": (patched(CENTRAL + 24, "<I", 4), "two different sizes"),
    "overlap": (patched(CENTRAL + 42, "<I", 0), "overlaps"),
    "place outside": (patched(CENTRAL + 42, "<I", 1 << 30), "outside the file"),
    "size outside": (patched(CENTRAL + 20, "<II", 1 << 30, 1 << 30), "overlaps"),
    "long extra": (patched(LOCAL + 28, "<H", 60000), "local header is cut short"),
    "no local header": (patched(LOCAL, "<I", 0), "no local header"),
    "wrong count": (patched(END + 8, "<HH", 9, 9), "it says 9 members"),
    "several volumes": (patched(END + 4, "<H", 1), "volume"),
    "directory outside": (patched(END + 12, "<I", 1 << 30), "outside the file"),
    "directory too long a name": (patched(CENTRAL + 28, "<H", 60000), "cut short"),
    "twice": (with_names("x.memmap", "x.memmap"), "x.memmap: the name is there twice"),
    "twice by ./": (with_names("x.memmap", "./x.memmap"), "x.memmap: the name is there twice"),
    "leads out": (with_names("x.memmap", "../y.memmap"), "leads out of the archive"),
    "leads out inside": (with_names("x.memmap", "a/../../y.memmap"), "leads out of the archive"),
    "absolute": (with_names("x.memmap", "/y.memmap"), "absolute"),
    "empty part": (with_names("x.memmap", "a//y.memmap"), "empty part"),
    "link as leaf": (
        make_zip([("meta.json", meta(x=leaf([2]))), ("x.memmap", X)], external_attr=0o120777 << 16),
        "link",
    ),
    "no meta.json": (make_zip([("x.memmap", X)]), "meta.json is missing"),
    "meta.json is no JSON": (make_zip([("meta.json", "{")]), "not JSON"),
    "meta.json is a list": (make_zip([("meta.json", "[1]")]), "no JSON object"),
    "meta.json is deep": (make_zip([("meta.json", "[" * 100_000)]), "not JSON|recursion"),
    "meta.json of a level is no JSON": (
        make_zip(
            [
                ("meta.json", meta(x=leaf([2]), n={"type": "TensorDict"})),
                ("x.memmap", X),
                ("n/meta.json", meta(y=leaf([2])).replace("}", ",}", 1)),
                ("n/y.memmap", X),
            ]
        ),
        r"n/meta.json: is not JSON \(line 1, column \d+\)",
    ),
    "key is half a character": (with_meta({"\ud800": leaf([0])}), "half of a surrogate pair"),
    "newer format": (make_zip([("meta.json", json.dumps({**PLAIN, "_format_version": 2}))]), "newer format"),
    "leaf missing": (with_meta({"y": leaf([2])}), "leaf y: its file is missing"),
    "level missing": (with_meta({"n": {"type": "TensorDict"}}), "leaf n: its meta.json is missing"),
    "wrong size": (with_meta({"x": leaf([3])}), "leaf x: its file has another size"),
    "huge shape": (with_meta({"x": leaf([1 << 62, 1 << 62])}), "leaf x: its shape is too large"),
    "negative shape": (with_meta({"x": leaf([-2])}), "no list of sizes"),
    "65 dimensions": (with_meta({"x": leaf([1] * 65)}), "no list of sizes"),
    "fractional shape": (with_meta({"x": leaf([2.0])}), "no list of sizes"),
    "unknown dtype": (with_meta({"x": leaf([2], "float33")}), "dtype torch.float33 is not known"),
    "nested without shapes": (with_meta({"x": leaf([2, 2], nested=True)}), "shapes of a nested tensor is missing"),
    "key twice": (
        make_zip(
            [
                ("meta.json", meta(x=leaf([2])).replace("{", '{"x": ' + json.dumps(leaf([2])) + ", ", 1)),
                ("x.memmap", X),
            ]
        ),
        "x.memmap: belongs to two leaves",
    ),
    "two keys, one file": (
        make_zip([("meta.json", meta(**{"a b": leaf([2]), "a%20b": leaf([2])})), ("a%20b.memmap", X)]),
        "belongs to two leaves|file is missing",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archives_are_refused_in_words(tmp_path, name):
    data, match = HOSTILE[name]
    path = tmp_path / "h.tdz"
    path.write_bytes(data)
    with pytest.raises((ZrecordError, ValueError), match=match) as caught:
        zrecord.load_archive(path)
    assert "\n" not in str(caught.value) and "h.tdz" in str(caught.value)
    assert path.read_bytes() == data


VALUE_TYPE = "<class 'tensordict.tensorclass.NonTensorData'>"


def value_stack(data):
    return json.dumps({"_type": "<class 'tensordict.tensorclass.NonTensorStack'>", "stack_dim": 0, "data": data})


VALUES = {
    "no JSON": ("{", "v/meta.json: is not JSON"),
    "a list": ("[]", "v/meta.json: is no JSON object"),
    "unknown class": (json.dumps({"_type": "<class 'x.Y'>"}), "v: a level of class .* is not known"),
    "no data": (json.dumps({"_type": VALUE_TYPE, "_is_non_tensor": True}), "v/other.pickle is missing"),
    "stack of a number": (value_stack(3), "v/meta.json: its data is no list"),
    "stack of a text": (value_stack("x"), "v/meta.json: its data is no list"),
    "stack without its pickle": (value_stack("pickle.pkl"), "v/pickle.pkl is missing"),
    "stack along NaN": ('{"_type": "", "stack_dim": NaN}', "v/meta.json: its stack_dim is no number"),
    "view of nothing known": (
        json.dumps({"_type": "", "custom_op": "flip", "custom_op_kwargs": {}}),
        "v: a view that cannot be made: operation 'flip' is not known",
    ),
    "view without arguments": (json.dumps({"_type": "", "custom_op": "view"}), "v: a view that cannot be made"),
}


@pytest.mark.parametrize("name", VALUES)
def test_descriptions_of_values_are_refused_in_words(tmp_path, name):
    """Levels that are no dict of arrays; those are read in Python."""
    text, match = VALUES[name]
    members = [("meta.json", meta(x=leaf([2]), v={"type": "NonTensorData"})), ("x.memmap", X), ("v/meta.json", text)]
    if "custom_op" in text:
        members += [("v/_source/meta.json", meta(y=leaf([2]))), ("v/_source/y.memmap", X)]
    (tmp_path / "h.tdz").write_bytes(make_zip(members))
    with pytest.raises((ZrecordError, ValueError), match=f"h.tdz: {match}") as caught:
        zrecord.load_archive(tmp_path / "h.tdz")
    assert "\n" not in str(caught.value)
    assert zrecord.load_archive(tmp_path / "h.tdz", subpath="x").tolist() == [0, 1]


@pytest.mark.parametrize("text", [b"{", b"[]", b"\xff", b'{"types": 3}', b'{"types": {"a": []}}'])
def test_types_of_values_are_refused_in_words(tmp_path, text):
    members = [("meta.json", meta(v={"type": "NonTensorData"})), ("v/json_types.json", text)]
    members.append(("v/meta.json", json.dumps({"_type": VALUE_TYPE, "_is_non_tensor": True})))
    (tmp_path / "h.tdz").write_bytes(make_zip(members))
    with pytest.raises(ValueError, match="h.tdz: v/json_types.json: (is n|its types are no names)"):
        zrecord.load_archive(tmp_path / "h.tdz")


STACK = json.dumps({"_type": "<class 'tensordict._lazy.LazyStackedTensorDict'>", "stack_dim": 0})


def stack_of(*names):
    """A stack at the root and one inside a level; names of members are to be added to both."""
    members = [("meta.json", STACK)]
    for name in names:
        members.append((name, X if name.endswith(".memmap") else meta(x=leaf([2]))))
    inner = [(f"in/{name}", data) for name, data in members]
    return members, [("meta.json", meta(**{"in": {"type": "LazyStackedTensorDict"}})), *inner]


def whole(i):
    return f"{i}/meta.json", f"{i}/x.memmap"


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize(
    ("names", "lost"),
    [
        ([*whole(0), "1/x.memmap", *whole(2)], "1|2"),  # as if there were one
        ([*whole(0), "1/x.memmap"], "1"),
        (["0/x.memmap"], "0"),
        ([*whole(0), *whole(2)], "2"),
        ([*(name for i in range(10) for name in whole(i)), "10/x.memmap"], "10"),
    ],
)
def test_stacks_that_lack_a_member(tmp_path, depth, names, lost):
    (tmp_path / "h.tdz").write_bytes(make_zip(stack_of(*names)[depth]))
    with pytest.raises(ZrecordError, match=rf"h.tdz: member (in/)?({lost}) of a stack has no meta.json"):
        zrecord.load_archive(tmp_path / "h.tdz")


@pytest.mark.parametrize("depth", [0, 1])
def test_what_else_lies_in_a_stack_is_not_looked_at(tmp_path, depth):
    """As in tensordict."""
    others = ["2024/x.memmap", "02/x.memmap", "notes/1/x.memmap", "0/5/x.memmap", "7", "99999999999999999999999/x"]
    (tmp_path / "h.tdz").write_bytes(make_zip(stack_of(*whole(0), *whole(1), *others)[depth]))
    stack = zrecord.load_archive(tmp_path / "h.tdz", subpath="in" if depth else None)
    assert len(stack) == 2 and stack[1]["x"].tolist() == [0, 1]


@pytest.mark.parametrize("name", ["encrypted", "twice", "leads out", "leads out inside", "absolute", "overlap"])
def test_hostile_archives_are_not_unpacked(tmp_path, name):
    (tmp_path / "h.tdz").write_bytes(HOSTILE[name][0])
    with pytest.raises(ZrecordError):
        zrecord.unpack_memmap(tmp_path / "h.tdz", tmp_path / "out")
    assert os.listdir(tmp_path) == ["h.tdz"]


@pytest.mark.parametrize(
    "members", [[("x", X), ("x/y", X)], [("x/y", X), ("x", X)]], ids=["file first", "folder first"]
)
def test_a_file_that_is_also_a_folder(tmp_path, members):
    (tmp_path / "h.tdz").write_bytes(make_zip([("meta.json", meta()), *members]))
    with pytest.raises(ZrecordError, match="lies below another file"):
        zrecord.unpack_memmap(tmp_path / "h.tdz", tmp_path / "out")
    assert os.listdir(tmp_path) == ["h.tdz"]


def test_links_are_not_unpacked(tmp_path):
    data = make_zip([("meta.json", meta()), ("x", "/etc/passwd")], external_attr=0o120777 << 16)
    (tmp_path / "h.tdz").write_bytes(data)
    with pytest.raises(ZrecordError, match="is a link"):
        zrecord.unpack_memmap(tmp_path / "h.tdz", tmp_path / "out")
    assert os.listdir(tmp_path) == ["h.tdz"]


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("declared", [1 << 20, (1 << 32) - 2])
def test_bombs(tmp_path, method, declared):
    """More declared than there is, and by far more than the method can hold."""
    data = bytearray(make_zip([("meta.json", meta(x=leaf([declared], "uint8"))), ("x.memmap", bytes(5000))], method))
    central, local = data.rindex(b"PK\1\2"), data.index(b"PK\3\4", 4)
    struct.pack_into("<I", data, central + 24, declared)
    struct.pack_into("<I", data, local + 22, declared)
    (tmp_path / "h.tdz").write_bytes(data)
    with pytest.raises(ZrecordError, match="x.memmap: (declares more data|its data has another size|its compressed)"):
        zrecord.load_archive(tmp_path / "h.tdz")


def test_a_description_may_not_declare_gigabytes(tmp_path):
    """bzip2 could hold them, so no method's limit refuses it: 4 GiB were allocated for 200 bytes."""
    data = bytearray(make_zip([("meta.json", meta(x=leaf([2]))), ("x.memmap", X)], zipfile.ZIP_BZIP2))
    for at in (data.index(b"PK\1\2") + 24, 22):
        struct.pack_into("<I", data, at, 100 << 20)
    (tmp_path / "h.tdz").write_bytes(data)
    with pytest.raises(ZrecordError, match="meta.json: is too large for a description"):
        zrecord.load_archive(tmp_path / "h.tdz")


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_more_data_than_declared(tmp_path, method):
    data = bytearray(make_zip([("meta.json", meta(x=leaf([2]))), ("x.memmap", bytes(5000))], method))
    central, local = data.rindex(b"PK\1\2"), data.index(b"PK\3\4", 4)
    struct.pack_into("<I", data, central + 24, 8)
    struct.pack_into("<I", data, local + 22, 8)
    (tmp_path / "h.tdz").write_bytes(data)
    with pytest.raises(ZrecordError, match="x.memmap"):
        zrecord.load_archive(tmp_path / "h.tdz")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_every_truncation_is_an_error(tmp_path, method):
    data = make_zip([("meta.json", meta(x=leaf([2]))), ("x.memmap", X)], method)
    path = tmp_path / "h.tdz"
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(ZrecordError):
            zrecord.load_archive(path)
        assert not zrecord.is_memmap_archive(path)


@pytest.mark.parametrize("compression", [None, "deflate", "bzip2", "lzma"])
def test_every_flipped_byte_is_noticed_or_harmless(tmp_path, compression):
    tree = {"x": np.arange(40, dtype=np.uint8), "n": {"y": np.arange(3.0)}, "s": "text"}
    path = zrecord.save_archive(tree, tmp_path / "a.tdz", compression=compression)
    data = path.read_bytes()
    noticed = 0
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :])
        try:
            loaded = zrecord.load_archive(path, checksums=True)
            sound = zrecord.verify_archive(path).ok
        except (ZrecordError, ValueError):
            noticed += 1
            continue
        if not sound:
            noticed += 1
            continue
        assert np.array_equal(loaded["x"], tree["x"]) and np.array_equal(loaded["n"]["y"], tree["n"]["y"])
    assert noticed > len(data) // 3


def test_the_first_of_many_damaged_headers_is_named(tmp_path):
    """Threads read the local headers, in no order."""
    path = tmp_path / "a.tdz"
    zrecord.save_archive({f"leaf{i:04}": np.full(3, i) for i in range(1000)}, path)
    data = bytearray(path.read_bytes())
    found = zrecord.load_archive(path)
    assert [found[key][0] for key in found.keys()] == list(range(1000))
    del found
    for i in (990, 700, 421):
        data[data.index(f"leaf{i:04}.memmap".encode())] ^= 1
    path.write_bytes(data)
    with pytest.raises(zrecord.ZrecordError, match="leaf0421.memmap: its two headers differ"):
        zrecord.load_archive(path)
    assert zrecord.load_archive(path, subpath="leaf0420")[0] == 420


def test_a_flipped_byte_of_a_leaf_is_found_on_request(tmp_path):
    path = zrecord.save_archive({"a": np.zeros(9), "b": np.arange(1000.0)}, tmp_path / "a.tdz")
    data = bytearray(path.read_bytes())
    data[data.index(np.arange(1000.0).tobytes()) + 4321] ^= 8
    path.write_bytes(data)
    zrecord.load_archive(path)  # maps, does not read
    with pytest.raises(ZrecordError, match="b.memmap.*CRC-32"):
        zrecord.load_archive(path, checksums=True)
    assert ["b.memmap" in f[2] for f in zrecord.verify_archive(path).findings] == [True]


def test_copies_are_always_checked(tmp_path):
    data = bytearray(make_zip([("meta.json", meta(x=leaf([2]))), ("x.memmap", X)], zipfile.ZIP_DEFLATED))
    struct.pack_into("<I", data, data.rindex(b"PK\1\2") + 16, 1)
    (tmp_path / "a.tdz").write_bytes(data)
    with pytest.raises(ZrecordError, match="x.memmap.*CRC-32"):
        zrecord.load_archive(tmp_path / "a.tdz")


def test_copies_of_what_is_only_misplaced_are_checked_too(tmp_path):
    for pad in range(8):
        values = np.arange(5, dtype=np.float64)
        text = meta(x=leaf([5], "float64")) + " " * pad
        data = bytearray(make_zip([("meta.json", text), ("x.memmap", values.tobytes())]))
        at = data.index(values.tobytes())
        data[at + 9] ^= 4
        (tmp_path / "a.tdz").write_bytes(data)
        if at % 8 == 0:  # mapped
            assert zrecord.load_archive(tmp_path / "a.tdz")["x"][0] == 0
            continue
        with pytest.raises(ZrecordError, match="x.memmap.*CRC-32"):
            zrecord.load_archive(tmp_path / "a.tdz")


def test_a_window_of_4_gib_is_not_allocated(tmp_path):
    data = bytearray(make_zip([("meta.json", meta(x=leaf([2]))), ("x.memmap", X)], zipfile.ZIP_LZMA))
    local = data.index(b"PK\3\4", 4)
    window = local + 30 + len("x.memmap") + 5
    struct.pack_into("<I", data, window, 0xFFFFFFFF)
    (tmp_path / "a.tdz").write_bytes(data)
    assert zrecord.load_archive(tmp_path / "a.tdz")["x"].tolist() == [0, 1]


@pytest.mark.parametrize("text", ["", "é", "a/b.tdz", "\udc80"])
def test_is_memmap_archive_never_raises(tmp_path, text):
    assert not zrecord.is_memmap_archive(tmp_path / text)


def test_names_in_old_code_pages(tmp_path):
    """Without the UTF-8 flag a name is code page 437, as zipfile reads it."""
    data = bytearray(make_zip([("meta.json", meta(**{"é": leaf([2])})), ("é.memmap", X)]))
    raw = "é.memmap".encode()
    for at, flags in ((data.rindex(b"PK\1\2"), 8), (data.index(b"PK\3\4", 4), 6)):
        struct.pack_into("<H", data, at + flags, 0)
    data = bytes(data).replace(raw, b"\x82" + b".memmap" + b"_")
    central = data.rindex(b"PK\1\2")
    data = patched(central + 5, "<B", 0, data=data)  # made by MS-DOS
    (tmp_path / "a.tdz").write_bytes(data)
    with pytest.raises(ZrecordError, match="é: its file is missing"):  # the name has a byte more
        zrecord.load_archive(tmp_path / "a.tdz")
    (tmp_path / "a.tdz").write_bytes(data.replace(b"\x82.memmap_", b"\x82.memmap/"))
    with pytest.raises(ZrecordError, match="folder with content"):
        zrecord.load_archive(tmp_path / "a.tdz")
