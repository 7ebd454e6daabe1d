/* SPDX-License-Identifier: MIT
 *
 * Which records of a view that is read in no order may be pushed (fs/sweep.c).
 */
#include "sweep.h"

#include <check.h>

enum { VIEW = 7, COUNT = 8000, ENOUGH = 500, GRANT = 64, MOST = 256 };

/* Each position once, in no order. */
static uint64_t nth(uint64_t i)
{
    return i * 4999 % COUNT;
}

static struct sweep *read_some(uint64_t count)
{
    struct sweep *s = sweep_new();
    sweep_introduce(s, VIEW, COUNT);
    for (uint64_t i = 0; i < count; i++)
        ck_assert_int_eq(sweep_saw_read(s, VIEW, nth(i), 1, 42), i >= ENOUGH - 1);
    return s;
}

static uint64_t take_all(struct sweep *s, uint64_t *seen)
{
    struct sweep_part part;
    uint64_t positions[16], taken = 0;
    for (size_t n; (n = sweep_take(s, &part, positions, 16)); taken += n) {
        ck_assert_uint_le(n * part.record_nbytes, 32 << 10);
        ck_assert_uint_eq(part.view, VIEW);
        ck_assert_int_eq(part.cpu, 1);
        ck_assert_uint_eq(part.reader, 42);
        for (size_t i = 0; i < n; i++) {
            ck_assert_uint_lt(positions[i], COUNT);
            ck_assert_uint_eq(seen[positions[i]]++, 0);
        }
    }
    return taken;
}

START_TEST(a_good_part_read_once_starts_it)
{
    uint64_t seen[COUNT] = {0};
    struct sweep *s = read_some(ENOUGH - 1);
    ck_assert_uint_eq(take_all(s, seen), 0);
    ck_assert(sweep_saw_read(s, VIEW, nth(ENOUGH - 1), 1, 42));
    sweep_begin(s, VIEW, 2048);
    ck_assert_uint_eq(sweep_pending(s), GRANT);
    ck_assert_uint_eq(take_all(s, seen), GRANT);
    sweep_free(s);
}
END_TEST

START_TEST(each_read_grants_more_up_to_a_bound_until_all_is_given_but_markers)
{
    uint64_t seen[COUNT] = {0}, given = 0;
    struct sweep *s = read_some(ENOUGH);
    for (uint64_t i = 0; i < ENOUGH; i++)
        seen[nth(i)] = 1;
    sweep_begin(s, VIEW, 2048);
    for (int i = 0; i < 10; i++)
        sweep_saw_read(s, VIEW, COUNT - 1, 1, 42);
    ck_assert_uint_eq(sweep_pending(s), MOST);
    for (int i = 0; i < 200 && given < COUNT; i++) {
        given += take_all(s, seen);
        if (i < 40) /* more repeats end it */
            sweep_saw_read(s, VIEW, COUNT - 1, 1, 42);
    }
    ck_assert_uint_le(given, MOST + 41 * GRANT);
    ck_assert_uint_gt(given, 40 * GRANT);
    for (uint64_t i = 63; i < COUNT; i += 64)
        ck_assert_uint_le(seen[i], 1);
    sweep_free(s);
}
END_TEST

START_TEST(who_comes_back_does_not_go_through_all)
{
    uint64_t seen[COUNT] = {0};
    struct sweep *s = read_some(300);
    for (int round = 0; round < 3; round++)
        for (uint64_t i = 0; i < 300; i++)
            ck_assert(!sweep_saw_read(s, VIEW, nth(i), 1, 42));
    for (uint64_t i = 300; i < COUNT; i++)
        ck_assert(!sweep_saw_read(s, VIEW, nth(i), 1, 42));
    ck_assert_uint_eq(take_all(s, seen), 0);
    sweep_free(s);
}
END_TEST

START_TEST(what_memory_does_not_hold_is_not_swept)
{
    uint64_t seen[COUNT] = {0};
    struct sweep *s = read_some(ENOUGH);
    sweep_begin(s, VIEW, UINT64_C(1) << 40);
    ck_assert_uint_eq(sweep_pending(s), 0);
    ck_assert_uint_eq(take_all(s, seen), 0);
    sweep_free(s);
}
END_TEST

START_TEST(an_end_is_for_good)
{
    struct sweep *s = read_some(ENOUGH);
    sweep_begin(s, VIEW, 2048);
    sweep_end(s, VIEW);
    ck_assert(!sweep_saw_read(s, VIEW, nth(ENOUGH), 1, 42));
    ck_assert_uint_eq(sweep_pending(s), 0);
    sweep_free(s);
}
END_TEST

START_TEST(small_huge_and_too_many_views_are_left_alone)
{
    struct sweep *s = sweep_new();
    sweep_introduce(s, 1, 255);
    sweep_introduce(s, 2, UINT64_C(1) << 40);
    ck_assert(!sweep_knows(s, 1) && !sweep_knows(s, 2));
    for (uint64_t view = 10; view < 30; view++)
        sweep_introduce(s, view, COUNT);
    ck_assert(sweep_knows(s, 10) && !sweep_knows(s, 29)); /* those being read keep their place */
    sweep_free(s);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sweep");
    TCase *tests = tcase_create("all");
    tcase_add_test(tests, a_good_part_read_once_starts_it);
    tcase_add_test(tests, each_read_grants_more_up_to_a_bound_until_all_is_given_but_markers);
    tcase_add_test(tests, who_comes_back_does_not_go_through_all);
    tcase_add_test(tests, what_memory_does_not_hold_is_not_swept);
    tcase_add_test(tests, an_end_is_for_good);
    tcase_add_test(tests, small_huge_and_too_many_views_are_left_alone);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
