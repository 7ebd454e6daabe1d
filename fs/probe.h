/* SPDX-License-Identifier: MIT
 *
 * What lies at a path on disk: a store, an archive, a folder or nothing to show;
 * and the names in a folder that may be shown.  Knows of no table: each call looks
 * anew.
 */
#ifndef ZRECORDFS_PROBE_H
#define ZRECORDFS_PROBE_H

#include "source.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a store (its meta.zr) or an archive on disk is recognised by. */
struct probe_stamp {
    int64_t sec, nsec, nbytes;
};

/* 0 and the stamp when a store is there, ENOENT when there is none, else the errno that is
 * in the way of looking. */
int probe_store(const char *path, struct probe_stamp *stamp);
/* True, and the stamp, of any regular file. */
bool probe_archive(const char *path, struct probe_stamp *stamp);

/* The same path, or one below. */
bool probe_is_inside(const char *path, const char *folder);

/* What is at path: 0, ENOENT for what is not shown, or the errno that is in the way of
 * looking.  Links are followed to stores only, so that no path is endless, and never into
 * the mountpoint.  The stamp of a folder is 0; one that may not be entered is a folder too. */
int probe_classify(const char *mountpoint, const char *path, enum source_kind *kind,
                   struct probe_stamp *stamp);

/* Names in a folder on disk that may be shown: malloc'ed, sorted by a hash of the name,
 * which makes positions that stay valid whatever comes and goes.  0 or an errno, also for a
 * folder whose names can be read and not looked at. */
struct probe_name {
    uint64_t position; /* its hash: at least PROBE_NAME_FIRST, below 2^62 */
    char *name;
};
enum { PROBE_NAME_FIRST = 1 << 20 };
int probe_names(const char *path, struct probe_name **names, size_t *count);
void probe_names_free(struct probe_name *names, size_t count);

#endif
