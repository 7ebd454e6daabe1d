/* SPDX-License-Identifier: MIT
 *
 * The request handlers.  Each says which replies it may give.
 *
 * Round trips to the daemon are what a mount costs, so the kernel is told all it
 * may remember: names and attributes never expire (a store does not change),
 * open and opendir are answered ENOSYS once and then done by the kernel alone,
 * and what has no handler here (xattrs, access, flush, release, lseek ...) gets
 * ENOSYS from libfuse once, after which the kernel does not ask again.  A cold
 * file costs LOOKUP and READ; a file read before costs nothing.
 *
 * Writes never arrive: the superblock is read-only, and the kernel answers EROFS.
 */
#include "ops.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

static const double FOREVER_SEC = 1e9;

enum {
    ROOT_MODE = 0555,
    FILE_MODE = 0444,
    DIRECT_NBYTES = 4096,     /* a file of one page always comes as one READ */
    READDIRPLUS_MAX = 300000, /* about 1 kB of kernel memory an entry */
    BLOCK_NBYTES = 512        /* unit of st_blocks */
};

static struct fs *fs_of(fuse_req_t req)
{
    return fuse_req_userdata(req);
}

/* ---------------------------------------------------------------- attributes */

static void common_attr(const struct fs *fs, struct stat *st)
{
    st->st_uid = fs->uid;
    st->st_gid = fs->gid;
    st->st_mtim = st->st_ctim = st->st_atim = fs->mtime;
    st->st_blksize = DIRECT_NBYTES;
}

static void file_attr(const struct fs *fs, uint64_t ino, uint64_t nbytes, struct stat *st)
{
    *st = (struct stat){.st_ino = ino, .st_nlink = 1, .st_size = (off_t)nbytes};
    st->st_mode = S_IFREG | (FILE_MODE & ~fs->options->umask);
    /* Blocks of 0 would make tar --sparse store holes. */
    st->st_blocks = (blkcnt_t)((nbytes + BLOCK_NBYTES - 1) / BLOCK_NBYTES);
    common_attr(fs, st);
}

static void root_attr(const struct fs *fs, struct stat *st)
{
    *st = (struct stat){.st_ino = TREE_ROOT_INO, .st_nlink = 2};
    st->st_mode = S_IFDIR | (ROOT_MODE & ~fs->options->umask);
    common_attr(fs, st);
}

/* Notes a record that cannot be served; returns the errno for it. */
static int damaged(struct fs *fs, uint64_t id, const struct zr_error *err)
{
    counters_add(fs->counters, EVENT_ERRORS, 1);
    if (err->code == ZR_E_NOMEM) {
        report(LOG_ERR, "%s", err->message);
        return ENOMEM;
    }
    report_damage_add(fs->damage, id, err);
    return EIO;
}

/* 0 or the errno of a damaged record. */
static int record_attr(struct fs *fs, uint64_t id, struct stat *st)
{
    struct zr_error err;
    uint64_t nbytes;
    if (zr_record_npy_nbytes(fs->reader, id, &nbytes, &err) != ZR_OK)
        return damaged(fs, id, &err);
    file_attr(fs, tree_record_ino(id), nbytes, st);
    return 0;
}

/* ---------------------------------------------------------------- names */

static void record_entry(struct fs *fs, struct fuse_entry_param *e)
{
    e->ino = e->attr.st_ino;
    /* An NFS handle names a record of this store, not of a later one here. */
    e->generation = fs->info.identity & UINT32_MAX;
    e->attr_timeout = e->entry_timeout = FOREVER_SEC;
}

static void lookup_record(fuse_req_t req, struct fs *fs, uint64_t id)
{
    struct fuse_entry_param e = {0};
    int failure = record_attr(fs, id, &e.attr);
    if (failure) {
        fuse_reply_err(req, failure);
        return;
    }
    record_entry(fs, &e);
    fuse_reply_entry(req, &e);
}

static void reply_text_entry(fuse_req_t req, struct fs *fs, uint64_t ino, size_t nbytes)
{
    /* Only the name expires: the text under this number never changes. */
    struct fuse_entry_param e = {.ino = ino, .attr_timeout = FOREVER_SEC};
    file_attr(fs, TREE_CONTROL_INO, nbytes, &e.attr);
    if (fuse_reply_entry(req, &e) != 0)
        control_forget(fs->control, ino, 1); /* interrupted: the kernel never saw it */
}

static void lookup_control(fuse_req_t req, struct fs *fs)
{
    counters_add(fs->counters, EVENT_CONTROL_LOOKUPS, 1);
    size_t nbytes;
    uint64_t ino;
    char *text = control_status(fs, &nbytes);
    int failure = text ? control_freeze(fs->control, text, nbytes, &ino) : ENOMEM;
    if (failure)
        fuse_reply_err(req, failure);
    else
        reply_text_entry(req, fs, ino, nbytes);
}

static void lookup_root(fuse_req_t req, struct fs *fs)
{
    struct fuse_entry_param e = {0};
    root_attr(fs, &e.attr);
    record_entry(fs, &e);
    fuse_reply_entry(req, &e);
}

/* "." and ".." of any number: how an NFS server, or open_by_handle_at, finds an
 * inode that the kernel has forgotten. */
static void lookup_by_number(fuse_req_t req, struct fs *fs, fuse_ino_t ino, bool parent)
{
    uint64_t id;
    size_t nbytes;
    if (ino == TREE_ROOT_INO || parent) {
        lookup_root(req, fs);
    } else if (tree_ino_record(&fs->tree, ino, &id)) {
        lookup_record(req, fs, id);
    } else if (control_lookup_again(fs->control, ino)) {
        (void)control_pin(fs->control, ino, &nbytes);
        reply_text_entry(req, fs, ino, nbytes);
        control_unpin(fs->control, ino);
    } else {
        fuse_reply_err(req, ESTALE);
    }
}

/* reply_entry; reply_err: EIO for a damaged record whose size is not known,
 * ESTALE for a number nobody has, ENFILE with too many control texts open.  An
 * absent name is an entry of inode 0, which the kernel remembers like any other. */
static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct fs *fs = fs_of(req);
    uint64_t id;
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        lookup_by_number(req, fs, parent, name[1] != '\0');
    else if (parent != TREE_ROOT_INO)
        fuse_reply_err(req, ENOTDIR);
    else if (tree_parse(&fs->tree, name, &id))
        lookup_record(req, fs, id);
    else if (strcmp(name, TREE_CONTROL_NAME) == 0)
        lookup_control(req, fs);
    else
        fuse_reply_entry(req, &(struct fuse_entry_param){.entry_timeout = FOREVER_SEC});
}

/* reply_none.  Records have no state to drop, control texts have. */
static void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t lookup_count)
{
    if (ino & TREE_TEXT_INO_BIT)
        control_forget(fs_of(req)->control, ino, lookup_count);
    fuse_reply_none(req);
}

/* reply_none. */
static void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
    struct fs *fs = fs_of(req);
    for (size_t i = 0; i < count; i++)
        if (forgets[i].ino & TREE_TEXT_INO_BIT)
            control_forget(fs->control, forgets[i].ino, forgets[i].nlookup);
    fuse_reply_none(req);
}

/* reply_attr; reply_err: EIO for a damaged record, ESTALE. */
static void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    (void)fi;
    struct fs *fs = fs_of(req);
    struct stat st;
    uint64_t id;
    size_t nbytes;
    int failure = 0;
    if (ino == TREE_ROOT_INO) {
        root_attr(fs, &st);
    } else if (tree_ino_record(&fs->tree, ino, &id)) {
        failure = record_attr(fs, id, &st);
    } else if (control_pin(fs->control, ino, &nbytes)) {
        file_attr(fs, TREE_CONTROL_INO, nbytes, &st);
        control_unpin(fs->control, ino);
    } else {
        failure = ESTALE;
    }
    if (failure)
        fuse_reply_err(req, failure);
    else
        fuse_reply_attr(req, &st, FOREVER_SEC);
}

/* ---------------------------------------------------------------- files */

/* reply_err ENOSYS: the kernel opens files alone from then on and keeps their
 * pages.  Kernels before 3.16 get reply_open. */
static void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    (void)ino;
    if (fs_of(req)->kernel_opens) {
        fuse_reply_err(req, ENOSYS);
        return;
    }
    fi->keep_cache = 1;
    fuse_reply_open(req, fi);
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

int ops_decode(void *ctx, uint64_t key, struct cache_bytes *out, struct zr_error *err)
{
    struct fs *fs = ctx;
    int code = zr_record_npy(fs->reader, key, &out->block, &out->bytes, &out->nbytes, err);
    if (code == ZR_OK) {
        counters_add(fs->counters, EVENT_DECODES, 1);
        counters_add(fs->counters, EVENT_DECODED_BYTES, out->nbytes);
    }
    return code;
}

static size_t slice_nbytes(uint64_t nbytes, size_t size, off_t off)
{
    uint64_t left = (uint64_t)off < nbytes ? nbytes - (uint64_t)off : 0;
    return left < size ? (size_t)left : size;
}

/* Replies with the part of a record that was asked for; returns its bytes.
 * Counted first: whoever has the reply may look at the counters at once. */
static size_t reply_record(fuse_req_t req, const struct cache_bytes *record, size_t size, off_t off)
{
    size_t slice = slice_nbytes(record->nbytes, size, off);
    counters_add(fs_of(req)->counters, EVENT_READ_BYTES, slice);
    fuse_reply_buf(req, slice ? (const char *)record->bytes + off : NULL, slice);
    return slice;
}

/* A record of one page: nothing of it will be asked for again. */
static int read_direct(fuse_req_t req, struct fs *fs, uint64_t id, size_t size, off_t off,
                       struct zr_error *err)
{
    struct cache_bytes record = {0};
    int code = ops_decode(fs, id, &record, err);
    if (code != ZR_OK)
        return code;
    reply_record(req, &record, size, off);
    zr_buffer_free(record.block);
    return ZR_OK;
}

static int read_cached(fuse_req_t req, struct fs *fs, uint64_t id, size_t size, off_t off,
                       struct zr_error *err)
{
    struct cache_entry *entry;
    enum cache_outcome outcome;
    int code = cache_get(fs->cache, id, &entry, &outcome, err);
    if (code != ZR_OK)
        return code;
    if (outcome != CACHE_DECODED)
        counters_add(fs->counters, outcome == CACHE_HIT ? EVENT_CACHE_HITS : EVENT_CACHE_WAITS, 1);
    cache_put(fs->cache, entry, reply_record(req, cache_entry_bytes(entry), size, off));
    return ZR_OK;
}

static void read_record(fuse_req_t req, struct fs *fs, uint64_t id, size_t size, off_t off)
{
    struct zr_error err;
    uint64_t nbytes;
    int code = zr_record_npy_nbytes(fs->reader, id, &nbytes, &err);
    if (code == ZR_OK && nbytes <= DIRECT_NBYTES)
        code = read_direct(req, fs, id, size, off, &err);
    else if (code == ZR_OK)
        code = read_cached(req, fs, id, size, off, &err);
    if (code != ZR_OK)
        fuse_reply_err(req, damaged(fs, id, &err));
}

/* reply_buf; reply_err: EIO for a damaged record, ENOMEM, ESTALE. */
static void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
                    struct fuse_file_info *fi)
{
    (void)fi;
    struct fs *fs = fs_of(req);
    uint64_t id;
    size_t nbytes;
    const char *text;
    if (tree_ino_record(&fs->tree, ino, &id)) {
        read_record(req, fs, id, size, off);
    } else if ((text = control_pin(fs->control, ino, &nbytes))) {
        counters_add(fs->counters, EVENT_CONTROL_READS, 1);
        size_t slice = slice_nbytes(nbytes, size, off);
        fuse_reply_buf(req, slice ? text + off : NULL, slice);
        control_unpin(fs->control, ino);
    } else {
        fuse_reply_err(req, ESTALE);
    }
}

/* reply_err ENOTTY, by the shortest way: Python before 3.14 asks isatty of every
 * file it opens, and nobody remembers the answer. */
static void op_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned int cmd, void *arg,
                     struct fuse_file_info *fi, unsigned flags, const void *in, size_t in_nbytes,
                     size_t out_nbytes)
{
    (void)ino, (void)cmd, (void)arg, (void)fi, (void)flags, (void)in, (void)in_nbytes,
        (void)out_nbytes;
    fuse_reply_err(req, ENOTTY);
}

/* ---------------------------------------------------------------- listings */

struct listing {
    fuse_req_t req;
    struct fs *fs;
    char *buf;
    size_t size, used;
    bool plus;
};

/* Attributes for one entry.  nodeid 0 tells the kernel to list the name without
 * them: for ".", "..", the control file (whose number is made by its lookup) and
 * damaged records, which keep their name and fail when they are asked for. */
static void list_attr(struct listing *l, enum tree_kind kind, uint64_t id,
                      struct fuse_entry_param *e)
{
    *e = (struct fuse_entry_param){0};
    if (kind == TREE_DOT || kind == TREE_DOTDOT) {
        e->attr.st_ino = TREE_ROOT_INO;
        e->attr.st_mode = S_IFDIR;
    } else if (kind == TREE_CONTROL) {
        e->attr.st_ino = TREE_CONTROL_INO;
        e->attr.st_mode = S_IFREG;
    } else if (l->plus && record_attr(l->fs, id, &e->attr) == 0) {
        record_entry(l->fs, e);
    } else {
        e->attr.st_ino = tree_record_ino(id);
        e->attr.st_mode = S_IFREG;
    }
}

static const char *list_name(const struct listing *l, enum tree_kind kind, uint64_t id, char *buf)
{
    switch (kind) {
    case TREE_DOT:
        return ".";
    case TREE_DOTDOT:
        return "..";
    case TREE_CONTROL:
        return TREE_CONTROL_NAME;
    case TREE_RECORD:
    case TREE_END:
        break;
    }
    tree_name(&l->fs->tree, id, buf);
    return buf;
}

/* False when the entry does not fit any more. */
static bool list_entry(struct listing *l, enum tree_kind kind, uint64_t id, uint64_t next)
{
    char buf[TREE_NAME_MAX];
    const char *name = list_name(l, kind, id, buf);
    char *to = l->buf + l->used;
    size_t room = l->size - l->used;
    size_t need = l->plus ? fuse_add_direntry_plus(l->req, NULL, 0, name, NULL, 0)
                          : fuse_add_direntry(l->req, NULL, 0, name, NULL, 0);
    if (need > room)
        return false;
    struct fuse_entry_param e;
    list_attr(l, kind, id, &e);
    if (l->plus)
        fuse_add_direntry_plus(l->req, to, room, name, &e, (off_t)next);
    else
        fuse_add_direntry(l->req, to, room, name, &e.attr, (off_t)next);
    l->used += need;
    return true;
}

static void list(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, bool plus)
{
    struct fs *fs = fs_of(req);
    if (ino != TREE_ROOT_INO) {
        fuse_reply_err(req, ENOTDIR);
        return;
    }
    struct listing l = {.req = req, .fs = fs, .buf = malloc(size), .size = size, .plus = plus};
    if (!l.buf) {
        fuse_reply_err(req, ENOMEM);
        return;
    }
    uint64_t pos = (uint64_t)off, id = 0;
    for (enum tree_kind kind; (kind = tree_next(&fs->tree, &pos, &id)) != TREE_END;)
        if (!list_entry(&l, kind, id, pos))
            break;
    fuse_reply_buf(req, l.buf, l.used);
    free(l.buf);
}

/* reply_buf (empty at the end); reply_err: ENOTDIR, ENOMEM. */
static void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
                       struct fuse_file_info *fi)
{
    (void)fi;
    list(req, ino, size, off, false);
}

/* The same. */
static void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
                           struct fuse_file_info *fi)
{
    (void)fi;
    list(req, ino, size, off, true);
}

/* ---------------------------------------------------------------- the whole */

/* reply_statfs.  What the container takes on its disk, none of it free. */
static void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
    (void)ino;
    struct fs *fs = fs_of(req);
    struct statvfs st = {
        .f_bsize = DIRECT_NBYTES,
        .f_frsize = BLOCK_NBYTES,
        .f_blocks = (fs->info.disk_nbytes + BLOCK_NBYTES - 1) / BLOCK_NBYTES,
        .f_files = fs->info.length + 1,
        .f_namemax = 255, /* longer names are absent like others, not refused */
    };
    fuse_reply_statfs(req, &st);
}

static void want(struct fuse_conn_info *conn, unsigned capability, bool wanted)
{
    conn->want &= ~capability;
    if (wanted)
        conn->want |= capability & conn->capable;
}

static void choose_readdirplus(struct fs *fs, struct fuse_conn_info *conn)
{
    int mode = fs->options->readdirplus;
    bool is_plus = mode != READDIRPLUS_NEVER;
    bool is_auto = mode == READDIRPLUS_AUTO && fs->info.length > READDIRPLUS_MAX;
    want(conn, FUSE_CAP_READDIRPLUS, is_plus);
    want(conn, FUSE_CAP_READDIRPLUS_AUTO, is_plus && is_auto);
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
    fs->kernel_opens = conn->want & FUSE_CAP_NO_OPEN_SUPPORT;
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
};
