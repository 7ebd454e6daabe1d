/* SPDX-License-Identifier: MIT
 *
 * Records on their way into a store (engine/append.c).
 */
#include <sys/mman.h>
#include <sys/resource.h>

#include "support.h"

static struct zr_writer *create(int geometry, int codec)
{
    struct zr_writer_options o = options_for(geometry, codec);
    struct zr_writer *w;
    expect_ok(zr_writer_create(&w, at("s"), &o, &err));
    return w;
}

static void close_and_check(struct zr_writer *w, uint64_t count)
{
    expect_ok(zr_writer_close(w, &err));
    struct zr_reader *r = open_with(at("s"), ZR_ACCESS_MAP, true);
    check_all_records(r, count);
    zr_reader_close(r);
}

START_TEST(batches_of_any_size_join)
{
    static const uint64_t sizes[] = {1, 2, 3, 100, 1, 5000, 7};
    for (int geometry = ZR_DENSE; geometry <= ZR_RAGGED; geometry++)
        for (int codec = ZR_RAW; codec <= ZR_ZSTD_DICT; codec++) {
            struct zr_writer_options o = options_for(geometry, codec);
            struct zr_writer *w;
            uint64_t total = 0;
            expect_ok(zr_writer_create(&w, at("%d%d", geometry, codec), &o, &err));
            for (size_t i = 0; i < COUNT(sizes); i++) {
                append_records(w, geometry, total, sizes[i]);
                total += sizes[i];
                ck_assert_uint_eq(zr_writer_length(w), total);
            }
            expect_ok(zr_writer_close(w, &err));
            struct zr_reader *r = open_with(at("%d%d", geometry, codec), ZR_ACCESS_MAP, true);
            check_all_records(r, total);
            zr_reader_close(r);
        }
}
END_TEST

/* More than one slab, more than one task. */
START_TEST(a_batch_of_200000_records_is_cut_and_joined_right)
{
    struct zr_writer *w = create(ZR_DENSE, ZR_RAW);
    zr_set_thread_count(4);
    append_rows(w, 0, 200000);
    close_and_check(w, 200000);
}
END_TEST

START_TEST(compressed_batches_run_in_parallel_and_stay_in_order)
{
    for (int geometry = ZR_DENSE; geometry <= ZR_RAGGED; geometry++) {
        struct zr_writer_options o = options_for(geometry, ZR_ZSTD);
        o.level = 1;
        zr_set_thread_count(4);
        make_store_with(at("p%d", geometry), &o, 70000);
        struct zr_reader *r = open_with(at("p%d", geometry), ZR_ACCESS_MAP, true);
        check_all_records(r, 70000);
        zr_reader_close(r);
    }
}
END_TEST

START_TEST(ranges_in_the_data_file_do_not_overlap)
{
    struct zr_verify_result result;
    struct zr_writer *w = create(ZR_RAGGED, ZR_ZSTD);
    zr_set_thread_count(4);
    append_items(w, 0, 40000);
    expect_ok(zr_writer_close(w, &err));
    struct zr_reader *r = open_store(at("s"));
    expect_ok(zr_verify(r, NULL, NULL, NULL, &result, &err));
    ck_assert_uint_eq(result.bad_count, 0);
    ck_assert_uint_eq(result.checked_count, 40000);
    zr_reader_close(r);
}
END_TEST

START_TEST(incompressible_records_are_stored_larger_and_read_back)
{
    uint8_t *rows = malloc(1000 * ROW_NBYTES), *back = malloc(1000 * ROW_NBYTES);
    uint64_t *ids = malloc(1000 * sizeof *ids);
    unsigned seed = 5;
    for (size_t i = 0; i < 1000 * ROW_NBYTES; i++)
        rows[i] = (uint8_t)(rand_r(&seed) >> 7);
    struct zr_writer *w = create(ZR_DENSE, ZR_ZSTD);
    expect_ok(zr_writer_append_dense(w, rows, 1000, &err));
    expect_ok(zr_writer_close(w, &err));
    struct zr_reader *r = open_store(at("s"));
    ck_assert_uint_gt(r->header.tail_off, 1000 * ROW_NBYTES);
    for (uint64_t i = 0; i < 1000; i++)
        ids[i] = i;
    expect_ok(zr_gather_dense(r, ids, 1000, back, 1000 * ROW_NBYTES, &err));
    ck_assert_mem_eq(rows, back, 1000 * ROW_NBYTES);
    zr_reader_close(r);
    free(rows);
    free(back);
    free(ids);
}
END_TEST

START_TEST(the_shape_prefix_is_laid_out_as_the_format_says)
{
    static const uint64_t shape[] = {2, 3};
    static const uint8_t expected[] = {2, 0, 0, 0, 0, 0, 0, 0, 2, 0,   0,   0,   0,   0,   0,
                                       0, 3, 0, 0, 0, 0, 0, 0, 0, 'a', 'b', 'c', 'd', 'e', 'f'};
    struct zr_writer *w = create(ZR_RAGGED, ZR_RAW);
    struct zr_item items[] = {{"abcdef", shape, 2}, {"x", NULL, 0}};
    size_t n;
    expect_ok(zr_writer_append_ragged(w, items, 2, &err));
    expect_ok(zr_writer_close(w, &err));
    uint8_t *data = slurp(at("s/data.zr"), &n);
    ck_assert_uint_eq(n, sizeof expected + 9);
    ck_assert_mem_eq(data, expected, sizeof expected);
    ck_assert_mem_eq(data + sizeof expected, "\0\0\0\0\0\0\0\0x", 9);
    free(data);
}
END_TEST

START_TEST(rank_64_is_taken_and_rank_65_refused)
{
    uint64_t shape[65];
    for (int i = 0; i < 65; i++)
        shape[i] = 1;
    struct zr_writer *w = create(ZR_RAGGED, ZR_ZSTD);
    struct zr_item item = {"x", shape, 65};
    expect_error(zr_writer_append_ragged(w, &item, 1, &err), ZR_E_INVALID, "rank 65");
    item.ndim = 64;
    expect_ok(zr_writer_append_ragged(w, &item, 1, &err));
    expect_ok(zr_writer_close(w, &err));
    struct zr_reader *r = open_store(at("s"));
    uint64_t offsets[2], id = 0;
    expect_ok(zr_gather_ragged_plan(r, &id, 1, offsets, &err));
    ck_assert_uint_eq(offsets[1], (8 * 65 + 1 + 15) / 16 * 16);
    zr_reader_close(r);
}
END_TEST

/* A refused batch leaves nothing behind, and the writer as it was. */
static void check_still_usable(struct zr_writer *w, uint64_t length)
{
    ck_assert_uint_eq(zr_writer_length(w), length);
    append_items(w, length, 5);
    close_and_check(w, length + 5);
}

START_TEST(an_empty_record_refuses_the_batch_by_its_position)
{
    static const uint64_t none[] = {4, 0, 4}, one[] = {1};
    struct zr_writer *w = create(ZR_RAGGED, ZR_ZSTD);
    struct zr_item items[] = {{"x", one, 1}, {"x", one, 1}, {"", none, 3}};
    append_items(w, 0, 3);
    struct zr_error e;
    ck_assert_int_eq(zr_writer_append_ragged(w, items, 3, &e), ZR_E_INVALID);
    ck_assert_uint_eq(e.record, 2);
    ck_assert_ptr_nonnull(strstr(e.message, "record 2 of the batch is empty"));
    check_still_usable(w, 3);
}
END_TEST

START_TEST(a_record_over_2_gib_is_refused_before_allocating)
{
    static const uint64_t over[] = {((uint64_t)1 << 31) - 15}, wraps[] = {(uint64_t)1 << 63, 4};
    struct zr_writer *w = create(ZR_RAGGED, ZR_RAW);
    struct zr_item items[] = {{NULL, over, 1}, {NULL, wraps, 2}};
    struct zr_error e;
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(zr_writer_append_ragged(w, &items[i], 1, &e), ZR_E_TOO_LARGE);
        ck_assert_uint_eq(e.record, 0);
        ck_assert_ptr_nonnull(strstr(e.message, "2147483648"));
    }
    ck_assert_uint_eq(zr_buffer_idle_nbytes(), 0);
    check_still_usable(w, 0);
}
END_TEST

START_TEST(a_record_of_exactly_2_gib_is_taken)
{
    skip_under(UNDER_ASAN || UNDER_TSAN, "two gigabytes are too slow under a sanitizer");
    const uint64_t shape = (uint64_t)1 << 31;
    struct zr_writer_options o = {
        .codec = ZR_ZSTD, .dtype = "|u1", .ndim = 1, .item_shape = &shape};
    struct zr_writer *w;
    struct zr_location loc;
    o.level = -50;
    o.no_sidecar = true;
    void *zeros = mmap(NULL, shape, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    expect_ok(zr_writer_create(&w, at("s"), &o, &err));
    expect_ok(zr_writer_append_dense(w, zeros, 1, &err));
    expect_ok(zr_writer_close(w, &err));
    struct zr_reader *r = open_store(at("s"));
    expect_ok(zr_reader_locate(r, 0, &loc, &err));
    ck_assert_uint_eq(loc.logic_nbytes, (uint32_t)1 << 31);
    zr_reader_close(r);
}
END_TEST

START_TEST(an_empty_batch_is_refused)
{
    struct zr_writer *w = create(ZR_DENSE, ZR_RAW);
    expect_error(zr_writer_append_dense(w, "", 0, &err), ZR_E_INVALID, "at least one record");
    append_rows(w, 0, 3);
    close_and_check(w, 3);
}
END_TEST

START_TEST(more_rows_than_memory_can_hold_are_refused)
{
    struct zr_writer *w = create(ZR_DENSE, ZR_RAW);
    expect_error(zr_writer_append_dense(w, "", UINT64_MAX, &err), ZR_E_INVALID, "memory");
    expect_error(zr_writer_append_dense(w, "", UINT64_MAX / 8, &err), ZR_E_INVALID, "memory");
    append_rows(w, 0, 3);
    close_and_check(w, 3);
}
END_TEST

START_TEST(the_other_geometry_is_refused_and_the_writer_stays_usable)
{
    struct zr_item item = {"x", NULL, 0};
    struct zr_writer *w = create(ZR_DENSE, ZR_ZSTD);
    expect_error(zr_writer_append_ragged(w, &item, 1, &err), ZR_E_GEOMETRY, "dense, not ragged");
    append_rows(w, 0, 3);
    close_and_check(w, 3);
}
END_TEST

START_TEST(a_failed_append_ends_the_writer_and_leaves_nothing)
{
    struct rlimit limit = {100000, 100000};
    signal(SIGXFSZ, SIG_IGN);
    for (int codec = ZR_RAW; codec <= ZR_ZSTD; codec++) {
        uint8_t *rows = malloc(20000 * ROW_NBYTES);
        unsigned seed = 3;
        for (size_t i = 0; i < 20000 * ROW_NBYTES; i++)
            rows[i] = (uint8_t)(rand_r(&seed) >> 7);
        struct zr_writer *w = create(ZR_DENSE, codec);
        ck_assert(!setrlimit(RLIMIT_FSIZE, &limit));
        expect_error(zr_writer_append_dense(w, rows, 20000, &err), ZR_E_IO, "File too large");
        expect_error(zr_writer_append_dense(w, rows, 1, &err), ZR_E_STATE, "earlier append failed");
        expect_error(zr_writer_close(w, &err), ZR_E_STATE, "not published");
        ck_assert_uint_eq(entry_count(test_dir), 0);
        free(rows);
    }
}
END_TEST

START_TEST(the_callers_rows_may_be_read_only_and_unaligned)
{
    uint8_t *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (uint64_t i = 0; i < 10; i++)
        fill_record(i, page + 3 + i * ROW_NBYTES, ROW_NBYTES);
    ck_assert(!mprotect(page, 8192, PROT_READ));
    struct zr_writer *w = create(ZR_DENSE, ZR_ZSTD);
    expect_ok(zr_writer_append_dense(w, page + 3, 10, &err));
    close_and_check(w, 10);
}
END_TEST

START_TEST(working_memory_stays_bounded_for_a_large_batch)
{
    skip_under(UNDER_ASAN || UNDER_TSAN, "sanitizers keep freed memory");
    enum { MIB = 128 };
    struct rusage before, after;
    uint64_t shape = 1 << 12;
    struct zr_writer_options o = {
        .dtype = "|u1", .ndim = 1, .item_shape = &shape, .codec = ZR_ZSTD};
    struct zr_writer *w;
    o.durability = ZR_NO_FSYNC;
    zr_set_thread_count(2);
    uint8_t *rows = malloc(MIB << 20);
    memset(rows, 1, MIB << 20);
    expect_ok(zr_writer_create(&w, at("s"), &o, &err));
    getrusage(RUSAGE_SELF, &before);
    expect_ok(zr_writer_append_dense(w, rows, (MIB << 20) / shape, &err));
    getrusage(RUSAGE_SELF, &after);
    ck_assert_int_lt(after.ru_maxrss - before.ru_maxrss, 40 << 10);
    zr_writer_abort(w);
    free(rows);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        batches_of_any_size_join,
        a_batch_of_200000_records_is_cut_and_joined_right,
        compressed_batches_run_in_parallel_and_stay_in_order,
        ranges_in_the_data_file_do_not_overlap,
        incompressible_records_are_stored_larger_and_read_back,
        the_shape_prefix_is_laid_out_as_the_format_says,
        rank_64_is_taken_and_rank_65_refused,
        an_empty_record_refuses_the_batch_by_its_position,
        a_record_over_2_gib_is_refused_before_allocating,
        a_record_of_exactly_2_gib_is_taken,
        an_empty_batch_is_refused,
        more_rows_than_memory_can_hold_are_refused,
        the_other_geometry_is_refused_and_the_writer_stays_usable,
        a_failed_append_ends_the_writer_and_leaves_nothing,
        the_callers_rows_may_be_read_only_and_unaligned,
        working_memory_stays_bounded_for_a_large_batch,
    };
    return run_tests("append", tests, COUNT(tests), 60);
}
