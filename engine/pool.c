/* SPDX-License-Identifier: MIT
 *
 * Threads for parallel loops.  One process-wide set of workers, started when
 * first needed.  Several callers may run loops at once; each caller works on its
 * own loop too, so progress never depends on a worker being free, and a loop
 * inside a loop cannot deadlock.  After fork the child starts with no workers
 * and makes its own.
 *
 * Waking a sleeping worker costs tens of microseconds on a virtual machine, as
 * long as a small batch takes.  So a worker that ran out of work stays awake for
 * AWAKE_NSEC before it sleeps, a caller waits as long for the last worker before
 * it sleeps, and small batches are shared with workers that are awake anyway.
 * Where small batches come in quick succession, one is woken ahead of them.
 */
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

#include "internal.h"

#define AWAKE_NSEC 60000
#define AHEAD_NSEC 200000   /* of one woken ahead: its first batch may be that far off */
#define QUICK_NSEC 200000   /* from start to start of batches in quick succession */
#define QUICK_COUNT 3       /* of them before a worker is woken ahead */
#define QUICK_COUNT_MAX 768 /* as many where waking came to nothing again and again */
#define LOOKS_PER_CLOCK 64
#define LOOK_NSEC 50000000 /* between looks of a caller that waits */
#define STACK_NBYTES ((size_t)512 << 10)

struct job {
    zri_task_fn fn;
    void *ctx;
    size_t count;
    atomic_size_t next;  /* next index to hand out */
    unsigned wanted;     /* workers that may still join; under lock */
    atomic_uint active;  /* workers inside; changed under lock */
    pthread_cond_t left; /* active became 0 */
    struct job *link;
    void (*look)(void *); /* of a caller that waits; NULL: none */
    void *look_ctx;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER;
static struct job *jobs;                       /* that want workers; under lock */
static unsigned worker_count;                  /* under lock */
static unsigned asleep_count;                  /* under lock */
static atomic_uint awake_count;                /* workers that look for work without sleeping */
static atomic_uint offer_count;                /* changed under lock: what they look at */
static atomic_uint quick_wanted = QUICK_COUNT; /* batches before a worker is woken ahead */
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static _Thread_local bool keep_small;

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork_parent(void)
{
    pthread_mutex_unlock(&lock);
}

static void after_fork_child(void)
{
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&work, NULL);
    jobs = NULL;
    worker_count = asleep_count = 0;
    atomic_store(&awake_count, 0);
}

static void install_fork_handlers(void)
{
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

static void run_tasks(struct job *j)
{
    for (size_t i; (i = atomic_fetch_add(&j->next, 1)) < j->count;)
        j->fn(j->ctx, i);
}

/* The first job that wants a worker, with the worker counted in.  Under lock. */
static struct job *join_job(void)
{
    struct job *j = jobs;
    if (!j)
        return NULL;
    j->active++;
    if (--j->wanted == 0)
        jobs = j->link;
    return j;
}

static int64_t now_nsec(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * (int64_t)1000000000 + t.tv_nsec;
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Looks at *value for a while; whether it differed from `from` in that time. */
static bool watch(const atomic_uint *value, unsigned from, int64_t nsec)
{
    int64_t until = now_nsec() + nsec;
    do {
        for (int i = 0; i < LOOKS_PER_CLOCK; i++) {
            if (atomic_load_explicit(value, memory_order_acquire) != from)
                return true;
            relax();
        }
    } while (now_nsec() < until);
    return false;
}

/* Returns when there may be work.  Enters and leaves with the lock held. */
static void wait_for_work(int64_t awake_nsec)
{
    unsigned seen = atomic_load(&offer_count);
    atomic_fetch_add(&awake_count, 1);
    pthread_mutex_unlock(&lock);
    watch(&offer_count, seen, awake_nsec);
    pthread_mutex_lock(&lock);
    atomic_fetch_sub(&awake_count, 1);
    if (atomic_load(&offer_count) == seen) {
        asleep_count++;
        pthread_cond_wait(&work, &lock);
        asleep_count--;
    }
}

static void *worker_main(void *unused)
{
    (void)unused;
    int64_t awake_nsec = AHEAD_NSEC; /* woken, and no work yet: it is to come */
    pthread_mutex_lock(&lock);
    for (;;) {
        struct job *j = join_job();
        if (!j) {
            wait_for_work(awake_nsec);
            awake_nsec = AHEAD_NSEC;
            continue;
        }
        pthread_mutex_unlock(&lock);
        run_tasks(j);
        awake_nsec = AWAKE_NSEC;
        pthread_mutex_lock(&lock);
        if (atomic_fetch_sub(&j->active, 1) == 1)
            pthread_cond_signal(&j->left);
    }
    return NULL;
}

/* Signals stay with the threads that the program made. */
int zri_thread_start(pthread_t *t, const char *name, void *(*fn)(void *), void *arg)
{
    sigset_t all, old;
    sigfillset(&all);
    sigdelset(&all, SIGBUS); /* raised by the thread itself: io.c answers it */
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGFPE);
    sigdelset(&all, SIGILL);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_NBYTES);
    int rc = pthread_create(t, &attr, fn, arg);
    if (!rc)
        pthread_setname_np(*t, name);
    pthread_attr_destroy(&attr);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

/* Under lock. */
static void start_worker(void)
{
    pthread_t t;
    if (zri_thread_start(&t, "zrecord", worker_main, NULL))
        return;
    pthread_detach(t);
    worker_count++;
}

/* Wakes or starts as many workers as are missing.  Under lock. */
static void call_workers(unsigned missing)
{
    for (unsigned asleep = asleep_count; missing && asleep; missing--, asleep--)
        pthread_cond_signal(&work);
    while (missing-- && worker_count + 1 < zr_thread_count())
        start_worker();
}

void zr_start_threads(void)
{
    pthread_once(&fork_once, install_fork_handlers);
    pthread_mutex_lock(&lock);
    for (unsigned before = UINT_MAX;
         worker_count != before && worker_count + 1 < zr_thread_count();) {
        before = worker_count;
        start_worker();
    }
    pthread_mutex_unlock(&lock);
}

static void offer(struct job *j, unsigned helpers)
{
    pthread_once(&fork_once, install_fork_handlers);
    pthread_mutex_lock(&lock);
    j->wanted = helpers;
    j->link = jobs;
    jobs = j;
    atomic_fetch_add(&offer_count, 1);
    unsigned awake = atomic_load(&awake_count);
    call_workers(helpers > awake ? helpers - awake : 0);
    pthread_mutex_unlock(&lock);
}

/* Sleeps until the last worker left, perhaps only for a while.  Enters and leaves with
 * the lock held. */
static void wait_for_workers(struct job *j)
{
    if (!j->look) {
        pthread_cond_wait(&j->left, &lock);
        return;
    }
    int64_t until = now_nsec() + LOOK_NSEC;
    const struct timespec t = {until / 1000000000, until % 1000000000};
    if (pthread_cond_clockwait(&j->left, &lock, CLOCK_MONOTONIC, &t) == 0)
        return;
    pthread_mutex_unlock(&lock);
    j->look(j->look_ctx);
    pthread_mutex_lock(&lock);
}

/* Takes the job back and waits for the workers inside. */
static void withdraw(struct job *j)
{
    pthread_mutex_lock(&lock);
    for (struct job **p = &jobs; *p; p = &(*p)->link)
        if (*p == j) {
            *p = j->link;
            break;
        }
    unsigned active = atomic_load(&j->active);
    if (active) { /* at most one task each: likely done at once */
        pthread_mutex_unlock(&lock);
        while (active && watch(&j->active, active, AWAKE_NSEC))
            active = atomic_load(&j->active);
        pthread_mutex_lock(&lock);
    }
    while (atomic_load(&j->active))
        wait_for_workers(j);
    pthread_mutex_unlock(&lock);
}

/* A caller that cannot share this batch; wakes a worker for those to come. */
static void note_quick_batch(void)
{
    static _Atomic int64_t last_nsec;
    static atomic_uint count;
    int64_t now = now_nsec(), last = atomic_exchange(&last_nsec, now);
    if (now - last > QUICK_NSEC) {
        atomic_store(&count, 0);
        return;
    }
    unsigned wanted = atomic_load(&quick_wanted);
    if (atomic_fetch_add(&count, 1) + 1 < wanted)
        return;
    atomic_store(&count, 0);
    atomic_store(&quick_wanted, wanted < QUICK_COUNT_MAX ? wanted * 2 : wanted);
    pthread_once(&fork_once, install_fork_handlers);
    pthread_mutex_lock(&lock);
    call_workers(1);
    pthread_mutex_unlock(&lock);
}

bool zri_keep_small(bool keep)
{
    bool before = keep_small;
    keep_small = keep;
    return before;
}

unsigned zri_awake_threads(void)
{
    if (keep_small || zr_thread_count() < 2)
        return 0;
    unsigned awake = atomic_load(&awake_count);
    if (awake)
        atomic_store(&quick_wanted, QUICK_COUNT);
    else
        note_quick_batch();
    return awake;
}

void zri_parallel_looking(size_t count, unsigned thread_count, zri_task_fn fn, void *ctx,
                          void (*look)(void *), void *look_ctx)
{
    unsigned limit = zr_thread_count();
    if (thread_count > limit)
        thread_count = limit;
    if (thread_count > count)
        thread_count = (unsigned)count;
    if (thread_count <= 1) {
        for (size_t i = 0; i < count; i++)
            fn(ctx, i);
        return;
    }
    struct job j = {.fn = fn,
                    .ctx = ctx,
                    .count = count,
                    .left = PTHREAD_COND_INITIALIZER,
                    .look = look,
                    .look_ctx = look_ctx};
    offer(&j, thread_count - 1);
    run_tasks(&j);
    withdraw(&j);
    pthread_cond_destroy(&j.left);
}

void zri_parallel(size_t count, unsigned thread_count, zri_task_fn fn, void *ctx)
{
    zri_parallel_looking(count, thread_count, fn, ctx, NULL, NULL);
}
