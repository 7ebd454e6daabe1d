/* SPDX-License-Identifier: MIT
 *
 * From inode numbers to nodes, and what all kinds have in common.
 */
#include "node.h"

#include "archive.h"
#include "ops.h"
#include "transport.h"

#include <errno.h>

enum {
    DIR_MODE = 0555,
    FILE_MODE = 0444,
    PREFERRED_NBYTES = 4096, /* st_blksize */
    BLOCK_NBYTES = 512       /* unit of st_blocks */
};

struct node node_of(const struct fs *fs, const struct node_kind *kind, struct source *source,
                    unsigned role, uint64_t index)
{
    const struct tree_ino parts = {.role = role, .place = source->place, .index = index};
    return (struct node){
        .ino = tree_pack(fs->is_lone, parts), .kind = kind, .source = source, .id = index};
}

int node_same_source(struct fs *fs, const struct node *node, const struct node_kind *kind,
                     uint64_t index, struct node *out)
{
    struct source *source = source_hold(fs->sources, node->source);
    if (!source)
        return ESTALE;
    *out = node_of(fs, kind, source, TREE_PLAIN, index);
    return 0;
}

int node_cache_decode(void *ctx, struct cache_key key, const void *arg, struct cache_bytes *out,
                      struct zr_error *err)
{
    const struct node *node = arg;
    return node->kind->decode(ctx, node, key.part, out, err);
}

static int resolve_minted(struct fs *fs, uint64_t ino, struct node *node)
{
    struct minted *m = minted_pin(fs->minted, ino);
    struct source *source = m ? source_hold(fs->sources, m->source) : NULL;
    if (!source) {
        minted_unpin(fs->minted, m);
        return ESTALE;
    }
    *node = (struct node){.ino = ino, .kind = m->kind, .source = source, .id = m->id, .minted = m};
    return 0;
}

int node_resolve(struct fs *fs, uint64_t ino, struct node *node)
{
    if (ino & TREE_MINTED_BIT)
        return resolve_minted(fs, ino, node);
    struct tree_ino parts = tree_unpack(fs->is_lone, ino);
    struct source *source = sources_hold_place(fs->sources, parts.place);
    if (!source)
        return ESTALE;
    *node = (struct node){.ino = ino, .source = source};
    if (source->kind == SOURCE_ARCHIVE)
        archive_identify(node, parts);
    else if (source->kind == SOURCE_FOLDER)
        folders_identify(fs, node, parts);
    else
        records_identify(fs, node, parts);
    if (node->kind)
        return 0;
    node_release(fs, node);
    return ESTALE;
}

void node_release(struct fs *fs, struct node *node)
{
    minted_unpin(fs->minted, node->minted);
    source_release(fs->sources, node->source);
    *node = (struct node){0};
}

int node_entry(struct fs *fs, const struct node *node, struct fuse_entry_param *e)
{
    int failure = node->kind->attr(fs, node, &e->attr);
    e->ino = node->ino;
    /* An NFS handle names a record of this store, not of a later one here. */
    e->generation = node_generation(fs, node);
    e->entry_timeout = node->kind->entry_sec;
    /* Whoever opens files of a mount that ends when idle has to show. */
    double most_sec = fs->options->timeout_sec / 2.0;
    if (most_sec > 0 && e->entry_timeout > most_sec)
        e->entry_timeout = most_sec;
    e->attr_timeout = node->kind->attr_sec;
    return failure;
}

uint32_t node_generation(const struct fs *fs, const struct node *node)
{
    /* Minted numbers mean something else after a restart. */
    return node->minted ? fs->start_generation : node->source->generation;
}

static void common_attr(const struct fs *fs, const struct node *node, mode_t mode, struct stat *st)
{
    *st = (struct stat){.st_ino = node->ino, .st_mode = node->kind->type | mode};
    st->st_uid = fs->uid;
    st->st_gid = fs->gid;
    st->st_mtim = st->st_ctim = st->st_atim = node->source->mtime;
    st->st_blksize = PREFERRED_NBYTES;
}

void node_file_attr(const struct fs *fs, const struct node *node, uint64_t nbytes, struct stat *st)
{
    common_attr(fs, node, FILE_MODE & ~fs->options->umask, st);
    st->st_nlink = 1;
    st->st_size = (off_t)nbytes;
    /* Blocks of 0 would make tar --sparse store holes. */
    st->st_blocks = (blkcnt_t)((nbytes + BLOCK_NBYTES - 1) / BLOCK_NBYTES);
}

int node_dir_attr(struct fs *fs, const struct node *node, struct stat *st)
{
    common_attr(fs, node, DIR_MODE & ~fs->options->umask, st);
    st->st_nlink = 2;
    return 0;
}

size_t node_reply(fuse_req_t req, const void *bytes, uint64_t nbytes, size_t size, off_t off)
{
    uint64_t left = (uint64_t)off < nbytes ? nbytes - (uint64_t)off : 0;
    size_t slice = left < size ? (size_t)left : size;
    fuse_reply_buf(req, slice ? (const char *)bytes + off : NULL, slice);
    return slice;
}

void *node_reply_room(size_t nbytes, void **block)
{
    *block = NULL;
    void *room = transport_reply_room(nbytes);
    return room ? room : (*block = zr_buffer_alloc(nbytes));
}
