/* SPDX-License-Identifier: MIT
 *
 * The last step of an unpack into a folder that is there: files take their names.
 */
#ifndef ZRI_ARCHIVE_PLACE_H
#define ZRI_ARCHIVE_PLACE_H

#include "archive.h"

/* Moves all members from below stage_fd to below dir_fd, whose path is dir: all of
 * them, or on failure none, with what they replaced back in its place.  What was
 * replaced stays in the stage.  *stranded: even putting it back failed, so that the
 * stage must stay. */
int zri_members_place(const struct zr_archive *a, int stage_fd, int dir_fd, const char *dir,
                      bool *stranded, struct zr_error *err);

#endif
