/* SPDX-License-Identifier: MIT
 *
 * The folders of a mounted archive: levels, and the rows of leaves.  Names are looked
 * up in the archive's own index, so that a level of any length costs nothing.
 */
#include "archive_parts.h"
#include "ops.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const char META_NAME[] = "meta.json";
static const char SUFFIX[] = ".npy";

/* Names are the last parts of paths in the archive: encoded keys, so without '/'. */
static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Position + 1 of what the member "LEVEL/NAME" + suffix stands for; 0: nothing. */
static uint32_t find_member(const struct archive *a, const uint32_t *of, const char *level,
                            const char *name, size_t name_nbytes, const char *suffix)
{
    char path[8192];
    uint64_t member;
    int n = snprintf(path, sizeof path, "%s%s%.*s%s", level, *level ? "/" : "", (int)name_nbytes,
                     name, suffix);
    if (n < 0 || (size_t)n >= sizeof path || zr_archive_find(a->file, path, &member, NULL) != ZR_OK)
        return 0;
    return of[member];
}

/* A leaf without elements has no member. */
static uint32_t find_empty(const struct archive *a, const struct zr_archive_level *level,
                           const char *name, size_t name_nbytes)
{
    for (size_t k = 0; k < level->entry_count; k++) {
        const struct zr_archive_entry *e = &level->entries[k];
        if (!e->is_leaf || archive_leaf(a, e->index)->member != ZR_NO_MEMBER)
            continue;
        const char *stem = last_part(archive_leaf(a, e->index)->path);
        if (strlen(stem) == name_nbytes && memcmp(stem, name, name_nbytes) == 0)
            return (uint32_t)e->index + 1;
    }
    return 0;
}

static uint32_t find_leaf(const struct archive *a, const struct zr_archive_level *level,
                          const char *name, size_t name_nbytes)
{
    uint32_t leaf = find_member(a, a->leaf_of, level->path, name, name_nbytes, ".memmap");
    return leaf ? leaf : find_empty(a, level, name, name_nbytes);
}

/* Position + 1 of the leaf whose file has this name; 0: none. */
static uint32_t find_file(const struct archive *a, const struct zr_archive_level *level,
                          const char *name)
{
    size_t n = strlen(name), stem = n - (sizeof SUFFIX - 1);
    return n > sizeof SUFFIX - 1 && strcmp(name + stem, SUFFIX) == 0
               ? find_leaf(a, level, name, stem)
               : 0;
}

static uint32_t find_level(const struct archive *a, const struct zr_archive_level *level,
                           const char *name)
{
    return find_member(a, a->level_of, level->path, name, strlen(name), "/meta.json");
}

/* Keys may be "x" and "x.npy".  Where names meet, what holds most comes first: a level, which holds
 * leaves of its own, then a leaf's file, then its rows, which the file has too. */
static int level_child(struct fs *fs, const struct node *dir, const char *name, struct node *child)
{
    const struct archive *a = dir->source->archive;
    const struct zr_archive_level *level = &a->tree->levels[dir->id];
    if (dir->id == 0 && strcmp(name, TREE_CONTROL_NAME) == 0)
        return records_special_child(fs, dir, name, child);
    if (strcmp(name, META_NAME) == 0)
        return archive_held(fs, dir, archive_meta_node(fs, dir->source, dir->id), child);
    uint32_t inner = find_level(a, level, name);
    if (inner)
        return archive_held(fs, dir, archive_level_node(fs, dir->source, inner - 1), child);
    uint32_t leaf = find_file(a, level, name);
    if (leaf)
        return archive_held(fs, dir, archive_leaf_node(fs, dir->source, leaf - 1), child);
    leaf = find_leaf(a, level, name, strlen(name));
    if (leaf && archive_has_rows(a, leaf - 1))
        return archive_held(fs, dir, archive_rows_node(fs, dir->source, leaf - 1), child);
    return ENOENT;
}

/* Positions: dots, specials, meta.json, then two an entry. */
enum { POS_META = RECORDS_AFTER_SPECIAL, POS_ENTRIES };

static bool rows_are_hidden(const struct archive *a, const struct node *dir, const char *name)
{
    return strcmp(name, META_NAME) == 0 || (dir->id == 0 && strcmp(name, TREE_CONTROL_NAME) == 0) ||
           find_file(a, &a->tree->levels[dir->id], name);
}

/* False when the answer is full. */
static bool list_entry(struct fs *fs, const struct node *dir, size_t k, uint64_t pos,
                       struct listing *l)
{
    const struct archive *a = dir->source->archive;
    const struct zr_archive_entry *e = &a->tree->levels[dir->id].entries[k];
    uint64_t at = POS_ENTRIES + 2 * (uint64_t)k;
    char name[4096 + sizeof SUFFIX];
    if (!e->is_leaf) {
        struct node child = archive_level_node(fs, dir->source, e->index);
        return pos > at ||
               listing_add(l, last_part(a->tree->levels[e->index].path), &child, at + 1);
    }
    const char *stem = last_part(archive_leaf(a, e->index)->path);
    struct node file = archive_leaf_node(fs, dir->source, e->index);
    struct node folder = archive_rows_node(fs, dir->source, e->index);
    snprintf(name, sizeof name, "%s%s", stem, SUFFIX);
    if (pos <= at && !find_level(a, &a->tree->levels[dir->id], name) &&
        !listing_add(l, name, &file, at + 1))
        return false;
    return pos > at + 1 || !archive_has_rows(a, e->index) || rows_are_hidden(a, dir, stem) ||
           listing_add(l, stem, &folder, at + 2);
}

static int level_list(struct fs *fs, const struct node *dir, uint64_t pos, struct listing *l)
{
    const struct zr_archive_level *level = &dir->source->archive->tree->levels[dir->id];
    struct node meta = archive_meta_node(fs, dir->source, dir->id);
    if (!listing_dots(l, dir, pos) || (dir->id == 0 && !records_list_special(fs, dir, pos, l)))
        return 0;
    if (pos <= POS_META && !listing_add(l, META_NAME, &meta, POS_META + 1))
        return 0;
    size_t k = pos > POS_ENTRIES ? (size_t)((pos - POS_ENTRIES) / 2) : 0;
    for (; k < level->entry_count; k++)
        if (!list_entry(fs, dir, k, pos, l))
            return 0;
    return 0;
}

static int rows_child(struct fs *fs, const struct node *dir, const char *name, struct node *child)
{
    const struct archive *a = dir->source->archive;
    struct tree names;
    uint64_t row;
    tree_init(&names, archive_leaf(a, dir->id)->shape[0], SUFFIX);
    if (!tree_parse(&names, name, &row))
        return ENOENT;
    return archive_held(fs, dir, archive_row_node(fs, dir->source, a->first_row[dir->id] + row),
                        child);
}

static int rows_list(struct fs *fs, const struct node *dir, uint64_t pos, struct listing *l)
{
    const struct archive *a = dir->source->archive;
    char name[TREE_NAME_MAX];
    struct tree names;
    tree_init(&names, archive_leaf(a, dir->id)->shape[0], SUFFIX);
    if (!listing_dots(l, dir, pos))
        return 0;
    for (uint64_t row = pos > LISTING_AFTER_DOTS ? pos - LISTING_AFTER_DOTS : 0; row < names.length;
         row++) {
        struct node child = archive_row_node(fs, dir->source, a->first_row[dir->id] + row);
        tree_name(&names, row, name);
        if (!listing_add(l, name, &child, LISTING_AFTER_DOTS + row + 1))
            break;
    }
    return 0;
}

static int level_parent(struct fs *fs, const struct node *node, struct node *parent)
{
    const struct archive *a = node->source->archive;
    struct source *folder = node->source->parent;
    if (node->id || !folder)
        return archive_held(
            fs, node, archive_level_node(fs, node->source, node->id ? a->parents[node->id] : 0),
            parent);
    *parent = node_of(fs, &node_folder, folder, TREE_PLAIN, TREE_FOLDER);
    return 0;
}

const struct node_kind node_archive_level = {
    .type = S_IFDIR,
    .entry_sec = NODE_FRESH_SEC, /* another archive may take the name of the root's */
    .attr_sec = NODE_FOREVER_SEC,
    .absent_sec = NODE_FOREVER_SEC,
    .child = level_child,
    .list = level_list,
    .parent = level_parent,
    .attr = node_dir_attr,
};

const struct node_kind node_archive_rows = {
    .type = S_IFDIR,
    .entry_sec = NODE_FOREVER_SEC,
    .attr_sec = NODE_FOREVER_SEC,
    .absent_sec = NODE_FOREVER_SEC,
    .child = rows_child,
    .list = rows_list,
    .parent = archive_leaf_parent,
    .attr = node_dir_attr,
};
