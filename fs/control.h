/* SPDX-License-Identifier: MIT
 *
 * The control file: the status of the mount as JSON, frozen when it is looked up.
 */
#ifndef ZRECORDFS_CONTROL_H
#define ZRECORDFS_CONTROL_H

#include "node.h"

#include <stddef.h>

/* The status as JSON with a final newline, malloc'ed: of the mount, with what scope
 * holds.  NULL when memory runs out. */
char *control_status(const struct fs *fs, struct source *scope, size_t *nbytes);

/* A fresh control file of a folder: 0, ENFILE or ENOMEM. */
int control_child(struct fs *fs, const struct node *dir, struct node *child);

#endif
