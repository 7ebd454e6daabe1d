/* SPDX-License-Identifier: MIT
 *
 * An array in memory as a reader: a raw Dense store whose payload is the array and
 * whose header and table are made up here.  So a leaf of an archive gathers,
 * loads ahead and shows its records as a store does.
 */
#include <stdlib.h>

#include "internal.h"

static const char *check(const struct zri_schema *s, uint64_t length, const void *data)
{
    uint64_t nbytes;
    if (s->row_nbytes == 0 || s->row_nbytes > ZR_MAX_RECORD_NBYTES)
        return "its records have no bytes, or more than 2 GiB";
    if (__builtin_mul_overflow(length, s->row_nbytes, &nbytes) ||
        length > (SIZE_MAX - ZRI_PAGE_NBYTES) / ZRI_ENTRY_NBYTES)
        return "it is too large";
    return data || !length ? NULL : "it has no data";
}

/* The bytes of a meta.zr, to be freed. */
static uint8_t *make_meta(const struct zri_schema *s, uint64_t length, size_t *nbytes)
{
    uint8_t schema[ZRI_SCHEMA_MAX];
    size_t schema_nbytes;
    *nbytes = (size_t)zri_entry_off(length);
    uint8_t *meta = zri_schema_encode(s, schema, &schema_nbytes) ? NULL : malloc(*nbytes);
    if (!meta)
        return NULL;
    const struct zri_header header = {.length = length,
                                      .tail_off = length * s->row_nbytes,
                                      .schema_nbytes = (uint32_t)schema_nbytes,
                                      .codec = ZR_RAW};
    zri_header_encode(&header, schema, meta);
    uint32_t row = (uint32_t)s->row_nbytes;
    for (uint64_t id = 0; id < length; id++) {
        const struct zri_entry entry = {id * row, row, row};
        zri_entry_encode(&entry, meta + zri_entry_off(id));
    }
    return meta;
}

int zr_reader_open_array(struct zr_reader **out, const char *dtype, uint32_t ndim,
                         const uint64_t *item_shape, uint64_t length, const void *data,
                         struct zr_error *err)
{
    struct zri_schema schema;
    size_t nbytes;
    *out = NULL;
    const char *why = zri_schema_set(&schema, ZR_DENSE, dtype, ndim, item_shape);
    if (why)
        return zri_fail(err, ZR_E_SCHEMA, "array: %s", why);
    why = check(&schema, length, data);
    if (why)
        return zri_fail(err, ZR_E_INVALID, "array: %s", why);
    uint8_t *meta = make_meta(&schema, length, &nbytes);
    if (!meta)
        return zri_fail(err, ZR_E_NOMEM, "array: out of memory");
    const struct zri_image meta_image = {meta, nbytes};
    const struct zri_image data_image = {data, (size_t)(length * schema.row_nbytes)};
    int rc = zri_reader_open_images(out, &meta_image, &data_image, NULL, NULL, NULL, err);
    if (rc)
        free(meta);
    else
        (*out)->made_meta = meta;
    return rc;
}
