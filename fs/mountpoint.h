/* SPDX-License-Identifier: MIT
 *
 * The place where a mount goes: checked beforehand, so that what is wrong can be
 * said in words, with what to do instead.
 */
#ifndef ZRECORDFS_MOUNTPOINT_H
#define ZRECORDFS_MOUNTPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What to do where mounting is impossible; ends a message. */
#define MOUNTPOINT_EXPORT_HINT "`zrecord export STORE FOLDER` writes the same files without a mount"

/* Gives the absolute path (malloc'ed) of a folder that can be mounted on, after
 * clearing a dead mount of this program there.  0, or -1 with the reason
 * written to why. */
int mountpoint_prepare(const char *path, bool allow_other, char **absolute, char *why,
                       size_t why_nbytes);

/* Waits until the mount there answers; 0 or an errno. */
int mountpoint_await(const char *absolute);

/* Unmounts it unless it is in use; 0 or -1. */
int mountpoint_detach(const char *absolute);

/* Removes a folder that nothing is mounted on and that is empty, if it was made for the mount
 * (ZR_MOUNT_MADE). */
void mountpoint_remove_made(const char *absolute);

/* Lets the kernel read files of that size in one piece, as far as this process
 * may; 128 KiB, the kernel's default, is never lowered. */
void mountpoint_set_read_ahead(const char *absolute, uint64_t file_nbytes);

#endif
