/* SPDX-License-Identifier: MIT
 *
 * meta.zr: its page and its table, decoded with every field checked.  Knows
 * bytes only; files are io.c's, the schema inside the page is schema.c's.
 */
#include "format.h"

#include <endian.h>
#include <string.h>

#include "zrecord.h"

static void store64(uint8_t *p, uint64_t v)
{
    v = htole64(v);
    memcpy(p, &v, sizeof v);
}

static void store32(uint8_t *p, uint32_t v)
{
    v = htole32(v);
    memcpy(p, &v, sizeof v);
}

const char *zri_header_decode(struct zri_header *h, const uint8_t *page)
{
    struct zri_header v = {
        .length = zri_load64(page),
        .tail_off = zri_load64(page + 8),
        .schema_nbytes = zri_load32(page + 16),
        .codec = page[31],
    };
    for (int i = 20; i < 31; i++)
        if (page[i])
            return "reserved header bytes are not zero";
    if (v.schema_nbytes == 0)
        return "the header is empty: the store was never finished";
    if (v.schema_nbytes > ZRI_SCHEMA_MAX)
        return "schema length is outside 1..4064";
    if (v.codec > ZR_ZSTD_DICT)
        return "unknown codec number";
    for (size_t i = ZRI_HEADER_NBYTES + v.schema_nbytes; i < ZRI_PAGE_NBYTES; i++)
        if (page[i])
            return "padding after the schema is not zero";
    if (v.length == 0 && v.tail_off != 0)
        return "no records but a data length";
    *h = v;
    return NULL;
}

void zri_header_encode(const struct zri_header *h, const uint8_t *schema, uint8_t *page)
{
    memset(page, 0, ZRI_PAGE_NBYTES);
    store64(page, h->length);
    store64(page + 8, h->tail_off);
    store32(page + 16, h->schema_nbytes);
    page[31] = h->codec;
    memcpy(page + ZRI_HEADER_NBYTES, schema, h->schema_nbytes);
}

void zri_entry_encode(const struct zri_entry *e, uint8_t *bytes)
{
    store64(bytes, e->off);
    store32(bytes + 8, e->phys_nbytes);
    store32(bytes + 12, e->logic_nbytes);
}
