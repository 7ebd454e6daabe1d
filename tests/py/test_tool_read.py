# SPDX-License-Identifier: MIT
"""zrecord info, ls, cat, export, verify and train-dict on good stores."""

import json
import os
import pty
import subprocess

import numpy as np
import pytest
from conftest import BUILD

DENSE = np.random.default_rng(0).integers(0, 40, (500, 4, 9), dtype="<i4")
RAGGED = [np.arange(n % 50 + 1, dtype="<i4") * 3 for n in range(1200)]


@pytest.fixture
def here(tmp_path, monkeypatch, zrecord_tool):
    """Stores d (Dense) and r (Ragged), and where they came from."""
    monkeypatch.chdir(tmp_path)
    np.save("d.npy", DENSE)
    os.mkdir("in")
    for i, array in enumerate(RAGGED):
        np.save(f"in/{i:08d}.npy", array)
    assert zrecord_tool("import", "--no-sync", "d.npy", "d").returncode == 0
    assert zrecord_tool("import", "--no-sync", "in", "r", "--codec", "zstd_dict", "--tier", "fast").returncode == 0
    return tmp_path


def same_file(a, b):
    return open(a, "rb").read() == open(b, "rb").read()


# ---------------------------------------------------------------- info, ls, cat


def test_info_as_json(here, zrecord_tool):
    info = json.loads(zrecord_tool("info", "--json", "d").stdout)
    stored = os.path.getsize("d/data.zr")
    assert (info["path"], info["geometry"], info["length"], info["dtype"]) == ("d", "dense", 500, "<i4")
    assert (info["itemsize"], info["item_shape"], info["codec"], info["dict_bytes"]) == (4, [4, 9], "zstd", 0)
    assert (info["logical_bytes"], info["stored_bytes"], info["checksums"]) == (DENSE.nbytes, stored, True)
    info = json.loads(zrecord_tool("info", "--json", "r").stdout)
    assert (info["geometry"], info["length"], info["item_shape"]) == ("ragged", 1200, None)
    assert info["dict_bytes"] == os.path.getsize("r/dict.zr")
    assert info["logical_bytes"] == sum(16 + array.nbytes for array in RAGGED)


def test_info_as_text(here, zrecord_tool):
    lines = dict(line.split(maxsplit=1) for line in zrecord_tool("info", "d").stdout.splitlines())
    assert lines["records"] == "500, dense"
    assert lines["dtype"] == "<i4"


def test_info_of_a_path_that_is_not_utf8(here, zrecord_tool):
    path = b"caf\xe9"
    os.rename(b"d", path)
    done = subprocess.run([BUILD / "zrecord", "info", "--json", path], capture_output=True)
    assert done.returncode == 0
    assert json.loads(done.stdout)["path"] is None


def test_ls(here, zrecord_tool):
    assert zrecord_tool("ls", "d").stdout.split() == [f"{i:08d}.npy" for i in range(500)]
    lines = zrecord_tool("ls", "-l", "r").stdout.splitlines()
    assert lines[0].split() == ["name", "bytes", "stored", "shape"]
    assert len(lines) == 1201
    name, nbytes, stored, shape = lines[1 + 77].split()
    assert (name, int(nbytes), shape) == ("00000077.npy", RAGGED[77].nbytes, "(28,)")
    assert 0 < int(stored) < 200


@pytest.mark.parametrize(
    "text,ids",
    [
        ("0,5,2", [0, 5, 2]),
        ("3:6", [3, 4, 5]),
        ("0:10:4", [0, 4, 8]),
        ("498:", [498, 499]),
        (":2,7,:2", [0, 1, 7, 0, 1]),
        ("::200", [0, 200, 400]),
        ("5:5", []),
        ("500:", []),
        ("600:", []),
        ("498:4096", [498, 499]),
        ("0:4096:200,7", [0, 200, 400, 7]),
    ],
)
def test_selections(here, zrecord_tool, text, ids):
    done = zrecord_tool("ls", "d", "--records", text)
    assert done.returncode == 0
    assert done.stdout.split() == [f"{i:08d}.npy" for i in ids]


@pytest.mark.parametrize("text,record", [("500", 500), ("0,499,500", 500), ("18446744073709551614", 2**64 - 2)])
def test_selections_out_of_range(here, zrecord_tool, text, record):
    for args in [("ls", "d"), ("export", "d", "out"), ("export", "d", "out.npy")]:
        done = zrecord_tool(*args, "--records", text)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"zrecord: {args[0]}: d: record {record} is out of range: the store has 500\n"
    assert not os.path.exists("out") and not os.path.exists("out.npy")


@pytest.mark.parametrize("record", [500, 10**9, 2**64 - 1])
def test_cat_out_of_range(here, zrecord_tool, record):
    done = zrecord_tool("cat", "d", record, text=False)
    assert (done.returncode, done.stdout) == (1, b"")
    assert f"d: record {record} is out of range".encode() in done.stderr


def test_cat_is_not_written_to_a_terminal(here):
    ours, theirs = pty.openpty()
    done = subprocess.run([BUILD / "zrecord", "cat", "d", "0"], stdout=theirs, stderr=subprocess.PIPE, text=True)
    os.close(theirs)
    os.close(ours)
    assert done.returncode == 1
    assert "terminal" in done.stderr


def test_cat_into_a_closed_pipe_is_quiet(here):
    np.save("big.npy", np.zeros((1, 1 << 20)))
    subprocess.run([BUILD / "zrecord", "import", "-q", "big.npy", "big"], check=True)
    done = subprocess.run(f"{BUILD}/zrecord cat big 0 | head -c 10", shell=True, capture_output=True)
    assert (done.stdout, done.stderr) == (b"\x93NUMPY\x01\x00v\x00", b"")


def test_names_grow_with_the_store(tmp_path, zrecord_tool):
    np.save(tmp_path / "a.npy", np.zeros(3, "u1"))
    zrecord_tool("import", tmp_path / "a.npy", tmp_path / "s")
    assert zrecord_tool("ls", tmp_path / "s").stdout.split()[-1] == "00000002.npy"


# ---------------------------------------------------------------- export


def test_export_selected_rows(here, zrecord_tool):
    assert zrecord_tool("export", "d", "out.npy", "--records", "7,7,0:10:3").returncode == 0
    assert np.array_equal(np.load("out.npy"), DENSE[[7, 7, 0, 3, 6, 9]])


def test_export_to_a_folder(here, zrecord_tool):
    assert zrecord_tool("export", "r", "out").returncode == 0
    assert sorted(os.listdir("out")) == sorted(os.listdir("in"))
    assert all(same_file(f"out/{name}", f"in/{name}") for name in os.listdir("in"))
    assert zrecord_tool("export", "d", "few/", "--records", "3,1").returncode == 0
    assert sorted(os.listdir("few")) == ["00000001.npy", "00000003.npy"]


def test_exported_files_have_ordinary_permissions(here, zrecord_tool):
    for target in ["out.npy", "out"]:
        subprocess.run(["sh", "-c", f"umask 027; exec '{BUILD}/zrecord' export d {target}"], check=True)
    assert oct(os.stat("out.npy").st_mode & 0o777) == "0o640"
    assert oct(os.stat("out").st_mode & 0o777) == "0o750"
    assert oct(os.stat("out/00000000.npy").st_mode & 0o777) == "0o640"


def test_an_imported_export_is_the_same(here, zrecord_tool):
    zrecord_tool("export", "r", "out")
    assert zrecord_tool("import", "--no-sync", "out", "again").returncode == 0
    zrecord_tool("export", "again", "out2")
    assert subprocess.run(["diff", "-r", "out", "out2"]).returncode == 0


def test_export_refuses(here, zrecord_tool):
    os.mkdir("taken")
    cases = [
        (("r", "r.npy"), "r: Ragged records have different shapes"),
        (("d", "taken"), "taken: File exists"),
        (("d", "d.npy"), "d.npy: File exists"),
        (("d", "no/such/x.npy"), "no/such/x.npy: No such file"),
        (("d", "no/such/x"), "no/such/x: No such file"),
        (("d", "twice", "--records", "1,2,1"), "00000001.npy: selected twice"),
    ]
    before = sorted(os.listdir())
    for args, reason in cases:
        done = zrecord_tool("export", *args)
        assert done.returncode == 1 and reason in done.stderr
        assert sorted(os.listdir()) == before


# ---------------------------------------------------------------- verify, train-dict


def test_verify_good_stores(here, zrecord_tool):
    done = zrecord_tool("verify", "d", "r")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "d: 500 records checked, all good\nr: 1200 records checked, all good\n"
    assert zrecord_tool("verify", "--quiet", "d").stdout == ""


@pytest.mark.parametrize("source", ["r", "in", "d.npy"])
@pytest.mark.parametrize("tier,limit", [("fast", 32 << 10), ("balanced", 128 << 10), ("max", 1 << 20)])
def test_train_dict(here, zrecord_tool, source, tier, limit):
    done = zrecord_tool("train-dict", source, "-o", "dict", "--tier", tier)
    assert done.returncode == 0, done.stderr
    assert open("dict", "rb").read(4) == b"\x37\xa4\x30\xec"
    assert os.path.getsize("dict") <= limit
    assert zrecord_tool("import", "--no-sync", "in", "s", "--codec", "zstd_dict", "--dict", "dict").returncode == 0
    assert same_file("s/dict.zr", "dict")
    assert zrecord_tool("verify", "s").returncode == 0


def test_train_dict_of_source_and_store_agree(here, zrecord_tool):
    """Ragged samples carry their shape in both cases."""
    for source in ["r", "in"]:
        assert zrecord_tool("train-dict", source, "-o", f"{source}.dict").returncode == 0
    assert same_file("r.dict", "in.dict")


def test_train_dict_refuses(here, zrecord_tool):
    np.save("two.npy", np.zeros((2, 3)))
    cases = [
        (("two.npy", "-o", "x"), "two.npy: dictionary training failed"),
        (("nope", "-o", "x"), "nope: No such file"),
        (("d", "-o", "d.npy"), "d.npy: File exists"),
        (("d", "-o", "no/such/x"), "no/such/x: No such file"),
    ]
    before = sorted(os.listdir())
    for args, reason in cases:
        done = zrecord_tool("train-dict", *args)
        assert done.returncode == 1 and reason in done.stderr
        assert sorted(os.listdir()) == before


# ---------------------------------------------------------------- the progress bar


def run_on_terminal(args):
    """Runs with a terminal as standard error; returns what it showed."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen([BUILD / "zrecord", *args], stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 65536):
            shown += piece
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert child.wait() == 0
    return shown.decode()


def test_progress_is_shown_on_a_terminal_only(here):
    array = np.random.default_rng(1).integers(0, 9, (4000, 2000), dtype="<i4")
    np.save("slow.npy", array)
    args = ["import", "slow.npy", "--no-sync", "--level", "9"]
    shown = run_on_terminal([*args, "s1"])
    assert "import [" in shown and "%" in shown and "s left" in shown
    assert shown.endswith("\r\x1b[K")
    assert run_on_terminal([*args, "s2", "--quiet"]) == ""
    done = subprocess.run([BUILD / "zrecord", *args, "s3"], capture_output=True, text=True)
    assert done.stderr == ""
