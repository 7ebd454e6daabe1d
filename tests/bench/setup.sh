#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Makes build/bench-venv: the peers of requirements.txt, the references loaderx 2.0.0 and celeres-dl
# in folders of their own, and this tree's package.  With `loaders` or `archives`, build/loaders-venv with
# those of requirements-loaders.txt, or likewise.  A peer that cannot be installed is named and goes without.
# usage: setup.sh PYTHON [loaders|archives]   (PYTHON is the one that makes the environment)
set -euo pipefail
cd "$(dirname "$0")/../.."

venv=build/bench-venv
requirements=tests/bench/requirements.txt
if [ -n "${2-}" ]; then
    venv=build/$2-venv
    requirements=tests/bench/requirements-$2.txt
fi
references=(loaderx==2.0.0 celeres-dl==0.1.0)
pip=("$venv/bin/python" -m pip --disable-pip-version-check --quiet)

say() { printf 'bench: %s\n' "$*"; }

install() { "${pip[@]}" install "$@" >>"$venv/install.log" 2>&1; }

if [ ! -x "$venv/bin/python" ]; then
    say "making $venv"
    "$1" -m venv "$venv"
    # numpy and setuptools build the package, msgpack and cffi are what the reference imports.
    install cffi msgpack setuptools wheel "$(grep '^numpy' $requirements)"
fi

for reference in "${references[@]}"; do
    target=$venv/ref/${reference/==/-}
    [ ! -d "$target" ] || continue
    say "installing $reference in a folder of its own"
    install --no-deps --target "$target" "$reference" ||
        say "SKIP $reference: it does not install here ($venv/install.log)"
done

recorded=$venv/.requirements
if ! cmp -s "$requirements" "$recorded"; then
    while read -r requirement; do
        say "installing $requirement"
        install "$requirement" || say "SKIP $requirement: it does not install here ($venv/install.log)"
    done < <(grep -v '^#' "$requirements")
    cp "$requirements" "$recorded"
fi

# Other ways to mount the same records, for mount_bench.py.
mount_peers=(squashfuse_ll:squashfuse mksquashfs:squashfs-tools mkfs.erofs:erofs-utils fuse-zip:fuse-zip
    archivemount:archivemount)
for peer in "${mount_peers[@]}"; do
    command -v "${peer%%:*}" >/dev/null && continue
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "installing ${peer#*:}"
        DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${peer#*:}" \
            >>"$venv/install.log" 2>&1 || say "SKIP ${peer#*:}: it does not install here ($venv/install.log)"
    else
        say "SKIP ${peer#*:}: installing it takes root (apt-get install ${peer#*:})"
    fi
done

stamp=$venv/.zrecord
if [ ! -e "$stamp" ] || [ -n "$(find engine python/src python/zrecord python/*.toml python/setup.py \
        -newer "$stamp" -type f -not -name '*.pyc' -print -quit)" ]; then
    say "installing zrecord from ./python"
    install --no-build-isolation --no-deps --force-reinstall ./python ||
        { tail -n 20 "$venv/install.log"; exit 1; }
    touch "$stamp"
fi
