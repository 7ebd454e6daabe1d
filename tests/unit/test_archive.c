/* SPDX-License-Identifier: MIT
 *
 * Parts of archives that only C sees: CRC arithmetic, layout, options, fills that
 * fail, concurrent readers (engine/zip*.c, engine/archive*.c).
 */
#include "support.h"

#include "archive.h"

static const char plain_meta[] =
    "{\"x\": {\"device\": \"cpu\", \"shape\": [5], \"dtype\": \"torch.float32\", "
    "\"is_nested\": false}, \"shape\": [], \"device\": \"cpu\", "
    "\"_type\": \"<class 'tensordict._td.TensorDict'>\", \"_format_version\": 1}";

static struct zr_archive_source text_source(const char *name, const char *text)
{
    return (struct zr_archive_source){.name = name, .nbytes = strlen(text), .data = text};
}

START_TEST(crcs_of_parts_join)
{
    uint8_t bytes[5000];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * i >> 3);
    uint32_t whole = zri_crc32(0, bytes, sizeof bytes);
    for (size_t cut = 0; cut <= sizeof bytes; cut += 37) {
        uint32_t a = zri_crc32(0, bytes, cut), b = zri_crc32(0, bytes + cut, sizeof bytes - cut);
        ck_assert_uint_eq(zri_crc32_join(a, b, sizeof bytes - cut), whole);
    }
    ck_assert_uint_eq(zri_crc32(0, "123456789", 9), 0xcbf43926);
}
END_TEST

START_TEST(the_crc_of_zeros_is_arithmetic)
{
    static const uint8_t zeros[100000];
    for (size_t n = 0; n <= sizeof zeros; n = n * 3 + 1)
        ck_assert_uint_eq(zri_crc32_zeros(n), zri_crc32(0, zeros, n));
}
END_TEST

START_TEST(every_method_round_trips_any_size)
{
    static const int methods[] = {ZRI_ZIP_DEFLATE, ZRI_ZIP_BZIP2, ZRI_ZIP_LZMA};
    static uint8_t bytes[70000], back[70000];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i % 251 ^ i >> 9);
    for (size_t m = 0; m < COUNT(methods); m++)
        for (size_t n = 0; n <= sizeof bytes; n = n * 5 + 1) {
            void *packed;
            size_t packed_nbytes;
            ck_assert_ptr_null(
                zri_deflate(methods[m], -1, bytes, n, &packed, &packed_nbytes, NULL));
            ck_assert_ptr_null(zri_inflate(methods[m], packed, packed_nbytes, back, n, NULL));
            ck_assert(!memcmp(bytes, back, n));
            if (n)
                ck_assert_ptr_nonnull(
                    zri_inflate(methods[m], packed, packed_nbytes, back, n - 1, NULL));
            ck_assert_ptr_nonnull(
                zri_inflate(methods[m], packed, packed_nbytes - 1, back, n, NULL));
            free(packed);
        }
}
END_TEST

static int failing_fill(void *ctx, uint64_t off, void *buf, size_t nbytes, struct zr_error *err)
{
    (void)off, (void)buf, (void)nbytes;
    atomic_fetch_add((atomic_int *)ctx, 1);
    return zri_fail(err, ZR_E_CORRUPT, "the source is damaged");
}

START_TEST(a_failing_source_leaves_nothing)
{
    atomic_int calls = 0;
    struct zr_error err;
    struct zr_archive_source sources[] = {text_source("meta.json", plain_meta),
                                          {.name = "x.memmap",
                                           .nbytes = 9 << 20,
                                           .fill = failing_fill,
                                           .fill_ctx = &calls,
                                           .is_payload = true}};
    ck_assert_int_eq(zr_archive_save(at("a.tdz"), sources, 2, NULL, &err), ZR_E_CORRUPT);
    ck_assert_str_eq(err.message, "the source is damaged");
    ck_assert(calls > 0 && !exists(at("a.tdz")));
}
END_TEST

START_TEST(names_and_options_are_checked)
{
    struct zr_error err;
    static const char *const bad[] = {"/x", "../x", "a/../x", "a//x", "./x", "x/", "", "\xff"};
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct zr_archive_source s = text_source(bad[i], "x");
        ck_assert_msg(zr_archive_save(at("a.tdz"), &s, 1, NULL, &err) == ZR_E_INVALID, "%s",
                      bad[i]);
    }
    struct zr_archive_source twice[] = {text_source("x", "1"), text_source("x", "2")};
    ck_assert_int_eq(zr_archive_save(at("a.tdz"), twice, 2, NULL, &err), ZR_E_INVALID);
    struct zr_archive_save_options o = {.method = "rar"};
    ck_assert_int_eq(zr_archive_save(at("a.tdz"), twice, 1, &o, &err), ZR_E_INVALID);
    ck_assert(!exists(at("a.tdz")));
}
END_TEST

START_TEST(no_member_lies_below_another)
{
    struct zr_error err;
    static const char *const names[][4] = {
        {"x", "x/y", "b", "c"}, {"a/x/b/c", "d", "a/y", "a/x"}, {"a/b", "a/c", "a/b/d/e", "a/z"}};
    for (size_t i = 0; i < COUNT(names); i++) {
        struct zr_archive_source sources[4];
        for (size_t k = 0; k < 4; k++)
            sources[k] = text_source(names[i][k], "x");
        ck_assert_int_eq(zr_archive_save(at("a.tdz"), sources, 4, NULL, &err), ZR_E_INVALID);
        ck_assert_ptr_nonnull(strstr(err.message, "lies below another one"));
    }
    struct zr_archive_source fine[] = {text_source("a/b", "1"), text_source("a/bc/d", "2"),
                                       text_source("ab/c", "3"), text_source("b", "4")};
    ck_assert_int_eq(zr_archive_save(at("a.tdz"), fine, COUNT(fine), NULL, &err), ZR_OK);
}
END_TEST

START_TEST(what_is_saved_is_found_and_mapped)
{
    static const float x[] = {1, 2, 3, 4, 5};
    struct zr_archive *a;
    struct zr_error err;
    const struct zr_archive_tree *tree;
    struct zr_archive_source sources[] = {
        text_source("meta.json", plain_meta),
        {.name = "x.memmap", .nbytes = sizeof x, .data = x, .is_payload = true}};
    ck_assert_int_eq(zr_archive_save(at("a.tdz"), sources, 2, NULL, &err), ZR_OK);
    ck_assert_int_eq(zr_archive_open(&a, at("a.tdz"), ZR_ARCHIVE_COPY, &err), ZR_OK);
    ck_assert_int_eq(zr_archive_tree(a, NULL, 0, &tree, &err), ZR_OK);
    ck_assert_uint_eq(tree->leaf_count, 1);
    ck_assert(!memcmp(tree->leaves[0].data, x, sizeof x));
    ck_assert_uint_eq((uintptr_t)tree->leaves[0].data % 64, 0);
    zr_archive_tree_free(tree);
    const char *const keys[] = {"x"};
    ck_assert_int_eq(zr_archive_tree(a, keys, 1, &tree, &err), ZR_OK);
    ck_assert(tree->level_count == 0 && tree->leaf_count == 1);
    zr_archive_tree_free(tree);
    uint64_t index;
    ck_assert_int_eq(zr_archive_find(a, "y.memmap", &index, &err), ZR_E_NOT_FOUND);
    ck_assert(zr_archive_intact(a));
    zr_archive_close(a);
}
END_TEST

/* Two threads meet in on_read, or one of them waits for ever. */
static pthread_barrier_t meeting;
static pthread_t readers[2];
static atomic_uint reader_count;
static _Thread_local bool has_met;

static void meet(size_t index)
{
    (void)index;
    if (has_met)
        return;
    has_met = true;
    readers[atomic_fetch_add(&reader_count, 1)] = pthread_self();
    pthread_barrier_wait(&meeting);
}

static pthread_t lone_reader;
static void stay_alone(size_t index)
{
    (void)index;
    ck_assert(pthread_equal(pthread_self(), lone_reader));
}

START_TEST(members_are_inflated_by_as_many_threads_as_asked)
{
    enum { COUNT_OF_LEAVES = 8, LEAF_NBYTES = 128 << 10 };
    static uint8_t zeros[LEAF_NBYTES], out[COUNT_OF_LEAVES][LEAF_NBYTES];
    char names[COUNT_OF_LEAVES][16];
    struct zr_archive_source sources[COUNT_OF_LEAVES + 1] = {text_source("meta.json", plain_meta)};
    for (size_t i = 0; i < COUNT_OF_LEAVES; i++) {
        snprintf(names[i], sizeof names[i], "x%zu.memmap", i);
        sources[i + 1] = (struct zr_archive_source){
            .name = names[i], .nbytes = LEAF_NBYTES, .data = zeros, .is_payload = true};
    }
    const struct zr_archive_save_options options = {.method = "deflate"};
    struct zr_archive *a;
    struct zr_error err;
    zr_set_thread_count(2);
    ck_assert_int_eq(zr_archive_save(at("t.tdz"), sources, COUNT(sources), &options, &err), ZR_OK);
    ck_assert_int_eq(zr_archive_open(&a, at("t.tdz"), ZR_ARCHIVE_COPY, &err), ZR_OK);
    const struct zr_archive_read_options one = {.thread_count = 1}, two = {.thread_count = 2};
    struct zr_archive_copy copies[COUNT_OF_LEAVES];
    for (size_t i = 0; i < COUNT_OF_LEAVES; i++) {
        copies[i].out = out[i];
        ck_assert_int_eq(zr_archive_find(a, names[i], &copies[i].index, &err), ZR_OK);
    }
    pthread_barrier_init(&meeting, NULL, 2);
    a->on_read = meet;
    ck_assert_int_eq(zr_archive_read(a, copies, COUNT(copies), &two, &err), ZR_OK);
    ck_assert_uint_eq(atomic_load(&reader_count), 2);
    ck_assert(!pthread_equal(readers[0], readers[1]));
    lone_reader = pthread_self();
    a->on_read = stay_alone;
    ck_assert_int_eq(zr_archive_read(a, copies, COUNT(copies), &one, &err), ZR_OK);
    pthread_barrier_destroy(&meeting);
    zr_archive_close(a);
    zr_set_thread_count(0);
}
END_TEST

START_TEST(an_array_is_a_store_without_files)
{
    static const int32_t rows[] = {0, 1, 2, 3, 4, 5};
    const uint64_t shape[] = {2}, ids[] = {2, 0};
    int32_t out[4];
    struct zr_reader *r;
    struct zr_error err;
    ck_assert_int_eq(zr_reader_open_array(&r, "<i4", 1, shape, 3, rows, &err), ZR_OK);
    ck_assert_int_eq(zr_gather_dense(r, ids, 2, out, sizeof out, &err), ZR_OK);
    ck_assert(out[0] == 4 && out[1] == 5 && out[2] == 0 && out[3] == 1);
    zr_reader_close(r);
    const uint64_t none[] = {0};
    ck_assert_int_lt(zr_reader_open_array(&r, "<i4", 1, none, 3, rows, &err), 0);
    ck_assert_int_lt(zr_reader_open_array(&r, "<i4", 1, shape, UINT64_MAX / 4, rows, &err), 0);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        crcs_of_parts_join,
        the_crc_of_zeros_is_arithmetic,
        every_method_round_trips_any_size,
        a_failing_source_leaves_nothing,
        names_and_options_are_checked,
        no_member_lies_below_another,
        what_is_saved_is_found_and_mapped,
        members_are_inflated_by_as_many_threads_as_asked,
        an_array_is_a_store_without_files,
    };
    return run_tests("archive", tests, COUNT(tests), 60);
}
