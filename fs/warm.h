/* SPDX-License-Identifier: MIT
 *
 * Decoding ahead of readers: a reader that goes in order is noticed, and the
 * records before it are pushed into the kernel's page cache; and one that goes through all
 * in no order (sweep.h), with the rest of them.
 *
 * An order is a view: the records by number, or an epoch's shuffle.  Warm knows
 * views by their folder's inode number and asks what lies at a position.
 */
#ifndef ZRECORDFS_WARM_H
#define ZRECORDFS_WARM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cache;
struct cache_entry;
struct counters;
struct fuse_session;
struct warm;

/* A record: its inode number and its size as a file. */
struct warm_item {
    uint64_t ino;
    uint64_t nbytes;
};

enum { WARM_AUTO = -1, WARM_OFF = 0, WARM_MAX_AHEAD = 65536 };

struct warm_options {
    struct fuse_session *session;
    struct cache *cache;
    struct counters *counters;
    uint64_t cache_nbytes; /* bound on what the cache holds; half of it may be kept here */
    int ahead;             /* records before a reader, WARM_AUTO or WARM_OFF */
    unsigned thread_count;
    /* What lies at a position of a view; false behind its end.  nbytes 0: that one
     * cannot be served.  Called from warm's threads and from warm_expect. */
    bool (*at)(void *ctx, uint64_t view, uint64_t position, struct warm_item *item);
    /* How many records a view has; 0 not known.  Called by whoever reports a READ. */
    uint64_t (*count)(void *ctx, uint64_t view);
    /* cache_get of that record; was it decoded for this, or there already?  0 or a failure,
     * which its READ will report. */
    int (*get)(void *ctx, uint64_t ino, struct cache_entry **entry, bool *is_fresh);
    void *ctx;
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

/* Records of a view: positions[0..count), or start, start + step, ... without. */
struct warm_range {
    uint64_t view;
    const uint64_t *positions; /* copied */
    uint64_t start, step, count;
};
/* Pushes them when no reader is waited for.  False when too much is queued
 * already, memory runs out, or pushing is off. */
bool warm_prefetch(struct warm *w, const struct warm_range *range);
/* Records asked for by warm_prefetch and not yet done. */
uint64_t warm_pending(struct warm *w);
/* Records to be pushed before the readers that are followed now, up to their distances. */
uint64_t warm_ahead_pending(struct warm *w);

#endif
