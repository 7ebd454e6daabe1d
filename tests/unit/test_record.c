/* SPDX-License-Identifier: MIT
 *
 * One record: its bytes, its shape, its .npy (engine/record.c).
 */
#include <zstd.h>

#include "support.h"

enum { N = 40 };

/* The same file into memory of the caller's, which is used to the byte (ASan sees more). */
static void check_npy_into(struct zr_reader *r, uint64_t id, const void *npy, uint64_t nbytes)
{
    uint8_t *out = malloc(nbytes);
    ck_assert(out);
    expect_ok(zr_record_npy_into(r, id, out, nbytes, &err));
    ck_assert_mem_eq(out, npy, nbytes);
    expect_error(zr_record_npy_into(r, id, out, nbytes - 1, &err), ZR_E_BUFFER, "its .npy has");
    expect_error(zr_record_npy_into(r, id, out, nbytes + 1, &err), ZR_E_BUFFER, "its .npy has");
    free(out);
}

/* The .npy of record id is the header and the bytes that it should be. */
static void check_npy(struct zr_reader *r, uint64_t id)
{
    void *block;
    const void *npy;
    uint64_t nbytes, known;
    struct zr_npy parsed;
    expect_ok(zr_record_npy_nbytes(r, id, &known, &err));
    expect_ok(zr_record_npy(r, id, &block, &npy, &nbytes, &err));
    ck_assert_uint_eq(nbytes, known);
    expect_ok(zr_npy_parse(npy, nbytes, nbytes, "npy", &parsed, &err));
    ck_assert_str_eq(parsed.dtype, "|u1");
    bool dense = r->schema.geometry == ZR_DENSE;
    uint64_t shape[ZR_MAX_NDIM] = {10, 20};
    ck_assert_uint_eq(parsed.ndim, dense ? 2 : ragged_shape_of(id, shape));
    ck_assert(!memcmp(parsed.shape, shape, parsed.ndim * sizeof *shape));
    ck_assert_uint_eq(parsed.data_off + parsed.data_nbytes, nbytes);
    ck_assert(is_record(id, (const uint8_t *)npy + parsed.data_off, parsed.data_nbytes));
    ck_assert_uint_eq((uintptr_t)block % 64, 0);
    check_npy_into(r, id, npy, nbytes);
    zr_buffer_free(block);
}

START_TEST(the_npy_of_every_kind_of_record_is_right)
{
    for (int geometry = ZR_DENSE; geometry <= ZR_RAGGED; geometry++)
        for (int codec = ZR_RAW; codec <= ZR_ZSTD_DICT; codec++)
            for (int is_bare = 0; is_bare < 2; is_bare++)
                for (int access = ZR_ACCESS_MAP; access <= ZR_ACCESS_READ; access++) {
                    const char *path = at("%d%d%d%d", geometry, codec, is_bare, access);
                    struct zr_writer_options o = options_for(geometry, codec);
                    o.no_sidecar = is_bare;
                    make_store_with(path, &o, N);
                    struct zr_reader *r = open_with(path, access, false);
                    for (int pass = 0; pass < 2; pass++) /* sizes are remembered */
                        for (uint64_t id = 0; id < N; id++)
                            check_npy(r, id);
                    zr_reader_close(r);
                }
}
END_TEST

START_TEST(ids_out_of_range_have_no_npy)
{
    static const uint64_t bad[] = {N, UINT64_MAX, (uint64_t)1 << 60};
    void *block = (void *)7;
    const void *npy = NULL;
    uint64_t nbytes = 7, out;
    for (int geometry = ZR_DENSE; geometry <= ZR_RAGGED; geometry++) {
        make_store(at("s%d", geometry), geometry, ZR_ZSTD, N);
        struct zr_reader *r = open_store(at("s%d", geometry));
        for (size_t i = 0; i < COUNT(bad); i++) {
            expect_error(zr_record_npy_nbytes(r, bad[i], &nbytes, &err), ZR_E_RANGE,
                         "out of range");
            expect_error(zr_record_npy(r, bad[i], &block, &npy, &nbytes, &err), ZR_E_RANGE, "");
            expect_error(zr_record_npy_into(r, bad[i], &out, 8, &err), ZR_E_RANGE, "");
        }
        ck_assert(block == (void *)7 && !npy && nbytes == 7);
        zr_reader_close(r);
    }
}
END_TEST

/* Replaces the stored bytes of the last record of a store without sidecar. */
static void replace_last(const void *stored, uint32_t phys, uint32_t logic)
{
    uint64_t off = file_nbytes(at("s/data.zr")), entry = 4096 + (N - 1) * 16;
    cut(at("s/data.zr"), off + phys);
    patch(at("s/data.zr"), off, stored, phys);
    patch64(at("s/meta.zr"), 8, off + phys);
    patch64(at("s/meta.zr"), entry, off);
    patch32(at("s/meta.zr"), entry + 8, phys);
    patch32(at("s/meta.zr"), entry + 12, logic);
}

/* Found by fuzzing: decoding the start alone refuses such windows, so the record
 * had contents but no size. */
START_TEST(a_frame_with_a_window_over_128_mib_has_a_size)
{
    uint8_t record[64] = {1, 0, 0, 0, 0, 0, 0, 0, 48}, stored[200];
    uint64_t nbytes;
    memset(record + 16, 'x', 48);
    ZSTD_CCtx *c = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(c, ZSTD_c_contentSizeFlag, 0);
    size_t n = ZSTD_compress2(c, stored, sizeof stored, record, sizeof record);
    ZSTD_freeCCtx(c);
    ck_assert(!ZSTD_isError(n) && !(stored[4] & 0x20)); /* it has a window byte */
    stored[5] = 20 << 3;                                /* 2^30 */
    make_bare_store(at("s"), ZR_RAGGED, ZR_ZSTD, N);
    replace_last(stored, (uint32_t)n, sizeof record);
    struct zr_reader *r = open_store(at("s"));
    expect_ok(zr_record_npy_nbytes(r, N - 1, &nbytes, &err));
    ck_assert_uint_eq(nbytes, 128 + 48);
    zr_reader_close(r);
}
END_TEST

START_TEST(a_damaged_prefix_is_refused_by_every_way_to_read)
{
    static const struct {
        uint64_t words[3];
        uint32_t logic;
    } damage[] = {{{65, 0, 0}, 24},         {{UINT64_MAX, 0, 0}, 24}, {{3, 1, 1}, 24},
                  {{2, 1, 1}, 24},          {{1, 7, 0}, 24},          {{1, 0, 0}, 24},
                  {{1, UINT64_MAX, 0}, 24}, {{1, 9, 0}, 24}};
    for (size_t i = 0; i < COUNT(damage); i++) {
        uint64_t nbytes, id = N - 1, offsets[2], out[8];
        void *block;
        const void *npy;
        make_bare_store(at("s"), ZR_RAGGED, ZR_RAW, N);
        replace_last(damage[i].words, damage[i].logic, damage[i].logic);
        for (int access = ZR_ACCESS_MAP; access <= ZR_ACCESS_READ; access++) {
            struct zr_reader *r = open_with(at("s"), access, false);
            expect_error(zr_record_npy_nbytes(r, id, &nbytes, &err), ZR_E_CORRUPT,
                         "record 39: the shape prefix");
            expect_error(zr_record_npy(r, id, &block, &npy, &nbytes, &err), ZR_E_CORRUPT,
                         "record 39: the shape prefix");
            expect_ok(zr_gather_ragged_plan(r, &id, 1, offsets, &err));
            ck_assert_uint_le(offsets[1], sizeof out);
            expect_error(zr_gather_ragged(r, &id, 1, out, offsets, &err), ZR_E_CORRUPT,
                         "record 39: the shape prefix");
            check_npy(r, N - 2);
            zr_reader_close(r);
        }
        remove_tree(at("s"));
    }
}
END_TEST

START_TEST(an_impossible_sidecar_row_is_not_believed)
{
    static const uint8_t rows[] = {3 * 63 + 2, 3 * 65 + 2, 255, 0};
    make_store(at("s"), ZR_RAGGED, ZR_ZSTD, N);
    for (size_t i = 0; i < COUNT(rows); i++) {
        patch(at("s/side.zr"), 64 + 5 * 5 + 4, &rows[i], 1);
        struct zr_reader *r = open_store(at("s"));
        ck_assert(r->has_sidecar);
        check_npy(r, 5);
        check_npy(r, 4);
        zr_reader_close(r);
    }
}
END_TEST

/* Eight more dims in a header one unit longer: a lie that changes no size. */
START_TEST(a_sidecar_row_that_is_wrong_but_for_the_size_does_no_harm)
{
    const uint8_t row = 3 * 11 + 3;
    make_store(at("s"), ZR_RAGGED, ZR_ZSTD, 8);
    patch(at("s/side.zr"), 64 + 7 * 5 + 4, &row, 1);
    struct zr_reader *r = open_store(at("s"));
    check_npy(r, 7);
    zr_reader_close(r);
}
END_TEST

static void check_unlike(struct zr_reader *r, uint64_t id)
{
    void *block;
    const void *npy;
    uint64_t nbytes;
    expect_error(zr_record_npy(r, id, &block, &npy, &nbytes, &err), ZR_E_CORRUPT, "record 5");
    expect_ok(zr_record_npy_nbytes(r, id, &nbytes, &err));
    uint8_t *out = malloc(nbytes);
    ck_assert(out);
    expect_error(zr_record_npy_into(r, id, out, nbytes, &err), ZR_E_CORRUPT, "record 5");
    free(out);
}

START_TEST(a_record_unlike_its_sidecar_row_is_damaged)
{
    /* Of rank 1 with 9 bytes, in a header of 128: another header, rank, or both. */
    static const uint8_t rows[] = {3 * 1 + 3, 3 * 2 + 2, 3 * 0 + 2};
    make_store(at("s"), ZR_RAGGED, ZR_ZSTD, 8);
    for (size_t i = 0; i < COUNT(rows); i++) {
        patch(at("s/side.zr"), 64 + 5 * 5 + 4, &rows[i], 1);
        struct zr_reader *r = open_store(at("s"));
        for (uint64_t id = 0; id < 8; id++)
            if (id == 5)
                check_unlike(r, id);
            else
                check_npy(r, id);
        zr_reader_close(r);
    }
}
END_TEST

START_TEST(a_truncated_record_fails_alone_and_by_name)
{
    void *block;
    const void *npy;
    uint64_t nbytes;
    for (int geometry = ZR_DENSE; geometry <= ZR_RAGGED; geometry++)
        for (int access = ZR_ACCESS_MAP; access <= ZR_ACCESS_READ; access++) {
            const char *path = at("%d%d", geometry, access);
            make_bare_store(path, geometry, ZR_ZSTD, N);
            struct zr_reader *r = open_with(path, access, false);
            struct zr_location last;
            expect_ok(zr_reader_locate(r, N - 1, &last, &err));
            cut(at("%d%d/data.zr", geometry, access), last.data_off + last.phys_nbytes - 1);
            expect_error(zr_record_npy(r, N - 1, &block, &npy, &nbytes, &err), ZR_E_TRUNCATED,
                         "data.zr: record 39: the file is cut short");
            if (geometry == ZR_RAGGED)
                expect_error(zr_record_npy_nbytes(r, N - 1, &nbytes, &err), ZR_E_TRUNCATED,
                             "data.zr: record 39: the file is cut short");
            for (uint64_t id = 0; id + 1 < N; id++)
                check_npy(r, id);
            zr_reader_close(r);
        }
}
END_TEST

START_TEST(a_read_error_names_record_and_place)
{
    void *block;
    const void *npy;
    uint64_t nbytes;
    struct zr_error e = {0};
    make_store(at("s"), ZR_DENSE, ZR_ZSTD, N);
    struct zr_reader *r = open_with(at("s"), ZR_ACCESS_READ, false);
    int fd = open(at("s"), O_RDONLY | O_DIRECTORY); /* reading a folder fails: EISDIR */
    ck_assert(dup2(fd, r->data.fd) == r->data.fd);
    ck_assert_int_eq(zr_record_npy(r, 7, &block, &npy, &nbytes, &e), ZR_E_IO);
    ck_assert_uint_eq(e.record, 7);
    ck_assert_uint_ne(e.offset, UINT64_MAX);
    ck_assert_int_eq(e.sys_errno, EISDIR);
    ck_assert_ptr_nonnull(strstr(e.message, "data.zr: record 7: cannot read: "));
    zr_reader_close(r);
    close(fd);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        the_npy_of_every_kind_of_record_is_right,
        ids_out_of_range_have_no_npy,
        a_frame_with_a_window_over_128_mib_has_a_size,
        a_damaged_prefix_is_refused_by_every_way_to_read,
        an_impossible_sidecar_row_is_not_believed,
        a_sidecar_row_that_is_wrong_but_for_the_size_does_no_harm,
        a_record_unlike_its_sidecar_row_is_damaged,
        a_truncated_record_fails_alone_and_by_name,
        a_read_error_names_record_and_place,
    };
    return run_tests("record", tests, COUNT(tests), 60);
}
