/* SPDX-License-Identifier: MIT
 *
 * The folder of a store and the records in it.
 */
#ifndef ZRECORDFS_RECORDS_H
#define ZRECORDFS_RECORDS_H

#include "cache.h"
#include "listing.h"
#include "node.h"
#include "tree.h"
#include "warm.h"

/* Sets kind and id of a node that belongs to a store; kind stays NULL for numbers
 * that nothing has. */
void records_identify(struct fs *fs, struct node *node, struct tree_ino parts);

/* The node of a record, on the caller's hold of its store. */
struct node records_node(const struct fs *fs, struct source *source, uint64_t id);

/* Decodes a record's file: release with zr_buffer_free(out->block). */
int records_decode(struct fs *fs, struct source *source, uint64_t id, struct cache_bytes *out,
                   struct zr_error *err);
/* Replies to a READ from what the cache has of a node, or decodes for it. */
int records_read_cached(fuse_req_t req, struct fs *fs, const struct node *node, size_t size,
                        off_t off, struct zr_error *err);
/* Notes a record that cannot be served (err->record, else id); returns the errno for it. */
int records_fail(struct fs *fs, struct source *source, uint64_t id, const struct zr_error *err);

/* ".control" and ".views" in any folder: 0 or ENOENT, or another errno. */
int records_special_child(struct fs *fs, const struct node *dir, const char *name,
                          struct node *child);
/* Their entries, if they are listed, at positions LISTING_AFTER_DOTS and the next.  False
 * when the answer is full. */
bool records_list_special(struct fs *fs, const struct node *dir, uint64_t pos, struct listing *l);
enum { RECORDS_AFTER_SPECIAL = LISTING_AFTER_DOTS + 2 };

/* For warm_new: ctx is the struct fs, a view a folder that has record_at. */
uint64_t records_warm_count(void *ctx, uint64_t view);
bool records_warm_at(void *ctx, uint64_t view, uint64_t position, struct warm_item *item);
int records_warm_get(void *ctx, uint64_t ino, struct cache_entry **entry, bool *is_fresh);

#endif
