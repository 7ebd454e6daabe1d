/* SPDX-License-Identifier: MIT
 *
 * Courtesy: threads step aside, and are helped when that makes them starve.
 */
#include "courtesy.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

#include "support.h"

static struct courtesy *new_or_null(unsigned seats)
{
    struct courtesy *c = courtesy_new(seats);
    if (!c)
        ck_assert_msg(geteuid() != 0 || getenv("ZRECORD_NO_NICE"), "root may change classes");
    return c;
}

START_TEST(a_thread_steps_aside_and_comes_back)
{
    struct courtesy *c = new_or_null(1);
    struct courtesy_seat *seat = courtesy_join(c);
    courtesy_note(seat); /* NULL does nothing, as in all of these */
    courtesy_set(seat, true);
    if (c) {
        ck_assert_int_eq(sched_getscheduler(0), SCHED_IDLE);
        ck_assert_ptr_null(courtesy_join(c)); /* all seats are taken */
    }
    courtesy_set(seat, false);
    ck_assert_int_eq(sched_getscheduler(0), SCHED_OTHER);
    courtesy_free(c);
}
END_TEST

static void bind_to_cpu(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    ck_assert_int_eq(sched_setaffinity(0, sizeof set, &set), 0);
}

struct rival {
    int cpu;
    struct courtesy *courtesy;
    atomic_bool stop, is_served;
};

static void *burn(void *arg)
{
    struct rival *r = arg;
    bind_to_cpu(r->cpu);
    while (!atomic_load(&r->stop))
        ;
    return NULL;
}

/* Serves on and off, until the rivals have taken its CPU; then it has to come back. */
static void *serve(void *arg)
{
    struct rival *r = arg;
    bind_to_cpu(r->cpu);
    struct courtesy_seat *seat = courtesy_join(r->courtesy);
    courtesy_set(seat, true);
    for (int i = 0; i < 400; i++) {
        courtesy_note(seat);
        usleep(500);
    }
    atomic_store(&r->is_served, true);
    return NULL;
}

/* With the idle class alone it would have a three-hundredth of the CPU. */
START_TEST(a_starving_thread_is_put_back)
{
    struct rival r = {.cpu = sched_getcpu(), .courtesy = new_or_null(1)};
    pthread_t server, rivals[2];
    for (int i = 0; i < 2; i++)
        pthread_create(&rivals[i], NULL, burn, &r);
    pthread_create(&server, NULL, serve, &r);
    pthread_join(server, NULL);
    ck_assert(atomic_load(&r.is_served));
    atomic_store(&r.stop, true);
    for (int i = 0; i < 2; i++)
        pthread_join(rivals[i], NULL);
    courtesy_free(r.courtesy);
}
END_TEST

static void work_for(int64_t msec, int expected_class)
{
    struct timespec now, start;
    clock_gettime(CLOCK_MONOTONIC, &start);
    do {
        ck_assert_int_eq(sched_getscheduler(0), expected_class);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000 < msec);
}

/* A request of many periods was put back once, set aside again after 50 ms, and then never
 * looked at any more: on a busy machine its decode took a minute. */
START_TEST(a_long_request_is_not_set_aside_again)
{
    struct courtesy *c = new_or_null(1);
    struct courtesy_seat *seat = courtesy_join(c);
    courtesy_set(seat, true);
    courtesy_note(seat);
    while (sched_getscheduler(0) != SCHED_OTHER)
        ;
    work_for(500, SCHED_OTHER);
    courtesy_free(c);
}
END_TEST

static void await_class(int expected)
{
    while (sched_getscheduler(0) != expected)
        usleep(1000); /* the test's timeout bounds it */
}

/* A thread of the idle class that is asked after a pause, or told to end, got no CPU for
 * seconds where others burnt them all: unmounting took ten. */
START_TEST(nobody_is_set_aside_while_nothing_is_served)
{
    struct courtesy *c = new_or_null(1);
    struct courtesy_seat *seat = courtesy_join(c);
    courtesy_set(seat, true);
    for (int i = 0; i < 3; i++) {
        while (c && sched_getscheduler(0) != SCHED_IDLE) {
            courtesy_note(seat);
            usleep(1000);
        }
        await_class(SCHED_OTHER);
    }
    courtesy_set(seat, false);
    courtesy_set(seat, true);
    ck_assert_int_eq(sched_getscheduler(0), SCHED_OTHER);
    courtesy_free(c);
}
END_TEST

START_TEST(at_the_end_all_are_in_the_normal_class)
{
    struct courtesy *c = new_or_null(1);
    struct courtesy_seat *seat = courtesy_join(c);
    courtesy_note(seat);
    courtesy_set(seat, true);
    courtesy_end(c);
    for (int i = 0; i < 20; i++) {
        ck_assert_int_eq(sched_getscheduler(0), SCHED_OTHER);
        courtesy_note(seat);
        usleep(1000);
    }
    courtesy_free(c);
    courtesy_end(NULL);
}
END_TEST

START_TEST(it_ends_with_and_without_seats)
{
    for (int i = 0; i < 20; i++)
        courtesy_free(courtesy_new(4));
    courtesy_free(NULL);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        a_thread_steps_aside_and_comes_back,    a_starving_thread_is_put_back,
        a_long_request_is_not_set_aside_again,  nobody_is_set_aside_while_nothing_is_served,
        at_the_end_all_are_in_the_normal_class, it_ends_with_and_without_seats,
    };
    return run_tests("fs_courtesy", tests, COUNT(tests), 60);
}
