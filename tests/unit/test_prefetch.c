/* SPDX-License-Identifier: MIT
 *
 * Hints about records wanted soon (engine/prefetch.c): no hint may do harm.
 */
#include <sys/mman.h>

#include "support.h"

enum { N = 5000 };

static void prefetch_everything(struct zr_reader *r)
{
    static const uint64_t far[] = {0, N, UINT64_MAX, UINT64_MAX / 16, 1, N - 1, N - 1, 0};
    static uint64_t all[N];
    for (uint64_t i = 0; i < N; i++)
        all[i] = (i * 7) % N;
    zr_prefetch(r, all, 0);
    zr_prefetch(r, NULL, 0);
    zr_prefetch(r, all, 1);
    zr_prefetch(r, far, COUNT(far));
    for (size_t i = 0; i < COUNT(far); i++)
        zr_prefetch(r, &far[i], 1);
    for (uint64_t i = 0; i < N; i++)
        all[i] = i;
    zr_prefetch(r, all, N);
}

START_TEST(hints_of_any_ids_are_harmless)
{
    for (int geometry = ZR_DENSE; geometry <= ZR_RAGGED; geometry++)
        for (int codec = ZR_RAW; codec <= ZR_ZSTD; codec++)
            for (int access = ZR_ACCESS_MAP; access <= ZR_ACCESS_READ; access++) {
                const char *path = at("%d%d%d", geometry, codec, access);
                make_store(path, geometry, codec, N);
                struct zr_reader *r = open_with(path, access, false);
                prefetch_everything(r);
                check_all_records(r, N);
                zr_reader_close(r);
            }
}
END_TEST

START_TEST(hints_on_an_empty_store_are_harmless)
{
    make_store(at("s"), ZR_DENSE, ZR_RAW, 0);
    struct zr_reader *r = open_store(at("s"));
    prefetch_everything(r);
    zr_reader_close(r);
}
END_TEST

START_TEST(hints_on_truncated_files_are_harmless)
{
    skip_lost_mappings();
    make_store(at("s"), ZR_DENSE, ZR_RAW, N);
    struct zr_reader *r = open_store(at("s"));
    cut(at("s/data.zr"), 1000);
    prefetch_everything(r);
    cut(at("s/meta.zr"), 5000);
    prefetch_everything(r);
    expect_ok(gather_one(r, 0, &err));
    expect_error(gather_one(r, N - 1, &err), ZR_E_TRUNCATED, "");
    prefetch_everything(r);
    zr_reader_close(r);
}
END_TEST

START_TEST(hints_on_damaged_entries_are_harmless)
{
    make_bare_store(at("s"), ZR_DENSE, ZR_ZSTD, N);
    for (uint64_t id = 0; id < N; id += 3)
        patch64(at("s/meta.zr"), 4096 + 16 * id, UINT64_MAX - id);
    struct zr_reader *r = open_store(at("s"));
    prefetch_everything(r);
    expect_ok(gather_one(r, 1, &err));
    zr_reader_close(r);
}
END_TEST

static size_t resident_pages(const struct zr_reader *r)
{
    static unsigned char state[1 << 16];
    size_t pages = (r->data.nbytes + 4095) / 4096, count = 0;
    ck_assert_uint_le(pages, sizeof state);
    ck_assert(!mincore((void *)(uintptr_t)r->data.bytes, r->data.nbytes, state));
    for (size_t i = 0; i < pages; i++)
        count += state[i] & 1;
    return count;
}

START_TEST(a_hint_brings_cold_records_into_memory)
{
    static uint64_t ids[N];
    make_store(at("s"), ZR_DENSE, ZR_RAW, N);
    int fd = open(at("s/data.zr"), O_RDWR);
    fsync(fd);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    struct zr_reader *r = open_store(at("s"));
    bool warm = resident_pages(r) > 0;
    if (warm)
        zr_reader_close(r);
    skip_under(warm, "this filesystem does not drop its cache");
    for (uint64_t i = 0; i < N; i++)
        ids[i] = i;
    zr_prefetch(r, ids, N);
    for (int i = 0; i < 500 && resident_pages(r) < r->data.nbytes / 4096; i++)
        usleep(10000);
    ck_assert_uint_ge(resident_pages(r), r->data.nbytes / 4096);
    zr_reader_close(r);
    close(fd);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        hints_of_any_ids_are_harmless,          hints_on_an_empty_store_are_harmless,
        hints_on_truncated_files_are_harmless,  hints_on_damaged_entries_are_harmless,
        a_hint_brings_cold_records_into_memory,
    };
    return run_tests("prefetch", tests, COUNT(tests), 60);
}
