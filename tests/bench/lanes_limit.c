/* SPDX-License-Identifier: MIT
 *
 * What index generation costs on this CPU with each of its vector units, without
 * Python: nanoseconds an id, the fastest of several passes.  One line a version:
 * name, IID 8192, CYCLIC 8192, BLOCK 8192, and a whole epoch of celeres-dl's order,
 * all of 1,000,000 records.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "lanes.h"
#include "zrecord.h"

#define LENGTH 1000000
#define BATCH 8192
#define PASSES 30

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Seconds an id for the next 100 batches, in every pass others. */
static double sampler_seconds(int mode, uint64_t *ids)
{
    struct zr_sampler s = {LENGTH, BATCH, 42, mode, mode == ZR_BLOCK ? 8 : 0, 0};
    double best = 1e9;
    for (uint64_t pass = 0; pass < PASSES; pass++) {
        double start = now(), seconds;
        for (uint64_t step = 0; step < 100; step++)
            zr_sampler_batch(&s, pass * 100 + step, ids);
        seconds = (now() - start) / (100.0 * BATCH);
        best = seconds < best ? seconds : best;
    }
    return best;
}

static double epoch_seconds(uint64_t *ids)
{
    double best = 1e9;
    for (uint64_t pass = 0; pass < PASSES; pass++) {
        struct zr_block_shuffle s = {LENGTH, 1024, zr_feistel_hash(42, pass), 6};
        double start = now(), seconds;
        zr_block_shuffle_ids(&s, 0, LENGTH, ids);
        seconds = (now() - start) / LENGTH;
        best = seconds < best ? seconds : best;
    }
    return best;
}

int main(void)
{
    uint64_t *ids = malloc(LENGTH * sizeof *ids);
    const struct zri_lanes *version;
    if (!ids)
        return 1;
    for (unsigned v = 0; (version = zri_lanes_version(v)); v++) {
        zri_lanes_force(version);
        printf("%s", version->name);
        for (int mode = ZR_IID; mode <= ZR_BLOCK; mode++)
            printf("\t%.3f", 1e9 * sampler_seconds(mode, ids));
        printf("\t%.3f\n", 1e9 * epoch_seconds(ids));
        fflush(stdout);
    }
    free(ids);
    return 0;
}
