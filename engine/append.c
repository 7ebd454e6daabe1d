/* SPDX-License-Identifier: MIT
 *
 * Appending to a store under construction.
 *
 * An append is cut into slabs of a bounded number of records, a slab into tasks
 * of about PIECE_NBYTES that run in parallel: encode (and hash) into a staging
 * buffer, hand it to the file's tail.  Physical order is completion order.  Raw
 * Dense rows are written from the caller's memory, a task a block of the file.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "internal.h"

#define SLAB_COUNT ((uint64_t)1 << 16)
#define PIECE_NBYTES ((uint64_t)1 << 20)
#define PREALLOCATE_NBYTES ((uint64_t)1 << 20) /* smaller appends do without */
#define RAW_PARALLEL_NBYTES ((uint64_t)4 << 20)

/* One append's share of records: rows or items, and where results go. */
struct slab {
    struct zr_writer *w;
    const uint8_t *rows;         /* Dense */
    const struct zr_item *items; /* Ragged */
    uint64_t count;
    const uint64_t *task_ends; /* task t holds records [task_ends[t-1], task_ends[t]) */
    uint64_t file_off;         /* raw Dense: where the slab goes, */
    uint64_t first_block;      /* and how much of it is before the first whole block */
    uint8_t *entries;          /* count * ZRI_ENTRY_NBYTES, as on disk */
    uint8_t *sides;            /* count * side row, or NULL */
    int rc;                    /* under w->lock */
    struct zr_error *err;      /* under w->lock */
    atomic_bool failed;
};

/* ---------------------------------------------------------------- tasks */

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

static void note_record(const struct slab *s, uint64_t i, const void *logical, uint64_t nbytes)
{
    struct zri_side_row row = {0};
    bool ragged = zri_writer_is_ragged(s->w);
    if (!s->sides)
        return;
    row.sum = zri_record_sum(logical, nbytes);
    if (s->items) {
        row.ndim = (uint8_t)s->items[i].ndim;
        row.npy_header_nbytes = (uint16_t)zri_npy_header_nbytes(
            s->w->schema.dtype, s->items[i].ndim, s->items[i].shape);
    }
    zri_side_row_encode(&row, ragged, s->sides + i * zri_side_row_nbytes(ragged));
}

static void set_entry(const struct slab *s, uint64_t i, uint64_t off, uint64_t phys, uint64_t logic)
{
    struct zri_entry e = {off, (uint32_t)phys, (uint32_t)logic};
    zri_entry_encode(&e, s->entries + i * ZRI_ENTRY_NBYTES);
}

static int encode_record(struct slab *s, struct zri_encoder_context *c, uint64_t i,
                         uint8_t *scratch, uint8_t *dst, size_t capacity, size_t *phys,
                         struct zr_error *err)
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

/* Entries whose offsets count from the start of a piece that went to `off`. */
static void move_entries(const struct slab *s, uint64_t begin, uint64_t end, uint64_t off)
{
    for (uint64_t i = begin; i < end; i++) {
        struct zri_entry e;
        zri_entry_decode(&e, s->entries + i * ZRI_ENTRY_NBYTES);
        set_entry(s, i, off + e.off, e.phys_nbytes, e.logic_nbytes);
    }
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
        uint64_t off = 0;
        int e = zri_tail_append(&w->data, staging, used, &off);
        rc = e ? zri_write_failed(w, e, ZRI_DATA_NAME, err) : ZR_OK;
        move_entries(s, begin, end, off);
    }
    zr_buffer_free(scratch);
    zr_buffer_free(staging);
    return rc;
}

static void note_failure(struct slab *s, int rc, const struct zr_error *err)
{
    atomic_store(&s->failed, true);
    pthread_mutex_lock(&s->w->lock);
    if (!s->rc) {
        s->rc = rc;
        if (s->err)
            *s->err = *err;
    }
    pthread_mutex_unlock(&s->w->lock);
}

static void run_task(void *ctx, size_t t)
{
    struct slab *s = ctx;
    struct zr_error err;
    if (atomic_load(&s->failed))
        return;
    int rc = stage_and_write(s, t ? s->task_ends[t - 1] : 0, s->task_ends[t], &err);
    if (rc)
        note_failure(s, rc, &err);
}

/* ---------------------------------------------------------------- raw Dense */

/* What is known of the rows that begin in bytes [begin, end) of the slab. */
static void note_rows(const struct slab *s, uint64_t begin, uint64_t end)
{
    uint64_t row = s->w->schema.row_nbytes;
    for (uint64_t i = (begin + row - 1) / row; i * row < end; i++) {
        note_record(s, i, s->rows + i * row, row);
        set_entry(s, i, s->file_off + i * row, row, row);
    }
}

static void see_rows(void *ctx, const uint8_t *bytes, size_t nbytes)
{
    const struct slab *s = ctx;
    uint64_t begin = (uint64_t)(bytes - s->rows);
    note_rows(s, begin, begin + nbytes);
}

static void write_failed(struct slab *s, int e)
{
    struct zr_error err;
    note_failure(s, zri_write_failed(s->w, e, ZRI_DATA_NAME, &err), &err);
}

static void run_block(void *ctx, size_t t)
{
    struct slab *s = ctx;
    uint64_t begin = s->first_block + t * ZRI_TAIL_BLOCK_NBYTES;
    const struct zri_part part = {
        .bytes = s->rows + begin,
        .nbytes = ZRI_TAIL_BLOCK_NBYTES,
        .off = s->file_off + begin,
        .see = see_rows,
        .ctx = s,
    };
    if (atomic_load(&s->failed))
        return;
    int e = zri_turns_write(&s->w->turns, &part);
    if (e)
        write_failed(s, e);
}

/* Rows in blocks that others share go through the tail, the whole ones between straight
 * to the file. */
static void write_rows(struct slab *s, unsigned thread_count)
{
    struct zri_tail *tail = &s->w->data;
    uint64_t nbytes = s->count * s->w->schema.row_nbytes, room = zri_tail_room(tail);
    s->file_off = tail->off;
    s->first_block = room < nbytes ? room : nbytes;
    uint64_t blocks = (nbytes - s->first_block) / ZRI_TAIL_BLOCK_NBYTES;
    uint64_t rest = s->first_block + blocks * ZRI_TAIL_BLOCK_NBYTES;
    note_rows(s, 0, s->first_block);
    int e = zri_tail_append(tail, s->rows, s->first_block, NULL);
    zri_tail_reserve(tail, blocks);
    if (!e)
        zri_parallel(blocks, thread_count, run_block, s);
    note_rows(s, rest, nbytes);
    if (!e)
        e = zri_tail_append(tail, s->rows + rest, nbytes - rest, NULL);
    if (e)
        write_failed(s, e);
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
    size_t row = zri_side_row_nbytes(zri_writer_is_ragged(w));
    int e = zri_tail_append(&w->meta, s->entries, s->count * ZRI_ENTRY_NBYTES, NULL);
    if (e)
        return zri_write_failed(w, e, ZRI_META_NAME, err);
    if (s->sides)
        e = zri_tail_append(&w->side, s->sides, s->count * row, NULL);
    return e ? zri_write_failed(w, e, ZRI_SIDE_NAME, err) : ZR_OK;
}

static int write_slab(struct slab *s, uint64_t *task_ends, struct zr_error *err)
{
    struct zr_writer *w = s->w;
    s->task_ends = task_ends;
    s->err = err;
    if (s->rows && !w->encoder)
        write_rows(s, choose_threads(s));
    else
        zri_parallel(cut_tasks(s, task_ends), choose_threads(s), run_task, s);
    if (s->rc)
        return s->rc;
    int rc = write_table(s, err);
    if (!rc)
        w->header.length += s->count;
    return rc;
}

static int append(struct zr_writer *w, const void *rows, const struct zr_item *items,
                  uint64_t count, struct zr_error *err)
{
    uint64_t per = count < SLAB_COUNT ? count : SLAB_COUNT;
    size_t side = w->side.fd >= 0 ? zri_side_row_nbytes(zri_writer_is_ragged(w)) : 0;
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

static int check_append(const struct zr_writer *w, int geometry, const void *records,
                        uint64_t count, struct zr_error *err)
{
    if (!zri_writer_is_owner(w))
        return zri_fail(err, ZR_E_STATE, "%s: a writer does not survive fork", w->path);
    if (w->failed)
        return zri_fail(err, ZR_E_STATE, "%s: an earlier append failed; start the store again",
                        w->path);
    if (w->schema.geometry != geometry)
        return zri_fail(err, ZR_E_GEOMETRY, "%s: the store is %s, not %s", w->path,
                        zr_geometry_name(w->schema.geometry), zr_geometry_name(geometry));
    if (count == 0 || !records)
        return zri_fail(err, ZR_E_INVALID, "%s: append needs at least one record", w->path);
    return ZR_OK;
}

/* Extents in one piece, and a full disk is met before anything is copied. */
static int preallocate(struct zr_writer *w, uint64_t nbytes, struct zr_error *err)
{
    bool reserved = false;
    int e = w->encoder || nbytes < PREALLOCATE_NBYTES
                ? 0
                : zri_preallocate(w->data.fd, w->data.off, nbytes, &reserved);
    zri_turns_init(&w->turns, w->data.fd, reserved);
    if (!e)
        return ZR_OK;
    w->failed = true;
    return zri_write_failed(w, e, ZRI_DATA_NAME, err);
}

int zr_writer_append_dense(struct zr_writer *w, const void *rows, uint64_t count,
                           struct zr_error *err)
{
    uint64_t nbytes;
    int rc = check_append(w, ZR_DENSE, rows, count, err);
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
    int rc = check_append(w, ZR_RAGGED, items, count, err);
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
