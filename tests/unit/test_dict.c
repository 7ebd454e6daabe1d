/* SPDX-License-Identifier: MIT
 *
 * Training dictionaries (engine/dict.c).
 */
#include "support.h"

enum { N = 3000 };

START_TEST(tiers_have_their_sizes_and_names)
{
    static const struct {
        const char *name;
        int tier;
        size_t dict, samples;
    } tiers[] = {{"fast", ZR_TIER_FAST, 32 << 10, 4 << 20},
                 {"balanced", ZR_TIER_BALANCED, 128 << 10, 16 << 20},
                 {"max", ZR_TIER_MAX, 1 << 20, 64 << 20}};
    for (size_t i = 0; i < COUNT(tiers); i++) {
        size_t dict, samples;
        ck_assert_int_eq(zr_tier_from_name(tiers[i].name), tiers[i].tier);
        zr_tier_sizes(tiers[i].tier, &dict, &samples);
        ck_assert_uint_eq(dict, tiers[i].dict);
        ck_assert_uint_eq(samples, tiers[i].samples);
    }
    ck_assert_int_eq(zr_tier_from_name("huge"), -1);
    ck_assert_int_eq(zr_tier_from_name(NULL), -1);
}
END_TEST

START_TEST(tunes_have_names)
{
    ck_assert_int_eq(zr_tune_from_name("default"), ZR_TUNE_DEFAULT);
    ck_assert_int_eq(zr_tune_from_name("read"), ZR_TUNE_READ);
    ck_assert_int_eq(zr_tune_from_name("write"), ZR_TUNE_WRITE);
    ck_assert_int_eq(zr_tune_from_name("Read"), -1);
    ck_assert_int_eq(zr_tune_from_name(NULL), -1);
}
END_TEST

START_TEST(a_trained_dictionary_makes_a_smaller_store)
{
    void *dict;
    size_t nbytes;
    for (int geometry = ZR_DENSE; geometry <= ZR_RAGGED; geometry++) {
        make_store(at("plain%d", geometry), geometry, ZR_ZSTD, N);
        struct zr_reader *r = open_store(at("plain%d", geometry));
        expect_ok(zr_dict_train_store(r, ZR_TIER_FAST, &dict, &nbytes, &err));
        ck_assert_uint_gt(nbytes, 200);
        ck_assert_uint_le(nbytes, 32 << 10);
        struct zr_writer_options o = options_for(geometry, ZR_ZSTD);
        o.codec = ZR_ZSTD_DICT;
        o.dict = dict;
        o.dict_nbytes = nbytes;
        o.level = 3;
        make_store_with(at("dict%d", geometry), &o, N);
        zr_buffer_free(dict); /* the writer had its own copy */
        struct zr_reader *d = open_store(at("dict%d", geometry));
        check_all_records(d, N);
        ck_assert_uint_lt(d->header.tail_off, r->header.tail_off);
        zr_reader_close(d);
        zr_reader_close(r);
    }
}
END_TEST

START_TEST(training_gives_the_same_dictionary_each_time)
{
    void *a, *b;
    size_t a_nbytes, b_nbytes;
    make_store(at("s"), ZR_DENSE, ZR_RAW, N);
    struct zr_reader *r = open_store(at("s"));
    expect_ok(zr_dict_train_store(r, ZR_TIER_FAST, &a, &a_nbytes, &err));
    expect_ok(zr_dict_train_store(r, ZR_TIER_FAST, &b, &b_nbytes, &err));
    ck_assert_uint_eq(a_nbytes, b_nbytes);
    ck_assert_mem_eq(a, b, a_nbytes);
    zr_buffer_free(a);
    zr_buffer_free(b);
    zr_reader_close(r);
}
END_TEST

START_TEST(too_few_samples_are_refused)
{
    void *dict = (void *)7;
    size_t nbytes = 7;
    for (uint64_t count = 0; count < 4; count++) {
        make_store(at("s%" PRIu64, count), ZR_DENSE, ZR_RAW, count);
        struct zr_reader *r = open_store(at("s%" PRIu64, count));
        expect_error(zr_dict_train_store(r, ZR_TIER_BALANCED, &dict, &nbytes, &err), ZR_E_TRAIN,
                     "train");
        ck_assert(dict == (void *)7 && nbytes == 7);
        zr_reader_close(r);
    }
}
END_TEST

START_TEST(samples_of_nothing_are_refused)
{
    char dict[1000];
    size_t sizes[20] = {0}, nbytes = 7;
    expect_error(zr_dict_train("", sizes, 0, dict, sizeof dict, &nbytes, &err), ZR_E_TRAIN,
                 "0 samples");
    expect_error(zr_dict_train("", sizes, 20, dict, sizeof dict, &nbytes, &err), ZR_E_TRAIN,
                 "20 samples");
    ck_assert_uint_eq(nbytes, 7);
}
END_TEST

START_TEST(a_dictionary_too_small_to_train_is_refused)
{
    uint8_t *samples = malloc(600 * ROW_NBYTES), dict[16];
    size_t sizes[600], nbytes;
    for (uint64_t i = 0; i < 600; i++) {
        fill_record(i, samples + i * ROW_NBYTES, ROW_NBYTES);
        sizes[i] = ROW_NBYTES;
    }
    expect_error(zr_dict_train(samples, sizes, 600, dict, sizeof dict, &nbytes, &err), ZR_E_TRAIN,
                 "");
    free(samples);
}
END_TEST

START_TEST(a_damaged_record_stops_training_by_name)
{
    void *dict = NULL;
    size_t nbytes;
    make_bare_store(at("s"), ZR_DENSE, ZR_ZSTD, N);
    struct zr_reader *r = open_store(at("s"));
    struct zr_location loc;
    expect_ok(zr_reader_locate(r, 1234, &loc, &err));
    flip(at("s/data.zr"), loc.data_off);
    expect_error(zr_dict_train_store(r, ZR_TIER_FAST, &dict, &nbytes, &err), ZR_E_CORRUPT,
                 "record 1234");
    ck_assert_ptr_null(dict);
    zr_reader_close(r);
}
END_TEST

START_TEST(samples_are_taken_over_the_whole_store_within_the_budget)
{
    enum { BIG = 300000 };
    uint64_t shape = BIG;
    struct zr_writer_options o = {.dtype = "|u1", .ndim = 1, .item_shape = &shape};
    struct zr_writer *w;
    void *dict;
    size_t nbytes;
    uint8_t *row = malloc(BIG);
    o.durability = ZR_NO_FSYNC;
    expect_ok(zr_writer_create(&w, at("s"), &o, &err));
    for (uint64_t i = 0; i < 100; i++) { /* 30 MB, of which fast reads 4 MiB */
        fill_record(i, row, BIG);
        expect_ok(zr_writer_append_dense(w, row, 1, &err));
    }
    expect_ok(zr_writer_close(w, &err));
    zr_buffer_set_limit((size_t)1 << 30);
    size_t idle_nbytes = zr_buffer_idle_nbytes();
    struct zr_reader *r = open_with(at("s"), ZR_ACCESS_READ, false);
    expect_ok(zr_dict_train_store(r, ZR_TIER_FAST, &dict, &nbytes, &err));
    zr_buffer_free(dict);
    ck_assert_uint_lt(zr_buffer_idle_nbytes(), idle_nbytes + (10 << 20));
    zr_reader_close(r);
    free(row);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        tiers_have_their_sizes_and_names,
        tunes_have_names,
        a_trained_dictionary_makes_a_smaller_store,
        training_gives_the_same_dictionary_each_time,
        too_few_samples_are_refused,
        samples_of_nothing_are_refused,
        a_dictionary_too_small_to_train_is_refused,
        a_damaged_record_stops_training_by_name,
        samples_are_taken_over_the_whole_store_within_the_budget,
    };
    return run_tests("dict", tests, COUNT(tests), 90);
}
