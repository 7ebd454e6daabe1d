/* SPDX-License-Identifier: MIT
 *
 * The engine's gather beside a bare program that does nothing but the copying or
 * decoding: files mapped, no checks, recycled output, one or two threads that
 * hand over by spinning.  Same store, same fresh random batches, interleaved
 * rounds in one process; every batch of the first round is compared first.
 *
 * usage: gather_limit STORE [BATCH [ROUNDS]]
 * prints one line of JSON a side: median and spread over the rounds.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <zstd.h>

#include "zrecord.h"

#define ROUND_SECONDS 0.25
#define MAX_ROUNDS 64

struct entry {
    uint64_t off;
    uint32_t phys, logic;
};

static const uint8_t *data;
static const struct entry *table;
static struct zr_info info;
static ZSTD_DDict *ddict;
static size_t batch;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static const void *map(const char *dir, const char *name)
{
    char path[4096];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_RDONLY);
    if (fd < 0 || fstat(fd, &st))
        exit(1);
    const void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    return p == MAP_FAILED ? NULL : p;
}

/* ---------------------------------------------------------------- the bare side */

static void bare_span(ZSTD_DCtx *dctx, const uint64_t *ids, size_t from, size_t to, uint8_t *out)
{
    for (size_t i = from; i < to; i++) {
        if (i + 4 < to)
            __builtin_prefetch(&table[ids[i + 4]]);
        if (i + 2 < to)
            __builtin_prefetch(data + table[ids[i + 2]].off);
        const struct entry *e = &table[ids[i]];
        uint8_t *dst = out + i * info.row_nbytes;
        if (info.codec == ZR_RAW)
            memcpy(dst, data + e->off, e->phys);
        else if (ddict)
            ZSTD_decompress_usingDDict(dctx, dst, e->logic, data + e->off, e->phys, ddict);
        else
            ZSTD_decompressDCtx(dctx, dst, e->logic, data + e->off, e->phys);
    }
}

static struct {
    const uint64_t *ids;
    uint8_t *out;
    atomic_int go; /* 1: work, 0: done, 2: end */
} hand;

static void *second_thread(void *unused)
{
    (void)unused;
    ZSTD_DCtx *dctx = ZSTD_createDCtx();
    for (;;) {
        int go;
        while (!(go = atomic_load_explicit(&hand.go, memory_order_acquire)))
            ;
        if (go == 2)
            break;
        bare_span(dctx, hand.ids, batch / 2, batch, hand.out);
        atomic_store_explicit(&hand.go, 0, memory_order_release);
    }
    ZSTD_freeDCtx(dctx);
    return NULL;
}

static ZSTD_DCtx *main_dctx;

static void bare_one(const uint64_t *ids, uint8_t *out)
{
    bare_span(main_dctx, ids, 0, batch, out);
}

static void bare_two(const uint64_t *ids, uint8_t *out)
{
    hand.ids = ids;
    hand.out = out;
    atomic_store_explicit(&hand.go, 1, memory_order_release);
    bare_span(main_dctx, ids, 0, batch / 2, out);
    while (atomic_load_explicit(&hand.go, memory_order_acquire))
        ;
}

/* ---------------------------------------------------------------- the engine */

static struct zr_reader *reader;

static void engine(const uint64_t *ids, uint8_t *out)
{
    struct zr_error err;
    if (zr_gather_dense(reader, ids, batch, out, batch * info.row_nbytes, &err)) {
        fprintf(stderr, "gather_limit: %s\n", err.message);
        exit(1);
    }
}

/* ---------------------------------------------------------------- rounds */

static double run_round(void (*side)(const uint64_t *, uint8_t *), uint64_t *step, uint64_t *ids)
{
    struct zr_sampler sampler = {info.length, batch, 42, ZR_IID};
    double start = now(), spent = 0;
    size_t batches = 0;
    while (now() - start < ROUND_SECONDS) {
        zr_sampler_batch(&sampler, (*step)++, ids);
        uint8_t *out = zr_buffer_alloc(batch * info.row_nbytes);
        double t = now();
        side(ids, out);
        spent += now() - t;
        zr_buffer_free(out);
        batches++;
    }
    return (double)(batches * batch) / spent;
}

static void compare(uint64_t *ids)
{
    struct zr_sampler sampler = {info.length, batch, 1, ZR_IID};
    size_t nbytes = batch * info.row_nbytes;
    uint8_t *a = malloc(nbytes), *b = malloc(nbytes);
    for (uint64_t step = 0; step < 8; step++) {
        zr_sampler_batch(&sampler, step, ids);
        bare_one(ids, a);
        engine(ids, b);
        if (memcmp(a, b, nbytes)) {
            fprintf(stderr, "gather_limit: the sides differ\n");
            exit(1);
        }
    }
    free(a);
    free(b);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    struct zr_error err;
    if (argc < 2)
        return 2;
    batch = argc > 2 ? strtoul(argv[2], NULL, 10) : 256;
    size_t rounds = argc > 3 ? strtoul(argv[3], NULL, 10) : 7;
    if (zr_reader_open(&reader, argv[1], NULL, &err)) {
        fprintf(stderr, "gather_limit: %s\n", err.message);
        return 1;
    }
    zr_reader_info(reader, &info);
    if (info.geometry != ZR_DENSE || batch < 2 || rounds < 1 || rounds > MAX_ROUNDS)
        return 2;
    data = map(argv[1], "data.zr");
    table = (const struct entry *)((const uint8_t *)map(argv[1], "meta.zr") + 4096);
    if (info.dict)
        ddict = ZSTD_createDDict(info.dict, info.dict_nbytes);
    main_dctx = ZSTD_createDCtx();
    uint64_t *ids = malloc(batch * sizeof *ids), step = 0;
    compare(ids);

    static const char *const names[] = {"engine", "limit, 1 thread", "limit, 2 threads"};
    void (*const sides[])(const uint64_t *, uint8_t *) = {engine, bare_one, bare_two};
    double rate[3][MAX_ROUNDS];
    for (size_t k = 0; k < rounds; k++)
        for (int s = 0; s < 3; s++) {
            pthread_t t; /* lives for its round only: it spins */
            atomic_store(&hand.go, 0);
            if (s == 2)
                pthread_create(&t, NULL, second_thread, NULL);
            rate[s][k] = run_round(sides[s], &step, ids);
            if (s == 2) {
                atomic_store(&hand.go, 2);
                pthread_join(t, NULL);
            }
        }
    for (int s = 0; s < 3; s++) {
        qsort(rate[s], rounds, sizeof rate[s][0], by_value);
        double median = rate[s][rounds / 2];
        printf("{\"side\": \"%s\", \"krec_per_s\": %.1f, \"low\": %.1f, \"high\": %.1f, "
               "\"GB_per_s\": %.2f}\n",
               names[s], median / 1e3, rate[s][0] / 1e3, rate[s][rounds - 1] / 1e3,
               median * (double)info.row_nbytes / 1e9);
    }
    zr_reader_close(reader);
    return 0;
}
