/* SPDX-License-Identifier: MIT
 *
 * Records decoded because somebody said that they will be wanted: a selection, read
 * from .views/prefetch or given as a command.  The work is warm.c's.
 */
#ifndef ZRECORDFS_PREFETCH_H
#define ZRECORDFS_PREFETCH_H

#include <stddef.h>

struct fs;
struct source;

/* 0, EINVAL, ERANGE or ENOMEM as selection_parse, E2BIG for a long list of long ranges,
 * EAGAIN when too much is queued.  Thread safe; returns at once. */
int prefetch_start(struct fs *fs, struct source *source, const char *selection);

/* What reading .views/prefetch/SELECTION says; malloc'ed.  ENOENT for names that are no
 * selection of the store. */
int prefetch_describe(struct source *source, const char *selection, char **answer, size_t *nbytes);

#endif
