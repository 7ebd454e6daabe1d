/* SPDX-License-Identifier: MIT
 *
 * Folders of a mirrored tree.  What they hold is looked up on disk each time, so
 * a new store is seen as soon as the kernel asks again, and a broken one is left
 * out of listings without hiding the others.
 */
#include "folders.h"

#include "archive.h"
#include "ops.h"
#include "probe.h"

#include <errno.h>
#include <stdlib.h>
#include <syslog.h>

void folders_identify(const struct fs *fs, struct node *node, struct tree_ino parts)
{
    (void)fs;
    node->id = parts.index;
    if (parts.role == TREE_PLAIN && parts.index == TREE_FOLDER)
        node->kind = &node_folder;
}

/* The node of a child's source, on that hold. */
static struct node child_node(const struct fs *fs, struct source *source)
{
    const struct node_kind *kind = source->kind == SOURCE_FOLDER    ? &node_folder
                                   : source->kind == SOURCE_ARCHIVE ? &node_archive_level
                                                                    : &node_store;
    return node_of(fs, kind, source, TREE_PLAIN, TREE_FOLDER);
}

static int folder_child(struct fs *fs, const struct node *dir, const char *name, struct node *child)
{
    struct zr_error err;
    struct source *source;
    if (name[0] == '.')
        return records_special_child(fs, dir, name, child);
    int failure = classes_child(fs, dir, name, child);
    if (failure != ENOENT)
        return failure;
    failure = sources_child(fs->sources, dir->source, name, &source, &err);
    if (failure == EIO)
        report(LOG_ERR, "%s", err.message);
    if (failure == 0)
        *child = child_node(fs, source);
    return failure;
}

/* False when the answer is full. */
static bool list_child(struct fs *fs, const struct node *dir, const struct probe_name *name,
                       struct listing *l)
{
    struct source *source;
    if (sources_child(fs->sources, dir->source, name->name, &source, NULL) != 0)
        return true; /* gone, a file, or broken */
    struct node child = child_node(fs, source);
    bool has_room = classes_hide(fs, dir->source, source) ||
                    listing_add(l, name->name, &child, name->position + 1);
    node_release(fs, &child);
    return has_room;
}

static int folder_list(struct fs *fs, const struct node *dir, uint64_t pos, struct listing *l)
{
    struct probe_name *names;
    size_t count;
    if (!listing_dots(l, dir, pos) || !records_list_special(fs, dir, pos, l) ||
        !classes_list(fs, dir, pos, l))
        return 0;
    int failure = probe_names(dir->source->path, &names, &count);
    if (failure)
        return failure;
    bool has_room = true;
    for (size_t i = 0; i < count && has_room; i++)
        if (names[i].position >= pos)
            has_room = list_child(fs, dir, &names[i], l);
    probe_names_free(names, count);
    return 0;
}

static int folder_parent(struct fs *fs, const struct node *node, struct node *parent)
{
    struct source *folder = node->source->parent ? node->source->parent : node->source;
    *parent = node_of(fs, &node_folder, folder, TREE_PLAIN, TREE_FOLDER);
    return 0;
}

static int folder_attr(struct fs *fs, const struct node *node, struct stat *st)
{
    struct stat on_disk;
    if (stat(node->source->path, &on_disk) != 0)
        return errno == ENOENT ? ESTALE : errno;
    node_dir_attr(fs, node, st);
    st->st_mtim = st->st_ctim = st->st_atim = on_disk.st_mtim;
    st->st_nlink = 1; /* as btrfs: not the number of folders inside */
    return 0;
}

const struct node_kind node_folder = {
    .type = S_IFDIR,
    .entry_sec = NODE_FRESH_SEC,
    .attr_sec = NODE_FRESH_SEC,
    .absent_sec = NODE_FRESH_SEC,
    .child = folder_child,
    .list = folder_list,
    .parent = folder_parent,
    .attr = folder_attr,
};
