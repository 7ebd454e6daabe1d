/* SPDX-License-Identifier: MIT
 *
 * What the engine's files share, grouped by the file that defines it.  Nothing
 * outside engine/ and tests/unit includes this.
 */
#ifndef ZRI_INTERNAL_H
#define ZRI_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/types.h>

#include "format.h"
#include "zrecord.h"

/* ---------------------------------------------------------------- error.c */

#define ZRI_NO_OFFSET UINT64_MAX

/* A failure is never 0; said once here, so that analysers see it at each caller. */
#define zri_nonzero(call)                                                                          \
    ({                                                                                             \
        int zri_code_ = (call);                                                                    \
        if (zri_code_ == ZR_OK)                                                                    \
            __builtin_unreachable();                                                               \
        zri_code_;                                                                                 \
    })

/* Fills err (may be NULL) and returns code. */
#define zri_fail(...) zri_nonzero(zri_error_set(__VA_ARGS__))
int zri_error_set(struct zr_error *err, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The same for one record of a store. */
#define zri_fail_record(...) zri_nonzero(zri_error_set_record(__VA_ARGS__))
int zri_error_set_record(struct zr_error *err, int code, uint64_t record, uint64_t offset,
                         const char *fmt, ...) __attribute__((format(printf, 5, 6)));
/* The same from errno: code follows from it, ": strerror" is appended. */
#define zri_fail_errno(...) zri_nonzero(zri_error_set_errno(__VA_ARGS__))
int zri_error_set_errno(struct zr_error *err, int sys_errno, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Both: from errno, for one record. */
#define zri_fail_errno_record(...) zri_nonzero(zri_error_set_errno_record(__VA_ARGS__))
int zri_error_set_errno_record(struct zr_error *err, int sys_errno, uint64_t record,
                               uint64_t offset, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* Passes a failure on: *err = *from, and its code. */
int zri_fail_as(struct zr_error *err, const struct zr_error *from);
int zri_code_from_errno(int sys_errno);
/* The reason, by its address, of functions that return a reason in words and ran
 * out of memory: their callers then say ZR_E_NOMEM. */
extern const char zri_out_of_memory[];

/* ---------------------------------------------------------------- io.c */

/* A file open for reading, or an image of one in memory (fd -1). */
struct zri_file {
    int fd;
    uint64_t nbytes;         /* its size when opened */
    const uint8_t *bytes;    /* mapping or image; NULL: pread only */
    struct zri_guard *guard; /* of the mapping; NULL for images */
};

#define ZRI_FILE_NONE ((struct zri_file){.fd = -1})

/* errno style: 0 or a positive errno. */
int zri_file_open(struct zri_file *f, int dir_fd, const char *name);
/* The same for reading and writing. */
int zri_file_open_writable(struct zri_file *f, int dir_fd, const char *name);
/* Takes its size again, e.g. once a lock keeps it as it is; before mapping. */
int zri_file_update(struct zri_file *f);
/* Maps all of it, guarded; an empty file stays unmapped. */
int zri_file_map(struct zri_file *f);
/* The same as copy-on-write pages, and as pages whose changes reach the file,
 * which must be open for writing. */
int zri_file_map_private(struct zri_file *f);
int zri_file_map_writable(struct zri_file *f);
void zri_file_close(struct zri_file *f);
/* All nbytes at off: 0, an errno, or -1 when the file ends before that. */
int zri_file_read(const struct zri_file *f, uint64_t off, void *buf, size_t nbytes);
/* Whether there is a mapping (or image) that has not failed yet: worth trying. */
bool zri_file_mapped(const struct zri_file *f);
/* Whether what was read through the mapping so far is what the file holds:
 * false once a page failed or the file got shorter.  Costs one fstat. */
bool zri_file_trusted(const struct zri_file *f);

int zri_write_full(int fd, const void *buf, size_t nbytes, uint64_t off);
/* Reserves [off, off + nbytes); 0 also where the filesystem cannot.  *reserved (may
 * be NULL) says whether it did. */
int zri_preallocate(int fd, uint64_t off, uint64_t nbytes, bool *reserved);
/* Whether windows may be quicker for the file than pwrite. */
bool zri_suits_windows(int fd);
/* Whole pages of reserved space in a new file, mapped for writing: unlike pwrite, copying
 * there lets several threads write to one file at a time. */
struct zri_window {
    uint8_t *bytes;
    size_t nbytes;
    struct zri_guard *guard;
    bool is_quick; /* false: the rest of the file had better go by pwrite */
};

/* errno style; EIO from close when what was copied may be lost.  close after a failed
 * open does nothing. */
int zri_window_open(struct zri_window *v, int fd, uint64_t off, size_t nbytes);
int zri_window_close(struct zri_window *v);
/* Non-blocking flock: 0, EWOULDBLOCK when the other kind holds it; filesystems
 * without locks count as locked. */
int zri_lock(int fd, bool exclusive);
/* Also for copies of fd that a forked child still holds. */
void zri_unlock(int fd);
int zri_sync_dir(int dir_fd);
/* Removes the plain files in an open directory. */
void zri_clear_dir(int dir_fd);

/* ---------------------------------------------------------------- turns.c */

/* Shared by all threads that write large parts of one new file. */
struct zri_turns {
    int fd;
    atomic_bool is_writing;   /* one of them, by pwrite */
    atomic_bool uses_windows; /* whether the others use windows */
};

/* A part of the file.  see is shown every byte once, in order and in steps that are whole
 * multiples of 64 KiB but for the last one: checksums, while the cache holds the bytes. */
struct zri_part {
    const uint8_t *bytes;
    size_t nbytes;
    uint64_t off;
    void (*see)(void *ctx, const uint8_t *bytes, size_t nbytes);
    void *ctx;
};

/* is_reserved: the space that parts are to fill is, so that windows may be used. */
void zri_turns_init(struct zri_turns *t, int fd, bool is_reserved);
/* 0 or an errno, after which see may not have been shown all. */
int zri_turns_write(struct zri_turns *t, const struct zri_part *part);

/* ---------------------------------------------------------------- schema.c */

struct zri_schema {
    int geometry;
    uint32_t ndim;
    uint64_t itemsize;
    uint64_t row_nbytes; /* Dense */
    uint64_t shape[ZR_MAX_NDIM];
    char dtype[ZR_DTYPE_MAX];
};

/* NULL, or why not. */
const char *zri_dtype_parse(const char *dtype, uint64_t *itemsize);
const char *zri_schema_set(struct zri_schema *s, int geometry, const char *dtype, uint32_t ndim,
                           const uint64_t *shape);
/* buf holds ZRI_SCHEMA_MAX bytes. */
const char *zri_schema_encode(const struct zri_schema *s, uint8_t *buf, size_t *nbytes);
const char *zri_schema_decode(struct zri_schema *s, const uint8_t *buf, size_t nbytes);
/* product(shape) * itemsize, false on overflow. */
bool zri_shape_nbytes(uint32_t ndim, const uint64_t *shape, uint64_t itemsize, uint64_t *nbytes);

/* ---------------------------------------------------------------- pool.c */

/* Runs fn(ctx, i) for i in [0, count) on up to thread_count threads, the
 * caller's among them, and returns when all are done.  Re-entrant. */
typedef void (*zri_task_fn)(void *ctx, size_t i);
void zri_parallel(size_t count, unsigned thread_count, zri_task_fn fn, void *ctx);
/* The same; while the caller waits for the last workers it calls look(look_ctx) some
 * 20 times a second (unless that is NULL).  Its tasks do that themselves. */
void zri_parallel_looking(size_t count, unsigned thread_count, zri_task_fn fn, void *ctx,
                          void (*look)(void *), void *look_ctx);
/* Workers that are awake now, for calls too short to wake one.  Asking often in
 * quick succession wakes one for the calls to come. */
unsigned zri_awake_threads(void);
/* Whether the calling thread keeps small batches to itself, since others gather batches of
 * their own beside it: zri_awake_threads is then 0.  Returns what held before. */
bool zri_keep_small(bool keep);
/* A joinable thread that no signal of the program reaches; 0 or an errno. */
int zri_thread_start(pthread_t *t, const char *name, void *(*fn)(void *), void *arg);

/* ---------------------------------------------------------------- codec.c */

struct zri_decoder; /* shared by threads */
/* dict is copied; NULL where the codec has none. */
struct zri_decoder *zri_decoder_new(int codec, const void *dict, size_t dict_nbytes);
void zri_decoder_free(struct zri_decoder *d);
/* Decodes one stored record into exactly logic_nbytes; NULL, or why not. */
const char *zri_decode(const struct zri_decoder *d, const void *src, size_t phys_nbytes, void *dst,
                       size_t logic_nbytes);
/* Decodes only the first nbytes. */
const char *zri_decode_head(const struct zri_decoder *d, const void *src, size_t phys_nbytes,
                            void *dst, size_t nbytes);
/* Whether zstd can load it: false only when the dictionary is the reason. */
bool zri_dict_is_sound(const void *dict, size_t dict_nbytes);
/* NULL, or how the dictionary does not fit this frame. */
const char *zri_decoder_mismatch(const struct zri_decoder *d, const void *src, size_t phys_nbytes);

struct zri_encoder; /* shared by threads */
/* dtype: of the records, a hint for the default tune; "" when not known. */
struct zri_encoder *zri_encoder_new(int codec, int level, int tune, const char *dtype,
                                    const void *dict, size_t dict_nbytes);
void zri_encoder_free(struct zri_encoder *e);
/* Levels that zstd has; 0 is not one of them here. */
int zri_level_min(void);
int zri_level_max(void);
/* A context for one thread and task; NULL when memory runs out. */
struct zri_encoder_context;
struct zri_encoder_context *zri_encoder_take(struct zri_encoder *e);
void zri_encoder_give(struct zri_encoder *e, struct zri_encoder_context *c);
/* Upper bound of one stored record. */
size_t zri_encode_bound(const struct zri_encoder *e, size_t logic_nbytes);
/* Bytes written to dst, or 0 with *why. */
size_t zri_encode(struct zri_encoder_context *c, void *dst, size_t capacity, const void *src,
                  size_t nbytes, const char **why);

/* ---------------------------------------------------------------- npy.c */

size_t zri_npy_header_nbytes(const char *dtype, uint32_t ndim, const uint64_t *shape);

/* ---------------------------------------------------------------- sidecar.c */

struct zri_side_row {
    uint32_t sum;               /* zri_record_sum */
    uint16_t npy_header_nbytes; /* Ragged; 0: this and ndim are not known */
    uint8_t ndim;
};

/* XXH3-64. */
uint64_t zri_checksum(const void *bytes, size_t nbytes);
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define ZRI_HAS_SUM_AVX2 1
uint64_t zri_sum_avx2(const void *bytes, size_t nbytes); /* sum_avx2.c; the CPU must have it */
#else
#define ZRI_HAS_SUM_AVX2 0
#endif
/* Its low half, over a record's logical bytes. */
uint32_t zri_record_sum(const void *logical, size_t nbytes);
/* What tells one store from another: the first page and entries sampled over the
 * table (16 B each, as on disk). */
uint64_t zri_identity(const uint8_t *page, const uint8_t *entries, size_t entry_count);
#define ZRI_IDENTITY_ENTRIES 16
/* Position of sampled entry k of a table of length entries. */
uint64_t zri_identity_index(uint64_t length, size_t k);

struct zri_sidecar {
    uint64_t length;
    uint64_t tail_off;
    uint64_t identity;
    uint64_t dict_sum;
    bool ragged;
};
/* Rows tell only of .npy headers up to this. */
#define ZRI_SIDE_NPY_MAX_NBYTES 192
void zri_sidecar_encode(const struct zri_sidecar *s, uint8_t *header);
/* NULL, or why it is not a sidecar. */
const char *zri_sidecar_decode(struct zri_sidecar *s, const uint8_t *header, uint64_t file_nbytes);
size_t zri_side_row_nbytes(bool ragged);
void zri_side_row_encode(const struct zri_side_row *row, bool ragged, uint8_t *bytes);
void zri_side_row_decode(struct zri_side_row *row, bool ragged, const uint8_t *bytes);

/* ---------------------------------------------------------------- reader.c */

struct zr_reader {
    char *path;
    struct zri_file meta, data, side; /* side.fd -1 and no bytes: none */
    struct zri_header header;
    struct zri_schema schema;
    struct zri_decoder *decoder;
    void *dict;
    size_t dict_nbytes;
    uint64_t identity;
    uint64_t disk_nbytes;
    uint64_t mapped_nbytes; /* of data, that gathers read through its mapping */
    int64_t mtime_sec, mtime_nsec;
    bool has_sidecar;
    bool check_sums;
    void *made_meta; /* of an array: what meta looks at */
    char *warning;
    uint8_t npy_header[ZR_NPY_MAX_HEADER_NBYTES]; /* Dense */
    size_t npy_header_nbytes;
    /* Ragged without a sidecar: npy header length / 64 by record, 0 not known
     * yet; made when first needed, written with relaxed stores. */
    _Atomic(_Atomic uint8_t *) npy_units;
    atomic_bool quick;       /* the last batch came from memory */
    atomic_bool mixed_ranks; /* Ragged: records of one batch were seen to differ */
};

/* Images of the four files in place of a directory; NULL: that file is not
 * there.  They must outlive the reader.  For fuzzing and tests. */
struct zri_image {
    const void *bytes;
    size_t nbytes;
};
int zri_reader_open_images(struct zr_reader **out, const struct zri_image *meta,
                           const struct zri_image *data, const struct zri_image *dict,
                           const struct zri_image *side, const struct zr_reader_options *options,
                           struct zr_error *err);
/* ZR_E_RANGE, naming the first id that is not below length. */
int zri_check_ids(const struct zr_reader *r, const uint64_t *ids, size_t count,
                  struct zr_error *err);
/* The table entry of id < length from the file itself, whose errors are exact. */
int zri_reader_entry_read(const struct zr_reader *r, uint64_t id, struct zri_entry *entry,
                          struct zr_error *err);
/* Whether this record, whose entry was checked, is read through the mapping where there is one. */
static inline bool zri_reader_maps(const struct zr_reader *r, const struct zri_entry *e)
{
    return e->off <= r->mapped_nbytes && e->phys_nbytes <= r->mapped_nbytes - e->off;
}
/* Reads and checks the table entry of id < length. */
static inline int zri_reader_entry(const struct zr_reader *r, uint64_t id, struct zri_entry *entry,
                                   struct zr_error *err)
{
    if (r->meta.bytes) {
        zri_entry_decode(entry, r->meta.bytes + zri_entry_off(id));
        if (!zri_entry_check(entry, &r->header, r->schema.row_nbytes))
            return ZR_OK;
        /* Damage, or a page that is gone: the file itself tells which. */
    }
    return zri_reader_entry_read(r, id, entry, err);
}
/* false: no row, or the sidecar ends early. */
bool zri_reader_side_row(const struct zr_reader *r, uint64_t id, struct zri_side_row *row);
/* NULL, or what is wrong with the Ragged prefix at the head of a record. */
static inline const char *zri_ragged_check(const struct zri_schema *s, const uint8_t *record,
                                           uint64_t logic_nbytes)
{
    uint64_t ndim, nbytes = s->itemsize;
    memcpy(&ndim, record, sizeof ndim);
    if (ndim > ZR_MAX_NDIM || 8 * (ndim + 1) >= logic_nbytes)
        return "the shape prefix is damaged: impossible rank";
    /* In place: a copy of a few dims would cost more than the check.  A zero dim
     * makes zero bytes, which no record has; so does a wrap noticed here. */
    for (uint64_t i = 0; i < ndim; i++) {
        uint64_t dim;
        memcpy(&dim, record + 8 + 8 * i, sizeof dim);
        if (__builtin_mul_overflow(nbytes, dim, &nbytes))
            nbytes = 0;
    }
    return nbytes == logic_nbytes - 8 * (ndim + 1)
               ? NULL
               : "the shape prefix is damaged: shape and length disagree";
}

/* ---------------------------------------------------------------- tail.c */

#define ZRI_TAIL_BLOCK_NBYTES ((uint64_t)2 << 20) /* a huge page */

struct zri_tail {
    int fd;         /* the caller's; -1: none */
    uint64_t off;   /* where the next byte goes; under lock */
    uint8_t *block; /* that holds off, as far as it is begun, else NULL; under lock */
    pthread_mutex_t lock;
};

void zri_tail_init(struct zri_tail *t);
void zri_tail_release(struct zri_tail *t);
/* Any thread.  *off (may be NULL) is where the bytes went.  Returns 0 or an errno; after
 * one the file is lost, since the bytes that failed may be another call's. */
int zri_tail_append(struct zri_tail *t, const void *bytes, uint64_t nbytes, uint64_t *off);
/* Writes the block that is begun; nothing may be appended after it. */
int zri_tail_flush(struct zri_tail *t);
/* For a caller that is alone with it and writes whole blocks by itself: bytes until the
 * next block begins, and the place of so many of them where one does. */
uint64_t zri_tail_room(const struct zri_tail *t);
uint64_t zri_tail_reserve(struct zri_tail *t, uint64_t block_count);

/* ---------------------------------------------------------------- writer.c */

#define ZRI_TEMP_NAME_PREFIX 200 /* bytes of the store's name kept in the hidden one */

struct zr_writer {
    char *path;
    char *name; /* last component of path */
    char temp_name[ZRI_TEMP_NAME_PREFIX + 48];
    char *parent;      /* the rest of path */
    size_t made_count; /* parents that create made, innermost last in parent */
    int parent_fd, dir_fd;
    struct zri_tail meta, data, side; /* side.fd -1: no sidecar */
    struct zri_header header;         /* tail_off is that of data when closed */
    struct zri_schema schema;
    struct zri_encoder *encoder; /* NULL: raw */
    uint64_t dict_sum;
    bool durable;
    bool failed;
    pid_t owner;            /* a forked child has a copy, and must leave the files alone */
    pthread_mutex_t lock;   /* of what the tasks of an append share */
    struct zri_turns turns; /* raw Dense: to write whole blocks of data */
};

static inline bool zri_writer_is_ragged(const struct zr_writer *w)
{
    return w->schema.geometry == ZR_RAGGED;
}
bool zri_writer_is_owner(const struct zr_writer *w);
/* Names the store and the file that could not be written. */
int zri_write_failed(const struct zr_writer *w, int sys_errno, const char *name,
                     struct zr_error *err);

/* ---------------------------------------------------------------- prefetch.c */

/* zr_prefetch for a gather that follows at once. */
void zri_prefetch_batch(struct zr_reader *r, const uint64_t *ids, size_t count);
/* How long the gather took tells how closely the next batch is looked at. */
int64_t zri_batch_start(void);
void zri_batch_end(struct zr_reader *r, int64_t start_nsec, size_t count, uint64_t nbytes);

/* ---------------------------------------------------------------- gather.c */

int zri_check_geometry(const struct zr_reader *r, int geometry, struct zr_error *err);
/* Ragged records into the blocks of a planned part.  *surprised: it failed since a
 * record's rank or length is not what the plan says. */
int zri_gather_split(struct zr_reader *r, const uint64_t *ids, size_t count,
                     const struct zr_part *p, bool *surprised, struct zr_error *err);

/* ---------------------------------------------------------------- record.c */

/* Fills err with the store's data file, the record and why. */
int zri_record_damaged(const struct zr_reader *r, uint64_t id, uint64_t off, int code,
                       const char *why, struct zr_error *err);
/* Decodes one record into logic_nbytes at dst, from its stored bytes or, where they are NULL,
 * with pread, and checks it.  Those of a raw one may be at dst already. */
int zri_record_decode(const struct zr_reader *r, uint64_t id, const struct zri_entry *entry,
                      const uint8_t *stored, void *dst, struct zr_error *err);
/* The checks alone, on decoded bytes: Ragged prefix, checksum when asked for. */
int zri_record_check(const struct zr_reader *r, uint64_t id, const struct zri_entry *entry,
                     const void *record, struct zr_error *err);
/* Through the mapping or, once that has failed, with pread. */
int zri_gather_one(struct zr_reader *r, uint64_t id, const struct zri_entry *entry, void *dst,
                   struct zr_error *err);
/* Rank of a Ragged record: from its raw bytes, the sidecar, or its decoded start. */
int zri_record_ndim(struct zr_reader *r, uint64_t id, const struct zri_entry *entry, bool mapped,
                    uint32_t *ndim, struct zr_error *err);

/* ---------------------------------------------------------------- stretch.c */

enum { ZRI_STRETCH_COUNT = 256 };

/* Records that were read together. */
struct zri_stretch {
    size_t first, count;  /* their positions in the ids */
    const uint8_t *bytes; /* of all of them; NULL: each is to be read by itself */
    void *block;          /* its own memory, for zri_stretch_end */
    size_t block_nbytes;
    struct zri_entry entries[ZRI_STRETCH_COUNT];
};

void zri_stretch_begin(struct zri_stretch *s);
void zri_stretch_end(struct zri_stretch *s);
/* From position begin, whose entry this is, as far as it pays and at most to end.  mapped: those
 * that have a mapping are left out.  rows: where raw rows belong, else NULL. */
void zri_stretch_read(struct zri_stretch *s, const struct zr_reader *r, const uint64_t *ids,
                      size_t begin, size_t end, const struct zri_entry *entry, bool mapped,
                      uint8_t *rows);
static inline bool zri_stretch_has(const struct zri_stretch *s, size_t position)
{
    return position - s->first < s->count;
}
/* The stored bytes of a record that it has, or NULL. */
static inline const uint8_t *zri_stretch_bytes(const struct zri_stretch *s, size_t position)
{
    return s->bytes ? s->bytes + (s->entries[position - s->first].off - s->entries[0].off) : NULL;
}

/* ---------------------------------------------------------------- permute.c */

/* base + places first..first+count-1 of the permutation of 0..length-1 by key. */
void zri_permute_run(uint64_t length, uint64_t key, uint64_t first, uint64_t count, uint64_t base,
                     uint64_t *ids);
/* The place of id < length in it. */
uint64_t zri_permute_inverse(uint64_t length, uint64_t key, uint64_t id);
uint64_t zri_cycle_key(uint64_t seed, uint64_t cycle);

#endif
