# SPDX-License-Identifier: MIT
"""zrecord bench: what it says is consistent, what it gathers is right, and it ends when it should.

No test asks how fast anything is: only that the figures of one run fit each other.
"""

import json
import os
import signal
import subprocess
import time

import numpy as np
import pytest
from conftest import BUILD

CODECS = ["raw", "zstd", "zstd_dict"]


@pytest.fixture
def here(tmp_path, monkeypatch, zrecord_tool):
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", np.random.default_rng(0).integers(0, 60, (500, 5, 10), dtype="<i4"))
    os.mkdir("in")
    for i in range(200):
        np.save(f"in/{i:04d}.npy", np.arange(1 + i % 37, dtype="<i4"))
    for source, store in [("a.npy", "dense"), ("in", "ragged")]:
        assert zrecord_tool("import", "-q", "--no-sync", source, store).returncode == 0
    return tmp_path


def run(zrecord_tool, *args):
    done = zrecord_tool("bench", "--json", "--seconds", "0.2", *args)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("store", ["dense", "ragged"])
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("batch", [1, 256, 1000])
def test_figures_fit_each_other(here, zrecord_tool, store, codec, batch):
    assert zrecord_tool("recode", "-q", "--no-sync", store, "s", "--codec", codec).returncode == 0
    said = run(zrecord_tool, "s", "--batch", batch)
    assert (said["path"], said["geometry"], said["codec"], said["batch"]) == ("s", store, codec, batch)
    assert said["records"] == said["batches"] * batch > 0
    assert 0 < said["seconds"] < 60
    assert said["records_per_second"] == pytest.approx(said["records"] / said["seconds"], rel=1e-6)
    assert said["bytes_per_second"] == pytest.approx(said["bytes"] / said["seconds"], rel=1e-6)
    # At most half of all values are over twice the mean, and a twentieth over twenty times it.
    mean_us = said["seconds"] / said["batches"] * 1e6
    assert 0 < said["batch_p50_us"] <= 2 * mean_us * 1.02
    assert said["batch_p50_us"] <= said["batch_p95_us"] <= 20 * mean_us * 1.02
    assert said["checked_batches"] == 3
    if store == "dense":
        assert said["bytes"] == said["records"] * 200
    else:  # a shape of one dim, and 4 to 148 bytes
        assert said["records"] * 20 <= said["bytes"] <= said["records"] * 164


def test_for_people(here, zrecord_tool):
    done = zrecord_tool("bench", "--seconds", "0.1", "--threads", "1", "dense")
    assert (done.returncode, done.stderr) == (0, "")
    head, *rows = done.stdout.splitlines()
    assert head == "dense: 500 dense records, zstd; 3 batches of 256 equal to single reads"
    assert [row.split("  ")[0] for row in rows] == ["gathered", "records/s", "GB/s", "batch p50", "batch p95"]
    assert rows[0].endswith("on up to 1 thread")


def test_threads(here, zrecord_tool):
    assert run(zrecord_tool, "dense", "--threads", "1")["threads"] == 1
    assert run(zrecord_tool, "dense", "--threads", "7")["threads"] == 7


def test_every_record_comes_up_and_plans_are_fresh(here, zrecord_tool):
    """The one damaged record of 500 is met by random batches of another seed each time."""
    assert zrecord_tool("recode", "-q", "--no-sync", "dense", "s", "--codec", "zstd").returncode == 0
    with open("s/data.zr", "r+b") as file:
        file.write(b"\xff\xff\xff\xff")
    done = zrecord_tool("bench", "--seconds", "60", "s")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("zrecord: bench: s/data.zr: record 0")


def test_no_records(here, zrecord_tool):
    np.save("none.npy", np.zeros((0, 3)))
    assert zrecord_tool("import", "-q", "none.npy", "none").returncode == 0
    done = zrecord_tool("bench", "none")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "zrecord: bench: none: has no records\n")


def test_no_memory_for_a_batch(here, zrecord_tool):
    """2^24 records of 1 MiB: an error, not a death."""
    np.save("big.npy", np.zeros((3, 1 << 27), "u1"))
    assert zrecord_tool("import", "-q", "--no-sync", "big.npy", "big").returncode == 0
    done = zrecord_tool("bench", "big", "--batch", 1 << 24, preexec_fn=limit_address_space)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "zrecord: bench: out of memory\n"


def limit_address_space():
    import resource

    if "asan" not in str(BUILD):  # which needs terabytes of it
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))


WRONG_USAGE = [
    ([], "too few arguments"),
    (["dense", "ragged"], "too many arguments"),
    *[(["dense", "--batch", text], f"--batch '{text}'") for text in ["0", "-1", "1.5", "x", "", "16777217"]],
    *[(["dense", "--seconds", text], f"--seconds '{text}'") for text in ["0", "-1", "nan", "inf", "1e3", "", ".", "1.2.3", "0x1", "86401"]],
    *[(["dense", "--threads", text], f"--threads '{text}'") for text in ["0", "-1", "x", "4097"]],
    (["dense", "--nope"], "unrecognized option"),
]


@pytest.mark.parametrize("args,reason", WRONG_USAGE, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_wrong_usage(here, zrecord_tool, args, reason):
    done = zrecord_tool("bench", *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert reason in done.stderr.splitlines()[0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(here, number):
    child = subprocess.Popen([BUILD / "zrecord", "bench", "--seconds", "600", "dense"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(0.3)
    child.send_signal(number)
    stdout, stderr = child.communicate(timeout=30)
    assert (child.returncode, stdout) == (-number, "")
    assert stderr == "zrecord: bench: dense: interrupted\n"
