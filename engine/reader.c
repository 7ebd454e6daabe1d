/* SPDX-License-Identifier: MIT
 *
 * Opening a published store, and what is known of it and of each record without
 * decoding.  Nothing here grows with the number of records: the table is mapped
 * or read entry by entry, and each entry is checked when it is used.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

/* A dictionary of zstd is at most 2 GiB; nothing sensible is over this. */
#define MAX_DICT_NBYTES ((uint64_t)1 << 30)

static void warn(struct zr_reader *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void warn(struct zr_reader *r, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    char *text = NULL;
    if (!r->warning && vasprintf(&text, fmt, args) >= 0)
        r->warning = text;
    va_end(args);
}

static int read_failed(const struct zr_reader *r, int e, const char *name, struct zr_error *err)
{
    return e < 0 ? zri_fail(err, ZR_E_TRUNCATED, "%s/%s: file is cut short", r->path, name)
                 : zri_fail_errno(err, e, "%s/%s: cannot read", r->path, name);
}

/* ---------------------------------------------------------------- opening files */

static bool has_file(int dir_fd, const char *name)
{
    return faccessat(dir_fd, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

/* loaderx 2.8 and later spread the payload over data_0.zr, data_1.zr, ... */
static int no_store(const struct zr_reader *r, int dir_fd, const char *name, int e,
                    struct zr_error *err)
{
    if (has_file(dir_fd, "data_0.zr"))
        return zri_fail(err, ZR_E_FOREIGN,
                        "%s: this store has the layout of loaderx 2.8 or later (data_0.zr, ...), "
                        "which is not supported: rewrite it with loaderx 2.0.0 or from its source",
                        r->path);
    if (e == ENOENT)
        return zri_fail(err, ZR_E_FORMAT, "%s: not a zrecord store: it has no %s", r->path, name);
    if (e == EINVAL)
        return zri_fail(err, ZR_E_FORMAT, "%s/%s: not a regular file", r->path, name);
    return zri_fail_errno(err, e, "%s/%s: cannot open", r->path, name);
}

static int open_dir(struct zr_reader *r, int *dir_fd, struct zr_error *err)
{
    *dir_fd = open(r->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*dir_fd >= 0)
        return ZR_OK;
    int e = errno;
    if (e == ENOENT)
        return zri_fail(err, ZR_E_NOT_FOUND, "%s: no such store", r->path);
    if (e == ENOTDIR)
        return zri_fail(err, ZR_E_FORMAT, "%s: not a zrecord store: a store is a directory",
                        r->path);
    return zri_fail_errno(err, e, "%s: cannot open", r->path);
}

static int open_files(struct zr_reader *r, int dir_fd, struct zri_file *dict, struct zr_error *err)
{
    int e = zri_file_open(&r->meta, dir_fd, ZRI_META_NAME);
    if (e)
        return no_store(r, dir_fd, ZRI_META_NAME, e, err);
    if (zri_lock(r->meta.fd, false))
        return zri_fail(err, ZR_E_BUSY, "%s: busy: a writer is still building this store", r->path);
    /* A writer that works in place may have finished since it was opened. */
    e = zri_file_update(&r->meta);
    if (e)
        return read_failed(r, e, ZRI_META_NAME, err);
    e = zri_file_open(&r->data, dir_fd, ZRI_DATA_NAME);
    if (e)
        return no_store(r, dir_fd, ZRI_DATA_NAME, e, err);
    e = zri_file_open(dict, dir_fd, ZRI_DICT_NAME);
    if (e && e != ENOENT)
        return zri_fail_errno(err, e, "%s/%s: cannot open", r->path, ZRI_DICT_NAME);
    e = zri_file_open(&r->side, dir_fd, ZRI_SIDE_NAME);
    if (e && e != ENOENT)
        warn(r, "%s/%s: sidecar ignored: %s", r->path, ZRI_SIDE_NAME, strerror(e));
    return ZR_OK;
}

static void stat_files(struct zr_reader *r, const struct zri_file *dict)
{
    const struct zri_file *files[] = {&r->meta, &r->data, dict, &r->side};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        struct stat st;
        if (files[i]->fd < 0 || fstat(files[i]->fd, &st))
            continue;
        r->disk_nbytes += (uint64_t)st.st_blocks * 512;
        if (i == 0) {
            r->mtime_sec = st.st_mtim.tv_sec;
            r->mtime_nsec = st.st_mtim.tv_nsec;
        }
    }
}

/* What cannot be mapped (no address space, a filesystem without) is read with
 * pread. */
static void map_files(struct zr_reader *r)
{
    struct zri_file *files[] = {&r->meta, &r->data, &r->side};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        if (files[i]->fd >= 0)
            zri_file_map(files[i]);
    /* A fault maps all of a large page as far as the kernel sees one mapping: two end that
     * at the limit. */
    uint64_t end = (r->mapped_nbytes + ZRI_PAGE_NBYTES - 1) & ~(uint64_t)(ZRI_PAGE_NBYTES - 1);
    if (r->data.bytes && end < r->data.nbytes)
        madvise((void *)(r->data.bytes + end), r->data.nbytes - end, MADV_NOHUGEPAGE);
}

/* ---------------------------------------------------------------- header and dictionary */

static int read_header(struct zr_reader *r, struct zr_error *err)
{
    uint8_t page[ZRI_PAGE_NBYTES];
    if (r->meta.nbytes < ZRI_PAGE_NBYTES)
        return zri_fail(err, ZR_E_TRUNCATED,
                        "%s/%s: file is cut short: %" PRIu64
                        " bytes, and the first page alone has 4096",
                        r->path, ZRI_META_NAME, r->meta.nbytes);
    int e = zri_file_read(&r->meta, 0, page, sizeof page);
    if (e)
        return read_failed(r, e, ZRI_META_NAME, err);
    const char *why = zri_header_decode(&r->header, page);
    if (why)
        return zri_fail(err, ZR_E_FORMAT, "%s/%s: %s", r->path, ZRI_META_NAME, why);
    if (r->header.length > (r->meta.nbytes - ZRI_PAGE_NBYTES) / ZRI_ENTRY_NBYTES)
        return zri_fail(err, ZR_E_TRUNCATED,
                        "%s/%s: file is cut short: %" PRIu64
                        " bytes do not hold the table of %" PRIu64 " records",
                        r->path, ZRI_META_NAME, r->meta.nbytes, r->header.length);
    why = zri_schema_decode(&r->schema, page + ZRI_HEADER_NBYTES, r->header.schema_nbytes);
    if (why)
        return zri_fail(err, why == zri_out_of_memory ? ZR_E_NOMEM : ZR_E_SCHEMA, "%s/%s: %s",
                        r->path, ZRI_META_NAME, why);
    if (r->data.nbytes < r->header.tail_off)
        return zri_fail(err, ZR_E_TRUNCATED,
                        "%s/%s: file is cut short: %" PRIu64
                        " bytes where the header says %" PRIu64,
                        r->path, ZRI_DATA_NAME, r->data.nbytes, r->header.tail_off);

    uint8_t entries[ZRI_IDENTITY_ENTRIES * ZRI_ENTRY_NBYTES];
    size_t count = r->header.length ? ZRI_IDENTITY_ENTRIES : 0;
    for (size_t k = 0; k < count; k++) {
        uint64_t off = zri_entry_off(zri_identity_index(r->header.length, k));
        e = zri_file_read(&r->meta, off, entries + k * ZRI_ENTRY_NBYTES, ZRI_ENTRY_NBYTES);
        if (e)
            return read_failed(r, e, ZRI_META_NAME, err);
    }
    r->identity = zri_identity(page, entries, count);
    if (r->mapped_nbytes > r->header.tail_off)
        r->mapped_nbytes = r->header.tail_off;
    return ZR_OK;
}

static int check_first_frame(const struct zr_reader *r, struct zr_error *err)
{
    struct zri_entry entry;
    uint8_t frame[32]; /* a frame header has at most 18 bytes */
    if (r->header.length == 0 || zri_reader_entry(r, 0, &entry, NULL))
        return ZR_OK; /* reading that record will say so */
    size_t n = entry.phys_nbytes < sizeof frame ? entry.phys_nbytes : sizeof frame;
    if (zri_file_read(&r->data, entry.off, frame, n))
        return ZR_OK;
    const char *why = zri_decoder_mismatch(r->decoder, frame, n);
    return why ? zri_fail(err, ZR_E_DICT, "%s/%s: %s", r->path, ZRI_DICT_NAME, why) : ZR_OK;
}

static bool file_present(const struct zri_file *f)
{
    return f->fd >= 0 || f->bytes;
}

static int read_dict(struct zr_reader *r, const struct zri_file *dict, struct zr_error *err)
{
    if (r->header.codec != ZR_ZSTD_DICT) {
        if (file_present(dict))
            return zri_fail(err, ZR_E_DICT, "%s/%s: unexpected: codec %s has no dictionary",
                            r->path, ZRI_DICT_NAME, zr_codec_name(r->header.codec));
        return ZR_OK;
    }
    if (!file_present(dict))
        return zri_fail(err, ZR_E_DICT, "%s/%s: missing: codec zstd_dict needs its dictionary",
                        r->path, ZRI_DICT_NAME);
    if (dict->nbytes == 0 || dict->nbytes > MAX_DICT_NBYTES)
        return zri_fail(err, ZR_E_DICT, "%s/%s: a dictionary cannot have %" PRIu64 " bytes",
                        r->path, ZRI_DICT_NAME, dict->nbytes);
    r->dict_nbytes = dict->nbytes;
    r->dict = malloc(r->dict_nbytes);
    if (!r->dict)
        return zri_fail(err, ZR_E_NOMEM, "%s: out of memory", r->path);
    int e = zri_file_read(dict, 0, r->dict, r->dict_nbytes);
    return e ? read_failed(r, e, ZRI_DICT_NAME, err) : ZR_OK;
}

static int make_decoder(struct zr_reader *r, struct zr_error *err)
{
    r->decoder = zri_decoder_new(r->header.codec, r->dict, r->dict_nbytes);
    if (!r->decoder && r->dict && !zri_dict_is_sound(r->dict, r->dict_nbytes))
        return zri_fail(err, ZR_E_DICT, "%s/%s: not a dictionary that zstd can load", r->path,
                        ZRI_DICT_NAME);
    if (!r->decoder)
        return zri_fail(err, ZR_E_NOMEM, "%s: out of memory", r->path);
    return r->dict ? check_first_frame(r, err) : ZR_OK;
}

/* ---------------------------------------------------------------- sidecar */

static const char *sidecar_mismatch(const struct zr_reader *r, const struct zri_sidecar *s)
{
    if (s->length != r->header.length || s->tail_off != r->header.tail_off ||
        s->ragged != (r->schema.geometry == ZR_RAGGED) || s->identity != r->identity)
        return "it belongs to another store, or the store's header or table was changed";
    return NULL;
}

/* A sidecar that cannot be trusted is left aside with a warning. */
static int read_sidecar(struct zr_reader *r, struct zr_error *err)
{
    uint8_t header[ZRI_SIDE_HEADER_NBYTES] = {0};
    struct zri_sidecar s = {0};
    if (!file_present(&r->side))
        return ZR_OK;
    size_t n = r->side.nbytes < sizeof header ? r->side.nbytes : sizeof header;
    const char *why = zri_file_read(&r->side, 0, header, n)
                          ? "it cannot be read"
                          : zri_sidecar_decode(&s, header, r->side.nbytes);
    if (!why)
        why = sidecar_mismatch(r, &s);
    if (why) {
        warn(r, "%s/%s: sidecar ignored: %s", r->path, ZRI_SIDE_NAME, why);
        zri_file_close(&r->side);
        return ZR_OK;
    }
    if (r->dict && s.dict_sum != zri_checksum(r->dict, r->dict_nbytes))
        return zri_fail(err, ZR_E_DICT,
                        "%s/%s: dictionary is not the one that the records were written with",
                        r->path, ZRI_DICT_NAME);
    r->has_sidecar = true;
    return ZR_OK;
}

bool zri_reader_side_row(const struct zr_reader *r, uint64_t id, struct zri_side_row *row)
{
    bool ragged = r->schema.geometry == ZR_RAGGED;
    size_t n = zri_side_row_nbytes(ragged);
    uint64_t off = ZRI_SIDE_HEADER_NBYTES + id * n;
    uint8_t bytes[16];
    if (!r->has_sidecar)
        return false;
    if (r->side.bytes) {
        memcpy(bytes, r->side.bytes + off, n);
        if (r->side.guard && !zri_file_trusted(&r->side) && zri_file_read(&r->side, off, bytes, n))
            return false;
    } else if (zri_file_read(&r->side, off, bytes, n)) {
        return false;
    }
    zri_side_row_decode(row, ragged, bytes);
    return true;
}

/* ---------------------------------------------------------------- open, close */

static int load(struct zr_reader *r, const struct zri_file *dict, struct zr_error *err)
{
    int rc = read_header(r, err);
    if (!rc)
        rc = read_dict(r, dict, err);
    if (!rc)
        rc = read_sidecar(r, err);
    if (!rc)
        rc = make_decoder(r, err);
    if (!rc && r->schema.geometry == ZR_DENSE)
        r->npy_header_nbytes =
            zr_npy_header(r->schema.dtype, r->schema.ndim, r->schema.shape, r->npy_header);
    return rc;
}

static struct zr_reader *new_reader(const char *path, const struct zr_reader_options *options)
{
    struct zr_reader *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->meta = r->data = r->side = ZRI_FILE_NONE;
    r->check_sums = options && options->checksums;
    r->mapped_nbytes = options && options->mapped_nbytes ? options->mapped_nbytes : UINT64_MAX;
    r->path = strdup(path);
    if (!r->path) {
        free(r);
        return NULL;
    }
    return r;
}

int zr_reader_open(struct zr_reader **out, const char *path,
                   const struct zr_reader_options *options, struct zr_error *err)
{
    *out = NULL;
    if (!path || !*path)
        return zri_fail(err, ZR_E_INVALID, "the path of a store is empty");
    struct zr_reader *r = new_reader(path, options);
    if (!r)
        return zri_fail(err, ZR_E_NOMEM, "%s: out of memory", path);
    struct zri_file dict = ZRI_FILE_NONE;
    int dir_fd = -1;
    int rc = open_dir(r, &dir_fd, err);
    if (!rc)
        rc = open_files(r, dir_fd, &dict, err);
    if (!rc)
        rc = load(r, &dict, err);
    if (!rc && !(options && options->access == ZR_ACCESS_READ))
        map_files(r);
    stat_files(r, &dict);
    zri_file_close(&dict);
    if (dir_fd >= 0)
        close(dir_fd);
    if (rc) {
        zr_reader_close(r);
        return rc;
    }
    *out = r;
    return ZR_OK;
}

static struct zri_file image_file(const struct zri_image *image)
{
    struct zri_file f = ZRI_FILE_NONE;
    if (image) {
        f.bytes = image->nbytes ? image->bytes : (const uint8_t *)"";
        f.nbytes = image->nbytes;
    }
    return f;
}

int zri_reader_open_images(struct zr_reader **out, const struct zri_image *meta,
                           const struct zri_image *data, const struct zri_image *dict,
                           const struct zri_image *side, const struct zr_reader_options *options,
                           struct zr_error *err)
{
    *out = NULL;
    struct zr_reader *r = new_reader("(memory)", options);
    if (!r)
        return zri_fail(err, ZR_E_NOMEM, "out of memory");
    struct zri_file dict_file = image_file(dict);
    r->meta = image_file(meta);
    r->data = image_file(data);
    r->side = image_file(side);
    int rc = load(r, &dict_file, err);
    if (rc) {
        zr_reader_close(r);
        return rc;
    }
    *out = r;
    return ZR_OK;
}

void zr_reader_close(struct zr_reader *r)
{
    if (!r)
        return;
    zri_file_close(&r->meta);
    zri_file_close(&r->data);
    zri_file_close(&r->side);
    zri_decoder_free(r->decoder);
    free((void *)(uintptr_t)atomic_load(&r->npy_units));
    free(r->dict);
    free(r->warning);
    free(r->made_meta);
    free(r->path);
    free(r);
}

/* ---------------------------------------------------------------- what is known */

void zr_reader_info(const struct zr_reader *r, struct zr_info *info)
{
    *info = (struct zr_info){
        .path = r->path,
        .dtype = r->schema.dtype,
        .geometry = r->schema.geometry,
        .codec = r->header.codec,
        .length = r->header.length,
        .itemsize = r->schema.itemsize,
        .ndim = r->schema.ndim,
        .item_shape = r->schema.geometry == ZR_DENSE ? r->schema.shape : NULL,
        .row_nbytes = r->schema.row_nbytes,
        .data_nbytes = r->header.tail_off,
        .disk_nbytes = r->disk_nbytes,
        .dict = r->dict,
        .dict_nbytes = r->dict_nbytes,
        .has_sidecar = r->has_sidecar,
        .mtime_sec = r->mtime_sec,
        .mtime_nsec = r->mtime_nsec,
        .identity = r->identity,
    };
}

const char *zr_reader_warning(const struct zr_reader *r)
{
    return r->warning;
}

int zri_check_ids(const struct zr_reader *r, const uint64_t *ids, size_t count,
                  struct zr_error *err)
{
    uint64_t length = r->header.length, top = 0;
    for (size_t i = 0; i < count; i++)
        top = ids[i] > top ? ids[i] : top;
    if (count == 0 || top < length)
        return ZR_OK;
    size_t i = 0;
    while (ids[i] < length)
        i++;
    return zri_fail_record(err, ZR_E_RANGE, ids[i], ZRI_NO_OFFSET,
                           "%s: record %" PRIu64 " is out of range: the store has %" PRIu64,
                           r->path, ids[i], length);
}

int zri_reader_entry_read(const struct zr_reader *r, uint64_t id, struct zri_entry *entry,
                          struct zr_error *err)
{
    uint64_t off = zri_entry_off(id);
    uint8_t bytes[ZRI_ENTRY_NBYTES];
    int e = zri_file_read(&r->meta, off, bytes, sizeof bytes);
    if (e < 0)
        return zri_fail_record(err, ZR_E_TRUNCATED, id, off,
                               "%s/%s: record %" PRIu64 ": the table is cut short", r->path,
                               ZRI_META_NAME, id);
    if (e)
        return zri_fail_errno_record(err, e, id, off,
                                     "%s/%s: record %" PRIu64 ": cannot read its table entry",
                                     r->path, ZRI_META_NAME, id);
    zri_entry_decode(entry, bytes);
    const char *why = zri_entry_check(entry, &r->header, r->schema.row_nbytes);
    return why ? zri_fail_record(err, ZR_E_CORRUPT, id, off, "%s/%s: record %" PRIu64 ": %s",
                                 r->path, ZRI_META_NAME, id, why)
               : ZR_OK;
}

int zr_reader_locate(const struct zr_reader *r, uint64_t id, struct zr_location *loc,
                     struct zr_error *err)
{
    struct zri_entry entry;
    int rc = zri_check_ids(r, &id, 1, err);
    if (!rc)
        rc = zri_reader_entry(r, id, &entry, err);
    if (!rc)
        *loc = (struct zr_location){entry.off, entry.phys_nbytes, entry.logic_nbytes};
    return rc;
}

void zr_record_split(const void *record, uint64_t logic_nbytes, struct zr_record_view *view)
{
    const uint64_t *words = record;
    view->ndim = (uint32_t)words[0];
    view->shape = words + 1;
    view->data = words + 1 + view->ndim;
    view->data_nbytes = logic_nbytes - 8 * ((uint64_t)view->ndim + 1);
}
