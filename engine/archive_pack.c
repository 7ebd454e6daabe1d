/* SPDX-License-Identifier: MIT
 *
 * A memmap directory into an archive: lists the files, then lets the writer read
 * them in parallel.  Symlinks and everything that is no file or folder are refused
 * before anything is written.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "archive.h"
#include "archive_folders.h"
#include "archive_stage.h"

struct packed_file {
    const struct packing *p;
    char *name; /* path below the directory */
    uint64_t nbytes;
    dev_t device;
    ino_t inode;
};

struct packing {
    const char *dir;
    int dir_fd;
    struct packed_file **files; /* in the order of the archive */
    size_t count, capacity;
    struct zri_block *memory;
};

struct found {
    char *name;
    bool is_folder;
    struct stat st;
};

/* meta.json first, then files, then folders; each by name. */
static int by_rank(const void *a, const void *b)
{
    const struct found *x = a, *y = b;
    int rank_x = x->is_folder ? 2 : strcmp(x->name, "meta.json") != 0;
    int rank_y = y->is_folder ? 2 : strcmp(y->name, "meta.json") != 0;
    return rank_x != rank_y ? rank_x - rank_y : strcmp(x->name, y->name);
}

static int no_memory(const struct packing *p, struct zr_error *err)
{
    return zri_fail(err, ZR_E_NOMEM, "%s: out of memory", p->dir);
}

static int file_failed(const struct packing *p, const char *name, int e, struct zr_error *err)
{
    return zri_fail_errno(err, e, "%s/%s: cannot read", p->dir, name);
}

static char *join(struct packing *p, const char *folder, const char *name)
{
    size_t n = strlen(folder);
    char *path = zri_block_alloc(&p->memory, n + strlen(name) + 2);
    if (!path)
        return NULL;
    char *end = stpcpy(path, folder);
    if (n)
        *end++ = '/';
    strcpy(end, name); /* NOLINT(clang-analyzer-security.insecureAPI.strcpy): has its room */
    return path;
}

static int add_file(struct packing *p, const struct found *f, struct zr_error *err)
{
    if (p->count == p->capacity) {
        size_t capacity = p->capacity ? p->capacity * 2 : 64;
        struct packed_file **more = realloc(p->files, capacity * sizeof(struct packed_file *));
        if (!more)
            return no_memory(p, err);
        p->files = more;
        p->capacity = capacity;
    }
    struct packed_file *file = zri_block_alloc(&p->memory, sizeof *file);
    if (!file)
        return no_memory(p, err);
    *file = (struct packed_file){.p = p,
                                 .name = f->name,
                                 .nbytes = (uint64_t)f->st.st_size,
                                 .device = f->st.st_dev,
                                 .inode = f->st.st_ino};
    p->files[p->count++] = file;
    return ZR_OK;
}

static int look_at(struct packing *p, int fd, const char *folder, const char *name, struct found *f,
                   struct zr_error *err)
{
    f->name = join(p, folder, name);
    if (!f->name)
        return no_memory(p, err);
    if (fstatat(fd, name, &f->st, AT_SYMLINK_NOFOLLOW))
        return file_failed(p, f->name, errno, err);
    f->is_folder = S_ISDIR(f->st.st_mode);
    if (f->is_folder || S_ISREG(f->st.st_mode))
        return ZR_OK;
    return zri_fail(err, ZR_E_INVALID, "%s/%s: is a %s, which an archive of leaves cannot hold",
                    p->dir, f->name, S_ISLNK(f->st.st_mode) ? "symlink" : "special file");
}

/* What is in one open folder; *found is to be freed. */
static int list(struct packing *p, DIR *dir, const char *folder, struct found **found,
                size_t *count, struct zr_error *err)
{
    size_t capacity = 0;
    int rc = ZR_OK;
    errno = 0;
    for (struct dirent *d; !rc && (d = readdir(dir)); errno = 0) {
        if (!strcmp(d->d_name, ".") || !strcmp(d->d_name, "..") || zri_stage_is_name(d->d_name))
            continue;
        if (*count == capacity) {
            capacity = capacity ? capacity * 2 : 32;
            struct found *more = realloc(*found, capacity * sizeof *more);
            if (!more)
                return no_memory(p, err);
            *found = more;
        }
        rc = look_at(p, dirfd(dir), folder, d->d_name, &(*found)[*count], err);
        *count += rc == ZR_OK;
    }
    return rc ? rc : errno ? file_failed(p, folder, errno, err) : ZR_OK;
}

/* Names of one folder share its path, so their order is that of their last parts;
 * only meta.json has to be told from the rest by its last part. */
static void sort_folder(struct found *found, size_t count, const char *folder)
{
    size_t skip = *folder ? strlen(folder) + 1 : 0;
    for (size_t i = 0; i < count; i++)
        found[i].name += skip;
    qsort(found, count, sizeof *found, by_rank);
    for (size_t i = 0; i < count; i++)
        found[i].name -= skip;
}

#define DEPTH_MAX 512

static int list_tree(struct packing *p, int parent_fd, const char *name, const char *folder,
                     unsigned depth, struct zr_error *err)
{
    int fd = openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        int e = errno;
        if (fd >= 0)
            close(fd);
        return file_failed(p, folder, e, err);
    }
    struct found *found = NULL;
    size_t count = 0;
    int rc = depth > DEPTH_MAX ? zri_fail(err, ZR_E_INVALID, "%s: folders too deep", p->dir)
                               : list(p, dir, folder, &found, &count, err);
    if (!rc && count)
        sort_folder(found, count, folder);
    for (size_t i = 0; !rc && i < count; i++)
        rc = !found[i].is_folder
                 ? add_file(p, &found[i], err)
                 : list_tree(p, dirfd(dir), found[i].name + (*folder ? strlen(folder) + 1 : 0),
                             found[i].name, depth + 1, err);
    free(found);
    closedir(dir);
    return rc;
}

/* ---------------------------------------------------------------- reading */

/* A path that the system takes at once, or else by its folder. */
static int open_file(const struct packed_file *f, struct zri_file *file)
{
    size_t nbytes = strlen(f->name), failed_nbytes;
    if (nbytes < PATH_MAX)
        return zri_file_open(file, f->p->dir_fd, f->name);
    const char *base = strrchr(f->name, '/') + 1;
    int folder =
        zri_folder_open_path(f->p->dir_fd, f->name, (size_t)(base - f->name), &failed_nbytes);
    int e = folder < 0 ? errno : zri_file_open(file, folder, base);
    if (folder >= 0)
        close(folder);
    return e;
}

static int read_file(void *ctx, uint64_t off, void *buf, size_t nbytes, struct zr_error *err)
{
    const struct packed_file *f = ctx;
    struct zri_file file = ZRI_FILE_NONE;
    int e = open_file(f, &file);
    if (e)
        return file_failed(f->p, f->name, e, err);
    struct stat st;
    bool same = fstat(file.fd, &st) == 0 && st.st_dev == f->device && st.st_ino == f->inode &&
                (uint64_t)st.st_size == f->nbytes;
    e = same ? zri_file_read(&file, off, buf, nbytes) : -1;
    zri_file_close(&file);
    if (e < 0)
        return zri_fail(err, ZR_E_IO, "%s/%s: changed while it was packed", f->p->dir, f->name);
    return e ? file_failed(f->p, f->name, e, err) : ZR_OK;
}

static bool is_payload(const char *name)
{
    static const char suffix[] = ".memmap";
    size_t n = strlen(name), m = sizeof suffix - 1;
    return n > m && !strcmp(name + n - m, suffix) && name[n - m - 1] != '/';
}

/* The archive may not be one of its own files. */
static int check_target(const struct packing *p, const char *path, struct zr_error *err)
{
    struct stat st;
    if (stat(path, &st))
        return ZR_OK;
    for (size_t i = 0; i < p->count; i++)
        if (p->files[i]->device == st.st_dev && p->files[i]->inode == st.st_ino)
            return zri_fail(err, ZR_E_INVALID, "%s: is one of the files to pack", path);
    return ZR_OK;
}

static bool has_meta(const struct packing *p)
{
    return p->count && !strcmp(p->files[0]->name, "meta.json");
}

static int check_outside(const struct packing *p, const char *path, struct zr_error *err)
{
    char *folder = strdup(path), *slash = folder ? strrchr(folder, '/') : NULL;
    if (!folder)
        return no_memory(p, err);
    if (slash)
        slash[slash == folder] = 0;
    errno = 0;
    char *dir = realpath(p->dir, NULL), *parent = realpath(slash ? folder : ".", NULL);
    bool ran_out = errno == ENOMEM;
    size_t n = dir ? strlen(dir) : 0;
    bool inside = dir && parent && !strncmp(dir, parent, n) && (parent[n] == '/' || !parent[n]);
    free(folder);
    free(dir);
    free(parent);
    if (ran_out)
        return no_memory(p, err);
    return inside ? zri_fail(err, ZR_E_INVALID, "%s: lies inside the folder to pack", path) : ZR_OK;
}

static int pack_files(const struct packing *p, const char *path,
                      const struct zr_archive_save_options *options, struct zr_error *err)
{
    struct zr_archive_source *sources = calloc(p->count, sizeof *sources);
    if (!sources)
        return no_memory(p, err);
    for (size_t i = 0; i < p->count; i++)
        sources[i] = (struct zr_archive_source){.name = p->files[i]->name,
                                                .nbytes = p->files[i]->nbytes,
                                                .fill = read_file,
                                                .fill_ctx = p->files[i],
                                                .is_payload = is_payload(p->files[i]->name)};
    int rc = zr_archive_save(path, sources, p->count, options, err);
    free(sources);
    return rc;
}

int zr_archive_pack(const char *dir, const char *path,
                    const struct zr_archive_save_options *options, struct zr_error *err)
{
    struct packing p = {.dir = dir};
    p.dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (p.dir_fd < 0)
        return zri_fail_errno(err, errno, "%s: cannot open", dir);
    int rc = list_tree(&p, p.dir_fd, ".", "", 0, err);
    if (!rc && !has_meta(&p))
        rc = zri_fail(err, ZR_E_INVALID, "%s: is no memmap directory: it has no meta.json", dir);
    if (!rc)
        rc = check_outside(&p, path, err);
    if (!rc)
        rc = check_target(&p, path, err);
    if (!rc)
        rc = pack_files(&p, path, options, err);
    free(p.files);
    zri_block_free(p.memory);
    close(p.dir_fd);
    return rc;
}
