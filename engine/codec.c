/* SPDX-License-Identifier: MIT
 *
 * zstd contexts and dictionaries: one stored record in, one logical record out,
 * and the reverse.  Knows nothing of files.
 *
 * Decoding contexts belong to threads (about 160 kB each, freed with the
 * thread); encoding contexts to an encoder, since at high levels they are large
 * and should go when the writer goes.
 */
#define ZSTD_STATIC_LINKING_ONLY
#include <zdict.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <endian.h>
#include <pthread.h>
#include <stdlib.h>

#include "internal.h"

const char *zr_zstd_version(void)
{
    return ZSTD_versionString();
}

/* ---------------------------------------------------------------- decoding */

struct zri_decoder {
    int codec;
    ZSTD_DDict *ddict;
    unsigned dict_id;
};

static pthread_key_t dctx_key;
static bool has_key;
static pthread_once_t dctx_once = PTHREAD_ONCE_INIT;
static __thread ZSTD_DCtx *thread_dctx;

/* Other destructors of the thread may decode after this one, and get a new one. */
static void free_dctx(void *p)
{
    thread_dctx = NULL;
    ZSTD_freeDCtx(p);
}

static void make_key(void)
{
    has_key = pthread_key_create(&dctx_key, free_dctx) == 0;
}

static ZSTD_DCtx *get_dctx(void)
{
    if (!thread_dctx) {
        pthread_once(&dctx_once, make_key);
        thread_dctx = ZSTD_createDCtx();
        if (has_key) /* else it lives as long as the process */
            pthread_setspecific(dctx_key, thread_dctx);
    }
    return thread_dctx;
}

bool zri_dict_is_sound(const void *dict, size_t dict_nbytes)
{
    uint32_t magic = 0;
    memcpy(&magic, dict, dict_nbytes < sizeof magic ? 0 : sizeof magic);
    if (le32toh(magic) != ZSTD_MAGIC_DICTIONARY)
        return true; /* any other bytes serve as they are */
    size_t n = ZDICT_getDictHeaderSize(dict, dict_nbytes);
    return !ZDICT_isError(n) || ZSTD_getErrorCode(n) == ZSTD_error_memory_allocation;
}

struct zri_decoder *zri_decoder_new(int codec, const void *dict, size_t dict_nbytes)
{
    struct zri_decoder *d = calloc(1, sizeof *d);
    if (!d)
        return NULL;
    d->codec = codec;
    if (codec == ZR_ZSTD_DICT) {
        d->ddict = ZSTD_createDDict(dict, dict_nbytes);
        if (!d->ddict) {
            free(d);
            return NULL;
        }
        d->dict_id = ZSTD_getDictID_fromDDict(d->ddict);
    }
    return d;
}

void zri_decoder_free(struct zri_decoder *d)
{
    if (d)
        ZSTD_freeDDict(d->ddict);
    free(d);
}

static const char *reason(size_t zstd_result)
{
    return ZSTD_getErrorCode(zstd_result) == ZSTD_error_memory_allocation
               ? zri_out_of_memory
               : ZSTD_getErrorName(zstd_result);
}

const char *zri_decode(const struct zri_decoder *d, const void *src, size_t phys_nbytes, void *dst,
                       size_t logic_nbytes)
{
    if (d->codec == ZR_RAW) {
        if (phys_nbytes != logic_nbytes)
            return "stored and decoded sizes differ";
        memcpy(dst, src, logic_nbytes);
        return NULL;
    }
    unsigned long long content = ZSTD_getFrameContentSize(src, phys_nbytes);
    if (content == ZSTD_CONTENTSIZE_ERROR)
        return "not a zstd frame";
    if (content != ZSTD_CONTENTSIZE_UNKNOWN && content != logic_nbytes)
        return "frame content size differs from the record table";
    ZSTD_DCtx *dctx = get_dctx();
    if (!dctx)
        return zri_out_of_memory;
    size_t n = d->ddict
                   ? ZSTD_decompress_usingDDict(dctx, dst, logic_nbytes, src, phys_nbytes, d->ddict)
                   : ZSTD_decompressDCtx(dctx, dst, logic_nbytes, src, phys_nbytes);
    if (ZSTD_isError(n))
        return reason(n);
    return n == logic_nbytes ? NULL : "frame decodes to another length than the record table says";
}

const char *zri_decode_head(const struct zri_decoder *d, const void *src, size_t phys_nbytes,
                            void *dst, size_t nbytes)
{
    if (d->codec == ZR_RAW) {
        if (phys_nbytes < nbytes)
            return "record is too short";
        memcpy(dst, src, nbytes);
        return NULL;
    }
    ZSTD_DCtx *dctx = get_dctx();
    if (!dctx)
        return zri_out_of_memory;
    ZSTD_DCtx_reset(dctx, ZSTD_reset_session_and_parameters);
    if (d->ddict)
        ZSTD_DCtx_refDDict(dctx, d->ddict);
    ZSTD_inBuffer in = {src, phys_nbytes, 0};
    ZSTD_outBuffer out = {dst, nbytes, 0};
    const char *why = NULL;
    while (!why && out.pos < out.size) {
        size_t before_in = in.pos, before_out = out.pos;
        size_t n = ZSTD_decompressStream(dctx, &out, &in);
        if (ZSTD_isError(n))
            why = reason(n);
        else if (in.pos == before_in && out.pos == before_out)
            why = "record is too short";
    }
    ZSTD_DCtx_reset(dctx, ZSTD_reset_session_and_parameters);
    return why;
}

const char *zri_decoder_mismatch(const struct zri_decoder *d, const void *src, size_t phys_nbytes)
{
    unsigned frame_id = ZSTD_getDictID_fromFrame(src, phys_nbytes);
    if (d->ddict && frame_id && frame_id != d->dict_id)
        return "dictionary is not the one that the records were written with";
    return NULL;
}

/* ---------------------------------------------------------------- encoding */

struct zri_encoder_context {
    ZSTD_CCtx *cctx;
    struct zri_encoder_context *next; /* idle list of its encoder; under lock */
};

struct parameters {
    int level;
    int strategy;  /* 0: the level's */
    int min_match; /* 0: the level's */
    bool raw_literals;
};

struct zri_encoder {
    int codec;
    struct parameters parameters;
    ZSTD_CDict *cdict;
    pthread_mutex_t lock;
    struct zri_encoder_context *idle;
};

/* A match no longer than one item says little of items of 4 bytes and more: two
 * ids in a row, or more than one float, pack 1 to 4 % tighter at the same speed. */
static int default_min_match(const char *dtype)
{
    uint64_t itemsize = 0;
    if (zri_dtype_parse(dtype, &itemsize) || itemsize < 4)
        return 0;
    return dtype[1] == 'i' || dtype[1] == 'u' ? 7 : strchr("fcmM", dtype[1]) ? 5 : 0;
}

/* What `tune` means, measured on rows and paragraphs of real text as int32 ids and
 * on images, beside plain level 3 (README has the table).  Literals left
 * uncompressed read 1.5 to 2.2 times faster; level 12 then still packs tighter
 * than level 3 does with Huffman literals. */
static void set_parameters(struct zri_encoder *e, int level, int tune, const char *dtype)
{
    static const struct parameters plain[] = {
        [ZR_TUNE_DEFAULT] = {3, 0, 0, false},
        [ZR_TUNE_READ] = {12, 0, 0, true},
        [ZR_TUNE_WRITE] = {3, ZSTD_fast, 5, true},
    };
    static const struct parameters with_dict[] = {
        [ZR_TUNE_DEFAULT] = {19, 0, 0, false},
        [ZR_TUNE_READ] = {12, 0, 0, true},
        [ZR_TUNE_WRITE] = {3, 0, 0, true},
    };
    struct parameters *p = &e->parameters;
    *p = e->codec == ZR_ZSTD_DICT ? with_dict[tune] : plain[tune];
    if (level)
        *p = (struct parameters){level, 0, 0, tune != ZR_TUNE_DEFAULT};
    else if (e->codec == ZR_ZSTD && tune == ZR_TUNE_DEFAULT)
        p->min_match = default_min_match(dtype);
}

struct zri_encoder *zri_encoder_new(int codec, int level, int tune, const char *dtype,
                                    const void *dict, size_t dict_nbytes)
{
    struct zri_encoder *e = calloc(1, sizeof *e);
    if (!e)
        return NULL;
    e->codec = codec;
    pthread_mutex_init(&e->lock, NULL);
    set_parameters(e, level, tune, dtype);
    if (codec == ZR_ZSTD_DICT) {
        e->cdict = ZSTD_createCDict(dict, dict_nbytes, e->parameters.level);
        if (!e->cdict) {
            zri_encoder_free(e);
            return NULL;
        }
    }
    return e;
}

int zri_level_min(void)
{
    return ZSTD_minCLevel();
}

int zri_level_max(void)
{
    return ZSTD_maxCLevel();
}

static void free_context(struct zri_encoder_context *c)
{
    ZSTD_freeCCtx(c->cctx);
    free(c);
}

void zri_encoder_free(struct zri_encoder *e)
{
    if (!e)
        return;
    while (e->idle) {
        struct zri_encoder_context *c = e->idle;
        e->idle = c->next;
        free_context(c);
    }
    ZSTD_freeCDict(e->cdict);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

static struct zri_encoder_context *new_context(const struct zri_encoder *e)
{
    const struct parameters *p = &e->parameters;
    struct zri_encoder_context *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->cctx = ZSTD_createCCtx();
    if (!c->cctx ||
        ZSTD_isError(ZSTD_CCtx_setParameter(c->cctx, ZSTD_c_compressionLevel, p->level)) ||
        ZSTD_isError(ZSTD_CCtx_setParameter(c->cctx, ZSTD_c_strategy, p->strategy)) ||
        ZSTD_isError(ZSTD_CCtx_setParameter(c->cctx, ZSTD_c_minMatch, p->min_match)) ||
        ZSTD_isError(ZSTD_CCtx_setParameter(c->cctx, ZSTD_c_literalCompressionMode,
                                            p->raw_literals ? ZSTD_ps_disable : ZSTD_ps_auto)) ||
        ZSTD_isError(ZSTD_CCtx_refCDict(c->cctx, e->cdict))) {
        free_context(c);
        return NULL;
    }
    return c;
}

struct zri_encoder_context *zri_encoder_take(struct zri_encoder *e)
{
    pthread_mutex_lock(&e->lock);
    struct zri_encoder_context *c = e->idle;
    if (c)
        e->idle = c->next;
    pthread_mutex_unlock(&e->lock);
    return c ? c : new_context(e);
}

void zri_encoder_give(struct zri_encoder *e, struct zri_encoder_context *c)
{
    pthread_mutex_lock(&e->lock);
    c->next = e->idle;
    e->idle = c;
    pthread_mutex_unlock(&e->lock);
}

size_t zri_encode_bound(const struct zri_encoder *e, size_t logic_nbytes)
{
    return e->codec == ZR_RAW ? logic_nbytes : ZSTD_compressBound(logic_nbytes);
}

size_t zri_encode(struct zri_encoder_context *c, void *dst, size_t capacity, const void *src,
                  size_t nbytes, const char **why)
{
    size_t n = ZSTD_compress2(c->cctx, dst, capacity, src, nbytes);
    if (ZSTD_isError(n)) {
        *why = ZSTD_getErrorName(n);
        return 0;
    }
    return n;
}
