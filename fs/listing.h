/* SPDX-License-Identifier: MIT
 *
 * One READDIR or READDIRPLUS being answered: kinds of folders add their entries to it.
 */
#ifndef ZRECORDFS_LISTING_H
#define ZRECORDFS_LISTING_H

#include "node.h"

/* Adds an entry, with attributes or without.  next is the position after it: never 0, valid for
 * ever.  False when the answer is full. */
bool listing_add(struct listing *l, const char *name, const struct node *child, uint64_t next);
/* The same for a name without attributes under ino, a file or a folder. */
bool listing_add_bare(struct listing *l, const char *name, uint64_t ino, bool is_dir,
                      uint64_t next);
/* "." and ".." at positions 0 and 1: false when the answer is full. */
bool listing_dots(struct listing *l, const struct node *dir, uint64_t pos);
enum { LISTING_AFTER_DOTS = 2 };

/* The entries of a folder from off on, as many as size bytes hold: see op_readdir. */
void listing_reply(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, bool plus);

#endif
