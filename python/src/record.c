/* SPDX-License-Identifier: MIT
 *
 * One record by its number, the same for both geometries but for the gather.
 */
#include "core.h"

PyObject *zpy_record_of(struct store *s, PyObject *key, zpy_gather_one_fn gather)
{
    struct zr_reader *reader = zpy_reader_enter(s);
    if (!reader)
        return NULL;
    uint64_t id;
    PyObject *record = NULL;
    if (zpy_id_from_scalar(key, s, &id) == 0)
        record = gather(s, reader, id);
    zpy_reader_leave(s);
    return record;
}

PyObject *zpy_record_at(struct store *s, Py_ssize_t i, zpy_gather_one_fn gather)
{
    struct zr_reader *reader = zpy_reader_enter(s);
    if (!reader)
        return NULL;
    PyObject *record = NULL;
    if (i < 0 || (uint64_t)i >= s->length)
        PyErr_SetString(PyExc_IndexError, "record index out of range");
    else
        record = gather(s, reader, (uint64_t)i);
    zpy_reader_leave(s);
    return record;
}
