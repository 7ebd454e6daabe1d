# SPDX-License-Identifier: MIT
"""Unpacking shares blocks with the archive where the filesystem can: the same bytes, no copies."""

import fcntl
import json
import os
import shutil
import struct
import subprocess
import zipfile

import pytest

import zrecord

FS_IOC_FIEMAP = 0xC020660B
EXTENT_SHARED = 0x2000


@pytest.fixture(params=["btrfs", "xfs"])
def shared_folder(request, tmp_path):
    """A folder on a filesystem that shares blocks, mounted from a file."""
    mkfs = shutil.which(f"mkfs.{request.param}", path=os.environ["PATH"] + ":/usr/sbin:/sbin")
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount")
    if not mkfs:
        pytest.skip(f"mkfs.{request.param} is not installed")
    image, folder = tmp_path / "image", tmp_path / "mounted"
    folder.mkdir()
    with open(image, "wb") as f:
        f.truncate(512 << 20)
    subprocess.run([mkfs, "-q", image], check=True, capture_output=True)
    mounted = subprocess.run(["mount", "-o", "loop", image, folder], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount {request.param}: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def make_archive(path, payload, shift):
    """An archive whose one payload begins `shift` bytes behind a block."""
    headers = 30 + len("meta.json") + 30 + len("x.memmap")
    leaf = {"device": "cpu", "shape": [len(payload)], "dtype": "torch.uint8", "is_nested": False}
    kind = "<class 'tensordict._td.TensorDict'>"
    meta = json.dumps({"x": leaf, "shape": [], "device": "cpu", "_type": kind}).encode()
    meta += b" " * ((shift - headers - len(meta)) % 4096)
    with zipfile.ZipFile(path, "w") as z:
        z.writestr("meta.json", meta)
        z.writestr("x.memmap", payload)


def shared_nbytes(path):
    """How many bytes of the file lie in extents that another file has too."""
    with open(path, "rb") as f:
        os.fsync(f.fileno())
        buf = bytearray(32 + 64 * 56)
        struct.pack_into("<QQIIII", buf, 0, 0, 2**64 - 1, 1, 0, 64, 0)
        fcntl.ioctl(f.fileno(), FS_IOC_FIEMAP, buf)
    count = struct.unpack_from("<I", buf, 20)[0]
    assert count < 64
    total = 0
    for at in range(32, 32 + count * 56, 56):
        length, _, _, flags = struct.unpack_from("<QQQI", buf, at + 16)
        total += length if flags & EXTENT_SHARED else 0
    return total


@pytest.mark.parametrize("nbytes", [65535, 65536, (3 << 20) + 77])
@pytest.mark.parametrize("shift", [0, 64, 2048])
def test_the_same_bytes_shared_or_not(shared_folder, nbytes, shift):
    payload = os.urandom(nbytes)
    archive, out = shared_folder / "a.tdz", shared_folder / "out"
    make_archive(archive, payload, shift)
    zrecord.unpack_memmap(archive, out)
    assert (out / "x.memmap").read_bytes() == payload
    can_share = shift == 0 and nbytes >= 65536
    assert shared_nbytes(out / "x.memmap") == (nbytes // 4096 * 4096 if can_share else 0)
    (out / "x.memmap").write_bytes(b"other")  # and the archive keeps its own
    assert zrecord.verify_archive(archive).ok


def test_shared_blocks_are_checked_too(shared_folder):
    archive = shared_folder / "a.tdz"
    make_archive(archive, os.urandom(200000), 0)
    with open(archive, "r+b") as f:
        f.seek(4096 + 150000)
        byte = f.read(1)
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([byte[0] ^ 1]))
    with pytest.raises(zrecord.ZrecordError, match="CRC-32"):
        zrecord.unpack_memmap(archive, shared_folder / "out")
    assert os.listdir(shared_folder) == ["a.tdz"]
