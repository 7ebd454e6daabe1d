/* SPDX-License-Identifier: MIT
 *
 * The inner loops for one width of x86 vectors; lanes.c includes this once a
 * width, with the macros that it undefines at the end.  Written with the
 * compiler's vector types, so that arithmetic reads as in the plain version.
 *
 * Cycle walking: a chunk of positions goes through the network once; those that
 * landed outside are packed and go again, until none is left.
 */
#define u32 NAMED(u32)
#define u64 NAMED(u64)
#define i64 NAMED(i64)
#define COUNT_32 (VECTOR_NBYTES / 4)
#define COUNT_64 (VECTOR_NBYTES / 8)
#define SIDE_32 4 /* vectors side by side */
#define SIDE_64 4
#define STEP_32 (SIDE_32 * COUNT_32)
#define STEP_64 (SIDE_64 * COUNT_64)
#define INLINE static inline TARGET __attribute__((always_inline))

typedef uint32_t u32 __attribute__((vector_size(VECTOR_NBYTES)));
typedef uint64_t u64 __attribute__((vector_size(VECTOR_NBYTES)));
typedef int64_t i64 __attribute__((vector_size(VECTOR_NBYTES)));
/* The same in memory, where it may lie anywhere. */
typedef uint32_t NAMED(u32_at) __attribute__((vector_size(VECTOR_NBYTES), aligned(4), may_alias));
typedef uint64_t NAMED(u64_at) __attribute__((vector_size(VECTOR_NBYTES), aligned(8), may_alias));
#define AT_32(p) (*(NAMED(u32_at) *)(p))
#define AT_64(p) (*(NAMED(u64_at) *)(p))

static const uint32_t NAMED(iota_32)[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
static const uint64_t NAMED(iota_64)[8] = {0, 1, 2, 3, 4, 5, 6, 7};

INLINE u64 NAMED(mix)(u64 z)
{
    z = (z ^ (z >> 30)) * MIX_1;
    z = (z ^ (z >> 27)) * MIX_2;
    return z ^ (z >> 31);
}

/* ---------------------------------------------------------------- draws */

TARGET static void NAMED(draw)(uint64_t key, uint64_t first, uint32_t length, size_t count,
                               uint64_t *ids)
{
    const u64 lengths = (u64){0} + length;
    const i64 thresholds = (i64){0} + (int64_t)(-length % length);
    const u64 step = (u64){0} + COUNT_64 * GOLDEN;
    u64 at = key + (first + 1 + AT_64(NAMED(iota_64))) * GOLDEN;
    size_t k = 0;
    for (; k + COUNT_64 <= count; k += COUNT_64, at += step) {
        u64 x = NAMED(mix)(at) >> 32, product = MUL_WIDE(x, lengths);
        AT_64(ids + k) = product >> 32;
        if (ANY((i64)(product & UINT32_MAX) < thresholds)) /* rare: some have to draw again */
            draw(key, first + k, length, COUNT_64, ids + k);
    }
    draw(key, first + k, length, count - k, ids + k);
}

/* ---------------------------------------------------------------- permutations */

INLINE u32 NAMED(round_value)(u32 half, uint32_t key)
{
    u32 h = (half ^ key) * 0x9E3779B1u;
    h = (h ^ (h >> 15)) * 0x85EBCA77u;
    return h ^ (h >> 13);
}

INLINE void NAMED(change)(u32 *half, u32 by, uint32_t key, uint32_t all)
{
    *half ^= NAMED(round_value)(by, key) & all;
}

/* Several vectors side by side: one alone would wait for its multiplications. */
INLINE void NAMED(network_pass)(const struct network *net, u32 *low, u32 *high)
{
    const uint32_t low_all = low_mask(net->low_bits), high_all = low_mask(net->high_bits);
    for (unsigned r = 0; r < NETWORK_ROUNDS; r += 2) {
        UNROLL for (unsigned v = 0; v < SIDE_32; v++)
            NAMED(change)(&high[v], low[v], net->keys[r], high_all);
        UNROLL for (unsigned v = 0; v < SIDE_32; v++)
            NAMED(change)(&low[v], high[v], net->keys[r + 1], low_all);
    }
}

/* Walks on those of at most CHUNK entries that are not below the length. */
TARGET static void NAMED(network_walk)(const struct network *net, size_t count, uint64_t *out)
{
    uint32_t low[CHUNK], high[CHUNK], at[CHUNK + COUNT_32];
    size_t pending = NAMED(outside)(out, count, net->length, at);
    while (pending) {
        for (size_t k = 0; k < pending; k++) {
            low[k] = (uint32_t)out[at[k]] & low_mask(net->low_bits);
            high[k] = (uint32_t)(out[at[k]] >> net->low_bits);
        }
        memset(low + pending, 0, (CHUNK - pending) % STEP_32 * sizeof *low);
        memset(high + pending, 0, (CHUNK - pending) % STEP_32 * sizeof *high);
        for (size_t k = 0; k < pending; k += STEP_32) {
            u32 a[SIDE_32], b[SIDE_32];
            UNROLL for (unsigned v = 0; v < SIDE_32; v++)
            {
                a[v] = AT_32(low + k + v * COUNT_32);
                b[v] = AT_32(high + k + v * COUNT_32);
            }
            NAMED(network_pass)(net, a, b);
            UNROLL for (unsigned v = 0; v < SIDE_32; v++)
            {
                AT_32(low + k + v * COUNT_32) = a[v];
                AT_32(high + k + v * COUNT_32) = b[v];
            }
        }
        size_t left = 0;
        for (size_t k = 0; k < pending; k++) {
            out[at[k]] = (uint64_t)high[k] << net->low_bits | low[k];
            at[left] = at[k];
            left += out[at[k]] >= net->length;
        }
        pending = left;
    }
}

/* One pass over count positions, rounded up to STEP_32. */
TARGET static void NAMED(network_chunk)(const struct network *net, uint64_t first, size_t count,
                                        uint64_t *out)
{
    const uint32_t low_all = low_mask(net->low_bits), high_all = low_mask(net->high_bits);
    for (size_t k = 0; k < count; k += STEP_32) {
        u32 low[SIDE_32], high[SIDE_32];
        UNROLL for (unsigned v = 0; v < SIDE_32; v++)
        {
            uint64_t i = first + k + v * COUNT_32;
            u32 sum = ((uint32_t)i & low_all) + AT_32(NAMED(iota_32));
            low[v] = sum & low_all;
            high[v] = ((uint32_t)(i >> net->low_bits) + (sum >> net->low_bits)) & high_all;
        }
        NAMED(network_pass)(net, low, high);
        UNROLL for (unsigned v = 0; v < SIDE_32; v++)
        {
            uint64_t *at = out + k + v * COUNT_32;
            AT_64(at) = WIDEN_LOW(high[v]) << net->low_bits | WIDEN_LOW(low[v]);
            AT_64(at + COUNT_64) = WIDEN_HIGH(high[v]) << net->low_bits | WIDEN_HIGH(low[v]);
        }
    }
}

TARGET static void NAMED(add_base)(uint64_t base, uint64_t *ids, size_t count)
{
    size_t k = 0;
    for (; base && k + COUNT_64 <= count; k += COUNT_64)
        AT_64(ids + k) += base;
    for (; base && k < count; k++)
        ids[k] += base;
}

TARGET static void NAMED(permute)(const struct network *net, uint64_t first, size_t count,
                                  uint64_t base, uint64_t *ids)
{
    if (net->low_bits >= 31) { /* sums of low halves would not fit */
        permute(net, first, count, base, ids);
        return;
    }
    while (count) {
        size_t n = count < CHUNK ? count : CHUNK, whole = n - n % STEP_32;
        uint64_t rest[STEP_32];
        NAMED(network_chunk)(net, first, whole, ids);
        NAMED(network_chunk)(net, first + whole, n - whole, rest);
        memcpy(ids + whole, rest, (n - whole) * sizeof *ids);
        NAMED(network_walk)(net, n, ids);
        NAMED(add_base)(base, ids, n);
        first += n;
        ids += n;
        count -= n;
    }
}

/* ---------------------------------------------------------------- celeres-dl's network */

INLINE void NAMED(feistel_pass)(const struct feistel *f, u64 *values)
{
    const uint64_t mask = low_mask(f->half_bits);
    u64 left[SIDE_64], right[SIDE_64];
    UNROLL for (unsigned v = 0; v < SIDE_64; v++)
    {
        left[v] = values[v] >> f->half_bits & mask;
        right[v] = values[v] & mask;
    }
    for (unsigned r = 0; r < f->rounds; r++)
        UNROLL for (unsigned v = 0; v < SIDE_64; v++)
        {
            u64 next = left[v] ^ (NAMED(mix)((f->keys[r] ^ right[v]) + GOLDEN) & mask);
            left[v] = right[v];
            right[v] = next;
        }
    UNROLL for (unsigned v = 0; v < SIDE_64; v++) values[v] = left[v] << f->half_bits | right[v];
}

TARGET static void NAMED(feistel_walk)(const struct feistel *f, size_t count, uint64_t *out)
{
    uint64_t packed[CHUNK];
    uint32_t at[CHUNK + COUNT_32];
    size_t pending = NAMED(outside)(out, count, f->length, at);
    while (pending) {
        for (size_t k = 0; k < pending; k++)
            packed[k] = out[at[k]];
        memset(packed + pending, 0, (CHUNK - pending) % STEP_64 * sizeof *packed);
        for (size_t k = 0; k < pending; k += STEP_64) {
            u64 values[SIDE_64];
            UNROLL for (unsigned v = 0; v < SIDE_64; v++) values[v] =
                AT_64(packed + k + v * COUNT_64);
            NAMED(feistel_pass)(f, values);
            UNROLL for (unsigned v = 0; v < SIDE_64; v++) AT_64(packed + k + v * COUNT_64) =
                values[v];
        }
        size_t left = 0;
        for (size_t k = 0; k < pending; k++) {
            out[at[k]] = packed[k];
            at[left] = at[k];
            left += packed[k] >= f->length;
        }
        pending = left;
    }
}

TARGET static void NAMED(feistel_chunk)(const struct feistel *f, uint64_t first, size_t count,
                                        uint64_t *out)
{
    for (size_t k = 0; k < count; k += STEP_64) {
        u64 values[SIDE_64];
        UNROLL for (unsigned v = 0; v < SIDE_64; v++) values[v] =
            first + k + v * COUNT_64 + AT_64(NAMED(iota_64));
        NAMED(feistel_pass)(f, values);
        UNROLL for (unsigned v = 0; v < SIDE_64; v++) AT_64(out + k + v * COUNT_64) = values[v];
    }
}

TARGET static void NAMED(feistel)(const struct feistel *f, uint64_t first, size_t count,
                                  uint64_t base, uint64_t *ids)
{
    while (count) {
        size_t n = count < CHUNK ? count : CHUNK, whole = n - n % STEP_64;
        uint64_t rest[STEP_64];
        NAMED(feistel_chunk)(f, first, whole, ids);
        NAMED(feistel_chunk)(f, first + whole, n - whole, rest);
        memcpy(ids + whole, rest, (n - whole) * sizeof *ids);
        NAMED(feistel_walk)(f, n, ids);
        NAMED(add_base)(base, ids, n);
        first += n;
        ids += n;
        count -= n;
    }
}

#undef AT_32
#undef AT_64
#undef INLINE
#undef SIDE_32
#undef SIDE_64
#undef STEP_32
#undef STEP_64
#undef COUNT_32
#undef COUNT_64
#undef u32
#undef u64
#undef i64
#undef LANES
#undef TARGET
#undef VECTOR_NBYTES
#undef MUL_WIDE
#undef WIDEN_LOW
#undef WIDEN_HIGH
#undef ANY
