/* SPDX-License-Identifier: MIT
 *
 * The budget of stores that are mapped (fs/mapped.c).
 */
#include "mapped.h"

#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[] = "/tmp/zrecord-mapped-XXXXXX";

static void set_file(const char *name, off_t nbytes)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, nbytes), 0);
    close(fd);
}

static void make_folder(void)
{
    strcpy(folder + strlen(folder) - 6, "XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    set_file("meta.zr", 5000);
    set_file("data.zr", 70000);
}

static void remove_folder(void)
{
    const char *const names[] = {"meta.zr", "data.zr", "side.zr"};
    char path[256];
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

static void check_choice(uint64_t had, uint64_t taken, int access, bool maps_records)
{
    _Atomic uint64_t left = had;
    struct zr_reader_options options = {.checksums = true};
    ck_assert_uint_eq(mapped_choose(&left, folder, &options), taken);
    ck_assert_uint_eq(left, had - taken);
    ck_assert_int_eq(options.access, access);
    ck_assert(options.checksums);
    if (access == ZR_ACCESS_MAP)
        ck_assert_int_eq(options.mapped_nbytes == 0, maps_records);
}

START_TEST(as_much_is_mapped_as_the_budget_holds)
{
    check_choice(75000, 75000, ZR_ACCESS_MAP, true);
    check_choice(74999, 5000, ZR_ACCESS_MAP, false);
    check_choice(4999, 0, ZR_ACCESS_READ, false);
}
END_TEST

START_TEST(a_sidecar_counts_among_the_tables)
{
    set_file("side.zr", 300);
    check_choice(75300, 75300, ZR_ACCESS_MAP, true);
    check_choice(75299, 5300, ZR_ACCESS_MAP, false);
    check_choice(5299, 0, ZR_ACCESS_READ, false);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("mapped");
    TCase *tests = tcase_create("all");
    tcase_add_checked_fixture(tests, make_folder, remove_folder);
    tcase_add_test(tests, as_much_is_mapped_as_the_budget_holds);
    tcase_add_test(tests, a_sidecar_counts_among_the_tables);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
