/* SPDX-License-Identifier: MIT
 *
 * All sources below a folder, as they are on disk at that moment, and sums over them.
 */
#include "probe.h"
#include "source.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WALK_MAX_DEPTH = 256 };

/* ---------------------------------------------------------------- walks */

struct walk {
    struct sources *s;
    sources_walk_fn fn;
    void *ctx;
    unsigned count;
    unsigned depth;
};

static void walk_folder(struct walk *w, struct source *folder);

static void walk_child(struct walk *w, struct source *folder, const char *name)
{
    struct zr_error err = {0};
    struct source *source;
    int failure = sources_child(w->s, folder, name, &source, &err);
    if (failure == ENOENT)
        return;
    w->count++;
    if (failure) {
        char *relative;
        const char *slash = *folder->relative ? "/" : "";
        bool is_broken = failure == EIO || failure == ENOMEM;
        if (asprintf(&relative, "%s%s%s", folder->relative, slash, name) < 0)
            return;
        w->fn(w->ctx, is_broken ? NULL : folder, relative, err.message);
        free(relative);
        return;
    }
    w->fn(w->ctx, source, source->relative, NULL);
    if (source->kind == SOURCE_FOLDER)
        walk_folder(w, source);
    source_release(w->s, source);
}

static void report_folder(struct walk *w, struct source *folder, int failure)
{
    char *why;
    if (asprintf(&why, "%s: %s", folder->path, strerror(failure)) < 0)
        return;
    w->fn(w->ctx, folder, folder->relative, why);
    free(why);
}

/* Recursion is as deep as the folders are, which PATH_MAX bounds as well. */
static void walk_folder(struct walk *w, struct source *folder)
{
    struct probe_name *names;
    size_t count;
    if (w->depth == WALK_MAX_DEPTH)
        return;
    int failure = probe_names(folder->path, &names, &count);
    if (failure) {
        if (failure != ESTALE) /* it is gone by now */
            report_folder(w, folder, failure);
        return;
    }
    w->depth++;
    for (size_t i = 0; i < count && w->count < SOURCES_WALK_MAX; i++)
        walk_child(w, folder, names[i].name);
    w->depth--;
    probe_names_free(names, count);
}

void sources_walk(struct sources *s, struct source *folder, sources_walk_fn fn, void *ctx)
{
    struct walk w = {.s = s, .fn = fn, .ctx = ctx};
    if (folder->kind == SOURCE_FOLDER)
        walk_folder(&w, folder);
}

/* ---------------------------------------------------------------- sums */

struct totals {
    uint64_t length, disk_nbytes;
};

static void add_totals(void *ctx, struct source *source, const char *relative, const char *why)
{
    (void)relative;
    struct totals *t = ctx;
    if (why || source->kind != SOURCE_STORE)
        return;
    t->length += source->info.length;
    t->disk_nbytes += source->info.disk_nbytes;
}

void sources_totals(struct sources *s, uint64_t *length, uint64_t *disk_nbytes)
{
    struct totals t = {0};
    struct source *root = sources_root(s);
    if (root->kind == SOURCE_STORE)
        add_totals(&t, root, "", NULL);
    else
        sources_walk(s, root, add_totals, &t);
    *length = t.length;
    *disk_nbytes = t.disk_nbytes;
}
