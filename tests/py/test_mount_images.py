# SPDX-License-Identifier: MIT
"""Previews as PNG, and class folders as image loaders scan them."""

import errno
import os
import struct
import subprocess
import zlib

import numpy as np
import pytest
from mounting import PROGRAM, mounted, name_of, needs_mount, npy, program, read_raw, wait_for
from test_mount import counting_rows, location, make_dense, make_ragged, overwrite

zrecord = pytest.importorskip("zrecord")
pytestmark = [needs_mount, pytest.mark.keeps_pages]


# ---------------------------------------------------------------- previews


def decode_png(data):
    """The pixels of a PNG as (H, W, channels), every checksum compared."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, []
    while at < len(data):
        (n,) = struct.unpack(">I", data[at : at + 4])
        kind, body, crc = data[at + 4 : at + 8], data[at + 8 : at + 8 + n], data[at + 8 + n : at + 12 + n]
        assert zlib.crc32(kind + body) == int.from_bytes(crc, "big"), kind
        chunks.append((kind, body))
        at += 12 + n
    assert at == len(data) and [kind for kind, _ in chunks] == [b"IHDR", b"IDAT", b"IEND"]
    width, height, depth, colour, *rest = struct.unpack(">IIBBBBB", chunks[0][1])
    assert depth == 8 and rest == [0, 0, 0]
    channels = {0: 1, 2: 3, 6: 4}[colour]
    rows = np.frombuffer(zlib.decompress(chunks[1][1]), "u1").reshape(height, 1 + width * channels)
    assert not rows[:, 0].any(), "no filter"
    return rows[:, 1:].reshape(height, width, channels)


def expected_pixels(record):
    if record.ndim == 2:
        return record[:, :, None]
    if record.shape[2] in (3, 4):
        return record
    return record.transpose(1, 2, 0)


SHAPES = [(5, 7), (1, 1), (9, 8, 3), (6, 5, 4), (3, 10, 11), (3, 3, 3), (300, 301), (3, 200, 260), (1, 65534), (1, 65535),
          (2, 32767), (3, 2, 5000)]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_a_preview_shows_the_record(tmp_path, shape):
    rows = np.random.default_rng(0).integers(0, 256, (4, *shape), "u1")
    with mounted(make_dense(tmp_path / "s", rows), tmp_path / "m", "-o", "preview") as m:
        folder = m / ".views/preview"
        assert sorted(os.listdir(folder)) == [f"{i:08d}.png" for i in range(4)]
        for i in range(4):
            path = folder / f"{i:08d}.png"
            size = os.stat(path).st_size
            data = read_raw(path)
            assert len(data) == size
            assert np.array_equal(decode_png(data), expected_pixels(rows[i]))
        for absent in ("00000004.png", "0.png", "00000000.npy"):
            assert not os.path.exists(folder / absent)
        entries = {entry.name: entry.inode() for entry in os.scandir(folder)}
        assert entries == {name: os.stat(folder / name).st_ino for name in entries}


def test_programs_know_previews_as_png(tmp_path):
    rows = counting_rows(2, 3000).reshape(2, 20, 50, 3)
    with mounted(make_dense(tmp_path / "s", rows), tmp_path / "m", "-o", "preview") as m:
        told = subprocess.run([program("file"), "-b", m / ".views/preview/00000001.png"], capture_output=True, text=True)
        assert told.stdout.startswith("PNG image data, 50 x 20, 8-bit/color RGB"), told


def test_the_size_of_a_preview_is_known_without_decoding(tmp_path):
    rows = counting_rows(30, 3000).reshape(30, 20, 50, 3)
    with mounted(make_dense(tmp_path / "s", rows), tmp_path / "m", "-o", "preview") as m:
        sizes = {entry.stat().st_size for entry in os.scandir(m / ".views/preview")}
        assert len(sizes) == 1 and m.status()["counters"]["decodes"] == 0
        big = m / ".views/preview/00000003.png"
        read_raw(big)
        assert m.status()["counters"]["decodes"] == 1


@pytest.mark.parametrize("rows", [np.zeros((2, 5), "u1"), np.zeros((2, 5, 6, 2), "u1"), np.zeros((2, 5, 6), "i1"),
                                  np.zeros((2, 5, 6, 3), "f4"), np.zeros((2, 1, 2, 3, 3), "u1")])  # fmt: skip
def test_records_that_are_no_images_have_no_previews(tmp_path, rows):
    with mounted(make_dense(tmp_path / "s", rows), tmp_path / "m", "-o", "preview") as m:
        assert "preview" not in os.listdir(m / ".views") and not os.path.exists(m / ".views/preview")


def test_previews_are_there_on_request_only(tmp_path):
    with mounted(make_dense(tmp_path / "s", np.zeros((2, 5, 6), "u1")), tmp_path / "m") as m:
        assert not os.path.exists(m / ".views/preview")


def test_previews_of_images_of_any_shape(tmp_path):
    images = [np.random.default_rng(n).integers(0, 256, shape, "u1") for n, shape in enumerate(SHAPES)]
    records = [*images, np.zeros(5, "u1"), np.zeros((2, 2, 2, 2), "u1")]
    with mounted(make_ragged(tmp_path / "s", records), tmp_path / "m", "-o", "preview") as m:
        folder = m / ".views/preview"
        assert len(os.listdir(folder)) == len(records)
        for i, image in enumerate(images):
            path = folder / f"{i:08d}.png"
            assert np.array_equal(decode_png(read_raw(path)), expected_pixels(image))
            assert os.stat(path).st_size == len(read_raw(path))
        for i in (len(images), len(images) + 1):
            assert not os.path.exists(folder / f"{i:08d}.png")
        assert m.status()["damaged"]["records"] == []


def test_a_damaged_record_has_no_preview(tmp_path):
    rows = counting_rows(5, 3000).reshape(5, 20, 50, 3)
    store = make_dense(tmp_path / "s", rows)
    offset, nbytes = location(store, 2)
    overwrite(store / "data.zr", offset, b"\xff" * nbytes)
    with mounted(store, tmp_path / "m", "-o", "preview") as m:
        with pytest.raises(OSError) as caught:
            read_raw(m / ".views/preview/00000002.png")
        assert caught.value.errno == errno.EIO
        assert np.array_equal(decode_png(read_raw(m / ".views/preview/00000003.png")), rows[3])
        assert [entry["record"] for entry in m.status()["damaged"]["records"]] == [2]


# ---------------------------------------------------------------- class folders

IMAGES = counting_rows(60, 300).reshape(60, 10, 10, 3)
LABELS = np.random.default_rng(7).integers(0, 12, 60)


def scan(root):
    """Samples and their class numbers, as torchvision's DatasetFolder finds them."""
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    samples = []
    for number, name in enumerate(classes):
        for folder, _, files in sorted(os.walk(os.path.join(root, name), followlinks=True)):
            samples += [(os.path.join(folder, file), number) for file in sorted(files)]
    return classes, samples


def build(root, labels, **streams):
    make_dense(root / "label", labels, "raw")
    for name, rows in streams.items():
        make_dense(root / name, rows)
    return root


@pytest.mark.parametrize("mode", ["always", "never"])
@pytest.mark.parametrize("dtype", ["i8", ">i4", "u1", "<u8", "i2"])
def test_a_class_folder_scan_finds_the_right_labels(tmp_path, dtype, mode):
    root = build(tmp_path / "train", LABELS.astype(dtype), image=IMAGES)
    with mounted(root, tmp_path / "m", "-o", f"classes=label,readdirplus={mode}") as m:
        classes, samples = scan(m.path)
        assert classes == [f"{label:02d}" for label in range(12)]
        assert len(samples) == 60
        seen = {}
        for path, number in samples:
            record = int(os.path.basename(path)[:8])
            seen[record] = number
            assert np.array_equal(np.load(path), IMAGES[record])
        assert [seen[i] for i in range(60)] == LABELS.tolist()


def test_a_plain_walk_gives_the_same(tmp_path):
    root = build(tmp_path / "train", LABELS, image=IMAGES)
    with mounted(root, tmp_path / "m", "--classes=label") as m:
        found = [
            (int(os.path.basename(folder)), np.load(os.path.join(folder, name)))
            for folder, _, names in os.walk(m.path)
            for name in names
        ]
        assert sorted((label, image.tobytes()) for label, image in found) == sorted(
            (int(label), image.tobytes()) for label, image in zip(LABELS, IMAGES)
        )


def test_class_folders_change_nothing_else(tmp_path):
    root = build(tmp_path / "data/train", LABELS, image=IMAGES)
    make_dense(tmp_path / "data/other", IMAGES[:4])
    make_dense(root / "mean", IMAGES[:1])  # of another length: no stream
    with mounted(tmp_path / "data", tmp_path / "m", "-o", "classes=label") as m:
        assert sorted(os.listdir(m.path)) == ["other", "train"] and len(os.listdir(m / "other")) == 4
        assert sorted(os.listdir(m / "train")) == [*(f"{label:02d}" for label in range(12)), "mean"]
        label = int(LABELS[5])
        record = m / f"train/{label:02d}" / name_of(5)
        assert read_raw(record) == npy(IMAGES[5])
        assert os.stat(record).st_ino == os.stat(m / "train/image" / name_of(5)).st_ino
        assert np.array_equal(np.load(m / "train/image/.views/all.npy"), IMAGES), "streams can be opened by name"
        wrong = m / f"train/{(label + 1) % 12:02d}" / name_of(5)
        assert not os.path.exists(wrong) and not os.path.exists(m / "train/12")
        numbers = {entry.name: entry.inode() for entry in os.scandir(m / "train")}
        assert numbers == {name: os.stat(m / "train" / name).st_ino for name in numbers}
        with zrecord.open(record.parent.parent / "image") as ds:
            assert len(ds) == 60
    with mounted(tmp_path / "data", tmp_path / "m", "-o", "classes=label") as m:
        assert numbers == {name: os.stat(m / "train" / name).st_ino for name in numbers}


def test_several_streams_lie_side_by_side(tmp_path):
    root = build(tmp_path / "train", LABELS, image=IMAGES, mask=IMAGES[:, :, :, 0])
    with mounted(root, tmp_path / "m", "-o", "classes=label") as m:
        label = f"{LABELS[5]:02d}"
        assert np.array_equal(np.load(m / label / "00000005.image.npy"), IMAGES[5])
        assert np.array_equal(np.load(m / label / "00000005.mask.npy"), IMAGES[5, :, :, 0])
        _, samples = scan(m.path)
        assert len(samples) == 120
        assert all(LABELS[int(os.path.basename(path)[:8])] == number for path, number in samples)
        for absent in (name_of(5), "5.image.npy", "00000005.label.npy", "00000005.image", "00000060.image.npy"):
            assert not os.path.exists(m / label / absent)


@pytest.mark.parametrize(
    "labels, names",
    [
        (np.array([0, 1, 1, 0] * 15, "?"), ["0", "1"]),
        (np.array(["cat", "dog", "äffchen", ""] * 15), ["_", "cat", "dog", "äffchen"]),
        (np.array([b"a/b", b".x", b"..", b"a_b"] * 15), ["_.", "_x", "a_b", "a_b_2"]),
        (np.array([-1, 5, 10, 300] * 15, "i2"), ["-01", "005", "010", "300"]),
        (np.array([2**64 - 1, 0, 7, 7] * 15, "u8"), ["0" * 20, "0" * 19 + "7", str(2**64 - 1)]),
    ],
)
def test_labels_of_other_dtypes(tmp_path, labels, names):
    root = build(tmp_path / "train", labels, image=IMAGES)
    with mounted(root, tmp_path / "m", "-o", "classes=label") as m:
        assert sorted(os.listdir(m.path)) == sorted(names)
        by_label = {}
        for name in names:
            ids = [int(file[:8]) for file in os.listdir(m / name)]
            assert len({labels[i] for i in ids}) == 1
            by_label[labels[ids[0]]] = ids
        assert {i for ids in by_label.values() for i in ids} == set(range(60))
        assert all(labels[i] == label for label, ids in by_label.items() for i in ids)


@pytest.mark.parametrize("labels", [np.zeros(60, "f4"), np.zeros((60, 2), "i4")])
def test_a_stream_that_is_no_label_is_said_so_and_shown_as_before(tmp_path, labels):
    root = build(tmp_path / "train", labels, image=IMAGES)
    with mounted(root, tmp_path / "m", "-o", "classes=label") as m:
        assert sorted(os.listdir(m.path)) == ["image", "label"]
        assert "classes= needs" in m.log
        assert "classes= needs" in m.status()["warnings"][0]


def test_what_lies_beside_class_folders_is_told(tmp_path):
    root = build(tmp_path / "train", LABELS, image=IMAGES)
    with mounted(root, tmp_path / "m", "-o", "classes=label") as m:
        assert len(os.listdir(m.path)) == 12 and m.status()["warnings"] == []
    make_dense(root / "boxes", IMAGES[:7])
    with mounted(root, tmp_path / "m", "-o", "classes=label") as m:
        assert len(os.listdir(m.path)) == 13
        assert ["boxes is no stream of the 60 records of label" in text for text in m.status()["warnings"]] == [True]
        assert m.log.count("boxes is no stream") == 1


@pytest.mark.parametrize("kind", ["store", "folder"])
def test_a_class_goes_before_what_has_its_name(tmp_path, kind):
    root = build(tmp_path / "train", np.arange(60) % 2, image=IMAGES)
    make_dense(root / ("0" if kind == "store" else "0/inner"), IMAGES[:2])
    with mounted(root, tmp_path / "m", "-o", "classes=label") as m:
        assert sorted(os.listdir(m.path)) == ["0", "1"]
        assert sorted(os.listdir(m / "0")) == [name_of(i) for i in range(0, 60, 2)]
        assert "0 is no stream" in m.status()["warnings"][0]


def test_classes_that_are_nowhere_are_told(tmp_path):
    root = build(tmp_path / "train", LABELS, image=IMAGES)
    with mounted(root, tmp_path / "m", "-o", "classes=nope") as m:
        assert sorted(os.listdir(m.path)) == ["image", "label"]
        text = f"classes=nope: no store of that name is below {root}"
        assert m.status()["warnings"] == [text] and text in m.log


def test_class_folders_follow_stores_that_come_and_go(tmp_path):
    root = build(tmp_path / "train", LABELS, image=IMAGES)
    with mounted(root, tmp_path / "m", "-o", "classes=label") as m:
        label = f"{LABELS[5]:02d}"
        assert read_raw(m / label / name_of(5)) == npy(IMAGES[5])
        make_dense(root / "mask", IMAGES[:, :, :, 0])
        wait_for(lambda: os.path.exists(m / label / "00000005.mask.npy"), 5, "seeing another stream")
        assert np.array_equal(np.load(m / label / "00000005.image.npy"), IMAGES[5])


def test_classes_need_a_tree(tmp_path):
    store = make_dense(tmp_path / "s", LABELS)
    (tmp_path / "m").mkdir()
    ran = subprocess.run([PROGRAM, "-o", "classes=label", store, tmp_path / "m"], capture_output=True, text=True)
    assert ran.returncode == 1 and "needs a folder of stores" in ran.stderr
    for value in ("", ".x", "a/b"):
        ran = subprocess.run([PROGRAM, "-o", f"classes={value}", store, tmp_path / "m"], capture_output=True, text=True)
        assert ran.returncode == 2
