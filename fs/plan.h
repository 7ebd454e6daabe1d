/* SPDX-License-Identifier: MIT
 *
 * What is pushed next: records before a reader in order (streams.h), then the rest for one that
 * goes through all (sweep.h), then what was asked for (jobs.h).  Pushes nothing itself.  Nothing
 * here is thread safe: warm's lock is held.
 */
#ifndef ZRECORDFS_PLAN_H
#define ZRECORDFS_PLAN_H

#include "piece.h"

struct job;
struct plan;

/* As in struct warm_options.  NULL when memory runs out. */
struct plan *plan_new(const struct warm_views *views, int ahead, uint64_t cache_nbytes);
/* Takes NULL. */
void plan_free(struct plan *plan);

/* True when something is to be pushed for that reader. */
bool plan_saw_read(struct plan *plan, const struct warm_read *read);
/* As streams_expect. */
void plan_expect(struct plan *plan, uint64_t view, uint64_t position, uint64_t ino);
/* As jobs_add. */
bool plan_add(struct plan *plan, const struct job *job);

/* The next piece, which is to be given to plan_finish once it is done.  A thread that is not
 * for readers does jobs alone.  False, and *piece as it may be, when there is nothing. */
bool plan_take(struct plan *plan, bool is_for_readers, struct piece *piece);
void plan_finish(struct plan *plan, const struct piece *piece);

/* Records of jobs, and records to be pushed before readers that are known now; both with those
 * that are taken and not finished. */
uint64_t plan_asked_count(const struct plan *plan);
uint64_t plan_ahead_count(const struct plan *plan);

#endif
