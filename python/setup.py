# SPDX-License-Identifier: MIT
"""Builds zrecord._core: the binding together with the engine.

The engine comes from ../build/libzrecord.a (or $ZRECORD_BUILD), which make brings up to date.
The engine's libraries are linked from their static forms where the system has them, so that
the wheel needs nothing but NumPy; their symbols stay inside.
"""

import os
import re
import shlex
import subprocess
from pathlib import Path

import numpy
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).resolve().parent
REPO = HERE.parent
BUILD = Path(os.environ.get("ZRECORD_BUILD", REPO / "build"))
WARNINGS = "-Wall -Wextra -Wshadow -Wvla -Wmissing-prototypes -Wstrict-prototypes"

LIBRARIES = ["zstd", "msgpackc", "jansson", "deflate", "bz2", "lzma"]
# src/streams.c says why
LINK = ["-Wl,--exclude-libs,ALL"] + [f"-Wl,--wrap={s}" for s in ("stdin", "stdout", "stderr")]


def version():
    header = (REPO / "engine" / "zrecord.h").read_text()
    return re.search(r'#define ZR_VERSION_STRING "(.*)"', header)[1]


def static_or_shared(compiler, library):
    """Path of lib<library>.a if the compiler finds one, else -l<library>."""
    found = subprocess.run(
        [*compiler, f"-print-file-name=lib{library}.a"], capture_output=True, text=True, check=True
    ).stdout.strip()
    return found if os.path.isabs(found) else f"-l{library}"


class Build(build_ext):
    def build_extensions(self):
        target = BUILD / "libzrecord.a"
        subprocess.run(["make", "-C", REPO, f"BUILD={BUILD}", target], check=True)
        compiler = shlex.split(os.environ.get("CC", "cc"))
        libraries = [static_or_shared(compiler, name) for name in LIBRARIES]
        for extension in self.extensions:
            extension.extra_link_args += [*LINK, str(target), *libraries, "-pthread"]
            extension.depends.append(str(target))
        super().build_extensions()


sources = sorted(path.relative_to(HERE).as_posix() for path in (HERE / "src").glob("*.c"))
core = Extension(
    "zrecord._core",
    sources=sources,
    include_dirs=[str(REPO / "engine"), numpy.get_include()],
    depends=["src/core.h", str(REPO / "engine" / "zrecord.h")],
    extra_compile_args=["-std=gnu11", "-O2", "-fvisibility=hidden", "-pthread", *WARNINGS.split()],
)
setup(version=version(), ext_modules=[core], cmdclass={"build_ext": Build})
