# SPDX-License-Identifier: MIT
"""zrecord import: what goes in comes out of cat and export as numpy.save writes it; what cannot go in is named."""

import io
import json
import os
import subprocess

import numpy as np
import pytest

CODECS = ["raw", "zstd", "zstd_dict"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def make(zrecord_tool):
    """Imports or fails the test; returns what info --json says of the store."""

    def run(*args):
        done = zrecord_tool("import", "--no-sync", *args)
        assert done.returncode == 0, done.stderr
        return json.loads(zrecord_tool("info", "--json", args[1]).stdout)

    return run


def saved(array):
    """The bytes of numpy.save, without flattening rank 0 or Fortran order."""
    out = io.BytesIO()
    np.save(out, np.array(array, order="C"))
    return out.getvalue()


def save_all(folder, arrays):
    os.mkdir(folder)
    for i, array in enumerate(arrays):
        np.save(f"{folder}/{i:04d}.npy", array)


def assert_records(zrecord_tool, store, arrays):
    for i, array in enumerate(arrays):
        done = zrecord_tool("cat", store, i, text=False)
        assert done.stdout == saved(array), f"record {i}: {done.stderr}"


def refused(zrecord_tool, *args):
    """The one line of reason; nothing may be left behind."""
    before = sorted(os.listdir())
    done = zrecord_tool("import", *args)
    assert (done.returncode, done.stdout) == (1, "")
    assert sorted(os.listdir()) == before
    lines = done.stderr.splitlines()
    assert all(line.startswith("zrecord: import: ") for line in lines)
    return lines[-1]


# ---------------------------------------------------------------- one .npy


@pytest.mark.parametrize("codec", CODECS)
def test_rows_of_one_npy(here, zrecord_tool, make, codec):
    array = np.random.default_rng(0).integers(0, 50, (300, 7, 11), dtype="u1")
    np.save("a.npy", array)
    info = make("a.npy", "s", "--codec", codec)
    assert (info["geometry"], info["length"], info["dtype"], info["item_shape"]) == ("dense", 300, "|u1", [7, 11])
    assert info["codec"] == codec
    assert_records(zrecord_tool, "s", array[:5])
    assert zrecord_tool("export", "s", "b.npy").returncode == 0
    assert open("b.npy", "rb").read() == open("a.npy", "rb").read()


DTYPES = ["|b1", "|i1", "<u2", ">i4", "<i8", "<f2", ">f8", "<c8", "<c16", "<M8[ns]", "<m8[D]", "|S5", "<U3", "|V6"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_are_kept(here, zrecord_tool, make, dtype):
    nbytes = 6 * np.dtype(dtype).itemsize
    raw = bytes(i % 2 for i in range(nbytes)) if dtype == "|b1" else bytes(range(33, 33 + nbytes))
    if dtype == "<U3":
        raw = "".join("abc" for _ in range(6)).encode("utf-32-le")
    array = np.frombuffer(raw, dtype).reshape(3, 2)
    np.save("a.npy", array)
    assert make("a.npy", "s")["dtype"] == dtype
    assert_records(zrecord_tool, "s", array)


def test_one_dimension_gives_scalar_records(here, zrecord_tool, make):
    labels = np.arange(10, dtype="<i8")
    np.save("a.npy", labels)
    assert make("a.npy", "s")["item_shape"] == []
    assert_records(zrecord_tool, "s", labels)


@pytest.mark.parametrize("shape", [(40, 3, 5, 7), (9, 1, 1), (1, 6, 4), (5000, 64), (3, 70000)])
def test_fortran_order_is_converted(here, make, zrecord_tool, shape):
    array = np.random.default_rng(1).integers(0, 9999, shape).astype(">i4")
    np.save("a.npy", np.asfortranarray(array))
    make("a.npy", "s")
    assert zrecord_tool("export", "s", "b.npy").returncode == 0
    assert open("b.npy", "rb").read() == saved(array)


def test_rows_as_ragged(here, zrecord_tool, make):
    array = np.arange(24, dtype="<f4").reshape(4, 2, 3)
    np.save("a.npy", array)
    assert make("a.npy", "s", "--ragged")["geometry"] == "ragged"
    assert_records(zrecord_tool, "s", array)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_header_versions(here, zrecord_tool, make, version):
    array = np.arange(6, dtype="<i2").reshape(2, 3)
    with open("a.npy", "wb") as file:
        np.lib.format.write_array(file, array, version=version)
    make("a.npy", "s")
    assert_records(zrecord_tool, "s", array)


def test_a_header_longer_than_the_first_read(here, zrecord_tool, make):
    array = np.arange(6, dtype="<i2").reshape(2, 3)
    header = b"{'descr': '<i2', 'fortran_order': False, 'shape': (2, 3), }" + b" " * 9000 + b"\n"
    with open("a.npy", "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + array.tobytes())
    make("a.npy", "s")
    assert_records(zrecord_tool, "s", array)


def test_no_rows_make_an_empty_store(here, make):
    np.save("a.npy", np.zeros((0, 3), "f4"))
    assert make("a.npy", "s")["length"] == 0


def test_an_array_larger_than_a_piece(here, make, zrecord_tool):
    array = np.random.default_rng(2).integers(0, 3, (3000, 50000), dtype="u1")  # 143 MiB
    np.save("a.npy", array)
    make("a.npy", "s", "--codec", "raw")
    assert zrecord_tool("export", "s", "b.npy").returncode == 0
    assert subprocess.run(["cmp", "a.npy", "b.npy"]).returncode == 0


# ---------------------------------------------------------------- a folder


@pytest.mark.parametrize("codec", CODECS)
def test_folder_of_one_shape_is_dense(here, zrecord_tool, make, codec):
    arrays = np.random.default_rng(3).integers(0, 50, (400, 5, 6), dtype="<i2")
    save_all("in", arrays)
    info = make("in", "s", "--codec", codec, *(["--tier", "fast"] if codec == "zstd_dict" else []))
    assert (info["geometry"], info["length"], info["item_shape"]) == ("dense", 400, [5, 6])
    assert_records(zrecord_tool, "s", arrays[:3])


@pytest.mark.parametrize("codec", CODECS)
def test_folder_of_shapes_is_ragged(here, zrecord_tool, make, codec):
    rng = np.random.default_rng(4)
    shapes = [(), (5,), (2, 3), (1,) * 9, (100, 70)] + [(int(n),) for n in rng.integers(1, 400, 300)]
    arrays = [rng.integers(0, 30, shape).astype("<i4") for shape in shapes]
    save_all("in", arrays)
    info = make("in", "s", "--codec", codec)
    assert (info["geometry"], info["length"], info["item_shape"]) == ("ragged", len(arrays), None)
    assert zrecord_tool("export", "s", "out").returncode == 0
    for i, array in enumerate(arrays):
        assert open(f"out/{i:08d}.npy", "rb").read() == saved(array)


def test_rank_nine_and_fortran_files(here, zrecord_tool, make):
    rng = np.random.default_rng(5)
    arrays = [rng.random(shape) for shape in [(2, 1, 3, 1, 2, 1, 2, 1, 2), (17, 19, 23), (1,)]]
    save_all("in", [np.asfortranarray(array) for array in arrays])
    make("in", "s")
    assert_records(zrecord_tool, "s", arrays)


def test_records_come_in_the_order_of_names(here, zrecord_tool, make):
    os.mkdir("in")
    for name in ["b", "a", "10", "9", "Z", "\u00e9"]:
        np.save(f"in/{name}.npy", np.array(name, "U2"))
    make("in", "s")
    assert_records(zrecord_tool, "s", [np.array(n, "U2") for n in ["10", "9", "Z", "a", "b", "\u00e9"]])


def test_hidden_files_are_passed_over_and_others_noted(here, zrecord_tool):
    save_all("in", np.zeros((2, 3)))
    for name in [".hidden.npy", "README.txt", "x.npz"]:
        open(f"in/{name}", "w").close()
    done = zrecord_tool("import", "in", "s")
    assert done.returncode == 0
    assert done.stderr.startswith("zrecord: import: in: left out ") and "and 1 more" in done.stderr
    assert done.stdout.startswith("s: 2 dense records")


def test_quiet_says_nothing(here, zrecord_tool):
    np.save("a.npy", np.zeros((2, 3)))
    done = zrecord_tool("import", "-q", "a.npy", "s")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_levels_and_tunes_are_all_readable(here, zrecord_tool, make):
    array = np.random.default_rng(6).integers(0, 9, (50, 500), dtype="<i4")
    np.save("a.npy", array)
    for i, options in enumerate([["--level", "-5"], ["--level", "1"], ["--level", "22"], ["--tune", "read"], ["--tune", "write"]]):
        make("a.npy", f"s{i}", *options)
        assert_records(zrecord_tool, f"s{i}", array[:2])


def test_store_path_with_missing_parents_and_a_slash(here, zrecord_tool, make):
    np.save("a.npy", np.zeros((2, 3)))
    make("a.npy", "deep/er/s/")
    assert os.listdir("deep/er") == ["s"]


# ---------------------------------------------------------------- what cannot be stored


def test_truncated_at_every_length(here, zrecord_tool):
    np.save("a.npy", np.arange(6, dtype="<i4"))
    whole = open("a.npy", "rb").read()
    for length in range(len(whole)):
        open("t.npy", "wb").write(whole[:length])
        assert "t.npy: " in refused(zrecord_tool, "t.npy", "s"), length


UNSTORABLE = {
    "objects": (np.array([1, None]), "objects"),
    "structured": (np.zeros(3, [("a", "i4")]), "structured"),
    "no bytes in a row": (np.zeros((3, 0)), "zero bytes"),
    "rank 0": (np.array(5), "rank-0"),
    "no bytes in an element": (np.zeros(3, "V0"), ""),
}


@pytest.mark.parametrize("case", UNSTORABLE)
def test_unstorable_arrays(here, zrecord_tool, case):
    array, reason = UNSTORABLE[case]
    np.save("bad.npy", array)
    line = refused(zrecord_tool, "bad.npy", "s")
    assert "bad.npy: " in line and reason in line


@pytest.mark.parametrize("content", [b"", b"hello\n" * 100, b"PK\x03\x04" + bytes(200), b"\x93NUMPY\x07\x00" + bytes(200)])
def test_not_a_npy(here, zrecord_tool, content):
    open("bad.npy", "wb").write(content)
    assert "bad.npy: " in refused(zrecord_tool, "bad.npy", "s")


def test_a_header_that_claims_gigabytes(here, zrecord_tool):
    open("bad.npy", "wb").write(b"\x93NUMPY\x02\x00\xf0\xff\xff\xff" + b"{" * 5000)
    assert "bad.npy: " in refused(zrecord_tool, "bad.npy", "s")


def test_huge_shapes_do_not_overflow(here, zrecord_tool):
    for shape in ["(4, 9223372036854775807)", "(4294967296, 4294967296, 4294967296)", "(18446744073709551616,)", "(-1, 3)"]:
        header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
        open("bad.npy", "wb").write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
        assert "bad.npy: " in refused(zrecord_tool, "bad.npy", "s")


@pytest.mark.parametrize("ragged", [[], ["--ragged"]])
def test_records_over_two_gibibytes_are_refused_before_anything_is_read(here, zrecord_tool, ragged):
    """A sparse source: 2 GiB and a bit in one row."""
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (1, 2147483649), }".ljust(117) + b"\n"
    with open("big.npy", "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
        file.truncate(128 + 2**31 + 1)
    line = refused(zrecord_tool, "big.npy", "s", *ragged)
    assert "big.npy: " in line and "2147483649" in line


def test_missing_source(here, zrecord_tool):
    assert refused(zrecord_tool, "nope.npy", "s") == "zrecord: import: nope.npy: No such file or directory"


def test_odd_sources(here, zrecord_tool):
    os.mkfifo("fifo.npy")
    assert "fifo.npy: " in refused(zrecord_tool, "fifo.npy", "s")
    assert "/dev/null: " in refused(zrecord_tool, "/dev/null", "s")
    os.mkdir("empty")
    assert "empty: no .npy files" in refused(zrecord_tool, "empty", "s")
    np.save("a.npy", np.zeros((2, 3)))
    assert zrecord_tool("import", "a.npy", "store").returncode == 0
    assert "store: is a store" in refused(zrecord_tool, "store", "s")


def test_folder_errors_name_the_file(here, zrecord_tool):
    save_all("in", np.zeros((3, 2, 2), "<f4"))
    cases = {
        "dtype": (np.zeros((2, 2), "<f8"), "dtype <f8, but 0000.npy has <f4"),
        "byte order": (np.zeros((2, 2), ">f4"), "dtype >f4"),
        "objects": (np.array([None]), "objects"),
        "nothing": (np.zeros((0, 2), "<f4"), "zero bytes"),
    }
    for array, reason in cases.values():
        np.save("in/0002.npy", array)
        line = refused(zrecord_tool, "in", "s")
        assert "in/0002.npy: " in line and reason in line
    np.save("in/0002.npy", np.zeros((2, 3), "<f4"))
    line = refused(zrecord_tool, "in", "s", "--dense")
    assert "in/0002.npy: shape (2, 3), but 0000.npy has (2, 2)" in line
    whole = open("in/0001.npy", "rb").read()
    open("in/0001.npy", "wb").write(whole[:-1])
    assert "in/0001.npy: " in refused(zrecord_tool, "in", "s")
    os.mkdir("in/0000x.npy")
    assert "in/0000x.npy: not a regular file" in refused(zrecord_tool, "in", "s")


def test_dangling_link_in_a_folder(here, zrecord_tool):
    save_all("in", np.zeros((2, 3)))
    os.symlink("nowhere", "in/link.npy")
    assert "in/link.npy: No such file" in refused(zrecord_tool, "in", "s")


def test_existing_store_is_refused(here, zrecord_tool):
    np.save("a.npy", np.zeros((2, 3)))
    os.mkdir("s")
    assert "s: File exists" in refused(zrecord_tool, "a.npy", "s")
    os.symlink("nowhere", "link")
    assert "link: File exists" in refused(zrecord_tool, "a.npy", "link")


def test_dictionaries_that_cannot_be_used(here, zrecord_tool):
    np.save("a.npy", np.zeros((2, 3)))
    assert "training failed" in refused(zrecord_tool, "a.npy", "s", "--codec", "zstd_dict")
    assert "nope: No such file" in refused(zrecord_tool, "a.npy", "s", "--codec", "zstd_dict", "--dict", "nope")
    assert "a.npy: not a zstd dictionary" in refused(zrecord_tool, "a.npy", "s", "--codec", "zstd_dict", "--dict", "a.npy")
    open("zero", "w").close()
    assert "zero: " in refused(zrecord_tool, "a.npy", "s", "--codec", "zstd_dict", "--dict", "zero")
