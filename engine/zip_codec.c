/* SPDX-License-Identifier: MIT
 *
 * CRC-32 and the compression methods of zip members, through libdeflate, libbz2
 * and liblzma.  Input is never trusted: no call writes more than it was promised.
 */
#include <bzlib.h>
#include <libdeflate.h>
#include <limits.h>
#include <lzma.h>
#include <stdlib.h>

#include "archive_watch.h"
#include "zip.h"
#include "zip_codec.h"

#define PIECE_NBYTES ((size_t)1 << 20)       /* between two looks at the watch */
#define LZMA_STEP_NBYTES ((size_t)256 << 10) /* the same where lzma compresses, at 1 MB/s */

/* ---------------------------------------------------------------- CRC-32 */

uint32_t zri_crc32(uint32_t crc, const void *bytes, size_t nbytes)
{
    return libdeflate_crc32(crc, bytes, nbytes);
}

/* CRCs are polynomials over GF(2), bit-reversed: appending n bytes multiplies by
 * x^8n modulo the CRC's polynomial. */
#define CRC_POLY 0xedb88320u

static uint32_t multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (uint32_t bit = 0x80000000u; bit; bit >>= 1) {
        if (a & bit)
            product ^= b;
        b = b & 1 ? b >> 1 ^ CRC_POLY : b >> 1;
    }
    return product;
}

/* x^(8n), by squaring x^8. */
static uint32_t power_of_bytes(uint64_t n)
{
    uint32_t result = 0x80000000u /* 1 */, square = 0x00800000u /* x^8 */;
    for (; n; n >>= 1) {
        if (n & 1)
            result = multiply(result, square);
        square = multiply(square, square);
    }
    return result;
}

uint32_t zri_crc32_join(uint32_t a, uint32_t b, uint64_t b_nbytes)
{
    return multiply(a, power_of_bytes(b_nbytes)) ^ b;
}

uint32_t zri_crc32_zeros(uint64_t nbytes)
{
    return ~multiply(UINT32_MAX, power_of_bytes(nbytes));
}

/* ---------------------------------------------------------------- methods */

const char *zri_method_name(int method)
{
    switch (method) {
    case ZRI_ZIP_STORED:
        return "stored";
    case ZRI_ZIP_DEFLATE:
        return "deflate";
    case ZRI_ZIP_BZIP2:
        return "bzip2";
    case ZRI_ZIP_LZMA:
        return "lzma";
    default:
        return NULL;
    }
}

/* The best that each format can do, with some bytes to spare: deflate codes 258
 * bytes in 2 bits; a bzip2 block of 40 bytes holds 900,000 runs of 51; an lzma
 * match of 273 bytes costs about 0.14 bits. */
int zri_method_can_hold(int method, uint64_t stored_nbytes, uint64_t nbytes)
{
    static const uint64_t slack = 4096;
    uint64_t ratio = method == ZRI_ZIP_DEFLATE ? 1032
                     : method == ZRI_ZIP_BZIP2 ? 1200000
                     : method == ZRI_ZIP_LZMA  ? 16384
                                               : 1;
    if (method == ZRI_ZIP_STORED)
        return stored_nbytes == nbytes;
    return nbytes <= slack || (nbytes - slack) / ratio <= stored_nbytes;
}

static const char cut_short[] = "its compressed data is damaged or cut short";
static const char other_size[] = "its data has another size than declared";

static const char *inflate_deflate(const void *src, size_t stored_nbytes, void *dst, size_t nbytes)
{
    struct libdeflate_decompressor *d = libdeflate_alloc_decompressor();
    size_t used;
    if (!d)
        return zri_out_of_memory;
    enum libdeflate_result rc =
        libdeflate_deflate_decompress_ex(d, src, stored_nbytes, dst, nbytes, &used, NULL);
    libdeflate_free_decompressor(d);
    if (rc == LIBDEFLATE_SUCCESS)
        return used == stored_nbytes ? NULL : "bytes follow its compressed data";
    return rc == LIBDEFLATE_BAD_DATA ? cut_short : other_size;
}

static const char *inflate_bzip2(const void *src, size_t stored_nbytes, void *dst, size_t nbytes,
                                 struct zri_watch *watch)
{
    bz_stream s = {0};
    if (BZ2_bzDecompressInit(&s, 0, 0) != BZ_OK)
        return zri_out_of_memory;
    char spare = 0;
    uint64_t taken = 0, made = 0;
    int rc = BZ_OK;
    bool stopped = false;
    s.next_in = (char *)(uintptr_t)src;
    while (rc == BZ_OK && !(stopped = zri_watch_look(watch))) {
        uint64_t in = stored_nbytes - taken, out = nbytes - made;
        s.avail_in = (unsigned)(in > PIECE_NBYTES ? PIECE_NBYTES : in);
        s.avail_out = (unsigned)(out > PIECE_NBYTES ? PIECE_NBYTES : out);
        s.next_out = out ? (char *)dst + made : &spare;
        s.avail_out = out ? s.avail_out : 1; /* one byte too many shows an overlong stream */
        unsigned in_before = s.avail_in, out_before = s.avail_out;
        rc = BZ2_bzDecompress(&s);
        taken += in_before - s.avail_in;
        made += out_before - s.avail_out;
        if (made > nbytes || (rc == BZ_OK && in_before == s.avail_in && out_before == s.avail_out))
            break;
    }
    BZ2_bzDecompressEnd(&s);
    if (stopped)
        return zri_stopped;
    if (rc == BZ_MEM_ERROR)
        return zri_out_of_memory;
    if (made > nbytes || (rc == BZ_STREAM_END && made < nbytes))
        return other_size;
    return rc == BZ_STREAM_END && taken == stored_nbytes ? NULL : cut_short;
}

/* The stream of a zip member: version u16, length of the properties u16, those,
 * then raw LZMA, which may lack its end marker.  With its size in front it is an
 * .lzma file, which liblzma reads with and without the marker. */
#define LZMA_HEAD_NBYTES 9
#define ALONE_HEAD_NBYTES 13

static const char *alone_head(const uint8_t *src, size_t stored_nbytes, uint64_t nbytes,
                              uint8_t *head)
{
    if (stored_nbytes < LZMA_HEAD_NBYTES || zri_le16(src + 2) != 5)
        return cut_short;
    /* The window need not be larger than what comes out, whatever the header says:
     * a hostile one would ask for 4 GiB. */
    uint32_t window = zri_le32(src + 5);
    if (window > nbytes)
        window = nbytes > LZMA_DICT_SIZE_MIN ? (uint32_t)nbytes : LZMA_DICT_SIZE_MIN;
    head[0] = src[4];
    for (int i = 0; i < 4; i++)
        head[1 + i] = (uint8_t)(window >> 8 * i);
    for (int i = 0; i < 8; i++)
        head[5 + i] = (uint8_t)(nbytes >> 8 * i);
    return NULL;
}

static const char *run_lzma(lzma_stream *s, const uint8_t *head, const uint8_t *src,
                            size_t stored_nbytes, size_t nbytes, struct zri_watch *watch)
{
    s->next_in = head;
    s->avail_in = ALONE_HEAD_NBYTES;
    s->avail_out = 1;
    lzma_ret rc = lzma_code(s, LZMA_RUN);
    if (rc == LZMA_OK) {
        s->next_in = src + LZMA_HEAD_NBYTES;
        s->avail_in = stored_nbytes - LZMA_HEAD_NBYTES;
    }
    while (rc == LZMA_OK) {
        if (zri_watch_look(watch))
            return zri_stopped;
        size_t left = nbytes - (size_t)s->total_out;
        s->avail_out = left > PIECE_NBYTES ? PIECE_NBYTES : left ? left : 1;
        rc = lzma_code(s, LZMA_FINISH);
        if (s->avail_out || s->total_out >= nbytes)
            break;
    }
    if (rc == LZMA_MEM_ERROR)
        return zri_out_of_memory;
    if (rc != LZMA_STREAM_END)
        return cut_short;
    return s->total_out != nbytes ? other_size
           : s->avail_in          ? "bytes follow its compressed data"
                                  : NULL;
}

static const char *inflate_lzma(const uint8_t *src, size_t stored_nbytes, void *dst, size_t nbytes,
                                struct zri_watch *watch)
{
    uint8_t head[ALONE_HEAD_NBYTES];
    const char *why = alone_head(src, stored_nbytes, nbytes, head);
    if (why)
        return why;
    lzma_stream s = LZMA_STREAM_INIT;
    lzma_ret rc = lzma_alone_decoder(&s, UINT64_MAX);
    if (rc != LZMA_OK)
        return zri_out_of_memory;
    uint8_t spare = 0; /* liblzma does nothing for a buffer of no bytes */
    s.next_out = nbytes ? dst : &spare;
    why = run_lzma(&s, head, src, stored_nbytes, nbytes, watch);
    lzma_end(&s);
    return why;
}

const char *zri_inflate(int method, const void *src, size_t stored_nbytes, void *dst, size_t nbytes,
                        struct zri_watch *watch)
{
    switch (method) {
    case ZRI_ZIP_STORED:
        if (stored_nbytes != nbytes)
            return other_size;
        memcpy(dst, src, nbytes);
        return NULL;
    case ZRI_ZIP_DEFLATE:
        return inflate_deflate(src, stored_nbytes, dst, nbytes);
    case ZRI_ZIP_BZIP2:
        return inflate_bzip2(src, stored_nbytes, dst, nbytes, watch);
    case ZRI_ZIP_LZMA:
        return inflate_lzma(src, stored_nbytes, dst, nbytes, watch);
    default:
        return "its compression method is not known here";
    }
}

/* ---------------------------------------------------------------- compressing */

static const char *compress_deflate(int level, const void *src, size_t nbytes, void **out,
                                    size_t *out_nbytes)
{
    struct libdeflate_compressor *c = libdeflate_alloc_compressor(level < 0 ? 6 : level);
    size_t capacity = c ? libdeflate_deflate_compress_bound(c, nbytes) : 0;
    *out = c ? malloc(capacity) : NULL;
    if (*out)
        *out_nbytes = libdeflate_deflate_compress(c, src, nbytes, *out, capacity);
    libdeflate_free_compressor(c);
    return *out ? NULL : zri_out_of_memory;
}

static const char *run_bzip2(bz_stream *s, const void *src, size_t nbytes, struct zri_watch *watch)
{
    size_t taken = 0;
    int rc = BZ_RUN_OK;
    while (rc == BZ_RUN_OK) {
        if (zri_watch_look(watch))
            return zri_stopped;
        size_t left = nbytes - taken;
        s->next_in = (char *)(uintptr_t)src + taken;
        s->avail_in = (unsigned)(left > PIECE_NBYTES ? PIECE_NBYTES : left);
        taken += s->avail_in;
        rc = BZ2_bzCompress(s, taken < nbytes ? BZ_RUN : BZ_FINISH);
    }
    return rc == BZ_STREAM_END ? NULL : "bzip2 could not compress it";
}

static const char *compress_bzip2(int level, const void *src, size_t nbytes, void **out,
                                  size_t *out_nbytes, struct zri_watch *watch)
{
    if (nbytes > UINT_MAX - UINT_MAX / 64)
        return "bzip2 takes members below 4 GiB only";
    unsigned capacity = (unsigned)(nbytes + nbytes / 100 + 601);
    bz_stream s = {.avail_out = capacity, .next_out = malloc(capacity)};
    *out = s.next_out;
    if (!*out || BZ2_bzCompressInit(&s, level < 0 ? 9 : level, 0, 0) != BZ_OK) {
        free(*out);
        *out = NULL;
        return zri_out_of_memory;
    }
    const char *why = run_bzip2(&s, nbytes ? src : "", nbytes, watch);
    BZ2_bzCompressEnd(&s);
    *out_nbytes = capacity - s.avail_out;
    if (why) {
        free(*out);
        *out = NULL;
    }
    return why;
}

static lzma_ret run_lzma_encoder(lzma_stream *s, const uint8_t *src, size_t nbytes,
                                 struct zri_watch *watch)
{
    lzma_ret rc = LZMA_OK;
    size_t taken = 0;
    s->next_in = src;
    while (rc == LZMA_OK && s->avail_out) {
        size_t left = nbytes - taken, n = left > LZMA_STEP_NBYTES ? LZMA_STEP_NBYTES : left;
        if (zri_watch_look(watch))
            return LZMA_PROG_ERROR; /* the caller knows */
        s->avail_in += n;
        taken += n;
        rc = lzma_code(s, taken < nbytes ? LZMA_RUN : LZMA_FINISH);
    }
    return rc;
}

static const char *compress_lzma(int level, const void *src, size_t nbytes, void **out,
                                 size_t *out_nbytes, struct zri_watch *watch)
{
    static const uint8_t version_and_length[] = {9, 4, 5, 0}; /* as zipfile writes them */
    lzma_options_lzma options;
    if (lzma_lzma_preset(&options, level < 0 ? LZMA_PRESET_DEFAULT : (uint32_t)level))
        return "there is no such lzma level";
    /* A window beyond the data would only cost memory. */
    while (options.dict_size / 2 >= nbytes && options.dict_size / 2 >= LZMA_DICT_SIZE_MIN)
        options.dict_size /= 2;
    const lzma_filter filters[] = {{.id = LZMA_FILTER_LZMA1, .options = &options},
                                   {.id = LZMA_VLI_UNKNOWN}};
    size_t capacity = nbytes + nbytes / 16 + 1024, used = 9;
    uint8_t *bytes = malloc(capacity);
    if (!bytes)
        return zri_out_of_memory;
    memcpy(bytes, version_and_length, sizeof version_and_length);
    lzma_stream s = LZMA_STREAM_INIT;
    lzma_ret rc = lzma_properties_encode(filters, bytes + 4);
    if (rc == LZMA_OK)
        rc = lzma_raw_encoder(&s, filters);
    if (rc == LZMA_OK) {
        s.next_out = bytes + used;
        s.avail_out = capacity - used;
        rc = run_lzma_encoder(&s, src, nbytes, watch);
        used += s.total_out;
    }
    lzma_end(&s);
    if (rc != LZMA_STREAM_END) {
        free(bytes);
        return zri_watch_look(watch)  ? zri_stopped
               : rc == LZMA_MEM_ERROR ? zri_out_of_memory
                                      : "liblzma could not compress it";
    }
    *out = bytes;
    *out_nbytes = used;
    return NULL;
}

const char *zri_deflate(int method, int level, const void *src, size_t nbytes, void **out,
                        size_t *out_nbytes, struct zri_watch *watch)
{
    *out = NULL;
    switch (method) {
    case ZRI_ZIP_DEFLATE:
        return compress_deflate(level, src, nbytes, out, out_nbytes);
    case ZRI_ZIP_BZIP2:
        return compress_bzip2(level, src, nbytes, out, out_nbytes, watch);
    case ZRI_ZIP_LZMA:
        return compress_lzma(level, src, nbytes, out, out_nbytes, watch);
    default:
        return "its compression method is not known here";
    }
}
