/* SPDX-License-Identifier: MIT
 *
 * The engine's gather, called from C, beside the bare program of bare.h with one
 * and with two threads.  Same Dense store, same fresh random batches,
 * interleaved rounds in one process; some batches are compared first.
 *
 * usage: gather_limit STORE [BATCH [ROUNDS]]
 * prints one line of JSON a side: median and spread over the rounds.
 */
#include "bare.h"
#include "zrecord.h"

#define ROUND_SECONDS 0.25
#define MAX_ROUNDS 64

static struct bare_store store;
static struct zr_info info;
static size_t batch;

/* ---------------------------------------------------------------- the bare side */

static struct bare_crew crew;
static size_t *place;

static void bare(const uint64_t *ids, uint8_t *out)
{
    struct bare_batch b = {&store, ids, batch, out, place};
    bare_gather(&crew, &b);
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
    double start = bare_now(), spent = 0;
    size_t batches = 0;
    while (bare_now() - start < ROUND_SECONDS) {
        zr_sampler_batch(&sampler, (*step)++, ids);
        uint8_t *out = zr_buffer_alloc(batch * info.row_nbytes);
        double t = bare_now();
        side(ids, out);
        spent += bare_now() - t;
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
        bare(ids, a);
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
    bare_open(&store, argv[1], false);
    place = malloc((batch + 1) * sizeof *place);
    uint64_t *ids = malloc(batch * sizeof *ids), step = 0;
    bare_crew_start(&crew, 2);
    compare(ids);
    bare_crew_end(&crew);

    static const char *const names[] = {"engine", "limit, 1 thread", "limit, 2 threads"};
    void (*const sides[])(const uint64_t *, uint8_t *) = {engine, bare, bare};
    double rate[3][MAX_ROUNDS];
    for (size_t k = 0; k < rounds; k++)
        for (int s = 0; s < 3; s++) {
            bare_crew_start(&crew, s == 2 ? 2 : 1); /* for its round only: it spins */
            rate[s][k] = run_round(sides[s], &step, ids);
            bare_crew_end(&crew);
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
