/* SPDX-License-Identifier: MIT
 *
 * Commands for a running mount, written to its control file or sent by ioctl.
 */
#ifndef ZRECORDFS_COMMANDS_H
#define ZRECORDFS_COMMANDS_H

#include <stdbool.h>
#include <stddef.h>

struct fs;
struct source;

enum { COMMANDS_WORDS_MAX = 256 }; /* bytes of an answer, with its NUL */

struct commands_entry {
    const char *usage; /* "prefetch SELECTION" */
    const char *help;  /* what it does */
    bool owner_only;   /* by ioctl too: others could slow the mount down for everybody */
};
/* The commands there are; NULL behind the last. */
const struct commands_entry *commands_list(size_t index);

/* Runs one command, nbytes without a newline, on the store or folder whose control file got
 * it.  0, EINVAL for unknown and malformed ones, EPERM, EAGAIN, ENOMEM.  answer says what
 * was done or is wrong; a failure is remembered for commands_last_failure. */
int commands_run(struct fs *fs, struct source *source, bool is_owner, const char *text,
                 size_t nbytes, char answer[COMMANDS_WORDS_MAX]);
/* The same for lines; blank ones are skipped.  Stops at the first failure, which it gives. */
int commands_run_lines(struct fs *fs, struct source *source, const char *text, size_t nbytes);

struct commands_failure {
    char command[COMMANDS_WORDS_MAX]; /* cut, and without control characters */
    char message[COMMANDS_WORDS_MAX];
};
struct commands; /* what is remembered */
/* NULL when memory runs out. */
struct commands *commands_new(void);
/* Takes NULL. */
void commands_free(struct commands *c);
/* False when no command has failed yet. */
bool commands_last_failure(struct commands *c, struct commands_failure *failure);

#endif
