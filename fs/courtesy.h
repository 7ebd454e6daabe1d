/* SPDX-License-Identifier: MIT
 *
 * Threads that answer step aside for those that asked.
 *
 * A thread that answers a reader on its own CPU is, to the scheduler, a reason to
 * send the reader elsewhere, to a CPU that is idle and slow to wake.  A thread of
 * the idle class is none: the reader stays and goes on at once.  But such a thread
 * starves when others fill its CPU, so a watcher looks whether it gets on, and
 * puts all back into the normal class for a while when one does not.
 */
#ifndef ZRECORDFS_COURTESY_H
#define ZRECORDFS_COURTESY_H

#include <stdbool.h>
#include <stdint.h>

struct courtesy;
struct courtesy_seat;

/* NULL where this process may not return from the idle class (it takes CAP_SYS_NICE),
 * or memory runs out.  Starts the watcher, which sleeps while nothing is served. */
struct courtesy *courtesy_new(unsigned seat_count);
/* After the threads with seats have ended.  Takes NULL. */
void courtesy_free(struct courtesy *c);

/* A seat for the calling thread; it begins in the normal class.  NULL without c, or
 * when all are taken. */
struct courtesy_seat *courtesy_join(struct courtesy *c);
/* Whether the calling thread steps aside from now on. */
void courtesy_set(struct courtesy_seat *seat, bool steps_aside);
/* Whether it would, as of now. */
bool courtesy_allows(struct courtesy_seat *seat);
/* The calling thread has a request to serve.  Costs some ns. */
void courtesy_note(struct courtesy_seat *seat);
/* Whether the calling thread runs on the CPU of those that it answers; that CPU, -1 when
 * it does not or nobody said so.  Without a seat too. */
void courtesy_set_near(bool is_near);
int courtesy_reader_cpu(void);
/* The CPU on which any thread runs or last ran; -1 where that cannot be seen.  Some µs. */
int courtesy_cpu_of(uint32_t tid);
/* All threads with seats go to the normal class and stay there: they are to end, which
 * nobody who waits for them should have to wait for.  Takes NULL. */
void courtesy_end(struct courtesy *c);

#endif
