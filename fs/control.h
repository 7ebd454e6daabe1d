/* SPDX-License-Identifier: MIT
 *
 * The control file: its text, and the table of the texts that are open.
 *
 * The kernel opens files here without asking (ENOSYS for open holds for the
 * whole connection), so a file whose text changes needs another way to be
 * fresh: every lookup of it gets an inode number of its own, with the text
 * frozen for it, until the kernel forgets that number.
 */
#ifndef ZRECORDFS_CONTROL_H
#define ZRECORDFS_CONTROL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fs;
struct control;

/* Live texts are bounded: count and bytes.  NULL when memory runs out. */
struct control *control_new(size_t max_count, size_t max_nbytes);
/* Takes NULL. */
void control_free(struct control *c);

/* Freezes a text (malloc'ed; taken over in every case) under a new inode number
 * with one lookup.  0, ENFILE when too many are open, or ENOMEM.  Thread safe,
 * as all of these. */
int control_freeze(struct control *c, char *text, size_t nbytes, uint64_t *ino);
/* Pins the text of ino until control_unpin, and gives it; NULL when there is
 * none.  A pinned text outlives its forgetting. */
const char *control_pin(struct control *c, uint64_t ino, size_t *nbytes);
void control_unpin(struct control *c, uint64_t ino);
/* One more lookup of a text that is there; false when it is not. */
bool control_lookup_again(struct control *c, uint64_t ino);
/* The kernel gives back that many lookups.  Unknown numbers are ignored. */
void control_forget(struct control *c, uint64_t ino, uint64_t lookup_count);

void control_usage(struct control *c, size_t *count, size_t *nbytes);

/* The status of a mount as JSON with a final newline, malloc'ed; NULL when
 * memory runs out. */
char *control_status(const struct fs *fs, size_t *nbytes);

#endif
