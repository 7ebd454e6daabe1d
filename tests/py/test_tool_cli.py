# SPDX-License-Identifier: MIT
"""The command line as such: help, version, and every wrong usage ends in 2 with a reason."""

import os
import zipfile

import numpy as np
import pytest

COMMANDS = ["import", "export", "info", "ls", "cat", "verify", "train-dict", "recode", "bench", "mount", "umount",
            "pack", "unpack", "archive-info", "refresh-checksums"]


@pytest.fixture
def here(tmp_path, monkeypatch, zrecord_tool):
    """A folder with a.npy and a store s made of it, as the current one."""
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", np.arange(12, dtype="<i4").reshape(4, 3))
    assert zrecord_tool("import", "a.npy", "s").returncode == 0
    return tmp_path


def test_help_is_on_stdout(zrecord_tool):
    done = zrecord_tool("--help")
    assert (done.returncode, done.stderr) == (0, "")
    for command in COMMANDS:
        assert f"\n  {command} " in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help(zrecord_tool, command):
    done = zrecord_tool(command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Usage: zrecord {command} [OPTION]... ")
    assert "--help" in done.stdout


def test_version_names_the_libraries(zrecord_tool):
    done = zrecord_tool("--version")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["zrecord", "libzstd", "jansson"]


@pytest.mark.parametrize("args", [(), ("imprt",), ("--nope",)])
def test_no_such_command(zrecord_tool, args):
    done = zrecord_tool(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Usage: zrecord COMMAND" in done.stderr


WRONG_USAGE = [
    (["import", "a.npy"], "too few arguments"),
    (["import", "a.npy", "x", "y"], "too many arguments"),
    (["import", "a.npy", "x", "--nope"], "unrecognized option '--nope'"),
    (["import", "a.npy", "x", "--codec", "lz4"], "--codec 'lz4'"),
    (["import", "a.npy", "x", "--codec"], "requires an argument"),
    (["import", "a.npy", "x", "--level", "12abc"], "--level '12abc'"),
    (["import", "a.npy", "x", "--level", "3.0"], "--level '3.0'"),
    (["import", "a.npy", "x", "--level", "0"], "--level '0'"),
    (["import", "a.npy", "x", "--level", "23"], "--level '23'"),
    (["import", "a.npy", "x", "--level", " 3"], "--level ' 3'"),
    (["import", "a.npy", "x", "--level", "99999999999999999999"], "--level '99999999999999999999'"),
    (["import", "a.npy", "x", "--level", ""], "--level ''"),
    (["import", "a.npy", "x", "--codec", "raw", "--level", "3"], "--level needs --codec"),
    (["import", "a.npy", "x", "--codec", "raw", "--tune", "read"], "--tune needs --codec"),
    (["import", "a.npy", "x", "--tune", "fast"], "--tune 'fast'"),
    (["import", "a.npy", "x", "--tier", "huge"], "--tier 'huge'"),
    (["import", "a.npy", "x", "--tier", "fast"], "--tier needs --codec zstd_dict"),
    (["import", "a.npy", "x", "--dict", "d"], "--dict needs --codec zstd_dict"),
    (["import", "a.npy", "x", "--codec", "zstd_dict", "--tier", "fast", "--dict", "d"], "give one of them"),
    (["import", "a.npy", "x", "--dense", "--ragged"], "exclude each other"),
    (["export", "s"], "too few arguments"),
    (["export", "s", "x", "--records", "1,,2"], "'1,,2' is not a selection"),
    (["export", "s", "x", "--records", "-1"], "'-1' is not a selection"),
    (["export", "s", "x", "--records", "1.5"], "'1.5' is not a selection"),
    (["export", "s", "x", "--records", "0:4:0"], "'0:4:0' is not a selection"),
    (["export", "s", "x", "--records", "0:1:1:1"], "'0:1:1:1' is not a selection"),
    (["export", "s", "x", "--records", "3:1"], "'3:1' is not a selection"),
    (["export", "s", "x", "--records", "18446744073709551616"], "is not a selection"),
    (["export", "s", "x", "--records", ""], "'' is not a selection"),
    (["info"], "too few arguments"),
    (["info", "s", "s"], "too many arguments"),
    (["info", "--jsn", "s"], "unrecognized option"),
    (["ls"], "too few arguments"),
    (["ls", "s", "--records", "x"], "'x' is not a selection"),
    (["cat", "s"], "too few arguments"),
    (["cat", "s", "12abc"], "'12abc' is not a record id"),
    (["cat", "s", "-1"], "'-1' is not a record id"),
    (["cat", "s", "+1"], "'+1' is not a record id"),
    (["cat", "s", "1.0"], "'1.0' is not a record id"),
    (["cat", "s", "1e3"], "'1e3' is not a record id"),
    (["cat", "s", "0x1"], "'0x1' is not a record id"),
    (["cat", "s", ""], "'' is not a record id"),
    (["cat", "s", "18446744073709551616"], "'18446744073709551616' is not a record id"),
    (["verify"], "no store or archive given"),
    (["train-dict", "s"], "-o FILE is missing"),
    (["train-dict", "s", "-o", "x", "--tier", "12"], "--tier '12'"),
    (["mount", "s"], "too few arguments"),
    (["umount"], "too few arguments"),
]


@pytest.mark.parametrize("args,reason", WRONG_USAGE, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_wrong_usage(here, zrecord_tool, args, reason):
    done = zrecord_tool(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"zrecord: {args[0]}: ")
    assert reason in done.stderr.splitlines()[0]
    assert f"Usage: zrecord {args[0]} " in done.stderr
    assert sorted(os.listdir()) == ["a.npy", "s"]


@pytest.mark.parametrize("args", [["info", "s"], ["info", "--json", "s"], ["ls", "s"], ["ls", "-l", "s"], ["cat", "s", "0"], ["bench", "--seconds", "0.05", "s"], ["--help"]])
def test_a_full_standard_output_is_a_failure(here, zrecord_tool, args):
    import subprocess

    from conftest import BUILD

    with open("/dev/full", "w") as full:
        done = subprocess.run([BUILD / "zrecord", *args], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert "standard output: No space left on device" in done.stderr


NO_STORES = {
    "a.npy": "zrecord import makes a store of it",
    "arrays.npz": "zrecord import makes a store of it",
    "tree": "holds stores, like tree/train/image",
    "archive.tdz": "is a memmap archive (see zrecord archive-info, verify and unpack)",
}


@pytest.mark.parametrize("command", ["info", "ls", "cat", "verify", "export", "recode", "bench"])
@pytest.mark.parametrize("path", NO_STORES)
def test_what_is_not_a_store_is_told_by_what_it_is(here, zrecord_tool, command, path):
    """Trees, archives and arrays get words about themselves, not only about what they are not."""
    if command == "verify" and path != "tree":
        return  # files are archives to verify
    assert zrecord_tool("import", "-q", "a.npy", "tree/train/image").returncode == 0
    np.savez("arrays.npz", np.zeros(3))
    with zipfile.ZipFile("archive.tdz", "w") as archive:
        archive.writestr("meta.json", "{}")
    before = sorted(os.listdir())
    done = zrecord_tool(command, path, *{"cat": ["0"], "export": ["x"], "recode": ["x"]}.get(command, []))
    assert (done.returncode, done.stdout) == (1, "")
    reason, hint = done.stderr.splitlines()
    assert reason.startswith(f"zrecord: {command}: {path}: not a zrecord store")
    assert hint.startswith(f"zrecord: {command}: {path}: ") and NO_STORES[path] in hint
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize("command", ["import", "recode", "export", "pack", "unpack"])
def test_help_of_long_work_names_quiet(zrecord_tool, command):
    assert "--quiet" in zrecord_tool(command, "--help").stdout


@pytest.mark.parametrize("command", [*COMMANDS, "ctl"])
def test_help_of_a_command_by_the_word_help(zrecord_tool, command):
    done = zrecord_tool("help", command)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == zrecord_tool(command, "--help").stdout


def test_help_of_no_such_command(zrecord_tool):
    done = zrecord_tool("help", "imprt")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("zrecord: help: imprt: no such command\n")


@pytest.mark.parametrize("args", [["import", "", "x"], ["export", "s", ""], ["train-dict", "", "-o", "x"]])
def test_an_empty_path_is_seen_in_the_message(here, zrecord_tool, args):
    done = zrecord_tool(*args)
    assert (done.returncode, done.stderr) == (1, f"zrecord: {args[0]}: '': No such file or directory\n")
    assert sorted(os.listdir()) == ["a.npy", "s"]


def test_a_dictionary_that_cannot_be_trained_names_the_store(here, zrecord_tool):
    done = zrecord_tool("train-dict", "s", "-o", "d")
    assert done.returncode == 1
    assert done.stderr.startswith("zrecord: train-dict: s: dictionary training failed on 4 samples")
    assert not os.path.exists("d")
