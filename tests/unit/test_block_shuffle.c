/* SPDX-License-Identifier: MIT
 *
 * celeres-dl's order (engine/block_shuffle.c): its numbers, positions and their
 * inverse, whole epochs and parts of them.
 */
#include "support.h"

#include "lanes.h"

#define POW(n) ((uint64_t)1 << (n))

/* What the celeres-dl 0.1.0 wheel gave. */
static const struct {
    struct zr_block_shuffle s;
    uint64_t ids[5];
} wheel[] = {
    {{10, 3, 42, 6}, {0, 1, 2, 7, 8}},
    {{1000000, 1024, 42, 6}, {812266, 812496, 812655, 812413, 812855}},
    {{1000, 1, 7, 4}, {314, 331, 795, 585, 565}},
    {{5, 100, UINT64_MAX, 6}, {1, 2, 4, 3, 0}},
    {{1025, 16, 0, 1}, {209, 215, 219, 223, 208}},
    {{777, 10, 3, 0}, {0, 1, 2, 3, 4}},
};

START_TEST(the_order_is_that_of_the_wheel)
{
    for (size_t i = 0; i < COUNT(wheel); i++) {
        uint64_t ids[5];
        zr_block_shuffle_ids(&wheel[i].s, 0, 5, ids);
        for (int k = 0; k < 5; k++)
            ck_assert_msg(ids[k] == wheel[i].ids[k], "case %zu, id %d: %" PRIu64, i, k, ids[k]);
    }
    ck_assert_uint_eq(zr_feistel_hash(1, 2), 2092789425003139053u);
    uint64_t ids[2], last;
    zr_feistel_permute(9, POW(40) + 1, 6, 0, 2, ids);
    zr_feistel_permute(9, POW(40) + 1, 6, POW(40), 1, &last);
    ck_assert_uint_eq(ids[0], 521975180563);
    ck_assert_uint_eq(ids[1], 218651365248);
    ck_assert_uint_eq(last, 715205899781);
}
END_TEST

static void check_epoch(const struct zr_block_shuffle *s)
{
    uint64_t *ids = malloc(s->length * sizeof *ids), block = UINT64_MAX, blocks = 0;
    uint8_t *seen = calloc(s->length, 1);
    zr_block_shuffle_ids(s, 0, s->length, ids);
    for (uint64_t i = 0; i < s->length; i++) {
        if (ids[i] >= s->length || seen[ids[i]]++)
            ck_abort_msg("%" PRIu64 " records, position %" PRIu64 " gives %" PRIu64, s->length, i,
                         ids[i]);
        ck_assert_uint_eq(zr_block_shuffle_position(s, ids[i]), i);
        blocks += ids[i] / s->block_size != block;
        block = ids[i] / s->block_size;
    }
    ck_assert_uint_eq(blocks, (s->length - 1) / s->block_size + 1); /* one block after the other */
    for (uint64_t first = 0; first < s->length; first += 1 + first / 3) {
        uint64_t part[20], n = s->length - first < 20 ? s->length - first : 20;
        zr_block_shuffle_ids(s, first, n, part);
        ck_assert_mem_eq(part, ids + first, n * sizeof *part);
    }
    free(ids);
    free(seen);
}

START_TEST(every_small_epoch_is_a_permutation_in_whole_blocks)
{
    for (uint64_t length = 1; length <= 40; length++)
        for (uint64_t size = 1; size <= length + 1; size++)
            for (unsigned rounds = 0; rounds <= 6; rounds += 3)
                check_epoch(&(struct zr_block_shuffle){length, size, length * size, rounds});
}
END_TEST

START_TEST(larger_epochs_too)
{
    static const uint64_t lengths[] = {999, 1000, 1024, 1025, 20000};
    static const uint64_t sizes[] = {1, 7, 256, 257, 1000, 100000};
    for (size_t l = 0; l < COUNT(lengths); l++)
        for (size_t b = 0; b < COUNT(sizes); b++)
            check_epoch(&(struct zr_block_shuffle){lengths[l], sizes[b], 3, 6});
}
END_TEST

/* The wheel rounds the logarithm of such a length and maps 0 and 2^50 to one image. */
START_TEST(a_length_just_above_a_power_of_two_stays_bijective)
{
    for (unsigned shift = 1; shift < 64; shift++) {
        uint64_t length = POW(shift) + 1, ends[2], i = 0;
        zr_feistel_permute(9, length, 6, 0, 1, ends);
        zr_feistel_permute(9, length, 6, length - 1, 1, ends + 1);
        ck_assert_uint_ne(ends[0], ends[1]);
        for (; i < 2; i++) {
            ck_assert_uint_lt(ends[i], length);
            ck_assert_uint_eq(zr_feistel_inverse(9, length, 6, ends[i]), i ? length - 1 : 0);
        }
    }
}
END_TEST

START_TEST(huge_epochs_are_reached_anywhere)
{
    static const uint64_t lengths[] = {POW(40) + 3, POW(63) + 5, UINT64_MAX};
    for (size_t l = 0; l < COUNT(lengths); l++) {
        struct zr_block_shuffle s = {lengths[l], 1000003, 42, 6};
        for (uint64_t k = 0; k < 1000; k++) {
            uint64_t id, position = lengths[l] / 1000 * k + k;
            zr_block_shuffle_ids(&s, position, 1, &id);
            ck_assert_uint_lt(id, s.length);
            ck_assert_uint_eq(zr_block_shuffle_position(&s, id), position);
        }
    }
}
END_TEST

START_TEST(what_lies_outside_has_no_record)
{
    struct zr_block_shuffle s = {10, 3, 1, 6}, empty = {0, 3, 1, 6}, unblocked = {10, 0, 1, 300};
    uint64_t ids[2] = {0, 0};
    zr_block_shuffle_ids(&s, 9, 2, ids);
    ck_assert_uint_eq(ids[0], ZR_NO_RECORD);
    ck_assert_uint_eq(ids[1], ZR_NO_RECORD);
    ids[1] = 7;
    zr_block_shuffle_ids(&s, 10, 1, ids);
    ck_assert_uint_eq(ids[0], ZR_NO_RECORD);
    ck_assert_uint_eq(ids[1], 7);
    zr_block_shuffle_ids(&empty, 0, 1, ids);
    ck_assert_uint_eq(ids[0], ZR_NO_RECORD);
    zr_block_shuffle_ids(&s, 3, 0, ids);
    zr_block_shuffle_ids(&unblocked, 0, 2, ids);
    ck_assert_uint_lt(ids[0], 10);
    ck_assert_uint_eq(zr_block_shuffle_position(&s, 10), ZR_NO_RECORD);
    ck_assert_uint_eq(zr_block_shuffle_position(&empty, 0), ZR_NO_RECORD);
    zr_feistel_permute(1, 5, 6, 4, 2, ids);
    ck_assert_uint_eq(ids[1], ZR_NO_RECORD);
    ck_assert_uint_eq(zr_feistel_inverse(1, 5, 6, 5), ZR_NO_RECORD);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        the_order_is_that_of_the_wheel,
        every_small_epoch_is_a_permutation_in_whole_blocks,
        larger_epochs_too,
        a_length_just_above_a_power_of_two_stays_bijective,
        huge_epochs_are_reached_anywhere,
        what_lies_outside_has_no_record,
    };
    return run_tests("block_shuffle", tests, COUNT(tests), 60);
}
