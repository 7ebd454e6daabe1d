# SPDX-License-Identifier: MIT
"""Bad input: the right exception, a message that names file, record and reason, nothing left behind."""

import copy
import errno
import os
import pickle
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest

import zrecord
from zrecord import Dense, Ragged, ZrecordError, errors

# Damage to the table also parts the store from its checksums; that is not the point here.
pytestmark = pytest.mark.filterwarnings("ignore:.*sidecar ignored:zrecord.ZrecordWarning")

ROWS = np.arange(64, dtype=np.int32).reshape(16, 4)


@pytest.fixture
def store(tmp_path):
    with Dense.create(tmp_path / "s", "i4", (4,)) as writer:
        writer.append(ROWS)
    return tmp_path / "s"


def open_and_read(path, checksums=False):
    with zrecord.open(path, checksums=checksums) as reader:
        return reader[:]


def fails(path, *codes):
    """Opening or reading fails with one of the codes and names the store."""
    with pytest.raises(ZrecordError) as caught:
        open_and_read(path)
    assert caught.value.code in codes, str(caught.value)
    assert path.name in str(caught.value)
    assert "\n" not in str(caught.value)
    return caught.value


# ---------------------------------------------------------------- the exceptions


CLASSES = [
    (-1, MemoryError),
    (-2, OSError),
    (-3, ValueError),
    (-4, ValueError),
    (-5, OSError),
    (-7, RuntimeError),
    (-11, FileNotFoundError),
    (-12, FileExistsError),
    (-13, RuntimeError),
    (-17, PermissionError),
    (-19, IndexError),
    (-20, ValueError),
    (-21, ValueError),
]


@pytest.mark.parametrize("code, builtin", CLASSES)
def test_codes_are_builtin_exceptions_too(code, builtin):
    exc = errors.make_error(code, "somewhere: record 5: broken", 5, errno.EIO, "somewhere")
    assert (
        isinstance(exc, ZrecordError) and isinstance(exc, RuntimeError) and isinstance(exc, builtin)
    )
    assert (exc.code, exc.record, exc.errno, exc.path) == (code, 5, errno.EIO, "somewhere")
    assert str(exc) == "somewhere: record 5: broken"
    for twin in (pickle.loads(pickle.dumps(exc)), copy.copy(exc), copy.deepcopy(exc)):
        assert type(twin) is type(exc)
        assert str(twin) == str(exc)
        assert (twin.code, twin.record, twin.errno, twin.path) == (code, 5, errno.EIO, "somewhere")
    if isinstance(exc, OSError):
        assert exc.filename == "somewhere" and exc.strerror == str(exc)


def test_a_code_alone_has_a_text():
    exc = ZrecordError(-7)
    assert exc.code == -7 and "damaged" in str(exc)
    assert exc.record is None


# ---------------------------------------------------------------- paths


def test_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere") as caught:
        zrecord.open(tmp_path / "nowhere")
    assert caught.value.code == -11 and caught.value.errno == errno.ENOENT
    for kind in (Dense, Ragged):
        with pytest.raises(FileNotFoundError):
            kind.open(tmp_path / "nowhere" / "deeper")


def test_not_a_store(tmp_path):
    (tmp_path / "file").write_bytes(b"hello")
    (tmp_path / "folder").mkdir()
    for name in ("file", "folder"):
        with pytest.raises(ZrecordError, match=name):
            zrecord.open(tmp_path / name)


def test_existing_path(store, tmp_path):
    (tmp_path / "file").write_bytes(b"hello")
    (tmp_path / "folder").mkdir()
    for path in (store, tmp_path / "file", tmp_path / "folder"):
        with pytest.raises(FileExistsError, match=path.name) as caught:
            Dense.create(path, "i4", (4,))
        assert isinstance(caught.value, ZrecordError) and caught.value.code == -12
    assert np.array_equal(open_and_read(store), ROWS)


def test_path_taken_between_create_and_close(store, tmp_path):
    writer = Dense.create(tmp_path / "t", "i4", (4,))
    writer.append(ROWS)
    shutil.copytree(store, tmp_path / "t")
    with pytest.raises(ZrecordError):
        writer.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s", "t"]


def test_two_writers_on_one_path(tmp_path):
    with Dense.create(tmp_path / "t", "i4", (4,)) as writer:
        with pytest.raises(ZrecordError) as caught:
            Dense.create(tmp_path / "t", "i4", (4,))
        assert caught.value.code == -13
        writer.append(ROWS)
    assert np.array_equal(open_and_read(tmp_path / "t"), ROWS)


def as_nobody(call):
    """What call() raises when run by an ordinary user: a forked child when the tests run as root."""
    if os.getuid() != 0:
        with pytest.raises(Exception) as caught:
            call()
        return caught.value
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            call()
            outcome = AssertionError("it was allowed")
        except BaseException as exc:
            outcome = exc
        os.write(writer, pickle.dumps(outcome))
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        outcome = pickle.load(file)
    os.waitpid(pid, 0)
    return outcome


def test_no_permission():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        store = Path(folder, "s")
        with Dense.create(store, "i4", ()) as writer:
            writer.append(np.zeros(3, "i4"))
        os.chmod(store / "meta.zr", 0)
        if os.getuid() != 0:
            os.chmod(folder, 0o555)
        error = as_nobody(lambda: zrecord.open(store))
        assert isinstance(error, PermissionError) and isinstance(error, ZrecordError), error
        assert error.code == -17 and "meta.zr" in str(error)
        error = as_nobody(lambda: Dense.create(Path(folder, "new", "er"), "i4", ()))
        assert isinstance(error, PermissionError) and error.code == -17
        assert os.listdir(folder) == ["s"]
        os.chmod(folder, 0o755)


@pytest.mark.skipif(os.getuid() != 0, reason="mounting a small tmpfs needs root")
@pytest.mark.parametrize("geometry", ["dense", "ragged"])
def test_full_disk(tmp_path, geometry):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]).returncode:
        pytest.skip("tmpfs cannot be mounted here")
    try:
        noise = np.random.default_rng(0).integers(0, 256, (64, 1 << 16), dtype=np.uint8)
        if geometry == "dense":
            writer = Dense.create(disk / "s", "u1", (1 << 16,))
        else:
            writer = Ragged.create(disk / "s", "u1")
        with pytest.raises(OSError) as caught:
            with writer:
                writer.append(noise)
        assert caught.value.code == -5 and caught.value.errno == errno.ENOSPC
        assert "s" in str(caught.value)
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_failed_writer_closes_with_an_error(tmp_path):
    """After a failure the store cannot be finished, and says so when closed outside of with."""
    writer = Ragged.create(tmp_path / "s", np.int32)

    def broken():
        for _ in range(20):
            yield np.zeros(1 << 20, np.int32)
        raise OSError("source")

    with pytest.raises(OSError, match="source"):
        writer.append(broken())
    with pytest.raises(ZrecordError) as caught:
        writer.close()
    assert caught.value.code == -16
    writer.close()
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- damaged stores


def test_meta_cut_at_every_length(store):
    meta = (store / "meta.zr").read_bytes()
    assert len(meta) == 4096 + 16 * len(ROWS)
    for length in range(len(meta)):
        (store / "meta.zr").write_bytes(meta[:length])
        with pytest.raises(ZrecordError):
            open_and_read(store)
    (store / "meta.zr").write_bytes(meta)
    assert np.array_equal(open_and_read(store), ROWS)


def test_data_cut_at_every_length(store):
    data = (store / "data.zr").read_bytes()
    for length in range(len(data)):
        (store / "data.zr").write_bytes(data[:length])
        fails(store, -14)
    (store / "data.zr").write_bytes(data)
    assert np.array_equal(open_and_read(store), ROWS)


@pytest.mark.parametrize("name", ["meta.zr", "data.zr"])
def test_missing_file(store, name):
    (store / name).unlink()
    fails(store, -11, -8, -14)


def patch(path, offset, data):
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def test_reserved_bytes_and_codec(store):
    patch(store / "meta.zr", 24, b"\x01")
    fails(store, -8, -15)
    patch(store / "meta.zr", 24, b"\x00")
    patch(store / "meta.zr", 31, b"\x09")
    fails(store, -8, -15)


def test_table_entry_past_the_end(store):
    patch(store / "meta.zr", 4096 + 3 * 16, struct.pack("<Q", 1 << 40))
    error = fails(store, -7, -14)
    assert error.record == 3 and "3" in str(error)


def test_wrong_logical_length(store):
    patch(store / "meta.zr", 4096 + 5 * 16 + 12, struct.pack("<I", 12))
    assert fails(store, -7).record == 5


def test_frame_of_another_size(store, tmp_path):
    """The frame of a longer record, put in the place of a short one."""
    with Dense.create(tmp_path / "t", "i4", (8,)) as writer:
        writer.append(np.zeros((1, 8), "i4"))
    frame = (tmp_path / "t" / "data.zr").read_bytes()
    size = (store / "data.zr").stat().st_size
    with open(store / "data.zr", "ab") as file:
        file.write(frame)
    patch(store / "meta.zr", 8, struct.pack("<Q", size + len(frame)))
    patch(store / "meta.zr", 4096 + 2 * 16, struct.pack("<QI", size, len(frame)))
    shutil.rmtree(tmp_path / "t")
    (error,) = [fails(store, -7)]
    assert error.record == 2


def test_one_damaged_record_leaves_the_others(store):
    offset, physical, _ = struct.unpack(
        "<QII", (store / "meta.zr").read_bytes()[4096 + 16 * 4 :][:16]
    )
    patch(store / "data.zr", offset, b"\xff" * physical)
    assert fails(store, -7).record == 4
    with zrecord.open(store) as reader:
        assert np.array_equal(reader[[3, 5]], ROWS[[3, 5]])
        with pytest.raises(ZrecordError):
            reader[4]
        result = zrecord.verify(reader)
    assert not result.ok and result.bad == 1 and result.checked == 16
    assert result.findings[0].record == 4 and result.findings[0].code == -7


def test_verify_names_every_bad_record(tmp_path):
    with Dense.create(tmp_path / "s", "i4", (4,), "raw") as writer:
        writer.append(ROWS)
    patch(tmp_path / "s" / "data.zr", 16 * 2, b"\xff")
    patch(tmp_path / "s" / "data.zr", 16 * 9 + 5, b"\xff")
    calls = []
    result = zrecord.verify(
        tmp_path / "s", progress=lambda done, total: calls.append((done, total))
    )
    assert [finding.record for finding in result.findings] == [2, 9]
    assert {finding.code for finding in result.findings} == {-18}
    assert result.bad == 2 and result.checksums_compared
    assert all(done <= total for done, total in calls)

    def stop(done, total):
        raise KeyError("enough")

    if calls:
        with pytest.raises(KeyError, match="enough"):
            zrecord.verify(tmp_path / "s", stop)


def test_ragged_shape_that_lies(tmp_path):
    with Ragged.create(tmp_path / "s", "i4", "raw") as writer:
        writer.append([np.arange(4, dtype="i4"), np.arange(4, dtype="i4")])
    for prefix in ((1, 5), (1, 2**61), (9, 4), (2**63, 4), (1, 0)):
        patch(tmp_path / "s" / "data.zr", 0, struct.pack("<QQ", *prefix))
        for read in (lambda r: r[:], lambda r: r[0], lambda r: r.packed([0])):
            with Ragged.open(tmp_path / "s") as reader:
                with pytest.raises(ZrecordError) as caught:
                    read(reader)
                assert caught.value.code == -7 and caught.value.record == 0
                assert np.array_equal(reader[1], np.arange(4))


# ---------------------------------------------------------------- schema and geometry


def test_the_other_geometry(tmp_path, store):
    Ragged.create(tmp_path / "r", "i4").close()
    with pytest.raises(ValueError, match="ragged store.*Ragged.open") as caught:
        Dense.open(tmp_path / "r")
    assert isinstance(caught.value, ZrecordError) and caught.value.code == -21
    with pytest.raises(ValueError, match="dense store.*Dense.open"):
        Ragged.open(store)
    assert type(zrecord.open(store)) is Dense and type(zrecord.open(tmp_path / "r")) is Ragged


@pytest.mark.parametrize(
    "schema",
    [
        b"",
        b"\x80",
        b"\xc0",
        b"\x81\xa5dtype\xa3<i4",
        b"\x82\xa5dtype\xa2|O\xaaitem_shape\x91\x04",
        b"\x82\xa5dtype\xa3<i4\xaaitem_shape\x91\xff",
        b"\x82\xa5dtype\xa3<i4\xaaitem_shape\x91\x05",
        b"\x82\xa5dtype\xa3<i4\xa5other\x91\x04",
        b"\x82\xa5dtype\xa3<zz\xaaitem_shape\x91\x04",
        b"\x83\xa5dtype\xa3<i4\xaaitem_shape\x91\x04\xa1x\x01",
        b"\xdf\xff\xff\xff\xff",
    ],
    ids=repr,
)
def test_foreign_schemas(store, schema):
    page = bytearray((store / "meta.zr").read_bytes())
    page[16:20] = struct.pack("<I", len(schema))
    page[32:4096] = schema.ljust(4064, b"\0")
    (store / "meta.zr").write_bytes(page)
    with pytest.raises(ZrecordError) as caught:
        Dense.open(store)[:]
    assert "meta.zr" in str(caught.value) or store.name in str(caught.value)


def test_newer_layout_is_named(tmp_path):
    """loaderx 2.8 splits the payload over data_0.zr, data_1.zr and so on."""
    folder = tmp_path / "newer"
    folder.mkdir()
    (folder / "meta.zr").write_bytes(b"\0" * 4096)
    (folder / "data_0.zr").write_bytes(b"\0" * 100)
    with pytest.raises(ZrecordError, match="newer") as caught:
        zrecord.open(folder)
    assert caught.value.code in (-15, -8)


# ---------------------------------------------------------------- dictionaries


@pytest.fixture
def with_dictionary(tmp_path):
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 30, (2000, 64)).astype(np.int32)
    dictionary = zrecord.train_dict(rows, "fast")
    with Dense.create(tmp_path / "d", "i4", (64,), "zstd_dict", dictionary) as writer:
        writer.append(rows)
    return tmp_path / "d", rows


def test_missing_dictionary(with_dictionary):
    path, _ = with_dictionary
    (path / "dict.zr").unlink()
    fails(path, -10)


def test_wrong_dictionary(with_dictionary):
    path, rows = with_dictionary
    other = zrecord.train_dict(rows[::-1] * 3 + 7, "fast")
    (path / "dict.zr").write_bytes(other)
    with pytest.raises(ZrecordError) as caught:
        open_and_read(path, checksums=True)
    assert caught.value.code in (-10, -7, -18)


def test_extra_dictionary(store):
    (store / "dict.zr").write_bytes(b"\x37\xa4\x30\xec" + b"\0" * 100)
    fails(store, -10)


# ---------------------------------------------------------------- other handles


def test_open_while_a_writer_of_the_old_layout_holds_it(store):
    import fcntl

    with open(store / "meta.zr", "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ZrecordError) as caught:
            zrecord.open(store)
        assert caught.value.code == -13
    zrecord.open(store).close()


def test_a_sidecar_of_another_store_is_a_warning(store, tmp_path):
    with Dense.create(tmp_path / "t", "i4", (4,)) as writer:
        writer.append(ROWS[::-1])
        writer.append(ROWS)
    ours = {p.name for p in store.iterdir()} - {"meta.zr", "data.zr"}
    assert len(ours) == 1
    (name,) = ours
    shutil.copy(tmp_path / "t" / name, store / name)
    with pytest.warns(zrecord.ZrecordWarning, match=name.replace(".", r"\.")):
        reader = zrecord.open(store)
    assert np.array_equal(reader[:], ROWS)
    assert not zrecord.verify(reader).checksums_compared
    reader.close()


def test_a_store_cut_while_it_is_open(store):
    """Mapped files that shrink are an error, not the end of the process."""
    reader = zrecord.open(store)
    os.truncate(store / "data.zr", 0)
    with pytest.raises(ZrecordError):
        reader[:]
    reader.close()


def test_messages_survive_odd_paths(tmp_path):
    path = tmp_path / "größe\udcff"
    with pytest.raises(FileNotFoundError) as caught:
        zrecord.open(path)
    assert os.fsencode("größe\udcff") in os.fsencode(str(caught.value))
