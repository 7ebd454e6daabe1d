/* SPDX-License-Identifier: MIT
 *
 * An archive into a directory.  All names are checked against each other before
 * anything is written; then every member is written below a hidden folder beside
 * its place, its checksum compared; and when all are there, they move into place.
 * Folders and files are opened one name at a time without following links.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "archive.h"
#include "archive_folders.h"
#include "archive_place.h"
#include "archive_stage.h"

struct unpacking {
    struct zr_archive *a;
    const char *dir;
    struct zr_archive_unpack_options options;
    int parent_fd, stage_fd;
    char stage_name[ZRI_STAGE_NAME_NBYTES];
    int dir_fd;    /* of dir when it is there already, else -1 */
    bool made_dir; /* dir itself is new: the stage becomes it */
    pthread_mutex_t lock;
    struct zr_error error; /* under lock */
    atomic_bool failed;
    struct zri_watch watch;
    size_t *runs; /* first member of each, and the end */
    size_t run_count, first;
};

static int failed(const struct unpacking *u, int e, const char *name, struct zr_error *err)
{
    return zri_fail_errno(err, e, "%s/%s: cannot write", u->dir, name);
}

/* ---------------------------------------------------------------- checks first */

/* Some part of the member's path is itself a file. */
static bool passes_through_file(const struct zr_archive *a, const struct zri_member *m)
{
    for (const char *slash = strchr(m->name, '/'); slash; slash = strchr(slash + 1, '/'))
        if (slash[1] && zri_archive_find(a, m->name, (size_t)(slash - m->name)) != SIZE_MAX)
            return true;
    return false;
}

static int check_members(const struct zr_archive *a, struct zr_error *err)
{
    uint64_t off = 0;
    for (size_t i = 0; i < a->count; i++) {
        const struct zri_member *m = &a->members[i];
        if (m->is_special)
            return zri_member_failed(a, i, ZR_E_FORMAT, "is a link or another special file", err);
        if (passes_through_file(a, m))
            return zri_member_failed(a, i, ZR_E_FORMAT, "lies below another file", err);
        int rc = zri_member_payload(a, i, &off, err);
        if (rc)
            return rc;
    }
    return zri_archive_find(a, "meta.json", 9) != SIZE_MAX
               ? ZR_OK
               : zri_fail(err, ZR_E_FORMAT, "%s: is no memmap archive: it has no meta.json",
                          a->path);
}

/* ---------------------------------------------------------------- folders */

/* Opens the folder of `path` below `at`, making what is missing; *base is the last
 * part.  -1 with errno. */
static int make_folders(int at, const char *path, const char **base)
{
    char *copy = strdup(path), *part = copy;
    int fd = copy ? fcntl(at, F_DUPFD_CLOEXEC, 3) : -1;
    for (char *slash; fd >= 0 && (slash = strchr(part, '/')); part = slash + 1) {
        *slash = 0;
        if (mkdirat(fd, part, 0777) && errno != EEXIST) {
            int e = errno;
            close(fd);
            errno = e;
            fd = -1;
            break;
        }
        int next = zri_folder_open(fd, part), e = errno;
        close(fd);
        errno = e;
        fd = next;
    }
    *base = path + (part - copy);
    free(copy);
    return fd;
}

static int make_stage(struct unpacking *u, struct zr_error *err)
{
    int e = zri_stage_make(u->parent_fd, u->stage_name, &u->stage_fd);
    return e ? zri_fail_errno(err, e, "%s: cannot write", u->dir) : ZR_OK;
}

/* Files of an archive among those of a store are neither's. */
static bool is_store(int dir_fd)
{
    struct stat st;
    return fstatat(dir_fd, "meta.zr", &st, 0) == 0 && S_ISREG(st.st_mode);
}

/* The folder that will hold the stage: dir itself, or the one it is to appear in. */
static int open_places(struct unpacking *u, struct zr_error *err)
{
    if (!*u->dir)
        return zri_fail_errno(err, ENOENT, "''");
    u->dir_fd = open(u->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (u->dir_fd >= 0) {
        u->parent_fd = u->dir_fd;
        if (is_store(u->dir_fd))
            return zri_fail(err, ZR_E_EXISTS, "%s: is a store: unpack into another folder", u->dir);
        return make_stage(u, err);
    }
    if (errno != ENOENT)
        return zri_fail_errno(err, errno, "%s: cannot open", u->dir);
    size_t n = strlen(u->dir);
    while (n > 1 && u->dir[n - 1] == '/')
        n--;
    size_t slash = n;
    while (slash && u->dir[slash - 1] != '/')
        slash--;
    char *parent = slash ? strndup(u->dir, slash) : strdup(".");
    if (!parent)
        return zri_fail(err, ZR_E_NOMEM, "%s: out of memory", u->dir);
    u->parent_fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int e = errno;
    free(parent);
    if (u->parent_fd < 0)
        return zri_fail_errno(err, e, "%s: cannot open its directory", u->dir);
    u->made_dir = true;
    return make_stage(u, err);
}

/* ---------------------------------------------------------------- writing */

#define STEP_NBYTES ((size_t)1 << 20)
#define RUN_NBYTES ((uint64_t)1 << 20)
#define BLOCK_NBYTES 4096 /* of most filesystems; others refuse, and get a copy */
#define SHARED_MIN_NBYTES ((uint64_t)64 << 10)

/* Blocks that the file shares with the archive from now on, where the filesystem can
 * do that: seven times as fast as a copy on btrfs and XFS.  It takes payloads that start
 * at a block.  For the others copy_file_range would be left, which is no faster than
 * reading and writing on ext4, half as fast on XFS, and does not show the bytes that the
 * checksum needs. */
static uint64_t share_blocks(const struct unpacking *u, uint64_t off, uint64_t nbytes, int fd)
{
    struct file_clone_range range = {
        .src_fd = u->a->file.fd, .src_offset = off, .src_length = nbytes - nbytes % BLOCK_NBYTES};
    if (off % BLOCK_NBYTES || range.src_length < SHARED_MIN_NBYTES)
        return 0;
    return ioctl(fd, FICLONERANGE, &range) ? 0 : range.src_length;
}

/* Stored bytes go from the file to the file in steps, checked on the way. */
static int copy_stored(struct unpacking *u, size_t index, int fd, struct zr_error *err)
{
    const struct zri_member *m = &u->a->members[index];
    uint64_t off = 0;
    int rc = zri_member_payload(u->a, index, &off, err);
    size_t step = m->nbytes < STEP_NBYTES ? (size_t)m->nbytes : STEP_NBYTES;
    uint8_t *buf = rc ? NULL : zr_buffer_alloc(step);
    uint64_t shared = rc || !buf ? 0 : share_blocks(u, off, m->nbytes, fd);
    uint32_t crc = 0;
    if (!rc && !buf)
        rc = zri_member_failed(u->a, index, ZR_E_NOMEM, zri_out_of_memory, err);
    for (uint64_t done = 0; !rc && done < m->nbytes; done += step) {
        size_t n = m->nbytes - done < step ? (size_t)(m->nbytes - done) : step;
        if (zri_watch_look(&u->watch)) {
            rc = zri_member_failed(u->a, index, ZR_E_CANCELLED, zri_stopped, err);
            break;
        }
        int e = zri_file_read(&u->a->file, off + done, buf, n);
        if (e)
            rc = zri_member_failed(u->a, index, e < 0 ? ZR_E_TRUNCATED : ZR_E_IO, "cannot be read",
                                   err);
        crc = rc ? crc : zri_crc32(crc, buf, n);
        size_t skip = shared <= done ? 0 : shared - done < n ? (size_t)(shared - done) : n;
        e = rc ? 0 : zri_write_full(fd, buf + skip, n - skip, done + skip);
        if (e)
            rc = failed(u, e, m->name, err);
    }
    zr_buffer_free(buf);
    if (!rc && crc != m->crc)
        rc = zri_member_failed(u->a, index, ZR_E_CHECKSUM,
                               "its data differs from its checksum (CRC-32)", err);
    return rc;
}

static int copy_packed(struct unpacking *u, size_t index, int fd, struct zr_error *err)
{
    const struct zri_member *m = &u->a->members[index];
    void *buf = zr_buffer_alloc((size_t)m->nbytes);
    if (!buf)
        return zri_member_failed(u->a, index, ZR_E_NOMEM, zri_out_of_memory, err);
    int rc = zri_member_read(u->a, index, buf, &u->watch, err);
    int e = rc ? 0 : zri_write_full(fd, buf, (size_t)m->nbytes, 0);
    zr_buffer_free(buf);
    return e ? failed(u, e, m->name, err) : rc;
}

static size_t folder_nbytes(const struct zri_member *m)
{
    const char *slash = strrchr(m->name, '/');
    return slash ? (size_t)(slash - m->name) + 1 : 0;
}

static bool same_folder(const struct zri_member *a, const struct zri_member *b)
{
    size_t n = folder_nbytes(a);
    return n == folder_nbytes(b) && !memcmp(a->name, b->name, n);
}

static int write_member(struct unpacking *u, size_t index, int folder, struct zr_error *err)
{
    const struct zri_member *m = &u->a->members[index];
    const char *base = m->name + folder_nbytes(m);
    if (!*base) /* a folder */
        return ZR_OK;
    int fd = openat(folder, base, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0)
        return failed(u, errno, m->name, err);
    int rc;
    rc = m->method == ZRI_ZIP_STORED ? copy_stored(u, index, fd, err)
                                     : copy_packed(u, index, fd, err);
    if (!rc && u->options.durable && fsync(fd))
        rc = failed(u, errno, m->name, err);
    if (close(fd) && !rc)
        rc = failed(u, errno, m->name, err);
    return rc;
}

/* Members [first, last), which share a folder. */
static int write_run(struct unpacking *u, size_t first, size_t last, struct zr_error *err)
{
    const char *base;
    int folder = make_folders(u->stage_fd, u->a->members[first].name, &base), rc = ZR_OK;
    if (folder < 0)
        return failed(u, errno, u->a->members[first].name, err);
    for (size_t i = first; !rc && i < last; i++) {
        rc = write_member(u, i, folder, err);
        atomic_fetch_add(&u->watch.done, u->a->members[i].nbytes);
    }
    close(folder);
    return rc;
}

static void write_task(void *ctx, size_t i)
{
    struct unpacking *u = ctx;
    size_t run = u->first + i;
    struct zr_error error;
    if (!atomic_load(&u->failed) && write_run(u, u->runs[run], u->runs[run + 1], &error)) {
        pthread_mutex_lock(&u->lock);
        if (!atomic_exchange(&u->failed, true))
            u->error = error;
        pthread_mutex_unlock(&u->lock);
    }
}

/* Neighbours in one folder, so that it is opened once for many of them. */
static int cut(struct unpacking *u, struct zr_error *err)
{
    const struct zri_member *m = u->a->members;
    u->runs = malloc((u->a->count + 1) * sizeof *u->runs);
    if (!u->runs)
        return zri_fail(err, ZR_E_NOMEM, "%s: out of memory", u->dir);
    uint64_t nbytes = 0;
    for (size_t i = 0; i < u->a->count; i++) {
        if (!i || nbytes > RUN_NBYTES || !same_folder(&m[i - 1], &m[i])) {
            u->runs[u->run_count++] = i;
            nbytes = 0;
        }
        nbytes += m[i].nbytes;
    }
    u->runs[u->run_count] = u->a->count;
    return ZR_OK;
}

static int write_members(struct unpacking *u, struct zr_error *err)
{
    const struct zr_archive_unpack_options *o = &u->options;
    unsigned threads = o->thread_count ? o->thread_count : zr_thread_count();
    uint64_t total = 0;
    for (size_t i = 0; i < u->a->count; i++)
        total += u->a->members[i].nbytes;
    int rc = cut(u, err);
    if (rc)
        return rc;
    zri_watch_init(&u->watch, o->progress, o->progress_ctx, total);
    size_t round = o->progress ? 16 * (size_t)threads : u->run_count;
    for (; u->first < u->run_count; u->first += round) {
        size_t left = u->run_count - u->first;
        zri_watch_parallel(&u->watch, left < round ? left : round, threads, write_task, u);
        if (zri_watch_ask(&u->watch))
            return zri_fail(err, ZR_E_CANCELLED, "%s: cancelled", u->dir);
        if (atomic_load(&u->failed))
            return zri_fail_as(err, &u->error);
    }
    return ZR_OK;
}

/* ---------------------------------------------------------------- into place */

static int move_into_place(struct unpacking *u, struct zr_error *err)
{
    if (u->made_dir) {
        int e =
            renameat2(u->parent_fd, u->stage_name, AT_FDCWD, u->dir, RENAME_NOREPLACE) ? errno : 0;
        if (e == EINVAL) /* a filesystem without that flag */
            e = renameat(u->parent_fd, u->stage_name, AT_FDCWD, u->dir) ? errno : 0;
        if (e)
            return zri_fail_errno(err, e, "%s: cannot finish", u->dir);
        u->stage_name[0] = 0;
        return ZR_OK;
    }
    bool stranded;
    int turn_fd;
    struct zr_error error;
    if (!zri_turn_begin(u->dir_fd, &u->watch, &turn_fd))
        return zri_fail(err, ZR_E_CANCELLED, "%s: cancelled", u->dir);
    int rc = zri_members_place(u->a, u->stage_fd, u->dir_fd, u->dir, &stranded, &error);
    zri_turn_end(u->dir_fd, turn_fd);
    if (stranded) { /* the stage holds the only copy of something */
        zri_fail(err, rc, "%s; not all could be undone: what is missing is in %s/%s", error.message,
                 u->dir, u->stage_name);
        zri_stage_keep(u->stage_fd);
        u->stage_name[0] = 0;
        return rc;
    }
    return rc ? zri_fail_as(err, &error) : ZR_OK;
}

static void release(struct unpacking *u)
{
    if (u->stage_fd >= 0)
        close(u->stage_fd);
    if (u->stage_name[0])
        zri_folder_remove(u->parent_fd, u->stage_name);
    if (u->dir_fd >= 0)
        close(u->dir_fd);
    else if (u->parent_fd >= 0)
        close(u->parent_fd);
    pthread_mutex_destroy(&u->lock);
    free(u->runs);
    zr_archive_close(u->a);
}

int zr_archive_unpack(const char *path, const char *dir,
                      const struct zr_archive_unpack_options *options, struct zr_error *err)
{
    struct unpacking u = {.dir = dir,
                          .parent_fd = -1,
                          .stage_fd = -1,
                          .dir_fd = -1,
                          .lock = PTHREAD_MUTEX_INITIALIZER};
    if (options)
        u.options = *options;
    int rc = zr_archive_open(&u.a, path, ZR_ARCHIVE_COPY, err);
    if (!rc)
        rc = check_members(u.a, err);
    if (!rc)
        rc = open_places(&u, err);
    if (!rc)
        rc = write_members(&u, err);
    if (!rc)
        rc = move_into_place(&u, err);
    if (!rc)
        zri_stage_remove_stale(u.parent_fd);
    release(&u);
    return rc;
}
