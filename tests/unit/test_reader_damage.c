/* SPDX-License-Identifier: MIT
 *
 * Opening stores that are cut short or damaged, or whose dictionary or sidecar is not theirs
 * (engine/reader.c).
 */
#include "reader_stores.h"

/* ---------------------------------------------------------------- truncated */

START_TEST(meta_cut_at_every_length_is_truncated)
{
    dense(ZR_ZSTD);
    uint64_t full = file_nbytes(at("s/meta.zr"));
    ck_assert_uint_eq(full, 4096 + N * 16);
    while (full--) {
        cut(at("s/meta.zr"), full);
        expect_no_store(at("s"), ZR_E_TRUNCATED, "meta.zr: file is cut short");
    }
}
END_TEST

START_TEST(data_cut_at_every_length_is_truncated)
{
    dense(ZR_ZSTD);
    uint64_t full = file_nbytes(at("s/data.zr"));
    while (full--) {
        cut(at("s/data.zr"), full);
        expect_no_store(at("s"), ZR_E_TRUNCATED, "data.zr: file is cut short");
    }
}
END_TEST

START_TEST(a_page_of_zeros_was_never_finished)
{
    uint8_t zeros[4096] = {0};
    dense(ZR_RAW);
    patch(at("s/meta.zr"), 0, zeros, sizeof zeros);
    expect_no_store(at("s"), ZR_E_FORMAT, "never finished");
}
END_TEST

START_TEST(longer_files_than_the_header_says_are_fine)
{
    dense(ZR_ZSTD);
    cut(at("s/data.zr"), file_nbytes(at("s/data.zr")) + 1000);
    cut(at("s/meta.zr"), file_nbytes(at("s/meta.zr")) + 1000);
    struct zr_reader *r = open_store(at("s"));
    check_all_records(r, N);
    zr_reader_close(r);
}
END_TEST

/* ---------------------------------------------------------------- damaged */

START_TEST(every_damaged_header_field_is_named)
{
    static const struct {
        uint64_t off;
        uint32_t value;
        int code;
        const char *why;
    } damage[] = {{0, N + 1, ZR_E_TRUNCATED, "table of 21 records"},
                  {4, 1, ZR_E_TRUNCATED, "table of"},
                  {12, 1, ZR_E_TRUNCATED, "data.zr: file is cut short"},
                  {16, 0, ZR_E_FORMAT, "never finished"},
                  {16, 4065, ZR_E_FORMAT, "schema length"},
                  {16, 5, ZR_E_FORMAT, "padding"},
                  {16, 60, ZR_E_SCHEMA, "after its map"},
                  {20, 1, ZR_E_FORMAT, "reserved"},
                  {27, 1, ZR_E_FORMAT, "reserved"},
                  {31, 7, ZR_E_FORMAT, "codec"},
                  {32, 0xffffffff, ZR_E_SCHEMA, "schema"},
                  {4092, 1, ZR_E_FORMAT, "padding"}};
    dense(ZR_ZSTD);
    for (size_t i = 0; i < COUNT(damage); i++) {
        copy_file(at("s/meta.zr"), at("good"));
        if (damage[i].off == 31)
            patch(at("s/meta.zr"), 31, "\7", 1);
        else
            patch32(at("s/meta.zr"), damage[i].off, damage[i].value);
        expect_no_store(at("s"), damage[i].code, damage[i].why);
        expect_no_store(at("s"), damage[i].code, at("s/"));
        copy_file(at("good"), at("s/meta.zr"));
    }
    zr_reader_close(open_store(at("s")));
}
END_TEST

/* Whatever byte of the page is hit: refused, or read without harm. */
START_TEST(any_flipped_byte_of_the_page_is_survived)
{
    bare(ZR_ZSTD);
    for (uint64_t off = 0; off < 100; off++) {
        struct zr_reader *r;
        struct zr_error err;
        flip(at("s/meta.zr"), off);
        if (zr_reader_open(&r, at("s"), NULL, &err) == ZR_OK) {
            uint64_t id = 0;
            uint8_t *out = malloc(r->schema.row_nbytes + 1);
            if (r->schema.geometry == ZR_DENSE && r->header.length)
                zr_gather_dense(r, &id, 1, out, r->schema.row_nbytes, NULL);
            free(out);
            zr_reader_close(r);
        } else {
            ck_assert_msg(strstr(err.message, "/s"), "%s", err.message);
        }
        flip(at("s/meta.zr"), off);
    }
}
END_TEST

static void set_schema(const char *schema, uint32_t nbytes)
{
    uint8_t zeros[4064] = {0};
    patch(at("s/meta.zr"), 32, zeros, sizeof zeros);
    patch(at("s/meta.zr"), 32, schema, nbytes);
    patch32(at("s/meta.zr"), 16, nbytes);
}

START_TEST(schemas_that_no_store_may_have_are_refused)
{
    bare(ZR_RAW);
#define REFUSED(bytes, why)                                                                        \
    set_schema(bytes, sizeof bytes - 1);                                                           \
    expect_no_store(at("s"), ZR_E_SCHEMA, why)
    REFUSED("\x81\xa5"
            "dtype\xa2|O",
            "object");
    REFUSED("\x81\xa5"
            "dtype\x91\x92\xa1"
            "a\xa3<i4",
            "meta.zr: schema dtype is not a string");
    REFUSED("\x82\xa5"
            "dtype\xa3<i4\xaaitem_shape\x91\0",
            "no bytes");
    REFUSED("\x82\xa5"
            "dtype\xa3<i4\xa8metadata\x80",
            "neither");
    REFUSED("\xdf\xff\xff\xff\xff", "not a map");
    REFUSED("\xc1", "not a map");
#undef REFUSED
}
END_TEST

START_TEST(a_loaderx_2_8_store_is_recognised)
{
    dense(ZR_RAW);
    ck_assert(!rename(at("s/data.zr"), at("s/data_0.zr")));
    spit(at("s/data_1.zr"), "x", 1);
    expect_no_store(at("s"), ZR_E_FOREIGN, "loaderx 2.8");
    cut(at("s/meta.zr"), 100);
    expect_no_store(at("s"), ZR_E_FOREIGN, "not supported");
    unlink(at("s/meta.zr"));
    expect_no_store(at("s"), ZR_E_FOREIGN, "/s: ");
}
END_TEST

/* ---------------------------------------------------------------- dictionaries */

START_TEST(a_missing_dictionary_is_named)
{
    dense(ZR_ZSTD_DICT);
    unlink(at("s/dict.zr"));
    expect_no_store(at("s"), ZR_E_DICT, "dict.zr: missing");
}
END_TEST

START_TEST(an_unexpected_dictionary_is_refused)
{
    dense(ZR_ZSTD);
    spit(at("s/dict.zr"), "x", 1);
    expect_no_store(at("s"), ZR_E_DICT, "dict.zr: unexpected");
}
END_TEST

START_TEST(an_empty_or_broken_dictionary_is_refused)
{
    bare(ZR_ZSTD_DICT);
    cut(at("s/dict.zr"), 40);
    expect_no_store(at("s"), ZR_E_DICT, "not a dictionary that zstd can load");
    cut(at("s/dict.zr"), 0);
    expect_no_store(at("s"), ZR_E_DICT, "0 bytes");
    cut(at("s/dict.zr"), ((uint64_t)1 << 30) + 1); /* refused before it is read */
    expect_no_store(at("s"), ZR_E_DICT, "1073741825 bytes");
}
END_TEST

START_TEST(the_wrong_dictionary_is_noticed_by_its_id)
{
    bare(ZR_ZSTD_DICT);
    flip(at("s/dict.zr"), 4);
    expect_no_store(at("s"), ZR_E_DICT, "not the one that the records were written with");
}
END_TEST

START_TEST(a_changed_dictionary_of_the_same_id_is_noticed_by_the_sidecar)
{
    dense(ZR_ZSTD_DICT);
    flip(at("s/dict.zr"), file_nbytes(at("s/dict.zr")) - 10);
    expect_no_store(at("s"), ZR_E_DICT, "not the one that the records were written with");
}
END_TEST

/* ---------------------------------------------------------------- sidecars */

static void expect_ignored_sidecar(const char *why)
{
    struct zr_reader *r = open_with(at("s"), ZR_ACCESS_MAP, true);
    ck_assert(!r->has_sidecar);
    ck_assert_ptr_nonnull(zr_reader_warning(r));
    ck_assert_msg(strstr(zr_reader_warning(r), why), "%s", zr_reader_warning(r));
    ck_assert_ptr_nonnull(strstr(zr_reader_warning(r), "side.zr"));
    check_all_records(r, N);
    zr_reader_close(r);
}

START_TEST(a_sidecar_of_another_store_is_ignored_with_a_warning)
{
    make_store(at("other"), ZR_DENSE, ZR_ZSTD, N + 1);
    dense(ZR_ZSTD);
    copy_file(at("other/side.zr"), at("s/side.zr"));
    expect_ignored_sidecar("another store");
}
END_TEST

START_TEST(a_sidecar_after_the_table_changed_is_ignored)
{
    dense(ZR_ZSTD);
    uint8_t a[16], b[16];
    int fd = open(at("s/meta.zr"), O_RDWR);
    ck_assert(pread(fd, a, 16, 4096) == 16 && pread(fd, b, 16, 4112) == 16);
    ck_assert(pwrite(fd, b, 16, 4096) == 16);
    struct zr_reader *r = open_store(at("s"));
    ck_assert(!r->has_sidecar);
    zr_reader_close(r);
    ck_assert(pwrite(fd, a, 16, 4096) == 16);
    close(fd);
}
END_TEST

START_TEST(a_damaged_sidecar_is_ignored_with_a_warning)
{
    dense(ZR_ZSTD);
    flip(at("s/side.zr"), 20);
    expect_ignored_sidecar("damaged");
    flip(at("s/side.zr"), 0);
    expect_ignored_sidecar("not a sidecar");
}
END_TEST

START_TEST(a_sidecar_cut_at_any_length_is_ignored_with_a_warning)
{
    dense(ZR_ZSTD);
    uint64_t full = file_nbytes(at("s/side.zr"));
    while (full--) {
        cut(at("s/side.zr"), full);
        expect_ignored_sidecar("sidecar ignored: ");
    }
}
END_TEST

START_TEST(a_sidecar_that_is_no_file_is_ignored_with_a_warning)
{
    dense(ZR_ZSTD);
    unlink(at("s/side.zr"));
    ck_assert(!mkdir(at("s/side.zr"), 0777));
    expect_ignored_sidecar("sidecar ignored: ");
}
END_TEST

START_TEST(a_store_without_sidecar_has_no_warning)
{
    struct zr_reader *r = open_store(bare(ZR_ZSTD));
    ck_assert(!r->has_sidecar && !zr_reader_warning(r));
    zr_reader_close(r);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        meta_cut_at_every_length_is_truncated,
        data_cut_at_every_length_is_truncated,
        a_page_of_zeros_was_never_finished,
        longer_files_than_the_header_says_are_fine,
        every_damaged_header_field_is_named,
        any_flipped_byte_of_the_page_is_survived,
        schemas_that_no_store_may_have_are_refused,
        a_loaderx_2_8_store_is_recognised,
        a_missing_dictionary_is_named,
        an_unexpected_dictionary_is_refused,
        an_empty_or_broken_dictionary_is_refused,
        the_wrong_dictionary_is_noticed_by_its_id,
        a_changed_dictionary_of_the_same_id_is_noticed_by_the_sidecar,
        a_sidecar_of_another_store_is_ignored_with_a_warning,
        a_sidecar_after_the_table_changed_is_ignored,
        a_damaged_sidecar_is_ignored_with_a_warning,
        a_sidecar_cut_at_any_length_is_ignored_with_a_warning,
        a_sidecar_that_is_no_file_is_ignored_with_a_warning,
        a_store_without_sidecar_has_no_warning,
    };
    return run_tests("reader_damage", tests, COUNT(tests), 60);
}
