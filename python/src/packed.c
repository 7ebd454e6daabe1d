/* SPDX-License-Identifier: MIT
 *
 * Ragged.packed: a batch as three arrays, without an object for each record.
 */
#include "core.h"

/* One packed gather.  All memory is the engine's until arrays take it over. */
struct packed {
    size_t count;
    size_t rank; /* the highest of the batch */
    bool mixed;  /* ranks differ */
    size_t itemsize;
    size_t nbytes;     /* of values */
    uint64_t *offsets; /* count + 1: bytes during the gather, then elements */
    uint64_t *shapes;  /* count * rank */
    char *values;
    uint64_t *shape_offsets; /* count + 1 */
    uint64_t *dims;          /* of records of mixed ranks, end to end */
};

static void packed_release(struct packed *p)
{
    zr_buffer_free(p->offsets);
    zr_buffer_free(p->shapes);
    zr_buffer_free(p->values);
    zr_buffer_free(p->shape_offsets);
    zr_buffer_free(p->dims);
}

/* ---------------------------------------------------------------- without the GIL */

static int plan(struct packed *p, struct zr_reader *reader, const uint64_t *ids,
                struct zr_error *err)
{
    p->offsets = zr_buffer_alloc((p->count + 1) * sizeof *p->offsets);
    p->shape_offsets = zr_buffer_alloc((p->count + 1) * sizeof *p->shape_offsets);
    if (!p->offsets || !p->shape_offsets)
        return ZR_E_NOMEM;
    return zr_gather_packed_plan(reader, ids, p->count, p->offsets, p->shape_offsets, err);
}

static void find_rank(struct packed *p)
{
    for (size_t i = 0; i < p->count; i++) {
        size_t ndim = p->shape_offsets[i + 1] - p->shape_offsets[i];
        p->mixed |= i && ndim != p->rank;
        p->rank = ndim > p->rank ? ndim : p->rank;
    }
}

static int allocate(struct packed *p)
{
    p->nbytes = p->offsets[p->count];
    p->values = zr_buffer_alloc(p->nbytes);
    p->shapes = zr_buffer_alloc(p->count * p->rank * sizeof *p->shapes);
    if (p->mixed)
        p->dims = zr_buffer_alloc(p->shape_offsets[p->count] * sizeof *p->dims);
    return p->values && p->shapes && (p->dims || !p->mixed) ? ZR_OK : ZR_E_NOMEM;
}

/* Shapes end to end to one row each, with -1 behind. */
static void spread(const struct packed *p)
{
    uint64_t *row = p->shapes;
    for (size_t i = 0; i < p->count; i++, row += p->rank) {
        size_t start = p->shape_offsets[i], ndim = p->shape_offsets[i + 1] - start;
        for (size_t d = 0; d < p->rank; d++)
            row[d] = d < ndim ? p->dims[start + d] : UINT64_MAX;
    }
}

/* Offsets from bytes to elements. */
static void count_elements(struct packed *p)
{
    for (size_t i = 0; i <= p->count; i++)
        p->offsets[i] /= p->itemsize;
}

static int gather(struct packed *p, struct zr_reader *reader, const uint64_t *ids,
                  struct zr_error *err)
{
    int code = plan(p, reader, ids, err);
    if (code < 0)
        return code;
    find_rank(p);
    code = allocate(p);
    if (code < 0)
        return code;
    code = zr_gather_packed(reader, ids, p->count, p->values, p->offsets,
                            p->mixed ? p->dims : p->shapes, p->shape_offsets, err);
    if (code < 0)
        return code;
    if (p->mixed)
        spread(p);
    count_elements(p);
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
    npy_intp total = (npy_intp)(p->nbytes / p->itemsize), ends = (npy_intp)p->count + 1;
    npy_intp rows[2] = {(npy_intp)p->count, (npy_intp)p->rank};
    PyObject *values = zpy_array_adopt(s->state, s->dtype, 1, &total, p->values, p->nbytes);
    p->values = NULL;
    PyObject *offsets = int64_array(s->state, 1, &ends, &p->offsets);
    PyObject *shapes = int64_array(s->state, 2, rows, &p->shapes);
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
    Py_BEGIN_ALLOW_THREADS
    code = gather(&p, reader, ids->at, &err);
    Py_END_ALLOW_THREADS
    PyObject *tuple = code < 0 ? zpy_raise(s->state, code, &err, s->path) : packed_tuple(&p, s);
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
        tuple = packed(s, reader, &ids);
    zpy_ids_release(&ids);
    zpy_reader_leave(s);
    return tuple;
}

PyObject *zpy_packed_adopt(struct store *s, size_t count, struct zr_feed_part *part)
{
    struct packed p = {.count = count,
                       .itemsize = (size_t)PyDataType_ELSIZE(s->dtype),
                       .nbytes = part->nbytes,
                       .offsets = part->offsets,
                       .values = part->data,
                       .shapes = part->shapes,
                       .shape_offsets = part->shape_offsets};
    *part = (struct zr_feed_part){0};
    find_rank(&p);
    if (p.mixed) {
        p.dims = p.shapes;
        p.shapes = zr_buffer_alloc(count * p.rank * sizeof *p.shapes);
        if (p.shapes)
            spread(&p);
    }
    count_elements(&p);
    PyObject *tuple = p.shapes ? packed_tuple(&p, s) : PyErr_NoMemory();
    packed_release(&p);
    return tuple;
}
