/* SPDX-License-Identifier: MIT
 *
 * Opens a .npy, or a folder of .npy, and finds out what its records are.  Every
 * header of a folder is read before anything is written, so that a file that
 * cannot be stored is named at once; batch.c reads it again with its payload.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "source.h"

#define HEADER_FIRST_NBYTES 4096
#define HEADER_MAX_NBYTES ((size_t)16 << 20)

/* ---------------------------------------------------------------- one file */

int refuse(const char *name, const char *reason)
{
    diag("%s: %s", name, reason);
    return EXIT_FAILED;
}

/* The header is longer than the first bytes that were read. */
static int read_long_header(int fd, const char *name, uint64_t off, uint64_t nbytes,
                            struct zr_npy *npy)
{
    size_t needed = npy->data_off;
    struct zr_error err;

    if (needed > HEADER_MAX_NBYTES)
        return refuse(name, "its .npy header is unreasonably long");
    void *whole = malloc(needed);
    if (!whole)
        return fail_nomem();
    int64_t n = read_at(fd, whole, needed < nbytes ? needed : nbytes, off);
    int code = n < 0 ? ZR_E_IO : zr_npy_parse(whole, (size_t)n, nbytes, name, npy, &err);
    free(whole);
    if (n < 0)
        return fail_errno(name);
    return code == ZR_OK ? 0 : fail(&err);
}

int read_npy_header(int fd, const char *name, uint64_t off, uint64_t nbytes, struct zr_npy *npy)
{
    unsigned char first[HEADER_FIRST_NBYTES];
    struct zr_error err;
    int64_t n = read_at(fd, first, nbytes < sizeof first ? nbytes : sizeof first, off);

    if (n < 0)
        return fail_errno(name);
    int code = zr_npy_parse(first, (size_t)n, nbytes, name, npy, &err);
    int status = code == ZR_OK ? 0 : EXIT_FAILED;
    if (code == ZR_E_BUFFER)
        status = read_long_header(fd, name, off, nbytes, npy);
    else if (status)
        fail(&err);
    npy->data_off += off;
    return status;
}

int open_npy(struct npy_file *f, int dir_fd, const char *file, const char *name)
{
    struct stat st;

    f->fd = openat(dir_fd, file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (f->fd < 0)
        return fail_errno(name);
    int status;
    if (fstat(f->fd, &st) != 0)
        status = fail_errno(name);
    else if (!S_ISREG(st.st_mode))
        status = refuse(name, "not a regular file");
    else
        status = read_npy_header(f->fd, name, 0, (uint64_t)st.st_size, &f->npy);
    if (status)
        close(f->fd);
    return status;
}

/* Bytes of one record as a store holds it; Ragged ones carry their shape. */
static uint64_t stored_nbytes(const struct source *s, uint32_t ndim, uint64_t payload_nbytes)
{
    return payload_nbytes + (s->ragged ? 8 * (1 + (uint64_t)ndim) : 0);
}

int check_record(const struct source *s, const char *name, uint32_t ndim, uint64_t payload_nbytes)
{
    if (payload_nbytes == 0)
        return refuse(name, "records of zero bytes cannot be stored");
    if (payload_nbytes > ZR_MAX_RECORD_NBYTES ||
        stored_nbytes(s, ndim, payload_nbytes) > ZR_MAX_RECORD_NBYTES) {
        diag("%s: a record of %" PRIu64 " bytes is over the limit of %" PRIu64, name,
             payload_nbytes, ZR_MAX_RECORD_NBYTES);
        return EXIT_FAILED;
    }
    return 0;
}

/* ---------------------------------------------------------------- one .npy */

static int describe_rows(struct source *s)
{
    const struct zr_npy *npy = &s->npy;

    if (npy->ndim == 0)
        return refuse(s->path, "a rank-0 array has no rows; put it into a folder to store it");
    s->ndim = npy->ndim - 1;
    s->shape = npy->shape + 1;
    s->record_count = npy->shape[0];
    s->data_nbytes = npy->data_nbytes;
    uint64_t row_nbytes = npy->itemsize;
    for (uint32_t i = 0; i < s->ndim; i++)
        if (__builtin_mul_overflow(row_nbytes, s->shape[i], &row_nbytes))
            return refuse(s->path, "its shape is too large");
    s->row_nbytes = row_nbytes;
    return check_record(s, s->path, s->ndim, row_nbytes);
}

static int open_single(struct source *s, enum shape_choice choice)
{
    struct npy_file f = {0};
    int status =
        is_npz(s->path) ? open_npz(s, s->path, &f) : open_npy(&f, AT_FDCWD, s->path, s->path);

    if (status)
        return status;
    s->fd = f.fd;
    s->npy = f.npy;
    s->ragged = choice == SHAPE_RAGGED;
    posix_fadvise(s->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    return describe_rows(s);
}

/* ---------------------------------------------------------------- a folder */

static bool has_npy_suffix(const char *name)
{
    size_t length = strlen(name);

    return length > 4 && strcmp(name + length - 4, ".npy") == 0;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool add_name(struct source *s, const char *name, size_t *capacity)
{
    if (s->name_count == *capacity) {
        size_t larger = *capacity ? *capacity * 2 : 1024;
        char **names = reallocarray(s->names, larger, sizeof *names);
        if (!names)
            return false;
        s->names = names;
        *capacity = larger;
    }
    s->names[s->name_count] = strdup(name);
    return s->names[s->name_count++] != NULL;
}

static void note_others(const struct source *s, size_t count, const char *first)
{
    if (count == 1)
        diag("%s: left out %s: not a .npy", s->path, first);
    else if (count > 1)
        diag("%s: left out %s and %zu more that are not .npy", s->path, first, count - 1);
}

/* Hidden entries are passed over silently, other names with a note. */
static int list_names(struct source *s, DIR *dir)
{
    size_t capacity = 0, others = 0;
    char first_other[256] = "";
    const struct dirent *entry;

    while (errno = 0, (entry = readdir(dir))) {
        if (entry->d_name[0] == '.')
            continue;
        if (!has_npy_suffix(entry->d_name)) {
            if (others++ == 0)
                snprintf(first_other, sizeof first_other, "%s", entry->d_name);
            continue;
        }
        if (!add_name(s, entry->d_name, &capacity))
            return fail_nomem();
    }
    if (errno)
        return fail_errno(s->path);
    note_others(s, others, first_other);
    if (s->name_count == 0)
        return refuse(s->path, "no .npy files in this folder");
    qsort(s->names, s->name_count, sizeof *s->names, compare_names);
    return 0;
}

const char *file_title(const struct source *s, size_t index)
{
    static char title[8192];

    snprintf(title, sizeof title, "%s/%s", s->path, s->names[index]);
    return title;
}

bool same_shape(const struct zr_npy *a, const struct zr_npy *b)
{
    return a->ndim == b->ndim && memcmp(a->shape, b->shape, a->ndim * sizeof *a->shape) == 0;
}

static int compare_dtypes(const struct source *s, size_t index, const struct zr_npy *npy)
{
    if (strcmp(npy->dtype, s->npy.dtype) == 0)
        return 0;
    diag("%s: dtype %s, but %s has %s: a store has one dtype", file_title(s, index), npy->dtype,
         s->names[0], s->npy.dtype);
    return EXIT_FAILED;
}

static int compare_shapes(const struct source *s, size_t index, const struct zr_npy *npy)
{
    char this_shape[SHAPE_TEXT_MAX], first_shape[SHAPE_TEXT_MAX];

    if (same_shape(npy, &s->npy))
        return 0;
    diag("%s: shape %s, but %s has %s: Dense records have one shape", file_title(s, index),
         shape_text(npy->ndim, npy->shape, this_shape), s->names[0],
         shape_text(s->npy.ndim, s->npy.shape, first_shape));
    return EXIT_FAILED;
}

/* Looks at every header, so that what cannot be stored is said at once. */
static int scan_folder(struct source *s, enum shape_choice choice)
{
    struct npy_file f = {0};
    int status = 0;

    s->ragged = choice == SHAPE_RAGGED;
    for (size_t i = 0; i < s->name_count && !status; i++) {
        status = open_npy(&f, s->fd, s->names[i], file_title(s, i));
        if (status)
            return status;
        close(f.fd);
        if (i == 0)
            s->npy = f.npy;
        if (choice == SHAPE_AUTO && !same_shape(&f.npy, &s->npy))
            s->ragged = true;
        s->data_nbytes += f.npy.data_nbytes;
        status = compare_dtypes(s, i, &f.npy);
        if (!status && choice == SHAPE_DENSE)
            status = compare_shapes(s, i, &f.npy);
        if (!status)
            status = check_record(s, file_title(s, i), f.npy.ndim, f.npy.data_nbytes);
    }
    s->record_count = s->name_count;
    s->ndim = s->npy.ndim;
    s->shape = s->npy.shape;
    s->row_nbytes = s->npy.data_nbytes;
    return status;
}

static int open_folder(struct source *s, enum shape_choice choice)
{
    DIR *dir = opendir(s->path);

    if (!dir)
        return fail_errno(s->path);
    int status = list_names(s, dir);
    if (!status) {
        s->fd = fcntl(dirfd(dir), F_DUPFD_CLOEXEC, 3);
        status = s->fd < 0 ? fail_errno(s->path) : 0;
    }
    closedir(dir);
    return status ? status : scan_folder(s, choice);
}

int source_open(struct source *s, const char *path, enum shape_choice choice)
{
    struct stat st;

    *s = (struct source){.path = path, .fd = -1};
    if (stat(path, &st) == 0)
        s->folder = S_ISDIR(st.st_mode);
    else if (!is_npz(path))
        return fail_errno(path);
    if (s->folder && is_store(path))
        return refuse(path, "is a store, not a .npy or a folder of .npy");
    int status = s->folder ? open_folder(s, choice) : open_single(s, choice);
    if (status)
        source_close(s);
    return status;
}

void source_close(struct source *s)
{
    if (s->fd >= 0)
        close(s->fd);
    for (size_t i = 0; i < s->name_count; i++)
        free(s->names[i]);
    free(s->names);
    free(s->title);
    zr_buffer_free(s->head);
    *s = (struct source){.fd = -1};
}
