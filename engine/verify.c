/* SPDX-License-Identifier: MIT
 *
 * Verification: every record decoded and compared with its checksum, every
 * finding reported in order of record.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
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
    struct finding *findings; /* of the chunk, by record; under lock */
    bool out_of_memory;       /* under lock */
    _Atomic uint64_t stored_nbytes;
};

static void add_finding(struct verify *v, const struct zr_error *error)
{
    struct finding *f = malloc(sizeof *f);
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

static int check_record(struct verify *v, uint64_t id, struct zr_error *err)
{
    struct zri_entry entry;
    int rc = zri_reader_entry(v->r, id, &entry, err);
    if (rc)
        return rc;
    atomic_fetch_add(&v->stored_nbytes, entry.phys_nbytes);
    void *buf = zr_buffer_alloc(entry.logic_nbytes);
    if (!buf)
        return zri_fail_record(err, ZR_E_NOMEM, id, entry.off, "%s: out of memory", v->r->path);
    rc = zri_gather_one(v->r, id, &entry, buf, err);
    struct zri_side_row row;
    if (!rc && zri_reader_side_row(v->r, id, &row) &&
        row.sum != zri_checksum(buf, entry.logic_nbytes))
        rc = zri_fail_record(err, ZR_E_CHECKSUM, id, entry.off,
                             "%s/%s: record %" PRIu64 ": decoded bytes differ from the checksum",
                             v->r->path, ZRI_DATA_NAME, id);
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
        stop = report(v, finding, ctx, result) ||
               (progress && progress(ctx, v->first + n, length));
        if (v->out_of_memory)
            return zri_fail(err, ZR_E_NOMEM, "%s: out of memory", r->path);
    }
    if (!stop && atomic_load(&v->stored_nbytes) > r->header.tail_off) {
        char why[256];
        snprintf(why, sizeof why, "%.180s/%s: ranges of records overlap", r->path, ZRI_META_NAME);
        stop = !report_store(v, finding, ctx, result, why, ZR_E_CORRUPT);
    }
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
