/* SPDX-License-Identifier: MIT
 *
 * The nodes of a mounted archive.
 *
 *   TREE_FOLDER            the root level
 *   TREE_FIRST_RECORD      two numbers a level: its folder, its meta.json;
 *   then                   two a leaf: its .npy, the folder of its rows;
 *   then                   one a row.
 *
 * A file is a header from meta.json and bytes out of the mapping; leaves that are
 * compressed are inflated as a whole, once, into the cache.
 */
#include "archive.h"

#include "ops.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

static const char META_NAME[] = "meta.json";
static const char SUFFIX[] = ".npy";

/* ---------------------------------------------------------------- the archive */

static const struct zr_archive_leaf *leaf_at(const struct archive *a, uint64_t leaf)
{
    return &a->tree->leaves[leaf];
}

static bool has_rows(const struct archive *a, size_t i)
{
    const struct zr_archive_leaf *leaf = leaf_at(a, i);
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
        row += has_rows(a, i) ? leaf_at(a, i)->shape[0] : 0;
    }
    a->first_row[a->tree->leaf_count] = row;
}

bool archive_is_writable(const struct source *source)
{
    return source->archive && source->archive->writable;
}

static void refresh_checksums(const struct archive *a)
{
    struct zr_error err;
    if (zr_archive_refresh(a->path, NULL, NULL, &err) != ZR_OK)
        report(LOG_ERR, "%s", err.message);
}

void archive_close(struct archive *a)
{
    if (!a)
        return;
    if (atomic_load(&a->written))
        refresh_checksums(a);
    free(a->path);
    zr_archive_tree_free(a->tree);
    zr_archive_close(a->file);
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
    a->leaf_of = calloc(info.member_count + 1, sizeof *a->leaf_of);
    a->level_of = calloc(info.member_count + 1, sizeof *a->level_of);
    if (!a->leaf_of || !a->level_of)
        return false;
    for (size_t i = 0; i < a->tree->leaf_count; i++)
        if (leaf_at(a, i)->member != ZR_NO_MEMBER)
            a->leaf_of[leaf_at(a, i)->member] = (uint32_t)i + 1;
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
        const struct zr_archive_leaf *leaf = leaf_at(a, i);
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

/* Read-only where it cannot be otherwise: mount(8) asks for rw unless told not to. */
static int open_as_possible(struct archive *a, const char *path, bool writable,
                            struct zr_error *err)
{
    a->writable = writable;
    int code = open_file(a, path, err);
    const struct zr_archive_leaf *fixed = writable && code == ZR_OK ? fixed_leaf(a) : NULL;
    if (!writable || (code == ZR_OK && !fixed))
        return code;
    if (fixed)
        report(LOG_WARNING, "%s: mounted read-only: leaf %s cannot be written through", path,
               fixed->path);
    else
        report(LOG_WARNING, "mounted read-only: %s", err ? err->message : path);
    zr_archive_tree_free(a->tree);
    zr_archive_close(a->file);
    a->tree = NULL;
    a->file = NULL;
    a->writable = false;
    return open_file(a, path, err);
}

int archive_open(struct archive **out, const char *path, bool writable, struct zr_error *err)
{
    struct archive *a = calloc(1, sizeof *a);
    *out = NULL;
    if (a)
        a->path = strdup(path);
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

static const struct node_kind node_meta, node_leaf, node_rows, node_row;

static struct node level_node(const struct fs *fs, struct source *source, uint64_t level)
{
    uint64_t index = level ? TREE_FIRST_RECORD + 2 * level : TREE_FOLDER;
    struct node node = node_of(fs, &node_level, source, TREE_PLAIN, index);
    node.id = level;
    return node;
}

static struct node meta_node(const struct fs *fs, struct source *source, uint64_t level)
{
    struct node node =
        node_of(fs, &node_meta, source, TREE_PLAIN, TREE_FIRST_RECORD + 2 * level + 1);
    node.id = level;
    return node;
}

static struct node leaf_node(const struct fs *fs, struct source *source, uint64_t leaf)
{
    struct node node =
        node_of(fs, &node_leaf, source, TREE_PLAIN, leaves_index(source->archive) + 2 * leaf);
    node.id = leaf;
    return node;
}

static struct node rows_node(const struct fs *fs, struct source *source, uint64_t leaf)
{
    struct node node =
        node_of(fs, &node_rows, source, TREE_PLAIN, leaves_index(source->archive) + 2 * leaf + 1);
    node.id = leaf;
    return node;
}

/* id counts rows over all leaves. */
static struct node row_node(const struct fs *fs, struct source *source, uint64_t id)
{
    struct node node = node_of(fs, &node_row, source, TREE_PLAIN, rows_index(source->archive) + id);
    node.id = id;
    return node;
}

/* The leaf that a row belongs to: the last one that begins at or before it and has rows. */
static size_t leaf_of_row(const struct archive *a, uint64_t id)
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
        node->kind = &node_level;
        node->id = 0;
    } else if (index >= TREE_FIRST_RECORD && index < leaves_index(a)) {
        node->kind = (index - TREE_FIRST_RECORD) % 2 ? &node_meta : &node_level;
        node->id = (index - TREE_FIRST_RECORD) / 2;
    } else if (index >= leaves_index(a) && index < rows_index(a)) {
        node->id = (index - leaves_index(a)) / 2;
        bool is_folder = (index - leaves_index(a)) % 2;
        if (!is_folder || has_rows(a, node->id))
            node->kind = is_folder ? &node_rows : &node_leaf;
    } else if (index >= rows_index(a) && index < archive_max_index(a)) {
        node->kind = &node_row;
        node->id = index - rows_index(a);
    }
}

/* ---------------------------------------------------------------- what files hold */

/* The header of a leaf, or of one of its rows; buf holds ZR_NPY_MAX_HEADER_NBYTES. */
static size_t npy_header(const struct zr_archive_leaf *leaf, bool is_row, uint8_t *buf)
{
    if (leaf->is_nested) { /* its parts have different shapes: all elements in one row */
        uint64_t count = leaf->nbytes / leaf->itemsize;
        return zr_npy_header(leaf->dtype, 1, &count, buf);
    }
    return zr_npy_header(leaf->dtype, leaf->ndim - is_row, leaf->shape + is_row, buf);
}

/* All bytes of a leaf for its cache entry. */
static int leaf_decode(struct fs *fs, const struct node *node, uint64_t part,
                       struct cache_bytes *out, struct zr_error *err)
{
    (void)part;
    const struct archive *a = node->source->archive;
    const struct zr_archive_leaf *leaf = leaf_at(a, node->id);
    out->block = zr_buffer_alloc((size_t)leaf->nbytes);
    if (!out->block)
        return ZR_E_NOMEM;
    const struct zr_archive_copy copy = {leaf->member, out->block};
    int code = zr_archive_read(a->file, &copy, 1, 1, err);
    if (code != ZR_OK) {
        zr_buffer_free(out->block);
        return code;
    }
    out->bytes = out->block;
    out->nbytes = leaf->nbytes;
    counters_add(fs->counters, EVENT_DECODES, 1);
    counters_add(fs->counters, EVENT_DECODED_BYTES, leaf->nbytes);
    return ZR_OK;
}

/* Notes a leaf that cannot be served; the errno for it. */
static int leaf_failed(struct fs *fs, const struct node *leaf_of, const struct zr_error *err)
{
    counters_add(fs->counters, EVENT_ERRORS, 1);
    if (err->code == ZR_E_NOMEM) {
        report(LOG_ERR, "%s", err->message);
        return ENOMEM;
    }
    report_damage_add(fs->damage, leaf_of->source, leaf_of->id,
                      leaf_at(leaf_of->source->archive, leaf_of->id)->path, err);
    return EIO;
}

/* Where the bytes of a leaf are: in the mapping, or in *entry, which the caller puts
 * back.  NULL with *failure. */
static const uint8_t *leaf_bytes(struct fs *fs, const struct node *leaf_of,
                                 struct cache_entry **entry, int *failure)
{
    const struct archive *a = leaf_of->source->archive;
    const struct zr_archive_leaf *leaf = leaf_at(a, leaf_of->id);
    struct zr_archive_member member = {0};
    struct zr_error err = {0};
    enum cache_outcome outcome;
    *entry = NULL;
    if (leaf->member == ZR_NO_MEMBER)
        return (const uint8_t *)"";
    int code = zr_archive_member(a->file, leaf->member, &member, &err);
    if (code == ZR_OK && member.data) /* aligned or not */
        return member.data;
    if (code == ZR_OK)
        code = cache_get(fs->cache, (struct cache_key){.ino = leaf_of->ino}, leaf_of, entry,
                         &outcome, &err);
    if (code != ZR_OK) {
        *failure = leaf_failed(fs, leaf_of, &err);
        return NULL;
    }
    return cache_entry_bytes(*entry)->bytes;
}

/* Threads that serve requests block all signals; one that is raised by reading the
 * mapping of a file that was cut short must get to the engine's handler. */
static void allow_sigbus(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGBUS);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

/* The part [off, off + size) of header and payload.  A copy, since a file that is cut
 * short below the mapping must be noticed before the reply. */
static int reply_file(fuse_req_t req, const struct archive *a, const uint8_t *header,
                      size_t header_nbytes, const uint8_t *payload, uint64_t payload_nbytes,
                      size_t size, uint64_t off)
{
    uint64_t total = header_nbytes + payload_nbytes;
    size_t n = off >= total ? 0 : total - off < size ? (size_t)(total - off) : size;
    uint8_t *buf = zr_buffer_alloc(n);
    if (!buf)
        return ENOMEM;
    allow_sigbus();
    size_t head = off < header_nbytes ? (size_t)(header_nbytes - off) : 0;
    head = head < n ? head : n;
    memcpy(buf, header + (head ? off : 0), head);
    if (n > head)
        memcpy(buf + head, payload + (off + head - header_nbytes), n - head);
    bool intact = zr_archive_intact(a->file);
    if (intact)
        fuse_reply_buf(req, (const char *)buf, n);
    zr_buffer_free(buf);
    return intact ? 0 : EIO;
}

static int read_leaf(fuse_req_t req, struct fs *fs, const struct node *leaf_of, bool is_row,
                     uint64_t row, size_t size, off_t off)
{
    const struct archive *a = leaf_of->source->archive;
    const struct zr_archive_leaf *leaf = leaf_at(a, leaf_of->id);
    uint8_t header[ZR_NPY_MAX_HEADER_NBYTES];
    struct cache_entry *entry;
    int failure = EIO;
    const uint8_t *bytes = leaf_bytes(fs, leaf_of, &entry, &failure);
    if (!bytes)
        return failure;
    uint64_t nbytes = is_row ? leaf->nbytes / leaf->shape[0] : leaf->nbytes;
    failure = reply_file(req, a, header, npy_header(leaf, is_row, header), bytes + row * nbytes,
                         nbytes, size, (uint64_t)off);
    if (entry)
        cache_put(fs->cache, entry, 0);
    counters_add(fs->counters, EVENT_READ_BYTES, failure ? 0 : size);
    return failure;
}

static int leaf_read(fuse_req_t req, struct fs *fs, const struct node *node, size_t size, off_t off)
{
    return read_leaf(req, fs, node, false, 0, size, off);
}

static int row_read(fuse_req_t req, struct fs *fs, const struct node *node, size_t size, off_t off)
{
    const struct archive *a = node->source->archive;
    size_t leaf = leaf_of_row(a, node->id);
    struct node leaf_of = leaf_node(fs, node->source, leaf); /* on the hold of node */
    return read_leaf(req, fs, &leaf_of, true, node->id - a->first_row[leaf], size, off);
}

static int meta_read(fuse_req_t req, struct fs *fs, const struct node *node, size_t size, off_t off)
{
    (void)fs;
    const struct zr_archive_level *level = &node->source->archive->tree->levels[node->id];
    node_reply(req, level->meta, level->meta_nbytes, size, off);
    return 0;
}

/* ---------------------------------------------------------------- writing
 * Straight into the mapping.  A page that the kernel writes back may hold bytes of the
 * header, which must be those that are there. */

static int write_part(const struct node *node, size_t leaf_index, bool is_row, uint64_t row,
                      const char *buf, size_t nbytes, uint64_t off)
{
    struct archive *a = node->source->archive;
    const struct zr_archive_leaf *leaf = leaf_at(a, leaf_index);
    uint8_t header[ZR_NPY_MAX_HEADER_NBYTES];
    size_t header_nbytes = npy_header(leaf, is_row, header);
    uint64_t payload_nbytes = is_row ? leaf->nbytes / leaf->shape[0] : leaf->nbytes;
    if (!a->writable || !leaf->data)
        return EROFS;
    if (off > header_nbytes + payload_nbytes || nbytes > header_nbytes + payload_nbytes - off)
        return EFBIG; /* its size is that of its shape */
    size_t head = off < header_nbytes ? (size_t)(header_nbytes - off) : 0;
    head = head < nbytes ? head : nbytes;
    if (head && memcmp(header + off, buf, head) != 0)
        return EPERM;
    if (nbytes == head)
        return 0;
    allow_sigbus();
    memcpy((uint8_t *)leaf->data + row * payload_nbytes + (off + head - header_nbytes), buf + head,
           nbytes - head);
    atomic_store(&a->written, true);
    return zr_archive_intact(a->file) ? 0 : EIO;
}

static int leaf_write(struct fs *fs, const struct node *node, const char *buf, size_t nbytes,
                      off_t off)
{
    (void)fs;
    return write_part(node, node->id, false, 0, buf, nbytes, (uint64_t)off);
}

static int row_write(struct fs *fs, const struct node *node, const char *buf, size_t nbytes,
                     off_t off)
{
    (void)fs;
    const struct archive *a = node->source->archive;
    size_t leaf = leaf_of_row(a, node->id);
    return write_part(node, leaf, true, node->id - a->first_row[leaf], buf, nbytes, (uint64_t)off);
}

/* ---------------------------------------------------------------- attributes */

static void allow_writes(const struct fs *fs, const struct node *node, struct stat *st)
{
    if (node->source->archive->writable)
        st->st_mode |= 0200 & ~fs->options->umask;
}

static int meta_attr(struct fs *fs, const struct node *node, struct stat *st)
{
    node_file_attr(fs, node, node->source->archive->tree->levels[node->id].meta_nbytes, st);
    return 0;
}

static int leaf_attr(struct fs *fs, const struct node *node, struct stat *st)
{
    uint8_t header[ZR_NPY_MAX_HEADER_NBYTES];
    const struct zr_archive_leaf *leaf = leaf_at(node->source->archive, node->id);
    node_file_attr(fs, node, npy_header(leaf, false, header) + leaf->nbytes, st);
    allow_writes(fs, node, st);
    return 0;
}

static int row_attr(struct fs *fs, const struct node *node, struct stat *st)
{
    uint8_t header[ZR_NPY_MAX_HEADER_NBYTES];
    const struct archive *a = node->source->archive;
    const struct zr_archive_leaf *leaf = leaf_at(a, leaf_of_row(a, node->id));
    node_file_attr(fs, node, npy_header(leaf, true, header) + leaf->nbytes / leaf->shape[0], st);
    allow_writes(fs, node, st);
    return 0;
}

/* ---------------------------------------------------------------- folders */

/* Names are the last parts of paths in the archive: encoded keys, so without '/'. */
static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static int held(struct fs *fs, const struct node *dir, struct node child, struct node *out)
{
    if (!source_hold(fs->sources, dir->source))
        return ESTALE;
    *out = child;
    return 0;
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
        if (!e->is_leaf || leaf_at(a, e->index)->member != ZR_NO_MEMBER)
            continue;
        const char *stem = last_part(leaf_at(a, e->index)->path);
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
        return held(fs, dir, meta_node(fs, dir->source, dir->id), child);
    uint32_t inner = find_level(a, level, name);
    if (inner)
        return held(fs, dir, level_node(fs, dir->source, inner - 1), child);
    uint32_t leaf = find_file(a, level, name);
    if (leaf)
        return held(fs, dir, leaf_node(fs, dir->source, leaf - 1), child);
    leaf = find_leaf(a, level, name, strlen(name));
    if (leaf && has_rows(a, leaf - 1))
        return held(fs, dir, rows_node(fs, dir->source, leaf - 1), child);
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
        struct node child = level_node(fs, dir->source, e->index);
        return pos > at ||
               listing_add(l, last_part(a->tree->levels[e->index].path), &child, at + 1);
    }
    const char *stem = last_part(leaf_at(a, e->index)->path);
    struct node file = leaf_node(fs, dir->source, e->index);
    struct node folder = rows_node(fs, dir->source, e->index);
    snprintf(name, sizeof name, "%s%s", stem, SUFFIX);
    if (pos <= at && !find_level(a, &a->tree->levels[dir->id], name) &&
        !listing_add(l, name, &file, at + 1))
        return false;
    return pos > at + 1 || !has_rows(a, e->index) || rows_are_hidden(a, dir, stem) ||
           listing_add(l, stem, &folder, at + 2);
}

static int level_list(struct fs *fs, const struct node *dir, uint64_t pos, struct listing *l)
{
    const struct zr_archive_level *level = &dir->source->archive->tree->levels[dir->id];
    struct node meta = meta_node(fs, dir->source, dir->id);
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
    tree_init(&names, leaf_at(a, dir->id)->shape[0], SUFFIX);
    if (!tree_parse(&names, name, &row))
        return ENOENT;
    return held(fs, dir, row_node(fs, dir->source, a->first_row[dir->id] + row), child);
}

static int rows_list(struct fs *fs, const struct node *dir, uint64_t pos, struct listing *l)
{
    const struct archive *a = dir->source->archive;
    char name[TREE_NAME_MAX];
    struct tree names;
    tree_init(&names, leaf_at(a, dir->id)->shape[0], SUFFIX);
    if (!listing_dots(l, dir, pos))
        return 0;
    for (uint64_t row = pos > LISTING_AFTER_DOTS ? pos - LISTING_AFTER_DOTS : 0; row < names.length;
         row++) {
        struct node child = row_node(fs, dir->source, a->first_row[dir->id] + row);
        tree_name(&names, row, name);
        if (!listing_add(l, name, &child, LISTING_AFTER_DOTS + row + 1))
            break;
    }
    return 0;
}

/* ---------------------------------------------------------------- parents */

static int level_parent(struct fs *fs, const struct node *node, struct node *parent)
{
    const struct archive *a = node->source->archive;
    struct source *folder = node->source->parent;
    if (node->id || !folder)
        return held(fs, node, level_node(fs, node->source, node->id ? a->parents[node->id] : 0),
                    parent);
    *parent = node_of(fs, &node_folder, folder, TREE_PLAIN, TREE_FOLDER);
    return 0;
}

static int meta_parent(struct fs *fs, const struct node *node, struct node *parent)
{
    return held(fs, node, level_node(fs, node->source, node->id), parent);
}

static int leaf_parent(struct fs *fs, const struct node *node, struct node *parent)
{
    const struct archive *a = node->source->archive;
    uint64_t level = a->owners[node->id] ? (uint64_t)(a->owners[node->id] - a->tree->levels) : 0;
    return held(fs, node, level_node(fs, node->source, level), parent);
}

static int row_parent(struct fs *fs, const struct node *node, struct node *parent)
{
    size_t leaf = leaf_of_row(node->source->archive, node->id);
    return held(fs, node, rows_node(fs, node->source, leaf), parent);
}

/* ---------------------------------------------------------------- kinds */

const struct node_kind node_level = {
    .type = S_IFDIR,
    .entry_sec = NODE_FRESH_SEC, /* another archive may take the name of the root's */
    .attr_sec = NODE_FOREVER_SEC,
    .absent_sec = NODE_FOREVER_SEC,
    .child = level_child,
    .list = level_list,
    .parent = level_parent,
    .attr = node_dir_attr,
};

static const struct node_kind node_rows = {
    .type = S_IFDIR,
    .entry_sec = NODE_FOREVER_SEC,
    .attr_sec = NODE_FOREVER_SEC,
    .absent_sec = NODE_FOREVER_SEC,
    .child = rows_child,
    .list = rows_list,
    .parent = leaf_parent,
    .attr = node_dir_attr,
};

static const struct node_kind node_meta = {
    .type = S_IFREG,
    .entry_sec = NODE_FOREVER_SEC,
    .attr_sec = NODE_FOREVER_SEC,
    .parent = meta_parent,
    .attr = meta_attr,
    .read = meta_read,
};

static const struct node_kind node_leaf = {
    .type = S_IFREG,
    .entry_sec = NODE_FOREVER_SEC,
    .attr_sec = NODE_FOREVER_SEC,
    .parent = leaf_parent,
    .attr = leaf_attr,
    .read = leaf_read,
    .decode = leaf_decode,
    .write = leaf_write,
};

static const struct node_kind node_row = {
    .type = S_IFREG,
    .entry_sec = NODE_FOREVER_SEC,
    .attr_sec = NODE_FOREVER_SEC,
    .parent = row_parent,
    .attr = row_attr,
    .read = row_read,
    .write = row_write,
};

bool archive_is_part(const struct node *node)
{
    return node->kind == &node_leaf || node->kind == &node_row;
}
