/* SPDX-License-Identifier: MIT
 *
 * Folders reached one name at a time: links are not followed, no path is too long.
 */
#ifndef ZRI_ARCHIVE_FOLDERS_H
#define ZRI_ARCHIVE_FOLDERS_H

#include <stdbool.h>
#include <stddef.h>

/* -1 with errno. */
int zri_folder_open(int at, const char *name);
/* Below `at`, at the end of the first nbytes of the path ("a/b" or "a/b/"; 0: `at`
 * itself).  -1 with errno, and *failed_nbytes of the path lead to the folder that
 * could not be opened. */
int zri_folder_open_path(int at, const char *path, size_t nbytes, size_t *failed_nbytes);
/* The folder and all below it.  Takes no memory, so that it works when there is
 * none left; what cannot be removed stays. */
void zri_folder_remove(int at, const char *name);

/* Every name in the folder that is wanted. */
void zri_folder_each(int fd, void (*fn)(int fd, const char *name),
                     bool (*wanted)(const char *name));

#endif
