/* SPDX-License-Identifier: MIT
 *
 * Recycled output memory.  Freed blocks are kept, most recent first, by size
 * class, up to a bound; a block that comes back warm costs no page faults.
 * Large blocks start on a huge-page boundary and ask for huge pages.
 *
 * Classes: four to an octave, so at most a quarter of a block is unused.
 */
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include <errno.h>

#include "internal.h"

#define HEAD_NBYTES 64 /* in front of the caller's bytes; keeps them aligned */
#define HUGE_NBYTES ((size_t)2 << 20)
#define MIN_SHIFT 8 /* smallest class: 256 bytes */
#define CLASS_COUNT (4 * (48 - MIN_SHIFT))
#define DEFAULT_LIMIT_MAX ((size_t)1 << 30)

struct block {
    size_t class_index;
    size_t map_nbytes;   /* of the mapping that holds it; 0: from malloc */
    struct block *older; /* in its class; under lock */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block *idle[CLASS_COUNT]; /* under lock */
static size_t idle_nbytes;              /* under lock */
static size_t limit_nbytes;             /* under lock */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&lock);
}

static void init(void)
{
    pthread_atfork(before_fork, after_fork, after_fork);
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    size_t n = pages > 0 && page > 0 ? (size_t)pages / 16 * (size_t)page : DEFAULT_LIMIT_MAX;
    limit_nbytes = n < DEFAULT_LIMIT_MAX ? n : DEFAULT_LIMIT_MAX;
    const char *env = getenv("ZRECORD_BUFFER_BYTES");
    if (env && *env && *env != '-') {
        char *end;
        errno = 0;
        unsigned long long v = strtoull(env, &end, 10);
        if (!errno && !*end)
            limit_nbytes = (size_t)v;
    }
}

static size_t class_nbytes(size_t index)
{
    size_t base = (size_t)1 << (index / 4 + MIN_SHIFT);
    return base + base / 4 * (index % 4);
}

/* The smallest class that holds nbytes, or CLASS_COUNT. */
static size_t class_for(size_t nbytes)
{
    if (nbytes <= (size_t)1 << MIN_SHIFT)
        return 0;
    unsigned top = 63 - (unsigned)__builtin_clzll(nbytes - 1); /* 2^top < nbytes <= 2^(top+1) */
    size_t quarter = (size_t)1 << (top - 2);
    size_t step = (nbytes - 1 - ((size_t)1 << top)) / quarter + 1;
    size_t index = (top - MIN_SHIFT) * 4 + step;
    return index < CLASS_COUNT ? index : CLASS_COUNT;
}

/* A fresh mapping on a huge-page boundary. */
static struct block *map_block(size_t nbytes)
{
    size_t want = (nbytes + HUGE_NBYTES - 1) & ~(HUGE_NBYTES - 1);
    uint8_t *p =
        mmap(NULL, want + HUGE_NBYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    size_t head = (HUGE_NBYTES - (uintptr_t)p % HUGE_NBYTES) % HUGE_NBYTES;
    if (head)
        munmap(p, head);
    if (HUGE_NBYTES - head)
        munmap(p + head + want, HUGE_NBYTES - head);
    madvise(p + head, want, MADV_HUGEPAGE);
    struct block *b = (struct block *)(p + head);
    b->map_nbytes = want;
    return b;
}

/* What the system gave for it: mappings are whole huge pages. */
static size_t block_nbytes(const struct block *b)
{
    return b->map_nbytes ? b->map_nbytes : class_nbytes(b->class_index);
}

static void release(struct block *b)
{
    if (b->map_nbytes)
        munmap(b, b->map_nbytes);
    else
        free(b);
}

static struct block *fresh(size_t nbytes)
{
    if (nbytes >= HUGE_NBYTES)
        return map_block(nbytes);
    void *p;
    if (posix_memalign(&p, HEAD_NBYTES, nbytes))
        return NULL;
    struct block *b = p;
    b->map_nbytes = 0;
    return b;
}

void *zr_buffer_alloc(size_t nbytes)
{
    pthread_once(&once, init);
    if (nbytes > SIZE_MAX / 4)
        return NULL;
    size_t index = class_for(nbytes + HEAD_NBYTES);
    if (index >= CLASS_COUNT)
        return NULL;
    pthread_mutex_lock(&lock);
    struct block *b = idle[index];
    if (b) {
        idle[index] = b->older;
        idle_nbytes -= block_nbytes(b);
    }
    pthread_mutex_unlock(&lock);
    if (!b && !(b = fresh(class_nbytes(index))))
        return NULL;
    b->class_index = index;
    return (uint8_t *)b + HEAD_NBYTES;
}

/* Unlinks blocks, the largest classes first, until at most keep are idle. */
static struct block *take_excess(size_t keep)
{
    struct block *out = NULL;
    for (size_t i = CLASS_COUNT; i-- && idle_nbytes > keep;)
        while (idle[i] && idle_nbytes > keep) {
            struct block *b = idle[i];
            idle[i] = b->older;
            idle_nbytes -= block_nbytes(b);
            b->older = out;
            out = b;
        }
    return out;
}

static void release_all(struct block *b)
{
    while (b) {
        struct block *older = b->older;
        release(b);
        b = older;
    }
}

void zr_buffer_free(void *p)
{
    if (!p)
        return;
    struct block *b = (struct block *)((uint8_t *)p - HEAD_NBYTES);
    size_t nbytes = block_nbytes(b);
    pthread_mutex_lock(&lock);
    bool keep = nbytes <= limit_nbytes;
    struct block *excess = NULL;
    if (keep) {
        /* Make room first: the block just used is the warmest of all. */
        if (idle_nbytes + nbytes > limit_nbytes)
            excess = take_excess(limit_nbytes - nbytes);
        b->older = idle[b->class_index];
        idle[b->class_index] = b;
        idle_nbytes += nbytes;
    }
    pthread_mutex_unlock(&lock);
    release_all(excess);
    if (!keep)
        release(b);
}

void zr_buffer_trim(size_t keep_nbytes)
{
    pthread_once(&once, init);
    pthread_mutex_lock(&lock);
    struct block *excess = take_excess(keep_nbytes);
    pthread_mutex_unlock(&lock);
    release_all(excess);
}

void zr_buffer_set_limit(size_t nbytes)
{
    pthread_once(&once, init);
    pthread_mutex_lock(&lock);
    limit_nbytes = nbytes;
    struct block *excess = take_excess(nbytes);
    pthread_mutex_unlock(&lock);
    release_all(excess);
}

size_t zr_buffer_idle_nbytes(void)
{
    pthread_mutex_lock(&lock);
    size_t n = idle_nbytes;
    pthread_mutex_unlock(&lock);
    return n;
}
