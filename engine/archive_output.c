/* SPDX-License-Identifier: MIT
 *
 * Files that appear whole.  Where the filesystem has it, the file has no name
 * until then (O_TMPFILE), so that not even a killed process leaves anything; else
 * a hidden name beside the target.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "archive_output.h"

/* Links in the path are followed, so that the file they lead to is replaced. */
static char *resolve(const char *path)
{
    char *target = realpath(path, NULL);
    if (target || errno != ENOENT)
        return target;
    const char *slash = strrchr(path, '/');
    char *parent = slash == path ? strdup("/")
                   : slash       ? strndup(path, (size_t)(slash - path))
                                 : strdup(".");
    char *folder = parent ? realpath(parent, NULL) : NULL;
    int saved = errno;
    const char *name = slash ? slash + 1 : path;
    if (folder &&
        (!*name || asprintf(&target, "%s/%s", strcmp(folder, "/") ? folder : "", name) < 0))
        target = NULL;
    if (folder)
        saved = *name ? ENOMEM : EISDIR;
    free(parent);
    free(folder);
    errno = saved;
    return target;
}

/* What is at the target already. */
static int look_at_target(struct zri_output *o, struct zr_error *err)
{
    struct stat st;
    if (fstatat(o->dir_fd, o->name, &st, AT_SYMLINK_NOFOLLOW))
        return errno == ENOENT ? ZR_OK
                               : zri_fail_errno(err, errno, "%s: cannot write there", o->path);
    if (o->no_replace)
        return zri_fail(err, ZR_E_EXISTS, "%s: already exists", o->path);
    if (S_ISDIR(st.st_mode))
        return zri_fail(err, ZR_E_EXISTS, "%s: is a directory", o->path);
    if (!S_ISREG(st.st_mode))
        return zri_fail(err, ZR_E_INVALID, "%s: is no regular file", o->path);
    /* Renaming asks for the right to write the folder only. */
    if (faccessat(o->dir_fd, o->name, W_OK, AT_EACCESS))
        return zri_fail_errno(err, errno, "%s: cannot replace it", o->path);
    o->replaces = true;
    o->mode = st.st_mode & 07777;
    return ZR_OK;
}

static int set_temp_name(struct zri_output *o)
{
    uint64_t random;
    free(o->temp_name);
    o->temp_name = NULL;
    if (getrandom(&random, sizeof random, 0) != sizeof random)
        return errno;
    return asprintf(&o->temp_name, ".zrecord-%016" PRIx64 ".tmp", random) < 0 ? ENOMEM : 0;
}

static int make_named(struct zri_output *o)
{
    for (int tries = 0; tries < 16; tries++) {
        int e = set_temp_name(o);
        if (e)
            return e;
        /* set_temp_name gave it one.  NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker) */
        o->fd = openat(o->dir_fd, o->temp_name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (o->fd >= 0)
            return 0;
        if (errno != EEXIST)
            break;
    }
    int e = errno;
    free(o->temp_name);
    o->temp_name = NULL;
    return e;
}

static int make_file(struct zri_output *o)
{
    /* Giving it a name later goes through /proc. */
    if (access("/proc/self/fd", X_OK) == 0) {
        o->fd = openat(o->dir_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
        if (o->fd >= 0)
            return 0;
        if (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT && errno != EINVAL)
            return errno;
    }
    return make_named(o);
}

int zri_output_begin(struct zri_output *o, const char *path, bool no_replace, struct zr_error *err)
{
    *o = (struct zri_output){.path = path, .dir_fd = -1, .fd = -1, .no_replace = no_replace};
    if (!path || !*path)
        return zri_fail(err, ZR_E_INVALID, "the path of an archive is empty");
    o->target = resolve(path);
    if (!o->target)
        return zri_fail_errno(err, errno, "%s: cannot write there", path);
    char *slash = strrchr(o->target, '/');
    o->name = slash + 1;
    *slash = 0;
    o->dir_fd = open(slash == o->target ? "/" : o->target, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    *slash = '/';
    if (o->dir_fd < 0)
        return zri_fail_errno(err, errno, "%s: cannot open its directory", path);
    int rc = look_at_target(o, err);
    int e = rc ? 0 : make_file(o);
    return e ? zri_fail_errno(err, e, "%s: cannot create", path) : rc;
}

/* From no name to `name`; the link may not exist. */
static int give_name(const struct zri_output *o, const char *name)
{
    char proc[40];
    snprintf(proc, sizeof proc, "/proc/self/fd/%d", o->fd);
    /* NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker) */
    return linkat(AT_FDCWD, proc, o->dir_fd, name, AT_SYMLINK_FOLLOW) ? errno : 0;
}

static int rename_temp(struct zri_output *o)
{
    unsigned flags = o->no_replace ? RENAME_NOREPLACE : 0;
    if (renameat2(o->dir_fd, o->temp_name, o->dir_fd, o->name, flags))
        return errno;
    free(o->temp_name);
    o->temp_name = NULL;
    return 0;
}

static int take_place(struct zri_output *o)
{
    if (!o->temp_name) {
        int e = give_name(o, o->name);
        if (e != EEXIST || o->no_replace)
            return e;
        e = set_temp_name(o); /* a link cannot replace, a renamed one can */
        if (!e)
            e = give_name(o, o->temp_name);
        if (e) {
            free(o->temp_name);
            o->temp_name = NULL;
            return e;
        }
    }
    return rename_temp(o);
}

int zri_output_publish(struct zri_output *o, bool durable, struct zr_error *err)
{
    int e = 0;
    if (o->replaces && fchmod(o->fd, o->mode))
        e = errno;
    if (!e && durable && fsync(o->fd))
        e = errno;
    if (!e)
        e = take_place(o);
    if (!e && durable)
        e = zri_sync_dir(o->dir_fd);
    return e ? zri_fail_errno(err, e, "%s: cannot finish", o->path) : ZR_OK;
}

void zri_output_end(struct zri_output *o)
{
    if (o->temp_name)
        unlinkat(o->dir_fd, o->temp_name, 0);
    if (o->fd >= 0)
        close(o->fd);
    if (o->dir_fd >= 0)
        close(o->dir_fd);
    free(o->temp_name);
    free(o->target);
    *o = (struct zri_output){.dir_fd = -1, .fd = -1};
}
