/* SPDX-License-Identifier: MIT
 *
 * Index generation (engine/sampler.c): permutations that are permutations, draws
 * that are uniform, and numbers that never change.
 */
#include "support.h"

#define POW(n) ((uint64_t)1 << (n))

/* These were fixed with the first release; a run resumes from its step by them. */
static const struct {
    struct zr_sampler s;
    uint64_t step, ids[4];
} goldens[] = {
#define G(length, batch, seed, mode, step, ...)                                                    \
    {                                                                                              \
        {length, batch, seed, mode, 0, 0}, step,                                                   \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
    G(10, 4, 42, ZR_SEQUENTIAL, 3, 2, 3, 4, 5),
    G(10, 4, 42, ZR_IID, 0, 9, 3, 5, 6),
    G(1000000, 4, 42, ZR_IID, 7, 16151, 126230, 285902, 6535),
    G(5000000000u, 4, 0, ZR_IID, 0, 1381167911, 1079342298, 4395520811, 754557777),
    G(UINT64_MAX, 4, 7, ZR_IID, POW(40), 8853719208028744132u, 4298712036290467273u,
      16973608080365917520u, 11585763463850314771u),
    G(10, 4, 42, ZR_CYCLIC, 0, 4, 7, 9, 6),
    G(10, 4, 42, ZR_CYCLIC, 1, 1, 5, 2, 0),
    G(10, 4, 42, ZR_CYCLIC, 2, 0, 2, 6, 4),
    G(256, 4, 1, ZR_CYCLIC, 5, 199, 158, 29, 181),
    G(257, 4, 1, ZR_CYCLIC, 5, 144, 178, 163, 227),
    G(1000000, 4, 42, ZR_CYCLIC, 0, 648621, 924192, 23238, 193361),
    G(1000000, 4, 42, ZR_CYCLIC, 250000, 234770, 605975, 415009, 743778),
    G(POW(40), 4, 3, ZR_CYCLIC, 9, 432696216884, 776681162166, 20942997439, 788631351941),
    G(POW(63) + 5, 4, 3, ZR_CYCLIC, 9, 8587143520207917821, 658203716620728734, 7628941482242920457,
      8573669301788331263),
    G(UINT64_MAX, 4, UINT64_MAX, ZR_CYCLIC, 12345678901234, 5998533747746430018,
      6473637816879477293, 11995877008870837382u, 10562240753752859526u),
#define B(length, seed, interleave, block_size, step, ...)                                         \
    {                                                                                              \
        {length, 4, seed, ZR_BLOCK, interleave, block_size}, step,                                 \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
    B(10, 42, 1, 3, 1, 1, 2, 8, 6),
    B(1000000, 42, 0, 0, 250000, 581551, 581392, 581001, 581235),
    B(1000000, 42, 8, 1000, 123456, 192393, 152865, 158527, 215089),
    B(POW(40), 3, 256, POW(20), 9, 106026366902, 413162947249, 713741476, 974381987086),
    B(POW(62), 3, 2, 0, 77, 1693592223541882685, 1693592223541882768, 2216895997367025034,
      2216895997367025611),
#undef B
#undef G
};

START_TEST(the_numbers_have_not_changed)
{
    for (size_t i = 0; i < COUNT(goldens); i++) {
        uint64_t ids[4];
        zr_sampler_batch(&goldens[i].s, goldens[i].step, ids);
        for (int k = 0; k < 4; k++)
            ck_assert_msg(ids[k] == goldens[i].ids[k], "case %zu, id %d: %" PRIu64, i, k, ids[k]);
    }
}
END_TEST

static void check_bijection(uint64_t length, uint64_t seed, uint64_t cycle)
{
    uint8_t *seen = calloc(length, 1);
    struct zr_sampler s = {length, length, seed, ZR_CYCLIC, 0, 0};
    uint64_t *ids = malloc(length * sizeof *ids);
    zr_sampler_batch(&s, cycle, ids);
    for (uint64_t i = 0; i < length; i++)
        if (ids[i] >= length || seen[ids[i]]++)
            ck_abort_msg("length %" PRIu64 ": position %" PRIu64 " gives %" PRIu64, length, i,
                         ids[i]);
    free(ids);
    free(seen);
}

START_TEST(every_length_to_600_gives_permutations)
{
    for (uint64_t length = 1; length <= 600; length++)
        for (uint64_t cycle = 0; cycle < 5; cycle++)
            check_bijection(length, 42 + length, cycle);
}
END_TEST

START_TEST(larger_lengths_around_powers_of_two_give_permutations)
{
    for (unsigned shift = 10; shift <= 18; shift += 2)
        for (uint64_t length = POW(shift) - 1; length <= POW(shift) + 1; length++)
            check_bijection(length, 7, 3);
}
END_TEST

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* First, last and strided positions of lengths that cannot be counted out. */
START_TEST(huge_lengths_stay_inside_and_never_repeat)
{
    enum { SAMPLES = 20000 };
    static const uint64_t lengths[] = {POW(32) - 1, POW(32), POW(32) + 1, POW(40),   POW(40) + 1,
                                       POW(63) - 1, POW(63), POW(63) + 1, UINT64_MAX};
    static uint64_t ids[SAMPLES];
    for (size_t k = 0; k < COUNT(lengths); k++) {
        uint64_t n = lengths[k];
        for (uint64_t i = 0; i < SAMPLES; i++) {
            uint64_t at_i = i < 1000 ? i : i < 2000 ? n - 1 - (i - 1000) : n / SAMPLES * i;
            ids[i] = zr_permute(n, 42, k, at_i);
            ck_assert_uint_lt(ids[i], n);
        }
        qsort(ids, SAMPLES, sizeof *ids, compare);
        for (size_t i = 1; i < SAMPLES; i++)
            ck_assert_uint_ne(ids[i - 1], ids[i]);
    }
}
END_TEST

START_TEST(positions_outside_have_no_record)
{
    ck_assert_uint_eq(zr_permute(10, 1, 1, 10), ZR_NO_RECORD);
    ck_assert_uint_eq(zr_permute(0, 1, 1, 0), ZR_NO_RECORD);
    ck_assert_uint_eq(zr_permute(1, 1, 1, 0), 0);
    ck_assert_uint_eq(zr_permute(10, 1, 1, UINT64_MAX), ZR_NO_RECORD);
}
END_TEST

START_TEST(a_cycle_drops_its_remainder)
{
    enum { LENGTH = 1003, BATCH = 10, STEPS = LENGTH / BATCH };
    struct zr_sampler s = {LENGTH, BATCH, 5, ZR_CYCLIC, 0, 0};
    for (uint64_t cycle = 0; cycle < 3; cycle++) {
        uint8_t seen[LENGTH] = {0};
        unsigned count = 0;
        for (uint64_t step = 0; step < STEPS; step++) {
            uint64_t ids[BATCH];
            zr_sampler_batch(&s, cycle * STEPS + step, ids);
            for (int i = 0; i < BATCH; i++) {
                ck_assert_uint_eq(ids[i], zr_permute(LENGTH, 5, cycle, step * BATCH + (uint64_t)i));
                count += !seen[ids[i]]++;
            }
        }
        ck_assert_uint_eq(count, STEPS * BATCH);
    }
}
END_TEST

START_TEST(cycles_and_seeds_differ)
{
    static const uint64_t lengths[] = {20, 256, 257, 100000};
    for (size_t k = 0; k < COUNT(lengths); k++)
        for (uint64_t other = 1; other < 50; other++) {
            uint64_t n = lengths[k], same_cycle = 0, same_seed = 0;
            for (uint64_t i = 0; i < 20; i++) {
                uint64_t id = zr_permute(n, 42, 0, i);
                same_seed += id == zr_permute(n, 42, other, i);
                same_cycle += id == zr_permute(n, 42 + other, 0, i);
            }
            ck_assert_uint_lt(same_seed, 10);
            ck_assert_uint_lt(same_cycle, 10);
        }
}
END_TEST

/* seed + 1 in cycle 0 must not be seed in cycle 1, nor any such shift. */
START_TEST(seed_and_cycle_are_independent)
{
    for (uint64_t a = 0; a < 30; a++)
        for (uint64_t b = 0; b < 30; b++) {
            unsigned same = 0;
            for (uint64_t i = 0; i < 12 && (a || b); i++)
                same += zr_permute(1000, 100, 10, i) == zr_permute(1000, 100 + a, 10 + b, i);
            ck_assert_uint_lt(same, 6);
        }
}
END_TEST

START_TEST(a_batch_larger_than_the_store)
{
    struct zr_sampler s = {5, 12, 1, ZR_CYCLIC, 0, 0};
    uint64_t ids[12];
    ck_assert_uint_eq(zr_sampler_batch_count(&s), 5);
    memset(ids, 0xff, sizeof ids);
    zr_sampler_batch(&s, 9, ids);
    for (int i = 0; i < 5; i++)
        ck_assert_uint_eq(ids[i], zr_permute(5, 1, 9, (uint64_t)i));
    ck_assert_uint_eq(ids[5], UINT64_MAX);
    s.mode = ZR_SEQUENTIAL;
    ck_assert_uint_eq(zr_sampler_batch_count(&s), 12);
    zr_sampler_batch(&s, 1, ids);
    for (uint64_t i = 0; i < 12; i++)
        ck_assert_uint_eq(ids[i], (12 + i) % 5);
    s.mode = ZR_IID;
    ck_assert_uint_eq(zr_sampler_batch_count(&s), 12);
}
END_TEST

START_TEST(sequential_wraps_without_a_gap)
{
    struct zr_sampler s = {7, 3, 0, ZR_SEQUENTIAL, 0, 0};
    uint64_t ids[3], expected = 0;
    for (uint64_t step = 0; step < 50; step++) {
        zr_sampler_batch(&s, step, ids);
        for (int i = 0; i < 3; i++, expected++)
            ck_assert_uint_eq(ids[i], expected % 7);
    }
    s.length = POW(63) + 11;
    s.batch_size = 3;
    zr_sampler_batch(&s, UINT64_MAX, ids);
    ck_assert_uint_eq(ids[0], (uint64_t)((unsigned __int128)UINT64_MAX * 3 % s.length));
}
END_TEST

/* A batch of 2n is two batches of n: seeking costs and changes nothing. */
START_TEST(batches_join_seamlessly_in_every_mode)
{
    for (int mode = ZR_SEQUENTIAL; mode <= ZR_BLOCK; mode++) {
        struct zr_sampler small = {1000, 50, 9, mode, 7, 30}, large = {1000, 100, 9, mode, 7, 30};
        for (uint64_t step = 0; step < 30; step++) {
            uint64_t a[100], b[100];
            zr_sampler_batch(&small, 2 * step, a);
            zr_sampler_batch(&small, 2 * step + 1, a + 50);
            zr_sampler_batch(&large, step, b);
            ck_assert_mem_eq(a, b, sizeof a);
        }
    }
}
END_TEST

/* Every record once, and never more than `interleave` blocks begun and not ended. */
static void check_blocks(uint64_t length, uint64_t block_size, unsigned interleave)
{
    struct zr_sampler s = {length, length, 5, ZR_BLOCK, interleave, block_size};
    uint64_t block_count = (length - 1) / block_size + 1, open = 0;
    uint64_t *ids = malloc(length * sizeof *ids), *left = malloc(block_count * sizeof *left);
    uint8_t *seen = calloc(length, 1);
    for (uint64_t b = 0; b < block_count; b++)
        left[b] = b + 1 < block_count ? block_size : length - b * block_size;
    zr_sampler_batch(&s, length % 7, ids);
    for (uint64_t i = 0; i < length; i++) {
        ck_assert_uint_lt(ids[i], length);
        ck_assert_msg(!seen[ids[i]]++, "length %" PRIu64 ", blocks of %" PRIu64 ", %u: id %" PRIu64,
                      length, block_size, interleave, ids[i]);
        uint64_t b = ids[i] / block_size, last = b + 1 == block_count;
        uint64_t whole = last ? length - b * block_size : block_size;
        open += left[b] == whole;
        ck_assert_uint_le(open, interleave);
        open -= --left[b] == 0;
    }
    free(ids);
    free(left);
    free(seen);
}

START_TEST(every_small_length_in_blocks_gives_permutations)
{
    for (uint64_t length = 1; length <= 48; length++)
        for (uint64_t size = 1; size <= length + 2; size++)
            for (unsigned interleave = 1; interleave <= 9; interleave += 2)
                check_blocks(length, size < length ? size : length, interleave);
}
END_TEST

START_TEST(larger_lengths_in_blocks_give_permutations)
{
    static const uint64_t lengths[] = {1000, 4096, 10001};
    for (size_t k = 0; k < COUNT(lengths); k++)
        for (uint64_t size = 1; size < lengths[k]; size = size * 5 + 1)
            for (unsigned interleave = 1; interleave <= 256; interleave *= 4)
                check_blocks(lengths[k], size, interleave);
}
END_TEST

START_TEST(positions_have_their_inverse)
{
    static const uint64_t lengths[] = {1,   2,       3,           255,         256,
                                       257, 1000003, POW(40) + 7, POW(63) + 1, UINT64_MAX};
    for (size_t k = 0; k < COUNT(lengths); k++)
        for (uint64_t i = 0; i < 300 && i < lengths[k]; i++) {
            uint64_t n = lengths[k], position = n / 300 * i + (n < 300 ? i : 0);
            uint64_t id = zr_permute(n, 42, k, position);
            ck_assert_uint_eq(zr_permute_inverse(n, 42, k, id), position);
        }
    ck_assert_uint_eq(zr_permute_inverse(10, 1, 1, 10), ZR_NO_RECORD);
    ck_assert_uint_eq(zr_permute_inverse(0, 1, 1, 0), ZR_NO_RECORD);
}
END_TEST

START_TEST(samplers_that_are_not_valid_write_nothing)
{
    static const struct zr_sampler bad[] = {{0, 4, 1, ZR_IID, 0, 0},
                                            {4, 0, 1, ZR_IID, 0, 0},
                                            {4, 4, 1, 4, 0, 0},
                                            {4, 4, 1, -1, 0, 0},
                                            {0, 0, 0, ZR_CYCLIC, 0, 0},
                                            {4, 4, 1, ZR_BLOCK, 257, 1},
                                            {POW(62) + 1, 4, 1, ZR_BLOCK, 1, 1}};
    for (size_t i = 0; i < COUNT(bad); i++) {
        uint64_t ids[4] = {77, 77, 77, 77};
        ck_assert_uint_eq(zr_sampler_batch_count(&bad[i]), 0);
        zr_sampler_batch(&bad[i], 0, ids);
        for (int k = 0; k < 4; k++)
            ck_assert_uint_eq(ids[k], 77);
    }
}
END_TEST

/* ---------------------------------------------------------------- statistics
 * With fixed seeds, so they pass always or never; 5 standard deviations. */

static void check_uniform(const uint64_t *counts, size_t bins, double expected, const char *what)
{
    double chi2 = 0, df = (double)bins - 1;
    for (size_t i = 0; i < bins; i++)
        chi2 += ((double)counts[i] - expected) * ((double)counts[i] - expected) / expected;
    double z = (chi2 - df) / (__builtin_sqrt(2 * df));
    ck_assert_msg(z > -5 && z < 5, "%s: chi-square %.1f with %.0f degrees: %.1f deviations", what,
                  chi2, df, z);
}

START_TEST(iid_draws_are_uniform_for_awkward_lengths)
{
    enum { BINS = 64, BATCH = 64 * 2000 };
    static const uint64_t lengths[] = {64, 3ull * POW(30), POW(32) - 64, 3ull * POW(62),
                                       POW(63) + POW(62)};
    static uint64_t ids[BATCH];
    for (size_t k = 0; k < COUNT(lengths); k++) {
        uint64_t counts[BINS] = {0};
        struct zr_sampler s = {lengths[k], BATCH, 42, ZR_IID, 0, 0};
        zr_sampler_batch(&s, k, ids);
        for (size_t i = 0; i < BATCH; i++)
            counts[ids[i] / (lengths[k] / BINS)]++;
        check_uniform(counts, BINS, BATCH / BINS, "iid");
    }
}
END_TEST

START_TEST(successive_iid_draws_are_independent)
{
    enum { SIDE = 32, BATCH = SIDE * SIDE * 200 };
    static uint64_t ids[BATCH + 1], counts[SIDE * SIDE];
    struct zr_sampler s = {SIDE, BATCH + 1, 3, ZR_IID, 0, 0};
    zr_sampler_batch(&s, 0, ids);
    for (size_t i = 0; i < BATCH; i++)
        counts[ids[i] * SIDE + ids[i + 1]]++;
    check_uniform(counts, SIDE * SIDE, BATCH / (SIDE * SIDE), "pairs");
}
END_TEST

START_TEST(all_orders_of_five_come_equally_often)
{
    enum { CYCLES = 120 * 400 };
    uint64_t counts[5 * 5 * 5 * 5] = {0}, orders[120], found = 0;
    for (uint64_t cycle = 0; cycle < CYCLES; cycle++) {
        uint64_t at_cycle = 0;
        for (uint64_t i = 0; i < 4; i++)
            at_cycle = at_cycle * 5 + zr_permute(5, 8, cycle, i);
        counts[at_cycle]++;
    }
    for (size_t i = 0; i < COUNT(counts); i++)
        if (counts[i]) {
            ck_assert_uint_lt(found, 120);
            orders[found++] = counts[i];
        }
    ck_assert_uint_eq(found, 120);
    check_uniform(orders, 120, CYCLES / 120, "orders of five");
}
END_TEST

/* Where an id lands, over many cycles: by Fisher-Yates and by the network. */
START_TEST(every_position_gets_every_id_equally_often)
{
    static const uint64_t lengths[] = {100, 256, 257, 300, 512, 513, 1000};
    for (size_t k = 0; k < COUNT(lengths); k++)
        for (uint64_t where = 0; where < 3; where++) {
            static uint64_t counts[1000];
            uint64_t n = lengths[k], position = where * (n - 1) / 2;
            memset(counts, 0, sizeof counts);
            for (uint64_t cycle = 0; cycle < 40 * n; cycle++)
                counts[zr_permute(n, 11, cycle, position)]++;
            check_uniform(counts, n, 40, "positions");
        }
}
END_TEST

START_TEST(neighbours_in_a_cycle_are_not_related)
{
    static const uint64_t lengths[] = {257, 300, 1000, 1025};
    for (size_t k = 0; k < COUNT(lengths); k++) {
        static uint64_t counts[1025];
        uint64_t n = lengths[k];
        memset(counts, 0, sizeof counts);
        for (uint64_t cycle = 0; cycle < 40 * n; cycle++) {
            uint64_t a = zr_permute(n, 12, cycle, 0), b = zr_permute(n, 12, cycle, 1);
            counts[(b + n - a) % n]++;
        }
        ck_assert_uint_eq(counts[0], 0);
        check_uniform(counts + 1, n - 1, 40.0 * (double)n / ((double)n - 1), "steps");
    }
}
END_TEST

START_TEST(serial_correlation_of_a_cycle_is_nil)
{
    enum { N = 100000 };
    static uint64_t ids[N];
    struct zr_sampler s = {N, N, 42, ZR_CYCLIC, 0, 0};
    zr_sampler_batch(&s, 0, ids);
    for (size_t lag = 1; lag <= 64; lag *= 2) {
        double sum = 0, mean = (N - 1) / 2.0, variance = ((double)N * N - 1) / 12;
        for (size_t i = 0; i + lag < N; i++)
            sum += ((double)ids[i] - mean) * ((double)ids[i + lag] - mean);
        double r = sum / (double)(N - lag) / variance;
        ck_assert_msg(r < 5 / 316.0 && r > -5 / 316.0, "lag %zu: %.4f", lag, r);
    }
}
END_TEST

/* Where ids land in BLOCK, over many cycles, and in blocks that are mixed. */
START_TEST(every_position_gets_every_id_equally_often_in_blocks)
{
    /* In whole blocks: a short one is as likely at each place, its few records more so. */
    static const struct zr_sampler samplers[] = {{64, 1, 11, ZR_BLOCK, 1, 8},
                                                 {64, 1, 11, ZR_BLOCK, 3, 8},
                                                 {300, 1, 12, ZR_BLOCK, 1, 100},
                                                 {400, 1, 13, ZR_BLOCK, 2, 100}};
    for (size_t k = 0; k < COUNT(samplers); k++) {
        const struct zr_sampler *s = &samplers[k];
        for (uint64_t where = 0; where < 3; where++) {
            static uint64_t counts[400];
            uint64_t position = where * (s->length - 1) / 2;
            memset(counts, 0, sizeof counts);
            for (uint64_t cycle = 0, id; cycle < 40 * s->length; cycle++) {
                zr_sampler_batch(s, cycle * s->length + position, &id);
                counts[id]++;
            }
            check_uniform(counts, s->length, 40, "positions in blocks");
        }
    }
}
END_TEST

START_TEST(cycles_of_blocks_differ)
{
    enum { N = 1000 };
    uint64_t a[N], b[N], same_block_order = 0;
    struct zr_sampler s = {N, N, 1, ZR_BLOCK, 1, 10}, other = s;
    other.seed = 2;
    for (uint64_t cycle = 0; cycle < 20; cycle++) {
        uint64_t same = 0, same_seed = 0;
        zr_sampler_batch(&s, cycle, a);
        zr_sampler_batch(&s, cycle + 1, b);
        for (size_t i = 0; i < N; i++) {
            same += a[i] == b[i];
            same_block_order += i % 10 == 0 && a[i] / 10 == b[i] / 10;
        }
        zr_sampler_batch(&other, cycle, b);
        for (size_t i = 0; i < N; i++)
            same_seed += a[i] == b[i];
        ck_assert_uint_lt(same, 20);
        ck_assert_uint_lt(same_seed, 20);
    }
    ck_assert_uint_lt(same_block_order, 60); /* 20 are expected of 2000 */
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        the_numbers_have_not_changed,
        every_length_to_600_gives_permutations,
        larger_lengths_around_powers_of_two_give_permutations,
        huge_lengths_stay_inside_and_never_repeat,
        positions_outside_have_no_record,
        a_cycle_drops_its_remainder,
        cycles_and_seeds_differ,
        seed_and_cycle_are_independent,
        a_batch_larger_than_the_store,
        sequential_wraps_without_a_gap,
        batches_join_seamlessly_in_every_mode,
        every_small_length_in_blocks_gives_permutations,
        larger_lengths_in_blocks_give_permutations,
        positions_have_their_inverse,
        every_position_gets_every_id_equally_often_in_blocks,
        cycles_of_blocks_differ,
        samplers_that_are_not_valid_write_nothing,
        iid_draws_are_uniform_for_awkward_lengths,
        successive_iid_draws_are_independent,
        all_orders_of_five_come_equally_often,
        every_position_gets_every_id_equally_often,
        neighbours_in_a_cycle_are_not_related,
        serial_correlation_of_a_cycle_is_nil,
    };
    return run_tests("sampler", tests, COUNT(tests), 60);
}
