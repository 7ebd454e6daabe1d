/* SPDX-License-Identifier: MIT
 *
 * Feed: batches of several stores at the same ids, gathered ahead of whoever takes
 * them.  A thread of its own draws ids, hints at those to come and gathers, so that a
 * consumer in a slow language finds its next batch ready and never holds it up.
 *
 * Batches are handed out in the order of their steps from a ring.  A taker that finds
 * the next batch not begun gathers it itself instead of waiting for the thread to
 * wake.  Two things follow from what handing a batch over costs.  Where batches are
 * small, as much as gathering one: a taker that would wait for one under way begins the
 * one after it meanwhile.  Where they are large and the taker is back at once after
 * each, a core that the gather wants too: the thread then leaves the next batch to the
 * taker, and begins it as soon as the taker stays away longer.
 *
 * Not a sampler, and not a transform: what is done with a batch is the taker's.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

#define QUICK_NSEC 250000 /* a gather that takes less is worth doing in place of a wait */
#define AWAY_PART 8       /* a taker away for less than this part of a gather is back at once */
#define STAND_BACK_NSEC_MAX 20000000
#define WARM_SKIP_MAX 8 /* batches between looks ahead while everything is in memory */
#define AHEAD_MAX 64    /* batches: more would keep a disk busy with what is not needed soon */

enum slot_state { SLOT_BUSY, SLOT_READY, SLOT_FAILED };

/* One batch under way.  `state` is under the feed's lock; the rest belongs to the thread
 * that gathers it while busy, afterwards to the lock. */
struct slot {
    enum slot_state state;
    uint64_t step;
    uint64_t *ids; /* of the whole step */
    struct zr_part *parts;
    int rc;
    size_t failed_stream;
    struct zr_error error;
};

struct zr_feed {
    struct zr_feed_stream *streams;
    size_t stream_count;
    struct zr_sampler sampler;
    size_t begin, count; /* of the ids of a step, the part that is ours */
    uint64_t *skip;      /* ascending steps that are not given */
    size_t skip_count;
    size_t limit;
    size_t ahead_count;
    pid_t pid;
    pthread_t thread;

    pthread_mutex_t lock;
    pthread_cond_t room;  /* the thread waits for leave to begin a batch */
    pthread_cond_t ready; /* takers wait for the batch at given */
    /* Everything below is under lock.  Batches are counted from the first: given <= begun. */
    uint64_t given, begun;
    uint64_t next_step; /* of the batch at begun */
    size_t next_skip;
    size_t under_way; /* begun and not released: at most limit */
    size_t ready_waiter_count;
    size_t gathering_count;
    size_t taker_count;    /* inside zr_feed_take */
    int64_t last_back;     /* when the last of them went */
    bool takers_come_back; /* the last one did at once */
    bool thread_waits;
    bool failed;  /* a slot holds a failure: begin no more */
    bool stopped; /* give no more */
    struct zr_feed_stats stats;
    int64_t last_gather_nsec;
    struct slot *slots; /* limit of them; batch k is in slot k % limit */

    /* Of the thread alone: the look ahead. */
    uint64_t *ahead_ids;
    uint64_t looked_at;  /* batches begun when it last did */
    uint64_t ahead_done; /* batches before this one were hinted at */
    unsigned warm_skip, warm_left;
};

static int64_t now_nsec(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * (int64_t)1000000000 + t.tv_nsec;
}

/* false: the time came. */
static bool wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t nsec)
{
    struct timespec t = {nsec / 1000000000, nsec % 1000000000};
    return pthread_cond_timedwait(cond, lock, &t) != ETIMEDOUT;
}

/* ---------------------------------------------------------------- parts */

static int out_of_memory(const struct zr_reader *r, struct zr_error *err)
{
    return zri_fail(err, ZR_E_NOMEM, "%s: out of memory for a batch", r->path);
}

static int gather_dense(struct zr_reader *r, const uint64_t *ids, size_t count, struct zr_part *p,
                        struct zr_error *err)
{
    uint64_t nbytes;
    if (__builtin_mul_overflow(r->schema.row_nbytes, (uint64_t)count, &nbytes) ||
        !(p->data = zr_buffer_alloc(nbytes)))
        return out_of_memory(r, err);
    p->nbytes = nbytes;
    return zr_gather_dense(r, ids, count, p->data, nbytes, err);
}

static int gather_ragged(struct zr_reader *r, const uint64_t *ids, size_t count, struct zr_part *p,
                         struct zr_error *err)
{
    if (!(p->offsets = zr_buffer_alloc((count + 1) * sizeof *p->offsets)))
        return out_of_memory(r, err);
    int rc = zr_gather_ragged_plan(r, ids, count, p->offsets, err);
    if (rc)
        return rc;
    p->nbytes = p->offsets[count];
    if (!(p->data = zr_buffer_alloc(p->nbytes)))
        return out_of_memory(r, err);
    return zr_gather_ragged(r, ids, count, p->data, p->offsets, err);
}

static int gather_part(const struct zr_feed_stream *s, const uint64_t *ids, size_t count,
                       struct zr_part *p, struct zr_error *err)
{
    if (s->reader->schema.geometry == ZR_DENSE)
        return gather_dense(s->reader, ids, count, p, err);
    return (s->packed ? zr_gather_packed : gather_ragged)(s->reader, ids, count, p, err);
}

/* On first use: a limit far above what is ever ready costs nothing. */
static bool slot_memory(const struct zr_feed *f, struct slot *s)
{
    if (!s->ids)
        s->ids = calloc(zr_sampler_batch_count(&f->sampler), sizeof *s->ids);
    if (!s->parts)
        s->parts = calloc(f->stream_count, sizeof *s->parts);
    return s->ids && s->parts;
}

/* All streams of a busy slot; without the lock. */
static void gather_slot(struct zr_feed *f, struct slot *s)
{
    if (!slot_memory(f, s)) {
        s->rc = out_of_memory(f->streams[0].reader, &s->error);
        return;
    }
    zr_sampler_batch(&f->sampler, s->step, s->ids);
    s->rc = ZR_OK;
    for (size_t i = 0; i < f->stream_count && !s->rc; i++) {
        s->rc = gather_part(&f->streams[i], s->ids + f->begin, f->count, &s->parts[i], &s->error);
        s->failed_stream = i;
    }
    if (s->rc)
        zr_parts_release(s->parts, f->stream_count);
}

/* ---------------------------------------------------------------- the ring */

static struct slot *slot_at(const struct zr_feed *f, uint64_t batch)
{
    return &f->slots[batch % f->limit];
}

/* Passes steps that are not given. */
static void skip_steps(const struct zr_feed *f, uint64_t *step, size_t *skip)
{
    for (; *skip < f->skip_count && f->skip[*skip] <= *step; ++*skip)
        *step += f->skip[*skip] == *step;
}

static bool may_begin(const struct zr_feed *f)
{
    return !f->stopped && !f->failed && f->under_way < f->limit && f->begun - f->given < f->limit;
}

static bool is_quick(const struct zr_feed *f)
{
    return f->last_gather_nsec && f->last_gather_nsec < QUICK_NSEC;
}

/* Whether a taker that went at last_back is still one that comes back at once. */
static bool away_briefly(const struct zr_feed *f)
{
    return now_nsec() - f->last_back < f->last_gather_nsec / AWAY_PART;
}

/* Whether the thread should stand back, so that the taker gathers. */
static bool leave_to_takers(const struct zr_feed *f)
{
    return f->takers_come_back && !is_quick(f) && (f->taker_count || away_briefly(f));
}

/* Somebody for the batch at given: the taker that waits for it, or may gather it. */
static void wake_taker(struct zr_feed *f)
{
    if (f->ready_waiter_count &&
        (f->given < f->begun ? slot_at(f, f->given)->state != SLOT_BUSY : may_begin(f)))
        pthread_cond_signal(&f->ready);
}

static void finish(struct zr_feed *f, struct slot *s, int64_t nsec)
{
    s->state = s->rc ? SLOT_FAILED : SLOT_READY;
    f->failed |= s->rc != 0;
    f->last_gather_nsec = nsec;
    f->stats.gather_nsec += (uint64_t)nsec;
    f->stats.gathered_count++;
    f->gathering_count--;
    wake_taker(f);
}

/* Begins the next batch and gathers it.  Enters and leaves with the lock held. */
static void gather_next(struct zr_feed *f)
{
    struct slot *s = slot_at(f, f->begun++);
    s->state = SLOT_BUSY;
    s->step = f->next_step++;
    skip_steps(f, &f->next_step, &f->next_skip);
    f->under_way++;
    f->gathering_count++;
    bool quick = is_quick(f);
    pthread_mutex_unlock(&f->lock);
    bool before = zri_keep_small(quick);
    int64_t start = now_nsec();
    gather_slot(f, s);
    int64_t nsec = now_nsec() - start;
    zri_keep_small(before);
    pthread_mutex_lock(&f->lock);
    finish(f, s, nsec);
}

/* ---------------------------------------------------------------- looking ahead */

/* Hints at one batch; whether anything of it had to be read. */
static bool hint(struct zr_feed *f, uint64_t step)
{
    size_t queued = 0;
    zr_sampler_batch(&f->sampler, step, f->ahead_ids);
    for (size_t i = 0; i < f->stream_count; i++)
        queued += zr_prefetch(f->streams[i].reader, f->ahead_ids + f->begin, f->count);
    return queued;
}

/* Hints at the batch to begin next and those behind it, so that their reads are queued while it
 * is gathered.  Where nothing had to be read, looks less often.  Under lock, which it leaves. */
static void look_ahead(struct zr_feed *f)
{
    uint64_t step = f->next_step, batch = f->begun;
    size_t skip = f->next_skip;
    f->looked_at = batch;
    if (f->warm_left) {
        f->warm_left--;
        return;
    }
    pthread_mutex_unlock(&f->lock);
    bool cold = false;
    for (size_t k = 0; k <= f->ahead_count; k++) {
        if (++batch > f->ahead_done) {
            cold |= hint(f, step);
            f->ahead_done = batch;
        }
        step++;
        skip_steps(f, &step, &skip);
    }
    unsigned wider = f->warm_skip ? f->warm_skip * 2 : 1;
    f->warm_skip = cold ? 0 : wider < WARM_SKIP_MAX ? wider : WARM_SKIP_MAX;
    f->warm_left = f->warm_skip;
    pthread_mutex_lock(&f->lock);
}

/* Until it looks again whether the takers still come back. */
static int64_t stand_back_nsec(const struct zr_feed *f)
{
    return f->last_gather_nsec < STAND_BACK_NSEC_MAX ? f->last_gather_nsec : STAND_BACK_NSEC_MAX;
}

static void *thread_main(void *arg)
{
    struct zr_feed *f = arg;
    pthread_mutex_lock(&f->lock);
    while (!f->stopped) {
        if (!may_begin(f)) {
            f->thread_waits = true;
            pthread_cond_wait(&f->room, &f->lock);
            f->thread_waits = false;
            continue;
        }
        if (f->ahead_count && f->begun != f->looked_at)
            look_ahead(f);
        if (leave_to_takers(f)) {
            wait_until(&f->room, &f->lock, now_nsec() + stand_back_nsec(f));
            continue;
        }
        if (may_begin(f))
            gather_next(f);
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

/* ---------------------------------------------------------------- takers */

static void wake_thread(struct zr_feed *f)
{
    if (f->thread_waits && may_begin(f))
        pthread_cond_signal(&f->room);
}

/* Hands out the slot at given, which is not busy. */
static int give(struct zr_feed *f, struct zr_part *parts, struct zr_feed_batch *batch,
                struct zr_error *err)
{
    struct slot *s = slot_at(f, f->given++);
    batch->step = s->step;
    batch->count = f->count;
    batch->failed_stream = s->failed_stream;
    if (s->rc) {
        f->stopped = true;
        pthread_cond_broadcast(&f->ready);
        pthread_cond_signal(&f->room);
        return zri_fail_as(err, &s->error);
    }
    memcpy(parts, s->parts, f->stream_count * sizeof *parts);
    memset(s->parts, 0, f->stream_count * sizeof *parts);
    f->stats.taken_count++;
    wake_thread(f);
    wake_taker(f);
    return ZR_OK;
}

/* Whether a taker should gather a batch itself: the next one, or one more beside it. */
static bool should_help(const struct zr_feed *f)
{
    if (!may_begin(f))
        return false;
    return f->given == f->begun || (is_quick(f) && f->gathering_count < zr_thread_count());
}

/* false: nothing within the time left. */
static bool wait_ready(struct zr_feed *f, int64_t until)
{
    f->ready_waiter_count++;
    bool woken = wait_until(&f->ready, &f->lock, until);
    f->ready_waiter_count--;
    return woken;
}

static void enter(struct zr_feed *f)
{
    if (!f->taker_count++)
        f->takers_come_back = away_briefly(f);
}

static void leave(struct zr_feed *f)
{
    f->taker_count--;
    f->last_back = now_nsec();
}

int zr_feed_take(struct zr_feed *f, struct zr_part *parts, struct zr_feed_batch *batch,
                 int64_t wait_nsec, struct zr_error *err)
{
    int64_t start = now_nsec();
    int rc = ZR_FEED_NOT_YET;
    pthread_mutex_lock(&f->lock);
    enter(f);
    for (bool waited = false;;) {
        if (f->stopped) {
            rc = zri_fail(err, ZR_E_CANCELLED, "the feed was stopped");
            break;
        }
        if (f->given < f->begun && slot_at(f, f->given)->state != SLOT_BUSY) {
            rc = give(f, parts, batch, err);
            break;
        }
        if (waited)
            break;
        if (should_help(f))
            gather_next(f);
        else
            waited = !wait_ready(f, start + wait_nsec);
    }
    leave(f);
    f->stats.wait_nsec += (uint64_t)(f->last_back - start);
    pthread_mutex_unlock(&f->lock);
    return rc;
}

void zr_feed_release(struct zr_feed *f)
{
    pthread_mutex_lock(&f->lock);
    f->under_way--;
    wake_thread(f);
    wake_taker(f);
    pthread_mutex_unlock(&f->lock);
}

void zr_feed_stop(struct zr_feed *f)
{
    if (f->pid != getpid()) /* a forked child has neither the thread nor, perhaps, the lock */
        return;
    pthread_mutex_lock(&f->lock);
    f->stopped = true;
    pthread_cond_broadcast(&f->ready);
    pthread_cond_broadcast(&f->room);
    pthread_mutex_unlock(&f->lock);
}

void zr_feed_stats(struct zr_feed *f, struct zr_feed_stats *stats)
{
    pthread_mutex_lock(&f->lock);
    *stats = f->stats;
    stats->ready_count = f->begun - f->given - f->gathering_count;
    stats->under_way_count = f->under_way;
    pthread_mutex_unlock(&f->lock);
}

/* ---------------------------------------------------------------- from start to end */

static void release_memory(struct zr_feed *f)
{
    size_t used = f->begun < f->limit ? (size_t)f->begun : f->limit;
    for (size_t i = 0; f->slots && i < used; i++) {
        if (f->slots[i].parts)
            zr_parts_release(f->slots[i].parts, f->stream_count);
        free(f->slots[i].parts);
        free(f->slots[i].ids);
    }
    free(f->slots);
    free(f->streams);
    free(f->skip);
    free(f->ahead_ids);
    free(f);
}

static void *copy(const void *from, size_t count, size_t each)
{
    void *to = calloc(count ? count : 1, each);
    if (to && count)
        memcpy(to, from, count * each);
    return to;
}

static struct zr_feed *feed_alloc(const struct zr_feed_options *o)
{
    size_t id_count = zr_sampler_batch_count(&o->sampler);
    struct zr_feed *f = calloc(1, sizeof *f);
    if (!f)
        return NULL;
    f->stream_count = o->stream_count;
    f->limit = o->limit;
    f->sampler = o->sampler;
    f->begin = o->begin;
    f->count = o->count;
    f->skip_count = o->skip_count;
    f->ahead_count = o->ahead_count < AHEAD_MAX ? o->ahead_count : AHEAD_MAX;
    f->pid = getpid();
    f->streams = copy(o->streams, o->stream_count, sizeof *f->streams);
    f->skip = copy(o->skip, o->skip_count, sizeof *f->skip);
    f->ahead_ids = calloc(id_count, sizeof *f->ahead_ids);
    f->slots = calloc(o->limit, sizeof *f->slots);
    if (f->streams && f->skip && f->ahead_ids && f->slots)
        return f;
    release_memory(f);
    return NULL;
}

static int check_options(const struct zr_feed_options *o, struct zr_error *err)
{
    uint64_t count = zr_sampler_batch_count(&o->sampler);
    if (!count || count > SIZE_MAX / sizeof(uint64_t))
        return zri_fail(err, ZR_E_INVALID, "a feed needs a valid sampler");
    if (!o->stream_count || !o->limit || !o->count || o->begin >= count ||
        o->count > count - o->begin)
        return zri_fail(err, ZR_E_INVALID, "a feed needs streams, a limit and a part of a batch");
    for (size_t i = 1; i < o->skip_count; i++)
        if (o->skip[i] <= o->skip[i - 1])
            return zri_fail(err, ZR_E_INVALID, "the steps to skip must ascend");
    for (size_t i = 0; i < o->stream_count; i++)
        if (o->streams[i].reader->header.length != o->sampler.length)
            return zri_fail(err, ZR_E_INVALID, "%s: the sampler is for another number of records",
                            o->streams[i].reader->path);
    return ZR_OK;
}

static void locks_init(struct zr_feed *f)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->room, &attr);
    pthread_cond_init(&f->ready, &attr);
    pthread_condattr_destroy(&attr);
}

static void locks_release(struct zr_feed *f)
{
    pthread_cond_destroy(&f->ready);
    pthread_cond_destroy(&f->room);
    pthread_mutex_destroy(&f->lock);
}

int zr_feed_start(struct zr_feed **out, const struct zr_feed_options *options, struct zr_error *err)
{
    *out = NULL;
    int rc = check_options(options, err);
    if (rc)
        return rc;
    struct zr_feed *f = feed_alloc(options);
    if (!f)
        return zri_fail(err, ZR_E_NOMEM, "out of memory for a feed of %zu batches", options->limit);
    f->next_step = options->first_step;
    f->looked_at = UINT64_MAX;
    skip_steps(f, &f->next_step, &f->next_skip);
    locks_init(f);
    rc = zri_thread_start(&f->thread, "zrecord-feed", thread_main, f);
    if (rc) {
        locks_release(f);
        release_memory(f);
        return zri_fail_errno(err, rc, "cannot start a thread for a feed");
    }
    *out = f;
    return ZR_OK;
}

void zr_feed_free(struct zr_feed *f)
{
    if (!f || f->pid != getpid())
        return;
    zr_feed_stop(f);
    pthread_join(f->thread, NULL);
    locks_release(f);
    release_memory(f);
}
