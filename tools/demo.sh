#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Shows what zrecord does on real data: handwritten digits (tests/fixtures) as a Dense store and the
# licence texts of this machine, as word ids, as a Ragged one.  Everything is made under build/demo.
# `make demo` builds first; each step says what it does and shows the command.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=$root/.venv/bin/python
export PATH=$root/build:$PATH

say() { printf '\n# %s\n' "$*"; }
run() { printf '$ %s\n' "$*"; bash -c "set -o pipefail; $*"; }

unmount_all() {
    local folder
    for folder in "$root"/build/demo/mnt/*/; do
        if grep -qs " ${folder%/} fuse.zrecordfs " /proc/mounts; then
            zrecord umount "$folder" || zrecord umount --lazy "$folder"
        fi
    done
}

fresh_folder() {
    unmount_all
    rm -rf "$root/build/demo"
    mkdir -p "$root/build/demo/mnt"
    cd "$root/build/demo"
    # python from .venv under a short name in what is shown
    python() { "$python" "$@"; }
    export python
    export -f python
    trap unmount_all EXIT
}

images() {
    say "Images: 1797 handwritten digits of 8x8 pixels (UCI, CC BY 4.0), one array of uint8."
    cp "$root/tests/fixtures/digits.npy" "$root/tests/fixtures/digits_labels.npy" .
    run "zrecord import digits.npy digits --codec zstd_dict --tier fast"
    run "zrecord import digits_labels.npy labels --codec raw"
    run "zrecord info digits"
}

text() {
    say "Text: each paragraph of /usr/share/common-licenses becomes an array of int32 word ids."
    run "python ../../tools/demo_text.py /usr/share/common-licenses text"
    say "Their lengths differ, so the store is Ragged; a trained dictionary helps short records."
    run "zrecord import text tokens --codec zstd_dict --tier fast"
    run "zrecord ls -l tokens --records 0:5"
    say "Every record is decoded and compared with its checksum."
    run "zrecord verify digits labels tokens"
}

can_mount() {
    [ -c /dev/fuse ] && { [ "$(id -u)" = 0 ] || { [ -w /dev/fuse ] && command -v fusermount3 >/dev/null; }; }
}

mount_steps() {
    say "Mounted, each record is a .npy file that exists only when it is read."
    run "zrecord mount digits mnt/digits"
    run "zrecord mount tokens mnt/tokens"
    run "ls -l mnt/digits | sed -n 1,6p"
    say "Copied out, a record is byte for byte what numpy.save writes."
    run "python -c \"import numpy; numpy.save('saved.npy', numpy.load('digits.npy')[1234])\""
    run "cp mnt/digits/00001234.npy copied.npy"
    run "cmp copied.npy saved.npy && echo identical"
    run "cmp mnt/tokens/00000007.npy text/00000007.npy && echo identical"
    say "Any program that reads .npy reads records; numpy can also map them."
    run "python -c \"import numpy; print(numpy.load('mnt/digits/00001234.npy', mmap_mode='r'))\""
    say "The hidden control file tells what the mount has done so far, as JSON."
    run "cat mnt/digits/.control | sed -n '/\"requests\"/,/^  }/p; /\"counters\"/,/^  }/p'"
}

unmount_steps() {
    say "Unmounted, the folders are gone again and the stores unchanged."
    run "zrecord umount mnt/digits"
    run "zrecord umount mnt/tokens"
    run "ls mnt"
}

loading() {
    say "Training reads the stores directly: shuffled batches of images with their labels."
    run "python ../../tools/demo_load.py"
    say "And back: a store exported is the array it was made from."
    run "zrecord export --quiet digits back.npy && cmp back.npy digits.npy && echo identical"
}

fresh_folder
images
text
if can_mount; then
    mount_steps
    loading
    unmount_steps
else
    say "No usable /dev/fuse or fusermount3 here, so mounting is left out; zrecord export gives the files instead."
    run "zrecord export --quiet digits files && ls files | sed -n 1,3p"
    loading
fi
say "Done. The stores are in build/demo; zrecord --help lists what else there is."
