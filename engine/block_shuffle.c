/* SPDX-License-Identifier: MIT
 *
 * The two-level shuffle of celeres-dl: the order of blocks, and the order inside
 * each block, both by a balanced Feistel network whose round function is
 * SplitMix64's finaliser.  For the same length, block size, seed and rounds the
 * order is that package's; sampler.c has our own.
 */
#include "lanes.h"

#include "internal.h"

#define ORDER_TAG 0xB10C    /* of the key for the order of blocks */
#define INSIDE_TAG 0x10000u /* plus the block: of the key for the order inside it */
#define RUN 256             /* block ids made at once */

uint64_t zr_feistel_hash(uint64_t key, uint64_t data)
{
    return mix64((key ^ data) + GOLDEN);
}

static void feistel_init(struct feistel *f, uint64_t key, uint64_t length, unsigned rounds)
{
    unsigned bits = 64 - (unsigned)__builtin_clzll((length - 1) | 1);
    f->length = length;
    f->half_bits = (bits + 1) / 2;
    f->rounds = rounds < FEISTEL_ROUNDS_MAX ? rounds : FEISTEL_ROUNDS_MAX;
    for (unsigned r = 0; r < f->rounds; r++)
        f->keys[r] = zr_feistel_hash(key, r);
}

static inline uint64_t pass(const struct feistel *f, uint64_t value)
{
    const uint64_t mask = low_mask(f->half_bits);
    uint64_t left = value >> f->half_bits & mask, right = value & mask;
    for (unsigned r = 0; r < f->rounds; r++) {
        uint64_t next = left ^ (zr_feistel_hash(f->keys[r], right) & mask);
        left = right;
        right = next;
    }
    return left << f->half_bits | right;
}

static inline uint64_t undo(const struct feistel *f, uint64_t value)
{
    const uint64_t mask = low_mask(f->half_bits);
    uint64_t left = value >> f->half_bits & mask, right = value & mask;
    for (unsigned r = f->rounds; r; r--) {
        uint64_t previous = right ^ (zr_feistel_hash(f->keys[r - 1], left) & mask);
        right = left;
        left = previous;
    }
    return left << f->half_bits | right;
}

uint64_t zri_feistel_permute(const struct feistel *f, uint64_t i)
{
    do
        i = pass(f, i);
    while (i >= f->length);
    return i;
}

static void run(uint64_t key, uint64_t length, unsigned rounds, uint64_t first, uint64_t count,
                uint64_t base, uint64_t *ids)
{
    struct feistel f;
    feistel_init(&f, key, length, rounds);
    zri_lanes()->feistel(&f, first, count, base, ids);
}

void zr_feistel_permute(uint64_t key, uint64_t length, unsigned rounds, uint64_t first,
                        uint64_t count, uint64_t *ids)
{
    if (first < length && count <= length - first)
        run(key, length, rounds, first, count, 0, ids);
    else
        for (uint64_t i = 0; i < count; i++)
            ids[i] = ZR_NO_RECORD;
}

uint64_t zr_feistel_inverse(uint64_t key, uint64_t length, unsigned rounds, uint64_t id)
{
    struct feistel f;
    if (id >= length)
        return ZR_NO_RECORD;
    feistel_init(&f, key, length, rounds);
    do
        id = undo(&f, id);
    while (id >= length);
    return id;
}

/* ---------------------------------------------------------------- two levels */

/* The last block may be short and comes anywhere in the order. */
struct shape {
    uint64_t block_size, block_count, order_key;
    uint64_t missing;    /* records that the last block lacks */
    uint64_t short_rank; /* where it comes in the order */
};

static struct shape shape_of(const struct zr_block_shuffle *s)
{
    uint64_t size = s->block_size < s->length ? s->block_size : s->length;
    size = size ? size : 1;
    struct shape b = {size, (s->length - 1) / size + 1, zr_feistel_hash(s->seed, ORDER_TAG), 0, 0};
    b.missing = size - 1 - (s->length - 1) % size;
    b.short_rank = zr_feistel_inverse(b.order_key, b.block_count, s->rounds, b.block_count - 1);
    return b;
}

static uint64_t rank_start(const struct shape *b, uint64_t rank)
{
    return rank * b->block_size - (rank > b->short_rank ? b->missing : 0);
}

static uint64_t rank_of_position(const struct shape *b, uint64_t position)
{
    bool is_after = position >= rank_start(b, b->short_rank) + (b->block_size - b->missing);
    return is_after
               ? b->short_rank + 1 + (position - rank_start(b, b->short_rank + 1)) / b->block_size
               : position / b->block_size;
}

static uint64_t block_nrecords(const struct shape *b, uint64_t block)
{
    return b->block_size - (block == b->block_count - 1 ? b->missing : 0);
}

static uint64_t inside_key(const struct zr_block_shuffle *s, uint64_t block)
{
    return zr_feistel_hash(s->seed, block + INSIDE_TAG);
}

void zr_block_shuffle_ids(const struct zr_block_shuffle *s, uint64_t first, uint64_t count,
                          uint64_t *ids)
{
    if (first >= s->length || count > s->length - first) {
        for (uint64_t i = 0; i < count; i++)
            ids[i] = ZR_NO_RECORD;
        return;
    }
    struct shape b = shape_of(s);
    uint64_t rank = rank_of_position(&b, first), skip = first - rank_start(&b, rank);
    uint64_t order[RUN];
    for (size_t k = RUN; count; k++, rank++, skip = 0) {
        if (k == RUN) {
            uint64_t left = b.block_count - rank;
            run(b.order_key, b.block_count, s->rounds, rank, left < RUN ? left : RUN, 0, order);
            k = 0;
        }
        uint64_t n = block_nrecords(&b, order[k]), take = n - skip < count ? n - skip : count;
        run(inside_key(s, order[k]), n, s->rounds, skip, take, order[k] * b.block_size, ids);
        ids += take;
        count -= take;
    }
}

uint64_t zr_block_shuffle_position(const struct zr_block_shuffle *s, uint64_t id)
{
    if (id >= s->length)
        return ZR_NO_RECORD;
    struct shape b = shape_of(s);
    uint64_t block = id / b.block_size, offset = id % b.block_size;
    uint64_t rank = zr_feistel_inverse(b.order_key, b.block_count, s->rounds, block);
    return rank_start(&b, rank) +
           zr_feistel_inverse(inside_key(s, block), block_nrecords(&b, block), s->rounds, offset);
}
