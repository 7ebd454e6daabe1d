# SPDX-License-Identifier: MIT
"""The programs people use on folders, run on a mount: all quiet and right, and no write succeeds."""

import errno
import os
import shutil
import subprocess
import sys
import time
import zipfile

import numpy as np
import pytest
from mounting import mounted, name_of, needs_mount, npy, program, read_raw

zrecord = pytest.importorskip("zrecord")
pytestmark = needs_mount

COUNT = 120


@pytest.fixture(scope="module")
def rows():
    rows = np.zeros((COUNT, 1000), "<i4")  # long runs of zeros tempt sparse copies
    rows[:, ::100] = np.arange(COUNT)[:, None]
    return rows


@pytest.fixture(scope="module")
def store(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("habits") / "store"
    with zrecord.Dense.create(path, rows.dtype, rows.shape[1:]) as ds:
        ds.append(rows)
    return path


@pytest.fixture
def m(store, tmp_path):
    with mounted(store, tmp_path / "m") as mount:
        yield mount


def run(*command, **kwargs):
    """Runs a program that has to succeed and say nothing on stderr; returns its stdout."""
    program(str(command[0]))
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=120, **kwargs)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def check_copy(folder, rows):
    assert sorted(os.listdir(folder)) == [name_of(i) for i in range(COUNT)]
    for i in range(COUNT):
        assert read_raw(folder / name_of(i)) == npy(rows[i])


# ---------------------------------------------------------------- copies


def test_tar_sparse_and_back(m, rows, tmp_path):
    run("tar", "-cSf", tmp_path / "a.tar", "-C", m.path, ".")
    (tmp_path / "out").mkdir()
    run("tar", "-xf", tmp_path / "a.tar", "-C", tmp_path / "out")
    check_copy(tmp_path / "out", rows)
    assert os.stat(tmp_path / "out" / name_of(3)).st_mtime == int(os.stat(m / 3).st_mtime)


@pytest.mark.parametrize("how", [["-r"], ["-a"], ["-a", "--sparse=always"], ["-r", "--reflink=auto"]])
def test_cp(m, rows, tmp_path, how):
    run("cp", *how, m.path, tmp_path / "out")
    check_copy(tmp_path / "out", rows)


def test_rsync_copies_once_whatever_the_time_zone(store, rows, tmp_path):
    with mounted(store, tmp_path / "m", scratch=tmp_path) as m:
        run("rsync", "-a", f"{m.path}/", tmp_path / "out/", env={**os.environ, "TZ": "America/New_York"})
    check_copy(tmp_path / "out", rows)
    os.environ["TZ"] = "Asia/Tokyo"
    try:
        with mounted(store, tmp_path / "m") as m:
            listed = run("rsync", "-ani", f"{m.path}/", tmp_path / "out/")
            assert listed == "", "a second run finds nothing to do"
    finally:
        del os.environ["TZ"]


def test_zip(m, rows, tmp_path):
    run("zip", "-q", "-r", tmp_path / "a.zip", ".", cwd=m.path)
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.testzip() is None
        assert archive.read(name_of(9)) == npy(rows[9])
        assert sum(not name.endswith("/") for name in archive.namelist()) == COUNT


def test_shutil_copytree(m, rows, tmp_path):
    shutil.copytree(m.path, tmp_path / "out")
    check_copy(tmp_path / "out", rows)
    os.chmod(tmp_path / "out", 0o755)


def test_cat_dd_head_tail_and_cmp(m, rows, tmp_path):
    whole = npy(rows[5])
    (tmp_path / "original.npy").write_bytes(whole)
    run("cmp", tmp_path / "original.npy", m / 5)
    for command in (["cat", m / 5], ["dd", f"if={m / 5}", "bs=777", "status=none"], ["head", "-c", "1000000", m / 5]):
        assert subprocess.run(list(map(str, command)), capture_output=True, check=True).stdout == whole
    tail = subprocess.run(["tail", "-c", "10", m / 5], capture_output=True, check=True).stdout
    assert tail == whole[-10:]


def test_direct_reads(m, rows, tmp_path):
    program("dd")
    got = subprocess.run(["dd", f"if={m / 6}", "iflag=direct", "bs=4096", "status=none"], capture_output=True)
    assert (got.returncode, got.stdout) == (0, npy(rows[6]))


# ---------------------------------------------------------------- looking


def test_find(m, rows):
    size = len(npy(rows[0]))
    assert len(run("find", m.path, "-type", "f").splitlines()) == COUNT
    assert len(run("find", m.path, "-name", "*7.npy", "-size", f"{size}c").splitlines()) == COUNT // 10
    assert run("find", m.path, "-type", "d").split() == [str(m.path)]
    assert run("find", m.path, "-empty") == "" and run("find", m.path, "-writable", "-type", "l") == ""
    assert len(run("find", m.path, "-type", "f", "-newermt", "2000-01-01", "-links", "1").splitlines()) == COUNT


def test_perl(m, rows):
    script = "opendir D, $ARGV[0]; my @n = grep { !/^\\./ } readdir D; printf '%d %d', scalar @n, -s \"$ARGV[0]/$n[0]\""
    assert run("perl", "-e", script, m.path) == f"{COUNT} {len(npy(rows[0]))}"
    walk = "use File::Find; my $s = 0; find(sub { -f and $s += -s }, $ARGV[0]); print $s"
    assert run("perl", "-e", walk, m.path) == str(COUNT * len(npy(rows[0])))


def test_ls(m):
    lines = run("ls", "-l", m.path).splitlines()
    assert len(lines) == COUNT + 1 and all(line.startswith("-r--r--r-- 1 ") for line in lines[1:])
    assert run("ls", m.path).split() == [name_of(i) for i in range(COUNT)]
    assert ".control" not in run("ls", "-a", m.path)


def test_md5sum_and_file(m, rows, tmp_path):
    originals = tmp_path / "originals"
    originals.mkdir()
    for i in range(COUNT):
        (originals / name_of(i)).write_bytes(npy(rows[i]))
    names = [name_of(i) for i in range(COUNT)]
    assert run("md5sum", *names, cwd=m.path) == run("md5sum", *names, cwd=originals)
    assert run("file", *names, cwd=m.path) == run("file", *names, cwd=originals)
    assert "NumPy" in run("file", m / 3)


def test_du_and_df_agree(m, rows, store):
    kib = int(run("du", "-sk", m.path).split()[0])
    apparent = int(run("du", "-sk", "--apparent-size", m.path).split()[0])
    assert kib > 0 and abs(kib - apparent) <= COUNT  # each file rounded up
    size, used, free = map(int, run("df", "-B1", "--output=size,used,avail", m.path).splitlines()[1].split())
    assert size == used > 0 and free == 0
    assert run("df", "--output=fstype,source", m.path).splitlines()[1].split() == ["fuse.zrecordfs", str(store)]


def test_xargs_in_parallel(m, rows, tmp_path):
    program("xargs")
    listed = run("find", m.path, "-type", "f", "-print0")
    summed = run("xargs", "-0", "-P", "8", "-n", "10", "md5sum", input=listed)
    assert len(summed.splitlines()) == COUNT


def test_grep_and_wc(m):
    assert run("grep", "-l", "NUMPY", "-r", m.path).count("\n") == COUNT
    assert run("wc", "-c", m / 0).split()[0] == str(os.stat(m / 0).st_size)


def test_inotify_and_locks_do_not_fail(m):
    import fcntl

    with open(m / 0, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        fcntl.lockf(file, fcntl.LOCK_SH)
        fcntl.lockf(file, fcntl.LOCK_UN)


# ---------------------------------------------------------------- loaders


def test_a_naive_loader_sees_records_only(m, rows):
    loaded = [np.load(m.path / name) for name in sorted(os.listdir(m.path))]
    assert np.array_equal(np.stack(loaded), rows)


def test_a_mapping_loader(m, rows):
    for i in range(0, COUNT, 10):
        array = np.load(m / i, mmap_mode="r")
        assert np.array_equal(array, rows[i])
        del array


def test_a_folder_scan_by_os_walk_and_scandir(m):
    (top, folders, files) = next(os.walk(m.path))
    assert folders == [] and len(files) == COUNT
    assert all(entry.is_file() and not entry.is_symlink() for entry in os.scandir(m.path))


def test_a_second_epoch_asks_nothing(m):
    np.load(m / 0)
    for _ in range(2):
        with m.counting() as delta:
            for i in range(COUNT):
                np.load(m / i)
    delta.pop("IOCTL", None)  # isatty, asked by Python itself before 3.14
    assert delta == {}


WORKER = """
import sys, numpy as np
folder, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
print(sum(int(np.load(f"{folder}/{i:08d}.npy").sum()) for i in range(first, first + count)))
"""


def test_worker_processes(m, rows):
    workers = [
        subprocess.Popen([sys.executable, "-c", WORKER, m.path, str(n * 30), "30"], stdout=subprocess.PIPE)
        for n in range(4)
    ]
    sums = [int(worker.communicate(timeout=60)[0]) for worker in workers]
    assert sum(sums) == int(rows.sum())


# ---------------------------------------------------------------- writes


WRITES = {
    "touch a record": ["touch", name_of(1)],
    "touch a new file": ["touch", "new"],
    "append": ["sh", "-c", f"echo x >> {name_of(1)}"],
    "create": ["sh", "-c", "echo x > new.npy"],
    "chmod": ["chmod", "600", name_of(1)],
    "chmod root": ["chmod", "755", "."],
    "chown": ["chown", "1:1", name_of(1)],
    "mv": ["mv", "-f", name_of(1), name_of(2)],
    "rm": ["rm", "-f", name_of(1)],
    "ln": ["ln", name_of(1), "link"],
    "ln -s": ["ln", "-s", name_of(1), "link"],
    "mkdir": ["mkdir", "folder"],
    "mkfifo": ["mkfifo", "pipe"],
    "truncate": ["truncate", "-s", "0", name_of(1)],
    "cp over": ["cp", "/dev/null", name_of(1)],
    "setfattr": [sys.executable, "-c", f"import os; os.setxattr('{name_of(1)}', 'user.a', b'b')"],
    "control": ["sh", "-c", "echo drop > .control"],
}


@pytest.mark.parametrize("what", WRITES)
def test_every_write_is_refused_as_read_only(m, rows, what):
    done = subprocess.run(WRITES[what], cwd=m.path, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    assert done.returncode != 0
    assert "Read-only file system" in done.stderr, done.stderr
    assert read_raw(m / 1) == npy(rows[1]) and len(os.listdir(m.path)) == COUNT


def test_system_calls_that_write_say_erofs(m):
    path = str(m / 1)
    calls = [
        lambda: os.open(path, os.O_WRONLY),
        lambda: os.open(path, os.O_RDWR),
        lambda: os.open(path, os.O_RDONLY | os.O_TRUNC),
        lambda: os.open(str(m / "new"), os.O_CREAT | os.O_WRONLY, 0o600),
        lambda: os.truncate(path, 0),
        lambda: os.utime(path),
        lambda: os.chmod(path, 0o600),
        lambda: os.unlink(path),
        lambda: os.rename(path, path + "x"),
        lambda: os.rename(path, str(m / 2)),
        lambda: os.link(path, path + "x"),
        lambda: os.symlink("x", path + "x"),
        lambda: os.mkdir(str(m / "folder")),
        lambda: os.mknod(str(m / "node")),
        lambda: os.setxattr(path, "user.a", b"b"),
    ]
    for call in calls:
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == errno.EROFS, call
    with m.counting() as delta:
        for call in calls:
            with pytest.raises(OSError):
                call()
    assert set(delta) <= {"LOOKUP", "OPEN", "FLUSH"}, "the kernel refuses writes without asking"
    assert not os.access(path, os.W_OK) or os.geteuid() == 0


def test_reading_changes_no_time(m, store):
    before = os.stat(m / 0)
    time.sleep(0.02)
    read_raw(m / 0)
    assert os.stat(m / 0) == before
