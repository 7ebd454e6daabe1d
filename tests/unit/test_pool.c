/* SPDX-License-Identifier: MIT
 *
 * Threads for parallel loops (engine/pool.c).
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#include "support.h"

enum { MANY = 5000 };

static void check_child(pid_t child)
{
    int status;
    ck_assert(child > 0 && waitpid(child, &status, 0) == child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "child ended with %#x", status);
}

struct tally {
    atomic_uint times[MANY];
    atomic_uint running, most;
};

static void count_once(void *ctx, size_t i)
{
    struct tally *t = ctx;
    atomic_fetch_add(&t->times[i], 1);
}

static void check_tally(struct tally *t, size_t count)
{
    for (size_t i = 0; i < MANY; i++)
        ck_assert_msg(atomic_load(&t->times[i]) == (i < count), "index %zu ran %u times", i,
                      atomic_load(&t->times[i]));
}

START_TEST(every_index_runs_exactly_once)
{
    static const size_t counts[] = {0, 1, 2, 3, 7, 100, MANY};
    zr_set_thread_count(4);
    for (size_t i = 0; i < COUNT(counts); i++)
        for (unsigned threads = 0; threads < 6; threads++) {
            struct tally *t = calloc(1, sizeof *t);
            zri_parallel(counts[i], threads, count_once, t);
            check_tally(t, counts[i]);
            free(t);
        }
}
END_TEST

static void count_running(void *ctx, size_t i)
{
    struct tally *t = ctx;
    unsigned now = atomic_fetch_add(&t->running, 1) + 1, most = atomic_load(&t->most);
    while (now > most && !atomic_compare_exchange_weak(&t->most, &most, now))
        ;
    usleep(2000);
    atomic_fetch_sub(&t->running, 1);
    (void)i;
}

static unsigned most_at_once(size_t count, unsigned threads)
{
    struct tally *t = calloc(1, sizeof *t);
    zri_parallel(count, threads, count_running, t);
    unsigned most = atomic_load(&t->most);
    free(t);
    return most;
}

START_TEST(loops_really_run_in_parallel)
{
    zr_set_thread_count(4);
    ck_assert_uint_gt(most_at_once(64, 4), 1);
}
END_TEST

START_TEST(no_more_threads_than_asked)
{
    zr_set_thread_count(8);
    most_at_once(64, 8); /* starts them all */
    ck_assert_uint_le(most_at_once(64, 3), 3);
    zr_set_thread_count(2);
    ck_assert_uint_le(most_at_once(64, 100), 2);
    zr_set_thread_count(1);
    ck_assert_uint_eq(most_at_once(8, 100), 1);
}
END_TEST

struct outer {
    struct tally inner[8];
};

static void run_inner(void *ctx, size_t i)
{
    struct outer *o = ctx;
    zri_parallel(500, 4, count_once, &o->inner[i]);
}

START_TEST(a_loop_inside_a_loop_does_not_hang)
{
    struct outer *o = calloc(1, sizeof *o);
    zr_set_thread_count(3);
    zri_parallel(8, 3, run_inner, o);
    for (int i = 0; i < 8; i++)
        check_tally(&o->inner[i], 500);
    free(o);
}
END_TEST

static void add_one(void *ctx, size_t i)
{
    (void)i;
    atomic_fetch_add((atomic_uint *)ctx, 1);
}

static void *call_loops(void *unused)
{
    (void)unused;
    for (int i = 0; i < 60; i++) {
        atomic_uint sum = 0;
        zri_parallel(37, 4, add_one, &sum);
        if (atomic_load(&sum) != 37)
            abort();
    }
    return NULL;
}

START_TEST(many_callers_at_once_all_finish)
{
    pthread_t t[8];
    zr_set_thread_count(4);
    for (size_t i = 0; i < COUNT(t); i++)
        ck_assert(!pthread_create(&t[i], NULL, call_loops, NULL));
    for (size_t i = 0; i < COUNT(t); i++)
        pthread_join(t[i], NULL);
}
END_TEST

static void write_plainly(void *ctx, size_t i)
{
    ((unsigned *)ctx)[i] = (unsigned)i;
}

START_TEST(plain_writes_of_tasks_are_seen_by_the_caller)
{
    static unsigned values[MANY];
    zr_set_thread_count(4);
    for (int round = 0; round < 5; round++) {
        memset(values, 0xff, sizeof values);
        zri_parallel(MANY, 4, write_plainly, values);
        for (size_t i = 0; i < MANY; i++)
            ck_assert(values[i] == i);
    }
}
END_TEST

START_TEST(the_environment_sets_the_count)
{
    setenv("ZRECORD_THREADS", "5", 1);
    ck_assert_uint_eq(zr_thread_count(), 5);
}
END_TEST

START_TEST(a_huge_environment_value_is_capped)
{
    setenv("ZRECORD_THREADS", "1000000", 1);
    ck_assert_uint_le(zr_thread_count(), 1024);
    ck_assert_uint_ge(zr_thread_count(), 64);
}
END_TEST

START_TEST(malformed_environment_values_are_ignored)
{
    static const char *const bad[] = {"", "0", "-3", "four", "4x", "99999999999999999999"};
    for (size_t i = 0; i < COUNT(bad); i++) {
        pid_t child = fork(); /* the value is read once a process */
        if (child == 0) {
            setenv("ZRECORD_THREADS", bad[i], 1);
            unsigned n = zr_thread_count();
            _exit(n < 1 || n > (unsigned)sysconf(_SC_NPROCESSORS_ONLN));
        }
        check_child(child);
    }
}
END_TEST

START_TEST(the_default_follows_the_affinity_mask)
{
    cpu_set_t set;
    unsetenv("ZRECORD_THREADS");
    ck_assert(!sched_getaffinity(0, sizeof set, &set));
    int first = 0;
    while (!CPU_ISSET(first, &set))
        first++;
    CPU_ZERO(&set);
    CPU_SET(first, &set);
    ck_assert(!sched_setaffinity(0, sizeof set, &set));
    ck_assert_uint_eq(zr_thread_count(), 1);
}
END_TEST

START_TEST(the_override_wins_and_zero_restores_the_default)
{
    setenv("ZRECORD_THREADS", "3", 1);
    zr_set_thread_count(7);
    ck_assert_uint_eq(zr_thread_count(), 7);
    zr_set_thread_count(0);
    ck_assert_uint_eq(zr_thread_count(), 3);
    zr_set_thread_count(UINT32_MAX);
    ck_assert_uint_le(zr_thread_count(), 1024);
}
END_TEST

static int run_one_loop(void)
{
    atomic_uint sum = 0;
    zri_parallel(1000, 4, add_one, &sum);
    return atomic_load(&sum) != 1000;
}

START_TEST(a_forked_child_makes_its_own_threads)
{
    skip_fork_of_threads();
    zr_set_thread_count(4);
    ck_assert_int_eq(run_one_loop(), 0);
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        _exit(run_one_loop() || most_at_once(64, 4) < 2);
    }
    check_child(child);
    ck_assert_int_eq(run_one_loop(), 0);
}
END_TEST

START_TEST(a_child_forked_while_others_loop_does_not_hang)
{
    pthread_t t[3];
    skip_fork_of_threads();
    zr_set_thread_count(4);
    for (size_t i = 0; i < COUNT(t); i++)
        ck_assert(!pthread_create(&t[i], NULL, call_loops, NULL));
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(20);
            _exit(run_one_loop());
        }
        check_child(child);
    }
    for (size_t i = 0; i < COUNT(t); i++)
        pthread_join(t[i], NULL);
}
END_TEST

static void note_if_signals_pass(void *ctx, size_t i)
{
    sigset_t set;
    pthread_sigmask(SIG_SETMASK, NULL, &set);
    if (!pthread_equal(pthread_self(), *(pthread_t *)ctx) &&
        (!sigismember(&set, SIGTERM) || !sigismember(&set, SIGALRM) || sigismember(&set, SIGBUS)))
        abort();
    usleep(1000);
    (void)i;
}

START_TEST(workers_leave_signals_to_the_program)
{
    pthread_t self = pthread_self();
    zr_set_thread_count(4);
    zri_parallel(64, 4, note_if_signals_pass, &self);
}
END_TEST

static int64_t cpu_nsec(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec * (int64_t)1000000000 + t.tv_nsec;
}

START_TEST(workers_stay_awake_only_for_a_moment)
{
    struct tally t = {0};
    zr_set_thread_count(8);
    zri_parallel(MANY, 8, count_once, &t);
    usleep(100000); /* long after the last worker ran out of work */
    ck_assert_uint_eq(zri_awake_threads(), 0);
    int64_t before = cpu_nsec();
    usleep(300000);
    ck_assert_int_lt(cpu_nsec() - before, 30000000);
}
END_TEST

/* Whether one is awake is a matter of luck; that it does the work right is not. */
START_TEST(short_loops_in_quick_succession_run_right)
{
    static struct tally t;
    zr_set_thread_count(4);
    for (unsigned round = 1; round <= 3000; round++) {
        zri_parallel(16, 1 + zri_awake_threads(), count_once, &t);
        for (size_t i = 0; i < 16; i++)
            ck_assert_uint_eq(atomic_load(&t.times[i]), round);
    }
    zr_set_thread_count(1);
    ck_assert_uint_eq(zri_awake_threads(), 0);
}
END_TEST

static void note_affinity(void *ctx, size_t i)
{
    (void)i;
    cpu_set_t set;
    ck_assert_int_eq(sched_getaffinity(0, sizeof set, &set), 0);
    if (CPU_COUNT(&set) > 1)
        atomic_fetch_add((atomic_size_t *)ctx, 1);
    usleep(1000);
}

static void *loop_bound_to_a_cpu(void *ctx)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(sched_getcpu(), &set);
    ck_assert_int_eq(sched_setaffinity(0, sizeof set, &set), 0);
    zri_parallel(200, 4, note_affinity, ctx);
    return NULL;
}

/* Made by a mount's thread that was bound to a reader's CPU, the workers all had that one. */
START_TEST(workers_started_early_have_the_cpus_of_the_starter)
{
    static atomic_size_t free_count;
    pthread_t bound;
    cpu_set_t set;
    sched_getaffinity(0, sizeof set, &set);
    zr_set_thread_count(4);
    zr_start_threads();
    zr_start_threads(); /* they are there already */
    pthread_create(&bound, NULL, loop_bound_to_a_cpu, &free_count);
    pthread_join(bound, NULL);
    if (CPU_COUNT(&set) > 1)
        ck_assert_uint_gt(atomic_load(&free_count), 0);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        every_index_runs_exactly_once,
        loops_really_run_in_parallel,
        no_more_threads_than_asked,
        a_loop_inside_a_loop_does_not_hang,
        many_callers_at_once_all_finish,
        plain_writes_of_tasks_are_seen_by_the_caller,
        the_environment_sets_the_count,
        a_huge_environment_value_is_capped,
        malformed_environment_values_are_ignored,
        the_default_follows_the_affinity_mask,
        the_override_wins_and_zero_restores_the_default,
        a_forked_child_makes_its_own_threads,
        a_child_forked_while_others_loop_does_not_hang,
        workers_leave_signals_to_the_program,
        workers_stay_awake_only_for_a_moment,
        short_loops_in_quick_succession_run_right,
        workers_started_early_have_the_cpus_of_the_starter,
    };
    return run_tests("pool", tests, COUNT(tests), 60);
}
