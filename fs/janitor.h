/* SPDX-License-Identifier: MIT
 *
 * What the kernel is asked to forget: the names of selections that nobody is going to ask
 * for again, which it would keep as long as it has memory, and pages that a command drops.
 * Done by a thread of its own, since the kernel may have to wait for answers to requests
 * meanwhile.
 */
#ifndef ZRECORDFS_JANITOR_H
#define ZRECORDFS_JANITOR_H

#include "source.h"

#include <stdint.h>

struct fs;
struct janitor;

/* NULL when memory runs out. */
struct janitor *janitor_new(struct fs *fs);
/* Makes its thread, by one that may run on all CPUs and in the normal class, as it is to; else
 * it is made when there is something to do, by one that answers. */
void janitor_start(struct janitor *j);
/* Ends the thread, while requests are still served.  What it has not come to is not done.
 * Takes NULL. */
void janitor_stop(struct janitor *j);
/* After janitor_stop, when nobody calls any more.  Takes NULL. */
void janitor_free(struct janitor *j);

/* Something was minted: looks whether there are too many names by now. */
void janitor_look(struct janitor *j);

/* Drops the decoded records and the kernel's pages of a selection.  0, EINVAL, ERANGE or
 * ENOMEM as selection_parse, EAGAIN when too much is queued.  Returns at once. */
int janitor_drop(struct janitor *j, struct source *source, const char *selection);
/* Something was written to an archive: its checksums are computed anew when it leaves its path,
 * which is looked at from then on. */
void janitor_watch_writes(struct janitor *j);
/* Records not come to yet. */
uint64_t janitor_pending(struct janitor *j);

#endif
