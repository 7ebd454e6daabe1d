/* SPDX-License-Identifier: MIT
 *
 * The vectorised inner loops (engine/lanes.c): every version that this CPU can run
 * gives what plain C gives, for any count, place and length.
 */
#include "support.h"

#include "lanes.h"

#define POW(n) ((uint64_t)1 << (n))
#define ROOM 1100
#define GUARD 0xABABABABABABABABu

static uint64_t expected[ROOM + 1], got[ROOM + 1];
static const size_t counts[] = {0, 1, 8, 15, 17, 63, 65, 257, 1025};

static struct network network_of(uint64_t length, uint64_t key)
{
    unsigned bits = 64 - (unsigned)__builtin_clzll(length - 1);
    struct network net = {length, bits / 2, bits - bits / 2, {0}};
    for (unsigned i = 0; i < NETWORK_ROUNDS; i++)
        net.keys[i] = (uint32_t)stream(key, i);
    return net;
}

static struct feistel feistel_of(uint64_t length, unsigned rounds, uint64_t key)
{
    unsigned bits = 64 - (unsigned)__builtin_clzll((length - 1) | 1);
    struct feistel f = {length, (bits + 1) / 2, rounds, {0}};
    for (unsigned r = 0; r < rounds; r++)
        f.keys[r] = stream(key, r);
    return f;
}

static void check(const char *version, const char *what, uint64_t length, size_t count)
{
    for (size_t k = 0; k < count; k++)
        ck_assert_msg(got[k] == expected[k],
                      "%s, %s, length %" PRIu64 ", %zu of %zu: %" PRIu64 ", not %" PRIu64, version,
                      what, length, k, count, got[k], expected[k]);
    ck_assert_msg(got[count] == GUARD, "%s, %s wrote behind %zu", version, what, count);
}

START_TEST(draws_are_the_same)
{
    /* Just above a power of two nearly half of all draws are repeated. */
    static const uint32_t lengths[] = {1,         2, 3, 1000000, (1u << 31) - 1, (1u << 31) + 1,
                                       UINT32_MAX};
    const struct zri_lanes *plain = zri_lanes_version(0), *version;
    for (unsigned v = 1; (version = zri_lanes_version(v)); v++)
        for (size_t l = 0; l < COUNT(lengths); l++)
            for (size_t c = 0; c < COUNT(counts); c++) {
                uint64_t first = l % 2 ? UINT64_MAX - 20 : 12345 * l;
                got[counts[c]] = GUARD;
                plain->draw(l, first, lengths[l], counts[c], expected);
                version->draw(l, first, lengths[l], counts[c], got);
                check(version->name, "draw", lengths[l], counts[c]);
            }
}
END_TEST

static void check_lengths(const uint64_t *lengths, size_t length_count)
{
    const struct zri_lanes *plain = zri_lanes_version(0), *version;
    for (unsigned v = 1; (version = zri_lanes_version(v)); v++)
        for (size_t l = 0; l < length_count; l++)
            for (size_t c = 0; c < COUNT(counts); c++) {
                uint64_t n = lengths[l], count = counts[c] < n ? counts[c] : n;
                uint64_t first = c % 2 ? n - count : (n - count) / 2;
                struct network net = network_of(n, l);
                struct feistel f = feistel_of(n, (unsigned)(c % 8), l);
                got[count] = GUARD;
                plain->permute(&net, first, count, c, expected);
                version->permute(&net, first, count, c, got);
                check(version->name, "permute", n, count);
                got[count] = GUARD;
                plain->feistel(&f, first, count, c, expected);
                version->feistel(&f, first, count, c, got);
                check(version->name, "feistel", n, count);
            }
}

START_TEST(permutations_of_small_lengths_are_the_same)
{
    for (uint64_t n = 257; n < 700; n += 17)
        check_lengths(&n, 1);
}
END_TEST

START_TEST(permutations_around_powers_of_two_are_the_same)
{
    for (unsigned shift = 9; shift < 64; shift += shift < 30 ? 1 : 3) {
        const uint64_t lengths[] = {POW(shift) - 1, POW(shift), POW(shift) + 1,
                                    POW(shift) + POW(shift - 1)};
        check_lengths(lengths, COUNT(lengths));
    }
    check_lengths((const uint64_t[]){UINT64_MAX}, 1);
}
END_TEST

START_TEST(any_version_can_be_forced)
{
    for (int mode = ZR_SEQUENTIAL; mode <= ZR_BLOCK; mode++) {
        struct zr_sampler s = {1000003, 1000, 42, mode, 8, 100};
        const struct zri_lanes *version;
        for (unsigned v = 0; (version = zri_lanes_version(v)); v++) {
            zri_lanes_force(version);
            ck_assert_ptr_eq(zri_lanes(), version);
            got[1000] = GUARD;
            zr_sampler_batch(&s, 12345, got);
            if (v == 0)
                memcpy(expected, got, sizeof got);
            check(version->name, "batch", (uint64_t)mode, 1000);
        }
    }
    zri_lanes_force(NULL);
    ck_assert_ptr_nonnull(zri_lanes());
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        draws_are_the_same,
        permutations_of_small_lengths_are_the_same,
        permutations_around_powers_of_two_are_the_same,
        any_version_can_be_forced,
    };
    unsigned count = 0;
    while (zri_lanes_version(count))
        printf("lanes: this CPU runs %s\n", zri_lanes_version(count++)->name);
    return run_tests("lanes", tests, COUNT(tests), 60);
}
