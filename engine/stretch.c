/* SPDX-License-Identifier: MIT
 *
 * Records whose stored bytes lie end to end, read by one pread: a call for each costs more
 * than decoding a small one.  Whatever goes wrong, they are read one by one, which tells what.
 */
#include "internal.h"

/* Beyond, a call costs little beside its bytes, and those would leave the nearest cache. */
#define STRETCH_NBYTES ((size_t)128 << 10)

void zri_stretch_begin(struct zri_stretch *s)
{
    s->first = s->count = 0;
    s->bytes = NULL;
    s->block = NULL;
    s->block_nbytes = 0;
}

void zri_stretch_end(struct zri_stretch *s)
{
    zr_buffer_free(s->block);
}

/* Looks only behind a record where the next one of the store is asked for: who reads at random
 * is not to pay for entries in vain. */
static bool goes_on(struct zri_stretch *s, const struct zr_reader *r, const uint64_t *next,
                    bool mapped)
{
    const struct zri_entry *last = &s->entries[s->count - 1];
    struct zri_entry *entry = &s->entries[s->count];
    return next[0] == next[-1] + 1 && !zri_reader_entry(r, *next, entry, NULL) &&
           entry->off == last->off + last->phys_nbytes && !(mapped && zri_reader_maps(r, entry));
}

static uint64_t nbytes_with_next(const struct zri_stretch *s)
{
    const struct zri_entry *next = &s->entries[s->count];
    return next->off + next->phys_nbytes - s->entries[0].off;
}

/* Rows that nobody looks at may be as long as they like. */
static bool fits_cache(const struct zri_stretch *s, const struct zr_reader *r, const uint8_t *rows)
{
    return (rows && !r->check_sums) || nbytes_with_next(s) <= STRETCH_NBYTES;
}

/* Where to read to: rows as they are go where they belong at once. */
static uint8_t *destination(struct zri_stretch *s, uint64_t nbytes, uint8_t *rows)
{
    if (rows)
        return rows;
    if (s->block_nbytes < nbytes) {
        zr_buffer_free(s->block);
        s->block = zr_buffer_alloc(STRETCH_NBYTES);
        s->block_nbytes = s->block ? STRETCH_NBYTES : 0;
    }
    return s->block;
}

void zri_stretch_read(struct zri_stretch *s, const struct zr_reader *r, const uint64_t *ids,
                      size_t begin, size_t end, const struct zri_entry *entry, bool mapped,
                      uint8_t *rows)
{
    s->first = begin;
    s->count = 1;
    s->entries[0] = *entry;
    s->bytes = NULL;
    while (s->count < ZRI_STRETCH_COUNT && begin + s->count < end &&
           goes_on(s, r, ids + begin + s->count, mapped) && fits_cache(s, r, rows))
        s->count++;
    if (s->count == 1)
        return;
    const struct zri_entry *last = &s->entries[s->count - 1];
    uint64_t nbytes = last->off + last->phys_nbytes - entry->off;
    uint8_t *to = destination(s, nbytes, rows);
    if (to && !zri_file_read(&r->data, entry->off, to, nbytes))
        s->bytes = to;
}
