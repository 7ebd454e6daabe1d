/* SPDX-License-Identifier: MIT
 *
 * The thread behind janitor.h.  It holds no lock while it talks to the kernel.
 */
#include "janitor.h"

#include "ops.h"
#include "selection.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_QUEUED = 64, CHUNK = 256 };
/* Names beyond are forgotten, the oldest first. */
enum { KEPT_NAMES = 1024 };
enum { WATCH_SEC = 1 };

struct drop {
    struct drop *next;
    struct source *source; /* not a hold */
    struct selection *selection;
};

struct janitor {
    struct fs *fs;
    atomic_bool stopping, has_names;
    pthread_mutex_t lock; /* everything below */
    pthread_cond_t changed;
    struct drop *first, **last;
    unsigned queued;
    bool has_thread;
    pthread_t thread;
    uint64_t pending; /* records */
    bool watches;     /* archives that were written to */
};

struct janitor *janitor_new(struct fs *fs)
{
    struct janitor *j = calloc(1, sizeof *j);
    if (!j)
        return NULL;
    j->fs = fs;
    j->last = &j->first;
    pthread_mutex_init(&j->lock, NULL);
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&j->changed, &clock);
    pthread_condattr_destroy(&clock);
    return j;
}

void janitor_stop(struct janitor *j)
{
    if (!j)
        return;
    pthread_mutex_lock(&j->lock);
    atomic_store(&j->stopping, true);
    pthread_cond_broadcast(&j->changed);
    pthread_mutex_unlock(&j->lock);
    if (j->has_thread)
        pthread_join(j->thread, NULL);
}

static struct drop *take_first(struct janitor *j)
{
    struct drop *drop = j->first;
    if (!drop)
        return NULL;
    j->first = drop->next;
    if (!j->first)
        j->last = &j->first;
    j->queued--;
    return drop;
}

static void drop_free(struct drop *drop)
{
    free(drop->selection);
    free(drop);
}

void janitor_free(struct janitor *j)
{
    if (!j)
        return;
    for (struct drop *drop; (drop = take_first(j));)
        drop_free(drop);
    pthread_cond_destroy(&j->changed);
    pthread_mutex_destroy(&j->lock);
    free(j);
}

/* ---------------------------------------------------------------- work */

/* An open file keeps its number and its pages until it is closed. */
static void forget_names(struct janitor *j)
{
    uint64_t folder_ino;
    char *name;
    while (!atomic_load(&j->stopping) &&
           (name = minted_take_surplus(j->fs->minted, KEPT_NAMES, &folder_ino))) {
        fuse_lowlevel_notify_inval_entry(j->fs->session, folder_ino, name, strlen(name));
        free(name);
    }
}

static void drop_records(struct janitor *j, const struct drop *drop, uint64_t position,
                         size_t count)
{
    uint64_t ids[CHUNK];
    struct fs *fs = j->fs;
    struct source *source = source_hold(fs->sources, drop->source);
    if (!source)
        return;
    selection_ids(drop->selection, position, count, ids);
    for (size_t i = 0; i < count; i++) {
        struct node node = records_node(fs, source, ids[i]);
        cache_drop(fs->cache, (struct cache_key){.ino = node.ino});
        fuse_lowlevel_notify_inval_inode(fs->session, node.ino, 0, 0);
    }
    source_release(fs->sources, source);
}

/* Called and left with the lock. */
static void run_drop(struct janitor *j, struct drop *drop)
{
    uint64_t left = drop->selection->count, position = 0;
    while (left && !atomic_load(&j->stopping)) {
        size_t count = left < CHUNK ? (size_t)left : CHUNK;
        pthread_mutex_unlock(&j->lock);
        drop_records(j, drop, position, count);
        pthread_mutex_lock(&j->lock);
        counters_add(j->fs->counters, EVENT_DROPS, count);
        j->pending -= count;
        position += count;
        left -= count;
    }
}

/* Called and left with the lock.  What is to be done comes first; a look then is as good later. */
static void watch_writes(struct janitor *j)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += WATCH_SEC;
    if (pthread_cond_timedwait(&j->changed, &j->lock, &until) != ETIMEDOUT)
        return;
    j->watches = false;
    pthread_mutex_unlock(&j->lock);
    bool some = sources_refresh_left(j->fs->sources, &j->stopping);
    pthread_mutex_lock(&j->lock);
    j->watches |= some;
}

static void work(struct janitor *j)
{
    if (atomic_exchange(&j->has_names, false)) {
        pthread_mutex_unlock(&j->lock);
        forget_names(j);
        pthread_mutex_lock(&j->lock);
        return;
    }
    struct drop *drop = take_first(j);
    if (drop) {
        run_drop(j, drop);
        drop_free(drop);
    } else if (j->watches) {
        watch_writes(j);
    } else {
        pthread_cond_wait(&j->changed, &j->lock);
    }
}

static void *run(void *arg)
{
    struct janitor *j = arg;
    pthread_mutex_lock(&j->lock);
    while (!atomic_load(&j->stopping))
        work(j);
    pthread_mutex_unlock(&j->lock);
    return NULL;
}

/* ---------------------------------------------------------------- calls */

/* With the lock. */
static int wake(struct janitor *j)
{
    sigset_t all, before;
    pthread_cond_broadcast(&j->changed);
    if (j->has_thread || atomic_load(&j->stopping))
        return 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failure = pthread_create(&j->thread, NULL, run, j);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    j->has_thread = failure == 0;
    return failure;
}

void janitor_start(struct janitor *j)
{
    pthread_mutex_lock(&j->lock);
    wake(j);
    pthread_mutex_unlock(&j->lock);
}

void janitor_look(struct janitor *j)
{
    if (!minted_has_surplus(j->fs->minted, KEPT_NAMES) || atomic_exchange(&j->has_names, true))
        return;
    pthread_mutex_lock(&j->lock);
    wake(j); /* without a thread they just stay */
    pthread_mutex_unlock(&j->lock);
}

void janitor_watch_writes(struct janitor *j)
{
    pthread_mutex_lock(&j->lock);
    j->watches = true;
    wake(j); /* without a thread the end of the mount does it */
    pthread_mutex_unlock(&j->lock);
}

static int enqueue(struct janitor *j, struct drop *drop)
{
    int failure = j->queued == MAX_QUEUED ? EAGAIN : wake(j);
    if (failure)
        return failure;
    *j->last = drop;
    j->last = &drop->next;
    j->queued++;
    j->pending += drop->selection->count;
    return 0;
}

int janitor_drop(struct janitor *j, struct source *source, const char *selection)
{
    struct drop *drop = calloc(1, sizeof *drop);
    if (!drop)
        return ENOMEM;
    drop->source = source;
    int failure =
        selection_parse(selection, strlen(selection), source->info.length, &drop->selection);
    if (!failure) {
        pthread_mutex_lock(&j->lock);
        failure = enqueue(j, drop);
        pthread_mutex_unlock(&j->lock);
    }
    if (failure)
        drop_free(drop);
    return failure;
}

uint64_t janitor_pending(struct janitor *j)
{
    pthread_mutex_lock(&j->lock);
    uint64_t pending = j->pending;
    pthread_mutex_unlock(&j->lock);
    return pending;
}
