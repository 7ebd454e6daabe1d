/* SPDX-License-Identifier: MIT
 *
 * Who is taken for a reader in order, and what is pushed before it (fs/streams.c).
 */
#include "streams.h"

#include "fs_views.h"

enum {
    CACHE_NBYTES = 64 << 20,
    STEPS = 5,   /* READs until a stream is followed */
    AHEAD = 256, /* records of 2 KiB */
    MARGIN = 2,
    MARKER_EVERY = 64
};

static struct streams *streams;

static void new_streams(int ahead)
{
    reset_views();
    streams_free(streams);
    streams = streams_new(&views, ahead, CACHE_NBYTES);
    ck_assert_ptr_nonnull(streams);
}

/* True when that stream is known; it then may have work. */
static bool saw(const struct warm_read *read, bool *has_work)
{
    bool ignored;
    return streams_saw_read(streams, read, has_work ? has_work : &ignored);
}

static bool reads(uint64_t position)
{
    const struct warm_read read = read_at(PLAIN, position);
    return saw(&read, NULL);
}

static void read_on(uint64_t first, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        reads(first + i);
}

/* All that is to be pushed now: inode numbers, and whether those are markers. */
static size_t take_all(uint64_t *inos, bool *is_marker)
{
    struct piece piece;
    size_t n = 0;
    while (streams_take(streams, &piece)) {
        ck_assert_int_eq(piece.kind, PIECE_OF_STREAM);
        ck_assert_uint_ge(piece.count, 1);
        for (size_t i = 0; i < piece.count; i++, n++) {
            inos[n] = piece.items[i].ino;
            is_marker[n] = piece.is_marker[i];
        }
        streams_finish(streams, &piece);
    }
    ck_assert_uint_eq(streams_pending(streams), 0);
    return n;
}

static size_t take_count(void)
{
    static uint64_t inos[VIEW_COUNT];
    static bool is_marker[VIEW_COUNT];
    return take_all(inos, is_marker);
}

START_TEST(five_in_order_are_followed)
{
    static uint64_t inos[VIEW_COUNT];
    static bool is_marker[VIEW_COUNT];
    bool has_work = true;
    new_streams(WARM_AUTO);
    for (uint64_t i = 0; i < STEPS; i++) {
        ck_assert_uint_eq(streams_pending(streams), 0);
        const struct warm_read read = read_at(PLAIN, i);
        ck_assert(saw(&read, &has_work) == (i > 0));
        ck_assert(i == 0 || has_work == (i + 1 == STEPS));
    }
    size_t n = take_all(inos, is_marker);
    ck_assert_uint_eq(n, AHEAD - MARGIN + 1);
    for (size_t i = 0; i < n; i++) {
        uint64_t position = STEPS - 1 + MARGIN + i;
        ck_assert_uint_eq(inos[i], ino_at(PLAIN, position));
        ck_assert(is_marker[i] == (position % MARKER_EVERY == MARKER_EVERY - 1));
    }
}
END_TEST

START_TEST(a_piece_says_for_whom_it_is)
{
    struct piece piece;
    new_streams(WARM_AUTO);
    read_on(0, STEPS);
    ck_assert(streams_take(streams, &piece));
    ck_assert_int_eq(piece.cpu, CPU);
    ck_assert_uint_eq(piece.reader, READER);
    ck_assert(!piece.is_unknown);
    piece.is_unknown = true; /* as its pusher found */
    streams_finish(streams, &piece);
    ck_assert(streams_take(streams, &piece));
    ck_assert(piece.is_unknown);
}
END_TEST

START_TEST(who_reads_in_no_order_is_not)
{
    new_streams(WARM_AUTO);
    for (uint64_t k = 0; k < VIEW_COUNT; k++)
        ck_assert(!reads(shuffled(k)));
    ck_assert_uint_eq(take_count(), 0);
}
END_TEST

/* Neighbours met by chance, other READs between. */
START_TEST(who_takes_steps_seldom_is_not)
{
    new_streams(WARM_AUTO);
    for (uint64_t i = 0; i < 100; i++) {
        reads(i);
        for (uint64_t k = 0; k < 8; k++)
            reads(1000 + shuffled(i * 8 + k) % 7000);
    }
    ck_assert_uint_eq(take_count(), 0);
}
END_TEST

START_TEST(what_is_no_start_begins_nothing)
{
    new_streams(WARM_AUTO);
    for (uint64_t i = 0; i < 100; i++) {
        struct warm_read read = read_at(PLAIN, i);
        read.is_start = false;
        ck_assert(!saw(&read, NULL));
    }
    ck_assert_uint_eq(take_count(), 0);
}
END_TEST

START_TEST(only_a_read_lets_it_go_on)
{
    new_streams(WARM_AUTO);
    read_on(0, STEPS);
    take_count();
    ck_assert_uint_eq(take_count(), 0); /* the reader stopped */
    ck_assert(reads(MARKER_EVERY - 1)); /* the first that is not silent */
    ck_assert_uint_eq(take_count(), MARKER_EVERY - STEPS);
}
END_TEST

/* Twice as many each time, so that pushing does not run after a reader that it never overtakes. */
START_TEST(who_is_faster_is_left_more_records)
{
    enum { MAX_MARGIN = 64 };
    struct piece piece;
    uint64_t next = STEPS - 1 + MARGIN, margin = MARGIN;
    new_streams(WARM_AUTO);
    read_on(0, STEPS);
    for (int i = 0; i < 10; i++) {
        ck_assert(reads(next - 1));
        margin = margin < MAX_MARGIN ? margin * 2 : MAX_MARGIN;
        next += margin - 1;
    }
    ck_assert(streams_take(streams, &piece));
    ck_assert_uint_eq(piece.items[0].ino, ino_at(PLAIN, next));
}
END_TEST

START_TEST(large_records_are_pushed_fewer_at_a_time)
{
    struct piece piece;
    new_streams(WARM_AUTO);
    record_nbytes = 2 << 20;
    read_on(0, STEPS);
    size_t n = 0;
    for (; streams_take(streams, &piece); n++)
        ck_assert_uint_eq(piece.count, 1);
    ck_assert_uint_eq(n, (8 << 20) / record_nbytes - MARGIN + 1);
}
END_TEST

START_TEST(a_fixed_number_is_kept_to)
{
    new_streams(1000);
    read_on(0, STEPS);
    ck_assert_uint_eq(take_count(), 1000 - MARGIN + 1);
}
END_TEST

START_TEST(several_readers_are_followed_at_once)
{
    new_streams(WARM_AUTO);
    for (uint64_t i = 0; i < STEPS; i++) {
        reads(i);
        reads(3000 + i);
        reads(6000 + i);
    }
    ck_assert_uint_eq(take_count(), 3 * (AHEAD - MARGIN + 1));
}
END_TEST

/* Its numbers go anywhere; what tells is what was looked up, or expected. */
START_TEST(a_reader_of_another_view_is_followed_there)
{
    struct piece piece;
    new_streams(WARM_AUTO);
    for (uint64_t i = 0; i < STEPS; i++) {
        const struct warm_read read = read_at(PLAIN, shuffled(i));
        streams_expect(streams, OTHER, i, read.ino);
        saw(&read, NULL);
    }
    ck_assert(streams_take(streams, &piece));
    ck_assert_uint_eq(piece.items[0].ino, ino_at(OTHER, STEPS - 1 + MARGIN));
}
END_TEST

START_TEST(damaged_records_are_left_out)
{
    static uint64_t inos[VIEW_COUNT];
    static bool is_marker[VIEW_COUNT];
    new_streams(WARM_AUTO);
    damaged_begin = 10;
    damaged_end = 100;
    read_on(0, STEPS);
    size_t n = take_all(inos, is_marker);
    ck_assert_uint_eq(n, AHEAD - MARGIN + 1 - (damaged_end - damaged_begin));
    for (size_t i = 0; i < n; i++)
        ck_assert(inos[i] < ino_at(PLAIN, damaged_begin) || inos[i] >= ino_at(PLAIN, damaged_end));
}
END_TEST

START_TEST(it_ends_with_its_view)
{
    struct piece piece;
    new_streams(WARM_AUTO);
    read_on(VIEW_COUNT - STEPS, STEPS);
    ck_assert_uint_gt(streams_pending(streams), 0); /* the end has not been met yet */
    ck_assert(!streams_take(streams, &piece));
    ck_assert_uint_eq(streams_pending(streams), 0);
}
END_TEST

START_TEST(the_one_that_was_not_read_for_longest_is_replaced)
{
    new_streams(WARM_AUTO);
    read_on(0, STEPS);
    take_count();
    for (uint64_t k = 0; k < 16; k++)
        reads(1000 + 100 * k);
    ck_assert(!reads(MARKER_EVERY - 1));
    ck_assert_uint_eq(take_count(), 0);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        five_in_order_are_followed,
        a_piece_says_for_whom_it_is,
        who_reads_in_no_order_is_not,
        who_takes_steps_seldom_is_not,
        what_is_no_start_begins_nothing,
        only_a_read_lets_it_go_on,
        who_is_faster_is_left_more_records,
        large_records_are_pushed_fewer_at_a_time,
        a_fixed_number_is_kept_to,
        several_readers_are_followed_at_once,
        a_reader_of_another_view_is_followed_there,
        damaged_records_are_left_out,
        it_ends_with_its_view,
        the_one_that_was_not_read_for_longest_is_replaced,
    };
    return run_tests("fs_streams", tests, COUNT(tests), 60);
}
