/* SPDX-License-Identifier: MIT
 *
 * Verification (engine/verify.c): every fault found and named, nothing invented.
 */
#include "support.h"

enum { N = 5000, FOUND_MAX = 200 };

struct found {
    size_t count, stop_after;
    struct zr_error errors[FOUND_MAX];
};

static struct found found;

static int note(void *ctx, const struct zr_error *e)
{
    (void)ctx;
    ck_assert_uint_lt(found.count, FOUND_MAX);
    ck_assert(e->code < 0 && e->message[0]);
    found.errors[found.count++] = *e;
    return found.stop_after && found.count >= found.stop_after;
}

static struct zr_verify_result verify(const char *path)
{
    struct zr_verify_result result;
    struct zr_reader *r = open_store(path);
    found = (struct found){0};
    expect_ok(zr_verify(r, note, NULL, NULL, &result, &err));
    ck_assert_uint_eq(result.bad_count, found.count);
    ck_assert_uint_eq(result.checked_count, r->header.length);
    zr_reader_close(r);
    return result;
}

static void expect_found(size_t i, uint64_t record, int code, const char *text)
{
    ck_assert_uint_lt(i, found.count);
    ck_assert_uint_eq(found.errors[i].record, record);
    ck_assert_msg(found.errors[i].code == code, "%s: %s", zr_code_name(found.errors[i].code),
                  found.errors[i].message);
    ck_assert_msg(strstr(found.errors[i].message, text), "%s", found.errors[i].message);
}

static struct zr_location place_of(const char *path, uint64_t id)
{
    struct zr_location loc;
    struct zr_reader *r = open_store(path);
    expect_ok(zr_reader_locate(r, id, &loc, &err));
    zr_reader_close(r);
    return loc;
}

START_TEST(sound_stores_have_no_findings)
{
    zr_set_thread_count(4);
    for (int geometry = ZR_DENSE; geometry <= ZR_RAGGED; geometry++)
        for (int codec = ZR_RAW; codec <= ZR_ZSTD_DICT; codec++)
            for (int is_bare = 0; is_bare < 2; is_bare++) {
                const char *path = at("%d%d%d", geometry, codec, is_bare);
                struct zr_writer_options o = options_for(geometry, codec);
                o.no_sidecar = is_bare;
                o.level = codec == ZR_RAW ? 0 : 1;
                make_store_with(path, &o, N);
                struct zr_verify_result result = verify(path);
                ck_assert_uint_eq(result.bad_count, 0);
                ck_assert_int_eq(result.checksums_compared, !is_bare);
            }
}
END_TEST

START_TEST(an_empty_store_is_sound)
{
    make_store(at("s"), ZR_DENSE, ZR_ZSTD, 0);
    ck_assert_uint_eq(verify(at("s")).bad_count, 0);
}
END_TEST

START_TEST(every_bad_record_is_named_in_order)
{
    static const uint64_t bad[] = {0, 1, 17, 999, 1000, 4095, 4096, 4097, N - 1};
    zr_set_thread_count(4);
    for (int codec = ZR_RAW; codec <= ZR_ZSTD; codec++) {
        char path[100];
        strcpy(path, at("s%d", codec)); /* at() forgets */
        make_store(path, ZR_DENSE, codec, N);
        for (size_t i = 0; i < COUNT(bad); i++) {
            struct zr_location loc = place_of(path, bad[i]);
            flip(at("s%d/data.zr", codec),
                 loc.data_off + (codec == ZR_RAW ? loc.phys_nbytes / 2 : 0));
        }
        ck_assert_uint_eq(verify(path).bad_count, COUNT(bad));
        for (size_t i = 0; i < COUNT(bad); i++)
            expect_found(i, bad[i], codec == ZR_RAW ? ZR_E_CHECKSUM : ZR_E_CORRUPT,
                         "data.zr: record ");
    }
}
END_TEST

START_TEST(without_checksums_only_what_cannot_be_decoded_is_found)
{
    make_bare_store(at("s"), ZR_DENSE, ZR_ZSTD, 50);
    flip(at("s/data.zr"), place_of(at("s"), 7).data_off);
    struct zr_verify_result result = verify(at("s"));
    ck_assert(!result.checksums_compared);
    ck_assert_uint_eq(result.bad_count, 1);
    expect_found(0, 7, ZR_E_CORRUPT, "record 7: ");
}
END_TEST

START_TEST(damaged_entries_are_named)
{
    make_bare_store(at("s"), ZR_DENSE, ZR_ZSTD, 100);
    patch64(at("s/meta.zr"), 4096 + 16 * 30, UINT64_MAX);
    patch32(at("s/meta.zr"), 4096 + 16 * 60 + 12, 1);
    ck_assert_uint_eq(verify(at("s")).bad_count, 2);
    expect_found(0, 30, ZR_E_CORRUPT, "meta.zr: record 30: table entry points past the end");
    expect_found(1, 60, ZR_E_CORRUPT, "meta.zr: record 60: table entry disagrees");
}
END_TEST

static void swap_entries(uint64_t a, uint64_t b)
{
    uint8_t x[16], y[16];
    int fd = open(at("s/meta.zr"), O_RDWR);
    ck_assert(pread(fd, x, 16, (off_t)(4096 + 16 * a)) == 16);
    ck_assert(pread(fd, y, 16, (off_t)(4096 + 16 * b)) == 16);
    ck_assert(pwrite(fd, y, 16, (off_t)(4096 + 16 * a)) == 16);
    ck_assert(pwrite(fd, x, 16, (off_t)(4096 + 16 * b)) == 16);
    close(fd);
}

static void copy_entry(uint64_t from, uint64_t to)
{
    uint8_t x[16];
    int fd = open(at("s/meta.zr"), O_RDWR);
    ck_assert(pread(fd, x, 16, (off_t)(4096 + 16 * from)) == 16);
    ck_assert(pwrite(fd, x, 16, (off_t)(4096 + 16 * to)) == 16);
    close(fd);
}

/* Their sizes still add up to the file: only the ranges tell. */
START_TEST(overlapping_ranges_are_found_and_both_named)
{
    make_bare_store(at("s"), ZR_DENSE, ZR_RAW, 100);
    copy_entry(30, 61);
    ck_assert_uint_eq(verify(at("s")).bad_count, 1);
    expect_found(0, ZR_NO_RECORD, ZR_E_CORRUPT, "meta.zr: the ranges of records 30 and 61 overlap");
}
END_TEST

START_TEST(ranges_that_overlap_by_one_byte_are_found)
{
    struct zr_location loc;
    make_bare_store(at("s"), ZR_DENSE, ZR_RAW, 100);
    loc = place_of(at("s"), 40);
    patch64(at("s/meta.zr"), 4096 + 16 * 40, loc.data_off - 1);
    ck_assert_uint_eq(verify(at("s")).bad_count, 1);
    expect_found(0, ZR_NO_RECORD, ZR_E_CORRUPT, "records 39 and 40 overlap");
}
END_TEST

START_TEST(gaps_and_any_order_are_no_fault)
{
    make_bare_store(at("s"), ZR_DENSE, ZR_RAW, 100);
    swap_entries(3, 90);
    ck_assert_uint_eq(verify(at("s")).bad_count, 0);
    uint64_t tail = file_nbytes(at("s/data.zr"));
    cut(at("s/data.zr"), tail + 1000); /* a gap at the end */
    patch64(at("s/meta.zr"), 8, tail + 1000);
    ck_assert_uint_eq(verify(at("s")).bad_count, 0);
    patch64(at("s/meta.zr"), 4096 + 16 * 99, tail + 500); /* and one inside */
    ck_assert_uint_eq(verify(at("s")).bad_count, 0);
}
END_TEST

START_TEST(swapped_records_are_found_by_their_checksums)
{
    make_store(at("s"), ZR_DENSE, ZR_RAW, 1000);
    swap_entries(7, 8); /* entries that the store's identity does not sample */
    verify(at("s"));
    ck_assert_uint_eq(found.count, 2);
    expect_found(0, 7, ZR_E_CHECKSUM, "record 7: ");
    expect_found(1, 8, ZR_E_CHECKSUM, "record 8: ");
}
END_TEST

START_TEST(a_sidecar_that_was_ignored_is_a_finding)
{
    make_store(at("s"), ZR_DENSE, ZR_ZSTD, 10);
    flip(at("s/side.zr"), 20);
    struct zr_verify_result result = verify(at("s"));
    ck_assert(!result.checksums_compared);
    ck_assert_uint_eq(result.bad_count, 1);
    expect_found(0, ZR_NO_RECORD, ZR_E_FORMAT, "side.zr: sidecar ignored");
}
END_TEST

START_TEST(a_sidecar_row_with_another_shape_is_found)
{
    make_store(at("s"), ZR_RAGGED, ZR_ZSTD, 100);
    patch(at("s/side.zr"), 64 + 5 * 50 + 4, "\6", 1);  /* a longer header */
    patch(at("s/side.zr"), 64 + 5 * 70 + 4, "\21", 1); /* another rank */
    patch(at("s/side.zr"), 64 + 5 * 60 + 4, "\0", 1);  /* nothing */
    ck_assert_uint_eq(verify(at("s")).bad_count, 3);
    expect_found(0, 50, ZR_E_CORRUPT, "side.zr: record 50: ");
    expect_found(1, 60, ZR_E_CORRUPT, "side.zr: record 60: ");
    expect_found(2, 70, ZR_E_CORRUPT, "side.zr: record 70: ");
}
END_TEST

START_TEST(a_truncated_file_names_the_records_that_are_gone)
{
    struct zr_verify_result result;
    make_bare_store(at("s"), ZR_DENSE, ZR_RAW, 100);
    struct zr_reader *r = open_store(at("s"));
    cut(at("s/data.zr"), 90 * ROW_NBYTES + 5);
    found = (struct found){0};
    expect_ok(zr_verify(r, note, NULL, NULL, &result, &err));
    ck_assert_uint_eq(result.bad_count, 10);
    for (size_t i = 0; i < 10; i++)
        expect_found(i, 90 + i, ZR_E_TRUNCATED, "cut short");
    zr_reader_close(r);
}
END_TEST

static uint64_t last_done, last_total;

static int progress(void *ctx, uint64_t done, uint64_t total)
{
    ck_assert_uint_le(done, total);
    ck_assert_uint_ge(done, last_done);
    last_done = done;
    last_total = total;
    return ctx ? *(int *)ctx : 0;
}

START_TEST(progress_reaches_its_total)
{
    make_store(at("s"), ZR_DENSE, ZR_RAW, 10000);
    struct zr_reader *r = open_store(at("s"));
    expect_ok(zr_verify(r, NULL, progress, NULL, NULL, &err));
    ck_assert_uint_eq(last_done, 10000);
    ck_assert_uint_eq(last_total, 10000);
    zr_reader_close(r);
}
END_TEST

START_TEST(both_callbacks_can_stop_it)
{
    int yes = 1;
    struct zr_verify_result result;
    make_store(at("s"), ZR_DENSE, ZR_RAW, 10000);
    for (uint64_t id = 100; id < 110; id++)
        flip(at("s/data.zr"), id * ROW_NBYTES);
    struct zr_reader *r = open_store(at("s"));
    expect_error(zr_verify(r, NULL, progress, &yes, NULL, &err), ZR_E_CANCELLED, "stopped");
    ck_assert_uint_lt(last_done, 10000);
    found = (struct found){.stop_after = 3};
    expect_error(zr_verify(r, note, NULL, NULL, &result, &err), ZR_E_CANCELLED, "stopped");
    ck_assert_uint_eq(found.count, 3);
    zr_reader_close(r);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        sound_stores_have_no_findings,
        an_empty_store_is_sound,
        every_bad_record_is_named_in_order,
        without_checksums_only_what_cannot_be_decoded_is_found,
        damaged_entries_are_named,
        overlapping_ranges_are_found_and_both_named,
        ranges_that_overlap_by_one_byte_are_found,
        gaps_and_any_order_are_no_fault,
        swapped_records_are_found_by_their_checksums,
        a_sidecar_that_was_ignored_is_a_finding,
        a_sidecar_row_with_another_shape_is_found,
        a_truncated_file_names_the_records_that_are_gone,
        progress_reaches_its_total,
        both_callbacks_can_stop_it,
    };
    return run_tests("verify", tests, COUNT(tests), 60);
}
