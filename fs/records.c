/* SPDX-License-Identifier: MIT
 *
 * A store as a folder of .npy files, and the same with its records in folders of
 * K (shard=K).  Every file has one number whatever folder shows it.
 */
#include "records.h"

#include "ops.h"
#include "transport.h"

#include <errno.h>
#include <string.h>
#include <syslog.h>

enum { DIRECT_NBYTES = 4096 /* a file of one page always comes as one READ */ };

struct node records_node(const struct fs *fs, struct source *source, uint64_t id)
{
    struct node node = node_of(fs, &node_record, source, TREE_PLAIN, TREE_FIRST_RECORD + id);
    node.id = id;
    return node;
}

void records_identify(struct fs *fs, struct node *node, struct tree_ino parts)
{
    const struct source *source = node->source;
    node->id = parts.index;
    if (parts.role == TREE_PREVIEW) {
        if (preview_is_possible(fs, source) && parts.index < source->info.length)
            node->kind = &node_preview;
    } else if (parts.role == TREE_LABEL) {
        classes_identify(fs, node, parts);
    } else if (parts.role == TREE_SHARD && parts.index < source->shard_count) {
        node->kind = &node_shard;
    } else if (parts.role == TREE_PLAIN && parts.index == TREE_FOLDER) {
        node->kind = &node_store;
    } else if (parts.role == TREE_PLAIN && parts.index >= TREE_FIRST_RECORD &&
               parts.index - TREE_FIRST_RECORD < source->info.length) {
        node->kind = &node_record;
        node->id = parts.index - TREE_FIRST_RECORD;
    } else {
        views_identify(fs, node, parts);
    }
}

int records_fail(struct fs *fs, struct source *source, uint64_t id, const struct zr_error *err)
{
    counters_add(fs->counters, EVENT_ERRORS, 1);
    if (err->code == ZR_E_NOMEM) {
        report(LOG_ERR, "%s", err->message);
        return ENOMEM;
    }
    char name[TREE_NAME_MAX];
    uint64_t record = err->record == ZR_NO_RECORD ? id : err->record;
    tree_name(&source->names, record, name);
    report_damage_add(fs->damage, source, record, name, err);
    return EIO;
}

/* ---------------------------------------------------------------- files */

static int record_attr(struct fs *fs, const struct node *node, struct stat *st)
{
    struct zr_error err;
    uint64_t nbytes;
    if (zr_record_npy_nbytes(node->source->reader, node->id, &nbytes, &err) != ZR_OK)
        return records_fail(fs, node->source, node->id, &err);
    node_file_attr(fs, node, nbytes, st);
    return 0;
}

static void count_decode(struct fs *fs, uint64_t nbytes)
{
    counters_add(fs->counters, EVENT_DECODES, 1);
    counters_add(fs->counters, EVENT_DECODED_BYTES, nbytes);
}

int records_decode(struct fs *fs, struct source *source, uint64_t id, struct cache_bytes *out,
                   struct zr_error *err)
{
    int code = zr_record_npy(source->reader, id, &out->block, &out->bytes, &out->nbytes, err);
    if (code == ZR_OK)
        count_decode(fs, out->nbytes);
    return code;
}

static int record_decode(struct fs *fs, const struct node *node, uint64_t part,
                         struct cache_bytes *out, struct zr_error *err)
{
    (void)part;
    return records_decode(fs, node->source, node->id, out, err);
}

/* Counted first: whoever has the reply may look at the counters at once. */
static size_t reply_slice(fuse_req_t req, struct fs *fs, const struct cache_bytes *bytes,
                          size_t size, off_t off)
{
    uint64_t left = (uint64_t)off < bytes->nbytes ? bytes->nbytes - (uint64_t)off : 0;
    counters_add(fs->counters, EVENT_READ_BYTES, left < size ? left : size);
    return node_reply(req, bytes->bytes, bytes->nbytes, size, off);
}

/* From the cache, where it was decoded ahead. */
static bool read_kept(fuse_req_t req, struct fs *fs, const struct node *node, size_t size,
                      off_t off)
{
    struct cache_entry *entry = cache_find(fs->cache, (struct cache_key){.ino = node->ino});
    if (!entry)
        return false;
    counters_add(fs->counters, EVENT_CACHE_HITS, 1);
    cache_put(fs->cache, entry, reply_slice(req, fs, cache_entry_bytes(entry), size, off));
    return true;
}

static int decode_reply(fuse_req_t req, struct fs *fs, const struct node *node, uint64_t nbytes,
                        struct zr_error *err)
{
    void *block;
    void *npy = node_reply_room(nbytes, &block);
    if (!npy)
        return cache_no_memory(err);
    int code = zr_record_npy_into(node->source->reader, node->id, npy, nbytes, err);
    if (code == ZR_OK) {
        count_decode(fs, nbytes);
        reply_slice(req, fs, &(struct cache_bytes){.bytes = npy, .nbytes = nbytes}, nbytes, 0);
    }
    zr_buffer_free(block);
    return code;
}

/* A READ of all there is: nothing of it will be asked for again. */
static int read_whole(fuse_req_t req, struct fs *fs, const struct node *node, uint64_t nbytes,
                      struct zr_error *err)
{
    if (read_kept(req, fs, node, nbytes, 0))
        return ZR_OK;
    if (nbytes > DIRECT_NBYTES && cache_holds(fs->cache, (struct cache_key){.ino = node->ino}))
        return records_read_cached(req, fs, node, nbytes, 0, err);
    return decode_reply(req, fs, node, nbytes, err);
}

int records_read_cached(fuse_req_t req, struct fs *fs, const struct node *node, size_t size,
                        off_t off, struct zr_error *err)
{
    struct cache_entry *entry;
    enum cache_outcome outcome;
    const struct cache_key key = {.ino = node->ino};
    int code = cache_get(fs->cache, key, node, &entry, &outcome, err);
    if (code != ZR_OK)
        return code;
    if (outcome != CACHE_DECODED)
        counters_add(fs->counters, outcome == CACHE_HIT ? EVENT_CACHE_HITS : EVENT_CACHE_WAITS, 1);
    cache_put(fs->cache, entry, reply_slice(req, fs, cache_entry_bytes(entry), size, off));
    return ZR_OK;
}

static uint64_t record_ino(const struct fs *fs, const struct source *source, uint64_t id)
{
    return tree_pack(fs->is_lone,
                     (struct tree_ino){TREE_PLAIN, source->place, TREE_FIRST_RECORD + id});
}

/* The records by number, whatever folders show them. */
static uint64_t plain_view(const struct fs *fs, const struct source *source)
{
    return tree_pack(fs->is_lone, (struct tree_ino){TREE_PLAIN, source->place, TREE_FOLDER});
}

static int record_read(fuse_req_t req, struct fs *fs, const struct node *node, size_t size,
                       off_t off)
{
    struct zr_error err;
    uint64_t nbytes;
    bool has_work = warm_saw_read(fs->warm, plain_view(fs, node->source), node->id, node->ino,
                                  (uint64_t)off, (uint32_t)fuse_req_ctx(req)->pid);
    int code = zr_record_npy_nbytes(node->source->reader, node->id, &nbytes, &err);
    if (code == ZR_OK && off == 0 && size >= nbytes)
        code = read_whole(req, fs, node, nbytes, &err);
    else if (code == ZR_OK)
        code = records_read_cached(req, fs, node, size, off, &err);
    if (has_work)
        transport_after_reply(warm_wake, fs->warm);
    return code == ZR_OK ? 0 : records_fail(fs, node->source, node->id, &err);
}

/* ---------------------------------------------------------------- reading ahead */

static bool identify_item(struct fs *fs, const struct node *dir, uint64_t position,
                          struct warm_item *item)
{
    uint64_t id;
    if (!dir->kind->record_at || !dir->kind->record_at(fs, dir, position, &id))
        return false;
    item->ino = record_ino(fs, dir->source, id);
    if (zr_record_npy_nbytes(dir->source->reader, id, &item->nbytes, NULL) != ZR_OK)
        item->nbytes = 0;
    return true;
}

bool records_warm_at(void *ctx, uint64_t view, uint64_t position, struct warm_item *item)
{
    struct fs *fs = ctx;
    struct node dir;
    if (node_resolve(fs, view, &dir) != 0)
        return false;
    bool is_there = identify_item(fs, &dir, position, item);
    node_release(fs, &dir);
    return is_there;
}

uint64_t records_warm_count(void *ctx, uint64_t view)
{
    struct fs *fs = ctx;
    struct node dir;
    if (node_resolve(fs, view, &dir) != 0)
        return 0;
    uint64_t count = dir.kind->record_at ? dir.source->info.length : 0;
    node_release(fs, &dir);
    return count;
}

int records_warm_get(void *ctx, uint64_t ino, struct cache_entry **entry, bool *is_fresh)
{
    struct fs *fs = ctx;
    struct node node;
    enum cache_outcome outcome;
    int failure = node_resolve(fs, ino, &node);
    if (failure)
        return failure;
    failure = cache_get(fs->cache, (struct cache_key){.ino = ino}, &node, entry, &outcome, NULL);
    *is_fresh = !failure && outcome == CACHE_DECODED;
    node_release(fs, &node);
    return failure;
}

static bool store_record_at(struct fs *fs, const struct node *dir, uint64_t position, uint64_t *id)
{
    (void)fs;
    *id = position;
    return position < dir->source->info.length;
}

/* ---------------------------------------------------------------- folders */

/* A record's folder on this mount: its shard's, or the store's. */
static int record_parent(struct fs *fs, const struct node *node, struct node *parent)
{
    struct source *source = source_hold(fs->sources, node->source);
    if (!source)
        return ESTALE;
    uint64_t per_shard = fs->options->shard_length;
    *parent = per_shard ? node_of(fs, &node_shard, source, TREE_SHARD, node->id / per_shard)
                        : node_of(fs, &node_store, source, TREE_PLAIN, TREE_FOLDER);
    return 0;
}

static int shard_parent(struct fs *fs, const struct node *node, struct node *parent)
{
    return node_same_source(fs, node, &node_store, TREE_FOLDER, parent);
}

static int store_parent(struct fs *fs, const struct node *node, struct node *parent)
{
    struct source *folder = node->source->parent;
    if (!folder)
        return shard_parent(fs, node, parent); /* the root is its own */
    *parent = node_of(fs, &node_folder, folder, TREE_PLAIN, TREE_FOLDER);
    return 0;
}

int records_special_child(struct fs *fs, const struct node *dir, const char *name,
                          struct node *child)
{
    if (strcmp(name, TREE_CONTROL_NAME) == 0)
        return control_child(fs, dir, child);
    if (strcmp(name, TREE_VIEWS_NAME) == 0 && dir->source->kind == SOURCE_STORE)
        return node_same_source(fs, dir, &node_views, TREE_VIEWS, child);
    return ENOENT;
}

bool records_list_special(struct fs *fs, const struct node *dir, uint64_t pos, struct listing *l)
{
    if (!fs->options->show_control)
        return true;
    struct node control = node_of(fs, &node_text, dir->source, TREE_PLAIN, TREE_CONTROL);
    struct node views = node_of(fs, &node_views, dir->source, TREE_PLAIN, TREE_VIEWS);
    if (pos <= LISTING_AFTER_DOTS &&
        !listing_add_bare(l, TREE_CONTROL_NAME, control.ino, false, LISTING_AFTER_DOTS + 1))
        return false;
    return pos > LISTING_AFTER_DOTS + 1 || dir->source->kind != SOURCE_STORE ||
           listing_add(l, TREE_VIEWS_NAME, &views, RECORDS_AFTER_SPECIAL);
}

/* Entries of the records first..stop-1, at RECORDS_AFTER_SPECIAL and on. */
static void list_records(struct fs *fs, struct source *source, uint64_t first, uint64_t stop,
                         uint64_t pos, struct listing *l)
{
    char name[TREE_NAME_MAX];
    uint64_t skipped = pos > RECORDS_AFTER_SPECIAL ? pos - RECORDS_AFTER_SPECIAL : 0;
    if (skipped >= stop - first)
        return;
    for (uint64_t id = first + skipped; id < stop; id++) {
        struct node child = records_node(fs, source, id);
        tree_name(&source->names, id, name);
        if (!listing_add(l, name, &child, RECORDS_AFTER_SPECIAL + (id - first) + 1))
            return;
    }
}

static void list_shards(struct fs *fs, struct source *source, uint64_t pos, struct listing *l)
{
    char name[TREE_NAME_MAX];
    uint64_t shard = pos > RECORDS_AFTER_SPECIAL ? pos - RECORDS_AFTER_SPECIAL : 0;
    for (; shard < source->shard_count; shard++) {
        struct node child = node_of(fs, &node_shard, source, TREE_SHARD, shard);
        tree_name(&source->shards, shard, name);
        if (!listing_add(l, name, &child, RECORDS_AFTER_SPECIAL + shard + 1))
            return;
    }
}

static int store_list(struct fs *fs, const struct node *dir, uint64_t pos, struct listing *l)
{
    struct source *source = dir->source;
    if (!listing_dots(l, dir, pos) || !records_list_special(fs, dir, pos, l))
        return 0;
    if (fs->options->shard_length)
        list_shards(fs, source, pos, l);
    else
        list_records(fs, source, 0, source->info.length, pos, l);
    return 0;
}

static int store_child(struct fs *fs, const struct node *dir, const char *name, struct node *child)
{
    uint64_t id;
    struct source *source = dir->source;
    bool is_sharded = fs->options->shard_length != 0;
    if (name[0] == '.')
        return records_special_child(fs, dir, name, child);
    if (!tree_parse(is_sharded ? &source->shards : &source->names, name, &id))
        return ENOENT;
    source = source_hold(fs->sources, source);
    if (!source)
        return ESTALE;
    *child = is_sharded ? node_of(fs, &node_shard, source, TREE_SHARD, id)
                        : records_node(fs, source, id);
    return 0;
}

static int store_attr(struct fs *fs, const struct node *node, struct stat *st)
{
    node_dir_attr(fs, node, st);
    st->st_nlink += node->source->shard_count;
    return 0;
}

/* ---------------------------------------------------------------- shards */

static uint64_t shard_stop(const struct fs *fs, const struct node *dir)
{
    uint64_t first = dir->id * fs->options->shard_length;
    uint64_t left = dir->source->info.length - first;
    return first + (left < fs->options->shard_length ? left : fs->options->shard_length);
}

static int shard_list(struct fs *fs, const struct node *dir, uint64_t pos, struct listing *l)
{
    uint64_t first = dir->id * fs->options->shard_length;
    if (listing_dots(l, dir, pos))
        list_records(fs, dir->source, first, shard_stop(fs, dir), pos, l);
    return 0;
}

static int shard_child(struct fs *fs, const struct node *dir, const char *name, struct node *child)
{
    uint64_t id;
    if (!tree_parse(&dir->source->names, name, &id) || id / fs->options->shard_length != dir->id)
        return ENOENT;
    struct source *source = source_hold(fs->sources, dir->source);
    if (!source)
        return ESTALE;
    *child = records_node(fs, source, id);
    return 0;
}

/* ---------------------------------------------------------------- kinds */

const struct node_kind node_store = {
    .type = S_IFDIR,
    .entry_sec = NODE_FRESH_SEC, /* another store may take its name */
    .attr_sec = NODE_FOREVER_SEC,
    .absent_sec = NODE_FOREVER_SEC,
    .child = store_child,
    .list = store_list,
    .parent = store_parent,
    .record_at = store_record_at,
    .attr = store_attr,
};

const struct node_kind node_shard = {
    .type = S_IFDIR,
    .entry_sec = NODE_FOREVER_SEC,
    .attr_sec = NODE_FOREVER_SEC,
    .absent_sec = NODE_FOREVER_SEC,
    .child = shard_child,
    .list = shard_list,
    .parent = shard_parent,
    .attr = node_dir_attr,
};

const struct node_kind node_record = {
    .type = S_IFREG,
    .entry_sec = NODE_FOREVER_SEC,
    .attr_sec = NODE_FOREVER_SEC,
    .parent = record_parent,
    .attr = record_attr,
    .read = record_read,
    .decode = record_decode,
};
