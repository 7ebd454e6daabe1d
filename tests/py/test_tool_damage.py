# SPDX-License-Identifier: MIT
"""Damaged, foreign and incomplete stores, through the tools: 1, and a line that names file, record and reason."""

import os
import shutil
import struct

import numpy as np
import pytest

PAGE = 4096
COUNT = 20
CODECS = ["raw", "zstd", "zstd_dict"]
ARRAY = np.random.default_rng(0).integers(0, 50, (COUNT, 40), dtype="<i4")


@pytest.fixture(scope="module")
def stores(tmp_path_factory, zrecord_tool):
    """Good stores, Dense and Ragged with each codec; tests work on copies."""
    folder = tmp_path_factory.mktemp("stores")
    training = np.random.default_rng(1).integers(0, 50, (4000, 40), dtype="<i4")
    np.save(folder / "training.npy", training)
    np.save(folder / "a.npy", ARRAY)
    for name in ["dict", "other"]:
        source = folder / "training.npy" if name == "dict" else folder / "reversed.npy"
        np.save(folder / "reversed.npy", training[::-1] * 3)
        assert zrecord_tool("train-dict", source, "-o", folder / name, "--tier", "fast").returncode == 0
    for codec in CODECS:
        for geometry in ["dense", "ragged"]:
            options = ["--dict", folder / "dict"] if codec == "zstd_dict" else []
            done = zrecord_tool(
                "import", folder / "a.npy", folder / f"{geometry}-{codec}", f"--{geometry}", "--codec", codec, "--no-sync", *options
            )
            assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def copy(stores, tmp_path, monkeypatch):
    """A fresh copy of one of the stores at ./s."""
    monkeypatch.chdir(tmp_path)

    def make(name):
        shutil.rmtree("s", ignore_errors=True)
        shutil.copytree(stores / name, "s")

    return make


@pytest.fixture
def refused(zrecord_tool):
    """Every reading command fails with one line about the store, and makes nothing."""
    commands = [("info", "s"), ("ls", "s"), ("cat", "s", 0), ("verify", "s"), ("export", "s", "out")]

    def run(*reasons):
        # Without a meta.zr, s would be taken for a folder of .npy.
        training = [("train-dict", "s", "-o", "out")] if os.path.exists("s/meta.zr") else []
        for args in commands + training:
            done = zrecord_tool(*args)
            assert (done.returncode, done.stdout) == (1, ""), args
            lines = done.stderr.splitlines()
            assert len(lines) == 1 and lines[0].startswith(f"zrecord: {args[0]}: s"), lines
            assert all(reason in lines[0] for reason in reasons), lines
            assert not os.path.exists("out")
            assert [name for name in os.listdir() if name.startswith(".")] == []
        return lines[0]

    return run


def patch(path, offset, data):
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def entry(record):
    """offset, phys_length, logic_length of a record."""
    with open("s/meta.zr", "rb") as file:
        file.seek(PAGE + 16 * record)
        return struct.unpack("<QII", file.read(16))


def set_entry(record, offset, phys, logic):
    patch("s/meta.zr", PAGE + 16 * record, struct.pack("<QII", offset, phys, logic))


def one_bad_record(zrecord_tool, record, *reasons):
    """verify names that record and no other; its neighbours are still served."""
    done = zrecord_tool("verify", "s")
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert done.stdout.endswith(f"{len(lines)} fault{'s' * (len(lines) > 1)}\n")
    if "s/side.zr: " in lines[0]:  # checksums cover the table too
        lines.pop(0)
    assert len(lines) == 1 and f": record {record}: " in lines[0] and lines[0].startswith("zrecord: verify: s/"), lines
    assert all(reason in lines[0] for reason in reasons), lines
    assert zrecord_tool("cat", "s", record + 1, text=False).returncode == 0
    return lines[0]


# ---------------------------------------------------------------- whole stores


def test_missing(tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    assert "no such store" in refused()


@pytest.mark.parametrize("make", [lambda: os.mkdir("s"), lambda: open("s", "w").close(), lambda: os.mkfifo("s")], ids=["empty folder", "file", "fifo"])
def test_not_a_store(tmp_path, monkeypatch, zrecord_tool, make):
    monkeypatch.chdir(tmp_path)
    make()
    for args in [("info", "s"), ("cat", "s", 0), ("verify", "s"), ("export", "s", "out")]:
        done = zrecord_tool(*args, timeout=20)
        assert done.returncode == 1
        assert done.stderr.startswith(f"zrecord: {args[0]}: s")
        assert os.listdir() == ["s"]


@pytest.mark.parametrize("length", sorted({0, 1, 7, 8, 16, 19, 20, 31, 32, 33, 50, *range(64, PAGE, 403), PAGE - 1}))
def test_first_page_cut_short(copy, refused, length):
    copy("dense-zstd")
    os.truncate("s/meta.zr", length)
    refused("meta.zr")


@pytest.mark.parametrize("name", ["dense-zstd", "ragged-raw"])
def test_table_cut_short_at_every_length(copy, zrecord_tool, name):
    copy(name)
    for length in range(PAGE + 16 * COUNT - 1, PAGE - 1, -1):
        os.truncate("s/meta.zr", length)
        done = zrecord_tool("info", "s")
        assert (done.returncode, done.stdout) == (1, ""), length
        assert "s/meta.zr" in done.stderr


@pytest.mark.parametrize("name", ["dense-raw", "dense-zstd", "ragged-zstd_dict"])
def test_data_cut_short(copy, refused, name):
    copy(name)
    whole = os.path.getsize("s/data.zr")
    for length in [0, 1, whole // 2, whole - 1]:
        os.truncate("s/data.zr", length)
        refused("data.zr")


def test_files_missing(copy, refused):
    for name, missing in [("dense-zstd", "data.zr"), ("ragged-raw", "data.zr"), ("dense-zstd_dict", "dict.zr")]:
        copy(name)
        os.unlink(f"s/{missing}")
        refused(missing)
    os.unlink("s/meta.zr")
    refused()


@pytest.mark.parametrize(
    "offset,data",
    [
        (0, struct.pack("<Q", 2**63)),  # length
        (0, struct.pack("<Q", COUNT + 1)),
        (16, struct.pack("<I", 0)),  # schema_length
        (16, struct.pack("<I", 4065)),
        (16, struct.pack("<I", 2**32 - 1)),
        (20, b"\x01"),  # reserved
        (30, b"\x01"),
        (31, b"\x03"),  # codec
        (31, b"\xff"),
        (32, b"\xc1"),  # schema: not MessagePack
        (32, b"\x80"),  # an empty map
        (32, b"\xdf\xff\xff\xff\xff"),  # a map of 2**32 - 1
    ],
)
def test_header_damaged(copy, refused, offset, data):
    copy("dense-zstd")
    patch("s/meta.zr", offset, data)
    refused("meta.zr")


@pytest.mark.parametrize("tail", [2**63, 2**64 - 1])
def test_committed_end_past_the_data(copy, refused, tail):
    copy("dense-zstd")
    patch("s/meta.zr", 8, struct.pack("<Q", tail))
    assert "cut short" in refused("data.zr")


def test_a_newer_loaderx_store_is_named_as_such(tmp_path, monkeypatch, refused):
    """The layout of loaderx 2.8: several data files and another header."""
    monkeypatch.chdir(tmp_path)
    os.mkdir("s")
    header = struct.pack("<QHBB", 2, 31, 4, 1) + bytes(4) + struct.pack("<QQ", 33, 33)
    open("s/meta.zr", "wb").write(header.ljust(PAGE, b"\0") + struct.pack("<QII", 0, 33, 24) * 2)
    for i in range(4):
        open(f"s/data_{i}.zr", "wb").write(bytes(33 if i < 2 else 0))
    assert "loaderx" in refused()


# ---------------------------------------------------------------- the table


@pytest.mark.parametrize("name", ["dense-raw", "dense-zstd", "ragged-zstd", "ragged-zstd_dict"])
def test_entry_past_the_end_of_the_data(copy, zrecord_tool, name):
    copy(name)
    offset, phys, logic = entry(5)
    for bad in [(os.path.getsize("s/data.zr") - phys + 1, phys, logic), (2**64 - 8, phys, logic), (offset, 2**32 - 1, logic)]:
        set_entry(5, *bad)
        one_bad_record(zrecord_tool, 5)
        done = zrecord_tool("cat", "s", 5, text=False)
        assert (done.returncode, done.stdout) == (1, b"")
        assert b"record 5" in done.stderr


@pytest.mark.parametrize("name", [f"{geometry}-{codec}" for geometry in ["dense", "ragged"] for codec in CODECS])
def test_logical_length_that_disagrees(copy, zrecord_tool, name):
    """Dense: with the schema.  Compressed: with the frame.  Raw: with the stored length."""
    copy(name)
    offset, phys, logic = entry(5)
    for bad in [logic - 1, logic + 1, logic + 8, 0, 2**31, 2**31 + 1, 2**32 - 1]:
        set_entry(5, offset, phys, bad)
        one_bad_record(zrecord_tool, 5)
        assert zrecord_tool("cat", "s", 5, text=False).returncode == 1


@pytest.mark.parametrize("name", ["dense-zstd", "ragged-zstd"])
def test_frame_cut_by_its_stored_length(copy, zrecord_tool, name):
    copy(name)
    offset, phys, logic = entry(5)
    for bad in [0, 1, 4, phys - 1]:
        set_entry(5, offset, bad, logic)
        one_bad_record(zrecord_tool, 5)


# ---------------------------------------------------------------- the payload


@pytest.mark.parametrize("name", [f"{geometry}-{codec}" for geometry in ["dense", "ragged"] for codec in CODECS])
def test_a_flipped_byte_is_found_and_named(copy, zrecord_tool, name):
    copy(name)
    offset, phys, _ = entry(5)
    with open("s/data.zr", "rb") as file:
        file.seek(offset + phys - 1)
        byte = file.read(1)[0]
    patch("s/data.zr", offset + phys - 1, bytes([byte ^ 0x10]))
    one_bad_record(zrecord_tool, 5)


def test_every_bad_record_is_reported(copy, zrecord_tool):
    copy("dense-zstd")
    for record in [2, 3, 11, 19]:
        offset, phys, _ = entry(record)
        patch("s/data.zr", offset, bytes(phys))
    done = zrecord_tool("verify", "s")
    assert done.returncode == 1
    assert [int(line.split("record ")[1].split()[0].rstrip(":,")) for line in done.stderr.splitlines()] == [2, 3, 11, 19]
    assert done.stdout == "s: 20 records checked, 4 faults\n"


def test_shape_of_a_ragged_record_that_disagrees(copy, zrecord_tool):
    copy("ragged-raw")
    offset, _, _ = entry(5)
    for data in [struct.pack("<Q", 65), struct.pack("<Q", 2), struct.pack("<QQ", 1, 41), struct.pack("<QQ", 1, 2**62), struct.pack("<QQ", 1, 0)]:
        patch("s/data.zr", offset, data)
        one_bad_record(zrecord_tool, 5)
        done = zrecord_tool("ls", "-l", "s")
        assert done.returncode == 1 and "record 5" in done.stderr
        assert len(done.stdout.splitlines()) == 1 + COUNT - 1


def test_export_of_a_damaged_store_leaves_nothing(copy, zrecord_tool):
    for name in ["dense-zstd", "ragged-zstd"]:
        copy(name)
        offset, phys, _ = entry(5)
        patch("s/data.zr", offset, bytes(phys))
        for target in ["out", "out.npy"] if name == "dense-zstd" else ["out"]:
            done = zrecord_tool("export", "s", target)
            assert done.returncode == 1 and "record 5" in done.stderr
            assert os.listdir() == ["s"]
        assert zrecord_tool("export", "s", "good", "--records", "0:5,6:").returncode == 0
        shutil.rmtree("good")


def test_verify_goes_on_to_the_next_store(copy, zrecord_tool):
    copy("dense-zstd")
    shutil.copytree("s", "good")
    os.truncate("s/meta.zr", 10)
    done = zrecord_tool("verify", "nope", "s", "good")
    assert done.returncode == 1
    assert done.stdout == "good: 20 records checked, all good\n"
    assert len(done.stderr.splitlines()) == 2


# ---------------------------------------------------------------- dictionaries


def test_wrong_dictionary(copy, stores, zrecord_tool):
    copy("dense-zstd_dict")
    shutil.copy(stores / "other", "s/dict.zr")
    done = zrecord_tool("verify", "s")
    assert done.returncode == 1
    assert "dict" in done.stderr
    assert zrecord_tool("cat", "s", 0, text=False).returncode == 1


def test_empty_dictionary(copy, refused):
    copy("dense-zstd_dict")
    open("s/dict.zr", "w").close()
    refused("dict.zr")


def test_dictionary_that_does_not_belong(copy, stores, refused):
    """FORMAT: dict.zr is present exactly when the codec is zstdict."""
    copy("dense-zstd")
    shutil.copy(stores / "dict", "s/dict.zr")
    refused("dict.zr")
