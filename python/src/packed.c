/* SPDX-License-Identifier: MIT
 *
 * Ragged.packed: a batch as three arrays, without an object for each record.
 */
#include "core.h"

/* One packed gather.  offsets and shapes are what the caller gets; dims is set where
 * records differ in rank, and then holds their shapes end to end. */
struct packed {
    size_t count;
    size_t rank;             /* the highest of the batch */
    bool mixed;              /* ranks differ */
    PyObject *offsets;       /* int64 (count + 1): bytes during the gather, then elements */
    PyObject *shapes;        /* int64 (count, rank) */
    PyObject *values;        /* dtype (total,) */
    uint64_t *shape_offsets; /* owned: count + 1 */
    uint64_t *dims;          /* owned */
};

static void *data_of(PyObject *array)
{
    return PyArray_DATA((PyArrayObject *)array);
}

static void packed_release(struct packed *p)
{
    Py_XDECREF(p->offsets);
    Py_XDECREF(p->shapes);
    Py_XDECREF(p->values);
    PyMem_RawFree(p->shape_offsets);
    PyMem_RawFree(p->dims);
}

static int plan(struct packed *p, struct store *s, struct zr_reader *reader, const uint64_t *ids)
{
    npy_intp dim = (npy_intp)p->count + 1;
    p->offsets = PyArray_SimpleNew(1, &dim, NPY_INT64);
    p->shape_offsets = PyMem_RawMalloc((size_t)dim * sizeof *p->shape_offsets);
    if (p->offsets && !p->shape_offsets)
        PyErr_NoMemory();
    if (!p->offsets || !p->shape_offsets)
        return -1;
    uint64_t *offsets = data_of(p->offsets);
    struct zr_error err;
    zpy_error_reset(&err);
    int code;
    Py_BEGIN_ALLOW_THREADS
    code = zr_gather_packed_plan(reader, ids, p->count, offsets, p->shape_offsets, &err);
    Py_END_ALLOW_THREADS
    if (code < 0)
        zpy_raise(s->state, code, &err, s->path);
    return code < 0 ? -1 : 0;
}

static void find_rank(struct packed *p)
{
    for (size_t i = 0; i < p->count; i++) {
        size_t ndim = p->shape_offsets[i + 1] - p->shape_offsets[i];
        p->mixed |= i && ndim != p->rank;
        p->rank = ndim > p->rank ? ndim : p->rank;
    }
}

static int allocate(struct packed *p, const struct store *s)
{
    size_t nbytes = (size_t)((uint64_t *)data_of(p->offsets))[p->count];
    npy_intp total = (npy_intp)(nbytes / (size_t)PyDataType_ELSIZE(s->dtype));
    npy_intp dims[2] = {(npy_intp)p->count, (npy_intp)p->rank};
    p->values = zpy_array_new(s->state, s->dtype, 1, &total, nbytes);
    p->shapes = PyArray_SimpleNew(2, dims, NPY_INT64);
    if (p->mixed) {
        p->dims = PyMem_RawMalloc(p->shape_offsets[p->count] * sizeof *p->dims);
        if (!p->dims)
            PyErr_NoMemory();
    }
    return p->values && p->shapes && (p->dims || !p->mixed) ? 0 : -1;
}

/* Shapes end to end to one row each, with -1 behind. */
static void spread(const struct packed *p)
{
    int64_t *row = data_of(p->shapes);
    for (size_t i = 0; i < p->count; i++, row += p->rank) {
        size_t start = p->shape_offsets[i], ndim = p->shape_offsets[i + 1] - start;
        for (size_t d = 0; d < p->rank; d++)
            row[d] = d < ndim ? (int64_t)p->dims[start + d] : -1;
    }
}

static void to_elements(const struct packed *p, int64_t itemsize)
{
    int64_t *offsets = data_of(p->offsets);
    for (size_t i = 0; i <= p->count; i++)
        offsets[i] /= itemsize;
}

static int decode(struct packed *p, struct store *s, struct zr_reader *reader, const uint64_t *ids)
{
    void *values = data_of(p->values);
    uint64_t *offsets = data_of(p->offsets);
    uint64_t *shapes = p->mixed ? p->dims : data_of(p->shapes);
    struct zr_error err;
    zpy_error_reset(&err);
    int code;
    Py_BEGIN_ALLOW_THREADS
    code = zr_gather_packed(reader, ids, p->count, values, offsets, shapes, p->shape_offsets, &err);
    Py_END_ALLOW_THREADS
    if (code < 0) {
        zpy_raise(s->state, code, &err, s->path);
        return -1;
    }
    if (p->mixed)
        spread(p);
    to_elements(p, PyDataType_ELSIZE(s->dtype));
    return 0;
}

static PyObject *gather(struct store *s, struct zr_reader *reader, const struct ids *ids)
{
    struct packed p = {.count = ids->count};
    PyObject *tuple = NULL;
    if (plan(&p, s, reader, ids->at) == 0) {
        find_rank(&p);
        if (allocate(&p, s) == 0 && decode(&p, s, reader, ids->at) == 0)
            tuple = PyTuple_Pack(3, p.values, p.offsets, p.shapes);
    }
    packed_release(&p);
    return tuple;
}

PyObject *zpy_packed(PyObject *op, PyObject *key)
{
    struct store *s = (struct store *)op;
    struct zr_reader *reader = zpy_reader_enter(s);
    if (!reader)
        return NULL;
    struct ids ids;
    PyObject *tuple = NULL;
    if (zpy_ids_init(&ids, key, s->length) == 0)
        tuple = gather(s, reader, &ids);
    zpy_ids_release(&ids);
    zpy_reader_leave(s);
    return tuple;
}
