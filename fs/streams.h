/* SPDX-License-Identifier: MIT
 *
 * Readers that seem to go in order: each READ is matched with the streams, and after a few
 * steps a stream is followed.  Which records are to be pushed before it, up to a distance that
 * depends on their size, and which of those are left out, so that their READs say where the
 * reader is (warm.c says why).  Nothing here is thread safe: warm's lock is held.
 */
#ifndef ZRECORDFS_STREAMS_H
#define ZRECORDFS_STREAMS_H

#include "piece.h"

struct streams;

/* Of another view, so many first positions are expected when it is listed, and as many before
 * a stream. */
enum { STREAMS_EXPECTED = 512 };

/* views has to outlive it; of a cache of so many bytes half may be filled.  NULL when memory
 * runs out. */
struct streams *streams_new(const struct warm_views *views, int ahead, uint64_t cache_nbytes);
/* Takes NULL. */
void streams_free(struct streams *s);

/* True when it is a followed stream's or may become one; *has_work then says whether something is
 * to be pushed before it.  Else it begins one, if it is the start of a record. */
bool streams_saw_read(struct streams *s, const struct warm_read *read, bool *has_work);
/* A READ of that inode may follow which is meant for a position of another view than its own. */
void streams_expect(struct streams *s, uint64_t view, uint64_t position, uint64_t ino);

/* The next records before some reader.  False, and *piece as it may be, when there are none. */
bool streams_take(struct streams *s, struct piece *piece);
/* What was taken is done. */
void streams_finish(struct streams *s, const struct piece *piece);
/* How many records are to be taken now, up to all distances. */
uint64_t streams_pending(const struct streams *s);

#endif
