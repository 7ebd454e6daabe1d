/* SPDX-License-Identifier: MIT
 *
 * PNG (ISO/IEC 15948): signature, IHDR, one IDAT, IEND.  The IDAT holds a zlib stream
 * (RFC 1950) of stored blocks (RFC 1951): each row is a filter byte of 0 and its pixels.
 */
#include "png.h"

#include <libdeflate.h>

#include <string.h>

enum {
    BLOCK_MAX = 65535, /* bytes of a stored block */
    BLOCK_HEADER = 5,
    CHUNK_OVERHEAD = 12, /* length, type, CRC */
    IHDR_NBYTES = 13,
    ZLIB_OVERHEAD = 6, /* header, Adler-32 */
    PLANES = 3
};
static const uint8_t SIGNATURE[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};

static uint64_t raw_nbytes(const struct png_layout *l)
{
    return l->height * (1 + (uint64_t)l->width * l->channels);
}

static uint64_t idat_nbytes(const struct png_layout *l)
{
    uint64_t raw = raw_nbytes(l);
    return raw + (raw + BLOCK_MAX - 1) / BLOCK_MAX * BLOCK_HEADER + ZLIB_OVERHEAD;
}

static bool set_layout(struct png_layout *l, uint64_t height, uint64_t width, uint32_t channels,
                       bool is_planar)
{
    if (!height || !width || height > INT32_MAX || width > INT32_MAX ||
        height * (width + 1) > INT32_MAX / channels)
        return false;
    *l = (struct png_layout){(uint32_t)width, (uint32_t)height, channels, is_planar};
    return idat_nbytes(l) <= INT32_MAX;
}

bool png_layout(uint32_t ndim, const uint64_t *shape, struct png_layout *layout)
{
    if (ndim == 2)
        return set_layout(layout, shape[0], shape[1], 1, false);
    if (ndim != 3)
        return false;
    if (shape[2] == 3 || shape[2] == 4)
        return set_layout(layout, shape[0], shape[1], (uint32_t)shape[2], false);
    return shape[0] == PLANES && set_layout(layout, shape[1], shape[2], PLANES, true);
}

uint64_t png_nbytes(const struct png_layout *l)
{
    return sizeof SIGNATURE + CHUNK_OVERHEAD + IHDR_NBYTES + CHUNK_OVERHEAD + idat_nbytes(l) +
           CHUNK_OVERHEAD;
}

static uint8_t *put32(uint8_t *to, uint32_t value)
{
    for (int shift = 24; shift >= 0; shift -= 8)
        *to++ = (uint8_t)(value >> shift);
    return to;
}

/* The CRC of a chunk from its type to end, and after it. */
static uint8_t *end_chunk(const uint8_t *type, uint8_t *end)
{
    return put32(end, libdeflate_crc32(0, type, (size_t)(end - type)));
}

static uint8_t *begin_chunk(uint8_t *to, const char *type, uint64_t nbytes)
{
    to = put32(to, (uint32_t)nbytes);
    memcpy(to, type, 4);
    return to + 4;
}

static uint8_t *put_ihdr(uint8_t *to, const struct png_layout *l)
{
    uint8_t *type = to + 4;
    to = begin_chunk(to, "IHDR", IHDR_NBYTES);
    to = put32(to, l->width);
    to = put32(to, l->height);
    const uint8_t rest[5] = {8, l->channels == 1 ? 0 : l->channels == 3 ? 2 : 6, 0, 0, 0};
    memcpy(to, rest, sizeof rest);
    return end_chunk(type, to + sizeof rest);
}

/* Stored blocks being filled. */
struct blocks {
    uint8_t *to;
    uint64_t left;    /* raw bytes to come */
    uint32_t room;    /* in this block */
    uint32_t adler32; /* of all so far */
};

static void begin_block(struct blocks *b)
{
    uint32_t n = b->left < BLOCK_MAX ? (uint32_t)b->left : BLOCK_MAX;
    const uint8_t header[BLOCK_HEADER] = {n == b->left, (uint8_t)n, (uint8_t)(n >> 8), (uint8_t)~n,
                                          (uint8_t)(~n >> 8)};
    memcpy(b->to, header, sizeof header);
    b->to += sizeof header;
    b->room = n;
}

static void put(struct blocks *b, const uint8_t *bytes, size_t nbytes)
{
    b->adler32 = libdeflate_adler32(b->adler32, bytes, nbytes);
    while (nbytes) {
        if (!b->room)
            begin_block(b);
        size_t n = nbytes < b->room ? nbytes : b->room;
        memcpy(b->to, bytes, n);
        b->to += n;
        b->room -= (uint32_t)n;
        b->left -= n;
        bytes += n;
        nbytes -= n;
    }
}

enum { PIXELS_AT_ONCE = 1024 };

static void put_planar_row(struct blocks *b, const struct png_layout *l, const uint8_t *row)
{
    uint8_t pixels[PIXELS_AT_ONCE * PLANES];
    size_t plane = (size_t)l->width * l->height;
    for (uint32_t x = 0; x < l->width;) {
        uint32_t n = l->width - x < PIXELS_AT_ONCE ? l->width - x : PIXELS_AT_ONCE;
        for (uint32_t i = 0; i < n; i++)
            for (size_t c = 0; c < PLANES; c++)
                pixels[i * PLANES + c] = row[c * plane + x + i];
        put(b, pixels, (size_t)n * PLANES);
        x += n;
    }
}

static void put_rows(struct blocks *b, const struct png_layout *l, const uint8_t *pixels)
{
    static const uint8_t NO_FILTER = 0;
    size_t row_nbytes = (size_t)l->width * (l->is_planar ? 1 : l->channels);
    for (uint32_t y = 0; y < l->height; y++) {
        put(b, &NO_FILTER, 1);
        if (l->is_planar)
            put_planar_row(b, l, pixels + y * row_nbytes);
        else
            put(b, pixels + y * row_nbytes, row_nbytes);
    }
}

void png_encode(const struct png_layout *l, const uint8_t *pixels, uint8_t *out)
{
    memcpy(out, SIGNATURE, sizeof SIGNATURE);
    out = put_ihdr(out + sizeof SIGNATURE, l);
    uint8_t *type = out + 4;
    out = begin_chunk(out, "IDAT", idat_nbytes(l));
    *out++ = 0x78; /* deflate, window of 32 KiB */
    *out++ = 0x01; /* fastest; makes the two a multiple of 31 */
    struct blocks b = {.to = out, .left = raw_nbytes(l), .adler32 = 1};
    put_rows(&b, l, pixels);
    out = end_chunk(type, put32(b.to, b.adler32));
    type = out + 4;
    end_chunk(type, begin_chunk(out, "IEND", 0));
}
