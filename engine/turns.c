/* SPDX-License-Identifier: MIT
 *
 * Several threads that write large parts of one new file.  The kernel lets one at a time write
 * to a file: while one does, the others copy theirs into windows of it, where that is quicker.
 * What counts when a window fails is what pwrite then says.
 */
#include <errno.h>
#include <string.h>

#include "internal.h"

/* Of what was seen just before it is written: still in the cache, and a huge page of the page
 * cache.  The same where it is copied. */
#define WRITE_NBYTES ((size_t)2 << 20)
#define COPY_NBYTES ((size_t)64 << 10)

void zri_turns_init(struct zri_turns *t, int fd, bool is_reserved)
{
    t->fd = fd;
    atomic_store(&t->is_writing, false);
    atomic_store(&t->uses_windows, is_reserved && zri_suits_windows(fd));
}

/* Huge pages, whole ones. */
static bool fits_windows(const struct zri_part *p)
{
    return (p->off | p->nbytes) % WRITE_NBYTES == 0;
}

static int copy_part(struct zri_turns *t, const struct zri_part *p, bool *is_seen)
{
    struct zri_window v;
    int e = zri_window_open(&v, t->fd, p->off, p->nbytes);
    if (e || !v.is_quick)
        atomic_store(&t->uses_windows, false);
    if (e)
        return e;
    for (size_t at = 0; at < p->nbytes; at += COPY_NBYTES) {
        p->see(p->ctx, p->bytes + at, COPY_NBYTES);
        memcpy(v.bytes + at, p->bytes + at, COPY_NBYTES);
    }
    *is_seen = true;
    return zri_window_close(&v);
}

static int write_part(const struct zri_turns *t, const struct zri_part *p, bool is_seen)
{
    int e = 0;
    for (size_t at = 0; !e && at < p->nbytes; at += WRITE_NBYTES) {
        size_t n = p->nbytes - at < WRITE_NBYTES ? p->nbytes - at : WRITE_NBYTES;
        if (!is_seen)
            p->see(p->ctx, p->bytes + at, n);
        e = zri_write_full(t->fd, p->bytes + at, n, p->off + at);
    }
    return e;
}

int zri_turns_write(struct zri_turns *t, const struct zri_part *p)
{
    bool is_seen = false;
    bool has_turn = !atomic_exchange(&t->is_writing, true);
    bool copies = !has_turn && fits_windows(p) && atomic_load(&t->uses_windows);
    int e = copies ? copy_part(t, p, &is_seen) : EAGAIN;
    if (e)
        e = write_part(t, p, is_seen);
    if (has_turn)
        atomic_store(&t->is_writing, false);
    return e;
}
