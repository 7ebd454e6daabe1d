/* SPDX-License-Identifier: MIT
 *
 * The table of recent.h: a tag in the slot that the low bits of a number choose.
 */
#include "recent.h"

#include <stdatomic.h>
#include <stdlib.h>

enum { BITS = 16 };

struct recent {
    _Atomic uint32_t generation;
    _Atomic uint32_t tags[1 << BITS];
};

struct recent *recent_new(void)
{
    return calloc(1, sizeof(struct recent));
}

void recent_free(struct recent *r)
{
    free(r);
}

static _Atomic uint32_t *slot(struct recent *r, uint64_t ino, uint32_t *tag)
{
    uint64_t mixed = ino * UINT64_C(0x9E3779B97F4A7C15);
    *tag =
        ((uint32_t)mixed | 1) ^ (atomic_load_explicit(&r->generation, memory_order_relaxed) << 1);
    return &r->tags[ino & ((1U << BITS) - 1)];
}

bool recent_has(struct recent *r, uint64_t ino)
{
    uint32_t tag;
    return atomic_load_explicit(slot(r, ino, &tag), memory_order_relaxed) == tag;
}

void recent_note(struct recent *r, uint64_t ino)
{
    uint32_t tag;
    _Atomic uint32_t *at = slot(r, ino, &tag);
    atomic_store_explicit(at, tag, memory_order_relaxed);
}

void recent_note_read(struct recent *r, uint64_t ino)
{
    if (recent_has(r, ino))
        atomic_fetch_add_explicit(&r->generation, 1, memory_order_relaxed);
    recent_note(r, ino);
}
