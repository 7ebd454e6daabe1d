/* SPDX-License-Identifier: MIT
 *
 * What writes to a mounted archive leave behind: checksums to be computed anew, and a
 * file that has another time than when it was opened and is the same one all the same.
 */
#ifndef ZRECORDFS_ARCHIVE_WRITES_H
#define ZRECORDFS_ARCHIVE_WRITES_H

#include "probe.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

enum { ARCHIVE_WRITES_WHY_MAX = 512 };

struct archive_writes {
    int fd;                /* of the file, whatever its name is by now; -1: none */
    pthread_rwlock_t lock; /* held while bytes change, by any number of writers */
    pthread_mutex_t left_lock;
    struct probe_stamp left; /* what the last write here left of it */
    atomic_bool any;         /* something was written */
    atomic_bool stale;       /* since the checksums were computed */

    char refused[ARCHIVE_WRITES_WHY_MAX]; /* why a write was; under left_lock */
};

/* Before the others.  Without a file yet. */
void archive_writes_init(struct archive_writes *w);
/* Finds the file that was opened at path with this stamp.  0, ELOOP for a link, which may
 * lead to a file of somebody else, ESTALE when another one is there, or an errno. */
int archive_writes_open(struct archive_writes *w, const char *path,
                        const struct probe_stamp *stamp);
void archive_writes_release(struct archive_writes *w);

/* Around the change of some bytes.  end is true for the first one since the checksums were
 * computed. */
void archive_writes_begin(struct archive_writes *w);
bool archive_writes_end(struct archive_writes *w);

/* Keeps and logs why a write to a file of the archive at path was refused, the same reason
 * once. */
void archive_writes_refuse(struct archive_writes *w, const char *path, const char *name,
                           const char *why);
/* That reason, "" for none. */
void archive_writes_last_refused(struct archive_writes *w, char why[ARCHIVE_WRITES_WHY_MAX]);

/* Whether path leads to the file as writes here left it.  False when there were none. */
bool archive_writes_are_at(struct archive_writes *w, const char *path);
/* Computes the checksums anew where they are stale, of the file itself: another one may have
 * its name by now.  Stops, for another time, when *stopping (may be NULL). */
void archive_writes_refresh(struct archive_writes *w, const char *path,
                            const atomic_bool *stopping);

#endif
