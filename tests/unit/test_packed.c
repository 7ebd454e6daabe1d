/* SPDX-License-Identifier: MIT
 *
 * Packed Ragged gathers (engine/gather.c): payloads end to end, dims apart.
 */
#include "support.h"

#define COUNT_RECORDS 300
#define BATCH 64

struct packed {
    uint64_t ids[BATCH], offsets[BATCH + 1], shape_offsets[BATCH + 1];
    uint8_t *values;
    uint64_t *shapes;
};

static int gather_packed(struct zr_reader *r, struct packed *p, struct zr_error *err)
{
    int rc = zr_gather_packed_plan(r, p->ids, BATCH, p->offsets, p->shape_offsets, err);
    if (rc)
        return rc;
    p->values = malloc(p->offsets[BATCH] + 1);
    p->shapes = malloc(8 * p->shape_offsets[BATCH] + 8);
    rc =
        zr_gather_packed(r, p->ids, BATCH, p->values, p->offsets, p->shapes, p->shape_offsets, err);
    if (rc) {
        free(p->values);
        free(p->shapes);
    }
    return rc;
}

static void choose(struct packed *p, uint64_t seed)
{
    struct zr_sampler s = {COUNT_RECORDS, BATCH, seed, ZR_IID};
    zr_sampler_batch(&s, 0, p->ids);
}

/* Every record equal to what the whole gather gives. */
static void check_packed(const struct packed *p)
{
    for (size_t i = 0; i < BATCH; i++) {
        uint64_t shape[ZR_MAX_NDIM], id = p->ids[i];
        uint32_t ndim = ragged_shape_of(id, shape);
        ck_assert_uint_eq(p->shape_offsets[i + 1] - p->shape_offsets[i], ndim);
        if (ndim)
            ck_assert_mem_eq(p->shapes + p->shape_offsets[i], shape, 8 * ndim);
        ck_assert_uint_eq(p->offsets[i + 1] - p->offsets[i], ragged_nbytes_of(id));
        ck_assert(is_record(id, p->values + p->offsets[i], ragged_nbytes_of(id)));
    }
}

static void check_store(const char *path, int access)
{
    struct zr_reader *r = open_with(path, access, true);
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct packed p;
        choose(&p, seed);
        expect_ok(gather_packed(r, &p, &err));
        check_packed(&p);
        free(p.values);
        free(p.shapes);
    }
    zr_reader_close(r);
}

START_TEST(every_codec_and_access_gives_the_records)
{
    for (int codec = ZR_RAW; codec <= ZR_ZSTD_DICT; codec++) {
        make_store(at("s%d", codec), ZR_RAGGED, codec, COUNT_RECORDS);
        make_bare_store(at("b%d", codec), ZR_RAGGED, codec, COUNT_RECORDS);
        for (int access = ZR_ACCESS_MAP; access <= ZR_ACCESS_READ; access++) {
            check_store(at("s%d", codec), access);
            check_store(at("b%d", codec), access);
        }
    }
}
END_TEST

START_TEST(ids_out_of_range_and_dense_stores_are_refused)
{
    uint64_t id = COUNT_RECORDS, offsets[2], shape_offsets[2];
    make_store(at("r"), ZR_RAGGED, ZR_RAW, COUNT_RECORDS);
    make_store(at("d"), ZR_DENSE, ZR_RAW, 3);
    struct zr_reader *r = open_store(at("r")), *d = open_store(at("d"));
    expect_error(zr_gather_packed_plan(r, &id, 1, offsets, shape_offsets, &err), ZR_E_RANGE, "300");
    id = 0;
    expect_error(zr_gather_packed_plan(d, &id, 1, offsets, shape_offsets, &err), ZR_E_GEOMETRY,
                 "dense");
    expect_ok(zr_gather_packed_plan(r, NULL, 0, offsets, shape_offsets, &err));
    ck_assert_uint_eq(offsets[0], 0);
    ck_assert_uint_eq(shape_offsets[0], 0);
    zr_reader_close(r);
    zr_reader_close(d);
}
END_TEST

START_TEST(a_file_cut_short_while_mapped_is_an_error_for_its_records_only)
{
    skip_lost_mappings();
    struct packed p;
    make_store(at("s"), ZR_RAGGED, ZR_RAW, COUNT_RECORDS);
    struct zr_reader *r = open_store(at("s"));
    cut(at("s/data.zr"), file_nbytes(at("s/data.zr")) / 2);
    for (size_t i = 0; i < BATCH; i++)
        p.ids[i] = COUNT_RECORDS - 1 - i;
    expect_error(gather_packed(r, &p, &err), ZR_E_TRUNCATED, "cut short");
    for (size_t i = 0; i < BATCH; i++)
        p.ids[i] = i;
    expect_ok(gather_packed(r, &p, &err));
    check_packed(&p);
    free(p.values);
    free(p.shapes);
    zr_reader_close(r);
}
END_TEST

START_TEST(a_rank_that_the_sidecar_has_wrong_is_noticed)
{
    struct packed p;
    make_store(at("s"), ZR_RAGGED, ZR_ZSTD, COUNT_RECORDS);
    for (uint64_t id = 0; id < COUNT_RECORDS; id++)
        patch(at("s/side.zr"), 64 + id * 5 + 4, id % 4 ? "\2" : "\5", 1);
    struct zr_reader *r = open_store(at("s"));
    choose(&p, 1);
    expect_error(gather_packed(r, &p, &err), ZR_E_CORRUPT, "record");
    zr_reader_close(r);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        every_codec_and_access_gives_the_records,
        ids_out_of_range_and_dense_stores_are_refused,
        a_file_cut_short_while_mapped_is_an_error_for_its_records_only,
        a_rank_that_the_sidecar_has_wrong_is_noticed,
    };
    return run_tests("packed", tests, COUNT(tests), 60);
}
