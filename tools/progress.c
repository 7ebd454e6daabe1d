/* SPDX-License-Identifier: MIT
 *
 * The progress bar: on stderr, only when that is a terminal, at most ten
 * redraws a second.  One bar at a time.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "tools.h"

#define REDRAW_SECONDS 0.1

static bool on_screen;

static int terminal_columns(void)
{
    struct winsize size;

    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

void progress_erase(void)
{
    if (!on_screen)
        return;
    fputs("\r\033[K", stderr);
    on_screen = false;
}

void progress_begin(struct progress *p, const char *label, uint64_t total, bool quiet)
{
    *p = (struct progress){.label = label, .total = total};
    p->shown = !quiet && total > 0 && isatty(STDERR_FILENO);
    clock_gettime(CLOCK_MONOTONIC, &p->start);
    p->drawn = p->start;
}

static void draw(const struct progress *p, double share, double elapsed)
{
    char bar[41];
    double left = share > 0 ? elapsed / share - elapsed : 0;
    int width = terminal_columns() - (int)strlen(p->label) - 24;

    if (width > (int)sizeof bar - 1)
        width = (int)sizeof bar - 1;
    if (width < 0)
        width = 0;
    int filled = (int)(share * width);
    memset(bar, '#', (size_t)filled);
    memset(bar + filled, '.', (size_t)(width - filled));
    bar[width] = '\0';
    fprintf(stderr, "\r\033[K%s [%s] %3.0f%% %.0f s left", p->label, bar, share * 100, left);
    fflush(stderr);
    on_screen = true;
}

static void draw_count(const struct progress *p, uint64_t done)
{
    char size[SIZE_TEXT_MAX];

    fprintf(stderr, "\r\033[K%s %s", p->label, size_text(done, size));
    fflush(stderr);
    on_screen = true;
}

void progress_update(struct progress *p, uint64_t done)
{
    if (!p->shown || seconds_since(&p->drawn) < REDRAW_SECONDS)
        return;
    clock_gettime(CLOCK_MONOTONIC, &p->drawn);
    if (p->total == PROGRESS_UNKNOWN)
        draw_count(p, done);
    else
        draw(p, done < p->total ? (double)done / (double)p->total : 1, seconds_since(&p->start));
}

void progress_end(struct progress *p)
{
    progress_erase();
    p->shown = false;
}
