# SPDX-License-Identifier: MIT
"""zrecord recode: the same records in the same order under another codec, or nothing."""

import filecmp
import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import BUILD, peak_anonymous_mib

CODECS = ["raw", "zstd", "zstd_dict"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def info(zrecord_tool):
    return lambda store: json.loads(zrecord_tool("info", "--json", store).stdout)


def make_store(zrecord_tool, geometry, store="s", codec="zstd", rows=400):
    rng = np.random.default_rng(0)
    if geometry == "dense":
        np.save("in.npy", rng.integers(0, 60, (rows, 5, 10), dtype="<i4"))
        source = "in.npy"
    else:
        source = "in"
        os.mkdir(source)
        for i in range(rows):
            shape = [(), (3,), (2, int(rng.integers(1, 40))), (1, 2, 3, 4)][i % 4]
            np.save(f"in/{i:06d}.npy", rng.integers(0, 60, shape).astype("<i4"))
    done = zrecord_tool("import", "-q", "--no-sync", source, store, "--codec", codec)
    assert done.returncode == 0, done.stderr
    shutil.rmtree("in", ignore_errors=True)


def assert_same_records(zrecord_tool, a, b):
    for store in [a, b]:
        assert zrecord_tool("export", store, f"{store}.files").returncode == 0
    names = sorted(os.listdir(f"{a}.files"))
    assert names == sorted(os.listdir(f"{b}.files"))
    assert filecmp.cmpfiles(f"{a}.files", f"{b}.files", names, shallow=False) == (names, [], [])
    for store in [a, b]:
        shutil.rmtree(f"{store}.files")


def refused(zrecord_tool, *args, status=1, **kwargs):
    before = sorted(os.listdir())
    done = zrecord_tool("recode", *args, **kwargs)
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    assert sorted(os.listdir()) == before
    assert all(line.startswith("zrecord: recode: ") for line in done.stderr.splitlines() if status == 1)
    return done.stderr.removeprefix("zrecord: recode: ")


@pytest.mark.parametrize("geometry", ["dense", "ragged"])
@pytest.mark.parametrize("before", CODECS)
@pytest.mark.parametrize("after", CODECS)
def test_from_each_codec_to_each(here, zrecord_tool, info, geometry, before, after):
    make_store(zrecord_tool, geometry, codec=before)
    done = zrecord_tool("recode", "s", "t", "--codec", after, "--no-sync")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"t: 400 {geometry} records of <i4") and f" {after}, " in done.stdout
    assert info("t")["codec"] == after and info("t")["checksums"]
    assert info("t")["logical_bytes"] == info("s")["logical_bytes"]
    assert zrecord_tool("verify", "s", "t").returncode == 0
    assert_same_records(zrecord_tool, "s", "t")


def test_without_a_codec_it_stays_and_only_the_effort_changes(here, zrecord_tool, info):
    make_store(zrecord_tool, "dense", codec="zstd")
    assert zrecord_tool("recode", "s", "t", "--tune", "read").returncode == 0
    assert zrecord_tool("recode", "-q", "s", "u", "--level", "19").stdout == ""
    assert info("t")["codec"] == info("u")["codec"] == "zstd"
    assert info("t")["stored_bytes"] != info("s")["stored_bytes"]
    assert_same_records(zrecord_tool, "s", "t")


def test_which_dictionary(here, zrecord_tool):
    make_store(zrecord_tool, "dense", codec="zstd_dict")
    assert zrecord_tool("train-dict", "in.npy", "--tier", "fast", "-o", "d").returncode == 0
    for target, options in {"same": [], "given": ["--dict", "d"], "new": ["--tier", "fast"]}.items():
        assert zrecord_tool("recode", "-q", "s", target, "--no-sync", *options).returncode == 0
        assert zrecord_tool("verify", "-q", target).returncode == 0
    assert Path("same/dict.zr").read_bytes() == Path("s/dict.zr").read_bytes()
    assert Path("given/dict.zr").read_bytes() == Path("d").read_bytes()


def test_records_larger_than_a_piece_and_empty_stores(here, zrecord_tool):
    np.save("big.npy", np.random.default_rng(0).integers(0, 2, (3, 20 << 20), dtype="u1"))
    np.save("none.npy", np.zeros((0, 3)))
    for name in ["big", "none"]:
        assert zrecord_tool("import", "-q", "--no-sync", f"{name}.npy", name).returncode == 0
        assert zrecord_tool("recode", name, f"{name}2", "--codec", "raw", "--no-sync").returncode == 0
        assert zrecord_tool("export", f"{name}2", f"{name}2.npy").returncode == 0
        assert filecmp.cmp(f"{name}.npy", f"{name}2.npy", shallow=False)


def test_a_store_without_checksums_gets_them(here, zrecord_tool, info):
    make_store(zrecord_tool, "ragged")
    (sidecar,) = set(os.listdir("s")) - {"meta.zr", "data.zr"}
    os.unlink(f"s/{sidecar}")
    assert not info("s")["checksums"]
    assert zrecord_tool("recode", "-q", "s", "t", "--codec", "raw").returncode == 0
    assert info("t")["checksums"]
    assert_same_records(zrecord_tool, "s", "t")


def test_without_reading_it_back(here, zrecord_tool):
    make_store(zrecord_tool, "ragged")
    assert zrecord_tool("recode", "-q", "s", "t", "--codec", "raw", "--no-compare").returncode == 0
    assert_same_records(zrecord_tool, "s", "t")


# ---------------------------------------------------------------- what ends with nothing


def test_existing_targets_are_refused(here, zrecord_tool):
    make_store(zrecord_tool, "dense")
    os.symlink("nowhere", "link")
    for target in ["s", "in.npy", "link", "."]:
        assert refused(zrecord_tool, "s", target) == f"{target}: File exists\n"


def test_sources_that_are_no_stores(here, zrecord_tool):
    make_store(zrecord_tool, "dense", store="tree/s")
    assert refused(zrecord_tool, "nope", "t") == "nope: no such store\n"
    assert "in.npy: not a zrecord store" in refused(zrecord_tool, "in.npy", "t")
    assert "tree: holds stores, like tree/s" in refused(zrecord_tool, "tree", "t")


@pytest.mark.parametrize("codec", ["raw", "zstd"])
@pytest.mark.parametrize("geometry", ["dense", "ragged"])
def test_a_damaged_record_is_not_given_a_new_checksum(here, zrecord_tool, codec, geometry):
    """Raw bytes decode to anything: only their checksum tells."""
    make_store(zrecord_tool, geometry, codec=codec)
    size = os.path.getsize("s/data.zr")
    with open("s/data.zr", "r+b") as file:
        file.seek(size - 2)
        byte = file.read(1)[0]
        file.seek(size - 2)
        file.write(bytes([byte ^ 1]))
    assert re.match(r"s/data.zr: record \d+", refused(zrecord_tool, "s", "t", "--codec", "raw"))


def test_wrong_dictionaries(here, zrecord_tool):
    make_store(zrecord_tool, "dense")
    assert "nope: No such file" in refused(zrecord_tool, "s", "t", "--codec", "zstd_dict", "--dict", "nope")
    assert "in.npy: not a zstd dictionary" in refused(zrecord_tool, "s", "t", "--codec", "zstd_dict", "--dict", "in.npy")
    make_store(zrecord_tool, "dense", store="few", rows=1)
    refused(zrecord_tool, "few", "t", "--codec", "zstd_dict")


WRONG_USAGE = [
    (["s"], "too few arguments"),
    (["s", "t", "u"], "too many arguments"),
    (["s", "t", "--codec", "lz4"], "--codec 'lz4'"),
    (["s", "t", "--codec", "raw", "--level", "3"], "--level needs --codec"),
    (["s", "t", "--codec", "zstd", "--tier", "fast"], "--tier needs --codec zstd_dict"),
    (["s", "t", "--tier", "fast"], "--tier needs --codec zstd_dict"),  # s is zstd
    (["s", "t", "--level", "0"], "--level '0'"),
    (["s", "t", "--nope"], "unrecognized option"),
]


@pytest.mark.parametrize("args,reason", WRONG_USAGE, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_wrong_usage(here, zrecord_tool, args, reason):
    make_store(zrecord_tool, "dense", rows=3)
    assert reason in refused(zrecord_tool, *args, status=2).splitlines()[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts a small tmpfs")
def test_a_full_disk(here, zrecord_tool):
    make_store(zrecord_tool, "dense", rows=20000)
    os.mkdir("disk")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", "disk"], check=True)
    try:
        assert "No space left on device" in refused(zrecord_tool, "s", "disk/t", "--codec", "raw")
        assert os.listdir("disk") == []
    finally:
        subprocess.run(["umount", "disk"], check=True)


# ---------------------------------------------------------------- memory, signals


@pytest.mark.parametrize("geometry", ["dense", "ragged"])
def test_memory_does_not_grow_with_the_store(here, zrecord_tool, geometry):
    np.save("in.npy", np.zeros((120_000, 2000), "u1"))  # 229 MiB
    assert zrecord_tool("import", "-q", "--no-sync", "in.npy", "s", f"--{geometry}").returncode == 0
    child = subprocess.Popen([BUILD / "zrecord", "recode", "-q", "--no-sync", "s", "t", "--codec", "raw"])
    assert peak_anonymous_mib(child) < 120
    assert child.returncode == 0


def start(*args):
    """Behind this process in the queue for the CPU, which is to notice what it does."""
    return subprocess.Popen(["nice", "-n", "19", BUILD / "zrecord", "recode", *args], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


def wait_for(child, begun):
    deadline = time.monotonic() + 60
    while not begun():
        assert child.poll() is None and time.monotonic() < deadline, "ended before it could be interrupted"
        time.sleep(0.001)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("geometry", ["dense", "ragged"])
def test_interrupted_while_copying(here, zrecord_tool, number, geometry):
    np.save("in.npy", np.random.default_rng(0).integers(0, 9, (8000, 500), dtype="<i4"))
    assert zrecord_tool("import", "-q", "--no-sync", "in.npy", "s", "--codec", "raw", f"--{geometry}").returncode == 0
    child = start("s", "t", "--codec", "zstd", "--level", "19")
    wait_for(child, lambda: [name for name in os.listdir() if name.startswith(".")])
    child.send_signal(number)
    assert child.communicate(timeout=60)[1] == "zrecord: recode: t: interrupted, nothing was made\n"
    assert child.returncode == -number
    assert sorted(os.listdir()) == ["in.npy", "s"]


def test_interrupted_while_comparing(here, zrecord_tool):
    """NEW has its name already, and goes again."""
    np.save("in.npy", np.zeros((100_000, 1000), "u1"))
    assert zrecord_tool("import", "-q", "--no-sync", "in.npy", "s").returncode == 0
    child = start("s", "t", "--no-sync")
    wait_for(child, lambda: os.path.exists("t"))
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=60)[1] == "zrecord: recode: t: interrupted, nothing was made\n"
    assert child.returncode == -signal.SIGINT
    assert sorted(os.listdir()) == ["in.npy", "s"]


@pytest.mark.parametrize("delay", [0, 0.01, 0.1, 0.3])
def test_killed_anywhere_nothing_half_made_opens_and_it_can_be_repeated(here, zrecord_tool, delay):
    make_store(zrecord_tool, "dense", rows=40000)
    child = start("s", "t", "--level", "12")
    time.sleep(delay)
    child.kill()
    child.communicate(timeout=60)
    for name in set(os.listdir()) - {"s", "in.npy", "t"}:
        assert zrecord_tool("info", name).returncode == 1
    if not os.path.exists("t"):  # else it was complete
        assert zrecord_tool("recode", "-q", "s", "t", "--no-sync").returncode == 0
    assert zrecord_tool("verify", "-q", "t").returncode == 0
    assert sorted(os.listdir()) == ["in.npy", "s", "t"]


def test_a_new_store_that_differs_does_not_stay(here, zrecord_tool):
    """A byte of the new payload is changed as soon as it has its name."""
    np.save("in.npy", np.random.default_rng(0).integers(0, 256, (100_000, 1000), dtype="u1"))
    assert zrecord_tool("import", "-q", "--no-sync", "in.npy", "s", "--codec", "raw").returncode == 0
    child = start("s", "t", "--no-sync")
    wait_for(child, lambda: os.path.exists("t"))
    with open("t/data.zr", "r+b") as file:
        file.seek(-1, os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([byte ^ 1]))
    stderr = child.communicate(timeout=60)[1]
    assert (child.returncode, "record 99999" in stderr) == (1, True)
    assert sorted(os.listdir()) == ["in.npy", "s"]
