/* SPDX-License-Identifier: MIT
 *
 * Records that somebody asked to have pushed, whether a reader is near or not: a queue of
 * ranges, served one record at a time.
 */
#ifndef ZRECORDFS_JOBS_H
#define ZRECORDFS_JOBS_H

#include "warm_orders.h"

struct job {
    uint64_t view;
    uint64_t *positions; /* malloc'ed, or NULL: start, start + step, ... */
    uint64_t start, step, count, done;
};

/* False when memory runs out.  May take a while: no lock is needed. */
bool job_init(struct job *job, const struct warm_range *range);
void job_release(struct job *job);

enum { JOBS = 64 };

/* Zero is an empty queue.  Nothing here is thread safe: warm's lock is held. */
struct jobs {
    size_t first, count;
    struct job all[JOBS]; /* from first on, round and round */
};

void jobs_release(struct jobs *jobs);
/* Takes the job over.  False when the queue is full. */
bool jobs_add(struct jobs *jobs, const struct job *job);
/* The next record; false when there is none. */
bool jobs_next(struct jobs *jobs, uint64_t *view, uint64_t *position);

#endif
