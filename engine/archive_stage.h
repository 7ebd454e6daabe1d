/* SPDX-License-Identifier: MIT
 *
 * The hidden folder in which an unpack does its work, and whose turn it is.
 */
#ifndef ZRI_ARCHIVE_STAGE_H
#define ZRI_ARCHIVE_STAGE_H

#include "archive_watch.h"

#define ZRI_STAGE_NAME_NBYTES 48

/* Whether a file or folder of this name is work of this library that goes on or was
 * killed, and no part of a tree. */
bool zri_stage_is_name(const char *name);
/* 0, then the name and the open folder; or errno. */
int zri_stage_make(int at, char name[ZRI_STAGE_NAME_NBYTES], int *fd);
/* What it holds is told of, and nobody removes it. */
void zri_stage_keep(int fd);
/* Removes the stages in a folder whose processes are gone. */
void zri_stage_remove_stale(int at);

/* Waits until nobody else moves members into this folder.  false: the watch said to
 * stop.  *fd is for the end of the turn, and -1 where turns cannot be taken. */
bool zri_turn_begin(int dir_fd, struct zri_watch *watch, int *fd);
void zri_turn_end(int dir_fd, int fd);

#endif
