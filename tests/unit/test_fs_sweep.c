/* SPDX-License-Identifier: MIT
 *
 * Who is taken for a reader of all, and how much is pushed for it (fs/sweep.c).
 */
#include "sweep.h"

#include "fs_views.h"

enum { SHARE = VIEW_COUNT / 16, RECORD_NBYTES = 2048, MOST = 256 };

static struct sweep *sweep;

static void new_sweep(void)
{
    sweep_free(sweep);
    sweep = sweep_new();
    ck_assert_ptr_nonnull(sweep);
    sweep_introduce(sweep, PLAIN, VIEW_COUNT);
}

static bool reads(uint64_t position)
{
    return sweep_saw_read(sweep, PLAIN, position, CPU, READER);
}

static size_t take_all(uint64_t *positions)
{
    struct sweep_part part;
    size_t n, total = 0;
    while ((n = sweep_take(sweep, &part, positions + total, 16)) > 0) {
        ck_assert_uint_eq(part.view, PLAIN);
        ck_assert_int_eq(part.cpu, CPU);
        ck_assert_uint_eq(part.reader, READER);
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
    uint64_t positions[VIEW_COUNT];
    new_sweep();
    read_a_share();
    ck_assert_uint_eq(take_all(positions), 0); /* not before it is told to */
    sweep_begin(sweep, PLAIN, RECORD_NBYTES);
    ck_assert_uint_gt(take_all(positions), 0);
}
END_TEST

START_TEST(a_few_records_of_a_small_store_do_not)
{
    new_sweep();
    sweep_introduce(sweep, PLAIN + 1, 1000);
    for (uint64_t k = 0; k < 255; k++)
        ck_assert(!sweep_saw_read(sweep, PLAIN + 1, k * 7 % 1000, CPU, READER));
    ck_assert(sweep_saw_read(sweep, PLAIN + 1, 999, CPU, READER));
    sweep_introduce(sweep, PLAIN + 2, 255);
    ck_assert(!sweep_knows(sweep, PLAIN + 2));
}
END_TEST

START_TEST(who_comes_back_is_left_alone)
{
    new_sweep();
    for (uint64_t k = 0; k < 65; k++) {
        reads(shuffled(k));
        reads(shuffled(k));
    }
    for (uint64_t k = 65; k < VIEW_COUNT; k++)
        ck_assert(!reads(shuffled(k)));
}
END_TEST

START_TEST(what_does_not_fit_into_memory_is_left_alone)
{
    uint64_t positions[VIEW_COUNT];
    new_sweep();
    read_a_share();
    sweep_begin(sweep, PLAIN, UINT64_C(1) << 50);
    ck_assert(!reads(shuffled(SHARE)));
    ck_assert_uint_eq(take_all(positions), 0);
}
END_TEST

START_TEST(only_reads_grant_more)
{
    uint64_t positions[VIEW_COUNT];
    new_sweep();
    read_a_share();
    sweep_begin(sweep, PLAIN, RECORD_NBYTES);
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
    static unsigned char seen[VIEW_COUNT];
    static uint64_t positions[VIEW_COUNT];
    uint64_t k = SHARE;
    new_sweep();
    read_a_share();
    for (uint64_t i = 0; i < SHARE; i++)
        seen[shuffled(i)]++;
    sweep_begin(sweep, PLAIN, RECORD_NBYTES);
    for (; k < VIEW_COUNT; k++) {
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
    for (uint64_t i = 0; i < VIEW_COUNT; i++)
        ck_assert_uint_eq(seen[i], 1);
    ck_assert_uint_eq(sweep_pending(sweep), 0);
}
END_TEST

START_TEST(an_ended_one_stays_ended)
{
    uint64_t positions[VIEW_COUNT];
    new_sweep();
    read_a_share();
    sweep_begin(sweep, PLAIN, RECORD_NBYTES);
    sweep_end(sweep, PLAIN);
    reads(shuffled(SHARE));
    ck_assert_uint_eq(take_all(positions), 0);
    ck_assert(!sweep_saw_read(sweep, PLAIN, VIEW_COUNT, CPU, READER)); /* no such record */
    ck_assert(!sweep_saw_read(sweep, PLAIN + 1, 0, CPU, READER));      /* no such view */
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        a_sixteenth_without_repeats_begins_it,
        a_few_records_of_a_small_store_do_not,
        who_comes_back_is_left_alone,
        what_does_not_fit_into_memory_is_left_alone,
        only_reads_grant_more,
        all_comes_to_be_read_or_pushed_once,
        an_ended_one_stays_ended,
    };
    return run_tests("fs_sweep", tests, COUNT(tests), 60);
}
