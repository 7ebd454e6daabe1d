/* SPDX-License-Identifier: MIT
 *
 * side.zr: what the container format lacks, one row a record: the checksum of
 * its logical bytes and, for Ragged, rank and .npy header length.  Bytes only;
 * FORMAT.md has the layout.  A reader that ignores the file loses nothing else.
 */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <endian.h>

#include "internal.h"

static const char magic[8] = "zr-side";
#define SIDE_VERSION 2
#define DENSE_ROW_NBYTES 4
#define RAGGED_ROW_NBYTES 5
#define SHORT_NBYTES 240 /* XXH3 has no vectors for these */
/* Rank and .npy header length in one byte, see FORMAT.md; the rest is not known. */
#define NPY_UNIT_NBYTES 64
#define NPY_MAX_UNITS (ZRI_SIDE_NPY_MAX_NBYTES / NPY_UNIT_NBYTES)

uint64_t zri_checksum(const void *bytes, size_t nbytes)
{
#if ZRI_HAS_SUM_AVX2
    if (nbytes > SHORT_NBYTES && __builtin_cpu_supports("avx2"))
        return zri_sum_avx2(bytes, nbytes);
#endif
    return XXH3_64bits(bytes, nbytes);
}

uint32_t zri_record_sum(const void *logical, size_t nbytes)
{
    return (uint32_t)zri_checksum(logical, nbytes);
}

uint64_t zri_identity(const uint8_t *page, const uint8_t *entries, size_t entry_count)
{
    uint64_t seed = XXH3_64bits(page, ZRI_PAGE_NBYTES);
    return XXH3_64bits_withSeed(entries, entry_count * ZRI_ENTRY_NBYTES, seed);
}

uint64_t zri_identity_index(uint64_t length, size_t k)
{
    /* First, last, and evenly between; without overflow for any length. */
    uint64_t last = length - 1, steps = ZRI_IDENTITY_ENTRIES - 1;
    return last / steps * k + last % steps * k / steps;
}

static void put64(uint8_t *p, uint64_t v)
{
    v = htole64(v);
    memcpy(p, &v, sizeof v);
}

static uint64_t get64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return le64toh(v);
}

size_t zri_side_row_nbytes(bool ragged)
{
    return ragged ? RAGGED_ROW_NBYTES : DENSE_ROW_NBYTES;
}

void zri_sidecar_encode(const struct zri_sidecar *s, uint8_t *header)
{
    memset(header, 0, ZRI_SIDE_HEADER_NBYTES);
    memcpy(header, magic, sizeof magic);
    put64(header + 8, SIDE_VERSION | (uint64_t)zri_side_row_nbytes(s->ragged) << 32);
    put64(header + 16, s->length);
    put64(header + 24, s->tail_off);
    put64(header + 32, s->identity);
    put64(header + 40, s->dict_sum);
    put64(header + 56, XXH3_64bits(header, 56));
}

const char *zri_sidecar_decode(struct zri_sidecar *s, const uint8_t *header, uint64_t file_nbytes)
{
    if (file_nbytes < ZRI_SIDE_HEADER_NBYTES || memcmp(header, magic, sizeof magic))
        return "not a sidecar of this program";
    if (get64(header + 56) != XXH3_64bits(header, 56))
        return "its header is damaged";
    uint64_t layout = get64(header + 8);
    if ((uint32_t)layout != SIDE_VERSION)
        return "it has another version";
    uint64_t row = layout >> 32;
    if (row != DENSE_ROW_NBYTES && row != RAGGED_ROW_NBYTES)
        return "its header is damaged";
    s->ragged = row == RAGGED_ROW_NBYTES;
    s->length = get64(header + 16);
    s->tail_off = get64(header + 24);
    s->identity = get64(header + 32);
    s->dict_sum = get64(header + 40);
    if (s->length > (file_nbytes - ZRI_SIDE_HEADER_NBYTES) / row)
        return "it is cut short";
    return NULL;
}

void zri_side_row_encode(const struct zri_side_row *row, bool ragged, uint8_t *bytes)
{
    uint32_t sum = htole32(row->sum);
    memcpy(bytes, &sum, sizeof sum);
    if (ragged) {
        unsigned units = row->npy_header_nbytes / NPY_UNIT_NBYTES;
        bytes[4] =
            units < 1 || units > NPY_MAX_UNITS ? 0 : (uint8_t)(NPY_MAX_UNITS * row->ndim + units);
    }
}

void zri_side_row_decode(struct zri_side_row *row, bool ragged, const uint8_t *bytes)
{
    uint32_t sum;
    memcpy(&sum, bytes, sizeof sum);
    *row = (struct zri_side_row){.sum = le32toh(sum)};
    if (ragged && bytes[4]) {
        row->npy_header_nbytes = (uint16_t)(((bytes[4] - 1) % NPY_MAX_UNITS + 1) * NPY_UNIT_NBYTES);
        row->ndim = (uint8_t)((bytes[4] - 1) / NPY_MAX_UNITS);
    }
}
