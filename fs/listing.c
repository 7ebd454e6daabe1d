/* SPDX-License-Identifier: MIT
 *
 * Listings: what fits into a reply, and whether it has attributes.
 */
#include "listing.h"

#include "ops.h"

#include <errno.h>
#include <stdlib.h>

enum { READDIRPLUS_MAX = 300000 }; /* entries, about 1 kB of kernel memory each */

struct listing {
    fuse_req_t req;
    struct fs *fs;
    char *buf;
    size_t size, used;
    bool plus;
    bool has_attributes; /* or leaves them out all the same */
};

/* e with ino 0 tells the kernel to list the name without attributes.  False when the
 * entry does not fit any more. */
static bool add_entry(struct listing *l, const char *name, const struct fuse_entry_param *e,
                      uint64_t next)
{
    char *to = l->buf + l->used;
    size_t room = l->size - l->used;
    size_t need = l->plus ? fuse_add_direntry_plus(l->req, to, room, name, e, (off_t)next)
                          : fuse_add_direntry(l->req, to, room, name, &e->attr, (off_t)next);
    if (need > room)
        return false;
    l->used += need;
    return true;
}

bool listing_add_bare(struct listing *l, const char *name, uint64_t ino, bool is_dir, uint64_t next)
{
    struct fuse_entry_param e = {0};
    e.attr.st_ino = ino;
    e.attr.st_mode = is_dir ? S_IFDIR : S_IFREG;
    return add_entry(l, name, &e, next);
}

/* Damaged records keep their name, and fail when they are asked for. */
bool listing_add(struct listing *l, const char *name, const struct node *child, uint64_t next)
{
    struct fuse_entry_param e = {0};
    if (l->has_attributes && node_entry(l->fs, child, &e) == 0)
        return add_entry(l, name, &e, next);
    return listing_add_bare(l, name, child->ino, S_ISDIR(child->kind->type), next);
}

bool listing_dots(struct listing *l, const struct node *dir, uint64_t pos)
{
    struct node parent;
    if (pos == 0 && !listing_add_bare(l, ".", dir->ino, true, 1))
        return false;
    if (pos > 1)
        return true;
    uint64_t ino = dir->ino;
    if (dir->kind->parent && dir->kind->parent(l->fs, dir, &parent) == 0) {
        ino = parent.ino;
        node_release(l->fs, &parent);
    }
    return listing_add_bare(l, "..", ino, true, LISTING_AFTER_DOTS);
}

/* An entry with attributes makes an inode, which is what whoever asks for attributes or reads
 * the file saves a message by, and what pages can be pushed to; it costs those who want names
 * four times as much, and memory.  Where that may be too much, the kernel gets names only until
 * it has looked one up since the listing began. */
static bool is_worth_attributes(struct fs *fs, const struct node *dir, uint64_t pos)
{
    const struct source *source = dir->source;
    bool is_long = source->kind == SOURCE_STORE && source->info.length > READDIRPLUS_MAX;
    if (!is_long || fs->options->readdirplus == READDIRPLUS_ALWAYS)
        return true;
    if (pos == 0)
        atomic_store_explicit(&fs->asked_dir, 0, memory_order_relaxed);
    return atomic_load_explicit(&fs->asked_dir, memory_order_relaxed) == dir->ino;
}

static int fill(struct listing *l, fuse_ino_t ino, uint64_t pos)
{
    struct node dir;
    int failure = node_resolve(l->fs, ino, &dir);
    if (failure)
        return failure;
    l->has_attributes = l->plus && is_worth_attributes(l->fs, &dir, pos);
    failure = dir.kind->list ? dir.kind->list(l->fs, &dir, pos, l) : ENOTDIR;
    node_release(l->fs, &dir);
    return failure;
}

void listing_reply(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, bool plus)
{
    struct listing l = {
        .req = req, .fs = fuse_req_userdata(req), .buf = malloc(size), .size = size, .plus = plus};
    int failure = l.buf ? fill(&l, ino, (uint64_t)off) : ENOMEM;
    if (failure)
        fuse_reply_err(req, failure);
    else
        fuse_reply_buf(req, l.buf, l.used);
    free(l.buf);
}
