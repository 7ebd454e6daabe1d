/* SPDX-License-Identifier: MIT
 *
 * Folders of archives that are packed and unpacked: opened one name at a time, and
 * removed again when the work fails.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdalign.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "archive_folders.h"

int zri_folder_open(int at, const char *name)
{
    return openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static int open_part(int at, const char *part, size_t nbytes)
{
    char name[NAME_MAX + 1];
    if (nbytes > NAME_MAX) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(name, part, nbytes);
    name[nbytes] = 0;
    return zri_folder_open(at, name);
}

int zri_folder_open_path(int at, const char *path, size_t nbytes, size_t *failed_nbytes)
{
    int fd = fcntl(at, F_DUPFD_CLOEXEC, 3);
    for (size_t start = 0, end; fd >= 0 && start < nbytes; start = end + 1) {
        const char *slash = memchr(path + start, '/', nbytes - start);
        end = slash ? (size_t)(slash - path) : nbytes;
        int next = open_part(fd, path + start, end - start), e = errno;
        close(fd);
        fd = next;
        errno = e;
        if (fd < 0)
            *failed_nbytes = end;
    }
    return fd;
}

/* ---------------------------------------------------------------- removal */

/* A tree may be deeper than the stack and than the files a process may open.  So what
 * lies deeper than this, or than the files that are left, is lifted to the top first. */
#define DEPTH_MAX 16

struct removal {
    int top_fd;
    unsigned lifted;
};

static void sweep(struct removal *r, int fd, unsigned depth);

static bool lift(struct removal *r, int fd, const char *name)
{
    char lifted[24];
    do {
        snprintf(lifted, sizeof lifted, ".lifted-%u", r->lifted++);
        if (renameat(fd, name, r->top_fd, lifted) == 0)
            return true;
    } while (r->lifted && (errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR));
    return false;
}

static bool empty_and_remove(struct removal *r, int at, const char *name, unsigned depth)
{
    int fd = zri_folder_open(at, name);
    if (fd < 0) /* at the top there is always one to be had */
        return (errno == EMFILE || errno == ENFILE) && depth > 1 && lift(r, at, name);
    sweep(r, fd, depth);
    close(fd);
    return unlinkat(at, name, AT_REMOVEDIR) == 0;
}

/* Whether something changed. */
static bool remove_entry(struct removal *r, int fd, const char *name, unsigned depth)
{
    if (!strcmp(name, ".") || !strcmp(name, ".."))
        return false;
    if (unlinkat(fd, name, 0) == 0)
        return true;
    if (errno != EISDIR && errno != EPERM)
        return false;
    if (unlinkat(fd, name, AT_REMOVEDIR) == 0)
        return true;
    if (errno != ENOTEMPTY && errno != EEXIST)
        return false;
    return depth < DEPTH_MAX ? empty_and_remove(r, fd, name, depth + 1) : lift(r, fd, name);
}

/* Again and again, since entries that go and come move the others about, until a
 * pass changes nothing. */
static void sweep(struct removal *r, int fd, unsigned depth)
{
    alignas(struct dirent64) char entries[2048];
    for (bool changed = true; changed;) {
        changed = false;
        lseek(fd, 0, SEEK_SET);
        for (ssize_t n; (n = getdents64(fd, entries, sizeof entries)) > 0;) {
            const struct dirent64 *d;
            for (ssize_t at = 0; at < n; at += d->d_reclen) {
                d = (const struct dirent64 *)(const void *)(entries + at);
                changed |= remove_entry(r, fd, d->d_name, depth);
            }
        }
    }
}

void zri_folder_remove(int at, const char *name)
{
    struct removal r = {.top_fd = zri_folder_open(at, name)};
    if (r.top_fd >= 0) {
        sweep(&r, r.top_fd, 0);
        close(r.top_fd);
    }
    unlinkat(at, name, AT_REMOVEDIR);
}

/* ---------------------------------------------------------------- listing */

void zri_folder_each(int fd, void (*fn)(int fd, const char *name), bool (*wanted)(const char *name))
{
    alignas(struct dirent64) char entries[8192];
    lseek(fd, 0, SEEK_SET);
    for (ssize_t n; (n = getdents64(fd, entries, sizeof entries)) > 0;) {
        const struct dirent64 *d;
        for (ssize_t at = 0; at < n; at += d->d_reclen) {
            d = (const struct dirent64 *)(const void *)(entries + at);
            if (wanted(d->d_name))
                fn(fd, d->d_name);
        }
    }
}
