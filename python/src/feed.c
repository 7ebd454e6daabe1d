/* SPDX-License-Identifier: MIT
 *
 * Feed: the engine's feed over opened stores, giving batches as dicts of arrays.  The
 * thread that gathers is the engine's and never asks for the GIL; DataLoader adds
 * transforms, order and position on top.
 *
 * `users` counts calls inside the engine's feed; close() sets CLOSED, and whoever is
 * last frees it.  The stores stay entered as long, so closing one of them does not pull
 * its files away; the next take says so instead.
 */
#include "core.h"

#include <unistd.h>

#define CLOSED (1ull << 63)
/* A wait is cut into pieces of this length, between which signals are looked at. */
#define WAIT_NSEC 50000000

struct feed {
    PyObject_HEAD
    struct core_state *state;
    PyObject *names;          /* owned: tuple of str */
    PyObject *stores;         /* owned: tuple of stores, each entered */
    Py_ssize_t entered_count; /* of them */
    bool *packed;             /* owned: for each stream */
    struct zr_feed *engine;   /* owned; freed by whoever drops `users` to CLOSED */
    atomic_ullong users;
    atomic_ullong failed_step;
    pid_t pid;
};

static struct store *store_at(const struct feed *f, Py_ssize_t i)
{
    return (struct store *)PyTuple_GET_ITEM(f->stores, i);
}

/* ---------------------------------------------------------------- the end */

static void leave_stores(struct feed *f)
{
    while (f->entered_count)
        zpy_reader_leave(store_at(f, --f->entered_count));
}

static void free_engine(struct feed *f)
{
    Py_BEGIN_ALLOW_THREADS
    zr_feed_free(f->engine);
    Py_END_ALLOW_THREADS
    leave_stores(f);
}

static bool enter(struct feed *f)
{
    unsigned long long users = atomic_load(&f->users);
    do {
        if (users & CLOSED)
            return false;
    } while (!atomic_compare_exchange_weak(&f->users, &users, users + 1));
    return true;
}

static void leave(struct feed *f)
{
    if (atomic_fetch_sub(&f->users, 1) == (CLOSED | 1))
        free_engine(f);
}

PyDoc_STRVAR(stop_doc,
"stop($self, /)\n--\n\n"
"Give no more batches and wake every take; does not wait.");

static PyObject *feed_stop(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    struct feed *f = (struct feed *)op;
    if (enter(f)) {
        zr_feed_stop(f->engine);
        leave(f);
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(close_doc,
"close($self, /)\n--\n\n"
"Stop, wait for the gather under way and drop what was gathered ahead.\n\n"
"Calls inside take() in other threads end first; the last of them does the rest.");

static PyObject *feed_close(PyObject *op, PyObject *unused)
{
    struct feed *f = (struct feed *)op;
    Py_DECREF(feed_stop(op, unused));
    if (atomic_fetch_or(&f->users, CLOSED) == 0)
        free_engine(f);
    Py_RETURN_NONE;
}

static int feed_traverse(PyObject *op, visitproc visit, void *arg)
{
    struct feed *f = (struct feed *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(f->names);
    Py_VISIT(f->stores);
    return 0;
}

static void feed_dealloc(PyObject *op)
{
    struct feed *f = (struct feed *)op;
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    if (atomic_fetch_or(&f->users, CLOSED) == 0)
        free_engine(f);
    Py_XDECREF(f->names);
    Py_XDECREF(f->stores);
    PyMem_Free(f->packed);
    type->tp_free(op);
    Py_DECREF(type);
}

/* ---------------------------------------------------------------- the beginning */

static int enter_stores(struct feed *f, struct zr_feed_stream *streams)
{
    Py_ssize_t count = PyTuple_GET_SIZE(f->stores);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *store = PyTuple_GET_ITEM(f->stores, i);
        if (!PyObject_TypeCheck(store, f->state->store_type)) {
            PyErr_SetString(PyExc_TypeError, "streams must be stores");
            return -1;
        }
        streams[i].reader = zpy_reader_enter(store_at(f, i));
        if (!streams[i].reader)
            return -1;
        f->entered_count++;
        streams[i].packed = f->packed[i];
    }
    return 0;
}

/* The ids of a step that belong to one rank; -1 when there are none. */
static int slice(struct zr_feed_options *o, unsigned long long rank, unsigned long long world)
{
    unsigned __int128 total = zr_sampler_batch_count(&o->sampler);
    if (rank >= world) {
        PyErr_Format(PyExc_ValueError, "rank %llu must be below world_size %llu", rank, world);
        return -1;
    }
    o->begin = (size_t)(total * rank / world);
    o->count = (size_t)(total * (rank + 1) / world) - o->begin;
    if (o->count)
        return 0;
    PyErr_Format(PyExc_ValueError, "a batch of %zu records leaves none to rank %llu of %llu",
                 (size_t)total, rank, world);
    return -1;
}

static int start(struct feed *f, struct zr_feed_options *o)
{
    struct zr_error err;
    zpy_error_reset(&err);
    struct zr_feed_stream *streams = PyMem_Calloc(o->stream_count, sizeof *streams);
    int code = ZR_E_NOMEM;
    if (!streams)
        PyErr_NoMemory();
    else if (enter_stores(f, streams) == 0) {
        o->streams = streams;
        code = zr_feed_start(&f->engine, o, &err);
        if (code < 0)
            zpy_raise(f->state, code, &err, NULL);
    }
    PyMem_Free(streams);
    return code < 0 ? -1 : 0;
}

static int parse_packed(struct feed *f, PyObject *flags)
{
    Py_ssize_t count = PyTuple_GET_SIZE(f->stores);
    f->packed = PyMem_Calloc((size_t)count + 1, sizeof *f->packed);
    if (!f->packed) {
        PyErr_NoMemory();
        return -1;
    }
    if (!count || PyTuple_GET_SIZE(f->names) != count || PyTuple_GET_SIZE(flags) != count) {
        PyErr_SetString(PyExc_ValueError, "a feed needs a name and a flag for each stream");
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        f->packed[i] = PyTuple_GET_ITEM(flags, i) == Py_True;
    return 0;
}

/* Feed(names, stores, packed, sampler, rank, world_size, step, skip, limit, ahead); the caller
 * has checked them. */
static PyObject *feed_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"names",      "stores", "packed", "sampler", "rank",
                               "world_size", "step",   "skip",   "limit",   "ahead", NULL};
    struct core_state *state = PyType_GetModuleState(type);
    PyObject *names, *stores, *flags, *sampler;
    Py_buffer skip;
    unsigned long long rank, world, step;
    Py_ssize_t limit, ahead;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!O!O!KKKy*nn:Feed", keywords, &PyTuple_Type,
                                     &names, &PyTuple_Type, &stores, &PyTuple_Type, &flags,
                                     state->sampler_type, &sampler, &rank, &world, &step, &skip,
                                     &limit, &ahead))
        return NULL;
    struct feed *f = (struct feed *)type->tp_alloc(type, 0);
    int rc = f ? 0 : -1;
    if (f) {
        f->state = state;
        f->names = Py_NewRef(names);
        f->stores = Py_NewRef(stores);
        f->pid = getpid();
        struct zr_feed_options o = {.stream_count = (size_t)PyTuple_GET_SIZE(stores),
                                    .sampler = *zpy_sampler_config(sampler),
                                    .first_step = step,
                                    .skip = skip.buf,
                                    .skip_count = (size_t)skip.len / sizeof *o.skip,
                                    .limit = (size_t)limit,
                                    .ahead_count = (size_t)ahead};
        rc = parse_packed(f, flags) < 0 || slice(&o, rank, world) < 0 || start(f, &o) < 0 ? -1 : 0;
    }
    PyBuffer_Release(&skip);
    if (rc < 0)
        Py_CLEAR(f);
    return (PyObject *)f;
}

/* ---------------------------------------------------------------- batches */

/* The values of one stream; takes the blocks of the part over in any case. */
static PyObject *part_value(struct feed *f, Py_ssize_t i, size_t count, struct zr_part *part)
{
    struct store *s = store_at(f, i);
    if (s->geometry == ZR_DENSE) {
        npy_intp dims[ZR_MAX_NDIM + 1];
        memcpy(dims, s->dims, ((size_t)s->ndim + 1) * sizeof *dims);
        dims[0] = (npy_intp)count;
        void *data = part->data;
        part->data = NULL;
        return zpy_array_adopt(s->state, s->dtype, s->ndim + 1, dims, data, part->nbytes);
    }
    return f->packed[i] ? zpy_packed_adopt(s, count, part) : zpy_ragged_adopt(s, count, part);
}

static PyObject *batch_dict(struct feed *f, size_t count, struct zr_part *parts)
{
    PyObject *dict = PyDict_New();
    for (Py_ssize_t i = 0; dict && i < PyTuple_GET_SIZE(f->stores); i++) {
        PyObject *value = part_value(f, i, count, &parts[i]);
        if (!value || PyDict_SetItem(dict, PyTuple_GET_ITEM(f->names, i), value) < 0)
            Py_CLEAR(dict);
        Py_XDECREF(value);
    }
    zr_parts_release(parts, (size_t)PyTuple_GET_SIZE(f->stores));
    return dict;
}

/* The engine's message names file, record and reason; stream and step are added. */
static void raise_failed(struct feed *f, int code, const struct zr_feed_batch *batch,
                         struct zr_error *err)
{
    Py_ssize_t i = (Py_ssize_t)batch->failed_stream;
    const char *name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(f->names, i));
    if (!name)
        PyErr_Clear();
    size_t used = strlen(err->message);
    snprintf(err->message + used, sizeof err->message - used, " [stream '%s', step %llu]",
             name ? name : "?", (unsigned long long)batch->step);
    f->failed_step = batch->step;
    zpy_raise(f->state, code, err, store_at(f, i)->path);
}

static int check_stores(struct feed *f)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(f->stores); i++)
        if (store_at(f, i)->closed) {
            PyErr_Format(PyExc_RuntimeError, "stream %R: the store %S is closed",
                         PyTuple_GET_ITEM(f->names, i), store_at(f, i)->path);
            return -1;
        }
    return 0;
}

/* Waits without the GIL; 0 when stopped, -1 with an exception, else 1. */
static int wait_batch(struct feed *f, struct zr_part *parts, struct zr_feed_batch *batch)
{
    struct zr_error err;
    zpy_error_reset(&err);
    for (;;) {
        int code;
        Py_BEGIN_ALLOW_THREADS
        code = zr_feed_take(f->engine, parts, batch, WAIT_NSEC, &err);
        Py_END_ALLOW_THREADS
        if (code == ZR_OK)
            return 1;
        if (code == ZR_E_CANCELLED)
            return 0;
        if (code < 0) {
            raise_failed(f, code, batch, &err);
            return -1;
        }
        if (PyErr_CheckSignals() < 0)
            return -1;
    }
}

static PyObject *take(struct feed *f, bool hold)
{
    struct zr_feed_batch batch;
    Py_ssize_t count = PyTuple_GET_SIZE(f->stores);
    struct zr_part *parts = PyMem_Calloc((size_t)count, sizeof *parts);
    if (!parts)
        return PyErr_NoMemory();
    PyObject *result = NULL;
    int got = check_stores(f) < 0 ? -1 : wait_batch(f, parts, &batch);
    if (got > 0) {
        if (!hold)
            zr_feed_release(f->engine);
        PyObject *dict = batch_dict(f, batch.count, parts);
        if (dict)
            result = Py_BuildValue("KN", (unsigned long long)batch.step, dict);
    } else if (!got) {
        result = Py_NewRef(Py_None);
    }
    PyMem_Free(parts);
    return result;
}

PyDoc_STRVAR(take_doc,
"take($self, hold, /)\n--\n\n"
"The next batch: (step, {name: values}), or None after stop().\n\n"
"With `hold` it counts against the limit until release().");

static PyObject *feed_take(PyObject *op, PyObject *hold)
{
    struct feed *f = (struct feed *)op;
    if (f->pid != getpid()) {
        PyErr_SetString(PyExc_RuntimeError,
                        "a DataLoader does not survive fork: make one in the child");
        return NULL;
    }
    if (!enter(f))
        Py_RETURN_NONE;
    PyObject *result = take(f, hold == Py_True);
    leave(f);
    return result;
}

static PyObject *feed_release(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    struct feed *f = (struct feed *)op;
    if (enter(f)) {
        zr_feed_release(f->engine);
        leave(f);
    }
    Py_RETURN_NONE;
}

static PyObject *feed_stats(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    struct feed *f = (struct feed *)op;
    struct zr_feed_stats s = {0};
    if (enter(f)) {
        zr_feed_stats(f->engine, &s);
        leave(f);
    }
    return Py_BuildValue("{sK sK sd sd sn sn}", "taken", (unsigned long long)s.taken_count,
                         "gathered", (unsigned long long)s.gathered_count, "gather_seconds",
                         (double)s.gather_nsec * 1e-9, "wait_seconds", (double)s.wait_nsec * 1e-9,
                         "ready", (Py_ssize_t)s.ready_count, "under_way",
                         (Py_ssize_t)s.under_way_count);
}

/* ---------------------------------------------------------------- the type */

static PyMethodDef feed_methods[] = {
    {"take", feed_take, METH_O, take_doc},
    {"release", feed_release, METH_NOARGS, "release($self, /)\n--\n\nForget a batch that was held."},
    {"stop", feed_stop, METH_NOARGS, stop_doc},
    {"close", feed_close, METH_NOARGS, close_doc},
    {"stats", feed_stats, METH_NOARGS, "stats($self, /)\n--\n\nCounts and seconds so far."},
    {NULL, NULL, 0, NULL},
};

static PyObject *get_failed_step(PyObject *op, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLongLong(((struct feed *)op)->failed_step);
}

static PyGetSetDef feed_getset[] = {
    {"failed_step", get_failed_step, NULL, "Step of the gather that failed.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot feed_slots[] = {
    {Py_tp_new, feed_new},
    {Py_tp_dealloc, feed_dealloc},
    {Py_tp_traverse, feed_traverse},
    {Py_tp_methods, feed_methods},
    {Py_tp_getset, feed_getset},
    {Py_tp_doc, (void *)"Batches of several stores, gathered ahead."},
    {0, NULL},
};

PyType_Spec zpy_feed_spec = {
    .name = "zrecord._core.Feed",
    .basicsize = sizeof(struct feed),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = feed_slots,
};
