/* SPDX-License-Identifier: MIT
 *
 * Memmap archives: an Archive owns the mapping and is the base of every array over
 * it; load() makes the tree of arrays in one go.  What a tree is called, how other
 * levels than tensordicts look, and dtypes that NumPy lacks is the package's
 * affair: it passes the class and functions for those.
 */
#include "core.h"

#include <unistd.h>

/* Copies share blocks of this size, which cost fewer page faults than one each. */
#define BLOCK_NBYTES ((size_t)4 << 20)
#define LEAF_ALIGN ((size_t)64)

struct archive {
    PyObject_HEAD struct core_state *state;
    PyObject *path; /* owned: as given */
    struct zr_archive *a;
};

/* What load() was given. */
struct load {
    struct archive *archive;
    const struct zr_archive_tree *tree;
    PyObject *tree_type; /* borrowed: called without arguments for each level */
    PyObject *dtypes;    /* borrowed: {"torch.float32": numpy.dtype or None} */
    PyObject *foreign;   /* borrowed: (torch dtype, bytes as uint8, shape) -> leaf */
    PyObject *nested;    /* borrowed: (torch dtype, bytes as uint8, shapes) -> leaf */
    PyObject *special;   /* borrowed: (archive, kind, path, meta.json, entries) -> level */
    unsigned threads;
    bool checksums, writable;
    void **data;       /* by leaf: where its bytes are */
    PyObject **owners; /* by leaf: borrowed from blocks, or the archive */
    void **shape_data; /* by leaf: of nested ones */
    PyObject *blocks;  /* owned: list of Blocks */
    PyObject **levels; /* by level: owned until its parent has it */
    const char *dtype_names[32];
    PyObject *dtype_found[32]; /* borrowed */
};

/* ---------------------------------------------------------------- the mapping */

static void archive_dealloc(PyObject *op)
{
    struct archive *self = (struct archive *)op;
    PyTypeObject *type = Py_TYPE(op);
    zr_archive_close(self->a);
    Py_XDECREF(self->path);
    type->tp_free(op);
    Py_DECREF(type);
}

/* archive_open(path, writable) */
PyObject *zpy_archive_open(PyObject *module, PyObject *args)
{
    struct core_state *state = PyModule_GetState(module);
    PyObject *path, *bytes;
    int writable;
    if (!PyArg_ParseTuple(args, "Op:archive_open", &path, &writable) ||
        !PyUnicode_FSConverter(path, &bytes))
        return NULL;
    struct archive *self = PyObject_New(struct archive, state->archive_type);
    if (!self) {
        Py_DECREF(bytes);
        return NULL;
    }
    self->state = state;
    self->path = Py_NewRef(path);
    self->a = NULL;
    struct zr_error err;
    zpy_error_reset(&err);
    int code;
    Py_BEGIN_ALLOW_THREADS code = zr_archive_open(
        &self->a, PyBytes_AS_STRING(bytes), writable ? ZR_ARCHIVE_WRITE : ZR_ARCHIVE_COPY, &err);
    Py_END_ALLOW_THREADS Py_DECREF(bytes);
    if (code < 0) {
        zpy_raise(state, code, &err, path);
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

/* ---------------------------------------------------------------- data of the leaves */

static bool is_copied(const struct zr_archive_leaf *leaf)
{
    return leaf->member != ZR_NO_MEMBER && !leaf->data;
}

/* "PATH: leaf a/b: why": ValueError. */
static int refuse_leaf(const struct load *l, const struct zr_archive_leaf *leaf, const char *why)
{
    PyErr_Format(PyExc_ValueError, "%S: cannot be opened with mode='r+': leaf %s %s",
                 l->archive->path, leaf->path, why);
    return -1;
}

/* Write-through is for all leaves or for none. */
static int check_writable(const struct load *l)
{
    for (size_t i = 0; i < l->tree->leaf_count; i++) {
        const struct zr_archive_leaf *leaf = &l->tree->leaves[i];
        struct zr_archive_member member;
        if (leaf->is_nested)
            return refuse_leaf(l, leaf, "is a nested tensor, which is copied");
        if (!is_copied(leaf))
            continue;
        bool stored = zr_archive_member(l->archive->a, leaf->member, &member, NULL) == ZR_OK &&
                      !strcmp(member.method, "stored");
        return refuse_leaf(
            l, leaf, stored ? "does not start at a multiple of its itemsize" : "is compressed");
    }
    return 0;
}

/* The next nbytes of a shared block, or of one of their own. */
static void *take_memory(struct load *l, size_t nbytes, char **at, size_t *left)
{
    nbytes = (nbytes + LEAF_ALIGN - 1) & ~(LEAF_ALIGN - 1);
    if (*left < nbytes) {
        size_t size = nbytes > BLOCK_NBYTES ? nbytes : BLOCK_NBYTES;
        void *data = zr_buffer_alloc(size);
        PyObject *block = zpy_block_adopt(l->archive->state, data, size);
        if (!block || PyList_Append(l->blocks, block) < 0) {
            Py_XDECREF(block);
            return NULL;
        }
        Py_DECREF(block);
        *at = data;
        *left = size;
    }
    void *out = *at;
    *at += nbytes;
    *left -= nbytes;
    return out;
}

static PyObject *last_block(const struct load *l)
{
    return PyList_GET_ITEM(l->blocks, PyList_GET_SIZE(l->blocks) - 1);
}

/* Members this call copies, and those it only compares with their checksums. */
struct copies {
    struct zr_archive_copy *list;
    size_t count;
    uint64_t nbytes;
};

static int plan_member(struct load *l, struct copies *c, uint64_t index, size_t align, void **data,
                       char **at, size_t *left)
{
    struct zr_archive_member member;
    struct zr_error err;
    zpy_error_reset(&err);
    int code = zr_archive_member(l->archive->a, index, &member, &err);
    if (code < 0) {
        zpy_raise(l->archive->state, code, &err, l->archive->path);
        return -1;
    }
    *data = member.data && member.payload_off % align == 0 ? member.data : NULL;
    if (*data) {
        if (l->checksums)
            c->list[c->count++] = (struct zr_archive_copy){index, NULL};
        return 0;
    }
    *data = take_memory(l, (size_t)member.nbytes, at, left);
    c->list[c->count++] = (struct zr_archive_copy){index, *data};
    return *data ? 0 : -1;
}

static int plan_leaf(struct load *l, struct copies *c, size_t i, char **at, size_t *left)
{
    const struct zr_archive_leaf *leaf = &l->tree->leaves[i];
    l->owners[i] = (PyObject *)l->archive;
    l->data[i] = leaf->data;
    if (leaf->member == ZR_NO_MEMBER)
        return 0;
    if (leaf->data && !leaf->is_nested && !l->checksums)
        return 0; /* nearly all */
    if (plan_member(l, c, leaf->member, leaf->itemsize, &l->data[i], at, left) < 0)
        return -1;
    if (!leaf->data)
        l->owners[i] = last_block(l);
    return leaf->is_nested ? plan_member(l, c, leaf->shape_member, 8, &l->shape_data[i], at, left)
                           : 0;
}

/* More than the machine has would end in the killing of some process. */
static int check_memory(const struct load *l)
{
    uint64_t nbytes = 0,
             memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    for (size_t i = 0; i < l->tree->leaf_count; i++)
        if (is_copied(&l->tree->leaves[i]))
            nbytes += l->tree->leaves[i].nbytes;
    if (nbytes <= memory)
        return 0;
    PyErr_Format(PyExc_MemoryError,
                 "%S: its leaves take %llu bytes to copy, and this machine has %llu",
                 l->archive->path, (unsigned long long)nbytes, (unsigned long long)memory);
    return -1;
}

/* In the calling thread while the GIL is away; ctx is where its state is kept. */
static int look_for_signals(void *ctx, uint64_t Py_UNUSED(done), uint64_t Py_UNUSED(total))
{
    PyThreadState **thread = ctx;
    PyEval_RestoreThread(*thread);
    int rc = PyErr_CheckSignals();
    *thread = PyEval_SaveThread();
    return rc;
}

/* Without the GIL; Ctrl-C ends it with what its handler raised. */
static int read_members(const struct archive *self, const struct zr_archive_copy *list,
                        size_t count, unsigned threads)
{
    struct zr_error err;
    zpy_error_reset(&err);
    PyThreadState *thread = PyEval_SaveThread();
    const struct zr_archive_read_options options = {
        .thread_count = threads, .progress = look_for_signals, .progress_ctx = &thread};
    int code = zr_archive_read(self->a, list, count, &options, &err);
    PyEval_RestoreThread(thread);
    if (code < 0 && !PyErr_Occurred())
        zpy_raise(self->state, code, &err, self->path);
    return PyErr_Occurred() ? -1 : 0;
}

static int fetch_data(struct load *l)
{
    size_t n = l->tree->leaf_count, left = 0;
    char *at = NULL;
    struct copies c = {.list = PyMem_RawMalloc((2 * n + 1) * sizeof *c.list)};
    if (!c.list) {
        PyErr_NoMemory();
        return -1;
    }
    int rc = l->writable ? check_writable(l) : check_memory(l);
    for (size_t i = 0; !rc && i < n; i++)
        rc = plan_leaf(l, &c, i, &at, &left);
    if (!rc && c.count)
        rc = read_members(l->archive, c.list, c.count, l->threads);
    PyMem_RawFree(c.list);
    return rc;
}

/* ---------------------------------------------------------------- leaves */

/* Borrowed: a dtype, or None for what NumPy lacks. */
static PyObject *dtype_of(struct load *l, const char *torch_name)
{
    size_t i = 0;
    for (; i < 31 && l->dtype_names[i]; i++)
        if (l->dtype_names[i] == torch_name)
            return l->dtype_found[i];
    PyObject *name = PyUnicode_FromString(torch_name);
    PyObject *found = name ? PyDict_GetItemWithError(l->dtypes, name) : NULL;
    Py_XDECREF(name);
    if (!found && PyErr_Occurred())
        return NULL;
    l->dtype_names[i] = torch_name;
    l->dtype_found[i] = found ? found : Py_None;
    return l->dtype_found[i];
}

static PyObject *shape_tuple(uint32_t ndim, const uint64_t *shape)
{
    PyObject *tuple = PyTuple_New(ndim);
    for (uint32_t i = 0; tuple && i < ndim; i++) {
        PyObject *dim = PyLong_FromUnsignedLongLong(shape[i]);
        if (!dim)
            Py_CLEAR(tuple);
        else
            PyTuple_SET_ITEM(tuple, i, dim);
    }
    return tuple;
}

static PyObject *bytes_array(PyObject *owner, void *data, uint64_t nbytes)
{
    static char nothing[8];
    npy_intp dim = (npy_intp)nbytes;
    PyArray_Descr *bytes = PyArray_DescrFromType(NPY_UINT8);
    PyObject *array = bytes ? zpy_array_view(owner, bytes, 1, &dim, data ? data : nothing) : NULL;
    Py_XDECREF(bytes);
    return array;
}

static PyObject *foreign_leaf(struct load *l, size_t i)
{
    const struct zr_archive_leaf *leaf = &l->tree->leaves[i];
    PyObject *bytes = bytes_array(l->owners[i], l->data[i], leaf->nbytes);
    PyObject *shape = bytes ? shape_tuple(leaf->ndim, leaf->shape) : NULL;
    PyObject *made = shape ? PyObject_CallFunction(l->foreign, "ssOO", leaf->path,
                                                   leaf->torch_dtype, bytes, shape)
                           : NULL;
    Py_XDECREF(bytes);
    Py_XDECREF(shape);
    return made;
}

static PyObject *nested_leaf(struct load *l, size_t i)
{
    const struct zr_archive_leaf *leaf = &l->tree->leaves[i];
    npy_intp dims[] = {(npy_intp)leaf->shape[0], (npy_intp)leaf->shape[1]};
    PyObject *bytes = bytes_array(l->owners[i], l->data[i], leaf->nbytes);
    PyArray_Descr *int64 = PyArray_DescrFromType(NPY_INT64);
    PyObject *view = bytes && int64 ? PyArray_NewFromDescr(&PyArray_Type, int64, 2, dims, NULL,
                                                           l->shape_data[i], 0, NULL)
                                    : NULL;
    PyObject *shapes = view ? PyArray_NewCopy((PyArrayObject *)view, NPY_CORDER) : NULL;
    PyObject *made = shapes ? PyObject_CallFunction(l->nested, "ssOO", leaf->path,
                                                    leaf->torch_dtype, bytes, shapes)
                            : NULL;
    Py_XDECREF(view);
    Py_XDECREF(bytes);
    Py_XDECREF(shapes);
    return made;
}

static PyObject *plain_leaf(struct load *l, size_t i, PyArray_Descr *dtype)
{
    const struct zr_archive_leaf *leaf = &l->tree->leaves[i];
    npy_intp dims[ZR_MAX_NDIM + 1];
    for (uint32_t k = 0; k < leaf->ndim; k++) {
        if (leaf->shape[k] > NPY_MAX_INTP)
            return PyErr_Format(PyExc_ValueError, "%S: leaf %s: its shape is too large",
                                l->archive->path, leaf->path);
        dims[k] = (npy_intp)leaf->shape[k];
    }
    if (leaf->member != ZR_NO_MEMBER)
        return zpy_array_view(l->owners[i], dtype, (int)leaf->ndim, dims, l->data[i]);
    Py_INCREF(dtype);
    return PyArray_NewFromDescr(&PyArray_Type, dtype, (int)leaf->ndim, dims, NULL, NULL, 0, NULL);
}

static PyObject *make_leaf(struct load *l, size_t i)
{
    const struct zr_archive_leaf *leaf = &l->tree->leaves[i];
    if (leaf->is_nested)
        return nested_leaf(l, i);
    PyObject *dtype = dtype_of(l, leaf->torch_dtype);
    if (!dtype)
        return NULL;
    return dtype == Py_None ? foreign_leaf(l, i) : plain_leaf(l, i, (PyArray_Descr *)dtype);
}

/* ---------------------------------------------------------------- levels */

static int fill_entries(struct load *l, const struct zr_archive_level *level, PyObject *dict)
{
    for (size_t k = 0; k < level->entry_count; k++) {
        const struct zr_archive_entry *e = &level->entries[k];
        PyObject *key = PyUnicode_DecodeUTF8(e->key, (Py_ssize_t)e->key_nbytes, "strict");
        PyObject *value = !key ? NULL : e->is_leaf ? make_leaf(l, e->index) : l->levels[e->index];
        if (!e->is_leaf && key)
            l->levels[e->index] = NULL; /* now ours */
        int rc = value ? PyDict_SetItem(dict, key, value) : -1;
        Py_XDECREF(key);
        Py_XDECREF(value);
        if (rc < 0)
            return -1;
    }
    if ((size_t)PyDict_GET_SIZE(dict) == level->entry_count)
        return 0;
    PyErr_Format(PyExc_ValueError, "%S: %s%smeta.json names a key twice", l->archive->path,
                 level->path, level->path[0] ? "/" : "");
    return -1;
}

static int set_batch_size(const struct zr_archive_level *level, PyObject *dict)
{
    PyObject *shape = shape_tuple(level->ndim, level->shape);
    int rc = shape ? PyObject_SetAttrString(dict, "batch_size", shape) : -1;
    Py_XDECREF(shape);
    return rc;
}

static PyObject *make_level(struct load *l, size_t at)
{
    const struct zr_archive_level *level = &l->tree->levels[at];
    PyObject *dict = PyObject_CallNoArgs(l->tree_type);
    if (!dict)
        return NULL;
    if (!PyDict_Check(dict)) {
        PyErr_SetString(PyExc_TypeError, "tree_type must make dicts");
        Py_DECREF(dict);
        return NULL;
    }
    if (fill_entries(l, level, dict) < 0 ||
        (level->kind == ZR_LEVEL_TENSORDICT && set_batch_size(level, dict) < 0)) {
        Py_DECREF(dict);
        return NULL;
    }
    if (level->kind == ZR_LEVEL_TENSORDICT && level->is_plain)
        return dict;
    return PyObject_CallFunction(l->special, "Oisy#N", l->archive, level->kind, level->path,
                                 level->meta, (Py_ssize_t)level->meta_nbytes, dict);
}

/* Children come after their parents, so from the last to the first. */
static PyObject *make_tree(struct load *l)
{
    if (!l->tree->level_count)
        return make_leaf(l, 0);
    for (size_t at = l->tree->level_count; at--;) {
        l->levels[at] = make_level(l, at);
        if (!l->levels[at])
            return NULL;
    }
    PyObject *root = l->levels[0];
    l->levels[0] = NULL;
    return root;
}

static PyObject *load_tree(struct load *l)
{
    size_t leaves = l->tree->leaf_count + 1, levels = l->tree->level_count + 1;
    l->data = PyMem_RawCalloc(leaves, sizeof(void *));
    l->shape_data = PyMem_RawCalloc(leaves, sizeof(void *));
    l->owners = PyMem_RawCalloc(leaves, sizeof(PyObject *));
    l->levels = PyMem_RawCalloc(levels, sizeof(PyObject *));
    l->blocks = PyList_New(0);
    PyObject *root = NULL;
    if (!l->data || !l->shape_data || !l->owners || !l->levels)
        PyErr_NoMemory();
    else if (l->blocks && fetch_data(l) == 0)
        root = make_tree(l);
    for (size_t at = 0; l->levels && at < levels; at++)
        Py_XDECREF(l->levels[at]);
    Py_XDECREF(l->blocks);
    PyMem_RawFree(l->data);
    PyMem_RawFree(l->shape_data);
    PyMem_RawFree(l->owners);
    PyMem_RawFree(l->levels);
    return root;
}

/* ---------------------------------------------------------------- methods */

#define KEYS_MAX 1024

static int parse_keys(PyObject *tuple, const char **keys)
{
    Py_ssize_t n = PyTuple_GET_SIZE(tuple);
    if (n > KEYS_MAX) {
        PyErr_Format(PyExc_ValueError, "a subpath of %zd keys is too deep", n);
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        Py_ssize_t nbytes;
        keys[i] = PyUnicode_AsUTF8AndSize(PyTuple_GET_ITEM(tuple, i), &nbytes);
        if (!keys[i])
            return -1;
        if (strlen(keys[i]) != (size_t)nbytes) {
            PyErr_SetString(PyExc_ValueError, "a key of a subpath holds a zero character");
            return -1;
        }
    }
    return 0;
}

/* load(keys, tree_type, dtypes, foreign, nested, special, threads, checksums, writable) */
static PyObject *archive_load(PyObject *op, PyObject *args)
{
    struct load l = {.archive = (struct archive *)op};
    PyObject *tuple;
    int checksums, writable;
    const char *keys[KEYS_MAX];
    if (!PyArg_ParseTuple(args, "O!OO!OOOIpp:load", &PyTuple_Type, &tuple, &l.tree_type,
                          &PyDict_Type, &l.dtypes, &l.foreign, &l.nested, &l.special, &l.threads,
                          &checksums, &writable) ||
        parse_keys(tuple, keys) < 0)
        return NULL;
    l.checksums = checksums;
    l.writable = writable;
    struct zr_error err;
    zpy_error_reset(&err);
    int code;
    Py_BEGIN_ALLOW_THREADS code =
        zr_archive_tree(l.archive->a, keys, (size_t)PyTuple_GET_SIZE(tuple), &l.tree, &err);
    Py_END_ALLOW_THREADS if (code < 0) return zpy_raise(l.archive->state, code, &err,
                                                        l.archive->path);
    PyObject *root = load_tree(&l);
    zr_archive_tree_free(l.tree);
    return root;
}

/* read(name): the bytes of a member, or None when there is no such one */
static PyObject *archive_read(PyObject *op, PyObject *arg)
{
    struct archive *self = (struct archive *)op;
    struct zr_error err;
    struct zr_archive_copy copy;
    struct zr_archive_member member;
    zpy_error_reset(&err);
    const char *name = PyUnicode_AsUTF8(arg);
    if (!name)
        return NULL;
    if (zr_archive_find(self->a, name, &copy.index, NULL) != ZR_OK)
        Py_RETURN_NONE;
    int code = zr_archive_member(self->a, copy.index, &member, &err);
    if (code < 0)
        return zpy_raise(self->state, code, &err, self->path);
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)member.nbytes);
    if (!bytes)
        return NULL;
    copy.out = PyBytes_AS_STRING(bytes);
    if (read_members(self, &copy, 1, 1) == 0)
        return bytes;
    Py_DECREF(bytes);
    return NULL;
}

static PyObject *get_identity(PyObject *op, void *Py_UNUSED(closure))
{
    struct zr_archive_info info;
    zr_archive_info(((struct archive *)op)->a, &info);
    return PyLong_FromUnsignedLongLong(info.identity);
}

static PyObject *get_intact(PyObject *op, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(zr_archive_intact(((struct archive *)op)->a));
}

static PyObject *get_path(PyObject *op, void *Py_UNUSED(closure))
{
    return Py_NewRef(((struct archive *)op)->path);
}

static PyMethodDef archive_methods[] = {
    {"load", archive_load, METH_VARARGS, NULL},
    {"read", archive_read, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef archive_getset[] = {
    {"identity", get_identity, NULL, NULL, NULL},
    {"intact", get_intact, NULL, NULL, NULL},
    {"path", get_path, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot archive_slots[] = {
    {Py_tp_dealloc, archive_dealloc},
    {Py_tp_methods, archive_methods},
    {Py_tp_getset, archive_getset},
    {Py_tp_doc, (void *)"Owner of the mapping of an archive; arrays over it keep it alive."},
    {0, NULL},
};

PyType_Spec zpy_archive_spec = {
    .name = "zrecord._core.Archive",
    .basicsize = sizeof(struct archive),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = archive_slots,
};
