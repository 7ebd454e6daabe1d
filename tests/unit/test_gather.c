/* SPDX-License-Identifier: MIT
 *
 * Batches of records (engine/gather.c): any ids in any order, by many threads,
 * through files that are damaged or vanish meanwhile.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "support.h"

enum { N = 3000 };

static struct zr_reader *open_kind(int geometry, int codec, int access, bool is_bare)
{
    const char *path = at("%d%d%d%d", geometry, codec, access, is_bare);
    struct zr_writer_options o = options_for(geometry, codec);
    o.no_sidecar = is_bare;
    if (codec != ZR_RAW)
        o.level = 1;
    make_store_with(path, &o, N);
    return open_with(path, access, false);
}

/* Both geometries, every codec, mapped and not. */
static void for_each_kind(void (*check)(struct zr_reader *r))
{
    for (int kind = 0; kind < 12; kind++) {
        struct zr_reader *r = open_kind(kind / 6, kind % 6 / 2, kind % 2, false);
        check(r);
        zr_reader_close(r);
    }
}

static void gather_any_order(struct zr_reader *r)
{
    static uint64_t ids[5000];
    unsigned seed = 1;
    for (size_t i = 0; i < COUNT(ids); i++)
        ids[i] = i % 3 ? (uint64_t)rand_r(&seed) % N : ids[i / 2];
    expect_ok(gather_ids(r, ids, COUNT(ids), &err));
    for (size_t i = 0; i < COUNT(ids); i++)
        ids[i] = N - 1;
    expect_ok(gather_ids(r, ids, 600, &err));
}

START_TEST(any_order_with_repeats)
{
    zr_set_thread_count(4);
    for_each_kind(gather_any_order);
}
END_TEST

static void gather_small_batches(struct zr_reader *r)
{
    for (size_t count = 0; count < 40; count++) {
        uint64_t ids[40];
        for (size_t i = 0; i < count; i++)
            ids[i] = N - 1 - i * 7;
        expect_ok(gather_ids(r, ids, count, &err));
    }
}

START_TEST(batches_of_every_small_size)
{
    for_each_kind(gather_small_batches);
}
END_TEST

static void refuse_ids_out_of_range(struct zr_reader *r)
{
    static const uint64_t bad[] = {N,
                                   N + 1,
                                   UINT64_MAX,
                                   UINT64_MAX - 1,
                                   (uint64_t)1 << 63,
                                   UINT64_MAX / 16,
                                   UINT64_MAX / 16 + 1};
    for (size_t i = 0; i < COUNT(bad); i++) {
        uint64_t ids[] = {1, 2, bad[i], N + 5}, offsets[5];
        uint8_t out[4 * ROW_NBYTES];
        struct zr_error e;
        memset(out, 0xee, sizeof out);
        int rc = r->schema.geometry == ZR_DENSE ? zr_gather_dense(r, ids, 4, out, sizeof out, &e)
                                                : zr_gather_ragged_plan(r, ids, 4, offsets, &e);
        ck_assert_int_eq(rc, ZR_E_RANGE);
        ck_assert_uint_eq(e.record, bad[i]);
        ck_assert_ptr_nonnull(strstr(e.message, "is out of range: the store has 3000"));
        for (size_t k = 0; k < sizeof out; k++)
            ck_assert_int_eq(out[k], 0xee);
        if (r->schema.geometry == ZR_RAGGED)
            expect_error(zr_gather_ragged(r, ids, 4, out, offsets, &err), ZR_E_RANGE, "");
    }
}

START_TEST(ids_out_of_range_fail_before_anything_is_read)
{
    for_each_kind(refuse_ids_out_of_range);
}
END_TEST

static void refuse_other_geometry(struct zr_reader *r)
{
    uint64_t id = 0, offsets[2] = {0, 0};
    uint8_t out[1];
    if (r->schema.geometry == ZR_RAGGED) {
        expect_error(zr_gather_dense(r, &id, 1, out, 1, &err), ZR_E_GEOMETRY, "ragged, not dense");
    } else {
        expect_error(zr_gather_ragged_plan(r, &id, 1, offsets, &err), ZR_E_GEOMETRY,
                     "dense, not ragged");
        expect_error(zr_gather_ragged(r, &id, 1, out, offsets, &err), ZR_E_GEOMETRY, "");
    }
}

START_TEST(the_other_geometry_is_refused)
{
    for_each_kind(refuse_other_geometry);
}
END_TEST

START_TEST(a_destination_one_byte_too_small_is_refused)
{
    uint64_t ids[] = {0, 1, 2};
    uint8_t out[3 * ROW_NBYTES];
    struct zr_reader *r = open_kind(ZR_DENSE, ZR_ZSTD, ZR_ACCESS_MAP, false);
    expect_error(zr_gather_dense(r, ids, 3, out, sizeof out - 1, &err), ZR_E_BUFFER, "do not fit");
    expect_error(zr_gather_dense(r, ids, 3, out, 0, &err), ZR_E_BUFFER, "do not fit");
    expect_ok(zr_gather_dense(r, ids, 3, out, sizeof out, &err));
    zr_reader_close(r);
}
END_TEST

static void keep_inside_the_batch(struct zr_reader *r)
{
    static uint64_t ids[N], offsets[N + 1];
    for (uint64_t i = 0; i < N; i++)
        ids[i] = (i * 17) % N;
    uint64_t nbytes = (uint64_t)N * ROW_NBYTES;
    if (r->schema.geometry == ZR_RAGGED) {
        expect_ok(zr_gather_ragged_plan(r, ids, N, offsets, &err));
        nbytes = offsets[N];
    }
    uint8_t *out = malloc(nbytes + 64);
    memset(out + nbytes, 0xee, 64);
    if (r->schema.geometry == ZR_RAGGED)
        expect_ok(zr_gather_ragged(r, ids, N, out, offsets, &err));
    else
        expect_ok(zr_gather_dense(r, ids, N, out, nbytes, &err));
    for (int k = 0; k < 64; k++)
        ck_assert_int_eq(out[nbytes + (uint64_t)k], 0xee);
    free(out);
}

START_TEST(nothing_is_written_past_the_batch)
{
    zr_set_thread_count(4);
    for_each_kind(keep_inside_the_batch);
}
END_TEST

START_TEST(a_plan_that_no_longer_fits_is_refused)
{
    uint64_t ids[] = {7, 11}, offsets[3];
    struct zr_reader *r = open_kind(ZR_RAGGED, ZR_ZSTD, ZR_ACCESS_MAP, false);
    expect_ok(zr_gather_ragged_plan(r, ids, 2, offsets, &err));
    uint8_t *out = zr_buffer_alloc(offsets[2]);
    offsets[1] = 16;
    expect_error(zr_gather_ragged(r, ids, 2, out, offsets, &err), ZR_E_BUFFER, "record 7: ");
    zr_buffer_free(out);
    zr_reader_close(r);
}
END_TEST

/* ---------------------------------------------------------------- damage */

static struct zr_location place_of(const struct zr_reader *r, uint64_t id)
{
    struct zr_location loc;
    expect_ok(zr_reader_locate(r, id, &loc, &err));
    return loc;
}

START_TEST(a_frame_whose_size_disagrees_fails_by_name)
{
    make_bare_store(at("s"), ZR_RAGGED, ZR_ZSTD, 100);
    struct zr_reader *r = open_store(at("s"));
    uint32_t logic = place_of(r, 50).logic_nbytes;
    zr_reader_close(r);
    patch32(at("s/meta.zr"), 4096 + 50 * 16 + 12, logic + 1);
    for (int access = ZR_ACCESS_MAP; access <= ZR_ACCESS_READ; access++) {
        r = open_with(at("s"), access, false);
        expect_error(gather_one(r, 50, &err), ZR_E_CORRUPT,
                     "data.zr: record 50: frame content size");
        expect_ok(gather_one(r, 49, &err));
        expect_ok(gather_one(r, 51, &err));
        zr_reader_close(r);
    }
}
END_TEST

START_TEST(the_first_bad_record_of_a_batch_is_the_one_named)
{
    zr_set_thread_count(4);
    make_bare_store(at("s"), ZR_DENSE, ZR_ZSTD, N);
    struct zr_reader *r = open_store(at("s"));
    static uint64_t ids[N];
    for (uint64_t i = 0; i < N; i++)
        ids[i] = N - 1 - i;
    flip(at("s/data.zr"), place_of(r, 2000).data_off); /* the magic number */
    struct zr_error e;
    ck_assert_int_eq(gather_dense(r, ids, N, &e), ZR_E_CORRUPT);
    ck_assert_uint_eq(e.record, 2000);
    ck_assert_uint_eq(e.offset, place_of(r, 2000).data_off);
    zr_reader_close(r);
}
END_TEST

START_TEST(the_checksum_option_catches_a_flipped_raw_byte)
{
    for (int geometry = ZR_DENSE; geometry <= ZR_RAGGED; geometry++)
        for (int access = ZR_ACCESS_MAP; access <= ZR_ACCESS_READ; access++) {
            const char *path = at("%d%d", geometry, access);
            make_store(path, geometry, ZR_RAW, 100);
            struct zr_reader *r = open_with(path, access, true);
            struct zr_location loc = place_of(r, 41);
            char data[200];
            snprintf(data, sizeof data, "%s/data.zr", path);
            flip(data, loc.data_off + loc.phys_nbytes - 1);
            expect_error(gather_one(r, 41, &err), ZR_E_CHECKSUM, "data.zr: record 41: ");
            expect_ok(gather_one(r, 40, &err));
            expect_ok(gather_one(r, 42, &err));
            zr_reader_close(r);
        }
}
END_TEST

START_TEST(without_the_option_a_flipped_raw_byte_passes)
{
    uint64_t id = 41;
    uint8_t out[ROW_NBYTES];
    make_store(at("s"), ZR_DENSE, ZR_RAW, 100);
    struct zr_reader *r = open_store(at("s"));
    flip(at("s/data.zr"), place_of(r, id).data_off);
    expect_ok(zr_gather_dense(r, &id, 1, out, sizeof out, &err));
    ck_assert(!is_record(id, out, sizeof out));
    zr_reader_close(r);
}
END_TEST

/* ---------------------------------------------------------------- vanishing files */

static void check_truncated(int codec, uint64_t keep_records, uint64_t extra)
{
    make_store(at("s"), ZR_DENSE, codec, N);
    for (int access = ZR_ACCESS_MAP; access <= ZR_ACCESS_READ; access++)
        for (int sums = 0; sums < 2; sums++) {
            copy_file(at("s/data.zr"), at("good"));
            struct zr_reader *r = open_with(at("s"), access, sums);
            struct zr_location loc = place_of(r, keep_records);
            cut(at("s/data.zr"), loc.data_off + extra % loc.phys_nbytes);
            expect_error(gather_one(r, keep_records, &err), ZR_E_TRUNCATED, "is cut short");
            expect_error(gather_one(r, N - 1, &err), ZR_E_TRUNCATED, "data.zr: record 2999: ");
            for (uint64_t id = 0; id < keep_records; id += 1 + keep_records / 50)
                expect_ok(gather_one(r, id, &err));
            uint64_t both[] = {0, N - 1, 1};
            expect_error(gather_ids(r, both, 3, &err), ZR_E_TRUNCATED, "record 2999: ");
            zr_reader_close(r);
            copy_file(at("good"), at("s/data.zr"));
        }
}

START_TEST(raw_data_truncated_while_open_fails_those_records_alone)
{
    skip_lost_mappings();
    zr_set_thread_count(1);
    check_truncated(ZR_RAW, 100, 0);
}
END_TEST

START_TEST(zstd_data_truncated_while_open_fails_those_records_alone)
{
    skip_lost_mappings();
    zr_set_thread_count(1);
    check_truncated(ZR_ZSTD, 1000, 0);
}
END_TEST

START_TEST(data_truncated_inside_a_record_and_a_page)
{
    skip_lost_mappings();
    zr_set_thread_count(1);
    check_truncated(ZR_RAW, 105, 77);
}
END_TEST

static void read_deleted(struct zr_reader *r)
{
    remove_tree(r->path);
    check_all_records(r, N);
}

START_TEST(a_store_deleted_while_open_still_reads)
{
    for_each_kind(read_deleted);
}
END_TEST

static atomic_bool stop;

static void *truncate_and_restore(void *path)
{
    size_t n;
    uint8_t *bytes = slurp(path, &n);
    int fd = open(path, O_RDWR);
    while (!atomic_load(&stop)) {
        if (ftruncate(fd, (off_t)n / 3) || pwrite(fd, bytes, n, 0) != (ssize_t)n)
            abort();
        usleep(300);
    }
    close(fd);
    free(bytes);
    return NULL;
}

/* Each gather gives right bytes or an error, whatever the moment. */
START_TEST(a_file_that_shrinks_and_grows_under_gathers_never_gives_wrong_bytes)
{
    skip_lost_mappings();
    static const int kinds[][2] = {{ZR_DENSE, ZR_ZSTD}, {ZR_RAGGED, ZR_ZSTD}};
    zr_set_thread_count(2);
    for (size_t k = 0; k < COUNT(kinds); k++) {
        pthread_t t;
        char path[200];
        zr_reader_close(open_kind(kinds[k][0], kinds[k][1], ZR_ACCESS_MAP, false));
        snprintf(path, sizeof path, "%s/data.zr", at("%d%d00", kinds[k][0], kinds[k][1]));
        atomic_store(&stop, false);
        ck_assert(!pthread_create(&t, NULL, truncate_and_restore, path));
        for (int i = 0; i < 300; i++) {
            struct zr_reader *r;
            struct zr_reader_options o = {.checksums = true};
            struct zr_error e;
            static uint64_t ids[200];
            for (size_t j = 0; j < COUNT(ids); j++)
                ids[j] = ((uint64_t)i * 31 + j * 13) % N;
            if (zr_reader_open(&r, at("%d%d00", kinds[k][0], kinds[k][1]), &o, &e))
                continue;
            for (int j = 0; j < 5; j++)
                ck_assert_int_ne(gather_ids(r, ids, COUNT(ids), &e), WRONG_BYTES);
            zr_reader_close(r);
        }
        atomic_store(&stop, true);
        pthread_join(t, NULL);
    }
}
END_TEST

/* ---------------------------------------------------------------- threads and processes */

struct caller {
    struct zr_reader *r;
    unsigned seed;
};

static void gather_often(struct zr_reader *r, unsigned seed, int rounds)
{
    uint64_t ids[300];
    for (int round = 0; round < rounds; round++) {
        for (size_t i = 0; i < COUNT(ids); i++)
            ids[i] = (uint64_t)rand_r(&seed) % N;
        if (gather_ids(r, ids, COUNT(ids), NULL))
            abort();
    }
}

static void *call_gather(void *arg)
{
    struct caller *c = arg;
    gather_often(c->r, c->seed, 12);
    return NULL;
}

static void start_callers(struct zr_reader *r, pthread_t *t, struct caller *c, int count)
{
    for (int i = 0; i < count; i++) {
        c[i] = (struct caller){r, (unsigned)i};
        ck_assert(!pthread_create(&t[i], NULL, call_gather, &c[i]));
    }
}

static void gather_from_8_threads(struct zr_reader *r)
{
    pthread_t t[8];
    struct caller c[8];
    start_callers(r, t, c, 8);
    for (int i = 0; i < 8; i++)
        pthread_join(t[i], NULL);
}

START_TEST(eight_threads_gather_on_one_handle)
{
    zr_set_thread_count(4);
    for_each_kind(gather_from_8_threads);
}
END_TEST

static void gather_in_children(struct zr_reader *r)
{
    pthread_t t[3];
    struct caller c[3];
    gather_often(r, 99, 1); /* the workers run */
    start_callers(r, t, c, 3);
    for (int i = 0; i < 4; i++) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            alarm(30);
            gather_often(r, (unsigned)i, 3);
            zr_reader_close(r);
            _exit(0);
        }
        ck_assert(child > 0 && waitpid(child, &status, 0) == child);
        ck_assert_msg(WIFEXITED(status) && !WEXITSTATUS(status), "child ended with %#x", status);
    }
    for (int i = 0; i < 3; i++)
        pthread_join(t[i], NULL);
    gather_often(r, 7, 1); /* the child's close took nothing from the parent */
}

START_TEST(a_child_forked_while_others_gather_gathers_too)
{
    skip_fork_of_threads();
    zr_set_thread_count(3);
    for_each_kind(gather_in_children);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        any_order_with_repeats,
        batches_of_every_small_size,
        ids_out_of_range_fail_before_anything_is_read,
        the_other_geometry_is_refused,
        a_destination_one_byte_too_small_is_refused,
        nothing_is_written_past_the_batch,
        a_plan_that_no_longer_fits_is_refused,
        a_frame_whose_size_disagrees_fails_by_name,
        the_first_bad_record_of_a_batch_is_the_one_named,
        the_checksum_option_catches_a_flipped_raw_byte,
        without_the_option_a_flipped_raw_byte_passes,
        raw_data_truncated_while_open_fails_those_records_alone,
        zstd_data_truncated_while_open_fails_those_records_alone,
        data_truncated_inside_a_record_and_a_page,
        a_store_deleted_while_open_still_reads,
        a_file_that_shrinks_and_grows_under_gathers_never_gives_wrong_bytes,
        eight_threads_gather_on_one_handle,
        a_child_forked_while_others_gather_gathers_too,
    };
    return run_tests("gather", tests, COUNT(tests), 120);
}
