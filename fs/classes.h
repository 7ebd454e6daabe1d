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
/* True for stores of the folder whose records are in those, and for what is called as one of
 * them: not listed themselves. */
bool classes_hide(struct fs *fs, struct source *folder, const struct source *child);
/* The folder of a label: 0 or ENOENT, or another errno. */
int classes_child(struct fs *fs, const struct node *dir, const char *name, struct node *child);
/* Whether classes= names this store. */
bool classes_are_of(const struct fs *fs, const struct source *store);
/* What keeps loaders of class folders from these labels, as of the last look at them: that they
 * are none, or what else is beside their folders.  "" for nothing. */
enum { CLASSES_WARNING_NBYTES = 1300 };
void classes_warning(const struct source *label_store, char text[CLASSES_WARNING_NBYTES]);
/* Of a tree that has none: the name, and the tree's path. */
#define CLASSES_NONE "classes=%s: no store of that name is below %s"
/* Sets the kind of a node with the role TREE_LABEL. */
void classes_identify(struct fs *fs, struct node *node, struct tree_ino parts);

#endif
