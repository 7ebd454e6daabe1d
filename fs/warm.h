/* SPDX-License-Identifier: MIT
 *
 * Decoding ahead of readers: a reader that goes in order is noticed, and the
 * records before it are pushed into the kernel's page cache; and one that goes through all
 * in no order, with the rest of them.
 */
#ifndef ZRECORDFS_WARM_H
#define ZRECORDFS_WARM_H

#include "warm_orders.h"

struct cache;
struct cache_entry;
struct counters;
struct fuse_session;
struct warm;

struct warm_options {
    struct fuse_session *session;
    struct cache *cache;
    struct counters *counters;
    uint64_t cache_nbytes; /* bound on what the cache holds; half of it may be kept here */
    int ahead;             /* records before a reader, WARM_AUTO or WARM_OFF */
    unsigned thread_count;
    struct warm_views views;
    /* cache_get of that record, with the views' ctx; was it decoded for this, or there already?
     * 0 or a failure, which its READ will report. */
    int (*get)(void *ctx, uint64_t ino, struct cache_entry **entry, bool *is_fresh);
};

/* NULL when memory runs out. */
struct warm *warm_new(const struct warm_options *options);
/* Makes the threads, by one that may run on all CPUs and in the normal class, as they are to;
 * else they are made when there is something to do, by one that answers. */
void warm_start(struct warm *w);
/* Ends the threads, while requests are still served: a push may wait for the
 * answer to a READ.  From then on nothing is pushed.  Takes NULL. */
void warm_stop(struct warm *w);
/* After warm_stop, when nobody calls any more.  Takes NULL. */
void warm_free(struct warm *w);

/* A READ of the record at a position of its plain view, before it is answered: then the
 * record is not decoded ahead meanwhile, and whoever has the answer finds it accounted for.
 * off is where in the file, reader the thread that asks, 0 not known.  Costs some tens of ns.  True
 * when warm_wake is to be called, once it is answered: a woken thread may take the CPU.  Thread
 * safe, as all of these. */
bool warm_saw_read(struct warm *w, uint64_t view, uint64_t position, uint64_t ino, uint64_t off,
                   uint32_t reader);
/* Takes the struct warm. */
void warm_wake(void *w);
/* Somebody looked up a record through another view, so a READ of it may follow. */
void warm_saw_lookup(struct warm *w, uint64_t view, uint64_t position, uint64_t ino);
/* Somebody listed another view, so its first records may be read next. */
void warm_expect(struct warm *w, uint64_t view);

/* Pushes these records when no reader is waited for.  False when too much is queued
 * already, memory runs out, or pushing is off. */
bool warm_prefetch(struct warm *w, const struct warm_range *range);
/* Records asked for by warm_prefetch and not yet done. */
uint64_t warm_pending(struct warm *w);
/* Records to be pushed before the readers that are followed now, up to their distances. */
uint64_t warm_ahead_pending(struct warm *w);

#endif
