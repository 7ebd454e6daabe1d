/* SPDX-License-Identifier: MIT
 *
 * Outputs that appear whole or not at all: written under a hidden name beside
 * the target, renamed at the end without replacing anything, removed on failure.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools.h"

static mode_t current_umask(void)
{
    mode_t mask = umask(0);

    umask(mask);
    return mask;
}

/* ".zrecord-XXXXXX" in the folder that holds target. */
static char *temporary_template(const char *target)
{
    size_t end = strlen(target);
    char *path;

    while (end > 1 && target[end - 1] == '/')
        end--;
    while (end > 0 && target[end - 1] != '/')
        end--;
    return asprintf(&path, "%.*s.zrecord-XXXXXX", (int)end, target) < 0 ? NULL : path;
}

static int make_folder(char *path)
{
    if (!mkdtemp(path))
        return -1;
    chmod(path, 0777 & ~current_umask());
    return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static int make_file(char *path)
{
    int fd = mkostemp(path, O_CLOEXEC);

    if (fd >= 0)
        fchmod(fd, 0666 & ~current_umask());
    return fd;
}

int output_begin(struct output *o, const char *target, bool folder)
{
    int status = refuse_existing(target);

    *o = (struct output){.target = target, .fd = -1, .folder = folder};
    if (status)
        return status;
    o->temporary = temporary_template(target);
    if (!o->temporary)
        return fail_nomem();
    o->fd = folder ? make_folder(o->temporary) : make_file(o->temporary);
    if (o->fd >= 0)
        return 0;
    free(o->temporary);
    o->temporary = NULL;
    return fail_errno(target);
}

/* Filesystems that cannot refuse to replace are asked first. */
static int rename_new(const char *from, const char *to)
{
    struct stat st;

    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != EINVAL && errno != ENOSYS)
        return -1;
    if (lstat(to, &st) == 0) {
        errno = EEXIST;
        return -1;
    }
    return rename(from, to);
}

int output_publish(struct output *o)
{
    int fd = o->fd;

    o->fd = -1;
    if (close(fd) != 0 || rename_new(o->temporary, o->target) != 0) {
        int status = fail_errno(o->target);
        output_discard(o);
        return status;
    }
    free(o->temporary);
    o->temporary = NULL;
    return 0;
}

static void empty_folder(const char *path)
{
    DIR *dir = opendir(path);

    if (!dir)
        return;
    for (const struct dirent *entry; (entry = readdir(dir));)
        unlinkat(dirfd(dir), entry->d_name, 0); /* "." and ".." stay */
    closedir(dir);
}

void output_discard(struct output *o)
{
    if (!o->temporary)
        return;
    if (o->fd >= 0)
        close(o->fd);
    if (o->folder) {
        empty_folder(o->temporary);
        rmdir(o->temporary);
    } else {
        unlink(o->temporary);
    }
    free(o->temporary);
    o->temporary = NULL;
}

void output_remove_folder(const char *path)
{
    char *hidden = temporary_template(path);

    /* Gone from its name at once; what a kill leaves is a hidden folder. */
    if (hidden && mkdtemp(hidden)) {
        const char *where = rename(path, hidden) == 0 ? hidden : path;
        empty_folder(where);
        rmdir(hidden);
        rmdir(path);
    }
    free(hidden);
}
