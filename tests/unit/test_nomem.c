/* SPDX-License-Identifier: MIT
 *
 * Stores when memory runs out at any allocation: ZR_E_NOMEM or success, and
 * nothing lost.
 */
#include <zstd.h>

#include "nomem.h"

/* ---------------------------------------------------------------- the work */

enum { TOTAL = 300 };

struct work {
    int (*run)(struct zr_error *err);
    const char *name;
};

static int geometry, codec;
static struct zr_writer_options options;
static uint8_t rows[TOTAL * ROW_NBYTES];
static struct zr_item items[TOTAL];
static const uint64_t item_shape = ROW_NBYTES;
static char store[100], fresh[100];
static uint64_t ids[TOTAL];
static uint8_t out[TOTAL * (ROW_NBYTES + 32)];

static int write_store(struct zr_error *err)
{
    struct zr_writer *w;
    int rc = zr_writer_create(&w, fresh, &options, err);
    if (rc)
        return rc;
    rc = geometry == ZR_DENSE ? zr_writer_append_dense(w, rows, TOTAL, err)
                              : zr_writer_append_ragged(w, items, TOTAL, err);
    if (!rc)
        return zr_writer_close(w, err);
    zr_writer_abort(w);
    return rc;
}

static int read_ragged(struct zr_reader *r, struct zr_error *err)
{
    static uint64_t offsets[TOTAL + 1];
    int rc = zr_gather_ragged_plan(r, ids, TOTAL, offsets, err);
    return rc ? rc : zr_gather_ragged(r, ids, TOTAL, out, offsets, err);
}

static int read_npy(struct zr_reader *r, struct zr_error *err)
{
    void *block;
    const void *npy;
    uint64_t nbytes;
    int rc = zr_record_npy_nbytes(r, 7, &nbytes, err);
    if (!rc)
        rc = zr_record_npy(r, 7, &block, &npy, &nbytes, err);
    if (rc)
        return rc;
    rc = zr_record_npy_into(r, 7, (void *)(uintptr_t)npy, nbytes, err);
    zr_buffer_free(block);
    return rc;
}

static int read_with(int access, struct zr_error *err)
{
    struct zr_reader_options o = {.access = access, .checksums = true};
    struct zr_reader *r;
    int rc = zr_reader_open(&r, store, &o, err);
    if (rc)
        return rc;
    rc = geometry == ZR_DENSE ? zr_gather_dense(r, ids, TOTAL, out, sizeof out, err)
                              : read_ragged(r, err);
    if (!rc)
        rc = read_npy(r, err);
    zr_reader_close(r);
    return rc;
}

static int read_mapped(struct zr_error *err)
{
    return read_with(ZR_ACCESS_MAP, err);
}

static int read_unmapped(struct zr_error *err)
{
    return read_with(ZR_ACCESS_READ, err);
}

static int verify_store(struct zr_error *err)
{
    struct zr_reader *r;
    struct zr_verify_result result;
    int rc = zr_reader_open(&r, store, NULL, err);
    if (rc)
        return rc;
    rc = zr_verify(r, NULL, NULL, NULL, &result, err);
    zr_reader_close(r);
    return rc ? rc : result.bad_count ? WRONG_BYTES : ZR_OK;
}

static int train_store(struct zr_error *err)
{
    struct zr_reader *r;
    void *dict;
    size_t nbytes;
    int rc = zr_reader_open(&r, store, NULL, err);
    if (rc)
        return rc;
    rc = zr_dict_train_store(r, ZR_TIER_FAST, &dict, &nbytes, err);
    if (!rc)
        zr_buffer_free(dict);
    zr_reader_close(r);
    return rc;
}

/* ---------------------------------------------------------------- the failures */

static void prepare(int new_geometry, int new_codec, bool is_bare)
{
    geometry = new_geometry;
    codec = new_codec;
    options = options_for(geometry, codec);
    options.no_sidecar = is_bare;
    options.level = codec == ZR_RAW ? 0 : 1;
    for (uint64_t i = 0; i < TOTAL; i++) {
        ids[i] = i;
        fill_record(i, rows + i * ROW_NBYTES, ROW_NBYTES);
        items[i] = (struct zr_item){rows + i * ROW_NBYTES, &item_shape, 1};
    }
    strcpy(store, at("%d%d%d", geometry, codec, is_bare));
    strcpy(fresh, at("fresh"));
    zr_set_thread_count(1);
    struct zr_error e;
    strcpy(fresh, store);
    ck_assert_int_eq(write_store(&e), ZR_OK);
    strcpy(fresh, at("fresh"));
}

static void check_outcome(const struct work *w, unsigned k, int rc, const struct zr_error *e)
{
    ck_assert_msg(rc == ZR_OK || rc == ZR_E_NOMEM, "%s, allocation %u: %s: %s", w->name, k,
                  zr_code_name(rc), rc < 0 ? e->message : "");
    ck_assert(rc == ZR_OK || (e->code == rc && e->message[0]));
    ck_assert_msg(rc == ZR_OK || !exists(fresh), "%s, allocation %u: left a store", w->name, k);
    remove_tree(fresh);
}

static void fail_each(const struct work *w, bool for_good)
{
    struct zr_error e = {0};
    ck_assert_int_eq(w->run(&e), ZR_OK); /* what is made once a process is there now */
    remove_tree(fresh);
    unsigned refused = 0;
    for (unsigned k = 1;; k++) {
        long before = count_live();
        e = (struct zr_error){0};
        plan_failure(k, for_good ? UINT32_MAX : k);
        int rc = w->run(&e);
        bool reached = atomic_load(&calls) >= k;
        plan_failure(0, 0);
        check_outcome(w, k, rc, &e);
        ck_assert_msg(count_live() == before, "%s, allocation %u: %ld blocks lost", w->name, k,
                      count_live() - before);
        if (!reached)
            break;
        refused += rc != ZR_OK;
    }
    ck_assert_uint_gt(refused, 2);
}

/* Before 1.5.6, libzstd itself crashes when memory runs out while it prepares a
 * dictionary for encoding (zstd#3847). */
static bool cdict_survives(void)
{
    return ZSTD_versionNumber() >= 10506;
}

static void fail_each_of(const struct work *w)
{
    for (int g = ZR_DENSE; g <= ZR_RAGGED; g++)
        for (int c = ZR_RAW; c <= ZR_ZSTD_DICT; c++)
            for (int is_bare = 0; is_bare < 2; is_bare++) {
                prepare(g, c, is_bare);
                if (c == ZR_ZSTD_DICT && w->run == write_store && !cdict_survives())
                    continue;
                fail_each(w, false);
                fail_each(w, true);
            }
}

#define OUT_OF_MEMORY_TEST(test_name, function)                                                    \
    START_TEST(test_name)                                                                          \
    {                                                                                              \
        skip_under(instrumented, "a sanitizer has its own allocator");                             \
        fail_each_of(&(struct work){function, #function});                                         \
    }                                                                                              \
    END_TEST

OUT_OF_MEMORY_TEST(writing_without_memory, write_store)
OUT_OF_MEMORY_TEST(reading_mapped_without_memory, read_mapped)
OUT_OF_MEMORY_TEST(reading_unmapped_without_memory, read_unmapped)
OUT_OF_MEMORY_TEST(verifying_without_memory, verify_store)

START_TEST(training_without_memory)
{
    skip_under(instrumented, "a sanitizer has its own allocator");
    skip_under(!cdict_survives(), "this libzstd crashes when memory runs out in training");
    fail_each_of(&(struct work){train_store, "train_store"});
}
END_TEST

START_TEST(a_buffer_without_memory_is_null)
{
    skip_under(instrumented, "a sanitizer has its own allocator");
    static const size_t sizes[] = {1, 4096, 1 << 20, 8 << 20};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        plan_failure(1, UINT32_MAX);
        void *p = zr_buffer_alloc(sizes[i]);
        plan_failure(0, 0);
        ck_assert_ptr_null(p);
    }
}
END_TEST

static void add_one(void *ctx, size_t i)
{
    (void)i;
    atomic_fetch_add((atomic_uint *)ctx, 1);
}

START_TEST(a_loop_without_memory_for_threads_still_runs)
{
    skip_under(instrumented, "a sanitizer has its own allocator");
    atomic_uint sum = 0;
    zr_set_thread_count(4);
    plan_failure(1, UINT32_MAX);
    zri_parallel(1000, 4, add_one, &sum);
    plan_failure(0, 0);
    ck_assert_uint_eq(atomic_load(&sum), 1000);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        writing_without_memory,
        reading_mapped_without_memory,
        reading_unmapped_without_memory,
        verifying_without_memory,
        training_without_memory,
        a_buffer_without_memory_is_null,
        a_loop_without_memory_for_threads_still_runs,
    };
    return run_tests("nomem", tests, COUNT(tests), 120);
}
