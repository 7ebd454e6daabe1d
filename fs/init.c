/* SPDX-License-Identifier: MIT
 *
 * The first exchange on a connection (init.h).
 */
#include "init.h"

#include "counters.h"
#include "fuse_uring.h"

#define FUSE_USE_VERSION 35
#include <fuse_lowlevel.h>
#include <linux/fuse.h>

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BUFFER_NBYTES = 1 << 16 /* more than any INIT; libfuse's smallest is 8 KiB */ };

/* The INIT that this thread serves. */
struct greeting {
    uint64_t unique;
    struct fuse_init_in offered;
    bool accepts_uring;
    bool is_answered;
    struct init_result *result;
};
static _Thread_local struct greeting *current;

/* ---------------------------------------------------------------- the answer */

static size_t needed_payload(const struct fuse_init_out *init)
{
    size_t nbytes = FUSE_URING_MIN_PAYLOAD;
    size_t pages_nbytes = init->max_pages * (size_t)sysconf(_SC_PAGESIZE);
    if (init->max_write > nbytes)
        nbytes = init->max_write;
    return pages_nbytes > nbytes ? pages_nbytes : nbytes;
}

static bool offers_uring(const struct fuse_init_in *offered)
{
    return (offered->flags & FUSE_INIT_EXT) && (offered->flags2 & FUSE_URING_INIT_FLAG2);
}

static void accept_more(const struct greeting *g, struct fuse_init_out *init)
{
    init->flags |= g->offered.flags & FUSE_PARALLEL_DIROPS;
    if (!g->accepts_uring || !offers_uring(&g->offered))
        return;
    init->flags |= FUSE_INIT_EXT;
    init->flags2 |= FUSE_URING_INIT_FLAG2;
    g->result->has_uring = true;
    g->result->payload_nbytes = needed_payload(init);
}

bool init_send(int fd, const struct iovec *iov, int count, ssize_t *sent)
{
    struct greeting *g = current;
    const struct fuse_out_header *out = iov[0].iov_base;
    struct fuse_init_out init;
    if (!g || g->is_answered || out->unique != g->unique)
        return false;
    g->is_answered = true;
    if (out->error || count != 2 || iov[1].iov_len != sizeof init) {
        *sent = writev(fd, iov, count);
        return true;
    }
    memcpy(&init, iov[1].iov_base, sizeof init);
    accept_more(g, &init);
    const struct iovec changed[2] = {iov[0], {&init, sizeof init}};
    *sent = writev(fd, changed, 2);
    g->result->has_uring &= *sent > 0;
    return true;
}

/* ---------------------------------------------------------------- the request */

static ssize_t read_request(int fd, void *buffer, size_t nbytes)
{
    ssize_t got;
    do
        got = read(fd, buffer, nbytes);
    while (got < 0 && (errno == EINTR || errno == EAGAIN || errno == ENOENT));
    return got;
}

static int serve(struct fuse_session *session, struct counters *counters, struct greeting *g,
                 void *buffer)
{
    const struct fuse_in_header *header = buffer;
    ssize_t nbytes = read_request(fuse_session_fd(session), buffer, BUFFER_NBYTES);
    if (nbytes < (ssize_t)sizeof *header)
        return nbytes < 0 ? errno : EIO;
    g->unique = header->unique;
    /* Older kernels send less of it. */
    size_t offered_nbytes = (size_t)nbytes - sizeof *header;
    if (header->opcode == FUSE_INIT)
        memcpy(&g->offered, header + 1,
               offered_nbytes < sizeof g->offered ? offered_nbytes : sizeof g->offered);
    counters_request(counters, header->opcode);
    current = g;
    struct fuse_buf request = {.mem = buffer, .size = (size_t)nbytes};
    fuse_session_process_buf(session, &request);
    current = NULL;
    return 0;
}

int init_serve(struct fuse_session *session, struct counters *counters, bool accepts_uring,
               struct init_result *result)
{
    *result = (struct init_result){0};
    struct greeting g = {.accepts_uring = accepts_uring, .result = result};
    void *buffer = malloc(BUFFER_NBYTES);
    if (!buffer)
        return ENOMEM;
    int failure = serve(session, counters, &g, buffer);
    free(buffer);
    return failure;
}
