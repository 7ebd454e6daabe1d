/* SPDX-License-Identifier: MIT
 *
 * The choice between the two transports, and libfuse's way out.  io_uring can only be
 * agreed on in the answer to INIT, so its rings are made before that is read: a process
 * that may have none does not accept what it could not do.
 */
#include "transport.h"

#include "init.h"
#include "loop.h"
#include "report.h"
#include "uring.h"

#define FUSE_USE_VERSION 35
#include <fuse_lowlevel.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>
#include <unistd.h>

struct transport {
    struct loop *loop;
    struct uring *uring; /* NULL when /dev/fuse carries everything */
};

const char transport_uring_advice[] =
    "FUSE over io_uring needs Linux 6.14 or later, where root enables it for new mounts with "
    "`echo 1 > /sys/module/fuse/parameters/enable_uring`, and a process that may use io_uring";

static const char *const NAMES[] = {"auto", "classic", "uring"};

const char *transport_name(int kind)
{
    return NAMES[kind];
}

bool transport_parse(const char *name, int *kind)
{
    for (int i = 0; i < 3; i++) {
        if (strcmp(name, NAMES[i]) == 0) {
            *kind = i;
            return true;
        }
    }
    return false;
}

/* ---------------------------------------------------------------- messages */

static ssize_t send_message(int fd, struct iovec *iov, int count, void *userdata)
{
    ssize_t sent;
    (void)userdata;
    return init_send(fd, iov, count, &sent) ? sent : uring_send(fd, iov, count);
}

static ssize_t receive_message(int fd, void *buf, size_t nbytes, void *userdata)
{
    (void)userdata;
    return read(fd, buf, nbytes);
}

static int lead_messages_here(struct fuse_session *session)
{
    static const struct fuse_custom_io io = {.writev = send_message, .read = receive_message};
    int failure = -fuse_session_custom_io(session, &io, fuse_session_fd(session));
    return failure < 0 ? EINVAL : failure;
}

/* ---------------------------------------------------------------- start */

static int make_uring(struct transport *t, struct fuse_session *session,
                      const struct transport_options *options)
{
    const struct uring_options uring_options = {
        .thread_count = options->thread_count,
        .counters = options->counters,
        .ended = options->ended,
        .ended_ctx = options->ended_ctx,
    };
    return options->kind == TRANSPORT_CLASSIC ? ENOTSUP
                                              : uring_new(&t->uring, session, &uring_options);
}

/* 0 when io_uring runs, else why not; INIT has been answered in either case, or whoever reads
 * next will see why it could not be. */
static int greet(struct transport *t, struct fuse_session *session,
                 const struct transport_options *options)
{
    struct init_result agreed = {0};
    int why_not = make_uring(t, session, options);
    if (why_not && options->kind == TRANSPORT_URING)
        return why_not;
    int failure = lead_messages_here(session);
    if (!failure)
        failure = init_serve(session, options->counters, !why_not, &agreed);
    if (!failure && !why_not)
        failure = agreed.has_uring ? uring_start(t->uring, agreed.payload_nbytes) : ENOTSUP;
    if (failure) {
        uring_free(t->uring);
        t->uring = NULL;
    }
    return failure ? failure : why_not;
}

static int start_loop(struct transport *t, struct fuse_session *session,
                      const struct transport_options *options)
{
    /* Beside io_uring only FORGET and INTERRUPT come here. */
    const struct loop_options loop_options = {
        .thread_count = t->uring ? 1 : options->thread_count,
        .spin_nsec = t->uring ? 0 : options->spin_nsec,
        .follows = !t->uring && options->spin_nsec > 0,
        .counters = options->counters,
        .ended = options->ended,
        .ended_ctx = options->ended_ctx,
    };
    int failure = loop_start(&t->loop, session, &loop_options);
    if (failure)
        report(LOG_ERR, "cannot start threads: %s", strerror(failure));
    return failure;
}

static int start(struct transport *t, struct fuse_session *session,
                 const struct transport_options *options)
{
    int failure = greet(t, session, options);
    if (options->kind == TRANSPORT_URING && failure) {
        report(LOG_ERR, "transport=uring: %s: %s",
               failure == ENOTSUP ? "the kernel does not offer it" : strerror(failure),
               transport_uring_advice);
        return -1;
    }
    return start_loop(t, session, options) == 0 ? 0 : -1;
}

int transport_start(struct transport **out, struct fuse_session *session,
                    const struct transport_options *options)
{
    struct transport *t = calloc(1, sizeof *t);
    *out = NULL;
    if (!t) {
        report(LOG_ERR, "out of memory");
        return -1;
    }
    if (start(t, session, options) != 0) {
        transport_stop(t);
        return -1;
    }
    *out = t;
    return 0;
}

enum transport_kind transport_running(const struct transport *t)
{
    return t->uring ? TRANSPORT_URING : TRANSPORT_CLASSIC;
}

void *transport_reply_room(size_t nbytes)
{
    return uring_reply_room(nbytes);
}

void transport_after_reply(void (*run)(void *ctx), void *ctx)
{
    if (!uring_after_reply(run, ctx))
        run(ctx); /* written to /dev/fuse, it is on its way */
}

void transport_stop(struct transport *t)
{
    if (!t)
        return;
    uring_free(t->uring);
    loop_stop(t->loop);
    free(t);
}
