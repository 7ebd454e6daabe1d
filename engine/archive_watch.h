/* SPDX-License-Identifier: MIT
 *
 * Work that its caller may stop.  Any thread that works asks often whether it should
 * go on; the thread of the caller asks the caller first, now and then, also while it
 * waits for the others.
 */
#ifndef ZRI_ARCHIVE_WATCH_H
#define ZRI_ARCHIVE_WATCH_H

#include "internal.h"

/* Why a member was given up. */
extern const char zri_stopped[];
/* Between two questions; for tests. */
extern int64_t zri_watch_nsec;

struct zri_watch {
    zr_progress_fn progress; /* NULL: nobody asks */
    void *ctx;
    atomic_ullong done;
    uint64_t total;
    pthread_t caller;
    int64_t next_nsec; /* of the caller: not to be asked before */
    atomic_bool stopped;
};

void zri_watch_init(struct zri_watch *w, zr_progress_fn progress, void *ctx, uint64_t total);
/* Whether to stop; w may be NULL.  Cheap enough for every 100 kB. */
bool zri_watch_look(struct zri_watch *w);
/* Asks the caller, in its thread, whatever the time. */
bool zri_watch_ask(struct zri_watch *w);
/* zri_parallel, watched. */
void zri_watch_parallel(struct zri_watch *w, size_t count, unsigned thread_count, zri_task_fn fn,
                        void *ctx);

#endif
