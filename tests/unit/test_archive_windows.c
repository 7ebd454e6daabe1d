/* SPDX-License-Identifier: MIT
 * archive_writer.c: large payloads in windows and in writes are the same file. */
#include "windows.h"

#define NBYTES (30 * MIB) /* some whole pieces of 4 MiB */

static uint8_t *bytes;

static int save(const char *path, unsigned threads, struct zr_error *err)
{
    const struct zr_archive_source sources[] = {
        {.name = "meta.json", .data = "{}", .nbytes = 2},
        {.name = "x.memmap", .data = bytes, .nbytes = NBYTES, .is_payload = true},
    };
    const struct zr_archive_save_options o = {.thread_count = threads, .time_sec = 1700000000};
    return zr_archive_save(path, sources, COUNT(sources), &o, err);
}

static void prepare(void)
{
    zr_set_thread_count(2);
    bytes = malloc(NBYTES);
    ck_assert_ptr_nonnull(bytes);
    for (size_t i = 0; i < NBYTES; i += 8)
        memcpy(bytes + i, &(uint64_t){i * 0x9E3779B97F4A7C15u}, 8);
    ck_assert_int_eq(save(at("plain.tdz"), 1, NULL), ZR_OK);
    plan_windows(FINE);
}

static void check_same(void)
{
    size_t n, m;
    plan.active = false;
    uint8_t *a = slurp(at("plain.tdz"), &n), *b = slurp(at("a.tdz"), &m);
    ck_assert_uint_eq(n, m);
    ck_assert(memcmp(a, b, n) == 0);
    free(a);
    free(b);
    free(bytes);
}

START_TEST(windows_hold_what_writes_would)
{
    prepare();
    ck_assert_int_eq(save(at("a.tdz"), 2, NULL), ZR_OK);
    ck_assert_uint_le(plan.written, NBYTES - 4 * MIB + 4096);
    check_same();
}
END_TEST

/* Once: windows are not tried again after that. */
static void save_with_windows_that_fail(enum window how)
{
    prepare();
    plan.window = how;
    ck_assert_int_eq(save(at("a.tdz"), 2, NULL), ZR_OK);
    ck_assert_uint_eq(plan.windows, 1);
    ck_assert_uint_ge(plan.written, NBYTES);
    check_same();
}

START_TEST(what_cannot_be_mapped_is_written)
{
    save_with_windows_that_fail(NO_MAPPING);
    save_with_windows_that_fail(NO_PAGES);
}
END_TEST

/* A disk that fails between the making of a page and the copy into it. */
START_TEST(what_a_window_loses_is_written)
{
    prepare();
    plan.window = LOST_PAGES;
    ck_assert_int_eq(save(at("a.tdz"), 2, NULL), ZR_OK);
    ck_assert_uint_ge(plan.windows, 1);
    ck_assert_uint_ge(plan.written, NBYTES);
    check_same();
}
END_TEST

START_TEST(windows_in_small_pages_are_not_used_again)
{
    prepare();
    plan.window = SMALL_PAGES;
    ck_assert_int_eq(save(at("a.tdz"), 2, NULL), ZR_OK);
    ck_assert_uint_eq(plan.windows, 1);
    check_same();
}
END_TEST

START_TEST(nothing_is_mapped_without_reserved_space)
{
    struct zr_error error = {0};
    prepare();
    plan.meets = false;
    plan.fallocate_errno = EOPNOTSUPP;
    ck_assert_int_eq(save(at("a.tdz"), 2, NULL), ZR_OK);
    plan.fallocate_errno = ENOSPC;
    ck_assert_int_eq(save(at("b.tdz"), 2, &error), ZR_E_NO_SPACE);
    ck_assert_ptr_nonnull(strstr(error.message, "b.tdz"));
    ck_assert_uint_eq(entry_count(test_dir), 2);
    ck_assert_uint_eq(plan.windows, 0);
    check_same();
}
END_TEST

START_TEST(nothing_is_mapped_on_other_filesystems_or_by_one_thread)
{
    prepare();
    plan.meets = false;
    ck_assert_int_eq(save(at("a.tdz"), 1, NULL), ZR_OK);
    plan.fs_type = TMPFS_MAGIC;
    ck_assert_int_eq(save(at("a.tdz"), 2, NULL), ZR_OK);
    ck_assert_uint_eq(plan.windows, 0);
    check_same();
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        windows_hold_what_writes_would,
        what_cannot_be_mapped_is_written,
        what_a_window_loses_is_written,
        windows_in_small_pages_are_not_used_again,
        nothing_is_mapped_without_reserved_space,
        nothing_is_mapped_on_other_filesystems_or_by_one_thread,
    };
    return run_tests("archive_windows", tests, COUNT(tests), 120);
}
