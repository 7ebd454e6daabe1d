/* SPDX-License-Identifier: MIT
 *
 * Progress and signals of long work on archives.
 */
#include "archives.h"

void work_begin(struct work *w, const char *label, bool quiet)
{
    *w = (struct work){.label = label, .quiet = quiet};
    clock_gettime(CLOCK_MONOTONIC, &w->start);
    signals_catch();
}

int work_progress(void *ctx, uint64_t done, uint64_t total)
{
    struct work *w = ctx;

    if (!w->begun) {
        progress_begin(&w->bar, w->label, total, w->quiet);
        w->bar.start = w->bar.drawn = w->start; /* the first report comes when much is done */
    }
    w->begun = true;
    progress_update(&w->bar, done);
    return signals_pending();
}

int work_end(struct work *w, const char *path, int code, const struct zr_error *err)
{
    if (w->begun)
        progress_end(&w->bar);
    if (code == ZR_E_CANCELLED && signals_pending()) {
        diag("%s: interrupted, %s", path, w->in_place ? "not all was done" : "nothing was made");
        return EXIT_FAILED;
    }
    return code == ZR_OK ? EXIT_FINE : fail(err);
}
