/* SPDX-License-Identifier: MIT
 *
 * The life of a store being written: created, appended to one call at a time, closed
 * or aborted.  A forked child never touches its copy: the files are the parent's.
 */
#include "core.h"

#include <unistd.h>

/* ---------------------------------------------------------------- creation */

static int parse_shape(PyObject *tuple, uint64_t *shape, uint32_t *ndim)
{
    *ndim = (uint32_t)PyTuple_GET_SIZE(tuple);
    if (*ndim >= ZR_MAX_NDIM) {
        PyErr_Format(PyExc_ValueError, "item_shape rank must be below %d", ZR_MAX_NDIM);
        return -1;
    }
    for (uint32_t i = 0; i < *ndim; i++) {
        shape[i] = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(tuple, i));
        if (PyErr_Occurred())
            return -1;
    }
    return 0;
}

/* What store_create was called with; dtype and text are owned. */
struct creation {
    PyTypeObject *cls;
    PyObject *path;
    PyObject *location;
    PyArray_Descr *dtype;
    PyObject *text; /* dtype.str, which options.dtype points into */
    struct zr_writer_options options;
    uint64_t shape[ZR_MAX_NDIM];
};

static void creation_release(struct creation *c)
{
    Py_XDECREF(c->dtype);
    Py_XDECREF(c->text);
}

static int parse_creation(PyObject *args, PyObject *kwargs, struct creation *c)
{
    static char *names[] = {"cls",        "path",      "location",   "geometry", "dtype",
                            "item_shape", "codec",     "dict_bytes", "level",    "tune",
                            "durability", "checksums", NULL};
    struct zr_writer_options *o = &c->options;
    PyObject *shape;
    const char *dict;
    Py_ssize_t dict_nbytes;
    int checksums;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOUiO&O!iz#iiip:store_create", names, &c->cls,
                                     &c->path, &c->location, &o->geometry, PyArray_DescrConverter,
                                     &c->dtype, &PyTuple_Type, &shape, &o->codec, &dict,
                                     &dict_nbytes, &o->level, &o->tune, &o->durability, &checksums))
        return -1;
    c->text = PyObject_GetAttrString((PyObject *)c->dtype, "str");
    o->dtype = c->text ? PyUnicode_AsUTF8(c->text) : NULL;
    o->item_shape = c->shape;
    o->dict = dict;
    o->dict_nbytes = (size_t)dict_nbytes;
    o->no_sidecar = !checksums;
    return o->dtype ? parse_shape(shape, c->shape, &o->ndim) : -1;
}

static int begin_writer(struct store *s, const struct zr_writer_options *options)
{
    PyObject *bytes;
    if (!PyUnicode_FSConverter(s->path, &bytes))
        return -1;
    struct zr_error err;
    zpy_error_reset(&err);
    int code;
    Py_BEGIN_ALLOW_THREADS
    code = zr_writer_create(&s->writer, PyBytes_AS_STRING(bytes), options, &err);
    Py_END_ALLOW_THREADS
    Py_DECREF(bytes);
    if (code < 0)
        zpy_raise(s->state, code, &err, s->path);
    return code < 0 ? -1 : 0;
}

static int init_writer(struct store *s, const struct creation *c)
{
    const struct zr_writer_options *o = &c->options;
    s->writable = true;
    s->geometry = o->geometry;
    s->pid = getpid();
    s->lock = PyThread_allocate_lock();
    if (!s->lock)
        PyErr_NoMemory();
    if (!s->lock || zpy_store_set_schema(s, o->dtype, o->codec, o->ndim, o->item_shape) < 0)
        return -1;
    /* The dtype as given: one that a dtype string cannot say stays usable for append. */
    Py_SETREF(s->dtype, (PyArray_Descr *)Py_NewRef(c->dtype));
    s->row_nbytes = (uint64_t)PyDataType_ELSIZE(c->dtype);
    for (uint32_t i = 0; i < o->ndim; i++)
        s->row_nbytes *= o->item_shape[i];
    return begin_writer(s, o);
}

/* store_create(cls, path, location, geometry, dtype, item_shape, codec, dict_bytes, level, tune,
 *              durability, checksums); the caller validated what Python can say better. */
PyObject *zpy_store_create(PyObject *module, PyObject *args, PyObject *kwargs)
{
    struct creation c = {0};
    struct store *s = NULL;
    if (parse_creation(args, kwargs, &c) == 0)
        s = zpy_store_alloc(PyModule_GetState(module), c.cls, c.path, c.location);
    if (s && init_writer(s, &c) < 0)
        Py_CLEAR(s);
    creation_release(&c);
    return (PyObject *)s;
}

/* ---------------------------------------------------------------- use */

static int raise_forked(void)
{
    PyErr_SetString(PyExc_RuntimeError, "a writer cannot be used in a forked child");
    return -1;
}

static int lock_writer(struct store *s)
{
    if (s->pid != getpid())
        return raise_forked();
    if (s->lock_owner == PyThread_get_thread_ident()) {
        PyErr_SetString(PyExc_RuntimeError, "the writer is in use further up in this thread");
        return -1;
    }
    if (!PyThread_acquire_lock(s->lock, NOWAIT_LOCK)) {
        Py_BEGIN_ALLOW_THREADS
        PyThread_acquire_lock(s->lock, WAIT_LOCK);
        Py_END_ALLOW_THREADS
    }
    s->lock_owner = PyThread_get_thread_ident();
    return 0;
}

void zpy_writer_leave(struct store *s)
{
    s->lock_owner = 0;
    PyThread_release_lock(s->lock);
}

static void raise_failed(struct store *s)
{
    zpy_raise_format(s->state, ZR_E_STATE, s->path,
                     "%S: an earlier append failed, so the store cannot be finished", s->path);
}

struct zr_writer *zpy_writer_enter(struct store *s)
{
    if (!s->closed && !s->writable) {
        PyErr_SetString(PyExc_RuntimeError, "a reader cannot be appended to: create() a new store");
        return NULL;
    }
    if (s->closed) {
        zpy_raise_closed(s);
        return NULL;
    }
    if (lock_writer(s) < 0)
        return NULL;
    if (s->writer && !s->failed)
        return s->writer;
    if (s->failed)
        raise_failed(s);
    else
        zpy_raise_closed(s);
    zpy_writer_leave(s);
    return NULL;
}

/* Takes the writer out, so that nobody else ends it. */
static struct zr_writer *take_writer(struct store *s)
{
    struct zr_writer *writer = s->writer;
    s->writer = NULL;
    s->closed = true;
    return writer;
}

int zpy_writer_abort(struct store *s)
{
    if (lock_writer(s) < 0)
        return -1;
    struct zr_writer *writer = take_writer(s);
    Py_BEGIN_ALLOW_THREADS
    zr_writer_abort(writer);
    Py_END_ALLOW_THREADS
    zpy_writer_leave(s);
    return 0;
}

int zpy_writer_close(struct store *s)
{
    if (s->failed) {
        if (zpy_writer_abort(s) == 0)
            raise_failed(s);
        return -1;
    }
    if (lock_writer(s) < 0)
        return -1;
    struct zr_writer *writer = take_writer(s);
    struct zr_error err;
    zpy_error_reset(&err);
    int code = ZR_OK;
    Py_BEGIN_ALLOW_THREADS
    if (writer)
        code = zr_writer_close(writer, &err);
    Py_END_ALLOW_THREADS
    zpy_writer_leave(s);
    if (code < 0)
        zpy_raise(s->state, code, &err, s->path);
    return code < 0 ? -1 : 0;
}

void zpy_writer_discard(struct store *s)
{
    zr_writer_abort(take_writer(s));
}
