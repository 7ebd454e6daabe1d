/* SPDX-License-Identifier: MIT
 *
 * Memory of batches.  A Block owns one piece of the engine's recycled memory and
 * is the base of every array over it; when the last array goes, the memory goes
 * back to the engine and the next batch finds its pages already there.
 */
#include "core.h"

/* Below this, malloc recycles as well as the engine and costs one object less. */
#define POOLED_NBYTES_MIN ((size_t)16 << 10)

struct block {
    PyObject_HEAD
    void *data; /* owned */
    size_t nbytes;
};

static void block_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    zr_buffer_free(((struct block *)op)->data);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyObject *block_sizeof(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromSize_t(sizeof(struct block) + ((struct block *)op)->nbytes);
}

static PyMethodDef block_methods[] = {
    {"__sizeof__", block_sizeof, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot block_slots[] = {
    {Py_tp_dealloc, block_dealloc},
    {Py_tp_methods, block_methods},
    {Py_tp_doc, (void *)"Owner of the memory of a batch; arrays over it keep it alive."},
    {0, NULL},
};

PyType_Spec zpy_block_spec = {
    .name = "zrecord._core.Block",
    .basicsize = sizeof(struct block),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = block_slots,
};

PyObject *zpy_block_adopt(const struct core_state *state, void *data, size_t nbytes)
{
    struct block *b = data ? PyObject_New(struct block, state->block_type) : NULL;
    if (!b) {
        zr_buffer_free(data);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    b->data = data;
    b->nbytes = nbytes;
    return (PyObject *)b;
}

PyObject *zpy_array_view(PyObject *owner, PyArray_Descr *dtype, int ndim, const npy_intp *dims,
                         void *data)
{
    Py_INCREF(dtype);
    PyObject *array =
        PyArray_NewFromDescr(&PyArray_Type, dtype, ndim, dims, NULL, data, NPY_ARRAY_CARRAY, NULL);
    if (!array)
        return NULL;
    if (PyArray_SetBaseObject((PyArrayObject *)array, Py_NewRef(owner)) < 0) {
        Py_DECREF(array);
        return NULL;
    }
    return array;
}

static PyObject *plain_array(PyArray_Descr *dtype, int ndim, const npy_intp *dims)
{
    Py_INCREF(dtype);
    return PyArray_NewFromDescr(&PyArray_Type, dtype, ndim, dims, NULL, NULL, 0, NULL);
}

PyObject *zpy_array_adopt(const struct core_state *state, PyArray_Descr *dtype, int ndim,
                          const npy_intp *dims, void *data, size_t nbytes)
{
    PyObject *owner = zpy_block_adopt(state, data, nbytes);
    if (!owner)
        return NULL;
    PyObject *array = zpy_array_view(owner, dtype, ndim, dims, data);
    Py_DECREF(owner);
    return array;
}

PyObject *zpy_array_new(const struct core_state *state, PyArray_Descr *dtype, int ndim,
                        const npy_intp *dims, size_t nbytes)
{
    if (nbytes < POOLED_NBYTES_MIN)
        return plain_array(dtype, ndim, dims);
    return zpy_array_adopt(state, dtype, ndim, dims, zr_buffer_alloc(nbytes), nbytes);
}
