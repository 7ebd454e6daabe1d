/* SPDX-License-Identifier: MIT
 *
 * Engine errors become Python exceptions.  Which class a code gets is decided in
 * zrecord/errors.py; this file only carries the particulars there.
 */
#include "core.h"

void zpy_error_reset(struct zr_error *err)
{
    err->code = ZR_OK;
    err->sys_errno = 0;
    err->record = ZR_NO_RECORD;
    err->offset = UINT64_MAX;
    err->message[0] = '\0';
}

/* Takes message and record over; either may be NULL with an exception set. */
static void raise_parts(const struct core_state *state, int code, PyObject *message,
                        PyObject *record, int sys_errno, PyObject *path)
{
    PyObject *exc = NULL;
    if (message && record)
        exc = PyObject_CallFunction(state->make_error, "iOOiO", code, message, record, sys_errno,
                                    path ? path : Py_None);
    if (exc)
        PyErr_SetObject((PyObject *)Py_TYPE(exc), exc);
    Py_XDECREF(message);
    Py_XDECREF(record);
    Py_XDECREF(exc);
}

void *zpy_raise(const struct core_state *state, int code, const struct zr_error *err,
                PyObject *path)
{
    const char *text = err->message[0] ? err->message : zr_code_text(code);
    PyObject *message = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "surrogateescape");
    PyObject *record =
        err->record == ZR_NO_RECORD ? Py_NewRef(Py_None) : PyLong_FromUnsignedLongLong(err->record);
    int sys_errno = err->sys_errno ? err->sys_errno : zr_code_errno(code);
    raise_parts(state, code, message, record, sys_errno, path);
    return NULL;
}

void *zpy_raise_format(const struct core_state *state, int code, PyObject *path, const char *format,
                       ...)
{
    va_list args;
    va_start(args, format);
    PyObject *message = PyUnicode_FromFormatV(format, args);
    va_end(args);
    raise_parts(state, code, message, Py_NewRef(Py_None), zr_code_errno(code), path);
    return NULL;
}
