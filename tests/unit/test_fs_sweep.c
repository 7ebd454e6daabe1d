/* SPDX-License-Identifier: MIT
 *
 * Who is taken for a reader of all, and how much is pushed for it (fs/sweep.c).
 */
#include "sweep.h"

#include <check.h>
#include <stdlib.h>

enum { VIEW = 7, COUNT = 8000, SHARE = COUNT / 16, RECORD_NBYTES = 2048, MOST = 256 };

static struct sweep *sweep;

static void setup(void)
{
    sweep = sweep_new();
    ck_assert_ptr_nonnull(sweep);
    sweep_introduce(sweep, VIEW, COUNT);
}

static void teardown(void)
{
    sweep_free(sweep);
}

/* The k-th of the view's records in no order, each once. */
static uint64_t shuffled(uint64_t k)
{
    return k * 4799 % COUNT;
}

static bool reads(uint64_t position)
{
    return sweep_saw_read(sweep, VIEW, position, 1, 42);
}

static size_t take_all(uint64_t *positions)
{
    struct sweep_part part;
    size_t n, total = 0;
    while ((n = sweep_take(sweep, &part, positions + total, 16)) > 0) {
        ck_assert_uint_eq(part.view, VIEW);
        ck_assert_int_eq(part.cpu, 1);
        ck_assert_uint_eq(part.reader, 42);
        total += n;
    }
    return total;
}

/* Up to the READ with which a sweep may begin. */
static void read_a_share(void)
{
    for (uint64_t k = 0; k + 1 < SHARE; k++)
        ck_assert(!reads(shuffled(k)));
    ck_assert(reads(shuffled(SHARE - 1)));
}

START_TEST(a_sixteenth_without_repeats_begins_it)
{
    uint64_t positions[COUNT];
    read_a_share();
    ck_assert_uint_eq(take_all(positions), 0); /* not before it is told to */
    sweep_begin(sweep, VIEW, RECORD_NBYTES);
    ck_assert_uint_gt(take_all(positions), 0);
}
END_TEST

START_TEST(a_few_records_of_a_small_store_do_not)
{
    sweep_introduce(sweep, VIEW + 1, 1000);
    for (uint64_t k = 0; k < 255; k++)
        ck_assert(!sweep_saw_read(sweep, VIEW + 1, k * 7 % 1000, 1, 42));
    ck_assert(sweep_saw_read(sweep, VIEW + 1, 999, 1, 42));
    sweep_introduce(sweep, VIEW + 2, 255);
    ck_assert(!sweep_knows(sweep, VIEW + 2));
}
END_TEST

START_TEST(who_comes_back_is_left_alone)
{
    for (uint64_t k = 0; k < 65; k++) {
        reads(shuffled(k));
        reads(shuffled(k));
    }
    for (uint64_t k = 65; k < COUNT; k++)
        ck_assert(!reads(shuffled(k)));
}
END_TEST

START_TEST(what_does_not_fit_into_memory_is_left_alone)
{
    uint64_t positions[COUNT];
    read_a_share();
    sweep_begin(sweep, VIEW, UINT64_C(1) << 50);
    ck_assert(!reads(shuffled(SHARE)));
    ck_assert_uint_eq(take_all(positions), 0);
}
END_TEST

START_TEST(only_reads_grant_more)
{
    uint64_t positions[COUNT];
    read_a_share();
    sweep_begin(sweep, VIEW, RECORD_NBYTES);
    take_all(positions);
    ck_assert_uint_eq(take_all(positions), 0); /* the reader stopped */
    for (uint64_t k = SHARE; k < SHARE + 20; k++)
        reads(shuffled(k));
    ck_assert_uint_le(sweep_pending(sweep), MOST);
    size_t n = take_all(positions);
    ck_assert_uint_gt(n, 0);
    ck_assert_uint_le(n, MOST);
}
END_TEST

/* Read or pushed, each once, but for the markers. */
START_TEST(all_comes_to_be_read_or_pushed_once)
{
    static unsigned char seen[COUNT];
    static uint64_t positions[COUNT];
    uint64_t k = SHARE;
    read_a_share();
    for (uint64_t i = 0; i < SHARE; i++)
        seen[shuffled(i)]++;
    sweep_begin(sweep, VIEW, RECORD_NBYTES);
    for (; k < COUNT; k++) {
        size_t n = take_all(positions);
        for (size_t i = 0; i < n; i++) {
            ck_assert_uint_eq(seen[positions[i]]++, 0);
            ck_assert_uint_ne(positions[i] % 64, 63);
        }
        if (seen[shuffled(k)])
            continue; /* pushed: a silent read */
        seen[shuffled(k)]++;
        reads(shuffled(k));
    }
    for (uint64_t i = 0; i < COUNT; i++)
        ck_assert_uint_eq(seen[i], 1);
    ck_assert_uint_eq(sweep_pending(sweep), 0);
}
END_TEST

START_TEST(an_ended_one_stays_ended)
{
    uint64_t positions[COUNT];
    read_a_share();
    sweep_begin(sweep, VIEW, RECORD_NBYTES);
    sweep_end(sweep, VIEW);
    reads(shuffled(SHARE));
    ck_assert_uint_eq(take_all(positions), 0);
    ck_assert(!sweep_saw_read(sweep, VIEW, COUNT, 1, 42)); /* no such record */
    ck_assert(!sweep_saw_read(sweep, VIEW + 1, 0, 1, 42)); /* no such view */
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sweep");
    TCase *tests = tcase_create("all");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, a_sixteenth_without_repeats_begins_it);
    tcase_add_test(tests, a_few_records_of_a_small_store_do_not);
    tcase_add_test(tests, who_comes_back_is_left_alone);
    tcase_add_test(tests, what_does_not_fit_into_memory_is_left_alone);
    tcase_add_test(tests, only_reads_grant_more);
    tcase_add_test(tests, all_comes_to_be_read_or_pushed_once);
    tcase_add_test(tests, an_ended_one_stays_ended);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
