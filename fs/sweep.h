/* SPDX-License-Identifier: MIT
 *
 * Readers in no order that are going through all of a view: whoever has read a good part of it
 * without repeats will most likely read the rest, so that may be pushed as well, in any order.
 * This says what, and how much of it now.
 *
 * A pushed page is silent, so some records are left out, and only what is read grants more: a
 * stopped reader stops the sweep.  Nothing here is thread safe: warm's lock is held.
 */
#ifndef ZRECORDFS_SWEEP_H
#define ZRECORDFS_SWEEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sweep;

/* NULL when memory runs out. */
struct sweep *sweep_new(void);
/* Takes NULL. */
void sweep_free(struct sweep *s);

/* The start of a record that was not pushed was read, by a thread on a CPU (-1 and 0: not
 * known).  True when sweep_begin is to be asked. */
bool sweep_saw_read(struct sweep *s, uint64_t view, uint64_t position, int cpu, uint32_t reader);
/* Whether a view is known; else it is to be introduced, with the count of its records. */
bool sweep_knows(const struct sweep *s, uint64_t view);
void sweep_introduce(struct sweep *s, uint64_t view, uint64_t count);
/* Begins, if records of that size all fit into memory that is free. */
void sweep_begin(struct sweep *s, uint64_t view, uint64_t record_nbytes);
/* For good: the kernel does not hold the inodes. */
void sweep_end(struct sweep *s, uint64_t view);

/* Up to count positions of one view that may be pushed now, each given once. */
struct sweep_part {
    uint64_t view, record_nbytes;
    int cpu; /* of the reader */
    uint32_t reader;
};
size_t sweep_take(struct sweep *s, struct sweep_part *part, uint64_t *positions, size_t count);
/* How many may be, at most. */
uint64_t sweep_pending(const struct sweep *s);

#endif
