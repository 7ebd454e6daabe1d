/* SPDX-License-Identifier: MIT
 *
 * Which way to wait for requests is kept to (fs/ways.c).
 */
#include "ways.h"

#include "support.h"

enum { TRIAL = 4 * WAYS_EPOCH, STINT = 60 * WAYS_EPOCH, LONG_STINT = 600 * WAYS_EPOCH };

static struct ways ways;

/* As many requests as that, of which each takes what the way of its time costs; how many of
 * them were waited for by spinning. */
static unsigned answer(unsigned count, int64_t plain_nsec, int64_t spinning_nsec)
{
    unsigned spun = 0;
    for (unsigned i = 0; i < count; i++) {
        spun += ways.spins;
        ways_note(&ways, ways.spins ? spinning_nsec : plain_nsec);
    }
    return spun;
}

START_TEST(both_ways_are_tried_first)
{
    for (int spins = 0; spins < 2; spins++) {
        ways_init(&ways, spins);
        ck_assert_uint_eq(answer(TRIAL, 20000, 10000), spins ? TRIAL : 0);
        ck_assert_uint_eq(answer(TRIAL, 20000, 10000), spins ? 0 : TRIAL);
        ck_assert(ways.spins); /* the better one */
    }
}
END_TEST

START_TEST(the_better_way_is_kept_and_the_other_tried_again)
{
    ways_init(&ways, true);
    answer(2 * TRIAL, 10000, 12000);
    for (int i = 0; i < 10; i++) {
        ck_assert_uint_eq(answer(STINT, 10000, 12000), 0);
        ck_assert_uint_eq(answer(TRIAL, 10000, 12000), TRIAL);
    }
}
END_TEST

/* Twice in a row: by half and more. */
START_TEST(a_far_better_way_is_kept_for_longer)
{
    ways_init(&ways, false);
    answer(2 * TRIAL, 30000, 10000);
    ck_assert_uint_eq(answer(STINT + TRIAL, 30000, 10000), STINT);
    for (int i = 0; i < 3; i++)
        ck_assert_uint_eq(answer(LONG_STINT + TRIAL, 30000, 10000), LONG_STINT);
}
END_TEST

START_TEST(spinning_has_to_be_worth_it)
{
    ways_init(&ways, true);
    answer(2 * TRIAL, 10000, 9500);
    ck_assert(!ways.spins);
    ways_init(&ways, true);
    answer(2 * TRIAL, 10000, 9000);
    ck_assert(ways.spins);
}
END_TEST

START_TEST(what_becomes_better_is_found)
{
    ways_init(&ways, true);
    answer(2 * LONG_STINT, 30000, 10000);
    ck_assert_uint_lt(answer(2 * LONG_STINT, 10000, 30000), LONG_STINT + 2 * TRIAL);
    ck_assert(!ways.spins);
}
END_TEST

/* The last epochs of a stint count, not its best ones. */
START_TEST(what_becomes_worse_is_found)
{
    ways_init(&ways, false);
    answer(2 * TRIAL, 12000, 10000);
    answer(STINT / 2, 12000, 10000);
    ck_assert_uint_eq(answer(STINT / 2 + TRIAL, 12000, 20000), STINT / 2);
    ck_assert(!ways.spins);
}
END_TEST

/* A disk, or somebody else's turn, in 8 of 32 requests. */
START_TEST(some_slow_requests_do_not_matter)
{
    ways_init(&ways, true);
    for (unsigned i = 0; i < 2 * TRIAL; i++) {
        int64_t nsec = ways.spins ? 8000 : 10000;
        ways_note(&ways, i % 4 == 0 && ways.spins ? 1000000 : nsec);
    }
    ck_assert(ways.spins);
}
END_TEST

START_TEST(requests_that_come_late_are_counted_in_a_row)
{
    ways_init(&ways, true);
    answer(WAYS_EPOCH, 10000, 10000); /* before that nothing is known */
    answer(1, 10000, 10000);
    answer(3, 40000, 40000);
    ck_assert_uint_eq(ways.slow_count, 3);
    answer(1, 20000, 20000);
    ck_assert_uint_eq(ways.slow_count, 0);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        both_ways_are_tried_first,
        the_better_way_is_kept_and_the_other_tried_again,
        a_far_better_way_is_kept_for_longer,
        spinning_has_to_be_worth_it,
        what_becomes_better_is_found,
        what_becomes_worse_is_found,
        some_slow_requests_do_not_matter,
        requests_that_come_late_are_counted_in_a_row,
    };
    return run_tests("fs_ways", tests, COUNT(tests), 60);
}
