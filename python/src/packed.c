/* SPDX-License-Identifier: MIT
 *
 * Ragged.packed: a batch as three arrays, without an object for each record.
 */
#include "core.h"

/* A packed batch on its way to arrays, which take the blocks over. */
struct packed {
    size_t count;
    size_t itemsize;
    size_t rank;         /* the highest of the batch */
    struct zr_part part; /* offsets count elements, shapes are rows of rank once settled */
};

/* ---------------------------------------------------------------- without the GIL */

/* Whether ranks differ; finds the highest. */
static bool find_rank(struct packed *p)
{
    const uint64_t *ends = p->part.shape_offsets;
    bool mixed = false;
    for (size_t i = 0; i < p->count; i++) {
        size_t ndim = ends[i + 1] - ends[i];
        mixed |= i && ndim != p->rank;
        p->rank = ndim > p->rank ? ndim : p->rank;
    }
    return mixed;
}

/* Shapes end to end to one row each, with -1 behind. */
static int spread(struct packed *p)
{
    const uint64_t *dims = p->part.shapes, *ends = p->part.shape_offsets;
    uint64_t *rows = zr_buffer_alloc(p->count * p->rank * sizeof *rows);
    if (!rows)
        return ZR_E_NOMEM;
    for (size_t i = 0; i < p->count; i++)
        for (size_t d = 0; d < p->rank; d++)
            rows[i * p->rank + d] = d < ends[i + 1] - ends[i] ? dims[ends[i] + d] : UINT64_MAX;
    zr_buffer_free(p->part.shapes);
    p->part.shapes = rows;
    return ZR_OK;
}

static int settle(struct packed *p)
{
    if (find_rank(p) && spread(p) < 0)
        return ZR_E_NOMEM;
    for (size_t i = 0; i <= p->count; i++)
        p->part.offsets[i] /= p->itemsize;
    return ZR_OK;
}

/* ---------------------------------------------------------------- with it */

/* Takes *data over, whether it succeeds or not. */
static PyObject *int64_array(const struct core_state *state, int ndim, const npy_intp *dims,
                             uint64_t **data)
{
    PyArray_Descr *dtype = PyArray_DescrFromType(NPY_INT64);
    size_t nbytes = (size_t)PyArray_MultiplyList(dims, ndim) * sizeof **data;
    PyObject *array = zpy_array_adopt(state, dtype, ndim, dims, *data, nbytes);
    *data = NULL;
    Py_DECREF(dtype);
    return array;
}

static PyObject *packed_tuple(struct packed *p, const struct store *s)
{
    npy_intp total = (npy_intp)(p->part.nbytes / p->itemsize), ends = (npy_intp)p->count + 1;
    npy_intp rows[2] = {(npy_intp)p->count, (npy_intp)p->rank};
    PyObject *values = zpy_array_adopt(s->state, s->dtype, 1, &total, p->part.data, p->part.nbytes);
    p->part.data = NULL;
    PyObject *offsets = int64_array(s->state, 1, &ends, &p->part.offsets);
    PyObject *shapes = int64_array(s->state, 2, rows, &p->part.shapes);
    PyObject *tuple = NULL;
    if (values && offsets && shapes)
        tuple = PyTuple_Pack(3, values, offsets, shapes);
    Py_XDECREF(values);
    Py_XDECREF(offsets);
    Py_XDECREF(shapes);
    return tuple;
}

static PyObject *packed(struct store *s, struct zr_reader *reader, const struct ids *ids)
{
    struct packed p = {.count = ids->count, .itemsize = (size_t)PyDataType_ELSIZE(s->dtype)};
    struct zr_error err;
    zpy_error_reset(&err);
    int code;
    Py_BEGIN_ALLOW_THREADS code = zr_gather_packed(reader, ids->at, ids->count, &p.part, &err);
    if (code == ZR_OK)
        code = settle(&p);
    Py_END_ALLOW_THREADS PyObject *tuple =
        code < 0 ? zpy_raise(s->state, code, &err, s->path) : packed_tuple(&p, s);
    zr_parts_release(&p.part, 1);
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
    if (zpy_ids_init(&ids, key, s) == 0)
        tuple = packed(s, reader, &ids);
    zpy_ids_release(&ids);
    zpy_reader_leave(s);
    return tuple;
}

PyObject *zpy_packed_adopt(struct store *s, size_t count, struct zr_part *part)
{
    struct packed p = {
        .count = count, .itemsize = (size_t)PyDataType_ELSIZE(s->dtype), .part = *part};
    *part = (struct zr_part){0};
    int code;
    Py_BEGIN_ALLOW_THREADS code = settle(&p);
    Py_END_ALLOW_THREADS PyObject *tuple = code < 0 ? PyErr_NoMemory() : packed_tuple(&p, s);
    zr_parts_release(&p.part, 1);
    return tuple;
}
