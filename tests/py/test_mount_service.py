# SPDX-License-Identifier: MIT
"""Mounts as part of a system: fstab, services, idle unmount, ordinary users, manual, loaders."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import mounting
import numpy as np
import pytest
from conftest import REPO
from mounting import (
    PROGRAM,
    is_alive,
    is_mounted,
    mounted,
    name_of,
    needs_mount,
    needs_root,
    npy,
    program,
    read_raw,
    unmount,
    wait_for,
)
from test_mount_errors import AS_USER, as_user, cat

zrecord = pytest.importorskip("zrecord")
pytestmark = needs_mount

ROWS = np.arange(200 * 64, dtype="<i4").reshape(200, 64)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("service") / "store"
    with zrecord.Dense.create(path, ROWS.dtype, ROWS.shape[1:]) as ds:
        ds.append(ROWS)
    return path


# ---------------------------------------------------------------- idle unmount


def test_an_idle_mount_unmounts_itself(store, tmp_path):
    with mounted(store, tmp_path / "m", "-o", "timeout=1") as m:
        assert m.status()["options"]["timeout"] == 1
        assert m.process.wait(20) == 0 and not is_mounted(m.path)
        assert "nothing was asked" in m.log


def test_a_mount_in_use_stays(store, tmp_path):
    with mounted(store, tmp_path / "m", "-o", "timeout=1") as m:
        with open(m / 3, "rb"):
            time.sleep(1.6)
            assert m.process.poll() is None and is_mounted(m.path)
        deadline = time.monotonic() + 1.6  # files known to the kernel, opened now and then
        while time.monotonic() < deadline:
            assert read_raw(m / 3) == npy(ROWS[3])
            time.sleep(0.2)
        assert m.process.poll() is None and is_mounted(m.path)
        assert m.process.wait(20) == 0


@needs_root
def test_an_idle_mount_of_an_ordinary_user_unmounts_itself(store):
    program("setpriv")
    with as_user(store) as (run, folder):
        done = run("store", "m", "-o", "timeout=1")
        assert done.returncode == 0, done.stderr
        assert cat(folder / "m" / name_of(7), **AS_USER) == npy(ROWS[7])
        wait_for(lambda: not is_mounted(folder / "m"), what="unmounting")


# ---------------------------------------------------------------- services


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_told_when_it_is_ready(store, tmp_path, monkeypatch, abstract):
    address = f"zrecord-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as box:
        box.bind("\0" + address if abstract else address)
        box.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + address if abstract else address)
        with mounted(store, tmp_path / "m") as m:
            assert box.recv(4096) == b"READY=1"
            assert read_raw(m / 1) == npy(ROWS[1])
            m.process.send_signal(signal.SIGTERM)
            assert box.recv(4096) == b"STOPPING=1"
            assert m.process.wait(20) == 0


def test_a_notify_socket_that_is_not_there_is_only_a_warning(store, tmp_path, monkeypatch):
    for path in (str(tmp_path / "none"), "relative", "", "@", "/" + "x" * 300):
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        with mounted(store, tmp_path / "m") as m:
            assert read_raw(m / 1) == npy(ROWS[1])


@needs_root
def test_a_line_of_fstab(store, tmp_path):
    program("mount")
    if not shutil.which("mount.fuse3", path="/sbin:/usr/sbin"):
        pytest.skip("mount.fuse3 is not installed (package fuse3)")
    (tmp_path / "m").mkdir()
    (tmp_path / "fstab").write_text(
        f"{store} {tmp_path}/m fuse.zrecordfs ro,noauto,nofail,_netdev,allow_other,uid=12,shard=50 0 0\n"
    )
    installed = Path("/usr/local/bin/zrecordfs")  # mount.fuse3 looks in the standard places only
    link_it = not installed.exists()
    if link_it:
        installed.symlink_to(PROGRAM)
    try:
        command = ["mount", "-T", tmp_path / "fstab", tmp_path / "m"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    finally:
        if link_it:
            installed.unlink()
    assert done.returncode == 0, done.stderr
    try:
        assert len(os.listdir(tmp_path / "m")) == 4
        found = next((tmp_path / "m").glob(f"*/{name_of(60)}"))
        assert read_raw(found) == npy(ROWS[60]) and os.stat(found).st_uid == 12
    finally:
        assert subprocess.run(["umount", tmp_path / "m"]).returncode == 0


def test_the_log_in_the_foreground(store, tmp_path):
    with mounted(store, tmp_path / "m") as m:
        os.listdir(m.path)
    assert m.log == f"zrecordfs: {store} is mounted on {m.path}\n"


# ---------------------------------------------------------------- the manual


def test_the_manual_names_every_option():
    text = (REPO / "fs" / "zrecordfs.8").read_text()
    helped = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True).stdout
    words = {word.split("=")[0] for line in helped.splitlines() if line.startswith("     ") for word in line.split()[:2]}
    options = {word for word in words if word in helped and f"\n     {word}" in helped and word.isidentifier()}
    assert len(options) > 10
    missing = {option for option in options - {"and"} if option not in text}
    assert not missing


def test_the_manual_is_installed_and_removed(tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    for target, present in (("install", True), ("uninstall", False)):
        command = ["make", "-s", "-C", REPO, target, f"DESTDIR={tmp_path}", "PREFIX=/usr"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "usr/share/man/man8/zrecordfs.8").exists() == present
        assert (tmp_path / "usr/bin/zrecordfs").exists() == present


# ---------------------------------------------------------------- loaders


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_torch_data_loaders(store, tmp_path, transport, method):
    pytest.importorskip("torch")
    if method == "spawn" and transport != mounting.transports()[-1]:
        return  # seconds a worker, and the transport does not see how it was started
    script = Path(__file__).parent / "loader_script.py"
    expected = int(ROWS.sum())
    with mounted(store, tmp_path / "m") as m:
        workers = ["0", "2", "4"]
        done = subprocess.run(
            [sys.executable, script, m.path, method, *workers], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [f"{expected} {expected}"] * 3
        assert m.status()["counters"]["decodes"] <= 1.1 * len(ROWS), "second epochs cost nothing"


def test_xargs_with_eight_processes(store, tmp_path):
    program("xargs")
    with mounted(store, tmp_path / "m") as m:
        names = "\n".join(name_of(i) for i in range(len(ROWS)))
        command = ["xargs", "-P", "8", "-n", "7", "cat"]
        done = subprocess.run(command, input=names.encode(), cwd=m.path, capture_output=True)
        assert done.returncode == 0 and len(done.stdout) == sum(len(npy(row)) for row in ROWS)


# ---------------------------------------------------------------- endings


def test_kill_and_remount_over_and_over(store, tmp_path):
    (tmp_path / "m").mkdir()
    for i in range(5):
        done = subprocess.run([PROGRAM, store, tmp_path / "m"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        m = mounting.Mount(tmp_path / "m", None, None)
        assert read_raw(m / i) == npy(ROWS[i])
        pid = m.pid
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda pid=pid: not is_alive(pid), what="the daemon's end")
    while is_mounted(tmp_path / "m"):
        unmount(tmp_path / "m", lazy=True)
