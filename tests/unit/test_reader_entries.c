/* SPDX-License-Identifier: MIT
 *
 * Where a record lies: the entries of a store's table, sound and not (engine/reader.c).
 */
#include "reader_stores.h"

START_TEST(locating_ids_out_of_range_fails_and_touches_nothing)
{
    static const uint64_t bad[] = {
        N, N + 1, (uint64_t)1 << 32, UINT64_MAX / 16, UINT64_MAX - 1, UINT64_MAX};
    struct zr_reader *r = open_store(dense(ZR_RAW));
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct zr_location loc = {7, 7, 7};
        expect_error(zr_reader_locate(r, bad[i], &loc, &err), ZR_E_RANGE, "out of range");
        ck_assert(loc.data_off == 7 && loc.phys_nbytes == 7 && loc.logic_nbytes == 7);
    }
    zr_reader_close(r);
}
END_TEST

START_TEST(located_records_are_where_they_lie)
{
    struct zr_reader *r = open_store(dense(ZR_RAW));
    uint8_t *data = slurp(at("s/data.zr"), NULL);
    for (uint64_t id = 0; id < N; id++) {
        struct zr_location loc;
        expect_ok(zr_reader_locate(r, id, &loc, &err));
        ck_assert(loc.phys_nbytes == ROW_NBYTES && loc.logic_nbytes == ROW_NBYTES);
        ck_assert(is_record(id, data + loc.data_off, ROW_NBYTES));
    }
    free(data);
    zr_reader_close(r);
}
END_TEST

START_TEST(a_damaged_entry_fails_that_record_alone)
{
    static const struct {
        uint64_t field; /* offset in the entry */
        uint32_t value;
        const char *why;
    } damage[] = {{4, 1, "past the end"},          {0, 0xffffffff, "past the end"},
                  {8, 0xffffffff, "past the end"}, {8, 0, "zero length"},
                  {12, 0, "zero length"},          {12, 0xffffffff, "2 GiB"},
                  {12, ROW_NBYTES + 1, "schema"}};
    bare(ZR_ZSTD);
    for (size_t i = 0; i < COUNT(damage); i++)
        for (int access = ZR_ACCESS_MAP; access <= ZR_ACCESS_READ; access++) {
            copy_file(at("s/meta.zr"), at("good"));
            patch32(at("s/meta.zr"), 4096 + 7 * 16 + damage[i].field, damage[i].value);
            struct zr_reader *r = open_with(at("s"), access, false);
            struct zr_location loc;
            expect_error(zr_reader_locate(r, 7, &loc, &err), ZR_E_CORRUPT, damage[i].why);
            expect_error(zr_reader_locate(r, 7, &loc, &err), ZR_E_CORRUPT, "meta.zr: record 7: ");
            expect_error(gather_one(r, 7, &err), ZR_E_CORRUPT, damage[i].why);
            expect_ok(gather_one(r, 6, &err));
            expect_ok(gather_one(r, 8, &err));
            zr_reader_close(r);
            copy_file(at("good"), at("s/meta.zr"));
        }
}
END_TEST

START_TEST(a_table_that_cannot_be_read_names_the_record)
{
    struct zr_location loc;
    struct zr_error e = {0};
    dense(ZR_RAW);
    struct zr_reader *r = open_with(at("s"), ZR_ACCESS_READ, false);
    int fd = open(at("s"), O_RDONLY | O_DIRECTORY); /* reading a folder fails: EISDIR */
    ck_assert(dup2(fd, r->meta.fd) == r->meta.fd);
    ck_assert_int_eq(zr_reader_locate(r, 7, &loc, &e), ZR_E_IO);
    ck_assert(e.record == 7 && e.offset == 4096 + 16 * 7 && e.sys_errno == EISDIR);
    ck_assert_ptr_nonnull(strstr(e.message, "meta.zr: record 7: cannot read its table entry: "));
    zr_reader_close(r);
    close(fd);
}
END_TEST

START_TEST(a_table_cut_while_open_is_truncated_not_fatal)
{
    skip_lost_mappings();
    bare(ZR_RAW);
    for (int access = ZR_ACCESS_MAP; access <= ZR_ACCESS_READ; access++) {
        struct zr_location loc;
        copy_file(at("s/meta.zr"), at("good"));
        struct zr_reader *r = open_with(at("s"), access, false);
        cut(at("s/meta.zr"), 4096 + 10 * 16);
        expect_error(zr_reader_locate(r, 10, &loc, &err), ZR_E_TRUNCATED, "record 10: ");
        expect_error(gather_one(r, N - 1, &err), ZR_E_TRUNCATED, "meta.zr");
        expect_ok(gather_one(r, 9, &err));
        cut(at("s/meta.zr"), 0);
        expect_error(zr_reader_locate(r, 9, &loc, &err), ZR_E_TRUNCATED, "record 9: ");
        zr_reader_close(r);
        copy_file(at("good"), at("s/meta.zr"));
    }
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        locating_ids_out_of_range_fails_and_touches_nothing,
        located_records_are_where_they_lie,
        a_damaged_entry_fails_that_record_alone,
        a_table_that_cannot_be_read_names_the_record,
        a_table_cut_while_open_is_truncated_not_fatal,
    };
    return run_tests("reader_entries", tests, COUNT(tests), 60);
}
