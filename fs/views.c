/* SPDX-License-Identifier: MIT
 *
 * Other ways to look at a store's records: in the order of an epoch, as one array,
 * and as selections of one.
 *
 *   .views/all.npy            the whole store (Dense)
 *   .views/at/SELECTION.npy   a gather (Dense)
 *   .views/epoch/SEED/        the records in the order of a cyclic shuffle
 *   .views/preview/           records that are images (preview.c)
 *   .views/prefetch/SELECTION reading it decodes records ahead (prefetch.c)
 *
 * The names in at/, epoch/ and prefetch/ are not listed: there is one for every
 * question.  The files of an epoch are the records themselves, with their numbers.
 */
#include "views.h"

#include "array.h"
#include "ops.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char ALL_NAME[] = "all.npy";

/* ---------------------------------------------------------------- the fixed ones */

static bool is_array(const struct fs *fs, const struct source *source)
{
    (void)fs;
    return array_is_possible(source);
}

static const struct fixed {
    const char *name;
    uint64_t index;
    const struct node_kind *kind;
    bool (*is_possible)(const struct fs *fs, const struct source *source);
} FIXED[] = {
    {ALL_NAME, TREE_ALL, &node_all, is_array},
    {"at", TREE_AT, &node_at_folder, is_array},
    {"epoch", TREE_EPOCHS, &node_epoch_folder, NULL},
    {"prefetch", TREE_PREFETCH, &node_prefetch_folder, NULL},
    {"preview", TREE_PREVIEWS, &node_previews, preview_is_possible},
};
enum { FIXED_COUNT = sizeof FIXED / sizeof FIXED[0] };

static bool is_there(const struct fs *fs, const struct fixed *fixed, const struct source *source)
{
    return !fixed->is_possible || fixed->is_possible(fs, source);
}

struct node views_node(const struct fs *fs, struct source *source)
{
    return node_of(fs, &node_views, source, TREE_PLAIN, TREE_VIEWS);
}

void views_identify(const struct fs *fs, struct node *node, struct tree_ino parts)
{
    if (parts.role != TREE_PLAIN)
        return;
    if (parts.index == TREE_VIEWS)
        node->kind = &node_views;
    for (size_t i = 0; i < FIXED_COUNT; i++)
        if (FIXED[i].index == parts.index && is_there(fs, &FIXED[i], node->source))
            node->kind = FIXED[i].kind;
}

static int views_child(struct fs *fs, const struct node *dir, const char *name, struct node *child)
{
    for (size_t i = 0; i < FIXED_COUNT; i++) {
        const struct fixed *f = &FIXED[i];
        if (strcmp(name, f->name) == 0 && is_there(fs, f, dir->source))
            return node_same_source(fs, dir, f->kind, f->index, child);
    }
    return ENOENT;
}

static int views_list(struct fs *fs, const struct node *dir, uint64_t pos, struct listing *l)
{
    if (!listing_dots(l, dir, pos))
        return 0;
    for (uint64_t i = pos > LISTING_AFTER_DOTS ? pos - LISTING_AFTER_DOTS : 0; i < FIXED_COUNT;
         i++) {
        const struct fixed *f = &FIXED[i];
        struct node child = node_of(fs, f->kind, dir->source, TREE_PLAIN, f->index);
        if (is_there(fs, f, dir->source) &&
            !listing_add(l, f->name, &child, LISTING_AFTER_DOTS + i + 1))
            break;
    }
    return 0;
}

static int views_parent(struct fs *fs, const struct node *node, struct node *parent)
{
    return node_same_source(fs, node, &node_store, TREE_FOLDER, parent);
}

static int fixed_parent(struct fs *fs, const struct node *node, struct node *parent)
{
    return node_same_source(fs, node, &node_views, TREE_VIEWS, parent);
}

/* at/, epoch/ and prefetch/ hold a name for every question, and list none. */
static int list_nothing(struct fs *fs, const struct node *dir, uint64_t pos, struct listing *l)
{
    (void)fs;
    listing_dots(l, dir, pos);
    return 0;
}

/* ---------------------------------------------------------------- minted ones */

/* Mints a node for a name in a folder.  0, ENFILE, ENOMEM or ESTALE. */
static int mint(struct fs *fs, const struct node *dir, const struct minted_wish *wish,
                struct node *child)
{
    struct minted *m;
    struct source *source = source_hold(fs->sources, dir->source);
    if (!source) {
        free(wish->bytes);
        return ESTALE;
    }
    int failure = minted_get(fs->minted, wish, &m);
    if (failure) {
        source_release(fs->sources, source);
        return failure;
    }
    *child = (struct node){
        .ino = m->ino, .kind = wish->kind, .source = source, .id = m->id, .minted = m};
    return 0;
}

static struct minted_wish wish_for(const struct node *dir, const struct node_kind *kind,
                                   const char *name)
{
    /* Folders have numbers of their own: their names meet by chance only. */
    return (struct minted_wish){.kind = kind,
                                .source = dir->source,
                                .name = name,
                                .salt = dir->ino,
                                .folder_ino = dir->ino};
}

static int at_child(struct fs *fs, const struct node *dir, const char *name, struct node *child)
{
    struct minted_wish wish = wish_for(dir, &node_at, name);
    int failure = array_parse_name(dir->source, name, &wish.id);
    if (failure)
        return failure;
    wish.nbytes = strlen(name);
    return mint(fs, dir, &wish, child);
}

static int at_parent(struct fs *fs, const struct node *node, struct node *parent)
{
    return node_same_source(fs, node, &node_at_folder, TREE_AT, parent);
}

/* ---------------------------------------------------------------- epochs */

/* Decimal digits without leading zeros: one name a seed. */
static bool parse_seed(const char *name, uint64_t *seed)
{
    char canonical[24];
    char *end;
    errno = 0;
    *seed = strtoull(name, &end, 10);
    snprintf(canonical, sizeof canonical, "%" PRIu64, *seed);
    return errno == 0 && strcmp(name, canonical) == 0;
}

static int epochs_child(struct fs *fs, const struct node *dir, const char *name, struct node *child)
{
    struct minted_wish wish = wish_for(dir, &node_epoch, name);
    if (!parse_seed(name, &wish.id))
        return ENOENT;
    wish.nbytes = sizeof(struct minted);
    return mint(fs, dir, &wish, child);
}

/* The record at a position: what the engine's cyclic sampler gives, a record a step. */
static uint64_t shuffled(const struct node *epoch, uint64_t position)
{
    return zr_permute(epoch->source->info.length, epoch->id, 0, position);
}

static int epoch_child(struct fs *fs, const struct node *dir, const char *name, struct node *child)
{
    uint64_t position;
    if (!tree_parse(&dir->source->names, name, &position))
        return ENOENT;
    struct source *source = source_hold(fs->sources, dir->source);
    if (!source)
        return ESTALE;
    *child = records_node(fs, source, shuffled(dir, position));
    warm_saw_lookup(fs->warm, dir->ino, position, child->ino);
    return 0;
}

static bool epoch_record_at(struct fs *fs, const struct node *dir, uint64_t position, uint64_t *id)
{
    (void)fs;
    *id = shuffled(dir, position);
    return *id != ZR_NO_RECORD;
}

static int epoch_list(struct fs *fs, const struct node *dir, uint64_t pos, struct listing *l)
{
    char name[TREE_NAME_MAX];
    const struct tree *names = &dir->source->names;
    if (!listing_dots(l, dir, pos))
        return 0;
    if (pos == 0)
        warm_expect(fs->warm, dir->ino);
    uint64_t at = pos > LISTING_AFTER_DOTS ? pos - LISTING_AFTER_DOTS : 0;
    for (; at < names->length; at++) {
        struct node child = records_node(fs, dir->source, shuffled(dir, at));
        tree_name(names, at, name);
        if (!listing_add(l, name, &child, LISTING_AFTER_DOTS + at + 1))
            break;
    }
    return 0;
}

static int epoch_parent(struct fs *fs, const struct node *node, struct node *parent)
{
    return node_same_source(fs, node, &node_epoch_folder, TREE_EPOCHS, parent);
}

/* ---------------------------------------------------------------- prefetch */

static int prefetch_child(struct fs *fs, const struct node *dir, const char *name,
                          struct node *child)
{
    struct minted_wish wish = wish_for(dir, &node_prefetch, name);
    char *text;
    wish.is_unique = true; /* each asks again */
    int failure = prefetch_describe(dir->source, name, &text, &wish.nbytes);
    if (failure)
        return failure;
    wish.bytes = text;
    return mint(fs, dir, &wish, child);
}

static int prefetch_parent(struct fs *fs, const struct node *node, struct node *parent)
{
    return node_same_source(fs, node, &node_prefetch_folder, TREE_PREFETCH, parent);
}

static int prefetch_attr(struct fs *fs, const struct node *node, struct stat *st)
{
    node_file_attr(fs, node, node->minted->nbytes, st);
    return 0;
}

/* The first READ starts the work that the text speaks of. */
static int prefetch_read(fuse_req_t req, struct fs *fs, const struct node *node, size_t size,
                         off_t off)
{
    struct minted *m = node->minted;
    if (!atomic_exchange(&m->is_used, true)) {
        int failure = prefetch_start(fs, node->source, m->name);
        if (failure)
            return failure;
    }
    node_reply(req, m->bytes, m->nbytes, size, off);
    return 0;
}

/* ---------------------------------------------------------------- kinds */

#define FOLDER(child_fn, list_fn, parent_fn)                                                       \
    {                                                                                              \
        .type = S_IFDIR, .entry_sec = NODE_FOREVER_SEC, .attr_sec = NODE_FOREVER_SEC,              \
        .absent_sec = NODE_FOREVER_SEC, .child = (child_fn), .list = (list_fn),                    \
        .parent = (parent_fn), .attr = node_dir_attr                                               \
    }

const struct node_kind node_views = FOLDER(views_child, views_list, views_parent);
const struct node_kind node_at_folder = FOLDER(at_child, list_nothing, fixed_parent);
const struct node_kind node_epoch_folder = FOLDER(epochs_child, list_nothing, fixed_parent);
const struct node_kind node_epoch = {
    .type = S_IFDIR,
    .entry_sec = NODE_FOREVER_SEC,
    .attr_sec = NODE_FOREVER_SEC,
    .absent_sec = NODE_FOREVER_SEC,
    .child = epoch_child,
    .list = epoch_list,
    .parent = epoch_parent,
    .record_at = epoch_record_at,
    .attr = node_dir_attr,
};
const struct node_kind node_prefetch_folder = FOLDER(prefetch_child, list_nothing, fixed_parent);

const struct node_kind node_all = {
    .type = S_IFREG,
    .entry_sec = NODE_FOREVER_SEC,
    .attr_sec = NODE_FOREVER_SEC,
    .parent = fixed_parent,
    .attr = array_attr,
    .read = array_read,
    .decode = array_decode,
};

/* Nobody asks twice for a random batch: its name, and with it its pages, go when it is
 * closed. */
const struct node_kind node_at = {
    .type = S_IFREG,
    .entry_sec = 0,
    .attr_sec = NODE_FOREVER_SEC,
    .parent = at_parent,
    .attr = array_attr,
    .read = array_read,
    .decode = array_decode,
};

const struct node_kind node_prefetch = {
    .type = S_IFREG,
    .entry_sec = 0,
    .attr_sec = NODE_FOREVER_SEC,
    .parent = prefetch_parent,
    .attr = prefetch_attr,
    .read = prefetch_read,
};
