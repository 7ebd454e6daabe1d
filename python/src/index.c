/* SPDX-License-Identifier: MIT
 *
 * From what stands between the brackets to record ids.  A store is a collection
 * of records, not an array: a scalar is one record, everything else is a list of
 * ids (tuples, nested lists and arrays are flattened), a bool array is a mask
 * over the whole store.  Ids are never negative.
 *
 * The common forms (int, list or tuple of ints, 64-bit arrays, slices) are read
 * directly; anything else goes through numpy.asarray and is judged by its dtype.
 * Ids are always copied: the caller may change its array while the GIL is away.
 */
#include "core.h"

/* Names what was given: for containers that is the dtype of their elements. */
static int refuse_type(PyObject *key, PyArrayObject *array)
{
    static const char rule[] = "record indices must be integers or a bool mask, not";
    if (PyArray_Check(key) || PyList_Check(key) || PyTuple_Check(key))
        PyErr_Format(PyExc_TypeError, "%s %S", rule, (PyObject *)PyArray_DESCR(array));
    else
        PyErr_Format(PyExc_TypeError, "%s %.100s", rule, Py_TYPE(key)->tp_name);
    return -1;
}

static int refuse_id(uint64_t id, bool is_signed, const struct store *s)
{
    if (is_signed && id > INT64_MAX)
        PyErr_Format(PyExc_IndexError, "%S: negative record index %lld is not supported", s->path,
                     (long long)(int64_t)id);
    else if (!s->length)
        PyErr_Format(PyExc_IndexError, "%S: record index %llu is out of range: the store is empty",
                     s->path, (unsigned long long)id);
    else
        PyErr_Format(PyExc_IndexError, "%S: record index %llu is outside 0..%llu", s->path,
                     (unsigned long long)id, (unsigned long long)(s->length - 1));
    return -1;
}

/* ---------------------------------------------------------------- scalars */

bool zpy_is_scalar(PyObject *key)
{
    return PyLong_CheckExact(key) || (PyLong_Check(key) && !PyBool_Check(key)) ||
           PyArray_IsScalar(key, Integer);
}

/* A Python int that does not fit int64: uint64 is out of range, beyond is no index at all. */
static int refuse_huge(PyObject *number, const struct store *s)
{
    unsigned long long value = PyLong_AsUnsignedLongLong(number);
    if (!PyErr_Occurred()) {
        PyErr_Format(PyExc_IndexError, "%S: record index %llu is out of range", s->path, value);
        return -1;
    }
    PyErr_Clear();
    PyErr_SetString(PyExc_TypeError, "record indices must fit 64 bits");
    return -1;
}

static int id_from_long(PyObject *number, const struct store *s, uint64_t *id)
{
    int overflow;
    long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
    if (overflow)
        return refuse_huge(number, s);
    if (value == -1 && PyErr_Occurred())
        return -1;
    if ((uint64_t)value >= s->length)
        return refuse_id((uint64_t)value, true, s);
    *id = (uint64_t)value;
    return 0;
}

int zpy_id_from_scalar(PyObject *key, const struct store *s, uint64_t *id)
{
    if (PyLong_CheckExact(key))
        return id_from_long(key, s, id);
    PyObject *number = PyNumber_Index(key);
    if (!number)
        return -1;
    int rc = id_from_long(number, s, id);
    Py_DECREF(number);
    return rc;
}

/* ---------------------------------------------------------------- lists of ids */

/* Recycled memory, here and for the rest of a gather: a malloc of more than a kilobyte makes
 * glibc sort all small pieces that the last batch's arrays gave back. */
static int reserve(struct ids *ids, size_t count)
{
    ids->at = ids->few;
    if (count > FEW_IDS)
        ids->at = count > PY_SSIZE_T_MAX / sizeof *ids->at
                      ? NULL
                      : zr_buffer_alloc(count * sizeof *ids->at);
    if (!ids->at) {
        PyErr_NoMemory();
        return -1;
    }
    ids->count = count;
    return 0;
}

void zpy_ids_release(struct ids *ids)
{
    if (ids->at != ids->few)
        zr_buffer_free(ids->at);
    ids->at = NULL;
}

static int check_range(const struct ids *ids, bool is_signed, const struct store *s)
{
    uint64_t largest = 0;
    for (size_t i = 0; i < ids->count; i++)
        largest = ids->at[i] > largest ? ids->at[i] : largest;
    if (!ids->count || largest < s->length)
        return 0;
    for (size_t i = 0; i < ids->count; i++)
        if (ids->at[i] >= s->length)
            return refuse_id(ids->at[i], is_signed, s);
    return 0;
}

/* 1: taken; 0: not only exact ints that fit, let NumPy decide; -1: error. */
static int ids_from_sequence(struct ids *ids, PyObject *key, const struct store *s)
{
    Py_ssize_t count = PySequence_Fast_GET_SIZE(key);
    if (reserve(ids, (size_t)count) < 0)
        return -1;
    for (Py_ssize_t i = 0; i < count && i < PySequence_Fast_GET_SIZE(key); i++) {
        PyObject *item = PySequence_Fast_GET_ITEM(key, i);
        int overflow = 1;
        long long value =
            PyLong_CheckExact(item) ? PyLong_AsLongLongAndOverflow(item, &overflow) : 0;
        if (overflow || (uint64_t)value >= s->length) {
            zpy_ids_release(ids);
            return 0;
        }
        ids->at[i] = (uint64_t)value;
    }
    return 1;
}

static int negative_bound(PyObject *bound)
{
    if (bound == Py_None)
        return 0;
    PyObject *zero = PyLong_FromLong(0);
    int negative = zero ? PyObject_RichCompareBool(bound, zero, Py_LT) : -1;
    Py_XDECREF(zero);
    if (negative > 0)
        PyErr_SetString(PyExc_IndexError, "negative slice bounds are not supported");
    return negative ? -1 : 0;
}

static int ids_from_slice(struct ids *ids, PyObject *key, const struct store *s)
{
    PySliceObject *slice = (PySliceObject *)key;
    Py_ssize_t start, stop, step;
    if (negative_bound(slice->start) < 0 || negative_bound(slice->stop) < 0 ||
        PySlice_Unpack(key, &start, &stop, &step) < 0)
        return -1;
    Py_ssize_t limit = s->length > PY_SSIZE_T_MAX ? PY_SSIZE_T_MAX : (Py_ssize_t)s->length;
    Py_ssize_t count = PySlice_AdjustIndices(limit, &start, &stop, step);
    if (reserve(ids, (size_t)count) < 0)
        return -1;
    for (Py_ssize_t i = 0; i < count; i++)
        ids->at[i] = (uint64_t)start + (uint64_t)i * (uint64_t)step;
    return 0;
}

static int ids_from_mask(struct ids *ids, PyArrayObject *mask, const struct store *s)
{
    uint64_t length = s->length;
    if (PyArray_NDIM(mask) != 1 || (uint64_t)PyArray_DIM(mask, 0) != length) {
        PyErr_Format(PyExc_IndexError, "a bool mask must be one-dimensional with length %llu",
                     (unsigned long long)length);
        return -1;
    }
    npy_intp stride = PyArray_STRIDE(mask, 0);
    const char *bytes = PyArray_BYTES(mask);
    size_t count = 0;
    for (uint64_t i = 0; i < length; i++)
        count += bytes[(npy_intp)i * stride] != 0;
    if (reserve(ids, count) < 0)
        return -1;
    size_t n = 0;
    for (uint64_t i = 0; i < length && n < count; i++)
        if (bytes[(npy_intp)i * stride])
            ids->at[n++] = i;
    return 0;
}

/* Whether the elements are native 64-bit integers laid end to end. */
static bool is_plain_64(PyArrayObject *array)
{
    return PyArray_ISINTEGER(array) && PyArray_ITEMSIZE(array) == 8 && PyArray_ISCARRAY_RO(array);
}

static int ids_from_integers(struct ids *ids, PyArrayObject *array, const struct store *s)
{
    bool is_signed = PyArray_ISSIGNED(array);
    PyArrayObject *plain = array;
    if (is_plain_64(array)) {
        Py_INCREF(array);
    } else {
        plain = (PyArrayObject *)PyArray_FROM_OTF((PyObject *)array, NPY_UINT64,
                                                  NPY_ARRAY_CARRAY_RO | NPY_ARRAY_FORCECAST);
        if (!plain)
            return -1;
    }
    int rc = reserve(ids, (size_t)PyArray_SIZE(plain));
    if (!rc && ids->count)
        memcpy(ids->at, PyArray_DATA(plain), ids->count * sizeof *ids->at);
    Py_DECREF(plain);
    if (!rc && check_range(ids, is_signed, s) < 0) {
        zpy_ids_release(ids);
        rc = -1;
    }
    return rc;
}

static int ids_from_array(struct ids *ids, PyArrayObject *array, PyObject *key,
                          const struct store *s)
{
    if (PyArray_ISBOOL(array))
        return ids_from_mask(ids, array, s);
    if (PyArray_SIZE(array) == 0)
        return reserve(ids, 0);
    if (PyArray_ISINTEGER(array))
        return ids_from_integers(ids, array, s);
    return refuse_type(key, array);
}

/* A scalar is the list of itself, so that gather(3) is a batch of one. */
static int ids_from_one(struct ids *ids, PyObject *key, const struct store *s)
{
    return reserve(ids, 1) < 0 ? -1 : zpy_id_from_scalar(key, s, ids->at);
}

int zpy_ids_init(struct ids *ids, PyObject *key, const struct store *s)
{
    ids->at = ids->few;
    ids->count = 0;
    if (PyArray_CheckExact(key))
        return ids_from_array(ids, (PyArrayObject *)key, key, s);
    if (PySlice_Check(key))
        return ids_from_slice(ids, key, s);
    if (zpy_is_scalar(key))
        return ids_from_one(ids, key, s);
    if (PyBool_Check(key) || PyArray_IsScalar(key, Bool)) {
        PyErr_SetString(PyExc_TypeError, "a single bool is neither a record index nor a mask");
        return -1;
    }
    if (PyTuple_CheckExact(key) || PyList_CheckExact(key)) {
        int taken;
        Py_BEGIN_CRITICAL_SECTION(key);
        taken = ids_from_sequence(ids, key, s);
        Py_END_CRITICAL_SECTION();
        if (taken)
            return taken < 0 ? -1 : 0;
    }
    PyObject *array = PyArray_FROM_O(key);
    if (!array)
        return -1;
    int rc = ids_from_array(ids, (PyArrayObject *)array, key, s);
    Py_DECREF(array);
    return rc;
}
