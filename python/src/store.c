/* SPDX-License-Identifier: MIT
 *
 * What both geometries are: a store opened for reading, its type, its end.  Writers
 * are in writer.c; what the two geometries read and append in dense.c and ragged.c.
 *
 * Any thread may call a reader at any time.  `users` counts the calls inside the
 * engine; close() only sets CLOSED, and whoever is last frees the handle, so a
 * gather that runs in another thread finishes on a valid reader.
 */
#include "core.h"

#include <unistd.h>

#define CLOSED (1ull << 63)

/* ---------------------------------------------------------------- readers */

int zpy_raise_closed(const struct store *s)
{
    PyErr_Format(PyExc_RuntimeError, "%S: the store is closed", s->path);
    return -1;
}

static PyArray_Descr *descr_from_string(const char *text)
{
    PyObject *string = PyUnicode_FromString(text);
    PyArray_Descr *dtype = NULL;
    if (string && PyArray_DescrConverter(string, &dtype) != NPY_SUCCEED)
        dtype = NULL;
    Py_XDECREF(string);
    return dtype;
}

static PyObject *shape_tuple(const uint64_t *shape, uint32_t ndim)
{
    PyObject *tuple = PyTuple_New(ndim);
    for (uint32_t i = 0; tuple && i < ndim; i++) {
        PyObject *dim = PyLong_FromUnsignedLongLong(shape[i]);
        if (!dim)
            Py_CLEAR(tuple);
        else
            PyTuple_SET_ITEM(tuple, i, dim);
    }
    return tuple;
}

int zpy_store_set_schema(struct store *s, const char *dtype, int codec, uint32_t ndim,
                         const uint64_t *shape)
{
    PyArray_Descr *descr = descr_from_string(dtype);
    PyObject *name = PyUnicode_FromString(zr_codec_name(codec));
    PyObject *tuple = shape_tuple(shape, ndim);
    if (!descr || !name || !tuple) {
        Py_XDECREF(descr);
        Py_XDECREF(name);
        Py_XDECREF(tuple);
        return -1;
    }
    Py_XSETREF(s->dtype, descr);
    Py_XSETREF(s->codec, name);
    Py_XSETREF(s->item_shape, tuple);
    s->ndim = (int)ndim;
    for (uint32_t i = 0; i < ndim; i++)
        s->dims[i + 1] = (npy_intp)shape[i];
    return 0;
}

static int adopt_reader(struct store *s, struct zr_reader *reader)
{
    struct zr_info info;
    zr_reader_info(reader, &info);
    if (zpy_store_set_schema(s, info.dtype, info.codec, info.ndim, info.item_shape) < 0)
        return -1;
    s->length = info.length;
    s->row_nbytes = info.row_nbytes;
    s->identity = info.identity;
    s->geometry = info.geometry;
    s->reader = reader;
    return 0;
}

/* Opens path; NULL with an exception. */
static struct zr_reader *open_reader(const struct core_state *state, PyObject *path, bool checksums,
                                     unsigned long long mapped_nbytes)
{
    PyObject *bytes;
    if (!PyUnicode_FSConverter(path, &bytes))
        return NULL;
    struct zr_reader *reader = NULL;
    struct zr_reader_options options = {.checksums = checksums, .mapped_nbytes = mapped_nbytes};
    struct zr_error err;
    zpy_error_reset(&err);
    int code;
    Py_BEGIN_ALLOW_THREADS
    code = zr_reader_open(&reader, PyBytes_AS_STRING(bytes), &options, &err);
    Py_END_ALLOW_THREADS
    Py_DECREF(bytes);
    if (code < 0)
        return zpy_raise(state, code, &err, path);
    const char *warning = zr_reader_warning(reader);
    if (warning && PyErr_WarnEx(state->warning, warning, 2) < 0) {
        zr_reader_close(reader);
        return NULL;
    }
    return reader;
}

static int raise_replaced(struct store *s)
{
    zpy_raise_format(s->state, ZR_E_STATE, s->location,
                     "%U: this is not the store that was pickled", s->location);
    return -1;
}

/* First use of an unpickled reader. */
static int open_pending(struct store *s)
{
    struct zr_reader *reader = open_reader(s->state, s->location, s->checksums, s->mapped_nbytes);
    if (!reader)
        return -1;
    struct zr_info info;
    zr_reader_info(reader, &info);
    int rc = info.identity == s->identity && info.geometry == s->geometry ? 0 : raise_replaced(s);
    Py_BEGIN_CRITICAL_SECTION(s);
    if (!rc && s->pending && !s->closed) { /* else another thread was first */
        rc = adopt_reader(s, reader);
        if (!rc) {
            reader = NULL;
            s->pending = false;
        }
    }
    Py_END_CRITICAL_SECTION();
    zr_reader_close(reader);
    return rc;
}

int zpy_store_readable(struct store *s)
{
    if (s->closed)
        return zpy_raise_closed(s);
    if (s->writable) {
        PyErr_SetString(PyExc_RuntimeError,
                        "a writer cannot be read: close() it, then open() the path");
        return -1;
    }
    return s->pending ? open_pending(s) : 0;
}

static void free_reader(struct store *s)
{
    Py_BEGIN_ALLOW_THREADS
    zr_reader_close(s->reader);
    Py_END_ALLOW_THREADS
}

void zpy_reader_leave(struct store *s)
{
    if (atomic_fetch_sub(&s->users, 1) == (CLOSED | 1))
        free_reader(s);
}

struct zr_reader *zpy_reader_enter(struct store *s)
{
    if (zpy_store_readable(s) < 0)
        return NULL;
    unsigned long long users = atomic_load(&s->users);
    do {
        if (users & CLOSED) {
            zpy_raise_closed(s);
            return NULL;
        }
    } while (!atomic_compare_exchange_weak(&s->users, &users, users + 1));
    return s->reader;
}

static void close_reader(struct store *s)
{
    if (atomic_fetch_or(&s->users, CLOSED) == 0)
        free_reader(s);
}

int zpy_check_dtype(const struct store *s, PyArrayObject *array, const char *what)
{
    PyArray_Descr *descr = PyArray_DESCR(array);
    if (descr == s->dtype || PyArray_EquivTypes(descr, s->dtype))
        return 0;
    PyErr_Format(PyExc_ValueError, "%s dtype %S differs from the store's %S", what,
                 (PyObject *)descr, (PyObject *)s->dtype);
    return -1;
}

/* ---------------------------------------------------------------- construction */

struct store *zpy_store_alloc(struct core_state *state, PyTypeObject *type, PyObject *path,
                              PyObject *location)
{
    struct store *s = (struct store *)type->tp_alloc(type, 0);
    if (!s)
        return NULL;
    s->state = state;
    s->path = Py_NewRef(path);
    s->location = Py_NewRef(location);
    atomic_init(&s->users, 0);
    return s;
}

static void raise_geometry(struct core_state *state, PyObject *path, int geometry)
{
    zpy_raise_format(state, ZR_E_GEOMETRY, path, "%S: a %s store; open it with %s.open()", path,
                     zr_geometry_name(geometry), geometry == ZR_DENSE ? "Dense" : "Ragged");
}

/* store_open(path, location, dense, ragged, checksums, mapped_nbytes): the class, or None
 * for a geometry that is not wanted. */
PyObject *zpy_store_open(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"path",      "location",      "dense", "ragged",
                            "checksums", "mapped_nbytes", NULL};
    struct core_state *state = PyModule_GetState(module);
    PyObject *path, *location, *dense, *ragged;
    int checksums = 0;
    unsigned long long mapped_nbytes = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OUOO|pK:store_open", names, &path, &location,
                                     &dense, &ragged, &checksums, &mapped_nbytes))
        return NULL;
    struct zr_reader *reader = open_reader(state, path, checksums, mapped_nbytes);
    if (!reader)
        return NULL;
    struct zr_info info;
    zr_reader_info(reader, &info);
    PyObject *type = info.geometry == ZR_DENSE ? dense : ragged;
    struct store *s = NULL;
    if (type == Py_None)
        raise_geometry(state, path, info.geometry);
    else
        s = zpy_store_alloc(state, (PyTypeObject *)type, path, location);
    if (s && adopt_reader(s, reader) < 0)
        Py_CLEAR(s);
    if (s) {
        s->checksums = checksums;
        s->mapped_nbytes = mapped_nbytes;
    } else {
        zr_reader_close(reader);
    }
    return (PyObject *)s;
}

static struct zr_reader *open_array(struct core_state *state, PyArrayObject *array, PyObject *path)
{
    uint64_t shape[ZR_MAX_NDIM];
    struct zr_reader *reader = NULL;
    struct zr_error err;
    zpy_error_reset(&err);
    int ndim = PyArray_NDIM(array);
    if (ndim < 1 || !PyArray_IS_C_CONTIGUOUS(array))
        return PyErr_Format(PyExc_ValueError, "%S: records need a contiguous array of a dimension",
                            path);
    PyObject *text = PyObject_GetAttrString((PyObject *)PyArray_DESCR(array), "str");
    const char *dtype = text ? PyUnicode_AsUTF8(text) : NULL;
    for (int i = 1; i < ndim; i++)
        shape[i - 1] = (uint64_t)PyArray_DIM(array, i);
    int code = ZR_OK;
    if (dtype)
        code = zr_reader_open_array(&reader, dtype, (uint32_t)ndim - 1, shape,
                                    (uint64_t)PyArray_DIM(array, 0), PyArray_DATA(array), &err);
    Py_XDECREF(text);
    if (code < 0)
        zpy_raise(state, code, &err, path);
    return reader;
}

/* store_of_array(cls, path, location, array): a reader of its rows, which keeps it alive. */
PyObject *zpy_store_of_array(PyObject *module, PyObject *args)
{
    struct core_state *state = PyModule_GetState(module);
    PyObject *cls, *path, *location, *array;
    if (!PyArg_ParseTuple(args, "OOUO!:store_of_array", &cls, &path, &location, &PyArray_Type,
                          &array))
        return NULL;
    struct zr_reader *reader = open_array(state, (PyArrayObject *)array, path);
    struct store *s =
        reader ? zpy_store_alloc(state, (PyTypeObject *)cls, path, location) : NULL;
    if (s && adopt_reader(s, reader) < 0)
        Py_CLEAR(s);
    if (!s) {
        zr_reader_close(reader);
        return NULL;
    }
    s->owner = Py_NewRef(array);
    /* The dtype of the array says more than its text: bfloat16, say. */
    Py_SETREF(s->dtype, (PyArray_Descr *)Py_NewRef(PyArray_DESCR((PyArrayObject *)array)));
    return (PyObject *)s;
}

/* store_pending(cls, path, location, geometry, identity, checksums, mapped_nbytes): what a
 * pickle holds. */
PyObject *zpy_store_pending(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"cls",      "path",      "location",      "geometry",
                            "identity", "checksums", "mapped_nbytes", NULL};
    PyObject *cls, *path, *location;
    int geometry, checksums;
    unsigned long long identity, mapped_nbytes = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOUiKp|K:store_pending", names, &cls, &path,
                                     &location, &geometry, &identity, &checksums, &mapped_nbytes))
        return NULL;
    struct store *s = zpy_store_alloc(PyModule_GetState(module), (PyTypeObject *)cls, path, location);
    if (!s)
        return NULL;
    s->geometry = geometry;
    s->identity = identity;
    s->checksums = checksums;
    s->mapped_nbytes = mapped_nbytes;
    s->pending = true;
    return (PyObject *)s;
}

/* ---------------------------------------------------------------- the type */

static PyObject *store_new(PyTypeObject *type, PyObject *Py_UNUSED(args),
                           PyObject *Py_UNUSED(kwargs))
{
    return PyErr_Format(PyExc_TypeError, "use %s.open(...) or %s.create(...)", type->tp_name,
                        type->tp_name);
}

/* An unclosed writer is discarded: only close() publishes. */
static void store_finalize(PyObject *op)
{
    struct store *s = (struct store *)op;
    if (!s->writer || s->pid != getpid())
        return;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (PyErr_ResourceWarning(op, 1, "%S: writer was never closed; what it wrote is discarded",
                              s->path) < 0)
        PyErr_WriteUnraisable(op);
    zpy_writer_discard(s);
    PyErr_Restore(type, value, traceback);
}

static void store_dealloc(PyObject *op)
{
    struct store *s = (struct store *)op;
    if (PyObject_CallFinalizerFromDealloc(op) < 0)
        return;
    PyTypeObject *type = Py_TYPE(op);
    if (atomic_fetch_or(&s->users, CLOSED) == 0)
        zr_reader_close(s->reader); /* NULL of a writer or a pending reader is fine */
    if (s->lock)
        PyThread_free_lock(s->lock);
    Py_XDECREF(s->owner);
    Py_XDECREF(s->path);
    Py_XDECREF(s->location);
    Py_XDECREF(s->dtype);
    Py_XDECREF(s->codec);
    Py_XDECREF(s->item_shape);
    type->tp_free(op);
    Py_DECREF(type);
}

static Py_ssize_t store_length(PyObject *op)
{
    struct store *s = (struct store *)op;
    if (s->closed)
        return zpy_raise_closed(s);
    if (s->writable)
        return (Py_ssize_t)s->length;
    return zpy_store_readable(s) < 0 ? -1 : (Py_ssize_t)s->length;
}

PyDoc_STRVAR(close_doc,
"close($self, /)\n--\n\n"
"Publish a writer, or release a reader.\n\n"
"Closing twice is fine.  A gather running in another thread finishes first; the\n"
"reader's lock on the store is released after it.\n\n"
"Raises\n------\n"
"ZrecordError\n    The writer could not publish; nothing is left at its path.");

static PyObject *store_close(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    struct store *s = (struct store *)op;
    if (!s->closed && s->writable)
        return zpy_writer_close(s) < 0 ? NULL : Py_NewRef(Py_None);
    bool was_closed;
    Py_BEGIN_CRITICAL_SECTION(op);
    was_closed = s->closed;
    s->closed = true;
    Py_END_CRITICAL_SECTION();
    if (!was_closed && s->reader)
        close_reader(s);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(abort_doc,
"abort($self, /)\n--\n\n"
"Discard what a writer wrote: nothing appears at its path.\n\n"
"On a reader the same as close().");

static PyObject *store_abort(PyObject *op, PyObject *args)
{
    struct store *s = (struct store *)op;
    if (!s->writable)
        return store_close(op, args);
    if (!s->closed && zpy_writer_abort(s) < 0)
        return NULL;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(prefetch_doc,
"prefetch($self, indices, /)\n--\n\n"
"Hint that these records are wanted soon.\n\n"
"Queues their reads where they are not in the page cache, and returns at once.\n\n"
"Returns\n-------\n"
"int\n    Records queued; 0 when all looked to be in memory.");

static PyObject *store_prefetch(PyObject *op, PyObject *key)
{
    struct store *s = (struct store *)op;
    struct zr_reader *reader = zpy_reader_enter(s);
    if (!reader)
        return NULL;
    struct ids ids;
    size_t queued_count = 0;
    int rc = zpy_ids_init(&ids, key, s);
    if (!rc) {
        Py_BEGIN_ALLOW_THREADS
        queued_count = zr_prefetch(reader, ids.at, ids.count);
        Py_END_ALLOW_THREADS
    }
    zpy_ids_release(&ids);
    zpy_reader_leave(s);
    return rc < 0 ? NULL : PyLong_FromSize_t(queued_count);
}

/* What __reduce__ needs, in the order of store_pending. */
static PyObject *store_pickle_state(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    struct store *s = (struct store *)op;
    if (s->writable) {
        PyErr_SetString(PyExc_TypeError, "a writer cannot be pickled or copied");
        return NULL;
    }
    if (s->closed) {
        zpy_raise_closed(s);
        return NULL;
    }
    return Py_BuildValue("(OOOiKOK)", (PyObject *)Py_TYPE(op), s->path, s->location, s->geometry,
                         (unsigned long long)s->identity, s->checksums ? Py_True : Py_False,
                         s->mapped_nbytes);
}

static PyMethodDef store_methods[] = {
    {"close", store_close, METH_NOARGS, close_doc},
    {"abort", store_abort, METH_NOARGS, abort_doc},
    {"prefetch", store_prefetch, METH_O, prefetch_doc},
    {"_pickle_state", store_pickle_state, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

/* Schema getters work on a closed store too, but a pending one must be opened. */
static PyObject *schema_part(struct store *s, PyObject **part)
{
    if (!*part && zpy_store_readable(s) < 0)
        return NULL;
    return Py_NewRef(*part);
}

static PyObject *get_dtype(PyObject *op, void *Py_UNUSED(closure))
{
    struct store *s = (struct store *)op;
    return schema_part(s, (PyObject **)&s->dtype);
}

static PyObject *get_codec(PyObject *op, void *Py_UNUSED(closure))
{
    struct store *s = (struct store *)op;
    return schema_part(s, &s->codec);
}

static PyObject *get_path(PyObject *op, void *Py_UNUSED(closure))
{
    return Py_NewRef(((struct store *)op)->path);
}

static PyObject *get_closed(PyObject *op, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(((struct store *)op)->closed);
}

static PyObject *get_writable(PyObject *op, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(((struct store *)op)->writable);
}

static PyGetSetDef store_getset[] = {
    {"dtype", get_dtype, NULL, "numpy.dtype of every record.", NULL},
    {"codec", get_codec, NULL, "'raw', 'zstd' or 'zstd_dict'.", NULL},
    {"path", get_path, NULL, "pathlib.Path as given to open() or create().", NULL},
    {"closed", get_closed, NULL, "Whether close() or abort() was called.", NULL},
    {"_writable", get_writable, NULL, "Whether create() made it.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot store_slots[] = {
    {Py_tp_new, store_new},
    {Py_tp_dealloc, store_dealloc},
    {Py_tp_finalize, store_finalize},
    {Py_tp_methods, store_methods},
    {Py_tp_getset, store_getset},
    {Py_sq_length, store_length},
    {Py_mp_length, store_length},
    {Py_tp_doc, (void *)"What Dense and Ragged have in common."},
    {0, NULL},
};

PyType_Spec zpy_store_spec = {
    .name = "zrecord._core.Store",
    .basicsize = sizeof(struct store),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = store_slots,
};
