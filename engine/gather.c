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

#include "internal.h"

/* Below these a second thread costs more to wake than it saves (measured on
 * 2 KiB records: 0.036 ms with one thread, 0.075 with two). */
#define AWAKE_PARALLEL_NBYTES ((uint64_t)64 << 10) /* with one that is awake anyway */
#define RAW_PARALLEL_NBYTES ((uint64_t)1 << 20)
#define ZSTD_PARALLEL_NBYTES ((uint64_t)64 << 10)
#define ZSTD_THREAD_NBYTES ((uint64_t)32 << 10)
#define TASKS_PER_THREAD 8
/* Each task begins with records that nobody pulled ahead: where a copy is all there is to
 * do, 16 tasks of 32 KiB took a fifth longer than 4. */
#define RAW_TASK_NBYTES ((uint64_t)128 << 10)
#define RAW_TASKS_PER_THREAD 2 /* at least, for a thread that comes late */

/* How far ahead table entries and payloads are pulled into the CPU's caches. */
#define ENTRY_AHEAD 6
#define PAYLOAD_AHEAD 3
#define PAYLOAD_AHEAD_NBYTES 1024 /* the CPU finds the rest of longer records by itself */
#define SINGLE_AHEAD_NBYTES 4096

#define MAX_PREFIX_NBYTES (8 * ((size_t)ZR_MAX_NDIM + 1))

struct gather {
    struct zr_reader *r;
    const uint64_t *ids;
    size_t count;
    uint8_t *out;
    const uint64_t *offsets;       /* Ragged: where each record goes; Dense: NULL */
    const uint64_t *shape_offsets; /* packed: where its dims go; else NULL */
    uint64_t *shapes;              /* packed */
    bool mapped;
    size_t task_count;

    pthread_mutex_t lock;
    size_t failed_at;      /* lowest position that failed; under lock */
    int rc;                /* under lock */
    struct zr_error error; /* of the position that failed; under lock */
    atomic_bool failed;    /* others may stop */
    atomic_bool surprised; /* a record is not what the plan says */
};

/* What one thread places, one after the other. */
struct span {
    struct gather *g;
    size_t begin, end;
    uint8_t *scratch; /* for one record at a time, of the longest so far */
    size_t scratch_nbytes;
    struct zri_stretch stretch; /* of records that no mapping shows */
};

/* ---------------------------------------------------------------- batches */

static void record_failure(struct gather *g, size_t at, int rc, const struct zr_error *err)
{
    atomic_store(&g->failed, true);
    pthread_mutex_lock(&g->lock);
    if (!g->rc || at < g->failed_at) {
        g->rc = rc;
        g->failed_at = at;
        g->error = *err;
    }
    pthread_mutex_unlock(&g->lock);
}

static inline void pull(const struct zr_reader *r, uint64_t off, size_t nbytes)
{
    if (off >= r->data.nbytes)
        return;
    for (size_t k = 0; k < nbytes; k += 64) {
        __builtin_prefetch(r->data.bytes + off + k);
        __asm__ volatile(""); /* GCC drops a loop of prefetches alone */
    }
}

static inline void pull_payload(const struct zr_reader *r, uint64_t id)
{
    struct zri_entry e;
    zri_entry_decode(&e, r->meta.bytes + zri_entry_off(id));
    pull(r, e.off, e.phys_nbytes < PAYLOAD_AHEAD_NBYTES ? e.phys_nbytes : PAYLOAD_AHEAD_NBYTES);
}

static inline void pull_ahead(const struct gather *g, size_t i, size_t end)
{
    const struct zr_reader *r = g->r;
    if (i + ENTRY_AHEAD < end)
        __builtin_prefetch(r->meta.bytes + zri_entry_off(g->ids[i + ENTRY_AHEAD]));
    if (i + PAYLOAD_AHEAD < end)
        pull_payload(r, g->ids[i + PAYLOAD_AHEAD]);
}

/* The first records of a span have none before them that could. */
static void pull_first(const struct gather *g, size_t begin, size_t end)
{
    for (size_t i = begin; i < end && i < begin + ENTRY_AHEAD; i++)
        __builtin_prefetch(g->r->meta.bytes + zri_entry_off(g->ids[i]));
    for (size_t i = begin; i < end && i < begin + PAYLOAD_AHEAD; i++)
        pull_payload(g->r, g->ids[i]);
}

/* A record that is alone has none before it that could pull it.  Rows lie in order where
 * one append after the other wrote them: then its bytes arrive together with its entry,
 * not after it. */
static void pull_single(const struct zr_reader *r, uint64_t id)
{
    if (r->header.codec != ZR_RAW || !zri_file_mapped(&r->data) || !r->meta.bytes)
        return;
    __builtin_prefetch(r->meta.bytes + zri_entry_off(id));
    uint64_t row = r->schema.row_nbytes;
    pull(r, id * row, row < SINGLE_AHEAD_NBYTES ? row : SINGLE_AHEAD_NBYTES);
}

/* The whole record, shape prefix and all, to its place. */
static int place_whole(const struct gather *g, size_t i, const struct zri_entry *entry,
                       const uint8_t *stored, struct zr_error *err)
{
    const struct zr_reader *r = g->r;
    uint64_t off = g->offsets ? g->offsets[i] : i * r->schema.row_nbytes;
    /* The offsets came from a plan: an entry that grew since would overrun. */
    if (g->offsets && entry->logic_nbytes > g->offsets[i + 1] - off)
        return zri_record_damaged(r, g->ids[i], entry->off, ZR_E_BUFFER,
                                  "its size changed since the plan", err);
    return zri_record_decode(r, g->ids[i], entry, stored, g->out + off, err);
}

static inline uint64_t packed_nbytes(const struct gather *g, size_t i)
{
    return g->offsets[i + 1] - g->offsets[i];
}

static inline uint64_t prefix_nbytes(const struct gather *g, size_t i)
{
    return 8 * (g->shape_offsets[i + 1] - g->shape_offsets[i] + 1);
}

/* false: the record is of another shape than planned. */
static inline bool copy_prefix(struct gather *g, size_t i, const uint8_t *record,
                               uint64_t logic_nbytes)
{
    uint64_t found, first = g->shape_offsets[i], ndim = g->shape_offsets[i + 1] - first;
    for (uint64_t k = 0; k < ndim; k++) /* a call for one or two words costs more */
        memcpy(g->shapes + first + k, record + 8 + 8 * k, sizeof *g->shapes);
    memcpy(&found, record, sizeof found);
    return found == ndim && !zri_ragged_check(&g->r->schema, record, logic_nbytes);
}

/* Prefix and payload to their two places, by the plan's word for where the one
 * ends: sizes that only the record tells would stall the copy until it arrives.
 * false: the record is of another shape. */
static inline bool copy_packed(struct gather *g, size_t i, const uint8_t *record,
                               uint64_t logic_nbytes)
{
    uint64_t prefix = prefix_nbytes(g, i), data = packed_nbytes(g, i);
    if (prefix + data != logic_nbytes)
        return false;
    memcpy(g->out + g->offsets[i], record + prefix, data);
    return copy_prefix(g, i, record, logic_nbytes);
}

static bool scratch_grow(struct span *s, size_t nbytes)
{
    if (nbytes > s->scratch_nbytes) {
        zr_buffer_free(s->scratch);
        s->scratch = zr_buffer_alloc(nbytes);
        s->scratch_nbytes = s->scratch ? nbytes : 0;
    }
    return s->scratch;
}

/* Decoded where it goes, its prefix over the end of what the same thread has placed
 * before, which is put back: a copy of every byte less. */
static int place_over(struct gather *g, size_t i, const struct zri_entry *entry,
                      const uint8_t *stored, struct zr_error *err, bool *fits)
{
    uint8_t covered[MAX_PREFIX_NBYTES];
    uint64_t prefix = prefix_nbytes(g, i);
    uint8_t *record = g->out + g->offsets[i] - prefix;
    memcpy(covered, record, prefix);
    int rc = zri_record_decode(g->r, g->ids[i], entry, stored, record, err);
    *fits = rc || copy_prefix(g, i, record, entry->logic_nbytes);
    memcpy(record, covered, prefix);
    return rc;
}

static int place_aside(struct span *s, size_t i, const struct zri_entry *entry,
                       const uint8_t *stored, struct zr_error *err, bool *fits)
{
    struct gather *g = s->g;
    const struct zr_reader *r = g->r;
    if (!scratch_grow(s, entry->logic_nbytes))
        return zri_fail_record(err, ZR_E_NOMEM, g->ids[i], entry->off, "%s: out of memory",
                               r->path);
    int rc = zri_record_decode(r, g->ids[i], entry, stored, s->scratch, err);
    *fits = rc || copy_packed(g, i, s->scratch, entry->logic_nbytes);
    return rc;
}

static int place_packed(struct span *s, size_t i, const struct zri_entry *entry,
                        const uint8_t *stored, struct zr_error *err)
{
    struct gather *g = s->g;
    uint64_t prefix = prefix_nbytes(g, i);
    uint64_t behind = g->offsets[i] - g->offsets[s->begin]; /* bytes before are another span's */
    bool fits, over = prefix <= MAX_PREFIX_NBYTES && behind >= prefix &&
                      prefix + packed_nbytes(g, i) == entry->logic_nbytes;
    int rc = over ? place_over(g, i, entry, stored, err, &fits)
                  : place_aside(s, i, entry, stored, err, &fits);
    if (rc || fits)
        return rc;
    atomic_store(&g->surprised, true);
    return zri_record_damaged(g->r, g->ids[i], entry->off, ZR_E_CORRUPT,
                              "its shape is not what the sidecar or the plan says", err);
}

/* Where a raw row goes and can be read to; NULL: it is to be decoded, or looked at first. */
static uint8_t *row_place(const struct gather *g, size_t i)
{
    bool is_row = !g->offsets && g->r->header.codec == ZR_RAW;
    return is_row ? g->out + i * g->r->schema.row_nbytes : NULL;
}

/* The table entry of a record, and its stored bytes, where mapped or read with others. */
static int find_stored(struct span *s, size_t i, struct zri_entry *entry, const uint8_t **stored,
                       struct zr_error *err)
{
    const struct gather *g = s->g;
    if (!zri_stretch_has(&s->stretch, i)) {
        int rc = zri_reader_entry(g->r, g->ids[i], entry, err);
        if (rc)
            return rc;
        if (g->mapped && zri_reader_maps(g->r, entry)) {
            *stored = g->r->data.bytes + entry->off;
            return ZR_OK;
        }
        zri_stretch_read(&s->stretch, g->r, g->ids, i, s->end, entry, g->mapped, row_place(g, i));
    }
    *entry = s->stretch.entries[i - s->stretch.first];
    *stored = zri_stretch_bytes(&s->stretch, i);
    return ZR_OK;
}

static int place(struct span *s, size_t i, struct zr_error *err)
{
    struct zri_entry entry;
    const uint8_t *stored;
    int rc = find_stored(s, i, &entry, &stored, err);
    if (rc)
        return rc;
    return s->g->shapes ? place_packed(s, i, &entry, stored, err)
                        : place_whole(s->g, i, &entry, stored, err);
}

/* What place does, for a raw record through the mapping that is as it should be:
 * a gather of small records is as fast as this is short.  false: nothing is said
 * of the record, place finds what is wrong. */
static inline bool copy_mapped(struct gather *g, size_t i)
{
    const struct zr_reader *r = g->r;
    struct zri_entry e;
    zri_entry_decode(&e, r->meta.bytes + zri_entry_off(g->ids[i]));
    if (!zri_reader_maps(r, &e) || e.phys_nbytes != e.logic_nbytes)
        return false;
    const uint8_t *record = r->data.bytes + e.off;
    if (!g->offsets) {
        if (e.logic_nbytes != r->schema.row_nbytes)
            return false;
        memcpy(g->out + i * r->schema.row_nbytes, record, r->schema.row_nbytes);
        return true;
    }
    uint64_t nbytes = packed_nbytes(g, i);
    if (g->shapes)
        return copy_packed(g, i, record, e.logic_nbytes);
    if (e.logic_nbytes > nbytes || e.logic_nbytes <= 8)
        return false;
    memcpy(g->out + g->offsets[i], record, e.logic_nbytes);
    return !zri_ragged_check(&r->schema, record, e.logic_nbytes);
}

/* Field by field: the entries of a stretch are many. */
static void span_begin(struct span *s, struct gather *g, size_t begin, size_t end)
{
    s->g = g;
    s->begin = begin;
    s->end = end;
    s->scratch = NULL;
    s->scratch_nbytes = 0;
    zri_stretch_begin(&s->stretch);
}

/* Positions [begin, end), up to the first failure. */
static void gather_span(struct gather *g, size_t begin, size_t end)
{
    const struct zr_reader *r = g->r;
    struct zr_error err;
    struct span s;
    span_begin(&s, g, begin, end);
    bool ahead = g->mapped && r->meta.bytes;
    bool copies = ahead && r->header.codec == ZR_RAW && !r->check_sums;
    if (ahead)
        pull_first(g, begin, end);
    for (size_t i = begin; i < end && !atomic_load_explicit(&g->failed, memory_order_relaxed);
         i++) {
        if (ahead)
            pull_ahead(g, i, end);
        if (copies && copy_mapped(g, i))
            continue;
        int rc = place(&s, i, &err);
        if (rc)
            record_failure(g, i, rc, &err);
    }
    zr_buffer_free(s.scratch);
    zri_stretch_end(&s.stretch);
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
    if (r->header.codec == ZR_RAW ? nbytes < RAW_PARALLEL_NBYTES : nbytes < ZSTD_PARALLEL_NBYTES)
        return nbytes < AWAKE_PARALLEL_NBYTES ? 1 : 1 + zri_awake_threads();
    if (r->header.codec == ZR_RAW)
        return (unsigned)n;
    return (unsigned)(nbytes / ZSTD_THREAD_NBYTES < n ? nbytes / ZSTD_THREAD_NBYTES : n);
}

static size_t choose_tasks(const struct gather *g, unsigned thread_count, uint64_t nbytes)
{
    size_t count = (size_t)thread_count * TASKS_PER_THREAD;
    size_t least = (size_t)thread_count * RAW_TASKS_PER_THREAD;
    if (g->r->header.codec == ZR_RAW && nbytes / RAW_TASK_NBYTES < count)
        count = nbytes / RAW_TASK_NBYTES > least ? (size_t)(nbytes / RAW_TASK_NBYTES) : least;
    return count < g->count ? count : g->count;
}

static int run(struct gather *g, unsigned thread_count, bool mapped)
{
    g->mapped = mapped;
    g->rc = ZR_OK;
    atomic_store(&g->failed, false);
    atomic_store(&g->surprised, false);
    if (thread_count <= 1) {
        gather_span(g, 0, g->count);
        return g->rc;
    }
    zri_parallel(g->task_count, thread_count, gather_task, g);
    return g->rc;
}

/* g with its inputs and outputs set; nbytes decides on threads. */
static int gather(struct gather *g, uint64_t nbytes, struct zr_error *err)
{
    struct zr_reader *r = g->r;
    unsigned threads = choose_threads(r, nbytes, g->count);
    g->task_count = choose_tasks(g, threads, nbytes);
    pthread_mutex_init(&g->lock, NULL);
    bool mapped = zri_file_mapped(&r->data);
    bool times = g->count > 1; /* of one record the look is the same either way */
    int64_t start = times ? zri_batch_start() : 0;
    int rc = run(g, threads, mapped);
    if (times)
        zri_batch_end(r, start, g->count, nbytes);
    if (mapped && !zri_file_trusted(&r->data))
        rc = run(g, threads, false);
    pthread_mutex_destroy(&g->lock);
    return rc ? zri_fail_as(err, &g->error) : ZR_OK;
}

int zri_check_geometry(const struct zr_reader *r, int geometry, struct zr_error *err)
{
    if (r->schema.geometry == geometry)
        return ZR_OK;
    return zri_fail(err, ZR_E_GEOMETRY, "%s: the store is %s, not %s", r->path,
                    zr_geometry_name(r->schema.geometry), zr_geometry_name(geometry));
}

int zr_gather_dense(struct zr_reader *r, const uint64_t *ids, size_t count, void *out,
                    size_t out_nbytes, struct zr_error *err)
{
    int rc = zri_check_geometry(r, ZR_DENSE, err);
    if (!rc)
        rc = zri_check_ids(r, ids, count, err);
    if (rc || count == 0)
        return rc;
    uint64_t nbytes;
    if (__builtin_mul_overflow(r->schema.row_nbytes, (uint64_t)count, &nbytes) ||
        nbytes > out_nbytes)
        return zri_fail(err, ZR_E_BUFFER, "%s: %zu records do not fit into %zu bytes", r->path,
                        count, out_nbytes);
    if (count == 1)
        pull_single(r, *ids);
    zri_prefetch_batch(r, ids, count);
    struct gather g = {.r = r, .ids = ids, .count = count, .out = out};
    return gather(&g, nbytes, err);
}

int zr_gather_ragged_plan(struct zr_reader *r, const uint64_t *ids, size_t count, uint64_t *offsets,
                          struct zr_error *err)
{
    int rc = zri_check_geometry(r, ZR_RAGGED, err);
    if (!rc)
        rc = zri_check_ids(r, ids, count, err);
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
    int rc = zri_check_geometry(r, ZR_RAGGED, err);
    if (!rc)
        rc = zri_check_ids(r, ids, count, err);
    if (rc || count == 0)
        return rc;
    zri_prefetch_batch(r, ids, count);
    struct gather g = {.r = r, .ids = ids, .count = count, .out = out, .offsets = offsets};
    return gather(&g, offsets[count], err);
}

int zri_gather_split(struct zr_reader *r, const uint64_t *ids, size_t count,
                     const struct zr_part *p, bool *surprised, struct zr_error *err)
{
    struct gather g = {.r = r,
                       .ids = ids,
                       .count = count,
                       .out = p->data,
                       .offsets = p->offsets,
                       .shape_offsets = p->shape_offsets,
                       .shapes = p->shapes};
    int rc = gather(&g, p->nbytes, err);
    *surprised = atomic_load(&g.surprised);
    return rc;
}
