/* SPDX-License-Identifier: MIT
 *
 * Two ways to wait for requests, of which now one and now the other is the faster: with spinning
 * and without.  Both are measured, again and again, and the better one is kept to between.
 */
#ifndef ZRECORDFS_WAYS_H
#define ZRECORDFS_WAYS_H

#include <stdbool.h>
#include <stdint.h>

enum { WAYS_EPOCH = 32 }; /* requests */

/* All of one thread. */
struct ways {
    bool spins;             /* the way of now */
    bool was_far;           /* at the end of the trial before */
    unsigned slow_count;    /* requests in a row that came late */
    unsigned request_count; /* in this epoch */
    unsigned epochs_left;   /* in this stint */
    unsigned stint_epochs;
    int64_t epoch_nsec[WAYS_EPOCH]; /* from answer to answer, in ascending order */
    int64_t cost_nsec[2];           /* best epochs without and with spinning; 0 unknown */
};

/* spins: the way to begin with. */
void ways_init(struct ways *w, bool spins);
/* One more request answered, so long after the one before.  May change the way. */
void ways_note(struct ways *w, int64_t nsec);

#endif
