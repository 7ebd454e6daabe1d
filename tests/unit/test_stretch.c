/* SPDX-License-Identifier: MIT
 *
 * Records that no mapping shows, read together where they lie end to end
 * (engine/stretch.c).
 */
#include "faults.h"

#include <limits.h>

enum { N = 1000 };

static uint64_t ids[N];

/* Tables mapped, records not; or nothing. */
static struct zr_reader *open_unmapped(const char *path, int access)
{
    struct zr_reader_options o = {.access = access, .mapped_nbytes = 1, .checksums = true};
    struct zr_reader *r;
    zr_set_thread_count(1);
    expect_ok(zr_reader_open(&r, path, &o, &err));
    return r;
}

static void count_up(void)
{
    for (uint64_t i = 0; i < N; i++)
        ids[i] = i;
}

/* As gather_ids, and packed. */
static int gather_packed(struct zr_reader *r, size_t count, struct zr_error *err)
{
    struct zr_part p;
    int rc = zr_gather_packed(r, ids, count, &p, err);
    for (size_t i = 0; !rc && i < count; i++)
        if (p.offsets[i + 1] - p.offsets[i] != ragged_nbytes_of(ids[i]) ||
            !is_record(ids[i], (uint8_t *)p.data + p.offsets[i], ragged_nbytes_of(ids[i])))
            rc = WRONG_BYTES;
    if (!rc)
        zr_parts_release(&p, 1);
    return rc;
}

static unsigned calls_of_gather(struct zr_reader *r, size_t count)
{
    plan_fault(FAIL_ONCE, UINT_MAX, EIO);
    int rc = gather_ids(r, ids, count, NULL);
    unsigned calls = atomic_load(&plan.calls);
    plan_fault(NONE, 0, 0);
    ck_assert_int_eq(rc, ZR_OK);
    return calls;
}

START_TEST(neighbours_are_read_together)
{
    for (int geometry = ZR_DENSE; geometry <= ZR_RAGGED; geometry++)
        for (int codec = ZR_RAW; codec <= ZR_ZSTD_DICT; codec++) {
            make_store(at("%d%d", geometry, codec), geometry, codec, N);
            struct zr_reader *r = open_unmapped(at("%d%d", geometry, codec), ZR_ACCESS_MAP);
            count_up();
            unsigned least = (N + ZRI_STRETCH_COUNT - 1) / ZRI_STRETCH_COUNT;
            unsigned calls = calls_of_gather(r, N);
            ck_assert_uint_ge(calls, least);
            ck_assert_uint_le(calls, least + 2);
            zr_reader_close(r);
        }
}
END_TEST

START_TEST(who_reads_at_random_reads_no_more_than_asked_for)
{
    make_store(at("s"), ZR_DENSE, ZR_ZSTD, N);
    for (uint64_t i = 0; i < N; i++)
        ids[i] = (i * 7) % N;
    struct zr_reader *r = open_unmapped(at("s"), ZR_ACCESS_MAP);
    ck_assert_uint_eq(calls_of_gather(r, N), N);
    zr_reader_close(r);
    r = open_unmapped(at("s"), ZR_ACCESS_READ);
    ck_assert_uint_eq(calls_of_gather(r, N), 3 * N); /* entry, record, checksum */
    zr_reader_close(r);
}
END_TEST

static void arrange(int arrangement)
{
    for (uint64_t i = 0; i < N; i++) {
        const uint64_t ways[] = {i, N - 1 - i, i * 2 % N, i / 2, i / 3 * 5 % N + i % 3, i % 300};
        ids[i] = ways[arrangement] % N;
    }
}

START_TEST(every_arrangement_gives_the_records_asked_for)
{
    for (int geometry = ZR_DENSE; geometry <= ZR_RAGGED; geometry++)
        for (int codec = ZR_RAW; codec <= ZR_ZSTD_DICT; codec++)
            for (int access = ZR_ACCESS_MAP; access <= ZR_ACCESS_READ; access++) {
                const char *path = at("%d%d%d", geometry, codec, access);
                make_store(path, geometry, codec, N);
                struct zr_reader *r = open_unmapped(path, access);
                for (int arrangement = 0; arrangement < 6; arrangement++) {
                    arrange(arrangement);
                    for (unsigned threads = 1; threads <= 3; threads += 2) {
                        zr_set_thread_count(threads);
                        expect_ok(gather_ids(r, ids, N, &err));
                        if (geometry == ZR_RAGGED)
                            expect_ok(gather_packed(r, N, &err));
                    }
                }
                zr_reader_close(r);
            }
}
END_TEST

static void swap_entries(const char *path, uint64_t a, uint64_t b)
{
    uint8_t x[16], y[16];
    int fd = open(path, O_RDWR);
    off_t at_a = (off_t)(4096 + 16 * a), at_b = (off_t)(4096 + 16 * b);
    ck_assert(pread(fd, x, 16, at_a) == 16 && pread(fd, y, 16, at_b) == 16);
    ck_assert(pwrite(fd, y, 16, at_a) == 16 && pwrite(fd, x, 16, at_b) == 16);
    close(fd);
}

START_TEST(the_table_need_not_be_in_the_order_of_the_bytes)
{
    for (int codec = ZR_RAW; codec <= ZR_ZSTD; codec++) {
        make_bare_store(at("s%d", codec), ZR_DENSE, codec, 10);
        swap_entries(at("s%d/meta.zr", codec), 4, 5);
        swap_entries(at("s%d/meta.zr", codec), 0, 9);
        struct zr_reader *r = open_unmapped(at("s%d", codec), ZR_ACCESS_MAP);
        static const uint64_t holds[] = {9, 1, 2, 3, 5, 4, 6, 7, 8, 0};
        uint8_t out[10 * ROW_NBYTES];
        count_up();
        expect_ok(zr_gather_dense(r, ids, 10, out, sizeof out, &err));
        for (size_t i = 0; i < 10; i++)
            ck_assert(is_record(holds[i], out + i * ROW_NBYTES, ROW_NBYTES));
        zr_reader_close(r);
    }
}
END_TEST

static unsigned calls_for_rows(const char *path, bool checksums, size_t count, void *out,
                               size_t out_nbytes)
{
    struct zr_reader_options o = {.mapped_nbytes = 1, .checksums = checksums};
    struct zr_reader *r;
    expect_ok(zr_reader_open(&r, path, &o, &err));
    plan_fault(FAIL_ONCE, UINT_MAX, EIO);
    int rc = zr_gather_dense(r, ids, count, out, out_nbytes, NULL);
    unsigned calls = atomic_load(&plan.calls);
    plan_fault(NONE, 0, 0);
    ck_assert_int_eq(rc, ZR_OK);
    zr_reader_close(r);
    return calls;
}

/* Rows of which two are more than is read at once, unless they go where they belong and are
 * not looked at there. */
START_TEST(long_records_too)
{
    enum { LONG_NBYTES = 100000, COUNT_OF_LONG = 7 };
    uint8_t *rows = malloc(COUNT_OF_LONG * LONG_NBYTES), *out = malloc(COUNT_OF_LONG * LONG_NBYTES);
    for (uint64_t i = 0; i < COUNT_OF_LONG; i++)
        fill_record(i, rows + i * LONG_NBYTES, LONG_NBYTES);
    for (int codec = ZR_RAW; codec <= ZR_ZSTD; codec++) {
        const uint64_t shape = LONG_NBYTES;
        struct zr_writer_options o = options_for(ZR_DENSE, codec);
        o.ndim = 1;
        o.item_shape = &shape;
        struct zr_writer *w;
        expect_ok(zr_writer_create(&w, at("s%d", codec), &o, &err));
        expect_ok(zr_writer_append_dense(w, rows, COUNT_OF_LONG, &err));
        expect_ok(zr_writer_close(w, &err));
        struct zr_reader *r = open_unmapped(at("s%d", codec), ZR_ACCESS_MAP);
        count_up();
        expect_ok(zr_gather_dense(r, ids, COUNT_OF_LONG, out, COUNT_OF_LONG * LONG_NBYTES, &err));
        ck_assert(!memcmp(out, rows, COUNT_OF_LONG * LONG_NBYTES));
        zr_reader_close(r);
        for (int checksums = 0; checksums < 2; checksums++) {
            unsigned calls = calls_for_rows(at("s%d", codec), checksums, COUNT_OF_LONG, out,
                                            COUNT_OF_LONG * LONG_NBYTES);
            bool together = codec == ZR_ZSTD || !checksums; /* frames of them are short */
            ck_assert_uint_eq(calls, (unsigned)(together ? 1 : COUNT_OF_LONG));
        }
    }
    free(rows);
    free(out);
}
END_TEST

/* One by one, the records that failed together either succeed or say what is wrong. */
START_TEST(a_failing_call_loses_nothing_or_is_told)
{
    for (int geometry = ZR_DENSE; geometry <= ZR_RAGGED; geometry++)
        for (int codec = ZR_RAW; codec <= ZR_ZSTD; codec++) {
            make_store(at("%d%d", geometry, codec), geometry, codec, N);
            struct zr_reader *r = open_unmapped(at("%d%d", geometry, codec), ZR_ACCESS_MAP);
            struct zr_error e;
            count_up();
            unsigned calls = calls_of_gather(r, N);
            for (unsigned k = 1; k <= calls; k++) {
                plan_fault(FAIL_ONCE, k, EIO);
                int once = gather_ids(r, ids, N, &e);
                plan_fault(FAIL_FROM, k, EIO);
                int from = gather_ids(r, ids, N, &e);
                plan_fault(NONE, 0, 0);
                ck_assert_int_eq(once, ZR_OK);
                ck_assert_int_eq(from, ZR_E_IO);
                ck_assert_uint_lt(e.record, N);
                ck_assert(k > 1 || e.record == 0);
                ck_assert_ptr_nonnull(strstr(e.message, "cannot read"));
            }
            plan_fault(SHORT, 0, 0);
            int rc = gather_ids(r, ids, N, &e);
            plan_fault(NONE, 0, 0);
            ck_assert_int_eq(rc, ZR_OK);
            zr_reader_close(r);
        }
}
END_TEST

START_TEST(a_damaged_record_among_good_ones_is_named)
{
    for (int codec = ZR_RAW; codec <= ZR_ZSTD; codec++) {
        struct zr_location bad;
        make_store(at("s%d", codec), ZR_DENSE, codec, N);
        struct zr_reader *r = open_unmapped(at("s%d", codec), ZR_ACCESS_MAP);
        expect_ok(zr_reader_locate(r, 77, &bad, &err));
        flip(at("s%d/data.zr", codec), bad.data_off + bad.phys_nbytes - 1);
        count_up();
        struct zr_error e;
        ck_assert_int_ne(gather_ids(r, ids, N, &e), ZR_OK);
        ck_assert_uint_eq(e.record, 77);
        expect_ok(gather_ids(r, ids, 77, &err));
        expect_ok(gather_ids(r, ids + 78, N - 78, &err));
        zr_reader_close(r);
    }
}
END_TEST

START_TEST(a_file_cut_short_gives_what_it_has)
{
    for (int codec = ZR_RAW; codec <= ZR_ZSTD; codec++) {
        struct zr_location last;
        struct zr_error e;
        make_store(at("s%d", codec), ZR_DENSE, codec, N);
        struct zr_reader *r = open_unmapped(at("s%d", codec), ZR_ACCESS_MAP);
        expect_ok(zr_reader_locate(r, N - 1, &last, &err));
        cut(at("s%d/data.zr", codec), last.data_off + last.phys_nbytes - 1);
        count_up();
        ck_assert_int_eq(gather_ids(r, ids, N, &e), ZR_E_TRUNCATED);
        ck_assert_uint_eq(e.record, N - 1);
        expect_ok(gather_ids(r, ids, N - 1, &err));
        zr_reader_close(r);
    }
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        neighbours_are_read_together,
        who_reads_at_random_reads_no_more_than_asked_for,
        every_arrangement_gives_the_records_asked_for,
        the_table_need_not_be_in_the_order_of_the_bytes,
        long_records_too,
        a_failing_call_loses_nothing_or_is_told,
        a_damaged_record_among_good_ones_is_named,
        a_file_cut_short_gives_what_it_has,
    };
    return run_tests("stretch", tests, COUNT(tests), 60);
}
