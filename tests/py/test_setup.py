# SPDX-License-Identifier: MIT
"""Set-up, demo, and the Python snippets of the README: what a newcomer does first."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from conftest import REPO

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: becomes another user or hides a device")


def readme_snippets(language):
    return re.findall(rf"^```{language}\n(.*?)^```", (REPO / "README.md").read_text(), re.M | re.S)


# ---------------------------------------------------------------- set-up


@pytest.fixture
def bare_tree():
    """What set-up reads, in a folder that an ordinary user may enter."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        tree.chmod(0o755)
        for name in ["Makefile", "engine/zrecord.h", "tools/setup.sh", "tests/requirements.txt", ".ci/run"]:
            (tree / name).parent.mkdir(exist_ok=True)
            shutil.copy(REPO / name, tree / name)
        yield tree


@root_only
@pytest.mark.parametrize("command", [["tools/setup.sh"], ["make", "check"], ["make", "demo"], [".ci/run"]], ids=" ".join)
def test_without_root_the_missing_packages_are_named(bare_tree, command):
    env = {"PATH": "/usr/bin:/bin", "PKG_CONFIG_LIBDIR": "/nowhere", "LC_ALL": "C"}
    done = subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *command],
        cwd=bare_tree, env=env, capture_output=True, text=True, timeout=60,
    )
    assert done.returncode != 0
    line = next(line for line in done.stderr.splitlines() if line.startswith("setup: missing packages: "))
    names = line.removeprefix("setup: missing packages: ").split(" (as root: apt-get install ")[0].split()
    assert {"libfuse3-dev", "libzstd-dev", "libmsgpack-dev", "libxxhash-dev", "libjansson-dev", "check"} <= set(names)
    assert "gcc" not in names
    assert not (bare_tree / ".venv").exists()


def test_the_package_alone_makes_the_environment(bare_tree):
    """make python in a fresh clone: set-up goes first, without being asked for."""
    for name in ["build/libzrecord.a", "python/zrecord/py.typed"]:
        (bare_tree / name).parent.mkdir(parents=True)
        (bare_tree / name).touch()
    (bare_tree / "tools/setup.sh").write_text("#!/bin/sh\nmkdir -p $VENV/bin && cp /bin/true $VENV/bin/python\n")
    command = ["make", "-s", "python", "-o", "build/libzrecord.a"]
    done = subprocess.run(command, cwd=bare_tree, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert (bare_tree / ".venv/.zrecord").exists()


def is_set_up():
    stamp = REPO / ".venv/.setup"
    wanted = hashlib.sha256((REPO / "tests/requirements.txt").read_bytes()).hexdigest()
    return stamp.exists() and wanted in stamp.read_text()


@pytest.mark.skipif(not is_set_up(), reason=".venv is not up to date (make setup)")
def test_a_second_setup_changes_nothing():
    stamp = (REPO / ".venv/.setup").stat().st_mtime_ns
    done = subprocess.run([REPO / "tools/setup.sh"], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "setup: ready"
    assert (REPO / ".venv/.setup").stat().st_mtime_ns == stamp


def test_make_help_names_every_target():
    done = subprocess.run(["make", "-C", REPO, "--no-print-directory", "help"], capture_output=True, text=True)
    listed = {word for line in done.stdout.splitlines() for word in line[:16].split()}
    expected = "all setup demo check check-unit check-py check-mount check-interop check-asan check-tsan"
    expected += " lint format wheel install uninstall clean help"
    assert set(expected.split()) <= listed


# ---------------------------------------------------------------- demo


def run_demo(prefix=()):
    done = subprocess.run([*prefix, REPO / "tools/demo.sh"], capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    mounts = Path("/proc/mounts").read_text()
    assert f"{REPO}/build/demo" not in mounts
    return done.stdout


needs_demo = pytest.mark.skipif(not (REPO / ".venv/.zrecord").exists(), reason="the package is not in .venv (make python)")


@needs_demo
@pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="no /dev/fuse")
def test_demo():
    shown = run_demo()
    assert shown.count("\nidentical\n") == 3
    for command in ["zrecord import", "zrecord mount", "ls -l", "cp ", "cmp ", "cat mnt/digits/.control", "zrecord umount"]:
        assert f"$ {command}" in shown
    assert "batch 2: image float32 (256, 8, 8)" in shown


@needs_demo
@root_only
def test_demo_without_fuse_says_so_and_goes_on():
    """A file over /dev/fuse, in a mount namespace of its own."""
    hide = "if [ -e /dev/fuse ]; then mount --bind /etc/hostname /dev/fuse; fi; exec \"$0\""
    shown = run_demo(["unshare", "--mount", "sh", "-c", hide])
    assert "No usable /dev/fuse" in shown
    assert "$ zrecord mount" not in shown
    assert "batch 2: image float32 (256, 8, 8)" in shown


# ---------------------------------------------------------------- README


def test_the_python_snippets_work(tmp_path, zrecord_tool):
    """One after the other in one program; the loader of plain files reads what export wrote."""
    pytest.importorskip("zrecord")
    pytest.importorskip("torch")
    snippets = readme_snippets("python")
    (load,) = [snippet for snippet in snippets if "/mnt/images" in snippet]
    snippets.remove(load)
    subprocess.run([sys.executable, "-c", "\n".join(snippets)], cwd=tmp_path, check=True)
    assert zrecord_tool("export", tmp_path / "image", tmp_path / "files", "--records", "0:300").returncode == 0
    subprocess.run([sys.executable, "-c", load.replace("/mnt/images", "files")], cwd=tmp_path, check=True)
