/* SPDX-License-Identifier: MIT
 *
 * What the files of zrecord._core share: the module state, the store object, and
 * the prototypes, grouped by file.  Everything the engine offers comes through
 * zrecord.h; nothing here knows a byte of the format.
 */
#ifndef ZPY_CORE_H
#define ZPY_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define NPY_NO_DEPRECATED_API NPY_1_22_API_VERSION
#define NPY_TARGET_VERSION NPY_1_22_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL zpy_array_api
#ifndef ZPY_IMPORT_ARRAY
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>
#include <numpy/arrayscalars.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "zrecord.h"

/* Critical sections exist since 3.13 and cost nothing with the GIL. */
#ifndef Py_BEGIN_CRITICAL_SECTION
#define Py_BEGIN_CRITICAL_SECTION(op) {
#define Py_END_CRITICAL_SECTION() }
#endif

/* Lives with the module; objects borrow it, since their type keeps the module. */
struct core_state {
    PyTypeObject *block_type;
    PyTypeObject *store_type;
    PyTypeObject *dense_type;
    PyTypeObject *ragged_type;
    PyTypeObject *sampler_type;
    PyTypeObject *feed_type;
    PyTypeObject *archive_type;
    PyObject *make_error; /* zrecord.errors.make_error */
    PyObject *warning;    /* zrecord.errors.ZrecordWarning */
};

/* A writer, or a reader, or a reader that a pickle described and nobody used yet. */
struct store {
    PyObject_HEAD
    struct core_state *state;
    PyObject *path;           /* owned: pathlib.Path as given */
    PyObject *location;       /* owned: absolute path, str */
    PyArray_Descr *dtype;     /* owned; NULL while pending */
    PyObject *codec;          /* owned: str; NULL while pending */
    PyObject *item_shape;     /* owned: tuple, Dense only; NULL while pending */
    PyObject *owner;          /* owned: of the memory that an array's reader reads; or NULL */
    struct zr_reader *reader; /* owned; freed by whoever drops `users` to CLOSED */
    struct zr_writer *writer; /* owned; under lock */
    atomic_ullong users;      /* calls inside the reader, plus the CLOSED bit */
    PyThread_type_lock lock;  /* serialises appends and close; writers only */
    atomic_ulong lock_owner;  /* thread that holds it, 0 for none */
    pid_t pid;                /* process that may touch the writer */
    atomic_ullong length;     /* of a reader; what a writer accepted so far */
    uint64_t row_nbytes;      /* Dense */
    uint64_t identity;
    int geometry;                   /* enum zr_geometry */
    int ndim;                       /* Dense: rank of a record */
    npy_intp dims[ZR_MAX_NDIM + 1]; /* Dense: room for the batch axis, then the record's */
    bool writable;
    atomic_bool closed;
    atomic_bool failed;  /* a writer that can only be aborted */
    atomic_bool pending; /* unpickled, not opened yet; cleared after all above is set */
    bool checksums;      /* reader compares each record with its checksum */
    unsigned long long mapped_nbytes; /* as of the engine's zr_reader_options */
};

/* Record ids of one call; small lists stay on the stack. */
#define FEW_IDS 256
struct ids {
    uint64_t *at;
    size_t count;
    uint64_t few[FEW_IDS];
};

/* error.c */
/* Sets the exception that fits the code; path may be NULL.  Always returns NULL. */
void *zpy_raise(const struct core_state *state, int code, const struct zr_error *err,
                PyObject *path);
/* The same with a message of our own, as PyUnicode_FromFormat makes it. */
void *zpy_raise_format(const struct core_state *state, int code, PyObject *path, const char *format,
                       ...);
/* Empties an error object, so that a code without a message is still readable. */
void zpy_error_reset(struct zr_error *err);

/* block.c */
extern PyType_Spec zpy_block_spec;
/* Owner of data, nbytes from zr_buffer_alloc, which is freed with the object or when
 * there is none; NULL data is MemoryError. */
PyObject *zpy_block_adopt(const struct core_state *state, void *data, size_t nbytes);
/* Uninitialised C-order array, on recycled memory when it is large. */
PyObject *zpy_array_new(const struct core_state *state, PyArray_Descr *dtype, int ndim,
                        const npy_intp *dims, size_t nbytes);
/* C-order array over data that it takes over, as zpy_block_adopt does. */
PyObject *zpy_array_adopt(const struct core_state *state, PyArray_Descr *dtype, int ndim,
                          const npy_intp *dims, void *data, size_t nbytes);
/* Array over part of a block, which it keeps alive. */
PyObject *zpy_array_view(PyObject *owner, PyArray_Descr *dtype, int ndim, const npy_intp *dims,
                         void *data);

/* index.c */
/* Whether key is a scalar index: an int or NumPy integer, not a bool. */
bool zpy_is_scalar(PyObject *key);
/* One id of a store; -1 with IndexError or TypeError. */
int zpy_id_from_scalar(PyObject *key, const struct store *s, uint64_t *id);
/* Ids that key selects out of a store; release in both cases. */
int zpy_ids_init(struct ids *ids, PyObject *key, const struct store *s);
void zpy_ids_release(struct ids *ids);

/* record.c */
typedef PyObject *(*zpy_gather_one_fn)(struct store *s, struct zr_reader *reader, uint64_t id);
/* The record that a scalar index, or a position of the sequence protocol, names. */
PyObject *zpy_record_of(struct store *s, PyObject *key, zpy_gather_one_fn gather);
PyObject *zpy_record_at(struct store *s, Py_ssize_t i, zpy_gather_one_fn gather);

/* store.c */
extern PyType_Spec zpy_store_spec;
PyObject *zpy_store_open(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *zpy_store_pending(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *zpy_store_of_array(PyObject *module, PyObject *args);
/* A store of a Python class that describes nothing yet. */
struct store *zpy_store_alloc(struct core_state *state, PyTypeObject *type, PyObject *path,
                              PyObject *location);
/* Describes the schema in Python objects; all or nothing. */
int zpy_store_set_schema(struct store *s, const char *dtype, int codec, uint32_t ndim,
                         const uint64_t *shape);
/* RuntimeError; always -1. */
int zpy_raise_closed(const struct store *s);
/* Opens a pending store; -1 with RuntimeError on a closed store or a writer. */
int zpy_store_readable(struct store *s);
/* The reader, which stays valid until zpy_reader_leave; NULL with an exception. */
struct zr_reader *zpy_reader_enter(struct store *s);
void zpy_reader_leave(struct store *s);
/* -1 with ValueError unless the array has the store's dtype. */
int zpy_check_dtype(const struct store *s, PyArrayObject *array, const char *what);

/* writer.c */
PyObject *zpy_store_create(PyObject *module, PyObject *args, PyObject *kwargs);
/* The writer, exclusively, until zpy_writer_leave; NULL with an exception. */
struct zr_writer *zpy_writer_enter(struct store *s);
void zpy_writer_leave(struct store *s);
/* Publish, or discard; -1 with an exception. */
int zpy_writer_close(struct store *s);
int zpy_writer_abort(struct store *s);
/* Discard in the finalizer, where nobody else holds the store. */
void zpy_writer_discard(struct store *s);

/* ragged.c, packed.c */
extern PyType_Spec zpy_ragged_spec;
PyObject *zpy_packed(PyObject *store, PyObject *key);
/* The batch of a part that a feed gave: a list of arrays, or (values, offsets, shapes).
 * Blocks that go into it are taken out of the part. */
PyObject *zpy_ragged_adopt(struct store *s, size_t count, struct zr_part *part);
PyObject *zpy_packed_adopt(struct store *s, size_t count, struct zr_part *part);

/* sampler.c */
extern PyType_Spec zpy_sampler_spec;
/* Of an object of its type; lives as long. */
const struct zr_sampler *zpy_sampler_config(PyObject *sampler);

/* shuffle.c */
PyObject *zpy_block_shuffle_ids(PyObject *module, PyObject *args);
PyObject *zpy_block_shuffle_position(PyObject *module, PyObject *args);
PyObject *zpy_feistel_permute(PyObject *module, PyObject *args);
PyObject *zpy_feistel_inverse(PyObject *module, PyObject *args);
PyObject *zpy_feistel_hash(PyObject *module, PyObject *args);

/* dense.c, feed.c, train.c, verify.c */
extern PyType_Spec zpy_dense_spec;
extern PyType_Spec zpy_feed_spec;
PyObject *zpy_train_samples(PyObject *module, PyObject *args);
PyObject *zpy_train_store(PyObject *module, PyObject *args);
PyObject *zpy_verify(PyObject *module, PyObject *args);

/* archive.c */
extern PyType_Spec zpy_archive_spec;
PyObject *zpy_archive_open(PyObject *module, PyObject *args);

/* archive_work.c */
PyObject *zpy_archive_save(PyObject *module, PyObject *args);
PyObject *zpy_archive_pack(PyObject *module, PyObject *args);
PyObject *zpy_archive_unpack(PyObject *module, PyObject *args);
PyObject *zpy_archive_refresh(PyObject *module, PyObject *args);
PyObject *zpy_archive_is(PyObject *module, PyObject *path);
PyObject *zpy_archive_verify(PyObject *module, PyObject *args);

#endif /* ZPY_CORE_H */
