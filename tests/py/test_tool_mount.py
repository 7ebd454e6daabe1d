# SPDX-License-Identifier: MIT
"""zrecord mount and umount: the folder is made and removed, and what goes wrong is said."""

import io
import json
import os
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest
from conftest import BUILD

ARRAY = np.arange(60, dtype="<i4").reshape(20, 3)

pytestmark = [
    pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="no /dev/fuse"),
    pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="/dev/fuse is not writable for this user"),
]


def mounts_below(folder):
    with open("/proc/mounts") as table:
        return [line.split()[1] for line in table if line.split()[1].startswith(f"{folder}/")]


@pytest.fixture
def here(tmp_path, monkeypatch, zrecord_tool):
    """A folder with the store s; whatever a test leaves mounted is detached."""
    if not (BUILD / "zrecordfs").exists():
        pytest.skip("zrecordfs is not built (make all)")
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", ARRAY)
    assert zrecord_tool("import", "--no-sync", "a.npy", "s").returncode == 0
    yield tmp_path
    for path in mounts_below(tmp_path):
        subprocess.run(["umount", "--lazy", path])


def saved(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def daemon_pid(mountpoint):
    with open(f"{mountpoint}/.control") as control:
        return json.load(control)["pid"]


def wait_gone(pid):
    for _ in range(500):
        if not os.path.exists(f"/proc/{pid}"):
            return
        time.sleep(0.01)
    raise AssertionError(f"process {pid} is still there")


def test_a_missing_folder_is_made_and_removed(here, zrecord_tool):
    done = zrecord_tool("mount", "s", "m")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert open("m/00000007.npy", "rb").read() == saved(ARRAY[7])
    pid = daemon_pid("m")
    done = zrecord_tool("umount", "m")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not os.path.exists("m")
    wait_gone(pid)


def test_a_made_folder_goes_when_the_daemon_fails_once_it_has_mounted(here, zrecord_tool):
    if zrecord_tool("mount", "-o", "transport=uring", "s", "m").returncode == 0:  # the kernel offers it
        assert zrecord_tool("umount", "m").returncode == 0
    assert not os.path.exists("m")


def test_a_folder_that_was_there_stays(here, zrecord_tool):
    os.mkdir("m")
    assert zrecord_tool("mount", "s", "m/").returncode == 0
    assert zrecord_tool("umount", "m/").returncode == 0
    assert os.listdir("m") == []


def test_a_folder_with_something_in_it_stays(here, zrecord_tool):
    assert zrecord_tool("mount", "s", "m").returncode == 0
    subprocess.run(["umount", "m"], check=True)
    open("m/mine", "w").close()
    assert zrecord_tool("mount", "s", "m").returncode == 0
    assert zrecord_tool("umount", "m").returncode == 0
    assert os.listdir("m") == ["mine"]


def test_a_folder_that_was_made_goes_when_the_mount_is_idle(here, zrecord_tool):
    os.mkdir("mine")
    for folder in ("m", "mine"):
        assert zrecord_tool("mount", "-o", "timeout=1", "s", folder).returncode == 0
        wait_gone(daemon_pid(folder))
    assert not os.path.exists("m") and os.listdir("mine") == []
    done = zrecord_tool("umount", "mine")
    assert done.returncode == 1 and "nothing is mounted there" in done.stderr and os.path.isdir("mine")


def test_umount_removes_what_a_mount_left(here, zrecord_tool):
    assert zrecord_tool("mount", "s", "m").returncode == 0
    subprocess.run(["umount", "m"], check=True)
    open("m/file", "w").close()
    done = zrecord_tool("umount", "m")
    assert done.returncode == 1 and "nothing is mounted there" in done.stderr
    os.remove("m/file")
    done = zrecord_tool("umount", "m")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "") and not os.path.exists("m")


def test_options_are_passed_on(here, zrecord_tool):
    assert zrecord_tool("mount", "-o", "show_control", "-o", "umask=0027", "s", "m").returncode == 0
    assert ".control" in os.listdir("m")
    assert oct(os.stat("m/00000000.npy").st_mode & 0o777) == "0o440"


def test_in_the_foreground_until_a_signal(here):
    child = subprocess.Popen([BUILD / "zrecord", "mount", "-f", "s", "m"])
    while not (os.path.exists("m") and os.path.ismount("m")):
        assert child.poll() is None
        time.sleep(0.01)
    child.send_signal(signal.SIGTERM)
    assert child.wait(timeout=10) == 0
    assert not os.path.exists("m")


@pytest.mark.parametrize(
    "args,reason",
    [
        (["nope", "m"], "nope"),
        (["a.npy", "m"], "a.npy"),
        (["s", "no/such/m"], "no/such/m"),
        (["s", "a.npy"], "a.npy"),
        (["-o", "nonsense=3", "s", "m"], "nonsense"),
    ],
)
def test_a_mount_that_fails_leaves_no_folder(here, zrecord_tool, args, reason):
    done = zrecord_tool("mount", *args)
    assert done.returncode in (1, 2) and done.stdout == ""
    assert reason in done.stderr
    assert sorted(os.listdir()) == ["a.npy", "s"]


def test_the_same_folder_twice(here, zrecord_tool):
    assert zrecord_tool("mount", "s", "m").returncode == 0
    shutil.copytree("s", "s2")
    done = zrecord_tool("mount", "s2", "m")
    if done.returncode == 0:  # stacked: each umount takes one off
        assert zrecord_tool("umount", "m").returncode == 0
    else:
        assert "m" in done.stderr
    assert zrecord_tool("umount", "m").returncode == 0


def test_zrecordfs_missing(here):
    os.mkdir("bin")
    shutil.copy(BUILD / "zrecord", "bin/zrecord")
    done = subprocess.run(["bin/zrecord", "mount", "s", "m"], env={"PATH": "/nowhere"}, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "zrecord: mount: zrecordfs: No such file or directory (looked beside zrecord and in PATH)\n"
    assert not os.path.exists("m")


def test_umount_of_what_is_not_ours(here, zrecord_tool):
    os.mkdir("plain")
    done = zrecord_tool("umount", "plain")
    assert (done.returncode, done.stderr) == (1, "zrecord: umount: plain: nothing is mounted there\n")
    done = zrecord_tool("umount", "missing")
    assert done.returncode == 1 and "missing" in done.stderr
    done = zrecord_tool("umount", "/proc")
    assert (done.returncode, done.stderr) == (1, "zrecord: umount: /proc: a mount of type proc, not of zrecordfs\n")
    assert zrecord_tool("umount", "no/such/folder").returncode == 1


def test_a_busy_mount_is_reported_and_can_be_detached(here, zrecord_tool):
    assert zrecord_tool("mount", "s", "m").returncode == 0
    with open("m/00000003.npy", "rb") as file:
        done = zrecord_tool("umount", "m")
        assert done.returncode == 1 and "m: busy" in done.stderr
        assert zrecord_tool("umount", "--lazy", "m").returncode == 0
        assert not os.path.ismount("m")
        assert file.read() == saved(ARRAY[3])


def test_a_mount_whose_daemon_died_is_cleared(here, zrecord_tool):
    assert zrecord_tool("mount", "s", "m").returncode == 0
    pid = daemon_pid("m")
    os.kill(pid, signal.SIGKILL)
    wait_gone(pid)
    with pytest.raises(OSError):
        os.listdir("m")
    done = zrecord_tool("umount", "m")
    assert (done.returncode, done.stderr) == (0, "")
    assert not os.path.exists("m")


def test_names_with_blanks(here, zrecord_tool):
    assert zrecord_tool("mount", "s", "a b\tc").returncode == 0
    assert os.path.ismount("a b\tc")
    assert zrecord_tool("umount", "a b\tc").returncode == 0
    assert not os.path.exists("a b\tc")


@pytest.mark.parametrize("store,folder", [("-rf", "m"), ("--version", "m"), ("s", "-m")])
def test_names_that_begin_with_a_dash(here, zrecord_tool, store, folder):
    """They are no options, neither of zrecord mount nor of the zrecordfs that it starts."""
    if store != "s":
        os.rename("s", store)
    done = zrecord_tool("mount", "--", store, folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(os.listdir(f"./{folder}")) == 20
    assert zrecord_tool("umount", "--", folder).returncode == 0
    assert not os.path.exists(f"./{folder}")


def test_through_a_symbolic_link(here, zrecord_tool):
    os.mkdir("real")
    os.symlink("real", "link")
    assert zrecord_tool("mount", "s", "link").returncode == 0
    assert os.path.ismount("real")
    assert zrecord_tool("umount", "link").returncode == 0
    assert not os.path.ismount("real")


def test_files_of_the_mount_are_those_of_export(here, zrecord_tool):
    assert zrecord_tool("export", "s", "out").returncode == 0
    assert zrecord_tool("mount", "s", "m").returncode == 0
    assert subprocess.run(["diff", "-r", "m", "out"]).returncode == 0
    assert sorted(os.listdir("m")) == zrecord_tool("ls", "s").stdout.split()
