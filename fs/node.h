/* SPDX-License-Identifier: MIT
 *
 * Nodes: what an inode number stands for while a request is served, and what
 * kinds of them there are.  A kind is a row of functions; the handlers (ops.c)
 * know nothing else of it, so a new kind is a new row.
 *
 * Kinds live where their concept does: mirrored folders in folders.c, the folder
 * and the records of a store in records.c, views in views.c, frozen texts in
 * control.c.
 */
#ifndef ZRECORDFS_NODE_H
#define ZRECORDFS_NODE_H

#define FUSE_USE_VERSION 35
#include <fuse_lowlevel.h>

#include "cache.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

struct fs;
struct listing;
struct minted;
struct node_kind;
struct source;
struct zr_mount_ctl;

struct node {
    uint64_t ino;
    const struct node_kind *kind;
    struct source *source; /* the store or folder it belongs to */
    uint64_t id;           /* of a record, shard or label */
    struct minted *minted; /* where the kind needs more than a number */
};

struct node_kind {
    mode_t type;       /* S_IFREG or S_IFDIR */
    double entry_sec;  /* how long its name may be remembered */
    double attr_sec;   /* its attributes */
    double absent_sec; /* in a folder: absent names */

    /* Folders.  0 and *child, which the caller releases; ENOENT (remembered for
     * absent_sec), or another errno. */
    int (*child)(struct fs *fs, const struct node *dir, const char *name, struct node *child);
    /* Entries from position pos on until listing_add says stop.  0 or an errno. */
    int (*list)(struct fs *fs, const struct node *dir, uint64_t pos, struct listing *l);
    /* "..", also for files; released by the caller.  0 or an errno. */
    int (*parent)(struct fs *fs, const struct node *node, struct node *parent);

    /* Folders that show records of their source in an order: which one is at that
     * position; false behind the end.  NULL for others.  For reading ahead (warm.c). */
    bool (*record_at)(struct fs *fs, const struct node *dir, uint64_t position, uint64_t *id);

    /* Everything.  0 or an errno.  May be called from any thread. */
    int (*attr)(struct fs *fs, const struct node *node, struct stat *st);

    /* Files: replies, or gives the errno to reply with. */
    int (*read)(fuse_req_t req, struct fs *fs, const struct node *node, size_t size, off_t off);
    /* For cache keys with this number: 0, or a code and err. */
    int (*decode)(struct fs *fs, const struct node *node, uint64_t part, struct cache_bytes *out,
                  struct zr_error *err);
    /* 0 or an errno; NULL where nothing can be written: EROFS. */
    int (*write)(struct fs *fs, const struct node *node, const char *buf, size_t nbytes, off_t off);
    /* A command, whose answer replaces it in ctl.  NULL: ENOTTY. */
    void (*command)(struct fs *fs, const struct node *node, bool is_owner,
                    struct zr_mount_ctl *ctl);
};

extern const struct node_kind node_folder;            /* folders.c */
extern const struct node_kind node_store, node_shard; /* records.c */
extern const struct node_kind node_record;
extern const struct node_kind node_text;  /* control.c */
extern const struct node_kind node_views; /* views.c */
extern const struct node_kind node_all, node_at_folder, node_at;
extern const struct node_kind node_epoch_folder, node_epoch;
extern const struct node_kind node_prefetch_folder, node_prefetch;
extern const struct node_kind node_label;                  /* classes.c */
extern const struct node_kind node_previews, node_preview; /* preview.c */

#define NODE_FOREVER_SEC 1e9
/* Folders of a tree are looked at again after that: new stores appear. */
#define NODE_FRESH_SEC 1.0

/* What a number stands for: 0 and a node to be released, or ESTALE. */
int node_resolve(struct fs *fs, uint64_t ino, struct node *node);
void node_release(struct fs *fs, struct node *node);
/* A node of an object with a fixed number; takes over the caller's hold on source. */
struct node node_of(const struct fs *fs, const struct node_kind *kind, struct source *source,
                    unsigned role, uint64_t index);

/* A plain one of the same source as node.  0 or ESTALE. */
int node_same_source(struct fs *fs, const struct node *node, const struct node_kind *kind,
                     uint64_t index, struct node *out);

/* For cache_new: ctx is the struct fs, arg the struct node. */
int node_cache_decode(void *ctx, struct cache_key key, const void *arg, struct cache_bytes *out,
                      struct zr_error *err);

/* Owner and times common to all; nlink 1 for files, 2 for folders. */
void node_file_attr(const struct fs *fs, const struct node *node, uint64_t nbytes, struct stat *st);
int node_dir_attr(struct fs *fs, const struct node *node, struct stat *st);

/* What the kernel may remember of it.  0, or why its attributes are not known. */
int node_entry(struct fs *fs, const struct node *node, struct fuse_entry_param *e);
/* 32 bits that tell this object from another one that had its number once. */
uint32_t node_generation(const struct fs *fs, const struct node *node);

/* The part of nbytes at off that a READ of size gets, as the reply. */
size_t node_reply(fuse_req_t req, const void *bytes, uint64_t nbytes, size_t size, off_t off);
/* Memory to make a reply of nbytes in: the transport's own, or *block, for zr_buffer_free after
 * the reply.  NULL when memory runs out. */
void *node_reply_room(size_t nbytes, void **block);

#endif
