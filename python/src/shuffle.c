/* SPDX-License-Identifier: MIT
 *
 * The arithmetic of celeres-dl's block shuffle, for zrecord.cdl: plain functions
 * over the engine's.  Arguments are checked and wrapped to 64 bits in Python.
 */
#include "core.h"

/* From this many ids on, a call takes long enough to let other threads run. */
#define RELEASE_COUNT_MIN 128

typedef unsigned long long ull;

/* On recycled memory: the page faults of a fresh epoch cost more than its ids. */
static PyObject *new_ids(PyObject *module, uint64_t count)
{
    if (count > PY_SSIZE_T_MAX / sizeof(uint64_t))
        return PyErr_NoMemory();
    npy_intp dim = (npy_intp)count;
    PyArray_Descr *dtype = PyArray_DescrFromType(NPY_UINT64);
    PyObject *ids = zpy_array_new(PyModule_GetState(module), dtype, 1, &dim, count * sizeof(uint64_t));
    Py_DECREF(dtype);
    return ids;
}

static int check_range(uint64_t length, uint64_t first, uint64_t count)
{
    if (first <= length && count <= length - first)
        return 0;
    PyErr_Format(PyExc_IndexError, "positions %llu..%llu are outside 0..%llu", (ull)first,
                 (ull)(first + count), (ull)length);
    return -1;
}

/* block_shuffle_ids(length, block_size, seed, rounds, first, count) */
PyObject *zpy_block_shuffle_ids(PyObject *module, PyObject *args)
{
    ull length, block_size, seed, first, count;
    struct zr_block_shuffle s;
    if (!PyArg_ParseTuple(args, "KKKIKK", &length, &block_size, &seed, &s.rounds, &first, &count) ||
        check_range(length, first, count) < 0)
        return NULL;
    s.length = length;
    s.block_size = block_size;
    s.seed = seed;
    PyObject *ids = new_ids(module, count);
    if (!ids)
        return NULL;
    uint64_t *at = PyArray_DATA((PyArrayObject *)ids);
    if (count < RELEASE_COUNT_MIN) {
        zr_block_shuffle_ids(&s, first, count, at);
        return ids;
    }
    Py_BEGIN_ALLOW_THREADS;
    zr_block_shuffle_ids(&s, first, count, at);
    Py_END_ALLOW_THREADS;
    return ids;
}

/* block_shuffle_position(length, block_size, seed, rounds, id) */
PyObject *zpy_block_shuffle_position(PyObject *Py_UNUSED(module), PyObject *args)
{
    ull length, block_size, seed, id;
    unsigned rounds;
    if (!PyArg_ParseTuple(args, "KKKIK", &length, &block_size, &seed, &rounds, &id) ||
        check_range(length, id, 1) < 0)
        return NULL;
    struct zr_block_shuffle s = {length, block_size, seed, rounds};
    return PyLong_FromUnsignedLongLong(zr_block_shuffle_position(&s, id));
}

/* feistel_permute(key, length, rounds, first, count) */
PyObject *zpy_feistel_permute(PyObject *module, PyObject *args)
{
    ull key, length, first, count;
    unsigned rounds;
    if (!PyArg_ParseTuple(args, "KKIKK", &key, &length, &rounds, &first, &count) ||
        check_range(length, first, count) < 0)
        return NULL;
    PyObject *ids = new_ids(module, count);
    if (!ids)
        return NULL;
    uint64_t *at = PyArray_DATA((PyArrayObject *)ids);
    if (count < RELEASE_COUNT_MIN) {
        zr_feistel_permute(key, length, rounds, first, count, at);
        return ids;
    }
    Py_BEGIN_ALLOW_THREADS;
    zr_feistel_permute(key, length, rounds, first, count, at);
    Py_END_ALLOW_THREADS;
    return ids;
}

/* feistel_inverse(key, length, rounds, id) */
PyObject *zpy_feistel_inverse(PyObject *Py_UNUSED(module), PyObject *args)
{
    ull key, length, id;
    unsigned rounds;
    if (!PyArg_ParseTuple(args, "KKIK", &key, &length, &rounds, &id) ||
        check_range(length, id, 1) < 0)
        return NULL;
    return PyLong_FromUnsignedLongLong(zr_feistel_inverse(key, length, rounds, id));
}

/* feistel_hash(key, data) */
PyObject *zpy_feistel_hash(PyObject *Py_UNUSED(module), PyObject *args)
{
    ull key, data;
    if (!PyArg_ParseTuple(args, "KK", &key, &data))
        return NULL;
    return PyLong_FromUnsignedLongLong(zr_feistel_hash(key, data));
}
