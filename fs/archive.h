/* SPDX-License-Identifier: MIT
 *
 * A memmap archive as a tree of files: for each level a folder with its meta.json,
 * each leaf as a .npy, and for leaves that share the batch dimension a folder of
 * their rows, one .npy each.  All numbers follow from positions in the archive.
 */
#ifndef ZRECORDFS_ARCHIVE_H
#define ZRECORDFS_ARCHIVE_H

#include "archive_writes.h"
#include "node.h"
#include "tree.h"

/* What a source that is an archive knows of it. */
struct archive {
    struct zr_archive *file;
    const struct zr_archive_tree *tree;
    const struct zr_archive_level **owners; /* by leaf: its level */
    size_t *parents;                        /* by level: the one above */
    uint64_t *first_row;                    /* by leaf, and the end: of rows that have files */
    char *path;
    uint64_t nbytes;              /* of the file */
    bool writable;                /* writes reach the file */
    char *why_fixed;              /* why not, where they were to */
    struct archive_writes writes; /* of a writable one */
    uint32_t *leaf_of, *level_of; /* by member: which one has it, + 1; 0: none */
};

/* Opens path, for writes to leaves too where all of them can take some: else with the reason
 * why not.  0 or a code, with the reason in err. */
int archive_open(struct archive **out, const char *path, bool writable, struct zr_error *err);
/* Whether the source is an archive whose leaves can be written. */
bool archive_is_writable(const struct source *source);
/* Whether it is a leaf or a row of an archive. */
bool archive_is_part(const struct node *node);
/* Keeps and logs that a leaf or row does not change its size. */
void archive_refuse_truncation(const struct node *node);
/* Takes NULL. */
void archive_close(struct archive *a);
/* The highest number that a node of it has. */
uint64_t archive_max_index(const struct archive *a);

/* Sets kind and id of a node that belongs to an archive; kind stays NULL for numbers
 * that nothing has. */
void archive_identify(struct node *node, struct tree_ino parts);

extern const struct node_kind node_archive_level;

#endif
