/* SPDX-License-Identifier: MIT
 *
 * FUSE over io_uring.  The kernel has a queue for each CPU and puts a request
 * into that of the reader's CPU; a thread bound to the same CPU takes it, so that
 * neither wakes an idle CPU for the other.  Each thread has a ring of its own
 * with one entry: a header and a payload buffer that the kernel fills for a
 * request and reads for the answer, in one system call a request.
 *
 * The kernel gives a request to the entry that was answered last.  So the second
 * thread of a queue sleeps until the first is held up, for instance by a slow
 * disk, and no request ever waits behind a long one.
 *
 * The handlers and libfuse stay as they are: libfuse's reading is done here, and
 * its writing comes to uring_send, which recognises the answer to the request
 * that this thread serves and puts it into the entry.  Everything else, such as a
 * notification, is written to /dev/fuse, from which the kernel still hands out
 * FORGET and INTERRUPT (loop.c reads them).
 */
#include "uring.h"

#include "counters.h"
#include "courtesy.h"
#include "fuse_uring.h"

#define FUSE_USE_VERSION 35
#include <fuse_lowlevel.h>
#include <liburing.h>
#include <linux/fuse.h>

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum {
    RING_ENTRIES = 4, /* an answer and the wait for the end */
    STACK_NBYTES = 1 << 20,
    COMMAND_OFF = offsetof(struct io_uring_sqe, cmd),
    MANY_CPUS = 64, /* beyond, one thread a queue: they are enough to help each other */
    REQUEST_HEAD_NBYTES = sizeof(struct fuse_in_header) + FUSE_URING_OP_NBYTES
};
enum { TOKEN_STOP = 1, TOKEN_ENTRY = 2 };

struct worker {
    struct uring *uring;
    unsigned queue; /* the CPU's number */
    bool has_ring;
    struct courtesy_seat *seat; /* NULL without courtesy */
    pthread_t thread;
    struct io_uring ring;
    struct fuse_uring_header *header;
    char *payload;
    char *request; /* put together as read() from /dev/fuse would give it */
    size_t mapped_nbytes;
    struct iovec entry[FUSE_URING_IOVECS];
    void (*after)(void *ctx); /* to be run when the answer in the entry has been sent */
    void *after_ctx;
};

struct uring {
    struct fuse_session *session;
    struct uring_options options;
    struct courtesy *courtesy; /* NULL where it cannot be */
    int stop_fd;               /* an eventfd that all rings watch */
    size_t payload_nbytes;
    unsigned queue_count, worker_count, started_count;
    atomic_bool has_ended;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned registered_count; /* lock; workers that have offered their entry */
    int failure;               /* lock; the first errno of offering one */
    struct worker workers[];   /* a first one for every queue, then the second ones */
};

/* ---------------------------------------------------------------- answers */

/* The request that this thread serves. */
struct exchange {
    uint64_t unique;
    struct worker *worker;
    bool is_answered;
};
static _Thread_local struct exchange *current;

static size_t iov_nbytes(const struct iovec *iov, int count)
{
    size_t nbytes = 0;
    for (int i = 0; i < count; i++)
        nbytes += iov[i].iov_len;
    return nbytes;
}

static void fill_answer(struct worker *w, uint64_t unique, int error, size_t payload_nbytes)
{
    const struct fuse_out_header out = {
        .len = (uint32_t)(sizeof out + payload_nbytes),
        .error = error,
        .unique = unique,
    };
    memcpy(w->header->in_out, &out, sizeof out);
    w->header->entry.payload_nbytes = (uint32_t)payload_nbytes;
}

/* Puts an answer into the entry: all after the out header is payload. */
static ssize_t put_answer(struct exchange *x, const struct iovec *iov, int count)
{
    struct worker *w = x->worker;
    const struct fuse_out_header *out = iov[0].iov_base;
    size_t nbytes = iov_nbytes(iov, count);
    if (nbytes - sizeof *out > x->worker->uring->payload_nbytes) {
        errno = E2BIG; /* libfuse then answers with the error */
        return -1;
    }
    char *to = w->payload;
    for (int i = 0; i < count; i++) {
        size_t skip = i == 0 ? sizeof *out : 0;
        if (iov[i].iov_len <= skip)
            continue;
        const char *from = (const char *)iov[i].iov_base + skip;
        if (from != to) /* else it was made in place */
            memcpy(to, from, iov[i].iov_len - skip);
        to += iov[i].iov_len - skip;
    }
    fill_answer(w, x->unique, out->error, nbytes - sizeof *out);
    x->is_answered = true;
    return (ssize_t)nbytes;
}

void *uring_reply_room(size_t nbytes)
{
    struct worker *w = current ? current->worker : NULL;
    return w && !current->is_answered && nbytes <= w->uring->payload_nbytes ? w->payload : NULL;
}

bool uring_after_reply(void (*run)(void *ctx), void *ctx)
{
    struct worker *w = current ? current->worker : NULL;
    if (!w)
        return false;
    w->after = run;
    w->after_ctx = ctx;
    return true;
}

ssize_t uring_send(int fd, const struct iovec *iov, int count)
{
    const struct fuse_out_header *out = iov[0].iov_base;
    struct exchange *x = current;
    if (!x || x->is_answered || out->unique != x->unique)
        return writev(fd, iov, count);
    return put_answer(x, iov, count);
}

/* ---------------------------------------------------------------- serving */

static int64_t now_nsec(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static void end(struct uring *u)
{
    if (!atomic_exchange(&u->has_ended, true))
        u->options.ended(u->options.ended_ctx);
}

/* The request as /dev/fuse would give it; 0 for one that makes no sense. */
static size_t assemble(struct worker *w)
{
    struct fuse_in_header header;
    memcpy(&header, w->header->in_out, sizeof header);
    size_t payload_nbytes = w->header->entry.payload_nbytes;
    size_t op_nbytes = header.len - sizeof header - payload_nbytes;
    if (payload_nbytes > w->uring->payload_nbytes || op_nbytes > FUSE_URING_OP_NBYTES)
        return 0;
    char *to = mempcpy(w->request, &header, sizeof header);
    to = mempcpy(to, w->header->op_in, op_nbytes);
    memcpy(to, w->payload, payload_nbytes);
    return header.len;
}

static void serve(struct worker *w)
{
    struct uring *u = w->uring;
    const struct fuse_in_header *header = (const void *)w->header->in_out;
    struct exchange x = {.unique = header->unique, .worker = w};
    uint32_t opcode = header->opcode;
    int64_t start = now_nsec();
    courtesy_note(w->seat);
    counters_request(u->options.counters, opcode);
    size_t nbytes = assemble(w);
    if (nbytes) {
        struct fuse_buf request = {.mem = w->request, .size = nbytes};
        current = &x;
        fuse_session_process_buf(u->session, &request);
        current = NULL;
    }
    if (!x.is_answered)
        fill_answer(w, x.unique, -EIO, 0);
    counters_latency(u->options.counters, opcode, now_nsec() - start);
}

/* ---------------------------------------------------------------- the ring */

static void prepare_command(struct worker *w, uint32_t command)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&w->ring); /* never full: see RING_ENTRIES */
    io_uring_prep_rw(IORING_OP_URING_CMD, sqe, fuse_session_fd(w->uring->session), NULL, 0, 0);
    sqe->cmd_op = command;
    sqe->user_data = TOKEN_ENTRY;
    struct fuse_uring_command details = {.queue = (uint16_t)w->queue};
    if (command == FUSE_URING_REGISTER) {
        sqe->addr = (uintptr_t)w->entry;
        sqe->len = FUSE_URING_IOVECS;
    } else {
        details.commit_id = w->header->entry.commit_id;
    }
    memcpy((char *)sqe + COMMAND_OFF, &details, sizeof details); /* SQE128: 80 bytes */
}

static void watch_stop(struct worker *w)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&w->ring);
    io_uring_prep_poll_add(sqe, w->uring->stop_fd, POLLIN);
    sqe->user_data = TOKEN_STOP;
}

struct events {
    bool has_stop, has_request;
    int failure; /* errno of the entry */
};

/* Sends what is prepared, and collects what has come; waits for it if told to. */
static struct events exchange(struct worker *w, bool wait)
{
    struct events events = {0};
    int sent = io_uring_submit_and_wait(&w->ring, wait ? 1 : 0);
    if (sent < 0 && sent != -EINTR && sent != -EAGAIN)
        events.failure = -sent;
    struct io_uring_cqe *cqe;
    while (io_uring_peek_cqe(&w->ring, &cqe) == 0) {
        if (cqe->user_data == TOKEN_STOP)
            events.has_stop = true;
        else if (cqe->res < 0)
            events.failure = -cqe->res;
        else
            events.has_request = true;
        io_uring_cqe_seen(&w->ring, cqe);
    }
    return events;
}

/* Sends the answer without waiting for the next request: what is to be done may wake threads,
 * and one of them take the CPU. */
static void run_after(struct worker *w)
{
    (void)io_uring_submit(&w->ring); /* what is refused now is sent with what comes next */
    w->after(w->after_ctx);
    w->after = NULL;
}

static void account_registration(struct uring *u, int failure)
{
    pthread_mutex_lock(&u->lock);
    u->registered_count++;
    if (failure && !u->failure)
        u->failure = failure;
    pthread_cond_broadcast(&u->changed);
    pthread_mutex_unlock(&u->lock);
}

/* Offers the entry; what may already be there for it is in the events. */
static struct events register_entry(struct worker *w)
{
    /* Not io_uring_enable_rings: Debian 12's shared liburing lacks it. */
    int enabled =
        io_uring_register((unsigned)w->ring.ring_fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0);
    struct events events = {.failure = -enabled};
    if (!events.failure) {
        watch_stop(w);
        prepare_command(w, FUSE_URING_REGISTER);
        events = exchange(w, false);
    }
    account_registration(w->uring, events.failure);
    return events;
}

/* To the queue's CPU, if this process may use it. */
static bool bind_to_cpu(const struct worker *w)
{
    cpu_set_t *set = CPU_ALLOC(w->queue + 1);
    if (!set)
        return false;
    size_t nbytes = CPU_ALLOC_SIZE(w->queue + 1);
    CPU_ZERO_S(nbytes, set);
    CPU_SET_S(w->queue, nbytes, set);
    bool is_bound = sched_setaffinity(0, nbytes, set) == 0;
    CPU_FREE(set);
    return is_bound;
}

static void *work(void *arg)
{
    struct worker *w = arg;
    pthread_setname_np(pthread_self(), "zrecordfs-serve");
    if (bind_to_cpu(w)) {
        courtesy_set_near(true);
        w->seat = courtesy_join(w->uring->courtesy);
        courtesy_set(w->seat, true);
    }
    struct events events = register_entry(w);
    if (events.failure)
        return NULL;
    for (;;) {
        if (events.has_request) {
            serve(w);
            prepare_command(w, FUSE_URING_COMMIT_AND_FETCH);
            if (w->after)
                run_after(w);
        }
        bool is_last = events.has_stop || events.failure;
        if (events.failure || fuse_session_exited(w->uring->session))
            end(w->uring);
        if (is_last && !events.has_request)
            break;
        events = exchange(w, !is_last);
        events.has_stop |= is_last;
    }
    return NULL;
}

/* ---------------------------------------------------------------- lifecycle */

/* The kernel has a queue for each CPU that there may ever be: "0-3,8-11". */
static unsigned possible_cpus(void)
{
    unsigned count = (unsigned)sysconf(_SC_NPROCESSORS_CONF);
    FILE *file = fopen("/sys/devices/system/cpu/possible", "re");
    char line[256];
    if (!file)
        return count;
    if (fgets(line, sizeof line, file)) {
        const char *last = line + strcspn(line, "\n");
        while (last > line && last[-1] >= '0' && last[-1] <= '9')
            last--;
        count = (unsigned)strtoul(last, NULL, 10) + 1;
    }
    fclose(file);
    return count;
}

static int make_ring(struct worker *w)
{
    /* The thread itself enables it, and is its only user from then on. */
    struct io_uring_params params = {
        .flags = IORING_SETUP_SQE128 | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
                 IORING_SETUP_R_DISABLED,
    };
    int failure = -io_uring_queue_init_params(RING_ENTRIES, &w->ring, &params);
    w->has_ring = !failure;
    return failure;
}

static struct uring *allocate(unsigned queue_count, unsigned worker_count)
{
    struct uring *u = calloc(1, sizeof *u + worker_count * sizeof u->workers[0]);
    if (!u)
        return NULL;
    pthread_mutex_init(&u->lock, NULL);
    pthread_cond_init(&u->changed, NULL);
    u->queue_count = queue_count;
    u->worker_count = worker_count;
    u->stop_fd = -1;
    return u;
}

static int make_rings(struct uring *u)
{
    u->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (u->stop_fd < 0)
        return errno;
    for (unsigned i = 0; i < u->worker_count; i++) {
        struct worker *w = &u->workers[i];
        w->uring = u;
        w->queue = i % u->queue_count;
        int failure = make_ring(w);
        if (failure)
            return failure;
    }
    return 0;
}

int uring_new(struct uring **out, struct fuse_session *session, const struct uring_options *options)
{
    *out = NULL;
    unsigned queue_count = possible_cpus();
    unsigned rows = (options->thread_count + queue_count - 1) / queue_count;
    if (options->thread_count > 1 && rows < 2 && queue_count <= MANY_CPUS)
        rows = 2;
    struct uring *u = allocate(queue_count, rows * queue_count);
    if (!u)
        return ENOMEM;
    u->session = session;
    u->options = *options;
    int failure = make_rings(u);
    if (failure)
        uring_free(u);
    else
        *out = u;
    return failure;
}

static size_t round_to_pages(size_t nbytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (nbytes + page - 1) / page * page;
}

/* One mapping holds payload, header and the request put together. */
static int map_buffers(struct worker *w)
{
    size_t payload = round_to_pages(w->uring->payload_nbytes);
    size_t header = round_to_pages(sizeof *w->header);
    size_t nbytes = payload + header + round_to_pages(REQUEST_HEAD_NBYTES) + payload;
    void *memory = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return errno;
    w->mapped_nbytes = nbytes;
    w->payload = memory;
    w->header = (void *)(w->payload + payload);
    w->request = w->payload + payload + header;
    w->entry[0] = (struct iovec){w->header, sizeof *w->header};
    w->entry[1] = (struct iovec){w->payload, w->uring->payload_nbytes};
    return 0;
}

static int start_worker(struct worker *w)
{
    int failure = map_buffers(w);
    if (failure)
        return failure;
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_NBYTES);
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGBUS); /* raised by the thread itself, and answered by the engine */
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the main thread */
    failure = pthread_create(&w->thread, &attr, work, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return failure;
}

/* Starts workers up to that number and waits until they have offered their
 * entries; the errno of the first that could not. */
static int start_until(struct uring *u, unsigned count)
{
    int failure = 0;
    while (u->started_count < count && !failure) {
        failure = start_worker(&u->workers[u->started_count]);
        u->started_count += failure == 0;
    }
    pthread_mutex_lock(&u->lock);
    while (u->registered_count < u->started_count)
        pthread_cond_wait(&u->changed, &u->lock);
    failure = failure ? failure : u->failure;
    pthread_mutex_unlock(&u->lock);
    return failure;
}

int uring_start(struct uring *u, size_t payload_nbytes)
{
    u->payload_nbytes = payload_nbytes;
    u->courtesy = courtesy_new(u->worker_count);
    /* The kernel changes over when every queue has an entry, and not at all when
     * one is refused before. */
    int failure = start_until(u, u->queue_count);
    if (!failure)
        (void)start_until(u, u->worker_count); /* helpers: what there is will do */
    return failure;
}

void uring_free(struct uring *u)
{
    if (!u)
        return;
    courtesy_end(u->courtesy);
    if (u->stop_fd >= 0)
        (void)eventfd_write(u->stop_fd, 1);
    for (unsigned i = 0; i < u->started_count; i++)
        pthread_join(u->workers[i].thread, NULL);
    for (unsigned i = 0; i < u->worker_count; i++) {
        struct worker *w = &u->workers[i];
        if (w->has_ring)
            io_uring_queue_exit(&w->ring);
        if (w->mapped_nbytes)
            munmap(w->payload, w->mapped_nbytes);
    }
    courtesy_free(u->courtesy);
    if (u->stop_fd >= 0)
        close(u->stop_fd);
    pthread_cond_destroy(&u->changed);
    pthread_mutex_destroy(&u->lock);
    free(u);
}
