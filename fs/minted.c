/* SPDX-License-Identifier: MIT
 *
 * The table of minted numbers: a hash table under one lock, held for a few
 * pointer moves.
 */
#include "minted.h"

#include "tree.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { BUCKETS = 1024 }; /* numbers are given in turn or hashed: low bits spread them */
/* Set in the numbers of what has a name: those follow from it. */
#define NAMED_BIT ((uint64_t)1 << 62)

struct minted_table {
    pthread_mutex_t lock; /* everything below */
    size_t max_count, max_nbytes;
    size_t count, nbytes;
    size_t listed_count;
    struct minted *oldest, *newest; /* names that can be forgotten */
    uint64_t next_number;
    struct minted *buckets[BUCKETS];
};

struct minted_table *minted_new(size_t max_count, size_t max_nbytes)
{
    struct minted_table *t = calloc(1, sizeof *t);
    if (!t)
        return NULL;
    t->max_count = max_count;
    t->max_nbytes = max_nbytes;
    pthread_mutex_init(&t->lock, NULL);
    return t;
}

static void release(struct minted *m)
{
    if (!m)
        return;
    free(m->name);
    free(m->bytes);
    free(m);
}

void minted_free(struct minted_table *t)
{
    if (!t)
        return;
    for (size_t b = 0; b < BUCKETS; b++) {
        while (t->buckets[b]) {
            struct minted *m = t->buckets[b];
            t->buckets[b] = m->chain;
            release(m);
        }
    }
    pthread_mutex_destroy(&t->lock);
    free(t);
}

static struct minted **slot(struct minted_table *t, uint64_t ino)
{
    struct minted **at = &t->buckets[ino % BUCKETS];
    while (*at && (*at)->ino != ino)
        at = &(*at)->chain;
    return at;
}

static void list_remove(struct minted_table *t, struct minted *m)
{
    if (!m->folder_ino)
        return;
    *(m->older ? &m->older->newer : &t->oldest) = m->newer;
    *(m->newer ? &m->newer->older : &t->newest) = m->older;
    m->older = m->newer = NULL;
    m->folder_ino = 0;
    t->listed_count--;
}

static void list_append(struct minted_table *t, struct minted *m, uint64_t folder_ino)
{
    if (!folder_ino)
        return;
    m->folder_ino = folder_ino;
    m->older = t->newest;
    *(t->newest ? &t->newest->newer : &t->oldest) = m;
    t->newest = m;
    t->listed_count++;
}

char *minted_take_surplus(struct minted_table *t, size_t kept_count, uint64_t *folder_ino)
{
    char *name = NULL;
    pthread_mutex_lock(&t->lock);
    struct minted *m = t->oldest;
    if (m && t->listed_count > kept_count) {
        *folder_ino = m->folder_ino;
        name = strdup(m->name);
        list_remove(t, m);
    }
    pthread_mutex_unlock(&t->lock);
    return name;
}

bool minted_has_surplus(struct minted_table *t, size_t kept_count)
{
    pthread_mutex_lock(&t->lock);
    bool has = t->listed_count > kept_count;
    pthread_mutex_unlock(&t->lock);
    return has;
}

static void drop_if_unused(struct minted_table *t, struct minted **at)
{
    struct minted *m = *at;
    if (m->lookup_count || m->pin_count)
        return;
    *at = m->chain;
    list_remove(t, m);
    t->count--;
    t->nbytes -= m->nbytes;
    release(m);
}

static bool is_wanted(const struct minted *m, const struct minted_wish *wish)
{
    return m->kind == wish->kind && m->source == wish->source && strcmp(m->name, wish->name) == 0;
}

/* The number for a wish, and what has it already. */
static struct minted *number(struct minted_table *t, const struct minted_wish *wish, uint64_t *ino)
{
    if (!wish->name || wish->is_unique) {
        *ino = TREE_MINTED_BIT | t->next_number++;
        return NULL;
    }
    uint64_t seed = wish->salt;
    for (;; seed++) {
        uint64_t hash = XXH3_64bits_withSeed(wish->name, strlen(wish->name), seed);
        *ino = TREE_MINTED_BIT | NAMED_BIT | hash;
        struct minted *m = *slot(t, *ino);
        if (!m || is_wanted(m, wish))
            return m;
    }
}

static struct minted *make(const struct minted_wish *wish)
{
    struct minted *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->kind = wish->kind;
    m->source = wish->source;
    m->id = wish->id;
    m->name = wish->name ? strdup(wish->name) : NULL;
    m->nbytes = wish->nbytes;
    if (!wish->name || m->name)
        return m;
    release(m);
    return NULL;
}

/* With the lock: the one there is, or made, which takes the wish's number. */
static int get(struct minted_table *t, const struct minted_wish *wish, struct minted *made,
               struct minted **out)
{
    uint64_t ino;
    struct minted *m = number(t, wish, &ino);
    if (!m) {
        if (t->count >= t->max_count || t->nbytes + made->nbytes > t->max_nbytes)
            return ENFILE;
        m = made;
        m->ino = ino;
        m->bytes = wish->bytes;
        *slot(t, ino) = m;
        t->count++;
        t->nbytes += m->nbytes;
    }
    /* Asked for again: among the newest. */
    list_remove(t, m);
    list_append(t, m, wish->folder_ino);
    m->lookup_count++;
    m->pin_count++;
    *out = m;
    return 0;
}

int minted_get(struct minted_table *t, const struct minted_wish *wish, struct minted **out)
{
    *out = NULL;
    struct minted *made = make(wish);
    int failure = ENOMEM;
    if (made) {
        pthread_mutex_lock(&t->lock);
        failure = get(t, wish, made, out);
        pthread_mutex_unlock(&t->lock);
    }
    if (*out == made && made)
        return 0;
    free(wish->bytes);
    release(made);
    return failure;
}

struct minted *minted_pin(struct minted_table *t, uint64_t ino)
{
    pthread_mutex_lock(&t->lock);
    struct minted *m = *slot(t, ino);
    if (m)
        m->pin_count++;
    pthread_mutex_unlock(&t->lock);
    return m;
}

void minted_unpin(struct minted_table *t, struct minted *m)
{
    if (!m)
        return;
    pthread_mutex_lock(&t->lock);
    m->pin_count--;
    drop_if_unused(t, slot(t, m->ino));
    pthread_mutex_unlock(&t->lock);
}

bool minted_lookup_again(struct minted_table *t, uint64_t ino)
{
    pthread_mutex_lock(&t->lock);
    struct minted *m = *slot(t, ino);
    if (m)
        m->lookup_count++;
    pthread_mutex_unlock(&t->lock);
    return m != NULL;
}

void minted_forget(struct minted_table *t, uint64_t ino, uint64_t lookup_count)
{
    pthread_mutex_lock(&t->lock);
    struct minted **at = slot(t, ino);
    if (*at) {
        uint64_t held = (*at)->lookup_count;
        (*at)->lookup_count = held - (lookup_count < held ? lookup_count : held);
        drop_if_unused(t, at);
    }
    pthread_mutex_unlock(&t->lock);
}

void minted_usage(struct minted_table *t, size_t *count, size_t *nbytes)
{
    pthread_mutex_lock(&t->lock);
    *count = t->count;
    *nbytes = t->nbytes;
    pthread_mutex_unlock(&t->lock);
}
