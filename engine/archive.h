/* SPDX-License-Identifier: MIT
 *
 * What the archive files share.  archive.c fills a struct zr_archive from the
 * directory; the others read it.
 */
#ifndef ZRI_ARCHIVE_H
#define ZRI_ARCHIVE_H

#include "archive_watch.h"
#include "zip.h"
#include "zip_codec.h"

struct zri_member {
    const char *name; /* clean, NUL-terminated, in dir or names */
    const uint8_t *raw_name;
    uint64_t header_off;
    uint64_t limit_off; /* where the next member, or the directory, begins */
    uint64_t nbytes, stored_nbytes;
    uint64_t central_off; /* of its entry in the file */
    uint32_t crc;
    uint32_t name_nbytes;
    uint16_t raw_nbytes;
    uint16_t flags, method;
    bool is_folder, is_special;
};

struct zr_archive {
    char *path;
    struct zri_file file;
    bool writable;
    uint8_t *dir; /* copy of the central directory; member names point into it */
    struct zri_block *names;
    struct zri_member *members;
    size_t count;
    uint64_t dir_off; /* in the file */
    uint32_t *slots;  /* open addressing: member + 1, 0 free */
    size_t slot_mask;
    int64_t mtime_sec, mtime_nsec;
    void (*on_read)(size_t index); /* for tests: in the thread that reads a member */
};

/* Memory that goes all at once. */
struct zri_block;
void *zri_block_alloc(struct zri_block **list, size_t nbytes);
void zri_block_free(struct zri_block *list);

/* "PATH: member NAME: why". */
#define zri_member_failed(...) zri_nonzero(zri_member_error(__VA_ARGS__))
int zri_member_error(const struct zr_archive *a, size_t index, int code, const char *why,
                     struct zr_error *err);
/* "PATH: why"; and the same for what zri_file_read gave. */
int zri_archive_failed(const struct zr_archive *a, int code, const char *why, struct zr_error *err);
int zri_archive_read_failed(const struct zr_archive *a, int e, struct zr_error *err);
/* SIZE_MAX when there is none. */
size_t zri_archive_find(const struct zr_archive *a, const char *name, size_t name_nbytes);
/* Reads and checks the local header. */
int zri_member_payload(const struct zr_archive *a, size_t index, uint64_t *payload_off,
                       struct zr_error *err);
/* The whole member to out, CRC checked; the watch may be NULL. */
int zri_member_read(const struct zr_archive *a, size_t index, void *out, struct zri_watch *watch,
                    struct zr_error *err);
/* The stored bytes: in the mapping, or in *copy, to be freed. */
int zri_member_stored(const struct zr_archive *a, size_t index, const uint8_t **bytes, void **copy,
                      struct zr_error *err);

/* Whether these names can be members of one archive; path is for the message. */
int zri_archive_check_names(const char *path, const struct zr_archive_source *sources, size_t count,
                            struct zr_error *err);

/* An archive in memory, which must outlive it.  For fuzzing and tests. */
int zri_archive_open_image(struct zr_archive **out, const void *bytes, size_t nbytes,
                           struct zr_error *err);

/* The dtype that tensordict calls so; NULL when it is not known. */
struct zri_dtype {
    const char *torch_name; /* "torch.float32" */
    const char *numpy_name;
    uint32_t itemsize;
};
const struct zri_dtype *zri_torch_dtype(const char *name, size_t nbytes);

#endif
