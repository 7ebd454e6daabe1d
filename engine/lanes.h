/* SPDX-License-Identifier: MIT
 *
 * The inner loops of index generation, which exist once in plain C and once for
 * each vector unit, chosen when the program runs.  Every version computes the
 * same numbers: they are compared in the tests.  What the numbers mean is said
 * in sampler.c, permute.c and block_shuffle.c.
 */
#ifndef ZR_LANES_H
#define ZR_LANES_H

#include <stddef.h>
#include <stdint.h>

#define GOLDEN 0x9E3779B97F4A7C15u
#define MIX_1 0xBF58476D1CE4E5B9u
#define MIX_2 0x94D049BB133111EBu

/* The finaliser of SplitMix64 (Steele, Lea, Flood 2014). */
static inline uint64_t mix64(uint64_t z)
{
    z = (z ^ (z >> 30)) * MIX_1;
    z = (z ^ (z >> 27)) * MIX_2;
    return z ^ (z >> 31);
}

/* Value n of the SplitMix64 stream that starts at key. */
static inline uint64_t stream(uint64_t key, uint64_t n)
{
    return mix64(key + (n + 1) * GOLDEN);
}

static inline uint32_t low_mask(unsigned bits)
{
    return bits >= 32 ? UINT32_MAX : ((uint32_t)1 << bits) - 1;
}

/* A permutation of 0..length-1 by an unbalanced Feistel network with a round
 * function of 32-bit multiplications; length > 2. */
#define NETWORK_ROUNDS 8
struct network {
    uint64_t length;
    unsigned low_bits, high_bits; /* at most 32 each */
    uint32_t keys[NETWORK_ROUNDS];
};

/* A permutation of 0..length-1 by celeres-dl's balanced Feistel network, whose
 * round function is SplitMix64's finaliser; length > 1. */
#define FEISTEL_ROUNDS_MAX 255
struct feistel {
    uint64_t length;
    unsigned half_bits; /* 1..32 */
    unsigned rounds;
    uint64_t keys[FEISTEL_ROUNDS_MAX];
};

struct zri_lanes {
    const char *name;
    /* count draws first, first+1, … of the stream at key, uniform below length. */
    void (*draw)(uint64_t key, uint64_t first, uint32_t length, size_t count, uint64_t *ids);
    /* base + the images of positions first..first+count-1. */
    void (*permute)(const struct network *net, uint64_t first, size_t count, uint64_t base,
                    uint64_t *ids);
    void (*feistel)(const struct feistel *f, uint64_t first, size_t count, uint64_t base,
                    uint64_t *ids);
};

/* lanes.c: the best that this CPU has. */
const struct zri_lanes *zri_lanes(void);
/* For tests: the versions from plain C on, NULL where this CPU ends; and a choice for
 * the whole process, NULL to go back to the best. */
const struct zri_lanes *zri_lanes_version(unsigned i);
void zri_lanes_force(const struct zri_lanes *lanes);

/* permute.c: one draw below length from x, with redraws. */
uint64_t zri_bounded(uint64_t x, uint64_t length);
uint64_t zri_network_permute(const struct network *net, uint64_t i);
/* block_shuffle.c */
uint64_t zri_feistel_permute(const struct feistel *f, uint64_t i);

#endif /* ZR_LANES_H */
