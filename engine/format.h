/* SPDX-License-Identifier: MIT
 *
 * Every byte of meta.zr.  FORMAT.md is the text that this follows.
 */
#ifndef ZRI_FORMAT_H
#define ZRI_FORMAT_H

#include <endian.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "zrecord.h"

#define ZRI_META_NAME "meta.zr"
#define ZRI_DATA_NAME "data.zr"
#define ZRI_DICT_NAME "dict.zr"
#define ZRI_SIDE_NAME "side.zr"

#define ZRI_PAGE_NBYTES 4096
#define ZRI_HEADER_NBYTES 32
#define ZRI_SCHEMA_MAX (ZRI_PAGE_NBYTES - ZRI_HEADER_NBYTES)
#define ZRI_ENTRY_NBYTES 16
#define ZRI_SIDE_HEADER_NBYTES 64

/* A compressed block is at least 4 bytes and holds at most 128 KiB, so a frame
 * cannot promise more than this; it keeps a hostile table from asking for
 * gigabytes that its data could never fill. */
#define ZRI_ZSTD_MIN_BLOCK_NBYTES 4
#define ZRI_ZSTD_MAX_BLOCK_NBYTES ((uint64_t)128 << 10)

struct zri_header {
    uint64_t length;
    uint64_t tail_off;
    uint32_t schema_nbytes;
    uint8_t codec;
};

struct zri_entry {
    uint64_t off;
    uint32_t phys_nbytes;
    uint32_t logic_nbytes;
};

/* page holds ZRI_PAGE_NBYTES; NULL, or what is wrong.  Whether the table that it
 * announces is there is for the caller to see. */
const char *zri_header_decode(struct zri_header *h, const uint8_t *page);
/* Writes all of page: header, schema, zero padding. */
void zri_header_encode(const struct zri_header *h, const uint8_t *schema, uint8_t *page);

void zri_entry_encode(const struct zri_entry *e, uint8_t *bytes);
static inline uint64_t zri_entry_off(uint64_t id)
{
    return ZRI_PAGE_NBYTES + id * ZRI_ENTRY_NBYTES;
}

/* Inline from here: a gather does it for each record. */

static inline uint64_t zri_load64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return le64toh(v);
}

static inline uint32_t zri_load32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return le32toh(v);
}

static inline void zri_entry_decode(struct zri_entry *e, const uint8_t *bytes)
{
    e->off = zri_load64(bytes);
    e->phys_nbytes = zri_load32(bytes + 8);
    e->logic_nbytes = zri_load32(bytes + 12);
}

/* NULL, or what is wrong with an entry of a store with this header.  row_nbytes
 * is that of a Dense store, 0 for Ragged. */
static inline const char *zri_entry_check(const struct zri_entry *e, const struct zri_header *h,
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
                           : e->logic_nbytes > (e->phys_nbytes / ZRI_ZSTD_MIN_BLOCK_NBYTES + 1) *
                                                   ZRI_ZSTD_MAX_BLOCK_NBYTES)
        return "table entry's stored and decoded sizes cannot belong together";
    return NULL;
}

#endif
