/* SPDX-License-Identifier: MIT
 *
 * The request handlers: from requests to nodes and back.  Each says which replies
 * it may give.
 *
 * Round trips to the daemon are what a mount costs, so the kernel is told all it
 * may remember: names and attributes of records never expire (a store does not
 * change), open and opendir are answered ENOSYS once and then done by the kernel
 * alone, and what has no handler here (xattrs, access, flush, release, lseek ...)
 * gets ENOSYS from libfuse once, after which the kernel does not ask again.  A cold
 * file costs LOOKUP and READ; a file read before costs nothing.
 *
 * Writes do not arrive, since the superblock is read-only and the kernel answers
 * EROFS, but with control=rw: then the control file takes some, and every other
 * gets EROFS here.  For that the kernel has to ask for each open.  The same where an archive can be
 * written (-o rw): its leaves and rows take writes too.
 */
#include "ops.h"

#include "archive.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum {
    BLOCK_NBYTES = 512,
    PAGE_NBYTES = 4096,
    NAME_MAX_NBYTES = 255 /* for statfs; longer names are absent like others, not refused */
};

static struct fs *fs_of(fuse_req_t req)
{
    return fuse_req_userdata(req);
}

/* ---------------------------------------------------------------- names */

/* Replies with a node, for which the kernel then holds a lookup. */
static void reply_node(fuse_req_t req, struct fs *fs, const struct node *node)
{
    struct fuse_entry_param e = {0};
    int failure = node_entry(fs, node, &e);
    int unseen = failure ? fuse_reply_err(req, failure) : fuse_reply_entry(req, &e);
    if (node->minted && (failure || unseen))
        minted_forget(fs->minted, node->ino, 1); /* the kernel does not have it */
    if (node->minted)
        janitor_look(fs->janitor);
}

/* "." and ".." of any number: how an NFS server, or open_by_handle_at, finds an
 * inode that the kernel has forgotten. */
static int find_by_number(struct fs *fs, fuse_ino_t ino, bool parent, struct node *found)
{
    struct node node;
    int failure = node_resolve(fs, ino, &node);
    if (failure)
        return failure;
    if (!parent) {
        if (node.minted)
            minted_lookup_again(fs->minted, ino);
        *found = node;
        return 0;
    }
    failure = node.kind->parent ? node.kind->parent(fs, &node, found) : ESTALE;
    node_release(fs, &node);
    return failure;
}

static int find_by_name(struct fs *fs, fuse_ino_t ino, const char *name, struct node *found,
                        double *absent_sec)
{
    struct node dir;
    int failure = node_resolve(fs, ino, &dir);
    if (failure)
        return failure;
    *absent_sec = dir.kind->absent_sec;
    failure = dir.kind->child ? dir.kind->child(fs, &dir, name, found) : ENOTDIR;
    node_release(fs, &dir);
    return failure;
}

/* reply_entry; reply_err: EIO for a damaged record whose size is not known or a
 * broken store, ESTALE for a number nobody has, ENFILE with too many texts and
 * selections open.  An absent name is an entry of inode 0, which the kernel
 * remembers like any other. */
static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct fs *fs = fs_of(req);
    struct node node;
    double absent_sec = 0;
    bool is_number = strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
    int failure = is_number ? find_by_number(fs, parent, name[1] != '\0', &node)
                            : find_by_name(fs, parent, name, &node, &absent_sec);
    if (failure == ENOENT && !is_number) {
        fuse_reply_entry(req, &(struct fuse_entry_param){.entry_timeout = absent_sec});
    } else if (failure) {
        fuse_reply_err(req, failure);
    } else {
        reply_node(req, fs, &node);
        node_release(fs, &node);
        if (atomic_load_explicit(&fs->asked_dir, memory_order_relaxed) != parent)
            atomic_store_explicit(&fs->asked_dir, parent, memory_order_relaxed);
    }
}

/* reply_none.  Records have no state to drop, minted numbers have. */
static void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t lookup_count)
{
    if (ino & TREE_MINTED_BIT)
        minted_forget(fs_of(req)->minted, ino, lookup_count);
    fuse_reply_none(req);
}

/* reply_none. */
static void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
    struct fs *fs = fs_of(req);
    for (size_t i = 0; i < count; i++)
        if (forgets[i].ino & TREE_MINTED_BIT)
            minted_forget(fs->minted, forgets[i].ino, forgets[i].nlookup);
    fuse_reply_none(req);
}

/* reply_attr; reply_err: EIO for a damaged record, ESTALE. */
static void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    (void)fi;
    struct fs *fs = fs_of(req);
    struct node node;
    struct stat st;
    int failure = node_resolve(fs, ino, &node);
    if (failure) {
        fuse_reply_err(req, failure);
        return;
    }
    failure = node.kind->attr(fs, &node, &st);
    if (failure)
        fuse_reply_err(req, failure);
    else
        fuse_reply_attr(req, &st, node.kind->attr_sec);
    node_release(fs, &node);
}

/* ---------------------------------------------------------------- files */

static bool is_writable(struct fs *fs, fuse_ino_t ino)
{
    struct node node;
    if (node_resolve(fs, ino, &node) != 0)
        return false;
    bool is = node.kind->write && (archive_is_part(&node) ? archive_is_writable(node.source)
                                                          : fs->options->writable_control);
    node_release(fs, &node);
    return is;
}

/* Of a leaf or row: its pages are what the archive holds. */
static bool is_part(struct fs *fs, fuse_ino_t ino)
{
    struct node node;
    if (node_resolve(fs, ino, &node) != 0)
        return false;
    bool is = archive_is_part(&node);
    node_release(fs, &node);
    return is;
}

/* Of a leaf or row, which says so where it could be written otherwise. */
static bool refuses_size(struct fs *fs, fuse_ino_t ino)
{
    struct node node;
    if (node_resolve(fs, ino, &node) != 0)
        return false;
    bool refuses = archive_is_part(&node);
    if (refuses)
        archive_refuse_truncation(&node);
    node_release(fs, &node);
    return refuses;
}

/* Where the superblock is writable: pages written to would be everybody's, even by a
 * program that root runs in spite of the file's mode. */
static void open_checked(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    bool writes = (fi->flags & O_ACCMODE) != O_RDONLY;
    if (writes && !is_writable(fs_of(req), ino)) {
        fuse_reply_err(req, EROFS);
        return;
    }
    /* A leaf may have been written by way of its rows, and the reverse. */
    bool part = is_part(fs_of(req), ino);
    fi->keep_cache = !writes && !part;
    fi->direct_io = writes && !part; /* what is written is not what is read */
    fuse_reply_open(req, fi);
}

/* reply_err ENOSYS: the kernel opens files alone from then on and keeps their
 * pages.  reply_open with kernels before 3.16 and control=rw, which also gives EROFS. */
static void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    if (fs_of(req)->kernel_opens)
        fuse_reply_err(req, ENOSYS);
    else
        open_checked(req, ino, fi);
}

/* reply_err ENOSYS, or reply_open, as op_open. */
static void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    (void)ino;
    if (fs_of(req)->kernel_opens_dirs) {
        fuse_reply_err(req, ENOSYS);
        return;
    }
    fi->keep_cache = 1;
    fi->cache_readdir = 1;
    fuse_reply_open(req, fi);
}

/* reply_buf; reply_err: EIO for a damaged record, EISDIR, ENOMEM, ESTALE. */
static void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
                    struct fuse_file_info *fi)
{
    (void)fi;
    struct fs *fs = fs_of(req);
    struct node node;
    int failure = node_resolve(fs, ino, &node);
    if (failure) {
        fuse_reply_err(req, failure);
        return;
    }
    failure = node.kind->read ? node.kind->read(req, fs, &node, size, off) : EISDIR;
    if (failure)
        fuse_reply_err(req, failure);
    node_release(fs, &node);
}

static bool is_owner(fuse_req_t req)
{
    uid_t uid = fuse_req_ctx(req)->uid;
    return uid == 0 || uid == geteuid() || uid == fs_of(req)->uid;
}

static void command(fuse_req_t req, fuse_ino_t ino, const struct zr_mount_ctl *in)
{
    struct fs *fs = fs_of(req);
    struct node node;
    struct zr_mount_ctl ctl = *in;
    int failure = node_resolve(fs, ino, &node);
    if (failure) {
        fuse_reply_err(req, failure);
        return;
    }
    if (node.kind->command) {
        node.kind->command(fs, &node, is_owner(req), &ctl);
        fuse_reply_ioctl(req, 0, &ctl, sizeof ctl);
    } else {
        fuse_reply_err(req, ENOTTY);
    }
    node_release(fs, &node);
}

/* reply_ioctl for a command to a control file.  Else reply_err ENOTTY, by the shortest
 * way: Python before 3.14 asks isatty of every file it opens, and nobody remembers the
 * answer. */
static void op_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned int cmd, void *arg,
                     struct fuse_file_info *fi, unsigned flags, const void *in, size_t in_nbytes,
                     size_t out_nbytes)
{
    (void)arg, (void)fi, (void)flags;
    if (cmd == ZR_MOUNT_CTL && in_nbytes == sizeof(struct zr_mount_ctl) && out_nbytes == in_nbytes)
        command(req, ino, in);
    else
        fuse_reply_err(req, ENOTTY);
}

/* ---------------------------------------------------------------- writes
 * Only with control=rw, or archives that can be written. */

static int write_node(struct fs *fs, fuse_ino_t ino, const char *buf, size_t nbytes, off_t off)
{
    struct node node;
    int failure = node_resolve(fs, ino, &node);
    if (failure)
        return failure;
    failure = node.kind->write ? node.kind->write(fs, &node, buf, nbytes, off) : EROFS;
    node_release(fs, &node);
    return failure;
}

/* reply_write; reply_err: EROFS, EINVAL for a command that is none, EAGAIN, ENOMEM, ESTALE. */
static void op_write(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size, off_t off,
                     struct fuse_file_info *fi)
{
    (void)fi;
    int failure = write_node(fs_of(req), ino, buf, size, off);
    if (failure)
        fuse_reply_err(req, failure);
    else
        fuse_reply_write(req, size);
}

/* reply_attr for the truncation that comes before a write to a control file, which
 * changes nothing; reply_err EROFS. */
static void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set,
                       struct fuse_file_info *fi)
{
    (void)attr;
    const int times = FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_MTIME_NOW | FUSE_SET_ATTR_CTIME;
    bool truncates = (to_set & FUSE_SET_ATTR_SIZE) && !(to_set & ~(FUSE_SET_ATTR_SIZE | times));
    struct fs *fs = fs_of(req);
    if (truncates && refuses_size(fs, ino))
        fuse_reply_err(req, EPERM); /* its size is that of its shape */
    else if (truncates && is_writable(fs, ino))
        op_getattr(req, ino, fi);
    else
        fuse_reply_err(req, EROFS);
}

static void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t dev)
{
    (void)parent, (void)name, (void)mode, (void)dev;
    fuse_reply_err(req, EROFS);
}

static void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
    (void)parent, (void)name, (void)mode;
    fuse_reply_err(req, EROFS);
}

static void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
                      struct fuse_file_info *fi)
{
    (void)parent, (void)name, (void)mode, (void)fi;
    fuse_reply_err(req, EROFS);
}

static void op_symlink(fuse_req_t req, const char *link, fuse_ino_t parent, const char *name)
{
    (void)link, (void)parent, (void)name;
    fuse_reply_err(req, EROFS);
}

static void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t new_parent, const char *new_name)
{
    (void)ino, (void)new_parent, (void)new_name;
    fuse_reply_err(req, EROFS);
}

/* unlink and rmdir. */
static void op_remove(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    (void)parent, (void)name;
    fuse_reply_err(req, EROFS);
}

static void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
                      const char *new_name, unsigned flags)
{
    (void)parent, (void)name, (void)new_parent, (void)new_name, (void)flags;
    fuse_reply_err(req, EROFS);
}

static void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value,
                        size_t size, int flags)
{
    (void)ino, (void)name, (void)value, (void)size, (void)flags;
    fuse_reply_err(req, EROFS);
}

static void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset, off_t length,
                         struct fuse_file_info *fi)
{
    (void)ino, (void)mode, (void)offset, (void)length, (void)fi;
    fuse_reply_err(req, EROFS);
}

/* ---------------------------------------------------------------- listings */

/* reply_buf (empty at the end); reply_err: ENOTDIR, ENOMEM, ESTALE, or what reading a
 * mirrored folder failed with. */
static void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
                       struct fuse_file_info *fi)
{
    (void)fi;
    listing_reply(req, ino, size, off, false);
}

/* The same. */
static void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
                           struct fuse_file_info *fi)
{
    (void)fi;
    listing_reply(req, ino, size, off, true);
}

/* ---------------------------------------------------------------- the whole */

/* reply_statfs.  What the containers take on their disks, none of it free. */
static void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
    (void)ino;
    struct fs *fs = fs_of(req);
    uint64_t length, disk_nbytes;
    sources_totals(fs->sources, &length, &disk_nbytes);
    struct statvfs st = {
        .f_bsize = PAGE_NBYTES,
        .f_frsize = BLOCK_NBYTES,
        .f_blocks = (disk_nbytes + BLOCK_NBYTES - 1) / BLOCK_NBYTES,
        .f_files = length + 1,
        .f_namemax = NAME_MAX_NBYTES,
    };
    fuse_reply_statfs(req, &st);
}

static void want(struct fuse_conn_info *conn, unsigned capability, bool wanted)
{
    conn->want &= ~capability;
    if (wanted)
        conn->want |= capability & conn->capable;
}

/* The kernel's own choice, READDIRPLUS_AUTO, knows no lookups that come later than the next part
 * of the listing, as those of find and du do: the daemon chooses (listing.c). */
static void choose_readdirplus(struct fs *fs, struct fuse_conn_info *conn)
{
    want(conn, FUSE_CAP_READDIRPLUS, fs->options->readdirplus != READDIRPLUS_NEVER);
    want(conn, FUSE_CAP_READDIRPLUS_AUTO, false);
}

/* No reply: sets what the connection will do. */
static void op_init(void *userdata, struct fuse_conn_info *conn)
{
    struct fs *fs = userdata;
    choose_readdirplus(fs, conn);
    want(conn, FUSE_CAP_NO_OPEN_SUPPORT, true);
    want(conn, FUSE_CAP_NO_OPENDIR_SUPPORT, true);
    want(conn, FUSE_CAP_EXPORT_SUPPORT, true);
    /* Pages never go stale, so nobody needs to ask whether they have. */
    want(conn, FUSE_CAP_AUTO_INVAL_DATA, false);
    want(conn, FUSE_CAP_EXPLICIT_INVAL_DATA, true);
    /* Records lie in memory: splicing them costs more than copying. */
    want(conn, FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE, false);
    want(conn, FUSE_CAP_IOCTL_DIR, false);
    fs->kernel_opens = (conn->want & FUSE_CAP_NO_OPEN_SUPPORT) && !fs->options->writable_control &&
                       !sources_are_writable(fs->sources);
    fs->kernel_opens_dirs = conn->want & FUSE_CAP_NO_OPENDIR_SUPPORT;
    conn->max_background = 64;
    conn->congestion_threshold = 48;
}

const struct fuse_lowlevel_ops ops_handlers = {
    .init = op_init,
    .lookup = op_lookup,
    .forget = op_forget,
    .forget_multi = op_forget_multi,
    .getattr = op_getattr,
    .open = op_open,
    .opendir = op_opendir,
    .read = op_read,
    .readdir = op_readdir,
    .readdirplus = op_readdirplus,
    .statfs = op_statfs,
    .ioctl = op_ioctl,
    .write = op_write,
    .setattr = op_setattr,
    .mknod = op_mknod,
    .mkdir = op_mkdir,
    .create = op_create,
    .symlink = op_symlink,
    .link = op_link,
    .unlink = op_remove,
    .rmdir = op_remove,
    .rename = op_rename,
    .setxattr = op_setxattr,
    .fallocate = op_fallocate,
};
