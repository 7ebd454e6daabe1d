/* SPDX-License-Identifier: MIT
 *
 * Decoded records between two READs of the kernel.
 *
 * The kernel cuts a large file into several READs, and may send them at once.
 * The cache sees to it that the record behind them is decoded once: a second
 * request for a record being decoded waits for the first one's result, and a
 * decoded record stays until all of it has been delivered or its bytes are
 * needed for others.  The kernel's page cache, not this one, keeps files.
 */
#ifndef ZRECORDFS_CACHE_H
#define ZRECORDFS_CACHE_H

#include "zrecord.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cache;
struct cache_entry;

/* What a decode gives: nbytes at bytes, inside block (zr_buffer_free). */
struct cache_bytes {
    void *block;
    const void *bytes;
    uint64_t nbytes;
};
/* What is cached: a part (a row, a piece; 0 where there is one) of an inode. */
struct cache_key {
    uint64_t ino;
    uint64_t part;
};
/* For decoding: tells err, which may be NULL, that memory ran out.  ZR_E_NOMEM. */
int cache_no_memory(struct zr_error *err);
/* Decodes key; arg is what its cache_get was given.  Called without any lock. */
typedef int (*cache_decode_fn)(void *ctx, struct cache_key key, const void *arg,
                               struct cache_bytes *out, struct zr_error *err);

enum { CACHE_MAX_COUNT = 8192 }; /* idle entries, whatever their size */

/* limit_nbytes bounds what idle entries hold; the most recent one is kept even
 * if it alone is larger, since decoding it once a READ would be far worse.
 * NULL when memory runs out. */
struct cache *cache_new(uint64_t limit_nbytes, cache_decode_fn decode, void *ctx);
/* All entries must have been put back.  Takes NULL. */
void cache_free(struct cache *c);

enum cache_outcome { CACHE_DECODED, CACHE_HIT, CACHE_WAITED };

/* Gives the decoded record, pinned until cache_put; *outcome says how it came.
 * On failure nothing is kept: the next request tries again.  Thread safe. */
int cache_get(struct cache *c, struct cache_key key, const void *arg, struct cache_entry **out,
              enum cache_outcome *outcome, struct zr_error *err);
/* The same if it is there, decoded; else NULL.  Costs nothing while all is empty. */
struct cache_entry *cache_find(struct cache *c, struct cache_key key);
/* Whether it is there, or is being decoded: cache_get then decodes nothing.  As cheap. */
bool cache_holds(struct cache *c, struct cache_key key);
/* Drops it unless somebody holds it. */
void cache_drop(struct cache *c, struct cache_key key);
const struct cache_bytes *cache_entry_bytes(const struct cache_entry *entry);
/* Unpins; that many of its bytes went to the kernel.  When the sum reaches the
 * record's size it is dropped: the page cache has it all now. */
void cache_put(struct cache *c, struct cache_entry *entry, uint64_t delivered_nbytes);

/* Bytes held now, and entries. */
void cache_usage(struct cache *c, uint64_t *nbytes, uint64_t *count);

#endif
