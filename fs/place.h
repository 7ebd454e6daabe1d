/* SPDX-License-Identifier: MIT
 *
 * On which CPUs a thread that works for a reader runs: not on the reader's.
 */
#ifndef ZRECORDFS_PLACE_H
#define ZRECORDFS_PLACE_H

#include <sched.h>
#include <stdbool.h>

/* Where the calling thread may run, and which of those CPUs it keeps away from. */
struct place {
    cpu_set_t all;
    bool is_known;
    int avoided; /* -1 none */
};

void place_init(struct place *place);
/* By the thread that it was made by; -1: it may run anywhere. */
void place_keep_away(struct place *place, int cpu);
/* How many CPUs that leaves to threads like the calling one; at least 1. */
unsigned place_spare_count(void);

#endif
