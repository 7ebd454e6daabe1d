/* SPDX-License-Identifier: MIT
 *
 * Every byte of meta.zr.  FORMAT.md is the text that this follows.
 */
#ifndef ZRI_FORMAT_H
#define ZRI_FORMAT_H

#include <stddef.h>
#include <stdint.h>

#define ZRI_META_NAME "meta.zr"
#define ZRI_DATA_NAME "data.zr"
#define ZRI_DICT_NAME "dict.zr"
#define ZRI_SIDE_NAME "side.zr"

#define ZRI_PAGE_NBYTES 4096
#define ZRI_HEADER_NBYTES 32
#define ZRI_SCHEMA_MAX (ZRI_PAGE_NBYTES - ZRI_HEADER_NBYTES)
#define ZRI_ENTRY_NBYTES 16
#define ZRI_SIDE_HEADER_NBYTES 64

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

void zri_entry_decode(struct zri_entry *e, const uint8_t *bytes);
void zri_entry_encode(const struct zri_entry *e, uint8_t *bytes);
/* NULL, or what is wrong with an entry of a store with this header.  row_nbytes
 * is that of a Dense store, 0 for Ragged. */
const char *zri_entry_check(const struct zri_entry *e, const struct zri_header *h,
                            uint64_t row_nbytes);

static inline uint64_t zri_entry_off(uint64_t id)
{
    return ZRI_PAGE_NBYTES + id * ZRI_ENTRY_NBYTES;
}

#endif
