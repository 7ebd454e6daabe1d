/* SPDX-License-Identifier: MIT
 *
 * The leaves of an archive as stores: one a leaf, at its path in a new folder.
 * All leaves must have the same first dimension, which numbers the records.
 */
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "archives.h"

#define PIECE_NBYTES ((uint64_t)16 << 20)

struct import {
    struct zr_archive *archive;
    const struct zr_archive_tree *tree;
    const char *path, *target;
    char *staging; /* beside the target, renamed at the end */
    struct zr_writer_options options;
    struct progress bar;
    uint64_t done_nbytes, total_nbytes;
};

bool is_archive(const char *path)
{
    struct stat st;
    size_t length = strlen(path);

    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode))
        return false;
    return zr_archive_is(path) || (length > 4 && strcmp(path + length - 4, ".tdz") == 0);
}

static int refuse(const struct import *im, const struct zr_archive_leaf *leaf, const char *why)
{
    diag("%s: leaf %s: %s", im->path, leaf->path, why);
    return EXIT_FAILED;
}

static int check_leaves(struct import *im)
{
    const struct zr_archive_leaf *first = im->tree->leaves;

    if (!im->tree->leaf_count) {
        diag("%s: an archive without leaves", im->path);
        return EXIT_FAILED;
    }
    for (size_t i = 0; i < im->tree->leaf_count; i++) {
        const struct zr_archive_leaf *leaf = &im->tree->leaves[i];
        if (leaf->is_nested || leaf->ndim == 0)
            return refuse(im, leaf, "has no first dimension that numbers records");
        if (leaf->nbytes == 0)
            return refuse(im, leaf, "has no elements");
        if (leaf->shape[0] != first->shape[0])
            return refuse(im, leaf, "differs from the others in its first dimension");
        im->total_nbytes += leaf->nbytes;
    }
    return 0;
}

static int append_rows(struct import *im, struct zr_writer *w, const struct zr_archive_leaf *leaf,
                       const char *rows)
{
    uint64_t row_nbytes = leaf->nbytes / leaf->shape[0];
    uint64_t per_piece = PIECE_NBYTES / row_nbytes ? PIECE_NBYTES / row_nbytes : 1;
    struct zr_error err;

    for (uint64_t id = 0; id < leaf->shape[0]; id += per_piece) {
        uint64_t left = leaf->shape[0] - id, n = left < per_piece ? left : per_piece;
        if (zr_writer_append_dense(w, rows + id * row_nbytes, n, &err) != ZR_OK)
            return fail(&err);
        im->done_nbytes += n * row_nbytes;
        progress_update(&im->bar, im->done_nbytes);
        if (signals_pending())
            return EXIT_FAILED;
    }
    return 0;
}

static int write_store(struct import *im, const struct zr_archive_leaf *leaf, const char *path,
                       const void *rows)
{
    struct zr_writer_options options = im->options;
    struct zr_writer *w;
    struct zr_error err;

    options.dtype = leaf->dtype;
    options.ndim = leaf->ndim - 1;
    options.item_shape = leaf->shape + 1;
    if (zr_writer_create(&w, path, &options, &err) != ZR_OK)
        return fail(&err);
    int status = append_rows(im, w, leaf, rows);
    if (status) {
        zr_writer_abort(w);
        return status;
    }
    return zr_writer_close(w, &err) == ZR_OK ? 0 : fail(&err);
}

static int ask_whether_to_stop(void *ctx, uint64_t done, uint64_t total)
{
    (void)ctx, (void)done, (void)total;
    return signals_pending();
}

static int read_leaf(const struct import *im, const struct zr_archive_leaf *leaf, void *out)
{
    const struct zr_archive_copy wanted = {leaf->member, out};
    const struct zr_archive_read_options options = {.progress = ask_whether_to_stop};
    struct zr_error err;
    int code = zr_archive_read(im->archive, &wanted, 1, &options, &err);

    if (code == ZR_E_CANCELLED)
        return EXIT_FAILED; /* import_leaves says so */
    return code == ZR_OK ? 0 : fail(&err);
}

/* Mapped where it lies, or a checked copy. */
static int import_leaf(struct import *im, const struct zr_archive_leaf *leaf)
{
    char *path;
    void *copy = NULL;
    int status = 0;

    if (asprintf(&path, "%s/%s", im->staging, leaf->path) < 0)
        return fail_nomem();
    if (!leaf->data) {
        copy = zr_buffer_alloc((size_t)leaf->nbytes);
        status = copy ? read_leaf(im, leaf, copy) : fail_nomem();
    }
    if (!status)
        status = write_store(im, leaf, path, copy ? copy : leaf->data);
    zr_buffer_free(copy);
    free(path);
    return status;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *where)
{
    (void)st, (void)type, (void)where;
    return remove(path);
}

static int import_leaves(struct import *im, bool quiet)
{
    int status = 0;

    progress_begin(&im->bar, "import", im->total_nbytes, quiet);
    for (size_t i = 0; !status && i < im->tree->leaf_count; i++)
        status = import_leaf(im, &im->tree->leaves[i]);
    progress_end(&im->bar);
    if (!status && rename(im->staging, im->target) != 0)
        status = fail_errno(im->target);
    if (status)
        nftw(im->staging, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    if (signals_pending())
        diag("%s: interrupted, nothing was made", im->target);
    return status;
}

/* ".NAME.zrecord-import" beside the target; one that was left is another's, or stale. */
static int make_staging(struct import *im)
{
    const char *slash = strrchr(im->target, '/');
    int folder_nbytes = slash ? (int)(slash + 1 - im->target) : 0;

    if (asprintf(&im->staging, "%.*s.%s.%ld.zrecord-import", folder_nbytes, im->target,
                 slash ? slash + 1 : im->target, (long)getpid()) < 0)
        return fail_nomem();
    return mkdir(im->staging, 0777) == 0 ? 0 : fail_errno(im->staging);
}

int import_archive(const char *path, const char *target, const struct zr_writer_options *options,
                   bool quiet)
{
    struct import im = {.path = path, .target = target, .options = *options};
    struct zr_error err;
    int status = 0;

    if (zr_archive_open(&im.archive, path, ZR_ARCHIVE_COPY, &err) != ZR_OK)
        return fail(&err);
    if (zr_archive_tree(im.archive, NULL, 0, &im.tree, &err) != ZR_OK)
        status = fail(&err);
    if (!status)
        status = check_leaves(&im);
    if (!status) {
        signals_catch();
        status = make_staging(&im);
    }
    if (!status)
        status = import_leaves(&im, quiet);
    if (!status && !quiet)
        printf("%s: %zu stores of %llu records\n", target, im.tree->leaf_count,
               (unsigned long long)im.tree->leaves[0].shape[0]);
    free(im.staging);
    zr_archive_tree_free(im.tree);
    zr_archive_close(im.archive);
    return status;
}
