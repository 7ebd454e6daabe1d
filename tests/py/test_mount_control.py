# SPDX-License-Identifier: MIT
"""Commands for a running mount: written to .control, or by `zrecord ctl`, and what status says of them."""

import errno
import json
import os
import stat
import subprocess

import numpy as np
import pytest
from conftest import REPO
from mounting import mounted, name_of, needs_mount, needs_root, npy, read_raw, wait_for
from test_mount import counting_rows, make_dense, settle

zrecord = pytest.importorskip("zrecord")
pytestmark = needs_mount

ROWS = counting_rows(300, 2048)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return make_dense(tmp_path_factory.mktemp("control") / "store", ROWS)


def send(m, text):
    """One write(2) to the control file; the errno, or 0."""
    try:
        fd = os.open(m / ".control", os.O_WRONLY)
        try:
            assert os.write(fd, text) == len(text)
        finally:
            os.close(fd)
    except OSError as error:
        return error.errno
    return 0


def done(m, pending):
    wait_for(lambda: m.status()["pending"][pending] == 0, what=pending)


# ---------------------------------------------------------------- what there is


def test_the_status_says_what_may_be_asked(store, tmp_path):
    with mounted(store, tmp_path / "m") as m:
        accepts = {entry["command"]: entry for entry in m.status()["accepts"]}
        assert sorted(accepts) == ["drop SELECTION", "log LEVEL", "prefetch SELECTION", "stats reset"]
        assert all(entry["by"] == ["ioctl"] and entry["does"] for entry in accepts.values())
        assert m.status()["last_failure"] is None and m.status()["options"]["control"] == "ro"
    with mounted(store, tmp_path / "m", "-o", "control=rw") as m:
        assert all(entry["by"] == ["ioctl", "write"] for entry in m.status()["accepts"])


def test_without_control_rw_nothing_can_be_written(store, tmp_path):
    with mounted(store, tmp_path / "m", "-o", "control=ro") as m:
        assert send(m, b"stats reset\n") == errno.EROFS
        assert stat.S_IMODE(os.stat(m / ".control").st_mode) == 0o444


# ---------------------------------------------------------------- written


def test_commands_are_lines_written_to_the_control_file(store, tmp_path):
    with mounted(store, tmp_path / "m", "-o", "control=rw") as m:
        assert stat.S_IMODE(os.stat(m / ".control").st_mode) == 0o644
        settle(m)
        assert send(m, b"stats reset\n") == 0
        assert m.status()["counters"]["decodes"] == 0
        os.listdir(m.path)
        assert send(m, b"prefetch 10:20\n\n  log   warning  \nprefetch 5") == 0
        wait_for(lambda: m.status()["counters"]["decodes"] == 11, what="prefetching")
        assert m.status()["options"]["log"] == "warning"
        assert subprocess.run(["sh", "-c", f"echo 'log info' > '{m.path}/.control'"]).returncode == 0
        assert m.status()["options"]["log"] == "info"
        assert subprocess.run(["sh", "-c", f"echo 'log debug' >> '{m.path}/.control'"]).returncode == 0
        assert m.status()["options"]["log"] == "debug"
        (m / ".control").write_text("log error\n")
        assert m.status()["options"]["log"] == "error"


@pytest.mark.parametrize(
    "text",
    [b"nonsense\n", b"prefetch\n", b"prefetch x\n", b"prefetch 300\n", b"prefetch 0 1\n", b"drop 0:300,300", b"stats\n",
     b"stats clear\n", b"log loud\n", b"PREFETCH 1\n", b"prefetch\x000\n", b"log\n", b"\xff\xfe\n", b"x" * 70000],
)  # fmt: skip
def test_a_bad_command_fails_its_write_and_is_named(store, tmp_path, text):
    with mounted(store, tmp_path / "m", "-o", "control=rw") as m:
        assert send(m, text) == errno.EINVAL
        failure = m.status()["last_failure"]
        assert failure["message"]
        named = text.split(b"\n")[0].decode("utf-8", "replace").replace("\0", "?").replace("\ufffd", "?")
        assert named.startswith(failure["command"].rstrip("?")) and failure["command"]
        assert send(m, b"stats reset") == 0


def test_commands_before_a_bad_one_are_done(store, tmp_path):
    with mounted(store, tmp_path / "m", "-o", "control=rw") as m:
        assert send(m, b"log debug\nnonsense\nlog error\n") == errno.EINVAL
        assert m.status()["options"]["log"] == "debug"
        assert m.status()["last_failure"]["command"] == "nonsense"


def test_reading_goes_on_as_before_with_control_rw(store, tmp_path):
    with mounted(store, tmp_path / "m", "-o", "control=rw") as m:
        assert all(read_raw(m / i) == npy(ROWS[i]) for i in range(300))
        assert np.array_equal(np.load(m / 5, mmap_mode="r"), ROWS[5])
        assert m.status()["store"]["length"] == 300


@needs_root
def test_every_other_write_is_refused_with_control_rw(store, tmp_path):
    """Root passes every check of modes: the daemon has to refuse."""
    with mounted(store, tmp_path / "m", "-o", "control=rw") as m:
        record, new = m / 7, m / "new"

        def refused(call, *arguments, **named):
            with pytest.raises(OSError) as caught:
                call(*arguments, **named)
            assert caught.value.errno == errno.EROFS, (call, caught.value)

        refused(os.utime, record)
        refused(os.chmod, record, 0o600)
        refused(os.chown, record, 1, 1)
        refused(os.truncate, record, 0)
        refused(os.rename, record, m / name_of(8))
        refused(os.rename, record, new)
        refused(os.unlink, record)
        refused(os.link, record, new)
        refused(os.symlink, "x", new)
        refused(os.mkdir, new)
        refused(os.mkfifo, new)
        refused(os.rmdir, m / ".views")
        refused(os.setxattr, record, "user.x", b"1")
        refused(os.open, new, os.O_CREAT | os.O_WRONLY)
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND, os.O_WRONLY | os.O_TRUNC):
            refused(os.open, record, flags)
            refused(os.open, m / ".views/all.npy", flags)
        refused(os.chmod, m / ".control", 0o600)
        refused(os.unlink, m / ".control")
        assert read_raw(record) == npy(ROWS[7]) and len(os.listdir(m.path)) == 300


def test_every_write_is_refused_on_a_read_only_mount(store, tmp_path):
    commands = ["touch R", "echo x >> R", "chmod 600 R", "mv R N", "rm -f R", "ln R N", "ln -s x N", "truncate -s 0 R",
                "mkdir N", "touch N", "cp R N", "rmdir .views", "echo 'stats reset' > .control"]  # fmt: skip
    with mounted(store, tmp_path / "m") as m:
        for command in commands:
            words = command.replace("R", name_of(7)).replace("N", "new")
            ran = subprocess.run(["sh", "-c", words], cwd=m.path, capture_output=True, env={**os.environ, "LC_ALL": "C"})
            assert ran.returncode != 0 and b"Read-only file system" in ran.stderr, (words, ran)
        assert read_raw(m / 7) == npy(ROWS[7])


# ---------------------------------------------------------------- zrecord ctl


@pytest.mark.parametrize("mode", ["ro", "rw"])
def test_ctl_works_in_both_modes(store, tmp_path, zrecord_tool, mode):
    with mounted(store, tmp_path / "m", "-o", f"control={mode}") as m:
        shown = zrecord_tool("ctl", m.path)
        assert shown.returncode == 0 and '"program": "zrecordfs"' in shown.stdout
        assert '"length": 300' in zrecord_tool("ctl", m.path, "status").stdout
        os.listdir(m.path)
        assert zrecord_tool("ctl", m.path, "prefetch", "0:50").returncode == 0
        wait_for(lambda: m.status()["counters"]["pushes"] == 50, what="prefetching")
        with m.counting() as delta:
            assert all(read_raw(m / i) == npy(ROWS[i]) for i in range(50))
        assert "READ" not in delta, "the pages are the kernel's by now"
        assert zrecord_tool("ctl", m.path, "drop 0:50").returncode == 0
        done(m, "drop_records")
        assert zrecord_tool("ctl", m.path, "stats", "reset").stdout == "counters are 0\n"
        assert read_raw(m / 7) == npy(ROWS[7]) and m.status()["counters"]["decodes"] >= 1
        assert zrecord_tool("ctl", m.path, "log", "error").returncode == 0
        assert m.status()["options"]["log"] == "error"


def test_ctl_says_what_is_wrong(store, tmp_path, zrecord_tool):
    with mounted(store, tmp_path / "m") as m:
        for words, reason in (
            (["prefetch", "999"], "out of range"),
            (["prefetch", "many"], "not a selection"),
            (["drop"], "usage: drop SELECTION"),
            (["fly"], "no such command"),
            (["x" * 9000], "too long"),
        ):
            ran = zrecord_tool("ctl", m.path, *words)
            assert ran.returncode == 2 and reason in ran.stderr and ran.stdout == "", ran
        assert m.status()["last_failure"]["command"] == "fly"
    ran = zrecord_tool("ctl", tmp_path)
    assert ran.returncode == 1 and "not a folder of a mount" in ran.stderr
    (tmp_path / ".control").write_text("no mount")
    ran = zrecord_tool("ctl", tmp_path, "stats", "reset")
    assert ran.returncode == 1 and "not a mount of zrecordfs" in ran.stderr
    assert zrecord_tool("ctl").returncode == 2
    assert "prefetch SELECTION" in zrecord_tool("ctl", "--help").stdout


def test_a_command_is_for_control_files_only(store, tmp_path):
    import fcntl

    with mounted(store, tmp_path / "m") as m:
        for name in (name_of(3), ".views/all.npy"):
            fd = os.open(m / name, os.O_RDONLY)
            with pytest.raises(OSError) as caught:
                fcntl.ioctl(fd, 0xC0000000 | 8192 << 16 | ord("z") << 8 | 0x72, bytearray(8192))
            assert caught.value.errno == errno.ENOTTY
            os.close(fd)


def test_a_range_ends_where_the_store_does(store, tmp_path, zrecord_tool):
    with mounted(store, tmp_path / "m") as m:
        for command in ("prefetch", "drop"):
            done = zrecord_tool("ctl", m.path, command, "0:1000000")
            assert done.returncode == 0, done.stderr
        assert json.loads(read_raw(m / ".views/prefetch/0:1000000"))["records"] == m.status()["store"]["length"]
        done = zrecord_tool("ctl", m.path, "prefetch", "1000000")
        assert done.returncode == 2 and "records out of range" in done.stderr


@needs_root
def test_other_users_may_prefetch_and_nothing_else(store, tmp_path):
    tool = os.path.join(os.path.dirname(__import__("mounting").PROGRAM), "zrecord")
    reachable = tmp_path
    while reachable != reachable.parent:
        os.chmod(reachable, os.stat(reachable).st_mode | 0o55)
        reachable = reachable.parent
    copy = tmp_path / "zrecord"
    copy.write_bytes(open(tool, "rb").read())
    copy.chmod(0o755)
    with mounted(store, tmp_path / "m", "-o", "allow_other") as m:
        for words, code in ((["prefetch", "0:2"], 0), (["drop", "0:2"], 1), (["stats", "reset"], 1), (["log", "debug"], 1)):
            ran = subprocess.run([copy, "ctl", m.path, *words], capture_output=True, text=True, user=65534, group=65534)
            assert ran.returncode == code, ran
            assert code == 0 or "only root and the owner" in ran.stderr


def test_the_manual_names_every_part_of_the_status_and_every_command(store, tmp_path):
    text = (REPO / "fs" / "zrecord.control.5").read_text()
    with mounted(store, tmp_path / "m") as m:
        status = m.status()
        words = [*status, *status["store"], *(entry["command"].split()[0] for entry in status["accepts"])]
        missing = [word for word in words if word not in text]
        assert not missing, missing
