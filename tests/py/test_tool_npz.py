# SPDX-License-Identifier: MIT
"""zrecord import FILE.npz:NAME: stored and compressed arrays come in whole, anything else is named and leaves nothing."""

import os
import subprocess
import zipfile

import numpy as np
import pytest
from conftest import BUILD, peak_anonymous_mib

METHODS = {"stored": zipfile.ZIP_STORED, "deflate": zipfile.ZIP_DEFLATED, "bzip2": zipfile.ZIP_BZIP2, "lzma": zipfile.ZIP_LZMA}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tokens(rows=300, columns=50):
    return np.random.default_rng(0).integers(0, 50, (rows, columns), dtype="<i4")


def save_npz(path, method, **arrays):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, array)


def assert_holds(zrecord_tool, store, array):
    assert zrecord_tool("export", store, "back.npy").returncode == 0
    back = np.load("back.npy")
    assert back.dtype == array.dtype and back.flags.c_contiguous
    assert np.array_equal(back, array)
    os.unlink("back.npy")


def refused(zrecord_tool, source, *options, **kwargs):
    """The one line of reason; nothing may be left behind."""
    before = sorted(os.listdir())
    done = zrecord_tool("import", source, "s", *options, **kwargs)
    assert (done.returncode, done.stdout) == (1, "")
    assert sorted(os.listdir()) == before
    (line,) = done.stderr.splitlines()
    assert line.startswith("zrecord: import: ")
    return line.removeprefix("zrecord: import: ")


@pytest.mark.parametrize("method", METHODS)
def test_each_method_and_name(here, zrecord_tool, method):
    arrays = {"image": tokens(), "label": np.arange(300), "deep/er": tokens(5)}
    save_npz("a.npz", METHODS[method], **arrays)
    for i, (name, array) in enumerate(arrays.items()):
        for j, spelling in enumerate([name, f"{name}.npy"]):
            assert zrecord_tool("import", "-q", "--no-sync", f"a.npz:{spelling}", f"s{i}{j}").returncode == 0
            assert_holds(zrecord_tool, f"s{i}{j}", array)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_the_only_array_needs_no_name(here, zrecord_tool, save):
    save("a.npz", tokens())
    done = zrecord_tool("import", "a.npz", "s")
    assert done.stdout.startswith("s: 300 dense records of <i4 (50,), zstd, 58.6 KiB ")
    assert_holds(zrecord_tool, "s", tokens())


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_fortran_order_and_ragged_rows(here, zrecord_tool, save):
    save("a.npz", x=np.asfortranarray(tokens()), y=tokens(10))
    assert zrecord_tool("import", "-q", "a.npz:x", "x", "--codec", "zstd_dict", "--tier", "fast").returncode == 0
    assert_holds(zrecord_tool, "x", tokens())
    assert zrecord_tool("import", "a.npz:y", "y", "--ragged").stdout.startswith("y: 10 ragged records")
    assert zrecord_tool("train-dict", "a.npz:x", "-o", "d").returncode == 0


def test_a_member_larger_than_what_is_unpacked_into_memory(here, zrecord_tool):
    """Goes through a file without a name in TMPDIR, which is gone afterwards."""
    array = np.zeros((100, 1 << 20), "u1")
    array[:, 7] = np.arange(100)
    np.savez_compressed("a.npz", array)
    os.mkdir("scratch")
    env = {**os.environ, "TMPDIR": "scratch"}
    assert zrecord_tool("import", "-q", "--no-sync", "a.npz", "t", env=env).returncode == 0
    assert os.listdir("scratch") == []
    assert_holds(zrecord_tool, "t", array)
    line = refused(zrecord_tool, "a.npz", env={**os.environ, "TMPDIR": "nowhere"})
    assert line == "a.npz:arr_0: no room in nowhere (see TMPDIR) for its 104857728 bytes: No such file or directory"


def test_files_whose_names_look_like_members(here, zrecord_tool):
    np.savez("a.npz", tokens(3))
    for name in ["b.npz:c", "x.npz:y.npz"]:
        np.savez(open(name, "wb"), tokens(4))
    np.save(open("d.npz:e", "wb"), tokens(5))
    os.mkdir("f.npz:g")
    os.rename("a.npz", "f.npz:g/a.npz")
    for i, (name, rows) in enumerate([("d.npz:e", 5), ("x.npz:y.npz", 4), ("x.npz:y.npz:arr_0", 4), ("f.npz:g/a.npz:arr_0", 3)]):
        done = zrecord_tool("import", name, f"s{i}")
        assert done.stdout.startswith(f"s{i}: {rows} dense records"), done.stderr


# ---------------------------------------------------------------- what cannot come in


def test_which_arrays_there_are(here, zrecord_tool):
    np.savez("a.npz", x=tokens(), y=tokens())
    assert refused(zrecord_tool, "a.npz") == "a.npz: 2 arrays in this file: say a.npz:NAME, with one of: x, y"
    assert refused(zrecord_tool, "a.npz:z") == "a.npz: no array 'z' in this file, which has: x, y"
    assert refused(zrecord_tool, "a.npz:").startswith("a.npz: no array ''")
    np.savez("many.npz", **{f"array{i:04d}": np.zeros(1) for i in range(500)})
    line = refused(zrecord_tool, "many.npz")
    assert "500 arrays" in line and line.endswith("...") and len(line) < 600
    with zipfile.ZipFile("none.npz", "w") as archive:
        archive.writestr("readme.txt", "nothing")
    assert refused(zrecord_tool, "none.npz") == "none.npz: no arrays in this file"
    assert refused(zrecord_tool, "none.npz:readme.txt") == "none.npz: no arrays in this file"


def test_missing_files(here, zrecord_tool):
    assert refused(zrecord_tool, "nope.npz") == "nope.npz: No such file or directory"
    assert refused(zrecord_tool, "nope.npz:x") == "nope.npz:x: No such file or directory"


UNSTORABLE = {
    "objects": (np.array([1, None]), "objects"),
    "structured": (np.zeros(3, [("a", "i4")]), "structured"),
    "zero bytes": (np.zeros((3, 0)), "zero bytes"),
    "rank 0": (np.array(5), "rank-0"),
}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("case", UNSTORABLE)
def test_unstorable_arrays(here, zrecord_tool, case, save):
    array, reason = UNSTORABLE[case]
    save("a.npz", bad=array)
    line = refused(zrecord_tool, "a.npz")
    assert line.startswith("a.npz:bad: ") and reason in line


def test_members_that_are_no_arrays(here, zrecord_tool):
    with zipfile.ZipFile("a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("empty.npy", b"")
        archive.writestr("text.npy", b"hello " * 100)
        archive.writestr("short.npy", b"\x93NUMPY\x01\x00\x76\x00{")
    for name in ["empty", "text", "short"]:
        assert refused(zrecord_tool, f"a.npz:{name}").startswith(f"a.npz:{name}: ")


@pytest.mark.parametrize("method", METHODS)
def test_a_flipped_byte_is_named(here, zrecord_tool, method):
    """A stored member with a bad CRC must not read as fine."""
    save_npz("a.npz", METHODS[method], x=tokens())
    whole = bytearray(open("a.npz", "rb").read())
    whole[len(whole) // 2] ^= 4
    open("a.npz", "wb").write(whole)
    assert "a.npz: member x.npy: " in refused(zrecord_tool, "a.npz")


@pytest.mark.parametrize("method", METHODS)
def test_truncated_at_many_lengths(here, zrecord_tool, method):
    save_npz("a.npz", METHODS[method], x=tokens(20, 3))
    whole = open("a.npz", "rb").read()
    for length in {*range(0, len(whole), 23), *range(len(whole) - 30, len(whole))}:
        open("t.npz", "wb").write(whole[:length])
        assert "t.npz: " in refused(zrecord_tool, "t.npz"), length


def test_a_member_that_claims_more_than_it_can_hold(here, zrecord_tool):
    """A size in the directory that the compressed bytes cannot make: no attempt to find room for it."""
    save_npz("a.npz", zipfile.ZIP_DEFLATED, x=tokens(5))
    whole = bytearray(open("a.npz", "rb").read())
    central = whole.rindex(b"PK\x01\x02")
    whole[central + 24 : central + 28] = b"\xf0\xff\xff\xff"
    open("a.npz", "wb").write(whole)
    assert "a.npz: " in refused(zrecord_tool, "a.npz")


def test_no_memory_for_the_whole_of_a_large_one(here):
    """A stored array is read in pieces, a compressed one through a file: neither lives in the heap."""
    array = np.zeros((300, 1 << 20), "u1")
    np.savez("stored.npz", array)
    np.savez_compressed("deflated.npz", array)
    for name in ["stored", "deflated"]:
        command = [BUILD / "zrecord", "import", "-q", "--no-sync", "--codec", "raw", f"{name}.npz", name]
        child = subprocess.Popen(command, env={**os.environ, "TMPDIR": str(here)})
        assert peak_anonymous_mib(child) < 150
        assert child.returncode == 0
