# SPDX-License-Identifier: MIT
"""Whether a backend's answer is the right one: exact dtype, shape, order and values.

Nothing is timed that was not checked first: every record in a sweep, and every plan that the
timed rounds will ask for.
"""

import ctypes

import numpy as np
import plans

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class WrongAnswer(AssertionError):
    """A backend gave something else than was written."""


def same_bytes(a, b):
    """Equality of two C-contiguous arrays of the same size, NaN equal to itself."""
    return a.nbytes == b.nbytes and not _memcmp(a.ctypes.data, b.ctypes.data, a.nbytes)


def same(got, expected):
    """Equal dtype, shape and values."""
    if not isinstance(got, np.ndarray) or got.dtype != expected.dtype:
        return False
    if got.shape != expected.shape:
        return False
    return same_bytes(np.ascontiguousarray(got), np.ascontiguousarray(expected))


def unpack(values, offsets, shapes):
    """The records of a packed answer, one array each."""
    cuts = np.asarray(offsets).tolist()
    dims = [tuple(map(int, shape)) for shape in shapes]
    return [values[a:b].reshape(dim) for a, b, dim in zip(cuts, cuts[1:], dims)]


def same_list(got, expected):
    """Equality of two lists of arrays; small ones by their joined bytes, which is quick."""
    if not isinstance(got, list) or len(got) != len(expected):
        return False
    if not expected or expected[0].nbytes > 1 << 14:
        return all(map(same, got, expected))
    if not all(isinstance(one, np.ndarray) for one in got):
        return False
    if [(a.shape, a.dtype) for a in got] != [(a.shape, a.dtype) for a in expected]:
        return False
    return b"".join(map(np.ascontiguousarray, got)) == b"".join(expected)


def compare(name, got, expected, ids):
    """Raise WrongAnswer where an answer is not what was written."""
    if isinstance(got, tuple):
        got = unpack(*got)
    if not isinstance(expected, list):
        if not same(got, expected):
            raise WrongAnswer(f"{name}: another answer for records {list(ids)[:8]}...")
    elif not same_list(got, expected):
        wrong = [i for i, one, right in zip(ids, got, expected) if not same(one, right)]
        raise WrongAnswer(f"{name}: another answer for records {wrong[:8] or 'of a batch'}")


def sweep(backend, workload):
    """Every record of a backend, in order."""
    for ids in plans.sweep(len(workload), workload.batch):
        compare(backend.name, backend.answer(ids), workload.take(ids), ids)


def planned(backends, shares, rounds, workload):
    """Every plan of every round for each backend that will run it; expected answers made once.

    `shares` says how many plans of a round each backend runs, by name.
    """
    for batch_plans in rounds:
        for number, ids in enumerate(batch_plans):
            askers = [b for b in backends if number < shares[b.name]]
            if not askers:
                break
            expected = workload.take(ids)
            for backend in askers:
                compare(backend.name, backend.answer(ids), expected, ids)
