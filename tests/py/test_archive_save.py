# SPDX-License-Identifier: MIT
"""What save_archive meets: odd keys and trees, things in the way, other savers, full disks."""

import errno
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

import zrecord
from zrecord.archive import NestedArray, ValueDict
from zrecord.errors import ZrecordError

X = np.arange(3)


def nested_array():
    return NestedArray(np.arange(6.0), np.array([[2], [4]]))


def refuse(tree, tmp_path, match, error=ValueError, save=zrecord.save_archive):
    """Refused in words, in a line, and nothing is there afterwards."""
    with pytest.raises(error, match=match) as caught:
        save(tree, tmp_path / "a.tdz")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 200
    assert os.listdir(tmp_path) == []


# ---------------------------------------------------------------- keys

ODD_KEYS = {
    "empty": "",
    "dot": ".",
    "dots": "..",
    "three dots": "...",
    "slash": "a/b",
    "only slash": "/",
    "up": "../../a",
    "backslash": "a\\b",
    "space": " ",
    "percent": "%2F",
    "quote": '"',
    "control": "a\x01\x7f\n",
    "zero": "a\0b",
    "accents": "é",
    "decomposed": "e\u0301",
    "chinese": "中文",
    "emoji": "👩‍🔬",
    "noncharacter": "\ufdd0\uffff\U0010ffff",
    "right to left": "\u202etxt",
    "name of a leaf": "x.memmap",
    "meta.json": "meta.json",
    "pickle": "other.pickle",
    "_tensordict": "_tensordict",
    "_source": "_source",
    "0": "0",
    "long": "k" * 10_000,
    "long and odd": " é" * 5_000,
}


@pytest.mark.parametrize("key", ODD_KEYS.values(), ids=ODD_KEYS)
@pytest.mark.parametrize("torch", [False, True])
def test_odd_keys_come_back(tmp_path, key, torch):
    """As a leaf, as a value, as a level with the same key inside; all other tools accept the file."""
    if torch:
        pytest.importorskip("torch")
    level = {key: {"x": X}} if key != "meta.json" else {}
    tree = {"leaf": {key: X}, "level": level, "value": {key: [1]} if level else {}, "both": {"": {key: X}}}
    path = zrecord.save_archive(tree, tmp_path / "a.tdz")
    loaded = zrecord.load_archive(path, torch=torch)
    assert loaded["leaf"][key].tolist() == loaded["both"][""][key].tolist() == X.tolist()
    if level:
        assert loaded["level"][key]["x"].tolist() == X.tolist() and loaded["value"][key] == [1]
    if "\0" not in key:
        assert zrecord.load_archive(path, subpath=("leaf", key)).tolist() == X.tolist()
    assert {tuple(k) for k, _ in loaded.leaves()} >= {("leaf", key), ("both", "", key)}
    assert zipfile.ZipFile(path).testzip() is None
    for name in zipfile.ZipFile(path).namelist():
        assert not name.startswith("/") and ".." not in name.split("/") and "" not in name.split("/")
    if len(key) < 1000:
        zrecord.unpack_memmap(path, tmp_path / "dir")
        again = zrecord.load_archive(zrecord.pack_memmap(tmp_path / "dir", tmp_path / "b.tdz"))
        assert again["leaf"][key].tolist() == X.tolist()


def test_all_odd_keys_at_once(tmp_path):
    tree = {key: np.full(2, i) for i, key in enumerate(ODD_KEYS.values())}
    loaded = zrecord.load_archive(zrecord.save_archive(tree, tmp_path / "a.tdz"))
    assert list(loaded) == list(tree)
    for key, value in tree.items():
        assert loaded[key].tolist() == value.tolist()


def test_a_key_longer_than_a_zip_takes(tmp_path):
    refuse({"k" * 65_530: X}, tmp_path, "name has 65537 bytes, a zip takes 65535", ZrecordError)
    refuse({"l": {" " * 22_000: X}}, tmp_path, "name has 66009 bytes", ZrecordError)


@pytest.mark.parametrize("key", ["\ud800", "a\udfff", "\udc80b"])
def test_halves_of_surrogate_pairs_are_no_keys(tmp_path, key):
    for tree in ({key: X}, {"l": {key: {}}}, {"l": {key: "value"}}):
        refuse(tree, tmp_path, r"key '.*\\u.*': half of a surrogate pair")


COLLISIONS = {
    "leaf and level": (
        {"a": X, "a.memmap": {"y": X}},
        "'a.memmap' would be the folder of a key and the file of a leaf",
    ),
    "leaf and value": ({"a": X, "a.memmap": "text"}, "'a.memmap'"),
    "level before leaf": ({"a.memmap": {}, "a": X}, "'a.memmap'"),
    "odd key": ({"l": {"a b": X, "a b.memmap": {}}}, "'l/a%20b.memmap'"),
    "level meta.json": (
        {"meta.json": {"y": X}},
        "'meta.json' would be the folder of a key and the level's description",
    ),
    "value meta.json": ({"l": {"meta.json": 3}}, "'l/meta.json'"),
    "stack meta.json": ({"meta.json": zrecord.archive.ArchiveStack()}, "'meta.json'"),
    "shapes and leaf": (
        {"n": nested_array(), "n.shape": X},
        "'n.shape.memmap' would be the file of a leaf and of the shapes of another",
    ),
    "shapes and nested": ({"n.shape": nested_array(), "n": nested_array()}, "'n.shape.memmap'"),
    "shapes and level": ({"n": nested_array(), "n.shape.memmap": {}}, "'n.shape.memmap'"),
}


@pytest.mark.parametrize("name", COLLISIONS)
def test_keys_that_need_one_name_are_refused(tmp_path, name):
    tree, match = COLLISIONS[name]
    refuse(tree, tmp_path, match)
    if "nested" not in name and "shapes" not in name:
        refuse(tree, tmp_path, match, save=zrecord.memmap_like)


def test_keys_that_only_look_alike_are_fine(tmp_path):
    tree = {"a": {"y": X}, "a.memmap": X, "meta.json.memmap": X, "meta.json": X, "n.shape": {"z": X}}
    tree["n"] = nested_array()
    path = zrecord.save_archive(tree, tmp_path / "a.tdz")
    assert list(zrecord.load_archive(path)) == list(tree)
    zrecord.unpack_memmap(path, tmp_path / "dir")


def test_leaves_without_elements_need_no_name(tmp_path):
    path = zrecord.save_archive({"a": X[:0], "a.memmap": {"y": X}}, tmp_path / "a.tdz")
    loaded = zrecord.load_archive(path)
    assert loaded["a"].shape == (0,) and loaded["a.memmap"]["y"].tolist() == X.tolist()


# ---------------------------------------------------------------- trees


def chain(count):
    """That many dicts inside each other, and the last one."""
    outer = inner = {}
    for _ in range(count - 1):
        inner["k"] = {}
        inner = inner["k"]
    return outer, inner


def test_deep_trees_come_back(tmp_path):
    outer, inner = chain(1023)
    inner["x"] = X
    tree = zrecord.load_archive(zrecord.save_archive(outer, tmp_path / "a.tdz"))
    ((key, leaf),) = tree.leaves()
    assert key == ("k",) * 1022 + ("x",) and leaf.tolist() == X.tolist()
    assert zrecord.load_archive(tmp_path / "a.tdz", subpath=key).tolist() == X.tolist()
    assert zrecord.verify_archive(tmp_path / "a.tdz").ok


def test_deeper_trees_are_refused_with_the_limit(tmp_path):
    outer, inner = chain(1025)
    refuse(outer, tmp_path, r"level '(k/){29}.*\.\.\.' is below 1024 others, which is the limit")
    refuse(outer, tmp_path, "which is the limit", save=zrecord.memmap_like)


def test_trees_that_hold_themselves_are_refused(tmp_path):
    outer, inner = chain(3)
    inner["again"] = outer
    refuse(outer, tmp_path, "level 'k/k/again' is the root again")
    inner["again"] = outer["k"]
    refuse(outer, tmp_path, "level 'k/k/again' is 'k' again")
    twice = {"x": X}
    zrecord.save_archive({"a": twice, "b": {"c": twice}}, tmp_path / "a.tdz")  # no circle


def test_values_that_hold_themselves_are_refused(tmp_path):
    values, mapping, deep = [], ValueDict(), []
    values.append(values)
    mapping["m"] = mapping
    for _ in range(100_000):
        deep = [deep]
    for value in (values, mapping, [mapping], deep):
        refuse({"l": {"v": value}}, tmp_path, "l/v: is nested too deeply for JSON, or holds itself")


# ---------------------------------------------------------------- threads


def tree_of_all_sizes():
    rng = np.random.default_rng(3)
    tree = {f"small{i}": rng.integers(0, 99, i, np.uint8) for i in range(200)}
    tree["large"] = rng.random(1 << 20)
    tree["odd"] = rng.integers(0, 255, (9 << 20) + 1, np.uint8)
    tree["level"] = {"zeros": np.zeros(1 << 20), "strided": rng.random((1 << 10, 256)).T, "text": "x" * 300_000}
    return tree


@pytest.mark.parametrize("compression", [None, "deflate"])
def test_any_number_of_threads_writes_the_same_bytes(tmp_path, compression):
    """Headers, payloads and CRCs go to places known beforehand, whoever writes them."""
    tree = tree_of_all_sizes()
    data = set()
    for threads in (1, 2, 8):
        path = zrecord.save_archive(tree, tmp_path / "a.tdz", num_threads=threads, compression=compression)
        data.add(without_times(path))
    assert len(data) == 1
    with zipfile.ZipFile(path) as z:
        assert z.testzip() is None  # reads and compares each member with its CRC-32
        assert z.getinfo("large.memmap").CRC == zlib.crc32(tree["large"].tobytes())
        assert z.getinfo("odd.memmap").CRC == zlib.crc32(tree["odd"].tobytes())


def without_times(path):
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as z:
        at = z.start_dir
        for info in z.infolist():
            data[info.header_offset + 10 : info.header_offset + 14] = bytes(4)
            data[at + 12 : at + 16] = bytes(4)
            at += 46 + len(info.orig_filename.encode()) + len(info.extra) + len(info.comment)
    return bytes(data)


def test_preallocated_archives_are_the_same_by_any_number_of_threads(tmp_path):
    """Zeros that were written, and zeros that are a hole with a CRC by arithmetic."""
    zrecord.save_archive({"x": np.zeros(1 << 20), "y": np.zeros(5)}, tmp_path / "a.tdz")
    zrecord.memmap_like({"x": ((1 << 20,), "f8"), "y": ((5,), "f8")}, tmp_path / "b.tdz")
    assert without_times(tmp_path / "a.tdz") == without_times(tmp_path / "b.tdz")


SAVER = """
import sys, numpy as np, zrecord
path, number = sys.argv[1], int(sys.argv[2])
tree = {f"x{i}": np.full(1 << 17, number) for i in range(8)}
print("ready", flush=True)
sys.stdin.readline()
for _ in range(20):
    zrecord.save_archive(tree, path)
"""


@pytest.mark.parametrize("count", [2, 4])
def test_savers_to_one_path_replace_each_other_as_a_whole(tmp_path, count):
    path = tmp_path / "a.tdz"
    savers = [
        subprocess.Popen(
            [sys.executable, "-c", SAVER, path, str(i)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for i in range(count)
    ]
    for saver in savers:
        assert saver.stdout.readline() == "ready\n"
    for saver in savers:
        saver.stdin.write("go\n")
        saver.stdin.flush()
    looks = 0
    while looks == 0 or any(saver.poll() is None for saver in savers):
        if not path.exists():
            continue
        tree = zrecord.load_archive(path, checksums=True)
        found = {int(number) for _, leaf in tree.leaves() for number in np.unique(leaf)}
        assert len(tree) == 8 and len(found) == 1 and found <= set(range(count))
        looks += 1
    assert [saver.wait(60) for saver in savers] == [0] * count
    assert os.listdir(tmp_path) == ["a.tdz"] and zrecord.verify_archive(path).ok


@pytest.mark.parametrize("count", [2, 4])
def test_threads_that_save_to_one_path(tmp_path, count):
    path, failures = tmp_path / "a.tdz", []

    def save(number):
        try:
            for _ in range(10):
                zrecord.save_archive({f"x{i}": np.full(1 << 15, number) for i in range(8)}, path)
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=save, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and os.listdir(tmp_path) == ["a.tdz"]
    tree = zrecord.load_archive(path, checksums=True)
    assert len({leaf[0] for _, leaf in tree.leaves()}) == 1


def test_only_one_saver_may_make_a_new_file(tmp_path):
    """existsok=False: the others fail, also when the file appears while they write."""
    path, outcomes = tmp_path / "a.tdz", []
    barrier = threading.Barrier(4)

    def save(number):
        tree = {"x": np.full(1 << 18, number)}
        barrier.wait()
        try:
            zrecord.save_archive(tree, path, existsok=False)
            outcomes.append(number)
        except FileExistsError:
            outcomes.append(None)

    threads = [threading.Thread(target=save, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [number for number in outcomes if number is not None]
    assert len(outcomes) == 4 and (zrecord.load_archive(path)["x"] == winner).all()
    assert os.listdir(tmp_path) == ["a.tdz"]


# ---------------------------------------------------------------- onto itself


@pytest.mark.parametrize("mode", ["r", "r+"])
@pytest.mark.parametrize("compression", [None, "deflate"])
def test_an_archive_is_saved_onto_itself(tmp_path, mode, compression):
    """The tree reads from the file that it replaces; it keeps what it has, the new file is whole."""
    rng = np.random.default_rng(5)
    tree = {"x": rng.random(1 << 19), "n": {"y": rng.integers(0, 99, 1000)}, "s": "text"}
    path = zrecord.save_archive(tree, tmp_path / "a.tdz")
    loaded = zrecord.load_archive(path, mode=mode)
    loaded["n"]["y"][:] = 7
    loaded["x"][5] = -1
    zrecord.save_archive(loaded, path, compression=compression)
    again = zrecord.load_archive(path, checksums=True)
    expected = tree["x"].copy()
    expected[5] = -1
    for seen in (again, loaded):
        assert np.array_equal(seen["x"], expected) and (seen["n"]["y"] == 7).all() and seen["s"] == "text"
    loaded["x"][:] = 3  # to the old file, which has no name any more
    assert np.array_equal(zrecord.load_archive(path)["x"], expected)
    assert os.listdir(tmp_path) == ["a.tdz"]


# ---------------------------------------------------------------- interrupted


@pytest.mark.parametrize("call", ["save", "pack", "unpack", "refresh", "verify"])
@pytest.mark.parametrize("when", ["begin", "middle", "end"])
def test_what_a_callback_raises_ends_the_work_and_nothing_is_made(tmp_path, call, when):
    """As Ctrl-C does, which is looked for at the same places."""
    tree = {f"x{i}": np.full(1 << 16, i) for i in range(40)}
    path = zrecord.save_archive(tree, tmp_path / "a.tdz")
    zrecord.unpack_memmap(path, tmp_path / "dir")
    calls = {
        "save": lambda progress: zrecord.save_archive(tree, tmp_path / "b.tdz", progress=progress),
        "pack": lambda progress: zrecord.pack_memmap(tmp_path / "dir", tmp_path / "b.tdz", progress=progress),
        "unpack": lambda progress: zrecord.unpack_memmap(path, tmp_path / "new", progress=progress),
        "refresh": lambda progress: zrecord.refresh_archive_checksums(path, progress=progress),
        "verify": lambda progress: zrecord.verify_archive(path, progress=progress),
    }
    before, seen = path.read_bytes(), []
    calls[call](lambda done, total: seen.append((done, total)))
    for name in ("b.tdz", "new"):
        shutil.rmtree(tmp_path / name) if (tmp_path / name).is_dir() else (tmp_path / name).unlink(missing_ok=True)
    assert seen == sorted(seen) and seen[-1][0] == seen[-1][1] > 0
    share = {"begin": 0, "middle": 1 / 2, "end": 1}[when]

    def interrupt(done, total):  # how many calls there are depends on time
        if done >= share * total:
            raise KeyboardInterrupt(when)

    with pytest.raises(KeyboardInterrupt, match=when):
        calls[call](interrupt)
    assert sorted(os.listdir(tmp_path)) == ["a.tdz", "dir"] and path.read_bytes() == before


# ---------------------------------------------------------------- things in the way


def test_a_directory_at_the_target(tmp_path):
    (tmp_path / "a.tdz").mkdir()
    (tmp_path / "a.tdz" / "mine").write_text("mine")
    for call in (zrecord.save_archive, zrecord.memmap_like):
        with pytest.raises(ValueError, match="a.tdz is a directory"):
            call({"x": X}, tmp_path / "a.tdz")
    zrecord.unpack_memmap(zrecord.save_archive({"x": X}, tmp_path / "b.tdz"), tmp_path / "dir")
    with pytest.raises(OSError, match="a.tdz: is a directory"):
        zrecord.pack_memmap(tmp_path / "dir", tmp_path / "a.tdz")
    assert os.listdir(tmp_path / "a.tdz") == ["mine"]
    assert sorted(os.listdir(tmp_path)) == ["a.tdz", "b.tdz", "dir"]


def test_a_file_where_a_folder_should_be(tmp_path):
    (tmp_path / "f").write_text("text")
    with pytest.raises(OSError):
        zrecord.save_archive({"x": X}, tmp_path / "f" / "a.tdz")
    zrecord.save_archive({"x": X}, tmp_path / "a.tdz")
    with pytest.raises(ZrecordError, match="f"):
        zrecord.unpack_memmap(tmp_path / "a.tdz", tmp_path / "f")
    assert (tmp_path / "f").read_text() == "text" and sorted(os.listdir(tmp_path)) == ["a.tdz", "f"]


def test_what_is_no_file_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "a.tdz")
    with pytest.raises(ZrecordError, match="no regular file"):
        zrecord.save_archive({"x": X}, tmp_path / "a.tdz")
    os.symlink("nowhere/a.tdz", tmp_path / "dangling")
    with pytest.raises(ZrecordError, match="dangling"):
        zrecord.save_archive({"x": X}, tmp_path / "dangling")
    assert sorted(os.listdir(tmp_path)) == ["a.tdz", "dangling"]


def as_nobody(code, *args):
    """Root may read and write everything, so as somebody else, once everything is imported."""
    drop = "os.setgid(65534); os.setuid(65534)\n" if os.geteuid() == 0 else ""
    code = f"import os, numpy as np, zrecord, zrecord.archive\n{drop}{code}"
    return subprocess.run([sys.executable, "-c", code, *map(str, args)], capture_output=True, text=True, timeout=60)


REPORT = """
import sys
try:
    {call}
except Exception as exc:
    print(type(exc).__name__, isinstance(exc, PermissionError), exc)
"""


@pytest.fixture
def public():
    """A folder that others can look into: pytest's are for their owner."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_sources_that_cannot_be_read(public):
    path = zrecord.save_archive({"x": X, "n": {"y": X}}, public / "a.tdz")
    zrecord.unpack_memmap(path, public / "dir")
    out = public / "out"
    out.mkdir()
    out.chmod(0o777)
    path.chmod(0)
    for call in ("zrecord.load_archive(sys.argv[1])", "zrecord.unpack_memmap(sys.argv[1], sys.argv[2] + '/new')"):
        done = as_nobody(REPORT.format(call=call), path, out)
        assert "True" in done.stdout and "a.tdz" in done.stdout, done
    for victim, name in (("n/y.memmap", "y.memmap"), ("n", "n"), ("meta.json", "meta.json")):
        mode = (public / "dir" / victim).stat().st_mode
        (public / "dir" / victim).chmod(0)
        call = "zrecord.pack_memmap(sys.argv[1], sys.argv[2] + '/b.tdz')"
        done = as_nobody(REPORT.format(call=call), public / "dir", out)
        assert "True" in done.stdout and name in done.stdout, done
        (public / "dir" / victim).chmod(mode)
    assert os.listdir(out) == []


def test_targets_that_cannot_be_written(public):
    (public / "kept").mkdir()
    path = zrecord.save_archive({"x": X}, public / "kept" / "a.tdz")
    path.chmod(0o444)
    calls = {
        "save": "zrecord.save_archive({'x': np.arange(9)}, sys.argv[1])",
        "new": "zrecord.save_archive({'x': np.arange(9)}, sys.argv[1] + 'new')",
        "like": "zrecord.memmap_like({'x': np.arange(9)}, sys.argv[1])",
        "r+": "zrecord.load_archive(sys.argv[1], mode='r+')",
        "refresh": "zrecord.refresh_archive_checksums(sys.argv[1])",
        "unpack": "zrecord.unpack_memmap(sys.argv[1], sys.argv[1] + '.dir')",
    }
    before = path.read_bytes()
    assert as_nobody("import sys; print(len(zrecord.load_archive(sys.argv[1])))", path).stdout == "1\n"
    for name, call in calls.items():
        done = as_nobody(REPORT.format(call=call), path)
        assert "True" in done.stdout and "a.tdz" in done.stdout, (name, done)
    assert path.read_bytes() == before and os.listdir(public / "kept") == ["a.tdz"]


@pytest.fixture
def small_disk(tmp_path):
    """A tmpfs of 4 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


@pytest.mark.parametrize("compression", [None, "deflate"])
@pytest.mark.parametrize("layout", ["large", "small"])
def test_a_full_disk_is_said_and_nothing_stays(small_disk, tmp_path, compression, layout):
    rng = np.random.default_rng(7)
    tree = {"x": rng.random(1 << 20)}
    if layout == "small":
        tree = {f"x{i}": rng.random(1 << 10) for i in range(1 << 10)}
    kept = zrecord.save_archive({"x": X}, small_disk / "a.tdz")
    before = kept.read_bytes()
    free = os.statvfs(small_disk).f_bfree
    with pytest.raises(OSError, match="a.tdz: cannot write") as caught:
        zrecord.save_archive(tree, kept, compression=compression)
    assert caught.value.errno == errno.ENOSPC
    whole = zrecord.save_archive(tree, tmp_path / "whole.tdz")
    zrecord.unpack_memmap(whole, tmp_path / "dir")
    with pytest.raises(OSError) as caught:
        zrecord.pack_memmap(tmp_path / "dir", small_disk / "b.tdz", compression=compression)
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(OSError) as caught:
        zrecord.unpack_memmap(whole, small_disk / "dir")
    assert caught.value.errno == errno.ENOSPC
    assert kept.read_bytes() == before and os.listdir(small_disk) == ["a.tdz"]
    assert os.statvfs(small_disk).f_bfree == free
    zrecord.save_archive({"x": np.arange(1000)}, kept)  # there is room again
    assert zrecord.verify_archive(kept).ok


def test_a_negative_shape_writes_no_archive(tmp_path):
    zrecord.save_archive({"x": np.arange(3)}, tmp_path / "a.tdz")
    for shape in (-3,), (-3, -2), (2, -1):
        with pytest.raises(ValueError, match="leaf x: shape .* has a negative dimension"):
            zrecord.memmap_like({"x": (shape, np.uint8)}, tmp_path / "a.tdz")
    assert zrecord.load_archive(tmp_path / "a.tdz")["x"].tolist() == [0, 1, 2]
