/* SPDX-License-Identifier: MIT
 *
 * The budget of stores that are mapped (fs/mapped.c).
 */
#include "mapped.h"

#include "support.h"

static void set_file(const char *name, uint64_t nbytes)
{
    spit(at("%s", name), "", 0);
    cut(at("%s", name), nbytes);
}

/* Of a table, and of records. */
static void make_files(void)
{
    set_file("meta.zr", 5000);
    set_file("data.zr", 70000);
}

static void check_choice(uint64_t had, uint64_t taken, int access, bool maps_records)
{
    _Atomic uint64_t left = had;
    struct zr_reader_options options = {.checksums = true};
    ck_assert_uint_eq(mapped_choose(&left, test_dir, &options), taken);
    ck_assert_uint_eq(left, had - taken);
    ck_assert_int_eq(options.access, access);
    ck_assert(options.checksums);
    if (access == ZR_ACCESS_MAP)
        ck_assert_int_eq(options.mapped_nbytes == 0, maps_records);
}

START_TEST(as_much_is_mapped_as_the_budget_holds)
{
    make_files();
    check_choice(75000, 75000, ZR_ACCESS_MAP, true);
    check_choice(74999, 5000, ZR_ACCESS_MAP, false);
    check_choice(4999, 0, ZR_ACCESS_READ, false);
}
END_TEST

START_TEST(a_sidecar_counts_among_the_tables)
{
    make_files();
    set_file("side.zr", 300);
    check_choice(75300, 75300, ZR_ACCESS_MAP, true);
    check_choice(75299, 5300, ZR_ACCESS_MAP, false);
    check_choice(5299, 0, ZR_ACCESS_READ, false);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        as_much_is_mapped_as_the_budget_holds,
        a_sidecar_counts_among_the_tables,
    };
    return run_tests("fs_mapped", tests, COUNT(tests), 60);
}
