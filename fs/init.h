/* SPDX-License-Identifier: MIT
 *
 * INIT, the kernel's first request: what libfuse makes of it, and what is added to that.
 * io_uring is accepted here, and lookups of several readers in one folder at once, which
 * libfuse 3.14 promises and leaves out.
 */
#ifndef ZRECORDFS_INIT_H
#define ZRECORDFS_INIT_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/uio.h>

struct counters;
struct fuse_session;

struct init_result {
    bool has_uring;        /* it was offered, and accepted */
    size_t payload_nbytes; /* then: room for what a message brings */
};

/* Reads and answers INIT, before any thread reads.  libfuse's way out has to lead to
 * init_send.  0, or the errno of reading; then nothing was answered. */
int init_serve(struct fuse_session *session, struct counters *counters, bool accepts_uring,
               struct init_result *result);
/* libfuse's answer, if this is the one to the INIT being served: sends it, and more.  False
 * for every other message. */
bool init_send(int fd, const struct iovec *iov, int count, ssize_t *sent);

#endif
