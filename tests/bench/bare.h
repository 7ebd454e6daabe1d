/* SPDX-License-Identifier: MIT
 *
 * A bare reader of a store: what is left of a gather when nothing is checked.
 * The files are mapped, records copied or decoded straight to their place by
 * one or more threads that hand over by spinning, output memory is recycled by
 * the caller.  The "limit" rows of the tables come from here; it is no library:
 * it believes every byte of the store and dies on any failure.
 */
#ifndef BARE_H
#define BARE_H

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <zstd.h>

enum { BARE_MAX_THREADS = 256, BARE_RAW = 0, BARE_ZSTD_DICT = 2 };

struct bare_entry {
    uint64_t off;
    uint32_t phys, logic;
};

struct bare_store {
    int meta_fd, data_fd;
    const uint8_t *data;            /* data.zr, mapped; NULL when opened unmapped */
    const struct bare_entry *table; /* the record table of meta.zr, mapped */
    uint64_t length;
    int codec;
    size_t prefix; /* Ragged: bytes of the shape before a payload, of record 0 */
    ZSTD_DDict *ddict;
};

static inline double bare_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static inline void bare_die(const char *what)
{
    perror(what);
    exit(1);
}

static inline int bare_open_file(const char *dir, const char *name, size_t *nbytes)
{
    char path[4096];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st))
        bare_die(path);
    *nbytes = (size_t)st.st_size;
    return fd;
}

static inline const void *bare_map(int fd, size_t nbytes)
{
    void *p = mmap(NULL, nbytes, PROT_READ, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        bare_die("mmap");
    return p;
}

/* Memory with huge pages where the system gives them, faulted in. */
static inline void *bare_memory(size_t nbytes)
{
    size_t huge = (size_t)2 << 20, whole = (nbytes + huge) & ~(huge - 1);
    void *p = aligned_alloc(huge, whole);
    if (!p)
        bare_die("aligned_alloc");
    madvise(p, whole, MADV_HUGEPAGE);
    memset(p, 0, whole);
    return p;
}

static inline size_t bare_prefix(const struct bare_store *s)
{
    const struct bare_entry *e = &s->table[0];
    uint64_t ndim;
    if (s->codec == BARE_RAW) {
        memcpy(&ndim, s->data + e->off, sizeof ndim);
    } else {
        uint8_t *record = malloc(e->logic);
        ZSTD_DCtx *dctx = ZSTD_createDCtx();
        ZSTD_decompress_usingDDict(dctx, record, e->logic, s->data + e->off, e->phys, s->ddict);
        memcpy(&ndim, record, sizeof ndim);
        ZSTD_freeDCtx(dctx);
        free(record);
    }
    return 8 + 8 * (size_t)ndim;
}

static inline void bare_open(struct bare_store *s, const char *dir, bool ragged)
{
    size_t meta_nbytes, data_nbytes;
    memset(s, 0, sizeof *s);
    s->meta_fd = bare_open_file(dir, "meta.zr", &meta_nbytes);
    s->data_fd = bare_open_file(dir, "data.zr", &data_nbytes);
    const uint8_t *meta = bare_map(s->meta_fd, meta_nbytes);
    s->data = bare_map(s->data_fd, data_nbytes);
    memcpy(&s->length, meta, sizeof s->length);
    s->codec = meta[31];
    s->table = (const struct bare_entry *)(meta + 4096);
    if (s->codec == BARE_ZSTD_DICT) {
        size_t dict_nbytes;
        int fd = bare_open_file(dir, "dict.zr", &dict_nbytes);
        s->ddict = ZSTD_createDDict(bare_map(fd, dict_nbytes), dict_nbytes);
        close(fd);
    }
    if (ragged)
        s->prefix = bare_prefix(s);
}

/* ---------------------------------------------------------------- gather
 * Dense records, and raw Ragged payloads, lie end to end in the output.  Ragged
 * frames are decoded in place, shape and all, since a frame cannot be entered
 * in its middle: each payload then has its prefix before it. */

struct bare_batch {
    const struct bare_store *store;
    const uint64_t *ids;
    size_t count;
    uint8_t *out;
    size_t *place; /* count + 1: where in out each record starts */
};

static inline void bare_plan(struct bare_batch *b)
{
    const struct bare_store *s = b->store;
    size_t cut = s->codec == BARE_RAW ? s->prefix : 0, at = 0;
    for (size_t i = 0; i < b->count; i++) {
        if (i + 8 < b->count)
            __builtin_prefetch(&s->table[b->ids[i + 8]]);
        b->place[i] = at;
        at += s->table[b->ids[i]].logic - cut;
    }
    b->place[b->count] = at;
}

static inline void bare_span(const struct bare_batch *b, ZSTD_DCtx *dctx, size_t from, size_t to)
{
    const struct bare_store *s = b->store;
    const struct bare_entry *table = s->table;
    for (size_t i = from; i < to; i++) {
        if (i + 4 < to)
            __builtin_prefetch(&table[b->ids[i + 4]]);
        if (i + 2 < to)
            __builtin_prefetch(s->data + table[b->ids[i + 2]].off);
        const struct bare_entry *e = &table[b->ids[i]];
        uint8_t *dst = b->out + b->place[i];
        if (s->codec == BARE_RAW)
            memcpy(dst, s->data + e->off + s->prefix, e->phys - s->prefix);
        else if (s->ddict)
            ZSTD_decompress_usingDDict(dctx, dst, e->logic, s->data + e->off, e->phys, s->ddict);
        else
            ZSTD_decompressDCtx(dctx, dst, e->logic, s->data + e->off, e->phys);
    }
}

/* Threads that spin between batches; they live only as long as something is timed. */
struct bare_crew {
    unsigned count; /* with the caller */
    const struct bare_batch *batch;
    atomic_uint started;  /* batches handed out */
    atomic_uint finished; /* spans done of the current one */
    atomic_bool end;
    ZSTD_DCtx *dctx;
    pthread_t threads[BARE_MAX_THREADS];
    struct bare_member {
        struct bare_crew *crew;
        unsigned number;
    } members[BARE_MAX_THREADS];
};

static inline void bare_share(struct bare_crew *c, unsigned number, ZSTD_DCtx *dctx)
{
    size_t count = c->batch->count;
    bare_span(c->batch, dctx, count * number / c->count, count * (number + 1) / c->count);
}

static inline void *bare_member_main(void *arg)
{
    struct bare_member *m = arg;
    struct bare_crew *c = m->crew;
    ZSTD_DCtx *dctx = ZSTD_createDCtx();
    for (unsigned seen = 0;;) {
        unsigned now;
        while ((now = atomic_load_explicit(&c->started, memory_order_acquire)) == seen)
            if (atomic_load_explicit(&c->end, memory_order_relaxed))
                goto out;
        seen = now;
        bare_share(c, m->number, dctx);
        atomic_fetch_add_explicit(&c->finished, 1, memory_order_release);
    }
out:
    ZSTD_freeDCtx(dctx);
    return NULL;
}

static inline void bare_crew_start(struct bare_crew *c, unsigned count)
{
    memset(c, 0, sizeof *c);
    c->count = count;
    c->dctx = ZSTD_createDCtx();
    for (unsigned i = 1; i < count; i++) {
        c->members[i] = (struct bare_member){c, i};
        if (pthread_create(&c->threads[i], NULL, bare_member_main, &c->members[i]))
            bare_die("pthread_create");
    }
}

static inline void bare_crew_end(struct bare_crew *c)
{
    atomic_store(&c->end, true);
    for (unsigned i = 1; i < c->count; i++)
        pthread_join(c->threads[i], NULL);
    ZSTD_freeDCtx(c->dctx);
}

/* One gather: plan, then all threads. */
static inline void bare_gather(struct bare_crew *c, struct bare_batch *b)
{
    bare_plan(b);
    c->batch = b;
    atomic_store_explicit(&c->finished, 0, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->started, 1, memory_order_release);
    bare_share(c, 0, c->dctx);
    while (atomic_load_explicit(&c->finished, memory_order_acquire) != c->count - 1)
        ;
}

#endif /* BARE_H */
