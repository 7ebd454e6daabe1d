# SPDX-License-Identifier: MIT
"""The life of a mount, and everything that can be wrong: said in words, with what to do instead."""

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from mounting import (
    PROGRAM,
    SANITIZED,
    Reports,
    device_of,
    is_alive,
    is_held_elsewhere,
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

zrecord = pytest.importorskip("zrecord")
pytestmark = needs_mount

ROWS = np.arange(4000, dtype="<i4").reshape(100, 40)
USER = 65534
AS_USER = {"user": USER, "group": USER, "extra_groups": []}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("errors") / "store"
    with zrecord.Dense.create(path, "<i4", (40,)) as ds:
        ds.append(ROWS)
    return path


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m").mkdir()
    yield tmp_path
    for _ in range(4):
        if is_mounted(tmp_path / "m"):
            unmount(tmp_path / "m", lazy=True)


def call(*arguments, prefix=(), **kwargs):
    kwargs.setdefault("env", {**os.environ, "LC_ALL": "C"})
    return subprocess.run(
        [*map(str, prefix), str(PROGRAM), *map(str, arguments)], capture_output=True, text=True, timeout=60, **kwargs
    )


def check_refused(done, *words, code=1):
    assert done.returncode == code, done
    assert done.stdout == "" and done.stderr.startswith("zrecordfs: "), done
    for word in words:
        assert str(word) in done.stderr, done.stderr


# ---------------------------------------------------------------- the command line


def test_help_and_version_are_on_stdout():
    for option in ("-h", "--help"):
        done = call(option)
        assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("Usage: zrecordfs")
        for word in ("allow_other", "umask=", "readdirplus=", "threads=", "cache=", "show_control", "spin="):
            assert word in done.stdout
    for option in ("-V", "--version"):
        done = call(option)
        assert (done.returncode, done.stderr) == (0, "")
        assert [line.split()[0] for line in done.stdout.splitlines()] == ["zrecordfs", "libzstd", "libfuse"]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["{store}"],
        ["{store}", "m", "more"],
        ["{store}", "m", "-o", "nonsense"],
        ["{store}", "m", "-o", "allow_othr"],
        ["{store}", "m", "-o", "ro,uid=abc"],
        ["{store}", "m", "-o", "threads=1000000"],
        ["{store}", "m", "-o", "cache=much"],
        ["{store}", "m", "--readdirplus=sometimes"],
        ["{store}", "m", "--nonsense"],
        ["{store}", "m", "-x"],
        ["{store}", "m", "-o"],
    ],
)
def test_wrong_usage_is_exit_code_2(here, store, arguments):
    done = call(*[argument.format(store=store) for argument in arguments])
    assert done.returncode == 2 and done.stdout == "" and "--help" in done.stderr, done
    assert not is_mounted(here / "m")


def test_options_of_fstab_are_taken(here, store):
    options = "rw,nodev,nosuid,noexec,noatime,noauto,user,_netdev,nofail,x-systemd.automount,comment=x,defaults"
    with mounted(store, here / "m", "-o", options) as m:
        assert read_raw(m / 1) == npy(ROWS[1])
        line = next(line for line in open("/proc/self/mountinfo") if f" {m.path} " in line)
        assert "noexec" in line and "noatime" in line and line.split(" - ")[1].split()[2].startswith("ro")
    with mounted(store, here / "m", "-o", "dev,suid,exec") as m:
        assert len(os.listdir(m.path)) == 100


@needs_root
def test_as_a_mount_helper(here, store):
    program("mount")
    if not shutil.which("mount.fuse3", path="/sbin:/usr/sbin"):
        pytest.skip("mount.fuse3 is not installed (package fuse3)")
    installed = Path("/usr/local/bin/zrecordfs")  # mount.fuse3 looks in the standard places only
    link_it = not installed.exists()
    if link_it:
        installed.symlink_to(PROGRAM)
    options = "ro,nodev,noauto,allow_other,show_control"
    try:
        command = ["mount", "-t", "fuse.zrecordfs", "-o", options, str(store), "m"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    finally:
        if link_it:
            installed.unlink()
    assert done.returncode == 0, done.stderr
    try:
        assert read_raw(here / "m" / name_of(3)) == npy(ROWS[3])
        assert ".control" in os.listdir(here / "m")
    finally:
        done = subprocess.run(["umount", "m"], capture_output=True, text=True)
    assert done.returncode == 0 and not is_mounted(here / "m"), done.stderr


# ---------------------------------------------------------------- mountpoints


def test_the_mountpoint_does_not_exist(here, store):
    check_refused(call(store, "absent"), "absent", "does not exist", "mkdir -p")
    assert not (here / "absent").exists()


def test_the_mountpoint_is_a_file(here, store):
    (here / "file").write_text("x")
    check_refused(call(store, "file"), "file", "is not a folder")
    check_refused(call(store, "file/below"), "file/below", "is not a folder")
    assert (here / "file").read_text() == "x"


def test_the_mountpoint_is_busy(here, store):
    with mounted(store, here / "m") as m:
        check_refused(call(store, "m"), here / "m", "is busy", store, "fuse.zrecordfs", "fusermount3 -u")
        assert read_raw(m / 1) == npy(ROWS[1])
    check_refused(call(store, "/proc"), "/proc is busy", "proc")


def test_a_mountpoint_with_files_in_it_is_taken(here, store):
    (here / "m" / "below").write_text("still there")
    with mounted(store, here / "m") as m:
        assert not (m / "below").exists()
    assert (here / "m" / "below").read_text() == "still there"


def test_a_mountpoint_through_a_link_and_with_odd_names(here, store):
    odd = here / "with space,comma\\backslash\nnewline ü"
    odd.mkdir()
    (here / "link").symlink_to(odd)
    done = call(store, "link")
    assert done.returncode == 0, done.stderr
    assert read_raw(odd / name_of(1)) == npy(ROWS[1])
    assert "is busy" in call(store, odd).stderr
    assert unmount(odd).returncode == 0


# ---------------------------------------------------------------- stores


def test_the_store_does_not_exist(here):
    check_refused(call("absent", "m"), "absent")
    assert not is_mounted(here / "m")


def test_the_source_is_no_store(here, store):
    (here / "empty").mkdir()
    (here / "file").write_text("x")
    shutil.copytree(store, here / "cut")
    os.truncate(here / "cut" / "meta.zr", 100)
    shutil.copytree(store, here / "short")
    os.truncate(here / "short" / "data.zr", 10)
    for source in ("empty", "file", "cut", "short"):
        check_refused(call(source, "m"), source)
        assert not is_mounted(here / "m")


@needs_root
def test_the_store_may_not_be_read(here, store):
    with as_user(store) as (run, folder):
        os.chmod(folder / "store" / "meta.zr", 0o600)
        check_refused(run("store", "m"), "meta.zr", "ermission")


@needs_root
def test_a_folder_that_may_not_be_entered_is_not_called_empty(here, store):
    program("setpriv")
    with as_user(store) as (run, folder):
        for name, mode in [("shut", 0o700), ("blind", 0o744), ("deaf", 0o711)]:
            shutil.copytree(store, folder / name / "store")
            os.chmod(folder / name, mode)
            check_refused(run(name, "m"), f"{folder}/{name}: Permission denied")
        shutil.copytree(store, folder / "store.shut")
        os.chmod(folder / "store.shut", 0o700)
        check_refused(run("store.shut", "m"), f"{folder}/store.shut: Permission denied")
        (folder / "above").mkdir()
        (folder / "shut").rename(folder / "above" / "shut")
        for source in ("above", "above/shut/store"):
            done = run(source, "m")
            check_refused(done, "above/shut", "Permission denied")
            assert "not a zrecord store" not in done.stderr


@needs_root
def test_what_may_not_be_entered_in_a_tree_is_named(store):
    program("setpriv")
    with as_user(store) as (run, folder):
        tree = folder / "tree"
        shutil.copytree(store, tree / "open")
        shutil.copytree(store, tree / "shut")
        os.chmod(tree / "shut", 0o700)
        os.symlink("shut/data.zr", tree / "link")
        os.symlink("loop", tree / "loop")
        done = run("tree", "m")
        assert done.returncode == 0, done.stderr
        assert f"shut cannot be shown: {tree}/shut: Permission denied" in done.stderr
        assert f"link cannot be shown: {tree}/link: Permission denied" in done.stderr
        assert f"loop cannot be shown: {tree}/loop: Too many levels of symbolic links" in done.stderr
        names = {}
        for entry in json.loads(cat(folder / "m" / ".control", **AS_USER))["broken"]:
            names[entry["name"]] = entry["message"]
        assert sorted(names) == ["link", "loop", "shut"] and "Permission denied" in names["shut"]
        listing = subprocess.run(["ls", folder / "m" / "shut"], capture_output=True, text=True, **AS_USER)
        assert listing.returncode != 0 and "Permission denied" in listing.stderr


def test_a_meta_zr_that_is_an_endless_link(here, store):
    for name in ("alone", "tree/inner"):
        (here / name).mkdir(parents=True)
        os.symlink("meta.zr", here / name / "meta.zr")
    check_refused(call("alone", "m"), "alone: Too many levels of symbolic links")
    check_refused(call("tree", "m"), "tree/inner: Too many levels of symbolic links")


def test_an_array_is_no_source_yet(here):
    np.save("a.npy", np.arange(3))
    np.savez("a.npz", np.arange(3))
    for source in ("a.npy", "a.npz"):
        check_refused(call(source, "m"), f"{source}: ", "`zrecord import` makes a store of it")
    done = call("absent.npy", "m")
    assert done.returncode == 1 and "import" not in done.stderr


# ---------------------------------------------------------------- ordinary users


@contextlib.contextmanager
def as_user(store, device_mode=0o666):
    """A folder of an ordinary user with store and m in it, and how to run zrecordfs there as
    that user: run(*arguments, prefix=, env=)."""
    folder = Path(tempfile.mkdtemp(prefix="zrecord-user-"))
    device = os.stat("/dev/fuse").st_mode & 0o7777
    try:
        shutil.copytree(store, folder / "store")
        shutil.copy(PROGRAM, folder / "zrecordfs")
        (folder / "m").mkdir()
        for path in (folder, folder / "store", folder / "m"):
            os.chown(path, USER, USER)
        folder.chmod(0o755)
        os.chmod("/dev/fuse", device_mode)
        reports = Reports(folder / "reports")

        def run(*arguments, env=None, hide=()):
            command = [str(folder / "zrecordfs"), *map(str, arguments)]
            drop = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *command]
            if hide:  # in a mount namespace where those files are empty
                binds = "; ".join(f"mount --bind /dev/null {path}" for path in hide)
                drop = ["unshare", "-m", "sh", "-c", f'{binds}; exec "$@"', "sh", *drop]
            return subprocess.run(
                drop, cwd=folder, capture_output=True, text=True, timeout=60,
                env={**reports.environment(), "LC_ALL": "C", **(env or {})},
            )  # fmt: skip

        yield run, folder
        while is_mounted(folder / "m"):
            unmount(folder / "m", lazy=True)
        reports.check()
    finally:
        os.chmod("/dev/fuse", device)
        while is_mounted(folder / "m"):
            unmount(folder / "m", lazy=True)
        shutil.rmtree(folder)


@needs_root
def test_an_ordinary_user_mounts_and_unmounts(store):
    program("setpriv")
    with as_user(store) as (run, folder):
        done = run("store", "m")
        assert done.returncode == 0, done.stderr
        assert cat(folder / "m" / name_of(7), **AS_USER) == npy(ROWS[7])
        pid = pid_of(folder / "m", **AS_USER)
        done = subprocess.run(["fusermount3", "-u", folder / "m"], capture_output=True, text=True, **AS_USER)
        assert done.returncode == 0, done.stderr
        wait_for(lambda: not is_alive(pid), what="the daemon's end")


@needs_root
def test_a_dead_mount_of_an_ordinary_user_is_replaced(store):
    program("setpriv")
    with as_user(store) as (run, folder):
        assert run("store", "m").returncode == 0
        kill_daemon_of(folder / "m", **AS_USER)
        done = run("store", "m")
        assert done.returncode == 0, done.stderr
        assert mount_count(folder / "m") == 1


@needs_root
def test_no_permission_for_dev_fuse(store):
    with as_user(store, device_mode=0o600) as (run, folder):
        check_refused(run("store", "m"), "no permission to open /dev/fuse", "chmod 0666 /dev/fuse", "zrecord export")


@needs_root
def test_no_permission_for_the_mountpoint(store):
    with as_user(store) as (run, folder):
        os.chown(folder / "m", 0, 0)
        check_refused(run("store", "m"), folder / "m", "no permission", "writable")
        os.chmod(folder / "m", 0o700)
        check_refused(run("store", "m/below"), "m/below", "no permission to reach")


@needs_root
def test_no_fusermount3(store):
    program("unshare")
    with as_user(store) as (run, folder):
        done = run("store", "m", hide=[shutil.which("fusermount3")])
        check_refused(done, "fusermount3 is missing", "fuse3", "zrecord export")


@needs_root
def test_allow_other_needs_user_allow_other(store):
    program("unshare")
    with as_user(store) as (run, folder):
        done = run("store", "m", "-o", "allow_other", hide=["/etc/fuse.conf"])
        check_refused(done, "allow_other", "user_allow_other", "/etc/fuse.conf")


@needs_root
def test_other_users_see_nothing_without_allow_other(store):
    with as_user(store) as (run, folder):
        shutil.copy(PROGRAM, folder / "program")
        with mounted(store, folder / "m"):
            assert subprocess.run(["ls", folder / "m"], capture_output=True, **AS_USER).returncode != 0
        with mounted(store, folder / "m", "-o", "allow_other"):
            assert cat(folder / "m" / name_of(1), **AS_USER) == npy(ROWS[1])
        with mounted(store, folder / "m", "-o", "allow_other,umask=077"):
            assert subprocess.run(["ls", folder / "m"], capture_output=True, **AS_USER).returncode != 0


@needs_root
def test_a_copy_of_the_mount_in_another_namespace_keeps_it_until_that_ends(store, tmp_path):
    program("unshare")
    with mounted(store, tmp_path / "m") as m:
        device = device_of(m.path)
        holder = subprocess.Popen(["unshare", "-m", "sleep", "100"])
        try:
            wait_for(lambda: is_held_elsewhere(device), what="copying the mount")
            assert unmount(m.path).returncode == 0
            assert cat(f"/proc/{holder.pid}/root/{m.path}/{name_of(3)}") == npy(ROWS[3])
            assert m.process.poll() is None
        finally:
            holder.kill()
            holder.wait()


@needs_root
def test_no_dev_fuse_at_all(here, store):
    program("unshare")
    hidden = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /dev; exec "$@"', "sh"]
    check_refused(call(store, "m", prefix=hidden), "/dev/fuse", "modprobe fuse", "--device /dev/fuse", "zrecord export")


@needs_root
def test_root_without_the_right_to_mount(here, store):
    program("setpriv")
    bare = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
    done = call(store, "m", prefix=bare)  # fusermount3 complains as well
    assert done.returncode == 1 and "not permitted" in done.stderr, done
    assert f"zrecordfs: cannot mount on {here / 'm'}" in done.stderr and "zrecord export" in done.stderr


# ---------------------------------------------------------------- background


def test_the_command_returns_when_the_mount_answers(here, store):
    rounds = 20 if SANITIZED else 100
    for i in range(rounds):
        done = call(store, "m")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert len(os.listdir("m")) == 100, i
        assert unmount(here / "m").returncode == 0
        assert not is_mounted(here / "m")


def test_relative_paths_in_the_background(here, store):
    shutil.copytree(store, "copy")
    done = call("copy", "m")
    assert done.returncode == 0, done.stderr
    assert read_raw(here / "m" / name_of(5)) == npy(ROWS[5])
    assert unmount(here / "m").returncode == 0


def opened_by(pid):
    """What its descriptors lead to; one may be closed meanwhile."""
    targets = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            targets.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return targets


def test_the_daemon_holds_nothing_of_its_caller(here, store):
    (here / "cwd").mkdir()
    (here / "m2").mkdir()
    lock = open(here / "lock", "w")
    os.set_inheritable(lock.fileno(), True)
    with mounted(store, here / "m", foreground=False) as m:
        pid = m.pid
        done = call(store, "../m2", cwd=here / "cwd", pass_fds=[lock.fileno()])
        assert done.returncode == 0, "the pipes were closed, or this would not return"
        try:
            second = pid_of(here / "m2")
            for daemon in (pid, second):
                assert os.readlink(f"/proc/{daemon}/cwd") == "/"
                opened = opened_by(daemon)
                assert not any("pipe:" in target or "lock" in target for target in opened), opened
                assert opened.count("/dev/null") >= 3
            os.rmdir(here / "cwd")
        finally:
            assert unmount(here / "m2").returncode == 0
        wait_for(lambda: not is_alive(second), what="the second daemon's end")
    lock.close()


def test_in_the_background_failures_are_those_of_the_command(here, store):
    done = call("absent", "m")
    assert done.returncode == 1 and "absent" in done.stderr


# ---------------------------------------------------------------- the end


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_end_it_cleanly(here, store, how):
    with mounted(store, here / "m") as m:
        read_raw(m / 1)
        m.process.send_signal(how)
        assert m.process.wait(20) == 0
        assert not is_mounted(here / "m")


def test_a_signal_ends_it_in_the_background_too(here, store):
    with mounted(store, here / "m", foreground=False) as m:
        pid = m.pid
        os.kill(pid, signal.SIGTERM)
        wait_for(lambda: not is_alive(pid), what="the daemon's end")
        assert not is_mounted(here / "m")


@needs_root
def test_umount_ends_it(here, store):
    with mounted(store, here / "m") as m:
        assert subprocess.run(["umount", m.path]).returncode == 0
        assert m.process.wait(20) == 0


def test_a_signal_while_files_are_open_and_read(here, store):
    """Readers get an error, nobody hangs, and the daemon is gone at once."""
    failures = []

    def read_on(path):
        try:
            while True:
                for i in range(100):
                    read_raw(path / name_of(i))
                    fd = os.open(path / ".control", os.O_RDONLY)
                    os.read(fd, 1 << 20)
                    os.close(fd)
        except OSError as error:
            failures.append(error)

    with mounted(store, here / "m") as m:
        held = os.open(m / 1, os.O_RDONLY)
        readers = [threading.Thread(target=read_on, args=[m.path]) for _ in range(4)]
        for reader in readers:
            reader.start()
        time.sleep(0.3)
        m.process.send_signal(signal.SIGTERM)
        assert m.process.wait(20) == 0
        for reader in readers:
            reader.join(20)
            assert not reader.is_alive()
        assert len(failures) == 4 and not is_mounted(here / "m")
        os.close(held)


def mount_count(path):
    with open("/proc/self/mountinfo") as lines:
        return sum(line.split(" ")[4] == str(path) for line in lines)


def cat(path, **user):
    return subprocess.run(["cat", path], stdout=subprocess.PIPE, check=True, **user).stdout


def pid_of(path, **user):
    return json.loads(cat(path / ".control", **user))["pid"]


def kill_daemon_of(path, **user):
    pid = pid_of(path, **user)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not is_alive(pid), what="the daemon's end")


def test_a_killed_daemon_is_replaced_by_the_next_mount(here, store):
    for _ in range(3):
        assert call(store, "m").returncode == 0
        read_raw(here / "m" / name_of(1))
        os.stat(here / "m")  # its attributes stay cached, so stat alone does not tell
        kill_daemon_of(here / "m")
        with pytest.raises(OSError) as caught:
            read_raw(here / "m" / name_of(2))
        # EIO: the kernel knew the inode already, and a page of it could not be filled.
        # ECANCELED: the request met the ring while the kernel was taking it down.
        assert caught.value.errno in (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO, errno.ECANCELED)
    done = call(store, "m")
    assert done.returncode == 0, done.stderr
    assert read_raw(here / "m" / name_of(2)) == npy(ROWS[2])
    assert mount_count(here / "m") == 1, "dead mounts do not pile up"
    assert unmount(here / "m").returncode == 0


def test_a_stopped_daemon_goes_on_after_it_is_resumed(here, store):
    with mounted(store, here / "m") as m:
        m.process.send_signal(signal.SIGSTOP)
        got = []
        reader = threading.Thread(target=lambda: got.append(read_raw(m / 9)))
        reader.start()
        time.sleep(0.2)
        assert not got
        m.process.send_signal(signal.SIGCONT)
        reader.join(20)
        assert got == [npy(ROWS[9])]


def test_an_interrupted_reader_leaves_the_mount_working(here, store):
    with mounted(store, here / "m") as m:
        m.process.send_signal(signal.SIGSTOP)
        reader = subprocess.Popen(["cat", m / 11], stdout=subprocess.DEVNULL)
        time.sleep(0.2)
        reader.kill()
        m.process.send_signal(signal.SIGCONT)
        reader.wait(20)
        assert read_raw(m / 12) == npy(ROWS[12])
        assert read_raw(m / 11) == npy(ROWS[11])
