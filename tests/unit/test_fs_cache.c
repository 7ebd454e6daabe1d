/* SPDX-License-Identifier: MIT
 *
 * The cache of decoded records between two READs (fs/cache.c), with a decoder
 * that counts, waits or fails on command.
 */
#include "cache.h"

#include <pthread.h>
#include <stdatomic.h>

#include "support.h"

enum { RECORD_NBYTES = 1000 };

struct decoder {
    atomic_int decode_count;
    atomic_int running;
    atomic_bool hold;     /* decodes do not return while set */
    uint64_t failing_key; /* this one fails */
    uint64_t nbytes;
};

static int decode(void *ctx, struct cache_key whole, const void *arg, struct cache_bytes *out,
                  struct zr_error *err)
{
    struct decoder *d = ctx;
    uint64_t key = whole.ino;
    ck_assert_ptr_eq(arg, NULL);
    atomic_fetch_add(&d->decode_count, 1);
    atomic_fetch_add(&d->running, 1);
    while (atomic_load(&d->hold))
        usleep(100);
    atomic_fetch_sub(&d->running, 1);
    if (key == d->failing_key) {
        *err = (struct zr_error){.code = ZR_E_CORRUPT, .record = key, .message = "broken"};
        return ZR_E_CORRUPT;
    }
    out->block = zr_buffer_alloc(d->nbytes);
    memset(out->block, (int)key, d->nbytes);
    out->bytes = out->block;
    out->nbytes = d->nbytes;
    return ZR_OK;
}

static struct decoder new_decoder(void)
{
    return (struct decoder){.failing_key = UINT64_MAX, .nbytes = RECORD_NBYTES};
}

/* One READ of that many bytes. */
static enum cache_outcome read_some(struct cache *c, uint64_t key, uint64_t nbytes)
{
    struct cache_entry *entry;
    enum cache_outcome outcome;
    ck_assert_int_eq(cache_get(c, (struct cache_key){.ino = key}, NULL, &entry, &outcome, NULL),
                     ZR_OK);
    const struct cache_bytes *bytes = cache_entry_bytes(entry);
    ck_assert_int_eq(*(const unsigned char *)bytes->bytes, (int)(key & 0xff));
    cache_put(c, entry, nbytes);
    return outcome;
}

static void check_usage(struct cache *c, uint64_t nbytes, uint64_t count)
{
    uint64_t have_nbytes, have_count;
    cache_usage(c, &have_nbytes, &have_count);
    ck_assert_uint_eq(have_nbytes, nbytes);
    ck_assert_uint_eq(have_count, count);
}

START_TEST(a_record_read_in_pieces_is_decoded_once)
{
    struct decoder d = new_decoder();
    struct cache *c = cache_new(100 * RECORD_NBYTES, decode, &d);
    ck_assert_int_eq(read_some(c, 7, 600), CACHE_DECODED);
    check_usage(c, RECORD_NBYTES, 1);
    ck_assert_int_eq(read_some(c, 7, 300), CACHE_HIT);
    ck_assert_int_eq(read_some(c, 7, 100), CACHE_HIT);
    ck_assert_int_eq(d.decode_count, 1);
    check_usage(c, 0, 0); /* delivered in full: the page cache has it */
    ck_assert_int_eq(read_some(c, 7, RECORD_NBYTES), CACHE_DECODED);
    check_usage(c, 0, 0);
    cache_free(c);
}
END_TEST

START_TEST(idle_records_stay_within_the_limit_oldest_leave_first)
{
    struct decoder d = new_decoder();
    struct cache *c = cache_new(3 * RECORD_NBYTES, decode, &d);
    for (uint64_t key = 0; key < 100; key++) {
        read_some(c, key, 1);
        uint64_t nbytes, count;
        cache_usage(c, &nbytes, &count);
        ck_assert_uint_le(nbytes, 3 * RECORD_NBYTES);
    }
    check_usage(c, 3 * RECORD_NBYTES, 3);
    ck_assert_int_eq(read_some(c, 97, 1), CACHE_HIT); /* now the most recent */
    read_some(c, 100, 1);
    ck_assert_int_eq(read_some(c, 97, 1), CACHE_HIT);
    ck_assert_int_eq(read_some(c, 98, 1), CACHE_DECODED);
    cache_free(c);
}
END_TEST

START_TEST(a_record_larger_than_the_limit_is_still_decoded_once)
{
    struct decoder d = new_decoder();
    struct cache *c = cache_new(10, decode, &d);
    for (int i = 0; i < 10; i++)
        read_some(c, 1, RECORD_NBYTES / 10);
    ck_assert_int_eq(d.decode_count, 1);
    read_some(c, 1, 1);
    read_some(c, 2, 1); /* only one such is kept */
    check_usage(c, RECORD_NBYTES, 1);
    cache_free(c);
}
END_TEST

START_TEST(a_pinned_record_survives_eviction_and_full_delivery)
{
    struct decoder d = new_decoder();
    struct cache *c = cache_new(RECORD_NBYTES, decode, &d);
    struct cache_entry *pinned;
    enum cache_outcome outcome;
    ck_assert_int_eq(cache_get(c, (struct cache_key){.ino = 5}, NULL, &pinned, &outcome, NULL),
                     ZR_OK);
    for (uint64_t key = 10; key < 20; key++)
        read_some(c, key, 1);
    ck_assert_int_eq(read_some(c, 5, RECORD_NBYTES), CACHE_HIT); /* drops it from the table */
    ck_assert_int_eq(*(const unsigned char *)cache_entry_bytes(pinned)->bytes, 5);
    cache_put(c, pinned, 0);
    ck_assert_int_eq(read_some(c, 5, 1), CACHE_DECODED);
    cache_free(c);
}
END_TEST

START_TEST(a_failure_is_reported_and_not_kept)
{
    struct decoder d = new_decoder();
    d.failing_key = 3;
    struct cache *c = cache_new(10 * RECORD_NBYTES, decode, &d);
    struct cache_entry *entry = (struct cache_entry *)&d;
    enum cache_outcome outcome;
    struct zr_error err = {0};
    ck_assert_int_eq(cache_get(c, (struct cache_key){.ino = 3}, NULL, &entry, &outcome, &err),
                     ZR_E_CORRUPT);
    ck_assert_ptr_null(entry);
    ck_assert_str_eq(err.message, "broken");
    check_usage(c, 0, 0);
    d.failing_key = UINT64_MAX; /* e.g. the disk answers again */
    ck_assert_int_eq(read_some(c, 3, 1), CACHE_DECODED);
    cache_free(c);
}
END_TEST

struct reader {
    pthread_t thread;
    struct cache *cache;
    uint64_t key;
    int code;
    enum cache_outcome outcome;
    struct zr_error err;
};

static void *read_thread(void *arg)
{
    struct reader *r = arg;
    struct cache_entry *entry;
    r->code =
        cache_get(r->cache, (struct cache_key){.ino = r->key}, NULL, &entry, &r->outcome, &r->err);
    if (r->code == ZR_OK)
        cache_put(r->cache, entry, RECORD_NBYTES / 4);
    return NULL;
}

static void start(struct reader *r, struct cache *c, uint64_t key)
{
    *r = (struct reader){.cache = c, .key = key};
    ck_assert_int_eq(pthread_create(&r->thread, NULL, read_thread, r), 0);
}

/* Starts four readers of one record while its decode is held up. */
static void start_together(struct reader *readers, struct cache *c, struct decoder *d, uint64_t key)
{
    atomic_store(&d->hold, true);
    for (int i = 0; i < 4; i++)
        start(&readers[i], c, key);
    while (!atomic_load(&d->running))
        usleep(100);
    usleep(20000);
}

static void finish(struct reader *readers, struct decoder *d)
{
    atomic_store(&d->hold, false);
    for (int i = 0; i < 4; i++)
        pthread_join(readers[i].thread, NULL);
}

START_TEST(readers_of_one_record_share_one_decode)
{
    struct decoder d = new_decoder();
    struct cache *c = cache_new(10 * RECORD_NBYTES, decode, &d);
    struct reader readers[4];
    start_together(readers, c, &d, 9);
    finish(readers, &d);
    ck_assert_int_eq(d.decode_count, 1);
    int decoded = 0;
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(readers[i].code, ZR_OK);
        decoded += readers[i].outcome == CACHE_DECODED;
    }
    ck_assert_int_eq(decoded, 1);
    check_usage(c, 0, 0);
    cache_free(c);
}
END_TEST

START_TEST(waiting_readers_get_the_failure_too)
{
    struct decoder d = new_decoder();
    d.failing_key = 9;
    struct cache *c = cache_new(10 * RECORD_NBYTES, decode, &d);
    struct reader readers[4];
    start_together(readers, c, &d, 9);
    finish(readers, &d);
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(readers[i].code, ZR_E_CORRUPT);
        ck_assert_str_eq(readers[i].err.message, "broken");
    }
    check_usage(c, 0, 0);
    cache_free(c);
}
END_TEST

START_TEST(other_records_do_not_wait_for_a_slow_decode)
{
    struct decoder d = new_decoder();
    struct cache *c = cache_new(10 * RECORD_NBYTES, decode, &d);
    read_some(c, 2, 1);
    struct reader readers[4];
    start_together(readers, c, &d, 1);
    ck_assert(cache_holds(c, (struct cache_key){.ino = 1}));
    ck_assert_int_eq(read_some(c, 2, 1), CACHE_HIT); /* returns although 1 is held up */
    finish(readers, &d);
    cache_free(c);
}
END_TEST

static void *hammer(void *arg)
{
    struct reader *r = arg;
    for (uint64_t i = 0; i < 20000; i++)
        read_some(r->cache, (i * (r->key + 1)) % 50, RECORD_NBYTES / 3);
    return NULL;
}

START_TEST(many_threads_keep_the_table_whole)
{
    struct decoder d = new_decoder();
    struct cache *c = cache_new(20 * RECORD_NBYTES, decode, &d);
    struct reader readers[4];
    for (uint64_t i = 0; i < 4; i++) {
        readers[i] = (struct reader){.cache = c, .key = i};
        pthread_create(&readers[i].thread, NULL, hammer, &readers[i]);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(readers[i].thread, NULL);
    uint64_t nbytes, count;
    cache_usage(c, &nbytes, &count);
    ck_assert_uint_le(nbytes, 20 * RECORD_NBYTES);
    ck_assert_uint_eq(nbytes, count * RECORD_NBYTES);
    cache_free(c);
}
END_TEST

START_TEST(what_is_there_is_found_and_can_be_dropped)
{
    struct decoder d = new_decoder();
    struct cache *c = cache_new(100 * RECORD_NBYTES, decode, &d);
    const struct cache_key key = {.ino = 7}, part = {.ino = 7, .part = 1};
    ck_assert_ptr_null(cache_find(c, key));
    ck_assert(!cache_holds(c, key));
    read_some(c, 7, 1);
    ck_assert_ptr_null(cache_find(c, part));
    ck_assert(cache_holds(c, key) && !cache_holds(c, part));
    struct cache_entry *entry = cache_find(c, key);
    ck_assert_ptr_nonnull(entry);
    cache_drop(c, key);
    check_usage(c, RECORD_NBYTES, 1); /* held */
    cache_put(c, entry, 0);
    cache_drop(c, part);
    check_usage(c, RECORD_NBYTES, 1);
    cache_drop(c, key);
    check_usage(c, 0, 0);
    cache_drop(c, key);
    ck_assert_int_eq(d.decode_count, 1);
    cache_free(c);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        a_record_read_in_pieces_is_decoded_once,
        idle_records_stay_within_the_limit_oldest_leave_first,
        a_record_larger_than_the_limit_is_still_decoded_once,
        a_pinned_record_survives_eviction_and_full_delivery,
        a_failure_is_reported_and_not_kept,
        readers_of_one_record_share_one_decode,
        waiting_readers_get_the_failure_too,
        other_records_do_not_wait_for_a_slow_decode,
        many_threads_keep_the_table_whole,
        what_is_there_is_found_and_can_be_dropped,
    };
    return run_tests("fs_cache", tests, COUNT(tests), 60);
}
