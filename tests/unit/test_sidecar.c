/* SPDX-License-Identifier: MIT
 *
 * The header and rows of side.zr as bytes (engine/sidecar.c).
 */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "support.h"

static const struct zri_sidecar side = {
    .length = 3, .tail_off = 1000, .identity = 0x0123456789abcdef, .dict_sum = 42, .ragged = true};

START_TEST(the_header_reads_back)
{
    uint8_t header[ZRI_SIDE_HEADER_NBYTES];
    struct zri_sidecar s;
    zri_sidecar_encode(&side, header);
    ck_assert_ptr_null(zri_sidecar_decode(&s, header, 64 + 3 * 5));
    ck_assert_uint_eq(s.length, side.length);
    ck_assert_uint_eq(s.tail_off, side.tail_off);
    ck_assert_uint_eq(s.identity, side.identity);
    ck_assert_uint_eq(s.dict_sum, side.dict_sum);
    ck_assert(s.ragged);
}
END_TEST

START_TEST(any_flipped_bit_of_the_header_is_noticed)
{
    uint8_t header[ZRI_SIDE_HEADER_NBYTES];
    struct zri_sidecar s;
    for (size_t bit = 0; bit < 8 * sizeof header; bit++) {
        zri_sidecar_encode(&side, header);
        header[bit / 8] ^= (uint8_t)(1 << bit % 8);
        ck_assert_msg(zri_sidecar_decode(&s, header, 64 + 3 * 5), "bit %zu", bit);
    }
}
END_TEST

START_TEST(a_file_too_short_for_its_rows_is_noticed)
{
    uint8_t header[ZRI_SIDE_HEADER_NBYTES];
    struct zri_sidecar s;
    zri_sidecar_encode(&side, header);
    for (uint64_t n = 0; n < 64 + 3 * 5; n++)
        ck_assert_ptr_nonnull(zri_sidecar_decode(&s, header, n));
}
END_TEST

START_TEST(rows_read_back_and_have_their_size)
{
    uint8_t bytes[5] = {0};
    struct zri_side_row row = {.sum = UINT32_MAX - 5, .npy_header_nbytes = 192, .ndim = 64}, back;
    ck_assert_uint_eq(zri_side_row_nbytes(false), 4);
    ck_assert_uint_eq(zri_side_row_nbytes(true), 5);
    zri_side_row_encode(&row, true, bytes);
    zri_side_row_decode(&back, true, bytes);
    ck_assert(back.sum == row.sum && back.npy_header_nbytes == 192 && back.ndim == 64);
    row.npy_header_nbytes = 256; /* does not fit: neither it nor the rank is told */
    zri_side_row_encode(&row, true, bytes);
    zri_side_row_decode(&back, true, bytes);
    ck_assert(back.sum == row.sum && back.npy_header_nbytes == 0);
    zri_side_row_decode(&back, false, bytes);
    ck_assert(back.sum == row.sum && back.npy_header_nbytes == 0 && back.ndim == 0);
}
END_TEST

START_TEST(the_checksum_is_xxh3)
{
    ck_assert_uint_eq(zri_checksum("", 0), 0x2d06800538d394c2);
    ck_assert_uint_eq(zri_checksum("a", 1), 0xe6c632b61e964e1f);
    ck_assert_uint_eq(zri_checksum("abc", 3), 0x78af5f94892f3950);
    ck_assert_uint_eq(zri_record_sum("abc", 3), 0x892f3950);
}
END_TEST

START_TEST(identity_samples_first_last_and_between_for_any_length)
{
    static const uint64_t lengths[] = {1, 2, 15, 16, 17, 1000, (uint64_t)1 << 59, UINT64_MAX};
    for (size_t i = 0; i < COUNT(lengths); i++) {
        uint64_t before = 0;
        for (size_t k = 0; k < ZRI_IDENTITY_ENTRIES; k++) {
            uint64_t at_k = zri_identity_index(lengths[i], k);
            ck_assert_uint_lt(at_k, lengths[i]);
            ck_assert_uint_ge(at_k, before);
            before = at_k;
        }
        ck_assert_uint_eq(zri_identity_index(lengths[i], 0), 0);
        ck_assert_uint_eq(before, lengths[i] - 1);
    }
}
END_TEST

START_TEST(identity_depends_on_page_and_entries)
{
    uint8_t page[ZRI_PAGE_NBYTES] = {1}, entries[2 * ZRI_ENTRY_NBYTES] = {2};
    uint64_t a = zri_identity(page, entries, 2);
    ck_assert_uint_eq(a, zri_identity(page, entries, 2));
    ck_assert_uint_ne(a, zri_identity(page, entries, 1));
    entries[31] = 1;
    ck_assert_uint_ne(a, zri_identity(page, entries, 2));
    entries[31] = 0;
    page[4095] = 1;
    ck_assert_uint_ne(a, zri_identity(page, entries, 2));
}
END_TEST

/* Whatever instructions the CPU has, and on both sides of each length that XXH3 treats
 * in its own way. */
START_TEST(sums_are_those_of_xxh3)
{
    uint8_t *bytes = malloc(70001);
    for (size_t i = 0; i < 70001; i++)
        bytes[i] = (uint8_t)(i * 131 + (i >> 8));
    for (size_t n = 0; n <= 2100; n++)
        ck_assert_uint_eq(zri_checksum(bytes + n % 5, n), XXH3_64bits(bytes + n % 5, n));
    ck_assert_uint_eq(zri_checksum(bytes + 1, 70000), XXH3_64bits(bytes + 1, 70000));
    free(bytes);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        sums_are_those_of_xxh3,
        the_header_reads_back,
        any_flipped_bit_of_the_header_is_noticed,
        a_file_too_short_for_its_rows_is_noticed,
        rows_read_back_and_have_their_size,
        the_checksum_is_xxh3,
        identity_samples_first_last_and_between_for_any_length,
        identity_depends_on_page_and_entries,
    };
    return run_tests("sidecar", tests, COUNT(tests), 20);
}
