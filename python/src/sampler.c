/* SPDX-License-Identifier: MIT
 *
 * Sampler: batches of record ids as a pure function of (length, batch_size, mode,
 * seed, step).  The arithmetic is the engine's, so C, Python and a mount agree;
 * this file keeps the step and one buffer that every batch is written to.
 */
#include "core.h"

/* From this many ids on, a batch takes long enough to let other threads run.  Draws take
 * a quarter of the time of permutations. */
#define RELEASE_COUNT_MIN 128
#define RELEASE_DRAWS_MIN 1024

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
    if (!PyIndex_Check(op)) {
        PyErr_Format(PyExc_TypeError, "%s must be an integer, not %.100s", name,
                     Py_TYPE(op)->tp_name);
        return -1;
    }
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

/* Its mode, and of BLOCK what only that has. */
static int parse_mode(PyObject *mode, PyObject *block_size, PyObject *interleave,
                      struct zr_sampler *config)
{
    uint64_t number, blocks = 0;
    if (!PyIndex_Check(mode)) {
        PyErr_Format(PyExc_TypeError, "mode must be a Mode, like Mode.CYCLIC, not %R", mode);
        return -1;
    }
    if (as_u64(mode, "mode", 0, &number) < 0 ||
        (block_size && as_u64(block_size, "block_size", 1, &config->block_size) < 0) ||
        (interleave && as_u64(interleave, "interleave", 1, &blocks) < 0))
        return -1;
    config->mode = number <= INT_MAX ? (int)number : -1;
    config->interleave = blocks <= UINT_MAX ? (unsigned)blocks : UINT_MAX;
    if (zr_sampler_batch_count(config))
        return 0;
    PyErr_SetString(PyExc_ValueError,
                    config->mode == ZR_BLOCK
                        ? "Mode.BLOCK takes interleave in 1..256 and at most 2^62 records"
                        : "mode must be Sampler.Mode.SEQUENTIAL, IID, CYCLIC or BLOCK");
    return -1;
}

static int parse_config(PyObject *args, PyObject *kwargs, struct zr_sampler *config)
{
    static char *names[] = {"length",     "batch_size", "mode", "seed",
                            "block_size", "interleave", NULL};
    PyObject *length, *batch_size, *mode, *seed = NULL, *block_size = NULL, *interleave = NULL;
    *config = (struct zr_sampler){.seed = 42};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO|O$OO:Sampler", names, &length, &batch_size,
                                     &mode, &seed, &block_size, &interleave) ||
        as_u64(length, "length", 1, &config->length) < 0 ||
        as_u64(batch_size, "batch_size", 1, &config->batch_size) < 0 ||
        (seed && as_u64(seed, "seed", 0, &config->seed) < 0))
        return -1;
    return parse_mode(mode, block_size, interleave, config);
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

static void fill(const struct zr_sampler *config, uint64_t step, uint64_t *ids)
{
    uint64_t count = zr_sampler_batch_count(config);
    bool draws = config->mode == ZR_IID || config->mode == ZR_SEQUENTIAL;
    if (count < (draws ? RELEASE_DRAWS_MIN : RELEASE_COUNT_MIN)) {
        zr_sampler_batch(config, step, ids);
        return;
    }
    Py_BEGIN_ALLOW_THREADS;
    zr_sampler_batch(config, step, ids);
    Py_END_ALLOW_THREADS;
}

static PyObject *sampler_next(PyObject *op)
{
    struct sampler *s = (struct sampler *)op;
    if (enter(s) < 0)
        return NULL;
    fill(&s->config, s->step, PyArray_DATA(s->ids));
    s->step++;
    leave(s);
    return view_of(s->ids);
}

PyDoc_STRVAR(sample_doc,
"sample($self, step, /)\n--\n\n"
"Ids of any step, without moving the sampler; any number of threads.\n\n"
"Returns\n-------\n"
"numpy.ndarray of uint64\n"
"    A new array of as many ids as next() gives.");

static PyObject *sampler_sample(PyObject *op, PyObject *arg)
{
    struct sampler *s = (struct sampler *)op;
    uint64_t step;
    if (as_u64(arg, "step", 0, &step) < 0)
        return NULL;
    PyObject *ids = PyArray_EMPTY(1, PyArray_DIMS(s->ids), NPY_UINT64, 0);
    if (ids)
        fill(&s->config, step, PyArray_DATA((PyArrayObject *)ids));
    return ids;
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

/* A subclass is made as copy_reg does it, so keyword-only arguments travel in a dict. */
static PyObject *sampler_newargs(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    const struct zr_sampler *c = &((struct sampler *)op)->config;
    PyObject *args =
        Py_BuildValue("(KKiK)", (unsigned long long)c->length, (unsigned long long)c->batch_size,
                      c->mode, (unsigned long long)c->seed);
    PyObject *kwargs = PyDict_New(), *both = NULL, *block_size, *interleave;
    block_size = c->block_size ? PyLong_FromUnsignedLongLong(c->block_size) : NULL;
    interleave = c->interleave ? PyLong_FromUnsignedLong(c->interleave) : NULL;
    if (args && kwargs && !PyErr_Occurred() &&
        (!block_size || !PyDict_SetItemString(kwargs, "block_size", block_size)) &&
        (!interleave || !PyDict_SetItemString(kwargs, "interleave", interleave)))
        both = PyTuple_Pack(2, args, kwargs);
    Py_XDECREF(args);
    Py_XDECREF(kwargs);
    Py_XDECREF(block_size);
    Py_XDECREF(interleave);
    return both;
}

static PyObject *sampler_getstate(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromUnsignedLongLong(((struct sampler *)op)->step);
}

static PyMethodDef sampler_methods[] = {
    {"next", sampler_next_method, METH_NOARGS, next_doc},
    {"seek", sampler_seek, METH_O, seek_doc},
    {"sample", sampler_sample, METH_O, sample_doc},
    {"__getnewargs_ex__", sampler_newargs, METH_NOARGS, NULL},
    {"__getstate__", sampler_getstate, METH_NOARGS, NULL},
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

static PyObject *get_block_size(PyObject *op, void *Py_UNUSED(closure))
{
    uint64_t size = ((struct sampler *)op)->config.block_size;
    return PyLong_FromUnsignedLongLong(size ? size : 1024);
}

static PyObject *get_interleave(PyObject *op, void *Py_UNUSED(closure))
{
    unsigned count = ((struct sampler *)op)->config.interleave;
    return PyLong_FromUnsignedLong(count ? count : 1);
}

#define AT(member) ((void *)offsetof(struct sampler, member))
static PyGetSetDef sampler_getset[] = {
    {"length", get_u64, NULL, "Number of records.", AT(config.length)},
    {"batch_size", get_u64, NULL, "Ids asked for a step.", AT(config.batch_size)},
    {"mode", get_mode, NULL, "One of Sampler.Mode.", NULL},
    {"seed", get_u64, NULL, "Seed of the order.", AT(config.seed)},
    {"block_size", get_block_size, NULL, "Records a block, in BLOCK.", NULL},
    {"interleave", get_interleave, NULL, "Blocks mixed at a time, in BLOCK.", NULL},
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
    {Py_tp_doc, (void *)"Sampler(length, batch_size, mode, seed=42, *, block_size=1024, interleave=1)\n--\n\n"
                         "Batches of record ids."},
    {0, NULL},
};

PyType_Spec zpy_sampler_spec = {
    .name = "zrecord._core.Sampler",
    .basicsize = sizeof(struct sampler),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = sampler_slots,
};
