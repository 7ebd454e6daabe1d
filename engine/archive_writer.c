/* SPDX-License-Identifier: MIT
 *
 * Archives written in parallel.  All sizes are known before the first byte, so
 * the whole file is laid out first: where each header, payload and the
 * directory go. Then it is cut into tasks that write with positional writes.
 *
 *  - A run: neighbouring small members, put together in memory, one write.
 *  - A piece of a large payload, straight from the source; its header follows
 * when the CRCs of all pieces are joined.
 *  - A large payload of zeros is a hole, and its CRC is arithmetic.
 *
 * Compressed payloads get their sizes by compressing, so those go in batches:
 * compress in parallel, lay out, write in parallel, next batch.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "archive.h"
#include "archive_output.h"

#define ALIGN_NBYTES 64
#define RUN_NBYTES ((uint64_t)1 << 20)     /* of members written together */
#define LARGE_NBYTES ((uint64_t)256 << 10) /* payloads from this size go in pieces */
#define PIECE_NBYTES ((uint64_t)4 << 20)
#define BATCH_NBYTES ((uint64_t)64 << 20)
#define SERIAL_NBYTES ((uint64_t)256 << 10)

struct part {
    size_t first, last;   /* members of a run; of a piece: first alone */
    uint64_t off, nbytes; /* of a piece, in its payload */
    uint32_t crc;         /* of a piece */
    bool is_piece;
};

struct writer {
    const struct zr_archive_source *sources;
    size_t count;
    struct zr_archive_save_options options;
    struct zri_output out;
    int method;
    struct zri_zip_member *members;
    void **packed; /* compressed payloads of the batch; NULL: stored */
    struct part *parts;
    size_t part_count, part_capacity;
    uint64_t end_off;       /* where the next header goes */
    uint64_t total_nbytes;  /* of sources */
    struct zri_turns turns; /* to write pieces */
    pthread_mutex_t lock;
    struct zr_error error; /* the first one; under lock */
    atomic_bool failed;
    struct zri_watch watch; /* done: bytes of sources that are written */
    size_t batch_first;
};

static void keep_error(struct writer *w, const struct zr_error *error)
{
    pthread_mutex_lock(&w->lock);
    if (!atomic_exchange(&w->failed, true))
        w->error = *error;
    pthread_mutex_unlock(&w->lock);
}

static int no_memory(const struct writer *w, struct zr_error *err)
{
    return zri_fail(err, ZR_E_NOMEM, "%s: out of memory", w->out.path);
}

static int write_failed(const struct writer *w, int e, struct zr_error *err)
{
    return zri_fail_errno(err, e, "%s: cannot write", w->out.path);
}

/* ---------------------------------------------------------------- sources */

static bool is_zeros(const struct zr_archive_source *s)
{
    return !s->data && !s->fill;
}

/* Part of a payload as it is in the source. */
static int get_bytes(const struct zr_archive_source *s, uint64_t off, void *buf, size_t nbytes,
                     struct zr_error *err)
{
    if (s->fill)
        return s->fill(s->fill_ctx, off, buf, nbytes, err);
    if (s->data)
        memcpy(buf, (const uint8_t *)s->data + off, nbytes);
    else
        memset(buf, 0, nbytes);
    return ZR_OK;
}

/* ---------------------------------------------------------------- layout */

static void init_member(const struct writer *w, size_t i, uint16_t dos_time, uint16_t dos_date)
{
    const struct zr_archive_source *s = &w->sources[i];
    w->members[i] = (struct zri_zip_member){
        .name = s->name,
        .name_nbytes = (uint16_t)strlen(s->name),
        .method = (uint16_t)(s->is_payload ? w->method : ZRI_ZIP_STORED),
        .dos_time = dos_time,
        .dos_date = dos_date,
        .nbytes = s->nbytes,
        .stored_nbytes = s->nbytes,
    };
}

/* Gives the member its place. */
static void place_member(struct writer *w, size_t i)
{
    struct zri_zip_member *m = &w->members[i];
    m->header_off = w->end_off;
    if (w->sources[i].is_payload && m->method == ZRI_ZIP_STORED)
        zri_zip_align(m, ALIGN_NBYTES);
    w->end_off += zri_zip_local_nbytes(m) + m->stored_nbytes;
}

static bool is_large(const struct writer *w, size_t i)
{
    return w->members[i].method == ZRI_ZIP_STORED && w->members[i].nbytes >= LARGE_NBYTES;
}

static struct part *add_part(struct writer *w)
{
    if (w->part_count == w->part_capacity) {
        size_t capacity = w->part_capacity ? w->part_capacity * 2 : 64;
        struct part *more = realloc(w->parts, capacity * sizeof *more);
        if (!more)
            return NULL;
        w->parts = more;
        w->part_capacity = capacity;
    }
    return &w->parts[w->part_count++];
}

/* Pieces end at multiples of their size in the file: whole large folios of the
 * page cache, which are mapped with fewer faults. */
static bool add_pieces(struct writer *w, size_t i)
{
    const struct zri_zip_member *m = &w->members[i];
    uint64_t start = m->header_off + zri_zip_local_nbytes(m), n;
    if (is_zeros(&w->sources[i]))
        return true;
    for (uint64_t off = 0; off < m->nbytes; off += n) {
        struct part *p = add_part(w);
        if (!p)
            return false;
        n = PIECE_NBYTES - (start + off) % PIECE_NBYTES;
        n = n < m->nbytes - off ? n : m->nbytes - off;
        *p = (struct part){.first = i, .off = off, .nbytes = n, .is_piece = true};
    }
    return true;
}

/* Cuts members [first, last), which have their places, into parts. */
static int cut(struct writer *w, size_t first, size_t last, struct zr_error *err)
{
    w->part_count = 0;
    for (size_t i = first; i < last;) {
        if (is_large(w, i)) {
            if (!add_pieces(w, i++))
                return no_memory(w, err);
            continue;
        }
        struct part *p = add_part(w);
        if (!p)
            return no_memory(w, err);
        uint64_t start = w->members[i].header_off;
        size_t run = i;
        do
            run++;
        while (run < last && !is_large(w, run) &&
               w->members[run].header_off + zri_zip_local_nbytes(&w->members[run]) +
                       w->members[run].stored_nbytes - start <=
                   RUN_NBYTES);
        *p = (struct part){.first = i, .last = run};
        i = run;
    }
    return ZR_OK;
}

/* ---------------------------------------------------------------- writing */

static int write_run(struct writer *w, const struct part *p, struct zr_error *err)
{
    const struct zri_zip_member *last = &w->members[p->last - 1];
    uint64_t start = w->members[p->first].header_off;
    size_t nbytes =
        (size_t)(last->header_off + zri_zip_local_nbytes(last) + last->stored_nbytes - start);
    uint8_t *buf = zr_buffer_alloc(nbytes), *at = buf;
    if (!buf)
        return no_memory(w, err);
    int rc = ZR_OK;
    for (size_t i = p->first; !rc && i < p->last; i++) {
        struct zri_zip_member *m = &w->members[i];
        uint8_t *payload = at + zri_zip_local_nbytes(m);
        if (w->packed && w->packed[i - w->batch_first]) { /* its CRC is known */
            memcpy(payload, w->packed[i - w->batch_first], (size_t)m->stored_nbytes);
        } else {
            rc = get_bytes(&w->sources[i], 0, payload, (size_t)m->nbytes, err);
            m->crc = zri_crc32(0, payload, (size_t)m->nbytes);
        }
        zri_zip_local_write(m, at);
        at = payload + m->stored_nbytes;
    }
    int e = rc ? 0 : zri_write_full(w->out.fd, buf, nbytes, start);
    zr_buffer_free(buf);
    return e ? write_failed(w, e, err) : rc;
}

static void add_to_crc(void *ctx, const uint8_t *bytes, size_t nbytes)
{
    struct part *p = ctx;
    p->crc = zri_crc32(p->crc, bytes, nbytes);
}

static int write_bytes(struct writer *w, struct part *p, const uint8_t *bytes, uint64_t to,
                       struct zr_error *err)
{
    const struct zri_part part = {bytes, (size_t)p->nbytes, to, add_to_crc, p};
    p->crc = 0;
    int e = zri_turns_write(&w->turns, &part);
    return e ? write_failed(w, e, err) : ZR_OK;
}

static int write_piece(struct writer *w, struct part *p, struct zr_error *err)
{
    const struct zr_archive_source *s = &w->sources[p->first];
    const struct zri_zip_member *m = &w->members[p->first];
    uint64_t to = m->header_off + zri_zip_local_nbytes(m) + p->off;
    if (s->data)
        return write_bytes(w, p, (const uint8_t *)s->data + p->off, to, err);
    void *buf = zr_buffer_alloc((size_t)p->nbytes);
    if (!buf)
        return no_memory(w, err);
    int rc = get_bytes(s, p->off, buf, (size_t)p->nbytes, err);
    if (!rc)
        rc = write_bytes(w, p, buf, to, err);
    zr_buffer_free(buf);
    return rc;
}

static uint64_t part_nbytes(const struct writer *w, const struct part *p)
{
    uint64_t n = p->nbytes;
    for (size_t i = p->first; !p->is_piece && i < p->last; i++)
        n += w->members[i].nbytes;
    return n;
}

static void write_task(void *ctx, size_t i)
{
    struct writer *w = ctx;
    struct part *p = &w->parts[i];
    struct zr_error error;
    if (atomic_load(&w->failed) || zri_watch_look(&w->watch))
        return;
    if (p->is_piece ? write_piece(w, p, &error) : write_run(w, p, &error))
        keep_error(w, &error);
    atomic_fetch_add(&w->watch.done, part_nbytes(w, p));
}

static int report_progress(struct writer *w, struct zr_error *err)
{
    if (zri_watch_ask(&w->watch))
        return zri_fail(err, ZR_E_CANCELLED, "%s: cancelled", w->out.path);
    return ZR_OK;
}

struct tasks {
    struct writer *w;
    zri_task_fn fn;
    size_t first;
};

static void offset_task(void *ctx, size_t i)
{
    struct tasks *t = ctx;
    t->fn(t->w, t->first + i);
}

/* All tasks, in rounds while somebody watches. */
static int run_tasks(struct writer *w, size_t count, zri_task_fn fn, uint64_t nbytes,
                     struct zr_error *err)
{
    unsigned threads = nbytes < SERIAL_NBYTES    ? 1
                       : w->options.thread_count ? w->options.thread_count
                                                 : zr_thread_count();
    size_t round = w->options.progress ? 8 * (size_t)threads : count;
    int rc = ZR_OK;
    for (size_t first = 0; !rc && first < count; first += round) {
        struct tasks t = {w, fn, first};
        size_t n = count - first < round ? count - first : round;
        zri_watch_parallel(&w->watch, n, threads, offset_task, &t);
        rc = report_progress(w, err);
        if (!rc && atomic_load(&w->failed))
            rc = zri_fail_as(err, &w->error);
    }
    return rc;
}

/* Headers of large members, whose CRCs are known now. */
static int write_large_headers(struct writer *w, size_t first, size_t last, struct zr_error *err)
{
    uint8_t few[4096];
    size_t part = 0;
    for (size_t i = first; i < last; i++) {
        struct zri_zip_member *m = &w->members[i];
        if (!is_large(w, i))
            continue;
        while (part < w->part_count && w->parts[part].first < i)
            part++;
        m->crc = is_zeros(&w->sources[i]) ? zri_crc32_zeros(m->nbytes) : 0;
        for (; part < w->part_count && w->parts[part].first == i && w->parts[part].is_piece; part++)
            m->crc = zri_crc32_join(m->crc, w->parts[part].crc, w->parts[part].nbytes);
        size_t nbytes = zri_zip_local_nbytes(m);
        uint8_t *header = nbytes <= sizeof few ? few : malloc(nbytes);
        if (!header)
            return no_memory(w, err);
        zri_zip_local_write(m, header);
        int e = zri_write_full(w->out.fd, header, nbytes, m->header_off);
        if (header != few)
            free(header);
        if (e)
            return write_failed(w, e, err);
    }
    return ZR_OK;
}

static int reserve_space(struct writer *w, uint64_t from, struct zr_error *err)
{
    bool holes = false, reserved = false;
    for (size_t i = 0; i < w->count; i++)
        holes |= is_large(w, i) && is_zeros(&w->sources[i]);
    int e = 0;
    if (!holes)
        e = zri_preallocate(w->out.fd, from, w->end_off - from, &reserved);
    else if (ftruncate(w->out.fd, (off_t)w->end_off))
        e = errno;
    zri_turns_init(&w->turns, w->out.fd, reserved);
    return e ? write_failed(w, e, err) : ZR_OK;
}

/* ---------------------------------------------------------------- batches */

static const char *pack_member(struct writer *w, size_t i, struct zr_error *err, int *rc)
{
    const struct zr_archive_source *s = &w->sources[i];
    struct zri_zip_member *m = &w->members[i];
    void *copy = NULL;
    const void *bytes = s->data;
    if (!bytes) {
        bytes = copy = zr_buffer_alloc((size_t)s->nbytes);
        if (!copy)
            return zri_out_of_memory;
        *rc = get_bytes(s, 0, copy, (size_t)s->nbytes, err);
    }
    size_t nbytes = 0;
    const char *why = NULL;
    if (!*rc) {
        m->crc = zri_crc32(0, bytes, (size_t)s->nbytes);
        why = zri_deflate(m->method, w->options.level ? w->options.level : -1, bytes,
                          (size_t)s->nbytes, &w->packed[i - w->batch_first], &nbytes, &w->watch);
    }
    m->stored_nbytes = nbytes;
    zr_buffer_free(copy);
    return why;
}

static void pack_task(void *ctx, size_t k)
{
    struct writer *w = ctx;
    size_t i = w->batch_first + k;
    struct zr_error error;
    int rc = 0;
    if (atomic_load(&w->failed) || w->members[i].method == ZRI_ZIP_STORED ||
        zri_watch_look(&w->watch))
        return;
    const char *why = pack_member(w, i, &error, &rc);
    if (why)
        rc = zri_fail(&error, why == zri_out_of_memory ? ZR_E_NOMEM : ZR_E_INVALID,
                      "%s: member %s: %s", w->out.path, w->sources[i].name, why);
    if (rc)
        keep_error(w, &error);
}

static int write_batch(struct writer *w, size_t first, size_t last, struct zr_error *err)
{
    uint64_t from = w->end_off;
    for (size_t i = first; i < last; i++)
        place_member(w, i);
    int rc = reserve_space(w, from, err);
    if (!rc)
        rc = cut(w, first, last, err);
    if (!rc)
        rc = run_tasks(w, w->part_count, write_task, w->end_off - from, err);
    return rc ? rc : write_large_headers(w, first, last, err);
}

static int write_packed_batch(struct writer *w, size_t first, size_t last, uint64_t nbytes,
                              struct zr_error *err)
{
    w->batch_first = first;
    w->packed = calloc(last - first, sizeof *w->packed);
    if (!w->packed)
        return no_memory(w, err);
    int rc = run_tasks(w, last - first, pack_task, nbytes, err);
    if (!rc)
        rc = write_batch(w, first, last, err);
    for (size_t i = 0; i < last - first; i++)
        free(w->packed[i]);
    free(w->packed);
    w->packed = NULL;
    return rc;
}

static int write_members(struct writer *w, struct zr_error *err)
{
    if (w->method == ZRI_ZIP_STORED)
        return write_batch(w, 0, w->count, err);
    int rc = ZR_OK;
    for (size_t first = 0, last; !rc && first < w->count; first = last) {
        uint64_t nbytes = 0;
        for (last = first; last < w->count && nbytes < BATCH_NBYTES; last++)
            nbytes += w->sources[last].nbytes;
        rc = write_packed_batch(w, first, last, nbytes, err);
    }
    return rc;
}

static int write_directory(struct writer *w, struct zr_error *err)
{
    uint64_t nbytes = 0;
    for (size_t i = 0; i < w->count; i++)
        nbytes += zri_zip_central_nbytes(&w->members[i]);
    uint8_t *dir = malloc((size_t)nbytes + ZRI_ZIP_TAIL_NBYTES), *at = dir;
    if (!dir)
        return no_memory(w, err);
    for (size_t i = 0; i < w->count; i++)
        at += zri_zip_central_write(&w->members[i], at);
    at += zri_zip_end_write(w->count, w->end_off, nbytes, at);
    int e = zri_write_full(w->out.fd, dir, (size_t)(at - dir), w->end_off);
    free(dir);
    return e ? write_failed(w, e, err) : ZR_OK;
}

/* ---------------------------------------------------------------- the call */

static int method_from_name(const char *name)
{
    static const int methods[] = {ZRI_ZIP_STORED, ZRI_ZIP_DEFLATE, ZRI_ZIP_BZIP2, ZRI_ZIP_LZMA};
    for (size_t i = 0; i < 4; i++)
        if (!name || !strcmp(name, zri_method_name(methods[i])))
            return methods[i];
    return -1;
}

static int check_options(struct writer *w, struct zr_error *err)
{
    const struct zr_archive_save_options *o = &w->options;
    w->method = method_from_name(o->method);
    if (w->method < 0)
        return zri_fail(err, ZR_E_INVALID,
                        "%s: unknown compression '%s': not stored, deflate, bzip2 or lzma",
                        w->out.path, o->method);
    int max = w->method == ZRI_ZIP_STORED ? 0 : w->method == ZRI_ZIP_DEFLATE ? 12 : 9;
    if (o->level < 0 || o->level > max)
        return zri_fail(err, ZR_E_INVALID, "%s: %s has no level %d", w->out.path,
                        zri_method_name(w->method), o->level);
    if (w->count > UINT32_MAX - 2)
        return zri_fail(err, ZR_E_INVALID, "%s: too many members", w->out.path);
    return zri_archive_check_names(w->out.path, w->sources, w->count, err);
}

static int prepare(struct writer *w, struct zr_error *err)
{
    uint16_t dos_time, dos_date;
    zri_zip_dos_time(w->options.time_sec ? w->options.time_sec : (int64_t)time(NULL), &dos_time,
                     &dos_date);
    w->members = malloc((w->count + 1) * sizeof *w->members);
    if (!w->members)
        return no_memory(w, err);
    for (size_t i = 0; i < w->count; i++) {
        init_member(w, i, dos_time, dos_date);
        if (__builtin_add_overflow(w->total_nbytes, w->sources[i].nbytes, &w->total_nbytes) ||
            w->total_nbytes > INT64_MAX / 2)
            return zri_fail(err, ZR_E_INVALID, "%s: too large", w->out.path);
    }
    zri_watch_init(&w->watch, w->options.progress, w->options.progress_ctx, w->total_nbytes);
    return ZR_OK;
}

static int save(struct writer *w, struct zr_error *err)
{
    int rc = prepare(w, err);
    if (!rc)
        rc = write_members(w, err);
    if (!rc)
        rc = write_directory(w, err);
    if (!rc)
        rc = report_progress(w, err);
    return rc ? rc : zri_output_publish(&w->out, w->options.durable, err);
}

int zr_archive_save(const char *path, const struct zr_archive_source *sources, size_t count,
                    const struct zr_archive_save_options *options, struct zr_error *err)
{
    struct writer w = {.sources = sources, .count = count, .lock = PTHREAD_MUTEX_INITIALIZER};
    if (options)
        w.options = *options;
    w.out.path = path;
    int rc = check_options(&w, err);
    if (rc)
        return rc;
    rc = zri_output_begin(&w.out, path, w.options.no_replace, err);
    if (!rc)
        rc = save(&w, err);
    zri_output_end(&w.out);
    pthread_mutex_destroy(&w.lock);
    free(w.members);
    free(w.parts);
    return rc;
}
