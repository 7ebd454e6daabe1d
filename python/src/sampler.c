/* SPDX-License-Identifier: MIT
 *
 * Sampler: batches of record ids as a pure function of (length, batch_size, mode,
 * seed, step).  The arithmetic is the engine's, so C, Python and a mount agree;
 * this file keeps the step and one buffer that every batch is written to.
 */
#include "core.h"

/* From this many ids on, a batch takes long enough to let other threads run. */
#define RELEASE_COUNT_MIN 128

struct sampler {
    PyObject_HEAD
    struct zr_sampler config;
    uint64_t step;      /* of the next batch; under busy */
    PyArrayObject *ids; /* owned: the reused buffer; under busy */
    atomic_flag busy;
};

static int enter(struct sampler *s)
{
    if (!atomic_flag_test_and_set(&s->busy))
        return 0;
    PyErr_SetString(PyExc_RuntimeError, "the sampler is in use by another thread");
    return -1;
}

static void leave(struct sampler *s)
{
    atomic_flag_clear(&s->busy);
}

/* Any object with __index__ as uint64; refuses what is below least. */
static int as_u64(PyObject *op, const char *name, uint64_t least, uint64_t *value)
{
    PyObject *number = PyNumber_Index(op);
    if (!number)
        return -1;
    *value = PyLong_AsUnsignedLongLong(number);
    Py_DECREF(number);
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_OverflowError))
        return -1;
    if (!PyErr_Occurred() && *value >= least)
        return 0;
    PyErr_Clear();
    PyErr_Format(PyExc_ValueError, "%s must be in %llu..2^64-1", name, (unsigned long long)least);
    return -1;
}

static int parse_config(PyObject *args, PyObject *kwargs, struct zr_sampler *config)
{
    static char *names[] = {"length", "batch_size", "mode", "seed", NULL};
    PyObject *length, *batch_size, *mode, *seed = NULL;
    uint64_t number;
    config->seed = 42;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO|O:Sampler", names, &length, &batch_size,
                                     &mode, &seed) ||
        as_u64(length, "length", 1, &config->length) < 0 ||
        as_u64(batch_size, "batch_size", 1, &config->batch_size) < 0 ||
        as_u64(mode, "mode", 0, &number) < 0 ||
        (seed && as_u64(seed, "seed", 0, &config->seed) < 0))
        return -1;
    config->mode = number <= INT_MAX ? (int)number : -1;
    if (zr_sampler_batch_count(config))
        return 0;
    PyErr_SetString(PyExc_ValueError, "mode must be Sampler.Mode.SEQUENTIAL, IID or CYCLIC");
    return -1;
}

static PyObject *sampler_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    struct zr_sampler config;
    if (parse_config(args, kwargs, &config) < 0)
        return NULL;
    uint64_t count = zr_sampler_batch_count(&config);
    if (count > PY_SSIZE_T_MAX / sizeof(uint64_t))
        return PyErr_NoMemory();
    npy_intp dim = (npy_intp)count;
    PyObject *ids = PyArray_ZEROS(1, &dim, NPY_UINT64, 0);
    struct sampler *s = ids ? (struct sampler *)type->tp_alloc(type, 0) : NULL;
    if (!s) {
        Py_XDECREF(ids);
        return NULL;
    }
    s->config = config;
    s->ids = (PyArrayObject *)ids;
    atomic_flag_clear(&s->busy);
    return (PyObject *)s;
}

static void sampler_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    Py_XDECREF(((struct sampler *)op)->ids);
    type->tp_free(op);
    Py_DECREF(type);
}

const struct zr_sampler *zpy_sampler_config(PyObject *sampler)
{
    return &((struct sampler *)sampler)->config;
}

static PyObject *view_of(PyArrayObject *ids)
{
    return zpy_array_view((PyObject *)ids, PyArray_DESCR(ids), 1, PyArray_DIMS(ids),
                          PyArray_DATA(ids));
}

static PyObject *sampler_next(PyObject *op)
{
    struct sampler *s = (struct sampler *)op;
    if (enter(s) < 0)
        return NULL;
    uint64_t *ids = PyArray_DATA(s->ids);
    if (PyArray_DIM(s->ids, 0) < RELEASE_COUNT_MIN) {
        zr_sampler_batch(&s->config, s->step, ids);
    } else {
        Py_BEGIN_ALLOW_THREADS
        zr_sampler_batch(&s->config, s->step, ids);
        Py_END_ALLOW_THREADS
    }
    s->step++;
    leave(s);
    return view_of(s->ids);
}

PyDoc_STRVAR(next_doc,
"next($self, /)\n--\n\n"
"Ids of the next batch.\n\n"
"Returns\n-------\n"
"numpy.ndarray of uint64\n"
"    A view of one buffer that every draw overwrites: copy() it to keep it.  Its length\n"
"    is batch_size, or the store's length where CYCLIC has fewer records than that.");

static PyObject *sampler_next_method(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    return sampler_next(op);
}

PyDoc_STRVAR(seek_doc,
"seek($self, step, /)\n--\n\n"
"Make the next batch that of step (0-based).  Constant time.");

static PyObject *sampler_seek(PyObject *op, PyObject *arg)
{
    struct sampler *s = (struct sampler *)op;
    uint64_t step;
    if (as_u64(arg, "step", 0, &step) < 0 || enter(s) < 0)
        return NULL;
    s->step = step;
    leave(s);
    Py_RETURN_NONE;
}

static PyObject *sampler_reduce(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    struct sampler *s = (struct sampler *)op;
    return Py_BuildValue("O(KKiK)K", (PyObject *)Py_TYPE(op), (unsigned long long)s->config.length,
                         (unsigned long long)s->config.batch_size, s->config.mode,
                         (unsigned long long)s->config.seed, (unsigned long long)s->step);
}

static PyMethodDef sampler_methods[] = {
    {"next", sampler_next_method, METH_NOARGS, next_doc},
    {"seek", sampler_seek, METH_O, seek_doc},
    {"__reduce__", sampler_reduce, METH_NOARGS, NULL},
    {"__setstate__", sampler_seek, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyObject *get_u64(PyObject *op, void *offset)
{
    return PyLong_FromUnsignedLongLong(*(uint64_t *)((char *)op + (size_t)offset));
}

static PyObject *get_mode(PyObject *op, void *Py_UNUSED(closure))
{
    return PyLong_FromLong(((struct sampler *)op)->config.mode);
}

#define AT(member) ((void *)offsetof(struct sampler, member))
static PyGetSetDef sampler_getset[] = {
    {"length", get_u64, NULL, "Number of records.", AT(config.length)},
    {"batch_size", get_u64, NULL, "Ids asked for a step.", AT(config.batch_size)},
    {"mode", get_mode, NULL, "One of Sampler.Mode.", NULL},
    {"seed", get_u64, NULL, "Seed of the order.", AT(config.seed)},
    {"step", get_u64, NULL, "Step that next() will give.", AT(step)},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot sampler_slots[] = {
    {Py_tp_new, sampler_new},
    {Py_tp_dealloc, sampler_dealloc},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, sampler_next},
    {Py_tp_methods, sampler_methods},
    {Py_tp_getset, sampler_getset},
    {Py_tp_doc, (void *)"Sampler(length, batch_size, mode, seed=42)\n--\n\nBatches of record ids."},
    {0, NULL},
};

PyType_Spec zpy_sampler_spec = {
    .name = "zrecord._core.Sampler",
    .basicsize = sizeof(struct sampler),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = sampler_slots,
};
