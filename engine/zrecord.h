/* SPDX-License-Identifier: MIT
 *
 * libzrecord: compact, compressed, immutable containers of records.
 *
 * A store is a directory (FORMAT.md) holding `length` records of one NumPy
 * dtype.  Dense: every record has the same item_shape.  Ragged: each record has
 * its own shape.  A writer appends and publishes on close; a reader gathers.
 *
 * Conventions
 *  - Functions that can fail return ZR_OK (0) or a negative ZR_E_* code; the
 *    numbers are permanent.  `err` may be NULL; where given, it is filled on
 *    failure only, and the first failure of a call is the one reported.  Output
 *    handles are set to NULL, other outputs left untouched, on failure; the
 *    contents of a destination buffer are then unspecified.
 *  - `_nbytes` are bytes, `_count` elements, `_off` byte offsets, ids are record
 *    numbers 0..length-1.
 *  - Readers are immutable: any number of threads may use one reader at a time.
 *    A writer belongs to one thread at a time.  Closing needs a quiescent handle.
 *  - fork: readers opened before fork are valid in the child.  Writers are not:
 *    append and close fail there (ZR_E_STATE), close and abort free the child's
 *    copy, and the parent's build goes on undisturbed.
 *  - Strings are NUL-terminated UTF-8 or raw path bytes; pointers returned by
 *    getters live as long as the handle.
 */
#ifndef ZRECORD_H
#define ZRECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ZR_VERSION_MAJOR 0
#define ZR_VERSION_MINOR 1
#define ZR_VERSION_PATCH 0
#define ZR_VERSION_STRING "0.1.0"

#if defined(__GNUC__)
#define ZR_API __attribute__((visibility("default")))
#else
#define ZR_API
#endif

#define ZR_MAX_RECORD_NBYTES ((uint64_t)1 << 31) /* logical bytes of one record, inclusive */
#define ZR_MAX_NDIM 64                           /* NumPy 2's rank limit */
#define ZR_DTYPE_MAX 64                          /* bytes of a dtype string with its NUL */
#define ZR_NO_RECORD UINT64_MAX

/* ---------------------------------------------------------------- errors */

enum zr_code {
    ZR_OK = 0,
    ZR_E_NOMEM = -1,       /* out of memory */
    ZR_E_IO = -2,          /* the operating system reported an I/O failure */
    ZR_E_INVALID = -3,     /* an argument is wrong */
    ZR_E_TOO_LARGE = -4,   /* a record exceeds ZR_MAX_RECORD_NBYTES */
    ZR_E_NO_SPACE = -5,    /* the disk, or a quota, is full */
    ZR_E_BUFFER = -6,      /* destination too small */
    ZR_E_CORRUPT = -7,     /* a record, or its table entry, is damaged */
    ZR_E_FORMAT = -8,      /* not a zrecord store, or its header is damaged */
    ZR_E_TRAIN = -9,       /* dictionary training failed */
    ZR_E_DICT = -10,       /* dictionary missing, unexpected or the wrong one */
    ZR_E_NOT_FOUND = -11,  /* no such store or file */
    ZR_E_EXISTS = -12,     /* the path to create is taken */
    ZR_E_BUSY = -13,       /* a writer holds it, or readers do */
    ZR_E_TRUNCATED = -14,  /* a file is shorter than its header says */
    ZR_E_FOREIGN = -15,    /* another program's or version's layout, recognised */
    ZR_E_STATE = -16,      /* the handle cannot do this any more */
    ZR_E_PERMISSION = -17, /* access denied, or a read-only filesystem */
    ZR_E_CHECKSUM = -18,   /* decoded bytes differ from the recorded checksum */
    ZR_E_RANGE = -19,      /* record id outside 0..length-1 */
    ZR_E_SCHEMA = -20,     /* the schema is not one a store may have */
    ZR_E_GEOMETRY = -21,   /* Dense asked of a Ragged store, or the reverse */
    ZR_E_CANCELLED = -22,  /* a progress callback asked to stop */
    ZR_E_NPY = -23         /* not a .npy this library takes */
};

struct zr_error {
    int code;           /* one of zr_code */
    int sys_errno;      /* errno of the failing system call, else 0 */
    uint64_t record;    /* record id, or ZR_NO_RECORD */
    uint64_t offset;    /* byte offset in the file named by message, or UINT64_MAX */
    char message[1024]; /* one line: file, record, reason; no newline */
};

/* "ZR_E_CORRUPT" for ZR_E_CORRUPT; "ZR_E_?" for unknown numbers.  Never NULL. */
ZR_API const char *zr_code_name(int code);
/* One lower-case sentence without the particulars.  Never NULL. */
ZR_API const char *zr_code_text(int code);
/* The errno that fits the code best (ZR_E_CORRUPT is EIO); 0 for ZR_OK. */
ZR_API int zr_code_errno(int code);
/* "0.1.0", and of the linked libzstd, e.g. "1.5.4". */
ZR_API const char *zr_version(void);
ZR_API const char *zr_zstd_version(void);

/* Called now and then from the calling thread with done <= total; a non-zero
 * return stops the work with ZR_E_CANCELLED. */
typedef int (*zr_progress_fn)(void *ctx, uint64_t done, uint64_t total);

/* ---------------------------------------------------------------- threads */

/* Worker threads a call may use, its own included.  Default: the CPUs that the
 * affinity mask and cgroup quota leave, or $ZRECORD_THREADS.  Thread safe. */
ZR_API unsigned zr_thread_count(void);
/* count 0 restores the default.  Takes effect for calls that start later. */
ZR_API void zr_set_thread_count(unsigned count);
/* Starts the worker threads now instead of when a call first wants them.  They keep the
 * scheduling class and the affinity of the thread that starts them: for programs some of
 * whose threads are bound to a CPU, to be called from one that is not.  A forked child
 * has none again.  Thread safe. */
ZR_API void zr_start_threads(void);

/* ---------------------------------------------------------------- buffers
 * Recycled output memory: fresh pages cost more to fault in than records cost
 * to copy.  Blocks are at least 64-byte aligned, not zeroed, exclusively the
 * caller's until freed.  Thread safe, fork safe. */

/* NULL when memory runs out.  nbytes 0 gives a valid block. */
ZR_API void *zr_buffer_alloc(size_t nbytes);
/* Takes NULL. */
ZR_API void zr_buffer_free(void *block);
/* Returns idle blocks to the system until at most keep_nbytes are kept. */
ZR_API void zr_buffer_trim(size_t keep_nbytes);
/* The bound on idle bytes (default 1/16 of memory, at most 1 GiB, or
 * $ZRECORD_BUFFER_BYTES); trims to it at once. */
ZR_API void zr_buffer_set_limit(size_t idle_nbytes);
ZR_API size_t zr_buffer_idle_nbytes(void);

/* ---------------------------------------------------------------- schema */

enum zr_geometry { ZR_DENSE = 0, ZR_RAGGED = 1 };
enum zr_codec { ZR_RAW = 0, ZR_ZSTD = 1, ZR_ZSTD_DICT = 2 };
enum zr_tune { ZR_TUNE_DEFAULT = 0, ZR_TUNE_READ = 1, ZR_TUNE_WRITE = 2 };
enum zr_durability { ZR_DURABLE = 0, ZR_NO_FSYNC = 1 };
enum zr_tier { ZR_TIER_BALANCED = 0, ZR_TIER_FAST = 1, ZR_TIER_MAX = 2 };

/* "raw", "zstd", "zstd_dict"; NULL for other values. */
ZR_API const char *zr_codec_name(int codec);
/* The reverse, also taking "zstdict"; -1 for other names. */
ZR_API int zr_codec_from_name(const char *name);
/* "dense", "ragged". */
ZR_API const char *zr_geometry_name(int geometry);
/* "fast", "balanced", "max" to enum zr_tier; -1 for other names. */
ZR_API int zr_tier_from_name(const char *name);
/* "default", "read", "write" to enum zr_tune; -1 for other names. */
ZR_API int zr_tune_from_name(const char *name);

/* Bytes per element of a NumPy dtype.str ("<f4", ">M8[ns]", "|S5", "<U3").
 * ZR_E_SCHEMA for object, structured, zero-size and malformed ones. */
ZR_API int zr_dtype_itemsize(const char *dtype, uint64_t *itemsize, struct zr_error *err);

/* ---------------------------------------------------------------- writer */

struct zr_writer;

/* Zero everywhere it matters means the default. */
struct zr_writer_options {
    int geometry;               /* enum zr_geometry */
    int codec;                  /* enum zr_codec */
    const char *dtype;          /* NumPy dtype.str; required */
    uint32_t ndim;              /* Dense: rank of a record, below ZR_MAX_NDIM */
    const uint64_t *item_shape; /* Dense: ndim dims */
    const void *dict;           /* ZR_ZSTD_DICT: the dictionary; copied */
    size_t dict_nbytes;
    int level;       /* as zstd has them; 0: chosen by tune for the codec */
    int tune;        /* enum zr_tune */
    int durability;  /* enum zr_durability: fsync on close or not */
    bool no_sidecar; /* leave out checksums and ranks */
};

/* One Ragged record: a C-contiguous payload of dtype elements. */
struct zr_item {
    const void *data;
    const uint64_t *shape; /* ndim dims; may be NULL when ndim is 0 */
    uint32_t ndim;         /* at most ZR_MAX_NDIM */
};

/* Begins a store at `path`, which must not exist (ZR_E_EXISTS); missing parent
 * directories are made.  Until zr_writer_close returns ZR_OK nothing exists at
 * `path`: the work is done in a hidden directory beside it.  ZR_E_BUSY when
 * another writer is building the same path. */
ZR_API int zr_writer_create(struct zr_writer **out, const char *path,
                            const struct zr_writer_options *options, struct zr_error *err);

/* Appends count rows of item_shape, C order, count * row_nbytes bytes at rows.
 * Synchronous; rows is not kept.  What does not fill a block of 2 MiB waits in
 * memory (at most 6 MiB a writer), so that a later append or close may be what
 * meets a full disk.  After a failure the writer can only be aborted (or closed,
 * which then aborts and fails with ZR_E_STATE). */
ZR_API int zr_writer_append_dense(struct zr_writer *w, const void *rows, uint64_t count,
                                  struct zr_error *err);

/* Appends count records.  Items of zero bytes or over the record limit are
 * refused before anything of the batch is written (ZR_E_INVALID,
 * ZR_E_TOO_LARGE; err->record is the position in items), leaving the writer usable. */
ZR_API int zr_writer_append_ragged(struct zr_writer *w, const struct zr_item *items, uint64_t count,
                                   struct zr_error *err);

ZR_API uint64_t zr_writer_length(const struct zr_writer *w);

/* Publishes and frees.  The handle is gone whatever the result; on failure
 * nothing is left at path. */
ZR_API int zr_writer_close(struct zr_writer *w, struct zr_error *err);
/* Discards everything written and frees.  Takes NULL. */
ZR_API void zr_writer_abort(struct zr_writer *w);

/* ---------------------------------------------------------------- reader */

struct zr_reader;

enum zr_access {
    ZR_ACCESS_MAP = 0, /* read through a shared mapping: fastest when warm */
    ZR_ACCESS_READ = 1 /* pread only: resident memory stays small */
};

struct zr_reader_options {
    int access;     /* enum zr_access */
    bool checksums; /* compare every record gathered with its checksum */
    /* ZR_ACCESS_MAP: records behind these first bytes of data.zr are read with pread all the
     * same, so that no more of it counts as the process's memory.  0: map all.  Costs speed:
     * a third for images of 147 KiB, far more for small records in no order. */
    uint64_t mapped_nbytes;
};

/* Opens a published store; options may be NULL.  Cost does not depend on its
 * length.  Takes a shared flock for its life.  A file that shrinks or fails
 * later makes gathers fail, never the process. */
ZR_API int zr_reader_open(struct zr_reader **out, const char *path,
                          const struct zr_reader_options *options, struct zr_error *err);
/* An array in memory as a Dense store without a file: length rows at data, which
 * must stay and not move until the reader is closed.  Costs 16 bytes a row.  Rows
 * of no bytes are refused. */
ZR_API int zr_reader_open_array(struct zr_reader **out, const char *dtype, uint32_t ndim,
                                const uint64_t *item_shape, uint64_t length, const void *data,
                                struct zr_error *err);
/* Takes NULL. */
ZR_API void zr_reader_close(struct zr_reader *r);

struct zr_info {
    const char *path;  /* as given to open */
    const char *dtype; /* NumPy dtype.str */
    int geometry;
    int codec;
    uint64_t length;
    uint64_t itemsize;          /* bytes of an element */
    uint32_t ndim;              /* Dense: rank of a record */
    const uint64_t *item_shape; /* Dense: ndim dims; NULL for Ragged */
    uint64_t row_nbytes;        /* Dense: logical bytes of a record; 0 for Ragged */
    uint64_t data_nbytes;       /* committed bytes of data.zr */
    uint64_t disk_nbytes;       /* allocated bytes of all files of the store */
    const void *dict;           /* ZR_ZSTD_DICT: the dictionary, else NULL */
    size_t dict_nbytes;
    bool has_sidecar;  /* checksums (and Ragged ranks) are there and match */
    int64_t mtime_sec; /* of meta.zr */
    int64_t mtime_nsec;
    uint64_t identity; /* changes when the store at a path is another one */
};
/* Fills info; the pointers in it live as long as the reader.  O(1). */
ZR_API void zr_reader_info(const struct zr_reader *r, struct zr_info *info);
/* What open noticed and went on without, e.g. a sidecar that does not match;
 * NULL when nothing. */
ZR_API const char *zr_reader_warning(const struct zr_reader *r);

struct zr_location {
    uint64_t data_off;     /* in data.zr */
    uint32_t phys_nbytes;  /* stored */
    uint32_t logic_nbytes; /* decoded; for Ragged with the shape prefix.  2^31 fits */
};
/* The checked table entry of one record. */
ZR_API int zr_reader_locate(const struct zr_reader *r, uint64_t id, struct zr_location *loc,
                            struct zr_error *err);

/* ---------------------------------------------------------------- gather */

/* Records ids[0..count) in that order, repeats allowed, decoded straight to
 * out + i * row_nbytes.  Runs in parallel where that pays.  out_nbytes must be
 * at least count * row_nbytes.  ZR_E_RANGE before anything is read;
 * ZR_E_GEOMETRY on a Ragged store. */
ZR_API int zr_gather_dense(struct zr_reader *r, const uint64_t *ids, size_t count, void *out,
                           size_t out_nbytes, struct zr_error *err);

/* Plans a Ragged gather: offsets[0..count], where record i will occupy
 * [offsets[i], offsets[i] + its logic_nbytes), 16-byte aligned starts, and
 * offsets[count] is the size of the buffer that zr_gather_ragged needs. */
ZR_API int zr_gather_ragged_plan(struct zr_reader *r, const uint64_t *ids, size_t count,
                                 uint64_t *offsets, struct zr_error *err);
/* The gather; out holds offsets[count] bytes and the offsets came from the plan
 * for the same ids.  Each record lies there as stored: ndim u64, dims u64[ndim],
 * payload; all checked, so zr_record_split needs no error path. */
ZR_API int zr_gather_ragged(struct zr_reader *r, const uint64_t *ids, size_t count, void *out,
                            const uint64_t *offsets, struct zr_error *err);

/* Parts of one gathered Ragged record. */
struct zr_record_view {
    uint32_t ndim;
    const uint64_t *shape; /* inside the record; 8-byte aligned */
    const void *data;      /* payload */
    uint64_t data_nbytes;
};
ZR_API void zr_record_split(const void *record, uint64_t logic_nbytes, struct zr_record_view *view);

/* One gathered batch of one store, each block for zr_buffer_free.  Dense: data
 * alone.  Ragged: data and offsets as zr_gather_ragged gives them, or packed, as
 * zr_gather_packed does. */
struct zr_part {
    void *data;
    size_t nbytes;
    uint64_t *offsets;
    uint64_t *shapes;
    uint64_t *shape_offsets;
};
ZR_API void zr_parts_release(struct zr_part *parts, size_t count);

/* A packed Ragged gather into memory of its own: payloads end to end in data,
 * without shape prefixes, the dims end to end in shapes.  Record i is data +
 * offsets[i] .. offsets[i + 1] with the dims shape_offsets[i] .. shape_offsets[i + 1];
 * both have count + 1 elements.  *out is filled or, on failure, all NULL.  Stores
 * whose records differ in rank cost a second look at each. */
ZR_API int zr_gather_packed(struct zr_reader *r, const uint64_t *ids, size_t count,
                            struct zr_part *out, struct zr_error *err);

/* Hints that these records are wanted soon: queues their reads when they are not
 * in the page cache.  Never blocks on the data.  Ids out of range are ignored.
 * Returns how many records it queued: 0 when all looked to be in memory. */
ZR_API size_t zr_prefetch(struct zr_reader *r, const uint64_t *ids, size_t count);

/* ---------------------------------------------------------------- .npy */

#define ZR_NPY_MAX_HEADER_NBYTES 2048 /* of any header zr_npy_header makes */

/* What numpy.save writes before the payload of a C-contiguous array; buf holds
 * ZR_NPY_MAX_HEADER_NBYTES.  Returns its length, a multiple of 64. */
ZR_API size_t zr_npy_header(const char *dtype, uint32_t ndim, const uint64_t *shape, void *buf);

struct zr_npy {
    char dtype[ZR_DTYPE_MAX];
    uint64_t itemsize;
    uint32_t ndim;
    uint64_t shape[ZR_MAX_NDIM];
    bool fortran_order;
    uint64_t data_off;    /* where the payload starts */
    uint64_t data_nbytes; /* product(shape) * itemsize; may be 0 */
};
/* Parses the header of versions 1 to 3.  `head` holds the first nbytes of the
 * file, file_nbytes its size, `name` what to call it in messages.  Refuses
 * object and structured dtypes and files shorter than the header says
 * (ZR_E_NPY).  When nbytes is too few, returns ZR_E_BUFFER with npy->data_off
 * set to how many are needed. */
ZR_API int zr_npy_parse(const void *head, size_t nbytes, uint64_t file_nbytes, const char *name,
                        struct zr_npy *npy, struct zr_error *err);

/* Size of the .npy of one record.  Arithmetic for Dense and with a sidecar;
 * else the start of the record is decoded, once. */
ZR_API int zr_record_npy_nbytes(struct zr_reader *r, uint64_t id, uint64_t *nbytes,
                                struct zr_error *err);
/* The .npy of one record, in one block.  *npy points to *nbytes bytes inside
 * *block; release with zr_buffer_free(*block). */
ZR_API int zr_record_npy(struct zr_reader *r, uint64_t id, void **block, const void **npy,
                         uint64_t *nbytes, struct zr_error *err);
/* The same into out, 8-byte aligned, of exactly the out_nbytes that zr_record_npy_nbytes tells
 * (ZR_E_BUFFER otherwise).  On failure what out holds is undefined. */
ZR_API int zr_record_npy_into(struct zr_reader *r, uint64_t id, void *out, uint64_t out_nbytes,
                              struct zr_error *err);

/* ---------------------------------------------------------------- dictionaries */

/* Dictionary and sample budget of a tier, in bytes. */
ZR_API void zr_tier_sizes(int tier, size_t *dict_nbytes, size_t *sample_nbytes);
/* Trains on count samples laid end to end.  dict holds dict_capacity bytes;
 * *dict_nbytes is what was used.  ZR_E_TRAIN when samples are too few or small. */
ZR_API int zr_dict_train(const void *samples, const size_t *sample_nbytes, size_t count, void *dict,
                         size_t dict_capacity, size_t *dict_nbytes, struct zr_error *err);
/* The same on records of a store, taken at a stride over all of it within the
 * tier's budget.  *dict is released with zr_buffer_free. */
ZR_API int zr_dict_train_store(struct zr_reader *r, int tier, void **dict, size_t *dict_nbytes,
                               struct zr_error *err);

/* ---------------------------------------------------------------- verify */

struct zr_verify_result {
    uint64_t checked_count;
    uint64_t bad_count;      /* findings: bad records and store-level faults */
    bool checksums_compared; /* false: no sidecar, only decoded */
};
/* finding: one per bad record or store-level fault (record == ZR_NO_RECORD),
 * called from the calling thread; non-zero stops with ZR_E_CANCELLED. */
typedef int (*zr_finding_fn)(void *ctx, const struct zr_error *finding);
/* Decodes every record and compares it with its checksum.  Returns ZR_OK even
 * with findings: ask result->bad_count.  Callbacks may be NULL. */
ZR_API int zr_verify(struct zr_reader *r, zr_finding_fn finding, zr_progress_fn progress, void *ctx,
                     struct zr_verify_result *result, struct zr_error *err);

/* ---------------------------------------------------------------- archives
 * Memmap archives (.tdz): zip files that mirror a memmap directory of tensordict,
 * a meta.json a level and one .memmap a leaf (FORMAT.md).  The file is mapped; a
 * stored payload at a multiple of its itemsize is used where it lies, anything
 * else is copied, and its CRC-32 checked.
 *
 * Any number of threads may use one archive at a time; closing needs a quiescent
 * handle.  Valid in forked children.  Nothing in a file is believed: offsets,
 * sizes, names and the shapes of meta.json are checked against each other, and the
 * first contradiction is an error that names the member. */

struct zr_archive;

enum zr_archive_mode {
    ZR_ARCHIVE_COPY = 0, /* pages are copy-on-write: changes stay in this process */
    ZR_ARCHIVE_WRITE = 1 /* changes reach the file, and leave its checksums stale */
};

/* Maps the file and reads its directory, once.  ZR_E_FORMAT when it is no zip file,
 * is damaged, or holds names that lead out of it, a name twice, overlapping or
 * encrypted members. */
ZR_API int zr_archive_open(struct zr_archive **out, const char *path, int mode,
                           struct zr_error *err);
/* Takes NULL.  What pointed into the mapping is gone. */
ZR_API void zr_archive_close(struct zr_archive *a);
/* Whether the file is a zip with a meta.json at its root.  Never fails. */
ZR_API bool zr_archive_is(const char *path);

struct zr_archive_info {
    const char *path; /* as given to open */
    uint64_t nbytes;  /* of the file */
    uint64_t member_count;
    int64_t mtime_sec;
    int64_t mtime_nsec;
    uint64_t identity; /* of names, sizes and places; not of payloads */
};
/* O(members), for the identity. */
ZR_API void zr_archive_info(const struct zr_archive *a, struct zr_archive_info *info);
/* false once the file was found to be cut short or failing below the mapping; the
 * mapping then reads as zeros. */
ZR_API bool zr_archive_intact(const struct zr_archive *a);

struct zr_archive_member {
    const char *name; /* UTF-8, without "./" in front; folders end in '/' */
    uint64_t nbytes, stored_nbytes;
    uint64_t payload_off;
    uint32_t crc32;     /* as the directory has it */
    const char *method; /* "stored", "deflate", "bzip2", "lzma" */
    void *data;         /* stored: the payload in the mapping; else NULL */
};
/* Member index < member_count; reads its local header. */
ZR_API int zr_archive_member(const struct zr_archive *a, uint64_t index,
                             struct zr_archive_member *member, struct zr_error *err);
/* Position of a member by its name.  ZR_E_NOT_FOUND. */
ZR_API int zr_archive_find(const struct zr_archive *a, const char *name, uint64_t *index,
                           struct zr_error *err);

struct zr_archive_copy {
    uint64_t index;
    void *out; /* as many bytes as the member has; NULL: only compared with its checksum */
};
struct zr_archive_read_options {
    unsigned thread_count; /* at most; 0: as many as zr_thread_count() */
    zr_progress_fn progress;
    void *progress_ctx;
};
/* Copies or inflates members in parallel, checking each CRC-32.  progress is told of
 * bytes, and also asked inside a large member; when it stops the work (or something
 * failed), what the outputs hold is not defined.  options may be NULL. */
ZR_API int zr_archive_read(const struct zr_archive *a, const struct zr_archive_copy *copies,
                           size_t count, const struct zr_archive_read_options *options,
                           struct zr_error *err);

/* ---- the tree that the meta.json files describe */

enum zr_level_kind {
    ZR_LEVEL_TENSORDICT = 0,  /* leaves and levels by key, a batch shape */
    ZR_LEVEL_STACK = 1,       /* levels "0", "1", ... stacked along stack_dim */
    ZR_LEVEL_TENSORCLASS = 2, /* one level, "_tensordict"; its own fields in meta.json */
    ZR_LEVEL_VIEW = 3,        /* one level, "_source", and an operation in meta.json */
    ZR_LEVEL_VALUE = 4        /* not tensors: meta.json and maybe a pickle beside it */
};
#define ZR_NO_MEMBER UINT64_MAX

struct zr_archive_leaf {
    const char *path; /* "a/b": where its files lie, without .memmap */
    const char *key;  /* in its level; UTF-8, may hold NUL when escaped so */
    size_t key_nbytes;
    const char *torch_dtype; /* "torch.float32" */
    const char *dtype;       /* NumPy's, of the same size: "<V2" for bfloat16 */
    uint32_t itemsize;
    uint32_t ndim;
    const uint64_t *shape;
    uint64_t nbytes;
    uint64_t member;       /* ZR_NO_MEMBER: no elements and no file */
    void *data;            /* in the mapping; NULL: to be copied with zr_archive_read */
    bool is_nested;        /* shape is that of the matrix of shapes, int64 */
    uint64_t shape_member; /* nested: where that matrix is */
};

struct zr_archive_entry {
    const char *key;
    size_t key_nbytes;
    bool is_leaf;
    size_t index; /* among leaves or levels */
};

struct zr_archive_level {
    const char *path; /* "" for the root, else "a/b" */
    int kind;         /* enum zr_level_kind */
    const char *meta; /* the text of its meta.json */
    size_t meta_nbytes;
    uint32_t ndim; /* batch shape; TENSORDICT only */
    const uint64_t *shape;
    bool is_plain; /* nothing in meta.json beside entries, shape, device, class */
    const struct zr_archive_entry *entries; /* in the order of meta.json */
    size_t entry_count;
};

struct zr_archive_tree {
    const struct zr_archive_level *levels; /* parents before children; [0] is what was asked for */
    size_t level_count;                    /* 0: the path led to one leaf, leaves[0] */
    const struct zr_archive_leaf *leaves;
    size_t leaf_count;
};
/* The tree below keys[0]/keys[1]/..., given as the user wrote them; key_count 0 is
 * all of it.  Payloads are not touched.  A leaf without its file, of another size
 * than its shape says, or of an unknown dtype is an error: never a partial tree.
 * ZR_E_NOT_FOUND when the path leads nowhere.  *tree lives until
 * zr_archive_tree_free, which must come before zr_archive_close. */
ZR_API int zr_archive_tree(const struct zr_archive *a, const char *const *keys, size_t key_count,
                           const struct zr_archive_tree **tree, struct zr_error *err);
/* Takes NULL. */
ZR_API void zr_archive_tree_free(const struct zr_archive_tree *tree);

/* ---- writing */

/* Copies [off, off + nbytes) of a payload to buf; called from several threads.
 * 0 or a negative code with err filled. */
typedef int (*zr_archive_fill_fn)(void *ctx, uint64_t off, void *buf, size_t nbytes,
                                  struct zr_error *err);

struct zr_archive_source {
    const char *name; /* path in the archive, UTF-8, clean as zr_archive_member has it */
    uint64_t nbytes;
    const void *data;        /* nbytes, or NULL and */
    zr_archive_fill_fn fill; /* who gives them; both NULL: zeros, left as a hole */
    void *fill_ctx;
    bool is_payload; /* starts at a multiple of 64 and may be compressed; text is neither */
};

struct zr_archive_save_options {
    const char *method; /* NULL: "stored"; of payloads only */
    int level;          /* of the method; 0: its default */
    bool no_replace;    /* ZR_E_EXISTS when there is something at the path */
    bool durable;       /* fsync before the file takes its name */
    unsigned thread_count;
    int64_t time_sec; /* of all members, since 1970; 0: now */
    zr_progress_fn progress;
    void *progress_ctx;
};
/* Writes an archive of these members, in this order, in parallel where that pays.
 * It appears at the path when it is complete, replacing a file that was there (and
 * keeping its mode; links are followed); on failure nothing has changed.
 * options may be NULL. */
ZR_API int zr_archive_save(const char *path, const struct zr_archive_source *sources, size_t count,
                           const struct zr_archive_save_options *options, struct zr_error *err);

/* Packs a memmap directory: meta.json first at each level, then files, then folders,
 * by name.  Symlinks and other special files are refused. */
ZR_API int zr_archive_pack(const char *dir, const char *path,
                           const struct zr_archive_save_options *options, struct zr_error *err);

struct zr_archive_unpack_options {
    bool durable;
    unsigned thread_count;
    zr_progress_fn progress;
    void *progress_ctx;
};
/* Writes every member below dir, which is made when missing; ZR_E_EXISTS when it is a
 * store.  Everything is checked before the first file takes its name, files that are
 * there are replaced, links below dir are not followed.  When a file cannot take its
 * name (a read-only folder), those before it are taken back: on failure nothing has
 * changed.  Unpacks into one dir take turns.  A killed one leaves a hidden folder,
 * .zrecord-*.tmp, which packing passes over and the next unpack to the same place
 * removes.  options may be NULL. */
ZR_API int zr_archive_unpack(const char *path, const char *dir,
                             const struct zr_archive_unpack_options *options, struct zr_error *err);

/* Computes the CRC-32 of every stored member and writes it where it stands: local
 * header or data descriptor, and directory. */
ZR_API int zr_archive_refresh(const char *path, zr_progress_fn progress, void *ctx,
                              struct zr_error *err);
/* Reads every member and compares it with its checksums, and the headers with each
 * other.  finding and result as for zr_verify; record is the member's position. */
ZR_API int zr_archive_verify(const struct zr_archive *a, zr_finding_fn finding,
                             zr_progress_fn progress, void *ctx, struct zr_verify_result *result,
                             struct zr_error *err);

/* ---------------------------------------------------------------- sampler
 * Pure functions of (length, batch_size, mode, seed, step), the same on every
 * machine and for ever.  Constant memory; any number of threads. */

enum zr_sampler_mode {
    ZR_SEQUENTIAL = 0, /* in order, wrapping round: always batch_size ids */
    ZR_IID = 1,        /* uniform with replacement, unbiased (Lemire 2019) */
    ZR_CYCLIC = 2,     /* a fresh permutation each cycle, its remainder dropped */
    ZR_BLOCK = 3       /* the same, by blocks of neighbouring records (below) */
};
/* BLOCK: 0..length-1 is cut into blocks of block_size; each cycle puts the blocks into
 * a fresh order and takes `interleave` of them at a time as a window, whose records it
 * permutes as one.  So whoever keeps interleave blocks in memory reads each block once a
 * cycle, and a batch mixes records of that many blocks. */
struct zr_sampler {
    uint64_t length;     /* 1.. ; BLOCK: at most 2^62 */
    uint64_t batch_size; /* 1.. */
    uint64_t seed;
    int mode;
    unsigned interleave; /* BLOCK: 1..256 blocks a window; 0: 1 */
    uint64_t block_size; /* BLOCK: records a block, the last may have fewer; 0: 1024 */
};
/* How many ids every step gives: batch_size, or length in ZR_CYCLIC and ZR_BLOCK when
 * that is smaller.  0 when the sampler is not valid. */
ZR_API uint64_t zr_sampler_batch_count(const struct zr_sampler *s);
/* Writes the ids of one step (0-based); nothing when the sampler is not valid. */
ZR_API void zr_sampler_batch(const struct zr_sampler *s, uint64_t step, uint64_t *ids);
/* The order of ZR_CYCLIC: the id at position i of the permutation of 0..length-1 for
 * (seed, cycle), and the position of an id.  Constant time.  ZR_NO_RECORD outside. */
ZR_API uint64_t zr_permute(uint64_t length, uint64_t seed, uint64_t cycle, uint64_t i);
ZR_API uint64_t zr_permute_inverse(uint64_t length, uint64_t seed, uint64_t cycle, uint64_t id);

/* ---------------------------------------------------------------- block shuffle
 * The order of the celeres-dl package: blocks of neighbouring records in shuffled
 * order, and the records inside each block in shuffled order.  Constant memory; pure
 * functions, any number of threads. */

#define ZR_ROUNDS_MAX 255

struct zr_block_shuffle {
    uint64_t length;
    uint64_t block_size; /* 0: 1 */
    uint64_t seed;       /* of the epoch: zr_feistel_hash(base seed, epoch) */
    unsigned rounds;     /* of the Feistel networks, at most ZR_ROUNDS_MAX; celeres-dl: 6 */
};
/* count ids from position first of the epoch on; ZR_NO_RECORD when the range leaves
 * 0..length-1. */
ZR_API void zr_block_shuffle_ids(const struct zr_block_shuffle *s, uint64_t first, uint64_t count,
                                 uint64_t *ids);
/* The position of an id in the epoch; ZR_NO_RECORD outside. */
ZR_API uint64_t zr_block_shuffle_position(const struct zr_block_shuffle *s, uint64_t id);
/* SplitMix64's finaliser over key ^ data, plus its increment (Steele, Lea, Flood 2014). */
ZR_API uint64_t zr_feistel_hash(uint64_t key, uint64_t data);
/* One balanced network with cycle walking (Black, Rogaway 2002): the images of positions
 * first..first+count-1 of 0..length-1, and the position of an image. */
ZR_API void zr_feistel_permute(uint64_t key, uint64_t length, unsigned rounds, uint64_t first,
                               uint64_t count, uint64_t *ids);
ZR_API uint64_t zr_feistel_inverse(uint64_t key, uint64_t length, unsigned rounds, uint64_t id);

/* ---------------------------------------------------------------- feed
 * Batches of several stores at the same ids, gathered ahead by a thread of its
 * own.  Any number of threads may take; batches come in the order of their steps. */

struct zr_feed;

struct zr_feed_stream {
    struct zr_reader *reader; /* must outlive the feed */
    bool packed;              /* Ragged: as zr_gather_packed, else as zr_gather_ragged */
};

struct zr_feed_options {
    const struct zr_feed_stream *streams; /* copied, as is skip */
    size_t stream_count;                  /* 1.. */
    struct zr_sampler sampler;            /* of the length of every stream */
    size_t begin, count; /* the ids [begin, begin + count) of each step; count 1.. */
    uint64_t first_step;
    const uint64_t *skip; /* steps that are not given, ascending */
    size_t skip_count;
    size_t limit;       /* 1..: batches begun and not released */
    size_t ahead_count; /* batches beyond the begun ones whose reads are queued; at most 64 */
};

struct zr_feed_batch {
    uint64_t step;
    size_t count;         /* records */
    size_t failed_stream; /* where a gather failed: which one */
};

struct zr_feed_stats {
    uint64_t taken_count, gathered_count; /* batches */
    uint64_t gather_nsec;                 /* in gathers, summed over threads */
    uint64_t wait_nsec;                   /* of takers inside zr_feed_take */
    size_t ready_count;                   /* gathered, not taken */
    size_t under_way_count;               /* begun, not released */
};

/* Starts gathering at once. */
ZR_API int zr_feed_start(struct zr_feed **out, const struct zr_feed_options *options,
                         struct zr_error *err);

#define ZR_FEED_NOT_YET 1 /* of zr_feed_take: the wait is over */
/* The next batch: parts[stream_count] are the caller's to free, each block by
 * zr_buffer_free or all by zr_parts_release.  Counts against the limit until
 * zr_feed_release.  May gather in the calling thread.  ZR_E_CANCELLED after
 * zr_feed_stop; a gather that failed stops the feed too, and is reported once,
 * with batch filled, after the batches before it. */
ZR_API int zr_feed_take(struct zr_feed *f, struct zr_part *parts, struct zr_feed_batch *batch,
                        int64_t wait_nsec, struct zr_error *err);
ZR_API void zr_feed_release(struct zr_feed *f);
/* Gives no more and wakes everybody inside zr_feed_take. */
ZR_API void zr_feed_stop(struct zr_feed *f);
ZR_API void zr_feed_stats(struct zr_feed *f, struct zr_feed_stats *stats);
/* Stops and waits for the gather under way.  Nobody may be inside any more.  Does
 * nothing in a forked child, and takes NULL. */
ZR_API void zr_feed_free(struct zr_feed *f);

/* ---------------------------------------------------------------- mounts
 * How to talk to a running zrecordfs, by its file MOUNTPOINT/.control (in a mirrored
 * tree, that of any folder), opened read-only.  With <sys/ioctl.h>. */

struct zr_mount_ctl {
    int32_t failure; /* out: 0 or an errno */
    uint32_t nbytes; /* in: of the command; out: of what was done, or is wrong */
    char text[8184]; /* not terminated */
};
/* Fails with ENOTTY on other files. */
#define ZR_MOUNT_CTL _IOWR('z', 0x72, struct zr_mount_ctl)
/* The extended attribute of a folder that was made to be mounted on: whoever ends the mount
 * removes it.  zrecordfs does when the mount ends for being idle. */
#define ZR_MOUNT_MADE "user.zrecord.made"

#ifdef __cplusplus
}
#endif

#endif /* ZRECORD_H */
