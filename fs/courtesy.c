/* SPDX-License-Identifier: MIT
 *
 * The idle class for threads that answer, and the watcher over them (courtesy.h).
 *
 * The watcher counts what each seat serves.  A seat that serves nothing for a
 * period is either asleep, because nobody asks, or runnable and starved.  Then, or
 * when the machine has more to do than CPUs, all return to the normal class, for a
 * time that doubles with each such event.  Nobody is in the idle class while the
 * watcher sleeps: on a busy machine a first request, or the end of the mount, would
 * wait for seconds.
 */
#include "courtesy.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    CPU_FIELD = 39,     /* of /proc/PID/stat */
    QUIET_PERIODS = 10, /* without a request, after which the watcher sleeps */
    STUCK_PERIODS = 2,  /* after which a seat is starved: one may be chance */
    STACK_NBYTES = 256 << 10
};
static const int64_t NSEC_PER_SEC = 1000000000;
static const int64_t PERIOD_NSEC = 3000000;
static const int64_t FIRST_PENALTY_NSEC = 50000000, LAST_PENALTY_NSEC = 8000000000;
static const int64_t GOOD_NSEC = 2000000000; /* without starving: the penalty is forgotten */

struct courtesy_seat {
    _Alignas(64) _Atomic uint64_t served_count;
    struct courtesy *courtesy;
    /* lock */
    pid_t tid;
    bool steps_aside;     /* wants to */
    bool is_aside;        /* does */
    bool is_at_work;      /* runnable, and nothing new served for a period */
    unsigned stuck_count; /* such periods in a row, set aside */
    uint64_t seen_count;
};

struct courtesy {
    atomic_bool is_asleep; /* the watcher waits for a first request */
    pthread_mutex_t lock;  /* everything below */
    pthread_cond_t changed;
    pthread_t watcher;
    bool is_stopping;
    bool is_over; /* nobody steps aside any more */
    unsigned seat_count, joined_count, quiet_count;
    unsigned crowded_count; /* periods in a row with more work than CPUs */
    int64_t normal_until;   /* a penalty runs until then */
    int64_t penalty_nsec;
    int64_t starved_nsec; /* when somebody did last */
    struct courtesy_seat *seats;
};

static int64_t now_nsec(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * NSEC_PER_SEC + now.tv_nsec;
}

static bool set_class(pid_t tid, bool is_idle)
{
    const struct sched_param param = {0};
    return sched_setscheduler(tid, is_idle ? SCHED_IDLE : SCHED_OTHER, &param) == 0;
}

/* ---------------------------------------------------------------- seats, lock held */

static void place(struct courtesy_seat *s, bool is_aside)
{
    if (s->is_aside != is_aside && set_class(s->tid, is_aside))
        s->is_aside = is_aside;
}

static void place_all(struct courtesy *c, bool is_allowed)
{
    for (unsigned i = 0; i < c->joined_count; i++) {
        struct courtesy_seat *s = &c->seats[i];
        /* A long request that was late once is ended in the normal class. */
        bool is_late = s->is_at_work && !s->is_aside;
        place(s, is_allowed && !c->is_over && s->steps_aside && !is_late);
    }
}

/* Has a CPU or waits for one. */
static bool is_runnable(const struct courtesy_seat *s)
{
    char path[64], text[256];
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)s->tid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t nbytes = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0)
        close(fd);
    if (nbytes <= 0)
        return false;
    text[nbytes] = '\0';
    const char *end = strrchr(text, ')');
    return end && end[1] == ' ' && end[2] == 'R';
}

/* How many tasks of the whole machine want a CPU now; 0 where that cannot be read. */
static long runnable_count(void)
{
    char text[128];
    int fd = open("/proc/loadavg", O_RDONLY | O_CLOEXEC);
    ssize_t nbytes = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0)
        close(fd);
    if (nbytes <= 0)
        return 0;
    text[nbytes] = '\0';
    const char *field = text; /* "0.20 0.18 0.12 RUNNABLE/ALL LAST" */
    for (int i = 0; field && i < 3; i++)
        field = strchr(field + 1, ' ');
    return field ? strtol(field, NULL, 10) : 0;
}

/* There is more to do than there are CPUs: then stepping aside means being late.  A seat
 * and its reader are busy in turn, and count once; the watcher does not. */
static bool is_crowded(unsigned active_count)
{
    return runnable_count() - 1 - (long)active_count > sysconf(_SC_NPROCESSORS_ONLN);
}

static void punish(struct courtesy *c, int64_t now)
{
    bool is_new = now - c->starved_nsec > GOOD_NSEC + c->penalty_nsec;
    c->penalty_nsec = is_new ? FIRST_PENALTY_NSEC : c->penalty_nsec * 2;
    if (c->penalty_nsec > LAST_PENALTY_NSEC)
        c->penalty_nsec = LAST_PENALTY_NSEC;
    c->starved_nsec = now;
    c->normal_until = now + c->penalty_nsec;
    place_all(c, false);
}

/* True when there may be more to see in the next period. */
static bool look_at(struct courtesy_seat *s, bool *is_starved)
{
    uint64_t served = atomic_load_explicit(&s->served_count, memory_order_relaxed);
    bool is_active = served != s->seen_count;
    s->is_at_work = !is_active && is_runnable(s);
    s->stuck_count = s->is_at_work && s->is_aside ? s->stuck_count + 1 : 0;
    *is_starved |= s->stuck_count >= STUCK_PERIODS;
    s->seen_count = served;
    return is_active || s->is_at_work;
}

/* One period. */
static void look(struct courtesy *c, int64_t now)
{
    bool is_starved = false;
    unsigned active_count = 0;
    for (unsigned i = 0; i < c->joined_count; i++)
        active_count += look_at(&c->seats[i], &is_starved);
    c->quiet_count = active_count ? 0 : c->quiet_count + 1;
    c->crowded_count = active_count && is_crowded(active_count) ? c->crowded_count + 1 : 0;
    if (is_starved || c->crowded_count >= STUCK_PERIODS)
        punish(c, now);
    else if (now >= c->normal_until && c->crowded_count == 0)
        place_all(c, true);
}

/* ---------------------------------------------------------------- the watcher */

/* Something was served that was not looked at yet. */
static bool has_news(const struct courtesy *c)
{
    for (unsigned i = 0; i < c->joined_count; i++)
        if (atomic_load(&c->seats[i].served_count) != c->seats[i].seen_count)
            return true;
    return false;
}

static void sleep_until_asked(struct courtesy *c)
{
    atomic_store(&c->is_asleep, true);
    if (has_news(c)) /* from before: nobody would wake it for that */
        atomic_store(&c->is_asleep, false);
    else
        place_all(c, false);
    while (atomic_load(&c->is_asleep) && !c->is_stopping)
        pthread_cond_wait(&c->changed, &c->lock);
    c->quiet_count = 0;
}

static void sleep_period(struct courtesy *c, int64_t now)
{
    /* While all are in the normal class there is nothing to look for. */
    int64_t until = now + PERIOD_NSEC;
    if (until < c->normal_until)
        until = c->normal_until;
    const struct timespec at = {.tv_sec = until / NSEC_PER_SEC, .tv_nsec = until % NSEC_PER_SEC};
    pthread_cond_timedwait(&c->changed, &c->lock, &at);
}

static void *watch(void *arg)
{
    struct courtesy *c = arg;
    pthread_setname_np(pthread_self(), "zrecordfs-watch");
    pthread_mutex_lock(&c->lock);
    while (!c->is_stopping) {
        if (c->quiet_count >= QUIET_PERIODS)
            sleep_until_asked(c);
        else
            sleep_period(c, now_nsec());
        look(c, now_nsec());
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* ---------------------------------------------------------------- the threads */

struct courtesy_seat *courtesy_join(struct courtesy *c)
{
    struct courtesy_seat *seat = NULL;
    if (!c)
        return NULL;
    pthread_mutex_lock(&c->lock);
    if (c->joined_count < c->seat_count) {
        seat = &c->seats[c->joined_count++];
        seat->courtesy = c;
        seat->tid = gettid();
    }
    pthread_mutex_unlock(&c->lock);
    return seat;
}

void courtesy_set(struct courtesy_seat *seat, bool steps_aside)
{
    if (!seat || seat->steps_aside == steps_aside) /* only this thread changes it */
        return;
    struct courtesy *c = seat->courtesy;
    pthread_mutex_lock(&c->lock);
    seat->steps_aside = steps_aside;
    bool is_watched = !atomic_load(&c->is_asleep) && now_nsec() >= c->normal_until;
    place(seat, steps_aside && is_watched && !c->is_over);
    pthread_mutex_unlock(&c->lock);
}

bool courtesy_allows(struct courtesy_seat *seat)
{
    struct courtesy *c = seat->courtesy;
    pthread_mutex_lock(&c->lock);
    bool is_allowed = !c->is_over && now_nsec() >= c->normal_until;
    pthread_mutex_unlock(&c->lock);
    return is_allowed;
}

int courtesy_cpu_of(uint32_t tid)
{
    char path[32], text[512];
    snprintf(path, sizeof path, "/proc/%u/stat", tid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t nbytes = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0)
        close(fd);
    if (nbytes <= 0)
        return -1;
    text[nbytes] = '\0';
    const char *field = strrchr(text, ')'); /* ends the second field */
    for (int i = 2; field && i < CPU_FIELD; i++)
        field = strchr(field + 1, ' ');
    return field ? (int)strtol(field + 1, NULL, 10) : -1;
}

static _Thread_local bool is_near_reader;

void courtesy_set_near(bool is_near)
{
    is_near_reader = is_near;
}

int courtesy_reader_cpu(void)
{
    return is_near_reader ? sched_getcpu() : -1;
}

void courtesy_end(struct courtesy *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&c->lock);
    c->is_over = true;
    place_all(c, false);
    pthread_mutex_unlock(&c->lock);
}

static void wake_watcher(struct courtesy *c)
{
    pthread_mutex_lock(&c->lock);
    atomic_store(&c->is_asleep, false);
    pthread_cond_signal(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

void courtesy_note(struct courtesy_seat *seat)
{
    if (!seat)
        return;
    /* In one order with what sleep_until_asked does: it sees the one or this the other. */
    atomic_fetch_add(&seat->served_count, 1);
    if (atomic_load(&seat->courtesy->is_asleep))
        wake_watcher(seat->courtesy);
}

/* ---------------------------------------------------------------- lifecycle */

static void *try_classes(void *arg)
{
    bool *may = arg;
    *may = set_class(0, true) && set_class(0, false);
    return NULL;
}

static int start_thread(pthread_t *thread, void *(*run)(void *), void *arg)
{
    pthread_attr_t attr;
    sigset_t all, before;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_NBYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failure = pthread_create(thread, &attr, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return failure;
}

/* On a thread of its own, which would otherwise stay in the idle class. */
static bool may_return(void)
{
    bool may = false;
    pthread_t thread;
    if (start_thread(&thread, try_classes, &may) != 0)
        return false;
    pthread_join(thread, NULL);
    return may;
}

static struct courtesy *allocate(unsigned seat_count)
{
    struct courtesy *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->seats = aligned_alloc(_Alignof(struct courtesy_seat), seat_count * sizeof *c->seats);
    if (!c->seats) {
        free(c);
        return NULL;
    }
    memset(c->seats, 0, seat_count * sizeof *c->seats);
    c->seat_count = seat_count;
    c->quiet_count = QUIET_PERIODS;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&c->changed, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&c->lock, NULL);
    return c;
}

static void release(struct courtesy *c)
{
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    free(c->seats);
    free(c);
}

struct courtesy *courtesy_new(unsigned seat_count)
{
    struct courtesy *c = may_return() ? allocate(seat_count) : NULL;
    if (c && start_thread(&c->watcher, watch, c) != 0) {
        release(c);
        c = NULL;
    }
    return c;
}

void courtesy_free(struct courtesy *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&c->lock);
    c->is_stopping = true;
    pthread_cond_signal(&c->changed);
    pthread_mutex_unlock(&c->lock);
    pthread_join(c->watcher, NULL);
    release(c);
}
