/* SPDX-License-Identifier: MIT
 *
 * Folders of a tree that hold a store named as classes= says: a folder for each of its
 * labels, with the records of the stores beside it.
 */
#ifndef ZRECORDFS_CLASSES_H
#define ZRECORDFS_CLASSES_H

#include "node.h"
#include "tree.h"

#include <stdbool.h>

/* What is known of a store of labels, kept with it (struct source). */
struct classes;
/* Takes NULL. */
void classes_free(struct classes *c);

/* Entries of a mirrored folder that are labels, at positions from CLASSES_FIRST_POSITION on.
 * False when the answer is full. */
bool classes_list(struct fs *fs, const struct node *dir, uint64_t pos, struct listing *l);
enum { CLASSES_FIRST_POSITION = 8 };
/* True for stores of the folder whose records are in those: not listed themselves. */
bool classes_hide(struct fs *fs, struct source *folder, const struct source *store);
/* The folder of a label: 0 or ENOENT, or another errno. */
int classes_child(struct fs *fs, const struct node *dir, const char *name, struct node *child);
/* Sets the kind of a node with the role TREE_LABEL. */
void classes_identify(struct fs *fs, struct node *node, struct tree_ino parts);

#endif
