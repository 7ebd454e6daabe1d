/* SPDX-License-Identifier: MIT
 *
 * The cache of cache.h: a hash table and a list by last use, under one lock that
 * is held for a few pointer moves and never while anything is decoded.
 */
#include "cache.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { BUCKETS = 1024 };

enum state { DECODING, READY, FAILED };

struct cache_entry {
    struct cache_key key;
    struct cache_entry *chain;         /* same bucket */
    struct cache_entry *older, *newer; /* by last use */
    enum state state;
    bool is_linked; /* in the table and the list; else the last user frees it */
    unsigned users; /* requests that hold or await it */
    uint64_t delivered_nbytes;
    struct cache_bytes bytes; /* set before READY, constant then */
    int code;                 /* FAILED: the result and its error */
    struct zr_error *err;
};

struct cache {
    cache_decode_fn decode;
    void *ctx;
    uint64_t limit_nbytes;
    pthread_mutex_t lock;   /* everything below, and the entries' fields */
    pthread_cond_t decoded; /* some entry left DECODING */
    struct cache_entry *buckets[BUCKETS];
    struct cache_entry *oldest, *newest;
    uint64_t nbytes;
    _Atomic uint64_t count; /* read without the lock too */
};

struct cache *cache_new(uint64_t limit_nbytes, cache_decode_fn decode, void *ctx)
{
    struct cache *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->decode = decode;
    c->ctx = ctx;
    c->limit_nbytes = limit_nbytes;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->decoded, NULL);
    return c;
}

static struct cache_entry **bucket(struct cache *c, struct cache_key key)
{
    /* Neighbours are read together: multiplying spreads them. */
    return &c->buckets[((key.ino + 3 * key.part) * UINT64_C(0x9E3779B97F4A7C15)) >> 54];
}
_Static_assert(BUCKETS == 1 << (64 - 54), "the shift in bucket() gives a bucket");

static bool is_key(const struct cache_entry *e, struct cache_key key)
{
    return e->key.ino == key.ino && e->key.part == key.part;
}

static struct cache_entry *find(struct cache *c, struct cache_key key)
{
    struct cache_entry *e = *bucket(c, key);
    while (e && !is_key(e, key))
        e = e->chain;
    return e;
}

static void list_remove(struct cache *c, struct cache_entry *e)
{
    *(e->older ? &e->older->newer : &c->oldest) = e->newer;
    *(e->newer ? &e->newer->older : &c->newest) = e->older;
    e->older = e->newer = NULL;
}

static void list_append(struct cache *c, struct cache_entry *e)
{
    e->older = c->newest;
    *(c->newest ? &c->newest->newer : &c->oldest) = e;
    c->newest = e;
}

static void link_entry(struct cache *c, struct cache_entry *e)
{
    struct cache_entry **head = bucket(c, e->key);
    e->chain = *head;
    *head = e;
    e->is_linked = true;
    list_append(c, e);
    c->count++;
}

static void unlink_entry(struct cache *c, struct cache_entry *e)
{
    struct cache_entry **at = bucket(c, e->key);
    while (*at != e)
        at = &(*at)->chain;
    *at = e->chain;
    list_remove(c, e);
    e->is_linked = false;
    c->count--;
    c->nbytes -= e->bytes.nbytes;
}

static void entry_free(struct cache_entry *e)
{
    zr_buffer_free(e->bytes.block);
    free(e->err);
    free(e);
}

void cache_free(struct cache *c)
{
    if (!c)
        return;
    while (c->oldest) {
        struct cache_entry *e = c->oldest;
        unlink_entry(c, e);
        entry_free(e);
    }
    pthread_cond_destroy(&c->decoded);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* Unlinks idle entries, oldest first, until the rest fits; returns them chained
 * through `newer` so that the caller frees them without the lock. */
static struct cache_entry *evict(struct cache *c)
{
    struct cache_entry *gone = NULL;
    struct cache_entry *next;
    for (struct cache_entry *e = c->oldest; e && e != c->newest; e = next) {
        if (c->nbytes <= c->limit_nbytes && c->count <= CACHE_MAX_COUNT)
            break;
        next = e->newer;
        if (e->users)
            continue;
        unlink_entry(c, e);
        e->newer = gone;
        gone = e;
    }
    return gone;
}

static void free_all(struct cache_entry *gone)
{
    while (gone) {
        struct cache_entry *next = gone->newer;
        entry_free(gone);
        gone = next;
    }
}

/* Drops one user; true when the caller has to free the entry. */
static bool release(struct cache_entry *e)
{
    return --e->users == 0 && !e->is_linked;
}

static void keep_error(struct cache_entry *e, int code, const struct zr_error *err)
{
    e->code = code;
    e->err = malloc(sizeof *err);
    if (e->err)
        *e->err = *err;
}

/* Decodes into an entry that this thread has just linked as DECODING. */
static int decode(struct cache *c, struct cache_entry *e, const void *arg, struct zr_error *err)
{
    struct cache_bytes bytes = {0};
    struct zr_error failure = {0};
    int code = c->decode(c->ctx, e->key, arg, &bytes, &failure);

    pthread_mutex_lock(&c->lock);
    struct cache_entry *gone = NULL;
    if (code == ZR_OK) {
        e->bytes = bytes;
        e->state = READY;
        c->nbytes += bytes.nbytes;
        gone = evict(c);
    } else {
        keep_error(e, code, &failure);
        e->state = FAILED;
        unlink_entry(c, e);
    }
    pthread_cond_broadcast(&c->decoded);
    bool is_last = code != ZR_OK && release(e);
    pthread_mutex_unlock(&c->lock);
    free_all(gone);
    if (is_last)
        entry_free(e);
    if (code != ZR_OK && err)
        *err = failure;
    return code;
}

static struct cache_entry *start(struct cache *c, struct cache_key key)
{
    struct cache_entry *e = calloc(1, sizeof *e);
    if (!e)
        return NULL;
    e->key = key;
    e->users = 1;
    link_entry(c, e);
    return e;
}

int cache_no_memory(struct zr_error *err)
{
    if (err)
        *err = (struct zr_error){.code = ZR_E_NOMEM,
                                 .record = ZR_NO_RECORD,
                                 .offset = UINT64_MAX,
                                 .message = "out of memory"};
    return ZR_E_NOMEM;
}

/* Waits for the thread that decodes e.  Called and left with the lock held,
 * except that a failed entry may be freed here. */
static int await(struct cache *c, struct cache_entry *e, struct zr_error *err)
{
    while (e->state == DECODING)
        pthread_cond_wait(&c->decoded, &c->lock);
    if (e->state == READY)
        return ZR_OK;
    int code = e->code;
    if (err && e->err)
        *err = *e->err;
    else
        (void)cache_no_memory(err);
    if (release(e))
        entry_free(e);
    return code;
}

int cache_get(struct cache *c, struct cache_key key, const void *arg, struct cache_entry **out,
              enum cache_outcome *outcome, struct zr_error *err)
{
    *out = NULL;
    int code = ZR_OK;
    pthread_mutex_lock(&c->lock);
    struct cache_entry *e = find(c, key);
    if (!e) {
        e = start(c, key);
        pthread_mutex_unlock(&c->lock);
        if (!e)
            return cache_no_memory(err);
        *outcome = CACHE_DECODED;
        code = decode(c, e, arg, err);
    } else {
        *outcome = e->state == DECODING ? CACHE_WAITED : CACHE_HIT;
        e->users++;
        list_remove(c, e);
        list_append(c, e);
        code = await(c, e, err);
        pthread_mutex_unlock(&c->lock);
    }
    if (code == ZR_OK)
        *out = e;
    return code;
}

static bool is_empty(const struct cache *c)
{
    return atomic_load_explicit(&c->count, memory_order_relaxed) == 0;
}

struct cache_entry *cache_find(struct cache *c, struct cache_key key)
{
    if (is_empty(c))
        return NULL;
    pthread_mutex_lock(&c->lock);
    struct cache_entry *e = find(c, key);
    if (e && e->state != READY)
        e = NULL;
    if (e) {
        e->users++;
        list_remove(c, e);
        list_append(c, e);
    }
    pthread_mutex_unlock(&c->lock);
    return e;
}

bool cache_holds(struct cache *c, struct cache_key key)
{
    if (is_empty(c))
        return false;
    pthread_mutex_lock(&c->lock);
    bool is_there = find(c, key) != NULL;
    pthread_mutex_unlock(&c->lock);
    return is_there;
}

void cache_drop(struct cache *c, struct cache_key key)
{
    pthread_mutex_lock(&c->lock);
    struct cache_entry *e = find(c, key);
    if (e && (e->users || e->state != READY))
        e = NULL;
    if (e)
        unlink_entry(c, e);
    pthread_mutex_unlock(&c->lock);
    if (e)
        entry_free(e);
}

const struct cache_bytes *cache_entry_bytes(const struct cache_entry *entry)
{
    return &entry->bytes;
}

void cache_put(struct cache *c, struct cache_entry *e, uint64_t delivered_nbytes)
{
    pthread_mutex_lock(&c->lock);
    e->delivered_nbytes += delivered_nbytes;
    if (e->is_linked && e->delivered_nbytes >= e->bytes.nbytes)
        unlink_entry(c, e);
    bool is_last = release(e);
    struct cache_entry *gone = evict(c);
    pthread_mutex_unlock(&c->lock);
    if (is_last)
        entry_free(e);
    free_all(gone);
}

void cache_usage(struct cache *c, uint64_t *nbytes, uint64_t *count)
{
    pthread_mutex_lock(&c->lock);
    *nbytes = c->nbytes;
    *count = c->count;
    pthread_mutex_unlock(&c->lock);
}
