/* SPDX-License-Identifier: MIT
 *
 * Many records of a Dense store as one .npy: the whole store, or a selection.
 */
#ifndef ZRECORDFS_ARRAY_H
#define ZRECORDFS_ARRAY_H

#include "cache.h"
#include "node.h"

/* True for a store whose records fit into one array: Dense, and not beyond what a file
 * may hold. */
bool array_is_possible(const struct source *source);
/* "0,5,2.npy": 0 and the number of records, ENOENT for names that mean nothing, EFBIG. */
int array_parse_name(const struct source *source, const char *name, uint64_t *count);

/* For kinds node_all and node_at. */
int array_attr(struct fs *fs, const struct node *node, struct stat *st);
int array_read(fuse_req_t req, struct fs *fs, const struct node *node, size_t size, off_t off);
int array_decode(struct fs *fs, const struct node *node, uint64_t part, struct cache_bytes *out,
                 struct zr_error *err);

#endif
