/* SPDX-License-Identifier: MIT
 *
 * Looking at paths and folders on disk (probe.h).
 */
#include "probe.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/* ---------------------------------------------------------------- paths */

/* By its name, so that not every file of a tree has to be looked into. */
static bool has_archive_name(const char *path)
{
    size_t n = strlen(path);
    return n > 4 && strcmp(path + n - 4, ".tdz") == 0;
}

bool probe_archive(const char *path, struct probe_stamp *stamp)
{
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode))
        return false;
    *stamp = (struct probe_stamp){st.st_mtim.tv_sec, st.st_mtim.tv_nsec, st.st_size};
    return true;
}

bool probe_is_inside(const char *path, const char *folder)
{
    size_t n = strlen(folder);
    return strncmp(path, folder, n) == 0 && (path[n] == '\0' || path[n] == '/');
}

/* True when a link leads to the mountpoint itself, which would ask this program
 * while it waits for the answer. */
static bool leads_inside(const char *path, const char *mountpoint)
{
    char target[PATH_MAX];
    ssize_t n = readlink(path, target, sizeof target - 1);
    if (n < 0)
        return false;
    target[n] = '\0';
    return probe_is_inside(target, mountpoint);
}

/* Of a path that could not be looked at: whether nothing is there, or something in the way. */
static int absent_or(int failure)
{
    return failure == ENOTDIR || failure == ENAMETOOLONG ? ENOENT : failure;
}

int probe_store(const char *path, struct probe_stamp *stamp)
{
    char meta[PATH_MAX];
    struct stat st;
    int n = snprintf(meta, sizeof meta, "%s/meta.zr", path);
    if (n < 0 || (size_t)n >= sizeof meta)
        return ENOENT;
    if (stat(meta, &st) != 0)
        return absent_or(errno);
    if (!S_ISREG(st.st_mode))
        return ENOENT;
    *stamp = (struct probe_stamp){st.st_mtim.tv_sec, st.st_mtim.tv_nsec, st.st_size};
    return 0;
}

int probe_classify(const char *mountpoint, const char *path, enum source_kind *kind,
                   struct probe_stamp *stamp)
{
    struct stat st;
    int failure = ENOENT;
    if (probe_is_inside(path, mountpoint))
        return ENOENT;
    if (lstat(path, &st) != 0)
        return absent_or(errno);
    if (S_ISLNK(st.st_mode) && leads_inside(path, mountpoint))
        return ENOENT;
    *stamp = (struct probe_stamp){0};
    if (S_ISDIR(st.st_mode) || S_ISLNK(st.st_mode))
        failure = probe_store(path, stamp);
    if (!failure) {
        *kind = SOURCE_STORE;
        return 0;
    }
    if (failure != ENOENT && !(failure == EACCES && S_ISDIR(st.st_mode)))
        return failure;
    if (has_archive_name(path) && probe_archive(path, stamp)) {
        *kind = SOURCE_ARCHIVE;
        return 0;
    }
    *kind = SOURCE_FOLDER;
    return S_ISDIR(st.st_mode) ? 0 : ENOENT;
}

/* ---------------------------------------------------------------- folders */

static int by_position(const void *a, const void *b)
{
    const struct probe_name *x = a, *y = b;
    return x->position < y->position ? -1 : x->position > y->position;
}

static bool add_name(struct probe_name **names, size_t *count, size_t *capacity, const char *name)
{
    if (*count == *capacity) {
        size_t more = *capacity ? 2 * *capacity : 64;
        struct probe_name *grown = realloc(*names, more * sizeof *grown);
        if (!grown)
            return false;
        *names = grown;
        *capacity = more;
    }
    struct probe_name *to = &(*names)[*count];
    to->position = (XXH3_64bits(name, strlen(name)) >> 2) | PROBE_NAME_FIRST;
    to->name = strdup(name);
    *count += to->name != NULL;
    return to->name != NULL;
}

static bool may_be_shown(const struct dirent *entry)
{
    return entry->d_name[0] != '.' &&
           (entry->d_type == DT_DIR || entry->d_type == DT_LNK || entry->d_type == DT_UNKNOWN ||
            has_archive_name(entry->d_name));
}

int probe_names(const char *path, struct probe_name **names, size_t *count)
{
    size_t capacity = 0;
    *names = NULL;
    *count = 0;
    DIR *dir = opendir(path);
    if (!dir)
        return errno == ENOENT ? ESTALE : errno;
    struct stat st;
    int failure = fstatat(dirfd(dir), ".", &st, 0) == 0 ? 0 : errno; /* EACCES without x */
    while (!failure) {
        errno = 0;
        const struct dirent *entry = readdir(dir);
        if (!entry) {
            failure = errno;
            break;
        }
        if (may_be_shown(entry) && !add_name(names, count, &capacity, entry->d_name))
            failure = ENOMEM;
    }
    closedir(dir);
    if (failure) {
        probe_names_free(*names, *count);
        return failure;
    }
    if (*count)
        qsort(*names, *count, sizeof **names, by_position);
    return 0;
}

void probe_names_free(struct probe_name *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(names[i].name);
    free(names);
}
