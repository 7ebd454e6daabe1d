/* SPDX-License-Identifier: MIT
 *
 * Recycled output memory (engine/buffer.c).
 */
#include <pthread.h>
#include <stdatomic.h>

#include "support.h"

#define MIB ((size_t)1 << 20)

START_TEST(zero_bytes_give_a_block)
{
    void *p = zr_buffer_alloc(0), *q = zr_buffer_alloc(0);
    ck_assert(p && q && p != q);
    zr_buffer_free(p);
    zr_buffer_free(q);
}
END_TEST

START_TEST(freeing_null_does_nothing)
{
    zr_buffer_free(NULL);
    ck_assert_uint_eq(zr_buffer_idle_nbytes(), 0);
}
END_TEST

START_TEST(blocks_are_aligned_and_writable_to_their_end)
{
    static const size_t sizes[] = {
        1,     63,  64,           192,          193,     255,         256,     257,         4095,
        65536, MIB, 2 * MIB - 64, 2 * MIB - 63, 2 * MIB, 2 * MIB + 1, 5 * MIB, 32 * MIB + 7};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        uint8_t *p = zr_buffer_alloc(sizes[i]);
        ck_assert_ptr_nonnull(p);
        ck_assert_uint_eq((uintptr_t)p % 64, 0);
        memset(p, 0xa5, sizes[i]);
        zr_buffer_free(p);
    }
}
END_TEST

/* Every size near every class boundary; what lies before and behind stays. */
START_TEST(no_class_is_smaller_than_the_request)
{
    enum { LIVE = 64 };
    uint8_t *live[LIVE] = {0};
    size_t sizes[LIVE], turn = 0;
    for (size_t n = 1; n < 300 * 1024; n += 1 + n / 97, turn++) {
        size_t k = turn % LIVE;
        if (live[k]) {
            for (size_t j = 0; j < sizes[k]; j += 61)
                ck_assert_int_eq(live[k][j], (int)(k ^ 0x5a));
            ck_assert_int_eq(live[k][sizes[k] - 1], (int)(k ^ 0x5a));
        }
        zr_buffer_free(live[k]);
        live[k] = zr_buffer_alloc(n);
        sizes[k] = n;
        memset(live[k], (int)(k ^ 0x5a), n);
    }
    for (size_t k = 0; k < LIVE; k++)
        zr_buffer_free(live[k]);
}
END_TEST

/* Untouched, so gigabytes cost nothing; the last byte must be mapped. */
START_TEST(sizes_up_to_8_gib_are_mapped_to_their_last_byte)
{
    zr_buffer_set_limit(0);
    for (unsigned shift = 21; shift <= 33; shift++)
        for (int around = -65; around <= 65; around += 65) {
            size_t n = ((size_t)1 << shift) + (size_t)around;
            uint8_t *p = zr_buffer_alloc(n);
            ck_assert_msg(p != NULL, "%zu bytes", n);
            p[0] = p[n - 1] = 1;
            zr_buffer_free(p);
        }
}
END_TEST

START_TEST(sizes_beyond_all_memory_give_null)
{
    ck_assert_ptr_null(zr_buffer_alloc(SIZE_MAX));
    ck_assert_ptr_null(zr_buffer_alloc(SIZE_MAX - 63));
    ck_assert_ptr_null(zr_buffer_alloc(SIZE_MAX / 4));
    ck_assert_ptr_null(zr_buffer_alloc((size_t)1 << 62));
    ck_assert_ptr_null(zr_buffer_alloc((size_t)1 << 48));
}
END_TEST

START_TEST(a_freed_block_comes_back_for_the_same_size)
{
    void *p = zr_buffer_alloc(3 * MIB);
    zr_buffer_free(p);
    ck_assert_uint_ge(zr_buffer_idle_nbytes(), 3 * MIB);
    ck_assert_ptr_eq(zr_buffer_alloc(3 * MIB), p);
    ck_assert_uint_eq(zr_buffer_idle_nbytes(), 0);
    zr_buffer_free(p);
}
END_TEST

START_TEST(the_block_used_last_comes_back_first)
{
    void *p = zr_buffer_alloc(100000), *q = zr_buffer_alloc(100000);
    zr_buffer_free(p);
    zr_buffer_free(q);
    ck_assert_ptr_eq(zr_buffer_alloc(100000), q);
    ck_assert_ptr_eq(zr_buffer_alloc(100000), p);
    zr_buffer_free(p);
    zr_buffer_free(q);
}
END_TEST

START_TEST(live_blocks_are_exclusive)
{
    uint8_t *p[50];
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 50; i++) {
            p[i] = zr_buffer_alloc(5000);
            memset(p[i], i, 5000);
        }
        for (int i = 0; i < 50; i++) {
            for (int k = 0; k < 5000; k += 99)
                ck_assert_int_eq(p[i][k], i);
            zr_buffer_free(p[i]);
        }
    }
}
END_TEST

START_TEST(idle_memory_stays_under_the_limit)
{
    void *p[8];
    zr_buffer_set_limit(10 * MIB);
    for (int i = 0; i < 8; i++)
        p[i] = zr_buffer_alloc(4 * MIB - 64);
    for (int i = 0; i < 8; i++) {
        zr_buffer_free(p[i]);
        ck_assert_uint_le(zr_buffer_idle_nbytes(), 10 * MIB);
    }
    ck_assert_uint_ge(zr_buffer_idle_nbytes(), 4 * MIB);
}
END_TEST

START_TEST(idle_bytes_count_what_the_system_gave)
{
    uint8_t *p = zr_buffer_alloc(2 * MIB); /* with its head a little over one huge page */
    zr_buffer_free(p);
    ck_assert_uint_ge(zr_buffer_idle_nbytes(), 4 * MIB);
    zr_buffer_set_limit(3 * MIB);
    ck_assert_uint_eq(zr_buffer_idle_nbytes(), 0);
}
END_TEST

START_TEST(a_block_over_the_limit_is_not_kept)
{
    zr_buffer_set_limit(MIB);
    zr_buffer_free(zr_buffer_alloc(8 * MIB));
    ck_assert_uint_eq(zr_buffer_idle_nbytes(), 0);
    zr_buffer_set_limit(0);
    zr_buffer_free(zr_buffer_alloc(1));
    ck_assert_uint_eq(zr_buffer_idle_nbytes(), 0);
}
END_TEST

START_TEST(trimming_keeps_at_most_what_was_asked)
{
    void *p[10];
    for (int i = 0; i < 10; i++)
        p[i] = zr_buffer_alloc(100000);
    for (int i = 0; i < 10; i++)
        zr_buffer_free(p[i]);
    size_t all = zr_buffer_idle_nbytes();
    ck_assert_uint_ge(all, 1000000);
    zr_buffer_trim(all / 2);
    ck_assert_uint_le(zr_buffer_idle_nbytes(), all / 2);
    ck_assert_uint_gt(zr_buffer_idle_nbytes(), 0);
    zr_buffer_trim(0);
    ck_assert_uint_eq(zr_buffer_idle_nbytes(), 0);
}
END_TEST

START_TEST(setting_the_limit_trims_at_once)
{
    zr_buffer_free(zr_buffer_alloc(MIB));
    zr_buffer_set_limit(1000);
    ck_assert_uint_eq(zr_buffer_idle_nbytes(), 0);
}
END_TEST

START_TEST(the_environment_sets_the_limit)
{
    setenv("ZRECORD_BUFFER_BYTES", "1000", 1);
    zr_buffer_free(zr_buffer_alloc(100));
    ck_assert_uint_gt(zr_buffer_idle_nbytes(), 0);
    zr_buffer_free(zr_buffer_alloc(2000));
    ck_assert_uint_le(zr_buffer_idle_nbytes(), 1000);
}
END_TEST

START_TEST(a_malformed_environment_is_ignored)
{
    setenv("ZRECORD_BUFFER_BYTES", "-5x", 1);
    zr_buffer_free(zr_buffer_alloc(MIB));
    ck_assert_uint_ge(zr_buffer_idle_nbytes(), MIB);
}
END_TEST

static void *churn(void *arg)
{
    unsigned seed = (unsigned)(uintptr_t)arg;
    for (int i = 0; i < 3000; i++) {
        size_t n = (size_t)rand_r(&seed) % 70000;
        uint8_t *p = zr_buffer_alloc(n + 1);
        p[0] = p[n] = (uint8_t)seed;
        if (i % 500 == 0)
            zr_buffer_trim(100000);
        if (p[0] != (uint8_t)seed || p[n] != (uint8_t)seed)
            abort();
        zr_buffer_free(p);
    }
    return NULL;
}

START_TEST(many_threads_share_the_pool)
{
    pthread_t t[8];
    for (uintptr_t i = 0; i < COUNT(t); i++)
        ck_assert(!pthread_create(&t[i], NULL, churn, (void *)(i + 1)));
    for (size_t i = 0; i < COUNT(t); i++)
        pthread_join(t[i], NULL);
    zr_buffer_trim(0);
    ck_assert_uint_eq(zr_buffer_idle_nbytes(), 0);
}
END_TEST

static atomic_bool stop;

static void *churn_until_stopped(void *arg)
{
    (void)arg;
    while (!atomic_load(&stop))
        zr_buffer_free(zr_buffer_alloc(1000));
    return NULL;
}

START_TEST(a_child_forked_while_others_allocate_does_not_hang)
{
    pthread_t t;
    skip_fork_of_threads();
    ck_assert(!pthread_create(&t, NULL, churn_until_stopped, NULL));
    for (int i = 0; i < 50; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(10);
            for (int k = 0; k < 20; k++)
                zr_buffer_free(zr_buffer_alloc(1000));
            _exit(0);
        }
        int status;
        ck_assert(waitpid(child, &status, 0) == child);
        ck_assert_msg(WIFEXITED(status) && !WEXITSTATUS(status), "child %d: %#x", i, status);
    }
    atomic_store(&stop, true);
    pthread_join(t, NULL);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        zero_bytes_give_a_block,
        freeing_null_does_nothing,
        blocks_are_aligned_and_writable_to_their_end,
        no_class_is_smaller_than_the_request,
        sizes_up_to_8_gib_are_mapped_to_their_last_byte,
        sizes_beyond_all_memory_give_null,
        a_freed_block_comes_back_for_the_same_size,
        the_block_used_last_comes_back_first,
        live_blocks_are_exclusive,
        idle_memory_stays_under_the_limit,
        idle_bytes_count_what_the_system_gave,
        a_block_over_the_limit_is_not_kept,
        trimming_keeps_at_most_what_was_asked,
        setting_the_limit_trims_at_once,
        the_environment_sets_the_limit,
        a_malformed_environment_is_ignored,
        many_threads_share_the_pool,
        a_child_forked_while_others_allocate_does_not_hang,
    };
    return run_tests("buffer", tests, COUNT(tests), 60);
}
