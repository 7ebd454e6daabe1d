/* SPDX-License-Identifier: MIT
 *
 * Threads for parallel loops.  One process-wide set of workers, started when
 * first needed, parked on a condition between jobs.  Several callers may run
 * loops at once; each caller works on its own loop too, so progress never
 * depends on a worker being free, and a loop inside a loop cannot deadlock.
 * After fork the child starts with no workers and makes its own.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "internal.h"

#define MAX_THREADS 256

struct job {
    zri_task_fn fn;
    void *ctx;
    size_t count;
    atomic_size_t next;  /* next index to hand out */
    unsigned wanted;     /* workers that may still join; under lock */
    unsigned active;     /* workers inside; under lock */
    pthread_cond_t left; /* active became 0 */
    struct job *link;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER;
static struct job *jobs;              /* that want workers; under lock */
static unsigned worker_count;         /* under lock */
static unsigned idle_count;           /* under lock */
static _Atomic unsigned chosen_count; /* by zr_set_thread_count; 0: default */
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

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
    worker_count = idle_count = 0;
}

static void install_fork_handlers(void)
{
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

/* Two numbers of one or two files, rounded up to CPUs; 0: no limit there. */
static unsigned quota_cpus(const char *dir, const char *quota_name, const char *period_name)
{
    char path[4096];
    long long quota = 0, period = 0;
    snprintf(path, sizeof path, "%s/%s", dir, quota_name);
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    int found = fscanf(f, "%lld %lld", &quota, &period); /* "max 100000" gives none */
    fclose(f);
    if (found == 1 && period_name) {
        snprintf(path, sizeof path, "%s/%s", dir, period_name);
        f = fopen(path, "re");
        if (f && fscanf(f, "%lld", &period) != 1)
            period = 0;
        if (f)
            fclose(f);
    }
    if (found < 1 || quota <= 0 || period <= 0)
        return 0;
    long long cpus = (quota - 1) / period + 1;
    return cpus > MAX_THREADS ? 0 : (unsigned)cpus;
}

/* The tightest quota from the process's group up to the root of its hierarchy. */
static unsigned group_cpus(const char *root, const char *group, bool v2)
{
    char dir[4096];
    unsigned least = 0;
    if (snprintf(dir, sizeof dir, "%s%s", root, group) >= (int)sizeof dir)
        return 0;
    for (char *end = dir + strlen(dir); end >= dir + strlen(root); end = strrchr(dir, '/')) {
        *end = 0;
        unsigned n = v2 ? quota_cpus(dir, "cpu.max", NULL)
                        : quota_cpus(dir, "cpu.cfs_quota_us", "cpu.cfs_period_us");
        if (n && (!least || n < least))
            least = n;
    }
    return least;
}

/* Whether a comma-separated list of controllers has cpu. */
static bool has_cpu(const char *list)
{
    for (const char *p = list; p; p = strchr(p, ','), p = p ? p + 1 : NULL)
        if (!strncmp(p, "cpu", 3) && (p[3] == ',' || !p[3]))
            return true;
    return false;
}

/* CPUs' worth of time that the cgroups grant; 0: no limit.  A line of
 * /proc/self/cgroup is "id:controllers:/path", without controllers in v2. */
static unsigned cgroup_cpus(void)
{
    char line[4096];
    unsigned least = 0;
    FILE *f = fopen("/proc/self/cgroup", "re");
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = 0;
        bool v2 = !*++controllers;
        unsigned n = v2                     ? group_cpus("/sys/fs/cgroup", group, true)
                     : has_cpu(controllers) ? group_cpus("/sys/fs/cgroup/cpu", group, false)
                                            : 0;
        if (n && (!least || n < least))
            least = n;
    }
    if (f)
        fclose(f);
    return least;
}

static unsigned default_thread_count(void)
{
    const char *env = getenv("ZRECORD_THREADS");
    if (env && *env) {
        char *end;
        errno = 0;
        unsigned long n = strtoul(env, &end, 10);
        if (!errno && !*end && n >= 1 && *env != '-')
            return n > MAX_THREADS ? MAX_THREADS : (unsigned)n;
    }
    cpu_set_t set;
    long n =
        sched_getaffinity(0, sizeof set, &set) ? sysconf(_SC_NPROCESSORS_ONLN) : CPU_COUNT(&set);
    unsigned count = n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : (unsigned)n;
    unsigned quota = cgroup_cpus();
    return quota && quota < count ? quota : count;
}

unsigned zr_thread_count(void)
{
    unsigned n = atomic_load(&chosen_count);
    if (n)
        return n;
    static _Atomic unsigned cached;
    n = atomic_load(&cached);
    if (!n) {
        n = default_thread_count();
        atomic_store(&cached, n);
    }
    return n;
}

void zr_set_thread_count(unsigned count)
{
    atomic_store(&chosen_count, count > MAX_THREADS ? MAX_THREADS : count);
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

static void *worker_main(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&lock);
    for (;;) {
        struct job *j = join_job();
        if (!j) {
            idle_count++;
            pthread_cond_wait(&work, &lock);
            idle_count--;
            continue;
        }
        pthread_mutex_unlock(&lock);
        run_tasks(j);
        pthread_mutex_lock(&lock);
        if (--j->active == 0)
            pthread_cond_signal(&j->left);
    }
    return NULL;
}

/* Signals stay with the threads that the program made.  Under lock. */
static void start_worker(void)
{
    sigset_t all, old;
    sigfillset(&all);
    sigdelset(&all, SIGBUS); /* raised by the thread itself: io.c answers it */
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGFPE);
    sigdelset(&all, SIGILL);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_t t;
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, 512 << 10);
    if (pthread_create(&t, &attr, worker_main, NULL) == 0) {
        pthread_setname_np(t, "zrecord");
        worker_count++;
    }
    pthread_attr_destroy(&attr);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static void offer(struct job *j, unsigned helpers)
{
    pthread_once(&fork_once, install_fork_handlers);
    pthread_mutex_lock(&lock);
    j->wanted = helpers;
    j->link = jobs;
    jobs = j;
    unsigned missing = helpers > idle_count ? helpers - idle_count : 0;
    while (missing-- && worker_count + 1 < zr_thread_count())
        start_worker();
    if (helpers == 1)
        pthread_cond_signal(&work);
    else
        pthread_cond_broadcast(&work);
    pthread_mutex_unlock(&lock);
}

static void withdraw(struct job *j)
{
    pthread_mutex_lock(&lock);
    for (struct job **p = &jobs; *p; p = &(*p)->link)
        if (*p == j) {
            *p = j->link;
            break;
        }
    while (j->active)
        pthread_cond_wait(&j->left, &lock);
    pthread_mutex_unlock(&lock);
}

void zri_parallel(size_t count, unsigned thread_count, zri_task_fn fn, void *ctx)
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
    struct job j = {.fn = fn, .ctx = ctx, .count = count, .left = PTHREAD_COND_INITIALIZER};
    offer(&j, thread_count - 1);
    run_tasks(&j);
    withdraw(&j);
    pthread_cond_destroy(&j.left);
}
