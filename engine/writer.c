/* SPDX-License-Identifier: MIT
 *
 * Building a store.  All of it happens in a hidden directory beside the path,
 * whose meta.zr has an empty first page (nothing opens it) until close writes
 * the header and renames the directory.  An exclusive lock on that directory
 * tells a build under way from what a killed one left, which the next writer of
 * the same path clears.
 *
 * An append is cut into slabs of a bounded number of records, a slab into tasks
 * of about PIECE_NBYTES that run in parallel: encode (and hash) into a staging
 * buffer, reserve a range at the tail, write.  Physical order is completion
 * order.  Raw Dense rows are written from the caller's memory.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

#define SLAB_COUNT ((uint64_t)1 << 16)
#define PIECE_NBYTES ((uint64_t)1 << 20)
#define PREALLOCATE_NBYTES ((uint64_t)1 << 20) /* smaller appends do without */
#define RAW_PARALLEL_NBYTES ((uint64_t)4 << 20)
#define TEMP_NAME_PREFIX 200 /* bytes of the store's name kept in the hidden one */

struct zr_writer {
    char *path;
    char *name;        /* last component of path */
    char temp_name[TEMP_NAME_PREFIX + 48];
    char *parent;      /* the rest of path */
    size_t made_count; /* parents that create made, innermost last in parent */
    int parent_fd, dir_fd, meta_fd, data_fd, side_fd;
    struct zri_header header; /* length and tail_off grow; under lock while tasks run */
    struct zri_schema schema;
    struct zri_encoder *encoder; /* NULL: raw */
    uint64_t dict_sum;
    bool durable;
    bool failed;
    pthread_mutex_t lock;
};

/* One append's share of records: rows or items, and where results go. */
struct slab {
    struct zr_writer *w;
    const uint8_t *rows;          /* Dense */
    const struct zr_item *items;  /* Ragged */
    uint64_t count;
    const uint64_t *task_ends;    /* task t holds records [task_ends[t-1], task_ends[t]) */
    uint8_t *entries;             /* count * ZRI_ENTRY_NBYTES, as on disk */
    uint8_t *sides;               /* count * side row, or NULL */
    int rc;                       /* under w->lock */
    struct zr_error *err;         /* under w->lock */
    atomic_bool failed;
};

static bool is_ragged(const struct zr_writer *w)
{
    return w->schema.geometry == ZR_RAGGED;
}

/* ---------------------------------------------------------------- tasks */

static int write_failed(const struct zr_writer *w, int e, const char *name, struct zr_error *err)
{
    return zri_fail_errno(err, e, "%s: cannot write its %s", w->path, name);
}

static uint64_t item_data_nbytes(const struct zr_writer *w, const struct zr_item *item)
{
    uint64_t n = 0;
    zri_shape_nbytes(item->ndim, item->shape, w->schema.itemsize, &n);
    return n;
}

static uint64_t logic_nbytes(const struct slab *s, uint64_t i)
{
    if (s->rows)
        return s->w->schema.row_nbytes;
    return 8 * ((uint64_t)s->items[i].ndim + 1) + item_data_nbytes(s->w, &s->items[i]);
}

/* The record as it is before encoding: ndim, dims, payload. */
static void lay_out_item(const struct zr_item *item, uint64_t nbytes, uint8_t *dst)
{
    uint64_t ndim = item->ndim;
    memcpy(dst, &ndim, 8);
    if (ndim)
        memcpy(dst + 8, item->shape, 8 * ndim);
    memcpy(dst + 8 * (ndim + 1), item->data, nbytes - 8 * (ndim + 1));
}

static uint64_t reserve(struct zr_writer *w, uint64_t nbytes)
{
    pthread_mutex_lock(&w->lock);
    uint64_t off = w->header.tail_off;
    w->header.tail_off += nbytes;
    pthread_mutex_unlock(&w->lock);
    return off;
}

static void note_record(const struct slab *s, uint64_t i, const void *logical, uint64_t nbytes)
{
    struct zri_side_row row = {0};
    bool ragged = is_ragged(s->w);
    if (!s->sides)
        return;
    row.sum = zri_checksum(logical, nbytes);
    if (ragged) {
        row.ndim = (uint8_t)s->items[i].ndim;
        row.npy_header_nbytes = (uint16_t)zri_npy_header_nbytes(s->w->schema.dtype,
                                                                s->items[i].ndim, s->items[i].shape);
    }
    zri_side_row_encode(&row, ragged, s->sides + i * zri_side_row_nbytes(ragged));
}

static void set_entry(const struct slab *s, uint64_t i, uint64_t off, uint64_t phys, uint64_t logic)
{
    struct zri_entry e = {off, (uint32_t)phys, (uint32_t)logic};
    zri_entry_encode(&e, s->entries + i * ZRI_ENTRY_NBYTES);
}

static int encode_record(struct slab *s, struct zri_encoder_context *c, uint64_t i, uint8_t *scratch,
                         uint8_t *dst, size_t capacity, size_t *phys, struct zr_error *err)
{
    uint64_t n = logic_nbytes(s, i);
    const uint8_t *src = s->rows ? s->rows + i * n : c ? scratch : dst;
    if (s->items)
        lay_out_item(&s->items[i], n, c ? scratch : dst);
    note_record(s, i, src, n);
    *phys = n;
    if (!c)
        return ZR_OK; /* raw Ragged: laid out in place */
    const char *why = "";
    *phys = zri_encode(c, dst, capacity, src, n, &why);
    return *phys ? ZR_OK : zri_fail(err, ZR_E_NOMEM, "%s: cannot compress: %s", s->w->path, why);
}

/* Encodes records [begin, end) one after another into a staging buffer and
 * writes them as one range. */
static int stage_and_write(struct slab *s, uint64_t begin, uint64_t end, struct zr_error *err)
{
    struct zr_writer *w = s->w;
    size_t bound = 0, largest = 0, used = 0;
    for (uint64_t i = begin; i < end; i++) {
        size_t n = logic_nbytes(s, i);
        bound += w->encoder ? zri_encode_bound(w->encoder, n) : n;
        largest = n > largest ? n : largest;
    }
    bool two_step = w->encoder && s->items; /* lay out, then encode */
    uint8_t *staging = zr_buffer_alloc(bound);
    uint8_t *scratch = two_step ? zr_buffer_alloc(largest) : NULL;
    struct zri_encoder_context *c = w->encoder ? zri_encoder_take(w->encoder) : NULL;
    int rc = ZR_OK;
    if (!staging || (two_step && !scratch) || (w->encoder && !c))
        rc = zri_fail(err, ZR_E_NOMEM, "%s: out of memory", w->path);
    for (uint64_t i = begin; !rc && i < end; i++) {
        size_t phys;
        rc = encode_record(s, c, i, scratch, staging + used, bound - used, &phys, err);
        if (!rc)
            set_entry(s, i, used, phys, logic_nbytes(s, i));
        used += rc ? 0 : phys;
    }
    if (c)
        zri_encoder_give(w->encoder, c);
    if (!rc) {
        uint64_t off = reserve(w, used);
        for (uint64_t i = begin; i < end; i++) {
            struct zri_entry e;
            zri_entry_decode(&e, s->entries + i * ZRI_ENTRY_NBYTES);
            set_entry(s, i, off + e.off, e.phys_nbytes, e.logic_nbytes);
        }
        int e = zri_write_full(w->data_fd, staging, used, off);
        rc = e ? write_failed(w, e, ZRI_DATA_NAME, err) : ZR_OK;
    }
    zr_buffer_free(scratch);
    zr_buffer_free(staging);
    return rc;
}

/* Raw Dense: the caller's rows go out as they are, to a range that the slab has
 * reserved as a whole. */
static int write_rows(struct slab *s, uint64_t begin, uint64_t end, struct zr_error *err)
{
    struct zr_writer *w = s->w;
    uint64_t row = w->schema.row_nbytes, base = w->header.tail_off; /* moved after the slab */
    for (uint64_t i = begin; i < end; i++) {
        note_record(s, i, s->rows + i * row, row);
        set_entry(s, i, base + i * row, row, row);
    }
    int e = zri_write_full(w->data_fd, s->rows + begin * row, (end - begin) * row,
                           base + begin * row);
    return e ? write_failed(w, e, ZRI_DATA_NAME, err) : ZR_OK;
}

static void run_task(void *ctx, size_t t)
{
    struct slab *s = ctx;
    struct zr_error err;
    if (atomic_load(&s->failed))
        return;
    uint64_t begin = t ? s->task_ends[t - 1] : 0, end = s->task_ends[t];
    int rc = s->rows && !s->w->encoder ? write_rows(s, begin, end, &err)
                                       : stage_and_write(s, begin, end, &err);
    if (!rc)
        return;
    atomic_store(&s->failed, true);
    pthread_mutex_lock(&s->w->lock);
    if (!s->rc) {
        s->rc = rc;
        if (s->err)
            *s->err = err;
    }
    pthread_mutex_unlock(&s->w->lock);
}

/* ---------------------------------------------------------------- slabs */

/* Cuts the slab into tasks of about PIECE_NBYTES, at most count of them. */
static size_t cut_tasks(const struct slab *s, uint64_t *ends)
{
    size_t tasks = 0;
    uint64_t nbytes = 0;
    for (uint64_t i = 0; i < s->count; i++) {
        nbytes += logic_nbytes(s, i);
        if (nbytes >= PIECE_NBYTES || i + 1 == s->count) {
            ends[tasks++] = i + 1;
            nbytes = 0;
        }
    }
    return tasks;
}

static unsigned choose_threads(const struct slab *s)
{
    uint64_t nbytes = s->rows ? s->count * s->w->schema.row_nbytes : 0;
    for (uint64_t i = 0; s->items && i < s->count; i++)
        nbytes += logic_nbytes(s, i);
    return !s->w->encoder && nbytes < RAW_PARALLEL_NBYTES ? 1 : zr_thread_count();
}

static int write_table(struct slab *s, struct zr_error *err)
{
    struct zr_writer *w = s->w;
    uint64_t first = w->header.length;
    size_t row = zri_side_row_nbytes(is_ragged(w));
    int e = zri_write_full(w->meta_fd, s->entries, s->count * ZRI_ENTRY_NBYTES,
                           zri_entry_off(first));
    if (e)
        return write_failed(w, e, ZRI_META_NAME, err);
    if (s->sides)
        e = zri_write_full(w->side_fd, s->sides, s->count * row,
                           ZRI_SIDE_HEADER_NBYTES + first * row);
    return e ? write_failed(w, e, ZRI_SIDE_NAME, err) : ZR_OK;
}

static int write_slab(struct slab *s, uint64_t *task_ends, struct zr_error *err)
{
    struct zr_writer *w = s->w;
    s->task_ends = task_ends;
    s->err = err;
    zri_parallel(cut_tasks(s, task_ends), choose_threads(s), run_task, s);
    if (s->rc)
        return s->rc;
    if (s->rows && !w->encoder)
        w->header.tail_off += s->count * w->schema.row_nbytes;
    int rc = write_table(s, err);
    if (!rc)
        w->header.length += s->count;
    return rc;
}

static int append(struct zr_writer *w, const void *rows, const struct zr_item *items,
                  uint64_t count, struct zr_error *err)
{
    uint64_t per = count < SLAB_COUNT ? count : SLAB_COUNT;
    size_t side = w->side_fd >= 0 ? zri_side_row_nbytes(is_ragged(w)) : 0;
    uint64_t *task_ends = malloc(per * sizeof *task_ends);
    uint8_t *entries = malloc(per * (ZRI_ENTRY_NBYTES + side));
    int rc = task_ends && entries ? ZR_OK : zri_fail(err, ZR_E_NOMEM, "%s: out of memory", w->path);
    for (uint64_t done = 0; !rc && done < count; done += per) {
        struct slab s = {
            .w = w,
            .rows = rows ? (const uint8_t *)rows + done * w->schema.row_nbytes : NULL,
            .items = items ? items + done : NULL,
            .count = count - done < per ? count - done : per,
            .entries = entries,
            .sides = side ? entries + per * ZRI_ENTRY_NBYTES : NULL,
        };
        rc = write_slab(&s, task_ends, err);
    }
    free(entries);
    free(task_ends);
    if (rc)
        w->failed = true;
    return rc;
}

static int check_append(const struct zr_writer *w, int geometry, uint64_t count,
                        struct zr_error *err)
{
    if (w->failed)
        return zri_fail(err, ZR_E_STATE, "%s: an earlier append failed; start the store again",
                        w->path);
    if (w->schema.geometry != geometry)
        return zri_fail(err, ZR_E_GEOMETRY, "%s: the store is %s, not %s", w->path,
                        zr_geometry_name(w->schema.geometry), zr_geometry_name(geometry));
    if (count == 0)
        return zri_fail(err, ZR_E_INVALID, "%s: append needs at least one record", w->path);
    return ZR_OK;
}

/* Extents in one piece, and a full disk is met before anything is copied. */
static int preallocate(struct zr_writer *w, uint64_t nbytes, struct zr_error *err)
{
    int e = w->encoder || nbytes < PREALLOCATE_NBYTES
                ? 0
                : zri_preallocate(w->data_fd, w->header.tail_off, nbytes);
    if (!e)
        return ZR_OK;
    w->failed = true;
    return write_failed(w, e, ZRI_DATA_NAME, err);
}

int zr_writer_append_dense(struct zr_writer *w, const void *rows, uint64_t count,
                           struct zr_error *err)
{
    uint64_t nbytes;
    int rc = check_append(w, ZR_DENSE, count, err);
    if (rc)
        return rc;
    if (__builtin_mul_overflow(w->schema.row_nbytes, count, &nbytes) || nbytes > INT64_MAX)
        return zri_fail(err, ZR_E_INVALID, "%s: %" PRIu64 " rows are more than memory can hold",
                        w->path, count);
    rc = preallocate(w, nbytes, err);
    return rc ? rc : append(w, rows, NULL, count, err);
}

static int check_item(const struct zr_writer *w, const struct zr_item *item, uint64_t i,
                      uint64_t *nbytes, struct zr_error *err)
{
    if (item->ndim > ZR_MAX_NDIM)
        return zri_fail_record(err, ZR_E_INVALID, i, ZRI_NO_OFFSET,
                               "%s: record %" PRIu64 " of the batch has rank %u, over 64", w->path,
                               i, item->ndim);
    uint64_t prefix = 8 * ((uint64_t)item->ndim + 1), n;
    if (!zri_shape_nbytes(item->ndim, item->shape, w->schema.itemsize, &n) ||
        n > ZR_MAX_RECORD_NBYTES - prefix)
        return zri_fail_record(err, ZR_E_TOO_LARGE, i, ZRI_NO_OFFSET,
                               "%s: record %" PRIu64
                               " of the batch exceeds the limit of 2147483648 bytes with its shape",
                               w->path, i);
    if (n == 0)
        return zri_fail_record(err, ZR_E_INVALID, i, ZRI_NO_OFFSET,
                               "%s: record %" PRIu64
                               " of the batch is empty, and empty records cannot be stored",
                               w->path, i);
    *nbytes += prefix + n;
    return ZR_OK;
}

int zr_writer_append_ragged(struct zr_writer *w, const struct zr_item *items, uint64_t count,
                            struct zr_error *err)
{
    uint64_t nbytes = 0;
    int rc = check_append(w, ZR_RAGGED, count, err);
    for (uint64_t i = 0; !rc && i < count; i++)
        rc = check_item(w, &items[i], i, &nbytes, err);
    if (!rc)
        rc = preallocate(w, nbytes, err);
    return rc ? rc : append(w, NULL, items, count, err);
}

uint64_t zr_writer_length(const struct zr_writer *w)
{
    return w->header.length;
}

/* ---------------------------------------------------------------- create */

/* "a/b" into parent "a" and name "b"; trailing slashes do not count. */
static int split_path(struct zr_writer *w, struct zr_error *err)
{
    char *p = w->path, *end = p + strlen(p);
    while (end > p + 1 && end[-1] == '/')
        *--end = 0;
    char *slash = strrchr(p, '/');
    w->name = slash ? slash + 1 : p;
    w->parent = !slash ? strdup(".") : slash == p ? strdup("/") : strndup(p, (size_t)(slash - p));
    if (!w->parent)
        return zri_fail(err, ZR_E_NOMEM, "%s: out of memory", w->path);
    if (!*w->name || !strcmp(w->name, ".") || !strcmp(w->name, ".."))
        return zri_fail(err, ZR_E_EXISTS, "%s: already exists", w->path);
    size_t n = strlen(w->name);
    if (n <= TEMP_NAME_PREFIX)
        snprintf(w->temp_name, sizeof w->temp_name, ".%s.zrecord-build", w->name);
    else
        snprintf(w->temp_name, sizeof w->temp_name, ".%.*s-%016" PRIx64 ".zrecord-build",
                 TEMP_NAME_PREFIX, w->name, zri_checksum(w->name, n));
    return ZR_OK;
}

/* mkdir -p, counting what it makes. */
static int make_parents(struct zr_writer *w, struct zr_error *err)
{
    char *p = w->parent;
    for (char *slash = p; slash;) {
        slash = strchr(slash + 1, '/');
        if (slash)
            *slash = 0;
        int e = mkdir(p, 0777) ? errno : 0;
        if (slash)
            *slash = '/';
        if (!e)
            w->made_count++;
        else if (e != EEXIST && e != EISDIR && access(p, F_OK))
            return zri_fail_errno(err, e, "%s: cannot make its directory", w->path);
    }
    w->parent_fd = open(w->parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return w->parent_fd < 0
               ? zri_fail_errno(err, errno, "%s: cannot open its directory", w->path)
               : ZR_OK;
}

/* Innermost first, as far as they are empty. */
static void remove_parents(struct zr_writer *w)
{
    while (w->made_count) {
        w->made_count--;
        char *slash = strrchr(w->parent, '/');
        if (rmdir(w->parent) || !slash || slash == w->parent)
            return;
        *slash = 0;
    }
}

static bool is_same_dir(const struct zr_writer *w)
{
    struct stat a, b;
    return fstat(w->dir_fd, &a) == 0 &&
           fstatat(w->parent_fd, w->temp_name, &b, AT_SYMLINK_NOFOLLOW) == 0 &&
           a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static int make_temp_dir(struct zr_writer *w, struct zr_error *err)
{
    struct stat st;
    if (fstatat(w->parent_fd, w->name, &st, AT_SYMLINK_NOFOLLOW) == 0)
        return zri_fail(err, ZR_E_EXISTS, "%s: already exists", w->path);
    bool made = mkdirat(w->parent_fd, w->temp_name, 0777) == 0;
    if (!made && errno != EEXIST)
        return zri_fail_errno(err, errno, "%s: cannot create", w->path);
    w->dir_fd = openat(w->parent_fd, w->temp_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (w->dir_fd < 0)
        return zri_fail_errno(err, errno, "%s: cannot create", w->path);
    if (zri_lock(w->dir_fd, true) || !is_same_dir(w)) {
        close(w->dir_fd); /* it is another writer's: hands off */
        w->dir_fd = -1;
        return zri_fail(err, ZR_E_BUSY, "%s: busy: another writer is building this store", w->path);
    }
    if (!made)
        zri_clear_dir(w->dir_fd);
    return ZR_OK;
}

static int make_file(const struct zr_writer *w, const char *name, int *fd, struct zr_error *err)
{
    *fd = openat(w->dir_fd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    return *fd < 0 ? zri_fail_errno(err, errno, "%s: cannot create its %s", w->path, name) : ZR_OK;
}

static int make_dict(struct zr_writer *w, const struct zr_writer_options *o, struct zr_error *err)
{
    int fd;
    int rc = make_file(w, ZRI_DICT_NAME, &fd, err);
    if (rc)
        return rc;
    int e = zri_write_full(fd, o->dict, o->dict_nbytes, 0);
    if (!e && w->durable && fsync(fd))
        e = errno;
    close(fd);
    w->dict_sum = zri_checksum(o->dict, o->dict_nbytes);
    return e ? write_failed(w, e, ZRI_DICT_NAME, err) : ZR_OK;
}

static int make_files(struct zr_writer *w, const struct zr_writer_options *o, struct zr_error *err)
{
    static const uint8_t empty[ZRI_PAGE_NBYTES];
    int rc = make_file(w, ZRI_META_NAME, &w->meta_fd, err);
    if (!rc && zri_lock(w->meta_fd, true))
        rc = zri_fail(err, ZR_E_BUSY, "%s: busy", w->path);
    if (!rc)
        rc = make_file(w, ZRI_DATA_NAME, &w->data_fd, err);
    if (!rc && !o->no_sidecar)
        rc = make_file(w, ZRI_SIDE_NAME, &w->side_fd, err);
    if (!rc && o->codec == ZR_ZSTD_DICT)
        rc = make_dict(w, o, err);
    int e = rc ? 0 : zri_write_full(w->meta_fd, empty, sizeof empty, 0);
    return e ? write_failed(w, e, ZRI_META_NAME, err) : rc;
}

static int check_options(struct zr_writer *w, const struct zr_writer_options *o,
                         struct zr_error *err)
{
    if (o->geometry != ZR_DENSE && o->geometry != ZR_RAGGED)
        return zri_fail(err, ZR_E_INVALID, "%s: unknown geometry %d", w->path, o->geometry);
    if (!zr_codec_name(o->codec))
        return zri_fail(err, ZR_E_INVALID, "%s: unknown codec %d", w->path, o->codec);
    if (o->tune < ZR_TUNE_DEFAULT || o->tune > ZR_TUNE_WRITE)
        return zri_fail(err, ZR_E_INVALID, "%s: unknown tune %d", w->path, o->tune);
    if (o->codec == ZR_ZSTD_DICT ? !o->dict || !o->dict_nbytes : o->dict != NULL)
        return zri_fail(err, ZR_E_INVALID,
                        o->dict ? "%s: a dictionary is for codec zstd_dict only"
                                : "%s: codec zstd_dict needs a dictionary",
                        w->path);
    if (o->level && (o->codec == ZR_RAW || o->level < zri_level_min() || o->level > zri_level_max()))
        return zri_fail(err, ZR_E_INVALID, "%s: codec %s has no level %d", w->path,
                        zr_codec_name(o->codec), o->level);
    const char *why = o->dtype ? zri_schema_set(&w->schema, o->geometry, o->dtype, o->ndim,
                                                o->item_shape)
                               : "no dtype";
    return why ? zri_fail(err, ZR_E_SCHEMA, "%s: %s", w->path, why) : ZR_OK;
}

static int make_encoder(struct zr_writer *w, const struct zr_writer_options *o,
                        struct zr_error *err)
{
    w->header.codec = (uint8_t)o->codec;
    if (o->codec == ZR_RAW)
        return ZR_OK;
    w->encoder = zri_encoder_new(o->codec, o->level, o->tune, o->dict, o->dict_nbytes);
    return w->encoder ? ZR_OK
           : o->dict  ? zri_fail(err, ZR_E_DICT, "%s: not a dictionary that zstd can use", w->path)
                      : zri_fail(err, ZR_E_NOMEM, "%s: out of memory", w->path);
}

static struct zr_writer *new_writer(const char *path)
{
    struct zr_writer *w = calloc(1, sizeof *w);
    if (!w)
        return NULL;
    w->parent_fd = w->dir_fd = w->meta_fd = w->data_fd = w->side_fd = -1;
    pthread_mutex_init(&w->lock, NULL);
    w->path = strdup(path);
    if (!w->path) {
        free(w);
        return NULL;
    }
    return w;
}

int zr_writer_create(struct zr_writer **out, const char *path,
                     const struct zr_writer_options *options, struct zr_error *err)
{
    *out = NULL;
    if (!path || !*path)
        return zri_fail(err, ZR_E_INVALID, "the path of a store is empty");
    struct zr_writer *w = new_writer(path);
    if (!w)
        return zri_fail(err, ZR_E_NOMEM, "%s: out of memory", path);
    w->durable = options->durability == ZR_DURABLE;
    int rc = check_options(w, options, err);
    if (!rc)
        rc = split_path(w, err);
    if (!rc)
        rc = make_encoder(w, options, err);
    if (!rc)
        rc = make_parents(w, err);
    if (!rc)
        rc = make_temp_dir(w, err);
    if (!rc)
        rc = make_files(w, options, err);
    if (rc) {
        zr_writer_abort(w);
        return rc;
    }
    *out = w;
    return ZR_OK;
}

/* ---------------------------------------------------------------- close */

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void free_writer(struct zr_writer *w)
{
    if (w->dir_fd >= 0)
        zri_unlock(w->dir_fd);
    close_fd(&w->meta_fd);
    close_fd(&w->data_fd);
    close_fd(&w->side_fd);
    close_fd(&w->dir_fd);
    close_fd(&w->parent_fd);
    zri_encoder_free(w->encoder);
    pthread_mutex_destroy(&w->lock);
    free(w->parent);
    free(w->path);
    free(w);
}

void zr_writer_abort(struct zr_writer *w)
{
    if (!w)
        return;
    if (w->dir_fd >= 0) {
        zri_clear_dir(w->dir_fd);
        unlinkat(w->parent_fd, w->temp_name, AT_REMOVEDIR);
    }
    remove_parents(w);
    free_writer(w);
}

static int sync_file(const struct zr_writer *w, int fd, const char *name, struct zr_error *err)
{
    if (!w->durable || fd < 0 || fsync(fd) == 0)
        return ZR_OK;
    return write_failed(w, errno, name, err);
}

static int read_identity(const struct zr_writer *w, const uint8_t *page, uint64_t *identity,
                         struct zr_error *err)
{
    uint8_t entries[ZRI_IDENTITY_ENTRIES * ZRI_ENTRY_NBYTES];
    struct zri_file meta = {.fd = w->meta_fd};
    size_t count = w->header.length ? ZRI_IDENTITY_ENTRIES : 0;
    for (size_t k = 0; k < count; k++) {
        uint64_t off = zri_entry_off(zri_identity_index(w->header.length, k));
        int e = zri_file_read(&meta, off, entries + k * ZRI_ENTRY_NBYTES, ZRI_ENTRY_NBYTES);
        if (e)
            return write_failed(w, e < 0 ? EIO : e, ZRI_META_NAME, err);
    }
    *identity = zri_identity(page, entries, count);
    return ZR_OK;
}

static int finish_sidecar(const struct zr_writer *w, const uint8_t *page, struct zr_error *err)
{
    uint8_t header[ZRI_SIDE_HEADER_NBYTES];
    struct zri_sidecar s = {.length = w->header.length,
                            .tail_off = w->header.tail_off,
                            .dict_sum = w->dict_sum,
                            .ragged = is_ragged(w)};
    if (w->side_fd < 0)
        return ZR_OK;
    int rc = read_identity(w, page, &s.identity, err);
    if (rc)
        return rc;
    zri_sidecar_encode(&s, header);
    int e = zri_write_full(w->side_fd, header, sizeof header, 0);
    return e ? write_failed(w, e, ZRI_SIDE_NAME, err) : sync_file(w, w->side_fd, ZRI_SIDE_NAME, err);
}

/* Payload, table and sidecar are durable before the header exists. */
static int write_header(struct zr_writer *w, struct zr_error *err)
{
    uint8_t schema[ZRI_SCHEMA_MAX], page[ZRI_PAGE_NBYTES];
    size_t schema_nbytes;
    const char *why = zri_schema_encode(&w->schema, schema, &schema_nbytes);
    if (why)
        return zri_fail(err, ZR_E_NOMEM, "%s: %s", w->path, why);
    w->header.schema_nbytes = (uint32_t)schema_nbytes;
    zri_header_encode(&w->header, schema, page);
    int rc = sync_file(w, w->data_fd, ZRI_DATA_NAME, err);
    if (!rc)
        rc = finish_sidecar(w, page, err);
    if (!rc)
        rc = sync_file(w, w->meta_fd, ZRI_META_NAME, err);
    if (rc)
        return rc;
    int e = zri_write_full(w->meta_fd, page, sizeof page, 0);
    if (e)
        return write_failed(w, e, ZRI_META_NAME, err);
    rc = sync_file(w, w->meta_fd, ZRI_META_NAME, err);
    if (!rc && w->durable && (e = zri_sync_dir(w->dir_fd)))
        rc = write_failed(w, e, "directory", err);
    return rc;
}

/* RENAME_NOREPLACE where the filesystem has it: nobody's store is replaced. */
static int rename_new(const struct zr_writer *w)
{
    if (renameat2(w->parent_fd, w->temp_name, w->parent_fd, w->name, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != EINVAL && errno != ENOSYS)
        return errno;
    struct stat st;
    if (fstatat(w->parent_fd, w->name, &st, AT_SYMLINK_NOFOLLOW) == 0)
        return EEXIST;
    return renameat(w->parent_fd, w->temp_name, w->parent_fd, w->name) ? errno : 0;
}

int zr_writer_close(struct zr_writer *w, struct zr_error *err)
{
    if (w->failed) {
        int rc = zri_fail(err, ZR_E_STATE, "%s: not published: an append failed", w->path);
        zr_writer_abort(w);
        return rc;
    }
    int rc = write_header(w, err);
    zri_unlock(w->meta_fd); /* must not meet the first reader */
    close_fd(&w->meta_fd);
    int e = rc ? 0 : rename_new(w);
    if (e)
        rc = e == EEXIST ? zri_fail(err, ZR_E_EXISTS, "%s: already exists", w->path)
                         : zri_fail_errno(err, e, "%s: cannot publish", w->path);
    if (rc) {
        zr_writer_abort(w);
        return rc;
    }
    w->made_count = 0;
    e = w->durable ? zri_sync_dir(w->parent_fd) : 0;
    rc = e ? zri_fail_errno(err, e, "%s: published, but its directory could not be synced", w->path)
           : ZR_OK;
    free_writer(w);
    return rc;
}
