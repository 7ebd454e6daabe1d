/* SPDX-License-Identifier: MIT
 * append.c: raw rows in windows and in writes are the same store. */
#include "windows.h"

#define BLOCK ZRI_TAIL_BLOCK_NBYTES
#define FIRST ((uint64_t)52429) /* rows: 10 MiB and a part of one */
#define SECOND ((uint64_t)31457)
#define NBYTES ((FIRST + SECOND) * ROW_NBYTES)

static void fill_store(const char *path, unsigned threads)
{
    struct zr_writer_options o = options_for(ZR_DENSE, ZR_RAW);
    struct zr_writer *w;
    zr_set_thread_count(threads);
    expect_ok(zr_writer_create(&w, path, &o, &err));
    append_rows(w, 0, FIRST);
    append_rows(w, FIRST, SECOND); /* from the middle of a block, and of a row */
    expect_ok(zr_writer_close(w, &err));
}

static void expect_store(const char *path)
{
    plan.active = false;
    struct zr_reader *r = open_with(path, ZR_ACCESS_MAP, true);
    check_all_records(r, FIRST + SECOND);
    ck_assert_ptr_null(zr_reader_warning(r));
    zr_reader_close(r);
    ck_assert_uint_eq(file_nbytes(at("%s/data.zr", strrchr(path, '/') + 1)), NBYTES);
}

START_TEST(windows_hold_what_writes_would)
{
    plan_windows(FINE);
    fill_store(at("s"), 2);
    ck_assert_uint_ge(plan.windows, 1);
    ck_assert_uint_le(plan.written, NBYTES + 2 * MIB - BLOCK); /* table and sidecar too */
    expect_store(at("s"));
}
END_TEST

/* Once in an append: windows are not tried again in it after that. */
static void fill_with_windows_that_fail(enum window how)
{
    plan_windows(how);
    fill_store(at("s-%d", how), 2);
    ck_assert_uint_ge(plan.windows, 1);
    ck_assert_uint_le(plan.windows, 2);
    ck_assert_uint_ge(plan.written, NBYTES);
    expect_store(at("s-%d", how));
}

START_TEST(what_cannot_be_mapped_is_written)
{
    fill_with_windows_that_fail(NO_MAPPING);
    fill_with_windows_that_fail(NO_PAGES);
}
END_TEST

START_TEST(what_a_window_loses_is_written)
{
    plan_windows(LOST_PAGES);
    fill_store(at("s"), 2);
    ck_assert_uint_ge(plan.windows, 1);
    ck_assert_uint_ge(plan.written, NBYTES);
    expect_store(at("s"));
}
END_TEST

START_TEST(windows_in_small_pages_are_not_used_again)
{
    plan_windows(SMALL_PAGES);
    fill_store(at("s"), 2);
    ck_assert_uint_ge(plan.windows, 1);
    ck_assert_uint_le(plan.windows, 2);
    expect_store(at("s"));
}
END_TEST

START_TEST(nothing_is_mapped_without_reserved_space)
{
    plan_windows(FINE);
    plan.meets = false;
    plan.fallocate_errno = EOPNOTSUPP;
    fill_store(at("s"), 2);
    ck_assert_uint_eq(plan.windows, 0);
    expect_store(at("s"));
}
END_TEST

START_TEST(nothing_is_mapped_on_other_filesystems_or_by_one_thread)
{
    plan_windows(FINE);
    plan.meets = false;
    fill_store(at("one"), 1);
    plan.fs_type = TMPFS_MAGIC;
    fill_store(at("other"), 2);
    ck_assert_uint_eq(plan.windows, 0);
    expect_store(at("one"));
    expect_store(at("other"));
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
    return run_tests("append_windows", tests, COUNT(tests), 120);
}
