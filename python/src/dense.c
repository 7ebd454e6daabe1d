/* SPDX-License-Identifier: MIT
 *
 * Dense: every record has the shape of the schema, so a batch is one array and
 * the engine decodes straight into it.
 */
#include "core.h"

/* Scalar records up to this size are decoded on the stack. */
#define SCALAR_NBYTES_MAX 256
/* A batch that is not contiguous is copied and written in pieces of this size. */
#define PIECE_NBYTES ((uint64_t)64 << 20)

/* ---------------------------------------------------------------- reading */

static int gather_into(struct store *s, struct zr_reader *reader, const uint64_t *ids, size_t count,
                       void *out, size_t nbytes)
{
    struct zr_error err;
    zpy_error_reset(&err);
    int code;
    Py_BEGIN_ALLOW_THREADS
    code = zr_gather_dense(reader, ids, count, out, nbytes, &err);
    Py_END_ALLOW_THREADS
    if (code < 0)
        zpy_raise(s->state, code, &err, s->path);
    return code < 0 ? -1 : 0;
}

/* Bytes of a batch; -1 when they cannot be addressed. */
static int batch_nbytes(const struct store *s, size_t count, size_t *nbytes)
{
    if (!__builtin_mul_overflow(count, s->row_nbytes, nbytes) && *nbytes <= PY_SSIZE_T_MAX)
        return 0;
    PyErr_Format(PyExc_MemoryError, "a batch of %zu records of %llu bytes", count,
                 (unsigned long long)s->row_nbytes);
    return -1;
}

/* The records as a new array (count, *item_shape). */
static PyObject *gather_new(struct store *s, struct zr_reader *reader, const uint64_t *ids,
                            size_t count)
{
    size_t nbytes;
    npy_intp dims[ZR_MAX_NDIM + 1];
    if (batch_nbytes(s, count, &nbytes) < 0)
        return NULL;
    memcpy(dims, s->dims, ((size_t)s->ndim + 1) * sizeof *dims);
    dims[0] = (npy_intp)count;
    PyObject *array = zpy_array_new(s->state, s->dtype, s->ndim + 1, dims, nbytes);
    if (array && count &&
        gather_into(s, reader, ids, count, PyArray_DATA((PyArrayObject *)array), nbytes) < 0)
        Py_CLEAR(array);
    return array;
}

/* One record of shape (): a NumPy scalar. */
static PyObject *gather_scalar(struct store *s, struct zr_reader *reader, uint64_t id)
{
    _Alignas(64) char few[SCALAR_NBYTES_MAX];
    void *data = s->row_nbytes <= sizeof few ? few : PyMem_RawMalloc(s->row_nbytes);
    if (!data)
        return PyErr_NoMemory();
    PyObject *scalar = NULL;
    if (gather_into(s, reader, &id, 1, data, s->row_nbytes) == 0)
        scalar = PyArray_Scalar(data, s->dtype, NULL);
    if (data != few)
        PyMem_RawFree(data);
    return scalar;
}

static PyObject *gather_one(struct store *s, struct zr_reader *reader, uint64_t id)
{
    if (!s->ndim)
        return gather_scalar(s, reader, id);
    PyObject *array = zpy_array_new(s->state, s->dtype, s->ndim, s->dims + 1, s->row_nbytes);
    if (array &&
        gather_into(s, reader, &id, 1, PyArray_DATA((PyArrayObject *)array), s->row_nbytes) < 0)
        Py_CLEAR(array);
    return array;
}

static int check_out(const struct store *s, PyObject *op, size_t count)
{
    if (!PyArray_Check(op)) {
        PyErr_SetString(PyExc_TypeError, "out must be a numpy array");
        return -1;
    }
    PyArrayObject *out = (PyArrayObject *)op;
    if (zpy_check_dtype(s, out, "out") < 0)
        return -1;
    bool fits = PyArray_NDIM(out) == s->ndim + 1 && (size_t)PyArray_DIM(out, 0) == count;
    for (int i = 1; fits && i <= s->ndim; i++)
        fits = PyArray_DIM(out, i) == s->dims[i];
    if (!fits)
        PyErr_Format(PyExc_ValueError, "out must have shape (%zu, *%R)", count, s->item_shape);
    else if (!PyArray_IS_C_CONTIGUOUS(out) || !PyArray_ISWRITEABLE(out))
        PyErr_SetString(PyExc_ValueError, "out must be C-contiguous and writable");
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *gather_out(struct store *s, struct zr_reader *reader, const struct ids *ids,
                            PyObject *out)
{
    if (check_out(s, out, ids->count) < 0)
        return NULL;
    PyArrayObject *array = (PyArrayObject *)out;
    if (ids->count && gather_into(s, reader, ids->at, ids->count, PyArray_DATA(array),
                                  (size_t)PyArray_NBYTES(array)) < 0)
        return NULL;
    return Py_NewRef(out);
}

static PyObject *gather_key(struct store *s, PyObject *key, PyObject *out)
{
    struct zr_reader *reader = zpy_reader_enter(s);
    if (!reader)
        return NULL;
    struct ids ids;
    PyObject *batch = NULL;
    if (zpy_ids_init(&ids, key, s) == 0)
        batch = out == Py_None ? gather_new(s, reader, ids.at, ids.count)
                               : gather_out(s, reader, &ids, out);
    zpy_ids_release(&ids);
    zpy_reader_leave(s);
    return batch;
}

static PyObject *dense_subscript(PyObject *op, PyObject *key)
{
    struct store *s = (struct store *)op;
    return zpy_is_scalar(key) ? zpy_record_of(s, key, gather_one) : gather_key(s, key, Py_None);
}

/* Iteration: the sequence protocol counts up until IndexError. */
static PyObject *dense_item(PyObject *op, Py_ssize_t i)
{
    return zpy_record_at((struct store *)op, i, gather_one);
}

PyDoc_STRVAR(getitems_doc,
"__getitems__($self, indices, /)\n--\n\n"
"The records at indices as one array; a scalar is a batch of one.\n\n"
"The batched access that samplers and torch's fetchers call.");

static PyObject *dense_getitems(PyObject *op, PyObject *key)
{
    return gather_key((struct store *)op, key, Py_None);
}

PyDoc_STRVAR(gather_doc,
"gather($self, indices, out=None)\n--\n\n"
"The records at indices, in that order, repeats allowed.\n\n"
"Parameters\n----------\n"
"indices : int, slice, bool mask, or integers in any nesting\n"
"    Ids in 0..len-1.  Nested forms are flattened.\n"
"out : numpy.ndarray, optional\n"
"    C-contiguous, writable, of the store's dtype and shape (n, *item_shape).\n\n"
"Returns\n-------\n"
"numpy.ndarray\n"
"    Shape (n, *item_shape), C-contiguous, writable, the caller's alone; or out.\n\n"
"Raises\n------\n"
"IndexError\n    An id is negative or not below len; nothing was read.\n"
"TypeError\n    The indices are not integers.\n"
"ZrecordError\n    A record is damaged; the contents of out are then unspecified.\n\n"
"Notes\n-----\n"
"The GIL is released while decoding.  Any number of threads may gather at once.");

static PyObject *dense_gather(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"indices", "out", NULL};
    PyObject *key, *out = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:gather", names, &key, &out))
        return NULL;
    return gather_key((struct store *)op, key, out);
}

/* ---------------------------------------------------------------- appending */

static int append_rows(struct store *s, struct zr_writer *writer, const void *rows, uint64_t count)
{
    struct zr_error err;
    zpy_error_reset(&err);
    int code;
    Py_BEGIN_ALLOW_THREADS
    code = zr_writer_append_dense(writer, rows, count, &err);
    Py_END_ALLOW_THREADS
    if (code < 0) {
        s->failed = true;
        zpy_raise(s->state, code, &err, s->path);
        return -1;
    }
    atomic_fetch_add(&s->length, count);
    return 0;
}

static int append_piece(struct store *s, struct zr_writer *writer, PyObject *batch, Py_ssize_t from,
                        Py_ssize_t to)
{
    PyObject *rows = PySequence_GetSlice(batch, from, to);
    PyArrayObject *copy = NULL;
    if (rows)
        copy =
            (PyArrayObject *)PyArray_FROM_OF(rows, NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ENSUREARRAY);
    Py_XDECREF(rows);
    int rc = copy ? append_rows(s, writer, PyArray_DATA(copy), (uint64_t)(to - from)) : -1;
    Py_XDECREF(copy);
    return rc;
}

static int append_strided(struct store *s, struct zr_writer *writer, PyArrayObject *batch)
{
    Py_ssize_t count = PyArray_DIM(batch, 0);
    uint64_t fit = PIECE_NBYTES / s->row_nbytes;
    Py_ssize_t step = fit ? (Py_ssize_t)fit : 1;
    int rc = 0;
    for (Py_ssize_t from = 0; !rc && from < count; from += step)
        rc = append_piece(s, writer, (PyObject *)batch, from,
                          count - from < step ? count : from + step);
    if (rc)
        s->failed = true; /* earlier pieces may be in */
    return rc;
}

static int check_batch(const struct store *s, PyArrayObject *batch)
{
    if (zpy_check_dtype(s, batch, "batch") < 0)
        return -1;
    bool fits = PyArray_NDIM(batch) == s->ndim + 1;
    for (int i = 1; fits && i <= s->ndim; i++)
        fits = PyArray_DIM(batch, i) == s->dims[i];
    if (!fits) {
        PyObject *shape = PyObject_GetAttrString((PyObject *)batch, "shape");
        if (shape)
            PyErr_Format(PyExc_ValueError, "batch has shape %R, not (n, *%R)", shape,
                         s->item_shape);
        Py_XDECREF(shape);
        return -1;
    }
    if (PyArray_DIM(batch, 0) == 0) {
        PyErr_SetString(PyExc_ValueError, "append needs at least one record");
        return -1;
    }
    return 0;
}

/* A zero-dimensional array is one scalar record. */
static PyArrayObject *as_batch(PyObject *records)
{
    if (!PyArray_Check(records)) {
        PyErr_Format(PyExc_TypeError, "append takes a numpy array, not %.100s",
                     Py_TYPE(records)->tp_name);
        return NULL;
    }
    PyArrayObject *array = (PyArrayObject *)records;
    if (PyArray_NDIM(array))
        return (PyArrayObject *)Py_NewRef(records);
    npy_intp one = 1;
    PyArray_Dims shape = {&one, 1};
    return (PyArrayObject *)PyArray_Newshape(array, &shape, NPY_CORDER);
}

PyDoc_STRVAR(append_doc,
"append($self, records, /)\n--\n\n"
"Append a batch of records.\n\n"
"Parameters\n----------\n"
"records : numpy.ndarray\n"
"    Shape (n, *item_shape) with n >= 1 and exactly the store's dtype; one sample is\n"
"    sample[None].  A C-contiguous array is written without a copy, any other is copied\n"
"    in pieces of 64 MiB.  Must not change before append returns.\n\n"
"Raises\n------\n"
"TypeError, ValueError\n    Not such an array; the writer stays as it was.\n"
"ZrecordError\n    Writing failed, e.g. a full disk; the writer can then only be aborted.\n\n"
"Notes\n-----\n"
"Returns when the batch is compressed and written.  The GIL is released meanwhile;\n"
"appends from several threads run one after the other.");

static PyObject *dense_append(PyObject *op, PyObject *records)
{
    struct store *s = (struct store *)op;
    struct zr_writer *writer = zpy_writer_enter(s);
    if (!writer)
        return NULL;
    PyArrayObject *batch = as_batch(records);
    int rc = batch ? check_batch(s, batch) : -1;
    if (!rc && PyArray_IS_C_CONTIGUOUS(batch))
        rc = append_rows(s, writer, PyArray_DATA(batch), (uint64_t)PyArray_DIM(batch, 0));
    else if (!rc)
        rc = append_strided(s, writer, batch);
    Py_XDECREF(batch);
    zpy_writer_leave(s);
    return rc < 0 ? NULL : Py_NewRef(Py_None);
}

/* ---------------------------------------------------------------- the type */

static PyObject *get_item_shape(PyObject *op, void *Py_UNUSED(closure))
{
    struct store *s = (struct store *)op;
    if (!s->item_shape && zpy_store_readable(s) < 0)
        return NULL;
    return Py_NewRef(s->item_shape);
}

static PyMethodDef dense_methods[] = {
    {"__getitems__", dense_getitems, METH_O, getitems_doc},
    {"gather", (PyCFunction)(void (*)(void))dense_gather, METH_VARARGS | METH_KEYWORDS, gather_doc},
    {"append", dense_append, METH_O, append_doc},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef dense_getset[] = {
    {"item_shape", get_item_shape, NULL, "Shape of every record, a tuple.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot dense_slots[] = {
    {Py_mp_subscript, dense_subscript},
    {Py_sq_item, dense_item},
    {Py_tp_methods, dense_methods},
    {Py_tp_getset, dense_getset},
    {Py_tp_doc, (void *)"Records of one shape."},
    {0, NULL},
};

PyType_Spec zpy_dense_spec = {
    .name = "zrecord._core.Dense",
    .basicsize = sizeof(struct store),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = dense_slots,
};
