/* SPDX-License-Identifier: MIT
 *
 * Which piece of work a pushing thread takes next (fs/plan.c): for a stream, a sweep or a job,
 * and that what came to nothing leaves no traces in it.
 */
#include "plan.h"

#include "fs_views.h"
#include "jobs.h"

enum {
    CACHE_NBYTES = 64 << 20,
    STEPS = 5,               /* READs until a stream is followed */
    SHARE = VIEW_COUNT / 16, /* READs until a sweep begins */
    SWEEPER_CPU = 3,
    SWEEPER = 77
};

static struct plan *plan;

static void new_plan(int ahead)
{
    reset_views();
    plan_free(plan);
    plan = plan_new(&views, ahead, CACHE_NBYTES);
    ck_assert_ptr_nonnull(plan);
}

static bool read_on(uint64_t view, uint64_t first, uint64_t count)
{
    bool has_work = false;
    for (uint64_t i = 0; i < count; i++) {
        const struct warm_read read = read_at(view, first + i);
        has_work = plan_saw_read(plan, &read);
    }
    return has_work;
}

/* So that a stream is followed which has nothing before it. */
static void read_to_the_end(uint64_t view)
{
    ck_assert(read_on(view, VIEW_COUNT - STEPS, STEPS));
    ck_assert_uint_gt(plan_ahead_count(plan), 0); /* as far as one knows */
}

/* From the first-th of the shuffled ones on, by another reader. */
static bool read_shuffled(uint64_t view, uint64_t first, uint64_t count)
{
    bool has_work = false;
    for (uint64_t k = first; k < first + count; k++) {
        struct warm_read read = read_at(view, shuffled(k));
        read.cpu = SWEEPER_CPU;
        read.reader = SWEEPER;
        has_work = plan_saw_read(plan, &read);
    }
    return has_work;
}

static void begin_sweep(uint64_t view)
{
    ck_assert(!read_shuffled(view, 0, SHARE - 1));
    ck_assert(read_shuffled(view, SHARE - 1, 1));
}

static bool add_job(uint64_t view, uint64_t start, uint64_t count)
{
    const struct warm_range range = {.view = view, .start = start, .step = 1, .count = count};
    struct job job;
    ck_assert(job_init(&job, &range));
    return plan_add(plan, &job);
}

static void finish(const struct piece *piece, bool is_unknown)
{
    struct piece done = *piece;
    done.is_unknown = is_unknown;
    plan_finish(plan, &done);
}

static void take(struct piece *piece)
{
    memset(piece, 0x5a, sizeof *piece);
    ck_assert(plan_take(plan, true, piece));
    ck_assert_uint_ge(piece->count, 1);
}

static void take_nothing(void)
{
    struct piece piece;
    ck_assert(!plan_take(plan, true, &piece));
    ck_assert_uint_eq(plan_ahead_count(plan), 0);
    ck_assert_uint_eq(plan_asked_count(plan), 0);
}

static void expect_job(const struct piece *piece, uint64_t ino)
{
    ck_assert_int_eq(piece->kind, PIECE_OF_JOB);
    ck_assert_uint_eq(piece->count, 1);
    ck_assert_uint_eq(piece->items[0].ino, ino);
    ck_assert_uint_eq(piece->items[0].nbytes, record_nbytes);
    ck_assert(!piece->is_marker[0]);
    ck_assert_uint_eq(piece->serial, 0);
    ck_assert_uint_eq(piece->view, 0);
    ck_assert_int_eq(piece->cpu, -1);
    ck_assert_uint_eq(piece->reader, 0);
    ck_assert(piece->is_unknown); /* nobody is known to have listed it */
}

static void expect_sweep(const struct piece *piece, uint64_t view)
{
    ck_assert_int_eq(piece->kind, PIECE_OF_SWEEP);
    ck_assert_uint_eq(piece->serial, 0);
    ck_assert_uint_eq(piece->view, view);
    ck_assert_int_eq(piece->cpu, SWEEPER_CPU);
    ck_assert_uint_eq(piece->reader, SWEEPER);
    ck_assert(!piece->is_unknown); /* until a push says so */
    for (size_t i = 0; i < piece->count; i++) {
        ck_assert_uint_eq(piece->items[i].nbytes, record_nbytes);
        ck_assert_uint_eq(piece->items[i].ino / VIEW_COUNT, view);
        ck_assert(!piece->is_marker[i]);
    }
}

/* ---------------------------------------------------------------- whose turn it is */

START_TEST(streams_come_first_then_sweeps_then_jobs)
{
    struct piece piece;
    unsigned last = PIECE_OF_STREAM, taken[3] = {0};
    new_plan(WARM_AUTO);
    add_job(PLAIN, 100, 3);
    begin_sweep(OTHER);
    ck_assert(read_on(PLAIN, 0, STEPS));
    while (plan_take(plan, true, &piece)) {
        ck_assert_uint_ge(piece.kind, last);
        last = piece.kind;
        taken[last] += piece.count;
        plan_finish(plan, &piece);
    }
    ck_assert_uint_eq(taken[PIECE_OF_STREAM], 255);
    ck_assert_uint_gt(taken[PIECE_OF_SWEEP], 0);
    ck_assert_uint_eq(taken[PIECE_OF_JOB], 3);
    take_nothing();
}
END_TEST

START_TEST(a_reader_that_comes_interrupts_a_job)
{
    struct piece piece;
    new_plan(WARM_AUTO);
    add_job(PLAIN, 100, 3);
    take(&piece);
    expect_job(&piece, ino_at(PLAIN, 100));
    plan_finish(plan, &piece);
    read_on(OTHER, 0, STEPS);
    take(&piece);
    ck_assert_int_eq(piece.kind, PIECE_OF_STREAM);
}
END_TEST

START_TEST(a_thread_for_jobs_does_nothing_else)
{
    struct piece piece;
    new_plan(WARM_AUTO);
    begin_sweep(OTHER);
    read_on(PLAIN, 0, STEPS);
    ck_assert(!plan_take(plan, false, &piece));
    add_job(PLAIN, 100, 1);
    ck_assert(plan_take(plan, false, &piece));
    expect_job(&piece, ino_at(PLAIN, 100));
}
END_TEST

START_TEST(a_number_of_records_to_go_ahead_is_for_readers_in_order)
{
    new_plan(100);
    ck_assert(!read_shuffled(PLAIN, 0, VIEW_COUNT));
    take_nothing();
    ck_assert(read_on(PLAIN, 0, STEPS));
    ck_assert_uint_gt(plan_ahead_count(plan), 0);
}
END_TEST

/* ---------------------------------------------------------------- what came to nothing */

START_TEST(a_stream_at_its_end_leaves_no_trace_in_a_job)
{
    struct piece piece;
    new_plan(WARM_AUTO);
    read_to_the_end(PLAIN);
    add_job(OTHER, 10, 1);
    take(&piece);
    expect_job(&piece, ino_at(OTHER, 10));
    finish(&piece, true);
    take_nothing();
}
END_TEST

/* Its last record's inode was not held by the kernel, for which a sweep would be ended. */
START_TEST(a_stream_at_its_end_leaves_no_trace_in_a_sweep)
{
    struct piece piece;
    new_plan(WARM_AUTO);
    begin_sweep(OTHER);
    read_on(PLAIN, VIEW_COUNT - STEPS - 2, STEPS);
    take(&piece);
    ck_assert_int_eq(piece.kind, PIECE_OF_STREAM);
    ck_assert_uint_eq(piece.items[0].ino, ino_at(PLAIN, VIEW_COUNT - 1));
    finish(&piece, true);
    take(&piece);
    expect_sweep(&piece, OTHER);
    plan_finish(plan, &piece);
    take(&piece);
    expect_sweep(&piece, OTHER);
}
END_TEST

START_TEST(a_stream_of_damaged_records_leaves_no_trace)
{
    struct piece piece;
    new_plan(WARM_AUTO);
    damaged_begin = 1000;
    damaged_end = 3000;
    read_on(PLAIN, damaged_begin - 1, STEPS);
    read_on(PLAIN, 100, STEPS);
    add_job(OTHER, 10, 1);
    for (unsigned i = 0; i < 255; i += (unsigned)piece.count) {
        take(&piece); /* the damaged one's turn is over, not the other's */
        ck_assert_int_eq(piece.kind, PIECE_OF_STREAM);
        ck_assert_uint_lt(piece.items[0].ino, ino_at(PLAIN, damaged_begin));
        plan_finish(plan, &piece);
    }
    take(&piece);
    expect_job(&piece, ino_at(OTHER, 10));
    finish(&piece, true);
    take_nothing();
}
END_TEST

/* 16 of 2 KiB are a part. */
START_TEST(damaged_parts_of_a_sweep_do_not_end_it)
{
    struct piece piece;
    new_plan(WARM_AUTO);
    damaged_begin = 0;
    damaged_end = 40;
    begin_sweep(OTHER);
    add_job(OTHER, 5000, 1);
    take(&piece);
    expect_sweep(&piece, OTHER);
    ck_assert_uint_ge(piece.items[0].ino, ino_at(OTHER, damaged_end));
    finish(&piece, false);
    take(&piece);
    expect_sweep(&piece, OTHER);
}
END_TEST

/* All that is granted now. */
START_TEST(a_sweep_of_damaged_records_leaves_no_trace)
{
    struct piece piece;
    new_plan(WARM_AUTO);
    damaged_begin = 0;
    damaged_end = 1000;
    begin_sweep(OTHER);
    add_job(OTHER, 5000, 1);
    take(&piece);
    expect_job(&piece, ino_at(OTHER, 5000));
    finish(&piece, true);
    take_nothing();
    uint64_t k = SHARE; /* it goes on with READs */
    while (!plan_take(plan, true, &piece) && k < VIEW_COUNT)
        read_shuffled(OTHER, k++, 1);
    expect_sweep(&piece, OTHER);
}
END_TEST

START_TEST(damaged_records_of_jobs_are_done)
{
    struct piece piece;
    new_plan(WARM_AUTO);
    damaged_begin = 10;
    damaged_end = 1000;
    add_job(PLAIN, 10, 500);
    add_job(PLAIN, 998, 4);
    add_job(PLAIN, VIEW_COUNT - 1, 100);
    for (uint64_t position = 1000; position < 1002; position++) {
        take(&piece);
        expect_job(&piece, ino_at(PLAIN, position));
        plan_finish(plan, &piece);
    }
    ck_assert_uint_eq(plan_asked_count(plan), 100);
    take(&piece);
    expect_job(&piece, ino_at(PLAIN, VIEW_COUNT - 1));
    plan_finish(plan, &piece);
    take_nothing();
}
END_TEST

/* ---------------------------------------------------------------- what is said to be left */

START_TEST(what_is_taken_is_counted_until_it_is_done)
{
    struct piece piece;
    new_plan(WARM_AUTO);
    read_on(PLAIN, 0, STEPS);
    take(&piece);
    uint64_t before = plan_ahead_count(plan);
    plan_finish(plan, &piece);
    ck_assert_uint_eq(plan_ahead_count(plan), before - piece.count);
    new_plan(WARM_AUTO);
    add_job(PLAIN, 0, 2);
    take(&piece);
    ck_assert_uint_eq(plan_asked_count(plan), 2);
    plan_finish(plan, &piece);
    ck_assert_uint_eq(plan_asked_count(plan), 1);
}
END_TEST

START_TEST(a_sweep_whose_inodes_the_kernel_does_not_hold_ends)
{
    struct piece piece;
    new_plan(WARM_AUTO);
    begin_sweep(OTHER);
    take(&piece);
    finish(&piece, true);
    take_nothing();
    ck_assert(!read_shuffled(OTHER, SHARE, 100));
}
END_TEST

START_TEST(a_full_queue_takes_no_more_jobs)
{
    static const uint64_t positions[] = {30, 10, 20};
    const struct warm_range range = {.view = PLAIN, .positions = positions, .count = 3};
    struct piece piece;
    struct job job;
    new_plan(WARM_AUTO);
    ck_assert(job_init(&job, &range));
    ck_assert(plan_add(plan, &job));
    for (unsigned i = 1; i < JOBS; i++)
        ck_assert(add_job(PLAIN, 100 + i, 1));
    ck_assert(!add_job(PLAIN, 0, 1));
    ck_assert_uint_eq(plan_asked_count(plan), COUNT(positions) + JOBS - 1);
    for (unsigned i = 0; i < COUNT(positions); i++) {
        take(&piece);
        expect_job(&piece, ino_at(PLAIN, positions[i]));
    }
    for (unsigned i = 1; i < JOBS; i++) {
        take(&piece);
        expect_job(&piece, ino_at(PLAIN, 100 + i));
    }
    ck_assert(add_job(PLAIN, 0, 1));
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        streams_come_first_then_sweeps_then_jobs,
        a_reader_that_comes_interrupts_a_job,
        a_thread_for_jobs_does_nothing_else,
        a_number_of_records_to_go_ahead_is_for_readers_in_order,
        a_stream_at_its_end_leaves_no_trace_in_a_job,
        a_stream_at_its_end_leaves_no_trace_in_a_sweep,
        a_stream_of_damaged_records_leaves_no_trace,
        damaged_parts_of_a_sweep_do_not_end_it,
        a_sweep_of_damaged_records_leaves_no_trace,
        damaged_records_of_jobs_are_done,
        what_is_taken_is_counted_until_it_is_done,
        a_sweep_whose_inodes_the_kernel_does_not_hold_ends,
        a_full_queue_takes_no_more_jobs,
    };
    return run_tests("fs_plan", tests, COUNT(tests), 60);
}
