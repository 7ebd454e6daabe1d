/* SPDX-License-Identifier: MIT
 *
 * Tail: a file that grows from front to back in whole aligned blocks, fed from
 * any thread.
 *
 * The page cache keeps what one write brought in pages as large as its length
 * and place allow, and a reader's mapping of a block in one large page is one
 * entry of the TLB where small ones are 512.  Random gathers of 2 KiB raw
 * records took half as long: 51 us a batch of 256 where 113 were needed.  So
 * bytes wait here until their block is full.
 *
 * Not a cache: what was handed over cannot be read before the flush.
 */
#include <errno.h>

#include "internal.h"

#define BLOCK_NBYTES ZRI_TAIL_BLOCK_NBYTES

/* The three parts of a range: the end of a begun block, whole blocks, the begin
 * of one. */
struct cut {
    uint64_t head, whole, rest;
};

static struct cut cut_at(uint64_t off, uint64_t nbytes)
{
    uint64_t begun = off % BLOCK_NBYTES, room = begun ? BLOCK_NBYTES - begun : 0;
    struct cut c = {.head = nbytes < room ? nbytes : room};
    c.rest = (nbytes - c.head) % BLOCK_NBYTES;
    c.whole = nbytes - c.head - c.rest;
    return c;
}

void zri_tail_init(struct zri_tail *t)
{
    t->fd = -1;
    t->off = 0;
    t->block = NULL;
    pthread_mutex_init(&t->lock, NULL);
}

void zri_tail_release(struct zri_tail *t)
{
    zr_buffer_free(t->block);
    pthread_mutex_destroy(&t->lock);
}

int zri_tail_append(struct zri_tail *t, const void *bytes, uint64_t nbytes, uint64_t *off)
{
    const uint8_t *from = bytes;
    uint8_t *full = NULL, *fresh = NULL;
    pthread_mutex_lock(&t->lock);
    uint64_t at = t->off, begun = at % BLOCK_NBYTES;
    struct cut c = cut_at(at, nbytes);
    if (c.rest && !(fresh = zr_buffer_alloc(BLOCK_NBYTES))) {
        pthread_mutex_unlock(&t->lock);
        return ENOMEM;
    }
    if (c.head)
        memcpy(t->block + begun, from, c.head);
    if (c.head && begun + c.head == BLOCK_NBYTES) {
        full = t->block;
        t->block = NULL;
    }
    if (c.rest) {
        memcpy(fresh, from + c.head + c.whole, c.rest);
        t->block = fresh;
    }
    t->off = at + nbytes;
    pthread_mutex_unlock(&t->lock);

    int e = full ? zri_write_full(t->fd, full, BLOCK_NBYTES, at - begun) : 0;
    if (!e && c.whole)
        e = zri_write_full(t->fd, from + c.head, c.whole, at + c.head);
    zr_buffer_free(full);
    if (off)
        *off = at;
    return e;
}

uint64_t zri_tail_room(const struct zri_tail *t)
{
    uint64_t begun = t->off % BLOCK_NBYTES;
    return begun ? BLOCK_NBYTES - begun : 0;
}

uint64_t zri_tail_reserve(struct zri_tail *t, uint64_t block_count)
{
    uint64_t at = t->off;
    t->off += block_count * BLOCK_NBYTES;
    return at;
}

int zri_tail_flush(struct zri_tail *t)
{
    uint64_t begun = t->off % BLOCK_NBYTES;
    return begun ? zri_write_full(t->fd, t->block, begun, t->off - begun) : 0;
}
