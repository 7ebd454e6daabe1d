/* SPDX-License-Identifier: MIT
 *
 * Verification of a store: the engine finds, this file hands the findings on.
 * Its callbacks run in the calling thread while the GIL is away, so each takes it
 * back for its time.
 */
#include "core.h"

struct visit {
    PyThreadState *thread; /* saved while the engine works */
    PyObject *findings;    /* list of (record or None, code, message) */
    PyObject *progress;    /* callable or NULL */
};

static PyObject *finding_tuple(const struct zr_error *finding)
{
    PyObject *record = finding->record == ZR_NO_RECORD
                           ? Py_NewRef(Py_None)
                           : PyLong_FromUnsignedLongLong(finding->record);
    if (!record)
        return NULL;
    return Py_BuildValue("(Nis)", record, finding->code, finding->message);
}

static int on_finding(void *ctx, const struct zr_error *finding)
{
    struct visit *v = ctx;
    PyEval_RestoreThread(v->thread);
    PyObject *tuple = finding_tuple(finding);
    int rc = tuple ? PyList_Append(v->findings, tuple) : -1;
    Py_XDECREF(tuple);
    v->thread = PyEval_SaveThread();
    return rc;
}

static int on_progress(void *ctx, uint64_t done, uint64_t total)
{
    struct visit *v = ctx;
    PyEval_RestoreThread(v->thread);
    int rc = PyErr_CheckSignals();
    if (!rc && v->progress) {
        PyObject *result = PyObject_CallFunction(v->progress, "KK", (unsigned long long)done,
                                                 (unsigned long long)total);
        rc = result ? 0 : -1;
        Py_XDECREF(result);
    }
    v->thread = PyEval_SaveThread();
    return rc;
}

static PyObject *run(const struct core_state *state, struct store *s, struct zr_reader *reader,
                     struct visit *v)
{
    struct zr_verify_result result = {0};
    struct zr_error err;
    zpy_error_reset(&err);
    v->thread = PyEval_SaveThread();
    int code = zr_verify(reader, on_finding, on_progress, v, &result, &err);
    PyEval_RestoreThread(v->thread);
    if (PyErr_Occurred()) /* raised by a callback, which is why the engine stopped */
        return NULL;
    if (code < 0)
        return zpy_raise(state, code, &err, s->path);
    return Py_BuildValue("(KKOO)", (unsigned long long)result.checked_count,
                         (unsigned long long)result.bad_count,
                         result.checksums_compared ? Py_True : Py_False, v->findings);
}

/* verify(store, progress): (checked, bad, checksums_compared, findings) */
PyObject *zpy_verify(PyObject *module, PyObject *args)
{
    struct core_state *state = PyModule_GetState(module);
    struct store *s;
    PyObject *progress = Py_None;
    if (!PyArg_ParseTuple(args, "O!|O:verify", state->store_type, &s, &progress))
        return NULL;
    struct zr_reader *reader = zpy_reader_enter(s);
    if (!reader)
        return NULL;
    struct visit v = {.findings = PyList_New(0), .progress = progress == Py_None ? NULL : progress};
    PyObject *result = v.findings ? run(state, s, reader, &v) : NULL;
    Py_XDECREF(v.findings);
    zpy_reader_leave(s);
    return result;
}
