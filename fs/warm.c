/* SPDX-License-Identifier: MIT
 *
 * Decoding ahead.  Each READ is shown to the plan (plan.c), and what it says is to be pushed is
 * decoded by threads and stored in the kernel's page cache.
 *
 * A pushed page is silent: the kernel asks for it no more, and the reader would
 * be lost from sight.  So in every so many records something is left out, the
 * marker: its READ says where the reader is.  Of a record of one page that is all
 * of it, else the last page; the decoded record waits in the cache, so a marker
 * costs a round trip and no decode.  When no marker is read, nothing more is
 * pushed: a stopped reader stops its stream.
 *
 * The kernel takes pages only for inodes that it holds, because they were looked
 * up or listed with their attributes.  Records of others are kept in the cache,
 * up to half of its bytes.
 */
#include "warm.h"

#include "cache.h"
#include "counters.h"
#include "courtesy.h"
#include "jobs.h"
#include "place.h"
#include "plan.h"
#include "recent.h"
#include "streams.h"

#define FUSE_USE_VERSION 35
#include <fuse_lowlevel.h>

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MAX_THREADS = 4, PAGE_NBYTES = 4096, NICENESS = 5, STACK_NBYTES = 512 << 10 };

struct pusher {
    struct warm *warm;
    pthread_t thread;
    bool follows_streams; /* else does jobs alone */
};

struct warm {
    struct warm_options options;
    unsigned follower_count; /* pushers that are to follow streams */
    atomic_bool is_stopping;
    struct recent *recent; /* read or pushed, so that two streams do not push the same */
    pthread_mutex_t lock;  /* everything below */
    pthread_cond_t stream_work, job_work; /* whoever follows streams waits for the first */
    struct plan *plan;
    unsigned started_count;
    unsigned idle_count; /* of those that follow streams */
    struct pusher pushers[MAX_THREADS];
};

/* ---------------------------------------------------------------- threads */

static void *push_on(void *arg);

/* Lock held.  Without threads nothing is pushed, which nobody misses. */
static void start_thread(struct warm *w)
{
    struct pusher *p = &w->pushers[w->started_count];
    *p = (struct pusher){.warm = w, .follows_streams = w->started_count < w->follower_count};
    sigset_t all, before;
    pthread_attr_t attr;
    sigfillset(&all);
    sigdelset(&all, SIGBUS); /* raised by the thread itself, and answered by the engine */
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_NBYTES);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&p->thread, &attr, push_on, p) == 0)
        w->started_count++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
}

/* Lock held. */
static void start_threads(struct warm *w)
{
    while (w->started_count < w->options.thread_count) {
        unsigned before = w->started_count;
        start_thread(w);
        if (w->started_count == before)
            break;
    }
}

/* Lock held: there is something to do. */
static void call_threads(struct warm *w, bool is_job)
{
    if (w->idle_count > 0)
        pthread_cond_broadcast(&w->stream_work);
    if (is_job)
        pthread_cond_broadcast(&w->job_work);
    start_threads(w);
}

/* ---------------------------------------------------------------- readers */

bool warm_saw_read(struct warm *w, uint64_t view, uint64_t position, uint64_t ino, uint64_t off,
                   uint32_t reader)
{
    if (w->options.ahead == WARM_OFF)
        return false;
    if (off == 0)
        recent_note_read(w->recent, ino);
    if (pthread_mutex_trylock(&w->lock) != 0)
        return false; /* one sighting less does no harm, waiting would */
    const struct warm_read read = {view, position, ino, off == 0, courtesy_reader_cpu(), reader};
    bool has_work = plan_saw_read(w->plan, &read) &&
                    (w->idle_count || w->started_count < w->options.thread_count);
    pthread_mutex_unlock(&w->lock);
    return has_work;
}

void warm_wake(void *ctx)
{
    struct warm *w = ctx;
    pthread_mutex_lock(&w->lock);
    call_threads(w, false);
    pthread_mutex_unlock(&w->lock);
}

void warm_saw_lookup(struct warm *w, uint64_t view, uint64_t position, uint64_t ino)
{
    if (w->options.ahead == WARM_OFF || pthread_mutex_trylock(&w->lock) != 0)
        return;
    plan_expect(w->plan, view, position, ino);
    pthread_mutex_unlock(&w->lock);
}

void warm_expect(struct warm *w, uint64_t view)
{
    const struct warm_views *views = &w->options.views;
    struct warm_item item;
    if (w->options.ahead == WARM_OFF)
        return;
    for (uint64_t i = 0; i < STREAMS_EXPECTED && views->at(views->ctx, view, i, &item); i++)
        warm_saw_lookup(w, view, i, item.ino);
}

/* ---------------------------------------------------------------- pushing */

static int store(struct warm *w, uint64_t ino, const void *bytes, uint64_t nbytes)
{
    struct fuse_bufvec buf = FUSE_BUFVEC_INIT(nbytes);
    buf.buf[0].mem = (void *)bytes;
    return -fuse_lowlevel_notify_store(w->options.session, ino, 0, &buf, 0);
}

/* The part of a marker that is pushed all the same: all but its last page. */
static uint64_t marker_nbytes(uint64_t nbytes)
{
    return nbytes ? (nbytes - 1) / PAGE_NBYTES * PAGE_NBYTES : 0;
}

static bool may_keep(struct warm *w, uint64_t nbytes)
{
    uint64_t held_nbytes, held_count;
    cache_usage(w->options.cache, &held_nbytes, &held_count);
    return held_nbytes + nbytes <= w->options.cache_nbytes / 2 && held_count < CACHE_MAX_COUNT / 2;
}

/* Hands a decoded record to the kernel; what it does not take is kept. */
static void deliver(struct warm *w, struct piece *p, const struct warm_item *item, bool is_marker)
{
    struct cache_entry *entry;
    bool is_fresh;
    if (w->options.get(w->options.views.ctx, item->ino, &entry, &is_fresh) != 0)
        return; /* its READ will say why */
    const struct cache_bytes *record = cache_entry_bytes(entry);
    if (is_marker && recent_has(w->recent, item->ino)) {
        /* Its reader has come meanwhile: what waits here for a READ of the last page would
         * wait for ever.  If it is not this one's alone, that READ is still under way. */
        cache_put(w->options.cache, entry, is_fresh ? record->nbytes : 0);
        return;
    }
    uint64_t pushed = is_marker ? marker_nbytes(record->nbytes) : record->nbytes;
    int failure = store(w, item->ino, record->bytes, pushed);
    p->is_unknown = failure == ENOENT;
    counters_add(w->options.counters, failure ? EVENT_KEPT : EVENT_PUSHES, 1);
    if (failure)
        pushed = 0;
    counters_add(w->options.counters, EVENT_PUSHED_BYTES, pushed);
    cache_put(w->options.cache, entry, pushed);
}

static void push_one(struct warm *w, struct piece *p, size_t i)
{
    const struct warm_item *item = &p->items[i];
    bool is_marker = p->is_marker[i];
    if (p->kind != PIECE_OF_JOB && recent_has(w->recent, item->ino))
        return; /* in the page cache, where a marker would be as silent */
    if (p->kind == PIECE_OF_SWEEP && p->is_unknown)
        return; /* who has not listed gets nothing */
    /* Where the kernel did not hold the one before, ask before decoding. */
    if (p->is_unknown && store(w, item->ino, "", 0) == ENOENT && !may_keep(w, item->nbytes))
        return;
    if (!is_marker)
        recent_note(w->recent, item->ino);
    deliver(w, p, item, is_marker);
}

/* It asks for so little that it may have moved since it did. */
static int cpu_of_reader(const struct piece *p)
{
    int cpu = p->cpu >= 0 && p->reader ? courtesy_cpu_of(p->reader) : -1;
    return cpu >= 0 ? cpu : p->cpu;
}

/* Lock held, which is not while it waits. */
static void await_work(struct warm *w, bool follows_streams)
{
    w->idle_count += follows_streams;
    pthread_cond_wait(follows_streams ? &w->stream_work : &w->job_work, &w->lock);
    w->idle_count -= follows_streams;
}

static void *push_on(void *arg)
{
    const struct pusher *self = arg;
    struct warm *w = self->warm;
    struct place place;
    place_init(&place);
    pthread_setname_np(pthread_self(), "zrecordfs-ahead");
    /* Of this thread alone: readers and the threads that answer them go first. */
    (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICENESS);
    pthread_mutex_lock(&w->lock);
    while (!atomic_load(&w->is_stopping)) {
        struct piece p;
        if (!plan_take(w->plan, self->follows_streams, &p)) {
            await_work(w, self->follows_streams);
            continue;
        }
        pthread_mutex_unlock(&w->lock);
        place_keep_away(&place, cpu_of_reader(&p));
        for (size_t i = 0; i < p.count && !atomic_load(&w->is_stopping); i++)
            push_one(w, &p, i);
        pthread_mutex_lock(&w->lock);
        plan_finish(w->plan, &p);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* ---------------------------------------------------------------- jobs */

bool warm_prefetch(struct warm *w, const struct warm_range *range)
{
    struct job job;
    if (w->options.ahead == WARM_OFF || !job_init(&job, range))
        return false;
    pthread_mutex_lock(&w->lock);
    bool fits = plan_add(w->plan, &job);
    if (fits)
        call_threads(w, true);
    pthread_mutex_unlock(&w->lock);
    if (!fits)
        job_release(&job);
    return fits;
}

uint64_t warm_pending(struct warm *w)
{
    pthread_mutex_lock(&w->lock);
    uint64_t count = plan_asked_count(w->plan);
    pthread_mutex_unlock(&w->lock);
    return count;
}

uint64_t warm_ahead_pending(struct warm *w)
{
    pthread_mutex_lock(&w->lock);
    uint64_t count = plan_ahead_count(w->plan);
    pthread_mutex_unlock(&w->lock);
    return count;
}

/* ---------------------------------------------------------------- lifecycle */

struct warm *warm_new(const struct warm_options *options)
{
    struct warm *w = calloc(1, sizeof *w);
    if (!w)
        return NULL;
    w->recent = recent_new();
    w->plan = plan_new(&options->views, options->ahead, options->cache_nbytes);
    if (!w->recent || !w->plan) {
        plan_free(w->plan);
        recent_free(w->recent);
        free(w);
        return NULL;
    }
    w->options = *options;
    if (w->options.thread_count > MAX_THREADS)
        w->options.thread_count = MAX_THREADS;
    /* They keep away from the reader's CPU.  Two on one that is left would take turns there, each
     * for ms, and the one that waits may hold a lock or a page that the reader needs. */
    w->follower_count = place_spare_count();
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->stream_work, NULL);
    pthread_cond_init(&w->job_work, NULL);
    return w;
}

void warm_start(struct warm *w)
{
    if (w->options.ahead == WARM_OFF)
        return;
    pthread_mutex_lock(&w->lock);
    start_threads(w);
    pthread_mutex_unlock(&w->lock);
}

void warm_stop(struct warm *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    atomic_store(&w->is_stopping, true);
    pthread_cond_broadcast(&w->stream_work);
    pthread_cond_broadcast(&w->job_work);
    unsigned count = w->started_count;
    w->options.thread_count = 0; /* no more of them */
    pthread_mutex_unlock(&w->lock);
    for (unsigned i = 0; i < count; i++)
        pthread_join(w->pushers[i].thread, NULL);
}

void warm_free(struct warm *w)
{
    if (!w)
        return;
    pthread_cond_destroy(&w->stream_work);
    pthread_cond_destroy(&w->job_work);
    pthread_mutex_destroy(&w->lock);
    plan_free(w->plan);
    recent_free(w->recent);
    free(w);
}
