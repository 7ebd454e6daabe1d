/* SPDX-License-Identifier: MIT
 *
 * What the folders (archive_folders.c) and files (archive_files.c) of a mounted
 * archive have in common.
 */
#ifndef ZRECORDFS_ARCHIVE_PARTS_H
#define ZRECORDFS_ARCHIVE_PARTS_H

#include "archive.h"

const struct zr_archive_leaf *archive_leaf(const struct archive *a, uint64_t leaf);
/* Whether it has the batch dimension of its level, and elements: then its rows are files. */
bool archive_has_rows(const struct archive *a, size_t leaf);
/* The leaf that a row belongs to; rows are counted over all leaves. */
size_t archive_leaf_of_row(const struct archive *a, uint64_t row);

/* On the caller's hold of source. */
struct node archive_level_node(const struct fs *fs, struct source *source, uint64_t level);
struct node archive_meta_node(const struct fs *fs, struct source *source, uint64_t level);
struct node archive_leaf_node(const struct fs *fs, struct source *source, uint64_t leaf);
struct node archive_rows_node(const struct fs *fs, struct source *source, uint64_t leaf);
struct node archive_row_node(const struct fs *fs, struct source *source, uint64_t row);
/* *out is node, another one of the same archive as of, with a hold of its own.  0 or ESTALE. */
int archive_held(struct fs *fs, const struct node *of, struct node node, struct node *out);
/* The level that a leaf, or the folder of its rows, is in. */
int archive_leaf_parent(struct fs *fs, const struct node *node, struct node *parent);

extern const struct node_kind node_archive_meta, node_archive_leaf, node_archive_row;
extern const struct node_kind node_archive_rows;

#endif
