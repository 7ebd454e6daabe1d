/* SPDX-License-Identifier: MIT
 *
 * Permutations of 0..length-1 that need no memory: a Feistel network over the
 * smallest power of two that holds the length, walked until it lands inside
 * (Black, Rogaway 2002).  Short lengths, where a network of a few bits reaches few
 * permutations, are shuffled by Fisher and Yates.
 *
 * The numbers are part of the interface: runs resume from a step, and a mount and
 * a loader agree on an order, so these functions never change.
 */
#include "lanes.h"

#include "internal.h"

#define SHUFFLE_MAX 256

/* Uniform in [0, length) from draw x, by multiplication with rejection (Lemire 2019);
 * redraws are further mixes of x. */
uint64_t zri_bounded(uint64_t x, uint64_t length)
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

/* ---------------------------------------------------------------- network */

static void network_init(struct network *net, uint64_t length, uint64_t key)
{
    unsigned bits = 64 - (unsigned)__builtin_clzll(length - 1);
    net->length = length;
    net->low_bits = bits / 2;
    net->high_bits = bits - net->low_bits;
    for (unsigned i = 0; i < NETWORK_ROUNDS; i++)
        net->keys[i] = (uint32_t)(stream(key, i) >> 32);
}

static inline uint32_t round_value(uint32_t half, uint32_t key)
{
    uint32_t h = (half ^ key) * 0x9E3779B1u;
    h = (h ^ (h >> 15)) * 0x85EBCA77u;
    return h ^ (h >> 13);
}

/* One pass over the power of two: each round changes one half by the other, so
 * it can be undone whatever the round function is. */
static inline uint64_t network_pass(const struct network *net, uint64_t i)
{
    uint32_t low_all = low_mask(net->low_bits), high_all = low_mask(net->high_bits);
    uint32_t low = (uint32_t)i & low_all, high = (uint32_t)(i >> net->low_bits) & high_all;
    for (unsigned k = 0; k < NETWORK_ROUNDS; k += 2) {
        high ^= round_value(low, net->keys[k]) & high_all;
        low ^= round_value(high, net->keys[k + 1]) & low_all;
    }
    return (uint64_t)high << net->low_bits | low;
}

static inline uint64_t network_undo(const struct network *net, uint64_t i)
{
    uint32_t low_all = low_mask(net->low_bits), high_all = low_mask(net->high_bits);
    uint32_t low = (uint32_t)i & low_all, high = (uint32_t)(i >> net->low_bits) & high_all;
    for (unsigned k = NETWORK_ROUNDS; k; k -= 2) {
        low ^= round_value(high, net->keys[k - 1]) & low_all;
        high ^= round_value(low, net->keys[k - 2]) & high_all;
    }
    return (uint64_t)high << net->low_bits | low;
}

uint64_t zri_network_permute(const struct network *net, uint64_t i)
{
    do
        i = network_pass(net, i);
    while (i >= net->length);
    return i;
}

/* ---------------------------------------------------------------- any length */

static void shuffle(uint64_t length, uint64_t key, uint16_t *order)
{
    for (uint64_t i = 0; i < length; i++) {
        uint64_t j = zri_bounded(stream(key, i), i + 1);
        if (j < i)
            order[i] = order[j];
        order[j] = (uint16_t)i;
    }
}

void zri_permute_run(uint64_t length, uint64_t key, uint64_t first, uint64_t count, uint64_t base,
                     uint64_t *ids)
{
    if (length <= SHUFFLE_MAX) {
        uint16_t order[SHUFFLE_MAX];
        shuffle(length, key, order);
        for (uint64_t i = 0; i < count; i++)
            ids[i] = base + order[first + i];
        return;
    }
    struct network net;
    network_init(&net, length, key);
    zri_lanes()->permute(&net, first, count, base, ids);
}

static uint64_t permute_one(uint64_t length, uint64_t key, uint64_t i)
{
    uint64_t id;
    struct network net;
    if (length <= SHUFFLE_MAX) {
        zri_permute_run(length, key, i, 1, 0, &id);
        return id;
    }
    network_init(&net, length, key);
    return zri_network_permute(&net, i);
}

uint64_t zri_permute_inverse(uint64_t length, uint64_t key, uint64_t id)
{
    if (length <= SHUFFLE_MAX) {
        uint16_t order[SHUFFLE_MAX] = {0};
        uint64_t i = 0;
        shuffle(length, key, order);
        while (order[i] != id)
            i++;
        return i;
    }
    struct network net;
    network_init(&net, length, key);
    do
        id = network_undo(&net, id);
    while (id >= length);
    return id;
}

uint64_t zri_cycle_key(uint64_t seed, uint64_t cycle)
{
    return mix64(mix64(seed + GOLDEN) + cycle * 0xD1B54A32D192ED03u);
}

uint64_t zr_permute(uint64_t length, uint64_t seed, uint64_t cycle, uint64_t i)
{
    return i < length ? permute_one(length, zri_cycle_key(seed, cycle), i) : ZR_NO_RECORD;
}

uint64_t zr_permute_inverse(uint64_t length, uint64_t seed, uint64_t cycle, uint64_t id)
{
    if (id >= length)
        return ZR_NO_RECORD;
    return zri_permute_inverse(length, zri_cycle_key(seed, cycle), id);
}
