/* SPDX-License-Identifier: MIT
 *
 * How requests reach the handlers: over /dev/fuse alone, or over io_uring with
 * /dev/fuse beside it.
 */
#ifndef ZRECORDFS_TRANSPORT_H
#define ZRECORDFS_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct counters;
struct fuse_session;
struct transport;

enum transport_kind { TRANSPORT_AUTO, TRANSPORT_CLASSIC, TRANSPORT_URING };

/* How to get io_uring where the kernel does not offer it. */
extern const char transport_uring_advice[];

struct transport_options {
    int kind; /* enum transport_kind: what is wanted */
    unsigned thread_count;
    int64_t spin_nsec; /* of the classic transport */
    struct counters *counters;
    void (*ended)(void *ctx); /* the kernel ended the mount; from a thread, maybe twice */
    void *ended_ctx;
};

/* Starts serving a mounted session; with TRANSPORT_URING only over io_uring.
 * 0, or -1 with the reason logged. */
int transport_start(struct transport **out, struct fuse_session *session,
                    const struct transport_options *options);
/* What runs: TRANSPORT_CLASSIC or TRANSPORT_URING. */
enum transport_kind transport_running(const struct transport *t);
/* For a handler: memory from which fuse_reply_buf sends that many bytes without copying them,
 * undefined until written, gone with the reply.  NULL where there is none. */
void *transport_reply_room(size_t nbytes);
/* For a handler that has replied: runs that when the reply is on its way, which may be now or
 * as soon as the handler has returned.  At most one a request. */
void transport_after_reply(void (*run)(void *ctx), void *ctx);
/* Lets requests being served finish, ends the threads and frees.  Takes NULL. */
void transport_stop(struct transport *t);

/* "auto", "classic", "uring". */
const char *transport_name(int kind);
/* The reverse; false for other names. */
bool transport_parse(const char *name, int *kind);

#endif
