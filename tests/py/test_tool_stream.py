# SPDX-License-Identifier: MIT
"""zrecord import -: raw records on standard input, of any length, in bounded memory."""

import os
import signal
import subprocess
import threading
import time

import numpy as np
import pytest
from conftest import BUILD, peak_anonymous_mib


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def noise(rows=3000, columns=50):
    return np.random.default_rng(0).integers(0, 50, (rows, columns), dtype="<i4")


@pytest.fixture
def pipe(zrecord_tool):
    """Imports these bytes through a pipe."""

    def run(data, *options, store="s"):
        return zrecord_tool("import", "--no-sync", "-", store, *options, input=data, text=False)

    return run


def line_of(done, status=1):
    """The first line of stderr, of a run that failed and left nothing."""
    assert (done.returncode, done.stdout) == (status, b"")
    assert os.listdir() == []
    return done.stderr.decode().splitlines()[0].removeprefix("zrecord: import: ")


@pytest.mark.parametrize("codec", ["raw", "zstd", "zstd_dict"])
@pytest.mark.parametrize("geometry", ["--dense", "--ragged"])
def test_what_goes_in_comes_out(here, pipe, zrecord_tool, codec, geometry):
    array = noise()
    done = pipe(array.tobytes(), "--dtype", "<i4", "--shape", "5,10", "--codec", codec, geometry)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"s: 3000 {geometry[2:]} records of <i4".encode()) and b"585.9 KiB" in done.stdout
    assert zrecord_tool("export", "s", "out").returncode == 0
    for i in range(0, 3000, 271):
        assert np.array_equal(np.load(f"out/{i:08d}.npy"), array[i].reshape(5, 10))
    assert zrecord_tool("verify", "s").returncode == 0


def test_a_dictionary_from_a_stream_longer_than_its_samples(here, pipe, zrecord_tool):
    """The first rows are kept for training and stored from there, the rest follows."""
    array = noise(40000)  # 7.6 MiB; tier fast trains on 4
    assert pipe(array.tobytes(), "--dtype", "i4", "--shape", "50", "--codec", "zstd_dict", "--tier", "fast").returncode == 0
    assert zrecord_tool("export", "s", "b.npy").returncode == 0
    assert np.array_equal(np.load("b.npy"), array)


DTYPES = {"float32": "<f4", "f4": "<f4", "=f4": "<f4", ">f4": ">f4", "<u1": "|u1", "bool": "|b1", "S5": "|S5",
          "U3": "<U3", "M8[ns]": "<M8[ns]", "complex64": "<c8", "int64": "<i8", "|V6": "|V6"}


@pytest.mark.parametrize("text", DTYPES)
def test_dtypes_as_numpy_spells_them(here, pipe, zrecord_tool, text):
    dtype = DTYPES[text]
    assert np.dtype(text).str == dtype
    assert pipe(bytes(np.dtype(dtype).itemsize * 6), "--dtype", text, "--shape", "3", "-q").returncode == 0
    assert f"dtype         {dtype}\n" in zrecord_tool("info", "s").stdout


SHAPES = {"3,4": (3, 4), "(3, 4)": (3, 4), "12": (12,), "(12,)": (12,), "()": (), "": (), "1,1,12": (1, 1, 12)}


@pytest.mark.parametrize("text", SHAPES)
def test_shapes_as_python_and_info_write_them(here, pipe, zrecord_tool, text):
    assert pipe(bytes(24), "--dtype", "u2", "--shape", text, "-q").returncode == 0
    assert zrecord_tool("export", "s", "a.npy").returncode == 0
    count = 12 // int(np.prod(SHAPES[text], dtype=int))
    assert np.load("a.npy").shape == (count, *SHAPES[text])


def test_from_a_file_at_its_position(here, zrecord_tool):
    """As a shell does it that has read a header from the same descriptor."""
    open("raw", "wb").write(b"header--" + noise(10).tobytes())
    with open("raw", "rb", buffering=0) as file:
        file.seek(8)
        done = zrecord_tool("import", "-", "s", "--dtype", "i4", "--shape", "50", stdin=file)
    assert done.stdout.startswith("s: 10 dense records")


def test_a_slow_pipe_in_odd_pieces(here, zrecord_tool):
    data = noise(20).tobytes()
    child = subprocess.Popen([BUILD / "zrecord", "import", "-q", "--dtype", "i4", "--shape", "50", "-", "s"], stdin=subprocess.PIPE)
    for start in range(0, len(data), 333):
        child.stdin.write(data[start : start + 333])
        child.stdin.flush()
        time.sleep(0.002)
    child.stdin.close()
    assert child.wait(timeout=60) == 0
    assert zrecord_tool("export", "s", "a.npy").returncode == 0
    assert np.array_equal(np.load("a.npy"), noise(20))


def test_nothing_makes_an_empty_store(here, pipe, zrecord_tool):
    assert pipe(b"", "--dtype", "i4", "--shape", "3").stdout.startswith(b"s: 0 dense records of <i4 (3,)")
    assert zrecord_tool("verify", "s").returncode == 0


# ---------------------------------------------------------------- what cannot be stored


@pytest.mark.parametrize("codec", ["raw", "zstd_dict"])
@pytest.mark.parametrize("nbytes", [1, 199, 200 * 3000 - 1])
def test_a_partial_last_record_is_named(here, pipe, codec, nbytes):
    whole, rest = divmod(nbytes, 200)
    done = pipe(noise().tobytes()[:nbytes], "--dtype", "i4", "--shape", "50", "--codec", codec)
    assert line_of(done) == f"standard input: ends inside record {whole}: {rest} of its 200 bytes are there"


def test_a_partial_record_far_into_the_stream(here, pipe):
    done = pipe(bytes(50_000_001), "--dtype", "u1", "--shape", "1000", "--codec", "raw")
    assert line_of(done) == "standard input: ends inside record 50000: 1 of its 1000 bytes are there"


WRONG_USAGE = [
    (["-"], "standard input needs --dtype and --shape"),
    (["-", "--dtype", "i4"], "standard input needs --dtype and --shape"),
    (["-", "--shape", "3"], "standard input needs --dtype and --shape"),
    (["a.npy", "--dtype", "i4"], "--dtype and --shape are for raw bytes on standard input"),
    (["-", "--dtype", "x4", "--shape", "3"], "--dtype 'x4'"),
    (["-", "--dtype", "", "--shape", "3"], "--dtype ''"),
    (["-", "--dtype", "O", "--shape", "3"], "--dtype 'O'"),
    (["-", "--dtype", "i4,f4", "--shape", "3"], "--dtype 'i4,f4'"),
    (["-", "--dtype", "V" + "9" * 200, "--shape", "3"], "--dtype 'V999"),
    *[(["-", "--dtype", "i4", "--shape", text], f"--shape '{text}'") for text in
      ["-1", "3;4", ",3", "3,,4", "(3", "3)", "a", "3 4", "1e3", "99999999999999999999", ",".join("1" * 65)]],
]


@pytest.mark.parametrize("args,reason", WRONG_USAGE, ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else "")
def test_wrong_usage(here, zrecord_tool, args, reason):
    done = zrecord_tool("import", args[0], "s", *args[1:], input="")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"zrecord: import: {reason}")
    assert os.listdir() == []


@pytest.mark.parametrize("shape,reason", [("0", "zero bytes"), ("2147483649", "2147483649"), ("4294967296,4294967296", "too large")])
def test_records_that_no_store_can_have(here, pipe, shape, reason):
    assert reason in line_of(pipe(b"", "--dtype", "u1", "--shape", shape))


def test_odd_standard_inputs(here):
    command = [BUILD / "zrecord", "import", "--dtype", "i4", "--shape", "3", "-", "s"]
    done = subprocess.run(["sh", "-c", '"$@" <&-', "sh", *command], capture_output=True)
    assert line_of(done) == "standard input: Bad file descriptor"
    folder = os.open(".", os.O_RDONLY)
    done = subprocess.run(command, stdin=folder, capture_output=True)
    os.close(folder)
    assert line_of(done) == "standard input: Is a directory"
    main, terminal = os.openpty()
    done = subprocess.run(command, stdin=terminal, capture_output=True)
    os.close(main), os.close(terminal)
    assert "is a terminal" in line_of(done)


def test_an_existing_store_is_refused_before_anything_is_read(here):
    os.mkdir("s")
    reader, writer = os.pipe()  # a read would wait for ever
    done = subprocess.run([BUILD / "zrecord", "import", "--dtype", "i4", "--shape", "3", "-", "s"], stdin=reader, capture_output=True, timeout=30)
    os.close(reader), os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"zrecord: import: s: File exists\n")


# ---------------------------------------------------------------- memory, signals


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_memory_does_not_grow_with_the_stream(here, codec):
    command = [BUILD / "zrecord", "import", "-q", "--no-sync", "--dtype", "u1", "--shape", "1024", "--codec", codec, "-", "s"]
    with open("/dev/zero", "rb") as zeros:
        head = subprocess.Popen(["head", "-c", str(500 << 20)], stdin=zeros, stdout=subprocess.PIPE)
        child = subprocess.Popen(command, stdin=head.stdout)
        head.stdout.close()
        assert peak_anonymous_mib(child) < 150
    assert (head.wait(), child.returncode) == (0, 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("sent", [0, 5_000_000])
def test_interrupted_while_it_waits_for_input(here, number, sent):
    """Nothing more comes, so only the signal can end it."""
    command = [BUILD / "zrecord", "import", "--dtype", "u1", "--shape", "10", "--codec", "raw", "-", "s"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=False)
    child.stdin.write(bytes(sent))
    child.stdin.flush()
    deadline = time.monotonic() + 60
    while not os.listdir():
        assert time.monotonic() < deadline and child.poll() is None
        time.sleep(0.002)
    time.sleep(0.05)
    child.send_signal(number)
    assert child.wait(timeout=30) == -number
    assert child.stderr.read() == b"zrecord: import: s: interrupted, nothing was made\n"
    assert os.listdir() == []


def test_killed_anywhere_nothing_opens_and_it_can_be_repeated(here, zrecord_tool):
    command = [BUILD / "zrecord", "import", "-q", "--dtype", "u1", "--shape", "10", "-", "s"]
    for sent in [0, 100_000, 1_500_000, 3_000_000]:
        child = subprocess.Popen(command, stdin=subprocess.PIPE)
        feed = threading.Thread(target=lambda: child.stdin.write(bytes(sent)))
        feed.start()
        feed.join(timeout=30)
        time.sleep(0.03)
        child.kill()
        child.wait(timeout=30)
        assert not os.path.exists("s")
        for name in os.listdir():
            assert zrecord_tool("info", name).returncode == 1
    done = subprocess.run(command, input=bytes(100))
    assert done.returncode == 0 and os.listdir() == ["s"]
