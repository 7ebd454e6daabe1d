/* SPDX-License-Identifier: MIT
 *
 * The feed (engine/feed.c): every batch once, in order, the right records, a bound on
 * batches under way, and an end in every state.
 */
#include <pthread.h>
#include <sys/mman.h>

#include "support.h"

enum { N = 500, BATCH = 32, LARGE = 8192, LIMIT = 4, WAIT = 2000000000 };

/* A Dense, a Ragged and a packed stream over the same ids. */
struct streams {
    struct zr_reader *readers[3];
    struct zr_feed_stream at[3];
};

static void open_streams(struct streams *s)
{
    make_store(at("d"), ZR_DENSE, ZR_RAW, N);
    make_store(at("r"), ZR_RAGGED, ZR_ZSTD, N);
    s->readers[0] = open_store(at("d"));
    s->readers[1] = open_store(at("r"));
    s->readers[2] = open_store(at("r"));
    for (int i = 0; i < 3; i++)
        s->at[i] = (struct zr_feed_stream){s->readers[i], i == 2};
}

static void close_streams(struct streams *s)
{
    for (int i = 0; i < 3; i++)
        zr_reader_close(s->readers[i]);
}

static struct zr_feed_options feed_options(const struct streams *s)
{
    return (struct zr_feed_options){
        .streams = s->at,
        .stream_count = 3,
        .sampler = {.length = N, .batch_size = BATCH, .seed = 42, .mode = ZR_CYCLIC},
        .count = BATCH,
        .limit = LIMIT,
        .ahead_count = 2,
    };
}

static struct zr_feed *start_feed(const struct zr_feed_options *o)
{
    struct zr_feed *f;
    expect_ok(zr_feed_start(&f, o, &err));
    return f;
}

/* Nothing of Check: threads look at batches too. */
static bool is_packed_item(uint64_t id, const struct zr_part *p, size_t i)
{
    uint64_t shape[ZR_MAX_NDIM], nbytes = p->offsets[i + 1] - p->offsets[i];
    uint32_t ndim = ragged_shape_of(id, shape);
    return nbytes == ragged_nbytes_of(id) &&
           p->shape_offsets[i + 1] - p->shape_offsets[i] == ndim &&
           (!ndim || !memcmp(p->shapes + p->shape_offsets[i], shape, ndim * sizeof *shape)) &&
           is_record(id, (uint8_t *)p->data + p->offsets[i], nbytes);
}

static bool is_batch(const struct zr_feed_options *o, uint64_t step, const struct zr_part *parts)
{
    static _Thread_local uint64_t ids[LARGE];
    bool right = true;
    zr_sampler_batch(&o->sampler, step, ids);
    for (size_t i = 0; i < o->count; i++) {
        uint64_t id = ids[o->begin + i];
        right &= is_record(id, (uint8_t *)parts[0].data + i * ROW_NBYTES, ROW_NBYTES);
        right &= is_item(id, (uint8_t *)parts[1].data + parts[1].offsets[i]);
        right &= is_packed_item(id, &parts[2], i);
    }
    return right;
}

/* Takes and releases one batch and looks at it; its step. */
static uint64_t take_one(struct zr_feed *f, const struct zr_feed_options *o)
{
    struct zr_part parts[3];
    struct zr_feed_batch b;
    expect_ok(zr_feed_take(f, parts, &b, WAIT, &err));
    ck_assert_uint_eq(b.count, o->count);
    ck_assert(is_batch(o, b.step, parts));
    zr_parts_release(parts, 3);
    zr_feed_release(f);
    return b.step;
}

START_TEST(batches_come_in_order_and_are_right)
{
    struct streams s;
    open_streams(&s);
    struct zr_feed_options o = feed_options(&s);
    for (size_t limit = 1; limit <= 5; limit += 2) {
        o.limit = limit;
        struct zr_feed *f = start_feed(&o);
        for (uint64_t step = 0; step < 100; step++)
            ck_assert_uint_eq(take_one(f, &o), step);
        zr_feed_free(f);
    }
    close_streams(&s);
}
END_TEST

START_TEST(a_part_of_each_batch_and_a_first_step)
{
    struct streams s;
    open_streams(&s);
    struct zr_feed_options o = feed_options(&s);
    o.begin = 5;
    o.count = 7;
    o.first_step = 1000;
    struct zr_feed *f = start_feed(&o);
    for (uint64_t step = 1000; step < 1020; step++)
        ck_assert_uint_eq(take_one(f, &o), step);
    zr_feed_free(f);
    close_streams(&s);
}
END_TEST

START_TEST(skipped_steps_are_left_out)
{
    static const uint64_t skip[] = {1, 3, 10, 11, 12, 13, 15, 100};
    struct streams s;
    open_streams(&s);
    struct zr_feed_options o = feed_options(&s);
    o.first_step = 3;
    o.skip = skip;
    o.skip_count = COUNT(skip);
    struct zr_feed *f = start_feed(&o);
    static const uint64_t wanted[] = {4, 5, 6, 7, 8, 9, 14, 16, 17};
    for (size_t i = 0; i < COUNT(wanted); i++)
        ck_assert_uint_eq(take_one(f, &o), wanted[i]);
    zr_feed_free(f);
    close_streams(&s);
}
END_TEST

START_TEST(batches_under_way_are_bounded)
{
    struct streams s;
    open_streams(&s);
    struct zr_feed_options o = feed_options(&s);
    struct zr_feed *f = start_feed(&o);
    struct zr_part parts[LIMIT][3];
    struct zr_feed_batch b;
    for (int i = 0; i < LIMIT; i++)
        expect_ok(zr_feed_take(f, parts[i], &b, WAIT, &err));
    /* All are held: there is no next one, and nothing was gathered beyond. */
    struct zr_part more[3];
    ck_assert_int_eq(zr_feed_take(f, more, &b, 20000000, NULL), ZR_FEED_NOT_YET);
    struct zr_feed_stats stats;
    zr_feed_stats(f, &stats);
    ck_assert_uint_eq(stats.gathered_count, LIMIT);
    ck_assert_uint_eq(stats.under_way_count, LIMIT);
    for (int i = 0; i < LIMIT; i++) {
        zr_parts_release(parts[i], 3);
        zr_feed_release(f);
    }
    ck_assert_uint_eq(take_one(f, &o), LIMIT);
    zr_feed_free(f);
    close_streams(&s);
}
END_TEST

/* Gathers of large batches are left to a taker that is back at once, but not when it stays away. */
START_TEST(a_taker_that_stays_away_finds_batches_ready)
{
    struct streams s;
    open_streams(&s);
    struct zr_feed_options o = feed_options(&s);
    o.sampler.mode = ZR_IID;
    o.sampler.batch_size = o.count = LARGE;
    struct zr_feed *f = start_feed(&o);
    uint64_t step = 0;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 10; i++) {
            struct zr_part parts[3];
            struct zr_feed_batch b;
            expect_ok(zr_feed_take(f, parts, &b, WAIT, &err)); /* and is back at once */
            zr_parts_release(parts, 3);
            zr_feed_release(f);
            step++;
        }
        struct zr_feed_stats stats = {0};
        for (int i = 0; i < 5000 && stats.ready_count < LIMIT; i++) {
            usleep(1000);
            zr_feed_stats(f, &stats);
        }
        ck_assert_uint_eq(stats.ready_count, LIMIT);
        ck_assert_uint_eq(take_one(f, &o), step++);
    }
    zr_feed_free(f);
    close_streams(&s);
}
END_TEST

static size_t resident_pages(const struct zr_reader *r, uint64_t from, uint64_t to)
{
    unsigned char state[64];
    size_t pages = (to - from) / 4096, count = 0;
    ck_assert_uint_le(pages, sizeof state);
    ck_assert(!mincore((void *)(uintptr_t)(r->data.bytes + from), to - from, state));
    for (size_t i = 0; i < pages; i++)
        count += state[i] & 1;
    return count;
}

/* With no leave to gather more than one batch, the reads of those behind it are queued. */
START_TEST(coming_batches_are_read_ahead_where_data_is_cold)
{
    enum { ROWS = 20000, EACH = 1024, PAGES = 40 }; /* a batch is 50 pages */
    make_store(at("s"), ZR_DENSE, ZR_RAW, ROWS);
    int fd = open(at("s/data.zr"), O_RDWR);
    fsync(fd);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    struct zr_reader *r = open_store(at("s"));
    const uint64_t ahead = 4 * EACH * ROW_NBYTES / 4096 * 4096; /* of the fifth batch */
    skip_under(resident_pages(r, ahead, ahead + PAGES * 4096), "this filesystem keeps its cache");
    struct zr_feed_stream stream = {r, false};
    struct zr_feed_options o = {
        .streams = &stream,
        .stream_count = 1,
        .sampler = {.length = ROWS, .batch_size = EACH, .mode = ZR_SEQUENTIAL},
        .count = EACH,
        .limit = 1,
        .ahead_count = 4,
    };
    struct zr_feed *f = start_feed(&o);
    size_t pages = 0;
    for (int i = 0; i < 500 && pages < PAGES; i++) {
        usleep(10000);
        pages = resident_pages(r, ahead, ahead + PAGES * 4096);
    }
    ck_assert_uint_eq(pages, PAGES);
    struct zr_feed_stats stats;
    zr_feed_stats(f, &stats);
    ck_assert_uint_eq(stats.gathered_count, 1);
    zr_feed_free(f);
    zr_reader_close(r);
    close(fd);
}
END_TEST

/* ---------------------------------------------------------------- several takers */

struct taker {
    struct zr_feed *feed;
    const struct zr_feed_options *options;
    atomic_uint *seen; /* by step */
    unsigned taken;
    bool wrong;
};

enum { STEPS = 600 };

static void *take_until_stopped(void *arg)
{
    struct taker *t = arg;
    struct zr_part parts[3];
    struct zr_feed_batch b;
    for (int rc; (rc = zr_feed_take(t->feed, parts, &b, WAIT, NULL)) != ZR_E_CANCELLED;) {
        if (rc)
            continue;
        t->wrong |= !is_batch(t->options, b.step, parts);
        if (b.step < STEPS)
            atomic_fetch_add(&t->seen[b.step], 1);
        else
            zr_feed_stop(t->feed);
        t->taken++;
        zr_parts_release(parts, 3);
        zr_feed_release(t->feed);
    }
    return NULL;
}

START_TEST(several_takers_get_every_batch_once)
{
    enum { TAKERS = 4 };
    static atomic_uint seen[STEPS];
    struct streams s;
    open_streams(&s);
    struct zr_feed_options o = feed_options(&s);
    struct zr_feed *f = start_feed(&o);
    struct taker takers[TAKERS];
    pthread_t threads[TAKERS];
    for (int i = 0; i < TAKERS; i++) {
        takers[i] = (struct taker){.feed = f, .options = &o, .seen = seen};
        ck_assert(!pthread_create(&threads[i], NULL, take_until_stopped, &takers[i]));
    }
    for (int i = 0; i < TAKERS; i++) {
        pthread_join(threads[i], NULL);
        ck_assert(!takers[i].wrong);
    }
    for (int step = 0; step < STEPS; step++)
        ck_assert_uint_eq(seen[step], 1);
    zr_feed_free(f);
    close_streams(&s);
}
END_TEST

/* ---------------------------------------------------------------- ends */

START_TEST(a_failed_gather_comes_after_the_batches_before_it)
{
    struct streams s;
    open_streams(&s);
    struct zr_feed_options o = feed_options(&s);
    o.sampler.mode = ZR_SEQUENTIAL;
    patch64(at("d/meta.zr"), 4096 + 16 * (3 * BATCH + 1), UINT64_MAX);
    struct zr_feed *f = start_feed(&o);
    for (uint64_t step = 0; step < 3; step++)
        ck_assert_uint_eq(take_one(f, &o), step);
    struct zr_part parts[3];
    struct zr_feed_batch b;
    struct zr_error failed;
    ck_assert_int_eq(zr_feed_take(f, parts, &b, WAIT, &failed), ZR_E_CORRUPT);
    ck_assert_uint_eq(failed.record, 3 * BATCH + 1);
    ck_assert_uint_eq(b.step, 3);
    ck_assert_uint_eq(b.failed_stream, 0);
    expect_error(zr_feed_take(f, parts, &b, WAIT, &err), ZR_E_CANCELLED, "stopped");
    zr_feed_free(f);
    close_streams(&s);
}
END_TEST

static void *stop_soon(void *f)
{
    usleep(20000);
    zr_feed_stop(f);
    return NULL;
}

START_TEST(stop_wakes_a_waiting_taker)
{
    struct streams s;
    open_streams(&s);
    struct zr_feed_options o = feed_options(&s);
    o.limit = 1;
    struct zr_feed *f = start_feed(&o);
    struct zr_part held[3], parts[3];
    struct zr_feed_batch b;
    expect_ok(zr_feed_take(f, held, &b, WAIT, &err));
    pthread_t thread;
    ck_assert(!pthread_create(&thread, NULL, stop_soon, f));
    ck_assert_int_eq(zr_feed_take(f, parts, &b, 50 * (int64_t)WAIT, NULL), ZR_E_CANCELLED);
    pthread_join(thread, NULL);
    zr_parts_release(held, 3);
    zr_feed_free(f);
    close_streams(&s);
}
END_TEST

START_TEST(feeds_end_at_any_moment)
{
    struct streams s;
    open_streams(&s);
    struct zr_feed_options o = feed_options(&s);
    for (int i = 0; i < 200; i++) {
        struct zr_feed *f = start_feed(&o);
        for (int k = 0; k < i % 7; k++)
            take_one(f, &o);
        if (i % 3)
            usleep((useconds_t)(i % 11) * 10);
        zr_feed_free(f);
    }
    zr_feed_free(NULL);
    close_streams(&s);
}
END_TEST

START_TEST(wrong_options_are_refused)
{
    struct streams s;
    open_streams(&s);
    struct zr_feed *f;
    static const uint64_t unsorted[] = {5, 5};
    struct zr_feed_options good = feed_options(&s), o;
#define REFUSED(change)                                                                            \
    o = good, (change), (void)0;                                                                   \
    expect_error(zr_feed_start(&f, &o, &err), ZR_E_INVALID, "");                                   \
    ck_assert_ptr_null(f)
    REFUSED(o.stream_count = 0);
    REFUSED(o.limit = 0);
    REFUSED(o.count = 0);
    REFUSED(o.count = BATCH + 1);
    REFUSED(o.begin = BATCH);
    REFUSED(o.begin = SIZE_MAX);
    REFUSED(o.sampler.batch_size = 0);
    REFUSED(o.sampler.length = N + 1);
    REFUSED((o.skip = unsorted, o.skip_count = 2));
    close_streams(&s);
}
END_TEST

START_TEST(a_forked_child_can_let_go_of_a_feed)
{
    skip_fork_of_threads();
    struct streams s;
    open_streams(&s);
    struct zr_feed_options o = feed_options(&s);
    struct zr_feed *f = start_feed(&o);
    take_one(f, &o);
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(20);
            zr_feed_stop(f);
            zr_feed_free(f);
            _exit(0);
        }
        int status;
        ck_assert(waitpid(child, &status, 0) == child && status == 0);
        take_one(f, &o);
    }
    zr_feed_free(f);
    close_streams(&s);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        batches_come_in_order_and_are_right,
        a_part_of_each_batch_and_a_first_step,
        skipped_steps_are_left_out,
        batches_under_way_are_bounded,
        a_taker_that_stays_away_finds_batches_ready,
        coming_batches_are_read_ahead_where_data_is_cold,
        several_takers_get_every_batch_once,
        a_failed_gather_comes_after_the_batches_before_it,
        stop_wakes_a_waiting_taker,
        feeds_end_at_any_moment,
        wrong_options_are_refused,
        a_forked_child_can_let_go_of_a_feed,
    };
    return run_tests("feed", tests, COUNT(tests), 60);
}
