/* SPDX-License-Identifier: MIT
 *
 * Encoding options and the writer behind import and recode.
 */
#include <inttypes.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "building.h"

#define PIECE_MIN_NBYTES ((size_t)1 << 20)
#define PIECE_MAX_NBYTES ((size_t)16 << 20)
#define DICT_FILE_MAX_NBYTES ((size_t)16 << 20)
#define LEVEL_MIN (-131072) /* zstd's own range */
#define LEVEL_MAX 22

/* ---------------------------------------------------------------- options */

static int take_codec(struct encoding *e, const char *text)
{
    e->codec = zr_codec_from_name(text);
    return e->codec >= 0 ? 0 : usage_error("--codec '%s': not raw, zstd or zstd_dict", text);
}

static int take_level(struct encoding *e, const char *text)
{
    if (parse_int(text, LEVEL_MIN, LEVEL_MAX, &e->level) && e->level != 0)
        return 0;
    return usage_error("--level '%s': not a zstd level (1 to %d, or negative for speed)", text,
                       LEVEL_MAX);
}

static int take_tune(struct encoding *e, const char *text)
{
    e->tune = zr_tune_from_name(text);
    return e->tune >= 0 ? 0 : usage_error("--tune '%s': not default, read or write", text);
}

static int take_tier(struct encoding *e, const char *text)
{
    e->tier = zr_tier_from_name(text);
    e->tier_given = true;
    return e->tier >= 0 ? 0 : usage_error("--tier '%s': not fast, balanced or max", text);
}

int encoding_take(struct encoding *e, int option)
{
    switch (option) {
    case OPT_CODEC:
        return take_codec(e, optarg);
    case OPT_LEVEL:
        return take_level(e, optarg);
    case OPT_TUNE:
        return take_tune(e, optarg);
    case OPT_TIER:
        return take_tier(e, optarg);
    case OPT_DICT:
        e->dict_file = optarg;
        return 0;
    case OPT_NO_SYNC:
        e->no_sync = true;
        return 0;
    default:
        return usage_hint();
    }
}

int encoding_check(const struct encoding *e)
{
    if (e->codec == ZR_RAW && e->level)
        return usage_error("--level needs --codec zstd or zstd_dict");
    if (e->codec == ZR_RAW && e->tune)
        return usage_error("--tune needs --codec zstd or zstd_dict");
    if (e->codec != ZR_ZSTD_DICT && (e->tier_given || e->dict_file))
        return usage_error("--%s needs --codec zstd_dict", e->dict_file ? "dict" : "tier");
    if (e->tier_given && e->dict_file)
        return usage_error("--tier trains a dictionary, --dict brings one: give one of them");
    return 0;
}

/* zstd would take any bytes as a dictionary; a wrong file is far more likely. */
int encoding_read_dict(const struct encoding *e, void **dict, size_t *dict_nbytes)
{
    static const unsigned char magic[4] = {0x37, 0xA4, 0x30, 0xEC}; /* RFC 8878 */
    int status = read_file(e->dict_file, DICT_FILE_MAX_NBYTES, dict, dict_nbytes);

    if (!status && (*dict_nbytes < sizeof magic || memcmp(*dict, magic, sizeof magic) != 0)) {
        diag("%s: not a zstd dictionary (zrecord train-dict makes one)", e->dict_file);
        status = EXIT_FAILED;
    }
    return status;
}

/* ---------------------------------------------------------------- building */

int building_begin(struct building *b, const char *path, const struct encoding *e,
                   struct zr_writer_options *options)
{
    struct zr_error err;

    options->codec = e->codec;
    options->level = e->level;
    options->tune = e->tune;
    options->durability = e->no_sync ? ZR_NO_FSYNC : ZR_DURABLE;
    *b = (struct building){.path = path, .piece_nbytes = PIECE_MIN_NBYTES};
    signals_catch();
    return zr_writer_create(&b->writer, path, options, &err) == ZR_OK ? 0 : fail(&err);
}

void building_piece_begin(struct building *b)
{
    clock_gettime(CLOCK_MONOTONIC, &b->piece_start);
}

/* Pieces grow while they take little time, so that a signal is answered soon
 * at level 19 and raw copies still go in large steps. */
int building_piece_end(struct building *b)
{
    double seconds = seconds_since(&b->piece_start);

    if (seconds > 0.25 && b->piece_nbytes > PIECE_MIN_NBYTES)
        b->piece_nbytes /= 2;
    if (seconds < 0.06 && b->piece_nbytes < PIECE_MAX_NBYTES)
        b->piece_nbytes *= 2;
    return signals_pending() ? EXIT_FAILED : 0;
}

int building_end(struct building *b, int status)
{
    struct zr_error err;

    if (!status && !signals_pending())
        return zr_writer_close(b->writer, &err) == ZR_OK ? 0 : fail(&err);
    zr_writer_abort(b->writer);
    if (signals_pending())
        diag("%s: interrupted, nothing was made", b->path);
    return EXIT_FAILED;
}

int building_print(const char *path, uint64_t payload_nbytes)
{
    char payload[SIZE_TEXT_MAX], stored[SIZE_TEXT_MAX], shape[SHAPE_TEXT_MAX];
    struct zr_reader *r;
    struct zr_info info;
    int status = open_store(&r, path, NULL);

    if (status)
        return status;
    zr_reader_info(r, &info);
    printf("%s: %" PRIu64 " %s records of %s%s%s, %s, %s stored in %s\n", path, info.length,
           zr_geometry_name(info.geometry), info.dtype, info.geometry == ZR_DENSE ? " " : "",
           info.geometry == ZR_DENSE ? shape_text(info.ndim, info.item_shape, shape) : "",
           zr_codec_name(info.codec), size_text(payload_nbytes, payload),
           size_text(info.data_nbytes, stored));
    zr_reader_close(r);
    return 0;
}
