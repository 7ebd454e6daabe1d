/* SPDX-License-Identifier: MIT
 *
 * What .views of a store holds.
 */
#ifndef ZRECORDFS_VIEWS_H
#define ZRECORDFS_VIEWS_H

#include "node.h"
#include "tree.h"

/* Sets the kind of a node with one of the fixed numbers of views; it stays NULL for
 * others. */
void views_identify(const struct fs *fs, struct node *node, struct tree_ino parts);

/* ".views" of a store, on the caller's hold. */
struct node views_node(const struct fs *fs, struct source *source);

#endif
