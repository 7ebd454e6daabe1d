/* SPDX-License-Identifier: MIT
 *
 * Folders of archives that are packed and unpacked: opened one name at a time, and
 * removed again when the work fails.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
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

/* ---------------------------------------------------------------- removal */

/* A tree may be deeper than the stack and than the files a process may open.  So
 * folders inside a folder of the top are lifted up to the top, and no more than two
 * are ever open. */
struct removal {
    int top_fd;
    unsigned lifted;
};

static void sweep(struct removal *r, int fd);

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

static bool empty_and_remove(struct removal *r, const char *name)
{
    int fd = zri_folder_open(r->top_fd, name);
    if (fd < 0)
        return false;
    sweep(r, fd);
    close(fd);
    return unlinkat(r->top_fd, name, AT_REMOVEDIR) == 0;
}

/* Whether something changed. */
static bool remove_entry(struct removal *r, int fd, const char *name)
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
    return fd == r->top_fd ? empty_and_remove(r, name) : lift(r, fd, name);
}

/* Again and again, since entries that go and come move the others about, until a
 * pass changes nothing. */
static void sweep(struct removal *r, int fd)
{
    alignas(struct dirent64) char entries[2048];
    for (bool changed = true; changed;) {
        changed = false;
        lseek(fd, 0, SEEK_SET);
        for (ssize_t n; (n = getdents64(fd, entries, sizeof entries)) > 0;) {
            const struct dirent64 *d;
            for (ssize_t at = 0; at < n; at += d->d_reclen) {
                d = (const struct dirent64 *)(const void *)(entries + at);
                changed |= remove_entry(r, fd, d->d_name);
            }
        }
    }
}

void zri_folder_remove(int at, const char *name)
{
    struct removal r = {.top_fd = zri_folder_open(at, name)};
    if (r.top_fd >= 0) {
        sweep(&r, r.top_fd);
        close(r.top_fd);
    }
    unlinkat(at, name, AT_REMOVEDIR);
}
