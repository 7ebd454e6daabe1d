/* SPDX-License-Identifier: MIT
 *
 * One record: its stored bytes, its logical bytes, its shape, its .npy.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "internal.h"

/* ---------------------------------------------------------------- logical bytes */

int zri_record_damaged(const struct zr_reader *r, uint64_t id, uint64_t off, int code,
                       const char *why, struct zr_error *err)
{
    if (why == zri_out_of_memory)
        code = ZR_E_NOMEM; /* no fault of the record */
    return zri_fail_record(err, code, id, off, "%s/%s: record %" PRIu64 ": %s", r->path,
                           ZRI_DATA_NAME, id, why);
}

static int read_stored(const struct zr_reader *r, uint64_t id, const struct zri_entry *entry,
                       void *buf, size_t nbytes, struct zr_error *err)
{
    int e = zri_file_read(&r->data, entry->off, buf, nbytes);
    if (e < 0)
        return zri_record_damaged(r, id, entry->off, ZR_E_TRUNCATED, "the file is cut short", err);
    if (!e)
        return ZR_OK;
    return zri_fail_errno_record(err, e, id, entry->off, "%s/%s: record %" PRIu64 ": cannot read",
                                 r->path, ZRI_DATA_NAME, id);
}

static int decode_read(const struct zr_reader *r, uint64_t id, const struct zri_entry *entry,
                       void *dst, struct zr_error *err)
{
    if (r->header.codec == ZR_RAW)
        return read_stored(r, id, entry, dst, entry->phys_nbytes, err);
    void *stored = zr_buffer_alloc(entry->phys_nbytes);
    if (!stored)
        return zri_fail_record(err, ZR_E_NOMEM, id, entry->off, "%s: out of memory", r->path);
    int rc = read_stored(r, id, entry, stored, entry->phys_nbytes, err);
    if (!rc) {
        const char *why =
            zri_decode(r->decoder, stored, entry->phys_nbytes, dst, entry->logic_nbytes);
        if (why)
            rc = zri_record_damaged(r, id, entry->off, ZR_E_CORRUPT, why, err);
    }
    zr_buffer_free(stored);
    return rc;
}

int zri_record_check(const struct zr_reader *r, uint64_t id, const struct zri_entry *entry,
                     const void *dst, struct zr_error *err)
{
    if (r->schema.geometry == ZR_RAGGED) {
        const char *why = zri_ragged_check(&r->schema, dst, entry->logic_nbytes);
        if (why)
            return zri_record_damaged(r, id, entry->off, ZR_E_CORRUPT, why, err);
    }
    struct zri_side_row row;
    if (r->check_sums && zri_reader_side_row(r, id, &row) &&
        row.sum != zri_record_sum(dst, entry->logic_nbytes))
        return zri_record_damaged(r, id, entry->off, ZR_E_CHECKSUM,
                                  "decoded bytes differ from the checksum", err);
    return ZR_OK;
}

int zri_record_decode(const struct zr_reader *r, uint64_t id, const struct zri_entry *entry,
                      const uint8_t *stored, void *dst, struct zr_error *err)
{
    if (stored) {
        const char *why = stored == dst ? NULL
                                        : zri_decode(r->decoder, stored, entry->phys_nbytes, dst,
                                                     entry->logic_nbytes);
        if (why)
            return zri_record_damaged(r, id, entry->off, ZR_E_CORRUPT, why, err);
    } else {
        int rc = decode_read(r, id, entry, dst, err);
        if (rc)
            return rc;
    }
    return zri_record_check(r, id, entry, dst, err);
}

int zri_gather_one(struct zr_reader *r, uint64_t id, const struct zri_entry *entry, void *dst,
                   struct zr_error *err)
{
    if (zri_file_mapped(&r->data)) {
        struct zr_error mapped_err = {0};
        const uint8_t *stored = zri_reader_maps(r, entry) ? r->data.bytes + entry->off : NULL;
        int rc = zri_record_decode(r, id, entry, stored, dst, &mapped_err);
        if (zri_file_trusted(&r->data))
            return rc ? zri_fail_as(err, &mapped_err) : ZR_OK;
    }
    return zri_record_decode(r, id, entry, NULL, dst, err);
}

/* ---------------------------------------------------------------- .npy of a record */

static int checked_entry(const struct zr_reader *r, uint64_t id, struct zri_entry *entry,
                         struct zr_error *err)
{
    int rc = zri_check_ids(r, &id, 1, err);
    return rc ? rc : zri_reader_entry(r, id, entry, err);
}

/* The long way to the first nbytes of a record. */
static int decode_all(struct zr_reader *r, uint64_t id, const struct zri_entry *entry, void *dst,
                      size_t nbytes, struct zr_error *err)
{
    void *record = zr_buffer_alloc(entry->logic_nbytes);
    if (!record)
        return zri_fail_record(err, ZR_E_NOMEM, id, entry->off, "%s: out of memory", r->path);
    int rc = zri_gather_one(r, id, entry, record, err);
    if (!rc)
        memcpy(dst, record, nbytes);
    zr_buffer_free(record);
    return rc;
}

static int decode_head(struct zr_reader *r, uint64_t id, const struct zri_entry *entry, void *dst,
                       size_t nbytes, struct zr_error *err)
{
    if (r->header.codec == ZR_RAW)
        return read_stored(r, id, entry, dst, nbytes, err);
    void *stored = zr_buffer_alloc(entry->phys_nbytes);
    if (!stored)
        return zri_fail_record(err, ZR_E_NOMEM, id, entry->off, "%s: out of memory", r->path);
    int rc = read_stored(r, id, entry, stored, entry->phys_nbytes, err);
    const char *why =
        rc ? NULL : zri_decode_head(r->decoder, stored, entry->phys_nbytes, dst, nbytes);
    zr_buffer_free(stored);
    /* Decoding in pieces refuses windows over 128 MiB, which decoding at once does
     * not need; and where a record is damaged, its words should be the same. */
    return why ? decode_all(r, id, entry, dst, nbytes, err) : rc;
}

/* Decodes just the shape prefix. */
static int ragged_shape(struct zr_reader *r, uint64_t id, const struct zri_entry *entry,
                        uint32_t *ndim, uint64_t *shape, struct zr_error *err)
{
    uint64_t prefix[1 + ZR_MAX_NDIM];
    size_t n = sizeof prefix < entry->logic_nbytes ? sizeof prefix : entry->logic_nbytes;
    int rc = decode_head(r, id, entry, prefix, n, err);
    if (rc)
        return rc;
    uint64_t nbytes;
    bool sound = prefix[0] <= ZR_MAX_NDIM && 8 * (prefix[0] + 1) < entry->logic_nbytes &&
                 zri_shape_nbytes((uint32_t)prefix[0], prefix + 1, r->schema.itemsize, &nbytes) &&
                 nbytes == entry->logic_nbytes - 8 * (prefix[0] + 1);
    if (!sound)
        return zri_record_damaged(r, id, entry->off, ZR_E_CORRUPT, "the shape prefix is damaged",
                                  err);
    *ndim = (uint32_t)prefix[0];
    memcpy(shape, prefix + 1, *ndim * sizeof *shape);
    return ZR_OK;
}

/* Bytes that the header adds to a record, less its shape prefix, in units of 8:
 * what is remembered of a record without a sidecar.  0: not known. */
static _Atomic uint8_t *npy_units(struct zr_reader *r)
{
    _Atomic uint8_t *units = atomic_load(&r->npy_units);
    if (units)
        return units;
    /* Untouched pages of it cost nothing. */
    _Atomic uint8_t *made = calloc(r->header.length, 2);
    if (made && !atomic_compare_exchange_strong(&r->npy_units, &units, made)) {
        free((void *)(uintptr_t)made);
        made = units;
    }
    return made;
}

/* Rows carry no checksum of their own; one that cannot be is as good as none. */
static bool side_overhead(const struct zr_reader *r, uint64_t id, const struct zri_entry *entry,
                          uint32_t *ndim, uint64_t *header_nbytes)
{
    struct zri_side_row row;
    if (!zri_reader_side_row(r, id, &row))
        return false;
    uint64_t prefix = 8 * ((uint64_t)row.ndim + 1);
    if (row.ndim > ZR_MAX_NDIM || prefix >= entry->logic_nbytes ||
        (entry->logic_nbytes - prefix) % r->schema.itemsize || !row.npy_header_nbytes ||
        row.npy_header_nbytes > ZR_NPY_MAX_HEADER_NBYTES)
        return false;
    *ndim = row.ndim;
    *header_nbytes = row.npy_header_nbytes;
    return true;
}

static int ragged_overhead(struct zr_reader *r, uint64_t id, const struct zri_entry *entry,
                           uint32_t *ndim, uint64_t *header_nbytes, struct zr_error *err)
{
    if (side_overhead(r, id, entry, ndim, header_nbytes))
        return ZR_OK;
    _Atomic uint8_t *units = npy_units(r);
    if (units && units[2 * id]) {
        *header_nbytes = (uint64_t)atomic_load(&units[2 * id]) * 64;
        *ndim = atomic_load(&units[2 * id + 1]);
        return ZR_OK;
    }
    uint64_t shape[ZR_MAX_NDIM];
    int rc = ragged_shape(r, id, entry, ndim, shape, err);
    if (rc)
        return rc;
    *header_nbytes = zri_npy_header_nbytes(r->schema.dtype, *ndim, shape);
    if (units) { /* the length last: it says that both are there */
        atomic_store(&units[2 * id + 1], (uint8_t)*ndim);
        atomic_store(&units[2 * id], (uint8_t)(*header_nbytes / 64));
    }
    return ZR_OK;
}

int zri_record_ndim(struct zr_reader *r, uint64_t id, const struct zri_entry *entry, bool mapped,
                    uint32_t *ndim, struct zr_error *err)
{
    uint64_t header_nbytes, raw_ndim = UINT64_MAX;
    int rc = ZR_OK;
    if (r->header.codec != ZR_RAW) {
        rc = ragged_overhead(r, id, entry, ndim, &header_nbytes, err);
        raw_ndim = *ndim;
    } else if (mapped && zri_reader_maps(r, entry)) {
        memcpy(&raw_ndim, r->data.bytes + entry->off, sizeof raw_ndim);
    } else {
        rc = read_stored(r, id, entry, &raw_ndim, sizeof raw_ndim, err);
    }
    if (!rc && (raw_ndim > ZR_MAX_NDIM || 8 * (raw_ndim + 1) >= entry->logic_nbytes))
        rc = zri_record_damaged(r, id, entry->off, ZR_E_CORRUPT,
                                "the shape prefix is damaged: impossible rank", err);
    if (!rc)
        *ndim = (uint32_t)raw_ndim;
    return rc;
}

/* What the .npy has in front of the payload, and how much of the record it replaces. */
struct lead {
    uint64_t header_nbytes, prefix_nbytes;
    uint32_t ndim;
};

static int record_lead(struct zr_reader *r, uint64_t id, const struct zri_entry *entry,
                       struct lead *lead, struct zr_error *err)
{
    *lead = (struct lead){.header_nbytes = r->npy_header_nbytes};
    if (r->schema.geometry == ZR_DENSE)
        return ZR_OK;
    int rc = ragged_overhead(r, id, entry, &lead->ndim, &lead->header_nbytes, err);
    lead->prefix_nbytes = 8 * ((uint64_t)lead->ndim + 1);
    return rc;
}

int zr_record_npy_nbytes(struct zr_reader *r, uint64_t id, uint64_t *nbytes, struct zr_error *err)
{
    struct zri_entry entry;
    struct lead lead = {0};
    if (r->schema.geometry == ZR_DENSE) {
        int rc = zri_check_ids(r, &id, 1, err);
        if (!rc)
            *nbytes = r->npy_header_nbytes + r->schema.row_nbytes;
        return rc;
    }
    int rc = checked_entry(r, id, &entry, err);
    if (!rc)
        rc = record_lead(r, id, &entry, &lead, err);
    if (!rc)
        *nbytes = lead.header_nbytes + entry.logic_nbytes - lead.prefix_nbytes;
    return rc;
}

static const void *dense_npy(struct zr_reader *r, uint8_t *block, uint64_t *nbytes)
{
    memcpy(block, r->npy_header, r->npy_header_nbytes);
    *nbytes = r->npy_header_nbytes + r->schema.row_nbytes;
    return block;
}

/* The header of a decoded record, and where its payload starts; the length of the header. */
static size_t ragged_header(const struct zr_reader *r, const uint8_t *record, uint64_t logic_nbytes,
                            uint8_t *header, struct zr_record_view *view)
{
    zr_record_split(record, logic_nbytes, view);
    return zr_npy_header(r->schema.dtype, view->ndim, view->shape, header);
}

/* The record was decoded with room in front: its header ends where its payload starts, over the
 * shape prefix. */
static const void *ragged_npy(const struct zr_reader *r, const uint8_t *record,
                              uint64_t logic_nbytes, uint64_t *nbytes)
{
    struct zr_record_view view;
    uint8_t header[ZR_NPY_MAX_HEADER_NBYTES];
    size_t n = ragged_header(r, record, logic_nbytes, header, &view);
    uint8_t *npy = (uint8_t *)(uintptr_t)view.data - n;
    memcpy(npy, header, n);
    *nbytes = n + view.data_nbytes;
    return npy;
}

static const char other_shape[] = "its shape is not what the sidecar says";

/* Who asked for the size before must get as many bytes. */
static int check_side_size(const struct zr_reader *r, uint64_t id, const struct zri_entry *entry,
                           uint64_t npy_nbytes, struct zr_error *err)
{
    uint32_t ndim;
    uint64_t header_nbytes;
    if (!side_overhead(r, id, entry, &ndim, &header_nbytes) ||
        header_nbytes + entry->logic_nbytes - 8 * ((uint64_t)ndim + 1) == npy_nbytes)
        return ZR_OK;
    return zri_record_damaged(r, id, entry->off, ZR_E_CORRUPT, other_shape, err);
}

int zr_record_npy(struct zr_reader *r, uint64_t id, void **block, const void **npy,
                  uint64_t *nbytes, struct zr_error *err)
{
    struct zri_entry entry;
    int rc = checked_entry(r, id, &entry, err);
    if (rc)
        return rc;
    bool dense = r->schema.geometry == ZR_DENSE;
    size_t lead = dense ? r->npy_header_nbytes : ZR_NPY_MAX_HEADER_NBYTES;
    uint8_t *b = zr_buffer_alloc(lead + entry.logic_nbytes);
    if (!b)
        return zri_fail_record(err, ZR_E_NOMEM, id, entry.off, "%s: out of memory", r->path);
    rc = zri_gather_one(r, id, &entry, b + lead, err);
    const void *start = NULL;
    uint64_t n = 0;
    if (!rc) {
        start = dense ? dense_npy(r, b, &n) : ragged_npy(r, b + lead, entry.logic_nbytes, &n);
        rc = dense ? ZR_OK : check_side_size(r, id, &entry, n, err);
    }
    if (rc) {
        zr_buffer_free(b);
        return rc;
    }
    *block = b;
    *npy = start;
    *nbytes = n;
    return ZR_OK;
}

/* The long way, for headers that are shorter than the shape prefix, as with many dims of one
 * digit, and for records unlike what the sidecar says. */
static int into_by_copy(struct zr_reader *r, uint64_t id, const struct zri_entry *entry, void *out,
                        uint64_t out_nbytes, struct zr_error *err)
{
    void *block;
    const void *npy;
    uint64_t nbytes;
    int rc = zr_record_npy(r, id, &block, &npy, &nbytes, err);
    if (rc)
        return rc;
    if (nbytes == out_nbytes)
        memcpy(out, npy, nbytes);
    zr_buffer_free(block);
    return nbytes == out_nbytes
               ? ZR_OK
               : zri_record_damaged(r, id, entry->off, ZR_E_CORRUPT, other_shape, err);
}

/* Decoded so that the payload comes to lie where it belongs; the header then covers the prefix. */
static int into_place(struct zr_reader *r, uint64_t id, const struct zri_entry *entry,
                      const struct lead *lead, uint8_t *out, bool *fits, struct zr_error *err)
{
    struct zr_record_view view;
    uint8_t header[ZR_NPY_MAX_HEADER_NBYTES];
    uint8_t *record = out + lead->header_nbytes - lead->prefix_nbytes;
    *fits = true;
    int rc = zri_gather_one(r, id, entry, record, err);
    if (rc)
        return rc;
    if (r->schema.geometry == ZR_DENSE) {
        memcpy(out, r->npy_header, r->npy_header_nbytes);
        return ZR_OK;
    }
    size_t n = ragged_header(r, record, entry->logic_nbytes, header, &view);
    *fits = view.ndim == lead->ndim && n == lead->header_nbytes;
    if (*fits)
        memcpy(out, header, n);
    return ZR_OK;
}

int zr_record_npy_into(struct zr_reader *r, uint64_t id, void *out, uint64_t out_nbytes,
                       struct zr_error *err)
{
    struct zri_entry entry;
    struct lead lead;
    int rc = checked_entry(r, id, &entry, err);
    if (!rc)
        rc = record_lead(r, id, &entry, &lead, err);
    if (rc)
        return rc;
    uint64_t nbytes = lead.header_nbytes + entry.logic_nbytes - lead.prefix_nbytes;
    if (out_nbytes != nbytes)
        return zri_fail_record(err, ZR_E_BUFFER, id, entry.off,
                               "%s: record %" PRIu64 ": its .npy has %" PRIu64
                               " bytes, the buffer %" PRIu64,
                               r->path, id, nbytes, out_nbytes);
    bool fits = lead.header_nbytes >= lead.prefix_nbytes;
    if (fits)
        rc = into_place(r, id, &entry, &lead, out, &fits, err);
    return rc || fits ? rc : into_by_copy(r, id, &entry, out, nbytes, err);
}
