/* SPDX-License-Identifier: MIT
 *
 * Dictionary training, on samples laid end to end or on an open store.
 */
#include "core.h"

static PyObject *train(const struct core_state *state, const Py_buffer *samples,
                       const size_t *sample_nbytes, size_t count, PyObject *dict)
{
    struct zr_error err;
    zpy_error_reset(&err);
    size_t used = 0;
    int code;
    Py_BEGIN_ALLOW_THREADS
    code = zr_dict_train(samples->buf, sample_nbytes, count, PyBytes_AS_STRING(dict),
                         (size_t)PyBytes_GET_SIZE(dict), &used, &err);
    Py_END_ALLOW_THREADS
    if (code < 0)
        return zpy_raise(state, code, &err, NULL);
    return PyBytes_FromStringAndSize(PyBytes_AS_STRING(dict), (Py_ssize_t)used);
}

static int check_sizes(const Py_buffer *samples, const Py_buffer *sizes)
{
    const size_t *nbytes = sizes->buf;
    size_t total = 0, count = (size_t)sizes->len / sizeof *nbytes;
    for (size_t i = 0; i < count; i++)
        if (__builtin_add_overflow(total, nbytes[i], &total))
            total = SIZE_MAX;
    if (total == (size_t)samples->len)
        return 0;
    PyErr_SetString(PyExc_ValueError, "sample sizes do not add up to the samples");
    return -1;
}

/* train_samples(samples, sizes, capacity): sizes is a buffer of uintp. */
PyObject *zpy_train_samples(PyObject *module, PyObject *args)
{
    Py_buffer samples = {0}, sizes = {0};
    Py_ssize_t capacity;
    PyObject *dict = NULL, *result = NULL;
    if (!PyArg_ParseTuple(args, "y*y*n:train_samples", &samples, &sizes, &capacity))
        return NULL;
    if (check_sizes(&samples, &sizes) == 0)
        dict = PyBytes_FromStringAndSize(NULL, capacity);
    if (dict)
        result = train(PyModule_GetState(module), &samples, sizes.buf,
                       (size_t)sizes.len / sizeof(size_t), dict);
    Py_XDECREF(dict);
    PyBuffer_Release(&samples);
    PyBuffer_Release(&sizes);
    return result;
}

/* train_store(store, tier) */
PyObject *zpy_train_store(PyObject *module, PyObject *args)
{
    struct core_state *state = PyModule_GetState(module);
    struct store *s;
    const char *tier;
    if (!PyArg_ParseTuple(args, "O!s:train_store", state->store_type, &s, &tier))
        return NULL;
    struct zr_reader *reader = zpy_reader_enter(s);
    if (!reader)
        return NULL;
    struct zr_error err;
    zpy_error_reset(&err);
    void *dict = NULL;
    size_t nbytes = 0;
    int code;
    Py_BEGIN_ALLOW_THREADS
    code = zr_dict_train_store(reader, zr_tier_from_name(tier), &dict, &nbytes, &err);
    Py_END_ALLOW_THREADS
    zpy_reader_leave(s);
    if (code < 0)
        return zpy_raise(state, code, &err, s->path);
    PyObject *result = PyBytes_FromStringAndSize(dict, (Py_ssize_t)nbytes);
    zr_buffer_free(dict);
    return result;
}
