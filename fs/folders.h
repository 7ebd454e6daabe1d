/* SPDX-License-Identifier: MIT
 *
 * Folders of a mirrored tree.
 */
#ifndef ZRECORDFS_FOLDERS_H
#define ZRECORDFS_FOLDERS_H

#include "node.h"
#include "tree.h"

/* Sets the kind of a node that belongs to a folder; it stays NULL for numbers that
 * nothing has. */
void folders_identify(const struct fs *fs, struct node *node, struct tree_ino parts);

#endif
