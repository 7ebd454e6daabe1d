/* SPDX-License-Identifier: MIT
 *
 * A thread that waits (deadline.h).
 */
#include "deadline.h"

#include "report.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

struct deadline {
    const char *what;
    unsigned seconds;
    struct timespec at; /* CLOCK_MONOTONIC */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_met; /* lock */
};

static void *watch(void *arg)
{
    struct deadline *d = arg;
    int outcome = 0;
    pthread_setname_np(pthread_self(), "zrecordfs-bound");
    pthread_mutex_lock(&d->lock);
    while (!d->is_met && outcome != ETIMEDOUT)
        outcome = pthread_cond_timedwait(&d->changed, &d->lock, &d->at);
    bool is_met = d->is_met;
    pthread_mutex_unlock(&d->lock);
    if (!is_met) {
        report(LOG_ERR, "%s takes more than %u s: ending without it", d->what, d->seconds);
        _exit(1);
    }
    return NULL;
}

static void release(struct deadline *d)
{
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

static int start_thread(struct deadline *d)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failure = pthread_create(&d->thread, NULL, watch, d);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failure;
}

struct deadline *deadline_start(unsigned seconds, const char *what)
{
    struct deadline *d = calloc(1, sizeof *d);
    pthread_condattr_t attr;
    if (!d)
        return NULL;
    d->what = what;
    d->seconds = seconds;
    clock_gettime(CLOCK_MONOTONIC, &d->at);
    d->at.tv_sec += seconds;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&d->changed, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&d->lock, NULL);
    if (start_thread(d) != 0) {
        release(d);
        return NULL;
    }
    return d;
}

void deadline_stop(struct deadline *d)
{
    if (!d)
        return;
    pthread_mutex_lock(&d->lock);
    d->is_met = true;
    pthread_cond_signal(&d->changed);
    pthread_mutex_unlock(&d->lock);
    pthread_join(d->thread, NULL);
    release(d);
}
