/* SPDX-License-Identifier: MIT
 *
 * What the subcommands on archives share.
 */
#ifndef ZRECORD_ARCHIVES_H
#define ZRECORD_ARCHIVES_H

#include "tools.h"

/* Long work of the engine that reports its progress. */
struct work {
    struct progress bar;
    struct timespec start;
    const char *label;
    bool quiet, begun;
    bool in_place; /* what was done stays when it is interrupted */
};
/* Signals are caught from here on. */
void work_begin(struct work *w, const char *label, bool quiet);
/* A zr_progress_fn; stops the work when a signal came. */
int work_progress(void *ctx, uint64_t done, uint64_t total);
/* The exit status, having said why it is not fine. */
int work_end(struct work *w, const char *path, int code, const struct zr_error *err);

/* Whether something below the folder is a store. */
bool folder_has_stores(const char *dir);
/* Each Dense store below the folder becomes a leaf at its path.  A zr code. */
int pack_stores(const char *dir, const char *path, const struct zr_archive_save_options *options,
                struct zr_error *err);

/* By content, or by its name: what is wrong with one is for who opens it to say. */
bool is_archive(const char *path);
/* One Dense store a leaf, below the new folder target.  Of options, codec, level, tune
 * and durability count. */
int import_archive(const char *path, const char *target, const struct zr_writer_options *options,
                   bool quiet);

#endif /* ZRECORD_ARCHIVES_H */
