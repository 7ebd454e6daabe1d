/* SPDX-License-Identifier: MIT
 *
 * A bound on how long something may take, for what has to end whatever happens.
 */
#ifndef ZRECORDFS_DEADLINE_H
#define ZRECORDFS_DEADLINE_H

struct deadline;

/* Ends the process with exit code 1, and a line in the log that names what, a literal, unless
 * deadline_stop comes within so many seconds.  NULL without memory or a thread for it: then
 * nothing is bounded. */
struct deadline *deadline_start(unsigned seconds, const char *what);
/* It was done in time.  Frees.  Takes NULL. */
void deadline_stop(struct deadline *d);

#endif
