/* SPDX-License-Identifier: MIT
 *
 * zrecord._core: the module, its state and its functions.
 */
#define ZPY_IMPORT_ARRAY
#include "core.h"

static PyObject *thread_count(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromUnsignedLong(zr_thread_count());
}

static PyObject *set_thread_count(PyObject *Py_UNUSED(module), PyObject *arg)
{
    long count = PyLong_AsLong(arg);
    if (count == -1 && PyErr_Occurred())
        return NULL;
    if (count < 0 || count > UINT16_MAX)
        return PyErr_Format(PyExc_ValueError, "thread count must be in 0..%d", UINT16_MAX);
    zr_set_thread_count((unsigned)count);
    Py_RETURN_NONE;
}

static PyObject *trim_memory(PyObject *Py_UNUSED(module), PyObject *arg)
{
    size_t keep = PyLong_AsSize_t(arg);
    if (keep == (size_t)-1 && PyErr_Occurred())
        return NULL;
    zr_buffer_trim(keep);
    Py_RETURN_NONE;
}

static PyObject *idle_memory(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromSize_t(zr_buffer_idle_nbytes());
}

static PyObject *code_text(PyObject *Py_UNUSED(module), PyObject *arg)
{
    long code = PyLong_AsLong(arg);
    if (code == -1 && PyErr_Occurred())
        return NULL;
    return PyUnicode_FromString(zr_code_text((int)code));
}

#define WITH_KEYWORDS(f) (PyCFunction)(void (*)(void))(f), METH_VARARGS | METH_KEYWORDS

static PyMethodDef methods[] = {
    {"store_open", WITH_KEYWORDS(zpy_store_open), NULL},
    {"store_pending", WITH_KEYWORDS(zpy_store_pending), NULL},
    {"store_create", WITH_KEYWORDS(zpy_store_create), NULL},
    {"train_samples", zpy_train_samples, METH_VARARGS, NULL},
    {"train_store", zpy_train_store, METH_VARARGS, NULL},
    {"verify", zpy_verify, METH_VARARGS, NULL},
    {"block_shuffle_ids", zpy_block_shuffle_ids, METH_VARARGS, NULL},
    {"block_shuffle_position", zpy_block_shuffle_position, METH_VARARGS, NULL},
    {"feistel_permute", zpy_feistel_permute, METH_VARARGS, NULL},
    {"feistel_inverse", zpy_feistel_inverse, METH_VARARGS, NULL},
    {"feistel_hash", zpy_feistel_hash, METH_VARARGS, NULL},
    {"store_of_array", zpy_store_of_array, METH_VARARGS, NULL},
    {"archive_open", zpy_archive_open, METH_VARARGS, NULL},
    {"archive_save", zpy_archive_save, METH_VARARGS, NULL},
    {"archive_pack", zpy_archive_pack, METH_VARARGS, NULL},
    {"archive_unpack", zpy_archive_unpack, METH_VARARGS, NULL},
    {"archive_refresh", zpy_archive_refresh, METH_VARARGS, NULL},
    {"archive_is", zpy_archive_is, METH_O, NULL},
    {"archive_verify", zpy_archive_verify, METH_VARARGS, NULL},
    {"thread_count", thread_count, METH_NOARGS,
     "thread_count()\n--\n\nThreads that one call may use, its own included."},
    {"set_thread_count", set_thread_count, METH_O,
     "set_thread_count(count, /)\n--\n\nLimit the threads of later calls; 0 restores the default."},
    {"trim_memory", trim_memory, METH_O,
     "trim_memory(keep_nbytes, /)\n--\n\nReturn idle batch memory beyond keep_nbytes to the "
     "system."},
    {"idle_memory", idle_memory, METH_NOARGS,
     "idle_memory()\n--\n\nBytes of batch memory kept for the next batches."},
    {"code_text", code_text, METH_O, "code_text(code, /)\n--\n\nWhat an engine code means."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject *add_type(PyObject *module, PyType_Spec *spec, PyTypeObject *base)
{
    PyObject *bases = base ? PyTuple_Pack(1, base) : NULL;
    if (base && !bases)
        return NULL;
    PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, bases);
    Py_XDECREF(bases);
    if (type && PyModule_AddType(module, type) < 0)
        Py_CLEAR(type);
    return type;
}

static PyObject *import_from(const char *module_name, const char *name)
{
    PyObject *module = PyImport_ImportModule(module_name);
    PyObject *value = module ? PyObject_GetAttrString(module, name) : NULL;
    Py_XDECREF(module);
    return value;
}

static int add_constants(PyObject *module)
{
    return PyModule_AddStringConstant(module, "version", zr_version()) < 0 ||
                   PyModule_AddStringConstant(module, "zstd_version", zr_zstd_version()) < 0 ||
                   PyModule_AddIntConstant(module, "MAX_NDIM", ZR_MAX_NDIM) < 0 ||
                   PyModule_AddIntConstant(module, "MAX_RECORD_NBYTES",
                                           (long)ZR_MAX_RECORD_NBYTES) < 0 ||
                   PyModule_AddIntConstant(module, "DENSE", ZR_DENSE) < 0 ||
                   PyModule_AddIntConstant(module, "RAGGED", ZR_RAGGED) < 0
               ? -1
               : 0;
}

static int module_exec(PyObject *module)
{
    struct core_state *state = PyModule_GetState(module);
    if (PyArray_ImportNumPyAPI() < 0 || add_constants(module) < 0)
        return -1;
    state->block_type = add_type(module, &zpy_block_spec, NULL);
    state->store_type = add_type(module, &zpy_store_spec, NULL);
    state->sampler_type = add_type(module, &zpy_sampler_spec, NULL);
    state->feed_type = add_type(module, &zpy_feed_spec, NULL);
    state->archive_type = add_type(module, &zpy_archive_spec, NULL);
    if (!state->block_type || !state->store_type || !state->sampler_type || !state->feed_type ||
        !state->archive_type)
        return -1;
    state->dense_type = add_type(module, &zpy_dense_spec, state->store_type);
    state->ragged_type = add_type(module, &zpy_ragged_spec, state->store_type);
    state->make_error = import_from("zrecord.errors", "make_error");
    state->warning = import_from("zrecord.errors", "ZrecordWarning");
    return state->dense_type && state->ragged_type && state->make_error && state->warning ? 0 : -1;
}

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    struct core_state *state = PyModule_GetState(module);
    Py_VISIT(state->block_type);
    Py_VISIT(state->store_type);
    Py_VISIT(state->dense_type);
    Py_VISIT(state->ragged_type);
    Py_VISIT(state->sampler_type);
    Py_VISIT(state->feed_type);
    Py_VISIT(state->archive_type);
    Py_VISIT(state->make_error);
    Py_VISIT(state->warning);
    return 0;
}

static int module_clear(PyObject *module)
{
    struct core_state *state = PyModule_GetState(module);
    Py_CLEAR(state->block_type);
    Py_CLEAR(state->store_type);
    Py_CLEAR(state->dense_type);
    Py_CLEAR(state->ragged_type);
    Py_CLEAR(state->sampler_type);
    Py_CLEAR(state->feed_type);
    Py_CLEAR(state->archive_type);
    Py_CLEAR(state->make_error);
    Py_CLEAR(state->warning);
    return 0;
}

static void module_free(void *module)
{
    module_clear(module);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED}, /* nor does NumPy */
#endif
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "zrecord._core",
    .m_doc = "The engine's part of the package; use the names in zrecord.",
    .m_size = sizeof(struct core_state),
    .m_methods = methods,
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__core(void); /* the interpreter looks it up by name */
PyMODINIT_FUNC PyInit__core(void)
{
    return PyModuleDef_Init(&module_def);
}
