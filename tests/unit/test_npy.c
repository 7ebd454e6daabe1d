/* SPDX-License-Identifier: MIT
 *
 * .npy headers (engine/npy.c): written as numpy.save does, parsed with care.
 */
#include "support.h"

/* What NumPy 2.4 writes: text after the 10 first bytes, without padding. */
static const struct golden {
    const char *dtype;
    uint32_t ndim;
    uint64_t shape[9];
    size_t nbytes;
    const char *text;
} goldens[] = {
    {"<f4", 0, {0}, 128, "{'descr': '<f4', 'fortran_order': False, 'shape': (), }"},
    {"|u1",
     3,
     {32, 32, 3},
     128,
     "{'descr': '|u1', 'fortran_order': False, 'shape': (32, 32, 3), }"},
    {">i4", 1, {7}, 128, "{'descr': '>i4', 'fortran_order': False, 'shape': (7,), }"},
    {"<M8[ns]", 2, {2, 3}, 128, "{'descr': '<M8[ns]', 'fortran_order': False, 'shape': (2, 3), }"},
    {"|b1", 2, {0, 5}, 128, "{'descr': '|b1', 'fortran_order': False, 'shape': (0, 5), }"},
    {"<U3", 1, {4}, 128, "{'descr': '<U3', 'fortran_order': False, 'shape': (4,), }"},
    {"<c16",
     9,
     {1, 1, 1, 1, 1, 1, 1, 1, 1},
     128,
     "{'descr': '<c16', 'fortran_order': False, 'shape': (1, 1, 1, 1, 1, 1, 1, 1, 1), }"},
    {"|S5",
     1,
     {12345678901},
     128,
     "{'descr': '|S5', 'fortran_order': False, 'shape': (12345678901,), }"},
};

START_TEST(headers_are_what_numpy_writes)
{
    for (size_t i = 0; i < COUNT(goldens); i++) {
        const struct golden *g = &goldens[i];
        uint8_t buf[ZR_NPY_MAX_HEADER_NBYTES];
        size_t n = zr_npy_header(g->dtype, g->ndim, g->shape, buf), text = strlen(g->text);
        ck_assert_uint_eq(n, g->nbytes);
        ck_assert_uint_eq(zri_npy_header_nbytes(g->dtype, g->ndim, g->shape), n);
        ck_assert_mem_eq(buf, "\x93NUMPY\1\0", 8);
        ck_assert_uint_eq(buf[8] | buf[9] << 8, n - 10);
        ck_assert_mem_eq(buf + 10, g->text, text);
        for (size_t k = 10 + text; k < n - 1; k++)
            ck_assert_int_eq(buf[k], ' ');
        ck_assert_int_eq(buf[n - 1], '\n');
    }
}
END_TEST

START_TEST(rank_64_has_the_length_that_numpy_gives)
{
    uint64_t shape[64];
    uint8_t buf[ZR_NPY_MAX_HEADER_NBYTES];
    for (int i = 0; i < 64; i++)
        shape[i] = 2;
    ck_assert_uint_eq(zr_npy_header("<f8", 64, shape, buf), 320);
}
END_TEST

START_TEST(the_longest_header_fits_its_bound)
{
    uint64_t shape[ZR_MAX_NDIM];
    char dtype[ZR_DTYPE_MAX];
    uint8_t *buf = malloc(ZR_NPY_MAX_HEADER_NBYTES);
    memset(shape, 0xff, sizeof shape);
    memset(dtype, 'x', sizeof dtype);
    dtype[sizeof dtype - 1] = 0;
    ck_assert_uint_le(zr_npy_header(dtype, ZR_MAX_NDIM, shape, buf), ZR_NPY_MAX_HEADER_NBYTES);
    free(buf);
}
END_TEST

START_TEST(an_already_aligned_header_is_padded_by_64_more)
{
    uint8_t buf[ZR_NPY_MAX_HEADER_NBYTES];
    size_t seen = 0;
    for (uint64_t n = 1; n < 64; n++) {
        char dtype[ZR_DTYPE_MAX];
        snprintf(dtype, sizeof dtype, "%0*d", (int)n, 0);
        size_t length = zr_npy_header(dtype, 0, NULL, buf);
        size_t text = strlen("{'descr': '', 'fortran_order': False, 'shape': (), }") + n;
        ck_assert_uint_eq(length % 64, 0);
        ck_assert_uint_ge(length, 10 + text + 1);
        if ((10 + text + 1) % 64 == 0) {
            seen++;
            ck_assert_uint_eq(length, 10 + text + 1 + 64);
        }
    }
    ck_assert_uint_eq(seen, 1);
}
END_TEST

/* ---------------------------------------------------------------- parsing */

static size_t make(uint8_t *buf, int version, const char *dict)
{
    size_t n = strlen(dict), head = version == 1 ? 10 : 12;
    memcpy(buf, "\x93NUMPY", 6);
    buf[6] = (uint8_t)version;
    buf[7] = 0;
    buf[8] = (uint8_t)n;
    buf[9] = (uint8_t)(n >> 8);
    if (version > 1)
        buf[10] = buf[11] = 0;
    memcpy(buf + head, dict, n);
    return head + n;
}

#define GOOD "{'descr': '<i4', 'fortran_order': False, 'shape': (3, 4), }\n"

START_TEST(versions_1_to_3_are_parsed)
{
    for (int version = 1; version <= 3; version++) {
        uint8_t buf[256];
        struct zr_npy npy;
        size_t n = make(buf, version, GOOD);
        expect_ok(zr_npy_parse(buf, n, n + 48, "f", &npy, &err));
        ck_assert_str_eq(npy.dtype, "<i4");
        ck_assert_uint_eq(npy.itemsize, 4);
        ck_assert_uint_eq(npy.ndim, 2);
        ck_assert_uint_eq(npy.shape[0], 3);
        ck_assert_uint_eq(npy.shape[1], 4);
        ck_assert(!npy.fortran_order);
        ck_assert_uint_eq(npy.data_off, n);
        ck_assert_uint_eq(npy.data_nbytes, 48);
    }
}
END_TEST

static const char *const sound[] = {
    "{'descr': '<f8', 'fortran_order': True, 'shape': (2,), }",
    "{'shape': (2L,), 'fortran_order': False, 'descr': '<i8'}   \n",
    "{\"descr\": \"|u1\", \"fortran_order\": False, \"shape\": (0, 3)}",
    "{ 'descr' : '<M8[25s]' , 'fortran_order' : False , 'shape' : ( ) }",
    "{'descr': '|V7', 'fortran_order': False, 'shape': (1,), }",
};

START_TEST(python_literals_of_every_age_are_parsed)
{
    for (size_t i = 0; i < COUNT(sound); i++) {
        uint8_t buf[256];
        struct zr_npy npy;
        size_t n = make(buf, 1, sound[i]);
        expect_ok(zr_npy_parse(buf, n, 1 << 20, sound[i], &npy, &err));
        ck_assert_int_eq(npy.fortran_order, i == 0);
    }
}
END_TEST

static const struct {
    const char *dict, *why;
} refused[] = {
    {"{'descr': '|O', 'fortran_order': False, 'shape': (2,), }", "Python objects"},
    {"{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (2,), }", "structured"},
    {"{'descr': '<i3', 'fortran_order': False, 'shape': (2,), }", "size"},
    {"{'descr': '|S0', 'fortran_order': False, 'shape': (2,), }", "size"},
    {"{'descr': '<i4', 'fortran_order': 0, 'shape': (2,), }", "bool"},
    {"{'descr': '<i4', 'fortran_order': False, 'shape': (-2,), }", "non-negative"},
    {"{'descr': '<i4', 'fortran_order': False, 'shape': 2, }", "tuple"},
    {"{'descr': '<i4', 'fortran_order': False, 'shape': (2 3), }", "malformed"},
    {"{'descr': '<i4', 'fortran_order': False, 'shape': (2,)", "malformed"},
    {"{'descr': '<i4', 'fortran_order': False, }", "lacks"},
    {"{'descr': '<i4', 'descr': '<i4', 'fortran_order': False, 'shape': ()}", "twice"},
    {"{'descr': '<i4', 'fortran_order': False, 'shape': (), 'x': 1}", "unknown key"},
    {"{'descr': '<i4', 'fortran_order': False, 'shape': ()} + 1", "after the dict"},
    {"{'descr': '<i4', 'fortran_order': False, 'shape': (99999999999999999999,)}", "integers"},
    {"{'descr': '<i4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}", "too large"},
    {"{'descr': '<i4', 'fortran_order': False, 'shape': (1000000,)}", "cut short"},
    {"[]", "dict"},
    {"{'descr", "malformed"},
    {"   ", "dict"},
};

START_TEST(what_a_store_cannot_hold_is_refused_by_name)
{
    for (size_t i = 0; i < COUNT(refused); i++) {
        uint8_t buf[256];
        struct zr_npy npy = {.ndim = 77};
        size_t n = make(buf, 1, refused[i].dict);
        expect_error(zr_npy_parse(buf, n, n + 100, "dir/x.npy", &npy, &err), ZR_E_NPY,
                     refused[i].why);
        expect_error(zr_npy_parse(buf, n, n + 100, "dir/x.npy", &npy, &err), ZR_E_NPY,
                     "dir/x.npy: ");
        ck_assert_uint_eq(npy.ndim, 77);
    }
}
END_TEST

START_TEST(a_file_cut_at_any_length_is_refused)
{
    uint8_t buf[256];
    struct zr_npy npy;
    size_t n = make(buf, 1, GOOD);
    for (size_t cut_at = 0; cut_at < n + 48; cut_at++) {
        uint8_t *copy = malloc(cut_at + 1);
        memcpy(copy, buf, cut_at < n ? cut_at : n);
        expect_error(zr_npy_parse(copy, cut_at < n ? cut_at : n, cut_at, "x", &npy, &err), ZR_E_NPY,
                     "x: ");
        free(copy);
    }
}
END_TEST

START_TEST(too_little_of_the_head_says_how_much_is_needed)
{
    uint8_t buf[256];
    size_t n = make(buf, 2, GOOD);
    for (size_t seen = 0; seen < n; seen++) {
        struct zr_npy npy = {0};
        uint8_t *copy = malloc(seen + 1);
        memcpy(copy, buf, seen);
        expect_error(zr_npy_parse(copy, seen, n + 48, "x.npy", &npy, &err), ZR_E_BUFFER, "x.npy");
        ck_assert_uint_eq(npy.data_off, seen < 12 ? 12 : n);
        free(copy);
    }
}
END_TEST

START_TEST(other_files_are_not_npy)
{
    uint8_t buf[256];
    struct zr_npy npy;
    size_t n = make(buf, 1, GOOD);
    buf[6] = 4;
    expect_error(zr_npy_parse(buf, n, n + 48, "x", &npy, &err), ZR_E_NPY, "version 4.0");
    buf[6] = 0;
    expect_error(zr_npy_parse(buf, n, n + 48, "x", &npy, &err), ZR_E_NPY, "version 0.0");
    buf[1] = 'M';
    expect_error(zr_npy_parse(buf, n, n + 48, "x", &npy, &err), ZR_E_NPY, "not a .npy file");
    n = make(buf, 2, GOOD);
    buf[10] = buf[11] = 0xff;
    expect_error(zr_npy_parse(buf, n, UINT64_MAX, "x", &npy, &err), ZR_E_NPY, "64 KiB");
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        headers_are_what_numpy_writes,
        rank_64_has_the_length_that_numpy_gives,
        the_longest_header_fits_its_bound,
        an_already_aligned_header_is_padded_by_64_more,
        versions_1_to_3_are_parsed,
        python_literals_of_every_age_are_parsed,
        what_a_store_cannot_hold_is_refused_by_name,
        a_file_cut_at_any_length_is_refused,
        too_little_of_the_head_says_how_much_is_needed,
        other_files_are_not_npy,
    };
    return run_tests("npy", tests, COUNT(tests), 20);
}
