# SPDX-License-Identifier: MIT
"""make install: engine/example.c builds against what it puts there, as C and C++, shared and static."""

import os
import re
import subprocess

import pytest

from conftest import BUILD, REPO

LANGUAGES = {"c": ["cc", "-std=c11"], "c++": ["g++", "-std=c++11", "-xc++"]}
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]

OUTPUT = """\
record 42: 42 .. 42.75
record 7: 7 .. 7.75
record 42: 42 .. 42.75
as expected: store: record 1000 is out of range: the store has 1000 (ZR_E_RANGE)
"""


def make(*args, check=True):
    """Without the flags of a make that runs the tests: its job slots are not ours."""
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "DESTDIR", "PREFIX")}
    command = ["make", "-s", "-C", REPO, f"BUILD={BUILD}", *args]
    return subprocess.run(command, env=env, check=check, timeout=600, stderr=None if check else subprocess.PIPE, text=True)


def files(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir())


@pytest.fixture(scope="module", params=["prefix", "destdir"])
def installed(request, tmp_path_factory):
    """An installation under a PREFIX of its own, or under a DESTDIR that stands for the root."""
    root = tmp_path_factory.mktemp(request.param)
    if request.param == "prefix":
        prefix, args = root, [f"PREFIX={root}"]
        env = {"PKG_CONFIG_PATH": f"{root}/lib/pkgconfig"}
    else:
        prefix, args = root / "opt/zr", ["PREFIX=/opt/zr", f"DESTDIR={root}"]
        env = {"PKG_CONFIG_PATH": f"{prefix}/lib/pkgconfig", "PKG_CONFIG_SYSROOT_DIR": str(root)}
    make("install", *args)
    yield prefix, {**os.environ, **env}
    (root / "other").write_text("not ours")
    make("uninstall", *args)
    assert files(root) == ["other"]


def pkg_config(env, *args):
    return subprocess.run(["pkg-config", *args, "zrecord"], env=env, check=True, capture_output=True, text=True).stdout.split()


def test_what_is_installed(installed):
    prefix, _ = installed
    assert {"bin/zrecord", "bin/zrecordfs", "include/zrecord.h", "lib/libzrecord.a", "lib/libzrecord.so",
            "lib/libzrecord.so.0", "lib/pkgconfig/zrecord.pc"} <= set(files(prefix))
    assert str(BUILD) not in (prefix / "lib/pkgconfig/zrecord.pc").read_text()
    assert os.readlink(prefix / "lib/libzrecord.so") == "libzrecord.so.0"


@pytest.mark.parametrize("name", ["PREFIX", "DESTDIR"])
@pytest.mark.parametrize("target", ["install", "uninstall"])
def test_names_with_blanks_are_refused(tmp_path, target, name):
    """make takes them for two names: half of what is installed would be in the current folder."""
    done = make(target, f"{name}={tmp_path}/a b", check=False)
    assert done.returncode == 2 and "PREFIX and DESTDIR cannot hold blanks" in done.stderr
    assert files(tmp_path) == [] and not (REPO / "b").exists()


def test_a_relative_prefix_is_absolute_in_the_pkg_config_file(tmp_path):
    make("install", f"PREFIX={os.path.relpath(tmp_path, REPO)}")
    assert pkg_config({**os.environ, "PKG_CONFIG_PATH": f"{tmp_path}/lib/pkgconfig"}, "--cflags") == [f"-I{tmp_path}/include"]


def test_the_version_agrees_everywhere(installed):
    prefix, env = installed
    header = re.search(r'ZR_VERSION_STRING "(.*)"', (prefix / "include/zrecord.h").read_text())[1]
    assert pkg_config(env, "--modversion") == [header]
    done = subprocess.run([prefix / "bin/zrecord", "--version"], capture_output=True, text=True)
    assert done.stdout.startswith(f"zrecord {header}\n")


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("linking", ["shared", "static library", "static"])
def test_the_example(installed, tmp_path, language, linking):
    """A static library in a dynamic program is what pkg-config --static is mostly used for; then all of it static."""
    prefix, env = installed
    flags = pkg_config(env, "--cflags", "--libs", *([] if linking == "shared" else ["--static"]))
    if linking == "static library":
        flags = [str(prefix / "lib/libzrecord.a") if flag == "-lzrecord" else flag for flag in flags]
    source = ["-static"] * (linking == "static") + [REPO / "engine/example.c", "-xnone"]
    subprocess.run([*LANGUAGES[language], *WARNINGS, *source, "-o", "example", *flags], cwd=tmp_path, check=True, env=env)
    run = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 60}
    if linking == "shared":
        run["env"] = {**env, "LD_LIBRARY_PATH": str(prefix / "lib")}
        libraries = subprocess.run(["ldd", "example"], **run).stdout
        assert f"libzrecord.so.0 => {prefix}/lib/libzrecord.so.0" in libraries
    done = subprocess.run(["./example", "store"], **run)
    assert (done.returncode, done.stdout, done.stderr) == (0, OUTPUT, "")
    done = subprocess.run(["./example", "store"], **run)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "store: already exists\n")


def names(library, *options):
    lines = subprocess.run(["nm", "-g", "--defined-only", *options, library], check=True, capture_output=True, text=True).stdout
    return {line.split()[2] for line in lines.splitlines() if len(line.split()) == 3}


def declared(prefix):
    """Functions that the public header declares."""
    return set(re.findall(r"^ZR_API [^;(]*?\b(zr_\w+)\(", (prefix / "include/zrecord.h").read_text(), re.M))


def test_only_what_the_header_declares_is_exported(installed):
    prefix, _ = installed
    assert names(prefix / "lib/libzrecord.so.0", "-D") == declared(prefix)


def test_the_static_library_takes_no_other_names(installed):
    prefix, _ = installed
    defined = names(prefix / "lib/libzrecord.a")
    assert declared(prefix) <= defined
    assert {name for name in defined if not name.startswith(("zr_", "zri_"))} == set()


def test_the_readme_shows_the_example():
    code = (REPO / "engine/example.c").read_text().split("*/\n", 1)[1].strip()
    assert f"```c\n{code}\n```" in (REPO / "README.md").read_text()
