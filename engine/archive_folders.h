/* SPDX-License-Identifier: MIT
 *
 * Folders reached one name at a time: links are not followed, no path is too long.
 */
#ifndef ZRI_ARCHIVE_FOLDERS_H
#define ZRI_ARCHIVE_FOLDERS_H

/* -1 with errno. */
int zri_folder_open(int at, const char *name);
/* The folder and all below it.  Takes no memory, so that it works when there is
 * none left; what cannot be removed stays. */
void zri_folder_remove(int at, const char *name);

#endif
