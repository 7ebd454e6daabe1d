/* SPDX-License-Identifier: MIT
 *
 * Work on archive files as a whole: save, pack, unpack, refresh, verify.  The
 * engine's progress callback comes in the calling thread while the GIL is away;
 * it takes the GIL back to look for signals, so that Ctrl-C ends long work.
 */
#include "core.h"

struct work {
    PyThreadState *thread; /* saved while the engine works */
    PyObject *progress;    /* callable or NULL */
    PyObject *findings;    /* list of (member, code, message), of verify */
};

static int on_progress(void *ctx, uint64_t done, uint64_t total)
{
    struct work *w = ctx;
    PyEval_RestoreThread(w->thread);
    int rc = PyErr_CheckSignals();
    if (!rc && w->progress) {
        PyObject *result = PyObject_CallFunction(w->progress, "KK", (unsigned long long)done,
                                                 (unsigned long long)total);
        rc = result ? 0 : -1;
        Py_XDECREF(result);
    }
    w->thread = PyEval_SaveThread();
    return rc;
}

/* None, or the exception of a callback or of the engine. */
static PyObject *finish(const struct core_state *state, int code, const struct zr_error *err,
                        PyObject *path)
{
    if (PyErr_Occurred())
        return NULL;
    if (code < 0)
        return zpy_raise(state, code, err, path);
    Py_RETURN_NONE;
}

static void set_progress(struct work *w, PyObject *progress)
{
    w->progress = progress == Py_None ? NULL : progress;
}

/* ---------------------------------------------------------------- save */

struct saving {
    struct zr_archive_source *sources;
    Py_buffer *views;
    struct store **stores; /* of leaves that come from a store; entered */
    size_t count, view_count, store_count;
};

/* A Dense store as a payload: rows of it, cut wherever the writer cuts. */
static int fill_from_store(void *ctx, uint64_t off, void *buf, size_t nbytes, struct zr_error *err)
{
    struct store *s = ctx;
    uint64_t row = s->row_nbytes, id = off / row;
    uint64_t ids[64];
    char *out = buf, *whole = NULL;
    int code = ZR_OK;
    while (nbytes && code == ZR_OK) {
        size_t head = (size_t)(off % row);
        if (head || nbytes < row) { /* a part of a row */
            if (!whole && !(whole = zr_buffer_alloc((size_t)row))) {
                err->code = ZR_E_NOMEM;
                return ZR_E_NOMEM;
            }
            size_t n = (size_t)row - head < nbytes ? (size_t)row - head : nbytes;
            code = zr_gather_dense(s->reader, &id, 1, whole, (size_t)row, err);
            memcpy(out, whole + head, n);
            out += n;
            off += n;
            nbytes -= n;
            id++;
            continue;
        }
        size_t count = nbytes / row < 64 ? (size_t)(nbytes / row) : 64;
        for (size_t i = 0; i < count; i++)
            ids[i] = id + i;
        code = zr_gather_dense(s->reader, ids, count, out, count * (size_t)row, err);
        out += count * row;
        off += count * row;
        nbytes -= count * row;
        id += count;
    }
    zr_buffer_free(whole);
    return code;
}

static int take_store(const struct core_state *state, struct saving *s,
                      struct zr_archive_source *source, PyObject *data)
{
    if (!PyObject_TypeCheck(data, state->dense_type)) {
        PyErr_SetString(PyExc_TypeError, "only Dense stores can be leaves of an archive");
        return -1;
    }
    struct store *store = (struct store *)data;
    if (!zpy_reader_enter(store))
        return -1;
    s->stores[s->store_count++] = store;
    source->fill = fill_from_store;
    source->fill_ctx = store;
    return 0;
}

/* An array by its data, since new dtypes have no buffer format; else a buffer. */
static int take_data(const struct core_state *state, struct saving *s,
                     struct zr_archive_source *source, PyObject *data)
{
    if (data == Py_None)
        return 0;
    if (PyArray_Check(data)) {
        PyArrayObject *array = (PyArrayObject *)data;
        if (!PyArray_IS_C_CONTIGUOUS(array) || (uint64_t)PyArray_NBYTES(array) != source->nbytes) {
            PyErr_Format(PyExc_ValueError, "member %s: not a contiguous array of its size",
                         source->name);
            return -1;
        }
        source->data = PyArray_DATA(array);
        return 0;
    }
    if (PyObject_TypeCheck(data, state->store_type))
        return take_store(state, s, source, data);
    Py_buffer *view = &s->views[s->view_count];
    if (PyObject_GetBuffer(data, view, PyBUF_SIMPLE) < 0)
        return -1;
    s->view_count++;
    if ((uint64_t)view->len != source->nbytes) {
        PyErr_Format(PyExc_ValueError, "member %s: %zd bytes, not %llu", source->name, view->len,
                     (unsigned long long)source->nbytes);
        return -1;
    }
    source->data = view->buf;
    return 0;
}

static int take_source(const struct core_state *state, struct saving *s, size_t i, PyObject *item)
{
    struct zr_archive_source *source = &s->sources[i];
    PyObject *data;
    unsigned long long nbytes;
    int is_payload;
    if (!PyArg_ParseTuple(item, "sOKp:source", &source->name, &data, &nbytes, &is_payload))
        return -1;
    source->nbytes = nbytes;
    source->is_payload = is_payload;
    return take_data(state, s, source, data);
}

static int take_sources(const struct core_state *state, struct saving *s, PyObject *list)
{
    s->count = (size_t)PyList_GET_SIZE(list);
    s->sources = PyMem_RawCalloc(s->count + 1, sizeof *s->sources);
    s->views = PyMem_RawCalloc(s->count + 1, sizeof *s->views);
    s->stores = PyMem_RawCalloc(s->count + 1, sizeof(struct store *));
    if (!s->sources || !s->views || !s->stores) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; i < s->count; i++)
        if (take_source(state, s, i, PyList_GET_ITEM(list, (Py_ssize_t)i)) < 0)
            return -1;
    return 0;
}

static void release_sources(struct saving *s)
{
    for (size_t i = 0; i < s->view_count; i++)
        PyBuffer_Release(&s->views[i]);
    for (size_t i = 0; i < s->store_count; i++)
        zpy_reader_leave(s->stores[i]);
    PyMem_RawFree(s->sources);
    PyMem_RawFree(s->views);
    PyMem_RawFree(s->stores);
}

static PyObject *save(const struct core_state *state, PyObject *path, const char *target,
                      const struct saving *s, struct zr_archive_save_options *o, PyObject *progress)
{
    struct work w = {0};
    struct zr_error err;
    zpy_error_reset(&err);
    set_progress(&w, progress);
    o->progress = on_progress;
    o->progress_ctx = &w;
    w.thread = PyEval_SaveThread();
    int code = zr_archive_save(target, s->sources, s->count, o, &err);
    PyEval_RestoreThread(w.thread);
    return finish(state, code, &err, path);
}

/* archive_save(path, sources, method, level, replace, durable, threads, seconds, progress);
 * sources is a list of (name, data or None for zeros, nbytes, is_payload). */
PyObject *zpy_archive_save(PyObject *module, PyObject *args)
{
    struct core_state *state = PyModule_GetState(module);
    PyObject *path, *list, *progress, *bytes;
    struct zr_archive_save_options o = {0};
    int replace, durable;
    long long seconds;
    if (!PyArg_ParseTuple(args, "OO!zippILO:archive_save", &path, &PyList_Type, &list, &o.method,
                          &o.level, &replace, &durable, &o.thread_count, &seconds, &progress) ||
        !PyUnicode_FSConverter(path, &bytes))
        return NULL;
    o.no_replace = !replace;
    o.durable = durable;
    o.time_sec = seconds;
    struct saving s = {0};
    PyObject *result = NULL;
    if (take_sources(state, &s, list) == 0)
        result = save(state, path, PyBytes_AS_STRING(bytes), &s, &o, progress);
    release_sources(&s);
    Py_DECREF(bytes);
    return result;
}

/* ---------------------------------------------------------------- pack, unpack, refresh */

/* archive_pack(dir, path, method, level, replace, durable, threads, progress) */
PyObject *zpy_archive_pack(PyObject *module, PyObject *args)
{
    struct core_state *state = PyModule_GetState(module);
    PyObject *dir, *path, *progress;
    struct zr_archive_save_options o = {0};
    int replace, durable;
    struct work w = {0};
    struct zr_error err;
    zpy_error_reset(&err);
    if (!PyArg_ParseTuple(args, "O&O&zippIO:archive_pack", PyUnicode_FSConverter, &dir,
                          PyUnicode_FSConverter, &path, &o.method, &o.level, &replace, &durable,
                          &o.thread_count, &progress))
        return NULL;
    set_progress(&w, progress);
    o.no_replace = !replace;
    o.durable = durable;
    o.progress = on_progress;
    o.progress_ctx = &w;
    w.thread = PyEval_SaveThread();
    int code = zr_archive_pack(PyBytes_AS_STRING(dir), PyBytes_AS_STRING(path), &o, &err);
    PyEval_RestoreThread(w.thread);
    PyObject *result = finish(state, code, &err, path);
    Py_DECREF(dir);
    Py_DECREF(path);
    return result;
}

/* archive_unpack(path, dir, durable, threads, progress) */
PyObject *zpy_archive_unpack(PyObject *module, PyObject *args)
{
    struct core_state *state = PyModule_GetState(module);
    PyObject *dir, *path, *progress;
    struct zr_archive_unpack_options o = {0};
    int durable;
    struct work w = {0};
    struct zr_error err;
    zpy_error_reset(&err);
    if (!PyArg_ParseTuple(args, "O&O&pIO:archive_unpack", PyUnicode_FSConverter, &path,
                          PyUnicode_FSConverter, &dir, &durable, &o.thread_count, &progress))
        return NULL;
    set_progress(&w, progress);
    o.durable = durable;
    o.progress = on_progress;
    o.progress_ctx = &w;
    w.thread = PyEval_SaveThread();
    int code = zr_archive_unpack(PyBytes_AS_STRING(path), PyBytes_AS_STRING(dir), &o, &err);
    PyEval_RestoreThread(w.thread);
    PyObject *result = finish(state, code, &err, path);
    Py_DECREF(dir);
    Py_DECREF(path);
    return result;
}

/* archive_refresh(path, progress) */
PyObject *zpy_archive_refresh(PyObject *module, PyObject *args)
{
    struct core_state *state = PyModule_GetState(module);
    PyObject *path, *progress;
    struct work w = {0};
    struct zr_error err;
    zpy_error_reset(&err);
    if (!PyArg_ParseTuple(args, "O&O:archive_refresh", PyUnicode_FSConverter, &path, &progress))
        return NULL;
    set_progress(&w, progress);
    w.thread = PyEval_SaveThread();
    int code = zr_archive_refresh(PyBytes_AS_STRING(path), on_progress, &w, &err);
    PyEval_RestoreThread(w.thread);
    PyObject *result = finish(state, code, &err, path);
    Py_DECREF(path);
    return result;
}

/* archive_is(path) */
PyObject *zpy_archive_is(PyObject *Py_UNUSED(module), PyObject *arg)
{
    PyObject *path;
    if (!PyUnicode_FSConverter(arg, &path))
        return NULL;
    bool is;
    Py_BEGIN_ALLOW_THREADS is = zr_archive_is(PyBytes_AS_STRING(path));
    Py_END_ALLOW_THREADS Py_DECREF(path);
    return PyBool_FromLong(is);
}

/* ---------------------------------------------------------------- verify */

static int on_finding(void *ctx, const struct zr_error *finding)
{
    struct work *w = ctx;
    PyEval_RestoreThread(w->thread);
    PyObject *tuple = Py_BuildValue("(Kis)", (unsigned long long)finding->record, finding->code,
                                    finding->message);
    int rc = tuple ? PyList_Append(w->findings, tuple) : -1;
    Py_XDECREF(tuple);
    w->thread = PyEval_SaveThread();
    return rc;
}

static PyObject *verify(const struct core_state *state, PyObject *path, struct work *w)
{
    struct zr_archive *a = NULL;
    struct zr_verify_result found = {0};
    struct zr_error err;
    zpy_error_reset(&err);
    w->thread = PyEval_SaveThread();
    int code = zr_archive_open(&a, PyBytes_AS_STRING(path), ZR_ARCHIVE_COPY, &err);
    if (!code)
        code = zr_archive_verify(a, on_finding, on_progress, w, &found, &err);
    zr_archive_close(a);
    PyEval_RestoreThread(w->thread);
    if (PyErr_Occurred())
        return NULL;
    if (code < 0)
        return zpy_raise(state, code, &err, path);
    return Py_BuildValue("(KKO)", (unsigned long long)found.checked_count,
                         (unsigned long long)found.bad_count, w->findings);
}

/* archive_verify(path, progress): (checked, bad, findings) */
PyObject *zpy_archive_verify(PyObject *module, PyObject *args)
{
    PyObject *path, *progress;
    if (!PyArg_ParseTuple(args, "O&O:archive_verify", PyUnicode_FSConverter, &path, &progress))
        return NULL;
    struct work w = {.findings = PyList_New(0)};
    set_progress(&w, progress);
    PyObject *result = w.findings ? verify(PyModule_GetState(module), path, &w) : NULL;
    Py_XDECREF(w.findings);
    Py_DECREF(path);
    return result;
}
