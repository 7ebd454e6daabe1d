/* SPDX-License-Identifier: MIT
 *
 * Verification: every record decoded and compared with its checksum, every
 * finding reported in order of record; then whether ranges of records overlap.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>

#include "internal.h"

#define CHUNK_COUNT 4096
#define PARALLEL_NBYTES ((uint64_t)256 << 10)

struct finding {
    struct zr_error error;
    struct finding *next;
};

struct verify {
    struct zr_reader *r;
    uint64_t first; /* of the chunk */
    pthread_mutex_t lock;
    struct finding *findings;      /* of the chunk, by record; under lock */
    bool out_of_memory;            /* under lock */
    _Atomic uint64_t starts, ends; /* sums over the records' ranges, see tiles_data() */
};

/* Spreads neighbouring offsets over all 64 bits, so that sums of them tell sets
 * apart. */
static uint64_t scatter(uint64_t off)
{
    return zri_checksum(&off, sizeof off);
}

/* Memory that runs out says nothing of the store: it ends the verification. */
static void add_finding(struct verify *v, const struct zr_error *error)
{
    struct finding *f = error->code == ZR_E_NOMEM ? NULL : malloc(sizeof *f);
    pthread_mutex_lock(&v->lock);
    if (f) {
        f->error = *error;
        struct finding **p = &v->findings;
        while (*p && (*p)->error.record < error->record)
            p = &(*p)->next;
        f->next = *p;
        *p = f;
    } else {
        v->out_of_memory = true;
    }
    pthread_mutex_unlock(&v->lock);
}

/* What the sidecar tells of a decoded record. */
static int check_side_row(const struct zr_reader *r, uint64_t id, const struct zri_entry *entry,
                          const void *record, struct zr_error *err)
{
    struct zri_side_row row;
    struct zr_record_view view;
    if (!zri_reader_side_row(r, id, &row))
        return ZR_OK;
    if (row.sum != zri_record_sum(record, entry->logic_nbytes))
        return zri_record_damaged(r, id, entry->off, ZR_E_CHECKSUM,
                                  "decoded bytes differ from the checksum", err);
    if (r->schema.geometry == ZR_DENSE)
        return ZR_OK;
    zr_record_split(record, entry->logic_nbytes, &view);
    size_t header_nbytes = zri_npy_header_nbytes(r->schema.dtype, view.ndim, view.shape);
    if (header_nbytes > ZRI_SIDE_NPY_MAX_NBYTES
            ? row.npy_header_nbytes == 0
            : row.npy_header_nbytes == header_nbytes && row.ndim == view.ndim)
        return ZR_OK;
    return zri_fail_record(err, ZR_E_CORRUPT, id, ZRI_NO_OFFSET,
                           "%s/%s: record %" PRIu64 ": its row tells of another shape", r->path,
                           ZRI_SIDE_NAME, id);
}

static int check_record(struct verify *v, uint64_t id, struct zr_error *err)
{
    struct zri_entry entry;
    int rc = zri_reader_entry(v->r, id, &entry, err);
    if (rc)
        return rc;
    atomic_fetch_add(&v->starts, scatter(entry.off));
    atomic_fetch_add(&v->ends, scatter(entry.off + entry.phys_nbytes));
    void *buf = zr_buffer_alloc(entry.logic_nbytes);
    if (!buf)
        return zri_fail_record(err, ZR_E_NOMEM, id, entry.off, "%s: out of memory", v->r->path);
    rc = zri_gather_one(v->r, id, &entry, buf, err);
    if (!rc)
        rc = check_side_row(v->r, id, &entry, buf, err);
    zr_buffer_free(buf);
    return rc;
}

static void check_task(void *ctx, size_t i)
{
    struct verify *v = ctx;
    struct zr_error err;
    uint64_t id = v->first + i;
    if (check_record(v, id, &err)) {
        err.record = id;
        add_finding(v, &err);
    }
}

static int report(struct verify *v, zr_finding_fn finding, void *ctx,
                  struct zr_verify_result *result)
{
    int stop = 0;
    while (v->findings) {
        struct finding *f = v->findings;
        v->findings = f->next;
        result->bad_count++;
        if (!stop && finding)
            stop = finding(ctx, &f->error);
        free(f);
    }
    return stop;
}

/* Faults of the store as a whole; false when the callback stops. */
static bool report_store(struct verify *v, zr_finding_fn finding, void *ctx,
                         struct zr_verify_result *result, const char *why, int code)
{
    struct zr_error error;
    zri_fail(&error, code, "%s", why);
    result->bad_count++;
    (void)v;
    return !finding || !finding(ctx, &error);
}

/* ---------------------------------------------------------------- ranges
 * Records that fill data.zr end to end, as every writer leaves it, are known not
 * to overlap from two sums: if the starts and the end of the file are the same
 * numbers as the ends and 0, the ranges are one chain from 0 to the end.  Only
 * where that fails are they sorted. */

static bool tiles_data(const struct verify *v)
{
    return atomic_load(&v->starts) + scatter(v->r->header.tail_off) ==
           atomic_load(&v->ends) + scatter(0);
}

struct range {
    uint64_t start, end, id;
};

static int by_start(const void *a, const void *b)
{
    const struct range *x = a, *y = b;
    return x->start != y->start ? (x->start < y->start ? -1 : 1)
           : x->id < y->id      ? -1
                                : x->id > y->id;
}

static bool report_overlap(struct verify *v, zr_finding_fn finding, void *ctx,
                           struct zr_verify_result *result, uint64_t a, uint64_t b)
{
    struct zr_error error;
    zri_fail(&error, ZR_E_CORRUPT,
             "%s/%s: the ranges of records %" PRIu64 " and %" PRIu64 " overlap", v->r->path,
             ZRI_META_NAME, a, b);
    result->bad_count++;
    return !finding || !finding(ctx, &error);
}

/* Those with a sound entry; the others were found before. */
static size_t load_ranges(const struct zr_reader *r, struct range *ranges)
{
    size_t count = 0;
    for (uint64_t id = 0; id < r->header.length; id++) {
        struct zri_entry e;
        if (zri_reader_entry(r, id, &e, NULL) == ZR_OK)
            ranges[count++] = (struct range){e.off, e.off + e.phys_nbytes, id};
    }
    return count;
}

/* Sets *stop when the callback wants no more. */
static int check_ranges(struct verify *v, zr_finding_fn finding, void *ctx,
                        struct zr_verify_result *result, bool *stop, struct zr_error *err)
{
    if (tiles_data(v))
        return ZR_OK;
    struct range *ranges = malloc(v->r->header.length * sizeof *ranges);
    if (!ranges)
        return zri_fail(err, ZR_E_NOMEM, "%s: out of memory", v->r->path);
    size_t count = load_ranges(v->r, ranges), last = 0;
    qsort(ranges, count, sizeof *ranges, by_start);
    for (size_t i = 1; i < count && !*stop; i++) {
        if (ranges[i].start < ranges[last].end)
            *stop = !report_overlap(v, finding, ctx, result, ranges[last].id, ranges[i].id);
        if (ranges[i].end > ranges[last].end)
            last = i;
    }
    free(ranges);
    return ZR_OK;
}

static int check_all(struct verify *v, zr_finding_fn finding, zr_progress_fn progress, void *ctx,
                     struct zr_verify_result *result, struct zr_error *err)
{
    struct zr_reader *r = v->r;
    uint64_t length = r->header.length;
    bool stop = r->warning && !report_store(v, finding, ctx, result, r->warning, ZR_E_FORMAT);
    uint64_t mean = length ? r->header.tail_off / length : 0;
    uint64_t per = mean > PARALLEL_NBYTES ? 64 : CHUNK_COUNT;
    for (v->first = 0; !stop && v->first < length; v->first += per) {
        uint64_t n = length - v->first < per ? length - v->first : per;
        zri_parallel(n, zr_thread_count(), check_task, v);
        result->checked_count += n;
        stop = report(v, finding, ctx, result) || (progress && progress(ctx, v->first + n, length));
        if (v->out_of_memory)
            return zri_fail(err, ZR_E_NOMEM, "%s: out of memory", r->path);
    }
    int rc = stop || !length ? ZR_OK : check_ranges(v, finding, ctx, result, &stop, err);
    if (rc)
        return rc;
    return stop ? zri_fail(err, ZR_E_CANCELLED, "%s: verification stopped", r->path) : ZR_OK;
}

int zr_verify(struct zr_reader *r, zr_finding_fn finding, zr_progress_fn progress, void *ctx,
              struct zr_verify_result *result, struct zr_error *err)
{
    struct verify v = {.r = r, .lock = PTHREAD_MUTEX_INITIALIZER};
    struct zr_verify_result found = {.checksums_compared = r->has_sidecar};
    int rc = check_all(&v, finding, progress, ctx, &found, err);
    if (result)
        *result = found;
    return rc;
}
