/* SPDX-License-Identifier: MIT
 *
 * FUSE over io_uring: the transport of Linux 6.14 and later, under the same
 * handlers as the classic one.
 */
#ifndef ZRECORDFS_URING_H
#define ZRECORDFS_URING_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/uio.h>

struct counters;
struct fuse_session;
struct uring;

struct uring_options {
    unsigned thread_count; /* wanted in all; there is at least one a CPU */
    struct counters *counters;
    void (*ended)(void *ctx); /* the kernel ended the mount; called once, from a worker */
    void *ended_ctx;
};

/* Makes the rings, before the kernel's INIT has been read.  0, or the errno for
 * which this process may have none (EPERM, ENOSYS, ENOMEM, EINVAL). */
int uring_new(struct uring **out, struct fuse_session *session,
              const struct uring_options *options);

/* Starts the threads, after io_uring was agreed on with room for so many bytes of a message
 * (init.h).  0, or an errno after which the kernel goes on over /dev/fuse.  FORGET and INTERRUPT
 * still come that way in any case: somebody has to read it. */
int uring_start(struct uring *u, size_t payload_nbytes);

/* libfuse's way out, for answers and notifications of every thread, as writev. */
ssize_t uring_send(int fd, const struct iovec *iov, int count);

/* Where the answer to the request that the calling thread serves will lie, if it has no more
 * bytes than that: what is made there is sent without a copy.  NULL when it serves none over
 * io_uring. */
void *uring_reply_room(size_t nbytes);

/* Keeps that until the answer to the request that the calling thread serves has been sent.
 * False when it serves none over io_uring.  At most one a request. */
bool uring_after_reply(void (*run)(void *ctx), void *ctx);

/* Lets requests being served finish, ends the threads and frees.  Takes NULL. */
void uring_free(struct uring *u);

#endif
