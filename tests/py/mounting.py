# SPDX-License-Identifier: MIT
"""Real mounts for tests: made, watched and always taken away again.

`mounted(store, mountpoint)` runs zrecordfs, waits until the mount answers, and on leaving
unmounts it, then asserts that the daemon ended with exit code 0, in time, without a sanitizer's
report.  What goes wrong on the way leaves neither a process nor a mount behind.
"""

import contextlib
import fcntl
import io
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import BUILD

PROGRAM = BUILD / "zrecordfs"
END_SECONDS = 20  # sanitizers and a busy machine included


def requirement():
    """Why nothing can be mounted here, or None."""
    if not PROGRAM.exists():
        return f"{PROGRAM} is not built (make all)"
    if not os.path.exists("/dev/fuse"):
        return "/dev/fuse is missing: nothing can be mounted here"
    if os.geteuid() != 0 and not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse is not open to this user"
    if shutil.which("fusermount3") is None:
        return "fusermount3 is missing (package fuse3)"
    return None


needs_mount = pytest.mark.skipif(requirement() is not None, reason=str(requirement()))
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


# ---------------------------------------------------------------- transports

ENABLE_URING = Path("/sys/module/fuse/parameters/enable_uring")
_transport = None  # of the mounts being made


def why_no_uring():
    """Why io_uring cannot carry a mount here, or None."""
    if not ENABLE_URING.exists():
        return "this kernel has no FUSE over io_uring (Linux 6.14 or later)"
    if os.geteuid() != 0 and ENABLE_URING.read_text().strip() != "Y":
        return "only root can enable FUSE over io_uring"
    return None


def transports():
    only = os.environ.get("ZRECORD_TRANSPORT")
    if only:
        return [only]
    return ["classic"] if why_no_uring() else ["classic", "uring"]


@contextlib.contextmanager
def enabled_uring():
    """The kernel offers io_uring to new mounts meanwhile; other test runs may do the same at once,
    and the last one to leave puts it back."""
    with open(ENABLE_URING) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            before = file.read().strip()
            if before != "Y":
                ENABLE_URING.write_text("Y")
        except BlockingIOError:
            before = "N"  # another run has set it
        fcntl.flock(file, fcntl.LOCK_SH)
        try:
            yield
        finally:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if before != "Y":
                    ENABLE_URING.write_text(before)


@contextlib.contextmanager
def using_transport(kind):
    global _transport
    before = _transport
    with enabled_uring() if kind == "uring" else contextlib.nullcontext():
        _transport = kind
        try:
            yield
        finally:
            _transport = before


def _transport_options(options):
    if _transport is None or any("transport=" in str(option) for option in options):
        return []
    return ["-o", f"transport={_transport}"]


def _is_sanitized():
    if not PROGRAM.exists():
        return False
    code = PROGRAM.read_bytes()
    return b"__asan_init" in code or b"__tsan_init" in code


SANITIZED = _is_sanitized()  # memory and time then say nothing


def program(name):
    """Skips the test when a program is missing."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def npy(array):
    """The bytes that numpy.save writes."""
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def name_of(record):
    return f"{record:08d}.npy"


def read_raw(path):
    """A whole file without Python's isatty question, which costs a message."""
    fd = os.open(path, os.O_RDONLY)
    try:
        parts = []
        while part := os.read(fd, 1 << 20):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(fd)


def is_mounted(path):
    wanted = str(path).replace("\\", "\\134").replace(" ", "\\040")
    with open("/proc/self/mountinfo", errors="surrogateescape") as lines:
        return any(line.split(" ")[4] == wanted for line in lines)


def unmount(path, lazy=False):
    return subprocess.run(
        ["fusermount3", "-u", *(["-z"] if lazy else []), str(path)], capture_output=True, text=True
    )


def wait_for(condition, seconds=END_SECONDS, what="it"):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds} s"
        time.sleep(0.01)


def is_alive(pid):
    """False for processes that are gone or wait for their parent's notice."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Reports:
    """Where sanitizers write what they find, in the background too."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.folder.mkdir(exist_ok=True)
        self.folder.chmod(0o777)

    def environment(self):
        env = dict(os.environ)
        for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS", "LSAN_OPTIONS", "TSAN_OPTIONS"):
            env[name] = ":".join(filter(None, [env.get(name), f"log_path={self.folder}/report"]))
        return env

    def check(self):
        texts = [path.read_text(errors="replace") for path in self.folder.iterdir()]
        assert not texts, "a sanitizer reports:\n" + "\n".join(texts)


class Mount:
    def __init__(self, path, process, log):
        self.path = Path(path)
        self.process = process  # None in the background
        self._log = log

    def __truediv__(self, name):
        return self.path / (name_of(name) if isinstance(name, int) else name)

    @property
    def log(self):
        return self._log.read_text(errors="replace")

    def status(self):
        return json.loads(read_raw(self.path / ".control"))

    @property
    def pid(self):
        return self.process.pid if self.process else self.status()["pid"]

    def requests(self):
        """Requests so far, but for those that reading .control itself costs."""
        status = self.status()
        counts = dict(status["requests"])
        counts["LOOKUP"] = counts.get("LOOKUP", 0) - status["counters"]["control_lookups"]
        counts["READ"] = counts.get("READ", 0) - status["counters"]["control_reads"]
        for silent in ("FORGET", "BATCH_FORGET"):  # the kernel's own tidying
            counts.pop(silent, None)
        return counts

    @contextlib.contextmanager
    def counting(self):
        """Gives a dict that holds, after the block, the requests the block made."""
        delta = {}
        before = self.requests()
        yield delta
        after = self.requests()
        delta.update({op: n - before.get(op, 0) for op, n in after.items() if n != before.get(op, 0)})

    def rss(self):
        with open(f"/proc/{self.pid}/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))


class Untidy(Exception):
    """A mount that did not end as it should."""


def device_of(path):
    """MAJOR:MINOR of what is mounted there, or None."""
    with open("/proc/self/mountinfo", errors="surrogateescape") as lines:
        return next((line.split(" ")[2] for line in lines if line.split(" ")[4] == str(path)), None)


def is_held_elsewhere(device):
    """Some process has a copy of that mount in a namespace of its own, made while it was there.
    The kernel ends a mount with the last copy, and every program may come to have one."""
    own = os.readlink("/proc/self/ns/mnt")
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(process / "ns/mnt") == own:
                continue
            if f" {device} " in (process / "mountinfo").read_text(errors="replace"):
                return True
    return False


def _await_end(process, device):
    """Its exit code; it has END_SECONDS once nobody holds the mount any more."""
    for _ in range(10):
        try:
            return process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            if not device or not is_held_elsewhere(device):
                raise
    return process.wait(END_SECONDS)


def _start_foreground(command, log, env):
    with open(log, "wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env)

    def is_ready():
        assert process.poll() is None, f"zrecordfs ended with {process.returncode}: {log.read_text()}"
        return b"is mounted on" in log.read_bytes()

    try:
        wait_for(is_ready, what="mounting")
    except BaseException:
        process.kill()
        process.wait()
        raise
    return process


def _stop(mount, path):
    """Unmounts; returns what to complain about."""
    complaints = []
    pid = mount.pid if is_mounted(path) and mount.process is None else None
    device = device_of(path)
    if is_mounted(path):
        done = unmount(path)
        if done.returncode:
            complaints.append(f"unmounting: {done.stderr}")
            unmount(path, lazy=True)
    if mount.process:
        try:
            code = _await_end(mount.process, device)
        except subprocess.TimeoutExpired:
            mount.process.kill()
            code = mount.process.wait()
            complaints.append("the daemon did not end by itself")
        if code != mount.expected_code:
            complaints.append(f"the daemon ended with {code}: {mount.log}")
    elif pid:
        try:
            wait_for(lambda: not is_alive(pid), what="the daemon's end")
        except AssertionError as late:
            os.kill(pid, signal.SIGKILL)
            complaints.append(str(late))
    return complaints


@contextlib.contextmanager
def mounted(store, mountpoint, *options, foreground=True, expected_code=0, scratch=None):
    """Mounts store on the folder mountpoint (made when missing) with those extra arguments."""
    mountpoint = Path(mountpoint)
    mountpoint.mkdir(exist_ok=True)
    scratch = Path(scratch or mountpoint.parent)
    log = scratch / f"{mountpoint.name}.log"
    log.write_bytes(b"")
    reports = Reports(scratch / f"{mountpoint.name}.reports")
    options = [*_transport_options(options), *options]
    command = [str(PROGRAM), *map(str, options), str(store), str(mountpoint)]
    process = None
    if foreground:
        process = _start_foreground([*command, "-f"], log, reports.environment())
    else:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=reports.environment())
        assert done.returncode == 0, done.stderr
        log.write_text(done.stderr)
    mount = Mount(mountpoint, process, log)
    mount.expected_code = expected_code
    complaints = ["the test did not get to its end"]
    try:
        yield mount
        complaints = []
    finally:
        complaints += _stop(mount, mountpoint)
        while is_mounted(mountpoint):
            unmount(mountpoint, lazy=True)
    if complaints:
        raise Untidy(complaints)
    reports.check()
