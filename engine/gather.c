/* SPDX-License-Identifier: MIT
 *
 * Gather: any list of records, decoded straight to where the caller wants them.
 *
 * A batch runs through the mapping.  If the mapping turned out not to be the
 * file any more (cut short, unreadable), the whole batch runs again with pread,
 * whose errors are exact.  Entries are checked one by one as they are used.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>

#include "internal.h"

/* Below these a second thread costs more to wake than it saves (measured on
 * 2 KiB records: 0.036 ms with one thread, 0.075 with two). */
#define RAW_PARALLEL_NBYTES ((uint64_t)4 << 20)
#define ZSTD_PARALLEL_NBYTES ((uint64_t)64 << 10)
#define ZSTD_THREAD_NBYTES ((uint64_t)32 << 10)
#define TASKS_PER_THREAD 8

/* How far ahead table entries and payloads are pulled into the CPU's caches. */
#define ENTRY_AHEAD 4
#define PAYLOAD_AHEAD 2

struct gather {
    struct zr_reader *r;
    const uint64_t *ids;
    size_t count;
    uint8_t *out;
    const uint64_t *offsets; /* Ragged: where each record goes; Dense: NULL */
    bool mapped;
    size_t task_count;

    pthread_mutex_t lock;
    size_t failed_at;       /* lowest position that failed; under lock */
    int rc;                 /* under lock */
    struct zr_error *err;   /* under lock; may be NULL */
    atomic_bool failed;     /* others may stop */
};

/* ---------------------------------------------------------------- one record */

static int damaged(const struct zr_reader *r, uint64_t id, uint64_t off, int code, const char *why,
                   struct zr_error *err)
{
    return zri_fail_record(err, code, id, off, "%s/%s: record %" PRIu64 ": %s", r->path,
                           ZRI_DATA_NAME, id, why);
}

static int read_stored(const struct zr_reader *r, uint64_t id, const struct zri_entry *entry,
                       void *buf, size_t nbytes, struct zr_error *err)
{
    int e = zri_file_read(&r->data, entry->off, buf, nbytes);
    if (e < 0)
        return damaged(r, id, entry->off, ZR_E_TRUNCATED, "the file is cut short", err);
    if (e)
        return zri_fail_errno(err, e, "%s/%s: record %" PRIu64 ": cannot read", r->path,
                              ZRI_DATA_NAME, id);
    return ZR_OK;
}

static int decode_read(const struct zr_reader *r, uint64_t id, const struct zri_entry *entry,
                       void *dst, struct zr_error *err)
{
    if (r->header.codec == ZR_RAW)
        return read_stored(r, id, entry, dst, entry->phys_nbytes, err);
    void *stored = zr_buffer_alloc(entry->phys_nbytes);
    if (!stored)
        return zri_fail_record(err, ZR_E_NOMEM, id, entry->off, "%s: out of memory", r->path);
    int rc = read_stored(r, id, entry, stored, entry->phys_nbytes, err);
    if (!rc) {
        const char *why =
            zri_decode(r->decoder, stored, entry->phys_nbytes, dst, entry->logic_nbytes);
        if (why)
            rc = damaged(r, id, entry->off, ZR_E_CORRUPT, why, err);
    }
    zr_buffer_free(stored);
    return rc;
}

static int check_decoded(const struct zr_reader *r, uint64_t id, const struct zri_entry *entry,
                         const void *dst, struct zr_error *err)
{
    if (r->schema.geometry == ZR_RAGGED) {
        const char *why = zri_ragged_check(&r->schema, dst, entry->logic_nbytes);
        if (why)
            return damaged(r, id, entry->off, ZR_E_CORRUPT, why, err);
    }
    struct zri_side_row row;
    if (r->check_sums && zri_reader_side_row(r, id, &row) &&
        row.sum != zri_checksum(dst, entry->logic_nbytes))
        return damaged(r, id, entry->off, ZR_E_CHECKSUM, "decoded bytes differ from the checksum",
                       err);
    return ZR_OK;
}

static int gather_record(const struct zr_reader *r, uint64_t id, const struct zri_entry *entry,
                         void *dst, bool mapped, struct zr_error *err)
{
    if (mapped) {
        const char *why = zri_decode(r->decoder, r->data.bytes + entry->off, entry->phys_nbytes,
                                     dst, entry->logic_nbytes);
        if (why)
            return damaged(r, id, entry->off, ZR_E_CORRUPT, why, err);
    } else {
        int rc = decode_read(r, id, entry, dst, err);
        if (rc)
            return rc;
    }
    return check_decoded(r, id, entry, dst, err);
}

int zri_gather_one(struct zr_reader *r, uint64_t id, const struct zri_entry *entry, void *dst,
                   struct zr_error *err)
{
    if (r->data.bytes) {
        int rc = gather_record(r, id, entry, dst, true, err);
        if (zri_file_trusted(&r->data))
            return rc;
    }
    return gather_record(r, id, entry, dst, false, err);
}

/* ---------------------------------------------------------------- batches */

static void record_failure(struct gather *g, size_t at, int rc, const struct zr_error *err)
{
    atomic_store(&g->failed, true);
    pthread_mutex_lock(&g->lock);
    if (!g->rc || at < g->failed_at) {
        g->rc = rc;
        g->failed_at = at;
        if (g->err)
            *g->err = *err;
    }
    pthread_mutex_unlock(&g->lock);
}

static inline void pull_ahead(const struct gather *g, size_t i, size_t end)
{
    const struct zr_reader *r = g->r;
    if (i + ENTRY_AHEAD < end)
        __builtin_prefetch(r->meta.bytes + zri_entry_off(g->ids[i + ENTRY_AHEAD]));
    if (i + PAYLOAD_AHEAD < end) {
        struct zri_entry e;
        zri_entry_decode(&e, r->meta.bytes + zri_entry_off(g->ids[i + PAYLOAD_AHEAD]));
        if (e.off < r->data.nbytes) {
            __builtin_prefetch(r->data.bytes + e.off);
            __builtin_prefetch(r->data.bytes + e.off + 64);
        }
    }
}

/* Positions [begin, end); false at the first failure. */
static bool gather_span(struct gather *g, size_t begin, size_t end)
{
    const struct zr_reader *r = g->r;
    struct zr_error err;
    bool ahead = g->mapped && r->meta.bytes;
    for (size_t i = begin; i < end && !atomic_load_explicit(&g->failed, memory_order_relaxed);
         i++) {
        struct zri_entry entry;
        if (ahead)
            pull_ahead(g, i, end);
        int rc = zri_reader_entry(r, g->ids[i], &entry, &err);
        uint64_t off = g->offsets ? g->offsets[i] : i * r->schema.row_nbytes;
        /* The offsets came from a plan: an entry that grew since would overrun. */
        if (!rc && g->offsets && entry.logic_nbytes > g->offsets[i + 1] - off)
            rc = damaged(r, g->ids[i], entry.off, ZR_E_BUFFER, "its size changed since the plan",
                         &err);
        if (!rc)
            rc = gather_record(r, g->ids[i], &entry, g->out + off, g->mapped, &err);
        if (rc) {
            record_failure(g, i, rc, &err);
            return false;
        }
    }
    return true;
}

static void gather_task(void *ctx, size_t t)
{
    struct gather *g = ctx;
    size_t each = g->count / g->task_count, rest = g->count % g->task_count;
    size_t begin = t * each + (t < rest ? t : rest);
    gather_span(g, begin, begin + each + (t < rest));
}

static unsigned choose_threads(const struct zr_reader *r, uint64_t nbytes, size_t count)
{
    uint64_t n = zr_thread_count();
    if (count < 2 || n < 2)
        return 1;
    if (r->header.codec == ZR_RAW)
        return nbytes >= RAW_PARALLEL_NBYTES ? (unsigned)n : 1;
    if (nbytes < ZSTD_PARALLEL_NBYTES)
        return 1;
    return (unsigned)(nbytes / ZSTD_THREAD_NBYTES < n ? nbytes / ZSTD_THREAD_NBYTES : n);
}

static int run(struct gather *g, unsigned thread_count, bool mapped)
{
    g->mapped = mapped;
    g->rc = ZR_OK;
    atomic_store(&g->failed, false);
    if (thread_count <= 1) {
        gather_span(g, 0, g->count);
        return g->rc;
    }
    g->task_count = (size_t)thread_count * TASKS_PER_THREAD;
    if (g->task_count > g->count)
        g->task_count = g->count;
    zri_parallel(g->task_count, thread_count, gather_task, g);
    return g->rc;
}

static int gather(struct zr_reader *r, const uint64_t *ids, size_t count, void *out,
                  const uint64_t *offsets, uint64_t nbytes, struct zr_error *err)
{
    struct gather g = {.r = r,
                       .ids = ids,
                       .count = count,
                       .out = out,
                       .offsets = offsets,
                       .lock = PTHREAD_MUTEX_INITIALIZER,
                       .err = err};
    unsigned threads = choose_threads(r, nbytes, count);
    zr_prefetch(r, ids, count);
    if (r->data.bytes) {
        int rc = run(&g, threads, true);
        if (zri_file_trusted(&r->data))
            return rc;
    }
    return run(&g, threads, false);
}

static int check_ids(const struct zr_reader *r, const uint64_t *ids, size_t count,
                     struct zr_error *err)
{
    uint64_t length = r->header.length, top = 0;
    for (size_t i = 0; i < count; i++)
        top = ids[i] > top ? ids[i] : top;
    if (count == 0 || top < length)
        return ZR_OK;
    size_t i = 0;
    while (ids[i] < length)
        i++;
    return zri_fail_record(err, ZR_E_RANGE, ids[i], ZRI_NO_OFFSET,
                           "%s: record %" PRIu64 " is out of range: the store has %" PRIu64, r->path,
                           ids[i], length);
}

static int check_geometry(const struct zr_reader *r, int geometry, struct zr_error *err)
{
    if (r->schema.geometry == geometry)
        return ZR_OK;
    return zri_fail(err, ZR_E_GEOMETRY, "%s: the store is %s, not %s", r->path,
                    zr_geometry_name(r->schema.geometry), zr_geometry_name(geometry));
}

int zr_gather_dense(struct zr_reader *r, const uint64_t *ids, size_t count, void *out,
                    size_t out_nbytes, struct zr_error *err)
{
    int rc = check_geometry(r, ZR_DENSE, err);
    if (!rc)
        rc = check_ids(r, ids, count, err);
    if (rc || count == 0)
        return rc;
    uint64_t nbytes;
    if (__builtin_mul_overflow(r->schema.row_nbytes, (uint64_t)count, &nbytes) ||
        nbytes > out_nbytes)
        return zri_fail(err, ZR_E_BUFFER, "%s: %zu records do not fit into %zu bytes", r->path,
                        count, out_nbytes);
    return gather(r, ids, count, out, NULL, nbytes, err);
}

int zr_gather_ragged_plan(struct zr_reader *r, const uint64_t *ids, size_t count,
                          uint64_t *offsets, struct zr_error *err)
{
    int rc = check_geometry(r, ZR_RAGGED, err);
    if (!rc)
        rc = check_ids(r, ids, count, err);
    if (rc)
        return rc;
    uint64_t off = 0;
    for (size_t i = 0; i < count; i++) {
        struct zri_entry entry;
        if (r->meta.bytes && i + ENTRY_AHEAD < count)
            __builtin_prefetch(r->meta.bytes + zri_entry_off(ids[i + ENTRY_AHEAD]));
        rc = zri_reader_entry(r, ids[i], &entry, err);
        if (rc)
            return rc;
        offsets[i] = off;
        off += ((uint64_t)entry.logic_nbytes + 15) & ~(uint64_t)15;
    }
    offsets[count] = off;
    return ZR_OK;
}

int zr_gather_ragged(struct zr_reader *r, const uint64_t *ids, size_t count, void *out,
                     const uint64_t *offsets, struct zr_error *err)
{
    int rc = check_geometry(r, ZR_RAGGED, err);
    if (!rc)
        rc = check_ids(r, ids, count, err);
    if (rc || count == 0)
        return rc;
    return gather(r, ids, count, out, offsets, offsets[count], err);
}

/* ---------------------------------------------------------------- .npy of a record */

static int checked_entry(const struct zr_reader *r, uint64_t id, struct zri_entry *entry,
                         struct zr_error *err)
{
    int rc = check_ids(r, &id, 1, err);
    return rc ? rc : zri_reader_entry(r, id, entry, err);
}

static int decode_head(const struct zr_reader *r, uint64_t id, const struct zri_entry *entry,
                       void *dst, size_t nbytes, struct zr_error *err)
{
    void *stored = zr_buffer_alloc(entry->phys_nbytes);
    if (!stored)
        return zri_fail_record(err, ZR_E_NOMEM, id, entry->off, "%s: out of memory", r->path);
    size_t need = r->header.codec == ZR_RAW ? nbytes : entry->phys_nbytes;
    int rc = read_stored(r, id, entry, stored, need, err);
    if (!rc) {
        const char *why = zri_decode_head(r->decoder, stored, need, dst, nbytes);
        if (why)
            rc = damaged(r, id, entry->off, ZR_E_CORRUPT, why, err);
    }
    zr_buffer_free(stored);
    return rc;
}

/* Decodes just the shape prefix. */
static int ragged_shape(const struct zr_reader *r, uint64_t id, const struct zri_entry *entry,
                        uint32_t *ndim, uint64_t *shape, struct zr_error *err)
{
    uint64_t prefix[1 + ZR_MAX_NDIM];
    size_t n = sizeof prefix < entry->logic_nbytes ? sizeof prefix : entry->logic_nbytes;
    int rc = decode_head(r, id, entry, prefix, n, err);
    if (rc)
        return rc;
    uint64_t nbytes;
    bool sound = prefix[0] <= ZR_MAX_NDIM && 8 * (prefix[0] + 1) < entry->logic_nbytes &&
                 zri_shape_nbytes((uint32_t)prefix[0], prefix + 1, r->schema.itemsize, &nbytes) &&
                 nbytes == entry->logic_nbytes - 8 * (prefix[0] + 1);
    if (!sound)
        return damaged(r, id, entry->off, ZR_E_CORRUPT, "the shape prefix is damaged", err);
    *ndim = (uint32_t)prefix[0];
    memcpy(shape, prefix + 1, *ndim * sizeof *shape);
    return ZR_OK;
}

/* Bytes that the header adds to a record, less its shape prefix, in units of 8:
 * what is remembered of a record without a sidecar.  0: not known. */
static _Atomic uint8_t *npy_units(struct zr_reader *r)
{
    _Atomic uint8_t *units = atomic_load(&r->npy_units);
    if (units)
        return units;
    /* Untouched pages of it cost nothing. */
    _Atomic uint8_t *made = calloc(r->header.length, 2);
    if (made && !atomic_compare_exchange_strong(&r->npy_units, &units, made)) {
        free((void *)(uintptr_t)made);
        made = units;
    }
    return made;
}

static int ragged_overhead(struct zr_reader *r, uint64_t id, const struct zri_entry *entry,
                           uint32_t *ndim, uint64_t *header_nbytes, struct zr_error *err)
{
    struct zri_side_row row;
    if (zri_reader_side_row(r, id, &row) && row.npy_header_nbytes && row.ndim <= ZR_MAX_NDIM) {
        *ndim = row.ndim;
        *header_nbytes = row.npy_header_nbytes;
        return ZR_OK;
    }
    _Atomic uint8_t *units = npy_units(r);
    if (units && units[2 * id]) {
        *header_nbytes = (uint64_t)atomic_load(&units[2 * id]) * 64;
        *ndim = atomic_load(&units[2 * id + 1]);
        return ZR_OK;
    }
    uint64_t shape[ZR_MAX_NDIM];
    int rc = ragged_shape(r, id, entry, ndim, shape, err);
    if (rc)
        return rc;
    *header_nbytes = zri_npy_header_nbytes(r->schema.dtype, *ndim, shape);
    if (units) { /* the length last: it says that both are there */
        atomic_store(&units[2 * id + 1], (uint8_t)*ndim);
        atomic_store(&units[2 * id], (uint8_t)(*header_nbytes / 64));
    }
    return ZR_OK;
}

int zr_record_npy_nbytes(struct zr_reader *r, uint64_t id, uint64_t *nbytes, struct zr_error *err)
{
    struct zri_entry entry;
    if (r->schema.geometry == ZR_DENSE) {
        int rc = check_ids(r, &id, 1, err);
        if (!rc)
            *nbytes = r->npy_header_nbytes + r->schema.row_nbytes;
        return rc;
    }
    uint32_t ndim;
    uint64_t header;
    int rc = checked_entry(r, id, &entry, err);
    if (!rc)
        rc = ragged_overhead(r, id, &entry, &ndim, &header, err);
    if (!rc && 8 * ((uint64_t)ndim + 1) >= entry.logic_nbytes)
        rc = damaged(r, id, entry.off, ZR_E_CORRUPT, "the sidecar's rank does not fit", err);
    if (!rc)
        *nbytes = header + entry.logic_nbytes - 8 * ((uint64_t)ndim + 1);
    return rc;
}

static const void *dense_npy(struct zr_reader *r, uint8_t *block, uint64_t *nbytes)
{
    memcpy(block, r->npy_header, r->npy_header_nbytes);
    *nbytes = r->npy_header_nbytes + r->schema.row_nbytes;
    return block;
}

/* The record was decoded at block + ZR_NPY_MAX_HEADER_NBYTES: its header ends
 * where its payload starts, over the shape prefix. */
static const void *ragged_npy(const struct zr_reader *r, uint8_t *block, uint64_t logic_nbytes,
                              uint64_t *nbytes)
{
    struct zr_record_view view;
    uint64_t shape[ZR_MAX_NDIM];
    uint8_t header[ZR_NPY_MAX_HEADER_NBYTES];
    zr_record_split(block + ZR_NPY_MAX_HEADER_NBYTES, logic_nbytes, &view);
    memcpy(shape, view.shape, view.ndim * sizeof *shape);
    size_t n = zr_npy_header(r->schema.dtype, view.ndim, shape, header);
    uint8_t *npy = (uint8_t *)(uintptr_t)view.data - n;
    memcpy(npy, header, n);
    *nbytes = n + view.data_nbytes;
    return npy;
}

int zr_record_npy(struct zr_reader *r, uint64_t id, void **block, const void **npy,
                  uint64_t *nbytes, struct zr_error *err)
{
    struct zri_entry entry;
    int rc = checked_entry(r, id, &entry, err);
    if (rc)
        return rc;
    bool dense = r->schema.geometry == ZR_DENSE;
    size_t lead = dense ? r->npy_header_nbytes : ZR_NPY_MAX_HEADER_NBYTES;
    uint8_t *b = zr_buffer_alloc(lead + entry.logic_nbytes);
    if (!b)
        return zri_fail_record(err, ZR_E_NOMEM, id, entry.off, "%s: out of memory", r->path);
    rc = zri_gather_one(r, id, &entry, b + lead, err);
    if (rc) {
        zr_buffer_free(b);
        return rc;
    }
    *npy = dense ? dense_npy(r, b, nbytes) : ragged_npy(r, b, entry.logic_nbytes, nbytes);
    *block = b;
    return ZR_OK;
}
