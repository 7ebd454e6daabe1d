# SPDX-License-Identifier: MIT
"""The two ways requests reach the daemon: which runs, how it is chosen, and that nothing is lost."""

import os
import resource
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mounting
import numpy as np
import pytest
from mounting import (
    PROGRAM,
    is_alive,
    is_mounted,
    mounted,
    needs_mount,
    needs_root,
    npy,
    read_raw,
    unmount,
    wait_for,
)

zrecord = pytest.importorskip("zrecord")
pytestmark = needs_mount

ROWS = np.arange(200_000, dtype="<i4").reshape(500, 400)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("transport") / "store"
    with zrecord.Dense.create(path, "<i4", (400,)) as ds:
        ds.append(ROWS)
    return path


def check_all(m):
    assert all(read_raw(m / i) == npy(ROWS[i]) for i in range(len(ROWS)))


def test_the_mount_tests_run_over_both_transports(transport):
    reason = mounting.why_no_uring()
    if reason:
        pytest.skip(f"only the classic transport is tested: {reason}")
    assert os.environ.get("ZRECORD_TRANSPORT") or mounting.transports() == ["classic", "uring"]


def test_the_control_file_says_which_one_runs(store, tmp_path, transport):
    with mounted(store, tmp_path / "m") as m:
        check_all(m)
        status = m.status()
        assert status["transport"] == status["options"]["transport"] == transport
        hint = status["transport_hint"]
        assert ("enable_uring" in hint) == (transport == "classic")


def test_auto_takes_io_uring_where_it_is_offered(store, tmp_path, transport):
    with mounted(store, tmp_path / "m", "--transport=auto") as m:
        check_all(m)
        status = m.status()
        assert status["options"]["transport"] == "auto" and m.log.count("\n") <= 1, m.log
        if transport == "uring":
            assert status["transport"] == "uring"
        elif not mounting.ENABLE_URING.exists() or mounting.ENABLE_URING.read_text().strip() == "N":
            assert status["transport"] == "classic"


def test_io_uring_asked_for_and_not_offered_is_an_error_with_the_advice(store, tmp_path, transport):
    if transport == "uring" or mounting.ENABLE_URING.exists() and mounting.ENABLE_URING.read_text().strip() == "Y":
        return  # it is offered
    (tmp_path / "m").mkdir()
    done = subprocess.run([PROGRAM, "-o", "transport=uring", store, tmp_path / "m"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "does not offer" in done.stderr and "enable_uring" in done.stderr and "6.14" in done.stderr
    assert not is_mounted(tmp_path / "m")


def test_a_wrong_transport_is_wrong_usage(store, tmp_path):
    for option in ("transport=fast", "transport", "transport="):
        done = subprocess.run([PROGRAM, "-o", option, store, tmp_path], capture_output=True, text=True)
        assert done.returncode == 2 and "--help" in done.stderr


def test_a_process_that_may_have_no_rings_falls_back(store, tmp_path, transport):
    """With too few descriptors for the rings, auto goes on over /dev/fuse."""
    (tmp_path / "m").mkdir()
    seen = set()
    for limit in range(8, 24):
        done = subprocess.run(
            [PROGRAM, store, tmp_path / "m"], capture_output=True, text=True,
            preexec_fn=lambda most=limit: resource.setrlimit(resource.RLIMIT_NOFILE, (most, most)),
        )  # fmt: skip
        if done.returncode:
            assert done.stderr and not is_mounted(tmp_path / "m")
            continue
        try:
            m = mounting.Mount(tmp_path / "m", None, None)
            check_all(m)
            seen.add(m.status()["transport"])
            pid = m.pid
        finally:
            assert unmount(tmp_path / "m").returncode == 0
        wait_for(lambda pid=pid: not is_alive(pid), what="the daemon's end")
    assert "classic" in seen
    assert transport == "classic" or seen == {"classic", "uring"}


@pytest.mark.parametrize("how", ["unmount", "kill", "term"])
def test_readers_never_hang_when_it_ends(store, tmp_path, how):
    """Processes in the middle of reading get an error or the right bytes, whatever ends the mount."""
    script = (
        "import os, sys\n"
        "try:\n"
        "    for i in range(500):\n"
        "        fd = os.open(f'{sys.argv[1]}/{i:08d}.npy', os.O_RDONLY)\n"
        "        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)\n"
        "        os.pread(fd, 4096, 0), os.close(fd)\n"
        "        print(i, flush=True) if i == 3 else None\n"
        "except OSError as error:\n"
        "    print(error.errno)\n"
    )
    expected = -signal.SIGKILL if how == "kill" else 0
    with mounted(store, tmp_path / "m", expected_code=expected) as m:
        readers = [
            subprocess.Popen(["python3", "-S", "-c", script, m.path], stdout=subprocess.PIPE) for _ in range(4)
        ]
        for reader in readers:
            reader.stdout.readline()
        if how == "unmount":
            unmount(m.path, lazy=True)
        else:
            m.process.send_signal(signal.SIGKILL if how == "kill" else signal.SIGTERM)
        m.process.wait(20)
        for reader in readers:
            reader.communicate(timeout=20)
            assert reader.returncode == 0
        while is_mounted(m.path):
            unmount(m.path, lazy=True)


@needs_root
def test_nobody_waits_for_a_thread_bound_to_another_cpu(store, tmp_path, transport):
    """A reader may be tied to any CPU, and the daemon to fewer than there are."""
    cpus = sorted(os.sched_getaffinity(0))
    (tmp_path / "m").mkdir()
    for some in ({cpus[0]}, {cpus[-1]}):
        done = subprocess.run(
            [PROGRAM, store, tmp_path / "m"], capture_output=True, text=True,
            preexec_fn=lambda mask=some: os.sched_setaffinity(0, mask),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        try:
            for cpu in cpus:
                os.sched_setaffinity(0, {cpu})
                for i in range(cpu, 500, len(cpus)):
                    assert read_raw(tmp_path / "m" / mounting.name_of(i)) == npy(ROWS[i])
        finally:
            os.sched_setaffinity(0, cpus)
            assert unmount(tmp_path / "m").returncode == 0


def test_only_threads_that_answer_are_bound_to_a_cpu_or_of_the_idle_class(store, tmp_path):
    """Others were started by one of those, and had its CPU and class: a marker's READ waited until
    all records before it were decoded on the reader's CPU, and a gather had one CPU."""
    with mounted(store, tmp_path / "m") as m:
        names = sorted(os.listdir(m.path))
        for name in names[:40]:
            read_raw(m / name)
        read_raw(m / ".views/at" / f"0:{len(names)}.npy")
        own = os.sched_getaffinity(0)
        seen = set()
        for task in os.listdir(f"/proc/{m.pid}/task"):
            name = Path(f"/proc/{m.pid}/task/{task}/comm").read_text().strip()
            seen.add(name)
            if name == "zrecordfs-serve":
                continue
            assert os.sched_getscheduler(int(task)) == os.SCHED_OTHER, name
            left_to_a_reader = 1 if name == "zrecordfs-ahead" and len(own) > 1 else 0
            assert len(os.sched_getaffinity(int(task))) >= len(own) - left_to_a_reader, name
        assert {"zrecordfs", "zrecordfs-serve", "zrecordfs-ahead"} <= seen
        assert len(own) == 1 or "zrecord" in seen, "the engine's workers are there from the beginning"


# ---------------------------------------------------------------- readers at once


@pytest.fixture
def connections(tmp_path):
    """The kernel's folder about its FUSE connections."""
    folder = tmp_path / "connections"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "fusectl", "none", folder], capture_output=True).returncode:
        pytest.skip("fusectl cannot be mounted here")
    yield folder
    subprocess.run(["umount", folder], check=True)


@needs_root
def test_readers_look_up_names_of_one_folder_at_once(store, tmp_path, transport, connections):
    """By default the kernel asks for one at a time: then two readers got less done than one."""
    with mounted(store, tmp_path / "m") as m, ThreadPoolExecutor(3) as pool:
        waiting = connections / str(os.minor(os.stat(m.path).st_dev)) / "waiting"
        m.process.send_signal(signal.SIGSTOP)
        try:
            sizes = [pool.submit(os.path.getsize, m / i) for i in range(3)]
            wait_for(lambda: int(waiting.read_text()) >= 3, what="asking for three names at once")
        finally:
            m.process.send_signal(signal.SIGCONT)
        assert [size.result() for size in sizes] == [len(npy(ROWS[0]))] * 3
