# SPDX-License-Identifier: MIT
"""zrecord pack, unpack, archive-info, refresh-checksums, and archives given to verify and import."""

import json
import os
import signal
import subprocess
import time
import zipfile

import numpy as np
import pytest
import zrecord
from conftest import BUILD

TREE = {"image": np.arange(60, dtype=np.uint8).reshape(5, 4, 3), "n": {"x": np.arange(5.0)}, "e": np.zeros((5, 0))}


@pytest.fixture
def archive(tmp_path, zrecord_tool):
    return zrecord.save_archive(TREE, tmp_path / "a.tdz", batch_size=5)


def test_unpack_and_pack_give_the_same_leaves(zrecord_tool, archive, tmp_path):
    assert zrecord_tool("unpack", archive, tmp_path / "dir").returncode == 0
    done = zrecord_tool("pack", tmp_path / "dir", tmp_path / "b.tdz")
    assert (done.returncode, done.stderr) == (0, "") and "b.tdz: " in done.stdout
    assert zipfile.ZipFile(tmp_path / "b.tdz").testzip() is None
    assert zipfile.ZipFile(tmp_path / "b.tdz").namelist() == zipfile.ZipFile(archive).namelist()
    assert np.array_equal(zrecord.load_archive(tmp_path / "b.tdz")["n", "x"], TREE["n"]["x"])


@pytest.mark.parametrize("how", ["stored", "deflate", "bzip2", "lzma"])
def test_pack_compresses_on_request(zrecord_tool, archive, tmp_path, how):
    zrecord_tool("unpack", archive, tmp_path / "dir")
    assert zrecord_tool("pack", tmp_path / "dir", tmp_path / "b.tdz", "--compression", how, "-q").returncode == 0
    info = json.loads(zrecord_tool("archive-info", "--json", tmp_path / "b.tdz").stdout)
    assert {leaf["method"] for leaf in info["leaves"] if leaf["bytes"]} == {how}
    assert info["write_through"] == (how == "stored")
    assert zrecord_tool("verify", tmp_path / "b.tdz").stdout.endswith("all good\n")


def test_pack_replaces_only_when_told(zrecord_tool, archive, tmp_path):
    zrecord_tool("unpack", archive, tmp_path / "dir")
    done = zrecord_tool("pack", tmp_path / "dir", archive)
    assert done.returncode == 1 and "exists" in done.stderr
    assert zrecord_tool("pack", "-f", tmp_path / "dir", archive).returncode == 0


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["pack", "dir"], "too few"),
        (["pack", "dir", "f", "--compression", "rar"], "rar"),
        (["pack", "dir", "f", "--level", "3"], "--compression"),
        (["pack", "dir", "f", "--level", "13"], "--level"),
        (["unpack", "f"], "too few"),
        (["archive-info"], "too few"),
        (["refresh-checksums", "a", "b"], "too many"),
    ],
)
def test_wrong_usage(zrecord_tool, args, word):
    done = zrecord_tool(*args)
    assert done.returncode == 2 and word in done.stderr and done.stdout == ""


def test_what_is_no_archive_is_said(zrecord_tool, tmp_path):
    (tmp_path / "f").write_text("text")
    for command in (["unpack", tmp_path / "f", tmp_path / "d"], ["archive-info", tmp_path / "f"],
                    ["refresh-checksums", tmp_path / "f"], ["verify", tmp_path / "f"]):
        done = zrecord_tool(*command)
        assert done.returncode == 1 and "not a zip" in done.stderr, command
    assert os.listdir(tmp_path) == ["f"]
    done = zrecord_tool("pack", tmp_path, tmp_path.parent / "never.tdz")
    assert done.returncode == 1 and "meta.json" in done.stderr


def test_archive_info(zrecord_tool, archive):
    text = zrecord_tool("archive-info", archive).stdout
    assert "batch size (5,)" in text and "n/x" in text and "float64" in text
    info = json.loads(zrecord_tool("archive-info", "--json", archive).stdout)
    assert info["batch_size"] == [5] and info["kind"] == "tensordict" and info["write_through"]
    leaves = {leaf["path"]: leaf for leaf in info["leaves"]}
    assert leaves["image"]["shape"] == [5, 4, 3] and leaves["image"]["offset"] % 64 == 0
    assert leaves["e"]["method"] == "none" and leaves["e"]["offset"] is None


def test_verify_names_the_member_and_refresh_mends(zrecord_tool, archive):
    zrecord.load_archive(archive, mode="r+")["image"][:] = 1
    done = zrecord_tool("verify", archive)
    assert done.returncode == 1 and "image.memmap" in done.stderr and "1 fault" in done.stdout
    assert zrecord_tool("refresh-checksums", archive).returncode == 0
    assert zrecord_tool("verify", archive).returncode == 0
    assert zipfile.ZipFile(archive).testzip() is None


def test_import_makes_a_store_of_each_leaf(zrecord_tool, tmp_path):
    tree = {key: value for key, value in TREE.items() if key != "e"}
    for compression in (None, "deflate"):
        path = zrecord.save_archive(tree, tmp_path / "a.tdz", compression=compression)
        out = tmp_path / f"stores{compression}"
        done = zrecord_tool("import", path, out)
        assert (done.returncode, done.stderr) == (0, ""), done
        assert np.array_equal(zrecord.open(out / "image")[:], TREE["image"])
        assert np.array_equal(zrecord.open(out / "n" / "x")[:], TREE["n"]["x"])
    done = zrecord_tool("pack", out, tmp_path / "back.tdz")
    assert (done.returncode, done.stderr) == (0, ""), done
    back = zrecord.load_archive(tmp_path / "back.tdz")
    assert np.array_equal(back["image"], TREE["image"]) and back.batch_size == (5,)


def test_import_refuses_leaves_that_are_no_records(zrecord_tool, archive, tmp_path):
    done = zrecord_tool("import", archive, tmp_path / "out")
    assert done.returncode == 1 and "leaf e: has no elements" in done.stderr
    path = zrecord.save_archive({"a": np.zeros(3), "b": np.zeros(4)}, tmp_path / "b.tdz")
    done = zrecord_tool("import", path, tmp_path / "out")
    assert done.returncode == 1 and "first dimension" in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["a.tdz", "b.tdz"]


@pytest.mark.parametrize("command", ["pack", "unpack"])
@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_leaves_nothing(zrecord_tool, tmp_path, command, sig):
    tree = {f"leaf{i}": np.random.default_rng(i).random(1 << 17) for i in range(64)}
    path = zrecord.save_archive(tree, tmp_path / "a.tdz")
    zrecord.unpack_memmap(path, tmp_path / "dir")
    before = sorted(os.listdir(tmp_path))
    args = {"pack": ["dir", "b.tdz", "--compression", "bzip2"], "unpack": ["a.tdz", "out"]}[command]
    process = subprocess.Popen([BUILD / "zrecord", command, *args], cwd=tmp_path, stderr=subprocess.PIPE)
    time.sleep(0.03 if command == "pack" else 0.002)
    process.send_signal(sig)
    process.communicate(timeout=60)
    if process.returncode == 0:  # it was faster
        assert set(os.listdir(tmp_path)) > set(before)
    else:
        assert process.returncode == -sig and sorted(os.listdir(tmp_path)) == before


def test_messages_name_the_archive_and_what_was_expected(zrecord_tool, tmp_path):
    np.save(tmp_path / "a.npy", np.arange(100))
    done = zrecord_tool("verify", tmp_path / "a.npy")
    assert done.returncode and "not a zip archive" in done.stderr
    assert "store (a directory) or a memmap archive (.tdz)" in done.stderr
    zrecord.save_archive({"name": "text"}, tmp_path / "empty.tdz")
    zrecord.save_archive({"x": np.float32(1)}, tmp_path / "scalar.tdz")
    for name, why in (("empty.tdz", "an archive without leaves"), ("scalar.tdz", "leaf x: has no first dimension")):
        done = zrecord_tool("import", tmp_path / name, tmp_path / "out")
        assert done.returncode and f"{name}: {why}" in done.stderr, done.stderr
        assert not (tmp_path / "out").exists()
