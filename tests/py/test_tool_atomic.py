# SPDX-License-Identifier: MIT
"""What goes wrong in the middle leaves nothing: full disks, missing permission, signals, sources that change."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import BUILD

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts a tmpfs or becomes another user")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def noise(rows, columns):
    return np.random.default_rng(0).integers(0, 256, (rows, columns), dtype="u1")


# ---------------------------------------------------------------- a full disk


@contextlib.contextmanager
def small_disk(nbytes):
    """A tmpfs at ./disk; what is left on it is checked by the test."""
    os.mkdir("disk")
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={nbytes}", "none", "disk"], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "disk"], check=True)


@root_only
@pytest.mark.parametrize("codec", ["raw", "zstd"])
@pytest.mark.parametrize("shape", ["--dense", "--ragged"])
def test_import_to_a_full_disk(here, zrecord_tool, codec, shape):
    np.save("a.npy", noise(3000, 1000))
    with small_disk(1 << 20):
        done = zrecord_tool("import", "a.npy", "disk/s", "--codec", codec, shape)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("zrecord: import: disk/") and "No space left on device" in done.stderr
        assert os.listdir("disk") == []


@root_only
def test_import_whose_table_does_not_fit(here, zrecord_tool):
    """The payload fits, the 16 bytes a record behind it do not."""
    np.save("a.npy", np.zeros(100_000, "u1"))
    with small_disk(1 << 20):
        done = zrecord_tool("import", "a.npy", "disk/s", "--codec", "raw")
        assert done.returncode == 1 and "No space left on device" in done.stderr
        assert os.listdir("disk") == []


@root_only
@pytest.mark.parametrize("target", ["x.npy", "x"])
def test_export_to_a_full_disk(here, zrecord_tool, target):
    np.save("a.npy", noise(3000, 1000))
    assert zrecord_tool("import", "a.npy", "s", "--codec", "raw", "--no-sync").returncode == 0
    with small_disk(1 << 20):
        done = zrecord_tool("export", "s", f"disk/{target}")
        assert done.returncode == 1
        assert f"disk/{target}" in done.stderr and "No space left on device" in done.stderr
        assert os.listdir("disk") == []


@root_only
def test_dictionary_to_a_full_disk(here, zrecord_tool):
    np.save("a.npy", np.random.default_rng(0).integers(0, 9, (20000, 64), dtype="<i4"))
    with small_disk(8192):
        Path("disk/full").write_bytes(bytes(8192))
        done = zrecord_tool("train-dict", "a.npy", "-o", "disk/d")
        assert done.returncode == 1
        assert done.stderr == "zrecord: train-dict: disk/d: No space left on device\n"
        assert os.listdir("disk") == ["full"]


# ---------------------------------------------------------------- permission


@pytest.fixture
def as_nobody(zrecord_tool):
    """Runs a copy of the program as an ordinary user, in a folder that user may enter but not write."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        shutil.copy(BUILD / "zrecord", f"{folder}/zrecord")
        np.save(f"{folder}/a.npy", np.arange(12, dtype="<i4").reshape(4, 3))
        assert zrecord_tool("import", f"{folder}/a.npy", f"{folder}/s").returncode == 0

        def run(*args):
            return subprocess.run(
                ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "./zrecord", *args],
                cwd=folder, capture_output=True, text=True, timeout=60,
            )

        run.folder = Path(folder)
        yield run


@root_only
def test_no_permission_to_read(as_nobody):
    assert as_nobody("info", "s").returncode == 0
    os.chmod(as_nobody.folder / "a.npy", 0)
    done = as_nobody("train-dict", "a.npy", "-o", "x")
    assert (done.returncode, done.stderr) == (1, "zrecord: train-dict: a.npy: Permission denied\n")
    for name in ["data.zr", "meta.zr"]:
        os.chmod(as_nobody.folder / "s" / name, 0)
        done = as_nobody("cat", "s", "0")
        assert done.returncode == 1
        assert done.stderr.startswith("zrecord: cat: s") and "Permission denied" in done.stderr
    os.chmod(as_nobody.folder / "s", 0o700)
    assert "Permission denied" in as_nobody("info", "s").stderr


@root_only
def test_no_permission_to_write(as_nobody):
    before = sorted(os.listdir(as_nobody.folder))
    for args in [("import", "a.npy", "t"), ("import", "a.npy", "new/t"), ("export", "s", "x"), ("export", "s", "x.npy"), ("mount", "s", "m")]:
        done = as_nobody(*args)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"zrecord: {args[0]}: ") and "Permission denied" in done.stderr
        assert args[2].split("/")[0] in done.stderr
        assert sorted(os.listdir(as_nobody.folder)) == before


# ---------------------------------------------------------------- signals


def interrupt(args, number, begun, timeout=60, delay=0.01):
    """Starts zrecord, sends the signal once something was begun, returns (status, stderr)."""
    child = subprocess.Popen([BUILD / "zrecord", *map(str, args)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    end = time.monotonic() + timeout
    while not begun():
        assert child.poll() is None and time.monotonic() < end, "ended before it could be interrupted"
        time.sleep(0.002)
    time.sleep(delay)
    child.send_signal(number)
    _, stderr = child.communicate(timeout=timeout)
    return child.returncode, stderr


def hidden():
    return [name for name in os.listdir() if name.startswith(".")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("shape", ["--dense", "--ragged"])
def test_an_interrupted_import_leaves_nothing(here, number, shape):
    np.save("a.npy", np.random.default_rng(0).integers(0, 9, (40000, 500), dtype="<i4"))
    status, stderr = interrupt(["import", "a.npy", "s", "--level", 19, shape], number, hidden)
    assert status == -number
    assert stderr == "zrecord: import: s: interrupted, nothing was made\n"
    assert os.listdir() == ["a.npy"]


@pytest.mark.parametrize("target", ["x", "x.npy"])
def test_an_interrupted_export_leaves_nothing(here, zrecord_tool, target):
    np.save("a.npy", np.zeros((300_000, 1500), "u1"))  # small on disk, 430 MiB out of it
    assert zrecord_tool("import", "-q", "--no-sync", "a.npy", "s").returncode == 0
    os.unlink("a.npy")
    status, stderr = interrupt(["export", "s", target], signal.SIGINT, hidden)
    assert status == -signal.SIGINT
    assert stderr == f"zrecord: export: {target}: interrupted, nothing was made\n"
    assert os.listdir() == ["s"]


def test_a_killed_import_leaves_nothing_that_opens_and_can_be_repeated(here, zrecord_tool):
    np.save("a.npy", np.random.default_rng(0).integers(0, 9, (20000, 500), dtype="<i4"))
    status, _ = interrupt(["import", "a.npy", "s", "--level", 19], signal.SIGKILL, hidden)
    assert status == -signal.SIGKILL
    assert not os.path.exists("s")
    for name in hidden():
        assert zrecord_tool("info", name).returncode == 1
    assert zrecord_tool("import", "-q", "--no-sync", "a.npy", "s").returncode == 0
    assert zrecord_tool("verify", "s").returncode == 0
    assert hidden() == []


def test_interrupted_while_training(here):
    np.save("a.npy", noise(100_000, 2000))
    status, _ = interrupt(["import", "a.npy", "s", "--codec", "zstd_dict", "--tier", "max"], signal.SIGINT, lambda: True, delay=0.2)
    assert status == -signal.SIGINT
    assert os.listdir() == ["a.npy"]


def test_an_ignored_hangup_stays_ignored(here):
    """nohup zrecord import goes on when the terminal closes."""
    np.save("a.npy", np.random.default_rng(0).integers(0, 9, (3000, 500), dtype="<i4"))
    child = subprocess.Popen(["nohup", BUILD / "zrecord", "import", "a.npy", "s", "--level", "19"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(0.1)
    child.send_signal(signal.SIGHUP)
    assert child.wait(timeout=120) == 0
    assert os.path.exists("s/meta.zr")


def test_two_imports_to_one_path(here):
    """One wins, the other says why not; never a mixture."""
    np.save("a.npy", np.random.default_rng(0).integers(0, 9, (3000, 500), dtype="<i4"))
    command = [BUILD / "zrecord", "import", "a.npy", "s", "--level", "12"]
    children = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    messages = [child.communicate(timeout=120)[1] for child in children]
    assert sorted(child.returncode for child in children) == [0, 1]
    assert "s" in "".join(messages)
    assert subprocess.run([BUILD / "zrecord", "verify", "-q", "s"]).returncode == 0
    assert hidden() == []


# ---------------------------------------------------------------- sources that change


def test_a_source_that_shrinks_is_an_error(here):
    np.save("a.npy", np.random.default_rng(0).integers(0, 9, (40000, 500), dtype="<i4"))
    child = subprocess.Popen([BUILD / "zrecord", "import", "a.npy", "s", "--level", "15"], stderr=subprocess.PIPE, text=True)
    while not hidden():
        assert child.poll() is None
        time.sleep(0.002)
    os.truncate("a.npy", 1 << 20)
    _, stderr = child.communicate(timeout=120)
    assert child.returncode == 1
    assert stderr == "zrecord: import: a.npy: became shorter while it was read\n"
    assert os.listdir() == ["a.npy"]
