/* SPDX-License-Identifier: MIT
 *
 * Index generation without state: every batch is a function of (length, batch
 * size, mode, seed, step).  The numbers are part of the interface: runs resume
 * from a step, so the functions below never change.
 *
 * Mixing: SplitMix64 (Steele, Lea, Flood 2014).  IID: multiply-shift with
 * rejection (Lemire 2019).  CYCLIC: a Feistel network over the smallest power of
 * two that holds the length, walked until it lands inside; short lengths, where
 * a network of a few bits reaches few permutations, are shuffled by Fisher and
 * Yates.
 */
#include "internal.h"

#define GOLDEN 0x9E3779B97F4A7C15u
#define ROUND_COUNT 8
#define SHUFFLE_MAX 256

static inline uint64_t mix64(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Value n of the SplitMix64 stream that starts at key. */
static inline uint64_t stream(uint64_t key, uint64_t n)
{
    return mix64(key + (n + 1) * GOLDEN);
}

/* Uniform in [0, length) from draw x; redraws are further mixes of x. */
static inline uint64_t bounded(uint64_t x, uint64_t length)
{
    if (length <= UINT32_MAX) {
        uint32_t n = (uint32_t)length;
        uint64_t m = (x >> 32) * n;
        if ((uint32_t)m < n) {
            uint32_t threshold = -n % n;
            while ((uint32_t)m < threshold) {
                x = mix64(x + GOLDEN);
                m = (x >> 32) * n;
            }
        }
        return m >> 32;
    }
    unsigned __int128 m = (unsigned __int128)x * length;
    if ((uint64_t)m < length) {
        uint64_t threshold = -length % length;
        while ((uint64_t)m < threshold) {
            x = mix64(x + GOLDEN);
            m = (unsigned __int128)x * length;
        }
    }
    return (uint64_t)(m >> 64);
}

/* ---------------------------------------------------------------- permutations */

struct network {
    uint64_t length;
    unsigned low_bits, high_bits;
    uint32_t keys[ROUND_COUNT];
};

static void network_init(struct network *net, uint64_t length, uint64_t key)
{
    unsigned bits = 64 - (unsigned)__builtin_clzll(length - 1);
    net->length = length;
    net->low_bits = bits / 2;
    net->high_bits = bits - net->low_bits;
    for (unsigned i = 0; i < ROUND_COUNT; i++)
        net->keys[i] = (uint32_t)(stream(key, i) >> 32);
}

static inline uint32_t round_value(uint32_t half, uint32_t key)
{
    uint32_t h = (half ^ key) * 0x9E3779B1u;
    h = (h ^ (h >> 15)) * 0x85EBCA77u;
    return h ^ (h >> 13);
}

static inline uint32_t low_mask(unsigned bits)
{
    return bits >= 32 ? UINT32_MAX : ((uint32_t)1 << bits) - 1;
}

/* One pass over the power of two: each round changes one half by the other, so
 * it can be undone whatever the round function is. */
static inline uint64_t network_pass(const struct network *net, uint64_t i)
{
    uint32_t low_all = low_mask(net->low_bits), high_all = low_mask(net->high_bits);
    uint32_t low = (uint32_t)i & low_all, high = (uint32_t)(i >> net->low_bits) & high_all;
    for (unsigned k = 0; k < ROUND_COUNT; k += 2) {
        high ^= round_value(low, net->keys[k]) & high_all;
        low ^= round_value(high, net->keys[k + 1]) & low_all;
    }
    return (uint64_t)high << net->low_bits | low;
}

static inline uint64_t network_permute(const struct network *net, uint64_t i)
{
    do
        i = network_pass(net, i);
    while (i >= net->length);
    return i;
}

static void shuffle(uint64_t length, uint64_t key, uint16_t *order)
{
    for (uint64_t i = 0; i < length; i++) {
        uint64_t j = bounded(stream(key, i), i + 1);
        if (j < i)
            order[i] = order[j];
        order[j] = (uint16_t)i;
    }
}

static uint64_t cycle_key(uint64_t seed, uint64_t cycle)
{
    return mix64(mix64(seed + GOLDEN) + cycle * 0xD1B54A32D192ED03u);
}

static void permute_run(uint64_t length, uint64_t seed, uint64_t cycle, uint64_t first,
                        uint64_t count, uint64_t *ids)
{
    uint64_t key = cycle_key(seed, cycle);
    if (length <= SHUFFLE_MAX) {
        uint16_t order[SHUFFLE_MAX];
        shuffle(length, key, order);
        for (uint64_t i = 0; i < count; i++)
            ids[i] = order[first + i];
        return;
    }
    struct network net;
    network_init(&net, length, key);
    for (uint64_t i = 0; i < count; i++)
        ids[i] = network_permute(&net, first + i);
}

uint64_t zr_permute(uint64_t length, uint64_t seed, uint64_t cycle, uint64_t i)
{
    uint64_t id;
    if (i >= length)
        return ZR_NO_RECORD;
    permute_run(length, seed, cycle, i, 1, &id);
    return id;
}

/* ---------------------------------------------------------------- batches */

static bool is_valid(const struct zr_sampler *s)
{
    return s->length && s->batch_size && s->mode >= ZR_SEQUENTIAL && s->mode <= ZR_CYCLIC;
}

uint64_t zr_sampler_batch_count(const struct zr_sampler *s)
{
    if (!is_valid(s))
        return 0;
    return s->mode == ZR_CYCLIC && s->batch_size > s->length ? s->length : s->batch_size;
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
    for (uint64_t i = 0; i < s->batch_size; i++)
        ids[i] = bounded(stream(key, first + i), s->length);
}

static void cyclic_batch(const struct zr_sampler *s, uint64_t step, uint64_t *ids)
{
    uint64_t count = zr_sampler_batch_count(s), steps = s->length / count;
    permute_run(s->length, s->seed, step / steps, step % steps * count, count, ids);
}

void zr_sampler_batch(const struct zr_sampler *s, uint64_t step, uint64_t *ids)
{
    if (!is_valid(s))
        return;
    if (s->mode == ZR_SEQUENTIAL)
        sequential_batch(s, step, ids);
    else if (s->mode == ZR_IID)
        iid_batch(s, step, ids);
    else
        cyclic_batch(s, step, ids);
}
