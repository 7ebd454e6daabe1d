/* SPDX-License-Identifier: MIT
 *
 * .views/preview, with -o preview.
 */
#ifndef ZRECORDFS_PREVIEW_H
#define ZRECORDFS_PREVIEW_H

#include "node.h"

#include <stdbool.h>

/* True for stores whose records may be images: of uint8, and of a fitting shape. */
bool preview_is_possible(const struct fs *fs, const struct source *source);
/* The node of a preview, on the caller's hold of its store. */
struct node preview_node(const struct fs *fs, struct source *source, uint64_t id);

#endif
