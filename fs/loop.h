/* SPDX-License-Identifier: MIT
 *
 * The classic transport: threads that read requests from /dev/fuse and hand
 * them to libfuse, which calls the handlers.
 */
#ifndef ZRECORDFS_LOOP_H
#define ZRECORDFS_LOOP_H

#include <stdbool.h>
#include <stdint.h>

struct counters;
struct fuse_session;
struct loop;

struct loop_options {
    unsigned thread_count; /* at least 1 */
    int64_t spin_nsec;     /* how long to wait actively; 0 never */
    bool follows;          /* may follow readers to their CPU */
    struct counters *counters;
    void (*ended)(void *ctx); /* the kernel ended the mount; called once, from a worker */
    void *ended_ctx;
};

/* Starts the threads.  The session is mounted.  0 or an errno. */
int loop_start(struct loop **out, struct fuse_session *session, const struct loop_options *options);
/* Lets requests being served finish, ends the threads and frees.  Takes NULL. */
void loop_stop(struct loop *l);

/* Threads and spin time to use on this machine where the user says nothing. */
unsigned loop_default_threads(void);
int64_t loop_default_spin_nsec(void);

#endif
