/* SPDX-License-Identifier: MIT
 *
 * The classic transport.  A request costs little to serve and much to wake up
 * for, so who listens matters more than how many.
 *
 * Solo: the lead alone reads /dev/fuse.  After a request it may wait actively
 * for the next one, for some tens of µs, and then sleeps in read(); an idle daemon
 * therefore sleeps.  The others are parked, so the kernel wakes nobody in vain.
 * Whether waiting actively pays depends on the machine and the moment: it saves
 * waking an idle CPU, and it takes a CPU from readers when none is idle.  The
 * other way is to follow: the lead goes to the CPU of the reader that it answers
 * and steps aside for it (courtesy.h), so that no other CPU takes part; where that
 * may not be done, it just sleeps.  So the lead measures both ways, again and
 * again, and keeps to the faster one (ways.h).
 *
 * Crowd: all threads sleep in read(), and the kernel wakes one a request.  The
 * lead calls them when requests queue up behind ones that take long, and they
 * park again when it turns out that one at a time is all there is.  A watcher
 * (the first parked thread) calls them as well when the lead is stuck in a
 * request, for instance on a slow disk.
 */
#include "loop.h"

#include "counters.h"
#include "courtesy.h"
#include "ways.h"
#include "zrecord.h"

#define FUSE_USE_VERSION 35
#include <fuse_lowlevel.h>
#include <linux/fuse.h>

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum mode { SOLO, CROWD };

enum {
    DEFAULT_SPIN_USEC = 60,
    MIN_DEFAULT_THREADS = 4, /* disks like a queue, even with few CPUs */
    MAX_DEFAULT_THREADS = 16,
    BUFFER_PAGES = 257, /* what libfuse announces: 1 MiB and a header */
    STACK_NBYTES = 1 << 20,
    QUEUE_MEMORY = 32, /* requests over which waiting times leak away */
    ALONE_LIMIT = 128, /* so many requests one at a time: the crowd parks */
    FOLLOW_FIRST = 4,  /* requests until one sees again where the reader runs; */
    FOLLOW_SLOW = 3,   /* or so many slow ones, since it probably has moved; */
    FOLLOW_LAST = 64   /* doubled each time it had not moved */
};
static const int64_t NSEC_PER_SEC = 1000000000;
/* Leaky sum of the time others waited that calls the crowd: with few CPUs, and
 * where some are left for it. */
static const int64_t QUEUED_NSEC_FEW = 400000, QUEUED_NSEC_MANY = 100000;
static const int64_t PREEMPTED_NSEC = 30000; /* a gap between two looks at the clock */
static const int64_t YIELD_NSEC = 3000000;   /* no active waiting after such a gap */
static const int64_t WATCH_NSEC = 5000000;
static const int64_t STUCK_NSEC = 2000000;

struct worker {
    struct loop *loop;
    unsigned index; /* 0 is the lead, 1 the watcher */
    pthread_t thread;
    void *buffer;
    size_t buffer_nbytes;
};

/* The lead's own view of how its waiting goes; nobody else touches it. */
struct pace {
    int64_t done_nsec;       /* when the last request was answered */
    int64_t took_nsec;       /* how long that took */
    uint32_t served_pid;     /* and whose it was */
    int64_t queued_nsec;     /* leaky sum: time for which the next one was kept waiting */
    int64_t no_spin_until;   /* somebody else wanted this CPU */
    struct ways ways;        /* spinning, or following or sleeping */
    bool follows;            /* the lead is bound to a reader's CPU */
    unsigned followed_count; /* requests since one saw where the reader runs */
    unsigned follow_after;   /* and after how many one sees again */
    int followed_cpu;        /* -1 none */
};

struct loop {
    struct fuse_session *session;
    struct loop_options options;
    int fd;
    int64_t queued_limit_nsec;
    struct courtesy *courtesy;  /* NULL where it cannot be */
    struct courtesy_seat *seat; /* of the lead */
    cpu_set_t cpus;             /* that the lead may use when it follows nobody */
    struct pace pace;
    atomic_bool stopping;
    atomic_bool has_ended;
    atomic_int mode;
    atomic_uint busy_count;          /* threads that serve a request */
    atomic_uint alone_count;         /* requests in a row that were the only one */
    _Atomic int64_t lead_busy_since; /* 0 while the lead waits */
    atomic_bool is_watched;
    pthread_mutex_t lock;   /* for the condition only */
    pthread_cond_t changed; /* mode, stopping or is_watched did */
    unsigned started_count; /* of the thread that starts and stops */
    struct worker workers[];
};

static int64_t now_nsec(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * NSEC_PER_SEC + now.tv_nsec;
}

/* ---------------------------------------------------------------- modes */

static void announce(struct loop *l)
{
    pthread_mutex_lock(&l->lock);
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

static void call_crowd(struct loop *l)
{
    if (l->options.thread_count == 1)
        return;
    atomic_store(&l->alone_count, 0);
    if (atomic_exchange(&l->mode, CROWD) != CROWD) {
        counters_add(l->options.counters, EVENT_CROWDS, 1);
        announce(l);
    }
}

/* One period of the watcher, lock held.  It goes to sleep for good when the lead
 * has been waiting for two looks in a row. */
static void watch(struct loop *l, bool *was_waiting)
{
    int64_t until = now_nsec() + WATCH_NSEC;
    struct timespec at = {.tv_sec = until / NSEC_PER_SEC, .tv_nsec = until % NSEC_PER_SEC};
    pthread_cond_timedwait(&l->changed, &l->lock, &at);
    int64_t since = atomic_load(&l->lead_busy_since);
    if (since && now_nsec() - since > STUCK_NSEC) {
        atomic_store(&l->alone_count, 0);
        atomic_store(&l->mode, CROWD);
        pthread_cond_broadcast(&l->changed);
    }
    if (!since && *was_waiting)
        atomic_store(&l->is_watched, false);
    *was_waiting = !since;
}

static void park(struct worker *w)
{
    struct loop *l = w->loop;
    bool was_waiting = false;
    pthread_mutex_lock(&l->lock);
    while (atomic_load(&l->mode) == SOLO && !atomic_load(&l->stopping)) {
        if (w->index == 1 && atomic_load(&l->is_watched))
            watch(l, &was_waiting);
        else
            pthread_cond_wait(&l->changed, &l->lock);
    }
    pthread_mutex_unlock(&l->lock);
}

/* ---------------------------------------------------------------- following */

static void follow_nobody(struct loop *l)
{
    struct pace *p = &l->pace;
    if (!p->follows)
        return;
    p->follows = false;
    p->followed_cpu = -1;
    courtesy_set(l->seat, false);
    courtesy_set_near(false);
    (void)sched_setaffinity(0, sizeof l->cpus, &l->cpus);
}

static void go_to(struct loop *l, int cpu)
{
    cpu_set_t set;
    if (cpu < 0 || cpu >= CPU_SETSIZE || cpu == l->pace.followed_cpu)
        return;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set) == 0)
        l->pace.followed_cpu = cpu;
}

/* The lead, while the request of that thread is being served. */
static void follow(struct loop *l, uint32_t pid)
{
    struct pace *p = &l->pace;
    if (!l->seat || p->ways.spins || pid == 0) {
        follow_nobody(l);
        return;
    }
    bool is_slow = p->ways.slow_count >= FOLLOW_SLOW && p->followed_count >= FOLLOW_FIRST;
    if (p->follows && ++p->followed_count < p->follow_after && !is_slow)
        return;
    if (!courtesy_allows(l->seat)) { /* in the normal class the two would push each other about */
        follow_nobody(l);
        return;
    }
    int before = p->followed_cpu;
    p->follows = true;
    p->followed_count = 0;
    go_to(l, courtesy_cpu_of(pid));
    bool has_stayed = p->followed_cpu == before;
    p->follow_after = has_stayed ? p->follow_after * 2 : FOLLOW_FIRST;
    if (p->follow_after > FOLLOW_LAST)
        p->follow_after = FOLLOW_LAST;
    courtesy_set(l->seat, p->followed_cpu >= 0);
    courtesy_set_near(p->followed_cpu >= 0);
}

/* ---------------------------------------------------------------- receiving */

static bool is_readable(const struct loop *l)
{
    struct pollfd fd = {.fd = l->fd, .events = POLLIN};
    return poll(&fd, 1, 0) != 0;
}

static ssize_t receive(struct worker *w)
{
    return read(w->loop->fd, w->buffer, w->buffer_nbytes);
}

/* The thread that made the request in the buffer; 0 for none. */
static uint32_t pid_of(const struct worker *w, ssize_t nbytes)
{
    const struct fuse_in_header *header = w->buffer;
    return nbytes >= (ssize_t)sizeof *header ? header->pid : 0;
}

/* Waits actively for the next request; true when it is there.  A gap in the
 * clock means that the kernel gave this CPU to somebody else, most likely to a
 * reader: then it is left to the readers for a while. */
static bool spin(struct loop *l)
{
    struct pace *p = &l->pace;
    int64_t now = now_nsec();
    int64_t deadline = p->done_nsec + l->options.spin_nsec;
    while (now < deadline) {
        if (is_readable(l))
            return true;
        int64_t before = now;
        now = now_nsec();
        if (now - before > PREEMPTED_NSEC) {
            p->no_spin_until = now + YIELD_NSEC;
            return is_readable(l);
        }
    }
    return false;
}

/* Is the next request there at once, after one that took a while?  Short ones never add up
 * to the limit: not worth the look. */
static bool has_kept_waiting(struct loop *l)
{
    return l->pace.took_nsec >= l->queued_limit_nsec / QUEUE_MEMORY && is_readable(l);
}

/* Then it was kept waiting for up to took_nsec, and when that adds up the crowd is called.
 * But a reader that the lead makes way for goes on as soon as it is answered, before the
 * lead looks at the clock, and has not waited when it then asks for more. */
static void account_queue(struct loop *l, bool has_waited, uint32_t pid)
{
    struct pace *p = &l->pace;
    p->queued_nsec -= p->queued_nsec / QUEUE_MEMORY;
    if (!has_waited || (p->follows && pid == p->served_pid))
        return;
    p->queued_nsec += p->took_nsec;
    if (p->queued_nsec > l->queued_limit_nsec) {
        p->queued_nsec = 0;
        call_crowd(l);
    }
}

static void watch_on(struct loop *l)
{
    if (l->options.thread_count > 1 && !atomic_load(&l->is_watched)) {
        atomic_store(&l->is_watched, true);
        announce(l);
    }
}

static ssize_t receive_solo(struct worker *w)
{
    struct loop *l = w->loop;
    bool has_waited = has_kept_waiting(l);
    bool won = false;
    if (l->options.spin_nsec && l->pace.ways.spins && l->pace.done_nsec >= l->pace.no_spin_until) {
        won = spin(l);
        counters_add(l->options.counters, won ? EVENT_SPINS_WON : EVENT_SPINS_LOST, 1);
    }
    ssize_t nbytes = receive(w);
    account_queue(l, has_waited, pid_of(w, nbytes));
    if (!won)
        watch_on(l);
    return nbytes;
}

/* ---------------------------------------------------------------- serving */

static void end(struct loop *l)
{
    if (atomic_exchange(&l->has_ended, true))
        return;
    atomic_store(&l->stopping, true);
    announce(l);
    l->options.ended(l->options.ended_ctx);
}

/* Counts requests that met no other in service; a long row of them parks the
 * crowd. */
static void account_company(struct loop *l, unsigned others)
{
    if (atomic_load_explicit(&l->mode, memory_order_relaxed) == SOLO)
        return;
    if (others)
        atomic_store_explicit(&l->alone_count, 0, memory_order_relaxed);
    else if (atomic_fetch_add_explicit(&l->alone_count, 1, memory_order_relaxed) >= ALONE_LIMIT)
        atomic_store(&l->mode, SOLO);
}

/* What the kernel does with these takes long, in whatever way one waits. */
static bool is_listing(uint32_t opcode)
{
    return opcode == FUSE_READDIR || opcode == FUSE_READDIRPLUS;
}

static void serve(struct worker *w, size_t nbytes)
{
    struct loop *l = w->loop;
    const struct fuse_in_header *header = w->buffer;
    uint32_t opcode = nbytes >= sizeof *header ? header->opcode : 0;
    int64_t start = now_nsec();
    counters_request(l->options.counters, opcode);
    account_company(l, atomic_fetch_add_explicit(&l->busy_count, 1, memory_order_relaxed));
    if (w->index == 0) {
        atomic_store_explicit(&l->lead_busy_since, start, memory_order_relaxed);
        courtesy_note(l->seat);
        if (atomic_load_explicit(&l->mode, memory_order_relaxed) == SOLO)
            follow(l, pid_of(w, (ssize_t)nbytes));
    }

    struct fuse_buf request = {.mem = w->buffer, .size = nbytes};
    fuse_session_process_buf(l->session, &request);

    int64_t done = now_nsec();
    counters_latency(l->options.counters, opcode, done - start);
    atomic_fetch_sub_explicit(&l->busy_count, 1, memory_order_relaxed);
    if (w->index == 0) {
        atomic_store_explicit(&l->lead_busy_since, 0, memory_order_relaxed);
        if (!is_listing(opcode))
            ways_note(&l->pace.ways, done - l->pace.done_nsec);
        l->pace.done_nsec = done;
        l->pace.took_nsec = done - start;
        l->pace.served_pid = pid_of(w, (ssize_t)nbytes);
    }
}

static bool is_passing(int error)
{
    /* ENOENT: the request was interrupted before it was read. */
    return error == EINTR || error == EAGAIN || error == ENOENT;
}

static void *work(void *arg)
{
    struct worker *w = arg;
    struct loop *l = w->loop;
    pthread_setname_np(pthread_self(), "zrecordfs-serve");
    if (w->index == 0)
        l->seat = courtesy_join(l->courtesy);
    while (!atomic_load(&l->stopping)) {
        bool is_solo = atomic_load(&l->mode) == SOLO;
        if (!is_solo && w->index == 0)
            follow_nobody(l);
        if (is_solo && w->index != 0) {
            park(w);
            continue;
        }
        ssize_t nbytes = is_solo ? receive_solo(w) : receive(w);
        if (nbytes > 0)
            serve(w, (size_t)nbytes);
        else if (nbytes == 0 || !is_passing(errno))
            end(l);
        if (fuse_session_exited(l->session))
            end(l);
    }
    return NULL;
}

/* ---------------------------------------------------------------- lifecycle */

static void wake_only(int signal_number)
{
    (void)signal_number; /* its arrival alone ends a blocking read() */
}

/* Workers take SIGUSR1, whose only use is to get them out of read(), and leave
 * all other signals to the main thread. */
static int start_thread(struct worker *w)
{
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_NBYTES);
    sigset_t all_but_one, before;
    sigfillset(&all_but_one);
    sigdelset(&all_but_one, SIGBUS); /* raised by the thread itself, and answered by the engine */
    sigdelset(&all_but_one, SIGUSR1);
    pthread_sigmask(SIG_SETMASK, &all_but_one, &before);
    int failure = pthread_create(&w->thread, &attr, work, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return failure;
}

static int start_worker(struct loop *l, unsigned index)
{
    struct worker *w = &l->workers[index];
    w->loop = l;
    w->index = index;
    w->buffer_nbytes = BUFFER_PAGES * (size_t)sysconf(_SC_PAGESIZE);
    w->buffer =
        mmap(NULL, w->buffer_nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (w->buffer == MAP_FAILED)
        return errno;
    int failure = start_thread(w);
    if (failure)
        munmap(w->buffer, w->buffer_nbytes);
    return failure;
}

static struct loop *make(struct fuse_session *session, const struct loop_options *options)
{
    struct loop *l = calloc(1, sizeof *l + options->thread_count * sizeof l->workers[0]);
    if (!l)
        return NULL;
    l->session = session;
    l->options = *options;
    l->fd = fuse_session_fd(session);
    l->pace.followed_cpu = -1;
    CPU_ZERO(&l->cpus);
    if (options->follows && sched_getaffinity(0, sizeof l->cpus, &l->cpus) == 0)
        l->courtesy = courtesy_new(1);
    ways_init(&l->pace.ways, !l->courtesy);
    /* With two CPUs a reader and the lead have them both. */
    l->queued_limit_nsec = zr_thread_count() > 2 ? QUEUED_NSEC_MANY : QUEUED_NSEC_FEW;
    /* The watcher's deadlines are on the clock of now_nsec. */
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&l->changed, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&l->lock, NULL);
    return l;
}

int loop_start(struct loop **out, struct fuse_session *session, const struct loop_options *options)
{
    *out = NULL;
    struct sigaction action = {.sa_handler = wake_only};
    sigaction(SIGUSR1, &action, NULL); /* without SA_RESTART */
    struct loop *l = make(session, options);
    if (!l)
        return ENOMEM;
    for (unsigned i = 0; i < options->thread_count; i++) {
        int failure = start_worker(l, i);
        if (failure) {
            loop_stop(l);
            return failure;
        }
        l->started_count = i + 1;
    }
    *out = l;
    return 0;
}

/* The signal may come just before the thread enters read(), hence again. */
static void join(struct worker *w)
{
    struct timespec deadline;
    do {
        pthread_kill(w->thread, SIGUSR1);
        clock_gettime(CLOCK_REALTIME, &deadline);
        deadline.tv_nsec += 5000000;
        if (deadline.tv_nsec >= NSEC_PER_SEC) {
            deadline.tv_nsec -= NSEC_PER_SEC;
            deadline.tv_sec++;
        }
    } while (pthread_timedjoin_np(w->thread, NULL, &deadline) == ETIMEDOUT);
}

void loop_stop(struct loop *l)
{
    if (!l)
        return;
    atomic_store(&l->stopping, true);
    courtesy_end(l->courtesy);
    announce(l);
    for (unsigned i = 0; i < l->started_count; i++) {
        join(&l->workers[i]);
        munmap(l->workers[i].buffer, l->workers[i].buffer_nbytes);
    }
    courtesy_free(l->courtesy);
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

unsigned loop_default_threads(void)
{
    unsigned cpus = zr_thread_count();
    if (cpus < MIN_DEFAULT_THREADS)
        return MIN_DEFAULT_THREADS;
    return cpus > MAX_DEFAULT_THREADS ? MAX_DEFAULT_THREADS : cpus;
}

int64_t loop_default_spin_nsec(void)
{
    /* With one CPU the reader could not even send what is being waited for. */
    return zr_thread_count() > 1 ? DEFAULT_SPIN_USEC * 1000 : 0;
}
