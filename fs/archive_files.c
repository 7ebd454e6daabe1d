/* SPDX-License-Identifier: MIT
 *
 * The files of a mounted archive.  Each is a header from meta.json and bytes out of
 * the mapping; leaves that are compressed are inflated as a whole, once, into the
 * cache.  Writes go straight into the mapping.
 */
#include "archive_parts.h"
#include "ops.h"

#include <errno.h>
#include <string.h>
#include <syslog.h>

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
    const struct zr_archive_leaf *leaf = archive_leaf(a, node->id);
    out->block = zr_buffer_alloc((size_t)leaf->nbytes);
    if (!out->block)
        return cache_no_memory(err);
    const struct zr_archive_copy copy = {leaf->member, out->block};
    const struct zr_archive_read_options alone = {.thread_count = 1};
    int code = zr_archive_read(a->file, &copy, 1, &alone, err);
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
                      archive_leaf(leaf_of->source->archive, leaf_of->id)->path, err);
    return EIO;
}

/* Where the bytes of a leaf are: in the mapping, or in *entry, which the caller puts
 * back.  NULL with *failure. */
static const uint8_t *leaf_bytes(struct fs *fs, const struct node *leaf_of,
                                 struct cache_entry **entry, int *failure)
{
    const struct archive *a = leaf_of->source->archive;
    const struct zr_archive_leaf *leaf = archive_leaf(a, leaf_of->id);
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

/* The part [off, off + size) of header and payload.  A copy, since a file that is cut
 * short below the mapping must be noticed before the reply. */
static int reply_file(fuse_req_t req, const struct archive *a, const uint8_t *header,
                      size_t header_nbytes, const uint8_t *payload, uint64_t payload_nbytes,
                      size_t size, uint64_t off)
{
    uint64_t total = header_nbytes + payload_nbytes;
    size_t n = off >= total ? 0 : total - off < size ? (size_t)(total - off) : size;
    void *block;
    uint8_t *buf = node_reply_room(n, &block);
    if (!buf)
        return ENOMEM;
    size_t head = off < header_nbytes ? (size_t)(header_nbytes - off) : 0;
    head = head < n ? head : n;
    memcpy(buf, header + (head ? off : 0), head);
    if (n > head)
        memcpy(buf + head, payload + (off + head - header_nbytes), n - head);
    bool intact = zr_archive_intact(a->file);
    if (intact)
        fuse_reply_buf(req, (const char *)buf, n);
    zr_buffer_free(block);
    return intact ? 0 : EIO;
}

static int read_leaf(fuse_req_t req, struct fs *fs, const struct node *leaf_of, bool is_row,
                     uint64_t row, size_t size, off_t off)
{
    const struct archive *a = leaf_of->source->archive;
    const struct zr_archive_leaf *leaf = archive_leaf(a, leaf_of->id);
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
    size_t leaf = archive_leaf_of_row(a, node->id);
    struct node leaf_of = archive_leaf_node(fs, node->source, leaf); /* on the hold of node */
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

static int refuse(struct archive *a, const struct zr_archive_leaf *leaf, int failure)
{
    const char *why =
        failure == EFBIG ? "its size is that of its shape, and a write would end beyond"
                         : "its dtype and shape stay: what is written has to begin with the header "
                           "that is there, as numpy.load(path, mmap_mode=\"r+\") leaves it";
    archive_writes_refuse(&a->writes, a->path, leaf->path, why);
    return failure;
}

void archive_refuse_truncation(const struct node *node)
{
    struct archive *a = node->source->archive;
    if (!a->writable)
        return;
    size_t leaf =
        node->kind == &node_archive_row ? archive_leaf_of_row(a, node->id) : (size_t)node->id;
    archive_writes_refuse(&a->writes, a->path, archive_leaf(a, leaf)->path,
                          "its size is that of its shape: it can neither be cut nor grow, only "
                          "be written in place, as numpy.load(path, mmap_mode=\"r+\") does");
}

static int write_part(struct fs *fs, const struct node *node, size_t leaf_index, bool is_row,
                      uint64_t row, const char *buf, size_t nbytes, uint64_t off)
{
    struct archive *a = node->source->archive;
    const struct zr_archive_leaf *leaf = archive_leaf(a, leaf_index);
    uint8_t header[ZR_NPY_MAX_HEADER_NBYTES];
    size_t header_nbytes = npy_header(leaf, is_row, header);
    uint64_t payload_nbytes = is_row ? leaf->nbytes / leaf->shape[0] : leaf->nbytes;
    if (!a->writable || !leaf->data)
        return EROFS;
    if (off > header_nbytes + payload_nbytes || nbytes > header_nbytes + payload_nbytes - off)
        return refuse(a, leaf, EFBIG);
    size_t head = off < header_nbytes ? (size_t)(header_nbytes - off) : 0;
    head = head < nbytes ? head : nbytes;
    if (head && memcmp(header + off, buf, head) != 0)
        return refuse(a, leaf, EPERM);
    if (nbytes == head)
        return 0;
    archive_writes_begin(&a->writes);
    memcpy((uint8_t *)leaf->data + row * payload_nbytes + (off + head - header_nbytes), buf + head,
           nbytes - head);
    if (archive_writes_end(&a->writes))
        janitor_watch_writes(fs->janitor);
    return zr_archive_intact(a->file) ? 0 : EIO;
}

static int leaf_write(struct fs *fs, const struct node *node, const char *buf, size_t nbytes,
                      off_t off)
{
    return write_part(fs, node, node->id, false, 0, buf, nbytes, (uint64_t)off);
}

static int row_write(struct fs *fs, const struct node *node, const char *buf, size_t nbytes,
                     off_t off)
{
    const struct archive *a = node->source->archive;
    size_t leaf = archive_leaf_of_row(a, node->id);
    return write_part(fs, node, leaf, true, node->id - a->first_row[leaf], buf, nbytes,
                      (uint64_t)off);
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
    const struct zr_archive_leaf *leaf = archive_leaf(node->source->archive, node->id);
    node_file_attr(fs, node, npy_header(leaf, false, header) + leaf->nbytes, st);
    allow_writes(fs, node, st);
    return 0;
}

static int row_attr(struct fs *fs, const struct node *node, struct stat *st)
{
    uint8_t header[ZR_NPY_MAX_HEADER_NBYTES];
    const struct archive *a = node->source->archive;
    const struct zr_archive_leaf *leaf = archive_leaf(a, archive_leaf_of_row(a, node->id));
    node_file_attr(fs, node, npy_header(leaf, true, header) + leaf->nbytes / leaf->shape[0], st);
    allow_writes(fs, node, st);
    return 0;
}

/* ---------------------------------------------------------------- parents */

static int meta_parent(struct fs *fs, const struct node *node, struct node *parent)
{
    return archive_held(fs, node, archive_level_node(fs, node->source, node->id), parent);
}

int archive_leaf_parent(struct fs *fs, const struct node *node, struct node *parent)
{
    const struct archive *a = node->source->archive;
    uint64_t level = a->owners[node->id] ? (uint64_t)(a->owners[node->id] - a->tree->levels) : 0;
    return archive_held(fs, node, archive_level_node(fs, node->source, level), parent);
}

static int row_parent(struct fs *fs, const struct node *node, struct node *parent)
{
    size_t leaf = archive_leaf_of_row(node->source->archive, node->id);
    return archive_held(fs, node, archive_rows_node(fs, node->source, leaf), parent);
}

/* ---------------------------------------------------------------- kinds */

const struct node_kind node_archive_meta = {
    .type = S_IFREG,
    .entry_sec = NODE_FOREVER_SEC,
    .attr_sec = NODE_FOREVER_SEC,
    .parent = meta_parent,
    .attr = meta_attr,
    .read = meta_read,
};

const struct node_kind node_archive_leaf = {
    .type = S_IFREG,
    .entry_sec = NODE_FOREVER_SEC,
    .attr_sec = NODE_FOREVER_SEC,
    .parent = archive_leaf_parent,
    .attr = leaf_attr,
    .read = leaf_read,
    .decode = leaf_decode,
    .write = leaf_write,
};

const struct node_kind node_archive_row = {
    .type = S_IFREG,
    .entry_sec = NODE_FOREVER_SEC,
    .attr_sec = NODE_FOREVER_SEC,
    .parent = row_parent,
    .attr = row_attr,
    .read = row_read,
    .write = row_write,
};
