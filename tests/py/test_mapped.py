# SPDX-License-Identifier: MIT
"""mapped_nbytes: what of a store counts as memory of the process that reads it."""

import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import zrecord

RECORD_NBYTES = 64 << 10
COUNT = 96
AROUND_NBYTES = 128 << 10  # the kernel maps the neighbours of a page that is touched


def images(folder, codec):
    records = np.random.default_rng(1).integers(0, 255, (COUNT, RECORD_NBYTES), np.uint8)
    with zrecord.Dense.create(folder / codec, np.uint8, (RECORD_NBYTES,), codec) as store:
        store.append(records)
    return folder / codec, records


def mapped_nbytes(path):
    """Resident bytes of this process's mapping of a store's records."""
    text = Path("/proc/self/smaps").read_text()
    entry = re.search(rf"{re.escape(str(path))}/data\.zr\n(?:.*\n)*?Rss: +(\d+) kB", text)
    return int(entry[1]) * 1024


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_no_more_is_mapped_than_was_allowed(tmp_path, codec):
    path, records = images(tmp_path, codec)
    store = zrecord.open(path)
    assert (store[:] == records).all() and mapped_nbytes(path) >= records.nbytes
    store.close()
    for limit in (0, 1 << 20, 3 << 20):
        store = zrecord.Dense.open(path, mapped_nbytes=limit)
        for ids in (range(COUNT), reversed(range(COUNT)), [0, 95, 0]):
            ids = list(ids)
            assert (store[ids] == records[ids]).all()
        assert (store[50] == records[50]).all()
        assert mapped_nbytes(path) <= limit + AROUND_NBYTES
        if limit:
            assert mapped_nbytes(path) >= limit - AROUND_NBYTES
        with zrecord.DataLoader({"x": store}, batch_size=32, mode=0) as loader:
            assert (next(loader)["x"] == records[:32]).all()
        again = pickle.loads(pickle.dumps(store))
        store.close()
        assert (again[:] == records).all() and mapped_nbytes(path) <= limit + AROUND_NBYTES
        again.close()


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_ragged_records_behind_the_limit_are_the_same(tmp_path, codec):
    records = [np.arange(n, dtype=np.int32).reshape(n, *(1,) * (n % 3)) for n in range(1, 400)]
    with zrecord.Ragged.create(tmp_path / "r", np.int32, codec) as store:
        store.append(records)
    for limit in (0, 1000, 100_000, 1 << 40, None):
        with zrecord.Ragged.open(tmp_path / "r", mapped_nbytes=limit) as store:
            for got, record in zip(store[:], records):
                assert got.shape == record.shape and (got == record).all()
            values, offsets, _ = store.packed(np.arange(len(records)))
            assert (values == np.concatenate([r.ravel() for r in records])).all()
            assert offsets[-1] == len(values)


def test_a_limit_that_is_none_is_refused(tmp_path):
    path, _ = images(tmp_path, "raw")
    for open_it in (zrecord.open, zrecord.Dense.open):
        with pytest.raises(ValueError, match="mapped_nbytes must be at least 0, not -1"):
            open_it(path, mapped_nbytes=-1)
        with pytest.raises(TypeError):
            open_it(path, mapped_nbytes=1.5)
        open_it(path, mapped_nbytes=2**70).close()
