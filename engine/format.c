/* SPDX-License-Identifier: MIT
 *
 * meta.zr: its page and its table, decoded with every field checked.  Knows
 * bytes only; files are io.c's, the schema inside the page is schema.c's.
 */
#include "format.h"

#include <endian.h>
#include <string.h>

#include "zrecord.h"

/* A compressed block is at least 4 bytes and holds at most 128 KiB, so a frame
 * cannot promise more than this; it keeps a hostile table from asking for
 * gigabytes that its data could never fill. */
#define ZSTD_MIN_BLOCK_NBYTES 4
#define ZSTD_MAX_BLOCK_NBYTES ((uint64_t)128 << 10)

static uint64_t load64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return le64toh(v);
}

static uint32_t load32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return le32toh(v);
}

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
        .length = load64(page),
        .tail_off = load64(page + 8),
        .schema_nbytes = load32(page + 16),
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

void zri_entry_decode(struct zri_entry *e, const uint8_t *bytes)
{
    e->off = load64(bytes);
    e->phys_nbytes = load32(bytes + 8);
    e->logic_nbytes = load32(bytes + 12);
}

void zri_entry_encode(const struct zri_entry *e, uint8_t *bytes)
{
    store64(bytes, e->off);
    store32(bytes + 8, e->phys_nbytes);
    store32(bytes + 12, e->logic_nbytes);
}

const char *zri_entry_check(const struct zri_entry *e, const struct zri_header *h,
                            uint64_t row_nbytes)
{
    if (e->off > h->tail_off || e->phys_nbytes > h->tail_off - e->off)
        return "table entry points past the end of data.zr";
    if (e->phys_nbytes == 0 || e->logic_nbytes == 0)
        return "table entry has a zero length";
    if (e->logic_nbytes > ZR_MAX_RECORD_NBYTES)
        return "table entry exceeds the record limit of 2 GiB";
    if (row_nbytes ? e->logic_nbytes != row_nbytes : e->logic_nbytes <= 8)
        return "table entry disagrees with the schema on the record's size";
    if (h->codec == ZR_RAW ? e->phys_nbytes != e->logic_nbytes
                           : e->logic_nbytes > (e->phys_nbytes / ZSTD_MIN_BLOCK_NBYTES + 1) *
                                                   ZSTD_MAX_BLOCK_NBYTES)
        return "table entry's stored and decoded sizes cannot belong together";
    return NULL;
}
