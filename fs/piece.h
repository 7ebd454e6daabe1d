/* SPDX-License-Identifier: MIT
 *
 * A piece of work for a thread that pushes: some records, and for whom.  Taken under warm's
 * lock and done without it.
 */
#ifndef ZRECORDFS_PIECE_H
#define ZRECORDFS_PIECE_H

#include "warm_orders.h"

enum { PIECE_MAX = 16 };

enum piece_kind { PIECE_OF_STREAM, PIECE_OF_SWEEP, PIECE_OF_JOB };

struct piece {
    enum piece_kind kind;
    struct warm_item items[PIECE_MAX];
    bool is_marker[PIECE_MAX];
    size_t count;
    uint64_t serial; /* of its stream */
    uint64_t view;   /* of its sweep */
    int cpu;         /* to be left to its reader; -1 none */
    uint32_t reader;
    bool is_unknown; /* the kernel did not hold the inode before; then: the last one */
};

#endif
