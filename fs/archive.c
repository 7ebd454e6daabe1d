/* SPDX-License-Identifier: MIT
 *
 * A mounted archive and the numbers of its nodes.
 *
 *   TREE_FOLDER            the root level
 *   TREE_FIRST_RECORD      two numbers a level: its folder, its meta.json;
 *   then                   two a leaf: its .npy, the folder of its rows;
 *   then                   one a row.
 */
#include "archive.h"

#include "archive_parts.h"
#include "ops.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

static const char META_NAME[] = "meta.json";

/* ---------------------------------------------------------------- the archive */

const struct zr_archive_leaf *archive_leaf(const struct archive *a, uint64_t leaf)
{
    return &a->tree->leaves[leaf];
}

bool archive_has_rows(const struct archive *a, size_t i)
{
    const struct zr_archive_leaf *leaf = archive_leaf(a, i);
    const struct zr_archive_level *level = a->owners[i];
    return !leaf->is_nested && leaf->nbytes && leaf->ndim && level && level->ndim &&
           leaf->shape[0] == level->shape[0];
}

static void index_levels(struct archive *a)
{
    for (size_t i = 0; i < a->tree->level_count; i++) {
        const struct zr_archive_level *level = &a->tree->levels[i];
        for (size_t k = 0; k < level->entry_count; k++) {
            if (level->entries[k].is_leaf)
                a->owners[level->entries[k].index] = level;
            else
                a->parents[level->entries[k].index] = i;
        }
    }
}

static void index_rows(struct archive *a)
{
    uint64_t row = 0;
    for (size_t i = 0; i < a->tree->leaf_count; i++) {
        a->first_row[i] = row;
        row += archive_has_rows(a, i) ? archive_leaf(a, i)->shape[0] : 0;
    }
    a->first_row[a->tree->leaf_count] = row;
}

bool archive_is_writable(const struct source *source)
{
    return source->archive && source->archive->writable;
}

static void close_file(struct archive *a)
{
    zr_archive_tree_free(a->tree);
    zr_archive_close(a->file);
    a->tree = NULL;
    a->file = NULL;
}

void archive_close(struct archive *a)
{
    if (!a)
        return;
    archive_writes_refresh(&a->writes, a->path, NULL);
    archive_writes_release(&a->writes);
    free(a->path);
    free(a->why_fixed);
    close_file(a);
    free(a->owners);
    free(a->parents);
    free(a->first_row);
    free(a->leaf_of);
    free(a->level_of);
    free(a);
}

/* Names are looked up in the archive's own index: by the member that they stand for. */
static bool index_members(struct archive *a)
{
    struct zr_archive_info info;
    char name[8192];
    uint64_t member;
    zr_archive_info(a->file, &info);
    a->nbytes = info.nbytes;
    a->leaf_of = calloc(info.member_count + 1, sizeof *a->leaf_of);
    a->level_of = calloc(info.member_count + 1, sizeof *a->level_of);
    if (!a->leaf_of || !a->level_of)
        return false;
    for (size_t i = 0; i < a->tree->leaf_count; i++)
        if (archive_leaf(a, i)->member != ZR_NO_MEMBER)
            a->leaf_of[archive_leaf(a, i)->member] = (uint32_t)i + 1;
    for (size_t i = 1; i < a->tree->level_count; i++) {
        int n = snprintf(name, sizeof name, "%s/%s", a->tree->levels[i].path, META_NAME);
        if (n > 0 && (size_t)n < sizeof name &&
            zr_archive_find(a->file, name, &member, NULL) == ZR_OK)
            a->level_of[member] = (uint32_t)i + 1;
    }
    return true;
}

/* All leaves or none: NULL, or the first that cannot be written through. */
static const struct zr_archive_leaf *fixed_leaf(const struct archive *a)
{
    for (size_t i = 0; i < a->tree->leaf_count; i++) {
        const struct zr_archive_leaf *leaf = archive_leaf(a, i);
        if (leaf->is_nested || (!leaf->data && leaf->member != ZR_NO_MEMBER))
            return leaf;
    }
    return NULL;
}

static int open_file(struct archive *a, const char *path, struct zr_error *err)
{
    int mode = a->writable ? ZR_ARCHIVE_WRITE : ZR_ARCHIVE_COPY;
    int code = zr_archive_open(&a->file, path, mode, err);
    return code == ZR_OK ? zr_archive_tree(a->file, NULL, 0, &a->tree, err) : code;
}

/* As open_file; true when writes may go there, else why_fixed says why not. */
static bool open_writable(struct archive *a, const char *path)
{
    struct zr_error err = {0};
    struct zr_archive_info info;
    a->writable = true;
    if (open_file(a, path, &err) != ZR_OK) {
        a->why_fixed = strdup(err.message);
        return false;
    }
    const struct zr_archive_leaf *fixed = fixed_leaf(a);
    if (fixed) {
        if (asprintf(&a->why_fixed, "leaf %s cannot be written through", fixed->path) < 0)
            a->why_fixed = NULL;
        return false;
    }
    zr_archive_info(a->file, &info);
    const struct probe_stamp stamp = {info.mtime_sec, info.mtime_nsec, (int64_t)info.nbytes};
    int failure = archive_writes_open(&a->writes, path, &stamp);
    if (failure)
        a->why_fixed = strdup(failure == ELOOP    ? "it is a link"
                              : failure == ESTALE ? "it was changed meanwhile"
                                                  : strerror(failure));
    return failure == 0;
}

/* Read-only where it cannot be otherwise: mount(8) asks for rw unless told not to. */
static int open_as_possible(struct archive *a, const char *path, bool writable,
                            struct zr_error *err)
{
    if (writable && open_writable(a, path))
        return ZR_OK;
    close_file(a);
    a->writable = false;
    return open_file(a, path, err);
}

int archive_open(struct archive **out, const char *path, bool writable, struct zr_error *err)
{
    struct archive *a = calloc(1, sizeof *a);
    *out = NULL;
    if (a) {
        archive_writes_init(&a->writes);
        a->path = strdup(path);
    }
    int code = a && a->path ? open_as_possible(a, path, writable, err) : ZR_E_NOMEM;
    if (code == ZR_OK) {
        a->owners = calloc(a->tree->leaf_count + 1, sizeof(struct zr_archive_level *));
        a->parents = calloc(a->tree->level_count + 1, sizeof *a->parents);
        a->first_row = calloc(a->tree->leaf_count + 1, sizeof *a->first_row);
        if (!a->owners || !a->parents || !a->first_row || !index_members(a))
            code = ZR_E_NOMEM;
    }
    if (code != ZR_OK) {
        if (code == ZR_E_NOMEM && err)
            *err =
                (struct zr_error){.code = code, .record = ZR_NO_RECORD, .message = "out of memory"};
        archive_close(a);
        return code;
    }
    index_levels(a);
    index_rows(a);
    *out = a;
    return ZR_OK;
}

/* ---------------------------------------------------------------- numbers */

static uint64_t leaves_index(const struct archive *a)
{
    return TREE_FIRST_RECORD + 2 * (uint64_t)a->tree->level_count;
}

static uint64_t rows_index(const struct archive *a)
{
    return leaves_index(a) + 2 * (uint64_t)a->tree->leaf_count;
}

uint64_t archive_max_index(const struct archive *a)
{
    return rows_index(a) + a->first_row[a->tree->leaf_count];
}

struct node archive_level_node(const struct fs *fs, struct source *source, uint64_t level)
{
    uint64_t index = level ? TREE_FIRST_RECORD + 2 * level : TREE_FOLDER;
    struct node node = node_of(fs, &node_archive_level, source, TREE_PLAIN, index);
    node.id = level;
    return node;
}

struct node archive_meta_node(const struct fs *fs, struct source *source, uint64_t level)
{
    struct node node =
        node_of(fs, &node_archive_meta, source, TREE_PLAIN, TREE_FIRST_RECORD + 2 * level + 1);
    node.id = level;
    return node;
}

struct node archive_leaf_node(const struct fs *fs, struct source *source, uint64_t leaf)
{
    struct node node = node_of(fs, &node_archive_leaf, source, TREE_PLAIN,
                               leaves_index(source->archive) + 2 * leaf);
    node.id = leaf;
    return node;
}

struct node archive_rows_node(const struct fs *fs, struct source *source, uint64_t leaf)
{
    struct node node = node_of(fs, &node_archive_rows, source, TREE_PLAIN,
                               leaves_index(source->archive) + 2 * leaf + 1);
    node.id = leaf;
    return node;
}

/* id counts rows over all leaves. */
struct node archive_row_node(const struct fs *fs, struct source *source, uint64_t id)
{
    struct node node =
        node_of(fs, &node_archive_row, source, TREE_PLAIN, rows_index(source->archive) + id);
    node.id = id;
    return node;
}

/* The leaf that a row belongs to: the last one that begins at or before it and has rows. */
size_t archive_leaf_of_row(const struct archive *a, uint64_t id)
{
    size_t low = 0, high = a->tree->leaf_count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (a->first_row[middle] <= id)
            low = middle;
        else
            high = middle;
    }
    return low;
}

void archive_identify(struct node *node, struct tree_ino parts)
{
    const struct archive *a = node->source->archive;
    uint64_t index = parts.index;
    if (parts.role != TREE_PLAIN)
        return;
    if (index == TREE_FOLDER) {
        node->kind = &node_archive_level;
        node->id = 0;
    } else if (index >= TREE_FIRST_RECORD && index < leaves_index(a)) {
        node->kind = (index - TREE_FIRST_RECORD) % 2 ? &node_archive_meta : &node_archive_level;
        node->id = (index - TREE_FIRST_RECORD) / 2;
    } else if (index >= leaves_index(a) && index < rows_index(a)) {
        node->id = (index - leaves_index(a)) / 2;
        bool is_folder = (index - leaves_index(a)) % 2;
        if (!is_folder || archive_has_rows(a, node->id))
            node->kind = is_folder ? &node_archive_rows : &node_archive_leaf;
    } else if (index >= rows_index(a) && index < archive_max_index(a)) {
        node->kind = &node_archive_row;
        node->id = index - rows_index(a);
    }
}

int archive_held(struct fs *fs, const struct node *of, struct node node, struct node *out)
{
    if (!source_hold(fs->sources, of->source))
        return ESTALE;
    *out = node;
    return 0;
}

bool archive_is_part(const struct node *node)
{
    return node->kind == &node_archive_leaf || node->kind == &node_archive_row;
}
