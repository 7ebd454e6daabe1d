/* SPDX-License-Identifier: MIT
 *
 * Cold data: the ids of a batch are known, so all its reads are queued before
 * the first is waited for.  Queueing costs too, so a few records are asked for
 * first: if they are in the page cache, the batch is taken for warm.
 */
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

#define SAMPLE_MAX 4
#define SAMPLE_EACH 32     /* records: a look costs as much as copying two of 2 KiB */
#define RANGE_PAGES_MAX 64 /* of one record, looked at for residency */
/* A batch as quick as this came from memory, and of the next one record is looked at:
 * a look costs 0.5 us, a tenth of what a small batch takes in all. */
#define QUICK_RECORD_NSEC 1000
#define QUICK_NBYTES_PER_NSEC 1

struct span {
    uintptr_t start, end; /* page-aligned, inside the data mapping */
};

static bool record_span(const struct zr_reader *r, uint64_t id, uintptr_t page, struct span *s)
{
    struct zri_entry e;
    if (id >= r->header.length)
        return false;
    zri_entry_decode(&e, r->meta.bytes + zri_entry_off(id));
    if (zri_entry_check(&e, &r->header, r->schema.row_nbytes))
        return false;
    uintptr_t start = (uintptr_t)r->data.bytes + e.off;
    s->start = start & ~(page - 1);
    s->end = (start + e.phys_nbytes + page - 1) & ~(page - 1);
    return true;
}

static bool is_resident(struct span s, uintptr_t page)
{
    unsigned char state[RANGE_PAGES_MAX];
    size_t n = (s.end - s.start) / page;
    if (n > RANGE_PAGES_MAX)
        n = RANGE_PAGES_MAX;
    if (mincore((void *)s.start, n * page, state))
        return true; /* cannot tell: do nothing */
    for (size_t i = 0; i < n; i++)
        if (!(state[i] & 1))
            return false;
    return true;
}

static bool looks_warm(const struct zr_reader *r, const uint64_t *ids, size_t count, uintptr_t page,
                       size_t sample_max)
{
    size_t samples = (count - 1) / SAMPLE_EACH + 1;
    if (samples > sample_max)
        samples = sample_max;
    for (size_t k = 0; k < samples; k++) {
        struct span s;
        size_t at = samples > 1 ? (count - 1) / (samples - 1) * k : 0;
        if (record_span(r, ids[at], page, &s) && !is_resident(s, page))
            return false;
    }
    return true;
}

static void queue_reads(struct span s)
{
    if (s.end > s.start)
        madvise((void *)s.start, s.end - s.start, MADV_WILLNEED);
}

static size_t prefetch(struct zr_reader *r, const uint64_t *ids, size_t count, size_t sample_max)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    struct span s;
    if (!r->data.guard || !zri_file_mapped(&r->data) || !r->meta.bytes || count == 0)
        return 0;
    /* A single page is one read whoever starts it. */
    if (count == 1 && (!record_span(r, ids[0], page, &s) || s.end - s.start <= page))
        return 0;
    if (looks_warm(r, ids, count, page, sample_max))
        return 0;
    struct span run = {0, 0};
    size_t queued_count = 0;
    for (size_t i = 0; i < count; i++) {
        if (!record_span(r, ids[i], page, &s))
            continue;
        queued_count++;
        if (s.start <= run.end && s.end >= run.end && s.start >= run.start) {
            run.end = s.end; /* neighbours become one read */
        } else {
            queue_reads(run);
            run = s;
        }
    }
    queue_reads(run);
    return queued_count;
}

size_t zr_prefetch(struct zr_reader *r, const uint64_t *ids, size_t count)
{
    return prefetch(r, ids, count, SAMPLE_MAX);
}

void zri_prefetch_batch(struct zr_reader *r, const uint64_t *ids, size_t count)
{
    bool quick = atomic_load_explicit(&r->quick, memory_order_relaxed);
    prefetch(r, ids, count, quick ? 1 : SAMPLE_MAX);
}

int64_t zri_batch_start(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * (int64_t)1000000000 + t.tv_nsec;
}

void zri_batch_end(struct zr_reader *r, int64_t start_nsec, size_t count, uint64_t nbytes)
{
    int64_t spent = zri_batch_start() - start_nsec;
    int64_t allowed = (int64_t)(count * QUICK_RECORD_NSEC + nbytes / QUICK_NBYTES_PER_NSEC);
    atomic_store_explicit(&r->quick, spent < allowed, memory_order_relaxed);
}
