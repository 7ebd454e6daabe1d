/* SPDX-License-Identifier: MIT
 * turns.c: parts of a file in windows and in writes, each byte seen once. */
#include "windows.h"

#define PART_NBYTES (2 * MIB)

enum { PART_COUNT = 8, LAST_NBYTES = 100 * 1000 }; /* the last part does not fill its pages */

/* One task: a part, and how much of it was seen. */
struct task {
    struct zri_part part;
    size_t seen_nbytes;
};

static uint8_t *bytes;
static struct zri_turns turns;
static struct task tasks[PART_COUNT];

static void see(void *ctx, const uint8_t *seen, size_t nbytes)
{
    struct task *t = ctx;
    ck_assert(seen == t->part.bytes + t->seen_nbytes);
    t->seen_nbytes += nbytes;
    ck_assert_uint_le(t->seen_nbytes, t->part.nbytes);
}

static void write_one(UNUSED void *ctx, size_t i)
{
    ck_assert_int_eq(zri_turns_write(&turns, &tasks[i].part), 0);
}

static void prepare(int fd, bool is_reserved)
{
    zr_set_thread_count(2);
    bytes = malloc(PART_COUNT * PART_NBYTES);
    ck_assert_ptr_nonnull(bytes);
    for (size_t i = 0; i < PART_COUNT * PART_NBYTES; i += 8)
        memcpy(bytes + i, &(uint64_t){i * 0x9E3779B97F4A7C15u}, 8);
    for (size_t i = 0; i < PART_COUNT; i++) {
        size_t nbytes = i + 1 < PART_COUNT ? PART_NBYTES : LAST_NBYTES;
        tasks[i].seen_nbytes = 0;
        tasks[i].part =
            (struct zri_part){bytes + i * PART_NBYTES, nbytes, i * PART_NBYTES, see, &tasks[i]};
    }
    zri_turns_init(&turns, fd, is_reserved);
}

/* By two threads, to a file that shall hold it all then. */
static void write_all(enum window how, bool is_reserved)
{
    const size_t all = (PART_COUNT - 1) * PART_NBYTES + LAST_NBYTES;
    const char *path = at("file-%d", how);
    size_t n;
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0666);
    plan_windows(how);
    plan.meets = is_reserved;
    ck_assert(fd >= 0 && ftruncate(fd, (off_t)all) == 0);
    prepare(fd, is_reserved);
    zri_parallel(PART_COUNT, 2, write_one, NULL);
    plan.active = false;
    close(fd);
    uint8_t *held = slurp(path, &n);
    ck_assert_uint_eq(n, all);
    ck_assert(memcmp(held, bytes, n) == 0);
    for (size_t i = 0; i < PART_COUNT; i++)
        ck_assert_uint_eq(tasks[i].seen_nbytes, tasks[i].part.nbytes);
    free(held);
    free(bytes);
}

START_TEST(what_is_not_copied_is_written)
{
    write_all(FINE, true);
    ck_assert_uint_ge(plan.windows, 1);
    ck_assert_uint_eq(plan.written, (PART_COUNT - 1 - plan.windows) * PART_NBYTES + LAST_NBYTES);
}
END_TEST

/* After it was seen, which it is not again. */
START_TEST(what_a_window_loses_is_written)
{
    write_all(LOST_PAGES, true);
    ck_assert_uint_ge(plan.windows, 1);
    ck_assert_uint_eq(plan.written, (PART_COUNT - 1) * PART_NBYTES + LAST_NBYTES);
}
END_TEST

START_TEST(windows_that_do_not_suit_are_not_tried_again)
{
    static const enum window kinds[] = {NO_MAPPING, NO_PAGES, SMALL_PAGES};
    for (size_t i = 0; i < COUNT(kinds); i++) {
        write_all(kinds[i], true);
        ck_assert_uint_eq(plan.windows, 1);
    }
}
END_TEST

START_TEST(nothing_is_mapped_without_reserved_space)
{
    write_all(FINE, false);
    ck_assert_uint_eq(plan.windows, 0);
}
END_TEST

/* Without reserved space, since windows would need no turn. */
START_TEST(a_write_that_fails_gives_its_turn_back)
{
    int fd = open("/dev/full", O_WRONLY);
    prepare(fd, false);
    ck_assert_int_eq(zri_turns_write(&turns, &tasks[0].part), ENOSPC);
    ck_assert(!atomic_load(&turns.is_writing));
    close(fd);
    free(bytes);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        what_is_not_copied_is_written,
        what_a_window_loses_is_written,
        windows_that_do_not_suit_are_not_tried_again,
        nothing_is_mapped_without_reserved_space,
        a_write_that_fails_gives_its_turn_back,
    };
    return run_tests("turns", tests, COUNT(tests), 120);
}
