/* SPDX-License-Identifier: MIT
 *
 * Progress and an end on request, for work on archives.
 */
#include <time.h>

#include "archive_watch.h"

const char zri_stopped[] = "cancelled";
int64_t zri_watch_nsec = 50000000; /* 20 questions a second */

static int64_t now_nsec(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * (int64_t)1000000000 + t.tv_nsec;
}

void zri_watch_init(struct zri_watch *w, zr_progress_fn progress, void *ctx, uint64_t total)
{
    *w = (struct zri_watch){.progress = progress,
                            .ctx = ctx,
                            .total = total,
                            .caller = pthread_self(),
                            .next_nsec = now_nsec() + zri_watch_nsec};
}

bool zri_watch_ask(struct zri_watch *w)
{
    if (w->progress && !atomic_load(&w->stopped) &&
        w->progress(w->ctx, atomic_load(&w->done), w->total))
        atomic_store(&w->stopped, true);
    w->next_nsec = now_nsec() + zri_watch_nsec;
    return atomic_load(&w->stopped);
}

bool zri_watch_look(struct zri_watch *w)
{
    if (!w || !w->progress)
        return false;
    if (pthread_equal(pthread_self(), w->caller) && now_nsec() >= w->next_nsec)
        return zri_watch_ask(w);
    return atomic_load(&w->stopped);
}

static void look(void *ctx)
{
    zri_watch_look(ctx);
}

void zri_watch_parallel(struct zri_watch *w, size_t count, unsigned thread_count, zri_task_fn fn,
                        void *ctx)
{
    zri_parallel_looking(count, thread_count, fn, ctx, w->progress ? look : NULL, w);
}
