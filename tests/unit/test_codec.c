/* SPDX-License-Identifier: MIT
 *
 * One record to its stored bytes and back (engine/codec.c).
 */
#include <pthread.h>
#include <zstd.h>

#include "support.h"

enum { CAPACITY = 200000 };

static uint8_t dict[4096];
static size_t dict_nbytes;
static uint8_t logical[100000], stored[CAPACITY], decoded[100000];

static size_t encode_with(int codec, int level, int tune, size_t nbytes)
{
    const char *why = NULL;
    struct zri_encoder *e = zri_encoder_new(codec, level, tune, "<i4", dict, dict_nbytes);
    struct zri_encoder_context *c = zri_encoder_take(e);
    ck_assert_uint_le(zri_encode_bound(e, nbytes), CAPACITY);
    size_t n = zri_encode(c, stored, zri_encode_bound(e, nbytes), logical, nbytes, &why);
    ck_assert_msg(n > 0, "%s", why);
    zri_encoder_give(e, c);
    zri_encoder_free(e);
    return n;
}

static size_t encode(int codec, size_t nbytes)
{
    return encode_with(codec, 0, ZR_TUNE_DEFAULT, nbytes);
}

static struct zri_decoder *decoder(int codec)
{
    struct zri_decoder *d = zri_decoder_new(codec, dict, dict_nbytes);
    ck_assert_ptr_nonnull(d);
    return d;
}

static const int codecs[] = {ZR_ZSTD, ZR_ZSTD_DICT};
static const size_t sizes[] = {1, 9, 100, 4096, 100000};

static void prepare(void)
{
    dict_nbytes = train_dict(dict, sizeof dict);
    fill_record(3, logical, sizeof logical);
}

START_TEST(records_decode_to_what_they_were)
{
    prepare();
    for (size_t k = 0; k < COUNT(codecs); k++) {
        struct zri_decoder *d = decoder(codecs[k]);
        for (size_t i = 0; i < COUNT(sizes); i++) {
            size_t n = encode(codecs[k], sizes[i]);
            memset(decoded, 0, sizeof decoded);
            ck_assert_ptr_null(zri_decode(d, stored, n, decoded, sizes[i]));
            ck_assert_mem_eq(decoded, logical, sizes[i]);
        }
        zri_decoder_free(d);
    }
}
END_TEST

START_TEST(every_tune_and_extreme_level_decodes)
{
    const int levels[] = {0, 1, 3, zri_level_max(), -1, -100, zri_level_min()};
    prepare();
    for (size_t k = 0; k < COUNT(codecs); k++) {
        struct zri_decoder *d = decoder(codecs[k]);
        for (int tune = ZR_TUNE_DEFAULT; tune <= ZR_TUNE_WRITE; tune++)
            for (size_t i = 0; i < COUNT(levels); i++) {
                size_t n = encode_with(codecs[k], levels[i], tune, 4096);
                ck_assert_ptr_null(zri_decode(d, stored, n, decoded, 4096));
                ck_assert_mem_eq(decoded, logical, 4096);
            }
        zri_decoder_free(d);
    }
}
END_TEST

/* Token ids as in text: few common ones, many rare ones, phrases that come again. */
static void fill_tokens(size_t nbytes)
{
    uint64_t x = 88172645463325252u;
    for (size_t i = 0; i + 12 <= nbytes; i += 4) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        uint32_t id = (uint32_t)(x >> 40) >> (x % 19);
        memcpy(logical + i, &id, 4);
        if (i >= 256 && x % 7 == 0) {
            memcpy(logical + i, logical + i - 16 * (1 + x % 15), 12);
            i += 8;
        }
    }
}

START_TEST(the_default_packs_no_worse_than_plain_level_3)
{
    static const size_t lengths[] = {600, 2048, 16384, 16388, 98304};
    fill_tokens(sizeof logical);
    for (size_t i = 0; i < COUNT(lengths); i++) {
        size_t plain = encode_with(ZR_ZSTD, 3, ZR_TUNE_DEFAULT, lengths[i]);
        ck_assert_uint_le(encode_with(ZR_ZSTD, 0, ZR_TUNE_DEFAULT, lengths[i]), plain);
    }
}
END_TEST

START_TEST(raw_is_the_bytes_and_of_the_same_length)
{
    struct zri_decoder *d = decoder(ZR_RAW);
    ck_assert_ptr_null(zri_decode(d, "abc", 3, decoded, 3));
    ck_assert_mem_eq(decoded, "abc", 3);
    ck_assert_ptr_nonnull(zri_decode(d, "abc", 3, decoded, 2));
    zri_decoder_free(d);
}
END_TEST

START_TEST(a_frame_of_another_length_than_the_table_says_is_refused)
{
    prepare();
    struct zri_decoder *d = decoder(ZR_ZSTD);
    size_t n = encode(ZR_ZSTD, 4096);
    ck_assert_ptr_nonnull(strstr(zri_decode(d, stored, n, decoded, 4095), "content size"));
    ck_assert_ptr_nonnull(strstr(zri_decode(d, stored, n, decoded, 4097), "content size"));
    zri_decoder_free(d);
}
END_TEST

static size_t encode_without_size(size_t nbytes, bool checksum)
{
    ZSTD_CCtx *c = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(c, ZSTD_c_contentSizeFlag, 0);
    ZSTD_CCtx_setParameter(c, ZSTD_c_checksumFlag, checksum);
    size_t n = ZSTD_compress2(c, stored, CAPACITY, logical, nbytes);
    ck_assert(!ZSTD_isError(n));
    ZSTD_freeCCtx(c);
    return n;
}

START_TEST(a_frame_without_content_size_must_still_have_the_length)
{
    prepare();
    struct zri_decoder *d = decoder(ZR_ZSTD);
    size_t n = encode_without_size(4096, false);
    ck_assert_ptr_null(zri_decode(d, stored, n, decoded, 4096));
    ck_assert_mem_eq(decoded, logical, 4096);
    ck_assert_ptr_nonnull(zri_decode(d, stored, n, decoded, 4097));
    ck_assert_ptr_nonnull(zri_decode(d, stored, n, decoded, 4095));
    zri_decoder_free(d);
}
END_TEST

START_TEST(a_frame_with_its_own_checksum_is_taken_and_compared)
{
    prepare();
    struct zri_decoder *d = decoder(ZR_ZSTD);
    size_t n = encode_without_size(4096, true);
    ck_assert_ptr_null(zri_decode(d, stored, n, decoded, 4096));
    stored[n - 1] ^= 1;
    ck_assert_ptr_nonnull(zri_decode(d, stored, n, decoded, 4096));
    zri_decoder_free(d);
}
END_TEST

START_TEST(a_frame_cut_anywhere_is_refused)
{
    prepare();
    struct zri_decoder *d = decoder(ZR_ZSTD);
    size_t n = encode(ZR_ZSTD, 500);
    for (size_t k = 0; k < n; k++) {
        uint8_t *copy = malloc(k + 1);
        memcpy(copy, stored, k);
        ck_assert_ptr_nonnull(zri_decode(d, copy, k, decoded, 500));
        free(copy);
    }
    zri_decoder_free(d);
}
END_TEST

START_TEST(bytes_that_are_no_frame_are_refused)
{
    struct zri_decoder *d = decoder(ZR_ZSTD);
    ck_assert_ptr_nonnull(strstr(zri_decode(d, "nonsense", 8, decoded, 8), "zstd frame"));
    ck_assert_ptr_nonnull(zri_decode(d, "", 0, decoded, 8));
    zri_decoder_free(d);
}
END_TEST

START_TEST(the_head_alone_can_be_decoded)
{
    prepare();
    for (size_t k = 0; k < COUNT(codecs); k++) {
        struct zri_decoder *d = decoder(codecs[k]);
        size_t n = encode(codecs[k], sizeof logical);
        memset(decoded, 0xee, sizeof decoded);
        ck_assert_ptr_null(zri_decode_head(d, stored, n, decoded, 520));
        ck_assert_mem_eq(decoded, logical, 520);
        ck_assert_int_eq(decoded[520], 0xee);
        ck_assert_ptr_null(zri_decode(d, stored, n, decoded, sizeof logical));
        ck_assert_mem_eq(decoded, logical, sizeof logical);
        zri_decoder_free(d);
    }
}
END_TEST

START_TEST(the_head_of_a_record_that_is_too_short_is_refused)
{
    prepare();
    struct zri_decoder *d = decoder(ZR_ZSTD), *raw = decoder(ZR_RAW);
    size_t n = encode(ZR_ZSTD, 100);
    ck_assert_ptr_nonnull(zri_decode_head(d, stored, n, decoded, 101));
    ck_assert_ptr_nonnull(zri_decode_head(d, stored, n - 5, decoded, 100));
    ck_assert_ptr_nonnull(zri_decode_head(d, "nonsense", 8, decoded, 100));
    ck_assert_ptr_nonnull(zri_decode_head(raw, "abc", 3, decoded, 4));
    zri_decoder_free(d);
    zri_decoder_free(raw);
}
END_TEST

START_TEST(decoding_after_a_failure_works)
{
    prepare();
    struct zri_decoder *d = decoder(ZR_ZSTD);
    for (int i = 0; i < 5; i++) {
        size_t n = encode(ZR_ZSTD, 4096);
        ck_assert_ptr_nonnull(zri_decode(d, stored, n - 1, decoded, 4096));
        ck_assert_ptr_nonnull(zri_decode_head(d, stored, 9, decoded, 100));
        ck_assert_ptr_null(zri_decode(d, stored, n, decoded, 4096));
    }
    zri_decoder_free(d);
}
END_TEST

START_TEST(the_wrong_dictionary_is_noticed_by_its_number)
{
    prepare();
    struct zri_decoder *right = decoder(ZR_ZSTD_DICT);
    size_t n = encode(ZR_ZSTD_DICT, 4096);
    dict[4] ^= 0xff; /* the dictionary's id */
    struct zri_decoder *wrong = decoder(ZR_ZSTD_DICT);
    ck_assert_ptr_null(zri_decoder_mismatch(right, stored, n));
    ck_assert_ptr_nonnull(zri_decoder_mismatch(wrong, stored, n));
    ck_assert_ptr_nonnull(zri_decode(wrong, stored, n, decoded, 4096));
    zri_decoder_free(right);
    zri_decoder_free(wrong);
}
END_TEST

START_TEST(a_dictionary_may_be_any_bytes)
{
    fill_record(3, logical, sizeof logical);
    fill_record(1, dict, 500);
    dict_nbytes = 500;
    struct zri_decoder *d = decoder(ZR_ZSTD_DICT);
    size_t n = encode(ZR_ZSTD_DICT, 4096);
    ck_assert_ptr_null(zri_decoder_mismatch(d, stored, n));
    ck_assert_ptr_null(zri_decode(d, stored, n, decoded, 4096));
    ck_assert_mem_eq(decoded, logical, 4096);
    zri_decoder_free(d);
}
END_TEST

START_TEST(a_broken_dictionary_is_refused)
{
    prepare();
    ck_assert_ptr_null(zri_decoder_new(ZR_ZSTD_DICT, dict, 40));
    ck_assert_ptr_null(zri_encoder_new(ZR_ZSTD_DICT, 0, 0, "", dict, 40));
}
END_TEST

START_TEST(contexts_are_used_again)
{
    struct zri_encoder *e = zri_encoder_new(ZR_ZSTD, 0, 0, "", NULL, 0);
    struct zri_encoder_context *a = zri_encoder_take(e), *b = zri_encoder_take(e);
    ck_assert_ptr_ne(a, b);
    zri_encoder_give(e, a);
    ck_assert_ptr_eq(zri_encoder_take(e), a);
    zri_encoder_give(e, a);
    zri_encoder_give(e, b);
    zri_encoder_free(e);
    zri_encoder_free(NULL);
    zri_decoder_free(NULL);
}
END_TEST

static struct zri_decoder *shared;
static size_t stored_nbytes;
static pthread_key_t late_key;

static void *decode_often(void *arg)
{
    uint8_t *out = malloc(4096);
    for (int i = 0; i < 200; i++)
        if (zri_decode(shared, stored, stored_nbytes, out, 4096) || memcmp(out, logical, 4096))
            abort();
    free(out);
    return arg;
}

START_TEST(threads_share_a_decoder)
{
    pthread_t t[6];
    prepare();
    stored_nbytes = encode(ZR_ZSTD_DICT, 4096);
    shared = decoder(ZR_ZSTD_DICT);
    for (size_t i = 0; i < COUNT(t); i++)
        ck_assert(!pthread_create(&t[i], NULL, decode_often, NULL));
    for (size_t i = 0; i < COUNT(t); i++)
        pthread_join(t[i], NULL);
    zri_decoder_free(shared);
}
END_TEST

static void decode_late(void *arg)
{
    decode_often(arg);
}

/* The key of the program is destroyed after the one of the decoding context. */
static void *decode_then_exit(void *arg)
{
    decode_often(arg);
    pthread_key_create(&late_key, decode_late);
    pthread_setspecific(late_key, (void *)1);
    return NULL;
}

START_TEST(decoding_while_a_thread_ends_is_sound)
{
    pthread_t t;
    prepare();
    stored_nbytes = encode(ZR_ZSTD, 4096);
    shared = decoder(ZR_ZSTD);
    ck_assert(!pthread_create(&t, NULL, decode_then_exit, NULL));
    pthread_join(t, NULL);
    zri_decoder_free(shared);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        records_decode_to_what_they_were,
        every_tune_and_extreme_level_decodes,
        the_default_packs_no_worse_than_plain_level_3,
        raw_is_the_bytes_and_of_the_same_length,
        a_frame_of_another_length_than_the_table_says_is_refused,
        a_frame_without_content_size_must_still_have_the_length,
        a_frame_with_its_own_checksum_is_taken_and_compared,
        a_frame_cut_anywhere_is_refused,
        bytes_that_are_no_frame_are_refused,
        the_head_alone_can_be_decoded,
        the_head_of_a_record_that_is_too_short_is_refused,
        decoding_after_a_failure_works,
        the_wrong_dictionary_is_noticed_by_its_number,
        a_dictionary_may_be_any_bytes,
        a_broken_dictionary_is_refused,
        contexts_are_used_again,
        threads_share_a_decoder,
        decoding_while_a_thread_ends_is_sound,
    };
    return run_tests("codec", tests, COUNT(tests), 60);
}
