/* SPDX-License-Identifier: MIT
 *
 * Packed Ragged gathers (engine/gather.c): payloads end to end, dims apart.
 */
#include "support.h"

#define COUNT_RECORDS 300
#define BATCH 64

struct packed {
    uint64_t ids[BATCH];
    struct zr_part part;
};

static int gather_packed(struct zr_reader *r, struct packed *p, struct zr_error *err)
{
    int rc = zr_gather_packed(r, p->ids, BATCH, &p->part, err);
    if (rc)
        ck_assert(!p->part.data && !p->part.offsets && !p->part.shapes && !p->part.shape_offsets);
    return rc;
}

static void choose(struct packed *p, uint64_t seed)
{
    struct zr_sampler s = {
        .length = COUNT_RECORDS, .batch_size = BATCH, .seed = seed, .mode = ZR_IID};
    zr_sampler_batch(&s, 0, p->ids);
}

/* Every record equal to what the whole gather gives. */
static void check_packed(const struct packed *p)
{
    for (size_t i = 0; i < BATCH; i++) {
        uint64_t shape[ZR_MAX_NDIM], id = p->ids[i];
        uint32_t ndim = ragged_shape_of(id, shape);
        ck_assert_uint_eq(p->part.shape_offsets[i + 1] - p->part.shape_offsets[i], ndim);
        if (ndim)
            ck_assert_mem_eq(p->part.shapes + p->part.shape_offsets[i], shape, 8 * ndim);
        ck_assert_uint_eq(p->part.offsets[i + 1] - p->part.offsets[i], ragged_nbytes_of(id));
        ck_assert(
            is_record(id, (uint8_t *)p->part.data + p->part.offsets[i], ragged_nbytes_of(id)));
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
        zr_parts_release(&p.part, 1);
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

/* Records of one rank, of id + 1 elements each holding the id. */
static void make_vectors(const char *path, int codec)
{
    static uint8_t dict[4096];
    uint16_t values[COUNT_RECORDS];
    struct zr_writer_options o = {.geometry = ZR_RAGGED, .codec = codec, .dtype = "<u2"};
    struct zr_writer *w;
    if (codec == ZR_ZSTD_DICT) {
        o.dict = dict;
        o.dict_nbytes = train_dict(dict, sizeof dict);
    }
    expect_ok(zr_writer_create(&w, path, &o, &err));
    for (uint64_t id = 0; id < COUNT_RECORDS; id++) {
        uint64_t n = id + 1;
        struct zr_item item = {values, &n, 1};
        for (uint64_t k = 0; k < n; k++)
            values[k] = (uint16_t)id;
        expect_ok(zr_writer_append_ragged(w, &item, 1, &err));
    }
    expect_ok(zr_writer_close(w, &err));
}

START_TEST(records_of_one_rank_are_planned_from_the_table_alone)
{
    for (int codec = ZR_RAW; codec <= ZR_ZSTD_DICT; codec++) {
        make_vectors(at("s%d", codec), codec);
        struct zr_reader *r = open_store(at("s%d", codec));
        struct packed p;
        choose(&p, 3);
        expect_ok(gather_packed(r, &p, &err));
        for (size_t i = 0; i < BATCH; i++) {
            const uint16_t *values = (const uint16_t *)p.part.data + p.part.offsets[i] / 2;
            ck_assert_uint_eq(p.part.shapes[i], p.ids[i] + 1);
            ck_assert_uint_eq(p.part.offsets[i + 1] - p.part.offsets[i], 2 * (p.ids[i] + 1));
            for (uint64_t k = 0; k <= p.ids[i]; k++)
                ck_assert_uint_eq(values[k], p.ids[i]);
        }
        ck_assert(!r->mixed_ranks);
        zr_parts_release(&p.part, 1);
        zr_reader_close(r);
    }
}
END_TEST

START_TEST(records_of_other_ranks_are_noticed_and_remembered)
{
    for (int codec = ZR_RAW; codec <= ZR_ZSTD; codec++)
        for (uint64_t first = 0; first < 8; first++) { /* whatever the rank that is taken for all */
            make_store(at("s"), ZR_RAGGED, codec, COUNT_RECORDS);
            struct zr_reader *r = open_store(at("s"));
            struct packed p;
            choose(&p, first);
            p.ids[0] = first;
            expect_ok(gather_packed(r, &p, &err));
            check_packed(&p);
            ck_assert(r->mixed_ranks);
            zr_parts_release(&p.part, 1);
            zr_reader_close(r);
            remove_tree(at("s"));
        }
}
END_TEST

START_TEST(ids_out_of_range_and_dense_stores_are_refused)
{
    uint64_t id = COUNT_RECORDS;
    struct zr_part part;
    make_store(at("r"), ZR_RAGGED, ZR_RAW, COUNT_RECORDS);
    make_store(at("d"), ZR_DENSE, ZR_RAW, 3);
    struct zr_reader *r = open_store(at("r")), *d = open_store(at("d"));
    expect_error(zr_gather_packed(r, &id, 1, &part, &err), ZR_E_RANGE, "300");
    id = 0;
    expect_error(zr_gather_packed(d, &id, 1, &part, &err), ZR_E_GEOMETRY, "dense");
    expect_ok(zr_gather_packed(r, NULL, 0, &part, &err));
    ck_assert(part.nbytes == 0 && part.offsets[0] == 0 && part.shape_offsets[0] == 0);
    zr_parts_release(&part, 1);
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
    zr_parts_release(&p.part, 1);
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
        records_of_one_rank_are_planned_from_the_table_alone,
        records_of_other_ranks_are_noticed_and_remembered,
        ids_out_of_range_and_dense_stores_are_refused,
        a_file_cut_short_while_mapped_is_an_error_for_its_records_only,
        a_rank_that_the_sidecar_has_wrong_is_noticed,
    };
    return run_tests("packed", tests, COUNT(tests), 60);
}
