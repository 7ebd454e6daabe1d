#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Makes this tree ready to build: Debian packages (as root; otherwise it names the missing ones) and
# a Python environment in .venv.  One line a step; a second run finds everything and is quick.
# usage: setup.sh [tests]   (tests: also the frameworks and references that only the tests read)
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${VENV:-.venv}
requirements=tests/requirements.txt
frameworks=tests/requirements-frameworks.txt
# Only read by the tests of interchange, and kept apart so that nothing else imports them.
references=(loaderx==2.0.0 celeres-dl==0.1.0)

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

has() { command -v "$1" >/dev/null 2>&1; }
library() { has pkg-config && pkg-config --exists "$1"; }
header() { has gcc && printf '#include <stdio.h>\n#include <%s>\n' "$1" | gcc -E -x c - >/dev/null 2>&1; }
compiles() { has gcc && printf '#include <stdio.h>\n' | gcc -E -x c - >/dev/null 2>&1; }

# Root is given /usr/sbin and friends; a cron job or a bare container may lack them.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

# ---------------------------------------------------------------- Python

# Prints the first Python that can make environments and build extensions.
find_python() {
    local candidate
    for candidate in ${PYTHON3:-} python3 /usr/bin/python3 python3.13 python3.12 python3.11; do
        if has "$candidate" && "$candidate" - 2>/dev/null <<'PY'; then
import ensurepip, os, sys, sysconfig, venv
header = os.path.join(sysconfig.get_path("include"), "Python.h")
sys.exit(not (os.path.exists(header) and sys.version_info >= (3, 10)))
PY
            command -v "$candidate"
            return
        fi
    done
    return 1
}

# ---------------------------------------------------------------- Debian packages

missing_packages() {
    has gcc || echo gcc
    compiles || echo libc6-dev
    has make || echo make
    has pkg-config || echo pkg-config
    library fuse3 || echo libfuse3-dev
    has fusermount3 || echo fuse3
    library liburing || echo liburing-dev
    library libzstd || echo libzstd-dev
    library msgpack-c || library msgpack || echo libmsgpack-dev
    library libxxhash || echo libxxhash-dev
    library jansson || echo libjansson-dev
    library libdeflate || echo libdeflate-dev
    library liblzma || echo liblzma-dev
    header bzlib.h || echo libbz2-dev
    library check || echo check
    find_python >/dev/null || printf '%s\n' python3 python3-dev python3-venv
    # Programs that the tests browse mounts with.
    has rsync || echo rsync
    has zip || echo zip
    has unzip || echo unzip
    has 7z || echo p7zip-full
    has bsdtar || echo libarchive-tools
    has file || echo file
    perl -MFile::Find -e 1 2>/dev/null || echo perl # more than the perl-base that is always there
    has getfattr || echo attr
    has setpriv || echo util-linux
    has g++ || echo g++ # the header must be usable from C++
}

install_packages() {
    local packages
    # Part of any installed system; a bare root file system lacks it, and fusermount3 asks for it.
    [ -e /etc/mtab ] || [ "$(id -u)" != 0 ] || ln -s ../proc/self/mounts /etc/mtab
    mapfile -t packages < <(missing_packages)
    if [ ${#packages[@]} -eq 0 ]; then
        say "all Debian packages are there"
        return
    fi
    [ "$(id -u)" = 0 ] || die "missing packages: ${packages[*]} (as root: apt-get install ${packages[*]})"
    has apt-get || die "missing packages, and no apt-get here: ${packages[*]}"
    say "installing ${packages[*]}"
    export DEBIAN_FRONTEND=noninteractive
    quietly apt-get update
    quietly apt-get install -y --no-install-recommends "${packages[@]}"
    mapfile -t packages < <(missing_packages)
    [ ${#packages[@]} -eq 0 ] || die "still missing after installation: ${packages[*]}"
}

# Runs a command; its output is shown only when it fails.
quietly() {
    local log
    log=$(mktemp)
    if ! "$@" >"$log" 2>&1 </dev/null; then
        cat "$log" >&2
        rm -f "$log"
        die "failed: $*"
    fi
    rm -f "$log"
}

# ---------------------------------------------------------------- .venv

# What the environment was made with; another Python or place needs a new one.
environment_origin() {
    echo "$python $PWD"
    "$python" -V
}

# What is in it; other requirements are installed into it.
environment_content() {
    environment_origin
    sha256sum <"$requirements"
}
tests_content() {
    environment_content
    echo "${references[@]}"
    sha256sum <"$frameworks"
}

recorded() { [ "$(cat "$venv/$1" 2>/dev/null)" = "$2" ]; }
pip_install() { quietly "$venv/bin/python" -m pip install --disable-pip-version-check "$@"; }

make_environment() {
    local python origin content
    python=$(find_python)
    origin=$(environment_origin)
    content=$(environment_content)
    if [ -x "$venv/bin/python" ] && recorded .setup "$content"; then
        say "the Python environment $venv is there"
        return
    fi
    if ! { [ -x "$venv/bin/python" ] && recorded .origin "$origin"; }; then
        say "making the Python environment $venv with $python"
        rm -rf "$venv"
        quietly "$python" -m venv "$venv"
        printf '%s\n' "$origin" >"$venv/.origin"
    fi
    say "installing the packages of $requirements"
    pip_install -r "$requirements"
    printf '%s\n' "$content" >"$venv/.setup"
}

# The frameworks are large (torch alone 1 GB), so building and the demo go without them.
complete_environment() {
    local python content reference target
    python=$(find_python)
    content=$(tests_content)
    if recorded .setup-tests "$content"; then
        say "the frameworks for the tests are there"
        return
    fi
    say "installing the packages of $frameworks"
    pip_install -r "$frameworks"
    for reference in "${references[@]}"; do
        target=$venv/ref/${reference/==/-}
        say "installing $reference for the interchange tests into $target"
        rm -rf "$target"
        pip_install --no-deps --target "$target" "$reference"
    done
    printf '%s\n' "$content" >"$venv/.setup-tests"
}

case "${1:-}" in
    "" | tests) ;;
    *) die "usage: setup.sh [tests]" ;;
esac
install_packages
make_environment
[ "${1:-}" != tests ] || complete_environment
say "ready"
