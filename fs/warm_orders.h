/* SPDX-License-Identifier: MIT
 *
 * What the parts of reading ahead share: orders of records, and READs in them.  warm.c pushes
 * what plan.c says, which knows streams.c (readers in order), sweep.c (readers of all, in no
 * order) and jobs.c (what was asked for).
 */
#ifndef ZRECORDFS_WARM_ORDERS_H
#define ZRECORDFS_WARM_ORDERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A record: its inode number and its size as a file. */
struct warm_item {
    uint64_t ino;
    uint64_t nbytes;
};

enum { WARM_AUTO = -1, WARM_OFF = 0, WARM_MAX_AHEAD = 65536 };

/* What is known of orders.  An order is a view: the records by number, or an epoch's shuffle.
 * It goes by its folder's inode number. */
struct warm_views {
    /* What lies at a position of a view; false behind its end.  nbytes 0: that one
     * cannot be served.  Called from warm's threads and from warm_expect. */
    bool (*at)(void *ctx, uint64_t view, uint64_t position, struct warm_item *item);
    /* How many records a view has; 0 not known.  Called by whoever reports a READ. */
    uint64_t (*count)(void *ctx, uint64_t view);
    void *ctx;
};

/* Records of a view: positions[0..count), or start, start + step, ... without. */
struct warm_range {
    uint64_t view;
    const uint64_t *positions; /* copied */
    uint64_t start, step, count;
};

/* A READ of the record at a position of its plain view. */
struct warm_read {
    uint64_t view, position, ino;
    bool is_start;   /* of the record */
    int cpu;         /* of the reader; -1 not known */
    uint32_t reader; /* its thread's id; 0 not known */
};

#endif
