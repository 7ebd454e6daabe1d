/* SPDX-License-Identifier: MIT
 *
 * Ragged: each record has its own shape.  A gather decodes all records of a batch
 * into one block as they are stored, and the arrays of the list are views of it.
 * An append collects items that point into the caller's arrays.
 */
#include "core.h"

/* An append is handed to the engine in chunks of at most this much. */
#define CHUNK_NBYTES ((uint64_t)64 << 20)
#define CHUNK_COUNT ((size_t)1 << 17)

/* Half of the shapes are in the cache of another core, which gathered them. */
#define SHAPE_AHEAD 4

/* ---------------------------------------------------------------- reading */

/* The records of one gather, as stored, in one block. */
struct batch {
    size_t count;
    uint64_t *offsets; /* count + 1 */
    char *data;        /* in block */
    PyObject *block;
    uint64_t few[FEW_IDS + 1];
};

static void batch_release(struct batch *b)
{
    if (b->offsets != b->few)
        zr_buffer_free(b->offsets);
    Py_XDECREF(b->block);
}

/* Plan, memory and records; without the GIL, which is expensive to get back often.
 * b->data is NULL when memory runs out. */
static int gather(struct zr_reader *reader, const uint64_t *ids, struct batch *b,
                  struct zr_error *err)
{
    int code = zr_gather_ragged_plan(reader, ids, b->count, b->offsets, err);
    if (code < 0)
        return code;
    b->data = zr_buffer_alloc((size_t)b->offsets[b->count]);
    return b->data ? zr_gather_ragged(reader, ids, b->count, b->data, b->offsets, err) : ZR_E_NOMEM;
}

/* Gathers; release in both cases. */
static int batch_init(struct batch *b, struct store *s, struct zr_reader *reader,
                      const uint64_t *ids, size_t count)
{
    b->count = count;
    b->block = NULL;
    b->data = NULL;
    b->offsets = count <= FEW_IDS ? b->few : zr_buffer_alloc((count + 1) * sizeof *b->offsets);
    if (!b->offsets) {
        PyErr_NoMemory();
        return -1;
    }
    struct zr_error err;
    zpy_error_reset(&err);
    int code;
    Py_BEGIN_ALLOW_THREADS
    code = gather(reader, ids, b, &err);
    Py_END_ALLOW_THREADS
    if (b->data)
        b->block = zpy_block_adopt(s->state, b->data, (size_t)b->offsets[count]);
    if (code < 0)
        zpy_raise(s->state, code, &err, s->path);
    return code < 0 || !b->block ? -1 : 0;
}

static PyObject *record_array(struct store *s, const struct batch *b, size_t i)
{
    struct zr_record_view view;
    zr_record_split(b->data + b->offsets[i], b->offsets[i + 1] - b->offsets[i], &view);
    PyObject *array = zpy_array_view(b->block, s->dtype, (int)view.ndim,
                                     (const npy_intp *)view.shape, (void *)view.data);
    if (array && PyDataType_ALIGNMENT(s->dtype) > 8) /* payloads start on 8 bytes only */
        PyArray_UpdateFlags((PyArrayObject *)array, NPY_ARRAY_ALIGNED);
    return array;
}

/* Moves the arrays, all of them or none, into a list. */
static PyObject *list_of(PyObject **arrays, size_t count, bool complete)
{
    PyObject *list = complete ? PyList_New((Py_ssize_t)count) : NULL;
    for (size_t i = 0; i < count; i++) {
        if (list)
            PyList_SET_ITEM(list, (Py_ssize_t)i, arrays[i]);
        else
            Py_XDECREF(arrays[i]);
    }
    return list;
}

/* All records of a batch.  The list's own memory comes last: see reserve() in index.c. */
static PyObject *record_list(struct store *s, const struct batch *b)
{
    PyObject **arrays = zr_buffer_alloc((b->count + 1) * sizeof *arrays);
    if (!arrays)
        return PyErr_NoMemory();
    size_t made = 0;
    for (; made < b->count; made++) {
        if (made + SHAPE_AHEAD < b->count)
            __builtin_prefetch(b->data + b->offsets[made + SHAPE_AHEAD]);
        if (!(arrays[made] = record_array(s, b, made)))
            break;
    }
    PyObject *list = list_of(arrays, made, made == b->count);
    zr_buffer_free(arrays);
    return list;
}

static PyObject *gather_list(struct store *s, struct zr_reader *reader, const uint64_t *ids,
                             size_t count)
{
    struct batch b;
    PyObject *list = NULL;
    if (batch_init(&b, s, reader, ids, count) == 0)
        list = record_list(s, &b);
    batch_release(&b);
    return list;
}

PyObject *zpy_ragged_adopt(struct store *s, size_t count, struct zr_part *part)
{
    struct batch b = {.count = count, .offsets = part->offsets, .data = part->data};
    part->data = NULL;
    b.block = zpy_block_adopt(s->state, b.data, part->nbytes);
    PyObject *list = b.block ? record_list(s, &b) : NULL;
    Py_XDECREF(b.block);
    return list;
}

static PyObject *gather_one(struct store *s, struct zr_reader *reader, uint64_t id)
{
    struct batch b;
    PyObject *array = NULL;
    if (batch_init(&b, s, reader, &id, 1) == 0)
        array = record_array(s, &b, 0);
    batch_release(&b);
    return array;
}

static PyObject *gather_key(struct store *s, PyObject *key)
{
    struct zr_reader *reader = zpy_reader_enter(s);
    if (!reader)
        return NULL;
    struct ids ids;
    PyObject *list = NULL;
    if (zpy_ids_init(&ids, key, s) == 0)
        list = gather_list(s, reader, ids.at, ids.count);
    zpy_ids_release(&ids);
    zpy_reader_leave(s);
    return list;
}

static PyObject *ragged_subscript(PyObject *op, PyObject *key)
{
    struct store *s = (struct store *)op;
    return zpy_is_scalar(key) ? zpy_record_of(s, key, gather_one) : gather_key(s, key);
}

/* Iteration: the sequence protocol counts up until IndexError. */
static PyObject *ragged_item(PyObject *op, Py_ssize_t i)
{
    return zpy_record_at((struct store *)op, i, gather_one);
}

PyDoc_STRVAR(getitems_doc,
"__getitems__($self, indices, /)\n--\n\n"
"The records at indices as a list of arrays; a scalar is a list of one.");

static PyObject *ragged_getitems(PyObject *op, PyObject *key)
{
    return gather_key((struct store *)op, key);
}

PyDoc_STRVAR(gather_doc,
"gather($self, indices, out=None)\n--\n\n"
"The records at indices, in that order, repeats allowed.\n\n"
"Parameters\n----------\n"
"indices : int, slice, bool mask, or integers in any nesting\n"
"    Ids in 0..len-1.  Nested forms are flattened.\n"
"out : None\n"
"    Only Dense batches have a size that is known before.\n\n"
"Returns\n-------\n"
"list of numpy.ndarray\n"
"    One array a record with its own shape, writable.  All share one allocation, which\n"
"    lives until the last of them is dropped.\n\n"
"Raises\n------\n"
"IndexError\n    An id is negative or not below len; nothing was read.\n"
"TypeError\n    The indices are not integers.\n"
"ZrecordError\n    A record is damaged.");

static PyObject *ragged_gather(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"indices", "out", NULL};
    PyObject *key, *out = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:gather", names, &key, &out))
        return NULL;
    if (out != Py_None) {
        PyErr_SetString(PyExc_TypeError, "a Ragged gather takes no out");
        return NULL;
    }
    return gather_key((struct store *)op, key);
}

PyDoc_STRVAR(packed_doc,
"packed($self, indices, /)\n--\n\n"
"The records at indices without a Python object for each.\n\n"
"Returns\n-------\n"
"values : numpy.ndarray, (total,)\n    The elements of all records, one record after the other.\n"
"offsets : numpy.ndarray of int64, (n + 1,)\n"
"    Record i is values[offsets[i]:offsets[i + 1]], to be reshaped.\n"
"shapes : numpy.ndarray of int64, (n, rank)\n"
"    The shape of record i, where rank is the highest of the batch; a record of lower\n"
"    rank has -1 behind its dimensions.\n\n"
"Raises as gather() does.");

/* ---------------------------------------------------------------- appending */

/* Items collected for the engine; grows by doubling. */
struct chunk {
    struct zr_item *items;
    PyObject **owners; /* owned: the arrays that items point into */
    size_t count;
    size_t capacity;
    uint64_t *dims; /* shapes one after the other; items get their pointers when sent */
    size_t dim_count;
    size_t dim_capacity;
    uint64_t nbytes;
};

static void chunk_clear(struct chunk *c)
{
    for (size_t i = 0; i < c->count; i++)
        Py_DECREF(c->owners[i]);
    c->count = c->dim_count = 0;
    c->nbytes = 0;
}

static void chunk_release(struct chunk *c)
{
    chunk_clear(c);
    PyMem_RawFree(c->items);
    PyMem_RawFree(c->owners);
    PyMem_RawFree(c->dims);
}

static void *grown(void *array, size_t capacity, size_t size)
{
    void *moved = PyMem_RawRealloc(array, capacity * size);
    if (!moved)
        PyErr_NoMemory();
    return moved;
}

static int grow_items(struct chunk *c)
{
    size_t capacity = c->capacity ? 2 * c->capacity : 64;
    PyObject **owners = grown(c->owners, capacity, sizeof *owners);
    if (!owners)
        return -1;
    c->owners = owners;
    struct zr_item *items = grown(c->items, capacity, sizeof *items);
    if (!items)
        return -1;
    c->items = items;
    c->capacity = capacity;
    return 0;
}

static int grow_dims(struct chunk *c)
{
    size_t capacity = 2 * c->dim_capacity + ZR_MAX_NDIM;
    uint64_t *dims = grown(c->dims, capacity, sizeof *dims);
    if (!dims)
        return -1;
    c->dims = dims;
    c->dim_capacity = capacity;
    return 0;
}

/* Room for one more record of any rank. */
static int chunk_reserve(struct chunk *c)
{
    if (c->count == c->capacity && grow_items(c) < 0)
        return -1;
    return c->dim_count + ZR_MAX_NDIM > c->dim_capacity ? grow_dims(c) : 0;
}

/* -1 unless record is an array that may be stored; nothing is copied or allocated. */
static int check_record(const struct store *s, PyObject *record)
{
    if (!PyArray_Check(record)) {
        PyErr_Format(PyExc_TypeError, "ragged records must be numpy arrays, not %.100s",
                     Py_TYPE(record)->tp_name);
        return -1;
    }
    PyArrayObject *array = (PyArrayObject *)record;
    if (zpy_check_dtype(s, array, "record") < 0)
        return -1;
    uint64_t payload = (uint64_t)PyArray_NBYTES(array);
    uint64_t prefix = 8 * (1 + (uint64_t)PyArray_NDIM(array));
    if (payload == 0)
        PyErr_SetString(PyExc_ValueError, "records of zero bytes cannot be stored");
    else if (payload > ZR_MAX_RECORD_NBYTES - prefix)
        PyErr_Format(PyExc_ValueError, "a record of %llu bytes exceeds the limit of %llu",
                     (unsigned long long)(payload + prefix),
                     (unsigned long long)ZR_MAX_RECORD_NBYTES);
    return PyErr_Occurred() ? -1 : 0;
}

static int chunk_add(struct chunk *c, PyObject *record)
{
    PyArrayObject *array = (PyArrayObject *)record;
    size_t ndim = (size_t)PyArray_NDIM(array);
    if (chunk_reserve(c) < 0)
        return -1;
    PyObject *owner = Py_NewRef(record);
    if (!PyArray_IS_C_CONTIGUOUS(array))
        Py_SETREF(owner, PyArray_FROM_OF(record, NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ENSUREARRAY));
    if (!owner)
        return -1;
    for (size_t d = 0; d < ndim; d++)
        c->dims[c->dim_count + d] = (uint64_t)PyArray_DIM(array, (int)d);
    c->items[c->count] =
        (struct zr_item){.data = PyArray_DATA((PyArrayObject *)owner), .ndim = (uint32_t)ndim};
    c->owners[c->count++] = owner;
    c->dim_count += ndim;
    c->nbytes += (uint64_t)PyArray_NBYTES(array);
    return 0;
}

static bool chunk_full(const struct chunk *c)
{
    return c->nbytes >= CHUNK_NBYTES || c->count >= CHUNK_COUNT;
}

static int chunk_send(struct chunk *c, struct store *s, struct zr_writer *writer)
{
    const uint64_t *dims = c->dims;
    for (size_t i = 0; i < c->count; i++) {
        c->items[i].shape = dims;
        dims += c->items[i].ndim;
    }
    struct zr_error err;
    zpy_error_reset(&err);
    int code;
    Py_BEGIN_ALLOW_THREADS
    code = zr_writer_append_ragged(writer, c->items, c->count, &err);
    Py_END_ALLOW_THREADS
    if (code < 0) {
        s->failed = true;
        zpy_raise(s->state, code, &err, s->path);
        return -1;
    }
    atomic_fetch_add(&s->length, c->count);
    chunk_clear(c);
    return 0;
}

/* Takes from the iterator until it ends or the chunk is full: 1, 0 at the end, -1. */
static int chunk_fill(struct chunk *c, const struct store *s, PyObject *iterator)
{
    while (!chunk_full(c)) {
        PyObject *record = PyIter_Next(iterator);
        if (!record)
            return PyErr_Occurred() ? -1 : 0;
        int rc = check_record(s, record);
        if (!rc)
            rc = chunk_add(c, record);
        Py_DECREF(record);
        if (rc)
            return -1;
    }
    return 1;
}

static int append_iterator(struct store *s, struct zr_writer *writer, PyObject *iterator)
{
    struct chunk c = {0};
    uint64_t before = s->length;
    int more, rc = 0;
    do {
        more = chunk_fill(&c, s, iterator);
        if (more < 0 || (c.count && chunk_send(&c, s, writer) < 0))
            rc = -1;
    } while (!rc && more);
    chunk_release(&c);
    if (rc && s->length > before)
        s->failed = true; /* a part of the records is in */
    if (!rc && s->length == before) {
        PyErr_SetString(PyExc_ValueError, "append needs at least one record");
        rc = -1;
    }
    return rc;
}

/* Lists and tuples are judged as a whole before anything is written. */
static int check_all(const struct store *s, PyObject *tuple)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++)
        if (check_record(s, PyTuple_GET_ITEM(tuple, i)) < 0)
            return -1;
    return 0;
}

static int append_iterable(struct store *s, struct zr_writer *writer, PyObject *records)
{
    PyObject *source = PyList_Check(records) ? PyList_AsTuple(records) : Py_NewRef(records);
    if (!source)
        return -1;
    int rc = PyTuple_CheckExact(source) ? check_all(s, source) : 0;
    PyObject *iterator = rc ? NULL : PyObject_GetIter(source);
    if (!rc && !iterator && !Py_TYPE(source)->tp_iter && !PySequence_Check(source))
        PyErr_Format(PyExc_TypeError, "append takes an iterable of numpy arrays, not %.100s",
                     Py_TYPE(source)->tp_name);
    Py_DECREF(source);
    if (!iterator)
        return -1;
    rc = append_iterator(s, writer, iterator);
    Py_DECREF(iterator);
    return rc;
}

PyDoc_STRVAR(append_doc,
"append($self, records, /)\n--\n\n"
"Append records, each with its own shape.\n\n"
"Parameters\n----------\n"
"records : iterable of numpy.ndarray\n"
"    Of exactly the store's dtype, any shape with at least one element; () is kept.\n"
"    Contiguous arrays are not copied, and must not change before append returns.\n\n"
"Raises\n------\n"
"TypeError, ValueError\n"
"    A record is no such array, or there is none.  A list or tuple is checked as a whole\n"
"    first, so the writer stays as it was.  Any other iterable is consumed and written in\n"
"    chunks of 64 MiB or 131072 records: the same holds while the first chunk fills.\n"
"    When it fails later, what was written cannot be taken back, so the writer refuses\n"
"    further appends, and close() raises and publishes nothing.\n"
"ZrecordError\n    Writing failed, e.g. a full disk; the writer can then only be aborted.\n\n"
"Notes\n-----\n"
"The GIL is released while compressing and writing; memory is bounded by a chunk.\n"
"The iterable must not append to the same writer.");

static PyObject *ragged_append(PyObject *op, PyObject *records)
{
    struct store *s = (struct store *)op;
    struct zr_writer *writer = zpy_writer_enter(s);
    if (!writer)
        return NULL;
    int rc = append_iterable(s, writer, records);
    zpy_writer_leave(s);
    return rc < 0 ? NULL : Py_NewRef(Py_None);
}

/* ---------------------------------------------------------------- the type */

static PyMethodDef ragged_methods[] = {
    {"__getitems__", ragged_getitems, METH_O, getitems_doc},
    {"gather", (PyCFunction)(void (*)(void))ragged_gather, METH_VARARGS | METH_KEYWORDS,
     gather_doc},
    {"packed", zpy_packed, METH_O, packed_doc},
    {"append", ragged_append, METH_O, append_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot ragged_slots[] = {
    {Py_mp_subscript, ragged_subscript},
    {Py_sq_item, ragged_item},
    {Py_tp_methods, ragged_methods},
    {Py_tp_doc, (void *)"Records that each have their own shape."},
    {0, NULL},
};

PyType_Spec zpy_ragged_spec = {
    .name = "zrecord._core.Ragged",
    .basicsize = sizeof(struct store),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = ragged_slots,
};
