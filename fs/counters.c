/* SPDX-License-Identifier: MIT
 *
 * The counters behind .control.  Relaxed atomics throughout: every number is
 * right, but two of them read at one moment may be a request apart.
 */
#include "counters.h"

#include <linux/fuse.h>
#include <pthread.h>
#include <stdlib.h>

static const char *const OPCODE_NAMES[COUNTERS_OPCODES] = {
    [0] = "other",
    [FUSE_LOOKUP] = "LOOKUP",
    [FUSE_FORGET] = "FORGET",
    [FUSE_GETATTR] = "GETATTR",
    [FUSE_SETATTR] = "SETATTR",
    [FUSE_READLINK] = "READLINK",
    [FUSE_SYMLINK] = "SYMLINK",
    [FUSE_MKNOD] = "MKNOD",
    [FUSE_MKDIR] = "MKDIR",
    [FUSE_UNLINK] = "UNLINK",
    [FUSE_RMDIR] = "RMDIR",
    [FUSE_RENAME] = "RENAME",
    [FUSE_LINK] = "LINK",
    [FUSE_OPEN] = "OPEN",
    [FUSE_READ] = "READ",
    [FUSE_WRITE] = "WRITE",
    [FUSE_STATFS] = "STATFS",
    [FUSE_RELEASE] = "RELEASE",
    [FUSE_FSYNC] = "FSYNC",
    [FUSE_SETXATTR] = "SETXATTR",
    [FUSE_GETXATTR] = "GETXATTR",
    [FUSE_LISTXATTR] = "LISTXATTR",
    [FUSE_REMOVEXATTR] = "REMOVEXATTR",
    [FUSE_FLUSH] = "FLUSH",
    [FUSE_INIT] = "INIT",
    [FUSE_OPENDIR] = "OPENDIR",
    [FUSE_READDIR] = "READDIR",
    [FUSE_RELEASEDIR] = "RELEASEDIR",
    [FUSE_FSYNCDIR] = "FSYNCDIR",
    [FUSE_GETLK] = "GETLK",
    [FUSE_SETLK] = "SETLK",
    [FUSE_SETLKW] = "SETLKW",
    [FUSE_ACCESS] = "ACCESS",
    [FUSE_CREATE] = "CREATE",
    [FUSE_INTERRUPT] = "INTERRUPT",
    [FUSE_BMAP] = "BMAP",
    [FUSE_DESTROY] = "DESTROY",
    [FUSE_IOCTL] = "IOCTL",
    [FUSE_POLL] = "POLL",
    [FUSE_NOTIFY_REPLY] = "NOTIFY_REPLY",
    [FUSE_BATCH_FORGET] = "BATCH_FORGET",
    [FUSE_FALLOCATE] = "FALLOCATE",
    [FUSE_READDIRPLUS] = "READDIRPLUS",
    [FUSE_RENAME2] = "RENAME2",
    [FUSE_LSEEK] = "LSEEK",
    [FUSE_COPY_FILE_RANGE] = "COPY_FILE_RANGE",
    [FUSE_SETUPMAPPING] = "SETUPMAPPING",
    [FUSE_REMOVEMAPPING] = "REMOVEMAPPING",
    [FUSE_SYNCFS] = "SYNCFS",
    [FUSE_TMPFILE] = "TMPFILE",
    [52] = "STATX", /* newer than some headers */
};

static const char *const TIMED_NAMES[COUNTERS_TIMED] = {
    "LOOKUP", "READ", "READDIR", "READDIRPLUS", "IOCTL", "other",
};

static const char *const EVENT_NAMES[EVENT_COUNT] = {
    [EVENT_READ_BYTES] = "read_bytes",
    [EVENT_DECODES] = "decodes",
    [EVENT_DECODED_BYTES] = "decoded_bytes",
    [EVENT_CACHE_HITS] = "cache_hits",
    [EVENT_CACHE_WAITS] = "cache_waits",
    [EVENT_PUSHES] = "pushes",
    [EVENT_PUSHED_BYTES] = "pushed_bytes",
    [EVENT_PREFETCHES] = "prefetches",
    [EVENT_DROPS] = "drops",
    [EVENT_KEPT] = "kept",
    [EVENT_ERRORS] = "errors",
    [EVENT_CONTROL_LOOKUPS] = "control_lookups",
    [EVENT_CONTROL_READS] = "control_reads",
    [EVENT_SPINS_WON] = "spins_won",
    [EVENT_SPINS_LOST] = "spins_lost",
    [EVENT_CROWDS] = "crowds",
};

struct counters {
    struct counters_slot slots[COUNTERS_SLOTS];
    pthread_mutex_t lock;
    struct counters_sum before; /* under the lock: what was there at the last reset */
};

static void set_to_zero(counter *counters, size_t count)
{
    for (size_t i = 0; i < count; i++)
        atomic_init(&counters[i], 0);
}

struct counters *counters_new(void)
{
    struct counters *c = aligned_alloc(_Alignof(struct counters), sizeof *c);
    if (!c)
        return NULL;
    for (size_t i = 0; i < COUNTERS_SLOTS; i++) {
        struct counters_slot *slot = &c->slots[i];
        set_to_zero(slot->requests, COUNTERS_OPCODES);
        set_to_zero(&slot->latency[0][0], (size_t)COUNTERS_TIMED * COUNTERS_BUCKETS);
        set_to_zero(slot->events, EVENT_COUNT);
    }
    c->before = (struct counters_sum){0};
    pthread_mutex_init(&c->lock, NULL);
    return c;
}

void counters_free(struct counters *c)
{
    if (c)
        pthread_mutex_destroy(&c->lock);
    free(c);
}

static struct counters_slot *own_slot(struct counters *c)
{
    static atomic_uint next;
    static _Thread_local unsigned own = UINT32_MAX;
    if (own == UINT32_MAX)
        own = atomic_fetch_add_explicit(&next, 1, memory_order_relaxed) % COUNTERS_SLOTS;
    return &c->slots[own];
}

static void add(counter *to, uint64_t amount)
{
    atomic_fetch_add_explicit(to, amount, memory_order_relaxed);
}

void counters_request(struct counters *c, uint32_t opcode)
{
    add(&own_slot(c)->requests[opcode < COUNTERS_OPCODES ? opcode : 0], 1);
}

static enum counters_timed timed_kind(uint32_t opcode)
{
    switch (opcode) {
    case FUSE_LOOKUP:
        return TIMED_LOOKUP;
    case FUSE_READ:
        return TIMED_READ;
    case FUSE_READDIR:
        return TIMED_READDIR;
    case FUSE_READDIRPLUS:
        return TIMED_READDIRPLUS;
    case FUSE_IOCTL:
        return TIMED_IOCTL;
    default:
        return TIMED_OTHER;
    }
}

void counters_latency(struct counters *c, uint32_t opcode, int64_t nsec)
{
    unsigned bucket = nsec > 1 ? 63U - (unsigned)__builtin_clzll((unsigned long long)nsec) : 0;
    if (bucket >= COUNTERS_BUCKETS)
        bucket = COUNTERS_BUCKETS - 1;
    add(&own_slot(c)->latency[timed_kind(opcode)][bucket], 1);
}

void counters_add(struct counters *c, enum counters_event event, uint64_t amount)
{
    add(&own_slot(c)->events[event], amount);
}

static void collect(const counter *from, uint64_t *to, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] += atomic_load_explicit(&from[i], memory_order_relaxed);
}

static void add_up(const struct counters *c, struct counters_sum *sum)
{
    *sum = (struct counters_sum){0};
    for (size_t s = 0; s < COUNTERS_SLOTS; s++) {
        const struct counters_slot *slot = &c->slots[s];
        collect(slot->requests, sum->requests, COUNTERS_OPCODES);
        collect(slot->events, sum->events, EVENT_COUNT);
        for (size_t k = 0; k < COUNTERS_TIMED; k++)
            collect(slot->latency[k], sum->latency[k], COUNTERS_BUCKETS);
    }
}

void counters_collect(struct counters *c, struct counters_sum *sum)
{
    pthread_mutex_lock(&c->lock);
    add_up(c, sum);
    uint64_t *all = (uint64_t *)sum;
    const uint64_t *before = (const uint64_t *)&c->before;
    for (size_t i = 0; i < sizeof *sum / sizeof *all; i++)
        all[i] -= before[i];
    pthread_mutex_unlock(&c->lock);
}

void counters_reset(struct counters *c)
{
    pthread_mutex_lock(&c->lock);
    add_up(c, &c->before);
    pthread_mutex_unlock(&c->lock);
}

const char *counters_opcode_name(uint32_t opcode)
{
    return opcode < COUNTERS_OPCODES ? OPCODE_NAMES[opcode] : NULL;
}

const char *counters_timed_name(enum counters_timed kind)
{
    return TIMED_NAMES[kind];
}

const char *counters_event_name(enum counters_event event)
{
    return EVENT_NAMES[event];
}

double counters_percentile(const uint64_t *buckets, double share)
{
    static const double SQRT_2 = 1.41421356237309504880;
    uint64_t total = 0;
    for (size_t b = 0; b < COUNTERS_BUCKETS; b++)
        total += buckets[b];
    uint64_t seen = 0;
    for (unsigned b = 0; b < COUNTERS_BUCKETS; b++) {
        seen += buckets[b];
        if (seen && (double)seen >= share * (double)total)
            return (double)(UINT64_C(1) << b) * SQRT_2 / 1e3;
    }
    return 0;
}
