/* SPDX-License-Identifier: MIT
 *
 * Views for the tests of what is decoded ahead: each has VIEW_COUNT records of one size, of
 * which a stretch may be damaged.
 */
#ifndef FS_VIEWS_H
#define FS_VIEWS_H

#include "support.h"
#include "warm_orders.h"

enum { PLAIN = 7, OTHER = 8, VIEW_COUNT = 8000, CPU = 1, READER = 42 };

static UNUSED uint64_t record_nbytes;
static UNUSED uint64_t damaged_begin, damaged_end; /* in all views */

static UNUSED void reset_views(void)
{
    record_nbytes = 2048;
    damaged_begin = damaged_end = 0;
}

/* Positions in another view, too: what counts is whose they are. */
static UNUSED uint64_t ino_at(uint64_t view, uint64_t position)
{
    return view * VIEW_COUNT + position;
}

static UNUSED bool view_at(UNUSED void *ctx, uint64_t view, uint64_t position,
                           struct warm_item *item)
{
    bool is_damaged = position >= damaged_begin && position < damaged_end;
    *item = (struct warm_item){ino_at(view, position), is_damaged ? 0 : record_nbytes};
    return position < VIEW_COUNT;
}

static UNUSED uint64_t view_count(UNUSED void *ctx, UNUSED uint64_t view)
{
    return VIEW_COUNT;
}

static UNUSED const struct warm_views views = {.at = view_at, .count = view_count};

static UNUSED struct warm_read read_at(uint64_t view, uint64_t position)
{
    return (struct warm_read){view, position, ino_at(view, position), true, CPU, READER};
}

/* The k-th of a view's records in no order, each once. */
static UNUSED uint64_t shuffled(uint64_t k)
{
    return k * 4799 % VIEW_COUNT;
}

#endif
