/* SPDX-License-Identifier: MIT
 *
 * A file that appears at its path when it is complete, or not at all.
 */
#ifndef ZRI_ARCHIVE_OUTPUT_H
#define ZRI_ARCHIVE_OUTPUT_H

#include "internal.h"

struct zri_output {
    const char *path; /* as given, for messages */
    char *target;     /* links followed */
    const char *name; /* last part of target */
    char *temp_name;  /* NULL: the file has no name yet */
    int dir_fd, fd;
    bool no_replace, replaces;
    unsigned mode; /* of the file that it replaces */
};

int zri_output_begin(struct zri_output *o, const char *path, bool no_replace, struct zr_error *err);
int zri_output_publish(struct zri_output *o, bool durable, struct zr_error *err);
/* Removes what was written, unless it was published, and frees. */
void zri_output_end(struct zri_output *o);

#endif
