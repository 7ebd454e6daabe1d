# SPDX-License-Identifier: MIT
"""zrecord pack, unpack, archive-info, refresh-checksums, and archives given to verify and import."""

import contextlib
import fcntl
import json
import os
import pty
import re
import resource
import shutil
import signal
import struct
import subprocess
import tempfile
import termios
import threading
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import zrecord
from conftest import BUILD

TREE = {"image": np.arange(60, dtype=np.uint8).reshape(5, 4, 3), "n": {"x": np.arange(5.0)}, "e": np.zeros((5, 0))}


@pytest.fixture
def archive(tmp_path, zrecord_tool):
    return zrecord.save_archive(TREE, tmp_path / "a.tdz", batch_size=5)


def test_unpack_and_pack_give_the_same_leaves(zrecord_tool, archive, tmp_path):
    assert zrecord_tool("unpack", archive, tmp_path / "dir").returncode == 0
    done = zrecord_tool("pack", tmp_path / "dir", tmp_path / "b.tdz")
    assert (done.returncode, done.stderr) == (0, "") and "b.tdz: " in done.stdout
    assert zipfile.ZipFile(tmp_path / "b.tdz").testzip() is None
    assert zipfile.ZipFile(tmp_path / "b.tdz").namelist() == zipfile.ZipFile(archive).namelist()
    assert np.array_equal(zrecord.load_archive(tmp_path / "b.tdz")["n", "x"], TREE["n"]["x"])


@pytest.mark.parametrize("how", ["stored", "deflate", "bzip2", "lzma"])
def test_pack_compresses_on_request(zrecord_tool, archive, tmp_path, how):
    zrecord_tool("unpack", archive, tmp_path / "dir")
    assert zrecord_tool("pack", tmp_path / "dir", tmp_path / "b.tdz", "--compression", how, "-q").returncode == 0
    info = json.loads(zrecord_tool("archive-info", "--json", tmp_path / "b.tdz").stdout)
    assert {leaf["method"] for leaf in info["leaves"] if leaf["bytes"]} == {how}
    assert info["write_through"] == (how == "stored")
    assert zrecord_tool("verify", tmp_path / "b.tdz").stdout.endswith("all good\n")


def test_stores_that_would_collide_are_not_packed(zrecord_tool, tmp_path):
    """The leaf of store "a" would be the file a.memmap, and "a.memmap/b" lies below that."""
    for name in ("a", "a.memmap/b"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        with zrecord.Dense.create(tmp_path / "in" / name, np.dtype("i4"), (3,)) as store:
            store.append(np.zeros((4, 3), np.int32))
    done = zrecord_tool("pack", tmp_path / "in", tmp_path / "b.tdz")
    assert done.returncode == 1 and "b.tdz: member a.memmap/meta.json lies below another one, a.memmap" in done.stderr
    assert os.listdir(tmp_path) == ["in"]


def test_pack_replaces_only_when_told(zrecord_tool, archive, tmp_path):
    zrecord_tool("unpack", archive, tmp_path / "dir")
    done = zrecord_tool("pack", tmp_path / "dir", archive)
    assert done.returncode == 1 and "exists" in done.stderr
    assert zrecord_tool("pack", "-f", tmp_path / "dir", archive).returncode == 0


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["pack", "dir"], "too few"),
        (["pack", "dir", "f", "--compression", "rar"], "rar"),
        (["pack", "dir", "f", "--level", "3"], "--compression"),
        (["pack", "dir", "f", "--level", "13"], "--level"),
        (["unpack", "f"], "too few"),
        (["archive-info"], "too few"),
        (["refresh-checksums", "a", "b"], "too many"),
    ],
)
def test_wrong_usage(zrecord_tool, args, word):
    done = zrecord_tool(*args)
    assert done.returncode == 2 and word in done.stderr and done.stdout == ""


def test_what_is_no_archive_is_said(zrecord_tool, tmp_path):
    (tmp_path / "f").write_text("text")
    for command in (["unpack", tmp_path / "f", tmp_path / "d"], ["archive-info", tmp_path / "f"],
                    ["refresh-checksums", tmp_path / "f"], ["verify", tmp_path / "f"]):
        done = zrecord_tool(*command)
        assert done.returncode == 1 and "not a zip" in done.stderr, command
    assert os.listdir(tmp_path) == ["f"]
    done = zrecord_tool("pack", tmp_path, tmp_path.parent / "never.tdz")
    assert done.returncode == 1 and "meta.json" in done.stderr


def test_archive_info(zrecord_tool, archive):
    text = zrecord_tool("archive-info", archive).stdout
    assert "batch size (5,)" in text and "n/x" in text and "float64" in text
    info = json.loads(zrecord_tool("archive-info", "--json", archive).stdout)
    assert info["batch_size"] == [5] and info["kind"] == "tensordict" and info["write_through"]
    leaves = {leaf["path"]: leaf for leaf in info["leaves"]}
    assert leaves["image"]["shape"] == [5, 4, 3] and leaves["image"]["offset"] % 64 == 0
    assert leaves["e"]["method"] == "none" and leaves["e"]["offset"] is None


def test_verify_names_the_member_and_refresh_mends(zrecord_tool, archive):
    zrecord.load_archive(archive, mode="r+")["image"][:] = 1
    done = zrecord_tool("verify", archive)
    assert done.returncode == 1 and "image.memmap" in done.stderr and "1 fault" in done.stdout
    assert zrecord_tool("refresh-checksums", archive).returncode == 0
    assert zrecord_tool("verify", archive).returncode == 0
    assert zipfile.ZipFile(archive).testzip() is None


def test_import_makes_a_store_of_each_leaf(zrecord_tool, tmp_path):
    tree = {key: value for key, value in TREE.items() if key != "e"}
    for compression in (None, "deflate"):
        path = zrecord.save_archive(tree, tmp_path / "a.tdz", compression=compression)
        out = tmp_path / f"stores{compression}"
        done = zrecord_tool("import", path, out)
        assert (done.returncode, done.stderr) == (0, ""), done
        assert np.array_equal(zrecord.open(out / "image")[:], TREE["image"])
        assert np.array_equal(zrecord.open(out / "n" / "x")[:], TREE["n"]["x"])
    done = zrecord_tool("pack", out, tmp_path / "back.tdz")
    assert (done.returncode, done.stderr) == (0, ""), done
    back = zrecord.load_archive(tmp_path / "back.tdz")
    assert np.array_equal(back["image"], TREE["image"]) and back.batch_size == (5,)


def test_import_refuses_leaves_that_are_no_records(zrecord_tool, archive, tmp_path):
    done = zrecord_tool("import", archive, tmp_path / "out")
    assert done.returncode == 1 and "leaf e: has no elements" in done.stderr
    path = zrecord.save_archive({"a": np.zeros(3), "b": np.zeros(4)}, tmp_path / "b.tdz")
    done = zrecord_tool("import", path, tmp_path / "out")
    assert done.returncode == 1 and "first dimension" in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["a.tdz", "b.tdz"]


# ---------------------------------------------------------------- while it works


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """An archive and its directory that take a while, and one whose checksums do."""
    folder = tmp_path_factory.mktemp("work")
    tree = {f"leaf{i}": np.random.default_rng(i).random(1 << 17) for i in range(128)}
    zrecord.save_archive(tree, folder / "a.tdz")
    few = {key: tree[key] for key in list(tree)[:40]}
    zrecord.unpack_memmap(zrecord.save_archive(few, folder / "few.tdz"), folder / "dir")
    like = zrecord.memmap_like({f"x{i}": ((64 << 20,), "u1") for i in range(32)}, folder / "holes.tdz")
    like["x0"][0] = 1
    return folder


COMMANDS = {
    "pack": ["pack", "dir", "b.tdz", "--compression", "deflate"],
    "unpack": ["unpack", "a.tdz", "out"],
    "refresh": ["refresh-checksums", "holes.tdz"],
}


def has_begun(pid, folder):
    """Whether it has a file without a name yet, a folder of its own, or has read a lot."""
    try:
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                name = os.readlink(entry.path)
                if name.startswith(str(folder)) and (name.endswith(" (deleted)") or ".zrecord-" in name):
                    return True
        with open(f"/proc/{pid}/io") as io:
            return int(io.readline().split()[1]) > 300 << 20
    except (FileNotFoundError, PermissionError):  # ended
        return False


class Terminal:
    """The other end of a terminal of 80 columns; a thread takes what is written to it."""

    def __init__(self):
        self.end, self.theirs = pty.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.text = b""
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        try:
            while data := os.read(self.end, 4096):
                self.text += data
        except OSError:  # the last writer is gone
            pass

    def close(self):
        """What was written to it, once the last writer is gone."""
        os.close(self.theirs)
        self.reader.join(60)
        os.close(self.end)
        return self.text.decode()


def hear_signals():
    """Also where these tests run under nohup, whose children ignore SIGHUP."""
    for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(sig, signal.SIG_DFL)


def pause_in_the_middle(arguments, folder, terminal=False):
    """The tool, stopped once it has begun its work, and its terminal or stderr; begun anew when it
    was faster than that."""
    for _ in range(20):
        screen = Terminal() if terminal else None
        process = subprocess.Popen(
            [BUILD / "zrecord", *arguments],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=screen.theirs if terminal else subprocess.PIPE,
            text=True,
            preexec_fn=hear_signals,
        )
        ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while not os.waitid(os.P_PID, process.pid, ended) and not has_begun(process.pid, folder):
            pass
        os.kill(process.pid, signal.SIGSTOP)
        if os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT).si_code == os.CLD_STOPPED:
            return process, screen
        finish(process, screen, folder)
    pytest.fail(f"{arguments} was never seen at work")


def finish(process, screen, folder):
    """What it wrote to its terminal or stderr; what it made is removed."""
    process.send_signal(signal.SIGCONT)
    text = process.communicate(timeout=120)[1]
    shutil.rmtree(folder / "out", ignore_errors=True)
    (folder / "b.tdz").unlink(missing_ok=True)
    return screen.close() if screen else text


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_command_leaves_nothing(zrecord_tool, work, command, sig):
    """It ends by the signal, which a shell calls 130 for Ctrl-C, after saying what that means."""
    before = sorted(os.listdir(work))
    process, _ = pause_in_the_middle(COMMANDS[command], work)
    process.send_signal(sig)
    process.send_signal(signal.SIGCONT)
    message = process.communicate(timeout=120)[1]
    assert process.returncode == -sig and sorted(os.listdir(work)) == before
    assert message.startswith("zrecord: ") and "interrupted" in message and message.count("\n") == 1
    assert ("nothing was made" in message) == (command != "refresh")


@pytest.mark.parametrize("compression", ["bzip2", "lzma"])
def test_an_import_is_interrupted_inside_a_leaf(tmp_path, compression):
    """Its last bytes, which contradict the checksum, are never reached."""
    path = zrecord.save_archive(
        {"x": np.zeros((8 << 20, 16), np.uint8)}, tmp_path / "a.tdz", compression=compression
    )
    with zipfile.ZipFile(path) as z:
        crc = struct.pack("<I", z.getinfo("x.memmap").CRC)
    path.write_bytes(path.read_bytes().replace(crc, bytes(4)))
    process = subprocess.Popen(
        [BUILD / "zrecord", "import", path, tmp_path / "out"],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear_signals,
    )
    while len(os.listdir(tmp_path)) == 1 and process.poll() is None:
        pass
    process.send_signal(signal.SIGINT)
    message = process.communicate(timeout=120)[1]
    assert process.returncode == -signal.SIGINT and os.listdir(tmp_path) == ["a.tdz"]
    assert "nothing was made" in message and "CRC" not in message


@pytest.mark.parametrize("command", ["pack", "unpack"])
def test_a_limit_on_the_size_of_files_is_an_error_that_leaves_nothing(zrecord_tool, work, command):
    """ulimit -f sends SIGXFSZ, which would end the process with what it had begun still there."""
    before = sorted(os.listdir(work))

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it, and children inherit that

    ran = subprocess.run(
        [BUILD / "zrecord", *COMMANDS[command]],
        cwd=work,
        capture_output=True,
        text=True,
        preexec_fn=limit,
    )
    assert ran.returncode == 1 and "File too large" in ran.stderr and sorted(os.listdir(work)) == before


def test_checksums_are_refreshed_after_an_interruption(zrecord_tool, work):
    """Some are new by then, none is torn: the next run finishes."""
    process, _ = pause_in_the_middle(COMMANDS["refresh"], work)
    process.send_signal(signal.SIGINT)
    finish(process, None, work)
    assert zrecord_tool("refresh-checksums", work / "holes.tdz").returncode == 0
    assert zrecord_tool("verify", work / "holes.tdz").returncode == 0


def finish_late(process, screen, folder):
    """A progress bar waits a tenth of a second before it appears."""
    time.sleep(0.15)
    text = finish(process, screen, folder)
    assert process.returncode == 0
    return text


@pytest.mark.parametrize("command", COMMANDS)
def test_progress_on_a_terminal(zrecord_tool, work, command):
    """A line that is drawn over itself, with a share that grows, and erased at the end."""
    text = finish_late(*pause_in_the_middle(COMMANDS[command], work, terminal=True), work)
    before, *lines, after = text.split("\r\033[K")
    assert (before, after) == ("", "") and lines, text
    bars = [re.fullmatch(rf"{command} \[#*\.*\] +(\d+)% \d+ s left", line) for line in lines]
    assert all(bars), text
    shares = [int(bar[1]) for bar in bars]
    assert shares == sorted(shares) and shares[-1] <= 100 and max(map(len, lines)) < 80


@pytest.mark.parametrize("command", COMMANDS)
def test_no_progress_without_a_terminal_or_with_quiet(zrecord_tool, work, command):
    assert finish_late(*pause_in_the_middle(COMMANDS[command], work), work) == ""
    quiet = [*COMMANDS[command], "--quiet"]
    assert finish_late(*pause_in_the_middle(quiet, work, terminal=True), work) == ""


def test_an_interrupted_command_erases_its_progress(zrecord_tool, work):
    process, screen = pause_in_the_middle(COMMANDS["pack"], work, terminal=True)
    process.send_signal(signal.SIGINT)
    *bars, message = finish(process, screen, work).split("\r\033[K")
    assert process.returncode == -signal.SIGINT and "\n" not in "".join(bars)
    assert message == "zrecord: pack: b.tdz: interrupted, nothing was made\r\n"


# ---------------------------------------------------------------- messages


def test_messages_name_the_archive_and_what_was_expected(zrecord_tool, tmp_path):
    np.save(tmp_path / "a.npy", np.arange(100))
    done = zrecord_tool("verify", tmp_path / "a.npy")
    assert done.returncode and "not a zip archive" in done.stderr
    assert "store (a directory) or a memmap archive (.tdz)" in done.stderr
    zrecord.save_archive({"name": "text"}, tmp_path / "empty.tdz")
    zrecord.save_archive({"x": np.float32(1)}, tmp_path / "scalar.tdz")
    for name, why in (("empty.tdz", "an archive without leaves"), ("scalar.tdz", "leaf x: has no first dimension")):
        done = zrecord_tool("import", tmp_path / name, tmp_path / "out")
        assert done.returncode and f"{name}: {why}" in done.stderr, done.stderr
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("source,hint", [
    ("store", "is a store: what is packed is the folder that holds it"),
    ("empty", "what is packed is a memmap directory or a folder of stores"),
    ("a.npy", "what is packed is a memmap directory or a folder of stores"),
])
def test_pack_says_what_it_takes(zrecord_tool, tmp_path, monkeypatch, source, hint):
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", np.arange(6))
    os.mkdir("empty")
    assert zrecord_tool("import", "-q", "a.npy", "store").returncode == 0
    done = zrecord_tool("pack", source, "x.tdz")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"zrecord: pack: {source}: {hint}"
    assert not os.path.exists("x.tdz")


def test_import_of_a_cut_archive_speaks_of_archives(zrecord_tool, archive, tmp_path):
    cut = tmp_path / "cut.tdz"
    for size in 0, 100, os.path.getsize(archive) - 30:
        cut.write_bytes(archive.read_bytes()[:size])
        done = zrecord_tool("import", cut, tmp_path / "x")
        assert done.returncode == 1
        assert f"{cut}: not a zip archive (.tdz)" in done.stderr and ".npy" not in done.stderr
        assert not os.path.exists(tmp_path / "x")


def test_unpack_names_a_folder_that_it_cannot_write(zrecord_tool, archive, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = zrecord_tool("unpack", archive, "")
    assert (done.returncode, done.stderr) == (1, "zrecord: unpack: '': No such file or directory\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed")
def test_unpack_without_permission(archive):
    with tempfile.TemporaryDirectory(prefix="zrecord-unpack-") as name:
        folder = Path(name)
        shutil.copy(archive, folder / "a.tdz")
        shutil.copy(BUILD / "zrecord", folder / "zrecord")
        (folder / "rod").mkdir()
        folder.chmod(0o755)
        for target in ("rod", "rod/x", "rod/x/"):
            done = subprocess.run(
                ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "./zrecord", "unpack", "a.tdz", target],
                cwd=folder, env={**os.environ, "LC_ALL": "C"}, capture_output=True, text=True,
            )  # fmt: skip
            assert (done.returncode, done.stderr) == (1, f"zrecord: unpack: {target}: cannot write: Permission denied\n")


def test_unpack_refuses_a_store(zrecord_tool, archive, tmp_path):
    zrecord.Dense.create(tmp_path / "s", "<i4", (2,)).close()
    before = sorted(os.listdir(tmp_path / "s"))
    done = zrecord_tool("unpack", archive, tmp_path / "s")
    assert done.returncode == 1 and f"{tmp_path}/s: is a store" in done.stderr
    with pytest.raises(FileExistsError):
        zrecord.unpack_memmap(archive, tmp_path / "s")
    assert sorted(os.listdir(tmp_path / "s")) == before
    zrecord.Dense.open(tmp_path / "s").close()


def test_a_subpath_that_is_not_there(archive):
    with pytest.raises(zrecord.ZrecordError, match="there is no 'nope' at its root"):
        zrecord.load_archive(archive, subpath="nope")
