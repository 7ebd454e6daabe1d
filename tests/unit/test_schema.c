/* SPDX-License-Identifier: MIT
 *
 * dtype strings, shapes, and the MsgPack map of the page (engine/schema.c).
 */
#include "support.h"

START_TEST(itemsizes_are_numpys)
{
    static const struct {
        const char *dtype;
        uint64_t itemsize;
    } sound[] = {{"|b1", 1},          {"|i1", 1},
                 {"|u1", 1},          {"<i2", 2},
                 {">i4", 4},          {"<u8", 8},
                 {"<f2", 2},          {"<f4", 4},
                 {">f8", 8},          {"<f16", 16},
                 {"<c8", 8},          {"<c16", 16},
                 {"<c32", 32},        {"|S1", 1},
                 {"|S1000", 1000},    {"<U3", 12},
                 {">U1", 4},          {"|V7", 7},
                 {"<M8", 8},          {"<M8[ns]", 8},
                 {">m8[D]", 8},       {"<M8[25s]", 8},
                 {"<m8[generic]", 8}, {"<M8[ms]", 8},
                 {"<m8[as]", 8},      {"|V2147483648", 2147483648}};
    for (size_t i = 0; i < COUNT(sound); i++) {
        uint64_t n = 0;
        expect_ok(zr_dtype_itemsize(sound[i].dtype, &n, &err));
        ck_assert_uint_eq(n, sound[i].itemsize);
    }
}
END_TEST

START_TEST(object_structured_and_zero_size_dtypes_are_refused)
{
    static const char *const bad[] = {"|O",
                                      "O",
                                      "|O8",
                                      "",
                                      "<",
                                      "<f",
                                      "f4",
                                      "=f4",
                                      "!f4",
                                      "float32",
                                      "<f3",
                                      "<f12",
                                      "<i3",
                                      "<i16",
                                      "<i0",
                                      "|S0",
                                      "<U0",
                                      "|V0",
                                      "|b2",
                                      "<c4",
                                      "<c64",
                                      "<f4 ",
                                      " <f4",
                                      "<f4,<f4",
                                      "(2,)<f4",
                                      "[('a', '<f4')]",
                                      "<M8[xs]",
                                      "<M8[ns",
                                      "<M8ns]",
                                      "<M8[]",
                                      "<M8[ns]x",
                                      "<M4[ns]",
                                      "<M8[n]",
                                      "<f99999999999999999999",
                                      "|V2147483649",
                                      "<U536870913",
                                      "|f4",
                                      "|U3",
                                      "<f-4",
                                      "<f+4",
                                      "<x4",
                                      "<i4\n"};
    for (size_t i = 0; i < COUNT(bad); i++) {
        uint64_t n = 77;
        expect_error(zr_dtype_itemsize(bad[i], &n, &err), ZR_E_SCHEMA, "dtype");
        ck_assert_uint_eq(n, 77);
    }
    expect_error(zr_dtype_itemsize(NULL, &(uint64_t){0}, &err), ZR_E_SCHEMA, "no dtype");
}
END_TEST

START_TEST(the_refusal_of_objects_says_objects)
{
    expect_error(zr_dtype_itemsize("|O", &(uint64_t){0}, &err), ZR_E_SCHEMA, "object");
}
END_TEST

START_TEST(a_dtype_longer_than_its_field_is_refused)
{
    char dtype[200];
    memset(dtype, '1', sizeof dtype);
    memcpy(dtype, "|S", 2);
    dtype[sizeof dtype - 1] = 0;
    expect_error(zr_dtype_itemsize(dtype, &(uint64_t){0}, &err), ZR_E_SCHEMA, "too long");
}
END_TEST

START_TEST(shape_products_that_wrap_are_refused)
{
    const uint64_t wraps[] = {(uint64_t)1 << 32, (uint64_t)1 << 32};
    const uint64_t empty[] = {(uint64_t)1 << 32, (uint64_t)1 << 32, 0};
    uint64_t n = 77;
    ck_assert(!zri_shape_nbytes(2, wraps, 1, &n));
    ck_assert(!zri_shape_nbytes(1, wraps, (uint64_t)1 << 32, &n));
    ck_assert_uint_eq(n, 77);
    ck_assert(zri_shape_nbytes(3, empty, 8, &n) && n == 0);
    ck_assert(zri_shape_nbytes(0, NULL, 8, &n) && n == 8);
}
END_TEST

static void check_round_trip(int geometry, const char *dtype, uint32_t ndim, const uint64_t *shape)
{
    struct zri_schema s, back;
    uint8_t buf[ZRI_SCHEMA_MAX];
    size_t nbytes;
    ck_assert_ptr_null(zri_schema_set(&s, geometry, dtype, ndim, shape));
    ck_assert_ptr_null(zri_schema_encode(&s, buf, &nbytes));
    ck_assert_ptr_null(zri_schema_decode(&back, buf, nbytes));
    ck_assert_int_eq(back.geometry, geometry);
    ck_assert_str_eq(back.dtype, dtype);
    ck_assert_uint_eq(back.itemsize, s.itemsize);
    ck_assert_uint_eq(back.row_nbytes, s.row_nbytes);
    if (geometry == ZR_RAGGED)
        return;
    ck_assert_uint_eq(back.ndim, ndim);
    ck_assert(!ndim || !memcmp(back.shape, shape, ndim * sizeof *shape));
}

START_TEST(dtypes_are_spelt_as_numpy_spells_them)
{
    static const char *const spelt[][2] = {{"<u1", "|u1"}, {">b1", "|b1"}, {"<S5", "|S5"},
                                           {">V3", "|V3"}, {">i4", ">i4"}, {"<U2", "<U2"}};
    struct zri_schema s;
    for (size_t i = 0; i < COUNT(spelt); i++) {
        ck_assert_ptr_null(zri_schema_set(&s, ZR_RAGGED, spelt[i][0], 0, NULL));
        ck_assert_str_eq(s.dtype, spelt[i][1]);
    }
    ck_assert_ptr_nonnull(zri_schema_set(&s, ZR_RAGGED, "<i04", 0, NULL));
}
END_TEST

START_TEST(schemas_read_back)
{
    uint64_t shape[63];
    for (uint32_t i = 0; i < 63; i++)
        shape[i] = 1;
    check_round_trip(ZR_DENSE, "<f4", 0, NULL);
    check_round_trip(ZR_DENSE, "<f4", 63, shape);
    shape[0] = 70000;
    shape[5] = 200;
    check_round_trip(ZR_DENSE, ">u2", 9, shape);
    check_round_trip(ZR_RAGGED, "<M8[ns]", 0, NULL);
}
END_TEST

START_TEST(encoding_is_byte_for_byte_what_other_programs_write)
{
    static const char dense[] = "\x82\xa5"
                                "dtype\xa3|u1\xaaitem_shape\x93\x20\xcc\xc8\xcd\x01\x00";
    static const char ragged[] = "\x81\xa5"
                                 "dtype\xa3<i4";
    const uint64_t shape[] = {32, 200, 256};
    uint8_t buf[ZRI_SCHEMA_MAX];
    struct zri_schema s;
    size_t nbytes;
    zri_schema_set(&s, ZR_DENSE, "|u1", 3, shape);
    ck_assert_ptr_null(zri_schema_encode(&s, buf, &nbytes));
    ck_assert_uint_eq(nbytes, sizeof dense - 1);
    ck_assert_mem_eq(buf, dense, nbytes);
    zri_schema_set(&s, ZR_RAGGED, "<i4", 0, NULL);
    ck_assert_ptr_null(zri_schema_encode(&s, buf, &nbytes));
    ck_assert_uint_eq(nbytes, sizeof ragged - 1);
    ck_assert_mem_eq(buf, ragged, nbytes);
}
END_TEST

START_TEST(records_that_no_store_may_have_are_refused)
{
    struct zri_schema s;
    const uint64_t over[] = {((uint64_t)1 << 31) + 1}, most[] = {(uint64_t)1 << 31},
                   zero[] = {3, 0};
    uint64_t wide[64];
    for (int i = 0; i < 64; i++)
        wide[i] = 1;
    ck_assert_ptr_null(zri_schema_set(&s, ZR_DENSE, "|u1", 1, most));
    ck_assert_ptr_nonnull(strstr(zri_schema_set(&s, ZR_DENSE, "|u1", 1, over), "2 GiB"));
    ck_assert_ptr_nonnull(strstr(zri_schema_set(&s, ZR_DENSE, "<u2", 1, most), "2 GiB"));
    ck_assert_ptr_nonnull(strstr(zri_schema_set(&s, ZR_DENSE, "|u1", 2, zero), "no bytes"));
    ck_assert_ptr_nonnull(strstr(zri_schema_set(&s, ZR_DENSE, "|u1", 64, wide), "64 dim"));
}
END_TEST

#define S(text, why)                                                                               \
    {                                                                                              \
        text, sizeof text - 1, why                                                                 \
    }

static const struct {
    const char *bytes;
    size_t nbytes;
    const char *why;
} refused[] = {
    S("", "not a map"),
    S("\xc0", "not a map"),
    S("\x92\xa5"
      "dtype\xa3<i4",
      "not a map"),
    S("\x80", "no dtype"),
    S("\x81\xaaitem_shape\x91\x03", "no dtype"),
    S("\x82\xa5"
      "dtype\xa3<i4",
      "not valid MsgPack"),
    S("\x81\xa5"
      "dtype",
      "not a string"),
    S("\x81\xa5"
      "dtype\xa3<i",
      "not a string"),
    S("\x81\xa5"
      "dtype\x04",
      "not a string"),
    S("\x81\xa5"
      "dtype\xa0",
      "not a NumPy dtype string"),
    S("\x81\xa5"
      "dtype\xc4\x03<i4",
      "not a string"),
    S("\x81\xa5"
      "dtype\xa4<i4\0",
      "not a NumPy dtype string"),
    S("\x81\xa5"
      "dtype\xa2|O",
      "object"),
    S("\x81\xa5"
      "dtype\x91\x92\xa1"
      "a\xa3<i4",
      "not a string"),
    S("\x81\xa5"
      "dtype\xa3|S0",
      "size"),
    S("\x81\x01\xa3<i4", "neither"),
    S("\x81\xa5"
      "Dtype\xa3<i4",
      "neither"),
    S("\x82\xa5"
      "dtype\xa3<i4\xa4size\x01",
      "neither"),
    S("\x82\xa5"
      "dtype\xa3<i4\xa5"
      "dtype\xa3<i4",
      "twice"),
    S("\x83\xa5"
      "dtype\xa3<i4\xaaitem_shape\x90\xaaitem_shape\x90",
      "twice"),
    S("\x81\xa5"
      "dtype\xa3<i4\xc0",
      "after its map"),
    S("\x81\xa5"
      "dtype\xa3<i4\0",
      "after its map"),
    S("\x82\xa5"
      "dtype\xa3<i4\xaaitem_shape\xc0",
      "not an array"),
    S("\x82\xa5"
      "dtype\xa3<i4\xaaitem_shape\xa1"
      "3",
      "not an array"),
    S("\x82\xa5"
      "dtype\xa3<i4\xaaitem_shape\x91\xff",
      "non-negative"),
    S("\x82\xa5"
      "dtype\xa3<i4\xaaitem_shape\x91\xc3",
      "non-negative"),
    S("\x82\xa5"
      "dtype\xa3<i4\xaaitem_shape\x91\xca\x40\0\0\0",
      "non-negative"),
    S("\x82\xa5"
      "dtype\xa3<i4\xaaitem_shape\x91\x91\x01",
      "non-negative"),
    S("\x82\xa5"
      "dtype\xa3<i4\xaaitem_shape\x92\x01",
      "non-negative"),
    S("\x82\xa5"
      "dtype\xa3<i4\xaaitem_shape\x91\0",
      "no bytes"),
    S("\x82\xa5"
      "dtype\xa3<i4\xaaitem_shape\x91\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
      "2 GiB"),
    S("\x82\xa5"
      "dtype\xa3<i4\xaaitem_shape\xdc\0\x40",
      "64 dim"),
    S("\x82\xa5"
      "dtype\xa3<i4\xaaitem_shape\xdc\xff\xff",
      "64 dim"),
    S("\x82\xa5"
      "dtype\xa3<i4\xaaitem_shape\xdd\xff\xff\xff\xff",
      "not an array"),
    S("\xdf\xff\xff\xff\xff", "not a map"),
    S("\xde\xff\xff", "not valid MsgPack"),
    S("\x81\xa5"
      "dtype\xdb\xff\xff\xff\xff",
      "not a string"),
    S("\x81\xa5"
      "dtype\xc6\xff\xff\xff\xff",
      "not a string"),
    S("\xc1", "not a map"),
    S("\x81\xc1", "not valid MsgPack"),
    S("\x81\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91"
      "\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\xc0",
      "not valid MsgPack"),
};

START_TEST(hostile_schemas_are_refused_with_the_reason)
{
    for (size_t i = 0; i < COUNT(refused); i++) {
        struct zri_schema s;
        uint8_t *copy = malloc(refused[i].nbytes + 1);
        memcpy(copy, refused[i].bytes, refused[i].nbytes);
        const char *why = zri_schema_decode(&s, copy, refused[i].nbytes);
        ck_assert_msg(why && strstr(why, refused[i].why), "case %zu (%s): %s", i, refused[i].why,
                      why ? why : "taken");
        free(copy);
    }
}
END_TEST

START_TEST(a_schema_cut_at_any_length_is_refused)
{
    const uint64_t shape[] = {32, 200, 70000};
    uint8_t buf[ZRI_SCHEMA_MAX];
    struct zri_schema s, back;
    size_t nbytes;
    zri_schema_set(&s, ZR_DENSE, "<M8[ns]", 3, shape);
    ck_assert_ptr_null(zri_schema_encode(&s, buf, &nbytes));
    for (size_t n = 0; n < nbytes; n++) {
        uint8_t *copy = malloc(n + 1);
        memcpy(copy, buf, n);
        ck_assert_ptr_nonnull(zri_schema_decode(&back, copy, n));
        free(copy);
    }
}
END_TEST

START_TEST(wider_msgpack_forms_of_the_same_schema_are_taken)
{
    static const char wide[] =
        "\xde\0\2\xd9\5dtype\xda\0\3<i4\xaaitem_shape\xdc\0\2\xcc\3\xcf\0\0\0\0"
        "\0\0\0\4";
    struct zri_schema s;
    ck_assert_ptr_null(zri_schema_decode(&s, (const uint8_t *)wide, sizeof wide - 1));
    ck_assert_uint_eq(s.ndim, 2);
    ck_assert_uint_eq(s.row_nbytes, 48);
}
END_TEST

START_TEST(names_and_numbers_translate_both_ways)
{
    for (int codec = ZR_RAW; codec <= ZR_ZSTD_DICT; codec++)
        ck_assert_int_eq(zr_codec_from_name(zr_codec_name(codec)), codec);
    ck_assert_int_eq(zr_codec_from_name("zstdict"), ZR_ZSTD_DICT);
    ck_assert_int_eq(zr_codec_from_name("zip"), -1);
    ck_assert_int_eq(zr_codec_from_name(NULL), -1);
    ck_assert_ptr_null(zr_codec_name(3));
    ck_assert_ptr_null(zr_codec_name(-1));
    ck_assert_str_eq(zr_geometry_name(ZR_DENSE), "dense");
    ck_assert_str_eq(zr_geometry_name(ZR_RAGGED), "ragged");
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        itemsizes_are_numpys,
        object_structured_and_zero_size_dtypes_are_refused,
        the_refusal_of_objects_says_objects,
        a_dtype_longer_than_its_field_is_refused,
        shape_products_that_wrap_are_refused,
        dtypes_are_spelt_as_numpy_spells_them,
        schemas_read_back,
        encoding_is_byte_for_byte_what_other_programs_write,
        records_that_no_store_may_have_are_refused,
        hostile_schemas_are_refused_with_the_reason,
        a_schema_cut_at_any_length_is_refused,
        wider_msgpack_forms_of_the_same_schema_are_taken,
        names_and_numbers_translate_both_ways,
    };
    return run_tests("schema", tests, COUNT(tests), 20);
}
