/* SPDX-License-Identifier: MIT
 *
 * One array of a .npz, which is a zip file of .npy: a stored one is read where it lies
 * in the file, a compressed one from a scratch file that has no name.  Either way its
 * checksum was compared before anything is made of it.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "source.h"

#define IN_MEMORY_NBYTES ((uint64_t)64 << 20) /* scratch files up to here take memory */
#define LISTED_NBYTES 400                     /* of names in a message */

/* ---------------------------------------------------------------- names */

static bool ends_with(const char *text, size_t length, const char *suffix)
{
    size_t n = strlen(suffix);

    return length >= n && memcmp(text + length - n, suffix, n) == 0;
}

static bool is_file(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && !S_ISDIR(st.st_mode);
}

/* The ':' in FILE.npz:NAME, when there is such a FILE; whoever has a file called so with
 * the ':' means that. */
static const char *find_colon(const char *path)
{
    for (const char *p = strstr(path, ".npz:"); p && !is_file(path); p = strstr(p + 1, ".npz:")) {
        char *file = strndup(path, (size_t)(p - path) + 4);
        bool found = file && is_file(file);
        free(file);
        if (found)
            return p + 4;
    }
    return NULL;
}

bool is_npz(const char *path)
{
    return find_colon(path) || (ends_with(path, strlen(path), ".npz") && is_file(path));
}

/* ---------------------------------------------------------------- the member */

static bool is_array(const char *member)
{
    return ends_with(member, strlen(member), ".npy");
}

/* Counts the arrays, with the names of the first ones in text and the last one's place. */
static int list_arrays(const struct zr_archive *a, uint64_t *count, uint64_t *index, char *text)
{
    struct zr_archive_info info;
    struct zr_archive_member member;
    struct zr_error err;
    size_t used = 0;

    zr_archive_info(a, &info);
    *count = 0;
    text[0] = '\0';
    for (uint64_t i = 0; i < info.member_count; i++) {
        if (zr_archive_member(a, i, &member, &err) != ZR_OK)
            return fail(&err);
        if (!is_array(member.name))
            continue;
        *index = i;
        if (used < LISTED_NBYTES)
            used += (size_t)snprintf(text + used, LISTED_NBYTES - used, "%s%.*s",
                                     *count ? ", " : "", (int)strlen(member.name) - 4, member.name);
        ++*count;
    }
    if (used >= LISTED_NBYTES)
        memcpy(text + LISTED_NBYTES - 4, "...", 4);
    return 0;
}

/* "NAME.npy", as numpy.savez calls it, or the member's whole name. */
static bool find_named(const struct zr_archive *a, const char *name, uint64_t *index)
{
    char *file;

    if (asprintf(&file, "%s.npy", name) < 0)
        return false;
    bool found = zr_archive_find(a, file, index, NULL) == ZR_OK ||
                 (is_array(name) && zr_archive_find(a, name, index, NULL) == ZR_OK);
    free(file);
    return found;
}

static int find_member(const struct zr_archive *a, const char *file, const char *name,
                       uint64_t *index)
{
    char names[LISTED_NBYTES];
    uint64_t count;

    if (name && find_named(a, name, index))
        return 0;
    int status = list_arrays(a, &count, index, names);
    if (status || (!name && count == 1))
        return status;
    if (count == 0)
        return refuse(file, "no arrays in this file");
    if (name)
        diag("%s: no array '%s' in this file, which has: %s", file, name, names);
    else
        diag("%s: %" PRIu64 " arrays in this file: say %s:NAME, with one of: %s", file, count, file,
             names);
    return EXIT_FAILED;
}

/* ---------------------------------------------------------------- compressed ones */

static int open_unnamed(const char *folder)
{
    char *path;
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL))
        return fd;
    if (asprintf(&path, "%s/zrecord-XXXXXX", folder) < 0)
        return -1;
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0)
        unlink(path);
    free(path);
    return fd;
}

/* A file of nbytes that is gone when it is closed. */
static int make_scratch(const char *name, uint64_t nbytes, int *fd)
{
    const char *folder = getenv("TMPDIR");

    if (!folder || !*folder)
        folder = "/var/tmp";
    *fd = nbytes <= IN_MEMORY_NBYTES ? memfd_create("zrecord", MFD_CLOEXEC) : -1;
    if (*fd < 0)
        *fd = open_unnamed(folder);
    int reason = *fd < 0 ? errno : posix_fallocate(*fd, 0, (off_t)nbytes);
    if (reason == 0)
        return 0;
    diag("%s: no room in %s (see TMPDIR) for its %" PRIu64 " bytes: %s", name, folder, nbytes,
         strerror(reason));
    if (*fd >= 0)
        close(*fd);
    return EXIT_FAILED;
}

static int inflate(const struct zr_archive *a, uint64_t index, uint64_t nbytes, const char *name,
                   int *fd)
{
    struct zr_error err;
    int status = make_scratch(name, nbytes, fd);

    if (status)
        return status;
    void *bytes = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    if (bytes == MAP_FAILED) {
        status = fail_errno(name);
    } else {
        const struct zr_archive_copy copy = {index, bytes};
        if (zr_archive_read(a, &copy, 1, NULL, &err) != ZR_OK)
            status = fail(&err);
        munmap(bytes, nbytes);
    }
    if (status)
        close(*fd);
    return status;
}

/* ---------------------------------------------------------------- stored ones */

/* The same file that the archive was opened from. */
static int reopen(const struct zr_archive *a, const char *file, int *fd)
{
    struct zr_archive_info info;
    struct stat st;

    zr_archive_info(a, &info);
    *fd = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0)
        return fail_errno(file);
    if (fstat(*fd, &st) == 0 && (uint64_t)st.st_size == info.nbytes &&
        st.st_mtim.tv_sec == info.mtime_sec && st.st_mtim.tv_nsec == info.mtime_nsec)
        return 0;
    close(*fd);
    return refuse(file, "changed while it was read");
}

static int open_stored(const struct zr_archive *a, uint64_t index, const char *file, int *fd)
{
    const struct zr_archive_copy compare = {index, NULL};
    struct zr_error err;

    if (zr_archive_read(a, &compare, 1, NULL, &err) != ZR_OK)
        return fail(&err);
    return reopen(a, file, fd);
}

static int open_member(const struct zr_archive *a, uint64_t index, const char *file,
                       const char *name, struct npy_file *f)
{
    struct zr_archive_member member;
    struct zr_error err;

    if (zr_archive_member(a, index, &member, &err) != ZR_OK)
        return fail(&err);
    if (member.nbytes == 0)
        return refuse(name, "not a .npy: it is empty");
    bool stored = strcmp(member.method, "stored") == 0;
    int status = stored ? open_stored(a, index, file, &f->fd)
                        : inflate(a, index, member.nbytes, name, &f->fd);
    if (status)
        return status;
    status = read_npy_header(f->fd, name, stored ? member.payload_off : 0, member.nbytes, &f->npy);
    if (status)
        close(f->fd);
    return status;
}

/* "FILE.npz:NAME", also when the user left NAME out. */
static char *make_title(const struct zr_archive *a, uint64_t index, const char *file)
{
    struct zr_archive_member member;
    char *title;

    if (zr_archive_member(a, index, &member, NULL) != ZR_OK)
        return NULL;
    return asprintf(&title, "%s:%.*s", file, (int)strlen(member.name) - 4, member.name) < 0 ? NULL
                                                                                            : title;
}

static int open_in(const struct zr_archive *a, struct source *s, const char *file, const char *name,
                   struct npy_file *f)
{
    uint64_t index = 0;
    int status = find_member(a, file, name, &index);

    if (status)
        return status;
    s->title = make_title(a, index, file);
    if (!s->title)
        return fail_nomem();
    s->path = s->title;
    return open_member(a, index, file, s->path, f);
}

int open_npz(struct source *s, const char *path, struct npy_file *f)
{
    const char *colon = find_colon(path);
    char *file = strndup(path, colon ? (size_t)(colon - path) : strlen(path));
    struct zr_archive *a;
    struct zr_error err;

    if (!file)
        return fail_nomem();
    int status = zr_archive_open(&a, file, ZR_ARCHIVE_COPY, &err) == ZR_OK ? 0 : fail(&err);
    if (!status) {
        status = open_in(a, s, file, colon ? colon + 1 : NULL, f);
        zr_archive_close(a);
    }
    free(file);
    return status;
}
