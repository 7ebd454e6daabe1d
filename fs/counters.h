/* SPDX-License-Identifier: MIT
 *
 * What the daemon did, counted: requests by opcode with their latency, bytes,
 * decodes, cache hits.  Each thread writes a slot of its own, so counting costs
 * a few cycles and no cache line moves between CPUs; readers add the slots up.
 */
#ifndef ZRECORDFS_COUNTERS_H
#define ZRECORDFS_COUNTERS_H

#include <stdatomic.h>
#include <stdint.h>

enum {
    COUNTERS_OPCODES = 64, /* opcodes of the protocol are below, 0 is "other" */
    COUNTERS_BUCKETS = 40, /* bucket b holds durations of [2^b, 2^(b+1)) ns */
    COUNTERS_SLOTS = 64,   /* threads beyond share slots, which stay right */
    COUNTERS_TIMED = 6     /* kinds whose latency is kept, see enum counters_timed */
};

enum counters_timed {
    TIMED_LOOKUP,
    TIMED_READ,
    TIMED_READDIR,
    TIMED_READDIRPLUS,
    TIMED_IOCTL,
    TIMED_OTHER
};

enum counters_event {
    EVENT_READ_BYTES,      /* payload handed to the kernel for records */
    EVENT_DECODES,         /* records decoded */
    EVENT_DECODED_BYTES,   /* their bytes */
    EVENT_CACHE_HITS,      /* a READ served from a record decoded before */
    EVENT_CACHE_WAITS,     /* a READ that waited for another one's decode */
    EVENT_PUSHES,          /* records pushed into the page cache ahead of their reader */
    EVENT_PUSHED_BYTES,    /* their bytes */
    EVENT_PREFETCHES,      /* records asked for ahead, by name or command */
    EVENT_DROPS,           /* records dropped by command */
    EVENT_KEPT,            /* records decoded ahead that the kernel could not take yet */
    EVENT_ERRORS,          /* requests for a record that failed */
    EVENT_CONTROL_LOOKUPS, /* of these LOOKUPs and READs: for the control file */
    EVENT_CONTROL_READS,
    EVENT_SPINS_WON,  /* a request came while a thread spun for it */
    EVENT_SPINS_LOST, /* none did, and the thread went to sleep */
    EVENT_CROWDS,     /* requests queued up, and all threads were called */
    EVENT_COUNT
};

typedef _Atomic uint64_t counter;

struct counters_slot {
    _Alignas(64) counter requests[COUNTERS_OPCODES];
    counter latency[COUNTERS_TIMED][COUNTERS_BUCKETS];
    counter events[EVENT_COUNT];
};

/* The sum of all slots, taken without stopping anyone. */
struct counters_sum {
    uint64_t requests[COUNTERS_OPCODES];
    uint64_t latency[COUNTERS_TIMED][COUNTERS_BUCKETS];
    uint64_t events[EVENT_COUNT];
};

struct counters;

/* NULL when memory runs out. */
struct counters *counters_new(void);
/* Takes NULL. */
void counters_free(struct counters *c);

/* One request arrived.  Counted on arrival, so a status taken while it is
 * served already contains it. */
void counters_request(struct counters *c, uint32_t opcode);
/* The same request has been answered after that many nanoseconds. */
void counters_latency(struct counters *c, uint32_t opcode, int64_t nsec);
void counters_add(struct counters *c, enum counters_event event, uint64_t amount);

void counters_collect(struct counters *c, struct counters_sum *sum);
/* From now on the sums start from 0. */
void counters_reset(struct counters *c);

/* "LOOKUP" for 1; NULL for numbers without a name. */
const char *counters_opcode_name(uint32_t opcode);
const char *counters_timed_name(enum counters_timed kind);
const char *counters_event_name(enum counters_event event);

/* The duration in µs below which that share (0..1) of the requests lies, as far
 * as powers of two tell: the geometric middle of its bucket.  0 without any. */
double counters_percentile(const uint64_t *buckets, double share);

#endif
