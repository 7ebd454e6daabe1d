/* SPDX-License-Identifier: MIT
 *
 * Decoding ahead.  Each READ is matched with the streams, which are readers that
 * seem to go in order; after a few steps a stream is followed, and the records
 * before it are decoded and stored in the kernel's page cache, up to a distance
 * that depends on their size.
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
#include "place.h"
#include "recent.h"
#include "sweep.h"

#define FUSE_USE_VERSION 35
#include <fuse_lowlevel.h>

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    STREAMS = 16,
    HINTS = 4096,
    JOBS = 64,
    MAX_THREADS = 4,
    NEAR = 4,                  /* steps that still look like going in order */
    RUN_TO_FOLLOW = 4,         /* such steps in a row before a stream is followed, */
    RUN_GAP = 8,               /* each at most so many READs after the one before */
    FIRST_MARGIN = 2,          /* records left to a reader that is faster than the pushing; */
    MAX_MARGIN = 64,           /* doubled each time it proves to be */
    AUTO_AHEAD = 256,          /* records, */
    AUTO_NBYTES = 8 << 20,     /* or bytes, whichever is less */
    GUESSED_NBYTES = 64 << 10, /* of a record that has not been seen yet */
    MARKER_EVERY = 64,
    EXPECTED = 512, /* positions of another view that are recognised before they are pushed:
                       the first ones of a listed one, and as many before a stream */
    CHUNK_NBYTES = 32 << 10,
    CHUNK_MAX = 16,
    PAGE_NBYTES = 4096,
    NICENESS = 5,
    STACK_NBYTES = 512 << 10
};

struct stream {
    uint64_t view;
    uint64_t last;   /* furthest position read, as far as one saw */
    uint64_t next;   /* to be pushed */
    uint64_t nbytes; /* of its records, the last ones seen; 0 not known */
    uint64_t serial; /* of its life, as streams are replaced; 0 unused */
    uint64_t used;   /* tick of the last match */
    unsigned run;    /* steps in order */
    unsigned margin;
    int cpu;         /* on which its reader was last seen; -1 not known */
    uint32_t reader; /* a thread's id; 0 not known */
    bool is_followed;
    bool is_at_end;
    bool is_unknown; /* the kernel did not hold the last inode */
};

struct hint {
    uint64_t ino, view, position;
    bool is_set;
};

struct job {
    uint64_t view;
    uint64_t *positions; /* malloc'ed, or NULL: start, start + step, ... */
    uint64_t start, step, count, done;
};

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
    uint64_t tick;                        /* READs of the start of a record */
    uint64_t next_serial;
    unsigned started_count;
    unsigned idle_count; /* of those that follow streams */
    bool has_work;       /* found by the READ that is being accounted for */
    uint32_t reader;     /* who sent that */
    size_t first_job, job_count;
    uint64_t pending_count; /* records of jobs, those being pushed included */
    uint64_t pushing_count; /* records of streams that are being pushed */
    struct sweep *sweep;
    struct stream streams[STREAMS];
    struct hint hints[HINTS];
    struct job jobs[JOBS];
    struct pusher pushers[MAX_THREADS];
};

/* ---------------------------------------------------------------- distances */

/* How far before a reader records of that size are pushed. */
static uint64_t ahead_count(const struct warm *w, uint64_t nbytes)
{
    uint64_t size = nbytes ? nbytes : GUESSED_NBYTES;
    bool is_auto = w->options.ahead == WARM_AUTO;
    uint64_t wanted = is_auto ? AUTO_AHEAD : (uint64_t)w->options.ahead;
    uint64_t budget = w->options.cache_nbytes / 2;
    if (is_auto && budget > AUTO_NBYTES)
        budget = AUTO_NBYTES;
    return wanted < budget / size ? wanted : budget / size;
}

static uint64_t marker_distance(uint64_t ahead)
{
    uint64_t distance = ahead / 3;
    if (distance > MARKER_EVERY)
        return MARKER_EVERY;
    return distance < 2 ? 2 : distance;
}

/* How many records are to be pushed before that reader now; the end of its view may
 * come earlier. */
static uint64_t wanted_count(const struct warm *w, const struct stream *s)
{
    uint64_t stop = s->last + ahead_count(w, s->nbytes) + 1;
    return s->is_followed && !s->is_at_end && s->next < stop ? stop - s->next : 0;
}

/* ---------------------------------------------------------------- streams */

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

/* A followed stream's reader was seen at that position.  False when it is none
 * of this stream's. */
static bool advance(struct stream *s, uint64_t position, uint64_t slack)
{
    if (position > s->next + slack || position + slack + NEAR < s->last)
        return false;
    if (position > s->last)
        s->last = position;
    if (s->next <= s->last + 1) { /* overtaken */
        s->margin = s->margin < MAX_MARGIN ? s->margin * 2 : MAX_MARGIN;
        s->next = s->last + s->margin;
    }
    return true;
}

/* A step of a stream that is not followed yet.  Chance makes such steps too, in
 * a small store often, but rarely several in a short time. */
static bool step(const struct warm *w, struct stream *s, uint64_t position)
{
    int64_t distance = (int64_t)(position - s->last);
    if (distance > NEAR || distance < -NEAR || w->tick - s->used > RUN_GAP)
        return false;
    if (distance > 0) {
        s->last = position;
        s->run++;
    }
    if (s->run >= RUN_TO_FOLLOW) {
        s->is_followed = true;
        s->margin = FIRST_MARGIN;
        s->next = s->last + s->margin;
    }
    return true;
}

/* jump: how far beyond the pushing a position may lie and still be the same reader's;
 * where numbers tell positions, a reader further on is another one. */
static bool match(struct warm *w, uint64_t view, uint64_t position, uint64_t jump)
{
    for (size_t i = 0; i < STREAMS; i++) {
        struct stream *s = &w->streams[i];
        if (!s->serial || s->view != view)
            continue;
        uint64_t slack = marker_distance(ahead_count(w, s->nbytes)) + jump;
        if (s->is_followed ? advance(s, position, slack) : step(w, s, position)) {
            s->used = w->tick;
            s->cpu = courtesy_reader_cpu();
            s->reader = w->reader;
            w->has_work |= wanted_count(w, s) > 0;
            return true;
        }
    }
    return false;
}

static void begin_stream(struct warm *w, uint64_t view, uint64_t position)
{
    struct stream *oldest = &w->streams[0];
    for (size_t i = 1; i < STREAMS; i++)
        if (w->streams[i].used < oldest->used)
            oldest = &w->streams[i];
    *oldest = (struct stream){
        .view = view,
        .last = position,
        .cpu = -1,
        .serial = ++w->next_serial,
        .used = w->tick,
    };
}

static struct hint *hint_of(struct warm *w, uint64_t ino)
{
    return &w->hints[ino % HINTS];
}

static void set_hint(struct warm *w, uint64_t view, uint64_t position, uint64_t ino)
{
    *hint_of(w, ino) = (struct hint){ino, view, position, true};
}

/* A READ in no order.  A number of records to go ahead is meant for an order. */
static void account_sweep(struct warm *w, uint64_t view, uint64_t position)
{
    struct warm_item item;
    if (w->options.ahead != WARM_AUTO)
        return;
    if (!sweep_knows(w->sweep, view))
        sweep_introduce(w->sweep, view, w->options.count(w->options.ctx, view));
    if (sweep_saw_read(w->sweep, view, position, courtesy_reader_cpu(), w->reader) &&
        w->options.at(w->options.ctx, view, position, &item))
        sweep_begin(w->sweep, view, item.nbytes);
    w->has_work |= sweep_pending(w->sweep) > 0;
}

static void account_read(struct warm *w, uint64_t view, uint64_t position, uint64_t ino,
                         bool is_start)
{
    const struct hint hint = *hint_of(w, ino);
    w->tick += is_start;
    bool is_hinted = hint.is_set && hint.ino == ino && hint.view != view;
    if (is_hinted && match(w, hint.view, hint.position, EXPECTED))
        return;
    if (match(w, view, position, 0) || !is_start)
        return;
    account_sweep(w, view, position);
    begin_stream(w, view, position);
    if (is_hinted)
        begin_stream(w, hint.view, hint.position);
}

bool warm_saw_read(struct warm *w, uint64_t view, uint64_t position, uint64_t ino, uint64_t off,
                   uint32_t reader)
{
    if (w->options.ahead == WARM_OFF)
        return false;
    if (off == 0)
        recent_note_read(w->recent, ino);
    if (pthread_mutex_trylock(&w->lock) != 0)
        return false; /* one sighting less does no harm, waiting would */
    w->has_work = false;
    w->reader = reader;
    account_read(w, view, position, ino, off == 0);
    bool has_work = w->has_work && (w->idle_count || w->started_count < w->options.thread_count);
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
    set_hint(w, view, position, ino);
    pthread_mutex_unlock(&w->lock);
}

void warm_expect(struct warm *w, uint64_t view)
{
    struct warm_item item;
    if (w->options.ahead == WARM_OFF)
        return;
    for (uint64_t i = 0; i < EXPECTED && w->options.at(w->options.ctx, view, i, &item); i++)
        warm_saw_lookup(w, view, i, item.ino);
}

/* ---------------------------------------------------------------- pushing */

/* A piece of work, taken under the lock and done without it. */
struct piece {
    struct warm_item items[CHUNK_MAX];
    bool is_marker[CHUNK_MAX];
    size_t count;
    uint64_t serial; /* of its stream; 0 for others */
    bool is_sweep;   /* else a job */
    uint64_t view;   /* of a sweep */
    int cpu;         /* to be left to its reader; -1 none */
    uint32_t reader;
    bool is_unknown; /* the kernel did not hold the inode before; then: the last one */
};

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
    if (w->options.get(w->options.ctx, item->ino, &entry, &is_fresh) != 0)
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
    bool is_asked_for = !p->serial && !p->is_sweep;
    if (!is_asked_for && recent_has(w->recent, item->ino))
        return; /* in the page cache, where a marker would be as silent */
    if (p->is_sweep && p->is_unknown)
        return; /* who has not listed gets nothing */
    /* Where the kernel did not hold the one before, ask before decoding. */
    if (p->is_unknown && store(w, item->ino, "", 0) == ENOENT && !may_keep(w, item->nbytes))
        return;
    if (!is_marker)
        recent_note(w->recent, item->ino);
    deliver(w, p, item, is_marker);
}

/* ---------------------------------------------------------------- taking work */

static size_t chunk_count(uint64_t nbytes)
{
    uint64_t count = CHUNK_NBYTES / (nbytes ? nbytes : GUESSED_NBYTES);
    if (count > CHUNK_MAX)
        return CHUNK_MAX;
    return count ? (size_t)count : 1;
}

/* So that a reader who overtakes the pushing is still recognised. */
static void expect_beyond(struct warm *w, uint64_t view, uint64_t position)
{
    struct warm_item item;
    if (w->options.at(w->options.ctx, view, position + EXPECTED, &item))
        set_hint(w, view, position + EXPECTED, item.ino);
}

/* What came to nothing leaves no traces for what is tried next. */
static bool is_taken(struct piece *p)
{
    if (p->count == 0)
        *p = (struct piece){.cpu = -1};
    return p->count > 0;
}

static void take_from_stream(struct warm *w, struct stream *s, struct piece *p)
{
    uint64_t distance = marker_distance(ahead_count(w, s->nbytes));
    size_t most = chunk_count(s->nbytes);
    p->serial = s->serial;
    p->cpu = s->cpu;
    p->reader = s->reader;
    p->is_unknown = s->is_unknown;
    while (p->count < most && wanted_count(w, s)) {
        struct warm_item *item = &p->items[p->count];
        uint64_t position = s->next++;
        s->is_at_end = !w->options.at(w->options.ctx, s->view, position, item);
        if (s->is_at_end)
            return;
        if (item->nbytes == 0)
            continue;
        s->nbytes = item->nbytes;
        set_hint(w, s->view, position, item->ino);
        expect_beyond(w, s->view, position);
        p->is_marker[p->count++] = position % distance == distance - 1;
    }
}

static bool take_stream(struct warm *w, struct piece *p)
{
    for (size_t i = 0; i < STREAMS && p->count == 0; i++)
        if (w->streams[i].serial && wanted_count(w, &w->streams[i]))
            take_from_stream(w, &w->streams[i], p);
    return is_taken(p);
}

static void take_from_sweep(struct warm *w, const struct sweep_part *part,
                            const uint64_t *positions, size_t count, struct piece *p)
{
    p->is_sweep = true;
    p->view = part->view;
    p->cpu = part->cpu;
    p->reader = part->reader;
    for (size_t i = 0; i < count; i++) {
        struct warm_item *item = &p->items[p->count];
        if (w->options.at(w->options.ctx, part->view, positions[i], item) && item->nbytes)
            p->is_marker[p->count++] = false;
    }
}

static bool take_sweep(struct warm *w, struct piece *p)
{
    uint64_t positions[CHUNK_MAX];
    struct sweep_part part;
    size_t count;
    while (p->count == 0 && (count = sweep_take(w->sweep, &part, positions, CHUNK_MAX)))
        take_from_sweep(w, &part, positions, count, p);
    return is_taken(p);
}

static void end_job(struct warm *w)
{
    struct job *job = &w->jobs[w->first_job];
    free(job->positions);
    w->pending_count -= job->count - job->done;
    w->first_job = (w->first_job + 1) % JOBS;
    w->job_count--;
}

/* One record at a time: readers come first. */
static bool take_job(struct warm *w, struct piece *p)
{
    while (w->job_count && p->count == 0) {
        struct job *job = &w->jobs[w->first_job];
        if (job->done == job->count) {
            end_job(w);
            continue;
        }
        uint64_t i = job->done++;
        uint64_t position = job->positions ? job->positions[i] : job->start + i * job->step;
        bool is_there = w->options.at(w->options.ctx, job->view, position, &p->items[0]);
        p->is_marker[0] = false;
        p->count = is_there && p->items[0].nbytes > 0;
        p->is_unknown = true;
        w->pending_count -= p->count == 0;
    }
    return p->count > 0;
}

static void begin(struct warm *w, const struct piece *p)
{
    w->pushing_count += p->serial || p->is_sweep ? p->count : 0;
}

static void finish(struct warm *w, const struct piece *p)
{
    *(p->serial || p->is_sweep ? &w->pushing_count : &w->pending_count) -= p->count;
    if (p->is_sweep && p->is_unknown)
        sweep_end(w->sweep, p->view);
    for (size_t i = 0; p->serial && i < STREAMS; i++)
        if (w->streams[i].serial == p->serial)
            w->streams[i].is_unknown = p->is_unknown;
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
        struct piece p = {.cpu = -1};
        bool is_for_reader = self->follows_streams && (take_stream(w, &p) || take_sweep(w, &p));
        if (!is_for_reader && !take_job(w, &p)) {
            await_work(w, self->follows_streams);
            continue;
        }
        begin(w, &p);
        pthread_mutex_unlock(&w->lock);
        place_keep_away(&place, cpu_of_reader(&p));
        for (size_t i = 0; i < p.count && !atomic_load(&w->is_stopping); i++)
            push_one(w, &p, i);
        pthread_mutex_lock(&w->lock);
        finish(w, &p);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* ---------------------------------------------------------------- jobs */

static uint64_t *copy_positions(const struct warm_range *range)
{
    size_t nbytes = range->count * sizeof *range->positions;
    uint64_t *positions = malloc(nbytes ? nbytes : 1);
    if (positions)
        memcpy(positions, range->positions, nbytes);
    return positions;
}

bool warm_prefetch(struct warm *w, const struct warm_range *range)
{
    struct job job = {range->view, NULL, range->start, range->step, range->count, 0};
    if (w->options.ahead == WARM_OFF)
        return false;
    if (range->positions && !(job.positions = copy_positions(range)))
        return false;
    pthread_mutex_lock(&w->lock);
    bool fits = w->job_count < JOBS;
    if (fits) {
        w->jobs[(w->first_job + w->job_count++) % JOBS] = job;
        w->pending_count += job.count;
        call_threads(w, true);
    }
    pthread_mutex_unlock(&w->lock);
    if (!fits)
        free(job.positions);
    return fits;
}

uint64_t warm_pending(struct warm *w)
{
    pthread_mutex_lock(&w->lock);
    uint64_t count = w->pending_count;
    pthread_mutex_unlock(&w->lock);
    return count;
}

uint64_t warm_ahead_pending(struct warm *w)
{
    pthread_mutex_lock(&w->lock);
    uint64_t count = w->pushing_count + sweep_pending(w->sweep);
    for (size_t i = 0; i < STREAMS; i++)
        count += wanted_count(w, &w->streams[i]);
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
    w->sweep = sweep_new();
    if (!w->recent || !w->sweep) {
        sweep_free(w->sweep);
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
    while (w->job_count)
        end_job(w);
    pthread_cond_destroy(&w->stream_work);
    pthread_cond_destroy(&w->job_work);
    pthread_mutex_destroy(&w->lock);
    sweep_free(w->sweep);
    recent_free(w->recent);
    free(w);
}
