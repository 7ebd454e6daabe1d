/* SPDX-License-Identifier: MIT
 *
 * Which records were read or pushed lately: a table of inode numbers that forgets.
 */
#ifndef ZRECORDFS_RECENT_H
#define ZRECORDFS_RECENT_H

#include <stdbool.h>
#include <stdint.h>

struct recent;

/* NULL when memory runs out. */
struct recent *recent_new(void);
/* Takes NULL. */
void recent_free(struct recent *r);

/* Thread safe, as all of these. */
bool recent_has(struct recent *r, uint64_t ino);
void recent_note(struct recent *r, uint64_t ino);
/* A record read again has left the page cache, and others with it: they are forgotten. */
void recent_note_read(struct recent *r, uint64_t ino);

#endif
