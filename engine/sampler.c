/* SPDX-License-Identifier: MIT
 *
 * Index generation without state: every batch is a function of (length, batch
 * size, mode, seed, step).  The numbers are part of the interface: runs resume
 * from a step, so the functions below never change.
 *
 * IID draws from a SplitMix64 stream; CYCLIC walks a permutation (permute.c); BLOCK
 * permutes the blocks of consecutive ids, takes a few of them at a time as a
 * window, and permutes the records of each window.
 */
#include "lanes.h"

#include "internal.h"

#define BLOCK_SIZE_DEFAULT 1024
#define INTERLEAVE_MAX 256
#define BLOCK_LENGTH_MAX ((uint64_t)1 << 62) /* sums of window sizes stay in 64 bits */

static bool is_valid(const struct zr_sampler *s)
{
    if (!s->length || !s->batch_size || s->mode < ZR_SEQUENTIAL || s->mode > ZR_BLOCK)
        return false;
    return s->mode != ZR_BLOCK ||
           (s->length <= BLOCK_LENGTH_MAX && s->interleave <= INTERLEAVE_MAX);
}

uint64_t zr_sampler_batch_count(const struct zr_sampler *s)
{
    if (!is_valid(s))
        return 0;
    bool once_a_cycle = s->mode == ZR_CYCLIC || s->mode == ZR_BLOCK;
    return once_a_cycle && s->batch_size > s->length ? s->length : s->batch_size;
}

static void sequential_batch(const struct zr_sampler *s, uint64_t step, uint64_t *ids)
{
    uint64_t id = (uint64_t)((unsigned __int128)step * s->batch_size % s->length);
    for (uint64_t i = 0; i < s->batch_size; i++) {
        ids[i] = id;
        id = id + 1 == s->length ? 0 : id + 1;
    }
}

static void iid_batch(const struct zr_sampler *s, uint64_t step, uint64_t *ids)
{
    uint64_t key = mix64(s->seed + 2 * GOLDEN), first = step * s->batch_size;
    if (s->length <= UINT32_MAX) {
        zri_lanes()->draw(key, first, (uint32_t)s->length, s->batch_size, ids);
        return;
    }
    for (uint64_t i = 0; i < s->batch_size; i++)
        ids[i] = zri_bounded(stream(key, first + i), s->length);
}

static void cyclic_batch(const struct zr_sampler *s, uint64_t step, uint64_t *ids)
{
    uint64_t count = zr_sampler_batch_count(s), steps = s->length / count;
    zri_permute_run(s->length, zri_cycle_key(s->seed, step / steps), step % steps * count, count, 0,
                    ids);
}

/* ---------------------------------------------------------------- blocks */

/* One cycle of BLOCK.  The last block may be short; it lies anywhere in the order. */
struct blocks {
    uint64_t length, block_size, block_count, interleave;
    uint64_t missing;    /* records that the short block lacks */
    uint64_t short_rank; /* where it comes in the order of blocks */
    uint64_t key;
};

/* The next records of one window: `interleave` blocks permuted as one. */
struct window {
    uint64_t rank;  /* of its first block in the order of blocks */
    uint64_t start; /* position of its first record in the cycle */
    uint64_t nrecords;
};

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void blocks_init(struct blocks *b, const struct zr_sampler *s, uint64_t cycle)
{
    uint64_t size = s->block_size ? s->block_size : BLOCK_SIZE_DEFAULT;
    b->length = s->length;
    b->block_size = min_u64(size, s->length);
    b->block_count = (s->length - 1) / b->block_size + 1;
    b->interleave = min_u64(s->interleave ? s->interleave : 1, b->block_count);
    b->missing = b->block_count * b->block_size - s->length;
    b->key = zri_cycle_key(s->seed, cycle);
    b->short_rank = zri_permute_inverse(b->block_count, stream(b->key, 0), b->block_count - 1);
}

static struct window window_of(const struct blocks *b, uint64_t position)
{
    uint64_t full = b->interleave * b->block_size, with_short = b->short_rank / b->interleave;
    bool is_after = position >= (with_short + 1) * full - b->missing;
    uint64_t at = (is_after ? position + b->missing : position) / full;
    struct window w = {at * b->interleave, at * full - (is_after ? b->missing : 0), full};
    if (at == with_short)
        w.nrecords -= b->missing;
    w.nrecords = min_u64(w.nrecords, b->length - w.start);
    return w;
}

/* Turns places inside a window, counted block after block, into ids. */
static void place_in_blocks(const struct blocks *b, const struct window *w, uint64_t count,
                            uint64_t *ids)
{
    uint64_t order[INTERLEAVE_MAX];
    uint64_t block_count = min_u64(b->interleave, b->block_count - w->rank);
    uint64_t short_end = UINT64_MAX; /* places from here on count the missing records too */
    zri_permute_run(b->block_count, stream(b->key, 0), w->rank, block_count, 0, order);
    if (b->short_rank - w->rank < block_count)
        short_end = (b->short_rank - w->rank + 1) * b->block_size - b->missing;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t place = ids[i] >= short_end ? ids[i] + b->missing : ids[i];
        ids[i] = order[place / b->block_size] * b->block_size + place % b->block_size;
    }
}

static void block_batch(const struct zr_sampler *s, uint64_t step, uint64_t *ids)
{
    uint64_t count = zr_sampler_batch_count(s), steps = s->length / count;
    uint64_t position = step % steps * count;
    struct blocks b;
    blocks_init(&b, s, step / steps);
    while (count) {
        struct window w = window_of(&b, position);
        uint64_t skip = position - w.start, n = min_u64(count, w.nrecords - skip);
        zri_permute_run(w.nrecords, stream(b.key, 1 + w.rank / b.interleave), skip, n, 0, ids);
        place_in_blocks(&b, &w, n, ids);
        position += n;
        ids += n;
        count -= n;
    }
}

void zr_sampler_batch(const struct zr_sampler *s, uint64_t step, uint64_t *ids)
{
    if (!is_valid(s))
        return;
    if (s->mode == ZR_SEQUENTIAL)
        sequential_batch(s, step, ids);
    else if (s->mode == ZR_IID)
        iid_batch(s, step, ids);
    else if (s->mode == ZR_CYCLIC)
        cyclic_batch(s, step, ids);
    else
        block_batch(s, step, ids);
}
