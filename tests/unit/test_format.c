/* SPDX-License-Identifier: MIT
 *
 * The page and the table of meta.zr as bytes (engine/format.c).
 */
#include "support.h"

static uint8_t page[ZRI_PAGE_NBYTES];
static const uint8_t schema[20] = "schema";
static const struct zri_header header = {0x1122334455667788, 0x99aabbccddeeff01, 20, ZR_ZSTD};

static void make_page(void)
{
    zri_header_encode(&header, schema, page);
}

START_TEST(the_page_has_the_bytes_of_the_format)
{
    static const uint8_t start[32] = {0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 1, 0xff, 0xee,
                                      0xdd, 0xcc, 0xbb, 0xaa, 0x99, 20,   0,    0,    0, 0,    0,
                                      0,    0,    0,    0,    0,    0,    0,    0,    0, 1};
    make_page();
    ck_assert_mem_eq(page, start, sizeof start);
    ck_assert_mem_eq(page + 32, schema, sizeof schema);
    for (size_t i = 52; i < sizeof page; i++)
        ck_assert_int_eq(page[i], 0);
}
END_TEST

START_TEST(the_page_reads_back)
{
    struct zri_header h;
    make_page();
    ck_assert_ptr_null(zri_header_decode(&h, page));
    ck_assert_uint_eq(h.length, header.length);
    ck_assert_uint_eq(h.tail_off, header.tail_off);
    ck_assert_uint_eq(h.schema_nbytes, header.schema_nbytes);
    ck_assert_uint_eq(h.codec, header.codec);
}
END_TEST

START_TEST(each_reserved_byte_must_be_zero)
{
    struct zri_header h = {.length = 7};
    for (size_t i = 20; i < 31; i++) {
        make_page();
        page[i] = 1;
        ck_assert_ptr_nonnull(strstr(zri_header_decode(&h, page), "reserved"));
    }
    ck_assert_uint_eq(h.length, 7);
}
END_TEST

START_TEST(each_padding_byte_must_be_zero)
{
    struct zri_header h;
    for (size_t i = 52; i < sizeof page; i++) {
        make_page();
        page[i] = 0x80;
        ck_assert_ptr_nonnull(strstr(zri_header_decode(&h, page), "padding"));
    }
}
END_TEST

START_TEST(schema_lengths_outside_the_page_are_refused)
{
    static const uint32_t bad[] = {0, 4065, 4096, 1 << 31, UINT32_MAX};
    struct zri_header h;
    for (size_t i = 0; i < COUNT(bad); i++) {
        make_page();
        memcpy(page + 16, &bad[i], 4);
        ck_assert_ptr_nonnull(zri_header_decode(&h, page));
    }
    make_page();
    memcpy(page + 16, &(uint32_t){4064}, 4);
    page[4095] = 1;
    ck_assert_ptr_null(zri_header_decode(&h, page));
}
END_TEST

START_TEST(codec_numbers_that_no_one_gave_are_refused)
{
    struct zri_header h;
    for (int codec = 0; codec < 256; codec++) {
        make_page();
        page[31] = (uint8_t)codec;
        ck_assert((zri_header_decode(&h, page) == NULL) == (codec <= 2));
    }
}
END_TEST

START_TEST(a_page_of_zeros_was_never_finished)
{
    static const uint8_t zeros[ZRI_PAGE_NBYTES];
    struct zri_header h;
    ck_assert_ptr_nonnull(strstr(zri_header_decode(&h, zeros), "never finished"));
}
END_TEST

START_TEST(data_without_records_is_refused)
{
    struct zri_header none = {0, 5, 20, ZR_RAW}, h;
    zri_header_encode(&none, schema, page);
    ck_assert_ptr_nonnull(zri_header_decode(&h, page));
    none.tail_off = 0;
    zri_header_encode(&none, schema, page);
    ck_assert_ptr_null(zri_header_decode(&h, page));
}
END_TEST

START_TEST(entries_have_the_bytes_of_the_format)
{
    static const uint8_t bytes[16] = {8, 7, 6, 5, 4, 3, 2, 1, 0xd, 0xc, 0xb, 0xa, 4, 3, 2, 1};
    struct zri_entry e = {0x0102030405060708, 0x0a0b0c0d, 0x01020304}, back;
    uint8_t out[16];
    zri_entry_encode(&e, out);
    ck_assert_mem_eq(out, bytes, sizeof bytes);
    zri_entry_decode(&back, bytes);
    ck_assert(back.off == e.off && back.phys_nbytes == e.phys_nbytes &&
              back.logic_nbytes == e.logic_nbytes);
}
END_TEST

/* Of a Dense store with 100-byte rows, or Ragged where row is 0. */
struct entry_case {
    struct zri_entry entry;
    uint8_t codec;
    uint64_t row;
    bool good;
};

static const struct entry_case entry_cases[] = {
    {{0, 100, 100}, ZR_RAW, 100, true},
    {{900, 100, 100}, ZR_RAW, 100, true},
    {{901, 100, 100}, ZR_RAW, 100, false},        /* one byte past the end */
    {{UINT64_MAX, 100, 100}, ZR_RAW, 100, false}, /* the sum wraps */
    {{UINT64_MAX - 99, 100, 100}, ZR_RAW, 100, false},
    {{0, 0, 100}, ZR_ZSTD, 100, false},
    {{0, 100, 0}, ZR_ZSTD, 0, false},
    {{1000, 0, 100}, ZR_ZSTD, 100, false},
    {{0, 100, 101}, ZR_RAW, 0, false},   /* raw: sizes differ */
    {{0, 100, 99}, ZR_ZSTD, 100, false}, /* not the schema's row */
    {{0, 120, 100}, ZR_ZSTD, 100, true}, /* incompressible: larger than the row */
    {{0, 20, 9}, ZR_ZSTD, 0, true},
    {{0, 20, 8}, ZR_ZSTD, 0, false}, /* a rank and nothing after it */
    {{0, 9, 9}, ZR_RAW, 0, true},
    {{0, 100, 1u << 31}, ZR_ZSTD, 0, false}, /* 100 bytes cannot hold 2 GiB */
    {{0, 100, (1u << 31) + 1}, ZR_ZSTD, 0, false},
    {{0, 100, UINT32_MAX}, ZR_ZSTD, 0, false},
    {{0, 100, 26 * 131072}, ZR_ZSTD, 0, true}, /* 25 blocks of one repeated byte, and slack */
    {{0, 100, 26 * 131072 + 1}, ZR_ZSTD, 0, false},
};

START_TEST(entries_are_checked_against_tail_schema_and_codec)
{
    for (size_t i = 0; i < COUNT(entry_cases); i++) {
        const struct entry_case *c = &entry_cases[i];
        struct zri_header h = {.length = 10, .tail_off = 1000, .codec = c->codec};
        const char *why = zri_entry_check(&c->entry, &h, c->row);
        ck_assert_msg((why == NULL) == c->good, "case %zu: %s", i, why ? why : "taken");
    }
}
END_TEST

START_TEST(a_record_of_exactly_2_gib_is_legal)
{
    struct zri_header h = {.length = 1, .tail_off = (uint64_t)1 << 32, .codec = ZR_RAW};
    struct zri_entry e = {0, 1u << 31, 1u << 31};
    ck_assert_ptr_null(zri_entry_check(&e, &h, (uint64_t)1 << 31));
    e.phys_nbytes = e.logic_nbytes = (1u << 31) + 1;
    ck_assert_ptr_nonnull(strstr(zri_entry_check(&e, &h, 0), "2 GiB"));
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        the_page_has_the_bytes_of_the_format,
        the_page_reads_back,
        each_reserved_byte_must_be_zero,
        each_padding_byte_must_be_zero,
        schema_lengths_outside_the_page_are_refused,
        codec_numbers_that_no_one_gave_are_refused,
        a_page_of_zeros_was_never_finished,
        data_without_records_is_refused,
        entries_have_the_bytes_of_the_format,
        entries_are_checked_against_tail_schema_and_codec,
        a_record_of_exactly_2_gib_is_legal,
    };
    return run_tests("format", tests, COUNT(tests), 20);
}
