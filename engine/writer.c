/* SPDX-License-Identifier: MIT
 *
 * The life of a store under construction: create, close, abort.  append.c fills it.
 *
 * All of it happens in a hidden directory beside the path, whose meta.zr has an
 * empty first page (nothing opens it) until close writes the header and renames
 * the directory.  An exclusive lock on that directory tells a build under way
 * from what a killed one left, which the next writer of the same path clears.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

int zri_write_failed(const struct zr_writer *w, int e, const char *name, struct zr_error *err)
{
    return zri_fail_errno(err, e, "%s: cannot write its %s", w->path, name);
}

bool zri_writer_is_owner(const struct zr_writer *w)
{
    return w->owner == getpid();
}

/* ---------------------------------------------------------------- create */

/* "a/b" into parent "a" and name "b"; trailing slashes do not count. */
static int split_path(struct zr_writer *w, struct zr_error *err)
{
    char *p = w->path, *end = p + strlen(p);
    while (end > p + 1 && end[-1] == '/')
        *--end = 0;
    char *slash = strrchr(p, '/');
    w->name = slash ? slash + 1 : p;
    w->parent = !slash ? strdup(".") : slash == p ? strdup("/") : strndup(p, (size_t)(slash - p));
    if (!w->parent)
        return zri_fail(err, ZR_E_NOMEM, "%s: out of memory", w->path);
    if (!*w->name || !strcmp(w->name, ".") || !strcmp(w->name, ".."))
        return zri_fail(err, ZR_E_EXISTS, "%s: already exists", w->path);
    size_t n = strlen(w->name);
    if (n <= ZRI_TEMP_NAME_PREFIX)
        snprintf(w->temp_name, sizeof w->temp_name, ".%s.zrecord-build", w->name);
    else
        snprintf(w->temp_name, sizeof w->temp_name, ".%.*s-%016" PRIx64 ".zrecord-build",
                 ZRI_TEMP_NAME_PREFIX, w->name, zri_checksum(w->name, n));
    return ZR_OK;
}

/* mkdir -p, counting what it makes. */
static int make_parents(struct zr_writer *w, struct zr_error *err)
{
    char *p = w->parent;
    for (char *slash = p; slash;) {
        slash = strchr(slash + 1, '/');
        if (slash)
            *slash = 0;
        int e = mkdir(p, 0777) ? errno : 0;
        if (slash)
            *slash = '/';
        if (!e)
            w->made_count++;
        else if (e != EEXIST && e != EISDIR && access(p, F_OK))
            return zri_fail_errno(err, e, "%s: cannot make its directory", w->path);
    }
    /* split_path set it.  NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker) */
    w->parent_fd = open(w->parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return w->parent_fd < 0 ? zri_fail_errno(err, errno, "%s: cannot open its directory", w->path)
                            : ZR_OK;
}

/* Innermost first, as far as they are empty. */
static void remove_parents(struct zr_writer *w)
{
    while (w->made_count) {
        w->made_count--;
        char *slash = strrchr(w->parent, '/');
        if (rmdir(w->parent) || !slash || slash == w->parent)
            return;
        *slash = 0;
    }
}

static bool is_same_dir(const struct zr_writer *w)
{
    struct stat a, b;
    return fstat(w->dir_fd, &a) == 0 &&
           fstatat(w->parent_fd, w->temp_name, &b, AT_SYMLINK_NOFOLLOW) == 0 &&
           a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static int other_writer(const struct zr_writer *w, struct zr_error *err)
{
    return zri_fail(err, ZR_E_BUSY, "%s: busy: another writer is building this store", w->path);
}

static int make_temp_dir(struct zr_writer *w, struct zr_error *err)
{
    struct stat st;
    if (fstatat(w->parent_fd, w->name, &st, AT_SYMLINK_NOFOLLOW) == 0)
        return zri_fail(err, ZR_E_EXISTS, "%s: already exists", w->path);
    if (errno != ENOENT) /* a name that is too long, say: now, not after all the work */
        return zri_fail_errno(err, errno, "%s: cannot create", w->path);
    bool made = mkdirat(w->parent_fd, w->temp_name, 0777) == 0;
    if (!made && errno != EEXIST)
        return zri_fail_errno(err, errno, "%s: cannot create", w->path);
    w->dir_fd = openat(w->parent_fd, w->temp_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (w->dir_fd < 0 && errno == ENOENT)
        return other_writer(w, err); /* which has just ended */
    if (w->dir_fd < 0) {
        int rc = zri_fail_errno(err, errno, "%s: cannot create", w->path);
        if (made)
            unlinkat(w->parent_fd, w->temp_name, AT_REMOVEDIR);
        return rc;
    }
    if (zri_lock(w->dir_fd, true) || !is_same_dir(w)) {
        close(w->dir_fd); /* it is another writer's: hands off */
        w->dir_fd = -1;
        return other_writer(w, err);
    }
    if (!made)
        zri_clear_dir(w->dir_fd);
    return ZR_OK;
}

static int make_file(const struct zr_writer *w, const char *name, int *fd, struct zr_error *err)
{
    *fd = openat(w->dir_fd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    return *fd < 0 ? zri_fail_errno(err, errno, "%s: cannot create its %s", w->path, name) : ZR_OK;
}

static int make_dict(struct zr_writer *w, const struct zr_writer_options *o, struct zr_error *err)
{
    int fd;
    int rc = make_file(w, ZRI_DICT_NAME, &fd, err);
    if (rc)
        return rc;
    int e = zri_write_full(fd, o->dict, o->dict_nbytes, 0);
    if (!e && w->durable && fsync(fd))
        e = errno;
    close(fd);
    w->dict_sum = zri_checksum(o->dict, o->dict_nbytes);
    return e ? zri_write_failed(w, e, ZRI_DICT_NAME, err) : ZR_OK;
}

static int make_files(struct zr_writer *w, const struct zr_writer_options *o, struct zr_error *err)
{
    static const uint8_t empty[ZRI_PAGE_NBYTES];
    int rc = make_file(w, ZRI_META_NAME, &w->meta.fd, err);
    if (!rc && zri_lock(w->meta.fd, true))
        rc = zri_fail(err, ZR_E_BUSY, "%s: busy", w->path);
    if (!rc)
        rc = make_file(w, ZRI_DATA_NAME, &w->data.fd, err);
    if (!rc && !o->no_sidecar)
        rc = make_file(w, ZRI_SIDE_NAME, &w->side.fd, err);
    if (!rc && o->codec == ZR_ZSTD_DICT)
        rc = make_dict(w, o, err);
    int e = rc ? 0 : zri_tail_append(&w->meta, empty, sizeof empty, NULL);
    if (e)
        return zri_write_failed(w, e, ZRI_META_NAME, err);
    e = rc || o->no_sidecar ? 0 : zri_tail_append(&w->side, empty, ZRI_SIDE_HEADER_NBYTES, NULL);
    return e ? zri_write_failed(w, e, ZRI_SIDE_NAME, err) : rc;
}

static int check_options(struct zr_writer *w, const struct zr_writer_options *o,
                         struct zr_error *err)
{
    if (o->geometry != ZR_DENSE && o->geometry != ZR_RAGGED)
        return zri_fail(err, ZR_E_INVALID, "%s: unknown geometry %d", w->path, o->geometry);
    if (!zr_codec_name(o->codec))
        return zri_fail(err, ZR_E_INVALID, "%s: unknown codec %d", w->path, o->codec);
    if (o->tune < ZR_TUNE_DEFAULT || o->tune > ZR_TUNE_WRITE)
        return zri_fail(err, ZR_E_INVALID, "%s: unknown tune %d", w->path, o->tune);
    if (o->codec == ZR_ZSTD_DICT ? !o->dict || !o->dict_nbytes : o->dict != NULL)
        return zri_fail(err, ZR_E_INVALID,
                        o->dict ? "%s: a dictionary is for codec zstd_dict only"
                                : "%s: codec zstd_dict needs a dictionary",
                        w->path);
    if (o->level &&
        (o->codec == ZR_RAW || o->level < zri_level_min() || o->level > zri_level_max()))
        return zri_fail(err, ZR_E_INVALID, "%s: codec %s has no level %d", w->path,
                        zr_codec_name(o->codec), o->level);
    const char *why =
        o->dtype ? zri_schema_set(&w->schema, o->geometry, o->dtype, o->ndim, o->item_shape)
                 : "no dtype";
    return why ? zri_fail(err, ZR_E_SCHEMA, "%s: %s", w->path, why) : ZR_OK;
}

static int make_encoder(struct zr_writer *w, const struct zr_writer_options *o,
                        struct zr_error *err)
{
    w->header.codec = (uint8_t)o->codec;
    if (o->codec == ZR_RAW)
        return ZR_OK;
    w->encoder = zri_encoder_new(o->codec, o->level, o->tune, o->dtype, o->dict, o->dict_nbytes);
    if (w->encoder)
        return ZR_OK;
    if (o->dict && !zri_dict_is_sound(o->dict, o->dict_nbytes))
        return zri_fail(err, ZR_E_DICT, "%s: not a dictionary that zstd can use", w->path);
    return zri_fail(err, ZR_E_NOMEM, "%s: out of memory", w->path);
}

static struct zr_writer *new_writer(const char *path)
{
    struct zr_writer *w = calloc(1, sizeof *w);
    if (!w)
        return NULL;
    w->parent_fd = w->dir_fd = -1;
    zri_tail_init(&w->meta);
    zri_tail_init(&w->data);
    zri_tail_init(&w->side);
    w->owner = getpid();
    pthread_mutex_init(&w->lock, NULL);
    w->path = strdup(path);
    if (!w->path) {
        free(w);
        return NULL;
    }
    return w;
}

int zr_writer_create(struct zr_writer **out, const char *path,
                     const struct zr_writer_options *options, struct zr_error *err)
{
    *out = NULL;
    if (!path || !*path)
        return zri_fail(err, ZR_E_INVALID, "the path of a store is empty");
    struct zr_writer *w = new_writer(path);
    if (!w)
        return zri_fail(err, ZR_E_NOMEM, "%s: out of memory", path);
    w->durable = options->durability == ZR_DURABLE;
    int rc = check_options(w, options, err);
    if (!rc)
        rc = split_path(w, err);
    if (!rc)
        rc = make_encoder(w, options, err);
    if (!rc)
        rc = make_parents(w, err);
    if (!rc)
        rc = make_temp_dir(w, err);
    if (!rc)
        rc = make_files(w, options, err);
    if (rc) {
        zr_writer_abort(w);
        return rc;
    }
    *out = w;
    return ZR_OK;
}

/* ---------------------------------------------------------------- close */

static void close_fd(int fd)
{
    if (fd >= 0)
        close(fd);
}

/* The lock is shared with the process that forked, so only the owner drops it. */
static void free_writer(struct zr_writer *w)
{
    if (w->dir_fd >= 0 && zri_writer_is_owner(w))
        zri_unlock(w->dir_fd);
    close_fd(w->meta.fd);
    close_fd(w->data.fd);
    close_fd(w->side.fd);
    close_fd(w->dir_fd);
    close_fd(w->parent_fd);
    zri_tail_release(&w->meta);
    zri_tail_release(&w->data);
    zri_tail_release(&w->side);
    zri_encoder_free(w->encoder);
    pthread_mutex_destroy(&w->lock);
    free(w->parent);
    free(w->path);
    free(w);
}

/* dir_name is what the directory of the store is called at this moment. */
static void discard(struct zr_writer *w, const char *dir_name)
{
    if (zri_writer_is_owner(w)) {
        if (w->dir_fd >= 0) {
            zri_clear_dir(w->dir_fd);
            unlinkat(w->parent_fd, dir_name, AT_REMOVEDIR);
        }
        remove_parents(w);
    }
    free_writer(w);
}

void zr_writer_abort(struct zr_writer *w)
{
    if (w)
        discard(w, w->temp_name);
}

static int flush(struct zri_tail *t, const struct zr_writer *w, const char *name,
                 struct zr_error *err)
{
    int e = zri_tail_flush(t);
    return e ? zri_write_failed(w, e, name, err) : ZR_OK;
}

static int flush_files(struct zr_writer *w, struct zr_error *err)
{
    int rc = flush(&w->data, w, ZRI_DATA_NAME, err);
    if (!rc)
        rc = flush(&w->side, w, ZRI_SIDE_NAME, err);
    return rc ? rc : flush(&w->meta, w, ZRI_META_NAME, err);
}

static int sync_file(const struct zr_writer *w, int fd, const char *name, struct zr_error *err)
{
    if (!w->durable || fd < 0 || fsync(fd) == 0)
        return ZR_OK;
    return zri_write_failed(w, errno, name, err);
}

static int read_identity(const struct zr_writer *w, const uint8_t *page, uint64_t *identity,
                         struct zr_error *err)
{
    uint8_t entries[ZRI_IDENTITY_ENTRIES * ZRI_ENTRY_NBYTES];
    struct zri_file meta = {.fd = w->meta.fd};
    size_t count = w->header.length ? ZRI_IDENTITY_ENTRIES : 0;
    for (size_t k = 0; k < count; k++) {
        uint64_t off = zri_entry_off(zri_identity_index(w->header.length, k));
        int e = zri_file_read(&meta, off, entries + k * ZRI_ENTRY_NBYTES, ZRI_ENTRY_NBYTES);
        if (e)
            return zri_write_failed(w, e < 0 ? EIO : e, ZRI_META_NAME, err);
    }
    *identity = zri_identity(page, entries, count);
    return ZR_OK;
}

static int finish_sidecar(const struct zr_writer *w, const uint8_t *page, struct zr_error *err)
{
    uint8_t header[ZRI_SIDE_HEADER_NBYTES];
    struct zri_sidecar s = {.length = w->header.length,
                            .tail_off = w->header.tail_off,
                            .dict_sum = w->dict_sum,
                            .ragged = zri_writer_is_ragged(w)};
    if (w->side.fd < 0)
        return ZR_OK;
    int rc = read_identity(w, page, &s.identity, err);
    if (rc)
        return rc;
    zri_sidecar_encode(&s, header);
    int e = zri_write_full(w->side.fd, header, sizeof header, 0);
    return e ? zri_write_failed(w, e, ZRI_SIDE_NAME, err)
             : sync_file(w, w->side.fd, ZRI_SIDE_NAME, err);
}

/* Payload, table and sidecar are durable before the header exists. */
static int write_header(struct zr_writer *w, struct zr_error *err)
{
    uint8_t schema[ZRI_SCHEMA_MAX], page[ZRI_PAGE_NBYTES];
    size_t schema_nbytes;
    const char *why = zri_schema_encode(&w->schema, schema, &schema_nbytes);
    if (why)
        return zri_fail(err, ZR_E_NOMEM, "%s: %s", w->path, why);
    w->header.schema_nbytes = (uint32_t)schema_nbytes;
    w->header.tail_off = w->data.off;
    zri_header_encode(&w->header, schema, page);
    int rc = flush_files(w, err);
    if (!rc)
        rc = sync_file(w, w->data.fd, ZRI_DATA_NAME, err);
    if (!rc)
        rc = finish_sidecar(w, page, err);
    if (!rc)
        rc = sync_file(w, w->meta.fd, ZRI_META_NAME, err);
    if (rc)
        return rc;
    int e = zri_write_full(w->meta.fd, page, sizeof page, 0);
    if (e)
        return zri_write_failed(w, e, ZRI_META_NAME, err);
    rc = sync_file(w, w->meta.fd, ZRI_META_NAME, err);
    if (!rc && w->durable && (e = zri_sync_dir(w->dir_fd)))
        rc = zri_write_failed(w, e, "directory", err);
    return rc;
}

/* Some filesystems report a failed write only here. */
static int close_files(struct zr_writer *w, struct zr_error *err)
{
    int *fds[] = {&w->data.fd, &w->side.fd, &w->meta.fd};
    static const char *const names[] = {ZRI_DATA_NAME, ZRI_SIDE_NAME, ZRI_META_NAME};
    int rc = ZR_OK;
    zri_unlock(w->meta.fd); /* must not meet the first reader */
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++) {
        int fd = *fds[i];
        *fds[i] = -1;
        if (fd >= 0 && close(fd) && errno != EINTR && !rc)
            rc = zri_write_failed(w, errno, names[i], err);
    }
    return rc;
}

/* The directory of the store, and those of the parents that create made. */
static int sync_parents(const struct zr_writer *w)
{
    int e = zri_sync_dir(w->parent_fd);
    char *path = w->made_count ? strdup(w->parent) : NULL;
    for (size_t i = 0; !e && path && i < w->made_count; i++) {
        char *slash = strrchr(path, '/');
        if (slash)
            slash[slash == path] = 0;
        int fd = open(slash ? path : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        e = fd < 0 ? errno : zri_sync_dir(fd);
        if (fd >= 0)
            close(fd);
    }
    free(path);
    return e;
}

/* RENAME_NOREPLACE where the filesystem has it: nobody's store is replaced. */
static int rename_new(const struct zr_writer *w)
{
    if (renameat2(w->parent_fd, w->temp_name, w->parent_fd, w->name, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != EINVAL && errno != ENOSYS)
        return errno;
    struct stat st;
    if (fstatat(w->parent_fd, w->name, &st, AT_SYMLINK_NOFOLLOW) == 0)
        return EEXIST;
    return renameat(w->parent_fd, w->temp_name, w->parent_fd, w->name) ? errno : 0;
}

int zr_writer_close(struct zr_writer *w, struct zr_error *err)
{
    int rc = ZR_OK;
    if (!zri_writer_is_owner(w))
        rc =
            zri_fail(err, ZR_E_STATE, "%s: not published: a writer does not survive fork", w->path);
    else if (w->failed)
        rc = zri_fail(err, ZR_E_STATE, "%s: not published: an append failed", w->path);
    if (!rc)
        rc = write_header(w, err);
    if (!rc)
        rc = close_files(w, err);
    int e = rc ? 0 : rename_new(w);
    if (e)
        rc = e == EEXIST ? zri_fail(err, ZR_E_EXISTS, "%s: already exists", w->path)
                         : zri_fail_errno(err, e, "%s: cannot publish", w->path);
    if (rc) {
        zr_writer_abort(w);
        return rc;
    }
    e = w->durable ? sync_parents(w) : 0;
    if (e) { /* a name that a crash may lose is not published: take it back */
        rc = zri_fail_errno(err, e, "%s: cannot sync its directory", w->path);
        discard(w, w->name);
        return rc;
    }
    free_writer(w);
    return ZR_OK;
}
