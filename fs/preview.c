/* SPDX-License-Identifier: MIT
 *
 * .views/preview: records that are images as .png, for file managers and viewers.
 */
#include "preview.h"

#include "ops.h"
#include "png.h"

#include <errno.h>
#include <string.h>

static void names_of(const struct source *source, struct tree *names)
{
    tree_init(names, source->info.length, ".png");
}

bool preview_is_possible(const struct fs *fs, const struct source *source)
{
    struct png_layout layout;
    const struct zr_info *info = &source->info;
    return fs->options->preview && strcmp(info->dtype, "|u1") == 0 &&
           (info->geometry == ZR_RAGGED || png_layout(info->ndim, info->item_shape, &layout));
}

struct node preview_node(const struct fs *fs, struct source *source, uint64_t id)
{
    return node_of(fs, &node_preview, source, TREE_PREVIEW, id);
}

/* ---------------------------------------------------------------- images */

static int no_image(uint64_t id, struct zr_error *err)
{
    *err = (struct zr_error){
        .code = ZR_E_SCHEMA, .record = id, .offset = UINT64_MAX, .message = "not an image"};
    return ZR_E_SCHEMA;
}

/* The layout and the pixels of a decoded record. */
static int find_pixels(uint64_t id, const struct cache_bytes *record, struct png_layout *layout,
                       const uint8_t **pixels, struct zr_error *err)
{
    struct zr_npy npy;
    int code = zr_npy_parse(record->bytes, record->nbytes, record->nbytes, "record", &npy, err);
    if (code != ZR_OK)
        return code;
    *pixels = (const uint8_t *)record->bytes + npy.data_off;
    return png_layout(npy.ndim, npy.shape, layout) ? ZR_OK : no_image(id, err);
}

static int preview_decode(struct fs *fs, const struct node *node, uint64_t part,
                          struct cache_bytes *out, struct zr_error *err)
{
    struct cache_bytes record;
    struct png_layout layout;
    const uint8_t *pixels;
    (void)part;
    int code = records_decode(fs, node->source, node->id, &record, err);
    if (code != ZR_OK)
        return code;
    code = find_pixels(node->id, &record, &layout, &pixels, err);
    if (code == ZR_OK) {
        out->nbytes = png_nbytes(&layout);
        out->bytes = out->block = zr_buffer_alloc(out->nbytes);
        if (out->block)
            png_encode(&layout, pixels, out->block);
        else
            code = err->code = ZR_E_NOMEM;
    }
    zr_buffer_free(record.block);
    return code;
}

/* Of a Ragged record by decoding it: which is kept, since its READ follows. */
static int ragged_nbytes(struct fs *fs, const struct node *node, uint64_t *nbytes,
                         struct zr_error *err)
{
    struct cache_entry *entry;
    enum cache_outcome outcome;
    int code =
        cache_get(fs->cache, (struct cache_key){.ino = node->ino}, node, &entry, &outcome, err);
    if (code != ZR_OK)
        return code;
    *nbytes = cache_entry_bytes(entry)->nbytes;
    cache_put(fs->cache, entry, 0);
    return ZR_OK;
}

static int preview_attr(struct fs *fs, const struct node *node, struct stat *st)
{
    const struct zr_info *info = &node->source->info;
    struct png_layout layout;
    struct zr_error err;
    uint64_t nbytes;
    if (info->geometry == ZR_DENSE && png_layout(info->ndim, info->item_shape, &layout)) {
        nbytes = png_nbytes(&layout);
    } else {
        int code = ragged_nbytes(fs, node, &nbytes, &err);
        if (code == ZR_E_SCHEMA)
            return ENOENT; /* whole, but no image */
        if (code != ZR_OK)
            return records_fail(fs, node->source, node->id, &err);
    }
    node_file_attr(fs, node, nbytes, st);
    return 0;
}

static int preview_read(fuse_req_t req, struct fs *fs, const struct node *node, size_t size,
                        off_t off)
{
    struct zr_error err;
    int code = records_read_cached(req, fs, node, size, off, &err);
    return code == ZR_OK ? 0 : records_fail(fs, node->source, node->id, &err);
}

/* ---------------------------------------------------------------- the folder */

static int previews_child(struct fs *fs, const struct node *dir, const char *name,
                          struct node *child)
{
    struct tree names;
    uint64_t id;
    names_of(dir->source, &names);
    if (!tree_parse(&names, name, &id))
        return ENOENT;
    struct source *source = source_hold(fs->sources, dir->source);
    if (!source)
        return ESTALE;
    *child = preview_node(fs, source, id);
    return 0;
}

/* Attributes of Ragged ones would mean decoding them. */
static bool list_preview(struct listing *l, const char *name, const struct node *child,
                         uint64_t next)
{
    if (child->source->info.geometry == ZR_DENSE)
        return listing_add(l, name, child, next);
    return listing_add_bare(l, name, child->ino, false, next);
}

static int previews_list(struct fs *fs, const struct node *dir, uint64_t pos, struct listing *l)
{
    struct tree names;
    char name[TREE_NAME_MAX];
    names_of(dir->source, &names);
    if (!listing_dots(l, dir, pos))
        return 0;
    uint64_t id = pos > LISTING_AFTER_DOTS ? pos - LISTING_AFTER_DOTS : 0;
    for (; id < names.length; id++) {
        struct node child = preview_node(fs, dir->source, id);
        tree_name(&names, id, name);
        if (!list_preview(l, name, &child, LISTING_AFTER_DOTS + id + 1))
            break;
    }
    return 0;
}

static int previews_parent(struct fs *fs, const struct node *node, struct node *parent)
{
    return node_same_source(fs, node, &node_views, TREE_VIEWS, parent);
}

static int preview_parent(struct fs *fs, const struct node *node, struct node *parent)
{
    return node_same_source(fs, node, &node_previews, TREE_PREVIEWS, parent);
}

const struct node_kind node_previews = {
    .type = S_IFDIR,
    .entry_sec = NODE_FOREVER_SEC,
    .attr_sec = NODE_FOREVER_SEC,
    .absent_sec = NODE_FOREVER_SEC,
    .child = previews_child,
    .list = previews_list,
    .parent = previews_parent,
    .attr = node_dir_attr,
};

const struct node_kind node_preview = {
    .type = S_IFREG,
    .entry_sec = NODE_FOREVER_SEC,
    .attr_sec = NODE_FOREVER_SEC,
    .parent = preview_parent,
    .attr = preview_attr,
    .read = preview_read,
    .decode = preview_decode,
};
